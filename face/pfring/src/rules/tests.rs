//! Rules as programs write them, against packets.

use super::layout::{self, HASH_LEN, WILDCARD_LEN};
use super::{Action, Flow, Link, Rules, Seen, Table};
use crate::status::{GENERIC, INVALID_ARGUMENT, NO_MEMORY, NOT_SUPPORTED};

const SECOND_NS: u64 = 1_000_000_000;

/// An Ethernet packet of UDP: from 10.0.0.`host` and a port to the other pair.
fn packet(from: (u8, u16), to: (u8, u16), vlan: Option<u16>) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, to.0, 2, 0, 0, 0, 0, from.0];
    if let Some(vlan) = vlan {
        bytes.extend([0x81, 0, (vlan >> 8) as u8, vlan as u8]);
    }
    bytes.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    bytes.extend([10, 0, 0, from.0, 10, 0, 0, to.0]);
    bytes.extend([from.1.to_be_bytes(), to.1.to_be_bytes(), [0, 8], [0, 0]].concat());
    bytes
}

fn decide(table: &mut Table, bytes: &[u8], tag: Option<u16>, now_ns: u64) -> Action {
    let seen = Seen::new(1, bytes, bytes.len() as u32, tag);
    table.decide(&seen, &Link::new(1, bytes, 3), now_ns)
}

