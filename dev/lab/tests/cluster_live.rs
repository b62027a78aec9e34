//! Clusters on veth pairs: every application receives every packet, flows stay whole, and killed
//! readers and owners lose only what they must.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lab::dropin::Dropin;
use lab::oracle::tcpdump::Capture;
use lab::oracle::{TempFile, read_pcap, write_pcap};
use lab::packet::{Raw, Udp, number_of};
use lab::process::{Finished, Process, Signal, barewire, own_test};
use lab::watch::Ending;
use lab::{Netns, Pair, Veth, skip};
use port::{PortOptions, Ready};
use serde_json::Value;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Matches the packets of these tests.
pub(crate) const FILTER: &str = "udp dst port 9";

/// Environment variable of the child that reads a queue: the port.
const READER: &str = "BAREWIRE_CLUSTER_READER";

pub(crate) fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("lab-{}-{number}", std::process::id())
}

/// A running cluster on the right end of a pair.
pub(crate) struct Cluster {
    name: String,
    pub(crate) process: Process,
}

impl Cluster {
    pub(crate) fn start(pair: &Pair, name: &str, args: &[&str]) -> Cluster {
        Self::start_in(&pair.right.ns, name, args)
    }

    /// Runs a cluster in a namespace.
    pub(crate) fn start_in(ns: &Netns, name: &str, args: &[&str]) -> Cluster {
        let fixed = ["cluster", "run", "--json", "--name", name];
        Self::spawn(ns, name, fixed.iter().chain(args))
    }

    /// Runs the cluster of a topology file.
    pub(crate) fn start_file(ns: &Netns, name: &str, file: &Path) -> Cluster {
        let args = ["cluster", "run", "--json", file.to_str().unwrap()];
        Self::spawn(ns, name, args.iter())
    }

