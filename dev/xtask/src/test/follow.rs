//! Reads the output of a program, line by line, until the program ends.
//!
//! A process that a test left behind has inherited the pipe and holds it open, so the end of the
//! pipe is not waited for: its content is read when the program has ended, and the process that
//! still holds it is reported.

use std::io::{ErrorKind, PipeReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Interval at which the end of the program is checked while it prints nothing.
const LOOK_MS: u16 = 200;

/// Maximum number of bytes read before the end of the program is checked again: at least the size
/// of a pipe (64 KiB), so that one read after the end gets everything that the program wrote.
const READ_MAX: usize = 1 << 20;

/// The outcome of the program.
pub struct End {
    pub status: ExitStatus,
    /// Processes that still held its output some time later: process ID and command line.
    pub holders: Vec<String>,
    /// Descendants that were killed because nothing was printed for too long, in the same form.
    pub killed: Vec<String>,
}

/// Time limits.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// For processes that outlive the program to close the pipe.
    pub grace: Duration,
    /// For the next byte: after that, what the program started counts as hung and is killed.
    pub silence: Duration,
}

/// Passes each line to `line` until the program has ended, then what is left in the pipe. Processes
/// that outlive it have the grace period to close the pipe.
///
/// # Errors
/// Errors of the pipe and of waitpid(2), and those of `line`.
pub fn follow(
    child: &mut Child,
    mut pipe: PipeReader,
    waits: Waits,
    mut line: impl FnMut(&[u8]) -> Result<()>,
) -> Result<End> {
    let Waits { grace, silence } = waits;
    let mut last_byte_at = Instant::now();
    let mut killed = Vec::new();
    let flags = OFlag::from_bits_retain(fcntl(&pipe, FcntlArg::F_GETFL)?);
    fcntl(&pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    let mut lines = Lines::default();
    let mut ended: Option<(ExitStatus, Instant)> = None;
    let mut closed = false;
    while !closed {
        if ended.is_none() {
            // Before the pipe is read: by then it contains everything that the program wrote.
            ended = child.try_wait()?.map(|status| (status, Instant::now()));
        }
        let before = lines.taken;
        closed = lines.take(&mut pipe, &mut line)?;
        if lines.taken != before {
            last_byte_at = Instant::now();
        }
        if ended.is_none() && last_byte_at.elapsed() >= silence {
            killed.extend(kill_below(child.id()));
            last_byte_at = Instant::now();
        }
        if ended.is_some_and(|(_, at)| at.elapsed() >= grace) {
            break;
        }
        if !closed {
            let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
            poll(&mut ready, PollTimeout::from(LOOK_MS)).or_else(|error| match error {
                nix::errno::Errno::EINTR => Ok(0),
                error => Err(error),
            })?;
        }
    }
    if !lines.rest.is_empty() {
        line(&lines.rest)?;
    }
    let status = match ended {
        Some((status, _)) => status,
        None => child.wait().context("waiting for the program")?,
    };
    let holders = if closed { Vec::new() } else { holders(&pipe) };
    Ok(End {
        status,
        holders,
        killed,
    })
}

/// Kills all descendants of this process, but not itself: cargo continues with the next suite.
/// Returns their command lines, children before their own children.
fn kill_below(pid: u32) -> Vec<String> {
    let mut killed = Vec::new();
    let mut parents = vec![pid.to_string()];
    while let Some(parent) = parents.pop() {
        let tasks = std::fs::read_dir(format!("/proc/{parent}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            parents.extend(
                children
                    .unwrap_or_default()
                    .split_whitespace()
                    .map(str::to_owned),
            );
        }
        let number = parent.parse().ok().filter(|_| parent != pid.to_string());
        if let Some(number) = number {
            killed.push(command_line(&parent));
            // It may have ended.
            let _ = kill(Pid::from_raw(number), Signal::SIGKILL);
        }
    }
    killed
}

/// Process ID and command line.
fn command_line(pid: &str) -> String {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    format!("{pid} {}", command.trim_end())
}

/// Received bytes, up to the last end of a line.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
    /// Bytes read.
    taken: u64,
}

