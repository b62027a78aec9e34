//! Exports read by nfcapd and nfdump: every format over UDP, totals equal to ours packet for
//! packet, no sequence failure, and loss seen where there was some.

mod export;

use std::process::Command;
use std::time::Duration;

use export::{Folder, LIMIT, Run, Totals, captures, run, udp_port, wait_bound};
use lab::process::{Process, Signal};
use lab::{require, skip};
use serde_json::Value;

/// A collector with its folder.
struct Nfcapd {
    process: Process,
    folder: Folder,
    port: u16,
}

impl Nfcapd {
    fn start(name: &str) -> Nfcapd {
        let (folder, port) = (Folder::new(name), udp_port());
        let mut command = Command::new("nfcapd");
        command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "600"]);
        command.args(["-B", "8000000", "-w", folder.path()]);
        let process = Process::spawn(&mut command).unwrap();
        wait_bound("udp", port);
        Nfcapd {
            process,
            folder,
            port,
        }
    }

    /// Ends it; packets and bytes of all records, and what it says of sequence failures.
    fn end(mut self) -> (Totals, u64) {
        // What is in its socket comes in first.
        std::thread::sleep(Duration::from_millis(500));
        self.process.stop(Signal::SIGTERM, LIMIT).unwrap();
        let mut command = Command::new("nfdump");
        command.args(["-R", self.folder.path(), "-q", "-N"]);
        command.args(["-o", "fmt:%ipkt %ibyt %opkt %obyt"]);
        let listed = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let mut totals = Totals::default();
        for line in listed.stdout.lines() {
            let numbers: Vec<u64> = line
                .split_whitespace()
                .map(|word| word.parse().unwrap_or_else(|_| panic!("{line:?}")))
                .collect();
            let [ipkt, ibyt, opkt, obyt] = numbers[..] else {
                continue;
            };
            totals.directions += u64::from(ipkt != 0) + u64::from(opkt != 0);
            totals.packets += ipkt + opkt;
            totals.bytes += ibyt + obyt;
        }
        let mut command = Command::new("nfdump");
        command.args(["-R", self.folder.path(), "-I"]);
        let info = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let failures = info
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("Sequence failures:"))
            .unwrap_or_else(|| panic!("{}", info.stdout));
        (totals, failures.trim().parse().unwrap())
    }
}

fn any(_: &Value) -> bool {
    true
}

/// All captures through one collector, each from an exporter of its own.
fn all_captures(format: &str, options: &str, every: usize, select: fn(&Value) -> bool) {
    let collector = Nfcapd::start(&format!("nfdump-{format}-{}", options.len()));
    let mut expected = Totals::default();
    for (at, file) in captures(every).iter().enumerate() {
        // Domains: a new run is a new exporter. Version 5 has 16 bits for it.
        let url = format!(
            "{format}:udp://127.0.0.1:{}?domain={}&rate=40000{options}",
            collector.port,
            at + 1
        );
        let Some(run) = run(file, &["--export", &url]) else {
            continue;
        };
        let totals = run.totals(select);
        let exported = run.export()["exported"]["packets"].as_u64().unwrap();
        assert_eq!(exported, totals.packets, "{}", file.display());
        expected.add(totals);
    }
    assert!(expected.packets > 200, "{expected:?}");
    let (found, failures) = collector.end();
    assert_eq!(found, expected, "{format}{options}");
    assert_eq!(failures, 0, "{format}{options}");
}

#[test]
fn ipfix_biflows() {
    require!(skip::program("nfcapd", "nfdump"));
    all_captures("ipfix", "", 12, any);
}

#[test]
fn ipfix_uniflows() {
    require!(skip::program("nfcapd", "nfdump"));
    all_captures("ipfix", "&uniflow", 40, any);
}

#[test]
fn netflow9() {
    require!(skip::program("nfcapd", "nfdump"));
    all_captures("netflow9", "", 40, any);
}

#[test]
fn netflow5() {
    require!(skip::program("nfcapd", "nfdump"));
    all_captures("netflow5", "", 40, |flow| flow["ip_version"] == 4);
}

/// A collector that begins late, and templates that come again.
#[test]
fn a_late_collector_learns_the_templates() {
    require!(skip::program("nfcapd", "nfdump"));
    let port = udp_port();
    let mix = captures(1000).remove(0);
    let bytes = std::fs::read(&mix).unwrap();
    let mut command = Command::new(lab::process::barewire().unwrap());
    let url = format!("ipfix:udp://127.0.0.1:{port}?refresh=1");
    command.args([
        "flows",
        "--json",
        "--export",
        &url,
        "--idle-timeout",
        "1s",
        "-",
    ]);
    command.stdin(std::process::Stdio::piped());
    let mut process = Process::spawn_with_stdin(&mut command).unwrap();
    let mut stdin = process.take_stdin().unwrap();
    // Time to send its templates to nobody.
    std::thread::sleep(Duration::from_secs(1));
    let folder = Folder::new("nfdump-late");
    let mut command = Command::new("nfcapd");
    command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "600"]);
    command.args(["-w", folder.path()]);
    let collector = Nfcapd {
        process: Process::spawn(&mut command).unwrap(),
        folder,
        port,
    };
    wait_bound("udp", port);
    // The templates went when nobody listened; they come again after a second.
    std::thread::sleep(Duration::from_millis(1500));
    std::io::Write::write_all(&mut stdin, &bytes).unwrap();
    drop(stdin);
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let mut flows: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let run = Run {
        summary: flows.pop().unwrap(),
        flows,
        finished: finished.clone(),
    };
    let (found, _) = collector.end();
    assert_eq!(found, run.totals(any));
}