    fn spawn<'a>(ns: &Netns, name: &str, args: impl Iterator<Item = &'a &'a str>) -> Cluster {
        let process = ns.spawn(barewire().unwrap(), args).unwrap();
        process
            .wait_stderr(&format!("open ring:{name}"), LIMIT)
            .unwrap();
        Cluster {
            name: name.to_owned(),
            process,
        }
    }

    /// Stops it, and returns its totals.
    pub(crate) fn stop(mut self) -> Value {
        let finished = self.process.stop(Signal::SIGINT, LIMIT).unwrap();
        Self::totals(finished)
    }

    /// Waits until it ends by itself, and returns its totals.
    pub(crate) fn wait(mut self) -> Value {
        let finished = self.process.wait(LIMIT).unwrap();
        Self::totals(finished)
    }

    fn totals(finished: Finished) -> Value {
        let finished = finished.checked().unwrap();
        let last = finished.stdout.lines().last().unwrap();
        let totals: Value = serde_json::from_str(last).unwrap();
        assert_eq!(
            (&totals["type"], &totals["imbalance"]),
            (&"totals".into(), &0.into())
        );
        totals
    }

    pub(crate) fn status(&self) -> Value {
        let mut command = Command::new(barewire().unwrap());
        command.args(["cluster", "show", "--json", &self.name]);
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let all: Value = serde_json::from_str(&finished.checked().unwrap().stdout).unwrap();
        all[0].clone()
    }

    /// Waits until `is_so` holds for the status.
    pub(crate) fn wait_for(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let end = std::time::Instant::now() + LIMIT;
        while !is_so(&self.status()) {
            assert!(
                std::time::Instant::now() < end,
                "not {what}: {}",
                self.status()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until each application's queues have together delivered `count` packets.
    pub(crate) fn wait_delivered(&self, count: u64) {
        self.wait_for("delivered", |status| {
            let queues = status["queues"].as_array().unwrap();
            let mut sums = BTreeMap::<&str, u64>::new();
            for queue in queues {
                let name = queue["application"].as_str().unwrap();
                *sums.entry(name).or_default() += number(&queue["delivered"]);
            }
            sums.values().all(|sum| *sum == count)
        });
    }
}

/// After a test that has failed, the socket of the killed cluster is left.
impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = std::fs::remove_file(Path::new("/run/barewire").join(&self.name));
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// `barewire capture` of a queue into a file.
pub(crate) fn capture(port: &str, file: &Path) -> Process {
    let mut command = Command::new(barewire().unwrap());
    command.args(["capture", port, "-w", file.to_str().unwrap()]);
    let process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    process
}

pub(crate) fn packets_of(path: &Path) -> Vec<Vec<u8>> {
    read_pcap(path).unwrap()
}

/// Sends numbered packets of all lengths, in 16 flows, from the left end to the right one.
fn send(pair: &Pair, count: u64) -> Vec<Vec<u8>> {
    send_range(pair, 0..count)
}

fn send_range(pair: &Pair, numbers: Range<u64>) -> Vec<Vec<u8>> {
    let plan = Udp::between(&pair.left, &pair.right).flows(16);
    let len = |number: u64| 60 + number * 37 % 1_455;
    let packets: Vec<_> = numbers
        .map(|number| plan.build(number, len(number) as usize))
        .collect();
    let file = write_pcap(&packets).unwrap();
    let name = file.path().to_str().unwrap();
    let args = ["send", name, &pair.left.ifname, "--rate", "20kpps"];
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
    packets
}

/// Sends numbered packets of 60 bytes up to `limit`, which may rise, until `is_done`; returns their
/// number.
fn send_until(pair: &Pair, limit: &AtomicU64, is_done: &AtomicBool) -> u64 {
    let plan = Udp::between(&pair.left, &pair.right).flows(16);
    let sender = pair
        .left
        .ns
        .run(|| Raw::sender(&pair.left.ifname))
        .unwrap()
        .unwrap();
    let mut number = 0;
    while !is_done.load(Ordering::Relaxed) {
        for _ in 0..32.min(limit.load(Ordering::Relaxed) - number) {
            sender.send(&plan.build(number, 60)).unwrap();
            number += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    number
}

/// Two applications, one of them with three instances, receive all packets that tcpdump sees.
#[test]
fn two_applications_receive_what_tcpdump_receives() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    for scheme in ["afpacket", "afxdp"] {
        let pair = Veth::new().create().unwrap();
        let name = unique();
        let port = format!("{scheme}:{}", pair.right.ifname);
        let args = ["--app", "one", "--app", "three=3", port.as_str(), FILTER];
        let cluster = Cluster::start(&pair, &name, &args);
        let files: Vec<TempFile> = (0..4).map(|_| TempFile::new(".pcap")).collect();
        let ports = ["one", "three", "three", "3"].map(|end| format!("ring:{name}/{end}"));
        let readers: Vec<Process> = ports
            .iter()
            .zip(&files)
            .map(|(port, file)| capture(port, file.path()))
            .collect();
        let oracle = TempFile::new(".pcap");
        let (ns, ifname) = (&pair.right.ns, &pair.right.ifname);
        let tcpdump = Capture::start(ns, ifname, oracle.path(), FILTER).unwrap();
        let sent = send(&pair, 4_000);
        cluster.wait_delivered(4_000);
        let status = cluster.status();
        let is_zero_copy = scheme == "afxdp";
        assert_eq!(status["input"]["zero_copy"], is_zero_copy, "{status}");
        let totals = cluster.stop();
        // tcpdump drops at SIGINT what it has not read: wait until it has everything.
        let end = std::time::Instant::now() + LIMIT;
        while !is_zero_copy && packets_of(oracle.path()).len() < sent.len() {
            assert!(std::time::Instant::now() < end, "tcpdump has fewer packets");
            std::thread::sleep(Duration::from_millis(20));
        }
        tcpdump.stop().unwrap();
        for mut reader in readers {
            // The cluster has ended in order.
            reader.wait(LIMIT).unwrap().checked().unwrap();
        }
        let got: Vec<_> = files.iter().map(|file| packets_of(file.path())).collect();
        assert!(got[0] == sent, "{scheme}: {} packets", got[0].len());
        if !is_zero_copy {
            assert!(packets_of(oracle.path()) == sent, "tcpdump has others");
        }
        let mut together: Vec<_> = got[1..].iter().flatten().cloned().collect();
        together.sort_by_key(|packet| number_of(packet).unwrap());
        assert!(together == sent, "{scheme}: {} packets", together.len());
        // The flow is in the source port.
        let flows = |packets: &Vec<Vec<u8>>| -> BTreeSet<[u8; 2]> {
            packets
                .iter()
                .map(|packet| [packet[34], packet[35]])
                .collect()
        };
        let flows: Vec<_> = got[1..].iter().map(flows).collect();
        assert_eq!(
            flows.iter().map(BTreeSet::len).sum::<usize>(),
            16,
            "{flows:?}"
        );
        let copied = if is_zero_copy { 0 } else { 4_000 };
        assert_eq!(
            (number(&totals["copied"]), number(&totals["adopted"])),
            (copied, 4_000)
        );
        for queue in totals["queues"].as_array().unwrap() {
            assert_eq!(
                (&queue["dropped"], &queue["lost"]),
                (&0.into(), &0.into()),
                "{queue}"
            );
        }
    }
}

/// Code of the child: writes the number of each packet before it returns the packet.
#[test]
fn child_reads_a_queue() {
    let name = ::skip::child_body!(READER);
    let options = PortOptions {
        batch_max: 1,
        ..PortOptions::default()
    };
    let mut port = port::open(&name, &options).unwrap();
    let rx = &mut port.rx[0];
    // Not through the test's own standard output, which is buffered.
    let mut pipe = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/fd/1")
        .unwrap();
    while rx.wait(LIMIT).unwrap() == Ready::Packets {
        let batch = rx.receive().unwrap();
        for packet in batch.iter() {
            let line = format!("packet {}\n", number_of(packet.bytes()).unwrap());
            pipe.write_all(line.as_bytes()).unwrap();
        }
    }
}

/// A reader that takes one packet at a time is killed again and again: at most one packet is lost
/// each time, none is received twice, and another application sees no gap.
#[test]
fn killed_readers_lose_at_most_one_packet_each() {
    lab::require!(skip::lab());
    const KILLS: usize = 12;
    let pair = Veth::new().create().unwrap();
    let name = unique();
    let port = format!("afpacket:{}", pair.right.ifname);
    let args = [
        "--app", "killed", "--app", "steady", "--ring", "16384", &port, FILTER,
    ];
    let cluster = Cluster::start(&pair, &name, &args);
    let file = TempFile::new(".pcap");
    let mut steady = capture(&format!("ring:{name}/steady"), file.path());
    let start = || {
        let (program, args) = own_test(module_path!(), "child_reads_a_queue");
        let mut command = Command::new(program);
        command
            .args(args)
            .env(READER, format!("ring:{name}/killed"));
        Process::spawn(&mut command).unwrap()
    };
    let numbers_of = |text: &str| -> Vec<u64> {
        // The test's own output may be on the same line.
        let lines = text.lines().filter_map(|line| line.rsplit_once("packet "));
        lines.map(|(_, number)| number.parse().unwrap()).collect()
    };
    let mut seen = Vec::new();
    // All packets fit into the ring, however long a reader takes to start.
    let (limit, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let count = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_until(&pair, &limit, &is_done));
        let ending = Ending(&is_done);
        for round in 0..KILLS {
            limit.fetch_add(1_000, Ordering::Relaxed);
            let mut reader = start();
            reader.wait_stdout("packet ", LIMIT).unwrap();
            std::thread::sleep(Duration::from_millis(round as u64));
            seen.extend(numbers_of(&reader.kill().unwrap().stdout));
        }
        drop(ending);
        sender.join().unwrap()
    });
    let mut last = start();
    cluster.wait_for("empty", |status| {
        let waiting = |queue: &Value| number(&queue["waiting"]);
        let queues = status["queues"].as_array().unwrap();
        number(&status["input"]["received"]) == count && queues.iter().all(|q| waiting(q) == 0)
    });
    let totals = cluster.stop();
    seen.extend(numbers_of(
        &last.wait(LIMIT).unwrap().checked().unwrap().stdout,
    ));
    steady.wait(LIMIT).unwrap().checked().unwrap();
    assert!(seen.is_sorted_by(|a, b| a < b), "twice, or out of order");
    let missing = count - seen.len() as u64;
    let [killed, other] = [0, 1].map(|index| &totals["queues"][index]);
    // A packet whose number was written, but which was not returned, counts as lost as well.
    assert!(
        missing <= number(&killed["lost"]),
        "{missing} missing: {killed}"
    );
    assert!(number(&killed["lost"]) <= KILLS as u64, "{killed}");
    let known = number(&killed["delivered"]) + number(&killed["lost"]);
    assert_eq!((known, &killed["dropped"]), (count, &0.into()), "{killed}");
    assert_eq!(number(&killed["readers"]), KILLS as u64 + 1);
    assert_eq!(
        (number(&other["delivered"]), &other["lost"]),
        (count, &0.into()),
        "{other}"
    );
    let numbers = packets_of(file.path());
    let numbers = numbers.iter().map(|packet| number_of(packet).unwrap());
    assert!(numbers.eq(0..count), "the other application has a gap");
}

/// The owner is killed: readers end with an error, no program stays attached, and the next cluster
/// of this name starts without a manual step.
#[test]
fn a_killed_owner_leaves_nothing_behind() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let name = unique();
    let port = format!("afxdp:{}", pair.right.ifname);
    for round in 0..2 {
        let mut cluster = Cluster::start(&pair, &name, &[&port, FILTER]);
        let file = TempFile::new(".pcap");
        let mut reader = capture(&format!("ring:{name}"), file.path());
        let sent = send(&pair, 500);
        cluster.wait_delivered(500);
        if round == 0 {
            cluster.process.kill().unwrap();
            let finished = reader.wait(LIMIT).unwrap();
            assert_eq!(finished.code(), Some(4), "{}", finished.stderr);
            assert!(
                finished.stderr.contains("was killed"),
                "{}",
                finished.stderr
            );
            assert_eq!(pair.right.xdp().unwrap(), None);
        } else {
            cluster.stop();
            reader.wait(LIMIT).unwrap().checked().unwrap();
        }
        assert!(packets_of(file.path()) == sent, "round {round}");
    }
}

