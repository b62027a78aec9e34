//! Replies to ARP requests and Neighbor Solicitations on a card that is driven in user space: no
//! kernel answers for the scan's addresses there.
//!
//! Receivers queue the replies, and the first sending thread sends them between probes; the rate
//! does not cover them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use ::scan::{Advertiser, REPLY_MAX};
use port::TxQueue;
use sys::Result;

use super::record::Tap;

/// Maximum number of queued replies. Further ones are dropped: whoever asks, asks again.
const QUEUED_MAX: usize = 256;
/// Maximum number of replies sent at once, so that a flood of requests does not delay probes much.
const SENT_MAX: usize = 32;
/// Longest time until a reply is sent.
pub const WITHIN_NS: u64 = 5_000_000;

/// A reply.
pub struct Reply {
    bytes: [u8; REPLY_MAX],
    len: usize,
}

/// The replies that are to be sent.
pub struct Replies(Receiver<Reply>);

/// Answers received requests.
#[derive(Clone)]
pub struct Responder {
    advertiser: Advertiser,
    queue: SyncSender<Reply>,
}

impl Responder {
    /// A responder, and the end where its replies are sent.
    pub fn new(advertiser: Advertiser) -> (Self, Replies) {
        let (queue, replies) = sync_channel(QUEUED_MAX);
        let responder = Self { advertiser, queue };
        (responder, Replies(replies))
    }

    /// Whether a packet is a request for a MAC address; one for our addresses is answered.
    pub fn take(&self, packet: &[u8]) -> bool {
        if !Advertiser::is_request(packet) {
            return false;
        }
        let mut bytes = [0; REPLY_MAX];
        if let Some(len) = self.advertiser.reply(packet, &mut bytes) {
            // Dropped when the queue is full, and after the end.
            let _ = self.queue.try_send(Reply { bytes, len });
        }
        true
    }
}

impl Replies {
    /// Sends what is queued, and records it; returns the number of replies and their bytes.
    ///
    /// # Errors
    /// The device's.
    pub fn send(&self, tx: &mut TxQueue, mut tap: Option<&mut Tap>) -> Result<(u64, u64)> {
        let (mut packets, mut bytes) = (0, 0);
        for reply in self.0.try_iter().take(SENT_MAX) {
            let mut batch = tx.reserve(1)?;
            // Without a free buffer it is dropped.
            if !batch.write(&reply.bytes[..reply.len]) {
                break;
            }
            batch.submit()?;
            if let Some(tap) = &mut tap {
                tap.begin();
                tap.put(&reply.bytes[..reply.len]);
            }
            packets += 1;
            bytes += reply.len as u64;
        }
        if packets != 0 {
            tx.flush()?;
        }
        Ok((packets, bytes))
    }
}
