//! Facts about the value of a register: its origin in the packet, its known bits, its limits.

use super::Base;
use super::facts::Bits;
use crate::cbpf::{Alu, Cond, Width};

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Unknown,
    /// A load, masked with these bits.
    Load {
        base: Base,
        off: u32,
        width: Width,
        mask: u32,
    },
    /// The length of the IPv4 header that begins at this offset.
    HeaderLen(u32),
}

/// The register is `word - sub`; the facts are about the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub origin: Origin,
    pub sub: u32,
    pub bits: Bits,
    least: u32,
    most: u32,
}

pub(super) const ALL: u32 = u32::MAX;

/// A mask of all bits of a load.
pub(super) const fn width_mask(width: Width) -> u32 {
    ALL >> (32 - 8 * width.bytes())
}

impl Value {
    pub const UNKNOWN: Self = Self {
        origin: Origin::Unknown,
        sub: 0,
        bits: Bits { mask: 0, value: 0 },
        least: 0,
        most: ALL,
    };

    pub const fn constant(value: u32) -> Self {
        Self {
            bits: Bits { mask: ALL, value },
            least: value,
            most: value,
            ..Self::UNKNOWN
        }
    }

    /// A loaded value with these known bits.
    pub fn load(base: Base, off: u32, width: Width, known: Bits) -> Self {
        let mask = width_mask(width);
        let origin = Origin::Load {
            base,
            off,
            width,
            mask,
        };
        let bits = Bits {
            mask: known.mask | !mask,
            value: known.value,
        };
        let value = Self {
            origin,
            bits,
            ..Self::UNKNOWN
        };
        value.settled().unwrap_or(Self::UNKNOWN)
    }

    /// Four times the low four bits of a byte with these known bits.
    pub fn header_len(at: u32, known: Bits) -> Self {
        let bits = Bits {
            mask: (known.mask & 0xf) << 2 | !0x3c,
            value: (known.value & 0xf) << 2,
        };
        let value = Self {
            origin: Origin::HeaderLen(at),
            bits,
            ..Self::UNKNOWN
        };
        value.settled().unwrap_or(Self::UNKNOWN)
    }

    /// The register's value, if only one is possible.
    pub fn known(&self) -> Option<u32> {
        (self.least == self.most).then(|| self.least.wrapping_sub(self.sub))
    }

    /// Derives bits from the limits and limits from the bits; `None` if they contradict each other.
    fn settled(mut self) -> Option<Self> {
        self.least = self.least.max(self.bits.value);
        self.most = self.most.min(self.bits.value | !self.bits.mask);
        if self.least > self.most {
            return None;
        }
        // The leading bits that all numbers within the limits share.
        let same = !ALL
            .checked_shr((self.least ^ self.most).leading_zeros())
            .unwrap_or(0);
        if self.bits.mask & same & (self.bits.value ^ self.least) != 0 {
            return None;
        }
        self.bits.value |= self.least & same;
        self.bits.mask |= same;
        Some(self)
    }

    /// The facts that are true for both values.
    pub fn join(&self, other: &Self) -> Self {
        if self == other {
            return *self;
        }
        if self.sub != other.sub {
            return Self::UNKNOWN;
        }
        let mask = self.bits.mask & other.bits.mask & !(self.bits.value ^ other.bits.value);
        Self {
            origin: match self.origin == other.origin {
                true => self.origin,
                false => Origin::Unknown,
            },
            sub: self.sub,
            bits: Bits {
                mask,
                value: self.bits.value & mask,
            },
            least: self.least.min(other.least),
            most: self.most.max(other.most),
        }
    }

