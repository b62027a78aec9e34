//! A time limit for code that might hang: prints where all threads are blocked, and exits.

use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::held_at;

/// Exit code of libtest for a failed test.
const FAILED: i32 = 101;

/// Runs `work`. If it takes longer than `limit`, prints where in the kernel all threads of this
/// process and its children are blocked, and exits as failed: a thread blocked in the kernel cannot
/// be woken.
pub fn within<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let (done, wait) = channel::<()>();
    let what = what.to_owned();
    let own = std::process::id();
    let watcher = std::thread::spawn(move || {
        if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            println!("{what} hangs: it is not over after {limit:?}");
            let children = children(own);
            for pid in std::iter::once(&own).chain(&children) {
                println!("process {pid}:\n{}", held_at(*pid));
            }
            for pid in children {
                // Nothing would wait for them any more.
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
            }
            let _ = Command::new("sh")
                .args(["-c", "dmesg | tail -n 30"])
                .status();
            std::process::exit(FAILED);
        }
    });
    let result = work();
    // Not waited for if `work` panics.
    drop(done);
    let _ = watcher.join();
    result
}

/// Child processes of a process.
fn children(pid: u32) -> Vec<u32> {
    let is_child = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // After the name, which may contain anything: state, parent.
        let (_, fields) = stat.rsplit_once(')')?;
        Some(fields.split_whitespace().nth(1)? == pid.to_string())
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|process| is_child(process) == Some(true))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    /// Set in a process that is to hang.
    const HANG_VAR: &str = "BAREWIRE_WATCHDOG_HANGS";

    const LIMIT: Duration = Duration::from_secs(60);

    /// Code of the child.
    #[test]
    fn child_hangs() {
        ::skip::child_body!(HANG_VAR);
        let _child = Process::spawn(Command::new("sleep").arg("1000")).unwrap();
        within(Duration::from_millis(200), "sleeping", || {
            std::thread::sleep(10 * LIMIT);
        });
    }

    #[test]
    fn work_within_the_limit_returns() {
        assert_eq!(within(LIMIT, "nothing", || 7), 7);
    }

    #[test]
    fn a_hang_is_a_failure_with_its_location() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "watchdog::tests::child_hangs", "--nocapture"]);
        let mut process = Process::spawn(command.env(HANG_VAR, "1")).unwrap();
        let ended = process.wait(LIMIT).unwrap();
        assert_eq!(ended.code(), Some(FAILED), "{}", ended.stdout);
        assert!(ended.stdout.contains("sleeping hangs"), "{}", ended.stdout);
        // Those of the test's thread and of the child.
        let sleepers = ended.stdout.matches("sleeping)").count();
        assert!(sleepers >= 2, "{}", ended.stdout);
    }
}
