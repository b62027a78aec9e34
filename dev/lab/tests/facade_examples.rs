//! The examples of the facade crate work as documented in their first lines: on captures, and on
//! veth pairs.

use std::process::Command;
use std::time::{Duration, Instant};

use lab::oracle::{tshark, write_pcap};
use lab::packet::{Raw, Udp};
use lab::process::{Process, Signal, example};
use lab::{Veth, skip};
use traffic::{Addresses, L4, Order, Range, Sizes, Tcp, Template};

use crate::capture::Folder;

const LIMIT: Duration = Duration::from_secs(60);

fn run(name: &str, args: &[&str]) -> String {
    let mut command = Command::new(example(name).unwrap());
    let mut process = Process::spawn(command.args(args)).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap().stdout
}

/// A capture of the repository, and its number of packets according to tshark.
fn fixture(name: &str) -> (String, usize) {
    let path = format!(
        "{}/../../testdata/captures/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    let rows = tshark::fields(path.as_ref(), &["frame.number"], &[]).unwrap();
    (path, rows.len())
}

#[test]
fn count_counts_the_packets_of_a_capture() {
    lab::require!(skip::program("tshark", "tshark"));
    let (path, count) = fixture("lab-mix.pcapng");
    let printed = run("count", &[&path]);
    assert!(
        printed.starts_with(&format!("{count} packets, ")),
        "{printed}"
    );
    assert!(printed.ends_with(" 0 lost\n"), "{printed}");
}

#[test]
fn sniff_prints_a_line_for_each_packet() {
    lab::require!(skip::program("tshark", "tshark"));
    let (path, count) = fixture("lab-vlan.pcap");
    let printed = run("sniff", &[&path]);
    assert_eq!(printed.lines().count(), count);
    assert!(printed.contains("vlan 77"), "{printed}");
}

#[test]
fn generate_sends_the_requested_number_of_packets() {
    lab::require!(skip::program("tshark", "tshark"));
    let folder = Folder::new();
    let file = folder.at("out.pcap");
    let port = file.to_str().unwrap();
    let printed = run(
        "generate",
        &[port, "10.0.0.1-10.0.0.9", "10.0.1.1", "10kpps", "500"],
    );
    assert_eq!(printed, "500 sent, 0 failed\n");
    let fields = ["ip.src", "ip.dst", "udp.dstport"];
    let rows = tshark::fields(&file, &fields, &[]).unwrap();
    assert_eq!(rows.len(), 500);
    for row in &rows {
        assert!(row[0].starts_with("10.0.0."), "{row:?}");
        assert_eq!((&row[1][..], &row[2][..]), ("10.0.1.1", "9"));
    }
}

fn tcp_to(port: u64) -> Vec<u8> {
    let mut generator = Template {
        src_mac: Range::macs("02:00:00:00:00:01").unwrap(),
        dst_mac: Range::macs("02:00:00:00:00:02").unwrap(),
        tags: Vec::new(),
        addresses: Addresses::parse("10.0.0.1", "10.0.0.2").unwrap(),
        ttl: 64,
        traffic_class: 0,
        l4: L4::Tcp(Tcp {
            src_port: Range::one(40_000),
            dst_port: Range::one(port.into()),
            flags: 2,
            window: 1024,
        }),
        payload: Vec::new(),
        sizes: Sizes::Shortest,
        order: Order::Random,
        seed: port,
    }
    .build()
    .unwrap();
    let mut packet = vec![0; generator.packet_len_max()];
    let len = generator.write(&mut packet);
    packet.truncate(len);
    packet
}

#[test]
fn forwarder_drops_telnet_and_passes_the_rest_in_order() {
    lab::require!(skip::program("tshark", "tshark"));
    let ports = [80, 23, 23, 443, 80, 23, 22, 8023];
    let input = write_pcap(&ports.map(tcp_to)).unwrap();
    let folder = Folder::new();
    let output = folder.at("out.pcap");
    let paths = [input.path(), &output].map(|path| path.to_str().unwrap());
    let printed = run("forwarder", &paths);
    assert_eq!(printed, "5 forwarded, 3 denied, 0 dropped\n");
    let rows = tshark::fields(&output, &["tcp.dstport"], &[]).unwrap();
    let passed: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(passed, ["80", "443", "80", "22", "8023"]);
}

#[test]
fn reflect_returns_every_packet_with_swapped_addresses() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let port = format!("afxdp:{}?attach=native", pair.right.ifname);
    let program = example("reflect").unwrap();
    let mut process = pair.right.ns.spawn(program, [port]).unwrap();
    process.wait_stderr("reflecting", LIMIT).unwrap();
    let open = || Raw::open(&pair.left.ifname);
    let raw = pair.left.ns.run(open).unwrap().unwrap();
    let udp = Udp::between(&pair.left, &pair.right);
    for number in 0..100 {
        let sent = udp.build(number, 60);
        raw.send(&sent).unwrap();
        let back = raw.receive(LIMIT).unwrap().expect("the packet comes back");
        assert_eq!((&back[..6], &back[6..12]), (&sent[6..12], &sent[..6]));
        assert_eq!(back[12..], sent[12..]);
    }
    let finished = process
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap();
    assert_eq!(finished.stdout, "100 reflected, 0 dropped\n");
}

#[test]
fn count_counts_what_an_interface_receives() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let program = example("count").unwrap();
    // A tap would count the host's ICMP errors too.
    let name = format!("afxdp:{}?attach=native", pair.right.ifname);
    let mut process = pair.right.ns.spawn(program, [name]).unwrap();
    process.wait_stderr("counting on", LIMIT).unwrap();
    lab::packet::pour(&pair, 10, 1000);
    // The receiving end counts a packet when the XDP program has seen it.
    let since = Instant::now();
    while pair.right.counters().unwrap().rx_packets < 1000 {
        assert!(since.elapsed() < LIMIT, "packets do not arrive");
        std::thread::sleep(Duration::from_millis(20));
    }
    let finished = process
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap();
    let printed = finished.stdout;
    assert_eq!(printed, "1000 packets, 60000 bytes; 1000 seen, 0 lost\n");
}