    /// The value after an operation with a constant.
    pub fn alu(&self, op: Alu, k: u32) -> Self {
        if let Some(known) = self.known() {
            return Self::constant(fold(op, known, k));
        }
        match op {
            Alu::Add | Alu::Sub => {
                let sub = if op == Alu::Add { k.wrapping_neg() } else { k };
                Self {
                    sub: self.sub.wrapping_add(sub),
                    ..*self
                }
            }
            Alu::And if self.sub == 0 => {
                let origin = match self.origin {
                    Origin::Load {
                        base,
                        off,
                        width,
                        mask,
                    } => Origin::Load {
                        base,
                        off,
                        width,
                        mask: mask & k,
                    },
                    _ => Origin::Unknown,
                };
                let bits = Bits {
                    mask: self.bits.mask | !k,
                    value: self.bits.value & k,
                };
                let value = Self {
                    origin,
                    bits,
                    ..Self::UNKNOWN
                };
                value.settled().unwrap_or(Self::UNKNOWN)
            }
            Alu::And | Alu::Mod => {
                let most = if op == Alu::And { k } else { k.wrapping_sub(1) };
                let value = Self {
                    most,
                    ..Self::UNKNOWN
                };
                value.settled().unwrap_or(Self::UNKNOWN)
            }
            _ => Self::UNKNOWN,
        }
    }

    /// The facts after a comparison with a constant, by its result; `None` if the result is
    /// impossible.
    pub fn given(&self, cond: Cond, k: u32, holds: bool) -> Option<Self> {
        let mut value = *self;
        match (cond, holds) {
            (Cond::Eq, true) => {
                let word = k.wrapping_add(self.sub);
                value.least = value.least.max(word);
                value.most = value.most.min(word);
            }
            (Cond::Eq, false) => value.is_not(k.wrapping_add(self.sub))?,
            (Cond::Ge, _) if k == 0 => return holds.then_some(value),
            (Cond::Gt, _) => value.is_within(k, !holds)?,
            (Cond::Ge, _) => value.is_within(k - 1, !holds)?,
            (Cond::Set, true) => value.has_one_of(k)?,
            (Cond::Set, false) => {
                // The low bits of a difference depend only on the low bits of both numbers.
                if self.sub == 0 || (k & k.wrapping_add(1)) == 0 {
                    let wanted = self.sub & k;
                    if value.bits.mask & k & (value.bits.value ^ wanted) != 0 {
                        return None;
                    }
                    value.bits.mask |= k;
                    value.bits.value |= wanted;
                }
            }
        }
        value.settled()
    }

    fn is_not(&mut self, word: u32) -> Option<()> {
        if self.least == self.most && self.least == word {
            return None;
        }
        let unknown = !self.bits.mask;
        if unknown.is_power_of_two() && self.bits.value == word & self.bits.mask {
            self.bits.value |= unknown & !word;
            self.bits.mask = ALL;
        } else if self.least == word {
            self.least += 1;
        } else if self.most == word {
            self.most -= 1;
        }
        Some(())
    }

    /// Adds that the register is, or is not, at most `k`.
    fn is_within(&mut self, k: u32, is_so: bool) -> Option<()> {
        let Some(end) = self.sub.checked_add(k) else {
            return Some(());
        };
        if is_so {
            self.least = self.least.max(self.sub);
            self.most = self.most.min(end);
        } else if self.sub == 0 {
            self.least = self.least.max(end.checked_add(1)?);
        } else if self.sub <= self.least && self.most <= end {
            return None;
        }
        Some(())
    }

    /// Adds that at least one of these bits is set.
    fn has_one_of(&mut self, mask: u32) -> Option<()> {
        if self.sub != 0 {
            let is_low = mask & mask.wrapping_add(1) == 0;
            let is_zero = self.bits.mask & mask == mask && (self.bits.value ^ self.sub) & mask == 0;
            return (!is_low || !is_zero).then_some(());
        }
        let possible = mask & !(self.bits.mask & !self.bits.value);
        if possible == 0 {
            return None;
        }
        if possible.is_power_of_two() {
            self.bits.mask |= possible;
            self.bits.value |= possible;
        }
        Some(())
    }
}

fn fold(op: Alu, a: u32, k: u32) -> u32 {
    match op {
        Alu::Add => a.wrapping_add(k),
        Alu::Sub => a.wrapping_sub(k),
        Alu::Mul => a.wrapping_mul(k),
        // A division by 0 has ended the program.
        Alu::Div => a.checked_div(k).unwrap_or(0),
        Alu::Mod => a.checked_rem(k).unwrap_or(0),
        Alu::And => a & k,
        Alu::Or => a | k,
        Alu::Xor => a ^ k,
        Alu::Lsh => a.checked_shl(k).unwrap_or(0),
        Alu::Rsh => a.checked_shr(k).unwrap_or(0),
        Alu::Neg => a.wrapping_neg(),
    }
}
