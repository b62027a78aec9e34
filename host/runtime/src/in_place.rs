//! Reads packets one at a time, in the device's memory, from all queues of a port: for libraries
//! whose interface returns a pointer that is valid until the next call.

use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use port::{Packet, Ready, RxQueue, Vlan, Waker};
use sys::Result;
use sys::epoll::Epoll;
use sys::eventfd::EventFd;
use sys::poll::{self, Wanted};

/// The variable by which a user declares that a program only reads packets: `1` leaves those of
/// `ring:` in the cluster's memory, which is read-only.
const IN_PLACE: &str = "BAREWIRE_IN_PLACE";

/// Maximum number of batches searched for a wanted packet by one call.
const BATCHES_MAX: usize = 64;

/// How often several queues are checked while all are silent: not every event makes a descriptor
/// readable, such as the deletion of the interface.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same if a queue has no descriptor.
const NAP: Duration = Duration::from_millis(1);

/// The result of a search for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// There is one.
    Found,
    /// None of those that had arrived is wanted.
    Empty,
    /// None of the packets searched is wanted; there may be others.
    Unfinished,
}

/// Reads the queues in turn, a batch of each.
pub struct Reader {
    queues: Vec<RxQueue>,
    /// The queue of the current batch.
    at: usize,
    /// The slots of the batch at which the current packet begins, and the one after it.
    current: usize,
    next: usize,
    waker: Waker,
    /// Descriptors of several queues as one.
    together: Option<Epoll>,
    /// Once the program has the descriptor.
    polled: Option<Polled>,
    /// Whether packets in read-only memory are copied.
    copies_read_only: bool,
}

/// What a program polls: the descriptors of the queues, and one that is readable while there are
/// packets that those do not show, since they were already received.
struct Polled {
    all: Epoll,
    waiting: EventFd,
    is_set: bool,
}

impl Reader {
    /// Reads these queues; `None` if there is none.
    ///
    /// # Errors
    /// If no more descriptors can be opened.
    pub fn new(mut queues: Vec<RxQueue>) -> Result<Option<Self>> {
        let Some(first) = queues.first_mut() else {
            return Ok(None);
        };
        let waker = first.waker()?;
        let together = match &queues[..] {
            [_] => None,
            _ => join(&queues)?,
        };
        Ok(Some(Self {
            queues,
            at: 0,
            current: 0,
            next: 0,
            waker,
            together,
            polled: None,
            copies_read_only: false,
        }))
    }

    /// Sets whether a batch in memory that is read-only in this process (`ring:`) is copied, so
    /// that a program may write to its packets. Other ports are not affected.
    pub fn copy_read_only(&mut self, copies: bool) {
        self.copies_read_only = copies;
    }

