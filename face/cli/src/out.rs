//! Messages on standard error and data on standard output, written without waiting for ever for a
//! reader ([`runtime::output`]).
//!
//! Standard error belongs to the whole process, and so does its queue. Lines written before
//! [`start`] are kept: the writing thread must start after privileges are dropped.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use runtime::Stop;
use runtime::output::{Output, Patience, Piece, Refused, blocked};
use sys::{Error, Result};

/// Lines queued for standard error at most.
const LINES_MAX: usize = 256;
/// Bytes queued at most before the thread is started.
const EARLY_MAX: usize = 64 << 10;

static ERR: Mutex<Err> = Mutex::new(Err {
    early: Vec::new(),
    output: None,
    dropped: 0,
});
/// A live run has ended: stalled readers are not waited for.
static OVER: OnceLock<Patience> = OnceLock::new();

/// Standard error.
struct Err {
    early: Vec<u8>,
    output: Option<Output>,
    /// Lines dropped since the last one that was queued.
    dropped: u64,
}

/// Prints a line on standard error, as `eprintln!` does, but never blocks.
macro_rules! say {
    ($($arg:tt)*) => {
        $crate::out::line(format!($($arg)*))
    };
}
pub(crate) use say;

/// Prints a line on standard error at once, from a command that may wait for its reader. A
/// standard error that cannot be written is no reason to stop, so errors are ignored.
macro_rules! now {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}
pub(crate) use now;

fn err() -> MutexGuard<'static, Err> {
    ERR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a line.
pub fn line(mut text: String) {
    text.push('\n');
    words(text.into_bytes());
}

/// Prints text that need not end in a newline.
pub fn words(text: Vec<u8>) {
    let mut err = err();
    let Some(output) = err.output.clone() else {
        if err.early.len() < EARLY_MAX {
            err.early.extend(text);
        }
        return;
    };
    let mut bytes = Vec::new();
    if err.dropped != 0 {
        let note = format!(
            "({} lines dropped: standard error was not read)\n",
            err.dropped
        );
        bytes.extend(note.into_bytes());
    }
    bytes.extend(text);
    let piece = Piece {
        bytes,
        ..Piece::default()
    };
    match output.try_give(piece) {
        Ok(()) => err.dropped = 0,
        Err(_) => err.dropped += 1,
    }
}

/// Prints the final summary; waits as long as the reader keeps reading.
pub fn last_words(text: Vec<u8>) {
    let Some(output) = err().output.clone() else {
        return words(text);
    };
    let piece = Piece {
        bytes: text,
        ..Piece::default()
    };
    // Nobody may be reading standard error; that is no reason to fail.
    drop(output.give(piece, &patience()));
}

/// Starts the writing thread. Call after privileges are dropped.
///
/// # Errors
/// When the thread cannot be started.
pub fn start() -> Result<()> {
    let mut err = err();
    if err.output.is_some() {
        return Ok(());
    }
    let file = duplicate(io::stderr().as_fd(), "standard error")?;
    let output = Output::start("stderr", LINES_MAX, file)?;
    let bytes = std::mem::take(&mut err.early);
    if !bytes.is_empty() {
        let piece = Piece {
            bytes,
            ..Piece::default()
        };
        drop(output.try_give(piece));
    }
    err.output = Some(output);
    Ok(())
}

/// A live run has ended: from now on stalled readers are not waited for.
pub fn over() {
    OVER.get_or_init(|| Patience::over(&Stop::on_signals().unwrap_or_default()));
}

/// How long to wait for readers at the end: without limit, unless a signal asked to stop or the
/// input was a device.
pub fn patience() -> Patience {
    if let Some(over) = OVER.get() {
        return over.clone();
    }
    match Stop::on_signals() {
        Ok(stop) => Patience::until(&stop),
        Err(_) => Patience::over(&Stop::new()),
    }
}

/// Waits until everything queued is written. Call it last.
pub fn finish() {
    let (early, output) = {
        let mut err = err();
        (std::mem::take(&mut err.early), err.output.take())
    };
    // Nobody may be reading standard error; that is no reason to fail.
    if !early.is_empty() {
        drop(io::stderr().write_all(&early));
    }
    if let Some(output) = output
        && !output.is_idle()
    {
        drop(output.drain(&patience()));
    }
}

/// Standard output, written by its own thread; queues at most `piece_count_max` pieces.
///
/// # Errors
/// When there is none, or the thread cannot be started.
pub fn stdout(piece_count_max: usize) -> Result<Output> {
    let file = duplicate(io::stdout().as_fd(), "standard output")?;
    Output::start("stdout", piece_count_max, file)
}

/// Prints to standard output and waits until it is written.
///
/// # Errors
/// When writing fails or the reader has stalled.
pub fn print(output: &Output, text: Vec<u8>) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let piece = Piece {
        bytes: text,
        ..Piece::default()
    };
    let patience = patience();
    match output.give(piece, &patience) {
        Ok(()) => match output.drain(&patience).map_err(failed)? {
            None => Ok(()),
            Some(_) => Err(blocked("the end of the output")),
        },
        Err(Refused::Failed(error)) => Err(failed(error)),
        Err(_) => Err(blocked("the end of the output")),
    }
}

fn failed(error: io::Error) -> Error {
    Error::from_io("write to standard output", error)
}

/// The same file without std's lock, which a blocked writer would hold.
fn duplicate(fd: std::os::fd::BorrowedFd<'_>, name: &str) -> Result<File> {
    let copy = fd.try_clone_to_owned().map(File::from);
    copy.map_err(|e| Error::from_io(format!("use {name}"), e))
}
