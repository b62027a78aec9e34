//! `barewire capture` on interfaces: the same packets as in tcpdump, tags and directions, a correct
//! account, dropped privileges, and clean exits.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::capture::{Folder, LIMIT, Row, read_with_tcpdump};
use lab::oracle::{tcpdump, tshark};
use lab::packet::{Raw, Udp};
use lab::process::{Process, Signal, barewire};
use lab::{End, Finished, Pair, Veth, skip};
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts `barewire capture` inside an end's namespace and waits until it listens.
fn start<S: AsRef<OsStr>>(end: &End, args: impl IntoIterator<Item = S>) -> Process {
    let mut command = end.ns.command(barewire().unwrap());
    command.arg("capture").args(args);
    let process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    process
}

fn stop(mut process: Process) -> Finished {
    process
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap()
}

/// UDP from left to right, to another station's address: the right end's stack does not answer.
fn plan(pair: &Pair) -> Udp {
    let mut plan = Udp::between(&pair.left, &pair.right);
    plan.destination_mac[5] ^= 0x40;
    plan
}

/// As [`plan`], from right to left.
fn plan_back(pair: &Pair) -> Udp {
    let mut plan = Udp::between(&pair.right, &pair.left);
    plan.destination_mac[5] ^= 0x40;
    plan
}

/// Sends packets `0..count` from one end to the other.
fn send(pair: &Pair, plan: &Udp, count: u64) {
    let sender = pair
        .left
        .ns
        .run(|| Raw::sender(&pair.left.ifname))
        .unwrap()
        .unwrap();
    for number in 0..count {
        sender
            .send(&plan.build(number, 64 + number as usize * 13 % 1300))
            .unwrap();
    }
}

