//! Receiving: the current packet stays in the device's memory until the next call.

use std::os::fd::RawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use port::Ready;
use runtime::in_place::{Advance, Reader, gather, tag_of};
use sys::Result;

use crate::header::Header;
use crate::settings::Wanted;

/// The receiving half of a ring.
pub struct Receiver {
    reader: Reader,
    wanted: Wanted,
    sampling: u32,
    /// Packets skipped since the last one that was returned.
    skipped: u32,
    if_index: u32,
    link_type: u16,
    /// The current packet if it is not in one piece: in several segments, or with its VLAN tag
    /// beside it.
    copy: Vec<u8>,
}

impl Receiver {
    /// Returns packets of a reader.
    pub fn new(reader: Reader, if_index: u32, link_type: u16) -> Self {
        Self {
            reader,
            wanted: Wanted::Both,
            sampling: 1,
            skipped: 0,
            if_index,
            link_type,
            copy: Vec::new(),
        }
    }

    /// Sets which packets are returned, and one in how many.
    pub fn select(&mut self, wanted: Wanted, sampling: u32) {
        self.wanted = wanted;
        self.sampling = sampling.max(1);
    }

    /// Moves to the next packet; false if there is none.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn advance(&mut self) -> Result<bool> {
        let Self {
            reader, skipped, ..
        } = self;
        let (wanted, sampling) = (self.wanted, self.sampling);
        let advance = reader.advance(|packet| {
            let is_wanted = match wanted {
                Wanted::Both => true,
                Wanted::Received => !packet.is_outgoing(),
                Wanted::Sent => packet.is_outgoing(),
            };
            *skipped += u32::from(is_wanted);
            is_wanted && *skipped >= sampling
        })?;
        let is_found = advance == Advance::Found;
        if is_found {
            *skipped = 0;
        }
        Ok(is_found)
    }

    /// The current packet; its bytes are valid until the next [`advance`](Self::advance).
    pub fn packet(&mut self) -> Option<(Header, &[u8])> {
        let Self { reader, copy, .. } = self;
        let packet = reader.packet()?;
        let tag = tag_of(&packet, self.link_type);
        let mut wire_len = packet.wire_len();
        let bytes = match tag {
            None if packet.is_whole() => packet.bytes(),
            _ => {
                wire_len = wire_len.saturating_add(gather(&packet, tag, copy));
                copy
            }
        };
        let header = Header {
            time_ns: packet.time_ns().unwrap_or_else(now_ns),
            cap_len: bytes.len() as u32,
            wire_len,
            is_outgoing: packet.is_outgoing(),
            if_index: self.if_index,
            hash: packet.rss_hash().unwrap_or(0),
        };
        Some((header, bytes))
    }

    /// Whether [`advance`](Self::advance) has packets without receiving.
    pub fn has_packet(&self) -> bool {
        self.reader.has_more()
    }

    /// Sleeps until there may be packets, at most `timeout`.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        self.reader.wait(timeout)
    }

    /// Updates the descriptor of [`fd`](Self::fd); the current packet stays valid.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn refresh(&mut self) -> Result<()> {
        self.reader.refresh()
    }

    /// A descriptor that is readable when there may be packets, after each
    /// [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// If no more descriptors can be opened.
    pub fn fd(&mut self) -> Result<Option<RawFd>> {
        self.reader.fd()
    }
}

/// The present time, for packets without a timestamp.
fn now_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_nanos() as u64)
}
