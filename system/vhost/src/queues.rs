//! The vrings of a device, which a connection starts and stops while other threads use them.
//!
//! A queue is locked for a batch. The connection's thread locks it only to exchange what is in it,
//! so the lock is free nearly always.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::Result;
use sys::epoll::Epoll;
use sys::eventfd::EventFd;

use crate::memory::Memory;
use crate::split::{Broken, Vring};

/// Maximum number of events that wait to be read; further ones replace the last.
const EVENT_COUNT_MAX: usize = 64;

/// Maximum number of times that a call of [`Guard::discard`] empties the ring.
const DISCARD_ROUNDS_MAX: u32 = 4;

/// An event of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A front-end has connected.
    Connected,
    /// The front-end has closed the connection, or was ended; the vrings are stopped.
    Disconnected,
    /// The connection was closed because of what the front-end sent.
    Refused(String),
    /// The guest's driver uses the device: the first vring was enabled.
    Started,
    /// The guest's driver no longer uses the device: it was reset, or the guest reboots.
    Stopped,
    /// The content of a vring is invalid: it is no longer used.
    Broken(u32, Broken),
    /// The front-end has set this MTU, in bytes.
    Mtu(u32),
}

/// Counters of a queue since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Chains taken from the vring, whatever happened to them afterwards.
    pub taken: u64,
    /// Of these, chains returned unread: the vring was disabled, or there is no reader.
    pub discarded: u64,
    /// How often the vring became invalid.
    pub broken: u64,
    /// Calls to the guest.
    pub calls: u64,
}

/// What a queue has while it is used.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub vring: Option<Vring>,
    pub is_enabled: bool,
    pub is_broken: bool,
    pub kick: Option<OwnedFd>,
    pub call: Option<EventFd>,
    pub err: Option<EventFd>,
    /// Changes with each start of the vring.
    pub starts: u64,
    pub counts: QueueCounts,
}

/// One vring and its notifications.
#[derive(Debug)]
pub struct Queue {
    index: u32,
    state: Mutex<State>,
    /// The guest's kicks, and `bell`.
    set: Epoll,
    /// Signalled when the vring was started, stopped or enabled.
    bell: EventFd,
    events: Arc<Events>,
}

/// The events that wait to be read.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<VecDeque<Event>>);

impl Events {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, event: Event) {
        let mut events = self.lock();
        if events.len() == EVENT_COUNT_MAX {
            events.pop_back();
        }
        // A front-end that tries again and again is reported once.
        if events.back() != Some(&event) {
            events.push_back(event);
        }
    }
}

/// All vrings of a device: receive and transmit of the first pair, then of the second, as the guest
/// sees them (VIRTIO 1.2 §5.1.2).
#[derive(Debug)]
pub struct Queues {
    queues: Vec<Queue>,
    events: Arc<Events>,
}

impl Queues {
    /// So many pairs of stopped vrings.
    ///
    /// # Errors
    /// If no more descriptors can be opened.
    pub fn new(pair_count: u32) -> Result<Self> {
        let events = Arc::new(Events::default());
        let queues: Result<Vec<Queue>> = (0..2 * pair_count)
            .map(|index| Queue::new(index, events.clone()))
            .collect();
        Ok(Self {
            queues: queues?,
            events,
        })
    }

    /// Number of pairs.
    pub fn pair_count(&self) -> u32 {
        self.queues.len() as u32 / 2
    }

    /// A vring by its number.
    pub fn get(&self, index: u32) -> Option<&Queue> {
        self.queues.get(index as usize)
    }

    /// The vring of a pair that has packets from the guest.
    ///
    /// # Panics
    /// For a pair that does not exist: a bug of the caller.
    pub fn from_guest(&self, pair: u32) -> &Queue {
        &self.queues[2 * pair as usize + 1]
    }

    /// The vring of a pair that has buffers for packets to the guest.
    ///
    /// # Panics
    /// As [`from_guest`](Self::from_guest).
    pub fn to_guest(&self, pair: u32) -> &Queue {
        &self.queues[2 * pair as usize]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter()
    }

    /// The next event, if any.
    pub fn event(&self) -> Option<Event> {
        self.events.lock().pop_front()
    }

    pub(crate) fn add_event(&self, event: Event) {
        self.events.add(event);
    }
}

impl Queue {
    fn new(index: u32, events: Arc<Events>) -> Result<Self> {
        let (set, bell) = (Epoll::new()?, EventFd::new()?);
        set.add_edges(bell.as_fd())?;
        Ok(Self {
            index,
            state: Mutex::default(),
            set,
            bell,
            events,
        })
    }

