//! Separates filters that test different fields, so that each field has a tree of its own. In one
//! tree, every value of the first field would need a copy of all filters on the other fields.
//!
//! A filter with several ways to match (`port 53`: by the source or by the destination) is in the
//! group of each way. There it need not be tested for other values of the field: if it matches such
//! a packet, it does so in another way, in that way's group.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::choose::{VALUES_MAX, field_bits, for_each_field, packed, unpacked};
use super::facts::Facts;
use super::reduce::Reduced;
use super::{Field, Options};

/// Fewer ways are not worth a group.
const WAYS_MIN: usize = 4;
/// Cost of a group, in ways that are tested one after the other.
const GROUP_COST: usize = 2;

/// Filters by the value of a field that a match requires.
pub(super) struct Group {
    pub field: Field,
    /// For each value, the positions of the filters.
    pub values: BTreeMap<u32, BTreeSet<usize>>,
}

impl Group {
    fn worst(&self) -> usize {
        GROUP_COST + self.values.values().map(BTreeSet::len).max().unwrap_or(0)
    }
}

/// A division of filters.
pub(super) struct Division {
    pub groups: Vec<Group>,
    /// The positions of filters outside all groups.
    pub rest: Vec<usize>,
}

impl Division {
    /// About how many ways are tested for a packet.
    pub fn worst(&self) -> usize {
        let groups = self.groups.iter().map(Group::worst);
        groups.sum::<usize>() + self.rest.len()
    }
}

/// A way to match: the position of its filter, and its number there.
type Way = (usize, usize);

/// Divides filters; `None` is for filters that match every packet. Returns `None` if fewer than two
/// fields have groups.
pub(super) fn divide(
    rest: &[Option<&Reduced>],
    facts: &Facts,
    options: &Options,
) -> Option<Division> {
    let mut all: Vec<Requirement> = Vec::new();
    for (at, rest) in rest.iter().enumerate() {
        let ways = rest.iter().flat_map(|rest| &rest.ways);
        for (number, way) in ways.enumerate() {
            for_each_field(way, facts, options, |field, value| {
                all.push((packed(&field, value), (at, number)));
            });
        }
    }
    all.sort_unstable();
    let fields = all.chunk_by(|one, other| field_bits(one.0) == field_bits(other.0));
    let fields: Vec<&[Requirement]> = fields.filter(|all| all.len() >= WAYS_MIN).collect();
    let ways = |at: usize| rest[at].map_or(0, |rest| rest.ways.len());
    let mut open: BTreeSet<Way> = (0..rest.len())
        .flat_map(|at| (0..ways(at)).map(move |number| (at, number)))
        .collect();
    let mut chosen: Vec<(Field, Vec<(Way, u32)>)> = Vec::new();
    while let Some(found) = best(&fields, &open) {
        for (way, _) in &found.1 {
            open.remove(way);
        }
        chosen.push(found);
    }
    // A filter is in groups with all its ways, or not at all.
    let mut outside: BTreeSet<usize> = open.iter().map(|(at, _)| *at).collect();
    outside.extend((0..rest.len()).filter(|at| ways(*at) == 0));
    let groups = chosen.into_iter().map(|(field, ways)| {
        let mut values: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
        for ((at, _), value) in ways {
            if !outside.contains(&at) {
                values.entry(value).or_default().insert(at);
            }
        }
        Group { field, values }
    });
    let groups: Vec<_> = groups.filter(|group| !group.values.is_empty()).collect();
    (groups.len() >= 2).then(|| Division {
        groups,
        rest: outside.into_iter().collect(),
    })
}

/// A field and its value, packed, and the way that requires it.
type Requirement = (u128, Way);

/// The field that separates the most of the open ways. Requirements are grouped by field, and
/// sorted.
fn best(fields: &[&[Requirement]], open: &BTreeSet<Way>) -> Option<(Field, Vec<(Way, u32)>)> {
    let separated = |all: &[Requirement]| {
        let (mut most, mut sum, mut count) = (0, 0, 0);
        for same in all.chunk_by(|one, other| one.0 == other.0) {
            let ways = same.iter().filter(|(_, way)| open.contains(way)).count();
            most = most.max(ways);
            sum += ways;
            count += usize::from(ways > 0);
        }
        let fits = sum >= WAYS_MIN && count <= VALUES_MAX;
        fits.then_some(sum - most)
    };
    let (_, field, all) = fields
        .iter()
        .filter_map(|all| Some((separated(all)?, unpacked(all[0].0), all)))
        .filter(|(separated, ..)| *separated >= WAYS_MIN - 1)
        .max_by_key(|(separated, field, _)| (*separated, field.width.bytes()))?;
    let ways = all.iter().filter(|(_, way)| open.contains(way));
    Some((
        field,
        ways.map(|(packed, way)| (*way, *packed as u32)).collect(),
    ))
}
