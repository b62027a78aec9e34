//! Converts lists of prefixes to sorted ranges, and those to a tree of comparisons. The number of
//! comparisons per packet is logarithmic in the length of the list.

use std::net::IpAddr;

use super::block::{Cond, JGE, Test};
use super::lower::{From, Link, Size};

/// Inclusive ranges, sorted, disjoint, and not adjacent.
pub(super) type Ranges = Vec<(u128, u128)>;

/// Returns the ranges of all IPv4 prefixes, and those of all IPv6 prefixes.
pub(super) fn of(prefixes: &[(IpAddr, u8)]) -> (Ranges, Ranges) {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for &(address, len) in prefixes {
        let (list, bits, first): (&mut Ranges, u32, u128) = match address {
            IpAddr::V4(address) => (&mut v4, 32, address.to_bits().into()),
            IpAddr::V6(address) => (&mut v6, 128, address.to_bits()),
        };
        let host_bits = bits.saturating_sub(len.into());
        let rest = match host_bits {
            128.. => u128::MAX,
            _ => (1 << host_bits) - 1,
        };
        list.push((first & !rest, first | rest));
    }
    (joined(v4), joined(v6))
}

fn joined(mut list: Ranges) -> Ranges {
    list.sort_unstable();
    let mut out = Ranges::new();
    for (low, high) in list {
        match out.last_mut() {
            Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
            _ => out.push((low, high)),
        }
    }
    out
}

/// An interval of values of the first word, with the ranges of the remaining words, which are the
/// same for all of them.
struct Part {
    first: u32,
    last: u32,
    rest: Ranges,
}

/// Tests whether the address of `words` words at an offset in the network header is in one of the
/// ranges.
pub(super) fn contains(link: &Link, at: u32, words: u32, ranges: &Ranges) -> Cond {
    let below = 32 * (words - 1);
    let most = match below {
        0 => 0,
        _ => u128::MAX >> (128 - below),
    };
    // Values of the first word from which a condition applies, in ascending order.
    let mut starts: Vec<(u32, Cond)> = Vec::new();
    let mut next = 0u64;
    for part in parts(ranges, below, most) {
        if u64::from(part.first) > next {
            starts.push((next as u32, Cond::Const(false)));
        }
        let cond = match part.rest[..] == [(0, most)] {
            true => Cond::Const(true),
            false => contains(link, at + 4, words - 1, &part.rest),
        };
        starts.push((part.first, cond));
        next = u64::from(part.last) + 1;
    }
    if next <= u32::MAX.into() {
        starts.push((next as u32, Cond::Const(false)));
    }
    choose(&starts, &link.load(From::Network, at, Size::W))
}

/// Splits ranges by their first word.
fn parts(ranges: &Ranges, below: u32, most: u128) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |first: u32, last: u32, range: (u128, u128)| match parts.last_mut() {
        Some(part) if part.last == first => part.rest.push(range),
        _ => parts.push(Part {
            first,
            last,
            rest: vec![range],
        }),
    };
    let split = |value: u128| ((value.checked_shr(below).unwrap_or(0)) as u32, value & most);
    for &(low, high) in ranges {
        let ((first, low), (last, high)) = (split(low), split(high));
        if first == last {
            add(first, first, (low, high));
            continue;
        }
        let mut whole = (u64::from(first), u64::from(last));
        if low != 0 {
            add(first, first, (low, most));
            whole.0 += 1;
        }
        if high != most {
            whole.1 -= 1;
        }
        if whole.0 <= whole.1 {
            add(whole.0 as u32, whole.1 as u32, (0, most));
        }
        if high != most {
            add(last, last, (0, high));
        }
    }
    parts
}

/// Selects the last condition that starts at or below the loaded value.
fn choose(conds: &[(u32, Cond)], load: &[bpf::cbpf::Insn]) -> Cond {
    match conds {
        [] => Cond::Const(false),
        [(_, cond)] => cond.clone(),
        _ => {
            let (low, high) = conds.split_at(conds.len() / 2);
            let test = Test::new(load.to_vec(), JGE, high[0].0);
            Cond::Choice(
                test,
                Box::new(choose(high, load)),
                Box::new(choose(low, load)),
            )
        }
    }
}
