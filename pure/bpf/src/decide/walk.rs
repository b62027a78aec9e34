//! Runs a filter on the facts about a packet, along all paths that such a packet can take.
//!
//! Jumps go forward only, so one pass over the instructions is enough. Where paths meet, up to
//! [`STATES_MAX`] are kept separately; further ones are merged, which keeps only the facts that
//! they share.

use alloc::vec;
use alloc::vec::Vec;

use super::Base;
use super::facts::{Bits, Facts, Inside};
use super::value::{Origin, Value};
use crate::cbpf::{Alu, Ancillary, Op, Operand, Place, Reg, Width};

/// Maximum number of separate states for an instruction.
const STATES_MAX: usize = 8;
/// Nothing is known beyond this offset, see [`crate::translate`].
pub(super) const OFFSET_MAX: u32 = 0xffff;

/// What is true for an instruction on all paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Whether any path reaches it.
    pub is_reached: bool,
    /// Whether the condition of a jump is true, or false, on some path.
    pub yes: bool,
    pub no: bool,
    /// Whether a load is inside, or outside, the packet on all paths.
    pub is_inside: bool,
    pub is_outside: bool,
    /// The offset of a load at X + k, if it is the same on all paths.
    pub at: Option<u32>,
    /// The value of A before the instruction, if it is the same on all paths.
    pub a: Option<u32>,
}

impl Seen {
    const NOT: Self = Self {
        is_reached: false,
        yes: false,
        no: false,
        is_inside: true,
        is_outside: true,
        at: None,
        a: None,
    };
}

/// The facts on one path.
#[derive(Clone, Debug, PartialEq)]
struct State {
    a: Value,
    x: Value,
    /// The memory words; missing words are 0.
    memory: Vec<(u32, Value)>,
    facts: Facts,
}

impl State {
    fn word(&self, word: u32) -> Value {
        let found = self.memory.iter().find(|(at, _)| *at == word);
        found.map_or(Value::constant(0), |(_, value)| *value)
    }

    fn set_word(&mut self, word: u32, value: Value) {
        self.memory.retain(|(at, _)| *at != word);
        self.memory.push((word, value));
    }

    fn join(&mut self, other: &Self) {
        self.a = self.a.join(&other.a);
        self.x = self.x.join(&other.x);
        let words: Vec<u32> = other.memory.iter().map(|(word, _)| *word).collect();
        for word in words {
            let value = self.word(word);
            self.set_word(word, value);
        }
        for (word, value) in &mut self.memory {
            *value = value.join(&other.word(*word));
        }
        self.facts.join(&other.facts);
    }
}

/// The result of [`walk`].
pub(super) struct Walk {
    /// One entry for each instruction.
    pub seen: Vec<Seen>,
    /// The facts when the filter matches: one entry for each way to match.
    pub matches: Vec<Facts>,
}

/// The states at each instruction.
struct States {
    at: Vec<Vec<State>>,
    /// Lists that have been used, with their memory.
    empty: Vec<Vec<State>>,
}

/// The address of a load.
enum Address {
    Known(Base, u32),
    /// Outside every packet.
    Outside,
    Unknown,
}

pub(super) fn walk(ops: &[Op], facts: &Facts) -> Walk {
    let mut states = States {
        at: vec![Vec::new(); ops.len()],
        empty: Vec::new(),
    };
    let mut walk = Walk {
        seen: vec![Seen::NOT; ops.len()],
        matches: Vec::new(),
    };
    states.at[0].push(State {
        a: Value::constant(0),
        x: Value::constant(0),
        memory: Vec::new(),
        facts: facts.clone(),
    });
    let continues = continued(ops);
    for at in 0..ops.len() {
        let mut here = core::mem::take(&mut states.at[at]);
        for state in here.drain(..) {
            walk.run(&mut states, (ops, &continues), at, state);
        }
        if here.capacity() > 0 {
            states.empty.push(here);
        }
    }
    walk
}

/// For each instruction, whether only one other leads to it. A state is not stored there, because
/// no other can meet it; only the ends of the filter are reached in order.
fn continued(ops: &[Op]) -> Vec<bool> {
    let mut counts = vec![0u32; ops.len()];
    let mut count = |to: usize| {
        if let Some(count) = counts.get_mut(to) {
            *count += 1;
        }
    };
    for (at, op) in ops.iter().enumerate() {
        match *op {
            Op::Ret(_) | Op::RetA => {}
            Op::Jump(skip) => count(at + 1 + skip as usize),
            Op::JumpIf(_, _, jt, jf) => {
                count(at + 1 + usize::from(jt));
                count(at + 1 + usize::from(jf));
            }
            _ => count(at + 1),
        }
    }
    let is_end = |op: &Op| matches!(op, Op::Ret(_) | Op::RetA);
    let counts = counts.into_iter().zip(ops);
    counts.map(|(n, op)| n == 1 && !is_end(op)).collect()
}