    /// Locks the queue, for a batch.
    #[inline]
    pub fn lock(&self) -> Guard<'_> {
        Guard {
            state: self.state.lock().unwrap_or_else(PoisonError::into_inner),
            queue: self,
        }
    }

    /// A descriptor that is readable after a kick, or when the vring was started, stopped or
    /// enabled; until [`take_kicks`](Self::take_kicks).
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Takes what made the descriptor readable.
    pub fn take_kicks(&self) {
        self.set.take();
    }

    /// Starts a vring with this kick.
    pub(crate) fn start(
        &self,
        vring: Vring,
        kick: OwnedFd,
        is_enabled: Option<bool>,
    ) -> Result<()> {
        let mut guard = self.lock();
        guard.stop();
        self.set.add_edges(kick.as_fd())?;
        let state = &mut *guard.state;
        state.kick = Some(kick);
        state.vring = Some(vring);
        state.is_broken = false;
        state.is_enabled = is_enabled.unwrap_or(state.is_enabled);
        state.starts += 1;
        drop(guard);
        self.bell.signal();
        Ok(())
    }

    /// Stops the vring; returns its available index if it was started.
    pub(crate) fn stop(&self) -> Option<u16> {
        let base = self.lock().stop();
        self.bell.signal();
        base
    }

    /// Stops and forgets everything of a connection.
    pub(crate) fn reset(&self) {
        let mut guard = self.lock();
        guard.stop();
        let State { starts, counts, .. } = std::mem::take(&mut *guard.state);
        *guard.state = State {
            starts,
            counts,
            ..State::default()
        };
        drop(guard);
        self.bell.signal();
    }

    pub(crate) fn enable(&self, is_enabled: bool) {
        self.lock().state.is_enabled = is_enabled;
        self.bell.signal();
    }

    pub(crate) fn is_started(&self) -> bool {
        self.lock().state.vring.is_some()
    }

    pub(crate) fn set_err(&self, err: Option<EventFd>) {
        self.lock().state.err = err;
    }

    /// Replaces the descriptor by which the guest is called. A call through the one before may not
    /// have arrived, so a started vring calls again.
    pub(crate) fn set_call(&self, call: Option<EventFd>) {
        let mut guard = self.lock();
        guard.state.call = call;
        if guard.state.vring.is_some()
            && let Some(call) = &guard.state.call
        {
            call.signal();
        }
    }

    /// Replaces the guest's memory; false if the vring is not in it, which is then stopped.
    pub(crate) fn move_to(&self, memory: &Arc<Memory>) -> bool {
        let mut guard = self.lock();
        let Some(vring) = &mut guard.state.vring else {
            return true;
        };
        let is_there = vring.move_to(memory.clone());
        if !is_there {
            guard.stop();
        }
        is_there
    }
}

/// A locked queue.
pub struct Guard<'q> {
    state: MutexGuard<'q, State>,
    queue: &'q Queue,
}

impl Guard<'_> {
    fn stop(&mut self) -> Option<u16> {
        // The guest must see what was taken before the index at which the vring ends.
        self.publish();
        if let Some(kick) = self.state.kick.take() {
            self.queue.set.remove(kick.as_fd());
        }
        self.state.vring.take().map(|vring| vring.base())
    }

    /// Changes with each start of the vring: whether it is the same as before.
    pub fn starts(&self) -> u64 {
        self.state.starts
    }

    /// Whether the guest's driver uses the vring.
    pub fn is_running(&self) -> bool {
        self.state.vring.is_some() && self.state.is_enabled && !self.state.is_broken
    }

    /// The vring, if it is started and valid, whether it is enabled or not.
    #[inline]
    pub fn started(&mut self) -> Option<&mut Vring> {
        match self.state.is_broken {
            true => None,
            false => self.state.vring.as_mut(),
        }
    }

    /// The vring and the counters, if it is started, valid and enabled.
    #[inline]
    pub fn running(&mut self) -> Option<(&mut Vring, &mut QueueCounts)> {
        let state = &mut *self.state;
        match state.is_broken || !state.is_enabled {
            true => None,
            false => state.vring.as_mut().map(|vring| (vring, &mut state.counts)),
        }
    }

    /// The counters.
    pub fn counts(&self) -> QueueCounts {
        self.state.counts
    }

    /// Makes returned chains visible, and calls the guest if it wants to be.
    #[inline]
    pub fn publish(&mut self) {
        let state = &mut *self.state;
        if let Some(vring) = &mut state.vring
            && vring.publish()
            && let Some(call) = &state.call
        {
            call.signal();
            state.counts.calls += 1;
        }
    }

    /// Stops the use of the vring because of its content, and reports that to the front-end.
    #[cold]
    pub fn fail(&mut self, why: Broken) {
        self.publish();
        self.state.is_broken = true;
        self.state.counts.broken += 1;
        if let Some(err) = &self.state.err {
            err.signal();
        }
        self.queue.events.add(Event::Broken(self.queue.index, why));
    }

    /// Returns the chains of packets from the guest unread, and requests a kick for the next ones.
    ///
    /// The work is bounded: if the guest adds chains all the time, the rest is left, and
    /// [`Queue::poll_fd`] is readable for another call.
    pub fn discard(&mut self) {
        self.discard_while(|| {});
    }

    /// As [`discard`](Self::discard); `guest` runs between the last look at the ring and the
    /// request for a kick, for tests.
    pub(crate) fn discard_while(&mut self, mut guest: impl FnMut()) {
        for _ in 0..DISCARD_ROUNDS_MAX {
            let Some(vring) = self.started() else { return };
            match vring.discard() {
                Ok(count) => {
                    self.state.counts.taken += u64::from(count);
                    self.state.counts.discarded += u64::from(count);
                    self.publish();
                }
                Err(why) => return self.fail(why),
            }
            guest();
            // The guest may have added chains without a kick before it could see this request.
            if self.started().is_none_or(|vring| vring.request_kick(0)) {
                return;
            }
        }
        self.queue.bell.signal();
    }
}
