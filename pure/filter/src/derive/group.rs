//! Groups of a flood, each with tests that its packets pass and no good packet passes.

use std::collections::{BTreeMap, BTreeSet};

use super::packet::{Class, Field, Role, TCP, fields, shared_bytes};
use super::test::{Effort, Test, VALUES_MAX};
use super::{Derived, Packet};

/// Maximum number of times a group is split by one more field.
const DEPTH_MAX: usize = 3;

/// Flood packets that one expression covers.
#[derive(Clone, Debug)]
pub struct Group {
    class: Class,
    /// Everything that its packets have in common.
    pub tests: Vec<Test>,
    /// The fewest tests that exclude the good packets.
    pub telling: Vec<Test>,
    /// Number of packets.
    pub packet_count: usize,
    /// Whether only fields that may change from run to run exclude good packets, such as port
    /// ranges.
    pub is_fragile: bool,
}

/// Flood packets that no test separates from good ones.
#[derive(Clone, Debug)]
pub struct Inseparable {
    class: Class,
    /// Everything that its packets have in common.
    pub tests: Vec<Test>,
    /// Number of packets.
    pub packet_count: usize,
    /// Number of good packets that pass the tests.
    pub good_count: usize,
}

impl Group {
    /// The expression of this group alone.
    pub fn expression(&self) -> String {
        with_tags(self.class.tags, &words(self.class, &self.tests))
    }
}

impl Inseparable {
    /// The expression for what these packets have in common; it matches good packets as well.
    pub fn expression(&self) -> String {
        with_tags(self.class.tags, &words(self.class, &self.tests))
    }
}

fn words(class: Class, tests: &[Test]) -> String {
    let mut text = class.words(tests.iter().any(Test::is_of_transport));
    for test in tests {
        text += &format!(" and {test}");
    }
    text
}

fn with_tags(tags: u8, inner: &str) -> String {
    match tags {
        0 => inner.to_owned(),
        _ => format!("{} and {inner}", vec!["vlan"; tags.into()].join(" and ")),
    }
}

/// Joins all groups. A `vlan` shifts the offsets of what follows, so groups with more tags come
/// later, within its parentheses. A load beyond the end of a packet ends the program, so groups
/// that read less of the packet come first.
pub(super) fn expression(groups: &[Group], tests: impl Fn(&Group) -> &Vec<Test>) -> Option<String> {
    let most = groups.iter().map(|group| group.class.tags).max()?;
    let mut text = String::new();
    for tags in (0..=most).rev() {
        let of_tags = groups.iter().filter(|group| group.class.tags == tags);
        let mut of_tags: Vec<(Class, &Vec<Test>)> =
            of_tags.map(|group| (group.class, tests(group))).collect();
        of_tags.sort_by_key(|(_, tests)| tests.iter().map(Test::reach).max());
        // Groups that differ only in tests not needed here have the same expression.
        let mut seen = BTreeSet::new();
        let of_tags: Vec<String> = of_tags
            .into_iter()
            .map(|(class, tests)| words(class, tests))
            .filter(|words| seen.insert(words.clone()))
            .collect();
        let inner = match (text.is_empty(), &of_tags[..]) {
            (true, [one]) => one.clone(),
            _ => {
                let mut parts: Vec<String> =
                    of_tags.iter().map(|words| format!("({words})")).collect();
                if !text.is_empty() {
                    parts.push(format!("(vlan and {text})"));
                }
                parts.join(" or ")
            }
        };
        let is_inner = tags > 0 && inner.contains(" or ");
        text = if is_inner {
            format!("({inner})")
        } else {
            inner
        };
    }
    Some(text)
}

/// A group under construction.
struct Leaf<'a> {
    packets: Vec<Packet<'a>>,
    tests: Vec<Test>,
    is_fragile: bool,
    good_count: usize,
}

