//! Named network namespaces.
//!
//! Named namespaces (`/run/netns/NAME`, made by iproute2) rather than anonymous ones, because a
//! name can be used from a shell while a test hangs, and can be found again after a `kill -9`.
//! Names are `bw-<pid>-<n>`: unique among the processes of this machine, and [`sweep`] recognizes
//! stale ones.

use std::ffi::OsStr;
use std::fs::File;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::Process;

/// Where iproute2 keeps the handles of named namespaces.
const NETNS_DIR: &str = "/run/netns";

/// Prefix of all names of the lab.
const PREFIX: &str = "bw-";

/// A named network namespace, deleted on drop (also when a test panics).
///
/// Only loopback exists, and is up. Processes still in it on drop are killed, because they would
/// keep the namespace and its devices alive without a name.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Creates a namespace named `bw-<pid>-<n>`.
    ///
    /// The first call in a process also deletes what killed runs left behind.
    ///
    /// # Errors
    /// If `ip netns add` fails, as it always does without root.
    pub fn new() -> Result<Netns> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(|| {
            // Stale namespaces do not affect a new run, so a failure is only reported.
            if let Err(error) = sweep() {
                eprintln!("lab: could not sweep stale namespaces: {error:#}");
            }
        });
        let name = format!(
            "{PREFIX}{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        ip(["netns", "add", &name])?;
        let ns = Netns { name };
        ns.ip(["link", "set", "lo", "up"])?;
        Ok(ns)
    }

    /// The name, as in `ip netns list`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that refers to the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    /// Runs `ip -n NAME ARGS` and returns its standard output.
    ///
    /// # Errors
    /// If `ip` fails; the error contains the command and its output.
    pub fn ip<I, S>(&self, args: I) -> Result<String>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name]).args(args);
        run_checked(&mut command)
    }

    /// A command to run in it (`ip netns exec`).
    ///
    /// `ip netns exec` executes the program in place of itself, so the child's pid is the
    /// program's. The program gets its own mount namespace with a fresh `/sys`: what the host has
    /// mounted below it (bpffs, tracefs) does not exist.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a program in it to its end and returns its standard output.
    ///
    /// # Errors
    /// If it cannot be started or its exit code is not 0; the error contains both streams.
    pub fn exec<I, S>(&self, program: impl AsRef<OsStr>, args: I) -> Result<String>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        run_checked(self.command(program).args(args))
    }

    /// Starts a program in it with captured output; killed on drop.
    ///
    /// # Errors
    /// If `ip` cannot be started. A program that does not exist gives exit code 255.
    pub fn spawn<I, S>(&self, program: impl AsRef<OsStr>, args: I) -> Result<Process>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        Process::spawn(self.command(program).args(args))
    }

    /// Runs `body` in a new thread that has entered the namespace, and waits for it.
    ///
    /// The thread also gets its own mount namespace with a `/sys` that shows this namespace's
    /// devices, as with `ip netns exec`; threads that `body` starts inherit both. A panic in `body`
    /// becomes a panic of the caller, so assertions work as usual.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn run<T, F>(&self, body: F) -> Result<T>
    where
        T: Send,
        F: FnOnce() -> T + Send,
    {
        let path = self.path();
        // libtest identifies tests by the thread name; keep it in messages.
        let name = thread::current().name().unwrap_or("lab").to_owned();
        thread::scope(|scope| {
            let thread = thread::Builder::new().name(name).spawn_scoped(scope, || {
                enter(&path)?;
                Ok(body())
            })?;
            match thread.join() {
                Ok(result) => result,
                Err(panic) => resume_unwind(panic),
            }
        })
    }

    /// Writes a setting of this namespace below `/proc/sys`, for example
    /// `sysctl("net/ipv4/ip_forward", "1")`.
    ///
    /// # Errors
    /// If the setting does not exist or refuses the value.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.run(|| {
            std::fs::write(Path::new("/proc/sys").join(name), value)
                .with_context(|| format!("sysctl {name} = {value}"))
        })?
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = delete(&self.name) {
            eprintln!("lab: namespace {} was not deleted: {error:#}", self.name);
        }
    }
}

/// Deletes every namespace of the lab whose creator has ended, with the processes left in it, and
/// returns their names.
///
/// # Errors
/// If the directory of namespaces cannot be read.
pub fn sweep() -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(NETNS_DIR) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context(NETNS_DIR),
    };
    let mut swept = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let Some(pid) = maker(name) else { continue };
        if Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        // Another process may sweep at the same time: deleted by either is fine.
        if delete(name).is_ok() {
            swept.push(name.to_owned());
        }
    }
    Ok(swept)
}

