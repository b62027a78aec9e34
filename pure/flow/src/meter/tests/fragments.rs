//! Fragments in any order, without a first one, and more than fit.

use super::*;

/// Three fragments of a datagram from port 9 to port 7, with `id` in the first byte of the second
/// address.
fn pieces(id: u16) -> [Vec<u8>; 3] {
    let whole = udp(9, 7, 1592);
    [
        ipv4(1, 2, 17, id, MF, &whole[..800]),
        ipv4(1, 2, 17, id, MF | 100, &whole[800..1200]),
        ipv4(1, 2, 17, id, 150, &whole[1200..]),
    ]
}

#[test]
fn fragments_count_in_their_flow_in_any_order() {
    let [a, b, c] = pieces(7);
    let answer = ipv4(2, 1, 17, 1, 0, &udp(7, 9, 10));
    for order in [
        [&a, &b, &c],
        [&a, &c, &b],
        [&b, &a, &c],
        [&b, &c, &a],
        [&c, &a, &b],
        [&c, &b, &a],
    ] {
        let mut packets: Vec<Vec<u8>> = order.into_iter().cloned().collect();
        packets.push(answer.clone());
        let (records, stats) = records(&config(), &packets);
        assert_eq!(records.len(), 1, "{records:?}");
        let (forward, reverse) = (records[0].forward(), records[0].reverse());
        assert_eq!((forward.packets, reverse.packets), (3, 1));
        assert_eq!(forward.bytes, 3 * 20 + 1600);
        assert_eq!(forward.payload_bytes, 1592);
        assert_eq!(records[0].key().port(records[0].initiator()), 9);
        assert_eq!(stats.fragments.first, 1);
        assert_eq!(stats.fragments.followed + stats.fragments.joined, 2);
        assert_eq!(stats.fragments.orphans, 0);
    }
}

#[test]
fn fragments_without_a_first_are_orphans() {
    let [_, b, c] = pieces(7);
    let mut meter = Meter::new(&config()).unwrap();
    let mut ended = Vec::new();
    let mut sink = |record: &Record, _| ended.push(*record);
    meter.observe(&input(&b, S), &mut sink);
    meter.observe(&input(&c, S), &mut sink);
    assert_eq!(meter.stats().fragments.held, 2);
    // Too late: another datagram may have the number by now.
    let [a, ..] = pieces(7);
    meter.observe(&input(&a, 32 * S), &mut sink);
    assert_eq!(meter.stats().fragments.orphans, 2);
    assert_eq!(meter.stats().imbalance(), 0);
    meter.finish(&mut sink);
    ended.sort_by_key(Record::packets);
    let ports: Vec<(u64, u16)> = ended
        .iter()
        .map(|r| (r.packets(), r.key().port(r.initiator())))
        .collect();
    assert_eq!(ports, [(1, 9), (2, 0)]);
    // Without a first one in sight the hold ends by time.
    let mut orphans = 0;
    meter.observe(&input(&b, 100 * S), &mut |_: &Record, _| {});
    meter.tick(131 * S, &mut |_: &Record, _| {});
    assert_eq!(meter.stats().fragments.held, 0);
    meter.finish(&mut |record: &Record, _| orphans += record.packets());
    assert_eq!(orphans, 1);
}

#[test]
fn excess_datagrams_lose_ports_not_packets() {
    let mut few = config();
    few.datagram_count_max = 16;
    let mut packets = Vec::new();
    for piece in [2, 1, 0] {
        packets.extend((0..200).map(|id| pieces(id)[piece].clone()));
    }
    let (records, stats) = records(&few, &packets);
    assert!(stats.fragments.orphans > 300 && stats.fragments.evicted > 300);
    assert_eq!(records.iter().map(Record::packets).sum::<u64>(), 600);
    assert_eq!(
        records.iter().map(Record::bytes).sum::<u64>(),
        200 * (60 + 1600)
    );
}

