//! Programs as peers: started with both streams captured, waited for with a limit, always ended.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;

mod build;
mod suspend;

pub use build::{barewire, example, libpcap, libpfring, xtask};
pub use nix::sys::signal::Signal;

/// Interval at which the end of a program is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long a killed program may take to end: the kernel closes what it had open, which for a card
/// includes a reset.
const KILL_LIMIT: Duration = Duration::from_secs(60);

/// A running program, killed on drop.
#[derive(Debug)]
pub struct Process {
    what: String,
    child: Child,
    stdout: Stream,
    stderr: Stream,
}

/// How a program ended, and all its output.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Standard output, with invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
}

impl Finished {
    /// Whether the exit code is 0.
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// The exit code; `None` if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The signal that ended it; `None` if it exited.
    pub fn signal(&self) -> Option<Signal> {
        self.status
            .signal()
            .and_then(|number| Signal::try_from(number).ok())
    }

    /// Returns itself if the exit code is 0.
    ///
    /// # Errors
    /// If it is not; the error contains both streams.
    pub fn checked(self) -> Result<Finished> {
        if self.success() {
            return Ok(self);
        }
        bail!(
            "{}\nstdout:\n{}\nstderr:\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
    }
}

impl Process {
    /// Starts a command with standard input closed (unless `stdin` was set before) and both outputs
    /// captured.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Process> {
        command.stdin(Stdio::null());
        Process::spawn_with_stdin(command)
    }

