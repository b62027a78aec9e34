//! Named pipes as outputs: waits for a reader, and ends a command when the reader closes the pipe,
//! even while no packets arrive.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use runtime::Stop;
use sys::create::CreateOptions;
use sys::{Error, Result, poll};

use crate::out::{self, say};

/// Longest sleep; a reader that closes the pipe ends it at once.
const SLEEP: Duration = Duration::from_secs(3600);

/// Interval at which a reader is looked for. Nothing wakes a writer that did not block in open(2).
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The reader of an output.
#[derive(Debug)]
pub enum Reader {
    /// The output is not a pipe.
    None,
    /// A program reads the pipe.
    Present {
        /// The pipe, opened a second time.
        pipe: File,
        /// How long the wait took.
        waited: Duration,
    },
    /// A stop was requested, or the time was over, before a program read the pipe.
    Absent,
}

/// Waits until a program reads the pipe at `path`, a stop is requested, or the command has run for
/// `duration`. Returns at once for anything else: what cannot be opened is an error of the call
/// that creates the output.
pub fn wait(path: &Path, stop: &Stop, duration: Option<Duration>) -> Reader {
    if !path.metadata().is_ok_and(|data| data.file_type().is_fifo()) {
        return Reader::None;
    }
    let since = Instant::now();
    let mut is_reported = false;
    loop {
        match CreateOptions::PRIVATE.open_pipe(path) {
            Ok(Some(pipe)) => {
                let waited = since.elapsed();
                return Reader::Present { pipe, waited };
            }
            Ok(None) => {}
            Err(_) => return Reader::None,
        }
        let is_over = duration.is_some_and(|duration| since.elapsed() >= duration);
        if stop.is_set() || is_over {
            return Reader::Absent;
        }
        if !is_reported {
            say!("waiting for a program to read the pipe {}", path.display());
            out::write_early();
            is_reported = true;
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Sets the flag when the reader has closed the pipe.
///
/// # Errors
/// If the thread cannot be started.
pub fn watch(pipe: File, stop: &Stop) -> Result<()> {
    let stop = stop.clone();
    let watch = move || {
        loop {
            // Nothing is ever read there: the only event is the error of a pipe without a reader.
            let mut wanted = [poll::Wanted::readable(&pipe)];
            if poll::wait(&mut wanted, SLEEP).is_err() {
                return;
            }
            if wanted[0].is_ready() {
                return stop.set();
            }
        }
    };
    let started = thread::Builder::new().name("pipe".into()).spawn(watch);
    started
        .map(drop)
        .map_err(|e| Error::from_io("start the thread of a pipe", e))
}
