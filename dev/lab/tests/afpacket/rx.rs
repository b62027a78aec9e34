//! Packet metadata from the kernel, and packets of unusual sizes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use lab::packet::number_of;
use lab::{Pair, Veth, skip};
use port::{TimestampSource, Vlan};
use sys::ErrorKind;

use super::common::*;

/// A packet as it was on the wire: with its tag inserted again.
fn with_tag(bytes: &[u8], vlan: Vlan) -> Vec<u8> {
    let mut whole = bytes[..12].to_vec();
    whole.extend(vlan.tpid.to_be_bytes());
    whole.extend(vlan.tci.to_be_bytes());
    whole.extend(&bytes[12..]);
    whole
}

/// The kernel removes the outer tag before a tap sees the packet, regardless of the card's
/// offloads; it is reported with the packet.
#[test]
fn stripped_vlan_tags_are_reported() {
    lab::require!(skip::lab());
    for offload in [false, true] {
        let mut veth = Veth::new();
        if offload {
            veth = veth.vlan_offload();
        }
        let pair = veth.create().unwrap();
        let (mut port, sender) = (open(&pair.right, "outgoing=no"), sender(&pair.left));
        let mut plan = plan(&pair);
        plan.vlan = Some(0x6123);
        let mut packets: Vec<_> = (0..5).map(|number| plan.build(number, 100)).collect();
        // 802.1ad outside, 802.1Q inside.
        let mut double = plan.build(5, 100);
        double.splice(12..12, [0x88, 0xa8, 0x0f, 0xff]);
        packets.push(double);
        plan.vlan = None;
        packets.push(plan.build(6, 100));
        for packet in &packets {
            sender.send(packet).unwrap();
        }
        let mut at = 0;
        let got = receive(&mut port, packets.len(), |_, packet| {
            let (bytes, sent) = (packet.bytes(), &packets[at]);
            match packet.vlan() {
                Some(vlan) => {
                    let tpid = if at == 5 { 0x88a8 } else { 0x8100 };
                    let tci = if at == 5 { 0x0fff } else { 0x6123 };
                    assert_eq!(vlan, Vlan { tpid, tci }, "packet {at}");
                    assert_eq!(&with_tag(bytes, vlan), sent, "packet {at}");
                    assert_eq!(packet.wire_len() as usize + 4, sent.len());
                }
                None => assert_eq!((at, bytes), (6, &sent[..])),
            }
            at += 1;
        });
        assert_eq!(got, 7, "offload {offload}");
    }
}

#[test]
fn a_tap_sees_both_directions_by_default() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (mut both, mut only_in) = (open(&pair.right, ""), open(&pair.right, "outgoing=no"));
    let plan = plan(&pair);
    let (left, right) = (sender(&pair.left), sender(&pair.right));
    for number in 0..100 {
        let from = if number % 4 == 0 { &right } else { &left };
        from.send(&plan.build(number, 80)).unwrap();
    }
    let mut outgoing = Vec::new();
    let got = receive(&mut both, 100, |_, packet| {
        if packet.is_outgoing() {
            outgoing.push(number_of(packet.bytes()).unwrap());
        }
    });
    assert_eq!(got, 100);
    assert_eq!(outgoing, (0..100).step_by(4).collect::<Vec<_>>());
    let got = receive(&mut only_in, usize::MAX, |_, packet| {
        assert!(!packet.is_outgoing());
        assert_ne!(number_of(packet.bytes()).unwrap() % 4, 0);
    });
    assert_eq!(got, 75);
    // Packets that were not requested are not even seen: this is not a loss.
    let account = only_in.control.account().unwrap();
    assert_eq!(account.rx_total().seen, 75);
    assert_eq!(account.interface_seen, Some(75));
}

#[test]
fn loopback_shows_each_packet_once() {
    lab::require!(skip::lab());
    let ns = lab::Netns::new().unwrap();
    ns.run(|| {
        let mut port = port::open("afpacket:lo", &PortOptions::default()).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        for number in 0..20_u8 {
            socket.send_to(&[number; 40], to).unwrap();
        }
        let packets = collect(&mut port);
        let last: Vec<u8> = packets
            .iter()
            .map(|packet| packet[packet.len() - 1])
            .collect();
        assert_eq!(last, (0..20).collect::<Vec<u8>>());
    })
    .unwrap();
}

