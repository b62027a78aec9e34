//! Commands that write to a named pipe: they wait for a reader, can be stopped while they wait, and
//! lose nothing meanwhile.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::capture::{Folder, LIMIT, command, parse_pcap};
use crate::export::flood;
use lab::packet::pour;
use lab::process::{Process, Signal, barewire};
use lab::{Finished, Veth, require, skip};

const WAITING: &str = "waiting for a program to read the pipe ";

fn fifo(folder: &Folder) -> PathBuf {
    let path = folder.at("x.pcap");
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    path
}

/// A thread that reads the pipe to its end.
fn read(path: &Path) -> std::thread::JoinHandle<Vec<u8>> {
    let path = path.to_owned();
    std::thread::spawn(move || std::fs::read(path).unwrap())
}

fn is_over(finished: &Finished, path: &Path) {
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let text = &finished.stderr;
    let waiting = format!("{WAITING}{}", path.display());
    assert!(text.contains(&waiting), "{text}");
    assert!(text.contains("0 packets captured"), "{text}");
}

#[test]
fn a_capture_of_a_file_waits_for_a_reader() {
    require!(skip::program("mkfifo", "coreutils"));
    let folder = Folder::new();
    let path = fifo(&folder);
    let input = lab::oracle::write_pcap(&vec![vec![0; 100]; 20]).unwrap();
    let spawn = |more: &[&str]| {
        let files = ["-r", input.path().to_str().unwrap(), "-w"];
        let mut command = command(files);
        Process::spawn(command.arg(&path).args(more)).unwrap()
    };
    // No reader comes.
    is_over(&spawn(&["--duration", "1"]).wait(LIMIT).unwrap(), &path);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut process = spawn(&[]);
        process.wait_stderr(WAITING, LIMIT).unwrap();
        is_over(&process.stop(signal, LIMIT).unwrap(), &path);
    }
    // A late reader.
    let mut process = spawn(&[]);
    process.wait_stderr(WAITING, LIMIT).unwrap();
    let reader = read(&path);
    process.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(parse_pcap(&reader.join().unwrap()).len(), 20);
}

#[test]
fn a_late_reader_gets_all_packets() {
    require!(skip::lab(), skip::program("mkfifo", "coreutils"));
    let (pair, folder) = (Veth::new().create().unwrap(), Folder::new());
    let path = fifo(&folder);
    let spawn = |more: &[&str]| {
        let end = &pair.right;
        let file = path.to_str().unwrap();
        let args = ["capture", &end.ifname, "-w", file, "--json"];
        let program = barewire().unwrap();
        end.ns.spawn(program, [&args, more].concat()).unwrap()
    };
    let mut process = spawn(&["--duration", "3600", "udp"]);
    process.wait_stderr(WAITING, LIMIT).unwrap();
    pour(&pair, 1, 100);
    let reader = read(&path);
    process.wait_stderr("listening on", LIMIT).unwrap();
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let finished = finished.checked().unwrap();
    assert_eq!(parse_pcap(&reader.join().unwrap()).len(), 100);
    assert!(
        finished.stdout.contains("\"captured\":100"),
        "{}",
        finished.stdout
    );
    // Without a reader, packets are accounted for.
    for by_signal in [true, false] {
        let more = if by_signal { "3600" } else { "1" };
        let mut process = spawn(&["--duration", more, "udp"]);
        process.wait_stderr(WAITING, LIMIT).unwrap();
        pour(&pair, 1, 100);
        let finished = match by_signal {
            true => process.stop(Signal::SIGINT, LIMIT).unwrap(),
            false => process.wait(LIMIT).unwrap(),
        };
        is_over(&finished, &path);
        let totals: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(totals["account"]["total"]["imbalance"], 0, "{totals}");
    }
}

#[test]
fn an_export_waits_for_a_reader() {
    require!(skip::program("mkfifo", "coreutils"));
    let folder = Folder::new();
    let path = fifo(&folder);
    let input = folder.at("input.pcap");
    std::fs::write(&input, flood(10)).unwrap();
    let (input, fifo) = (input.to_str().unwrap(), path.to_str().unwrap());
    let export = format!("csv:{fifo}");
    for args in [["--export", &export], ["--report", fifo]] {
        let spawn = |more: &[&str]| {
            let mut command = Command::new(barewire().unwrap());
            command.args(["flows", input, "--plain"]).args(args);
            Process::spawn(command.args(more)).unwrap()
        };
        let finished = spawn(&["--duration", "1"]).wait(LIMIT).unwrap();
        let finished = finished.checked().unwrap();
        assert!(finished.stderr.contains("no program reads the pipe"));
        let mut process = spawn(&[]);
        process.wait_stderr(WAITING, LIMIT).unwrap();
        process
            .stop(Signal::SIGINT, LIMIT)
            .unwrap()
            .checked()
            .unwrap();
        let mut process = spawn(&[]);
        process.wait_stderr(WAITING, LIMIT).unwrap();
        let reader = read(&path);
        process.wait(LIMIT).unwrap().checked().unwrap();
        let text = String::from_utf8(reader.join().unwrap()).unwrap();
        assert!(text.lines().count() > 10, "{text}");
    }
}
