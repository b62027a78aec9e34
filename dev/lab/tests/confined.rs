//! System calls that commands give up once everything is open.

use std::fs;
use std::time::Duration;

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
    // A thread may end meanwhile.
    let status = |path: std::path::PathBuf| fs::read_to_string(path.join("status")).ok();
    let statuses = tasks.filter_map(|task| status(task.ok()?.path()));
    statuses.filter_map(mode).collect()
}

#[test]
fn running_commands_have_given_up_system_calls() {
    require!(skip::lab());
    let own = fs::read_to_string("/proc/self/status").unwrap();
    if !own.contains("Seccomp:\t0") {
        // A container's filter, which would count as ours; or a kernel without filters.
        let what = "the tests run under a seccomp filter, or the kernel has none".into();
        lab::skip!(skip::Missing::Machine(what));
    }
    let pair = Veth::new().create().unwrap();
    let left = pair.left.ifname.as_str();
    let mac = wire::Mac(pair.right.mac).to_string();
    let file = lab::oracle::TempFile::new("pcap");
    let path = file.path().to_str().unwrap();
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
    let commands: [(&[&str], &str); 6] = [
        (&["capture", left, "-w", path], "listening on"),
        (
            &["capture", left, "-w", path, "-G", "600", "-z", "gzip"],
            "listening on",
        ),
        (&["flows", left, "--plain"], left),
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
            let args = [&args[..1], more, &args[1..]].concat();
            let mut process = pair.left.ns.spawn(barewire().unwrap(), &args).unwrap();
            if !ready.is_empty() {
                process.wait_stderr(ready, LIMIT).unwrap();
            }
            let mut found = modes(&process);
            // The message may appear a moment before.
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
    }
}
