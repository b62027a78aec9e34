//! Follows all paths through a classic BPF program, and then through others on the packets that it
//! accepts.
//!
//! A path whose conditions contradict each other is left out, so what holds on all paths holds for
//! every packet. The reverse is not true: a contradiction may be missed, and the number of steps is
//! bounded.

use bpf::cbpf::{Alu, Cond, LINK_BASE, MEMORY_WORDS, Op, Operand, Program, Reg, Width};

use super::facts::{ETHER_TYPE, Facts, NETWORK};
use super::values::{Id, Value, Values};

/// Maximum number of conditions that are true on a path, over all its programs.
const DEPTH_MAX: usize = 500;

/// The steps are used up.
#[derive(Debug)]
pub(super) struct Stop;

/// What is to be shown of the packets that the first program accepts.
pub(super) trait Goal {
    /// The programs that run one after the other until one accepts. `None` accepts all packets.
    fn programs(&self) -> &[Option<&Program>];

    /// Whether it is reached where this program accepts.
    fn is_reached(&mut self, index: usize, known: &mut Known) -> bool;
}

/// The values and what is known of them.
pub(super) struct Known {
    pub(super) values: Values,
    pub(super) facts: Facts,
}

impl Known {
    /// Packet bytes at a constant offset.
    pub(super) fn bytes(&mut self, width: Width, at: u32) -> Id {
        self.values.id(Value::Bytes(width, Values::ZERO, at))
    }

    /// Whether bytes at a constant offset certainly are not this number.
    pub(super) fn is_not(&mut self, width: Width, at: u32, number: u32) -> bool {
        let (a, b) = (self.bytes(width, at), self.values.number(number));
        self.facts.decide(&self.values, Cond::Eq, a, b) == Some(false)
    }

    /// Whether no packet of the path can be TCP, alone or behind up to two VLAN tags.
    pub(super) fn excludes_tcp(&mut self) -> bool {
        let mut at = ETHER_TYPE;
        for tags in 0..=2 {
            let network = at + (NETWORK - ETHER_TYPE);
            for (kind, protocol) in [(0x0800, 9), (0x86dd, 6)] {
                let is_other = self.is_not(Width::H, at, kind);
                if !is_other && !self.is_not(Width::B, network + protocol, 6) {
                    return false;
                }
            }
            let is_tag = |known: &mut Self, kind| !known.is_not(Width::H, at, kind);
            if tags == 2 || !(is_tag(self, 0x8100) || is_tag(self, 0x88a8)) {
                return true;
            }
            at += 4;
        }
        true
    }
}

/// The registers and the scratch memory.
#[derive(Clone, Copy)]
struct Machine {
    a: Id,
    x: Id,
    memory: [Id; MEMORY_WORDS],
}

const START: Machine = Machine {
    a: Values::ZERO,
    x: Values::ZERO,
    memory: [Values::ZERO; MEMORY_WORDS],
};

/// A search.
pub(super) struct Paths<'a, G> {
    first: Option<Vec<Op>>,
    programs: Vec<Option<Vec<Op>>>,
    goal: &'a mut G,
    known: Known,
    steps: &'a mut usize,
    steps_max: usize,
}

impl<'a, G: Goal> Paths<'a, G> {
    /// Whether all packets that `first` accepts reach the goal.
    ///
    /// # Errors
    /// If `steps` exceeds `steps_max` before that is known.
    pub(super) fn all_reach(
        first: Option<&Program>,
        goal: &'a mut G,
        steps: &'a mut usize,
        steps_max: usize,
    ) -> Result<bool, Stop> {
        let ops = |program: &Option<&Program>| program.map(|p| p.ops().collect::<Vec<_>>());
        let programs = goal.programs().iter().map(ops).collect();
        let known = Known {
            values: Values::new(),
            facts: Facts::default(),
        };
        let mut paths = Paths {
            first: ops(&first),
            programs,
            goal,
            known,
            steps,
            steps_max,
        };
        if paths.first.is_some() {
            return paths.run(None, 0, START, 0);
        }
        match paths.after(None, true) {
            Next::Decided(outcome) => Ok(outcome),
            Next::Program(index) => paths.run(Some(index), 0, START, 0),
        }
    }

