//! Keeping a card changed until Ctrl-C or the end of a command.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use ::nic::bind::Guard;
use runtime::Stop;
use sys::{Error, Result};

use crate::out::now;

/// Signals that end the run (signal(7)).
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
/// Poll interval while a command runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A helper process that undoes a change, and the signals that end the run.
pub(super) struct Held {
    stop: Stop,
    guard: Guard,
}

/// How the run ended.
pub(super) struct Code {
    /// Whether the helper has undone the change.
    pub(super) undone: bool,
    result: Result<i32>,
}

impl Code {
    /// Ends this process with the command's exit code, if that is not 0.
    pub(super) fn end(self) -> Result<()> {
        match self.result? {
            0 => Ok(()),
            code => std::process::exit(code),
        }
    }
}

impl Held {
    /// Starts the helper, `barewire nic` with these arguments, before anything is changed.
    pub(super) fn start(args: &[&str]) -> Result<Held> {
        let stop = Stop::on_signals()?;
        let program = std::env::current_exe()
            .map_err(|error| Error::from_io("find the path of this program", error))?;
        let mut command = Command::new(program);
        command.arg("nic").args(args);
        let guard = Guard::start(command)?;
        Ok(Held { stop, guard })
    }

    /// Runs the command, or waits for Ctrl-C, which is said to do `what`; then undoes the change.
    pub(super) fn wait(self, run: &[String], what: &str) -> Result<Code> {
        self.wait_with(run, what, ())
    }

    /// As [`wait`](Self::wait); drops `until` before the change is undone.
    pub(super) fn wait_with<T>(self, run: &[String], what: &str, until: T) -> Result<Code> {
        let result = match run.split_first() {
            None => {
                now!("press Ctrl-C to {what}");
                while !self.stop.is_set() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(0)
            }
            Some((program, args)) => run_command(program, args, &self.stop),
        };
        drop(until);
        let undone = self.guard.release()?;
        Ok(Code { undone, result })
    }
}

/// Runs a command to its end and returns its exit code, or 128 plus the signal number if a signal
/// ended it, as a shell does. Termination signals are forwarded.
fn run_command(program: &str, args: &[String], stop: &Stop) -> Result<i32> {
    let failed = |error| Error::from_io(format!("run {program}"), error);
    let mut child = Command::new(program).args(args).spawn().map_err(failed)?;
    let mut passed_on = false;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            let by_signal = || status.signal().map(|signal| 128 + signal);
            return Ok(status.code().or_else(by_signal).unwrap_or(1));
        }
        if stop.is_set() && !std::mem::replace(&mut passed_on, true) {
            let signal = sys::signal::first().unwrap_or(SIGTERM);
            // Ctrl-C is sent to the whole foreground process group: the command already has it.
            let has_it = signal == SIGINT && File::open("/dev/tty").is_ok();
            if !has_it {
                // It may have ended in the meantime.
                let _ = sys::signal::send(child.id(), signal);
            }
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}