    /// Ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Moves to the next packet that is wanted, within a bounded number of batches. The previous
    /// packet is no longer valid.
    ///
    /// # Errors
    /// As [`RxQueue::receive`].
    pub fn advance(&mut self, mut is_wanted: impl FnMut(&Packet<'_>) -> bool) -> Result<Advance> {
        for _ in 0..BATCHES_MAX {
            if self.advance_within(&mut is_wanted) {
                return Ok(Advance::Found);
            }
            if !self.receive()? {
                return Ok(Advance::Empty);
            }
        }
        Ok(Advance::Unfinished)
    }

    /// Moves to the next packet of the batch that was received last that is wanted:
    /// [`advance`](Self::advance) without receiving, so that earlier packets of the batch stay
    /// valid. If there is none, the current packet stays, and the others count as searched.
    pub fn advance_within(&mut self, mut is_wanted: impl FnMut(&Packet<'_>) -> bool) -> bool {
        while let Some((packet, next)) = self.queues[self.at].held(self.next) {
            let found = std::mem::replace(&mut self.next, next);
            if is_wanted(&packet) {
                self.current = found;
                return true;
            }
        }
        false
    }

    /// Moves to the next packet of the batch that was received last, if there is one and
    /// `is_wanted` returns true for it: [`advance`](Self::advance) without receiving. Otherwise the
    /// current packet stays.
    #[inline]
    pub fn advance_held(
        &mut self,
        is_wanted: impl FnOnce(&Packet<'_>) -> bool,
    ) -> Option<Packet<'_>> {
        let (packet, next) = self.queues[self.at].held(self.next)?;
        if !is_wanted(&packet) {
            return None;
        }
        (self.current, self.next) = (self.next, next);
        Some(packet)
    }

    /// The current packet, valid until the next [`advance`](Self::advance).
    pub fn packet(&self) -> Option<Packet<'_>> {
        let held = self.queues[self.at].held(self.current);
        held.map(|(packet, _)| packet)
    }

    /// Whether the current batch has another packet.
    pub fn has_more(&self) -> bool {
        self.queues[self.at].held(self.next).is_some()
    }

    /// Ends a call of the program: returns the batch to the device if the current packet is its
    /// last, and updates the descriptor of [`fd`](Self::fd). The current packet may be no longer
    /// valid.
    ///
    /// # Errors
    /// As [`RxQueue::arm`].
    pub fn finish(&mut self) -> Result<()> {
        if !self.has_more() {
            self.queues[self.at].release_held();
            (self.current, self.next) = (0, 0);
        }
        self.refresh()
    }

    /// Makes the descriptor of [`fd`](Self::fd) readable if there is a packet after the current
    /// one, and otherwise with the next that arrives. Does nothing before that call.
    ///
    /// # Errors
    /// As [`RxQueue::arm`].
    pub fn refresh(&mut self) -> Result<()> {
        if self.polled.is_none() {
            return Ok(());
        }
        let is_ready = self.has_more() || !self.arm()?;
        if let Some(polled) = &mut self.polled
            && polled.is_set != is_ready
        {
            polled.is_set = is_ready;
            match is_ready {
                true => polled.waiting.signal(),
                false => drop(polled.waiting.take()),
            }
        }
        Ok(())
    }

    /// Receives a batch from the next queue that has one.
    fn receive(&mut self) -> Result<bool> {
        for _ in 0..self.queues.len() {
            self.at = (self.at + 1) % self.queues.len();
            (self.current, self.next) = (0, 0);
            let mut batch = self.queues[self.at].receive()?;
            if !batch.is_empty() {
                if self.copies_read_only {
                    // What makes a batch writable.
                    drop(batch.iter_mut());
                }
                batch.hold();
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sleeps until there may be packets, the waker is called, or a signal arrives; at most
    /// `timeout`.
    ///
    /// # Errors
    /// As [`RxQueue::wait`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        if let [queue] = &mut self.queues[..] {
            return queue.wait(timeout);
        }
        let start = Instant::now();
        loop {
            // What is known without sleeping; the first queue also knows of the waker.
            let mut is_end = true;
            for queue in &mut self.queues {
                match queue.wait(Duration::ZERO)? {
                    Ready::Timeout => is_end = false,
                    Ready::End => {}
                    ready => return Ok(ready),
                }
            }
            if is_end {
                return Ok(Ready::End);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(Ready::Timeout);
            }
            if !self.arm()? {
                return Ok(Ready::Packets);
            }
            let mut wanted = vec![Wanted::readable(&self.waker)];
            // A socket is readable as long as a batch of it is held.
            let is_holding = self.queues.iter().any(RxQueue::is_holding);
            let together = self.together.as_ref().filter(|_| !is_holding);
            wanted.extend(together.map(Wanted::readable));
            let longest = match together {
                Some(_) => LOOK_EVERY.min(left),
                None => NAP.min(left),
            };
            let slept = Instant::now();
            poll::wait(&mut wanted, longest)?;
            let is_ready = wanted.iter().any(Wanted::is_ready);
            if !is_ready && slept.elapsed() < longest {
                // A signal: the caller may want to handle it.
                return Ok(Ready::Timeout);
            }
        }
    }

    /// Prepares a poll of [`fd`](Self::fd); false if there may be packets already.
    ///
    /// # Errors
    /// As [`RxQueue::arm`].
    pub fn arm(&mut self) -> Result<bool> {
        let mut is_silent = true;
        for queue in &mut self.queues {
            is_silent &= queue.arm()?;
        }
        Ok(is_silent)
    }

    /// A descriptor that is readable when there may be packets in any queue, at once and after each
    /// [`refresh`](Self::refresh) or [`finish`](Self::finish). `None` if a queue has none, such as
    /// that of a file.
    ///
    /// # Errors
    /// If no more descriptors can be opened.
    pub fn fd(&mut self) -> Result<Option<RawFd>> {
        if self.polled.is_none() {
            let Some(all) = join(&self.queues)? else {
                return Ok(None);
            };
            let waiting = EventFd::new()?;
            all.add(waiting.as_fd())?;
            self.polled = Some(Polled {
                all,
                waiting,
                is_set: false,
            });
            self.refresh()?;
        }
        let polled = self.polled.as_ref();
        Ok(polled.map(|polled| polled.all.as_fd().as_raw_fd()))
    }

    /// The descriptor of the first queue itself: of a tap, its socket.
    pub fn socket(&self) -> Option<RawFd> {
        let queue = self.queues.first();
        Some(queue?.poll_fd()?.as_raw_fd())
    }
}

/// Whether libraries copy packets in read-only memory: unless the environment says otherwise.
/// Programs are allowed to write to packets by the libraries that these replace.
pub fn copies_read_only() -> bool {
    std::env::var_os(IN_PLACE).is_none_or(|value| value != "1")
}

/// One descriptor for those of all queues; `None` if a queue has none.
fn join(queues: &[RxQueue]) -> Result<Option<Epoll>> {
    let all = Epoll::new()?;
    for queue in queues {
        let Some(fd) = queue.poll_fd() else {
            return Ok(None);
        };
        all.add(fd)?;
    }
    Ok(Some(all))
}

/// Number of queues to open of a port: all of a card (0), which distributes packets to them; of a
/// tap one is enough.
pub fn queue_count(port: &str) -> u32 {
    let is_card = ["afxdp:", "vfio:"]
        .iter()
        .any(|scheme| port.starts_with(scheme));
    u32::from(!is_card)
}

/// The VLAN tag beside a packet, which belongs behind the addresses of an Ethernet packet.
pub fn tag_of(packet: &Packet<'_>, link_type: u16) -> Option<Vlan> {
    const ETHERNET: u16 = 1;
    packet.vlan().filter(|_| link_type == ETHERNET)
}

/// Copies a packet to `to`, with its tag where it was on the wire; returns the length of the tag.
pub fn gather(packet: &Packet<'_>, tag: Option<Vlan>, to: &mut Vec<u8>) -> u32 {
    to.clear();
    let mut segments = packet.segments();
    let first = segments.next().unwrap_or_default();
    let tag_len = match tag.zip(first.split_at_checked(Vlan::AT)) {
        Some((tag, (addresses, rest))) => {
            let tag = tag.bytes();
            to.extend_from_slice(addresses);
            to.extend_from_slice(&tag);
            to.extend_from_slice(rest);
            tag.len() as u32
        }
        None => {
            to.extend_from_slice(first);
            0
        }
    };
    segments.for_each(|segment| to.extend_from_slice(segment));
    tag_len
}