/// The pid in a name of the lab; `None` for other names.
fn maker(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Kills all processes in the namespace and deletes its name.
fn delete(name: &str) -> Result<()> {
    for pid in ip(["netns", "pids", name])?.split_whitespace() {
        let pid: i32 = pid.parse().context("pid from ip netns pids")?;
        if pid != std::process::id().cast_signed() {
            // An error means that it has ended.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    ip(["netns", "delete", name]).map(drop)
}

/// Moves the calling thread into the namespace and mounts a matching `/sys`.
fn enter(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("setns {}", path.display()))?;
    unshare(CloneFlags::CLONE_NEWNS).context("unshare the mount namespace")?;
    // Without this the new /sys would appear in every other mount namespace too.
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_SLAVE | MsFlags::MS_REC,
        None::<&str>,
    )
    .context("make mounts private")?;
    // A sysfs mount belongs to the network namespace of the process that mounted it. Whatever is
    // mounted below the old one is detached with it; detaching may fail if /sys is not a mount
    // point, and then the new one simply covers it.
    let _ = umount2("/sys", MntFlags::MNT_DETACH);
    mount(
        Some("sysfs"),
        "/sys",
        Some("sysfs"),
        MsFlags::empty(),
        None::<&str>,
    )
    .context("mount /sys")
}

/// Runs `ip ARGS` and returns its standard output.
pub(crate) fn ip<I, S>(args: I) -> Result<String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    run_checked(Command::new("ip").args(args))
}

/// Runs a command to its end; an exit code other than 0 is an error with the full output.
pub(crate) fn run_checked(command: &mut Command) -> Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    if !status.success() {
        bail!(
            "{command:?}: {status}\n{stdout}{}",
            String::from_utf8_lossy(&stderr)
        );
    }
    Ok(stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_is_read_from_a_namespaces_name() {
        assert_eq!(maker("bw-12-3"), Some(12));
        for other in ["bw-12", "bw-x-3", "bw-12-x", "xbw-12-3", "bw--1-3", ""] {
            assert_eq!(maker(other), None, "{other}");
        }
    }

    #[test]
    fn namespace_lives_as_long_as_its_value() {
        crate::require!(crate::skip::lab());
        let path = {
            let ns = Netns::new().unwrap();
            assert!(ns.path().exists());
            ns.path()
        };
        assert!(!path.exists());
    }

    #[test]
    fn a_panic_deletes_the_namespace_too() {
        crate::require!(crate::skip::lab());
        let (send, receive) = std::sync::mpsc::channel();
        let thread = thread::Builder::new()
            .name("expected-panic".into())
            .spawn(move || {
                let ns = Netns::new().unwrap();
                send.send(ns.path()).unwrap();
                ns.run(|| panic!("expected by the test")).unwrap()
            });
        let path = receive.recv().unwrap();
        assert!(
            thread.unwrap().join().is_err(),
            "the panic must reach the caller"
        );
        assert!(!path.exists());
    }

    #[test]
    fn closures_and_programs_see_the_same_devices() {
        crate::require!(crate::skip::lab());
        let ns = Netns::new().unwrap();
        ns.ip([
            "link",
            "add",
            "only-here",
            "type",
            "veth",
            "peer",
            "name",
            "other",
        ])
        .unwrap();
        let mut here = ns
            .run(|| {
                let entries = std::fs::read_dir("/sys/class/net").unwrap();
                entries
                    .map(|e| e.unwrap().file_name().into_string().unwrap())
                    .collect::<Vec<_>>()
            })
            .unwrap();
        here.sort();
        assert_eq!(here, ["lo", "only-here", "other"]);
        let listed = ns.exec("ls", ["/sys/class/net"]).unwrap();
        assert_eq!(
            listed.split_whitespace().collect::<Vec<_>>(),
            ["lo", "only-here", "other"]
        );
        assert!(
            !Path::new("/sys/class/net/only-here").exists(),
            "the host must not see it"
        );
    }

    #[test]
    fn processes_inside_do_not_outlive_it() {
        crate::require!(crate::skip::lab());
        let ns = Netns::new().unwrap();
        let mut child = ns.command("sleep").arg("1000").spawn().unwrap();
        // The pid is in the namespace only after `ip` has switched: wait for that.
        for _ in 0..500 {
            if ip(["netns", "pids", ns.name()])
                .unwrap()
                .contains(&child.id().to_string())
            {
                break;
            }
            thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(ns);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_sweep_deletes_only_namespaces_of_ended_processes() {
        crate::require!(crate::skip::lab());
        let living = Netns::new().unwrap();
        // A pid that belonged to this test and has ended.
        let mut child = Command::new("true").spawn().unwrap();
        let dead = format!("{PREFIX}{}-0", child.id());
        child.wait().unwrap();
        ip(["netns", "add", &dead]).unwrap();
        // Another test's first namespace may sweep it first; it only has to be gone.
        sweep().unwrap();
        assert!(!Path::new(NETNS_DIR).join(&dead).exists());
        assert!(living.path().exists());
    }

    #[test]
    fn the_error_of_a_failing_program_contains_its_output() {
        crate::require!(crate::skip::lab());
        let ns = Netns::new().unwrap();
        let error = ns
            .exec("sh", ["-c", "echo reported >&2; exit 3"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("reported") && error.contains('3'), "{error}");
    }
}
