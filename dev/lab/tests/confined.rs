//! System calls that are blocked once everything is open.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use crate::capture::{Folder, command};
use lab::process::{Process, Signal, barewire};
use lab::{Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// The seccomp modes of a process's threads: 2 is a filter.
fn modes(process: &Process) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap();
    let mode = |status: String| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Seccomp:"));
        line.map(|mode| mode.trim().parse().unwrap())
    };
    // A thread may end in the meantime.
    let status = |path: std::path::PathBuf| fs::read_to_string(path.join("status")).ok();
    let statuses = tasks.filter_map(|task| status(task.ok()?.path()));
    statuses.filter_map(mode).collect()
}

#[test]
fn running_commands_cannot_make_blocked_system_calls() {
    require!(skip::lab());
    let own = fs::read_to_string("/proc/self/status").unwrap();
    if !own.contains("Seccomp:\t0") {
        // A container's own filter, which would be counted; or a kernel without filters.
        let what = "the tests run under a seccomp filter, or the kernel does not support it".into();
        lab::skip!(skip::Missing::Machine(what));
    }
    let pair = Veth::new().create().unwrap();
    let left = pair.left.ifname.as_str();
    let mac = wire::Mac(pair.right.mac).to_string();
    let file = lab::oracle::TempFile::new("pcap");
    let path = file.path().to_str().unwrap();
    let to = "file:/dev/null".to_owned();
    let scan = [
        "scan",
        "192.0.2.1",
        "-p",
        "1",
        "-e",
        left,
        "--router-mac",
        &mac,
        "--wait",
        "60",
    ];
    let name = format!("confined-{}", std::process::id());
    let cluster = ["cluster", "run", "--name", &name, left];
    let commands: [(&[&str], &str); 8] = [
        (&["capture", left, "-w", path], "listening on"),
        (
            &["capture", left, "-w", path, "-G", "600", "-z", "gzip"],
            "listening on",
        ),
        (&["flows", left, "--plain"], left),
        (&["forward", left, &to], "forwarding"),
        (&cluster, "open ring:"),
        (&["guard", left, "--count", "tcp"], "guarding"),
        (&scan, "all probes sent"),
        (
            &[
                "send",
                "--udp",
                "--dst",
                "10.77.0.2",
                "--rate",
                "10pps",
                left,
                "--json",
            ],
            "",
        ),
    ];
    for (args, ready) in commands {
        for (more, expected) in [(&[][..], 2), (&["--no-seccomp"][..], 0)] {
            let words = if args[0] == "cluster" { 2 } else { 1 };
            let args = [&args[..words], more, &args[words..]].concat();
            assert_mode(&pair, &args, ready, expected);
        }
    }
}

/// Starts a command, and checks the seccomp mode of its threads once `ready` is on standard error.
fn assert_mode(pair: &lab::Pair, args: &[&str], ready: &str, expected: u32) {
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    if !ready.is_empty() {
        process.wait_stderr(ready, LIMIT).unwrap();
    }
    let mut found = modes(&process);
    // The message may be printed shortly before.
    for _ in 0..500 {
        if found.iter().all(|mode| *mode == expected) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        found = modes(&process);
    }
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let is_right = !found.is_empty() && found.iter().all(|mode| *mode == expected);
    assert!(is_right, "{args:?} {found:?} {}", finished.stderr);
}

/// Reads packets from its standard input as root, to a set of files in another user's directory or
/// to a single file; returns its capabilities, and the sizes of the files.
fn capture_of_a_file(more: &[&str]) -> (String, Vec<u64>) {
    let folder = Folder::new();
    let set = folder.at("set");
    fs::create_dir(&set).unwrap();
    let [first, second] = ["x.pcap", "x1.pcap"].map(|name| set.join(name));
    // A file that root without capabilities cannot write.
    fs::write(&second, "").unwrap();
    fs::set_permissions(&second, fs::Permissions::from_mode(0o600)).unwrap();
    for path in [&second, &set] {
        std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
    }
    let input = lab::oracle::write_pcap(&vec![vec![0; 100]; 20]).unwrap();
    let args = ["-r", "-", "-w", first.to_str().unwrap()];
    let mut command = command([&args, more].concat());
    command.stdin(Stdio::piped());
    let mut process = Process::spawn_with_stdin(&mut command).unwrap();
    let mut stdin = process.take_stdin().unwrap();
    stdin.write_all(&fs::read(input.path()).unwrap()).unwrap();
    process.wait_stderr("reading from", LIMIT).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    drop(stdin);
    process.wait(LIMIT).unwrap().checked().unwrap();
    let lens = [first, second].map(|path| path.metadata().unwrap().len());
    (line.unwrap().trim().to_owned(), lens.to_vec())
}

#[test]
fn a_capture_of_a_file_drops_privileges() {
    require!(skip::lab());
    let (capabilities, lens) = capture_of_a_file(&[]);
    assert_eq!(capabilities, "0000000000000000");
    assert!(lens[0] > 2000 && lens[1] == 0, "{lens:?}");
    // CAP_DAC_OVERRIDE.
    let (capabilities, lens) = capture_of_a_file(&["-C", "1k"]);
    assert_eq!(capabilities, "0000000000000002");
    assert!(lens.iter().all(|len| *len > 1000), "{lens:?}");
}
