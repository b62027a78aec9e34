//! Tests: packets come out of the bundles unchanged, in timestamp order.

use port::file::{FileWriter, WriterOptions};

use super::*;

/// A pseudorandom number generator by Steele, Lea and Flood (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}

/// Bundles with packets as received.
const PLAIN: Filling = Filling {
    contents: Contents::Packets,
    knows_way: true,
    linger: Duration::ZERO,
    unbuffered: false,
};

/// Puts a packet of this queue, whose length and bytes follow from its time.
fn put(inlet: &mut Inlet, interface: u16, time_ns: u64, stamp_ms: u32) -> bool {
    let bytes = bytes_of(time_ns);
    let meta = Record {
        time_ns,
        wire_len: bytes.len() as u32 + 2,
        interface: interface.into(),
        outgoing: Some(time_ns % 2 == 1),
        vlan: (time_ns % 4 >= 2).then_some(Vlan {
            tpid: 0x8100,
            tci: time_ns as u16,
        }),
    };
    match time_ns % 3 {
        0 => inlet.put_bytes(meta, bytes.len(), stamp_ms, std::iter::once(&bytes[..])),
        // Segments of a packet.
        _ => inlet.put_bytes(meta, bytes.len(), stamp_ms, bytes.chunks(50)),
    }
}

fn bytes_of(time_ns: u64) -> Vec<u8> {
    (0..time_ns * 37 % 331)
        .map(|at| (at + time_ns) as u8)
        .collect()
}

fn check(given: &Given<'_>) -> (u16, u64) {
    let held = given.held();
    let bytes = bytes_of(held.time_ns);
    assert_eq!(held.bytes, bytes);
    assert_eq!(held.cap_len as usize, bytes.len());
    assert_eq!(held.wire_len as usize, bytes.len() + 2);
    assert_eq!(held.outgoing, Some(held.time_ns % 2 == 1));
    let vlan = Vlan {
        tpid: 0x8100,
        tci: held.time_ns as u16,
    };
    assert_eq!(held.vlan, (held.time_ns % 4 >= 2).then_some(vlan));
    (held.interface, held.time_ns)
}

#[test]
fn packets_are_returned_in_timestamp_order() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let count = 1 + random.below(4) as usize;
        let bell = Arc::default();
        let (inlets, mut merge) = ends_of(count, &bell, PLAIN, 1024);
        let mut inlets: Vec<Option<Inlet>> = inlets.into_iter().map(Some).collect();
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        let mut time_ns = 0;
        for _ in 0..300 {
            match random.below(8) {
                0 => inlets.iter_mut().flatten().for_each(|inlet| inlet.idle(0)),
                1 => {
                    while let Next::Packet(held) = merge.next(0) {
                        found.push(check(&held));
                    }
                }
                _ => {
                    let index = random.below(count as u64) as usize;
                    let inlet = inlets[index].as_mut().unwrap();
                    time_ns += random.below(3);
                    if put(inlet, index as u16, time_ns, 0) {
                        expected.push((index as u16, time_ns));
                    }
                }
            }
        }
        inlets.clear();
        while let Next::Packet(held) = merge.next(0) {
            found.push(check(&held));
        }
        assert!(matches!(merge.next(0), Next::End), "seed {seed}");
        let times: Vec<u64> = found.iter().map(|(_, time)| *time).collect();
        let turned = times.windows(2).filter(|pair| pair[0] > pair[1]).count();
        // Out of order only if half of the bundles waited; then it is counted.
        assert!(
            turned as u64 <= merge.late,
            "seed {seed}: {turned} of {}",
            merge.late
        );
        expected.sort();
        found.sort();
        assert!(found == expected, "seed {seed}");
    }
}

