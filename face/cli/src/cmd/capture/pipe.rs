//! A capture into a named pipe ends when its reader leaves, also while no packets come.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use runtime::Stop;
use sys::{Error, Result, poll};

/// `O_NONBLOCK` (open(2)): without a reader there is an error, not a wait.
const NONBLOCK: i32 = 0o4000;

/// The longest sleep; a reader that leaves ends it at once.
const SLEEP: Duration = Duration::from_secs(3600);

/// Opens the pipe a second time, if it is one, to see its reader leave.
pub fn open(path: &Path) -> Option<File> {
    let is_pipe =
        path != Path::new("-") && path.metadata().is_ok_and(|data| data.file_type().is_fifo());
    let open = || {
        File::options()
            .write(true)
            .custom_flags(NONBLOCK)
            .open(path)
            .ok()
    };
    is_pipe.then(open).flatten()
}

/// Sets the flag when the reader has left.
///
/// # Errors
/// If the thread cannot be started.
pub fn watch(pipe: File, stop: &Stop) -> Result<()> {
    let stop = stop.clone();
    let watch = move || {
        loop {
            // Nothing is ever read there: what comes is the error of a pipe without a reader.
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
