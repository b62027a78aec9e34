//! Receiving: messages are read into one piece of memory, in which the packets stay until their
//! batch is released.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ring::slot::Slot;
use ring::{Frame, Pool};
use sys::Result;
use sys::netfilter::{Netfilter, RECEIVE_LEN_MAX, Received};
use sys::netlink;
use sys::poll::{self, Wanted};

use super::messages::{self, Found, Kind};
use super::{GROUP_COUNT_MAX, Shared};
use crate::backend::clock::now_ns;
use crate::backend::keep::Keep;
use crate::options::{PortOptions, TimestampSource};
use crate::rx::{Filled, Ready, RxBackend};

/// Memory for what is received at once.
const MEMORY_LEN: usize = 4 * RECEIVE_LEN_MAX;

/// Reports of a full buffer that are read at once.
const OVERRUN_COUNT_MAX: u32 = 64;

/// The kernel's timer for logged packets counts hundredths of a second, and is late by ticks.
const TIMER_SLACK: Duration = Duration::from_millis(20);

pub(super) struct Rx {
    netfilter: Netfilter,
    kind: Kind,
    snaplen: u32,
    time: TimestampSource,
    memory: Box<[u8]>,
    /// Messages in it, before they are looked at.
    places: Vec<(u16, Range<usize>)>,
    /// Packets in it that were not delivered yet.
    waiting: VecDeque<Found>,
    /// Number of slots held by the program.
    borrowed: usize,
    /// The next number of each group.
    next: Vec<(u16, u32)>,
    /// The last queued packet that was accepted.
    accepted: u32,
    /// How long the kernel may gather packets before it hands them over.
    gathering: Duration,
    /// When nothing more was in the socket for the first time after the intake was stopped.
    stopped_at: Option<Instant>,
    /// Whether everything was received that was there when the intake was stopped.
    is_over: bool,
    keep: Keep,
    shared: Arc<Shared>,
}

impl Rx {
    pub fn new(
        netfilter: Netfilter,
        kind: Kind,
        options: &PortOptions,
        keep: Keep,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            netfilter,
            kind,
            snaplen: match options.snaplen {
                0 => u32::MAX,
                snaplen => snaplen,
            },
            time: options.timestamp,
            memory: vec![0; MEMORY_LEN].into(),
            places: Vec::new(),
            waiting: VecDeque::new(),
            borrowed: 0,
            next: Vec::with_capacity(GROUP_COUNT_MAX),
            accepted: 0,
            gathering: match kind {
                Kind::Log if !options.immediate => {
                    options.block_timeout.saturating_add(TIMER_SLACK)
                }
                _ => Duration::ZERO,
            },
            stopped_at: None,
            is_over: false,
            keep,
            shared,
        }
    }

    /// Receives what is there, about `max` packets. Nothing is in the memory any more.
    fn receive(&mut self, max: usize) -> Result<()> {
        let (mut used, mut overruns) = (0, 0);
        while self.waiting.len() < max && MEMORY_LEN - used >= RECEIVE_LEN_MAX {
            match self.netfilter.receive(&mut self.memory[used..])? {
                Received::Bytes(len) => {
                    self.read(used..used + len);
                    used += len.next_multiple_of(8);
                }
                // The kernel's numbers say how many packets are missing.
                Received::Overrun if overruns < OVERRUN_COUNT_MAX => overruns += 1,
                Received::Overrun => break,
                Received::Nothing => {
                    self.check_end();
                    break;
                }
            }
        }
        // They are copied: those that wait for a verdict continue.
        if let (Kind::Queue, Some(last)) = (self.kind, self.waiting.back()) {
            self.netfilter.accept_up_to(last.number)?;
            self.accepted = last.number;
        }
        Ok(())
    }

    /// Nothing is in the socket: after a stop that is the end, once what the kernel had gathered by
    /// then has arrived.
    fn check_end(&mut self) {
        if self.shared.is_stopped.load(Ordering::Acquire) {
            let since = self.stopped_at.get_or_insert_with(Instant::now);
            self.is_over = since.elapsed() >= self.gathering;
        }
    }

    /// Looks at the messages in a part of the memory.
    fn read(&mut self, part: Range<usize>) {
        let memory = &mut self.memory;
        let start = memory.as_ptr() as usize;
        let bytes = &memory[part];
        let place = |body: &[u8]| {
            let at = body.as_ptr() as usize - start;
            at..at + body.len()
        };
        self.places.clear();
        let found = netlink::split(bytes).map(|(message, body)| (message, place(body)));
        self.places.extend(found);
        let (mut seen, mut lost) = (0, 0);
        for (message, place) in self.places.drain(..) {
            let found = match messages::find(self.kind, message, memory, place) {
                Ok(Some(found)) => found,
                // Errors of verdicts for packets that are gone already, and the like.
                Ok(None) => continue,
                // Its number is missing in front of the next packet: it counts as lost.
                Err(()) => continue,
            };
            let missing = missing(&mut self.next, self.kind, &found);
            seen += 1 + missing;
            lost += missing;
            self.waiting.push_back(found);
        }
        self.shared.seen.add(seen);
        self.shared.lost.add(lost);
    }

    /// Whether the next packet has been received.
    fn is_ready(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn publish(&self) {
        let waiting = self.waiting.len() as u64;
        self.shared.waiting.store(waiting, Ordering::Relaxed);
    }
}