/// Waits until a file has stopped growing at `len` or more bytes.
fn wait_len(path: &Path, len: u64) {
    let end = Instant::now() + LIMIT;
    while path.metadata().map_or(0, |data| data.len()) < len {
        assert!(
            Instant::now() < end,
            "{}: {:?}",
            path.display(),
            path.metadata()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Checks that bytes and lengths are equal and in the same order, and that timestamps are of one
/// clock. A program that taps reads the clock itself, a few microseconds after the socket buffer
/// was stamped: the bound only detects a wrong clock (TAI is 37 s off) or a wrong packet, on a busy
/// machine.
fn assert_same(ours: &[Row], theirs: &[Row]) {
    const APART_NS: u64 = 200_000_000;
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!((&ours.1, ours.2), (&theirs.1, theirs.2));
        assert!(ours.0.abs_diff(theirs.0) < APART_NS, "{ours:?} {theirs:?}");
    }
}

fn totals(finished: &Finished) -> Value {
    serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap()
}

#[test]
fn a_capture_has_the_same_packets_as_tcpdump() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    let folder = Folder::new();
    let by_program = end.ifname.clone();
    let by_socket = format!("afpacket:{}?tap=tpacket", end.ifname);
    for (port, filter) in [
        (&by_program, ""),
        (&by_program, "udp src port 4001"),
        (&by_socket, "udp src port 4001"),
    ] {
        let (theirs, ours) = (folder.at("theirs.pcap"), folder.at("ours.pcap"));
        let oracle = tcpdump::Capture::start(&end.ns, &end.ifname, &theirs, filter).unwrap();
        let capture = start(
            end,
            [port.as_str(), "-w", text(&ours), "--json", "-p", filter],
        );
        send(&pair, &plan(&pair).flows(4), 4000);
        let count = if filter.is_empty() { 4000 } else { 1000 };
        let len = (0..4000u64)
            .filter(|number| filter.is_empty() || number % 4 == 1)
            .map(|number| 16 + 64 + number * 13 % 1300)
            .sum::<u64>();
        wait_len(&theirs, 24 + len);
        oracle.stop().unwrap();
        let finished = stop(capture);
        let ours = read_with_tcpdump(&ours).unwrap();
        let theirs = read_with_tcpdump(&theirs).unwrap();
        assert_eq!(ours.len(), count, "{}", finished.stderr);
        assert_same(&ours, &theirs);
        if *port == by_socket {
            assert!(ours == theirs, "both have the socket buffer's time");
        }
        let totals = totals(&finished);
        assert_eq!(totals["captured"], count);
        assert_eq!(totals["lost"], 0);
        assert_eq!(totals["account"]["total"]["imbalance"], 0, "{totals}");
        assert_eq!(totals["account"]["total"]["seen"], 4000, "{totals}");
        let text = &finished.stderr;
        assert!(
            text.contains(&format!("{count} packets captured")),
            "{text}"
        );
        assert!(text.contains("\n0 packets dropped by kernel"), "{text}");
        assert!(text.contains("adds up"), "{text}");
    }
}

#[test]
fn pcapng_has_interface_filter_directions_and_counters() {
    lab::require!(
        skip::lab(),
        skip::program("tshark", "tshark"),
        skip::program("capinfos", "wireshark-common")
    );
    let pair = Veth::new().create().unwrap();
    let (end, folder) = (&pair.right, Folder::new());
    let file = folder.at("x.pcapng");
    let capture = start(end, [end.ifname.as_str(), "-w", text(&file), "udp"]);
    send(&pair, &plan(&pair), 10);
    let back = end.ns.run(|| Raw::sender(&end.ifname)).unwrap().unwrap();
    back.send(&plan_back(&pair).build(0, 100)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    stop(capture);
    let fields = [
        "frame.packet_flags_direction",
        "frame.interface_name",
        "frame.len",
    ];
    let rows = tshark::fields(&file, &fields, &[]).unwrap();
    assert_eq!(rows.len(), 11);
    assert!(
        rows[..10]
            .iter()
            .all(|row| row[0].ends_with('1') && row[1] == end.ifname),
        "{rows:?}"
    );
    assert!(
        rows[10][0].ends_with('2') && rows[10][2] == "100",
        "{rows:?}"
    );
    let output = std::process::Command::new("capinfos")
        .arg(&file)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout);
    assert!(output.contains("Filter string = udp"), "{output}");
    assert!(output.contains("Time resolution = 0x09"), "{output}");
    assert!(output.contains("Number of stat entries = 1"), "{output}");
    let counters = tshark_counters(&file);
    assert_eq!(counters, ["11", "0"], "received and dropped");
}

/// The counters in the statistics block: packets received, packets dropped.
fn tshark_counters(file: &Path) -> Vec<String> {
    // No tool prints them: the block is at the end (type 5), its options have codes 4 and 5.
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut at = 0;
    while word(at) != 5 {
        at += word(at + 4) as usize;
    }
    let end = at + word(at + 4) as usize - 4;
    let mut found = Vec::new();
    at += 20;
    while at < end {
        let (code, len) = (word(at) & 0xffff, (word(at) >> 16) as usize);
        if matches!(code, 4 | 5) && len == 8 {
            let value = u64::from_le_bytes(bytes[at + 4..at + 12].try_into().unwrap());
            found.push(value.to_string());
        }
        at += 4 + len.next_multiple_of(4);
    }
    found
}

#[test]
fn stripped_tags_are_inserted_again() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let (end, folder) = (&pair.right, Folder::new());
    let (theirs, ours) = (folder.at("theirs.pcap"), folder.at("ours.pcap"));
    // The kernel removes the tag of received packets before a tap sees them.
    let oracle = tcpdump::Capture::start(&end.ns, &end.ifname, &theirs, "").unwrap();
    let lines = start(
        end,
        [end.ifname.as_str(), "-n", "-e", "-c", "3", "vlan or udp"],
    );
    let capture = start(end, [end.ifname.as_str(), "-w", text(&ours)]);
    let sender = pair
        .left
        .ns
        .run(|| Raw::sender(&pair.left.ifname))
        .unwrap()
        .unwrap();
    let mut plan = plan(&pair);
    plan.vlan = Some(7);
    for number in 0..3 {
        sender.send(&plan.build(number, 104)).unwrap();
    }
    let is_tagged = |row: &&Row| row.1[12..16] == [0x81, 0, 0, 7];
    let end_at = Instant::now() + LIMIT;
    while theirs.metadata().map_or(0, |data| data.len()) < 24 + 3 * (16 + 104) {
        assert!(Instant::now() < end_at);
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    stop(capture);
    oracle.stop().unwrap();
    let theirs = read_with_tcpdump(&theirs).unwrap();
    let ours = read_with_tcpdump(&ours).unwrap();
    assert_eq!(ours.iter().filter(is_tagged).count(), 3, "{ours:?}");
    let tagged = |rows: &[Row]| rows.iter().filter(is_tagged).cloned().collect::<Vec<_>>();
    assert_same(&tagged(&ours), &tagged(&theirs));
    let mut lines = lines;
    let finished = lines.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(finished.stdout.lines().count(), 3, "{}", finished.stdout);
    assert!(
        finished
            .stdout
            .lines()
            .all(|line| line.contains("vlan 7, ")),
        "{}",
        finished.stdout
    );
}

#[test]
fn packet_directions_are_distinguished() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    let run = |way: &str| {
        start(
            end,
            [
                &end.ifname,
                "-n",
                "-Q",
                way,
                "--count-only",
                "--json",
                "udp",
            ],
        )
    };
    let captures = [run("in"), run("out"), run("inout")];
    send(&pair, &plan(&pair), 7);
    let back = end.ns.run(|| Raw::sender(&end.ifname)).unwrap().unwrap();
    for number in 0..5 {
        back.send(&plan_back(&pair).build(number, 100)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    let counts = captures.map(|capture| totals(&stop(capture))["captured"].as_u64().unwrap());
    assert_eq!(counts, [7, 5, 12]);
}

#[test]
fn count_and_duration_end_the_capture() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    let mut capture = start(end, [&end.ifname, "-n", "-c", "5", "udp"]);
    send(&pair, &plan(&pair), 50);
    let finished = capture.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(finished.stdout.lines().count(), 5);
    assert!(
        finished.stderr.contains("5 packets captured"),
        "{}",
        finished.stderr
    );
    let mut capture = start(end, [&end.ifname, "-n", "--duration", "0.3", "udp"]);
    let finished = capture.wait(LIMIT).unwrap().checked().unwrap();
    assert!(
        finished.stderr.contains("0 packets captured"),
        "{}",
        finished.stderr
    );
}

#[test]
fn lines_are_not_buffered_in_a_pipe() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    // Through a pipe, without an option against buffering.
    let capture = start(end, [&end.ifname, "-n", "udp"]);
    send(&pair, &plan(&pair), 1);
    capture
        .wait_stdout("10.77.0.1.4000 > 10.77.0.2.9: UDP", LIMIT)
        .unwrap();
    stop(capture);
}