#[test]
fn a_datagram_of_thousands_of_fragments_in_reverse_order_is_one_flow() {
    let whole = udp(9, 7, 47_992);
    for (seed, batch_len) in [(1, 1), (2, 7), (3, 64), (4, 10_000)] {
        let mut config = config();
        config.hash_key = HashKey::from_seed(seed);
        let mut meter = Meter::new(&config).unwrap();
        let mut ended = Vec::new();
        let mut sink = |record: &Record, _| ended.push(*record);
        for (at, unit) in (0..6000_u16).rev().enumerate() {
            let from = usize::from(unit) * 8;
            let more = if unit == 5999 { 0 } else { MF };
            let bytes = ipv4(1, 2, 17, 1, more | unit, &whole[from..from + 8]);
            meter.observe(&input(&bytes, 1000 * S + at as u64 * 1000), &mut sink);
            if at % batch_len == 0 {
                meter.flush(&mut sink);
            }
        }
        meter.finish(&mut sink);
        assert_eq!(meter.stats().fragments.joined, 5999);
        assert_eq!(ended.len(), 1);
        assert_eq!((ended[0].packets(), ended[0].has_orphans()), (6000, false));
    }
}

#[test]
fn handling_of_fragments_depends_neither_on_batches_nor_on_the_secret() {
    // Datagrams without a first fragment, reversed ones and whole packets, seconds apart; more of
    // them than there are places.
    let mut packets: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut random = 4711_u64;
    for id in 0..400_u16 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let time_ns = 1000 * S + u64::from(id) * S / 4;
        let [a, b, c] = pieces(id);
        packets.push((time_ns, c));
        match random >> 60 {
            0..6 => packets.push((time_ns + (random >> 32) % (20 * S), a)),
            6..9 => packets.push((time_ns + 1, b)),
            9 => packets.push((time_ns, ipv4(3, 4, 17, 1, 0, &udp(1, 2, 3)))),
            _ => {}
        }
    }
    packets.sort_by_key(|(time_ns, _)| *time_ns);
    let run = |seed: u64, batch_len: usize| {
        let mut config = config();
        config.datagram_count_max = 64;
        config.hash_key = HashKey::from_seed(seed);
        let mut meter = Meter::new(&config).unwrap();
        let mut ended = Vec::new();
        let mut sink = |record: &Record, reason| {
            ended.push(format!("{record:?} {} {reason:?}", record.start_ns()));
        };
        for (at, (time_ns, bytes)) in packets.iter().enumerate() {
            meter.observe(&input(bytes, *time_ns), &mut sink);
            if at % batch_len == 0 {
                meter.flush(&mut sink);
            }
        }
        meter.finish(&mut sink);
        ended.sort_unstable();
        (ended, meter.stats().fragments)
    };
    let (expected, stats) = run(0, 1);
    assert!(
        stats.orphans > 50 && stats.joined > 50 && stats.evicted > 0,
        "{stats:?}"
    );
    for seed in 0..25 {
        for batch_len in [1, 2, 7, 64, 256] {
            assert!(
                run(seed, batch_len) == (expected.clone(), stats),
                "{seed} {batch_len}"
            );
        }
    }
}

#[test]
fn overlapping_fragments_are_only_counted() {
    let first = ipv4(1, 2, 17, 7, MF, &udp(5, 6, 24));
    let mut last = ipv4(1, 2, 17, 7, 4, &[0; 40]);
    let (records, stats) = records(&config(), &[first.clone(), last.clone()]);
    assert_eq!((records.len(), stats.fragments.overlaps), (1, 0));
    assert_eq!(records[0].forward().fragments, 2);
    // Offset 24 instead of 32: eight bytes come twice.
    last[21] = 3;
    let overlapping = [first.clone(), last.clone(), first.clone()];
    let (records, stats) = super::tests::records(&config(), &overlapping);
    assert_eq!((records.len(), stats.fragments.overlaps), (1, 2));
    assert_eq!(records[0].packets(), 3);
    // Before the first one as well.
    let (records, stats) = super::tests::records(&config(), &[last, first]);
    assert_eq!((records.len(), stats.fragments.overlaps), (1, 1));
}

#[test]
fn orphans_are_marked() {
    let later = ipv4(1, 2, 17, 7, 4, &[0; 40]);
    let (records, stats) = records(&config(), &[later]);
    assert!(records[0].has_orphans());
    assert_eq!(
        (stats.fragments.orphans, records[0].forward().fragments),
        (1, 1)
    );
}
