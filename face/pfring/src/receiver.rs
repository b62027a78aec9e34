//! Receiving: the current packet stays in the device's memory until the next call.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use port::{Packet, Ready, RxQueue};
use sys::Result;
use sys::poll::{self, Wanted as Poll};

use crate::header::Header;
use crate::settings::Wanted;

/// Maximum number of batches searched for a wanted packet by one call.
const BATCHES_MAX: usize = 64;

/// How often several queues are checked while all are silent: not every event makes a descriptor
/// readable.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same if a queue has no descriptor.
const NAP: Duration = Duration::from_millis(1);

/// The receiving half of a ring.
pub struct Receiver {
    queues: Vec<RxQueue>,
    /// The queue of the current batch.
    at: usize,
    /// First slot of the current packet, and of the one after it.
    current: usize,
    next: usize,
    wanted: Wanted,
    sampling: u32,
    /// Packets skipped since the last one that was returned.
    skipped: u32,
    if_index: u32,
    /// The current packet if it is not in one piece: in several segments, or with its VLAN tag
    /// beside it.
    copy: Vec<u8>,
}

impl Receiver {
    /// Wraps the queues, of which there is at least one.
    pub fn new(queues: Vec<RxQueue>, if_index: u32) -> Self {
        Self {
            queues,
            at: 0,
            current: 0,
            next: 0,
            wanted: Wanted::Both,
            sampling: 1,
            skipped: 0,
            if_index,
            copy: Vec::new(),
        }
    }

    /// Sets which packets are returned, and one in how many.
    pub fn select(&mut self, wanted: Wanted, sampling: u32) {
        self.wanted = wanted;
        self.sampling = sampling.max(1);
    }

    /// Moves to the next packet; `None` if there is none. The bytes are valid until the next call.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn packet(&mut self) -> Result<Option<(Header, &[u8])>> {
        if !self.advance()? {
            return Ok(None);
        }
        let Self { queues, copy, .. } = self;
        let Some((packet, _)) = queues[self.at].held(self.current) else {
            return Ok(None);
        };
        let vlan = packet.vlan();
        let mut wire_len = packet.wire_len();
        let bytes = match vlan {
            None if packet.is_whole() => packet.bytes(),
            _ => {
                wire_len += if vlan.is_some() { 4 } else { 0 };
                gather(&packet, copy);
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
        Ok(Some((header, bytes)))
    }

    /// Whether [`packet`](Self::packet) would return one without receiving.
    pub fn has_packet(&self) -> bool {
        self.queues[self.at].held(self.next).is_some()
    }

    /// Finds the next wanted packet.
    fn advance(&mut self) -> Result<bool> {
        for _ in 0..BATCHES_MAX {
            while let Some((packet, next)) = self.queues[self.at].held(self.next) {
                let is_wanted = match self.wanted {
                    Wanted::Both => true,
                    Wanted::Received => !packet.is_outgoing(),
                    Wanted::Sent => packet.is_outgoing(),
                };
                (self.current, self.next) = (self.next, next);
                if is_wanted {
                    self.skipped += 1;
                    if self.skipped >= self.sampling {
                        self.skipped = 0;
                        return Ok(true);
                    }
                }
            }
            if !self.receive()? {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Receives a batch from the next queue that has one.
    fn receive(&mut self) -> Result<bool> {
        for _ in 0..self.queues.len() {
            self.at = (self.at + 1) % self.queues.len();
            (self.current, self.next) = (0, 0);
            let batch = self.queues[self.at].receive()?;
            if !batch.is_empty() {
                batch.hold();
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sleeps until there may be packets, at most `timeout`.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        if let [queue] = &mut self.queues[..] {
            return queue.wait(timeout);
        }
        let start = Instant::now();
        loop {
            for queue in &mut self.queues {
                if !queue.arm()? {
                    return Ok(Ready::Packets);
                }
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(Ready::Timeout);
            }
            let fds: Vec<_> = self.queues.iter().filter_map(RxQueue::poll_fd).collect();
            let longest = match fds.len() == self.queues.len() {
                true => LOOK_EVERY,
                false => NAP,
            };
            let mut polls: Vec<_> = fds.iter().map(Poll::readable).collect();
            poll::wait(&mut polls, left.min(longest))?;
            if polls.iter().any(Poll::is_ready) {
                return Ok(Ready::Packets);
            }
            if left > longest {
                // So that a request to stop is seen.
                return Ok(Ready::Woken);
            }
        }
    }

    /// A descriptor that is readable when there may be packets, if one descriptor is enough.
    pub fn fd(&mut self) -> Option<std::os::fd::RawFd> {
        use std::os::fd::AsRawFd as _;
        match &mut self.queues[..] {
            [queue] => {
                let _ = queue.arm();
                queue.poll_fd().map(|fd| fd.as_raw_fd())
            }
            _ => None,
        }
    }
}

/// Copies a packet, with its VLAN tag where it was on the wire.
fn gather(packet: &Packet<'_>, to: &mut Vec<u8>) {
    to.clear();
    let mut segments = packet.segments();
    let first = segments.next().unwrap_or_default();
    match packet.vlan().zip(first.split_at_checked(12)) {
        Some((tag, (addresses, rest))) => {
            to.extend_from_slice(addresses);
            to.extend_from_slice(&tag.tpid.to_be_bytes());
            to.extend_from_slice(&tag.tci.to_be_bytes());
            to.extend_from_slice(rest);
        }
        None => to.extend_from_slice(first),
    }
    segments.for_each(|segment| to.extend_from_slice(segment));
}

/// The present time, for packets without a timestamp.
fn now_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_nanos() as u64)
}
