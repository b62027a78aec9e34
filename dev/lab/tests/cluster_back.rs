//! What readers of a cluster send: inline bridges whose filter is another process, pipelines, and
//! ports in the place of readers.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lab::inline::{Inline, X, Y};
use lab::oracle::{TempFile, read_pcap, write_pcap};
use lab::packet::{Raw, Udp, number_of};
use lab::process::{Process, Signal, barewire, own_test};
use lab::watch::Ending;
use lab::{End, Veth, skip};
use port::{Direction, PortOptions, Ready};
use serde_json::Value;

use crate::cluster_live::{Cluster, FILTER, LIMIT, capture, packets_of, unique};

/// Environment variable of the child that sends back: the port, and what it does.
const CHILD: &str = "BAREWIRE_CLUSTER_BACK";

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// A process that reads a queue and sends its packets back.
fn forward(name: &str) -> Process {
    let mut command = Command::new(barewire().unwrap());
    command.args([
        "forward",
        &format!("ring:{name}"),
        &format!("ring:{name}/return"),
    ]);
    let process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("forwarding", LIMIT).unwrap();
    process
}

/// Code of the child: sends packets back one at a time, changed in place with `change`.
#[test]
fn child_sends_back() {
    let text = ::skip::child_body!(CHILD);
    let (name, changes) = text.split_once(' ').unwrap();
    let options = PortOptions {
        batch_max: 1,
        direction: Direction::Both,
        ..PortOptions::default()
    };
    let mut port = port::open(name, &options).unwrap();
    let (rx, tx) = (&mut port.rx[0], &mut port.tx[0]);
    println!("reading");
    while rx.wait(LIMIT).unwrap() == Ready::Packets {
        let mut batch = rx.receive().unwrap();
        if changes == "change" {
            for mut packet in batch.iter_mut() {
                packet.bytes_mut()[5] ^= 0xff;
            }
        }
        while batch.forward(tx, usize::MAX).unwrap().packets == 0 && !batch.is_empty() {
            tx.wait(false, LIMIT).unwrap();
        }
    }
    tx.wait(true, LIMIT).unwrap();
}

fn child(name: &str, changes: &str) -> Process {
    let (program, args) = own_test(module_path!(), "child_sends_back");
    let mut command = Command::new(program);
    command
        .args(args)
        .env(CHILD, format!("ring:{name} {changes}"));
    let process = Process::spawn(&mut command).unwrap();
    process.wait_stdout("reading", LIMIT).unwrap();
    process
}

/// Numbered packets of all lengths from one host to the other, in 16 flows.
fn packets(from: &End, to: &End, count: u64) -> Vec<Vec<u8>> {
    let plan = Udp::between(from, to).flows(16);
    let len = |number: u64| 60 + number * 37 % 1_455;
    let build = |number| plan.build(number, len(number) as usize);
    (0..count).map(build).collect()
}

fn replay(from: &End, packets: &[Vec<u8>]) -> Process {
    let file = write_pcap(packets).unwrap();
    let args = [
        "send",
        file.path().to_str().unwrap(),
        &from.ifname,
        "--rate",
        "20kpps",
    ];
    let mut process = from.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap();
    process
}

/// tcpdump on a host, of packets that come in: it reads each at once, and writes it at once.
fn watch(end: &End, file: &TempFile) -> Process {
    let path = file.path().to_str().unwrap();
    let args = [
        "-U",
        "-Z",
        "root",
        "-B",
        "16384",
        "-Q",
        "in",
        "-i",
        &end.ifname,
    ];
    let args = args.into_iter().chain(["-w", path, FILTER]);
    let process = end.ns.spawn("tcpdump", args).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    process
}

