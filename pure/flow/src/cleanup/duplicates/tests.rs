//! Copies of packets, compared with a map of whole packets.

use std::collections::HashMap;

use wire::LinkType;

use super::*;

const MS: u64 = 1_000_000;

/// An IPv4 or IPv6 datagram with UDP in an Ethernet packet, with a trailer.
fn packet(version: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len() as u16;
    let mut out = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if version == 4 {
        out.extend([8, 0, 0x45, 0]);
        out.extend((20 + len).to_be_bytes());
        out.extend(id.to_be_bytes());
        out.extend([0x40, 0, 64, 17, 0xab, 0xcd, 192, 0, 2, 1, 192, 0, 2, 2]);
    } else {
        out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        out.extend(len.to_be_bytes());
        out.extend([17, 64]);
        out.extend([0x20; 32]);
    }
    out.extend([0x10, 0, 0, 53]);
    out.extend(len.to_be_bytes());
    out.extend([0, 0]);
    out.extend(payload);
    out.extend([0; 9]);
    out
}

fn is_copy(table: &mut Duplicates, packet: &[u8], time_ns: u64) -> bool {
    let mut level = Dissection::EMPTY;
    wire::dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut level);
    table.is_copy(packet, iter::empty(), &level, time_ns)
}

fn table() -> Duplicates {
    Duplicates::new(HashKey::from_seed(7), 10 * MS)
}

#[test]
fn what_routers_change_does_not_count_and_every_other_bit_does() {
    for version in [4, 6] {
        let first = packet(version, 7, &[0x5a; 77]);
        let end = first.len() - 9;
        let ignored = |at: usize| match version {
            4 => at < 14 || matches!(at, 22 | 24 | 25) || at >= end,
            _ => at < 14 || at == 21 || at >= end,
        };
        // Not the EtherType, the version, or the length of the datagram: other packets altogether.
        let lens = if version == 4 { 14..18 } else { 12..20 };
        for at in (0..first.len()).filter(|at| !lens.contains(at) && !(12..14).contains(at)) {
            for bit in 0..8 {
                let mut table = table();
                assert!(!is_copy(&mut table, &first, 0));
                let mut other = first.clone();
                other[at] ^= 1 << bit;
                let found = is_copy(&mut table, &other, MS);
                assert_eq!(
                    found,
                    ignored(at),
                    "version {version}, byte {at}, bit {bit}"
                );
            }
        }
        // A tag more.
        let mut tagged = first.clone();
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        let mut table = table();
        assert!(!is_copy(&mut table, &first, 0));
        assert!(is_copy(&mut table, &tagged, MS));
    }
}

#[test]
fn only_the_window_has_copies_and_truncated_packets_are_none() {
    let mut table = table();
    let one = packet(4, 7, b"data");
    let answers = [0, 1, 10, 11, 21, 22, 5].map(|ms| is_copy(&mut table, &one, 100 * MS + ms * MS));
    // The window is that of the first one.
    assert_eq!(answers, [false, true, true, false, true, false, false]);
    // A retransmission has another identification.
    assert!(!is_copy(&mut table, &packet(4, 8, b"data"), 122 * MS));
    let cut = &one[..44];
    assert!(!is_copy(&mut table, cut, 0) && !is_copy(&mut table, cut, 0));
}

/// Packets without an IP header: every bit counts, except tags and padding.
#[test]
fn packets_without_ip_are_copies_of_equal_ones() {
    let mut arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4]].concat();
    arp.extend([
        0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2,
    ]);
    for at in 0..arp.len() {
        for bit in 0..8 {
            let mut table = table();
            assert!(!is_copy(&mut table, &arp, 0) && is_copy(&mut table, &arp, MS));
            let mut other = arp.clone();
            other[at] ^= 1 << bit;
            // Bytes 12 and 13 are then the type of something else.
            assert!(!is_copy(&mut table, &other, MS), "byte {at}, bit {bit}");
        }
    }
    let mut table = table();
    assert!(!is_copy(&mut table, &arp, 0));
    let mut tagged = arp.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    assert!(is_copy(&mut table, &tagged, MS), "a tag");
    for other in [arp.clone(), tagged] {
        let mut padded = other;
        padded.resize(64, 0);
        assert!(is_copy(&mut table, &padded, MS), "padding");
    }
    // Truncated by the capture.
    let mut level = Dissection::EMPTY;
    wire::dissect(LinkType::ETHERNET, &arp, 60, &mut level);
    assert!(!table.is_copy(&arp, iter::empty(), &level, MS));
    // Nothing that is too short is a packet.
    for len in 0..16 {
        assert!(!is_copy(&mut table, &arp[..len], 0) && !is_copy(&mut table, &arp[..len], 0));
    }
}

