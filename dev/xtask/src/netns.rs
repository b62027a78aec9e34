//! Named network namespaces for the demo and the recording of captures.
//!
//! `dev/lab` has the full implementation; this is the part that xtask needs without building the
//! workspace. Names follow the same rule, `bw-<pid>-<n>`, so that each sweep covers both.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::run::quietly;

/// Where iproute2 keeps the handles of named namespaces.
const NETNS_DIR: &str = "/run/netns";

/// A namespace with loopback up; deleted on drop, unless kept, and when this process ends.
pub struct Netns {
    /// The name in `ip netns list`.
    pub name: String,
    keep: bool,
    guard: Guard,
}

/// A small process that deletes a namespace, with all processes in it, when its creator ends, in
/// whatever way: it waits for the end of a pipe. It has its own session, so that signals of a
/// terminal or timeout(1) to the process group do not end it.
struct Guard(Child);

impl Guard {
    /// The namespace is the first argument.
    const SCRIPT: &str = r#"
        read -r word && exit
        for pid in $(ip netns pids "$1"); do kill -KILL "$pid"; done
        ip netns delete "$1"
    "#;

    fn of(name: &str) -> Result<Guard> {
        let mut command = Command::new("setsid");
        command
            .args(["sh", "-c", Self::SCRIPT, "netns-guardian", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn();
        Ok(Guard(child.context("no setsid, which is of util-linux")?))
    }

    /// The namespace is deleted already.
    fn dismiss(&mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = pipe.write_all(b"dismissed\n");
        }
        let _ = self.0.wait();
    }
}

impl Netns {
    /// Creates a namespace.
    pub fn new() -> Result<Netns> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bw-{}-{number}", std::process::id());
        // First, so that no crash leaves a namespace behind.
        let mut guard = Guard::of(&name)?;
        if let Err(error) = ip(&["netns", "add", &name]) {
            guard.dismiss();
            return Err(error);
        }
        let ns = Netns {
            name,
            keep: false,
            guard,
        };
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// Keeps it at the end.
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

    /// A command to run in it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a command line in it to its end and returns its standard output.
    pub fn exec(&self, words: &str) -> Result<String> {
        let mut words = words.split_whitespace();
        let program = words.next().context("no program")?;
        quietly(self.command(program).args(words))
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.guard.dismiss();
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

/// Deletes the namespaces of ended processes and returns their names.
pub fn sweep() -> Result<Vec<String>> {
    let mut swept = Vec::new();
    let Ok(entries) = std::fs::read_dir(NETNS_DIR) else {
        return Ok(swept);
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(pid) = maker(&name) else { continue };
        // A running test may sweep at the same time: deleted by either is fine.
        if !Path::new("/proc").join(pid.to_string()).exists() && delete(&name).is_ok() {
            swept.push(name);
        }
    }
    Ok(swept)
}

/// The pid in a name of this form.
fn maker(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix("bw-")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Kills all processes in it and deletes the name.
fn delete(name: &str) -> Result<()> {
    for pid in ip(&["netns", "pids", name])?.split_whitespace() {
        let pid = nix::unistd::Pid::from_raw(pid.parse().context("pid of ip netns pids")?);
        // An error means that it has ended.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL);
    }
    ip(&["netns", "delete", name]).map(drop)
}

fn ip(args: &[&str]) -> Result<String> {
    quietly(Command::new("ip").args(args))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn only_names_of_this_form_have_a_creator() {
        assert_eq!(maker("bw-12-3"), Some(12));
        for other in ["bw-12", "bw-x-3", "bw-12-x", "xbw-12-3", ""] {
            assert_eq!(maker(other), None, "{other}");
        }
    }

    #[test]
    fn namespaces_are_deleted_on_drop() {
        if !crate::run::is_root() {
            skip::skip!("needs root");
        }
        let ns = Netns::new().unwrap();
        let path = Path::new(NETNS_DIR).join(&ns.name);
        assert!(path.exists());
        assert!(ns.exec("ip -brief link").unwrap().starts_with("lo "));
        drop(ns);
        assert!(!path.exists());
    }

    /// Set in a process that creates a namespace, prints its name and waits.
    const MAKER_VAR: &str = "BAREWIRE_NETNS_MAKER";

    /// Not a test in itself.
    #[test]
    fn makes_one_and_waits() {
        if std::env::var_os(MAKER_VAR).is_none() {
            return;
        }
        let ns = Netns::new().unwrap();
        let mut sleep = ns.command("sleep").arg("1000").spawn().unwrap();
        println!("made {}", ns.name);
        let _ = sleep.wait();
    }

    #[test]
    fn a_killed_maker_leaves_no_namespace_behind() {
        if !crate::run::is_root() {
            skip::skip!("needs root");
        }
        for signal in ["TERM", "KILL"] {
            let mut maker = Command::new(std::env::current_exe().unwrap());
            maker.args([
                "--exact",
                "netns::tests::makes_one_and_waits",
                "--nocapture",
            ]);
            maker.env(MAKER_VAR, "1").stdout(Stdio::piped());
            let mut maker = maker.spawn().unwrap();
            let lines = BufReader::new(maker.stdout.take().unwrap()).lines();
            let made =
                |line: std::io::Result<String>| Some(line.ok()?.split_once("made ")?.1.to_owned());
            let name = lines.into_iter().find_map(made).expect("its name");
            let until = Instant::now() + Duration::from_secs(60);
            let inside = loop {
                let pids = ip(&["netns", "pids", &name]).unwrap();
                if let [pid] = pids.split_whitespace().collect::<Vec<_>>()[..] {
                    break Path::new("/proc").join(pid);
                }
                assert!(Instant::now() < until, "one sleeps inside: {pids}");
            };
            let pid = maker.id().to_string();
            quietly(Command::new("kill").args(["-s", signal, &pid])).unwrap();
            maker.wait().unwrap();
            let until = Instant::now() + Duration::from_secs(60);
            while Path::new(NETNS_DIR).join(&name).exists() || inside.exists() {
                assert!(Instant::now() < until, "{name} is there after SIG{signal}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