#[test]
fn timestamps_are_the_kernels_and_increase() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64
    };
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    for source in ["kernel", "auto", "batch"] {
        let mut port = open(&pair.right, &format!("outgoing=no&timestamp={source}"));
        let before = now();
        for number in 0..50 {
            sender.send(&plan.build(number, 60)).unwrap();
        }
        let mut times = vec![before];
        let got = receive(&mut port, 50, |_, packet| {
            times.push(packet.time_ns().unwrap())
        });
        times.push(now());
        assert_eq!(got, 50);
        assert!(times.is_sorted(), "{source}: {times:?}");
        let distinct: std::collections::BTreeSet<_> = times.iter().collect();
        assert!(
            source == "batch" || distinct.len() > 25,
            "{source}: {times:?}"
        );
    }
    let mut port = open(&pair.right, "outgoing=no&timestamp=none");
    sender.send(&plan.build(0, 60)).unwrap();
    assert_eq!(
        receive(&mut port, 1, |_, packet| assert_eq!(packet.time_ns(), None)),
        1
    );
    assert!(!port.capabilities.timestamps);
    // veth has no hardware clock.
    let options = PortOptions {
        timestamp: TimestampSource::Device,
        ..PortOptions::default()
    };
    let error = try_open(&pair.right, "", &options).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.hint().unwrap().contains("timestamp=kernel"),
        "{error}"
    );
}

#[test]
fn flow_hashes_are_present_on_request() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    // The second version of the kernel's ring has none.
    let mut port = open(
        &pair.right,
        "tap=auto&immediate=no&outgoing=no&rss_hash=yes",
    );
    assert!(port.capabilities.rss_hash);
    let (plan, sender) = (plan(&pair).flows(4), sender(&pair.left));
    for number in 0..40 {
        sender.send(&plan.build(number, 60)).unwrap();
    }
    let mut hashes = vec![Vec::new(); 4];
    let got = receive(&mut port, 40, |_, packet| {
        let flow = number_of(packet.bytes()).unwrap() % 4;
        hashes[flow as usize].push(packet.rss_hash().unwrap());
    });
    assert_eq!(got, 40);
    for flow in &hashes {
        assert!(
            flow.iter().all(|hash| *hash == flow[0] && *hash != 0),
            "{hashes:?}"
        );
    }
    assert_ne!(hashes[0][0], hashes[1][0]);
    let mut plain = open(&pair.right, "outgoing=no");
    sender.send(&plan.build(0, 60)).unwrap();
    assert_eq!(
        receive(&mut plain, 1, |_, packet| assert_eq!(
            packet.rss_hash(),
            None
        )),
        1
    );
}

/// A connection from left to right, and a thread that reads it to its end.
fn connected(pair: &Pair) -> (TcpStream, JoinHandle<Vec<u8>>) {
    let to = (pair.right.ipv4, 7070);
    let listen = || TcpListener::bind(to);
    let listener = pair.right.ns.run(listen).unwrap().unwrap();
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_to_end(&mut received).unwrap();
        received
    });
    let connect = || TcpStream::connect(to);
    (pair.left.ns.run(connect).unwrap().unwrap(), reader)
}

/// With segmentation offload a "packet" of up to 64 KiB crosses the pair in one piece. It is
/// captured completely; in a ring whose blocks or frames are smaller it is truncated, and its real
/// length is reported.
#[test]
fn merged_packets_are_complete_or_reported_as_truncated() {
    lab::require!(skip::lab());
    let pair = Veth::new().offloads().create().unwrap();
    let mut whole = open(&pair.right, "outgoing=no&snaplen=0");
    let mut small = open(&pair.right, "outgoing=no&snaplen=0&ring_bytes=131072");
    let (mut stream, reader) = connected(&pair);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    // Both rings are read between writes, so that the small one holds everything.
    let mut lens = (Vec::new(), Vec::new());
    let mut read = |lens: &mut (Vec<_>, Vec<_>)| {
        receive(&mut whole, usize::MAX, |_, packet| {
            lens.0
                .push((packet.cap_len(), packet.wire_len(), packet.bytes().len()));
        });
        receive(&mut small, usize::MAX, |_, packet| {
            lens.1
                .push((packet.cap_len(), packet.wire_len(), packet.bytes().len()));
        });
    };
    for part in sent.chunks(750_000) {
        stream.write_all(part).unwrap();
        read(&mut lens);
    }
    drop(stream);
    assert_eq!(reader.join().unwrap().len(), sent.len());
    read(&mut lens);
    let (in_whole, in_small) = lens;
    let longest = in_whole.iter().map(|len| len.1).max().unwrap();
    assert!(
        longest > 40_000,
        "no merged packet crossed, the longest had {longest} bytes"
    );
    for (cap_len, wire_len, len) in &in_whole {
        assert_eq!((cap_len, *len), (wire_len, *cap_len as usize));
    }
    let cut: Vec<_> = in_small.iter().filter(|len| len.0 < len.1).collect();
    assert!(
        !cut.is_empty(),
        "blocks of 32 KiB held packets of {longest} bytes"
    );
    for (cap_len, wire_len, len) in &in_small {
        let fits = *wire_len <= small.capabilities.packet_len_max;
        assert_eq!(cap_len == wire_len, fits, "{cap_len} of {wire_len}");
        assert!(*len == *cap_len as usize && *cap_len > 30_000.min(wire_len - 1));
    }
    assert!(whole.capabilities.packet_len_max > 65_549);
    let account = small.control.account().unwrap().rx_total();
    assert_eq!(
        (account.imbalance(), account.in_flight),
        (0, 0),
        "{account:?}"
    );
    assert_eq!(account.delivered as usize, in_small.len());
}