fn wait_for(file: &TempFile, count: usize) {
    let until = Instant::now() + LIMIT;
    while read_pcap(file.path()).unwrap().len() < count {
        assert!(
            Instant::now() < until,
            "{} packets",
            packets_of(file.path()).len()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn output<'a>(totals: &'a Value, port: &str) -> &'a Value {
    let outputs = totals["outputs"].as_array().unwrap();
    outputs.iter().find(|it| it["port"] == port).unwrap()
}

/// What a bridge through another process passes is what came, byte for byte, in both directions;
/// frames that it did not change are not copied, and those that it changed are.
#[test]
fn an_inline_bridge_in_another_process_passes_packets_byte_for_byte() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    const COUNT: u64 = 2_000;
    for (scheme, reader) in [
        ("afpacket", "forward"),
        ("afxdp", "forward"),
        ("afxdp", "keep"),
        ("afxdp", "change"),
    ] {
        let row = Inline::new(&Veth::new()).unwrap();
        let (name, ports) = (unique(), [X, Y].map(|end| format!("{scheme}:{end}")));
        let args = ["--bridge", &ports[0], &ports[1], FILTER];
        let cluster = Cluster::start_in(row.ns(), &name, &args);
        let mut process = match reader {
            "forward" => forward(&name),
            changes => child(&name, changes),
        };
        let files = [TempFile::new(".pcap"), TempFile::new(".pcap")];
        let [at_a, at_b] = [watch(row.a(), &files[0]), watch(row.b(), &files[1])];
        let there = packets(row.a(), row.b(), COUNT);
        let back = packets(row.b(), row.a(), COUNT);
        std::thread::scope(|scope| {
            scope.spawn(|| replay(row.a(), &there));
            replay(row.b(), &back);
        });
        wait_for(&files[0], COUNT as usize);
        wait_for(&files[1], COUNT as usize);
        for mut capture in [at_a, at_b] {
            capture.stop(Signal::SIGINT, LIMIT).unwrap();
        }
        let totals = cluster.stop();
        process.wait(LIMIT).unwrap().checked().unwrap();
        let mut expected = [back, there];
        if reader == "change" {
            let all = expected.iter_mut().flatten();
            all.for_each(|packet| packet[5] ^= 0xff);
        }
        for (file, expected) in files.iter().zip(&expected) {
            assert!(
                packets_of(file.path()) == *expected,
                "{scheme}, {reader}: other packets"
            );
        }
        let queue = &totals["queues"][0];
        let sent = &queue["sent"];
        let copied = if reader == "change" { 2 * COUNT } else { 0 };
        assert_eq!(number(&sent["packets"]), 2 * COUNT, "{totals}");
        assert_eq!(
            number(&sent["copied"]),
            copied,
            "{scheme}, {reader}: {totals}"
        );
        for port in &ports {
            let it = output(&totals, port);
            assert_eq!(
                (number(&it["sent"]), &it["failed"]),
                (COUNT, &0.into()),
                "{totals}"
            );
            let copied = if scheme == "afxdp" { 0 } else { COUNT };
            assert_eq!(number(&it["copied"]), copied, "{totals}");
        }
    }
}

/// Sends numbered packets up to `limit`, which may rise, until `is_done`; returns their number.
fn send_until(row: &Inline, limit: &AtomicU64, is_done: &AtomicBool) -> u64 {
    let plan = Udp::between(row.a(), row.b()).flows(16);
    let raw = || Raw::sender(&row.a().ifname);
    let raw = row.a().ns.run(raw).unwrap().unwrap();
    let mut number = 0;
    while !is_done.load(Ordering::Relaxed) {
        for _ in 0..32.min(limit.load(Ordering::Relaxed) - number) {
            raw.send(&plan.build(number, 60)).unwrap();
            number += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    number
}

/// The numbers of the packets in a file.
fn numbers(file: &TempFile) -> Vec<u64> {
    let packets = packets_of(file.path());
    packets
        .iter()
        .map(|packet| number_of(packet).unwrap())
        .collect()
}

/// The process of a bridge is killed again and again: each packet is sent once or not at all, at
/// most those in its hands are lost, no frame is, and another application sees no gap.
#[test]
fn a_killed_bridge_loses_at_most_one_packet_and_sends_none_twice() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    const KILLS: u64 = 10;
    let row = Inline::new(&Veth::new()).unwrap();
    let name = unique();
    let topology = TempFile::new(".toml");
    let text = format!(
        "name = \"{name}\"\ninputs = [\"afpacket:{X}\"]\nfilter = \"{FILTER}\"\nring = 16384\n\
         [[application]]\nname = \"bridge\"\n[[application]]\nname = \"steady\"\n\
         [[return]]\nport = \"afpacket:{Y}\"\napplication = \"bridge\"\n"
    );
    std::fs::write(topology.path(), text).unwrap();
    let cluster = Cluster::start_file(row.ns(), &name, topology.path());
    let files = [TempFile::new(".pcap"), TempFile::new(".pcap")];
    let mut steady = capture(&format!("ring:{name}/steady"), files[0].path());
    let mut at_b = watch(row.b(), &files[1]);
    let (limit, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let bridge = format!("{name}/bridge");
    let count = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_until(&row, &limit, &is_done));
        let ending = Ending(&is_done);
        for round in 0..KILLS {
            let before = number(&cluster.status()["queues"][0]["sent"]["packets"]);
            limit.fetch_add(1_000, Ordering::Relaxed);
            let mut reader = child(&bridge, "keep");
            cluster.wait_for("sending", |status| {
                number(&status["queues"][0]["sent"]["packets"]) > before
            });
            std::thread::sleep(Duration::from_millis(round));
            reader.kill().unwrap();
        }
        drop(ending);
        sender.join().unwrap()
    });
    let mut last = child(&bridge, "keep");
    cluster.wait_for("empty", |status| {
        let queues = status["queues"].as_array().unwrap();
        number(&status["input"]["received"]) == count
            && queues.iter().all(|queue| number(&queue["waiting"]) == 0)
    });
    let totals = cluster.stop();
    last.wait(LIMIT).unwrap().checked().unwrap();
    steady.wait(LIMIT).unwrap().checked().unwrap();
    let queue = &totals["queues"][0];
    let (lost, sent) = (number(&queue["lost"]), number(&queue["sent"]["packets"]));
    assert!(lost <= KILLS, "{totals}");
    assert_eq!(
        (lost + sent, &queue["dropped"]),
        (count, &0.into()),
        "{totals}"
    );
    // Others read each frame as well.
    let it = output(&totals, &format!("afpacket:{Y}"));
    assert_eq!(
        (number(&it["sent"]), &it["failed"]),
        (sent, &0.into()),
        "{totals}"
    );
    wait_for(&files[1], sent as usize);
    at_b.stop(Signal::SIGINT, LIMIT).unwrap();
    let arrived = numbers(&files[1]);
    assert!(arrived.is_sorted_by(|a, b| a < b), "twice, or out of order");
    assert_eq!(arrived.len() as u64, sent);
    assert!(
        numbers(&files[0]).into_iter().eq(0..count),
        "the other one has a gap"
    );
}