    /// What follows the end of a program; `None` is the first one.
    fn after(&mut self, program: Option<usize>, accepts: bool) -> Next {
        let mut index = match (program, accepts) {
            (None, true) => 0,
            (None, false) => return Next::Decided(true),
            (Some(index), true) if self.goal.is_reached(index, &mut self.known) => {
                return Next::Decided(true);
            }
            (Some(index), _) => index + 1,
        };
        loop {
            match self.programs.get(index) {
                None => return Next::Decided(false),
                Some(Some(_)) => return Next::Program(index),
                Some(None) if self.goal.is_reached(index, &mut self.known) => {
                    return Next::Decided(true);
                }
                Some(None) => index += 1,
            }
        }
    }

    fn op(&self, program: Option<usize>, at: usize) -> Option<Op> {
        let ops = match program {
            None => self.first.as_ref(),
            Some(index) => self.programs.get(index)?.as_ref(),
        };
        ops?.get(at).copied()
    }

    /// Follows all paths from an instruction. Only those where a condition is true, or a packet too
    /// short, are calls of their own.
    fn run(
        &mut self,
        mut program: Option<usize>,
        mut at: usize,
        mut m: Machine,
        depth: usize,
    ) -> Result<bool, Stop> {
        if depth == DEPTH_MAX {
            return Err(Stop);
        }
        loop {
            *self.steps += 1;
            if *self.steps > self.steps_max {
                return Err(Stop);
            }
            let op = self.op(program, at);
            at += 1;
            let accepts = match op {
                None | Some(Op::Ret(0)) => false,
                Some(Op::Ret(_)) => true,
                Some(Op::RetA) => {
                    let Known { values, facts } = &mut self.known;
                    let is_zero = facts.decide(values, Cond::Eq, m.a, Values::ZERO);
                    !is_zero.ok_or(Stop)?
                }
                Some(Op::Jump(skip)) => {
                    // A jump backwards is a loop of libpcap's.
                    at += usize::from(u16::try_from(skip).map_err(|_| Stop)?);
                    continue;
                }
                Some(Op::JumpIf(cond, operand, yes, no)) => {
                    let b = match operand {
                        Operand::K(k) => self.known.values.number(k),
                        Operand::X => m.x,
                    };
                    let (yes, no) = (at + usize::from(yes), at + usize::from(no));
                    let ends = (m.a, b);
                    let Known { values, facts } = &mut self.known;
                    if let Some(outcome) = facts.decide(values, cond, m.a, b) {
                        at = if outcome { yes } else { no };
                        continue;
                    }
                    let mark = facts.mark();
                    facts.learn(values, cond, ends, true);
                    let holds = self.run(program, yes, m, depth + 1)?;
                    let Known { values, facts } = &mut self.known;
                    facts.forget(mark);
                    if !holds {
                        return Ok(false);
                    }
                    facts.learn(values, cond, ends, false);
                    at = no;
                    continue;
                }
                Some(op) => match self.execute(op, &mut m, program, depth)? {
                    Course::Continues => continue,
                    Course::Rejects => false,
                    Course::Uncovered => return Ok(false),
                },
            };
            match self.after(program, accepts) {
                Next::Decided(outcome) => return Ok(outcome),
                Next::Program(index) => (program, at, m) = (Some(index), 0, START),
            }
        }
    }

    /// Executes an instruction that neither jumps nor returns; a packet too short for it is
    /// rejected, and what follows for such a packet is found out.
    fn execute(
        &mut self,
        op: Op,
        m: &mut Machine,
        program: Option<usize>,
        depth: usize,
    ) -> Result<Course, Stop> {
        Ok(match self.compute(op, m)? {
            Effect::Done => Course::Continues,
            Effect::Rejects => Course::Rejects,
            Effect::MayReject(loaded) => {
                if !self.is_covered_if_rejected(program, depth)? {
                    return Ok(Course::Uncovered);
                }
                if let Some((base, end)) = loaded {
                    self.known.facts.reached(&self.known.values, base, end);
                }
                Course::Continues
            }
        })
    }

    /// Whether the goal is reached by a packet that a program rejects because it is too short.
    fn is_covered_if_rejected(
        &mut self,
        program: Option<usize>,
        depth: usize,
    ) -> Result<bool, Stop> {
        match self.after(program, false) {
            Next::Decided(outcome) => Ok(outcome),
            Next::Program(index) => {
                let mark = self.known.facts.mark();
                let outcome = self.run(Some(index), 0, START, depth + 1);
                self.known.facts.forget(mark);
                outcome
            }
        }
    }

