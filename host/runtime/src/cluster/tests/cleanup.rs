//! Applications whose traffic is cleaned up.

use std::collections::{HashMap, HashSet};

use flow::cleanup::ShuntLimits;

use super::*;

/// Packet `number` with a payload, and a transmission number as IP identification.
fn datagram(number: u32, len: u16, id: u16) -> Vec<u8> {
    let mut bytes = packet(number);
    bytes.extend(vec![0xa5; len.into()]);
    bytes[16..18].copy_from_slice(&(32 + len).to_be_bytes());
    bytes[18..20].copy_from_slice(&id.to_be_bytes());
    bytes[38..40].copy_from_slice(&(12 + len).to_be_bytes());
    bytes
}

/// The packet in GRE between other hosts: with its Ethernet header or only from the IP header on.
fn in_gre(inner: &[u8], has_ethernet: bool) -> Vec<u8> {
    let (kind, inner) = match has_ethernet {
        true => ([0x65, 0x58], inner),
        false => ([8, 0], &inner[14..]),
    };
    let mut bytes = vec![2, 0, 0, 0, 9, 1, 2, 0, 0, 0, 9, 2, 8, 0, 0x45, 0];
    bytes.extend((24 + inner.len() as u16).to_be_bytes());
    bytes.extend([
        0, 0, 0, 0, 64, 47, 0, 0, 198, 51, 100, 1, 198, 51, 100, 2, 0, 0,
    ]);
    bytes.extend(kind);
    bytes.extend(inner);
    bytes
}

/// Runs a cluster over packets with a reader for each application; returns what they received.
fn received(
    packets: &[Timed],
    batch_max: usize,
    applications: Vec<Application>,
) -> (Vec<Vec<Vec<u8>>>, Outcome) {
    let input = input_of(packets.iter().cloned());
    let mut setup = setup(&input, &[]);
    setup.applications = applications;
    setup.options.batch_max = batch_max;
    let names = setup.applications.iter().map(|it| it.name.clone());
    let names: Vec<String> = names.collect();
    let opened = open(&setup).unwrap();
    let readers = names.into_iter().map(|name| {
        let path = opened.path().to_owned();
        thread::spawn(move || {
            let request = Request::Application(name);
            let (mut peer, _) = connect(&path, Access::Read, &request).unwrap();
            let mut packets = Vec::new();
            while peer.wait(Duration::from_secs(60)).unwrap() != Ready::End {
                while let Some(frame) = peer.take() {
                    let bytes = peer.pool().bytes(&frame).to_vec();
                    assert_eq!(peer.pool().descriptor(&frame).wire_len, bytes.len() as u32);
                    packets.push(bytes);
                    peer.give(frame).unwrap();
                }
            }
            packets
        })
    });
    let readers: Vec<_> = readers.collect();
    let outcome = run(opened, &Options::default(), &Stop::new(), |_| {});
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(outcome.imbalance(), 0);
    let readers = readers.into_iter();
    (readers.map(|it| it.join().unwrap()).collect(), outcome)
}

fn with(name: &str, cleanup: Cleanup) -> Application {
    Application {
        cleanup,
        ..Application::new(name, 1)
    }
}

/// A packet, and its time in microseconds.
type Timed = (u32, Vec<u8>);

/// Packets of 50 flows, some received twice, some in a tunnel, and what is expected of an
/// application that removes copies, hands over 2000 bytes of each flow, and no tunnel headers.
fn traffic(seed: u64) -> (Vec<Timed>, Vec<Vec<u8>>) {
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(seed | 1);
        (state >> 33) % below
    };
    let (mut packets, mut expected) = (Vec::new(), Vec::new());
    let mut bytes_of: HashMap<u32, usize> = HashMap::new();
    let mut known = HashSet::new();
    for at in 0..3000_u32 {
        let number = random(100) as u32;
        let inside = datagram(number, random(400) as u16, random(3) as u16);
        let bytes = match random(4) {
            0 => in_gre(&inside, true),
            1 => in_gre(&inside, false),
            _ => inside.clone(),
        };
        let handed = match &bytes[23] {
            // The MAC addresses of the outer header.
            47 if bytes[36..38] == [8, 0] => [&bytes[..12], &inside[12..]].concat(),
            _ => inside.clone(),
        };
        // All are within the window.
        if known.insert(inside[14..].to_vec()) {
            let sum = bytes_of.entry(number % 50).or_default();
            if *sum < 2048 {
                expected.push(handed);
            }
            *sum += bytes.len();
        }
        packets.push((at, bytes));
    }
    (packets, expected)
}

