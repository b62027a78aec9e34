//! Named network namespaces for the demo and the recording of captures.
//!
//! `dev/lab` has the full ones; this is the little that xtask needs without building the
//! workspace. Names follow the same rule, `bw-<pid>-<n>`, so that either sweeps for both.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::run::quietly;

/// Where iproute2 keeps the handles of named namespaces.
const NETNS_DIR: &str = "/run/netns";

/// A namespace with loopback up; deleted when dropped, unless kept.
pub struct Netns {
    /// As `ip netns list` shows it.
    pub name: String,
    keep: bool,
}

impl Netns {
    /// Makes one.
    pub fn new() -> Result<Netns> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bw-{}-{number}", std::process::id());
        ip(&["netns", "add", &name])?;
        let ns = Netns { name, keep: false };
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// Leaves it there at the end.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Runs `ip -n NAME WORDS`, the words separated by spaces.
    pub fn ip(&self, words: &str) -> Result<String> {
        let args: Vec<_> = ["-n", &self.name]
            .into_iter()
            .chain(words.split_whitespace())
            .collect();
        ip(&args)
    }

    /// A command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a line of words inside to its end and gives back its standard output.
    pub fn exec(&self, words: &str) -> Result<String> {
        let mut words = words.split_whitespace();
        let program = words.next().context("no program")?;
        quietly(self.command(program).args(words))
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("kept: namespace {}", self.name);
        } else if let Err(error) = delete(&self.name) {
            eprintln!(
                "warning: namespace {} was not deleted: {error:#}",
                self.name
            );
        }
    }
}

/// Deletes the namespaces of dead processes and gives back their names.
pub fn sweep() -> Result<Vec<String>> {
    let mut swept = Vec::new();
    let Ok(entries) = std::fs::read_dir(NETNS_DIR) else {
        return Ok(swept);
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(pid) = maker(&name) else { continue };
        // A test that runs now may sweep at the same time: gone is as good as deleted by us.
        if !Path::new("/proc").join(pid.to_string()).exists() && delete(&name).is_ok() {
            swept.push(name);
        }
    }
    Ok(swept)
}

/// The pid in a name of ours.
fn maker(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix("bw-")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Kills what lives inside and deletes the name.
fn delete(name: &str) -> Result<()> {
    for pid in ip(&["netns", "pids", name])?.split_whitespace() {
        let pid = nix::unistd::Pid::from_raw(pid.parse().context("pid of ip netns pids")?);
        // An error means that it ended by itself.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL);
    }
    ip(&["netns", "delete", name]).map(drop)
}

fn ip(args: &[&str]) -> Result<String> {
    quietly(Command::new("ip").args(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_have_a_maker() {
        assert_eq!(maker("bw-12-3"), Some(12));
        for other in ["bw-12", "bw-x-3", "bw-12-x", "xbw-12-3", ""] {
            assert_eq!(maker(other), None, "{other}");
        }
    }

    #[test]
    fn namespaces_end_with_their_value() {
        if !crate::run::is_root() {
            eprintln!("SKIPPED: namespaces_end_with_their_value: needs root");
            return;
        }
        let ns = Netns::new().unwrap();
        let path = Path::new(NETNS_DIR).join(&ns.name);
        assert!(path.exists());
        assert!(ns.exec("ip -brief link").unwrap().starts_with("lo "));
        drop(ns);
        assert!(!path.exists());
    }
}
