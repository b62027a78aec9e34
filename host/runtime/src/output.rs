//! Output in a separate thread, so that a slow, stopped or closed reader does not delay the caller.
//!
//! Pieces of text are queued up to a bound. Packet loops use [`Output::try_give`], which never
//! waits; file readers use [`Output::give`]. A wait is unlimited until the run is to end: a pager
//! may show one page for an hour. At the end ([`Patience`]), it lasts as long as the reader keeps
//! reading, and until [`STALL`] after that moment. All outputs count from it, so that waits do not
//! add up.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sys::{Error, ErrorKind, Result};

use crate::Stop;

/// How long to wait for a stalled reader at the end.
pub const STALL: Duration = Duration::from_millis(600);

/// How long to wait after the last byte the reader took, if that is later.
const STALL_STEP: Duration = Duration::from_millis(300);

/// Interval at which a wait checks whether the run is to end.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum bytes of one write: a page, since a write to a pipe returns only once the
/// reader has made room for all of it.
const WRITE_LEN: usize = 4 << 10;

/// Maximum number of empty pieces kept for reuse.
const EMPTIES_MAX: usize = 4;

/// A piece of text, and the records in it.
#[derive(Debug, Default)]
pub struct Piece {
    /// The text.
    pub bytes: Vec<u8>,
    /// Records in it.
    pub records: u64,
    /// Packets in these records.
    pub packets: u64,
}

/// Whether waiting for the reader has a limit.
#[derive(Clone, Debug)]
pub struct Patience {
    stop: Stop,
    /// The time from which there is a limit regardless of `stop`.
    over_since: Option<Arc<OnceLock<Instant>>>,
}

impl Patience {
    /// No limit until `stop` is set.
    pub fn until(stop: &Stop) -> Patience {
        Patience {
            stop: stop.clone(),
            over_since: None,
        }
    }

    /// A limit from the first wait on, or since `stop` was set: for a device as input, which has
    /// ended once this waits.
    pub fn over(stop: &Stop) -> Patience {
        Patience {
            stop: stop.clone(),
            over_since: Some(Arc::default()),
        }
    }

    /// Since when there is a limit, if there is one.
    fn since(&self) -> Option<Instant> {
        let over = self.over_since.as_ref();
        let over = over.map(|since| *since.get_or_init(Instant::now));
        self.stop.since().into_iter().chain(over).min()
    }
}

/// Why a piece was not taken.
#[derive(Debug)]
pub enum Refused {
    /// There is no room; returns the piece.
    Full(Piece),
    /// The reader is stalled, and was waited for long enough; returns the piece.
    Stalled(Piece),
    /// Writing has failed, now or before.
    Failed(io::Error),
}

/// A file, pipe or terminal with the thread that writes to it. Clones share them.
#[derive(Clone, Debug)]
pub struct Output(Arc<Handle>);

