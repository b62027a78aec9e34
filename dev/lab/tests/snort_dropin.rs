//! Snort 2.9, unmodified, on this build's `libpcap.so`: its DAQ module `pcap` reads captures,
//! interfaces and queues, with the alerts and statistics that it has with the original.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::dropin::Dropin;
use lab::netns::Netns;
use lab::process::{Process, barewire};
use lab::unpacked::Unpacked;
use lab::{Pair, Veth, corpus, skip};

use crate::cluster_live::unique;
use crate::suricata_queues::capture;

const LIMIT: Duration = Duration::from_secs(300);

/// Rules on single packets, on streams (4) and on fragments; streams are reassembled.
const CONFIGURATION: &str = "\
config checksum_mode: none
preprocessor frag3_global: max_frags 65536
preprocessor frag3_engine: policy linux
preprocessor stream5_global: track_tcp yes, track_udp yes, track_icmp no
preprocessor stream5_tcp: policy linux
preprocessor stream5_udp: timeout 180
alert tcp any any -> any any (msg:\"syn\"; flags:S; sid:1;)
alert udp any any -> any any (msg:\"udp\"; dsize:>0; sid:2;)
alert icmp any any -> any any (msg:\"icmp\"; itype:8; sid:3;)
alert tcp any any -> any any (msg:\"get\"; content:\"GET \"; sid:4;)
alert ip any any -> any any (msg:\"fragment\"; fragbits:M; sid:5;)
";

/// Parts of Snort's statistics: each begins with one of these lines, and ends with a rule.
const STATISTICS: [&str; 3] = [
    "Packet I/O Totals:",
    "Breakdown by protocol",
    "Action Stats:",
];

fn snort() -> Result<Unpacked, skip::Missing> {
    Unpacked::find("snort", "usr/sbin/snort")
}

/// A directory for configuration and output, deleted on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(program: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("bw-{program}-{}", unique()));
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a run of Snort has found.
#[derive(Debug)]
struct Report {
    /// Lines with the time of the packet, the rule, and addresses.
    alerts: Vec<String>,
    /// Lines of [`STATISTICS`].
    statistics: Vec<String>,
}

impl Report {
    /// Without the packets' times, which live are others; Snort alerts in the order of packets.
    fn without_times(mut self) -> Report {
        for alert in &mut self.alerts {
            *alert = alert.split_once(' ').unwrap().1.to_owned();
        }
        self
    }

    /// A number of the statistics.
    fn count(&self, name: &str) -> u64 {
        let mut lines = self.statistics.iter();
        let line = lines.find_map(|line| line.trim().strip_prefix(name));
        let number = line.unwrap().trim_start_matches(':').split_whitespace();
        number.map(|word| word.parse().unwrap()).next().unwrap()
    }
}

fn statistics(text: &str) -> Vec<String> {
    let mut is_in = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        is_in |= STATISTICS.iter().any(|start| line.starts_with(start));
        is_in &= !line.starts_with("====");
        if is_in {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// Fails with the first lines that differ.
fn compare(ours: &Report, theirs: &Report, what: &str) {
    for (ours, theirs) in [
        (&ours.statistics, &theirs.statistics),
        (&ours.alerts, &theirs.alerts),
    ] {
        let differ = ours.iter().zip(theirs).filter(|(one, other)| one != other);
        let differ: Vec<_> = differ.take(10).collect();
        assert!(differ.is_empty(), "{what}: {differ:#?}");
        assert_eq!(ours.len(), theirs.len(), "{what}");
    }
}

/// Snort in a namespace, with this build's library or the original. It sees these captures.
fn start(
    folder: &Folder,
    captures: &[PathBuf],
    ns: Option<&Netns>,
    library: Option<&Dropin>,
) -> Command {
    let snort = snort().unwrap();
    let configuration = folder.0.join("snort.conf");
    std::fs::write(&configuration, CONFIGURATION).unwrap();
    let mut snort = snort.with(&folder.0).with_library(library);
    for captures in captures {
        snort = snort.with(captures);
    }
    let mut command = snort.command(ns);
    command.args(["--daq", "pcap", "--daq-dir"]);
    command.arg("/usr/lib/x86_64-linux-gnu/daq");
    command.arg("-c").arg(configuration);
    command.arg("-l").arg(&folder.0);
    command.args(["-A", "fast", "-N", "-k", "none"]);
    command
}

fn finish(folder: &Folder, mut process: Process) -> Report {
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let alerts = std::fs::read_to_string(folder.0.join("alert")).unwrap();
    let report = Report {
        alerts: alerts.lines().map(str::to_owned).collect(),
        statistics: statistics(&finished.stderr),
    };
    assert!(report.statistics.len() > 20, "{}", finished.stderr);
    report
}

/// Reads these captures, with a filter or none.
fn read(captures: &[PathBuf], filter: &str, library: Option<&Dropin>) -> Report {
    let folder = Folder::new("snort");
    let list = folder.0.join("captures");
    let captures = captures.iter().map(|file| file.canonicalize().unwrap());
    let captures: Vec<_> = captures.collect();
    let lines = captures.iter().map(|file| format!("{}\n", file.display()));
    std::fs::write(&list, lines.collect::<String>()).unwrap();
    let folders = captures.iter().filter_map(|file| file.parent());
    let folders: BTreeSet<_> = folders.map(PathBuf::from).collect();
    let folders: Vec<_> = folders.into_iter().collect();
    let mut command = start(&folder, &folders, None, library);
    command.arg("--pcap-file").arg(&list);
    if !filter.is_empty() {
        command.arg(filter);
    }
    let process = Process::spawn(&mut command).unwrap();
    finish(&folder, process)
}

/// Whether this is a capture of Ethernet in the format that libpcap writes. Snort stops at others.
fn is_ethernet(file: &Path) -> bool {
    let mut head = [0; 24];
    let read = std::fs::File::open(file)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head));
    let expected = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    read.is_ok() && head[..8] == expected && head[20..] == [1, 0, 0, 0]
}

#[test]
fn snort_reads_captures_as_with_the_original() {
    lab::require!(snort().map(drop));
    let corpus = corpus::captures();
    let mut captures = vec![capture()];
    captures.extend(
        corpus
            .files
            .iter()
            .filter(|file| is_ethernet(file))
            .cloned(),
    );
    assert!(captures.len() >= corpus.at_least(400, 2), "{captures:?}");
    let library = Dropin::new().unwrap();
    let mut counts = Vec::new();
    for filter in ["", "tcp port 80", "not ip6 and (udp or icmp)"] {
        let theirs = read(&captures, filter, None);
        let ours = read(&captures, filter, Some(&library));
        compare(&ours, &theirs, filter);
        assert!(!ours.alerts.is_empty());
        counts.push(ours.count("Analyzed"));
    }
    assert!(
        counts[1..].iter().all(|count| *count < counts[0]),
        "{counts:?}"
    );
}

/// Snort on a device, until it has analyzed `count` packets, after `send` was called.
fn live(
    ns: Option<&Netns>,
    library: Option<&Dropin>,
    device: &[&str],
    count: u64,
    send: impl FnOnce(),
) -> Report {
    let folder = Folder::new("snort");
    let mut command = start(&folder, &[], ns, library);
    command.args(["-n", &count.to_string(), "-i"]).args(device);
    let process = Process::spawn(&mut command).unwrap();
    let begun = process.wait_stderr("Commencing packet processing", LIMIT);
    begun.unwrap();
    send();
    finish(&folder, process)
}

/// A pair whose ends have no address: nothing but the capture is on it. (The capture has questions
/// for addresses like those of a usual pair, which the kernel would answer.)
pub(crate) fn silent() -> Pair {
    let pair = Veth::new().create().unwrap();
    for end in [&pair.left, &pair.right] {
        let flush = ["address", "flush", "dev", &end.ifname];
        end.ns.ip(flush).unwrap();
        end.ns
            .ip(["link", "set", &end.ifname, "arp", "off"])
            .unwrap();
    }
    pair
}

/// Sends the capture from the left end.
pub(crate) fn replay(pair: &Pair) {
    let port = format!("afpacket:{}", pair.left.ifname);
    let capture = capture();
    let args = ["send", capture.to_str().unwrap(), &port, "--rate", "5kpps"];
    let mut sender = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    sender.wait(LIMIT).unwrap().checked().unwrap();
}

#[test]
fn snort_on_interfaces_has_the_alerts_and_statistics_of_the_original() {
    lab::require!(skip::lab(), snort().map(drop));
    let library = Dropin::new().unwrap();
    let pair = silent();
    let (ns, ifname) = (Some(&pair.right.ns), pair.right.ifname.as_str());
    for filter in ["", "tcp port 80"] {
        let expected = read(&[capture()], filter, None).without_times();
        let count = expected.count("Analyzed");
        assert!(count > 20 && !expected.alerts.is_empty(), "{expected:?}");
        let devices = ["", "afpacket:", "afxdp:"].map(|scheme| format!("{scheme}{ifname}"));
        let devices = devices
            .iter()
            .map(|device| (Some(&library), device.as_str()));
        for (library, device) in std::iter::once((None, ifname)).chain(devices) {
            let mut args = vec![device];
            args.extend((!filter.is_empty()).then_some(filter));
            let found = live(ns, library, &args, count, || replay(&pair));
            let what = format!("{device} {filter}, ours: {}", library.is_some());
            compare(&found.without_times(), &expected, &what);
        }
    }
}

#[test]
fn snort_on_a_queue_of_a_cluster_has_the_alerts_of_one_that_reads_the_capture() {
    lab::require!(skip::root(), snort().map(drop));
    let library = Dropin::new().unwrap();
    let expected = read(&[capture()], "", None).without_times();
    let count = expected.count("Analyzed");
    let name = unique();
    let mut command = Command::new(barewire().unwrap());
    command
        .args(["cluster", "run", "--name", &name])
        .arg(capture());
    let mut cluster = Process::spawn(command.args(["--queues", "1"])).unwrap();
    cluster.wait_stderr("open ring:", LIMIT).unwrap();
    let device = format!("ring:{name}/0");
    let found = live(None, Some(&library), &[&device], count, || ());
    cluster.wait(LIMIT).unwrap().checked().unwrap();
    compare(&found.without_times(), &expected, &device);
}
