//! A program that is suspended: it reads nothing while others send to it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Process, Signal};

/// How long the threads of a program may take to stop.
const LIMIT: Duration = Duration::from_secs(60);

impl Process {
    /// Sends SIGSTOP, and waits until all threads are stopped: the signal alone may take effect
    /// after the caller's next steps. SIGCONT resumes the program.
    ///
    /// # Errors
    /// If the program has ended or does not stop.
    pub fn suspend(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let end = Instant::now() + LIMIT;
        while !is_stopped(self.pid())? {
            if Instant::now() > end {
                bail!("{} does not stop", self.what);
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Whether all threads of a process are stopped, see proc(5).
fn is_stopped(pid: u32) -> Result<bool> {
    let path = format!("/proc/{pid}/task");
    for task in fs::read_dir(&path).context(path)? {
        let path = task?.path().join("stat");
        let stat = match fs::read_to_string(&path) {
            Ok(stat) => stat,
            // This thread has ended.
            Err(_) => continue,
        };
        // The name before the state is in parentheses, and may contain some.
        let state = stat.rsplit_once(") ").map(|(_, state)| state);
        if !state.is_some_and(|state| state.starts_with('T')) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_suspended_program_stops_until_it_is_resumed() {
        let mut process = Process::spawn(Command::new("sleep").arg("1000")).unwrap();
        process.suspend().unwrap();
        assert!(is_stopped(process.pid()).unwrap());
        process.signal(Signal::SIGCONT).unwrap();
        let finished = process.stop(Signal::SIGTERM, LIMIT).unwrap();
        assert_eq!(finished.signal(), Some(Signal::SIGTERM));
    }
}
