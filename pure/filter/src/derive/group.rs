//! Groups of a flood, each with tests that its packets pass and no good packet passes.

use std::collections::{BTreeMap, BTreeSet};

use super::cover::{self, Totals};
use super::packet::{Class, Field, TCP, fields};
use super::table::Table;
use super::test::{Test, VALUES_MAX};
use super::{Derived, Packet};

/// Kinds of less than one in so many packets are not covered if there are no good packets to
/// compare with and other kinds are most of the flood.
const RARE: usize = 20;

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
    /// ranges, or only a list of good addresses.
    pub is_fragile: bool,
    /// By how many fields at least each good packet of the same protocol differs from these; `None`
    /// without such packets. At 1, packets of good senders could match: a new client, for example.
    pub nearest_good: Option<usize>,
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
    let mut text = class.words(tests.iter().any(Test::excludes_fragments));
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

/// Fills in the groups, and the packets that remain.
pub(super) fn derive(
    flood: &[Packet<'_>],
    good: &[Packet<'_>],
    least: usize,
    group_count_max: usize,
    derived: &mut Derived,
) {
    let totals = Totals {
        flood: flood.len(),
        good: good.len(),
        least: least.max(1),
    };
    let goods = by_class(good);
    let mut leaves = Vec::new();
    for (class, mut packets) in by_class(flood) {
        packets.retain(|packet| class.is_whole(packet));
        let good = goods.get(&class).map_or(&[][..], Vec::as_slice);
        for packets in by_flags(class, packets, totals.least) {
            if packets.len() < totals.least {
                continue;
            }
            let good = of_same_flags(class, &packets, good);
            let found = cover::of(&Table::new(class, packets, good), &totals);
            leaves.extend(found.into_iter().map(|leaf| (class, leaf)));
        }
    }
    leaves.retain(|(_, leaf)| leaf.packet_count >= totals.least);
    leaves.sort_by_key(|(_, leaf)| std::cmp::Reverse(leaf.packet_count));
    let (mut covered, mut counted) = (0, 0);
    for (class, leaf) in leaves {
        let packet_count = leaf.packet_count;
        if leaf.good_count > 0 {
            counted += packet_count;
            derived.inseparable.push(Inseparable {
                class,
                tests: leaf.tests,
                packet_count,
                good_count: leaf.good_count,
            });
            continue;
        }
        let good = goods.get(&class).map_or(&[][..], Vec::as_slice);
        // Without good packets to compare with, only the most frequent kinds are the flood.
        let is_rare = packet_count * RARE < flood.len() && 4 * covered >= 3 * flood.len();
        let is_uncertain = leaf.is_uncertain || totals.good == 0 && is_rare;
        let (groups, is_covering) = match is_uncertain {
            true => (&mut derived.uncertain, 0),
            false => (&mut derived.groups, packet_count),
        };
        if groups.len() < group_count_max {
            counted += packet_count;
            covered += is_covering;
            groups.push(Group {
                class,
                telling: telling(&leaf.tests, good),
                nearest_good: nearest(&leaf.tests, good),
                tests: leaf.tests,
                packet_count,
                is_fragile: leaf.is_fragile,
            });
        }
    }
    derived.other_count = derived.flood_count - counted;
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

fn tcp_flags(class: Class) -> Option<Field> {
    let mut fields = fields(class).into_iter();
    fields.find(|field| class.protocol == TCP && field.name == "TCP flags")
}

/// Groups TCP packets by their flags, those with rare flags together, unless there are so many that
/// no group, or too many, would be large enough.
fn by_flags<'a>(class: Class, packets: Vec<Packet<'a>>, least: usize) -> Vec<Vec<Packet<'a>>> {
    let Some(flags) = tcp_flags(class) else {
        return vec![packets];
    };
    let mut parts: BTreeMap<u128, Vec<Packet<'a>>> = BTreeMap::new();
    for packet in &packets {
        if let Some(value) = flags.value(packet) {
            parts.entry(value).or_default().push(*packet);
        }
    }
    let is_large = |part: &Vec<Packet<'a>>| part.len() >= least;
    let (mut large, rare): (Vec<_>, Vec<_>) = parts.into_values().partition(is_large);
    match large.len() {
        1..=VALUES_MAX => {
            large.push(rare.concat());
            large
        }
        _ => vec![packets],
    }
}

/// The good packets with the flags of all these packets; all if they have different ones.
fn of_same_flags<'a>(class: Class, packets: &[Packet<'_>], good: &[Packet<'a>]) -> Vec<Packet<'a>> {
    let flags = tcp_flags(class);
    let value = |packet: &Packet<'_>| flags.and_then(|flags| flags.value(packet));
    let first = packets.first().and_then(value);
    let is_alike = packets.iter().all(|packet| value(packet) == first);
    let good = good
        .iter()
        .filter(|packet| !is_alike || value(packet) == first);
    good.copied().collect()
}

/// The fewest fields by which a good packet differs from the tests.
fn nearest(tests: &[Test], good: &[Packet<'_>]) -> Option<usize> {
    let differing = |packet: &Packet<'_>| {
        let failed = tests
            .iter()
            .filter(|test| !test.takes(packet))
            .map(Test::field);
        failed.collect::<BTreeSet<_>>().len()
    };
    good.iter().map(differing).min()
}

/// Selects few tests that together exclude all good packets: each time the one that excludes the
/// most of those left.
fn telling(tests: &[Test], good: &[Packet<'_>]) -> Vec<Test> {
    let mut left = good.to_vec();
    let mut chosen = Vec::new();
    while !left.is_empty() {
        let fails = |test: &Test| left.iter().filter(|packet| !test.takes(packet)).count();
        // Of equal ones the first that is no range: header fields come before bytes.
        let best = tests
            .iter()
            .rev()
            .max_by_key(|test| (fails(test), !test.is_range()));
        let Some(test) = best.filter(|test| fails(test) > 0) else {
            return tests.to_vec();
        };
        left.retain(|packet| test.takes(packet));
        chosen.push(test.clone());
    }
    chosen
}
