//! cBPF: the classic filter language of bpf(4), libpcap and `SO_ATTACH_FILTER`.
//!
//! A program has two 32-bit registers, A and X, sixteen words of scratch memory, and only forward
//! jumps. It returns how many bytes of the packet to keep; 0 rejects the packet.
//!
//! [`OPS`] is the single table of instructions, used by validation, printing, translation and the
//! random programs of the tests. A [`Program`] has passed the checks that the kernel makes as well
//! (`bpf_check_classic` in `net/core/filter.c`).

use alloc::vec::Vec;
use core::fmt;

mod validate;

pub use validate::Invalid;

/// Maximum number of instructions in a program (`BPF_MAXINSNS`).
pub const INSN_COUNT_MAX: usize = 4096;
/// The same for programs that only an interpreter runs: the length field of `struct sock_fprog`
/// has 16 bits.
pub const LONG_INSN_COUNT_MAX: usize = 65_535;
/// Words of scratch memory (`BPF_MEMWORDS`).
pub const MEMORY_WORDS: usize = 16;

/// From this index up, a packet load reads the kernel's metadata about the packet (`SKF_AD_OFF`);
/// see [`Ancillary`].
pub const ANCILLARY_BASE: u32 = 0u32.wrapping_sub(0x1000);
/// From here up to [`ANCILLARY_BASE`], an index counts from the network header (`SKF_NET_OFF`).
pub const NETWORK_BASE: u32 = 0u32.wrapping_sub(0x10_0000);
/// From here up to [`NETWORK_BASE`], an index counts from the link header (`SKF_LL_OFF`).
pub const LINK_BASE: u32 = 0u32.wrapping_sub(0x20_0000);

/// One instruction, in the layout of `struct sock_filter` and `struct bpf_insn`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Insn {
    /// Operation code; one of [`OPS`].
    pub code: u16,
    /// Number of instructions to skip if a condition is true.
    pub jt: u8,
    /// Number of instructions to skip if it is false.
    pub jf: u8,
    /// The constant.
    pub k: u32,
}

impl Insn {
    /// Creates an instruction from its four fields.
    pub const fn new(code: u16, jt: u8, jf: u8, k: u32) -> Self {
        Self { code, jt, jf, k }
    }

    /// The decoded instruction; `None` for an invalid code.
    pub fn decode(self) -> Option<Op> {
        op_info(self.code).map(|info| decode(self, info.form))
    }
}

impl fmt::Debug for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{ {:#04x}, {}, {}, {:#010x} }}",
            self.code, self.jt, self.jf, self.k
        )
    }
}

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reg {
    A,
    X,
}

/// Number of bytes that a load reads from the packet, in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// Four bytes.
    W,
    /// Two bytes.
    H,
    /// One byte.
    B,
}

impl Width {
    /// The width in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::W => 4,
            Self::H => 2,
            Self::B => 1,
        }
    }
}

/// An arithmetic operation on A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
    Lsh,
    Rsh,
    Neg,
}

/// A condition between A and the operand, unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cond {
    /// Equal.
    Eq,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// Any bit in common.
    Set,
}

/// Second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The constant.
    K(u32),
    /// Register X.
    X,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A = the packet's bytes at `k`.
    LoadAbs(Width, u32),
    /// A = the packet's bytes at X + `k`.
    LoadInd(Width, u32),
    /// The register = the packet's length on the wire.
    LoadLen(Reg),
    /// The register = `k`.
    LoadImm(Reg, u32),
    /// The register = a word of scratch memory.
    LoadMem(Reg, u32),
    /// X = 4 times the low four bits of the packet's byte at `k`: an IPv4 header's length.
    LoadMsh(u32),
    /// A word of scratch memory = the register.
    Store(Reg, u32),
    /// A = A op operand.
    Alu(Alu, Operand),
    /// Skip `k` instructions.
    Jump(u32),
    /// Skip the first or second count.
    JumpIf(Cond, Operand, u8, u8),
    /// Return the constant.
    Ret(u32),
    /// Return A.
    RetA,
    /// X = A.
    Tax,
    /// A = X.
    Txa,
}

/// Operands of an instruction, which determine how it is decoded and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Form {
    Abs(Width),
    Ind(Width),
    Len(Reg),
    Imm(Reg),
    Mem(Reg),
    Msh,
    Store(Reg),
    /// Whether the operand is X, and whether the constant is printed in hexadecimal.
    Alu {
        op: Alu,
        x: bool,
        hex: bool,
    },
    Jump,
    JumpIf(Cond, bool),
    RetK,
    RetA,
    Tax,
    Txa,
}

/// One row of [`OPS`].
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// The code.
    pub code: u16,
    /// Its name in assembler text.
    pub name: &'static str,
    /// Its operands.
    pub form: Form,
}

const fn row(code: u16, name: &'static str, form: Form) -> OpInfo {
    OpInfo { code, name, form }
}

