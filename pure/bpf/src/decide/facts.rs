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
    place: u64,
    pub mask: u8,
    pub value: u8,
}

impl Byte {
    /// A number for base and offset, with their order. Headers begin below 2^16.
    pub fn place(&self) -> u64 {
        self.place
    }

    pub fn base(&self) -> Base {
        match self.place >> 32 {
            0 => Base::Start,
            at => Base::Header(at as u32 - 1),
        }
    }

    pub fn off(&self) -> u32 {
        self.place as u32
    }
}

fn place(base: Base, off: u32) -> u64 {
    let base = match base {
        Base::Start => 0,
        Base::Header(at) => u64::from(at) + 1,
    };
    base << 32 | u64::from(off)
}

/// Limits of the number of bytes after a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Length {
    /// The packet has at least this many.
    least: u32,
    /// The packet has fewer than this.
    below: u32,
}

impl Length {
    fn join(&mut self, other: Self) {
        self.least = self.least.min(other.least);
        self.below = self.below.max(other.below);
    }
}

impl Default for Length {
    fn default() -> Self {
        Self {
            least: 0,
            below: u32::MAX,
        }
    }
}

/// All facts about a packet at one point of the tree or of a filter. They are cloned at every
/// branch of every filter, so whatever rarely changes is shared or inline.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Sorted by base and offset.
    bytes: Vec<Byte>,
    length: Length,
    /// Of headers; mostly empty.
    header_lengths: Vec<(Base, Length)>,
    /// Fields with the values that they do not have.
    not: Option<Rc<Vec<Excluded>>>,
}

type Excluded = (Field, Rc<[u32]>);

/// Room for the bytes that are learned after a clone.
const BYTES_MORE: usize = 24;

impl Clone for Facts {
    fn clone(&self) -> Self {
        let mut bytes = Vec::with_capacity(self.bytes.len() + BYTES_MORE);
        bytes.extend_from_slice(&self.bytes);
        Self {
            bytes,
            length: self.length,
            header_lengths: self.header_lengths.clone(),
            not: self.not.clone(),
        }
    }
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
        let found = self
            .bytes
            .binary_search_by_key(&place(base, off), Byte::place);
        found.map_or((0, 0), |at| (self.bytes[at].mask, self.bytes[at].value))
    }

    /// The known bits of a number in network byte order.
    pub fn bits(&self, base: Base, off: u32, width: Width) -> Bits {
        let mut bits = Bits::default();
        let start = place(base, off);
        let end = start + u64::from(width.bytes());
        let first = self.bytes.partition_point(|byte| byte.place < start);
        let known = self.bytes[first..].iter();
        for byte in known.take_while(|byte| byte.place < end) {
            let shift = 8 * (end - 1 - byte.place);
            bits.mask |= u32::from(byte.mask) << shift;
            bits.value |= u32::from(byte.value) << shift;
        }
        bits
    }

    /// Adds known bits of a number. Returns `false` if they contradict known facts.
    pub fn learn(&mut self, base: Base, off: u32, width: Width, bits: Bits) -> bool {
        let mut is_new = false;
        let start = place(base, off);
        let mut index = self.bytes.partition_point(|byte| byte.place < start);
        for at in 0..width.bytes() {
            let shift = 8 * (width.bytes() - 1 - at);
            let (mask, value) = ((bits.mask >> shift) as u8, (bits.value >> shift) as u8);
            let place = start + u64::from(at);
            match self.bytes.get_mut(index) {
                Some(byte) if byte.place == place => {
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
                    self.bytes.insert(index, Byte { place, mask, value });
                    is_new = true;
                }
            }
            index += 1;
        }
        !is_new
            || !self
                .excluded()
                .iter()
                .any(|(field, values)| self.is_one_of(field, values))
    }

    /// Whether [`Self::learn`] would not contradict known facts.
    pub fn allows(&self, base: Base, off: u32, width: Width, bits: Bits) -> bool {
        let known = self.bits(base, off, width);
        if known.mask & bits.mask & (known.value ^ bits.value) != 0 {
            return false;
        }
        if bits.mask & !known.mask == 0 || self.not.is_none() {
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
            .excluded()
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
        Rc::make_mut(self.not.get_or_insert_default()).push((field, values));
        is_possible
    }

    fn excluded(&self) -> &[Excluded] {
        self.not.as_deref().map_or(&[], Vec::as_slice)
    }

    fn length(&self, base: Base) -> Length {
        if base == Base::Start {
            return self.length;
        }
        let mut known = self.header_lengths.iter();
        let known = known.find(|known| known.0 == base);
        known.map(|known| known.1).unwrap_or_default()
    }

    fn set_length(&mut self, base: Base, length: Length) {
        if base == Base::Start {
            self.length = length;
            return;
        }
        match self.header_lengths.iter_mut().find(|l| l.0 == base) {
            Some(known) => known.1 = length,
            None => self.header_lengths.push((base, length)),
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
            self.set_length(base, length);
        }
        length.least < length.below
    }

    /// Adds that the packet ends before these bytes do. Returns `false` if that contradicts known
    /// facts.
    pub fn absent(&mut self, base: Base, end: u32) -> bool {
        let mut length = self.length(base);
        length.below = length.below.min(end);
        self.set_length(base, length);
        length.least < length.below
    }

    /// Keeps only facts that are in both.
    pub fn join(&mut self, other: &Self) {
        self.bytes.retain_mut(|byte| {
            let (mask, value) = other.byte(byte.base(), byte.off());
            byte.mask &= mask & !(byte.value ^ value);
            byte.value &= byte.mask;
            byte.mask != 0
        });
        self.length.join(other.length);
        for (base, length) in &mut self.header_lengths {
            length.join(other.length(*base));
        }
        if self.not != other.not
            && let Some(not) = &mut self.not
        {
            Rc::make_mut(not).retain(|fact| other.excluded().contains(fact));
        }
    }
}
