//! What is known of a packet on one path through programs: bits and bounds of values, and how many
//! bytes there are.
//!
//! Facts are only added, and forgotten in the opposite order. Fewer facts prove less, so there may
//! be a maximum.

use bpf::cbpf::{Alu, Cond, Width};

use super::values::{Id, Value, Values, compute};

/// Maximum number of facts of a kind. Further ones are not recorded.
const FACTS_MAX: usize = 512;

/// Depth of expressions that are looked into.
const DEPTH_MAX: usize = 8;

const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
/// Offsets of the EtherType and of the IP header.
pub(super) const ETHER_TYPE: u32 = 12;
pub(super) const NETWORK: u32 = 14;

/// Bits of a value: those in the mask are those of `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) mask: u32,
    pub(super) value: u32,
}

impl Bits {
    fn of(number: u32) -> Self {
        let mask = u32::MAX;
        Bits {
            mask,
            value: number,
        }
    }

    /// The bits that may be set.
    fn possible(self) -> u32 {
        !self.mask | self.value
    }
}

/// The facts; see the module.
#[derive(Default)]
pub(super) struct Facts {
    /// Bits of the byte at an offset from a value.
    bytes: Vec<(Id, u32, u8, u8)>,
    /// Bits of other values.
    bits: Vec<(Id, Bits)>,
    /// Least and greatest number.
    bounds: Vec<(Id, u32, u32)>,
    /// Numbers that a value is not.
    unequal: Vec<(Id, u32)>,
    /// Bits of which one at least is set.
    sets: Vec<(Id, u32)>,
    /// Outcomes of comparisons of two values.
    compared: Vec<(Cond, Id, Id, bool)>,
    /// There are bytes up to this offset from a value.
    reach: Vec<(Id, u32)>,
}

/// A state of the facts to return to.
pub(super) type Mark = [usize; 7];

impl Facts {
    pub(super) fn mark(&self) -> Mark {
        [
            self.bytes.len(),
            self.bits.len(),
            self.bounds.len(),
            self.unequal.len(),
            self.sets.len(),
            self.compared.len(),
            self.reach.len(),
        ]
    }

    pub(super) fn forget(&mut self, mark: Mark) {
        self.bytes.truncate(mark[0]);
        self.bits.truncate(mark[1]);
        self.bounds.truncate(mark[2]);
        self.unequal.truncate(mark[3]);
        self.sets.truncate(mark[4]);
        self.compared.truncate(mark[5]);
        self.reach.truncate(mark[6]);
    }

    fn byte(&self, base: Id, at: u32) -> Bits {
        let here = self.bytes.iter().filter(|row| (row.0, row.1) == (base, at));
        here.fold(Bits { mask: 0, value: 0 }, |bits, row| Bits {
            mask: bits.mask | u32::from(row.2),
            value: bits.value | u32::from(row.3),
        })
    }

    /// The known bits of a value.
    pub(super) fn known(&self, values: &Values, id: Id) -> Bits {
        self.known_at(values, id, 0)
    }

    fn known_at(&self, values: &Values, id: Id, depth: usize) -> Bits {
        let nothing = Bits { mask: 0, value: 0 };
        let own = self.bits.iter().filter(|row| row.0 == id);
        let own = own.fold(nothing, |bits, row| Bits {
            mask: bits.mask | row.1.mask,
            value: bits.value | row.1.value,
        });
        let computed = match values.get(id) {
            Value::Number(number) => return Bits::of(number),
            Value::Bytes(width, base, at) => {
                let count = width.bytes();
                let high = !(u32::MAX >> (32 - 8 * count));
                (0..count).fold(nothing, |bits, index| {
                    let byte = self.byte(base, at + index);
                    Bits {
                        mask: bits.mask << 8 | byte.mask,
                        value: bits.value << 8 | byte.value,
                    }
                }) | high
            }
            Value::Len => nothing,
            Value::Operation(..) if depth == DEPTH_MAX => nothing,
            Value::Operation(op, a, b) => {
                let a = self.known_at(values, a, depth + 1);
                let b = self.known_at(values, b, depth + 1);
                operate(op, a, b)
            }
        };
        Bits {
            mask: own.mask | computed.mask,
            value: own.value | computed.value,
        }
    }

    /// The least and the greatest number that a value may be.
    pub(super) fn range(&self, values: &Values, id: Id) -> (u32, u32) {
        self.range_at(values, id, 0)
    }