const fn alu(code: u16, name: &'static str, op: Alu, x: bool, hex: bool) -> OpInfo {
    row(code, name, Form::Alu { op, x, hex })
}

/// All instructions, sorted by code: those that the kernel's checker accepts.
#[rustfmt::skip]
pub const OPS: &[OpInfo] = &[
    row(0x00, "ld",   Form::Imm(Reg::A)),
    row(0x01, "ldx",  Form::Imm(Reg::X)),
    row(0x02, "st",   Form::Store(Reg::A)),
    row(0x03, "stx",  Form::Store(Reg::X)),
    alu(0x04, "add",  Alu::Add, false, false),
    row(0x05, "ja",   Form::Jump),
    row(0x06, "ret",  Form::RetK),
    row(0x07, "tax",  Form::Tax),
    alu(0x0c, "add",  Alu::Add, true, false),
    alu(0x14, "sub",  Alu::Sub, false, false),
    row(0x15, "jeq",  Form::JumpIf(Cond::Eq, false)),
    row(0x16, "ret",  Form::RetA),
    alu(0x1c, "sub",  Alu::Sub, true, false),
    row(0x1d, "jeq",  Form::JumpIf(Cond::Eq, true)),
    row(0x20, "ld",   Form::Abs(Width::W)),
    alu(0x24, "mul",  Alu::Mul, false, false),
    row(0x25, "jgt",  Form::JumpIf(Cond::Gt, false)),
    row(0x28, "ldh",  Form::Abs(Width::H)),
    alu(0x2c, "mul",  Alu::Mul, true, false),
    row(0x2d, "jgt",  Form::JumpIf(Cond::Gt, true)),
    row(0x30, "ldb",  Form::Abs(Width::B)),
    alu(0x34, "div",  Alu::Div, false, false),
    row(0x35, "jge",  Form::JumpIf(Cond::Ge, false)),
    alu(0x3c, "div",  Alu::Div, true, false),
    row(0x3d, "jge",  Form::JumpIf(Cond::Ge, true)),
    row(0x40, "ld",   Form::Ind(Width::W)),
    alu(0x44, "or",   Alu::Or, false, true),
    row(0x45, "jset", Form::JumpIf(Cond::Set, false)),
    row(0x48, "ldh",  Form::Ind(Width::H)),
    alu(0x4c, "or",   Alu::Or, true, true),
    row(0x4d, "jset", Form::JumpIf(Cond::Set, true)),
    row(0x50, "ldb",  Form::Ind(Width::B)),
    alu(0x54, "and",  Alu::And, false, true),
    alu(0x5c, "and",  Alu::And, true, true),
    row(0x60, "ld",   Form::Mem(Reg::A)),
    row(0x61, "ldx",  Form::Mem(Reg::X)),
    alu(0x64, "lsh",  Alu::Lsh, false, false),
    alu(0x6c, "lsh",  Alu::Lsh, true, false),
    alu(0x74, "rsh",  Alu::Rsh, false, false),
    alu(0x7c, "rsh",  Alu::Rsh, true, false),
    row(0x80, "ld",   Form::Len(Reg::A)),
    row(0x81, "ldx",  Form::Len(Reg::X)),
    alu(0x84, "neg",  Alu::Neg, true, false),
    row(0x87, "txa",  Form::Txa),
    alu(0x94, "mod",  Alu::Mod, false, false),
    alu(0x9c, "mod",  Alu::Mod, true, false),
    alu(0xa4, "xor",  Alu::Xor, false, true),
    alu(0xac, "xor",  Alu::Xor, true, true),
    row(0xb1, "ldxb", Form::Msh),
];

/// The row of a code.
pub fn op_info(code: u16) -> Option<&'static OpInfo> {
    OPS.binary_search_by_key(&code, |info| info.code)
        .ok()
        .map(|at| &OPS[at])
}

fn decode(insn: Insn, form: Form) -> Op {
    let k = insn.k;
    let operand = |x: bool| if x { Operand::X } else { Operand::K(k) };
    match form {
        Form::Abs(width) => Op::LoadAbs(width, k),
        Form::Ind(width) => Op::LoadInd(width, k),
        Form::Len(reg) => Op::LoadLen(reg),
        Form::Imm(reg) => Op::LoadImm(reg, k),
        Form::Mem(reg) => Op::LoadMem(reg, k),
        Form::Msh => Op::LoadMsh(k),
        Form::Store(reg) => Op::Store(reg, k),
        Form::Alu { op, x, .. } => Op::Alu(op, operand(x)),
        Form::Jump => Op::Jump(k),
        Form::JumpIf(cond, x) => Op::JumpIf(cond, operand(x), insn.jt, insn.jf),
        Form::RetK => Op::Ret(k),
        Form::RetA => Op::RetA,
        Form::Tax => Op::Tax,
        Form::Txa => Op::Txa,
    }
}

