//! Bro 2.5, as Zeek was called before version 3, unmodified on this build's `libpcap.so`: it reads
//! captures, interfaces and queues, and writes the logs that it writes with the original.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::dropin::Dropin;
use lab::netns::Netns;
use lab::process::{Process, barewire};
use lab::unpacked::Unpacked;
use lab::{corpus, skip};

use crate::cluster_live::unique;
use crate::snort_dropin::{Folder, replay, silent};
use crate::suricata_corpus::{files, joined};
use crate::suricata_queues::capture;

const LIMIT: Duration = Duration::from_secs(300);

/// Fields that depend on when packets were received, and identifiers that Bro makes of them. It
/// counts no payload where the whole connection has one timestamp.
const TIMES: [&str; 11] = [
    "ts",
    "orig_bytes",
    "resp_bytes",
    "uid",
    "duration",
    "rtt",
    "fuid",
    "conn_uids",
    "orig_fuids",
    "resp_fuids",
    "cert_chain_fuids",
];

/// Logs that protocols of `testdata/captures/lab-mix.pcapng` have.
const LOGS: [&str; 5] = ["conn.log", "dns.log", "http.log", "ssl.log", "files.log"];

fn bro() -> Result<Unpacked, skip::Missing> {
    Unpacked::find("bro", "usr/bin/bro")
}

/// Rows of each log, sorted, as `FIELD=VALUE` without some fields.
type Logs = BTreeMap<String, Vec<String>>;

fn rows(log: &Path, without: &[&str]) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let names = text.lines().find_map(|line| line.strip_prefix("#fields\t"));
    let names: Vec<&str> = names.unwrap().split('\t').collect();
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let mut rows: Vec<String> = rows
        .map(|row| {
            let fields = names.iter().zip(row.split('\t'));
            let kept = fields.filter(|(name, _)| !without.contains(name));
            let words = kept.map(|(name, value)| format!("{name}={value}"));
            words.collect::<Vec<_>>().join(" ")
        })
        .collect();
    rows.sort();
    rows
}

fn logs(folder: &Folder, without: &[&str]) -> Logs {
    let mut logs = Logs::new();
    for entry in std::fs::read_dir(&folder.0).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // What Bro reports of itself: when it set its filter, that it found no name server.
        let is_of_traffic = name != "packet_filter.log" && name != "reporter.log";
        if name.ends_with(".log") && is_of_traffic {
            logs.insert(name, rows(&path, without));
        }
    }
    logs
}

/// Bro in a directory for its logs; its identifiers are the same in each run.
fn start(bro: Unpacked, folder: &Folder, ns: Option<&Netns>, library: Option<&Dropin>) -> Command {
    let share = "/usr/share/bro";
    let path = format!("{share}:{share}/policy:{share}/site");
    let bro = bro.with(&folder.0).with_library(library);
    let mut command = bro.with_variable("BROPATH", path).command(ns);
    command.current_dir(&folder.0);
    let seeds = folder.0.join("seeds");
    let numbers = (1..=21).map(|number| format!("{number}\n"));
    std::fs::write(&seeds, numbers.collect::<String>()).unwrap();
    // Without checks of checksums.
    command.args(["-C", "-G"]).arg(seeds);
    command
}

/// Bro's directory after it has read a capture.
fn read(file: &Path, filter: &[&str], library: Option<&Dropin>) -> Folder {
    let folder = Folder::new("bro");
    let file = file.canonicalize().unwrap();
    let mut command = start(bro().unwrap().with(&file), &folder, None, library);
    command.arg("-r").arg(file).args(filter);
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
    folder
}

/// Fails with the rows that differ.
fn compare(ours: &Logs, theirs: &Logs, what: &str) {
    let names = |logs: &Logs| logs.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs), "{what}");
    for (name, rows) in ours {
        let only = |rows: &[String], others: &[String]| -> Vec<String> {
            let rows = rows.iter().filter(|row| !others.contains(row));
            rows.cloned().collect()
        };
        let (more, fewer) = (only(rows, &theirs[name]), only(&theirs[name], rows));
        assert_eq!(more, fewer, "{name}, {what}");
        assert_eq!(rows.len(), theirs[name].len(), "{name}, {what}");
    }
}

