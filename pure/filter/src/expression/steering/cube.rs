//! Expands a condition to a union of conjunctions of masked comparisons of bytes.

use std::collections::BTreeMap;
use std::fmt;

use super::super::block::{Cond, JEQ, JGE, JGT, JSET, LDX_MSH, Test};
use super::Masked;

/// Maximum number of conjunctions of a condition while it is expanded.
const COUNT_MAX: usize = 2048;

const LD_ABS: u16 = 0x20;
const LD_IND: u16 = 0x40;
const AND: u16 = 0x54;
const SIZE: u16 = 0x18;

/// The reason why a condition cannot be expanded.
type Why = String;

/// The position of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Offset from the start of the packet.
    Packet(u32),
    /// Offset from the end of the IPv4 header that starts at `network`.
    Transport { network: u32, offset: u32 },
}

impl Place {
    pub(super) fn plus(self, count: u32) -> Place {
        match self {
            Place::Packet(at) => Place::Packet(at + count),
            Place::Transport { network, offset } => Place::Transport {
                network,
                offset: offset + count,
            },
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Packet(at) => write!(f, "byte {at} of the packet"),
            Place::Transport { offset, .. } => write!(f, "byte {offset} of the transport header"),
        }
    }
}

/// The compared bits of a byte.
pub(super) type Byte = Masked<u8>;

/// A comparison of up to four bytes that must be false.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unequal {
    place: Place,
    /// Number of bytes.
    len: u32,
    mask: u32,
    value: u32,
}

/// A conjunction: all bytes are as stated, and all further comparisons are false.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cube {
    bytes: BTreeMap<Place, Byte>,
    unequal: Vec<Unequal>,
}

impl Cube {
    /// Both, or `None` if they contradict each other.
    fn and(&self, other: &Cube) -> Option<Cube> {
        let mut both = self.clone();
        for (&place, byte) in &other.bytes {
            let own = both.bytes.entry(place).or_default();
            if (own.value ^ byte.value) & own.mask & byte.mask != 0 {
                return None;
            }
            own.value |= byte.value;
            own.mask |= byte.mask;
        }
        for unequal in &other.unequal {
            if !both.unequal.contains(unequal) {
                both.unequal.push(unequal.clone());
            }
        }
        Some(both)
    }

    /// Whether every packet of the other one is a packet of this one.
    fn contains(&self, other: &Cube) -> bool {
        self.bytes.iter().all(|(place, byte)| {
            let others = other.bytes.get(place).copied().unwrap_or_default();
            others.mask & byte.mask == byte.mask && others.value & byte.mask == byte.value
        })
    }