/// Fills in the groups, and the packets that remain.
pub(super) fn derive(
    flood: &[Packet<'_>],
    good: &[Packet<'_>],
    least: usize,
    group_count_max: usize,
    derived: &mut Derived,
) {
    let flood = by_class(flood);
    let good = by_class(good);
    let mut leaves = Vec::new();
    for (class, mut packets) in flood {
        packets.retain(|packet| class.is_whole(packet));
        let good = good.get(&class).map_or(&[][..], Vec::as_slice);
        for packets in by_flags(class, packets, least) {
            let found = separate(class, packets, good, DEPTH_MAX);
            leaves.extend(found.into_iter().map(|leaf| (class, leaf)));
        }
    }
    leaves.sort_by_key(|(_, leaf)| std::cmp::Reverse(leaf.packets.len()));
    let mut covered = 0;
    for (class, leaf) in leaves {
        let packet_count = leaf.packets.len();
        if packet_count < least.max(1) {
            continue;
        }
        if leaf.good_count > 0 {
            covered += packet_count;
            derived.inseparable.push(Inseparable {
                class,
                tests: leaf.tests,
                packet_count,
                good_count: leaf.good_count,
            });
        } else if derived.groups.len() < group_count_max {
            covered += packet_count;
            let good = good.get(&class).map_or(&[][..], Vec::as_slice);
            derived.groups.push(Group {
                class,
                telling: telling(&leaf.tests, good),
                tests: leaf.tests,
                packet_count,
                is_fragile: leaf.is_fragile,
            });
        }
    }
    derived.other_count = derived.flood_count - covered;
}

fn by_class<'a>(packets: &[Packet<'a>]) -> BTreeMap<Class, Vec<Packet<'a>>> {
    let mut classes: BTreeMap<Class, Vec<Packet<'a>>> = BTreeMap::new();
    for packet in packets {
        if let Some(class) = Class::of(packet) {
            classes.entry(class).or_default().push(*packet);
        }
    }
    classes
}

/// Groups TCP packets by their flags, unless these are so many that no group, or too many, would be
/// large enough.
fn by_flags<'a>(class: Class, packets: Vec<Packet<'a>>, least: usize) -> Vec<Vec<Packet<'a>>> {
    let flags = fields(class)
        .into_iter()
        .find(|field| class.protocol == TCP && field.name == "TCP flags");
    let Some(flags) = flags else {
        return vec![packets];
    };
    let parts: Vec<Vec<Packet<'a>>> = parts(&flags, &packets).into_values().collect();
    match parts.iter().filter(|part| part.len() >= least).count() {
        1..=VALUES_MAX => parts,
        _ => vec![packets],
    }
}

fn parts<'a>(field: &Field, packets: &[Packet<'a>]) -> BTreeMap<u128, Vec<Packet<'a>>> {
    let mut parts: BTreeMap<u128, Vec<Packet<'a>>> = BTreeMap::new();
    for packet in packets {
        if let Some(value) = field.value(packet) {
            parts.entry(value).or_default().push(*packet);
        }
    }
    parts
}

/// Tests for everything that all packets have in common.
fn tests(class: Class, packets: &[Packet<'_>], effort: Effort) -> Vec<Test> {
    let of_fields = fields(class).into_iter().filter_map(|field| {
        let values: Option<Vec<u128>> = packets.iter().map(|packet| field.value(packet)).collect();
        Test::of_values(field, &values?, effort)
    });
    let of_bytes = shared_bytes(class, packets)
        .into_iter()
        .map(|word| Test::of_word(word.field, word.value));
    of_fields.chain(of_bytes).collect()
}

fn passing<'a>(tests: &[Test], packets: &[Packet<'a>]) -> Vec<Packet<'a>> {
    let all = packets.iter();
    all.filter(|packet| tests.iter().all(|test| test.takes(packet)))
        .copied()
        .collect()
}