#[test]
fn several_queues_capture_every_packet_once() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().queues(2).create().unwrap();
    let (end, folder) = (&pair.right, Folder::new());
    let file = folder.at("x.pcap");
    let args = [
        end.ifname.as_str(),
        "-w",
        text(&file),
        "--queues",
        "3",
        "--json",
        "udp",
    ];
    let capture = start(end, args);
    send(&pair, &plan(&pair).flows(30), 3000);
    std::thread::sleep(Duration::from_millis(200));
    let finished = stop(capture);
    let rows = read_with_tcpdump(&file).unwrap();
    let mut numbers: Vec<u64> = rows
        .iter()
        .map(|row| lab::packet::number_of(&row.1).unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
    let totals = totals(&finished);
    let times = rows.windows(2).filter(|pair| pair[0].0 > pair[1].0).count() as u64;
    assert!(
        times <= totals["late"].as_u64().unwrap(),
        "{times} out of order: {totals}"
    );
    assert_eq!(totals["account"]["queues"].as_array().unwrap().len(), 3);
    assert_eq!(totals["account"]["total"]["imbalance"], 0, "{totals}");
    assert!(finished.stderr.contains("3 queues"), "{}", finished.stderr);
}

/// The reader of the output stalls: a signal still ends the run, and every loss is counted.
#[test]
fn a_stalled_reader_does_not_delay_the_exit() {
    lab::require!(skip::lab(), skip::program("mkfifo", "coreutils"));
    let pair = Veth::new().create().unwrap();
    let (end, folder) = (&pair.right, Folder::new());
    let fifo = folder.at("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    // Both ends are open here, so that the capture can start; nothing is ever read.
    let open = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&fifo)
        .unwrap();
    let capture = start(
        end,
        [end.ifname.as_str(), "-w", text(&fifo), "--json", "udp"],
    );
    send(&pair, &plan(&pair), 5_000);
    let mut capture = capture;
    let finished = capture.stop(Signal::SIGINT, LIMIT).unwrap();
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("packets are lost"),
        "{}",
        finished.stderr
    );
    let totals = totals(&finished);
    let number = |key: &str| totals[key].as_u64().unwrap();
    assert_eq!(
        number("captured") + number("surplus") + number("unwritten"),
        5_000,
        "{totals}"
    );
    assert_eq!(totals["account"]["total"]["imbalance"], 0, "{totals}");
    drop(open);
}

