//! `barewire send` through live XDP frames: what is sent, what is counted, and the error if it is
//! impossible.

use std::time::{Duration, Instant};

use lab::oracle::tcpdump::Capture;
use lab::oracle::{TempFile, write_pcap};
use lab::process::{Process, Signal, barewire};
use lab::{Finished, Pair, Veth, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// A pair whose right end accepts XDP frames.
fn pair() -> Pair {
    Veth::new().gro().create().unwrap()
}

fn start(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["send"], args].concat();
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

fn send(pair: &Pair, args: &[&str]) -> Finished {
    start(pair, args).wait(LIMIT).unwrap()
}

fn summary(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|e| panic!("{e}\n{}\n{}", finished.stdout, finished.stderr))
}

/// Packets that the right end has received so far.
fn received(pair: &Pair) -> u64 {
    pair.right.counters().unwrap().rx_packets
}

const UDP: [&str; 3] = ["--udp", "--dst-mac", "02:00:00:00:00:99"];

#[test]
fn a_replay_arrives_byte_for_byte_and_in_order() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = pair();
    // An unassigned EtherType: no part of the stack merges or answers such packets.
    let sent: Vec<Vec<u8>> = (0..5_000u32)
        .map(|number| {
            let mut packet = vec![number as u8; 14 + (number as usize * 7) % 1501];
            packet[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
            packet[12..14].copy_from_slice(&[0x88, 0xb5]);
            let rest = packet.len() - 14;
            packet[14..14 + rest.min(4)].copy_from_slice(&number.to_be_bytes()[..rest.min(4)]);
            packet
        })
        .collect();
    let file = write_pcap(&sent).unwrap();
    let got = TempFile::new(".pcap");
    let end = &pair.right;
    let capture = Capture::start(&end.ns, &end.ifname, got.path(), "").unwrap();
    let port = format!("xdplive:{}", pair.left.ifname);
    let name = file.path().to_str().unwrap();
    let args = [name, &port, "--rate", "30kpps", "--json"];
    let reported = summary(&send(&pair, &args).checked().unwrap());
    let counts = (&reported["packets"], &reported["failed"]);
    assert_eq!(counts, (&5_000.into(), &0.into()));
    let whole = 24 + sent.iter().map(|p| p.len() as u64 + 16).sum::<u64>();
    let until = Instant::now() + LIMIT;
    while got.path().metadata().unwrap().len() < whole && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    capture.stop().unwrap();
    let bytes = std::fs::read(got.path()).unwrap();
    let mut rest = &bytes[24..];
    for (number, expected) in sent.iter().enumerate() {
        let (packet, tail) = rest[16..].split_at(expected.len());
        assert_eq!(packet, expected, "packet {number}");
        rest = tail;
    }
    assert!(rest.is_empty(), "{} bytes more than were sent", rest.len());
}

#[test]
fn a_plain_name_at_full_speed_uses_the_fastest_backend() {
    lab::require!(skip::lab());
    let pair = pair();
    let left = pair.left.ifname.as_str();
    let args = [&UDP[..], &["--count", "20000", "--json", left, "--rate"]].concat();
    let way = |rate: &str| {
        let reported = summary(
            &send(&pair, &[&args[..], &[rate]].concat())
                .checked()
                .unwrap(),
        );
        assert_eq!(reported["packets"], 20_000, "{reported}");
        reported["port"].as_str().unwrap().to_owned()
    };
    let before = received(&pair);
    assert_eq!(way("max"), format!("xdplive:{left}"));
    assert_eq!(way("200kpps"), left, "a tap sees it");
    pair.right.set_gro(false).unwrap();
    assert_eq!(
        way("max"),
        format!("afxdp:{left}"),
        "the other end does not take XDP frames"
    );
    assert_eq!(received(&pair) - before, 60_000);
    // Requested explicitly, it is refused with a hint.
    let port = format!("xdplive:{left}");
    let finished = send(&pair, &[&UDP[..], &[&port]].concat());
    assert_eq!(finished.code(), Some(1));
    let hint = "hint: at the other end, while it is up: `ethtool -K INTERFACE gro on`";
    assert!(finished.stderr.contains(hint), "{}", finished.stderr);
}

#[test]
fn ctrl_c_at_full_speed_ends_with_totals_that_the_receiver_confirms() {
    lab::require!(skip::lab());
    let pair = pair();
    let before = received(&pair);
    let args = [
        &UDP[..],
        &["--rate", "max", "--json", "--user", "nobody"],
        &[&pair.left.ifname],
    ];
    let mut process = start(&pair, &args.concat());
    let until = Instant::now() + LIMIT;
    while received(&pair) == before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let reported = summary(&finished);
    let packets = reported["packets"].as_u64().unwrap();
    assert_eq!(received(&pair) - before, packets, "{reported}");
    assert_eq!(reported["ended"], "stopped");
    assert!(packets > 10_000, "{reported}");
}