/// The same rows, with times and identifiers, of a capture of the repository and of some 140 of
/// other projects one after another.
#[test]
fn bro_reads_captures_as_with_the_original() {
    lab::require!(bro().map(drop));
    let library = Dropin::new().unwrap();
    let large = corpus::large().map(|corpus| joined(&files(&corpus)));
    if large.is_err() {
        corpus::reduced("ran on 1 of some 140 captures");
    }
    let own = capture();
    let captures = [
        Some(own.as_path()),
        large.as_ref().ok().map(|file| file.path()),
    ];
    for file in captures.into_iter().flatten() {
        for filter in [&[][..], &["-f", "port 53 or port 80"]] {
            let theirs = logs(&read(file, filter, None), &[]);
            let ours = logs(&read(file, filter, Some(&library)), &[]);
            assert!(theirs["conn.log"].len() > 10, "{theirs:?}");
            compare(&ours, &theirs, &format!("{} {filter:?}", file.display()));
        }
    }
}

/// Bro on a device, until it has seen `count` packets.
fn live(
    count: usize,
    ns: Option<&Netns>,
    library: Option<&Dropin>,
    device: &str,
    send: impl FnOnce(),
) -> Logs {
    let folder = Folder::new("bro");
    let script = folder.0.join("end.bro");
    let text = format!(
        "global seen = 0;\nevent raw_packet(p: raw_pkt_hdr) \
         {{ ++seen; if ( seen == {count} ) terminate(); }}\n"
    );
    std::fs::write(&script, text).unwrap();
    let mut command = start(bro().unwrap(), &folder, ns, library);
    command.args(["-i", device]).arg(script);
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    send();
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let counts = format!("{count} packets received on interface {device}, 0 dropped");
    assert!(finished.stderr.contains(&counts), "{}", finished.stderr);
    logs(&folder, &TIMES)
}

/// The logs of one that reads the capture with the original, and the number of its packets.
fn expected() -> (Logs, usize) {
    let expected = logs(&read(&capture(), &[], None), &TIMES);
    for log in LOGS {
        assert!(!expected[log].is_empty(), "{log}");
    }
    let (_, packets) = corpus::read(&capture(), 100_000).unwrap();
    (expected, packets.len())
}

#[test]
fn bro_on_interfaces_writes_the_logs_of_one_that_reads_the_capture() {
    lab::require!(skip::lab(), bro().map(drop));
    let library = Dropin::new().unwrap();
    let (expected, count) = expected();
    let pair = silent();
    let (ns, ifname) = (Some(&pair.right.ns), pair.right.ifname.as_str());
    for (scheme, library) in [
        ("", None),
        ("", Some(&library)),
        ("afpacket:", Some(&library)),
        ("afxdp:", Some(&library)),
    ] {
        let device = format!("{scheme}{ifname}");
        let found = live(count, ns, library, &device, || replay(&pair));
        let what = format!("{device}, ours: {}", library.is_some());
        compare(&found, &expected, &what);
    }
}

#[test]
fn bro_on_a_queue_of_a_cluster_writes_the_logs_of_one_that_reads_the_capture() {
    lab::require!(skip::root(), bro().map(drop));
    let library = Dropin::new().unwrap();
    let (expected, count) = expected();
    let name = unique();
    let mut command = Command::new(barewire().unwrap());
    command
        .args(["cluster", "run", "--name", &name])
        .arg(capture());
    let mut cluster = Process::spawn(command.args(["--queues", "1"])).unwrap();
    cluster.wait_stderr("open ring:", LIMIT).unwrap();
    let device = format!("ring:{name}/0");
    let found = live(count, None, Some(&library), &device, || ());
    cluster.wait(LIMIT).unwrap().checked().unwrap();
    compare(&found, &expected, &device);
}