/// Kernel metadata of a packet, loaded with an index of [`ANCILLARY_BASE`] or above (`SKF_AD_…` in
/// `include/uapi/linux/filter.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Ancillary {
    Protocol,
    PacketType,
    Ifindex,
    Netlink,
    NetlinkNested,
    Mark,
    Queue,
    HardwareType,
    RxHash,
    Cpu,
    /// Not a load: A = A xor X.
    XorX,
    VlanTci,
    VlanPresent,
    PayloadOffset,
    Random,
    VlanProtocol,
}

/// All ancillary loads in the order of the kernel's offsets, which are 4 apart, with their names in
/// text.
#[rustfmt::skip]
pub const ANCILLARIES: [(Ancillary, &str); 16] = [
    (Ancillary::Protocol,      "proto"),
    (Ancillary::PacketType,    "type"),
    (Ancillary::Ifindex,       "ifidx"),
    (Ancillary::Netlink,       "nla"),
    (Ancillary::NetlinkNested, "nlan"),
    (Ancillary::Mark,          "mark"),
    (Ancillary::Queue,         "queue"),
    (Ancillary::HardwareType,  "hatype"),
    (Ancillary::RxHash,        "rxhash"),
    (Ancillary::Cpu,           "cpu"),
    (Ancillary::XorX,          "xorx"),
    (Ancillary::VlanTci,       "vlan_tci"),
    (Ancillary::VlanPresent,   "vlanp"),
    (Ancillary::PayloadOffset, "poff"),
    (Ancillary::Random,        "rand"),
    (Ancillary::VlanProtocol,  "vlan_tpid"),
];

/// Target of an absolute index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the packet.
    Packet(u32),
    /// In the packet, relative to its link header.
    Link(u32),
    /// In the packet, relative to its network header.
    Network(u32),
    /// Kernel metadata.
    Ancillary(Ancillary),
    /// Invalid.
    Nothing,
}

impl Place {
    /// The target of an absolute index on Linux.
    pub fn of(index: u32) -> Self {
        if let Some(off) = index.checked_sub(ANCILLARY_BASE) {
            let known = off
                .is_multiple_of(4)
                .then(|| ANCILLARIES.get(off as usize / 4))
                .flatten();
            known.map_or(Self::Nothing, |&(ancillary, _)| Self::Ancillary(ancillary))
        } else if let Some(off) = index.checked_sub(NETWORK_BASE) {
            Self::Network(off)
        } else if let Some(off) = index.checked_sub(LINK_BASE) {
            Self::Link(off)
        } else {
            Self::Packet(index)
        }
    }
}

/// A program that passed the checks; see [`Program::new`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    insns: Vec<Insn>,
    refusal: validate::Refusal,
}

impl Program {
    /// Checks instructions: known codes, jumps within the program, no division by a constant 0, no
    /// shift by 32 or more, valid scratch words, a return at the end.
    ///
    /// These are the kernel's checks, except for what libpcap's compiler generates and its
    /// interpreter runs: a scratch word may be read before it is written, and is then 0 (`pppoes`
    /// after some link types); a jump may go backwards (`protochain`); a load may have a
    /// meaningless negative offset, which rejects the packet. [`Program::kernel_refusal`] detects
    /// these.
    pub fn new(insns: Vec<Insn>) -> Result<Self, Invalid> {
        let refusal = validate::check(&insns, INSN_COUNT_MAX)?;
        Ok(Self { insns, refusal })
    }

    /// As [`new`](Self::new), for a program of up to [`LONG_INSN_COUNT_MAX`] instructions, which
    /// the interpreter runs. The kernel refuses it if it has more than [`INSN_COUNT_MAX`].
    pub fn long(insns: Vec<Insn>) -> Result<Self, Invalid> {
        let mut refusal = validate::check(&insns, LONG_INSN_COUNT_MAX)?;
        if insns.len() > INSN_COUNT_MAX {
            let length = Invalid::Length(insns.len());
            refusal.first = refusal.first.or(Some(length));
        }
        Ok(Self { insns, refusal })
    }

    /// Why `SO_ATTACH_FILTER` would refuse the program, if it would. The translations of this crate
    /// accept everything but backward jumps.
    pub fn kernel_refusal(&self) -> Option<Invalid> {
        self.refusal.first
    }

    /// Index of the first backward jump. A program with one runs in the interpreter only.
    pub fn backward_jump(&self) -> Option<usize> {
        self.refusal.jump
    }

    /// The instructions.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// The instructions decoded.
    pub fn ops(&self) -> impl Iterator<Item = Op> {
        self.insns.iter().filter_map(|insn| insn.decode())
    }

    /// Whether the program reads the packet's length.
    pub fn uses_len(&self) -> bool {
        self.ops().any(|op| matches!(op, Op::LoadLen(_)))
    }
}
