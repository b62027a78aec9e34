//! Instructions with labels, resolved at the end. A conditional jump reaches 255 instructions; a
//! longer one is followed by an unconditional jump, which reaches everything.

use bpf::cbpf::{Insn, Invalid, Program};

use super::{Explained, Note};

/// Return value for a matching packet: all of the packet, as in tcpdump's programs.
pub(crate) const KEEP: u32 = 262_144;

/// Opcodes of loads.
pub(crate) const LDH: u16 = 0x28;
pub(crate) const LDB: u16 = 0x30;
pub(crate) const LDX_IMM: u16 = 0x01;
pub(crate) const LDX_MSH: u16 = 0xb1;
pub(crate) const LD_IND: u16 = 0x40;
pub(crate) const LDH_IND: u16 = 0x48;
pub(crate) const LDB_IND: u16 = 0x50;
pub(crate) const TAX: u16 = 0x07;
pub(crate) const ADD_X: u16 = 0x0c;
pub(crate) const OR: u16 = 0x44;
pub(crate) const JEQ: u16 = 0x15;
pub(crate) const JGT: u16 = 0x25;
pub(crate) const JGE: u16 = 0x35;
pub(crate) const JSET: u16 = 0x45;
const JA: u16 = 0x05;
const RET: u16 = 0x06;

/// A position in the program, bound once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// Target of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The next instruction.
    Next,
    /// The return that accepts the packet.
    Accept,
    /// The return that rejects it.
    Reject,
    /// A label.
    At(Label),
}

struct Item {
    code: u16,
    k: u32,
    jump: Option<(To, To)>,
    go: Option<To>,
}

/// A program under construction.
#[derive(Default)]
pub(crate) struct Emit {
    items: Vec<Item>,
    labels: Vec<Option<usize>>,
    notes: Vec<Note>,
}

impl Emit {
    /// Creates a label.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds the label to the current position.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.items.len());
    }

    /// Emits an instruction that does not jump.
    pub fn op(&mut self, code: u16, k: u32) {
        self.items.push(Item {
            code,
            k,
            jump: None,
            go: None,
        });
    }

    /// Emits a conditional jump.
    pub fn jump_if(&mut self, code: u16, k: u32, yes: To, no: To) {
        self.items.push(Item {
            code,
            k,
            jump: Some((yes, no)),
            go: None,
        });
    }

    /// Emits an unconditional jump.
    pub fn jump(&mut self, to: To) {
        self.items.push(Item {
            code: JA,
            k: 0,
            jump: None,
            go: Some(to),
        });
    }

    /// Number of instructions so far.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Records what the instructions from `start` on test.
    pub fn note(&mut self, start: usize, what: Vec<String>) {
        let insns = start..self.len();
        if !insns.is_empty() {
            self.notes.push(Note { insns, what });
        }
    }

    /// Finishes the program: the instructions, `ret keep`, `ret 0`.
    ///
    /// # Errors
    /// As [`Program::new`]: in practice only the length.
    pub fn finish(self, keep: u32) -> Result<Explained, Invalid> {
        let count = self.items.len();
        let mut far = vec![(false, false); count];
        let mut at = self.places(&far);
        // Each round turns at least one more jump into a long one, or is the last.
        loop {
            let mut changed = false;
            for (index, item) in self.items.iter().enumerate() {
                let Some((yes, no)) = item.jump else {
                    continue;
                };
                let reach = |to| self.target(index, to, &at) - at[index] - 1 <= 255;
                let now = (far[index].0 || !reach(yes), far[index].1 || !reach(no));
                changed |= now != far[index];
                far[index] = now;
            }
            if !changed {
                break;
            }
            at = self.places(&far);
        }
        let mut insns = Vec::with_capacity(at[count] + 2);
        for (index, item) in self.items.iter().enumerate() {
            self.put(&mut insns, index, item, far[index], &at);
        }
        insns.push(Insn::new(RET, 0, 0, keep));
        insns.push(Insn::new(RET, 0, 0, 0));
        let mut notes = self.notes;
        for note in &mut notes {
            note.insns = at[note.insns.start]..at[note.insns.end];
        }
        Ok(Explained {
            program: Program::new(insns)?,
            notes,
        })
    }

    /// Offset of each item; the last entry is the accepting return.
    fn places(&self, far: &[(bool, bool)]) -> Vec<usize> {
        let mut at = Vec::with_capacity(far.len() + 1);
        let mut place = 0;
        for (yes, no) in far {
            at.push(place);
            place += 1 + usize::from(*yes) + usize::from(*no);
        }
        at.push(place);
        at
    }

    fn target(&self, index: usize, to: To, at: &[usize]) -> usize {
        let end = at[self.items.len()];
        match to {
            To::Next => at[index + 1],
            To::Accept => end,
            To::Reject => end + 1,
            // A label that was never bound rejects the packet.
            To::At(label) => self.labels[label.0].map_or(end + 1, |item| at[item]),
        }
    }

    fn put(
        &self,
        insns: &mut Vec<Insn>,
        index: usize,
        item: &Item,
        far: (bool, bool),
        at: &[usize],
    ) {
        let here = at[index];
        if let Some(to) = item.go {
            let over = self.target(index, to, at) - here - 1;
            insns.push(Insn::new(item.code, 0, 0, over as u32));
            return;
        }
        let Some((yes, no)) = item.jump else {
            insns.push(Insn::new(item.code, 0, 0, item.k));
            return;
        };
        let near = |to| (self.target(index, to, at) - here - 1) as u8;
        let jt = if far.0 { 0 } else { near(yes) };
        let jf = if far.1 { u8::from(far.0) } else { near(no) };
        insns.push(Insn::new(item.code, jt, jf, item.k));
        let mut place = here + 1;
        for (to, is_far) in [(yes, far.0), (no, far.1)] {
            if is_far {
                let over = self.target(index, to, at) - place - 1;
                insns.push(Insn::new(JA, 0, 0, over as u32));
                place += 1;
            }
        }
    }
}