/// A reader that stops reading fills its own queue only.
#[test]
fn a_stalled_reader_delays_no_other() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let name = unique();
    let args = ["--app", "stalled", "--app", "other", "--ring", "4096"];
    let args: Vec<&str> = args
        .into_iter()
        .chain([pair.right.ifname.as_str(), FILTER])
        .collect();
    let cluster = Cluster::start(&pair, &name, &args);
    let [one, two] = [TempFile::new(".pcap"), TempFile::new(".pcap")];
    let mut stalled = capture(&format!("ring:{name}/stalled"), one.path());
    let mut other = capture(&format!("ring:{name}/other"), two.path());
    stalled.suspend().unwrap();
    let mut sent = Vec::new();
    for start in (0..12_000).step_by(2_000) {
        // Half the ring, so that the other reader may be late, too.
        sent.extend(send_range(&pair, start..start + 2_000));
        cluster.wait_for("delivered", |status| {
            number(&status["queues"][1]["delivered"]) == start + 2_000
        });
    }
    stalled.kill().unwrap();
    let totals = cluster.stop();
    other.wait(LIMIT).unwrap().checked().unwrap();
    assert!(packets_of(two.path()) == sent);
    let first = &totals["queues"][0];
    assert!(number(&first["dropped"]) >= 12_000 - 8_192, "{first}");
    assert_eq!(
        number(&first["handed"]) + number(&first["dropped"]),
        12_000,
        "{first}"
    );
    assert_eq!(number(&totals["queues"][1]["dropped"]), 0);
}