    /// Computes the effect of an instruction that neither jumps nor returns.
    fn compute(&mut self, op: Op, m: &mut Machine) -> Result<Effect, Stop> {
        let known = &mut self.known;
        match op {
            // Metadata is not the packet's.
            Op::LoadAbs(_, at) if at >= LINK_BASE => return Err(Stop),
            Op::LoadAbs(width, at) => return Ok(known.load(&mut m.a, width, Values::ZERO, at)),
            Op::LoadInd(width, at) => return Ok(known.load(&mut m.a, width, m.x, at)),
            Op::LoadMsh(at) => {
                let effect = known.load(&mut m.x, Width::B, Values::ZERO, at);
                for (op, k) in [(Alu::And, 0xf), (Alu::Lsh, 2)] {
                    let k = known.values.number(k);
                    m.x = known.values.operate(op, m.x, k).unwrap_or(Values::ZERO);
                }
                m.x = known.as_constant(m.x);
                return Ok(effect);
            }
            Op::LoadLen(reg) => *m.reg(reg) = known.values.id(Value::Len),
            Op::LoadImm(reg, k) => *m.reg(reg) = known.values.number(k),
            Op::LoadMem(reg, word) => *m.reg(reg) = m.memory[word as usize % MEMORY_WORDS],
            Op::Store(reg, word) => m.memory[word as usize % MEMORY_WORDS] = *m.reg(reg),
            Op::Tax => m.x = m.a,
            Op::Txa => m.a = m.x,
            Op::Alu(alu, operand) => {
                let b = match (alu, operand) {
                    (Alu::Neg, _) => Values::ZERO,
                    (_, Operand::K(k)) => known.values.number(k),
                    (_, Operand::X) => known.as_constant(m.x),
                };
                let divides = matches!(alu, Alu::Div | Alu::Mod);
                let Some(value) = known.values.operate(alu, m.a, b) else {
                    return Ok(Effect::Rejects);
                };
                m.a = value;
                if divides && known.values.as_number(b).is_none() {
                    return Ok(Effect::MayReject(None));
                }
            }
            Op::Ret(_) | Op::RetA | Op::Jump(_) | Op::JumpIf(..) => {}
        }
        Ok(Effect::Done)
    }
}

/// What follows the end of a program.
enum Next {
    /// Whether the goal is reached.
    Decided(bool),
    /// Another program.
    Program(usize),
}

/// What follows an instruction.
enum Course {
    Continues,
    Rejects,
    /// A packet that is too short does not reach the goal.
    Uncovered,
}

/// The effect of an instruction on the course of the program.
enum Effect {
    Done,
    /// The packet is rejected.
    Rejects,
    /// The packet is rejected, or has these bytes.
    MayReject(Option<(Id, u32)>),
}

impl Machine {
    fn reg(&mut self, reg: Reg) -> &mut Id {
        match reg {
            Reg::A => &mut self.a,
            Reg::X => &mut self.x,
        }
    }
}

impl Known {
    /// The value, or the number that it must be.
    fn as_constant(&mut self, id: Id) -> Id {
        match self.facts.range(&self.values, id) {
            (low, high) if low == high => self.values.number(low),
            _ => id,
        }
    }

    /// Loads bytes at an offset from a value.
    fn load(&mut self, into: &mut Id, width: Width, base: Id, at: u32) -> Effect {
        let (mut base, mut at) = (self.as_constant(base), at);
        // The constant part of the offset belongs to `at`.
        loop {
            let (rest, add) = match self.values.get(base) {
                Value::Number(number) => (Values::ZERO, number),
                Value::Operation(Alu::Add, a, b) => match self.values.as_number(b) {
                    Some(number) => (a, number),
                    None => break,
                },
                _ => break,
            };
            let (_, most) = self.facts.range(&self.values, rest);
            let Some(sum) = at
                .checked_add(add)
                .filter(|sum| most.checked_add(*sum).is_some())
            else {
                break;
            };
            (base, at) = (rest, sum);
            if base == Values::ZERO {
                break;
            }
        }
        let Some(end) = at.checked_add(width.bytes()) else {
            return Effect::Rejects;
        };
        *into = self.values.id(Value::Bytes(width, base, at));
        match self.facts.has(&mut self.values, base, end) {
            true => Effect::Done,
            false => Effect::MayReject(Some((base, end))),
        }
    }
}