    fn range_at(&self, values: &Values, id: Id, depth: usize) -> (u32, u32) {
        let bits = self.known_at(values, id, depth);
        let (mut low, mut high) = (bits.value, bits.possible());
        for &(_, least, most) in self.bounds.iter().filter(|row| row.0 == id) {
            (low, high) = (low.max(least), high.min(most));
        }
        if let Value::Operation(op, a, b) = values.get(id)
            && depth < DEPTH_MAX
            && let Some(k) = values.as_number(b)
        {
            let (least, most) = self.range_at(values, a, depth + 1);
            let ends = match op {
                Alu::Add => least.checked_add(k).zip(most.checked_add(k)),
                Alu::Sub => least.checked_sub(k).zip(most.checked_sub(k)),
                Alu::Mul => least.checked_mul(k).zip(most.checked_mul(k)),
                Alu::Div if k > 0 => Some((least / k, most / k)),
                Alu::Mod if k > 0 => Some((0, k - 1)),
                Alu::Rsh if k < 32 => Some((least >> k, most >> k)),
                Alu::And => Some((0, most)),
                _ => None,
            };
            if let Some((least, most)) = ends {
                (low, high) = (low.max(least), high.min(most));
            }
        }
        (low, high)
    }

    /// Whether a comparison holds; `None` if it may or may not.
    pub(super) fn decide(&self, values: &Values, cond: Cond, a: Id, b: Id) -> Option<bool> {
        let known = self
            .compared
            .iter()
            .find(|row| (row.0, row.1, row.2) == (cond, a, b));
        if let Some(row) = known {
            return Some(row.3);
        }
        if a == b && cond != Cond::Set {
            return Some(cond != Cond::Gt);
        }
        let (low, high) = self.range(values, a);
        let (least, most) = self.range(values, b);
        let bits = self.known(values, a);
        match cond {
            Cond::Gt if low > most => Some(true),
            Cond::Gt if high <= least => Some(false),
            Cond::Ge if low >= most => Some(true),
            Cond::Ge if high < least => Some(false),
            Cond::Gt | Cond::Ge => None,
            Cond::Eq if low > most || high < least => Some(false),
            Cond::Eq if (low, least) == (high, most) && low == least => Some(true),
            Cond::Eq => {
                let other = self.known(values, b);
                if (bits.value ^ other.value) & bits.mask & other.mask != 0 {
                    return Some(false);
                }
                let k = values.as_number(b)?;
                let is_excluded = self.unequal.contains(&(a, k))
                    || self.sets.iter().any(|&(id, set)| id == a && set & k == 0);
                is_excluded.then_some(false)
            }
            Cond::Set => {
                let k = values.as_number(b)?;
                if bits.possible() & k == 0 {
                    return Some(false);
                }
                let is_set = bits.value & bits.mask & k != 0
                    || self.sets.iter().any(|&(id, set)| id == a && set & !k == 0);
                is_set.then_some(true)
            }
        }
    }

    /// Records the outcome of a comparison that was not decided.
    pub(super) fn learn(&mut self, values: &Values, cond: Cond, (a, b): (Id, Id), outcome: bool) {
        push(&mut self.compared, (cond, a, b, outcome));
        let Some(k) = values.as_number(b) else {
            return;
        };
        let bound = match (cond, outcome) {
            (Cond::Eq, true) => {
                self.learn_bits(values, a, Bits::of(k), 0);
                Some((k, k))
            }
            (Cond::Eq, false) => {
                push(&mut self.unequal, (a, k));
                let bits = self.known(values, a);
                if (!bits.mask).is_power_of_two() && k & bits.mask == bits.value {
                    // One bit was not known.
                    self.learn_bits(values, a, Bits::of(k ^ !bits.mask), 0);
                }
                let (low, high) = self.range(values, a);
                match k {
                    _ if k == low => Some((k.saturating_add(1), u32::MAX)),
                    _ if k == high => Some((0, k.saturating_sub(1))),
                    _ => None,
                }
            }
            (Cond::Gt, true) => Some((k.saturating_add(1), u32::MAX)),
            (Cond::Gt, false) => Some((0, k)),
            (Cond::Ge, true) => Some((k, u32::MAX)),
            (Cond::Ge, false) => Some((0, k.saturating_sub(1))),
            (Cond::Set, false) => {
                self.learn_bits(values, a, Bits { mask: k, value: 0 }, 0);
                None
            }
            (Cond::Set, true) => {
                let possible = self.known(values, a).possible() & k;
                if possible.is_power_of_two() {
                    let (mask, value) = (possible, possible);
                    self.learn_bits(values, a, Bits { mask, value }, 0);
                }
                push(&mut self.sets, (a, k));
                None
            }
        };
        if let Some((low, high)) = bound {
            push(&mut self.bounds, (a, low, high));
        }
        // The leading bits that both bounds have.
        let (low, high) = self.range(values, a);
        let mask = !(u32::MAX
            .checked_shr((low ^ high).leading_zeros())
            .unwrap_or(0));
        if low <= high && mask & !self.known(values, a).mask != 0 {
            let value = low & mask;
            self.learn_bits(values, a, Bits { mask, value }, 0);
        }
    }

