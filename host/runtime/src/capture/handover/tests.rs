//! Packets come out of the rings as they went in, in the order of their times.

use super::*;

/// Numbers of a generator by Steele, Lea and Flood (SplitMix64).
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

/// A packet of this queue: its length and bytes follow from its time.
fn put(inlet: &mut Inlet, interface: u16, time_ns: u64, stamp_ms: u32) -> bool {
    let bytes = bytes_of(time_ns);
    let head = Head {
        time_ns,
        stamp_ms,
        len: bytes.len() as u32,
        cap_len: bytes.len() as u32 + 1,
        wire_len: bytes.len() as u32 + 2,
        interface,
        flags: (time_ns % 4) as u16,
        tpid: 0x8100,
        tci: time_ns as u16,
    };
    if !inlet.begin(&head) {
        return false;
    }
    match time_ns % 3 {
        0 => inlet.write_whole(&bytes),
        // Segments of a packet.
        _ => inlet.write_segments(bytes.len(), bytes.chunks(50)),
    }
    true
}

fn bytes_of(time_ns: u64) -> Vec<u8> {
    (0..time_ns * 37 % 331)
        .map(|at| (at + time_ns) as u8)
        .collect()
}

fn check(held: &Held<'_>) -> (u16, u64) {
    let bytes = bytes_of(held.time_ns);
    assert_eq!(held.bytes, bytes);
    assert_eq!(held.cap_len as usize, bytes.len() + 1);
    assert_eq!(held.wire_len as usize, bytes.len() + 2);
    assert_eq!(held.outgoing, held.time_ns % 2 == 1);
    let vlan = Vlan {
        tpid: 0x8100,
        tci: held.time_ns as u16,
    };
    assert_eq!(held.vlan, (held.time_ns % 4 >= 2).then_some(vlan));
    (held.interface, held.time_ns)
}

#[test]
fn what_goes_in_comes_out_in_the_order_of_time() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let count = 1 + random.below(4) as usize;
        let bell = Arc::default();
        let (inlets, mut merge) = rings_of(count, &bell, 64);
        let mut inlets: Vec<Option<Inlet>> = inlets.into_iter().map(Some).collect();
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        let mut time_ns = 0;
        for _ in 0..300 {
            match random.below(8) {
                0 => inlets.iter_mut().flatten().for_each(Inlet::submit),
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
                    } else {
                        inlet.submit();
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
        // Out of order only where a ring was half full; and then it is counted.
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
fn older_packets_of_other_queues_are_waited_for() {
    let bell = Arc::default();
    let (mut inlets, mut merge) = rings_of(2, &bell, 1024);
    assert!(put(&mut inlets[0], 0, 20, 1000));
    assert!(
        matches!(merge.next(1000), Next::Wait),
        "it was not submitted"
    );
    inlets[0].submit();
    assert!(matches!(merge.next(1000 + WINDOW_MS - 1), Next::Wait));
    // The clock of the other thread may be ahead.
    assert!(matches!(merge.next(999), Next::Wait));
    assert!(put(&mut inlets[1], 1, 10, 1050));
    inlets[1].submit();
    let Next::Packet(held) = merge.next(1050) else {
        panic!("both are there")
    };
    assert_eq!(check(&held), (1, 10));
    assert!(matches!(merge.next(1050), Next::Wait));
    let Next::Packet(held) = merge.next(1000 + WINDOW_MS) else {
        panic!("it waited")
    };
    assert_eq!(check(&held), (0, 20));
    // Too late: written all the same, and counted.
    assert!(put(&mut inlets[1], 1, 15, 1100));
    inlets.clear();
    let Next::Packet(held) = merge.next(1100) else {
        panic!("nobody else is left")
    };
    assert_eq!((check(&held), merge.late), ((1, 15), 1));
    assert!(matches!(merge.next(1100), Next::End));
}

#[test]
fn a_ring_that_is_half_full_does_not_wait() {
    let bell = Arc::default();
    let (mut inlets, mut merge) = rings_of(2, &bell, 64);
    let mut count = 0;
    // Each takes one line.
    while put(&mut inlets[0], 0, 0, 0) {
        count += 1;
    }
    inlets[0].submit();
    let mut taken = 0;
    while let Next::Packet(_) = merge.next(0) {
        taken += 1;
    }
    assert_eq!((count, taken), (64, 33));
}