impl Lines {
    /// Reads what is available, up to [`READ_MAX`]. Returns whether the pipe has ended.
    fn take(
        &mut self,
        pipe: &mut PipeReader,
        line: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let mut bytes = [0; 64 * 1024];
        let mut read = 0;
        while read < READ_MAX {
            let count = match pipe.read(&mut bytes) {
                Ok(0) => return Ok(true),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("the output of the tests"),
            };
            read += count;
            self.taken += count as u64;
            for piece in bytes[..count].split_inclusive(|byte| *byte == b'\n') {
                self.rest.extend_from_slice(piece);
                if self.rest.last() == Some(&b'\n') {
                    self.rest.pop();
                    line(&self.rest)?;
                    self.rest.clear();
                }
            }
        }
        Ok(false)
    }
}

/// The other processes that have this pipe open.
fn holders(pipe: &PipeReader) -> Vec<String> {
    let inode = |path: &std::path::Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let own = inode(format!("/proc/self/fd/{}", raw(pipe)).as_ref());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found = Vec::new();
    for process in processes {
        let name = process.file_name().to_string_lossy().into_owned();
        let is_other = name
            .parse::<u32>()
            .is_ok_and(|pid| pid != std::process::id());
        let files = std::fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten();
        if own.is_none() || !is_other || !files.flatten().any(|file| inode(&file.path()) == own) {
            continue;
        }
        found.push(command_line(&name));
    }
    found
}

fn raw(pipe: &PipeReader) -> i32 {
    use std::os::fd::AsRawFd;
    pipe.as_raw_fd()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn waits(grace: Duration) -> Waits {
        let silence = Duration::from_secs(600);
        Waits { grace, silence }
    }

    #[test]
    fn a_hung_child_is_killed_and_named_and_the_program_continues() {
        let (pipe, input) = std::io::pipe().unwrap();
        let script = "sh -c 'sleep 86400; exit 0'; echo ended with $?";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command.stdout(input.try_clone().unwrap()).stderr(input);
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut lines = Vec::new();
        let waits = Waits {
            grace: Duration::from_secs(600),
            silence: Duration::from_secs(2),
        };
        let end = follow(&mut child, pipe, waits, |line| {
            lines.push(String::from_utf8_lossy(line).into_owned());
            Ok(())
        });
        let end = end.unwrap();
        assert!(end.status.success(), "{lines:?}");
        assert!(lines.contains(&"ended with 137".to_owned()), "{lines:?}");
        let names = end.killed.join(", ");
        assert!(names.contains("sleep 86400"), "{names}");
    }

    /// Follows a shell script; returns its lines, and the outcome.
    fn followed(script: &str, grace: Duration) -> (Vec<String>, End) {
        let (pipe, input) = std::io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command.stdout(input.try_clone().unwrap()).stderr(input);
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut lines = Vec::new();
        let end = follow(&mut child, pipe, waits(grace), |line| {
            lines.push(String::from_utf8_lossy(line).into_owned());
            Ok(())
        });
        (lines, end.unwrap())
    }

    #[test]
    fn all_lines_of_both_streams_are_read() {
        let script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; \
                      echo more >&2; printf 'without an end'; exit 3";
        let (lines, end) = followed(script, Duration::from_secs(600));
        assert_eq!(lines.len(), 20_002);
        assert_eq!(lines[19_999..], ["line 19999", "more", "without an end"]);
        assert_eq!((end.status.code(), end.holders), (Some(3), Vec::new()));
    }

    #[test]
    fn a_process_that_outlives_its_test_is_reported_and_not_waited_for() {
        let script = "sleep 86400 & echo $!; echo last; exit 1";
        let (lines, end) = followed(script, Duration::from_millis(10));
        assert_eq!((lines.len(), lines[1].as_str()), (2, "last"));
        assert_eq!(end.status.code(), Some(1));
        let pid = lines[0].parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
        // Its name is still the shell's if it has not reached exec(2).
        let is_selected = |holder: &String| holder.starts_with(&format!("{pid} "));
        assert!(end.holders.iter().any(is_selected), "{:?}", end.holders);
    }

    #[test]
    fn a_child_that_prints_forever_does_not_delay_the_end() {
        let script = "yes & echo $!; exit 0";
        let (pipe, input) = std::io::pipe().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(input);
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut pid = None;
        let end = follow(&mut child, pipe, waits(Duration::from_millis(10)), |line| {
            let number = String::from_utf8_lossy(line).parse::<i32>();
            pid = pid.or(number.ok());
            Ok(())
        });
        let pid = nix::unistd::Pid::from_raw(pid.expect("the process id"));
        // The closed pipe may have ended it.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL);
        assert!(end.unwrap().status.success());
    }
}