/// tcpdump reads a queue through this build's libpcap.so.
#[test]
fn tcpdump_reads_a_queue() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let name = unique();
    let cluster = Cluster::start(&pair, &name, &[pair.right.ifname.as_str(), "udp"]);
    let mut command = dropin.command("tcpdump");
    command.args([
        "-Z",
        "root",
        "-nn",
        "-c",
        "20",
        "-i",
        &format!("ring:{name}"),
        FILTER,
    ]);
    let mut tcpdump = Process::spawn(&mut command).unwrap();
    tcpdump.wait_stderr("listening on", LIMIT).unwrap();
    let sender = pair
        .left
        .ns
        .run(|| Raw::sender(&pair.left.ifname))
        .unwrap()
        .unwrap();
    let plan = Udp::between(&pair.left, &pair.right);
    for number in 0..20 {
        sender.send(&plan.build(number, 100)).unwrap();
    }
    let finished = tcpdump.wait(LIMIT).unwrap().checked().unwrap();
    let lines = finished.stdout.lines();
    assert_eq!(
        lines
            .filter(|line| line.contains(".9: UDP, length 58"))
            .count(),
        20
    );
    assert!(
        finished.stderr.contains("20 packets captured"),
        "{}",
        finished.stderr
    );
    cluster.stop();
}

/// The flow of a packet: its source port.
fn flow_of(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[34], packet[35]])
}

/// The sum of a field over the queues of an application.
fn sum_of(status: &Value, application: &str, field: &str) -> u64 {
    let queues = status["queues"].as_array().unwrap().iter();
    let its = queues.filter(|queue| queue["application"] == application);
    its.map(|queue| number(&queue[field])).sum()
}

/// Runs a cluster from a topology file with these applications, on the right end of a pair.
fn start_topology(pair: &Pair, applications: &str) -> Cluster {
    let (name, file) = (unique(), TempFile::new(".toml"));
    let text = format!(
        "name = \"{name}\"\ninputs = [\"afpacket:{}\"]\nfilter = \"{FILTER}\"\n{applications}",
        pair.right.ifname
    );
    std::fs::write(file.path(), text).unwrap();
    Cluster::start_file(&pair.right.ns, &name, file.path())
}

