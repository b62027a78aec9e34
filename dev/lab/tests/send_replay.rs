//! `barewire send` end to end over a veth pair: what tcpdump receives is the contents of the
//! capture, rewritten as requested.

use std::time::Duration;

use lab::oracle::tcpdump::Capture;
use lab::oracle::{TempFile, read_pcap, tshark, write_pcap};
use lab::process::{Signal, barewire};
use lab::{Finished, Pair, Veth, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// UDP, TCP and ICMP of several lengths, IPv4 and IPv6, every third one tagged.
fn packets(count: usize) -> Vec<Vec<u8>> {
    use traffic::{Addresses, Icmp, L4, Order, Range, Sizes, Tag, Tcp, Template, Udp};
    let ports = |text| Range::numbers(text, 65_535).unwrap();
    let tcp = Tcp {
        src_port: ports("1-65535"),
        dst_port: ports("80"),
        flags: 16,
        window: 100,
    };
    let udp = Udp {
        src_port: ports("2000-3000"),
        dst_port: ports("53"),
    };
    let transports = [L4::Udp(udp), L4::Tcp(tcp), L4::Icmp(Icmp { id: 1 })];
    let addresses = [
        ("10.1.0.0/16", "10.2.0.1"),
        ("2001:db8::/64", "2001:db8:1::1"),
    ];
    let mut generators: Vec<_> = (0..6)
        .map(|i| {
            let template = Template {
                src_mac: Range::macs("02:00:00:00:00:11").unwrap(),
                dst_mac: Range::macs("02:00:00:00:00:22").unwrap(),
                tags: if i % 3 == 0 {
                    Tag::parse_stack("42").unwrap()
                } else {
                    Vec::new()
                },
                addresses: Addresses::parse(addresses[i % 2].0, addresses[i % 2].1).unwrap(),
                ttl: 64,
                traffic_class: 0,
                l4: transports[i / 2].clone(),
                payload: b"payload".to_vec(),
                sizes: Sizes::parse("90-1400").unwrap(),
                order: Order::Random,
                seed: i as u64,
            };
            template.build().unwrap()
        })
        .collect();
    (0..count)
        .map(|i| {
            let generator = &mut generators[i % 6];
            let mut packet = vec![0; generator.packet_len()];
            generator.write(&mut packet);
            packet
        })
        .collect()
}

/// Runs `barewire send` in the left namespace to its end.
fn send(pair: &Pair, args: &[&str]) -> Finished {
    let mut process = pair
        .left
        .ns
        .spawn(barewire().unwrap(), [&["send"], args].concat())
        .unwrap();
    process.wait(LIMIT).unwrap()
}

fn summary(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|e| panic!("{e}\n{}\n{}", finished.stdout, finished.stderr))
}

/// What arrives on the right while `body` runs, once `count` packets have arrived.
fn received(pair: &Pair, count: usize, body: impl FnOnce()) -> (TempFile, Vec<Vec<u8>>) {
    let file = TempFile::new(".pcap");
    let end = &pair.right;
    let capture = Capture::start(&end.ns, &end.ifname, file.path(), "").unwrap();
    body();
    // tcpdump drops at SIGINT what it has not read: wait until it has everything.
    for _ in 0..500 {
        if read_pcap(file.path()).unwrap().len() >= count {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    capture.stop().unwrap();
    let packets = read_pcap(file.path()).unwrap();
    (file, packets)
}

fn assert_same(got: &[Vec<u8>], expected: &[Vec<u8>]) {
    assert_eq!(got.len(), expected.len(), "packets received");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got, expected, "packet {i}");
    }
}

#[test]
fn a_replay_arrives_byte_for_byte_and_in_order() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let sent = packets(3_000);
    let file = write_pcap(&sent).unwrap();
    let name = file.path().to_str().unwrap();
    let left = pair.left.ifname.as_str();
    for rate in [
        &["--rate", "20kpps"][..],
        &["--multiplier", "30"],
        &["--rate", "200Mbps", "--wire"],
    ] {
        let args = [&[name, left, "--json"], rate].concat();
        let (_, got) = received(&pair, sent.len(), || {
            let finished = send(&pair, &args).checked().unwrap();
            let reported = summary(&finished);
            assert_eq!(reported["packets"], 3_000, "{reported}");
            assert_eq!(reported["bytes"], sent.iter().map(Vec::len).sum::<usize>());
            assert_eq!(
                (&reported["failed"], &reported["ended"]),
                (&0.into(), &"input".into())
            );
        });
        assert_same(&got, &sent);
    }
}