/// Splits packets of a class into groups that exclude good packets, by the simplest means possible.
fn separate<'a>(
    class: Class,
    packets: Vec<Packet<'a>>,
    good: &[Packet<'a>],
    depth: usize,
) -> Vec<Leaf<'a>> {
    let leaf = |packets, tests, is_fragile, good_count| {
        vec![Leaf {
            packets,
            tests,
            is_fragile,
            good_count,
        }]
    };
    let mut lasting = tests(class, &packets, Effort::Lasting);
    let bad = passing(&lasting, good);
    if bad.is_empty() {
        return leaf(packets, lasting, false, 0);
    }
    if let Some(test) = exclusion(class, &packets, &bad) {
        lasting.push(test);
        return leaf(packets, lasting, false, 0);
    }
    if depth > 0
        && let Some(parts) = best_parts(class, &packets, good)
    {
        let parts = parts.into_iter();
        return parts
            .flat_map(|part| separate(class, part, good, depth - 1))
            .collect();
    }
    let fragile = tests(class, &packets, Effort::Fragile);
    if passing(&fragile, good).is_empty() {
        return leaf(packets, fragile, true, 0);
    }
    leaf(packets, lasting, false, bad.len())
}

/// A test that excludes the bad packets by a field in which they have a few values that no flood
/// packet has.
fn exclusion(class: Class, packets: &[Packet<'_>], bad: &[Packet<'_>]) -> Option<Test> {
    let found = fields(class).into_iter().filter_map(|field| {
        let is_proof = matches!(field.role, Role::Stable | Role::Size);
        let bad: Option<Vec<u128>> = bad.iter().map(|packet| field.value(packet)).collect();
        let mut bad = bad.filter(|_| is_proof)?;
        bad.sort_unstable();
        bad.dedup();
        let is_flood = |packet: &Packet<'_>| {
            let value = field.value(packet);
            value.is_none_or(|value| bad.binary_search(&value).is_ok())
        };
        let is_apart = bad.len() <= VALUES_MAX && !packets.iter().any(is_flood);
        is_apart.then_some((bad.len(), field, bad))
    });
    let (_, field, bad) = found.min_by_key(|(count, ..)| *count)?;
    Some(Test::excluding(field, bad))
}

/// Splits packets by the field that frees the most of them from good packets; `None` if no field
/// helps. (A part may be too small for tests that the whole has.)
fn best_parts<'a>(
    class: Class,
    packets: &[Packet<'a>],
    good: &[Packet<'a>],
) -> Option<Vec<Vec<Packet<'a>>>> {
    let found = fields(class).into_iter().filter_map(|field| {
        if field.role == Role::Volatile {
            return None;
        }
        let parts: Vec<_> = parts(&field, packets).into_values().collect();
        let whole: usize = parts.iter().map(Vec::len).sum();
        if !(2..=VALUES_MAX).contains(&parts.len()) || whole < packets.len() {
            return None;
        }
        let is_clean =
            |part: &Vec<Packet<'_>>| passing(&tests(class, part, Effort::Lasting), good).is_empty();
        let clean: usize = parts.iter().filter(|p| is_clean(p)).map(Vec::len).sum();
        (clean > 0).then_some((clean, parts))
    });
    found
        .max_by_key(|(clean, parts)| (*clean, std::cmp::Reverse(parts.len())))
        .map(|(_, parts)| parts)
}

/// Selects few tests that together exclude all good packets: each time the one that excludes the
/// most of those left.
fn telling(tests: &[Test], good: &[Packet<'_>]) -> Vec<Test> {
    let mut left = good.to_vec();
    let mut chosen = Vec::new();
    while !left.is_empty() {
        let fails = |test: &Test| left.iter().filter(|packet| !test.takes(packet)).count();
        let counts = tests.iter().map(|test| (fails(test), test));
        // Of equal ones the first: header fields come before bytes.
        let best = counts.rev().max_by_key(|(count, _)| *count);
        let Some((1.., test)) = best else {
            return tests.to_vec();
        };
        left.retain(|packet| test.takes(packet));
        chosen.push(test.clone());
    }
    chosen
}