/// Draws a running cluster; returns the SVG document.
fn draw(name: &str) -> String {
    let picture = TempFile::new(".svg");
    let mut command = Command::new(barewire().unwrap());
    command.args(["cluster", "show", name, "--svg"]);
    command.arg(picture.path());
    let mut drawn = Process::spawn(&mut command).unwrap();
    drawn.wait(LIMIT).unwrap().checked().unwrap();
    std::fs::read_to_string(picture.path()).unwrap()
}

/// A topology file: one application sees a part of the packets; the flows of another one's killed
/// reader move to its other queues, and come back with the next reader.
#[test]
fn a_topology_file_filters_packets_and_moves_the_flows_of_a_killed_reader() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let cluster = start_topology(
        &pair,
        "[[application]]\nname = \"even\"\nfilter = \"udp[0:2] & 1 = 0\"\n\
         [[application]]\nname = \"moving\"\nqueues = 3\nwhen_gone = \"rehash\"\n",
    );
    let name = &cluster.name;
    let files: Vec<TempFile> = (0..5).map(|_| TempFile::new(".pcap")).collect();
    let queue =
        |index: usize, file: usize| capture(&format!("ring:{name}/{index}"), files[file].path());
    let [even, first, mut second, third] = [0, 1, 2, 3].map(|index| queue(index, index));
    let wait_moved = |count: u64| {
        cluster.wait_for("delivered", |status| {
            sum_of(status, "moving", "delivered") == count
        });
    };
    let mut sent = send_range(&pair, 0..1_600);
    wait_moved(1_600);
    let of_second = number(&cluster.status()["queues"][2]["delivered"]);
    assert!(of_second > 0, "no flow of 16 in one of three queues");
    second.kill().unwrap();
    cluster.wait_for("without a reader", |status| {
        status["queues"][2]["reader"].is_null()
    });
    sent.extend(send_range(&pair, 1_600..3_200));
    wait_moved(3_200);
    let again = queue(2, 4);
    sent.extend(send_range(&pair, 3_200..4_800));
    wait_moved(4_800);
    cluster.wait_for("filtered", |status| {
        let even = number(&status["queues"][0]["delivered"]);
        even + number(&status["applications"][0]["filtered"]) == 4_800
    });
    let reader = cluster.status()["queues"][3]["reader"].to_string();
    assert!(draw(name).contains(&format!("queue 3: process {reader}")));
    cluster.stop();
    for mut reader in [even, first, third, again] {
        reader.wait(LIMIT).unwrap().checked().unwrap();
    }
    let got: Vec<_> = files.iter().map(|file| packets_of(file.path())).collect();
    let is_even = |packet: &&Vec<u8>| flow_of(packet).is_multiple_of(2);
    let evens: Vec<_> = sent.iter().filter(is_even).cloned().collect();
    assert!(got[0] == evens, "{} of {}", got[0].len(), evens.len());
    check_moves(&got);
}

/// Checks the queues of `moving`: files 1 to 3 are of its queues, file 4 of the second one again.
fn check_moves(got: &[Vec<Vec<u8>>]) {
    let part = |index: usize, numbers: Range<u64>| -> Vec<u16> {
        let is_in = |packet: &&Vec<u8>| numbers.contains(&number_of(packet).unwrap());
        let flows = got[index].iter().filter(is_in);
        flows.map(|packet| flow_of(packet)).collect()
    };
    let flows = |index, numbers| BTreeSet::from_iter(part(index, numbers));
    let [one, three] = [1, 3].map(|index| flows(index, 0..1_600));
    let two = flows(4, 0..u64::MAX);
    assert!(two.is_disjoint(&one) && two.is_disjoint(&three), "{two:?}");
    assert_eq!(two.len() + one.len() + three.len(), 16);
    for (index, own) in [(1, &one), (3, &three)] {
        assert!(own.is_subset(&flows(index, 1_600..3_200)));
        assert_eq!(&flows(index, 3_200..4_800), own, "moved back");
    }
    let count = |indexes: &[usize], numbers: Range<u64>| -> usize {
        let counts = indexes.iter().map(|&it| part(it, numbers.clone()).len());
        counts.sum()
    };
    assert_eq!(count(&[1, 3], 1_600..3_200), 1_600, "moved");
    assert_eq!(count(&[1, 3, 4], 3_200..4_800), 1_600, "moved back");
}