/// Long packets in one piece or in several, wherever these are divided.
#[test]
fn packets_in_several_pieces_are_copies_of_those_in_one() {
    let mut random = 1_u64;
    let mut below = |max: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % max
    };
    let mut compared = 0;
    for round in 0..2000 {
        let mut whole = packet(if round % 3 == 0 { 6 } else { 4 }, round, &[]);
        whole.truncate(whole.len() - 9);
        let more = below(9000);
        whole.extend((0..more).map(|at| (at * 7 + usize::from(round)) as u8));
        let len = (whole.len() - 14) as u16;
        match whole[14] >> 4 {
            4 => whole[16..18].copy_from_slice(&len.to_be_bytes()),
            _ => whole[18..20].copy_from_slice(&(len - 40).to_be_bytes()),
        }
        if round % 5 == 0 {
            // Not IP.
            whole[12..14].copy_from_slice(&[0x88, 0xb5]);
        }
        let mut level = Dissection::EMPTY;
        // The headers are in the first piece.
        let first = 62 + below(3000);
        let first = first.min(whole.len());
        let (start, mut left) = whole.split_at(first);
        wire::dissect(LinkType::ETHERNET, start, whole.len() as u32, &mut level);
        let mut rest = Vec::new();
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(below(2048)));
            rest.push(now);
            left = later;
        }
        let mut table = table();
        assert!(!is_copy(&mut table, &whole, 0));
        let pieces = rest.iter().copied();
        assert!(
            table.is_copy(start, pieces.clone(), &level, MS),
            "round {round}"
        );
        compared += usize::from(rest.len() > 1);
        // Without the last byte, and with another one.
        if let Some(last) = rest.last().filter(|last| !last.is_empty()) {
            let before = rest[..rest.len() - 1].iter().copied();
            let cut = &last[..last.len() - 1];
            let cut = before.clone().chain(iter::once(cut));
            assert!(!table.is_copy(start, cut, &level, MS), "round {round}");
            let mut other = last.to_vec();
            *other.last_mut().unwrap() ^= 1;
            let other = before.chain(iter::once(other.as_slice()));
            assert!(!table.is_copy(start, other, &level, MS), "round {round}");
        }
    }
    assert!(compared > 500, "{compared}");
}

/// Random packets of few kinds, compared with a map of the whole packets.
#[test]
fn the_table_agrees_with_a_map_of_whole_packets() {
    for seed in 0..20_u64 {
        let mut table = Duplicates::new(HashKey::from_seed(seed), 10 * MS);
        let mut map: HashMap<(u16, usize), u64> = HashMap::new();
        let (mut random, mut now) = (seed, 0);
        for _ in 0..3000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(seed | 1);
            let (id, len) = ((random >> 40) as u16 % 40, (random >> 56) as usize % 70);
            now += random >> 20 & 0x7ffff;
            let found = is_copy(&mut table, &packet(4, id, &vec![1; len]), now);
            let first = map.get(&(id, len)).copied();
            let expected = first.is_some_and(|first| now - first <= 10 * MS);
            assert_eq!(found, expected, "seed {seed}");
            if !expected {
                map.insert((id, len), now);
            }
        }
    }
}

#[test]
fn a_full_table_forgets_the_oldest_and_finds_no_copy_that_is_none() {
    let mut table = table();
    for number in 0..3 * PACKET_COUNT as u32 {
        assert!(!is_copy(
            &mut table,
            &packet(4, 0, &number.to_be_bytes()),
            number.into()
        ));
    }
    let last = 3 * PACKET_COUNT as u32 - 1;
    assert!(is_copy(
        &mut table,
        &packet(4, 0, &last.to_be_bytes()),
        u64::from(last)
    ));
}
