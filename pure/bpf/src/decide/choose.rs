//! Selects the field to compare next: the one that leaves the fewest ways to match, whatever its
//! value is.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::facts::{Byte, Facts};
use super::reduce::Reduced;
use super::{Base, Field, Options};
use crate::cbpf::Width;

/// Maximum number of values that one field is compared with.
const VALUES_MAX: usize = 1024;
/// Fields that end beyond this offset are not considered, nor are headers that begin there: an
/// eBPF load reaches up to 32,767 bytes.
const END_MAX: u32 = 2048;

/// For each value of a field, the number of ways to match that require it.
type Values = BTreeMap<u32, u32>;

/// A field to branch on.
pub(super) struct Choice {
    pub field: Field,
    /// The values to compare it with, in ascending order.
    pub values: Vec<u32>,
    /// The number of ways that remain, over all values.
    pub way_count: usize,
}

/// Selects a field. `None` if no field helps, or if more than this many ways would remain.
pub(super) fn choose<'a>(
    rest: impl Iterator<Item = &'a Reduced>,
    facts: &Facts,
    options: &Options,
    ways_max: usize,
) -> Option<Choice> {
    let mut fields: BTreeMap<Field, Values> = BTreeMap::new();
    let mut way_count = 0;
    for way in rest.flat_map(|rule| &rule.ways) {
        way_count += 1;
        for_each_field(way, facts, options, |field, value| {
            *fields.entry(field).or_default().entry(value).or_default() += 1;
        });
    }
    let best = fields
        .iter()
        .filter(|(_, values)| values.len() <= VALUES_MAX)
        .filter_map(|(field, values)| Some((rank(field, values, way_count)?, field, values)))
        .filter(|((_, all, _), ..)| *all as usize <= ways_max)
        .min_by_key(|(rank, ..)| *rank)?;
    let ((_, way_count, _), field, values) = best;
    Some(Choice {
        field: *field,
        values: values.keys().copied().collect(),
        way_count: way_count as usize,
    })
}

/// The rank of a field, lower is better: the most ways that remain for any value, the sum of those
/// that remain for all values, and how narrow the field is.
fn rank(field: &Field, values: &Values, way_count: u32) -> Option<(u32, u32, u32)> {
    let decided: u32 = values.values().sum();
    let most = values.values().max()?;
    let open = way_count.checked_sub(decided)?;
    let worst = open + most;
    let all = open * (values.len() as u32 + 1) + decided;
    // If all ways require the same value, a comparison at least excludes other packets.
    let helps = worst < way_count || (open == 0 && way_count > 1);
    helps.then_some((worst, all, 8 - field.width.bytes()))
}

/// Calls `each` for every byte, half word and word that the way requires to have a value not known
/// yet.
fn for_each_field(way: &Facts, facts: &Facts, options: &Options, mut each: impl FnMut(Field, u32)) {
    let bytes = way.bytes();
    for (index, first) in bytes.iter().enumerate() {
        let is_usable = match first.base {
            Base::Start => true,
            Base::Header(at) => options.indirect && at < END_MAX,
        };
        if !is_usable || first.off + 4 > END_MAX {
            continue;
        }
        let (mut mask, mut value) = (0, 0);
        for count in 1..=4 {
            let Some(byte) = bytes
                .get(index + count - 1)
                .filter(|b| follows(first, b, count))
            else {
                break;
            };
            let new = byte.mask & !facts.byte(byte.base, byte.off).0;
            if new == 0 {
                break;
            }
            mask = mask << 8 | u32::from(new);
            value = value << 8 | u32::from(byte.value & new);
            let width = match count {
                1 => Width::B,
                2 => Width::H,
                4 => Width::W,
                _ => continue,
            };
            let field = Field {
                base: first.base,
                off: first.off,
                width,
                mask,
            };
            each(field, value);
        }
    }
}

fn follows(first: &Byte, byte: &Byte, count: usize) -> bool {
    byte.base == first.base && byte.off == first.off + count as u32 - 1
}
