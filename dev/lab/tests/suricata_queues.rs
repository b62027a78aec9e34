//! Suricata, unmodified, behind a cluster: each of its processes reads one queue, by this build's
//! `libpcap.so` or by AF_PACKET on a veth pair. Together their alerts are those of one Suricata
//! that reads the capture file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::dropin::Dropin;
use lab::netns::Netns;
use lab::process::{Process, Signal, barewire};
use lab::skip::Missing;
use lab::unpacked::Unpacked;
use lab::{Veth, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// Rules on HTTP requests and DNS queries in streams, and on single packets. (Rules on addresses
/// alone are tested once for each of Suricata's flows, and an ICMPv6 error is not in the flow that
/// it quotes.)
const RULES: &str = "\
alert http any any -> any any (msg:\"http\"; http.method; content:\"GET\"; sid:1;)
alert dns any any -> any any (msg:\"dns\"; dns.query; content:\".\"; sid:2;)
alert tcp any any -> any any (msg:\"syn\"; flags:S; sid:3;)
alert udp any any -> any any (msg:\"udp\"; dsize:>0; sid:4;)
alert icmp any any -> any any (msg:\"icmp\"; itype:8; sid:5;)
";

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Suricata, unpacked with its libraries and its configuration.
pub(crate) fn suricata() -> Result<Unpacked, Missing> {
    Unpacked::find("suricata", "usr/bin/suricata")
}

/// A directory that is deleted on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

/// Where packets come from.
pub(crate) enum Source<'a> {
    /// A capture file.
    File(&'a Path),
    /// The option that names a device.
    Device(String),
}

impl Folder {
    pub(crate) fn new() -> Folder {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("barewire-suricata-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("test.rules"), RULES).unwrap();
        Folder(folder)
    }

    /// Suricata with the rules, its output in this directory, in a namespace, with this build's
    /// library if one is given; it reads what `source` says.
    pub(crate) fn suricata(
        &self,
        ns: Option<&Netns>,
        library: Option<&Dropin>,
        source: &Source<'_>,
    ) -> Command {
        let mut suricata = suricata().unwrap().with(&self.0).with_library(library);
        if let Source::File(file) = source {
            suricata = suricata.with(*file);
        }
        let mut command = suricata.command(ns);
        command.args(["--runmode", "single", "-k", "none", "-l"]);
        command
            .arg(&self.0)
            .arg("-S")
            .arg(self.0.join("test.rules"));
        command.args(["--set", "unix-command.enabled=no"]);
        match source {
            Source::File(file) => command.arg("-r").arg(file),
            Source::Device(option) => command.arg(option),
        };
        command
    }

    /// Waits until Suricata receives packets.
    pub(crate) fn wait_started(&self) {
        let end = Instant::now() + LIMIT;
        let log = self.0.join("suricata.log");
        let text = || std::fs::read_to_string(&log).unwrap_or_default();
        while !text().contains("Engine started") {
            assert!(Instant::now() < end, "{}", text());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The alerts so far: how often each rule matched in each direction of each flow.
    fn alerts(&self, into: &mut BTreeMap<String, u64>) {
        let text = std::fs::read_to_string(self.0.join("eve.json")).unwrap_or_default();
        // The last line may be incomplete.
        for event in text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        {
            if event["event_type"] == "alert" {
                let fields = ["src_ip", "src_port", "dest_ip", "dest_port", "proto"];
                let ends = fields.map(|field| event[field].to_string()).join(" ");
                let key = format!("{} {ends}", event["alert"]["signature_id"]);
                *into.entry(key).or_default() += 1;
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn alerts(folders: &[Folder]) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    folders.iter().for_each(|folder| folder.alerts(&mut found));
    found
}

pub(crate) fn capture() -> PathBuf {
    root().join("testdata/captures/lab-mix.pcapng")
}

/// The alerts of one Suricata that reads the capture file.
pub(crate) fn expected() -> BTreeMap<String, u64> {
    let folder = [Folder::new()];
    let capture = capture();
    let mut command = folder[0].suricata(None, None, &Source::File(&capture));
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
    let alerts = alerts(&folder);
    let has = |sid: char| alerts.keys().any(|key| key.starts_with(sid));
    assert!(('1'..='5').all(has), "a rule without an alert: {alerts:?}");
    alerts
}

/// A cluster that hands the capture file to queues, and waits for their readers.
fn cluster(name: &str, queues: u32) -> Process {
    let mut command = Command::new(barewire().unwrap());
    command.args(["cluster", "run", "--json", "--name", name]);
    command
        .arg(capture())
        .args(["--queues", &queues.to_string()]);
    let process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("open ring:", LIMIT).unwrap();
    process
}

/// The number of packets of each queue.
fn delivered(totals: &str) -> Vec<u64> {
    let totals: Value = serde_json::from_str(totals.lines().last().unwrap()).unwrap();
    assert_eq!(totals["imbalance"], 0);
    let queues = totals["queues"].as_array().unwrap().iter();
    queues
        .map(|queue| queue["delivered"].as_u64().unwrap())
        .collect()
}

/// Starts a process for each queue of a cluster, which reads it by `libpcap.so`.
pub(crate) fn readers(cluster: &str, folders: &[Folder], library: &Dropin) -> Vec<Process> {
    let start = |(queue, folder): (usize, &Folder)| {
        let queue = Source::Device(format!("--pcap=ring:{cluster}/{queue}"));
        let mut command = folder.suricata(None, Some(library), &queue);
        Process::spawn(&mut command).unwrap()
    };
    folders.iter().enumerate().map(start).collect()
}

/// Waits for the expected number of alerts, stops Suricata, which waits for packets forever, and
/// returns all alerts.
pub(crate) fn finish(
    readers: Vec<Process>,
    folders: &[Folder],
    expected: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let count = |alerts: &BTreeMap<String, u64>| alerts.values().sum::<u64>();
    let end = Instant::now() + LIMIT;
    while count(&alerts(folders)) < count(expected) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    for mut reader in readers {
        let stopped = reader.stop(Signal::SIGINT, LIMIT);
        stopped.unwrap().checked().unwrap();
    }
    alerts(folders)
}

/// Fails with the alerts that differ.
pub(crate) fn compare(mut found: BTreeMap<String, u64>, mut expected: BTreeMap<String, u64>) {
    let all = found.clone();
    found.retain(|key, count| expected.get(key) != Some(count));
    expected.retain(|key, count| all.get(key) != Some(count));
    assert_eq!(found, expected);
}

#[test]
fn suricata_reads_queues_by_libpcap() {
    lab::require!(skip::root(), suricata().map(drop));
    let expected = expected();
    let library = Dropin::new().unwrap();
    let name = format!("lab-suricata-pcap-{}", std::process::id());
    let mut cluster = cluster(&name, 2);
    let folders = [Folder::new(), Folder::new()];
    let readers = readers(&name, &folders, &library);
    let totals = cluster.wait(LIMIT).unwrap().checked().unwrap();
    let delivered = delivered(&totals.stdout);
    assert!(delivered.iter().all(|count| *count > 0), "{delivered:?}");
    compare(finish(readers, &folders, &expected), expected);
}

#[test]
fn suricata_reads_queues_by_af_packet() {
    lab::require!(skip::lab(), suricata().map(drop));
    let expected = expected();
    let name = format!("lab-suricata-veth-{}", std::process::id());
    let pairs = [Veth::new().create().unwrap(), Veth::new().create().unwrap()];
    let folders = [Folder::new(), Folder::new()];
    let mut readers = Vec::new();
    for (pair, folder) in pairs.iter().zip(&folders) {
        let interface = Source::Device(format!("--af-packet={}", pair.right.ifname));
        let mut command = folder.suricata(Some(&pair.right.ns), None, &interface);
        let reader = Process::spawn(&mut command).unwrap();
        folder.wait_started();
        readers.push(reader);
    }
    let mut cluster = cluster(&name, 2);
    let mut movers = Vec::new();
    for (queue, pair) in pairs.iter().enumerate() {
        let ports = [
            format!("ring:{name}/{queue}"),
            format!("afpacket:{}", pair.left.ifname),
        ];
        let args = ["forward", &ports[0], &ports[1]];
        movers.push(pair.left.ns.spawn(barewire().unwrap(), args).unwrap());
    }
    cluster.wait(LIMIT).unwrap().checked().unwrap();
    for mut mover in movers {
        mover.wait(LIMIT).unwrap().checked().unwrap();
    }
    compare(finish(readers, &folders, &expected), expected);
}
