//! `-z COMMAND`: runs a command on each file of a set once it is complete.
//!
//! The command is started directly, without a shell, with the file as its only argument, by a
//! thread that was started after privileges were dropped: it runs with the remaining ones, and with
//! the lowest priority, in parallel to the capture.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sys::{Error, Result};

use crate::out::say;
use crate::report::counted;

/// How long commands may run after the last file; those still running are not killed.
const END_MAX: Duration = Duration::from_secs(30);

/// Interval at which running commands are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of commands running at a time; further files wait.
const RUNNING_MAX: usize = 4;

/// Maximum number of waiting files; the command is not run on further ones.
const WAITING_MAX: usize = 1024;

/// Starts the thread that runs the command. It ends once all commands have ended, at most
/// [`END_MAX`] after the sender is dropped.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(command: String, files: Receiver<PathBuf>) -> Result<JoinHandle<()>> {
    thread::Builder::new()
        .name("postrotate".into())
        .spawn(move || {
            // If its priority cannot be lowered, it runs with that of the capture.
            let _ = sys::affinity::lower_priority_of_thread();
            let mut queue = Queue::new(command);
            queue.run(&files, END_MAX);
            queue.report();
        })
        .map_err(|e| Error::from_io("start the thread of -z", e))
}

/// Running commands, and files waiting for one.
struct Queue {
    command: String,
    running: Vec<(Child, PathBuf)>,
    waiting: VecDeque<PathBuf>,
    /// Files overwritten (`-W`) before the command was started on them.
    replaced: u64,
    /// Files completed while [`WAITING_MAX`] were waiting.
    refused: u64,
}

impl Queue {
    fn new(command: String) -> Self {
        Self {
            command,
            running: Vec::new(),
            waiting: VecDeque::new(),
            replaced: 0,
            refused: 0,
        }
    }

    /// Runs until all commands have ended, or `end_max` after the sender of `files` was dropped.
    fn run(&mut self, files: &Receiver<PathBuf>, end_max: Duration) {
        let mut until = None;
        loop {
            self.start_waiting();
            let is_idle = self.running.is_empty() && self.waiting.is_empty();
            if let Some(until) = until {
                if is_idle || Instant::now() >= until {
                    return;
                }
                thread::sleep(CHECK_INTERVAL);
                continue;
            }
            let received = match is_idle {
                true => files.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => files.recv_timeout(CHECK_INTERVAL),
            };
            match received {
                Ok(file) => self.push(file),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => until = Some(Instant::now() + end_max),
            }
        }
    }

    fn push(&mut self, file: PathBuf) {
        if self.waiting.contains(&file) {
            self.replaced += 1;
        } else if self.waiting.len() >= WAITING_MAX {
            self.refused += 1;
        } else {
            self.waiting.push_back(file);
        }
    }

    /// Starts as many commands as allowed, at most one at a time per file name.
    fn start_waiting(&mut self) {
        self.running
            .retain_mut(|(child, _)| matches!(child.try_wait(), Ok(None)));
        while self.running.len() < RUNNING_MAX {
            let is_free = |file: &PathBuf| self.running.iter().all(|(_, name)| name != file);
            let index = self.waiting.iter().position(is_free);
            let Some(file) = index.and_then(|index| self.waiting.remove(index)) else {
                return;
            };
            let mut command = Command::new(&self.command);
            match command.arg(&file).stdin(Stdio::null()).spawn() {
                Ok(child) => self.running.push((child, file)),
                Err(error) => say!("barewire: -z {} {}: {error}", self.command, file.display()),
            }
        }
    }

    /// Reports files on which the command was not run.
    fn report(&self) {
        let command = &self.command;
        if let Some((_, file)) = self.running.first() {
            let (count, file) = (self.running.len(), file.display());
            say!("barewire: -z {command}: still running on {file}; in total {count}");
        }
        if let Some(file) = self.waiting.front() {
            let (count, file) = (counted(self.waiting.len() as u64, "file"), file.display());
            say!("barewire: -z {command}: not run on {count}, the first is {file}");
        }
        if self.replaced != 0 {
            let count = counted(self.replaced, "file");
            say!("barewire: -z {command}: {count} overwritten before the command ran");
        }
        if self.refused != 0 {
            let count = counted(self.refused, "file");
            say!("barewire: -z {command}: not run on {count}: {WAITING_MAX} were waiting");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn end(queue: &mut Queue) {
        for (child, _) in &mut queue.running {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn commands_that_hang_are_left_running_at_the_end() {
        let (sender, files) = channel();
        // sleep(1) takes the file name as its duration.
        for seconds in ["600", "601", "602", "603", "604", "604", "605"] {
            sender.send(seconds.into()).unwrap();
        }
        drop(sender);
        let mut queue = Queue::new("sleep".into());
        queue.run(&files, Duration::from_millis(50));
        assert_eq!(queue.running.len(), RUNNING_MAX);
        assert_eq!(queue.waiting, ["604", "605"].map(PathBuf::from));
        assert_eq!((queue.replaced, queue.refused), (1, 0));
        end(&mut queue);
    }

    #[test]
    fn one_command_runs_per_file_name() {
        let mut queue = Queue::new("sleep".into());
        for name in ["600", "600", "600"] {
            queue.push(name.into());
            queue.start_waiting();
        }
        assert_eq!((queue.running.len(), queue.waiting.len()), (1, 1));
        assert_eq!(queue.replaced, 1);
        end(&mut queue);
    }

    #[test]
    fn waiting_files_are_limited() {
        let mut queue = Queue::new("true".into());
        for number in 0..WAITING_MAX + 3 {
            queue.push(number.to_string().into());
        }
        assert_eq!((queue.waiting.len(), queue.refused), (WAITING_MAX, 3));
    }
}