#[test]
fn a_replay_ends_after_rounds_or_a_count() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let sent = packets(100);
    let file = write_pcap(&sent).unwrap();
    let name = file.path().to_str().unwrap();
    let args = [
        name,
        &pair.left.ifname,
        "--rate",
        "10kpps",
        "--loop",
        "0",
        "--count",
        "250",
        "--json",
    ];
    let (_, got) = received(&pair, 250, || {
        let reported = summary(&send(&pair, &args).checked().unwrap());
        assert_eq!(
            (&reported["packets"], &reported["rounds"]),
            (&250.into(), &3.into())
        );
        assert_eq!(reported["ended"], "count");
    });
    let expected: Vec<_> = sent.iter().cycle().take(250).cloned().collect();
    assert_same(&got, &expected);
}

/// Everything that can be rewritten.
const CHANGES: &[&str] = &[
    "--map",
    "10.0.0.0/8=192.168.0.0/16",
    "--map",
    "2001:db8::/32=fd00:7::/32",
    "--map-port",
    "53=5353",
    "--map-port",
    "80=8080",
    "--src-mac",
    "02:00:00:00:00:aa",
    "--dst-mac",
    "02:00:00:00:00:bb",
    "--strip-vlan",
    "--vlan",
    "77",
    "--ttl",
    "9",
    "--rate",
    "10kpps",
];

/// tshark's fields of a packet: those rewritten, and every checksum.
const FIELDS: &[&str] = &[
    "eth.src",
    "eth.dst",
    "vlan.id",
    "ip.src",
    "ipv6.src",
    "ip.dst",
    "ip.ttl",
    "ipv6.hlim",
    "udp.dstport",
    "tcp.dstport",
    "ip.checksum.status",
    "udp.checksum.status",
    "tcp.checksum.status",
    "icmp.checksum.status",
    "icmpv6.checksum.status",
];

#[test]
fn packets_are_rewritten_with_correct_checksums() {
    lab::require!(
        skip::lab(),
        skip::program("tcpdump", "tcpdump"),
        skip::program("tshark", "tshark")
    );
    let pair = Veth::new().create().unwrap();
    let sent = packets(600);
    let file = write_pcap(&sent).unwrap();
    let name = file.path().to_str().unwrap();
    let args = [&[name, &*pair.left.ifname], CHANGES].concat();
    let (got, _) = received(&pair, sent.len(), || {
        send(&pair, &args).checked().unwrap();
    });
    let checks = ["ip", "udp", "tcp"].map(|p| format!("{p}.check_checksum:TRUE"));
    let options: Vec<&str> = checks
        .iter()
        .flat_map(|check| ["-o", check.as_str()])
        .collect();
    let before = tshark::fields(file.path(), FIELDS, &options).unwrap();
    let rows = tshark::fields(got.path(), FIELDS, &options).unwrap();
    assert_eq!(rows.len(), before.len());
    for (old, new) in before.iter().zip(&rows) {
        assert_rewritten(old, new);
    }
}

/// Checks that addresses, ports, tag and hops of a packet are as in [`CHANGES`], and its checksums
/// correct.
fn assert_rewritten(old: &[String], new: &[String]) {
    assert_eq!(new[..3], ["02:00:00:00:00:aa", "02:00:00:00:00:bb", "77"]);
    let expected_src = match old[3].strip_prefix("10.1.") {
        Some(host) => format!("192.168.{host}"),
        None => String::new(),
    };
    assert_eq!(new[3], expected_src);
    assert_eq!(new[4], old[4].replace("2001:db8:", "fd00:7:"));
    assert_eq!(new[5], if old[5].is_empty() { "" } else { "192.168.0.1" });
    assert_eq!(format!("{}{}", new[6], new[7]), "9");
    assert_eq!(new[8], old[8].replace("53", "5353"));
    assert_eq!(new[9], old[9].replace("80", "8080"));
    for status in &new[10..] {
        assert!(status.is_empty() || status == "1", "{new:?}");
    }
}

#[test]
fn ctrl_c_ends_with_totals_that_the_receiver_confirms() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let before = pair.right.counters().unwrap();
    let args = [
        "send",
        "--udp",
        "--dst-mac",
        "02:00:00:00:00:99",
        "--rate",
        "30kpps",
        "--json",
    ];
    let args = [&args[..], &[&pair.left.ifname]].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let finished = process
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap();
    let reported = summary(&finished);
    assert_eq!(reported["ended"], "stopped");
    let packets = reported["packets"].as_u64().unwrap();
    assert!(packets > 0, "{reported}");
    let got = pair.right.counters().unwrap().since(&before);
    assert_eq!(got.rx_packets, packets, "{reported}");
    assert_eq!(reported["bytes"], packets * 60);
    // Never faster than requested, over the reported time; slower only by the reported slip.
    let seconds = reported["seconds"].as_f64().unwrap();
    let slipped = reported["slipped_seconds"].as_f64().unwrap();
    assert!(
        packets as f64 <= (seconds - slipped) * 30_000.0 + 1.0,
        "{reported}"
    );
}