/// The number up to which all packets are accepted of which the last accepted one is this: the
/// kernel takes the difference of numbers as signed.
fn all_behind(accepted: u32) -> u32 {
    accepted.wrapping_add(i32::MAX.cast_unsigned())
}

/// Packets of the same group or queue between the last one and this one.
fn missing(next: &mut Vec<(u16, u32)>, kind: Kind, found: &Found) -> u64 {
    let known = next.iter().position(|(group, _)| *group == found.group);
    let at = known.unwrap_or(next.len());
    if known.is_none() && at < GROUP_COUNT_MAX {
        // Groups begin with 0, queues with 1.
        next.push((found.group, u32::from(kind == Kind::Queue)));
    }
    let Some((_, expected)) = next.get_mut(at) else {
        return 0;
    };
    let missing = found.number.wrapping_sub(*expected);
    // One that was overtaken is not missing any more, and was counted.
    if missing.cast_signed() < 0 {
        return 0;
    }
    *expected = found.number.wrapping_add(1);
    missing.into()
}

impl RxBackend for Rx {
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        if self.waiting.is_empty() && self.borrowed == 0 && !self.is_over {
            self.receive(max)?;
        }
        if self.waiting.is_empty() {
            return Ok(Filled::default());
        }
        let start = slots.len();
        let now_ns = now_ns(libc::CLOCK_REALTIME);
        let base = self.memory.as_mut_ptr();
        while slots.len() - start < max
            && let Some(found) = self.waiting.pop_front()
        {
            let cap_len = (found.place.len() as u32).min(self.snaplen);
            // SAFETY: the place is within the memory, which is this queue's, and stays as it is
            // while a slot is borrowed.
            let mut slot = unsafe {
                let data = NonNull::new_unchecked(base.add(found.place.start));
                Slot::over(data, cap_len, found.wire_len, 0)
            };
            if self.time != TimestampSource::None {
                slot.flags = Slot::TIME;
                slot.time_ns = match (self.time, found.time_ns) {
                    (TimestampSource::Batch, _) | (_, 0) => now_ns,
                    (_, time_ns) => time_ns,
                };
            }
            if found.is_outgoing {
                slot.flags |= Slot::OUTGOING;
            }
            slots.push(slot);
        }
        self.borrowed += slots.len() - start;
        self.publish();
        Ok(Filled::of(&slots[start..]))
    }

    fn release(&mut self, slots: &mut Vec<Slot>) {
        self.borrowed = self.borrowed.saturating_sub(slots.len());
        slots.clear();
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        // SAFETY: the slot's bytes are this queue's until release.
        unsafe { self.keep.copy(slot) }
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        if self.is_ready() {
            return Ok(Ready::Packets);
        }
        let mut wanted = [Wanted::readable(&self.netfilter)];
        poll::wait(&mut wanted, timeout)?;
        // What the kernel is still gathering may take longer than one wait.
        let is_gathering = self.stopped_at.is_some() && !timeout.is_zero();
        let may_come = wanted[0].is_ready() || is_gathering;
        Ok(match may_come && !self.is_over {
            true => Ready::Packets,
            false => Ready::Timeout,
        })
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.netfilter.as_fd())
    }

    fn arm(&mut self) -> Result<bool> {
        Ok(!self.is_ready())
    }

    fn pool(&self) -> Option<&Pool> {
        self.keep.pool()
    }

    fn gathers(&self) -> bool {
        !self.gathering.is_zero()
    }
}

impl Drop for Rx {
    /// Packets that still wait for a verdict would be dropped with the socket.
    fn drop(&mut self) {
        if self.kind != Kind::Queue {
            return;
        }
        // In this order, so that none is queued behind the verdict. Without the capability, nothing
        // can be done.
        let _ = self.netfilter.let_new_pass();
        let _ = self.netfilter.accept_up_to(all_behind(self.accepted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_packets_behind_the_last_one_are_accepted() {
        // As `nfq_id_after` of the kernel.
        let is_after = |id: u32, max: u32| id.wrapping_sub(max).cast_signed() > 0;
        for accepted in [0, 1, 1 << 31, (1 << 31) + 5, u32::MAX - 3, u32::MAX] {
            let max = all_behind(accepted);
            for next in [1, 2, 1 << 20, 1 << 30, i32::MAX.cast_unsigned()] {
                let id = accepted.wrapping_add(next);
                assert!(!is_after(id, max), "{accepted} {next}");
            }
        }
    }

    #[test]
    fn numbers_show_what_was_left_out() {
        let mut next = Vec::new();
        let mut missing = |kind, group, number| {
            let found = Found {
                group,
                number,
                ..Found::default()
            };
            missing(&mut next, kind, &found)
        };
        let log = [(5, 0), (5, 1), (7, 2), (5, 4), (7, 3), (5, 3), (5, 5)];
        let lost = log.map(|(group, number)| missing(Kind::Log, group, number));
        assert_eq!(lost, [0, 0, 2, 2, 0, 0, 0]);
        let queue = [1, 2, 5].map(|id| missing(Kind::Queue, 1, id));
        assert_eq!(queue, [0, 0, 2]);
        let mut next = vec![(0, u32::MAX)];
        let around = [u32::MAX, 0, 2].map(|number| {
            let found = Found {
                number,
                ..Found::default()
            };
            super::missing(&mut next, Kind::Log, &found)
        });
        assert_eq!(around, [0, 0, 1]);
    }
}
