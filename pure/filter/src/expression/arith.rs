//! Arithmetic on packet bytes: `ip[0] & 0xf`.

use bpf::cbpf::Insn;

use super::block::{Cond, JEQ, LD_IMM, Test, WITH_X};
use super::extended::{CELLS, LD_MEM};

/// A value; the code of an operation is that of its instruction with a constant.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(u32),
    Length,
    /// Packet bytes at a computed offset: instructions that load the variable part of the offset
    /// into X, if there is one; a size bit, and a constant part.
    Load(Vec<Insn>, u16, u32, Box<Value>),
    Op(u16, Box<Value>, Box<Value>),
    Negate(Box<Value>),
    /// Bytes at an offset that earlier steps stored in scratch memory.
    Step(Vec<Insn>),
}

/// A value, and the conditions to check before loading it.
#[derive(Clone, Debug)]
pub(super) struct Guarded {
    pub(super) value: Value,
    pub(super) guard: Vec<Cond>,
    /// Steps to run before loading it, after the guards of all operands.
    pub(super) steps: Vec<Cond>,
}

pub(super) const ADD: u16 = 0x04;
pub(super) const SUB: u16 = 0x14;
pub(super) const MUL: u16 = 0x24;
pub(super) const DIV: u16 = 0x34;
pub(super) const OR: u16 = 0x44;
pub(super) const AND: u16 = 0x54;
pub(super) const LSH: u16 = 0x64;
pub(super) const RSH: u16 = 0x74;
pub(super) const MOD: u16 = 0x94;
pub(super) const XOR: u16 = 0xa4;

pub(super) const ST: u16 = 0x02;
pub(super) const LDX_MEM: u16 = 0x61;
pub(super) const TAX: u16 = 0x07;
pub(super) const ADD_X: u16 = ADD + WITH_X;

/// `a op b`, with constants folded; `None` for a division by 0 or a shift by 32 or more.
pub(super) fn operate(op: u16, a: Value, b: Value) -> Option<Value> {
    if let Value::Number(b) = b
        && (matches!(op, DIV | MOD) && b == 0 || matches!(op, LSH | RSH) && b > 31)
    {
        return None;
    }
    let (Value::Number(x), Value::Number(y)) = (&a, &b) else {
        return Some(Value::Op(op, Box::new(a), Box::new(b)));
    };
    let (x, y) = (*x, *y);
    Some(Value::Number(match op {
        ADD => x.wrapping_add(y),
        SUB => x.wrapping_sub(y),
        MUL => x.wrapping_mul(y),
        DIV => x / y,
        MOD => x % y,
        OR => x | y,
        AND => x & y,
        XOR => x ^ y,
        LSH => x << y,
        _ => x >> y,
    }))
}

/// Why [`operate`] refuses an operator with a constant operand.
pub(super) fn refusal(operator: &str) -> &'static str {
    match operator {
        "/" => "division by 0",
        "%" => "modulus by 0",
        _ => "shift by more than 31 bits",
    }
}

/// The test `a jump b`; `None` if it needs more scratch words than are free.
pub(super) fn relate(jump: u16, a: &Value, b: &Value, words: usize) -> Option<Cond> {
    let mut load = Vec::new();
    let (jump, k) = match *b {
        Value::Number(k) => {
            evaluate(a, 0, words, &mut load)?;
            (jump, k)
        }
        _ => {
            operands(a, b, 0, words, &mut load)?;
            if jump == JEQ {
                load.push(insn(SUB + WITH_X, 0));
                (JEQ, 0)
            } else {
                (jump + WITH_X, 0)
            }
        }
    };
    let is_cell = |insn: &Insn| insn.k >= CELLS && matches!(insn.code, ST | LDX_MEM);
    let is_step = load.iter().any(is_cell);
    if is_step && load.iter().any(|i| is_cell(i) && i.code == ST) {
        return None;
    }
    Some(Cond::Test(Test::new(load, jump, k)))
}

fn insn(code: u16, k: u32) -> Insn {
    Insn::new(code, 0, 0, k)
}

/// Loads the value into A, using scratch words from `free` up.
fn evaluate(value: &Value, free: u32, words: usize, out: &mut Vec<Insn>) -> Option<()> {
    match value {
        Value::Number(k) => out.push(insn(LD_IMM, *k)),
        Value::Length => out.push(insn(0x80, 0)),
        Value::Load(header, size, offset, index) => {
            load(header, (*size, *offset), index, (free, words), out)?;
        }
        Value::Step(insns) => out.extend(insns),
        Value::Negate(inner) => {
            evaluate(inner, free, words, out)?;
            out.push(insn(0x84, 0));
        }
        Value::Op(op, a, b) => match **b {
            Value::Number(k) => {
                evaluate(a, free, words, out)?;
                out.push(insn(*op, k));
            }
            _ => {
                operands(a, b, free, words, out)?;
                out.push(insn(op + WITH_X, 0));
            }
        },
    }
    Some(())
}

/// Loads `a` into A and `b` into X, using scratch words from `free` up.
fn operands(a: &Value, b: &Value, free: u32, words: usize, out: &mut Vec<Insn>) -> Option<()> {
    if free as usize >= words {
        return None;
    }
    evaluate(b, free, words, out)?;
    out.push(insn(ST, free));
    evaluate(a, free + 1, words, out)?;
    out.push(insn(LDX_MEM, free));
    Some(())
}

fn load(
    prefix: &[Insn],
    (size, offset): (u16, u32),
    index: &Value,
    (free, words): (u32, usize),
    out: &mut Vec<Insn>,
) -> Option<()> {
    match index {
        Value::Number(k) if prefix.is_empty() => {
            out.push(insn(0x20 | size, offset.wrapping_add(*k)));
            return Some(());
        }
        Value::Number(k) => {
            out.extend(prefix);
            out.push(insn(0x40 | size, offset.wrapping_add(*k)));
            return Some(());
        }
        _ => evaluate(index, free, words, out)?,
    }
    // More than a load of X overwrites A.
    let is_long = prefix.len() > 1;
    if is_long {
        if free as usize >= words {
            return None;
        }
        out.push(insn(ST, free));
    }
    out.extend(prefix);
    if is_long {
        out.push(insn(LD_MEM, free));
    }
    if !prefix.is_empty() {
        out.push(insn(ADD_X, 0));
    }
    out.extend([insn(TAX, 0), insn(0x40 | size, offset)]);
    Some(())
}