impl States {
    fn arrive(&mut self, at: usize, state: State) {
        let Some(here) = self.at.get_mut(at) else {
            return;
        };
        if here.capacity() == 0 {
            *here = self.empty.pop().unwrap_or_default();
        }
        if here.len() < STATES_MAX {
            if !here.contains(&state) {
                here.push(state);
            }
        } else if let Some(last) = here.last_mut() {
            last.join(&state);
        }
    }
}

impl Walk {
    /// Runs a state until it meets others, or ends.
    fn run(
        &mut self,
        states: &mut States,
        (ops, continues): (&[Op], &[bool]),
        mut at: usize,
        mut state: State,
    ) {
        while let Some(next) = self.step(states, (ops, at), &mut state) {
            if continues.get(next) != Some(&true) {
                return states.arrive(next, state);
            }
            at = next;
        }
    }

    /// Executes an instruction; returns the next one.
    fn step(
        &mut self,
        states: &mut States,
        (ops, at): (&[Op], usize),
        state: &mut State,
    ) -> Option<usize> {
        let op = ops[at];
        let seen = &mut self.seen[at];
        let is_first = !seen.is_reached;
        let same = |old: Option<u32>, new: Option<u32>| match is_first {
            true => new,
            false => old.filter(|old| Some(*old) == new),
        };
        seen.is_reached = true;
        seen.a = same(seen.a, state.a.known());
        match op {
            Op::LoadAbs(..) | Op::LoadInd(..) | Op::LoadMsh(_) => {
                let (address, width) = address(op, state);
                let known = match address {
                    Address::Known(Base::Start, off) => Some(off),
                    _ => None,
                };
                seen.at = same(seen.at, known);
                let inside = load(state, op, address, width);
                seen.is_inside &= inside == Inside::Yes;
                seen.is_outside &= inside == Inside::No;
                (inside != Inside::No).then_some(at + 1)
            }
            Op::Jump(skip) => Some(at + 1 + skip as usize),
            Op::JumpIf(cond, operand, jt, jf) => {
                let k = match operand {
                    Operand::K(k) => Some(k),
                    Operand::X => state.x.known(),
                };
                let a = |holds| match k {
                    Some(k) => state.a.given(cond, k, holds),
                    None => Some(state.a),
                };
                let [yes, no] = [(a(true), jt), (a(false), jf)]
                    .map(|(a, skip)| (a, at + 1 + usize::from(skip)));
                let (possible, next) = branches(states, ops, state, [yes, no], k.is_some());
                seen.yes |= possible.0;
                seen.no |= possible.1;
                next
            }
            Op::Ret(k) => self.end(Some(k), state),
            Op::RetA => self.end(state.a.known(), state),
            _ => compute(state, op).then_some(at + 1),
        }
    }

    /// Ends a path: it has no next instruction.
    fn end(&mut self, result: Option<u32>, state: &mut State) -> Option<usize> {
        if result == Some(0) {
            return None;
        }
        if self.matches.len() < STATES_MAX {
            if !self.matches.contains(&state.facts) {
                self.matches.push(core::mem::take(&mut state.facts));
            }
        } else if let Some(last) = self.matches.last_mut() {
            last.join(&state.facts);
        }
        None
    }
}

/// Takes both branches of a conditional jump: for each the value of A after it, `None` if that is
/// impossible, and the instruction. Returns which of them known facts do not exclude, and the one
/// that this state takes.
fn branches(
    states: &mut States,
    ops: &[Op],
    state: &mut State,
    [yes, no]: [(Option<Value>, usize); 2],
    is_compared: bool,
) -> ((bool, bool), Option<usize>) {
    // Most jumps lead to a rejection, where the facts no longer matter.
    let rejects = |to: usize| ops.get(to) == Some(&Op::Ret(0));
    let is_possible = |a: Option<Value>| {
        a.is_some_and(|a| {
            let field = loaded(&a).filter(|_| is_compared);
            field.is_none_or(|(base, off, width, bits)| state.facts.allows(base, off, width, bits))
        })
    };
    let possible = (is_possible(yes.0), is_possible(no.0));
    let goes_on = |is_possible: bool, (a, to): (Option<Value>, usize)| {
        a.filter(|_| is_possible && !rejects(to)).map(|a| (a, to))
    };
    let ways = [goes_on(possible.0, yes), goes_on(possible.1, no)];
    let take = |state: &mut State, (a, to): (Value, usize)| {
        state.a = a;
        if is_compared {
            learn(state);
        }
        to
    };
    let next = match ways {
        [Some(yes), Some(no)] => {
            let mut other = state.clone();
            let to = take(&mut other, yes);
            states.arrive(to, other);
            Some(take(state, no))
        }
        [Some(way), None] | [None, Some(way)] => Some(take(state, way)),
        [None, None] => None,
    };
    (possible, next)
}