#[test]
fn the_bypass_captures_the_selected_packets() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let (end, folder) = (&pair.right, Folder::new());
    let file = folder.at("x.pcap");
    let port = format!("afxdp:{}", end.ifname);
    let args = [
        &port,
        "-w",
        text(&file),
        "--json",
        "udp",
        "src",
        "port",
        "4002",
    ];
    let capture = start(end, args);
    send(&pair, &plan(&pair).flows(4), 400);
    std::thread::sleep(Duration::from_millis(300));
    let finished = stop(capture);
    let rows = read_with_tcpdump(&file).unwrap();
    let numbers: Vec<u64> = rows
        .iter()
        .map(|row| lab::packet::number_of(&row.1).unwrap())
        .collect();
    assert_eq!(
        numbers,
        (0..100).map(|n| n * 4 + 2).collect::<Vec<_>>(),
        "{}",
        finished.stderr
    );
    assert_eq!(totals(&finished)["account"]["total"]["imbalance"], 0);
    assert!(end.xdp().unwrap().is_none(), "the interface is as it was");
}

#[test]
fn capture_drops_privileges_and_the_user_owns_the_file() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let (end, folder) = (&pair.right, Folder::new());
    // In a directory that user nobody cannot write: the file is created before privileges are
    // dropped.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let file = folder.at("x.pcap");
    let capture = start(
        end,
        [end.ifname.as_str(), "-w", text(&file), "--user", "nobody"],
    );
    let status = std::fs::read_to_string(format!("/proc/{}/status", capture.pid())).unwrap();
    let line = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.unwrap()
            .split_whitespace()
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(line("Uid:").iter().all(|uid| uid == "65534"), "{status}");
    assert_eq!(line("CapEff:"), ["0000000000000000"]);
    assert_eq!(line("CapPrm:"), ["0000000000000000"]);
    send(&pair, &plan(&pair), 20);
    std::thread::sleep(Duration::from_millis(200));
    let finished = stop(capture);
    assert_eq!(
        read_with_tcpdump(&file).unwrap().len(),
        20,
        "{}",
        finished.stderr
    );
    assert_eq!(file.metadata().unwrap().uid(), 65534);

    // A set of files there is refused at the start: the second file could not be created.
    let set = folder.at("set.pcap");
    let args = ["capture", end.ifname.as_str(), "-w", text(&set)];
    let args = [&args[..], &["-C", "1k", "--user", "nobody"]].concat();
    let mut capture = end.ns.spawn(barewire().unwrap(), args).unwrap();
    let finished = capture.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    let hint = "hint: with --user, later files";
    assert!(finished.stderr.contains(hint), "{}", finished.stderr);
    assert!(
        !finished.stderr.contains("listening on"),
        "it had begun: {}",
        finished.stderr
    );
    assert!(!set.exists(), "the first file of it was left behind");
}

#[test]
fn a_killed_capture_leaves_a_file_that_can_be_read() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let (end, folder) = (&pair.right, Folder::new());
    for name in ["x.pcap", "x.pcapng"] {
        let file = folder.at(name);
        let mut capture = start(end, [end.ifname.as_str(), "-w", text(&file), "udp"]);
        send(&pair, &plan(&pair), 3000);
        // The last piece is written when idle; the file is readable at every moment before.
        let end_at = Instant::now() + LIMIT;
        while read_with_tcpdump(&file).map_or(0, |rows| rows.len()) < 3000 {
            assert!(Instant::now() < end_at);
        }
        capture.kill().unwrap();
        assert_eq!(read_with_tcpdump(&file).unwrap().len(), 3000, "{name}");
    }
}

#[test]
fn a_removed_device_ends_the_run_with_totals() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    let mut capture = start(end, [&end.ifname, "-n", "udp"]);
    send(&pair, &plan(&pair), 3);
    capture.wait_stdout("UDP", LIMIT).unwrap();
    end.delete().unwrap();
    let finished = capture.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(4), "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 3);
    assert!(
        finished.stderr.contains("3 packets captured"),
        "{}",
        finished.stderr
    );
}
