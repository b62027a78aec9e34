//! Rules in the memory of programs: `hash_filtering_rule` and `filtering_rule` of `pf_ring.h`
//! (packed, PF_RING 7 and 8). IPv4 addresses and ports are in host byte order, IPv6 addresses in
//! network byte order.

use super::table::Wildcard;
use super::{Action, Counts, End, Flow};
use crate::ring::Outcome;
use crate::status::{INVALID_ARGUMENT, NOT_SUPPORTED};

/// Length of a hash rule up to its action.
pub const HASH_LEN: usize = 46;
/// Length of a wildcard rule up to the pattern of the payload.
pub const WILDCARD_LEN: usize = 206;
/// Length of the counts of a hash rule.
pub const COUNTS_LEN: usize = 28;
/// Length of a `hw_filtering_rule` up to the number of a flow.
pub const CARD_LEN: usize = 14;

/// EtherTypes, which tell the addresses of a wildcard rule apart.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// `generic_flow_id_rule` of `hw_filtering_rule_type`, and `flow_drop_rule`.
const FLOW_NUMBER_RULE: u32 = 3;
const FLOW_DROP: u32 = 0;

fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let found = from.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

fn u16_at(from: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes(from, at))
}

fn u32_at(from: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes(from, at))
}

/// An address as in packets; a union with IPv4 has one word.
fn address(from: &[u8], at: usize, is_v4: bool) -> [u8; 16] {
    let mut address = bytes(from, at);
    if is_v4 {
        address = [0; 16];
        address[..4].copy_from_slice(&u32_at(from, at).to_be_bytes());
    }
    address
}

fn has_one_word(from: &[u8], at: usize) -> bool {
    bytes::<12>(from, at + 4) == [0; 12]
}

/// `rule_action_behaviour`.
fn action(number: u32) -> Outcome<Action> {
    match number {
        0 => Ok(Action::Pass),
        1 => Ok(Action::Drop),
        // To other interfaces, or to plugins.
        2..=9 => Err(NOT_SUPPORTED),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The flow of a hash rule. Programs that name no IP version mean IPv4 if the addresses have one
/// word.
///
/// # Errors
/// `INVALID_ARGUMENT` for another IP version.
pub fn flow(rule: &[u8; HASH_LEN]) -> Outcome<Flow> {
    let version = match rule[4] {
        0 if has_one_word(rule, 6) && has_one_word(rule, 22) => 4,
        0 => 6,
        version @ (4 | 6) => version,
        _ => return Err(INVALID_ARGUMENT),
    };
    let end = |address_at, port_at| -> End {
        (
            address(rule, address_at, version == 4),
            u16_at(rule, port_at),
        )
    };
    let vlan = u16_at(rule, 2);
    Ok(Flow::between(
        end(6, 38),
        end(22, 40),
        (vlan, version, rule[5]),
    ))
}

/// The action of a hash rule.
///
/// # Errors
/// `NOT_SUPPORTED` for one that sends packets elsewhere, `INVALID_ARGUMENT` for an unknown one.
pub fn hash_action(rule: &[u8; HASH_LEN]) -> Outcome<Action> {
    action(u32_at(rule, 42))
}

/// A wildcard rule with its number. Addresses of one word are IPv4 ones, unless its EtherType is
/// that of IPv6.
///
/// # Errors
/// As [`hash_action`]; `NOT_SUPPORTED` for rules about tunnels, payload, or a part of the flows.
pub fn wildcard(rule: &[u8; WILDCARD_LEN]) -> Outcome<(u16, Wildcard)> {
    let (balance_pool, tunnel, pattern) = (rule[7], u16_at(rule, 104), rule[174]);
    if balance_pool != 0 || tunnel != 0 || pattern != 0 {
        return Err(NOT_SUPPORTED);
    }
    let hosts = &rule[31..95];
    let is_v4 = match u16_at(rule, 28) {
        IPV6 => false,
        IPV4 => true,
        _ => [31, 47, 63, 79].iter().all(|&at| has_one_word(rule, at)),
    };
    let version = match (hosts.iter().all(|byte| *byte == 0), is_v4) {
        (true, _) => 0,
        (false, true) => 4,
        (false, false) => 6,
    };
    let host = |at| (address(rule, at, is_v4), address(rule, at + 32, is_v4));
    let range = |at| (u16_at(rule, at), u16_at(rule, at + 2));
    let if_index = u32_at(rule, 10);
    Ok((
        u16_at(rule, 0),
        Wildcard {
            action: action(u32_at(rule, 2))?,
            is_locked: rule[8] != 0,
            is_bidirectional: rule[9] != 0,
            if_index,
            stations: [bytes(rule, 14), bytes(rule, 20)],
            vlan: u16_at(rule, 26),
            ether_type: u16_at(rule, 28),
            protocol: rule[30],
            version,
            hosts: [host(31), host(47)],
            ports: [range(95), range(99)],
            tcp_flags: rule[103],
        },
    ))
}

/// The counts as in memory.
pub fn counts(counts: &Counts) -> [u8; COUNTS_LEN] {
    let mut bytes = [0; COUNTS_LEN];
    let passed = counts.matched - counts.dropped;
    for (at, count) in [counts.matched, counts.dropped, passed].iter().enumerate() {
        bytes[8 * at..8 * at + 8].copy_from_slice(&count.to_ne_bytes());
    }
    bytes[24..].copy_from_slice(&counts.idle_s.to_ne_bytes());
    bytes
}

/// The number of the flow that a rule for a card drops.
///
/// # Errors
/// `NOT_SUPPORTED` for another rule.
pub fn dropped_flow(rule: &[u8; CARD_LEN]) -> Outcome<u32> {
    match (u32_at(rule, 0), u32_at(rule, 6)) {
        (FLOW_NUMBER_RULE, FLOW_DROP) => Ok(u32_at(rule, 10)),
        _ => Err(NOT_SUPPORTED),
    }
}