/// The field that was loaded into A, and its known bits.
fn loaded(a: &Value) -> Option<(Base, u32, Width, Bits)> {
    let Origin::Load {
        base,
        off,
        width,
        mask,
    } = a.origin
    else {
        return None;
    };
    let bits = Bits {
        mask: a.bits.mask & mask,
        value: a.bits.value & mask,
    };
    Some((base, off, width, bits))
}

/// Adds the facts that follow from a comparison of A.
fn learn(state: &mut State) {
    if let Some((base, off, width, bits)) = loaded(&state.a) {
        state.facts.learn(base, off, width, bits);
    }
}

fn address(op: Op, state: &State) -> (Address, Width) {
    let within = |base, off: u32, width: Width| match off.checked_add(width.bytes()) {
        Some(end) if end <= OFFSET_MAX => Address::Known(base, off),
        _ => Address::Unknown,
    };
    match op {
        Op::LoadAbs(width, k) => {
            let address = match Place::of(k) {
                Place::Packet(k) | Place::Link(k) => within(Base::Start, k, width),
                Place::Nothing => Address::Outside,
                Place::Network(_) | Place::Ancillary(_) => Address::Unknown,
            };
            (address, width)
        }
        Op::LoadMsh(k) => (within(Base::Start, k, Width::B), Width::B),
        Op::LoadInd(width, k) => {
            let address = match (state.x.known(), state.x.origin) {
                (Some(x), _) => match x.checked_add(k) {
                    Some(off) => within(Base::Start, off, width),
                    None => Address::Outside,
                },
                // A small constant may have been added to X.
                (None, Origin::HeaderLen(at)) if state.x.sub.wrapping_neg() <= OFFSET_MAX => {
                    let added = state.x.sub.wrapping_neg();
                    match added.checked_add(k) {
                        Some(off) => within(Base::Header(at), off, width),
                        None => Address::Outside,
                    }
                }
                _ => Address::Unknown,
            };
            (address, width)
        }
        _ => (Address::Unknown, Width::B),
    }
}

/// Loads A or X, and adds what the load shows about the packet's length.
fn load(state: &mut State, op: Op, address: Address, width: Width) -> Inside {
    let (inside, value) = match address {
        Address::Outside => (Inside::No, Value::UNKNOWN),
        Address::Known(base, off) => {
            let end = off + width.bytes();
            let inside = state.facts.inside(base, end);
            if inside != Inside::No {
                state.facts.present(base, end);
            }
            let bits = state.facts.bits(base, off, width);
            let value = match op {
                Op::LoadMsh(k) => Value::header_len(k, bits),
                _ => Value::load(base, off, width, bits),
            };
            (inside, value)
        }
        Address::Unknown => {
            let xor = matches!(op, Op::LoadAbs(_, k) if is_xor(k));
            let value = match (xor, state.x.known()) {
                (true, Some(x)) => state.a.alu(Alu::Xor, x),
                _ => Value::UNKNOWN,
            };
            (Inside::Perhaps, value)
        }
    };
    match op {
        Op::LoadMsh(_) => state.x = value,
        _ => state.a = value,
    }
    inside
}

/// Whether a load at this index is A = A xor X.
pub(super) fn is_xor(k: u32) -> bool {
    Place::of(k) == Place::Ancillary(Ancillary::XorX)
}

/// Executes any other instruction. Returns `false` if it ends the program without a match.
fn compute(state: &mut State, op: Op) -> bool {
    let set = |state: &mut State, reg, value| match reg {
        Reg::A => state.a = value,
        Reg::X => state.x = value,
    };
    match op {
        Op::LoadLen(reg) => set(state, reg, Value::UNKNOWN),
        Op::LoadImm(reg, k) => set(state, reg, Value::constant(k)),
        Op::LoadMem(reg, word) => {
            let value = state.word(word);
            set(state, reg, value);
        }
        Op::Store(reg, word) => {
            let value = match reg {
                Reg::A => state.a,
                Reg::X => state.x,
            };
            state.set_word(word, value);
        }
        Op::Tax => state.x = state.a,
        Op::Txa => state.a = state.x,
        Op::Alu(alu, operand) => {
            let k = match operand {
                // The operation has no operand.
                _ if alu == Alu::Neg => Some(0),
                Operand::K(k) => Some(k),
                Operand::X => state.x.known(),
            };
            if matches!(alu, Alu::Div | Alu::Mod) && k == Some(0) {
                return false;
            }
            state.a = k.map_or(Value::UNKNOWN, |k| state.a.alu(alu, k));
        }
        _ => {}
    }
    true
}
