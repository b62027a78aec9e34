//! `cargo xtask lab` that is ended by a signal cleans up.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Including the time to fetch missing parts.
const START_LIMIT: Duration = Duration::from_secs(600);

const END_LIMIT: Duration = Duration::from_secs(60);

/// The guest that a process has started, as its directory in `/proc`. A QEMU that only lists its
/// features is not one.
fn qemu_of(pid: u32) -> Option<PathBuf> {
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .find(|process| {
            let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            // NUMBER (NAME) STATE PARENT …; the name may contain anything, and is the loader's if
            // QEMU is started through its own.
            let Some((_, rest)) = stat.rsplit_once(')') else {
                return false;
            };
            let parent = rest.split_whitespace().nth(1);
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let mut args = command.split(|&byte| byte == 0);
            // The program that sets the parent-death signal and then executes QEMU has the same
            // words after its own.
            let is_setpriv = args.clone().any(|arg| arg == b"--pdeathsig");
            let is_qemu = args.any(|arg| arg.ends_with(b"qemu-system-x86_64"));
            let has_kernel = args.any(|arg| arg == b"-kernel");
            parent == Some(&pid.to_string()) && is_qemu && has_kernel && !is_setpriv
        })
        .map(|process| process.path())
}

/// Namespaces that a process has created.
fn namespaces_of(pid: u32) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(&format!("bw-{pid}-")))
        .collect()
}

/// Killed at the end of this test.
struct Lab(Child);

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until it has a guest; the error is the reason why there is none.
fn wait_for_guest(lab: &mut Child) -> Result<PathBuf, String> {
    let end = Instant::now() + START_LIMIT;
    loop {
        if let Some(qemu) = qemu_of(lab.id()) {
            return Ok(qemu);
        }
        if lab.try_wait().unwrap().is_some() {
            let mut output = String::new();
            let mut stderr = lab.stderr.take().unwrap();
            stderr.read_to_string(&mut output).unwrap();
            assert!(output.contains("no guest here"), "it ended: {output}");
            return Err(output);
        }
        assert!(Instant::now() < end, "no guest after {START_LIMIT:?}");
        sleep(CHECK_INTERVAL);
    }
}

#[test]
fn no_guest_and_no_namespace_remain() {
    if std::env::var_os("BAREWIRE_TEST_GUEST").is_some_and(|value| value == "0") {
        skip::skip!("BAREWIRE_TEST_GUEST=0");
    }
    for signal in ["TERM", "KILL"] {
        let lab = Command::new(env!("CARGO_BIN_EXE_barewire-xtask"))
            .args(["lab", "run", "--bare", "--accel", "tcg"])
            .args(["--", "sleep", "300"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut lab = Lab(lab.unwrap());
        let qemu = match wait_for_guest(&mut lab.0) {
            Ok(qemu) => qemu,
            Err(why) => skip::skip!("{why}"),
        };
        let pid = lab.0.id();
        // Without root it creates none.
        let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
        let made = namespaces_of(pid);
        let has_tap = is_root && Path::new("/dev/net/tun").exists();
        assert_eq!(made.len(), usize::from(has_tap), "{made:?}");
        let kill = Command::new("kill")
            .args(["-s", signal, &pid.to_string()])
            .status();
        assert!(kill.unwrap().success());
        lab.0.wait().unwrap();
        let end = Instant::now() + END_LIMIT;
        while qemu.exists() || !namespaces_of(pid).is_empty() {
            assert!(
                Instant::now() < end,
                "after SIG{signal}: {} is there: {}, namespaces: {:?}",
                qemu.display(),
                qemu.exists(),
                namespaces_of(pid)
            );
            sleep(CHECK_INTERVAL);
        }
    }
}
