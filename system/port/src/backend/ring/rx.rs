//! The receiving end of a queue.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ring::shared::{PeerEnd, Ready as State};
use ring::slot::Slot;
use ring::{Frame, Pool};
use sys::{Error, ErrorKind, Result};

use super::tx::WayBack;
use crate::account::Counter;
use crate::backend::keep::Keep;
use crate::options::PortOptions;
use crate::rx::{Filled, Ready, RxBackend};

/// Number of consecutive empty batches after which the owner is checked: one that was killed while
/// the reader spins.
const EMPTY_PER_CHECK: u32 = 4096;

/// Counters at the ring, independent of the queue's.
#[derive(Default)]
pub(super) struct Taken {
    /// Packets taken from the ring, including refused ones.
    pub packets: Counter,
    /// Of these, packets with an invalid descriptor.
    pub refused: Counter,
    /// Whether the intake was stopped.
    pub stopped: AtomicBool,
}

pub(super) struct Rx {
    peer: PeerEnd,
    cluster: String,
    snaplen: u32,
    keep: Keep,
    taken: Arc<Taken>,
    /// Packets that may still be received once the intake was stopped.
    left: Option<u64>,
    empty: u32,
    /// Copies of packets that a program changes, for the length of a batch.
    copies: Vec<u8>,
    /// Held for as long as the queue is read.
    _way_back: WayBack,
}

impl Rx {
    pub fn new(
        peer: PeerEnd,
        cluster: &str,
        options: &PortOptions,
        keep: Keep,
        taken: Arc<Taken>,
        way_back: WayBack,
    ) -> Self {
        Self {
            _way_back: way_back,
            peer,
            cluster: cluster.to_owned(),
            snaplen: match options.snaplen {
                0 => u32::MAX,
                snaplen => snaplen,
            },
            keep,
            taken,
            left: None,
            empty: 0,
            copies: Vec::new(),
        }
    }

    #[cold]
    fn gone(&self) -> Error {
        let what = format!("receive from ring:{}", self.cluster);
        let why = "the process that ran the cluster was killed";
        Error::new(ErrorKind::Gone, what, why).with_hint(format!(
            "start it again (barewire cluster run --name {}), then start this program again",
            self.cluster
        ))
    }

    #[cold]
    fn lost(&self) -> Error {
        let what = format!("receive from ring:{}", self.cluster);
        let why = "a device that the cluster needs is gone";
        Error::new(ErrorKind::Gone, what, why).with_hint(format!(
            "start the cluster again when the device is back (barewire cluster run --name {}), \
             then start this program again",
            self.cluster
        ))
    }

    #[cold]
    fn check(&mut self) -> Result<()> {
        self.empty = 0;
        match self.peer.wait(Duration::ZERO)? {
            State::Gone => Err(self.gone()),
            State::Lost => Err(self.lost()),
            _ => Ok(()),
        }
    }
}

impl RxBackend for Rx {
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        let mut max = max;
        if self.taken.stopped.load(Ordering::Relaxed) {
            // The owner continues to fill the ring: what is in it now is still received.
            let waiting = u64::from(self.peer.waiting());
            let left = self.left.get_or_insert(waiting);
            max = max.min(usize::try_from(*left).unwrap_or(max));
            if max == 0 {
                return Ok(Filled::default());
            }
        }
        let start = slots.len();
        let batch = self.peer.fill(slots, max, self.snaplen);
        if slots.len() == start && batch.refused == 0 {
            self.empty += 1;
            if self.empty >= EMPTY_PER_CHECK {
                self.check()?;
            }
            return Ok(Filled::default());
        }
        self.empty = 0;
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub((slots.len() - start) as u64 + batch.refused);
        }
        self.taken
            .packets
            .add(batch.filled.packets as u64 + batch.refused);
        if batch.refused != 0 {
            self.taken.refused.add(batch.refused);
        }
        Ok(batch.filled)
    }

    fn release(&mut self, slots: &mut Vec<Slot>) {
        self.peer.give_back(slots);
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        // SAFETY: the frame is this process's until the slot is released.
        unsafe { self.keep.copy(slot) }
    }

    fn make_writable(&mut self, slots: &mut [Slot]) {
        let len = slots.iter().map(|slot| slot.cap_len() as usize).sum();
        // Never reallocated below, so that earlier packets stay where they are.
        self.copies.clear();
        self.copies.reserve(len);
        for slot in slots {
            let at = self.copies.len();
            // SAFETY: as in `detach`.
            let bytes = unsafe {
                std::slice::from_raw_parts(slot.data().as_ptr(), slot.cap_len() as usize)
            };
            self.copies.extend_from_slice(bytes);
            // SAFETY: within the buffer or at its end. The bytes stay until the next call, which
            // the batch's borrow of the queue prevents until the slots are released; `release` uses
            // their tokens only.
            unsafe {
                let copy = NonNull::new_unchecked(self.copies.as_mut_ptr().add(at));
                slot.move_to(copy, slot.cap_len());
            }
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        Ok(match self.peer.wait(timeout)? {
            State::Packets => Ready::Packets,
            State::Timeout => Ready::Timeout,
            State::End => Ready::End,
            State::Lost => return Err(self.lost()),
            State::Gone => return Err(self.gone()),
        })
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.peer.poll_fd())
    }

    fn arm(&mut self) -> Result<bool> {
        Ok(self.peer.arm())
    }

    fn pool(&self) -> Option<&Pool> {
        self.keep.pool()
    }

    fn transfer_pool(&self) -> Option<&Pool> {
        Some(self.peer.pool())
    }

    fn ring_len(&self) -> Option<u32> {
        Some(self.peer.entry_count())
    }
}
