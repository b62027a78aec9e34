//! The helper process that undoes what this process has changed when it ends, even by `kill -9`: it
//! waits for the end of a pipe that the user holds.
//!
//! The helper has its own session and its own name, so that it survives when the terminal is closed
//! or the program is killed by name (pkill(1)). It does not survive when the service or container
//! of both is stopped. In that case the change stays, and with cards and queues the record of it in
//! `/run/barewire-nic`.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sys::{Error, Result};

/// How often to check whether the helper has ended.
const LOOK: Duration = Duration::from_millis(50);
/// How long to wait for it on drop.
const DROP_WAIT: Duration = Duration::from_secs(1);
/// The name of the helper for a card: for ps(1) and pkill(1), at most 15 bytes (`TASK_COMM_LEN`).
pub(crate) const NAME: &str = "nic-guardian";
/// What the helper writes when it is ready.
const READY: [u8; 6] = *b"ready\n";

/// The helper, as seen by the process that it waits for. Dropping this undoes the change.
#[derive(Debug)]
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts the helper process for a card: `command` must call [`wait_until_closed`]. It keeps
    /// the privileges that this process has now, receives none of the terminal's signals, and holds
    /// none of our outputs open but standard error. It is ready when this returns.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: Command) -> Result<Self> {
        Self::start_as(NAME, command)
    }

    /// As [`start`](Self::start), for another change; `name` has at most 15 bytes.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_as(name: &str, mut command: Command) -> Result<Self> {
        let failed = |error| Error::from_io(format!("start the helper process {name}"), error);
        let child = command
            .arg0(name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut guard = Self { child };
        let mut said = [0; READY.len()];
        let output = guard.child.stdout.take();
        match output.map(|mut output| output.read_exact(&mut said)) {
            Some(Ok(())) if said == READY => Ok(guard),
            _ => Err(failed(io::Error::other("it exited at once"))),
        }
    }

    /// Undoes the change now and waits until that is done; returns whether it succeeded.
    ///
    /// # Errors
    /// If the process cannot be waited for.
    pub fn release(mut self) -> Result<bool> {
        self.end()
    }

    /// Ends the helper, which then undoes nothing: this process has done so.
    pub fn dismiss(mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn end(&mut self) -> Result<bool> {
        drop(self.child.stdin.take());
        let status = self.child.wait();
        status
            .map(|status| status.success())
            .map_err(|error| Error::from_io("wait for the helper process", error))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The helper waits for every process that has the card open, which may include this one:
        // then it continues when this one has exited.
        let end = Instant::now() + DROP_WAIT;
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(LOOK);
        }
    }
}

/// The helper's waiting: returns when standard input is closed, that is, when the process that
/// started it has ended or released it. `name` is the helper's, of at most 15 bytes.
///
/// # Errors
/// If the starting process cannot be notified.
pub fn wait_until_closed(name: &str) -> Result<()> {
    // If it leads a process group already (a shell started it), it needs no session of its own.
    let _ = sys::session::begin();
    // The name of the main thread is also that of the process.
    let _ = fs::write("/proc/self/comm", name);
    ready().map_err(|error| Error::from_io("report that the helper is ready", error))?;
    let mut byte = [0];
    // The other end never writes; a byte would be ignored.
    while io::stdin().read(&mut byte).is_ok_and(|count| count != 0) {}
    Ok(())
}

fn ready() -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(&READY)?;
    output.flush()
}