/// Dropped with the last clone; the thread has the other end.
#[derive(Debug)]
struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    piece_count_max: usize,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Piece>,
    /// Records and packets in the piece being written.
    writing: Option<[u64; 2]>,
    /// When the current write began.
    write_began: Option<Instant>,
    empties: Vec<Piece>,
    /// Number of completed writes.
    writes: u64,
    error: Option<io::Error>,
    /// The reader was waited for long enough: nothing more is written.
    is_given_up: bool,
    is_closed: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.writing.is_none()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the writer thread.
    fn write(&self, mut out: impl Write) {
        loop {
            let mut state = self.lock();
            let mut piece = loop {
                if state.is_given_up {
                    return;
                }
                if let Some(piece) = state.queue.pop_front() {
                    break piece;
                }
                if state.is_closed {
                    return;
                }
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            state.writing = Some([piece.records, piece.packets]);
            state.write_began = Some(Instant::now());
            drop(state);
            let mut result = Ok(());
            let mut rest = piece.bytes.as_slice();
            while !rest.is_empty() {
                match out.write(&rest[..rest.len().min(WRITE_LEN)]) {
                    Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                    // Any progress: the reader is not stalled.
                    Ok(len) => rest = &rest[len..],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => result = Err(error),
                }
                let mut state = self.lock();
                state.writes += 1;
                state.write_began = Some(Instant::now());
                self.changed.notify_all();
                if result.is_err() || state.is_given_up {
                    break;
                }
            }
            let result = result.and_then(|()| out.flush());
            let mut state = self.lock();
            if state.is_given_up {
                return;
            }
            (state.writing, state.write_began) = (None, None);
            if let Err(error) = result {
                state.error = Some(error);
                state.queue.clear();
            } else if state.empties.len() < EMPTIES_MAX {
                piece.bytes.clear();
                (piece.records, piece.packets) = (0, 0);
                state.empties.push(piece);
            }
            self.changed.notify_all();
        }
    }

    /// Waits until `done`, as long as the patience allows; returns whether it is.
    fn wait(
        &self,
        patience: &Patience,
        done: impl Fn(&State) -> bool,
    ) -> (MutexGuard<'_, State>, bool) {
        let mut state = self.lock();
        let began = Instant::now();
        loop {
            if done(&state) || state.error.is_some() {
                return (state, true);
            }
            if state.is_given_up {
                return (state, false);
            }
            let now = Instant::now();
            let until = patience.since().map(|since| {
                // The wait for a reader that was already stalled does not start over for each
                // caller.
                let step = match state.write_began {
                    Some(began) => began + STALL_STEP,
                    None => began + STALL,
                };
                step.max(since + STALL)
            });
            if until.is_some_and(|until| now >= until) {
                state.is_given_up = true;
                return (state, false);
            }
            let waited = self.changed.wait_timeout(state, CHECK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Output {
    /// Starts the thread that writes to `out`, with a queue of this many pieces. Privileges are per
    /// thread: drop them before.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        name: &str,
        piece_count_max: usize,
        out: impl Write + Send + 'static,
    ) -> Result<Output> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            piece_count_max,
        });
        let thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || thread.write(out))
            .map_err(|e| Error::from_io("start the output thread", e))?;
        Ok(Output(Arc::new(Handle(shared))))
    }

    fn shared(&self) -> &Shared {
        &self.0.0
    }

    /// An empty piece, reusing the memory of a written one if possible.
    pub fn empty(&self) -> Piece {
        self.shared().lock().empties.pop().unwrap_or_default()
    }

    /// Whether everything was written.
    pub fn is_idle(&self) -> bool {
        self.shared().lock().is_idle()
    }

    /// Queues a piece if there is room.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn try_give(&self, piece: Piece) -> std::result::Result<(), Refused> {
        let state = self.shared().lock();
        self.put(state, piece)
    }

    /// Queues a piece, and waits for room.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn give(&self, piece: Piece, patience: &Patience) -> std::result::Result<(), Refused> {
        let max = self.shared().piece_count_max;
        match self
            .shared()
            .wait(patience, |state| state.queue.len() < max)
        {
            (state, true) => self.put(state, piece),
            (_, false) => Err(Refused::Stalled(piece)),
        }
    }

    fn put(
        &self,
        mut state: MutexGuard<'_, State>,
        piece: Piece,
    ) -> std::result::Result<(), Refused> {
        if let Some(error) = &state.error {
            return Err(Refused::Failed(copy(error)));
        }
        if state.is_given_up {
            return Err(Refused::Stalled(piece));
        }
        if state.queue.len() >= self.shared().piece_count_max {
            return Err(Refused::Full(piece));
        }
        state.queue.push_back(piece);
        self.shared().changed.notify_all();
        Ok(())
    }

    /// Waits until everything is written. Returns the records left unwritten and their packets;
    /// nothing more is written then.
    ///
    /// # Errors
    /// If writing has failed.
    pub fn drain(&self, patience: &Patience) -> io::Result<Option<Left>> {
        let (state, is_done) = self.shared().wait(patience, State::is_idle);
        if let Some(error) = &state.error {
            return Err(copy(error));
        }
        if is_done {
            return Ok(None);
        }
        let mut left = Left::default();
        let waiting = state
            .queue
            .iter()
            .map(|piece| [piece.records, piece.packets]);
        for [records, packets] in waiting.chain(state.writing) {
            left.records += records;
            left.packets += packets;
        }
        Ok(Some(left))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

/// What was not written because the reader stalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Records.
    pub records: u64,
    /// Packets in them.
    pub packets: u64,
}