/// If no pool is given, the first packet kept creates one; copies are counted.
#[test]
fn kept_packets_are_counted_copies() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "outgoing=no");
    assert!(!port.capabilities.detach_moves);
    assert!(port.rx[0].pool().is_none());
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    for number in 0..10 {
        sender.send(&plan.build(number, 500)).unwrap();
    }
    let mut frames = Vec::new();
    let end = Instant::now() + LIMIT;
    while frames.len() < 10 && Instant::now() < end {
        port.rx[0].wait(Duration::from_millis(50)).unwrap();
        let mut batch = port.rx[0].receive().unwrap();
        for index in 0..batch.len() {
            frames.push(batch.detach(index).unwrap().frame);
        }
    }
    let pool = port.rx[0].pool().unwrap().clone();
    assert_eq!(port.rx[0].counters().detach_copies.get(), 10);
    let mut cache = ring::FrameCache::new(pool.clone());
    for (number, frame) in (0..).zip(frames) {
        assert_eq!(pool.bytes(&frame), plan.build(number, 500));
        cache.give(frame).unwrap();
    }
}

#[test]
fn refusals_have_a_hint() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    let fails = |name: &str| {
        let result = end
            .ns
            .run(|| port::open(name, &PortOptions::default()))
            .unwrap();
        let error = result.err().unwrap_or_else(|| panic!("{name} was opened"));
        println!("{name}: {error}; hint: {:?}", error.hint());
        assert!(
            error.hint().is_some() || error.kind() == ErrorKind::InvalidInput,
            "{error}"
        );
        error.kind()
    };
    assert_eq!(fails("afpacket:nowhere0"), ErrorKind::NotFound);
    assert_eq!(fails("afpacket:"), ErrorKind::NotFound);
    assert_eq!(
        fails("afpacket:a-name-longer-than-any"),
        ErrorKind::NotFound
    );
    for query in [
        "queues=257",
        "ring_bytes=100",
        "ring_bytes=9999999999999",
        "fanout=sideways",
        "rss_hash=maybe",
        "rss_hash=yes&immediate=yes",
    ] {
        let name = format!("afpacket:{}?{query}", end.ifname);
        assert_eq!(fails(&name), ErrorKind::InvalidInput, "{query}");
    }
    // A plain name selects this backend.
    let port = end
        .ns
        .run(|| port::open(&end.ifname, &PortOptions::default()));
    assert_eq!(port.unwrap().unwrap().control.describe().scheme, "afpacket");
}

/// It allocates the requested memory, and reports it.
#[test]
fn memory_is_bounded_and_reported() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    // The socket's own ring has blocks, at least four of them, or frames for the longest packet; a
    // program's ring is a power of two with a page before it and room for a longest packet after.
    let records = |ring: usize| ring + 4096 + 4096 + (ring / 4).min(128 << 10);
    let is_immediate = super::TAP.contains("immediate");
    for (query, blocks, ring) in [
        ("", 32 << 20, records(32 << 20)),
        ("ring_bytes=16384", 16384, records(16384)),
        (
            "ring_bytes=1000000",
            if is_immediate { 3 << 18 } else { 7 << 17 },
            records(524_288),
        ),
        ("ring=1000", 7 * 262_144, records(1 << 20)),
        ("ring_bytes=1048576&queues=3", 3 << 20, 3 * records(1 << 20)),
    ] {
        let bytes = if super::TAP == "bpf" { ring } else { blocks };
        let port = open(&pair.right, &format!("snaplen=0&{query}"));
        assert_eq!(port.control.describe().memory_len, bytes, "{query:?}");
    }
}
