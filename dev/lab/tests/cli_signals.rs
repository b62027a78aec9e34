//! `SIGUSR1` prints totals on standard error, and the command continues.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::export::{Folder, flood};
use lab::inline::{X, Y};
use lab::process::{Process, Signal, barewire};
use lab::{Inline, Veth, require, skip};
use nix::sys::signal::Signal::SIGUSR1;

const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a process catches a signal (proc_pid_status(5)).
fn wait_caught(process: &Process, signal: Signal) {
    let path = format!("/proc/{}/status", process.pid());
    let until = Instant::now() + LIMIT;
    loop {
        let text = std::fs::read_to_string(&path).unwrap();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = u64::from_str_radix(mask.unwrap_or("0").trim(), 16).unwrap();
        if mask >> (signal as u32 - 1) & 1 == 1 {
            return;
        }
        assert!(Instant::now() < until, "{signal} is not caught");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a command in a namespace, requests totals twice, and stops it.
fn ask(mut command: Command, totals: &str) {
    let mut process = Process::spawn(&mut command).unwrap();
    wait_caught(&process, SIGUSR1);
    process.signal(SIGUSR1).unwrap();
    process.wait_stderr(totals, LIMIT).unwrap();
    let first = process.stderr().matches(totals).count();
    process.signal(SIGUSR1).unwrap();
    let until = Instant::now() + LIMIT;
    while process.stderr().matches(totals).count() == first {
        assert!(Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
}

#[test]
fn totals_are_printed_on_request() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    for (args, totals) in [
        (
            &["capture", "-w", "/dev/null"][..],
            "packets captured, 0 packets received by filter",
        ),
        (
            &["capture", "--json"],
            "packets captured, 0 packets received by filter",
        ),
        (
            &["flows", "--json"],
            " s: 0 pps; 0 flows in the table, 0 ended",
        ),
        (
            &["flows", "--plain", "--export", "csv:/dev/null"],
            "export csv:/dev/null: 0 flows exported",
        ),
        (
            &[
                "send",
                "--udp",
                "--rate",
                "1pps",
                "--dst-mac",
                "02:00:00:00:00:01",
            ],
            " bytes sent in ",
        ),
    ] {
        let mut command = end.ns.command(barewire().unwrap());
        command.args(args).arg(&end.ifname);
        if args[0] != "send" {
            // Matches nothing, so that all counters stay zero.
            command.arg("udp port 7");
        }
        ask(command, totals);
    }
    let row = Inline::new(&Veth::new()).unwrap();
    let mut command = row.ns().command(barewire().unwrap());
    command.args(["forward", X, Y, "udp port 7"]);
    ask(command, "0 packets received, 0 forwarded, 0 dropped in ");
}

/// Requested before the first byte of the input arrives, and while it is read from a pipe.
#[test]
fn a_request_for_totals_does_not_end_a_wait_for_standard_input() {
    let folder = Folder::new("usr1");
    let out = folder.0.join("out.pcap");
    for args in [
        &["flows", "--json", "-"][..],
        &["capture", "-r", "-", "-w", out.to_str().unwrap()],
    ] {
        let mut command = Command::new(barewire().unwrap());
        command.args(args).stdin(std::process::Stdio::piped());
        let mut process = Process::spawn_with_stdin(&mut command).unwrap();
        wait_caught(&process, SIGUSR1);
        process.signal(SIGUSR1).unwrap();
        let capture = flood(1000);
        let mut stdin = process.take_stdin().unwrap();
        stdin.write_all(&capture[..capture.len() / 2]).unwrap();
        process.signal(SIGUSR1).unwrap();
        stdin.write_all(&capture[capture.len() / 2..]).unwrap();
        drop(stdin);
        let finished = process.wait(LIMIT).unwrap();
        assert_eq!(finished.code(), Some(0), "{args:?}: {}", finished.stderr);
    }
}