fn put(rule: &mut [u8], at: usize, bytes: &[u8]) {
    rule[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A hash rule for packets between 10.0.0.1, port 7, and 10.0.0.2, port 9.
fn hash_rule(vlan: u16, version: u8) -> [u8; HASH_LEN] {
    let mut rule = [0; HASH_LEN];
    put(&mut rule, 2, &vlan.to_ne_bytes());
    put(&mut rule, 4, &[version, 17]);
    put(&mut rule, 6, &0x0a00_0001_u32.to_ne_bytes());
    put(&mut rule, 22, &0x0a00_0002_u32.to_ne_bytes());
    put(&mut rule, 38, &7_u16.to_ne_bytes());
    put(&mut rule, 40, &9_u16.to_ne_bytes());
    put(&mut rule, 42, &1_u32.to_ne_bytes());
    rule
}

#[test]
fn a_hash_rule_matches_one_flow_in_both_directions() {
    let mut table = Table::new();
    assert!(table.is_idle());
    let rule = hash_rule(0, 4);
    let flow = layout::flow(&rule).unwrap();
    // The module of Snort names no IP version.
    assert_eq!(layout::flow(&hash_rule(0, 0)), Ok(flow));
    assert_eq!(layout::hash_action(&rule), Ok(Action::Drop));
    table.add(flow, Action::Drop, SECOND_NS).unwrap();
    let (one, other) = ((1, 7), (2, 9));
    for (from, to, vlan, expected) in [
        (one, other, None, Action::Drop),
        (other, one, None, Action::Drop),
        (one, (2, 10), None, Action::Pass),
        ((2, 7), (1, 9), None, Action::Pass),
        (one, other, Some(5), Action::Pass),
    ] {
        let bytes = packet(from, to, vlan);
        let decided = decide(&mut table, &bytes, None, 3 * SECOND_NS);
        assert_eq!(decided, expected, "{from:?} {to:?} {vlan:?}");
    }
    // The tag is beside the packet.
    let bytes = packet(one, other, None);
    assert_eq!(decide(&mut table, &bytes, Some(5), 0), Action::Pass);
    let tagged = layout::flow(&hash_rule(5, 4)).unwrap();
    table.add(tagged, Action::Drop, 0).unwrap();
    assert_eq!(decide(&mut table, &bytes, Some(5), 0), Action::Drop);
    let bytes = packet(one, other, Some(5));
    assert_eq!(decide(&mut table, &bytes, None, 0), Action::Drop);
    // Only the first fragment has ports.
    let mut fragment = packet(one, other, None);
    fragment[21] = 7;
    assert_eq!(decide(&mut table, &fragment, None, 0), Action::Pass);
    let counts = table.counts(&flow, 10 * SECOND_NS).unwrap();
    assert_eq!((counts.matched, counts.dropped, counts.idle_s), (2, 2, 7));
    let counts = layout::counts(&counts);
    assert_eq!((counts[0], counts[8], counts[16], counts[24]), (2, 2, 0, 7));
    table.remove(&flow).unwrap();
    assert_eq!(table.remove(&flow), Err(GENERIC));
}

#[test]
fn rules_that_are_not_possible_are_refused() {
    let mut rule = hash_rule(0, 4);
    for (number, status) in [
        (2, NOT_SUPPORTED),
        (6, NOT_SUPPORTED),
        (77, INVALID_ARGUMENT),
    ] {
        put(&mut rule, 42, &u32::to_ne_bytes(number));
        assert_eq!(layout::hash_action(&rule), Err(status));
    }
    rule[4] = 5;
    assert_eq!(layout::flow(&rule), Err(INVALID_ARGUMENT));
    for at in [7, 104, 174] {
        let mut rule = [0; WILDCARD_LEN];
        assert!(layout::wildcard(&rule).is_ok());
        rule[at] = 1;
        assert_eq!(layout::wildcard(&rule), Err(NOT_SUPPORTED), "{at}");
    }
    let rules = Rules::default();
    rules.set_mode(1);
    assert_eq!(rules.change(|_| Ok(())), Err(NOT_SUPPORTED));
}

/// A flow of the address with this number.
fn flow(address: u32) -> Flow {
    let mut rule = hash_rule(0, 4);
    put(&mut rule, 6, &address.to_ne_bytes());
    layout::flow(&rule).unwrap()
}

#[test]
fn a_bypass_ends_after_two_minutes_of_silence_and_a_rule_stays() {
    let bytes = packet((1, 7), (2, 9), None);
    let flow = layout::flow(&hash_rule(0, 4)).unwrap();
    let mut table = Table::new();
    table.bypass(flow, 0).unwrap();
    for (at_s, expected) in [
        (119, Action::Drop),
        (238, Action::Drop),
        (358, Action::Pass),
        (359, Action::Pass),
    ] {
        let decided = decide(&mut table, &bytes, None, at_s * SECOND_NS);
        assert_eq!(decided, expected, "{at_s}");
    }
    assert!(table.is_idle());
    // A rule, which a bypass does not end.
    table.add(flow, Action::Pass, 0).unwrap();
    table.bypass(flow, 0).unwrap();
    let later = 1000 * SECOND_NS;
    assert_eq!(decide(&mut table, &bytes, None, later), Action::Drop);
    table.remove(&flow).unwrap();
    // A bypass that becomes a rule.
    table.bypass(flow, 0).unwrap();
    table.add(flow, Action::Drop, 0).unwrap();
    assert_eq!(decide(&mut table, &bytes, None, later), Action::Drop);
}

#[test]
fn bypasses_that_have_ended_make_room() {
    let mut table = Table::new();
    table.add(flow(0), Action::Drop, 0).unwrap();
    for number in 1..65_536 {
        table.bypass(flow(number), 0).unwrap();
    }
    table.bypass(flow(1), 60 * SECOND_NS).unwrap();
    let mut bypass = |number, at_s| table.bypass(flow(number), at_s * SECOND_NS);
    assert_eq!(bypass(65_536, 119), Err(NO_MEMORY));
    assert_eq!(bypass(65_536, 120), Ok(()));
    assert_eq!(bypass(65_537, 120), Ok(()));
    for (number, expected) in [(0, true), (1, true), (2, false), (65_536, true)] {
        assert_eq!(table.counts(&flow(number), 0).is_ok(), expected, "{number}");
    }
}

#[test]
fn hash_rules_have_a_bound_and_idle_ones_are_purged() {
    let mut table = Table::new();
    let mut count = 0;
    while table.add(flow(count), Action::Drop, SECOND_NS).is_ok() {
        count += 1;
    }
    assert_eq!(count, 65_536);
    assert_eq!(table.add(flow(count), Action::Drop, 0), Err(NO_MEMORY));
    // One that exists is replaced.
    table.add(flow(0), Action::Pass, 8 * SECOND_NS).unwrap();
    table.purge(5, 9 * SECOND_NS);
    assert_eq!(table.counts(&flow(1), 0), Err(GENERIC));
    assert!(table.counts(&flow(0), 0).is_ok());
    table.purge(0, 8 * SECOND_NS);
    assert!(table.is_idle());
}

/// A wildcard rule: drop UDP from 10.0.0.0/24, ports 7 to 8.
fn wildcard() -> [u8; WILDCARD_LEN] {
    let mut rule = [0; WILDCARD_LEN];
    put(&mut rule, 2, &1_u32.to_ne_bytes());
    rule[30] = 17;
    put(&mut rule, 31, &0x0a00_0063_u32.to_ne_bytes());
    put(&mut rule, 63, &0xffff_ff00_u32.to_ne_bytes());
    put(&mut rule, 95, &7_u16.to_ne_bytes());
    put(&mut rule, 97, &8_u16.to_ne_bytes());
    rule
}

#[test]
fn wildcard_rules_match_ranges_in_the_order_of_their_numbers() {
    let (there, back) = (packet((1, 8), (2, 99), None), packet((2, 99), (1, 8), None));
    let mut table = Table::new();
    let add = |rule: &[u8; WILDCARD_LEN], number, table: &mut Table| {
        let (_, rule) = layout::wildcard(rule).unwrap();
        table.add_wildcard(number, rule, 0)
    };
    add(&wildcard(), 7, &mut table).unwrap();
    assert_eq!(decide(&mut table, &there, None, 0), Action::Drop);
    assert_eq!(decide(&mut table, &back, None, 0), Action::Pass);
    let mut both = wildcard();
    both[9] = 1;
    add(&both, 7, &mut table).unwrap();
    assert_eq!(decide(&mut table, &back, None, 0), Action::Drop);
    let others: [(usize, &[u8]); 7] = [
        (10, &4_u32.to_ne_bytes()),
        (14, &[9; 6]),
        (20, &[9; 6]),
        (26, &1_u16.to_ne_bytes()),
        (28, &0x86dd_u16.to_ne_bytes()),
        (31, &0x0a00_0163_u32.to_ne_bytes()),
        (103, &[2]),
    ];
    for (at, value) in others {
        let mut rule = both;
        put(&mut rule, at, value);
        add(&rule, 7, &mut table).unwrap();
        assert_eq!(decide(&mut table, &there, None, 0), Action::Pass, "{at}");
    }
    add(&both, 7, &mut table).unwrap();
    let mut pass = both;
    put(&mut pass, 2, &0_u32.to_ne_bytes());
    // The lowest free number, 0, comes before 7.
    add(&pass, u16::MAX, &mut table).unwrap();
    assert_eq!(decide(&mut table, &there, None, 0), Action::Pass);
    table.remove_wildcard(0).unwrap();
    assert_eq!(decide(&mut table, &there, None, SECOND_NS), Action::Drop);
    // A hash rule comes before all of them.
    let flow = Seen::new(1, &there, there.len() as u32, None)
        .flow()
        .unwrap();
    table.add(flow, Action::Pass, 0).unwrap();
    assert_eq!(decide(&mut table, &there, None, 0), Action::Pass);
    table.purge(0, 0);
    let mut locked = wildcard();
    locked[8] = 1;
    add(&locked, 8, &mut table).unwrap();
    table.purge_wildcards(2, 2 * SECOND_NS);
    assert_eq!(decide(&mut table, &back, None, SECOND_NS), Action::Drop);
    table.purge_wildcards(2, 9 * SECOND_NS);
    assert_eq!(decide(&mut table, &back, None, 0), Action::Pass);
    assert_eq!(decide(&mut table, &there, None, 0), Action::Drop);
    table.remove_wildcard(8).unwrap();
    assert_eq!(table.remove_wildcard(8), Err(GENERIC));
    table.policy = Action::Drop;
    assert!(!table.is_idle());
    assert_eq!(decide(&mut table, &there, None, 0), Action::Drop);
}

#[test]
fn ipv6_rules_match_ipv6_packets_only() {
    let mut rule = hash_rule(0, 6);
    put(
        &mut rule,
        6,
        &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    );
    put(
        &mut rule,
        22,
        &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
    );
    let flow = layout::flow(&rule).unwrap();
    let mut bytes = vec![0; 12];
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
    bytes.extend(&rule[22..38]);
    bytes.extend(&rule[6..22]);
    bytes.extend([0, 9, 0, 7, 0, 8, 0, 0]);
    let mut table = Table::new();
    table.add(flow, Action::Drop, 0).unwrap();
    assert_eq!(decide(&mut table, &bytes, None, 0), Action::Drop);
    let v4 = packet((1, 7), (2, 9), None);
    assert_eq!(decide(&mut table, &v4, None, 0), Action::Pass);
    // One word, and the EtherType of IPv6: 2001:db8::/32.
    let mut prefix = [0; WILDCARD_LEN];
    put(&mut prefix, 2, &1_u32.to_ne_bytes());
    put(&mut prefix, 28, &0x86dd_u16.to_ne_bytes());
    put(&mut prefix, 31, &[0x20, 1, 0xd, 0xb8]);
    put(&mut prefix, 63, &[0xff; 4]);
    let mut table = Table::new();
    let (number, rule) = layout::wildcard(&prefix).unwrap();
    table.add_wildcard(number, rule, 0).unwrap();
    assert_eq!(decide(&mut table, &bytes, None, 0), Action::Drop);
    assert_eq!(decide(&mut table, &v4, None, 0), Action::Pass);
    // Without it, an IPv4 address: not 2001:db8:: of this packet.
    put(&mut prefix, 28, &[0, 0]);
    put(&mut prefix, 31, &0x2001_0db8_u32.to_ne_bytes());
    let (number, rule) = layout::wildcard(&prefix).unwrap();
    table.add_wildcard(number, rule, 0).unwrap();
    assert_eq!(decide(&mut table, &bytes, None, 0), Action::Pass);
}
