//! Selects the field to compare next: the one that leaves the fewest ways to match, whatever its
//! value is.

use alloc::vec::Vec;
use core::ops::Range;

use super::facts::{Byte, Facts};
use super::reduce::Reduced;
use super::{Base, Field, Options};
use crate::cbpf::Width;

/// Maximum number of values that one field is compared with.
pub(super) const VALUES_MAX: usize = 1024;
/// Fields that end beyond this offset are not considered, nor are headers that begin there: an
/// eBPF load reaches up to 32,767 bytes.
const END_MAX: u32 = 2048;

/// A field to branch on.
pub(super) struct Choice {
    pub field: Field,
    /// The values to compare it with, in ascending order.
    pub values: Vec<u32>,
    /// The number of ways that remain, over all values.
    pub way_count: usize,
    /// The most ways that remain for any value.
    pub worst: usize,
}

/// The fields that help, with their values.
pub(super) struct Fields {
    /// Fields with values, sorted.
    all: Vec<u128>,
    /// The rank of each field, and its place in the list.
    ranks: Vec<(Rank, Range<usize>)>,
}

impl Fields {
    /// Collects the fields that the ways to match require to have values not known yet.
    pub fn new<'a>(
        rest: impl Iterator<Item = &'a Reduced>,
        facts: &Facts,
        options: &Options,
    ) -> Self {
        let mut all = Vec::new();
        let mut way_count = 0;
        for way in rest.flat_map(|rule| &rule.ways) {
            way_count += 1;
            for_each_field(way, facts, options, |field, value| {
                all.push(packed(&field, value));
            });
        }
        all.sort_unstable();
        let mut ranks = Vec::new();
        let mut start = 0;
        for field in all.chunk_by(|one, other| field_bits(*one) == field_bits(*other)) {
            let end = start + field.len();
            if let Some(rank) = rank(field, way_count) {
                ranks.push((rank, start..end));
            }
            start = end;
        }
        Self { all, ranks }
    }

    /// Selects a field. `None` if no field helps, or if more than this many ways would remain.
    pub fn choose(&self, ways_max: usize) -> Option<Choice> {
        let fields = self.ranks.iter();
        let ((worst, way_count, _), field) = fields
            .filter(|((_, all, _), _)| *all as usize <= ways_max)
            .min_by_key(|(rank, _)| *rank)?;
        let field = &self.all[field.clone()];
        let values = field.chunk_by(|one, other| one == other);
        Some(Choice {
            field: unpacked(field[0]),
            values: values.map(|same| same[0] as u32).collect(),
            way_count: *way_count as usize,
            worst: *worst as usize,
        })
    }
}

/// A field and its value as one number: numbers of the same field are next to each other when
/// sorted, with the values in ascending order.
pub(super) fn packed(field: &Field, value: u32) -> u128 {
    let base = match field.base {
        Base::Start => 0,
        // Up to `END_MAX`.
        Base::Header(at) => at + 1,
    };
    let place = u64::from(base) << 32 | u64::from(field.off << 3 | field.width.bytes());
    u128::from(place) << 64 | u128::from(field.mask) << 32 | u128::from(value)
}

pub(super) fn field_bits(packed: u128) -> u128 {
    packed >> 32
}

pub(super) fn unpacked(packed: u128) -> Field {
    let (base, place) = ((packed >> 96) as u32, (packed >> 64) as u32);
    Field {
        base: base.checked_sub(1).map_or(Base::Start, Base::Header),
        off: place >> 3,
        width: match place & 7 {
            1 => Width::B,
            2 => Width::H,
            _ => Width::W,
        },
        mask: (packed >> 32) as u32,
    }
}

/// The rank of a field, lower is better: the most ways that remain for any value, the sum of those
/// that remain for all values, and how narrow the field is.
type Rank = (u32, u32, u32);

/// Computes the rank of a field, given its values in ascending order; `None` if it does not help.
fn rank(values: &[u128], way_count: u32) -> Option<Rank> {
    let (mut most, mut count) = (0, 0);
    for same in values.chunk_by(|one, other| one == other) {
        most = most.max(same.len() as u32);
        count += 1;
    }
    if count as usize > VALUES_MAX {
        return None;
    }
    let decided = values.len() as u32;
    let open = way_count.checked_sub(decided)?;
    let worst = open + most;
    let all = open * (count + 1) + decided;
    // If all ways require the same value, a comparison at least excludes other packets.
    let helps = worst < way_count || (open == 0 && way_count > 1);
    let width = (values[0] >> 64) as u32 & 7;
    helps.then_some((worst, all, 8 - width))
}

/// Calls `each` for every byte, half word and word that the way requires to have a value not known
/// yet.
pub(super) fn for_each_field(
    way: &Facts,
    facts: &Facts,
    options: &Options,
    mut each: impl FnMut(Field, u32),
) {
    let bytes = way.bytes();
    // Both are sorted.
    let mut known = facts.bytes().iter().peekable();
    let new: Vec<u8> = bytes
        .iter()
        .map(|byte| {
            while known
                .next_if(|known| known.place() < byte.place())
                .is_some()
            {}
            let same = known.peek().filter(|known| known.place() == byte.place());
            byte.mask & !same.map_or(0, |known| known.mask)
        })
        .collect();
    for (index, first) in bytes.iter().enumerate() {
        let is_usable = match first.base() {
            Base::Start => true,
            Base::Header(at) => options.indirect && at < END_MAX,
        };
        if new[index] == 0 || !is_usable || first.off() + 4 > END_MAX {
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
            let new = new[index + count - 1];
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
                base: first.base(),
                off: first.off(),
                width,
                mask,
            };
            each(field, value);
        }
    }
}

fn follows(first: &Byte, byte: &Byte, count: usize) -> bool {
    byte.place() == first.place() + count as u64 - 1
}