/// A pipeline: what readers of the first application send is in the queues of the second one, by
/// flow, and what these send goes out.
#[test]
fn a_pipeline_of_two_applications_ends_at_a_port() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    const COUNT: u64 = 2_000;
    let row = Inline::new(&Veth::new()).unwrap();
    let name = unique();
    let topology = TempFile::new(".toml");
    let text = format!(
        "name = \"{name}\"\ninputs = [\"afxdp:{X}\"]\nfilter = \"{FILTER}\"\n\
         [[application]]\nname = \"first\"\n\
         [[application]]\nname = \"second\"\nsource = \"first\"\nqueues = 2\n\
         [[application]]\nname = \"log\"\nsource = \"first\"\n\
         [[return]]\nport = \"afxdp:{Y}\"\napplication = \"second\"\n"
    );
    std::fs::write(topology.path(), text).unwrap();
    let cluster = Cluster::start_file(row.ns(), &name, topology.path());
    let files: Vec<TempFile> = (0..2).map(|_| TempFile::new(".pcap")).collect();
    let mut log = capture(&format!("ring:{name}/log"), files[0].path());
    let mut second = [
        child(&format!("{name}/1"), "keep"),
        child(&format!("{name}/2"), "keep"),
    ];
    let mut first = child(&format!("{name}/first"), "change");
    let mut at_b = watch(row.b(), &files[1]);
    let mut expected = packets(row.a(), row.b(), COUNT);
    replay(row.a(), &expected);
    wait_for(&files[1], COUNT as usize);
    at_b.stop(Signal::SIGINT, LIMIT).unwrap();
    let totals = cluster.stop();
    for process in second.iter_mut().chain([&mut first, &mut log]) {
        process.wait(LIMIT).unwrap().checked().unwrap();
    }
    expected.iter_mut().for_each(|packet| packet[5] ^= 0xff);
    assert!(
        packets_of(files[0].path()) == expected,
        "the log has others"
    );
    let mut arrived = packets_of(files[1].path());
    arrived.sort_by_key(|packet| number_of(packet).unwrap());
    assert!(arrived == expected, "others arrive");
    let delivered = |index: usize| number(&totals["queues"][index]["delivered"]);
    assert_eq!((delivered(0), delivered(3)), (COUNT, COUNT), "{totals}");
    assert_eq!(delivered(1) + delivered(2), COUNT, "{totals}");
    assert!(delivered(1) != 0 && delivered(2) != 0, "{totals}");
}