    /// Removes the comparisons that must be false, if the others decide them.
    ///
    /// # Errors
    /// If one is not decided.
    fn decided(mut self) -> Result<Option<Cube>, Why> {
        for unequal in std::mem::take(&mut self.unequal) {
            let (mut mask, mut value) = (0, 0);
            for index in 0..unequal.len {
                let byte = self.bytes.get(&unequal.place.plus(index));
                let byte = byte.copied().unwrap_or_default();
                mask = mask << 8 | u32::from(byte.mask);
                value = value << 8 | u32::from(byte.value);
            }
            if (value ^ unequal.value) & mask & unequal.mask != 0 {
                continue;
            }
            if mask & unequal.mask == unequal.mask {
                return Ok(None);
            }
            return Err(format!(
                "rules of a card select packets and exclude none: it excludes a value of {}",
                unequal.place
            ));
        }
        Ok(Some(self))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The first byte that is left.
    pub(super) fn first(&self) -> Option<Place> {
        self.bytes.keys().next().copied()
    }

    /// Takes some bits of a byte.
    pub(super) fn take_bits(&mut self, place: Place, bits: u8) -> Byte {
        let Some(byte) = self.bytes.get_mut(&place) else {
            return Byte::default();
        };
        let taken = Byte {
            value: byte.value & bits,
            mask: byte.mask & bits,
        };
        byte.value &= !bits;
        byte.mask &= !bits;
        if byte.mask == 0 {
            self.bytes.remove(&place);
        }
        taken
    }

    pub(super) fn take_byte(&mut self, place: Place) -> Byte {
        self.take_bits(place, 0xff)
    }

    /// Takes some bits of a byte if none of them is set.
    pub(super) fn take_zero(&mut self, place: Place, bits: u8) {
        if self.bytes.get(&place).is_some_and(|b| b.value & bits == 0) {
            self.take_bits(place, bits);
        }
    }

    /// Takes up to 16 bytes as a number.
    pub(super) fn take_long(&mut self, place: Place, len: u32) -> Masked<u128> {
        (0..len).fold(Masked::default(), |number, index| {
            let byte = self.take_byte(place.plus(index));
            Masked {
                value: number.value << 8 | u128::from(byte.value),
                mask: number.mask << 8 | u128::from(byte.mask),
            }
        })
    }

    pub(super) fn take_short(&mut self, place: Place) -> Masked<u16> {
        let Masked { value, mask } = self.take_long(place, 2);
        Masked {
            value: value as u16,
            mask: mask as u16,
        }
    }

    pub(super) fn take_mac(&mut self, at: u32) -> Masked<u64> {
        let Masked { value, mask } = self.take_long(Place::Packet(at), 6);
        Masked {
            value: value as u64,
            mask: mask as u64,
        }
    }

    /// Takes two bytes that must be compared as a whole, or not at all.
    pub(super) fn take_whole(&mut self, at: u32, name: &str) -> Result<Option<u16>, Why> {
        let Masked { value, mask } = self.take_short(Place::Packet(at));
        match mask {
            0 => Ok(None),
            u16::MAX => Ok(Some(value)),
            _ => Err(format!("rules of a card test the whole of {name}")),
        }
    }
}

/// Expands a condition; no conjunction contains another.
///
/// # Errors
/// If it has tests that are not comparisons of bytes, or too many.
pub(super) fn union(cond: &Cond) -> Result<Vec<Cube>, Why> {
    let mut union: Vec<Cube> = Vec::new();
    for cube in expand(cond, true)? {
        let Some(cube) = cube.decided()? else {
            continue;
        };
        if union.iter().any(|other| other.contains(&cube)) {
            continue;
        }
        union.retain(|other| !cube.contains(other));
        union.push(cube);
    }
    Ok(union)
}

/// The conjunctions for which a condition has a value.
fn expand(cond: &Cond, value: bool) -> Result<Vec<Cube>, Why> {
    Ok(match cond {
        Cond::Const(is) if *is == value => vec![Cube::default()],
        Cond::Const(_) => Vec::new(),
        Cond::Not(inner) => expand(inner, !value)?,
        Cond::Test(test) => test_cubes(test, value)?,
        Cond::Tag(_, in_packet) => expand(in_packet, value)?,
        Cond::All(list) if value => all(list, value)?,
        Cond::Any(list) if !value => all(list, value)?,
        Cond::All(list) | Cond::Any(list) => {
            let mut union = Vec::new();
            for cond in list {
                union.extend(expand(cond, value)?);
                few(&union)?;
            }
            union
        }
        Cond::Choice(test, first, second) => {
            let mut union = product(&test_cubes(test, true)?, &expand(first, value)?)?;
            union.extend(product(&test_cubes(test, false)?, &expand(second, value)?)?);
            few(&union)?;
            union
        }
        Cond::Last(_) => return Err("rules of a card do not search in the payload".into()),
    })
}

fn all(list: &[Cond], value: bool) -> Result<Vec<Cube>, Why> {
    let mut cubes = vec![Cube::default()];
    for cond in list {
        cubes = product(&cubes, &expand(cond, value)?)?;
    }
    Ok(cubes)
}

fn product(first: &[Cube], second: &[Cube]) -> Result<Vec<Cube>, Why> {
    let mut cubes = Vec::new();
    for one in first {
        cubes.extend(second.iter().filter_map(|other| one.and(other)));
        few(&cubes)?;
    }
    Ok(cubes)
}

fn few(cubes: &[Cube]) -> Result<(), Why> {
    match cubes.len() <= COUNT_MAX {
        true => Ok(()),
        false => Err("it has too many alternatives for the rules of a card".into()),
    }
}

/// What a test loads: position, number of bytes, mask.
fn loaded(test: &Test) -> Option<(Place, u32, u32)> {
    let (head, mask) = match test.load.split_last()? {
        (last, head) if last.code == AND => (head, last.k),
        _ => (&test.load[..], u32::MAX),
    };
    let (load, place) = match head {
        [load] if load.code & !SIZE == LD_ABS => (load, Place::Packet(load.k)),
        [header, load] if header.code == LDX_MSH && load.code & !SIZE == LD_IND => {
            let (network, offset) = (header.k, load.k.checked_sub(header.k)?);
            (load, Place::Transport { network, offset })
        }
        _ => return None,
    };
    let len = match load.code & SIZE {
        0x10 => 1,
        0x08 => 2,
        0x00 => 4,
        _ => return None,
    };
    // No field of a rule is far from the start; the sum of offsets cannot overflow.
    let is_near = match place {
        Place::Packet(at) => at < 0x1_0000,
        Place::Transport { network, offset } => network < 0x1_0000 && offset < 0x1_0000,
    };
    is_near.then_some((place, len, mask & most(len)))
}

/// The maximum value of a number of bytes.
fn most(len: u32) -> u32 {
    u32::MAX >> (32 - 8 * len)
}

fn test_cubes(test: &Test, wanted: bool) -> Result<Vec<Cube>, Why> {
    let computed = || "rules of a card compare bytes of the packet and compute nothing".to_owned();
    let (place, len, mask) = loaded(test).ok_or_else(computed)?;
    let k = test.k;
    let is_equal = |mask: u32, value: u32| equal(place, len, mask, value);
    let is_unequal = |mask: u32, value: u32| match mask.is_power_of_two() {
        true => equal(place, len, mask, !value & mask),
        false => Cube {
            unequal: vec![Unequal {
                place,
                len,
                mask,
                value,
            }],
            ..Cube::default()
        },
    };
    let always = |is: bool| match is == wanted {
        true => vec![Cube::default()],
        false => Vec::new(),
    };
    Ok(match (test.jump, wanted) {
        (JEQ, _) if k & !mask != 0 => always(false),
        (JEQ, _) if mask == 0 => always(true),
        (JEQ, true) => vec![is_equal(mask, k)],
        (JEQ, false) => vec![is_unequal(mask, k)],
        (JSET, _) if mask & k == 0 => always(false),
        (JSET, true) => vec![is_unequal(mask & k, 0)],
        (JSET, false) => vec![is_equal(mask & k, 0)],
        (JGT | JGE, _) if mask == most(len) => {
            // The first value of the upper part.
            let start = u64::from(k) + u64::from(test.jump == JGT);
            let whole = 1 << (8 * len);
            let (low, end) = match wanted {
                true => (start.min(whole), whole),
                false => (0, start.min(whole)),
            };
            let prefixes = prefixes(low, end).into_iter();
            prefixes
                .map(|(value, size)| is_equal(most(len) & !((size - 1) as u32), value as u32))
                .collect()
        }
        _ => return Err(computed()),
    })
}

/// The conjunction that compares some bits of up to four bytes.
fn equal(place: Place, len: u32, mask: u32, value: u32) -> Cube {
    let bytes = (0..len).filter_map(|index| {
        let shift = 8 * (len - 1 - index);
        let (mask, value) = ((mask >> shift) as u8, (value >> shift) as u8);
        (mask != 0).then_some((place.plus(index), Byte { value, mask }))
    });
    Cube {
        bytes: bytes.collect(),
        ..Cube::default()
    }
}

/// Splits `low..end` into aligned blocks: first value and size, a power of two.
fn prefixes(mut low: u64, end: u64) -> Vec<(u64, u64)> {
    let mut blocks = Vec::new();
    while low < end {
        let aligned = match low {
            0 => 1 << 32,
            _ => 1 << low.trailing_zeros(),
        };
        let mut size: u64 = aligned;
        while size > end - low {
            size /= 2;
        }
        blocks.push((low, size));
        low += size;
    }
    blocks
}
