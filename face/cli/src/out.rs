//! What is said on standard error, and printed on standard output, without waiting for a reader
//! longer than it makes sense ([`runtime::output`]).
//!
//! Standard error belongs to the whole process, and so does what waits for it. Lines said before
//! [`start`] are kept: the thread that writes them is to begin without rights.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use runtime::Stop;
use runtime::output::{Output, Patience, Piece, Refused, blocked};
use sys::{Error, Result};

/// Lines that may wait for a reader of standard error.
const LINES_MAX: usize = 256;
/// Bytes that may wait before the thread is started.
const EARLY_MAX: usize = 64 << 10;

static ERR: Mutex<Err> = Mutex::new(Err {
    early: Vec::new(),
    output: None,
    dropped: 0,
});
/// A live run has ended: readers that take nothing are not waited for.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Standard error.
struct Err {
    early: Vec<u8>,
    output: Option<Output>,
    /// Lines for which there was no room since the last one that found some.
    dropped: u64,
}

/// Says a line on standard error, as `eprintln!` does, and never waits.
macro_rules! say {
    ($($arg:tt)*) => {
        $crate::out::line(format!($($arg)*))
    };
}
pub(crate) use say;

fn err() -> MutexGuard<'static, Err> {
    ERR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says a line.
pub fn line(mut text: String) {
    text.push('\n');
    words(text.into_bytes());
}

/// Says something that is perhaps no whole line.
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
        let note = format!("({} lines were not shown: nobody read them)\n", err.dropped);
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

/// Says what is told at the end, which waits for a reader that reads.
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

/// From now on a thread writes what is said. Rights have been given up.
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

/// A live run has ended: from now on nobody is waited for who takes nothing.
pub fn over() {
    IS_OVER.store(true, Ordering::Relaxed);
}

/// How long readers are waited for at the end: without a limit unless a signal asks for the end, or
/// the input was a device.
pub fn patience() -> Patience {
    if IS_OVER.load(Ordering::Relaxed) {
        return Patience::over();
    }
    match Stop::on_signals() {
        Ok(stop) => Patience::until(&stop),
        Err(_) => Patience::over(),
    }
}

/// Waits until what was said is written. The last thing that is done.
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

/// Standard output, written to by a thread of its own; so many pieces may wait.
///
/// # Errors
/// When there is none, or the thread cannot be started.
pub fn stdout(piece_count_max: usize) -> Result<Output> {
    let file = duplicate(io::stdout().as_fd(), "standard output")?;
    Output::start("stdout", piece_count_max, file)
}

/// Prints something on standard output, and waits until it is written.
///
/// # Errors
/// When writing fails, or nobody reads.
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
