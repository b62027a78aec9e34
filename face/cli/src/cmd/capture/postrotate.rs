//! `-z COMMAND`: runs a command on each file of a set once it is complete.
//!
//! The command is started directly, without a shell, with the file as its only argument, by a
//! thread that was made after privileges were dropped: it runs with what is left of them, and with
//! the lowest priority, in parallel to the capture.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sys::{Error, Result};

use crate::out::say;

/// How long commands that still run at the end are waited for; they are never killed.
const END_MAX: Duration = Duration::from_secs(30);

/// How often they are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Commands that run at a time; further files wait.
const RUNNING_MAX: usize = 4;

/// Runs the command until no more files come. The thread ends once all of them have run.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(command: String, files: Receiver<PathBuf>) -> Result<JoinHandle<()>> {
    thread::Builder::new()
        .name("postrotate".into())
        .spawn(move || run(&command, &files))
        .map_err(|e| Error::from_io("start the thread of -z", e))
}

fn run(command: &str, files: &Receiver<PathBuf>) {
    // What cannot be lowered runs with the priority of the capture.
    let _ = sys::affinity::lower_priority_of_thread();
    let mut running: Vec<Child> = Vec::new();
    for file in files {
        running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if running.len() >= RUNNING_MAX {
            // The oldest; what it says of itself it has said on standard error.
            let _ = running.remove(0).wait();
        }
        let mut started = Command::new(command);
        match started.arg(&file).stdin(Stdio::null()).spawn() {
            Ok(child) => running.push(child),
            Err(error) => say!("barewire: -z {command} {}: {error}", file.display()),
        }
    }
    let until = Instant::now() + END_MAX;
    while !running.is_empty() && Instant::now() < until {
        thread::sleep(LOOK);
        running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}
