//! Messages on standard error and data on standard output, written without waiting forever for a
//! reader ([`runtime::output`]).
//!
//! Standard error belongs to the whole process, and so does its queue. Lines written before
//! [`start`] are kept: the writing thread must start after privileges are dropped.
//!
//! If standard error is the systemd journal, each line starts with its priority, as in
//! sd-daemon(3): `journalctl -p warning` shows what matters.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use runtime::Stop;
use runtime::output::{Output, Patience, Piece, Refused, blocked};
use sys::{Error, Result, poll};

/// Maximum number of lines queued for standard error.
const LINES_MAX: usize = 256;
/// Maximum number of bytes queued before the thread is started.
const EARLY_MAX: usize = 64 << 10;

static ERR: Mutex<Err> = Mutex::new(Err {
    early: Vec::new(),
    output: None,
    dropped: 0,
});
/// Whether standard output was a terminal when it was opened.
static IS_TERMINAL: AtomicBool = AtomicBool::new(false);
/// Set when a live run has ended: stalled readers are not waited for.
static OVER: OnceLock<Patience> = OnceLock::new();
/// Only warnings and errors are printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Standard error and its queue.
struct Err {
    early: Vec<u8>,
    output: Option<Output>,
    /// Lines dropped since the last one that was queued.
    dropped: u64,
}

/// The priority of a line, with the numbers of syslog(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The command fails.
    Error = 3,
    /// Something is lost, or not as requested.
    Warning = 4,
    /// Everything else.
    Info = 6,
}

/// Whether standard error is the journal: `JOURNAL_STREAM` is then its device and inode
/// (systemd.exec(5)).
pub fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        let stderr = duplicate(io::stderr().as_fd(), "standard error");
        let data = stderr.ok().and_then(|file| file.metadata().ok());
        let ours = data.map(|data| format!("{}:{}", data.dev(), data.ino()));
        ours.is_some() && std::env::var("JOURNAL_STREAM").ok() == ours
    })
}

/// The text, each line prefixed by its priority if standard error is the journal.
fn marked(level: Level, text: Vec<u8>) -> Vec<u8> {
    match is_journal() {
        true => with_level(level, &text),
        false => text,
    }
}

fn with_level(level: Level, text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        bytes.extend([b'<', b'0' + level as u8, b'>']);
        bytes.extend(line);
    }
    bytes
}

/// Prints a line on standard error, as `eprintln!` does, but never blocks.
macro_rules! say {
    ($($arg:tt)*) => {
        $crate::out::line($crate::out::Level::Info, format!($($arg)*))
    };
}
pub(crate) use say;

/// As [`say`], a warning.
macro_rules! warning {
    ($($arg:tt)*) => {
        $crate::out::line($crate::out::Level::Warning, format!($($arg)*))
    };
}
pub(crate) use warning;

/// Prints a line on standard error immediately, from a command that may wait for its reader. Errors
/// are ignored: a closed standard error is no reason to stop.
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
pub fn line(level: Level, mut text: String) {
    text.push('\n');
    put(level, text.into_bytes());
}

/// Prints text that need not end in a newline.
pub fn words(text: Vec<u8>) {
    put(Level::Info, text);
}

/// Prints only warnings and errors on standard error from now on: for a caller that treats all
/// output there as an error.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

fn put(level: Level, text: Vec<u8>) {
    if level == Level::Info && QUIET.load(Ordering::Relaxed) {
        return;
    }
    let text = marked(level, text);
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
        bytes.extend(marked(Level::Warning, note.into_bytes()));
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
    if QUIET.load(Ordering::Relaxed) {
        return;
    }
    let Some(output) = err().output.clone() else {
        return words(text);
    };
    let piece = Piece {
        bytes: marked(Level::Info, text),
        ..Piece::default()
    };
    // Standard error may be closed; that is no reason to fail.
    drop(output.give(piece, &patience()));
}

/// Writes the queued lines before a wait of unknown length, unless the reader of standard error is
/// stalled: then they stay queued.
pub fn write_early() {
    let mut err = err();
    let stderr = io::stderr();
    let mut wanted = [poll::Wanted::writable(&stderr)];
    let is_ready = poll::wait(&mut wanted, Duration::ZERO).is_ok() && wanted[0].is_ready();
    // A pipe that is ready accepts this many bytes without blocking (PIPE_BUF, pipe(7)).
    if err.output.is_none() && is_ready && err.early.len() <= 4096 {
        let _ = stderr.lock().write_all(&std::mem::take(&mut err.early));
    }
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

/// Records that a live run has ended: from now on stalled readers are not waited for.
pub fn over() {
    OVER.get_or_init(|| Patience::over(&Stop::on_signals().unwrap_or_default()));
}

/// How long to wait for readers at the end: without limit, unless a stop was requested or the input
/// was a device.
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
    // Standard error may be closed; that is no reason to fail.
    if !early.is_empty() {
        drop(io::stderr().write_all(&early));
    }
    if let Some(output) = output
        && !output.is_idle()
    {
        drop(output.drain(&patience()));
    }
}

/// Standard output with its own writer thread, and a queue of at most `piece_count_max` pieces.
///
/// # Errors
/// If it is closed, or the thread cannot be started.
pub fn stdout(piece_count_max: usize) -> Result<Output> {
    let file = duplicate(io::stdout().as_fd(), "standard output")?;
    IS_TERMINAL.store(file.is_terminal(), Ordering::Relaxed);
    Output::start("stdout", piece_count_max, file)
}

/// Width of the terminal on standard output, if it is one.
pub fn terminal_width() -> Option<usize> {
    let is_terminal = IS_TERMINAL.load(Ordering::Relaxed) && io::stdout().is_terminal();
    let size = is_terminal.then(crossterm::terminal::size)?;
    // A serial line has no size: 0.
    size.ok()
        .map(|(columns, _)| columns.into())
        .filter(|columns| *columns != 0)
}

/// Prints to standard output and waits until it is written. A closed terminal has no reader, which
/// is not an error: the run ended as on a hang-up.
///
/// # Errors
/// If writing fails or the reader has stalled.
pub fn print(output: &Output, text: Vec<u8>) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let piece = Piece {
        bytes: text,
        ..Piece::default()
    };
    let patience = patience();
    let failure = match output.give(piece, &patience) {
        Ok(()) => match output.drain(&patience) {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => return Err(blocked("the end of the output")),
            Err(error) => error,
        },
        Err(Refused::Failed(error)) => error,
        Err(_) => return Err(blocked("the end of the output")),
    };
    match is_hung_up(&failure) {
        true => Ok(()),
        false => Err(failed(failure)),
    }
}

/// Whether writing failed because standard output was a terminal that was closed (`EIO`).
fn is_hung_up(error: &io::Error) -> bool {
    IS_TERMINAL.load(Ordering::Relaxed) && error.raw_os_error() == Some(5)
}

fn failed(error: io::Error) -> Error {
    Error::from_io("write to standard output", error)
}

/// Duplicates the file without std's lock, which a blocked writer would hold.
fn duplicate(fd: std::os::fd::BorrowedFd<'_>, name: &str) -> Result<File> {
    let copy = fd.try_clone_to_owned().map(File::from);
    copy.map_err(|e| Error::from_io(format!("use {name}"), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_priority() {
        let marked = with_level(Level::Error, b"barewire: no\nhint: yes\n");
        assert_eq!(marked, b"<3>barewire: no\n<3>hint: yes\n");
        assert_eq!(with_level(Level::Info, b""), b"");
    }
}
