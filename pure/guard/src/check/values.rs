//! Values that a classic BPF program computes from a packet, as expressions. Equal expressions have
//! equal values, because the packet does not change.

use std::collections::HashMap;

use bpf::cbpf::{Alu, Width};

/// A value by its number.
pub(super) type Id = u32;

/// An expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    Number(u32),
    /// Bytes of the packet, at an offset from a value.
    Bytes(Width, Id, u32),
    /// The length of the packet.
    Len,
    Operation(Alu, Id, Id),
}

/// All expressions so far.
pub(super) struct Values {
    list: Vec<Value>,
    known: HashMap<Value, Id>,
}

impl Values {
    /// The number 0: the base of bytes at a constant offset.
    pub(super) const ZERO: Id = 0;

    pub(super) fn new() -> Self {
        let mut values = Values {
            list: Vec::new(),
            known: HashMap::new(),
        };
        values.id(Value::Number(0));
        values
    }

    pub(super) fn id(&mut self, value: Value) -> Id {
        let next = self.list.len() as Id;
        let id = *self.known.entry(value).or_insert(next);
        if id == next {
            self.list.push(value);
        }
        id
    }

    pub(super) fn get(&self, id: Id) -> Value {
        self.list[id as usize]
    }

    pub(super) fn number(&mut self, number: u32) -> Id {
        self.id(Value::Number(number))
    }

    /// The number that a value is, if it is constant.
    pub(super) fn as_number(&self, id: Id) -> Option<u32> {
        match self.get(id) {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    /// The result of an operation, which is a number if both operands are; `None` for a division by
    /// 0, which rejects the packet.
    pub(super) fn operate(&mut self, op: Alu, a: Id, b: Id) -> Option<Id> {
        let number = self.as_number(b);
        if matches!(op, Alu::Div | Alu::Mod) && number == Some(0) {
            return None;
        }
        match (self.as_number(a), number) {
            (Some(x), Some(y)) => Some(self.number(compute(op, x, y)?)),
            (None, Some(0)) if matches!(op, Alu::Add | Alu::Sub | Alu::Lsh | Alu::Rsh) => Some(a),
            _ => Some(self.id(Value::Operation(op, a, b))),
        }
    }
}

/// The result for two numbers; `None` for a division by 0.
pub(super) fn compute(op: Alu, a: u32, b: u32) -> Option<u32> {
    Some(match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Div => a.checked_div(b)?,
        Alu::Mod => a.checked_rem(b)?,
        Alu::And => a & b,
        Alu::Or => a | b,
        Alu::Xor => a ^ b,
        Alu::Lsh => a.checked_shl(b).unwrap_or(0),
        Alu::Rsh => a.checked_shr(b).unwrap_or(0),
        Alu::Neg => a.wrapping_neg(),
    })
}
