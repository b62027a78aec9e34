//! Datagrams of given parts.

use super::*;

const HEAD: [u8; 20] = [
    0x46, 0, 0, 0, 0, 7, 0x20, 0, 64, 47, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
];

fn part(bytes: &[u8], from: usize, len: usize, kind: Fragment) -> Part<'_> {
    Part {
        from,
        len,
        bytes,
        kind,
        head: &HEAD,
        protocol: 47,
        before: 38,
        depth: 1,
    }
}

fn taken(assemblies: &mut Assemblies, at: usize) -> (Vec<u8>, Whole) {
    let mut slot = [0; SLOT_LEN];
    let whole = assemblies.take(at, &mut slot);
    (slot[whole.from..whole.to].to_vec(), whole)
}

#[test]
fn parts_in_any_order_make_the_whole() {
    let bytes: Vec<u8> = (0..50).collect();
    let parts = [
        (0, 16, Fragment::First),
        (16, 16, Fragment::Middle),
        (32, 18, Fragment::Last),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let mut assemblies = Assemblies::new(8);
        for (nth, index) in order.into_iter().enumerate() {
            let (from, len, kind) = parts[index];
            let added = assemblies.add(3, &part(&bytes[from..from + len], from, len, kind));
            let expected = [Added::Incomplete, Added::Incomplete, Added::Whole][nth];
            assert_eq!(added, expected);
        }
        let (packet, whole) = taken(&mut assemblies, 3);
        assert_eq!(packet[20..], bytes);
        // A header without options, of the whole datagram.
        assert_eq!(packet[..10], [0x45, 0, 0, 70, 0, 7, 0, 0, 64, 47]);
        assert_eq!((whole.wire_len, whole.packet_len, whole.depth), (70, 88, 1));
    }
}

#[test]
fn what_the_capture_or_the_slot_lacks_is_cut() {
    let mut assemblies = Assemblies::new(1);
    let bytes = [7; 4000];
    assemblies.add(0, &part(&bytes[..100], 0, 1480, Fragment::First));
    let added = assemblies.add(0, &part(&bytes[..520], 1480, 520, Fragment::Last));
    assert_eq!(added, Added::Whole);
    let (packet, whole) = taken(&mut assemblies, 0);
    assert_eq!((packet.len(), whole.wire_len), (120, 2020));
    // Longer than a slot.
    assemblies.add(0, &part(&bytes, 0, 4000, Fragment::First));
    let added = assemblies.add(0, &part(&bytes, 4000, 4000, Fragment::Last));
    assert_eq!(added, Added::Whole);
    let (packet, whole) = taken(&mut assemblies, 0);
    assert_eq!((packet.len(), whole.wire_len), (20 + KEPT_LEN, 8020));
}

#[test]
fn the_longest_datagram_is_put_together_and_a_longer_one_is_not() {
    let bytes = [0; 65_528];
    for (last, expected) in [
        (65_515 - 65_000, Added::Whole),
        (65_516 - 65_000, Added::Damaged),
    ] {
        let mut assemblies = Assemblies::new(1);
        assemblies.add(0, &part(&bytes, 0, 65_000, Fragment::First));
        let added = assemblies.add(0, &part(&bytes, 65_000, last, Fragment::Last));
        assert_eq!(added, expected);
    }
}

#[test]
fn contradictions_damage_a_datagram() {
    let bytes: Vec<u8> = (0..64).collect();
    let first = part(&bytes[..16], 0, 16, Fragment::First);
    let last = part(&bytes[..16], 32, 16, Fragment::Last);
    for wrong in [
        part(&bytes[1..17], 0, 16, Fragment::First),
        part(&bytes[8..24], 8, 16, Fragment::Middle),
        part(&bytes[..7], 16, 7, Fragment::Middle),
        part(&bytes[..16], 48, 16, Fragment::Middle),
        part(&bytes[..24], 32, 24, Fragment::Last),
    ] {
        let mut assemblies = Assemblies::new(1);
        assert_eq!(assemblies.add(0, &first), Added::Incomplete);
        assert_eq!(assemblies.add(0, &last), Added::Incomplete);
        assert_eq!(assemblies.add(0, &first), Added::Incomplete, "a copy");
        assert_eq!(assemblies.add(0, &wrong), Added::Damaged);
        let middle = part(&bytes[16..32], 16, 16, Fragment::Middle);
        assert_eq!(assemblies.add(0, &middle), Added::Damaged);
        assemblies.clear(0);
        for (part, expected) in [
            (&first, Added::Incomplete),
            (&middle, Added::Incomplete),
            (&last, Added::Whole),
        ] {
            assert_eq!(assemblies.add(0, part), expected);
        }
    }
}
