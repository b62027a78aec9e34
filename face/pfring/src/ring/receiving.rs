//! Receiving: one packet, or several that were received together.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use port::Ready;

use super::{Outcome, Ring, lock};
use crate::header::Header;
use crate::receiver::Receiver;
use crate::status::{self, NO_PACKET, NOT_ENABLED, NOT_SUPPORTED};

fn failed(error: sys::Error) -> i32 {
    status::of(&error)
}

impl Ring {
    /// Passes the next packet to `use_it`; its bytes are valid until the next call. `None` if there
    /// is none, after the poll duration if it may wait.
    ///
    /// # Errors
    /// The port's, and `NOT_ENABLED`.
    pub fn receive<T>(
        &self,
        may_wait: bool,
        use_it: impl FnOnce(Header, &[u8]) -> T,
    ) -> Outcome<Option<T>> {
        let mut receiver = lock(&self.receiver);
        let receiver = receiver.as_mut().ok_or(NOT_ENABLED)?;
        if !self.find(receiver, may_wait)? {
            return Ok(None);
        }
        let found = receiver.packet(0);
        let found = found.map(|packet| {
            self.reflect(packet.whole);
            use_it(packet.header, packet.bytes)
        });
        // What fails now fails again with the next call.
        let _ = receiver.refresh();
        Ok(found)
    }

    /// Passes up to `max` packets to `use_it`, which were received together; their bytes are valid
    /// until the next call. Returns their number, 0 if there is none, after the poll duration if it
    /// may wait.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_burst(
        &self,
        max: usize,
        may_wait: bool,
        mut use_it: impl FnMut(usize, Header, &[u8]),
    ) -> Outcome<usize> {
        let mut receiver = lock(&self.receiver);
        let receiver = receiver.as_mut().ok_or(NOT_ENABLED)?;
        if max == 0 || !self.find(receiver, may_wait)? {
            return Ok(0);
        }
        let mut count = 0;
        while let Some(packet) = receiver.packet(count) {
            self.reflect(packet.whole);
            use_it(count, packet.header, packet.bytes);
            count += 1;
            if count == max || !receiver.advance_within() {
                break;
            }
        }
        let _ = receiver.refresh();
        Ok(count)
    }

    /// Moves to the next packet; false if there is none, after the poll duration if it may wait.
    fn find(&self, receiver: &mut Receiver, may_wait: bool) -> Outcome<bool> {
        receiver.select(self.selection.now());
        let longest = Duration::from_millis(self.poll_ms.load(Ordering::Relaxed).into());
        // Read only once there is no packet: most calls find one.
        let mut start = None;
        loop {
            if receiver.advance().map_err(failed)? {
                return Ok(true);
            }
            let left = match may_wait {
                true => longest.saturating_sub(start.get_or_insert_with(Instant::now).elapsed()),
                false => Duration::ZERO,
            };
            if left.is_zero() || self.is_stopped.load(Ordering::Relaxed) {
                receiver.refresh().map_err(failed)?;
                return Ok(false);
            }
            if receiver.wait(left).map_err(failed)? == Ready::End {
                return Err(status::UNKNOWN_ADAPTER);
            }
        }
    }

    /// The time of the packet that the next call returns, in nanoseconds since 1970. The last
    /// packet is no longer valid.
    ///
    /// # Errors
    /// `NO_PACKET` if there is none; as [`receive`](Self::receive).
    pub fn next_time_ns(&self) -> Outcome<u64> {
        let mut receiver = lock(&self.receiver);
        let receiver = receiver.as_mut().ok_or(NOT_ENABLED)?;
        receiver.select(self.selection.now());
        let time_ns = receiver.next_time_ns().map_err(failed)?;
        time_ns.ok_or(NO_PACKET)
    }

    /// Waits for packets; returns whether there may be some.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn poll(&self, timeout: Duration) -> Outcome<bool> {
        let mut receiver = lock(&self.receiver);
        let receiver = receiver.as_mut().ok_or(NOT_ENABLED)?;
        if receiver.has_packet() {
            return Ok(true);
        }
        match receiver.wait(timeout) {
            Ok(ready) => Ok(ready == Ready::Packets),
            Err(error) => Err(status::of(&error)),
        }
    }

    /// A descriptor to poll.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if there is none.
    pub fn fd(&self) -> Outcome<i32> {
        let mut receiver = lock(&self.receiver);
        let receiver = receiver.as_mut().ok_or(NOT_ENABLED)?;
        let fd = receiver.fd().map_err(failed)?;
        fd.ok_or(NOT_SUPPORTED)
    }
}