#[test]
fn the_merge_waits_for_older_packets_of_other_queues() {
    let bell = Arc::default();
    let (mut inlets, mut merge) = ends_of(2, &bell, PLAIN, 1024);
    assert!(put(&mut inlets[0], 0, 20, 1000));
    assert!(
        matches!(merge.next(1000), Next::Wait),
        "it was not handed over"
    );
    inlets[0].idle(1000);
    assert!(matches!(merge.next(1000 + WINDOW_MS - 1), Next::Wait));
    // The clock of the other thread may be ahead.
    assert!(matches!(merge.next(999), Next::Wait));
    assert!(put(&mut inlets[1], 1, 10, 1050));
    inlets[1].idle(1050);
    let Next::Packet(held) = merge.next(1050) else {
        panic!("both are there")
    };
    assert_eq!(check(&held), (1, 10));
    assert!(matches!(merge.next(1050), Next::Wait));
    let Next::Packet(held) = merge.next(1000 + WINDOW_MS) else {
        panic!("it waited")
    };
    assert_eq!(check(&held), (0, 20));
    // Too late: still written, and counted.
    assert!(put(&mut inlets[1], 1, 15, 1100));
    inlets.clear();
    let Next::Packet(held) = merge.next(1100) else {
        panic!("no receiver is left")
    };
    assert_eq!((check(&held), merge.late), ((1, 15), 1));
    assert!(matches!(merge.next(1100), Next::End));
}

#[test]
fn the_merge_does_not_wait_once_half_of_the_bundles_are_full() {
    let bell = Arc::default();
    // Room for one empty packet.
    let (mut inlets, mut merge) = ends_of(2, &bell, PLAIN, EXTRA_MAX);
    let mut count = 0;
    while put(&mut inlets[0], 0, 0, 0) {
        count += 1;
    }
    let mut taken = 0;
    while let Next::Packet(_) = merge.next(0) {
        taken += 1;
    }
    assert_eq!((count, taken), (BUNDLE_COUNT, BUNDLE_COUNT / 2 + 1));
    // Returned bundles are filled again.
    assert!(put(&mut inlets[0], 0, 0, 0));
}

/// Records written unchanged wait for a full bundle, up to the limit.
#[test]
fn records_wait_for_a_full_bundle() {
    let options = WriterOptions::new("/dev/null");
    let encoder = FileWriter::create(options).unwrap().encoder();
    let filling = Filling {
        contents: Contents::Records(encoder),
        linger: Duration::from_millis(1000),
        ..PLAIN
    };
    let bell = Arc::default();
    for (filling, waits) in [
        (filling, true),
        (
            Filling {
                unbuffered: true,
                ..filling
            },
            false,
        ),
    ] {
        let (mut inlets, mut merge) = ends(1, &bell, filling);
        let packet = [7; 60];
        let meta = Record {
            wire_len: 64,
            ..Record::default()
        };
        let give = |inlet: &mut Inlet, meta: &Record| {
            assert!(inlet.put_bytes(*meta, packet.len(), 5000, std::iter::once(&packet[..])));
        };
        give(&mut inlets[0], &meta);
        inlets[0].batch_ended(5999);
        inlets[0].idle(5999);
        assert_eq!(matches!(merge.next(5999), Next::Wait), waits);
        inlets[0].idle(6000);
        if waits {
            let Next::Bundle(bundle) = merge.next(6000) else {
                panic!("it waited long enough")
            };
            assert_eq!((bundle.packets, bundle.cap_bytes), (1, 60));
        }
        // The file learns of an interface before its first packet.
        give(&mut inlets[0], &meta);
        give(
            &mut inlets[0],
            &Record {
                interface: 3,
                ..meta
            },
        );
        give(&mut inlets[0], &meta);
        inlets.clear();
        for expected in [(0, 1), (3, 2)] {
            let Next::Bundle(bundle) = merge.next(0) else {
                panic!("a bundle for each")
            };
            assert_eq!((bundle.interface, bundle.packets), expected);
        }
        assert!(matches!(merge.next(0), Next::End));
    }
}