/// However the packets are grouped into batches, an application that wants them cleaned up receives
/// the same ones, another one all of them as they were received.
#[test]
fn the_same_packets_are_left_out_at_each_batch_size() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    let cleanup = Cleanup {
        shunt: Some(ShuntLimits::parse("2k").unwrap()),
        deduplicate: Some(Duration::from_millis(10)),
        detunnel: Some(Detunnel::Tunnels),
    };
    for seed in 0..3 {
        let (packets, expected) = traffic(seed);
        let original: Vec<&Vec<u8>> = packets.iter().map(|(_, bytes)| bytes).collect();
        let mut counts = HashSet::new();
        for batch_max in [1, 7, 64, 256] {
            let applications = vec![with("ids", cleanup.clone()), Application::new("flows", 1)];
            let (seen, outcome) = received(&packets, batch_max, applications);
            assert_eq!(seen[0], expected, "seed {seed}, batches of {batch_max}");
            assert!(seen[1].iter().eq(original.iter().copied()));
            let [ids, flows] = outcome.applications.as_slice() else {
                panic!("two applications");
            };
            assert_eq!(flows.counts, ApplicationCounts::default());
            assert!(ids.counts.duplicates > 0 && ids.counts.shunted > 0);
            assert!(ids.counts.detunnelled > 0);
            // The frames are the other application's as well.
            assert_eq!(ids.counts.copied, ids.counts.detunnelled);
            // Others depend on how full the table is, whose hash has a random key.
            let ApplicationCounts {
                duplicates,
                shunted,
                detunnelled,
                ..
            } = ids.counts;
            counts.insert((duplicates, shunted, detunnelled));
            // Alone, it receives them without a copy.
            let (seen, outcome) = received(&packets, batch_max, vec![with("ids", cleanup.clone())]);
            assert_eq!(seen[0], expected);
            let alone = outcome.applications[0].counts;
            assert_eq!(alone.copied, 0);
            assert_eq!(alone.detunnelled, ids.counts.detunnelled);
        }
        assert_eq!(counts.len(), 1, "{counts:?}");
    }
}

/// Packets of one inner flow are in one queue, whatever is around them.
#[test]
fn packets_without_tunnels_are_balanced_by_what_is_inside() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    let inside = (0..200).map(|number| datagram(number, 20, number as u16));
    let packets: Vec<Timed> = inside
        .enumerate()
        .map(|(at, bytes)| (at as u32, in_gre(&bytes, at % 2 == 0)))
        .collect();
    let cleanup = Cleanup {
        detunnel: Some(Detunnel::Tags),
        ..Cleanup::default()
    };
    let input = input_of(packets);
    let mut setup = setup(&input, &[("plain", 4), ("inner", 4)]);
    setup.applications[1].cleanup = cleanup;
    for application in &mut setup.applications {
        application.when_full = Some(WhenFull::Drop);
    }
    setup.ring_len = 256;
    let outcome = run(
        open(&setup).unwrap(),
        &Options::default(),
        &Stop::new(),
        |_| {},
    );
    let handed = handed(&outcome);
    assert_eq!(handed[..4].iter().filter(|count| **count != 0).count(), 1);
    assert!(handed[4..].iter().all(|count| *count != 0), "{handed:?}");
    assert_eq!(outcome.imbalance(), 0);
}

/// Reads a queue to its end; returns the packets of one frame, and how many had several, which
/// this way of reading refuses.
fn read_short(path: PathBuf, name: String) -> (Vec<Vec<u8>>, u64) {
    let (mut peer, _) = connect(&path, Access::Read, &Request::Application(name)).unwrap();
    let mut packets = Vec::new();
    while peer.wait(Duration::from_secs(60)).unwrap() != Ready::End {
        while let Some(frame) = peer.take() {
            packets.push(peer.pool().bytes(&frame).to_vec());
            peer.give(frame).unwrap();
        }
    }
    (packets, peer.refused())
}

/// Packets of several frames are compared over all of them, and others than IP as a whole.
#[test]
fn copies_of_long_packets_and_of_others_than_ip_are_left_out() {
    if let Err(error) = ring::shared::directory() {
        skip::skip!("no directory for sockets: {error}");
    }
    let long = datagram(1, 9000, 1);
    let mut routed = long.clone();
    (routed[22], routed[24]) = (63, 9);
    let mut other = long.clone();
    *other.last_mut().unwrap() ^= 1;
    let mut arp = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6];
    arp.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1]);
    arp.extend([0, 0, 0, 0, 0, 0, 192, 0, 2, 2]);
    let mut tagged = arp.clone();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    tagged.resize(64, 0);
    let mut asks_for_another = arp.clone();
    asks_for_another[41] = 3;
    let expected = [&arp, &asks_for_another].map(Vec::clone);
    let short = [&arp, &tagged, &asks_for_another, &arp].map(Vec::clone);
    let all = [
        long,
        routed,
        other.clone(),
        arp.clone(),
        tagged,
        asks_for_another,
        other,
        arp,
    ];
    let input = input_of((0..).zip(all));
    let mut setup = setup(&input, &[]);
    let cleanup = Cleanup {
        deduplicate: Some(DEDUPLICATE_DEFAULT),
        ..Cleanup::default()
    };
    setup.applications = vec![with("once", cleanup), with("all", Cleanup::default())];
    let opened = open(&setup).unwrap();
    let readers = ["once", "all"].map(|name| {
        let path = opened.path().to_owned();
        thread::spawn(move || read_short(path, name.to_owned()))
    });
    let outcome = run(opened, &Options::default(), &Stop::new(), |_| {});
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(outcome.imbalance(), 0);
    let [once, every] = readers.map(|reader| reader.join().unwrap());
    assert!(
        every.0 == short,
        "the other application receives everything"
    );
    assert!(once.0 == expected, "{} packets", once.0.len());
    // Of four long packets, two are copies.
    assert_eq!((once.1, every.1), (2, 4));
    assert_eq!(outcome.applications[0].counts.duplicates, 4);
}
