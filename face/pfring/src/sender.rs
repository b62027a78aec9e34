//! Sending: packets gather until there are [`BATCH`] of them, the program asks for a flush, or the
//! oldest has waited for [`DELAY`].
//!
//! A program may never ask for a flush (masscan does not, not even for its last packet), so a
//! thread does it. The thread is started by the first packet that waits, sleeps while none waits,
//! handles no signals of the program, and ends with the sender.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use port::{TxCounters, TxQueue};
use sys::Result;

/// Packets after which the device is started. With one more waiting, AF_PACKET's queue starts by
/// itself, and packets refused then are earlier ones.
const BATCH: u32 = 31;
/// Longest wait of a packet for others.
const DELAY: Duration = Duration::from_millis(1);
/// Longest time that closing a ring waits for its packets to be sent.
const CLOSE_MAX: Duration = Duration::from_millis(200);

/// The sending half of a ring.
pub struct Sender {
    shared: Arc<Shared>,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    /// Signalled when the first packet waits, and at the end.
    changed: Condvar,
}

/// The result of sending a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is sent, or waits for others.
    Accepted,
    /// There is no room now.
    NoRoom,
    /// The device cannot send it: it is longer than the MTU, or than a buffer.
    Refused,
}

struct State {
    queue: TxQueue,
    counters: Arc<TxCounters>,
    /// Packets submitted since the last flush.
    waiting: u32,
    is_over: bool,
}

impl State {
    fn flush(&mut self) -> Result<()> {
        self.waiting = 0;
        self.queue.flush()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender {
    /// Wraps a queue.
    pub fn new(queue: TxQueue) -> Self {
        let state = Mutex::new(State {
            counters: Arc::clone(queue.counters()),
            queue,
            waiting: 0,
            is_over: false,
        });
        let shared = Arc::new(Shared {
            state,
            changed: Condvar::new(),
        });
        Self {
            shared,
            flusher: Mutex::default(),
        }
    }

    /// Sends a packet, at once (`flush`) or with others.
    ///
    /// # Errors
    /// Errors of the port, and of starting the thread.
    pub fn send(&self, packet: &[u8], flush: bool) -> Result<Sent> {
        let mut state = self.shared.lock();
        let counters = Arc::clone(&state.counters);
        let mut batch = state.queue.reserve(1)?;
        // Not before: making room may refuse earlier packets.
        let refused = counters.failed.get();
        let has_room = batch.room() != 0;
        let is_written = batch.write(packet);
        batch.submit()?;
        if !is_written {
            // The device may be waiting for a start to make room.
            state.flush()?;
            return Ok(match has_room {
                true => Sent::Refused,
                false => Sent::NoRoom,
            });
        }
        // Submitting refuses only what it was given; a flush may also refuse earlier packets.
        if counters.failed.get() != refused {
            return Ok(Sent::Refused);
        }
        state.waiting += 1;
        if flush || state.waiting >= BATCH {
            state.flush()?;
        } else if state.waiting == 1 {
            drop(state);
            self.start()?;
            self.shared.changed.notify_one();
        }
        Ok(Sent::Accepted)
    }

    /// Starts the device on all packets.
    ///
    /// # Errors
    /// Errors of the port.
    pub fn flush(&self) -> Result<()> {
        self.shared.lock().flush()
    }

    /// Starts the thread, once.
    fn start(&self) -> Result<()> {
        let mut flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        if flusher.is_none() {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("pfring-flush".into());
            let started = sys::signal::without_signals(|| thread.spawn(move || shared.flusher()));
            let failed = |error| sys::Error::from_io("start a thread", error);
            *flusher = Some(started.map_err(failed)?);
        }
        Ok(())
    }
}

impl Shared {
    fn flusher(&self) {
        let mut state = self.lock();
        while !state.is_over {
            if state.waiting == 0 {
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let slept = self.changed.wait_timeout(state, DELAY);
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
            // Its errors are reported by the next packet.
            let _ = state.flush();
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        let _ = state.flush();
        let _ = state.queue.wait(true, CLOSE_MAX);
        drop(state);
        self.shared.changed.notify_all();
        let mut flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = flusher.take() {
            let _ = thread.join();
        }
    }
}