    /// As [`spawn`](Process::spawn), with the standard input set in `command`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn_with_stdin(command: &mut Command) -> Result<Process> {
        let what = format!("{command:?}");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // Tests may have been started by nohup, or in the background.
        sys::signal::with_default_actions(command);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        let stdout = Stream::read(child.stdout.take().expect("piped above"));
        let stderr = Stream::read(child.stderr.take().expect("piped above"));
        Ok(Process {
            what,
            child,
            stdout,
            stderr,
        })
    }

    /// The process ID. With `ip netns exec` it is that of the program, once it runs.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The piped standard input; can be taken once.
    pub fn take_stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until standard output contains `text`.
    ///
    /// # Errors
    /// If the stream ends or `limit` passes first; the error contains the output.
    pub fn wait_stdout(&self, text: &str, limit: Duration) -> Result<()> {
        self.wait_stream(&self.stdout, text, limit)
    }

    /// Waits until standard error contains `text`.
    ///
    /// # Errors
    /// If the stream ends or `limit` passes first; the error contains the output.
    pub fn wait_stderr(&self, text: &str, limit: Duration) -> Result<()> {
        self.wait_stream(&self.stderr, text, limit)
    }

    fn wait_stream(&self, stream: &Stream, text: &str, limit: Duration) -> Result<()> {
        if stream.wait(text, limit) {
            return Ok(());
        }
        bail!(
            "{} did not say {text:?} within {limit:?}\nstdout:\n{}\nstderr:\n{}",
            self.what,
            self.stdout(),
            self.stderr()
        );
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the process was already waited for.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        nix::sys::signal::kill(Pid::from_raw(self.child.id().cast_signed()), signal)
            .with_context(|| format!("{signal} to {}", self.what))
    }

    /// Whether it is still running.
    ///
    /// # Errors
    /// Of waitpid(2).
    pub fn running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits for the end; kills the program and fails if `limit` passes first.
    ///
    /// # Errors
    /// At the limit; the error contains both streams.
    pub fn wait(&mut self, limit: Duration) -> Result<Finished> {
        if let Some(status) = self.reap(limit)? {
            return Ok(self.finished(status));
        }
        let finished = self.kill()?;
        bail!(
            "{} was still running after {limit:?} and was killed\nstdout:\n{}\nstderr:\n{}",
            self.what,
            finished.stdout,
            finished.stderr
        );
    }

    /// Waits for the end, at most `limit`.
    fn reap(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends `signal`, then waits as [`wait`](Process::wait) does.
    ///
    /// # Errors
    /// Errors of both.
    pub fn stop(&mut self, signal: Signal, limit: Duration) -> Result<Finished> {
        if self.running()? {
            self.signal(signal)?;
        }
        self.wait(limit)
    }

    /// Kills it with SIGKILL and returns its output.
    ///
    /// # Errors
    /// Errors of kill(2) and waitpid(2), and if the process does not end within a minute, with the
    /// kernel function that blocks it.
    pub fn kill(&mut self) -> Result<Finished> {
        self.child.kill()?;
        match self.reap(KILL_LIMIT)? {
            Some(status) => Ok(self.finished(status)),
            None => bail!(
                "{} was killed and is not gone after {KILL_LIMIT:?}; its threads:\n{}",
                self.what,
                held_at(self.child.id())
            ),
        }
    }

    fn finished(&mut self, status: ExitStatus) -> Finished {
        Finished {
            status,
            stdout: self.stdout.end(),
            stderr: self.stderr.end(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        if matches!(self.reap(KILL_LIMIT), Ok(None)) {
            eprintln!("{} does not end: {}", self.what, held_at(self.child.id()));
        }
    }
}

/// The kernel functions in which the threads of a process are blocked, as far as they are visible
/// (proc(5)).
pub(crate) fn held_at(pid: u32) -> String {
    let mut text = String::new();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let file = |name| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let status = file("status");
        let state = status.lines().find(|line| line.starts_with("State:"));
        let place = [
            state.unwrap_or_default().to_owned(),
            file("wchan"),
            file("stack"),
        ];
        text += &format!("{:?}: {}\n", thread.file_name(), place.join(" "));
    }
    text
}

/// A captured stream: a thread reads it to memory, so that a program with much output never blocks.
#[derive(Debug)]
struct Stream {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<StreamState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct StreamState {
    bytes: Vec<u8>,
    ended: bool,
}

impl Stream {
    fn read(mut source: impl Read + Send + 'static) -> Stream {
        let shared = Arc::new(Shared::default());
        let writer = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            let mut chunk = [0; 8192];
            loop {
                let count = match source.read(&mut chunk) {
                    Ok(count) => count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(_) => 0,
                };
                let mut state = writer.state.lock().expect("no holder panics");
                state.bytes.extend_from_slice(&chunk[..count]);
                state.ended = count == 0;
                writer.changed.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        Stream {
            shared,
            reader: Some(reader),
        }
    }

    fn text(&self) -> String {
        let state = self.shared.state.lock().expect("no holder panics");
        String::from_utf8_lossy(&state.bytes).into_owned()
    }

    /// Whether `text` arrives before the limit.
    fn wait(&self, text: &str, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.shared.state.lock().expect("no holder panics");
        loop {
            if String::from_utf8_lossy(&state.bytes).contains(text) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                return false;
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .expect("no holder panics")
                .0;
        }
    }

    /// The whole stream after the program's end. A grandchild that inherited the pipe may hold it
    /// open, so this waits at most a second.
    fn end(&mut self) -> String {
        let until = Instant::now() + Duration::from_secs(1);
        let mut state = self.shared.state.lock().expect("no holder panics");
        while !state.ended && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .expect("no holder panics")
                .0;
        }
        let ended = state.ended;
        drop(state);
        if ended && let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.text()
    }
}

/// The running test binary and arguments to run one of its tests: for what changes the process, or
/// must be killed. `module` is the caller's `module_path!()`, `name` a test in it.
///
/// # Panics
/// If the path of the running program cannot be read.
pub fn own_test(module: &str, name: &str) -> (PathBuf, [String; 3]) {
    let program = std::env::current_exe().expect("the path of this program");
    // libtest names tests without their crate.
    let path = match module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{name}"),
        None => name.to_owned(),
    };
    (program, ["--exact".into(), path, "--nocapture".into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn sh(script: &str) -> Process {
        Process::spawn(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn both_streams_and_the_code_are_kept() {
        let finished = sh("echo out; echo err >&2; exit 7").wait(LIMIT).unwrap();
        assert_eq!((finished.code(), finished.signal()), (Some(7), None));
        assert_eq!(
            (finished.stdout.as_str(), finished.stderr.as_str()),
            ("out\n", "err\n")
        );
        let error = finished.checked().unwrap_err().to_string();
        assert!(error.contains("out") && error.contains("err"), "{error}");
    }

    #[test]
    fn a_full_pipe_does_not_block_the_program() {
        let finished = sh("head -c 300000 /dev/zero | tr '\\0' x")
            .wait(LIMIT)
            .unwrap();
        assert_eq!(finished.stdout.len(), 300_000);
    }

    #[test]
    fn the_limit_kills_and_reports_the_output() {
        let mut process = sh("echo started; exec sleep 1000");
        process.wait_stdout("started", LIMIT).unwrap();
        let error = process
            .wait(Duration::from_millis(50))
            .unwrap_err()
            .to_string();
        assert!(error.contains("started"), "{error}");
        assert!(!process.running().unwrap());
    }

    #[test]
    fn signals_arrive() {
        let mut process =
            sh("trap 'echo bye; exit 3' INT; echo ready; while :; do sleep 0.01; done");
        process.wait_stdout("ready", LIMIT).unwrap();
        let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
        assert_eq!(
            (finished.code(), finished.stdout.as_str()),
            (Some(3), "ready\nbye\n")
        );
    }

    /// Set in a process in which signals are ignored.
    const IGNORING_VAR: &str = "BAREWIRE_IGNORES_SIGNALS";

    #[test]
    fn programs_are_started_with_default_signals() {
        if std::env::var_os(IGNORING_VAR).is_some() {
            for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
                let mut process = sh("echo ready; exec sleep 1000");
                process.wait_stdout("ready", LIMIT).unwrap();
                let finished = process.stop(signal, LIMIT).unwrap();
                assert_eq!(finished.signal(), Some(signal));
            }
            return;
        }
        let name = "programs_are_started_with_default_signals";
        let (program, args) = own_test(module_path!(), name);
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP INT TERM; exec \"$0\" \"$@\""]);
        // Not with `Process`, which would reset them.
        command.arg(program).args(args).env(IGNORING_VAR, "1");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("1 passed"), "{text}");
    }

    #[test]
    fn a_drop_kills() {
        let process = sh("exec sleep 1000");
        let pid = Pid::from_raw(process.pid().cast_signed());
        drop(process);
        assert!(nix::sys::signal::kill(pid, None).is_err(), "still there");
    }

    #[test]
    fn waiting_for_text_fails_at_the_end_of_the_stream() {
        let started = Instant::now();
        assert!(sh("echo other").wait_stdout("words", LIMIT).is_err());
        assert!(
            started.elapsed() < LIMIT,
            "the end of the stream must end the wait"
        );
    }
}