#[test]
fn generated_packets_arrive_at_the_neighbour() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let before = pair.right.counters().unwrap();
    // The pair's neighbour table has the peer: no --dst-mac is needed.
    let args = [
        "--udp",
        "--dst",
        "10.77.0.2",
        "--size",
        "imix",
        "--count",
        "1200",
        "--rate",
        "20kpps",
    ];
    let args = [&args[..], &["--json", &pair.left.ifname]].concat();
    let reported = summary(&send(&pair, &args).checked().unwrap());
    assert_eq!(reported["packets"], 1200);
    assert_eq!(reported["bytes"], 700 * 60 + 400 * 590 + 100 * 1514);
    let got = pair.right.counters().unwrap().since(&before);
    assert_eq!(got.rx_packets, 1200);
}

/// Runs and expects failure; returns standard error.
fn refused(pair: &Pair, code: i32, args: &[&str]) -> String {
    let finished = send(pair, args);
    assert_eq!(finished.code(), Some(code), "{args:?}\n{}", finished.stderr);
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("hint: "),
        "{args:?}\n{}",
        finished.stderr
    );
    finished.stderr
}

#[test]
fn bad_input_gets_one_clear_message_with_a_hint() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let left = pair.left.ifname.as_str();
    let file = write_pcap(&packets(10)).unwrap();
    let name = file.path().to_str().unwrap();
    let mac = ["--dst-mac", "02:00:00:00:00:01"];
    let before = pair.right.counters().unwrap();

    for (code, args, part) in [
        (1, &[name, "no-such-if"][..], "no such interface"),
        (1, &["no-such-file.pcap", left], "no-such-file.pcap"),
        (2, &["--udp", left, "--rate", "0"], "not a rate"),
        (2, &["--udp", left, "--rate", "0pps"], "never send"),
        (2, &["--udp", left, "--rate", "900Tbps"], "not possible"),
        (2, &["--udp", left, "--pps", "1e30"], "not possible"),
        (2, &["--udp", left, "--dport", "70000"], "70000"),
        (2, &[name, left, "--map", "10.0.0.0/8=0.0.0.0/4"], "larger"),
        (
            1,
            &["--udp", left, "--dst", "10.0.0.1/8"],
            "behind its first 8",
        ),
        (
            1,
            &["--udp", left, "--src", "::1", "--dst", "10.0.0.1"],
            "IPv6",
        ),
        (1, &["--udp", left], "MAC address"),
        (1, &["--udp", left, "--dst", "10.77.0.0/24"], "MAC address"),
        (
            1,
            &["--udp", left, mac[0], mac[1], "--size", "9000"],
            "mtu 8986",
        ),
    ] {
        let output = refused(&pair, code, args);
        assert!(
            output.contains(part),
            "{args:?} does not say {part:?}:\n{output}"
        );
    }
    let output = send(&pair, &["--udp", left, mac[0], mac[1], "--size", "41"]).stderr;
    assert!(output.contains("headers alone are 42"), "{output}");

    pair.left
        .ns
        .ip(["route", "add", "default", "via", "10.77.0.2"])
        .unwrap();
    let output = refused(&pair, 1, &[name, left]);
    assert!(
        output.contains("default route") && output.contains("--force"),
        "{output}"
    );
    // A dry run is allowed.
    send(&pair, &[name, left, "--dry-run"]).checked().unwrap();
    assert_eq!(pair.right.counters().unwrap().since(&before).rx_packets, 0);
    send(&pair, &[name, left, "--force", "--rate", "10kpps"])
        .checked()
        .unwrap();
    assert_eq!(pair.right.counters().unwrap().since(&before).rx_packets, 10);
    pair.left.set_down().unwrap();
    let output = refused(&pair, 1, &[name, left, "--force"]);
    assert!(
        output.contains("it is down") && output.contains("set left0 up"),
        "{output}"
    );
}

