//! A block of instructions that a packet passes from first to last, or leaves at the first failed
//! test.

use bpf::cbpf::Insn;

/// Target of a jump.
#[derive(Clone, Copy)]
pub(super) enum To {
    Next,
    /// Out of the block.
    Fail,
    Label(usize),
}

#[derive(Clone, Copy)]
struct Line {
    code: u16,
    k: u32,
    jumps: Option<[To; 2]>,
}

/// A block under construction.
#[derive(Default)]
pub(super) struct Block {
    lines: Vec<Line>,
    labels: Vec<usize>,
    /// Offset after the last byte loaded.
    reached: u32,
    /// Offset and width of the value in A, if known.
    loaded: Option<(u32, u32)>,
    /// The scratch word that offsets are relative to. Loads then need X, whose value is kept in
    /// [`KEPT_X`].
    base: Option<u32>,
}

/// The scratch word with the value of X, if loads need X.
const KEPT_X: u32 = 0;
const LDX_MEM: u16 = 0x61;
const STX: u16 = 0x03;
/// From a load at a constant offset to one relative to X.
const INDIRECT: u16 = 0x20;

impl Block {
    /// Creates a block whose offsets are relative to a word of scratch memory, if there is one.
    pub(super) fn new(base: Option<u32>) -> Block {
        Block {
            base,
            ..Block::default()
        }
    }

    fn put(&mut self, code: u16, k: u32) {
        self.loaded = None;
        let jumps = None;
        self.lines.push(Line { code, k, jumps });
    }

    fn load(&mut self, code: u16, at: u32, width: u32) {
        if self.loaded == Some((at, width)) {
            return;
        }
        match self.base {
            Some(word) => {
                self.put(LDX_MEM, word);
                self.put(code + INDIRECT, at);
            }
            None => self.put(code, at),
        }
        self.reached = self.reached.max(at + width);
        self.loaded = Some((at, width));
    }

    pub(super) fn word(&mut self, at: u32) {
        self.load(0x20, at, 4);
    }

    pub(super) fn half(&mut self, at: u32) {
        self.load(0x28, at, 2);
    }

    pub(super) fn byte(&mut self, at: u32) {
        self.load(0x30, at, 1);
    }

    /// Requires the packet to have this length.
    pub(super) fn reach(&mut self, end: u32) {
        if self.reached < end {
            self.byte(end - 1);
        }
    }

    pub(super) fn and(&mut self, mask: u32) {
        self.put(0x54, mask);
    }

    pub(super) fn add(&mut self, k: u32) {
        self.put(0x04, k);
    }

    pub(super) fn sub(&mut self, k: u32) {
        self.put(0x14, k);
    }

    pub(super) fn modulo(&mut self, k: u32) {
        self.put(0x94, k);
    }

    pub(super) fn modulo_x(&mut self) {
        self.put_x(0x9c);
    }

    pub(super) fn divide_x(&mut self) {
        self.put_x(0x3c);
    }

    pub(super) fn xor_x(&mut self) {
        self.put_x(0xac);
    }

    /// Emits an operation with X.
    fn put_x(&mut self, code: u16) {
        self.need_x();
        self.put(code, 0);
    }

    fn need_x(&mut self) {
        if self.base.is_some() {
            self.put(LDX_MEM, KEPT_X);
        }
    }

    pub(super) fn tax(&mut self) {
        let mut line = |code, k| {
            let jumps = None;
            self.lines.push(Line { code, k, jumps });
        };
        line(0x07, 0);
        if self.base.is_some() {
            line(STX, KEPT_X);
        }
    }

    pub(super) fn txa(&mut self) {
        self.put_x(0x87);
    }

    pub(super) fn ret(&mut self, k: u32) {
        self.put(0x06, k);
    }

    /// Emits a conditional jump by its code: 0x15 equal, 0x25 greater, 0x35 at least, 0x45 any bit.
    pub(super) fn jump_if(&mut self, code: u16, k: u32, yes: To, no: To) {
        let jumps = Some([yes, no]);
        self.lines.push(Line { code, k, jumps });
    }

    pub(super) fn equal(&mut self, k: u32) {
        self.jump_if(0x15, k, To::Next, To::Fail);
    }

    pub(super) fn equal_x(&mut self) {
        self.need_x();
        self.jump_if(0x1d, 0, To::Next, To::Fail);
    }

    /// Requires A to be 0, or not to be 0.
    pub(super) fn zero(&mut self, is_zero: bool) {
        match is_zero {
            true => self.equal(0),
            false => self.jump_if(0x15, 0, To::Fail, To::Next),
        }
    }

    pub(super) fn at_least(&mut self, k: u32) {
        self.jump_if(0x35, k, To::Next, To::Fail);
    }

    pub(super) fn at_most(&mut self, k: u32) {
        self.jump_if(0x25, k, To::Fail, To::Next);
    }

    pub(super) fn between(&mut self, least: u32, most: u32) {
        if least == most {
            return self.equal(least);
        }
        self.at_least(least);
        self.at_most(most);
    }

    pub(super) fn any_of(&mut self, bits: u32) {
        self.jump_if(0x45, bits, To::Next, To::Fail);
    }

    pub(super) fn none_of(&mut self, bits: u32) {
        self.jump_if(0x45, bits, To::Fail, To::Next);
    }

    /// Fails for every packet.
    pub(super) fn fail(&mut self) {
        self.jump_if(0x45, 0, To::Fail, To::Fail);
    }

    pub(super) fn label(&mut self) -> usize {
        self.labels.push(usize::MAX);
        self.labels.len() - 1
    }

    /// Binds the label here. The contents of A become unknown, because several paths meet.
    pub(super) fn bind(&mut self, label: usize) {
        self.labels[label] = self.lines.len();
        self.loaded = None;
    }

    /// Resolves the labels; `None` if a jump is too long.
    pub(super) fn link(&self) -> Option<Vec<Insn>> {
        let place = |from: usize, to: To| {
            let to = match to {
                To::Next => from + 1,
                To::Fail => self.lines.len(),
                To::Label(label) => self.labels[label],
            };
            u8::try_from(to.checked_sub(from + 1)?).ok()
        };
        let insn = |(at, line): (usize, &Line)| {
            let [jt, jf] = match line.jumps {
                Some([yes, no]) => [place(at, yes)?, place(at, no)?],
                None => [0; 2],
            };
            Some(Insn::new(line.code, jt, jf, line.k))
        };
        self.lines.iter().enumerate().map(insn).collect()
    }
}