/// Whether an error says that the reader of standard output has closed it (`EPIPE`).
pub fn is_closed(error: &Error) -> bool {
    error.os_code() == Some(32)
}

/// The error of a stalled reader.
pub fn blocked(what: &str) -> Error {
    let why = format!("the reader stalled; {what} was not written");
    Error::new(ErrorKind::Io, "write to standard output", why)
        .with_hint("resume the reader, or stop it first")
}

/// Errors of the system cannot be cloned.
fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn piece(len: usize) -> Piece {
        Piece {
            bytes: vec![b'x'; len],
            records: 1,
            packets: 2,
        }
    }

    #[test]
    fn a_blocked_reader_is_abandoned_only_after_the_end_was_requested() {
        let (reader, writer) = io::pipe().unwrap();
        let output = Output::start("output", 2, writer).unwrap();
        // More than any pipe holds, so that the thread blocks.
        output.try_give(piece(4 << 20)).unwrap();
        while output.shared().lock().writing.is_none() {
            std::thread::yield_now();
        }
        let full = loop {
            if let Err(refused) = output.try_give(piece(1)) {
                break refused;
            }
        };
        assert!(matches!(full, Refused::Full(_)), "{full:?}");
        let stop = Stop::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| output.give(piece(1), &Patience::until(&stop)));
            // Longer than a stall: the end was not requested.
            std::thread::sleep(2 * STALL);
            assert!(!waiting.is_finished());
            stop.set();
            let refused = waiting.join().unwrap();
            assert!(matches!(refused, Err(Refused::Stalled(_))), "{refused:?}");
        });
        let left = output
            .drain(&Patience::over(&Stop::new()))
            .unwrap()
            .unwrap();
        assert_eq!(left.packets, 2 * left.records);
        assert!(left.records >= 2, "{left:?}");
        drop(reader);
    }

    #[test]
    fn a_slow_reader_gets_everything() {
        let (mut reader, writer) = io::pipe().unwrap();
        let output = Output::start("output", 2, writer).unwrap();
        const COUNT: usize = 40;
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all.len()
        });
        for _ in 0..COUNT {
            output
                .give(piece(100_000), &Patience::until(&Stop::new()))
                .unwrap();
        }
        assert_eq!(output.drain(&Patience::until(&Stop::new())).unwrap(), None);
        drop(output);
        assert_eq!(reading.join().unwrap(), COUNT * 100_000);
    }

    #[test]
    fn every_byte_that_is_taken_counts_as_progress() {
        struct Slow;
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                Ok(bytes.len().min(1))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let output = Output::start("output", 2, Slow).unwrap();
        output.try_give(piece(1000)).unwrap();
        assert_eq!(output.drain(&Patience::until(&Stop::new())).unwrap(), None);
        assert_eq!(output.shared().lock().writes, 1000);
    }

    #[test]
    fn a_reader_that_left_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = Output::start("output", 2, writer).unwrap();
        output.try_give(piece(1)).unwrap();
        let error = output.drain(&Patience::over(&Stop::new())).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(32));
        let refused = output.try_give(piece(1));
        assert!(matches!(refused, Err(Refused::Failed(_))), "{refused:?}");
    }
}