/// A port in the place of a reader: another interface receives what an application does.
#[test]
fn a_port_is_the_reader_of_an_application() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    const COUNT: u64 = 2_000;
    for mirror in ["afpacket", "afxdp"] {
        let row = Inline::new(&Veth::new()).unwrap();
        let (name, port) = (unique(), format!("{mirror}:{Y}"));
        let application = format!("mirror={port}");
        let args = ["--app", "ids", "--app", &application, X, FILTER];
        let cluster = Cluster::start_in(row.ns(), &name, &args);
        let files = [TempFile::new(".pcap"), TempFile::new(".pcap")];
        let mut ids = capture(&format!("ring:{name}/ids"), files[0].path());
        let mut at_b = watch(row.b(), &files[1]);
        let sent = packets(row.a(), row.b(), COUNT);
        replay(row.a(), &sent);
        wait_for(&files[1], COUNT as usize);
        at_b.stop(Signal::SIGINT, LIMIT).unwrap();
        let mut refused = Command::new(barewire().unwrap());
        refused.args(["capture", &format!("ring:{name}/mirror")]);
        let refused = Process::spawn(&mut refused).unwrap().wait(LIMIT).unwrap();
        assert!(
            refused.stderr.contains("is its reader"),
            "{}",
            refused.stderr
        );
        let totals = cluster.stop();
        ids.wait(LIMIT).unwrap().checked().unwrap();
        for file in &files {
            assert!(packets_of(file.path()) == sent, "{mirror}: other packets");
        }
        let it = output(&totals, &port);
        assert_eq!(
            (number(&it["sent"]), &it["reader_of"]),
            (COUNT, &"mirror".into())
        );
        assert_eq!(number(&totals["queues"][1]["delivered"]), COUNT, "{totals}");
    }
}

/// Topologies in which packets would loop, or that name what is not there, are refused before
/// anything is opened; so is a way back that the cluster does not have.
#[test]
fn loops_are_refused_before_the_start() {
    lab::require!(skip::lab());
    let application =
        |name: &str, more: &str| format!("[[application]]\nname = \"{name}\"\n{more}");
    let back = |more: &str| format!("[[return]]\n{more}");
    for (text, expected) in [
        (application("a", "source = \"a\"\n"), "would loop"),
        (
            application("a", "source = \"b\"\n") + &application("b", "source = \"a\"\n"),
            "would loop",
        ),
        (application("a", "source = \"b\"\n"), "no application b"),
        (application("a", "port = \"ring:self/0\"\n"), "would loop"),
        (
            application("a", "port = \"vm:x\"\nqueues = 2\n"),
            "it has one queue",
        ),
        (application("a", "port = \"lo\"\n"), "would be sent back"),
        (
            application("a", "port = \"afpacket:lo\"\n"),
            "would be sent back",
        ),
        (application("return", ""), "cannot be named return"),
        (
            application("a", "port = \"vm:x\"\n") + &application("b", "source = \"a\"\n"),
            "read by a port",
        ),
        (
            application("a", "") + &back("port = \"ring:self/a\"\n"),
            "would loop",
        ),
        (
            application("a", "") + &back("port = \"x\"\nfrom = \"eth9\"\n"),
            "which is not an input",
        ),
        (
            application("a", "") + &back("port = \"x\"\n") + &back("port = \"y\"\n"),
            "return the same packets",
        ),
        (
            application("a", "")
                + &application("b", "source = \"a\"\n")
                + &back("port = \"x\"\napplication = \"a\"\n"),
            "goes to application b",
        ),
    ] {
        let file = TempFile::new(".toml");
        let head = "name = \"self\"\ninputs = [\"lo\"]\n";
        std::fs::write(file.path(), format!("{head}{text}")).unwrap();
        let mut command = Command::new(barewire().unwrap());
        command
            .args(["cluster", "run", "--dry-run"])
            .arg(file.path());
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        assert!(!finished.success(), "{text}");
        assert!(
            finished.stderr.contains(expected),
            "{text}: {}",
            finished.stderr
        );
    }
}

#[test]
fn a_dry_run_finds_errors_in_the_filter() {
    let mut command = Command::new(barewire().unwrap());
    command.args([
        "cluster",
        "run",
        "--name",
        "x",
        "lo",
        "tcpp port 3",
        "--dry-run",
    ]);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert!(!finished.success(), "{}", finished.stdout);
    assert!(finished.stderr.contains("tcpp"), "{}", finished.stderr);
}

/// A cluster without a return path, and a process that reads none of its queues.
#[test]
fn a_way_back_that_is_not_there_is_refused() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let name = unique();
    let cluster = Cluster::start(&pair, &name, &[pair.right.ifname.as_str()]);
    let refused = |from: &str, to: &str| {
        let mut command = Command::new(barewire().unwrap());
        command.args(["forward", from, to]);
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        assert!(!finished.success());
        finished.stderr
    };
    let back = format!("ring:{name}/return");
    let text = refused(&format!("ring:{name}"), &back);
    assert!(text.contains("has no return path"), "{text}");
    let file = write_pcap(&[vec![0; 60]]).unwrap();
    let text = refused(file.path().to_str().unwrap(), &back);
    assert!(text.contains("reads no queue"), "{text}");
    assert_eq!(number(&cluster.stop()["imbalance"]), 0);
}