    /// Records bits of a value, and what follows for the values it was computed from.
    fn learn_bits(&mut self, values: &Values, id: Id, bits: Bits, depth: usize) {
        let Bits { mask, value } = bits;
        let (op, a, k) = match values.get(id) {
            Value::Bytes(width, base, at) => {
                let count = width.bytes();
                for index in 0..count {
                    let shift = 8 * (count - 1 - index);
                    let (mask, value) = ((mask >> shift) as u8, (value >> shift) as u8);
                    if mask != 0 {
                        push(&mut self.bytes, (base, at + index, mask, value & mask));
                    }
                }
                return;
            }
            Value::Operation(op, a, b) => {
                let value = value & mask;
                push(&mut self.bits, (id, Bits { mask, value }));
                (op, a, values.as_number(b))
            }
            Value::Len | Value::Number(_) => return,
        };
        let Some(k) = k.filter(|_| depth < DEPTH_MAX) else {
            return;
        };
        // Sums are known up to the first unknown bit.
        let low = (1_u64 << mask.trailing_ones()) as u32;
        let low = low.wrapping_sub(1);
        let of = |mask: u32, value: u32| Bits {
            mask,
            value: value & mask,
        };
        let below = match op {
            Alu::And => of(mask & k, value),
            Alu::Or => of(mask & !k, value),
            Alu::Xor => of(mask, value ^ k),
            Alu::Lsh if k < 32 => of(mask >> k, value >> k),
            Alu::Rsh if k < 32 => of(mask << k, value << k),
            Alu::Add => of(low, value.wrapping_sub(k)),
            Alu::Sub => of(low, value.wrapping_add(k)),
            _ => return,
        };
        if below.mask != 0 {
            self.learn_bits(values, a, below, depth + 1);
        }
    }

    /// Whether a packet has these bytes: each was loaded before, or belongs to the Ethernet header,
    /// or to an IP header without options and extensions behind it.
    pub(super) fn has(&self, values: &mut Values, base: Id, end: u32) -> bool {
        let is_reached = |base: Id, end: u32| {
            let mut reach = self.reach.iter();
            reach.any(|&(id, reached)| id == base && reached >= end)
        };
        if is_reached(base, end) {
            return true;
        }
        let (_, most) = self.range(values, base);
        let Some(end) = most.checked_add(end) else {
            return false;
        };
        let kind = values.id(Value::Bytes(Width::H, Values::ZERO, ETHER_TYPE));
        let header_end = match self.range(values, kind) {
            (IPV4, IPV4) => NETWORK + 20,
            (IPV6, IPV6) => NETWORK + 40,
            _ => NETWORK,
        };
        end <= header_end || is_reached(Values::ZERO, end)
    }

    /// Records that a packet has these bytes.
    pub(super) fn reached(&mut self, values: &Values, base: Id, end: u32) {
        push(&mut self.reach, (base, end));
        let (least, _) = self.range(values, base);
        if base != Values::ZERO
            && let Some(end) = least.checked_add(end)
        {
            push(&mut self.reach, (Values::ZERO, end));
        }
    }
}

impl std::ops::BitOr<u32> for Bits {
    type Output = Bits;

    /// With further bits that are 0.
    fn bitor(self, zero: u32) -> Bits {
        Bits {
            mask: self.mask | zero,
            value: self.value & !zero,
        }
    }
}

fn push<T>(list: &mut Vec<T>, fact: T) {
    if list.len() < FACTS_MAX {
        list.push(fact);
    }
}

/// The known bits of a result.
fn operate(op: Alu, a: Bits, b: Bits) -> Bits {
    let is_number = |bits: Bits| bits.mask == u32::MAX;
    if is_number(a)
        && is_number(b)
        && let Some(number) = compute(op, a.value, b.value)
    {
        return Bits::of(number);
    }
    let nothing = Bits { mask: 0, value: 0 };
    match op {
        Alu::And => {
            let ones = a.value & b.value;
            let zeros = (a.mask & !a.value) | (b.mask & !b.value);
            Bits {
                mask: ones | zeros,
                value: ones,
            }
        }
        Alu::Or => {
            let ones = a.value | b.value;
            let zeros = a.mask & !a.value & b.mask & !b.value;
            Bits {
                mask: ones | zeros,
                value: ones,
            }
        }
        Alu::Xor => Bits {
            mask: a.mask & b.mask,
            value: (a.value ^ b.value) & a.mask & b.mask,
        },
        Alu::Lsh if is_number(b) && b.value < 32 => Bits {
            mask: a.mask << b.value | !(u32::MAX << b.value),
            value: a.value << b.value,
        },
        Alu::Rsh if is_number(b) && b.value < 32 => Bits {
            mask: a.mask >> b.value | !(u32::MAX >> b.value),
            value: a.value >> b.value,
        },
        Alu::Add | Alu::Sub => {
            // Up to the first bit that one of them does not know.
            let count = (a.mask & b.mask).trailing_ones();
            let mask = ((1_u64 << count) as u32).wrapping_sub(1);
            let sum = match op {
                Alu::Add => a.value.wrapping_add(b.value),
                _ => a.value.wrapping_sub(b.value),
            };
            Bits {
                mask,
                value: sum & mask,
            }
        }
        _ => nothing,
    }
}
