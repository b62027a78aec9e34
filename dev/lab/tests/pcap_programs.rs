//! `libpcap.so`: programs that analyse and change captures do the same as with the original.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::corpus;
use lab::dropin::{Dropin, original};
use lab::process::Process;
use lab::{require, skip};

use crate::export::Folder;
use crate::pcap_dropin::{captures, name, same};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs commands at the same time; their standard output and standard error.
fn together(commands: &mut [Command]) -> Vec<(String, String)> {
    let start = |command: &mut Command| Process::spawn(command).unwrap();
    let mut processes: Vec<_> = commands.iter_mut().map(start).collect();
    let finished = processes
        .iter_mut()
        .map(|process| process.wait(LIMIT).unwrap());
    finished
        .map(|finished| (finished.stdout, finished.stderr))
        .collect()
}

#[test]
fn softflowd_finds_the_flows_of_captures_as_with_the_original() {
    require!(skip::program("softflowd", "softflowd"));
    let dropin = Dropin::new().unwrap();
    let (mut compared, mut unknown) = (0, 0);
    for file in captures() {
        for filter in [&[][..], &["ip6 or udp"]] {
            let args = [&["-r", name(&file)], filter].concat();
            match same(&dropin, "softflowd", &args) {
                true => compared += 1,
                false => unknown += 1,
            }
        }
    }
    assert!(compared > 10 * unknown, "{compared} {unknown}");
}

/// The records of a file of argus, without those of argus itself, which have the present time.
pub(crate) fn argus_records(file: &Path, fields: &str) -> Vec<String> {
    let fields: Vec<_> = fields.split(' ').collect();
    let output = original("ra")
        .args(["-L", "-1", "-n", "-r"])
        .arg(file)
        .arg("-s")
        .args(&fields)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_record = |line: &&str| !line.split_whitespace().any(|word| word == "man");
    let mut lines: Vec<_> = text.lines().filter(is_record).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// argus reads savefiles in another loop than devices: `pcap_fileno` must be -1 for them.
#[test]
fn argus_records_the_flows_of_captures_as_with_the_original() {
    require!(
        skip::program("argus", "argus-server"),
        skip::program("ra", "argus-client")
    );
    let dropin = Dropin::new().unwrap();
    let folder = Folder::new("argus");
    let mut cases = Vec::new();
    for (number, file) in captures().into_iter().step_by(3).enumerate() {
        // Each run takes a second: all run at the same time.
        let filter = [&[][..], &["-", "udp"]][number % 2];
        let paths = ["theirs", "ours"].map(|who| folder.0.join(format!("{number}-{who}")));
        cases.push((file, filter, paths));
    }
    let mut commands = Vec::new();
    for (file, filter, [theirs, ours]) in &cases {
        for (mut command, to) in [(original("argus"), theirs), (dropin.command("argus"), ours)] {
            command.args(["-X", "-r", name(file), "-w", name(to)]);
            command.args(*filter);
            commands.push(command);
        }
    }
    let results = together(&mut commands);
    let mut count = 0;
    for ((file, filter, [theirs, ours]), results) in cases.iter().zip(results.chunks(2)) {
        let fields = "stime dur proto saddr sport dir daddr dport spkts dpkts sbytes dbytes state";
        let [theirs, ours] = [theirs, ours].map(|file| argus_records(file, fields));
        assert_eq!(ours, theirs, "{} {filter:?} {results:?}", file.display());
        count += theirs.len();
    }
    assert!(count > 20, "{count}");
}

#[test]
fn tcprewrite_writes_captures_as_with_the_original() {
    require!(skip::program("tcprewrite", "tcpreplay"));
    let dropin = Dropin::new().unwrap();
    let folder = Folder::new("tcprewrite");
    let mut written = 0;
    for file in captures() {
        let run = |mut command: Command, to: &str| {
            let to = folder.0.join(to);
            let change = ["--enet-smac=02:00:00:00:00:09", "--portmap=80:81"];
            command.args(["-i", name(&file), "-o", name(&to)]);
            let output = command.args(change).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            let bytes = std::fs::read(&to).ok();
            let _ = std::fs::remove_file(&to);
            (output.status, errors, bytes)
        };
        // The name of the file is in errors.
        let theirs = run(original("tcprewrite"), "out.pcap");
        let ours = run(dropin.command("tcprewrite"), "out.pcap");
        assert!(
            ours == theirs,
            "{}: {:?}",
            file.display(),
            (ours.1, theirs.1)
        );
        written += usize::from(theirs.2.is_some());
    }
    assert!(written > 3, "{written}");
}

#[test]
fn tshark_prints_captures_as_with_the_original() {
    require!(skip::program("tshark", "tshark"));
    let dropin = Dropin::new().unwrap();
    let fields = [
        "-T",
        "fields",
        "-e",
        "frame.time_epoch",
        "-e",
        "frame.cap_len",
        "-e",
        "vlan.id",
        "-e",
        "_ws.col.Info",
    ];
    for (file, options) in [("lab-mix.pcapng", &[][..]), ("lab-vlan.pcap", &fields)] {
        let file = corpus::own().join(file);
        let args = [&["-n", "-r", name(&file)], options].concat();
        let run = |mut command: Command| {
            let output = command.args(&args).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let theirs = run(original("tshark"));
        assert!(theirs.lines().count() > 40, "{theirs}");
        assert_eq!(run(dropin.command("tshark")), theirs);
    }
}

/// Prints the packets of files, those that filters select (scapy runs tcpdump for that), and what a
/// filter compiled by the library does with them.
const SCAPY: &str = r#"
import sys
from scapy.all import *
conf.use_pcap = True
for path in sys.argv[1:]:
    for filter in None, "udp", "ip6", "vlan and tcp":
        packets = sniff(offline=path, filter=filter, quiet=True)
        print(path, filter, len(packets))
        for packet in packets:
            print(packet.time, packet.wirelen, packet.summary())
    print(path, len(rdpcap(path)))
"#;

/// scapy's interpreter is Debian's, whichever comes first in the path.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

#[test]
fn scapy_reads_captures_as_with_the_original() {
    require!(
        skip::program("scapy", "python3-scapy"),
        skip::program("tcpdump", "tcpdump")
    );
    let dropin = Dropin::new().unwrap();
    let files = ["lab-vlan.pcap", "lab-fragments.pcapng", "lab-vxlan.pcapng"];
    let files = files.map(|file| corpus::own().join(file));
    let mut commands = [original(PYTHON), dropin.command(PYTHON)];
    for command in &mut commands {
        command.args(["-c", SCAPY]).args(&files);
    }
    let [theirs, ours] = &together(&mut commands)[..] else {
        unreachable!("two commands");
    };
    assert!(theirs.0.lines().count() > 100, "{theirs:?}");
    assert_eq!(ours.0, theirs.0);
}
