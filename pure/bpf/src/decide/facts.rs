//! Facts about a packet: known bits of its bytes, its length, and values that a field does not
//! have.

use alloc::rc::Rc;
use alloc::vec::Vec;

use super::{Base, Field};
use crate::cbpf::Width;

/// The known bits of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits {
    pub mask: u32,
    pub value: u32,
}

impl Bits {
    /// Whether these are all bits of a field, with one of these values (in ascending order).
    fn is_one_of(self, field: &Field, values: &[u32]) -> bool {
        self.mask & field.mask == field.mask
            && values.binary_search(&(self.value & field.mask)).is_ok()
    }
}

/// The known bits of one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Byte {
    pub base: Base,
    pub off: u32,
    pub mask: u8,
    pub value: u8,
}

impl Byte {
    pub fn key(&self) -> (Base, u32) {
        (self.base, self.off)
    }
}

/// Limits of the number of bytes after a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length {
    base: Base,
    /// The packet has at least this many.
    least: u32,
    /// The packet has fewer than this.
    below: u32,
}

/// All facts about a packet at one point of the tree or of a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Sorted by base and offset.
    bytes: Vec<Byte>,
    lengths: Vec<Length>,
    not: Vec<(Field, Rc<[u32]>)>,
}

/// Whether a load is inside the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    Yes,
    No,
    Perhaps,
}

impl Facts {
    pub fn bytes(&self) -> &[Byte] {
        &self.bytes
    }

    /// The known bits of a byte: mask and value.
    pub fn byte(&self, base: Base, off: u32) -> (u8, u8) {
        let found = self.bytes.binary_search_by_key(&(base, off), Byte::key);
        found.map_or((0, 0), |at| (self.bytes[at].mask, self.bytes[at].value))
    }

    /// The known bits of a number in network byte order.
    pub fn bits(&self, base: Base, off: u32, width: Width) -> Bits {
        let (mut bits, end) = (Bits::default(), off + width.bytes());
        let first = self.bytes.partition_point(|byte| byte.key() < (base, off));
        let known = self.bytes[first..].iter();
        for byte in known.take_while(|byte| byte.base == base && byte.off < end) {
            let shift = 8 * (end - 1 - byte.off);
            bits.mask |= u32::from(byte.mask) << shift;
            bits.value |= u32::from(byte.value) << shift;
        }
        bits
    }

    /// Adds known bits of a number. Returns `false` if they contradict known facts.
    pub fn learn(&mut self, base: Base, off: u32, width: Width, bits: Bits) -> bool {
        let mut is_new = false;
        let mut place = self.bytes.partition_point(|byte| byte.key() < (base, off));
        for at in 0..width.bytes() {
            let shift = 8 * (width.bytes() - 1 - at);
            let (mask, value) = ((bits.mask >> shift) as u8, (bits.value >> shift) as u8);
            let off = off + at;
            match self.bytes.get_mut(place) {
                Some(byte) if byte.key() == (base, off) => {
                    if byte.mask & mask & (byte.value ^ value) != 0 {
                        return false;
                    }
                    is_new |= mask & !byte.mask != 0;
                    byte.mask |= mask;
                    byte.value |= value & mask;
                }
                _ if mask == 0 => continue,
                _ => {
                    let value = value & mask;
                    let byte = Byte {
                        base,
                        off,
                        mask,
                        value,
                    };
                    self.bytes.insert(place, byte);
                    is_new = true;
                }
            }
            place += 1;
        }
        !is_new
            || !self
                .not
                .iter()
                .any(|(field, values)| self.is_one_of(field, values))
    }

    /// Whether [`Self::learn`] would not contradict known facts.
    pub fn allows(&self, base: Base, off: u32, width: Width, bits: Bits) -> bool {
        let known = self.bits(base, off, width);
        if known.mask & bits.mask & (known.value ^ bits.value) != 0 {
            return false;
        }
        if bits.mask & !known.mask == 0 || self.not.is_empty() {
            return true;
        }
        let end = off + width.bytes();
        let is_excluded = |field: &Field, values: &[u32]| {
            let mut merged = self.bits(field.base, field.off, field.width);
            let field_end = field.off + field.width.bytes();
            // The bytes that both have.
            for at in field.off.max(off)..field_end.min(end) {
                let (from, to) = (8 * (end - 1 - at), 8 * (field_end - 1 - at));
                if field.base == base {
                    merged.mask |= (bits.mask >> from & 0xff) << to;
                    merged.value |= ((bits.value & bits.mask) >> from & 0xff) << to;
                }
            }
            merged.is_one_of(field, values)
        };
        !self
            .not
            .iter()
            .any(|(field, values)| is_excluded(field, values))
    }

    /// Whether the field is known to have one of these values (in ascending order).
    fn is_one_of(&self, field: &Field, values: &[u32]) -> bool {
        self.bits(field.base, field.off, field.width)
            .is_one_of(field, values)
    }

    /// Adds that the field has none of these values (in ascending order). Returns `false` if that
    /// contradicts known facts.
    pub fn exclude(&mut self, field: Field, values: Rc<[u32]>) -> bool {
        let is_possible = !self.is_one_of(&field, &values);
        self.not.push((field, values));
        is_possible
    }

    fn length(&self, base: Base) -> Length {
        let known = self.lengths.iter().find(|length| length.base == base);
        known.copied().unwrap_or(Length {
            base,
            least: 0,
            below: u32::MAX,
        })
    }

    fn set_length(&mut self, length: Length) {
        match self.lengths.iter_mut().find(|l| l.base == length.base) {
            Some(known) => *known = length,
            None => self.lengths.push(length),
        }
    }

    /// Whether the packet has its first `end` bytes from this base.
    pub fn inside(&self, base: Base, end: u32) -> Inside {
        let length = self.length(base);
        if end <= length.least {
            Inside::Yes
        } else if end >= length.below {
            Inside::No
        } else {
            Inside::Perhaps
        }
    }

    /// The number of bytes after a base that the packet has at least.
    pub fn least(&self, base: Base) -> u32 {
        self.length(base).least
    }

    /// Adds that the packet has these bytes. Returns `false` if that contradicts known facts.
    pub fn present(&mut self, base: Base, end: u32) -> bool {
        let mut length = self.length(base);
        if length.least < end {
            length.least = end;
            self.set_length(length);
        }
        length.least < length.below
    }

    /// Adds that the packet ends before these bytes do. Returns `false` if that contradicts known
    /// facts.
    pub fn absent(&mut self, base: Base, end: u32) -> bool {
        let mut length = self.length(base);
        length.below = length.below.min(end);
        self.set_length(length);
        length.least < length.below
    }

    /// Keeps only facts that are in both.
    pub fn join(&mut self, other: &Self) {
        self.bytes.retain_mut(|byte| {
            let (mask, value) = other.byte(byte.base, byte.off);
            byte.mask &= mask & !(byte.value ^ value);
            byte.value &= byte.mask;
            byte.mask != 0
        });
        for length in &mut self.lengths {
            let theirs = other.length(length.base);
            length.least = length.least.min(theirs.least);
            length.below = length.below.max(theirs.below);
        }
        self.not.retain(|fact| other.not.contains(fact));
    }
}