#[test]
fn packets_that_the_other_end_stops_taking_are_counted_as_failed() {
    lab::require!(skip::lab());
    let pair = pair();
    let before = received(&pair);
    let port = format!("xdplive:{}", pair.left.ifname);
    let args = [
        &UDP[..],
        &["--rate", "50kpps", "--count", "150000", "--json", &port],
    ]
    .concat();
    let mut process = start(&pair, &args);
    let until = Instant::now() + LIMIT;
    while received(&pair) < before + 10_000 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    pair.right.set_gro(false).unwrap();
    let finished = process.wait(LIMIT).unwrap();
    let reported = summary(&finished);
    let arrived = received(&pair) - before;
    assert!((10_000..150_000).contains(&arrived), "{reported}");
    assert_eq!(reported["packets"], arrived, "{reported}");
    assert_eq!(reported["failed"], 150_000 - arrived, "{reported}");
    assert_eq!(finished.code(), Some(1));
    assert!(finished.stderr.contains("hint: "), "{}", finished.stderr);
}

#[test]
fn packets_longer_than_a_page_take_another_path_or_are_reported() {
    lab::require!(skip::lab());
    let pair = Veth::new().gro().mtu(9000).create().unwrap();
    let left = pair.left.ifname.as_str();
    let live = format!("xdplive:{left}");
    let long = [
        "--size", "5000", "--count", "100", "--rate", "max", "--json",
    ];
    let reported = summary(
        &send(&pair, &[&UDP[..], &long, &[left]].concat())
            .checked()
            .unwrap(),
    );
    let counts = (&reported["packets"], &reported["port"]);
    assert_eq!(counts, (&100.into(), &format!("afpacket:{left}").into()));
    let finished = send(&pair, &[&UDP[..], &long, &[&live]].concat());
    assert_eq!(finished.code(), Some(1));
    assert!(
        finished.stderr.contains("at most 3300 bytes, not 5000"),
        "{}",
        finished.stderr
    );

    // The others of the capture are sent.
    let mut packet = vec![0x77u8; 5000];
    packet[12..14].copy_from_slice(&[0x88, 0xb5]);
    let packets = [
        &packet[..100],
        &packet,
        &packet[..200],
        &packet[..3296],
        &packet[..3297],
    ];
    let file = write_pcap(&packets).unwrap();
    let name = file.path().to_str().unwrap();
    let finished = send(&pair, &[name, &live, "--rate", "1kpps", "--json"]);
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    let reported = summary(&finished);
    assert_eq!(
        (&reported["packets"], &reported["too_long"]),
        (&3.into(), &2.into())
    );
    assert!(
        finished.stderr.contains("hint: afpacket:"),
        "{}",
        finished.stderr
    );
    let reported = summary(
        &send(&pair, &[name, left, "--rate", "max", "--json"])
            .checked()
            .unwrap(),
    );
    assert_eq!(reported["packets"], 5);
}

/// Each call takes one of the kernel's 65,533 identifiers of page pools, which are returned only
/// after a grace period: the rate of calls is bounded for any pattern of flushes.
#[test]
fn calls_to_the_kernel_are_bounded_in_time() {
    lab::require!(skip::lab());
    let pair = pair();
    let options = port::PortOptions {
        direction: port::Direction::Tx,
        ..port::PortOptions::default()
    };
    let name = format!("xdplive:{}", pair.left.ifname);
    let open = || port::open(&name, &options).unwrap();
    let mut port = pair.left.ns.run(open).unwrap();
    let mut packet = [0; 60];
    packet[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0x99]);
    packet[12..14].copy_from_slice(&[0x88, 0xb5]);
    let start = Instant::now();
    for _ in 0..5_000 {
        let mut batch = port.tx[0].reserve(1).unwrap();
        assert!(batch.write(&packet));
        batch.submit().unwrap();
        port.tx[0].flush().unwrap();
    }
    // On a busy machine there are fewer.
    let most = start.elapsed().as_micros() / 100 + 20;
    let calls = port.tx[0].counters().kicks.get();
    assert!(
        u128::from(calls) <= most,
        "{calls} calls, {most} at the most"
    );
    assert!(port.tx[0].wait(true, LIMIT).unwrap());
    let counters = port.tx[0].counters();
    assert_eq!(counters.sent.get() + counters.failed.get(), 5_000);
}
