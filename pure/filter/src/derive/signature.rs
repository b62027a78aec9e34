//! p0f signatures of a flood's SYNs that match no good SYN.

use std::collections::BTreeMap;

use super::{Derived, Packet};
use crate::p0f::{
    HOPS_MAX, Handshake, Payload, RawSignature, Signature, Start, Window, compile, matches,
    raw_signature,
};

/// Maximum number of times a signature is split by one more field.
const DEPTH_MAX: usize = 3;
/// Maximum number of values of a field to split by.
const VALUES_MAX: usize = 8;
/// Minimum number of packets whose windows have a common divisor not by chance.
const PACKETS_MIN: usize = 8;

/// A signature of some SYNs in a flood.
#[derive(Clone, Debug)]
pub struct DerivedSignature {
    /// The signature.
    pub signature: Signature,
    /// Number of flood SYNs that it was derived from.
    pub packet_count: usize,
    /// Whether it can be compiled; malformed options can only be matched in user space.
    pub can_compile: bool,
}

/// A signature common to some SYNs of a flood and some good ones.
#[derive(Clone, Debug)]
pub struct InseparableSignature {
    /// The signature.
    pub signature: Signature,
    /// Number of flood SYNs that it was derived from.
    pub packet_count: usize,
    /// Number of good SYNs that have it.
    pub good_count: usize,
}

fn syns(packets: &[Packet<'_>]) -> Vec<RawSignature> {
    let raw = packets.iter().filter_map(|p| raw_signature(p.bytes));
    raw.filter(|raw| raw.handshake == Handshake::Syn).collect()
}

/// Fills in the signatures.
pub(super) fn derive(
    flood: &[Packet<'_>],
    good: &[Packet<'_>],
    least: usize,
    count_max: usize,
    derived: &mut Derived,
) {
    let (flood, good) = (syns(flood), syns(good));
    derived.syn_count = flood.len();
    // Fields that a signature matches exactly.
    let mut kinds: BTreeMap<String, Vec<&RawSignature>> = BTreeMap::new();
    for raw in &flood {
        let exact = Signature {
            ttl: 0,
            any_distance: false,
            mss: None,
            window: Window::Any,
            scale: None,
            payload: Payload::Any,
            ..merged(&[raw])
        };
        kinds.entry(exact.to_string()).or_default().push(raw);
    }
    let good: Vec<&RawSignature> = good.iter().collect();
    let mut found = Vec::new();
    for raws in kinds.into_values() {
        separate(raws, &good, DEPTH_MAX, &mut found);
    }
    found.retain(|(raws, ..)| raws.len() >= least.max(1));
    found.sort_by_key(|(raws, ..)| std::cmp::Reverse(raws.len()));
    for (raws, signature, good_count) in found {
        let packet_count = raws.len();
        if good_count > 0 {
            derived.inseparable_signatures.push(InseparableSignature {
                signature,
                packet_count,
                good_count,
            });
        } else if derived.signatures.len() < count_max {
            let can_compile = compile(&signature, Handshake::Syn, Start::Ip).is_ok();
            derived.signatures.push(DerivedSignature {
                signature,
                packet_count,
                can_compile,
            });
        }
    }
}

/// SYNs, their signature, and the number of good SYNs that have it.
type Found<'a> = (Vec<&'a RawSignature>, Signature, usize);

fn separate<'a>(
    raws: Vec<&'a RawSignature>,
    good: &[&RawSignature],
    depth: usize,
    found: &mut Vec<Found<'a>>,
) {
    let signature = merged(&raws);
    let bad = having(&signature, good);
    if bad.is_empty() {
        return found.push((raws, signature, 0));
    }
    let best = KEYS.iter().filter_map(|key| {
        let mut parts: BTreeMap<u32, Vec<&RawSignature>> = BTreeMap::new();
        for raw in &raws {
            parts.entry(key(raw)).or_default().push(raw);
        }
        let mut parts: Vec<_> = parts.into_values().collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        let has_rare = parts.len() > VALUES_MAX;
        if has_rare {
            // Good SYNs among the flood's have other values, a few of each.
            let rare = parts.split_off(VALUES_MAX - 1).concat();
            parts.push(rare);
        }
        let is_clean = |part: &[&RawSignature]| having(&merged(part), good).is_empty();
        let clean: usize = parts.iter().filter(|p| is_clean(p)).map(Vec::len).sum();
        let least = if has_rare { raws.len() / 2 } else { 1 };
        (clean >= least && parts.len() > 1).then_some((clean, parts))
    });
    match best.max_by_key(|(clean, _)| *clean).filter(|_| depth > 0) {
        Some((_, parts)) => {
            for part in parts {
                separate(part, good, depth - 1, found);
            }
        }
        None => found.push((raws, signature, bad.len())),
    }
}

/// Fields that signatures are split by.
const KEYS: [fn(&RawSignature) -> u32; 5] = [
    |raw| raw.window.into(),
    |raw| raw.mss.into(),
    |raw| raw.scale.into(),
    |raw| raw.has_payload.into(),
    |raw| raw.initial_ttl().into(),
];

fn having<'a>(signature: &Signature, raws: &[&'a RawSignature]) -> Vec<&'a RawSignature> {
    let all = raws.iter().copied();
    all.filter(|raw| matches(signature, raw)).collect()
}

/// The tightest signature for SYNs of the same version, options and quirks.
///
/// # Panics
/// If there are no SYNs.
fn merged(raws: &[&RawSignature]) -> Signature {
    let first = raws[0];
    let constant = |value: fn(&RawSignature) -> u16| {
        let of_first = value(first);
        raws.iter()
            .all(|raw| value(raw) == of_first)
            .then_some(of_first)
    };
    let payload = constant(|raw| raw.has_payload.into());
    let (ttl, any_distance) = ttl(raws);
    Signature {
        version: first.version,
        ttl,
        any_distance,
        ip_options: first.ip_options,
        mss: constant(|raw| raw.mss),
        window: window(raws),
        scale: constant(|raw| raw.scale.into()).map(|scale| scale as u8),
        layout: first.layout.clone(),
        quirks: first.quirks,
        payload: match payload {
            Some(0) => Payload::None,
            Some(_) => Payload::Some,
            None => Payload::Any,
        },
    }
}

/// The initial TTL, and whether any distance matches.
fn ttl(raws: &[&RawSignature]) -> (u8, bool) {
    let (mut initial, mut least, mut most) = (0, u8::MAX, 0);
    for raw in raws {
        initial = initial.max(raw.initial_ttl());
        least = least.min(raw.ttl);
        most = most.max(raw.ttl);
    }
    match (initial - least, most - least) {
        (0..=HOPS_MAX, _) => (initial, false),
        // Not a usual initial TTL: the observed one.
        (_, 0..=HOPS_MAX) => (most.max(1), false),
        _ => (initial, true),
    }
}

fn window(raws: &[&RawSignature]) -> Window {
    let first = raws[0];
    if raws.iter().all(|raw| raw.window == first.window) {
        return Window::Exact(first.window);
    }
    let multiple = first.multiple();
    if let Some(window) = multiple
        && raws.iter().all(|raw| raw.multiple() == multiple)
    {
        return window;
    }
    let divisor = raws.iter().fold(0, |divisor, raw| gcd(divisor, raw.window));
    match divisor > 1 && raws.len() >= PACKETS_MIN {
        true => Window::Multiple(divisor),
        false => Window::Any,
    }
}

fn gcd(a: u16, b: u16) -> u16 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}