#[test]
fn unsendable_packets_are_counted_and_the_others_are_sent() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let left = pair.left.ifname.as_str();
    let mut sent = packets(20);
    sent[7] = vec![0xee; 1515];
    sent[9] = vec![0xee; 1514];
    let file = write_pcap(&sent).unwrap();
    let name = file.path().to_str().unwrap();
    let before = pair.right.counters().unwrap();
    let finished = send(&pair, &[name, left, "--rate", "10kpps", "--json"]);
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("hint: raise the MTU"),
        "{}",
        finished.stderr
    );
    let reported = summary(&finished);
    assert_eq!(
        (&reported["packets"], &reported["too_long"]),
        (&19.into(), &1.into())
    );
    assert_eq!(pair.right.counters().unwrap().since(&before).rx_packets, 19);

    // A capture cut in the middle of its last packet: everything before it, then the offset, and
    // exit code 3.
    let bytes = std::fs::read(file.path()).unwrap();
    let cut = TempFile::new(".pcap");
    std::fs::write(cut.path(), &bytes[..bytes.len() - 5]).unwrap();
    let finished = send(
        &pair,
        &[
            cut.path().to_str().unwrap(),
            left,
            "--rate",
            "10kpps",
            "--json",
        ],
    );
    assert_eq!(finished.code(), Some(3), "{}", finished.stderr);
    assert_eq!(summary(&finished)["packets"], 18, "{}", finished.stderr);

    // Raw IP has no Ethernet header: refused, unless addresses are given for one.
    let raw: Vec<_> = packets(40)
        .into_iter()
        .filter(|p| p[12] != 0x81)
        .map(|p| p[14..].to_vec())
        .collect();
    let file = write_pcap(&raw).unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes[20] = 101;
    std::fs::write(file.path(), bytes).unwrap();
    let name = file.path().to_str().unwrap();
    let output = refused(&pair, 1, &[name, left]);
    assert!(
        output.contains("no Ethernet header") && output.contains("--src-mac"),
        "{output}"
    );
    let macs = [
        "--src-mac",
        "02:00:00:00:00:01",
        "--dst-mac",
        "02:00:00:00:00:02",
    ];
    let args = [&[name, left, "--rate", "10kpps", "--json"], &macs[..]].concat();
    assert_eq!(
        summary(&send(&pair, &args).checked().unwrap())["packets"],
        raw.len()
    );
}

#[test]
fn a_dry_run_prints_the_plan_and_sends_nothing() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let left = pair.left.ifname.as_str();
    let before = pair.right.counters().unwrap();
    let file = write_pcap(&packets(1000)).unwrap();
    let name = file.path().to_str().unwrap();
    let args = [
        name,
        left,
        "--loop",
        "2",
        "--multiplier",
        "10",
        "--dry-run",
        "--json",
    ];
    let reported = summary(&send(&pair, &args).checked().unwrap());
    assert_eq!(
        (&reported["packets"], &reported["dry_run"]),
        (&2000.into(), &true.into())
    );
    // 1000 packets a millisecond apart, ten times as fast, twice.
    assert!(
        (reported["seconds"].as_f64().unwrap() - 0.1998).abs() < 1e-6,
        "{reported}"
    );
    let finished = send(
        &pair,
        &["--tcp-syn", "--dst", "10.77.0.2", left, "--dry-run"],
    )
    .checked()
    .unwrap();
    assert!(
        finished
            .stdout
            .contains("198.18.0.1:1024 > 10.77.0.2:9  TCP"),
        "{}",
        finished.stdout
    );
    // For a damaged file everything before the damage, and its position.
    let mut bytes = std::fs::read(file.path()).unwrap();
    let len = bytes.len() - 1;
    bytes.truncate(len);
    std::fs::write(file.path(), &bytes).unwrap();
    let finished = send(&pair, &[name, left, "--dry-run"]);
    assert_eq!(finished.code(), Some(3), "{}", finished.stderr);
    let plan = &finished.stdout;
    assert!(plan.contains("would send 999 packets"), "{plan}");
    assert!(
        finished.stderr.contains("after 999 packets"),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("byte "), "{}", finished.stderr);
    let finished = send(&pair, &[name, left, "--dry-run", "--json"]);
    assert_eq!(finished.code(), Some(3), "{}", finished.stderr);
    let reported = summary(&finished);
    assert_eq!(reported["packets"], 999);
    assert!(
        reported["error"].as_str().unwrap().contains("after 999"),
        "{reported}"
    );
    assert_eq!(pair.right.counters().unwrap().since(&before).rx_packets, 0);
}

#[test]
fn send_drops_privileges_before_the_first_packet() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let args = [
        "send",
        "--udp",
        "--dst",
        "10.77.0.2",
        "--rate",
        "100pps",
        "--user",
        "nobody",
    ];
    let args = [&args[..], &[&pair.left.ifname]].concat();
    let before = pair.right.counters().unwrap();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    for _ in 0..200 {
        if pair.right.counters().unwrap().since(&before).rx_packets > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = |name| {
        status
            .lines()
            .find(|l| l.starts_with(name))
            .unwrap()
            .to_owned()
    };
    assert_eq!(line("CapEff:"), "CapEff:\t0000000000000000");
    assert!(!line("Uid:").contains("\t0"), "{}", line("Uid:"));
    process
        .stop(Signal::SIGTERM, LIMIT)
        .unwrap()
        .checked()
        .unwrap();
    assert!(pair.right.counters().unwrap().since(&before).rx_packets > 0);
}
