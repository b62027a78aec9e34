//! eBPF instructions as the kernel reads them (RFC 9669; `include/uapi/linux/bpf.h`).
//!
//! An instruction is eight bytes: opcode, two registers, a jump or memory offset, a constant. A
//! 64-bit constant takes two of them.

use core::fmt;

/// Class of 64-bit constants and the old packet loads.
pub const CLASS_LD: u8 = 0x00;
/// Class of loads from memory.
pub const CLASS_LDX: u8 = 0x01;
/// Class of stores of a constant.
pub const CLASS_ST: u8 = 0x02;
/// Class of stores of a register.
pub const CLASS_STX: u8 = 0x03;
/// Class of arithmetic on the low 32 bits; the upper half becomes 0.
pub const CLASS_ALU32: u8 = 0x04;
/// Class of jumps that compare 64 bits, of calls and of exit.
pub const CLASS_JMP: u8 = 0x05;
/// Class of jumps that compare the low 32 bits.
pub const CLASS_JMP32: u8 = 0x06;
/// Class of arithmetic on 64 bits.
pub const CLASS_ALU64: u8 = 0x07;

/// Mode of a load or store: an address in a register plus an offset.
pub const MODE_MEM: u8 = 0x60;
/// Mode of an atomic operation on memory; the immediate selects the operation.
pub const MODE_ATOMIC: u8 = 0xc0;
/// The constant of an atomic compare-and-exchange (`BPF_CMPXCHG`, Linux 5.12).
pub const ATOMIC_COMPARE_EXCHANGE: i32 = 0xf1;
/// Mode of the socket filter's packet load at a constant index.
pub const MODE_ABS: u8 = 0x20;
/// Mode of the socket filter's packet load at a register plus a constant.
pub const MODE_IND: u8 = 0x40;
/// Mode of the two-part 64-bit constant.
pub const MODE_IMM: u8 = 0x00;
/// Set if the second operand is a register.
pub const SOURCE_X: u8 = 0x08;

/// Source register value of a 64-bit constant that is a map's descriptor (`BPF_PSEUDO_MAP_FD`).
pub const PSEUDO_MAP_FD: u8 = 1;
/// Source register value of a 64-bit constant that is an address in a map's value
/// (`BPF_PSEUDO_MAP_VALUE`).
pub const PSEUDO_MAP_VALUE: u8 = 2;
/// Source register value of a call whose constant is the distance to a function in the same program
/// (`BPF_PSEUDO_CALL`).
pub const PSEUDO_CALL: u8 = 1;
/// Source register value of a call whose constant is a BTF id (`BPF_PSEUDO_KFUNC_CALL`).
pub const PSEUDO_KFUNC_CALL: u8 = 2;

/// One of the eleven registers.
///
/// R0 holds results, R1 to R5 arguments (clobbered by calls); R6 to R9 survive calls; R10 is the
/// read-only frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", *self as u8)
    }
}

/// Second operand: a register or a sign-extended constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Src {
    /// A register.
    Reg(Reg),
    /// A constant.
    Imm(i32),
}

impl From<Reg> for Src {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Src {
    fn from(imm: i32) -> Self {
        Self::Imm(imm)
    }
}

/// Number of bytes that a load or store moves; the value is that of the opcode's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// Four bytes.
    W = 0x00,
    /// Two bytes.
    H = 0x08,
    /// One byte.
    B = 0x10,
    /// Eight bytes.
    D = 0x18,
}

impl Width {
    /// The width in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B => 1,
            Self::H => 2,
            Self::W => 4,
            Self::D => 8,
        }
    }
}

/// An arithmetic operation; the value is that of the opcode's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    /// Unsigned; division by 0 returns 0.
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Neg = 0x80,
    /// Unsigned; modulo 0 leaves the destination unchanged.
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
    Arsh = 0xc0,
}

/// Condition of a jump; the value is that of the opcode's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cond {
    /// Equal.
    Eq = 0x10,
    /// Unsigned greater.
    Gt = 0x20,
    /// Unsigned greater or equal.
    Ge = 0x30,
    /// Any bit in common.
    Set = 0x40,
    /// Not equal.
    Ne = 0x50,
    /// Signed greater.
    SignedGt = 0x60,
    /// Signed greater or equal.
    SignedGe = 0x70,
    /// Unsigned less.
    Lt = 0xa0,
    /// Unsigned less or equal.
    Le = 0xb0,
    /// Signed less.
    SignedLt = 0xc0,
    /// Signed less or equal.
    SignedLe = 0xd0,
}

/// A helper function by its number in `enum bpf_func_id`, with the first kernel that supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `bpf_map_lookup_elem`.
    MapLookup = 1,
    /// `bpf_map_update_elem`.
    MapUpdate = 2,
    /// `bpf_ktime_get_ns`: `CLOCK_MONOTONIC`.
    KtimeGetNs = 5,
    /// `bpf_get_prandom_u32`.
    GetPrandomU32 = 7,
    /// `bpf_get_smp_processor_id`.
    GetSmpProcessorId = 8,
    /// `bpf_skb_vlan_push` (tc, Linux 4.3).
    SkbVlanPush = 18,
    /// `bpf_skb_vlan_pop` (tc, Linux 4.3).
    SkbVlanPop = 19,
    /// `bpf_redirect`: redirect to an interface by index (XDP since Linux 4.8).
    Redirect = 23,
    /// `bpf_perf_event_output`: bytes and the start of the packet to a processor's perf ring (XDP
    /// and tc since Linux 4.8, packets of several buffers since 5.18).
    PerfEventOutput = 25,
    /// `bpf_skb_load_bytes`: copy out of the packet (tc and sockets, Linux 4.5).
    SkbLoadBytes = 26,
    /// `bpf_csum_diff`: the sum of RFC 1071, unfolded (Linux 4.6).
    CsumDiff = 28,
    /// `bpf_skb_pull_data`: make the first bytes of the packet linear (tc, Linux 4.9).
    SkbPullData = 39,
    /// `bpf_redirect_map`: redirect to an entry of a device, CPU or socket map (Linux 4.14).
    RedirectMap = 51,
    /// `bpf_xdp_adjust_meta`: make room before the packet (Linux 4.15).
    XdpAdjustMeta = 54,
    /// `bpf_xdp_adjust_tail`: shorten (4.18) or lengthen (5.8) the packet.
    XdpAdjustTail = 65,
    /// `bpf_sk_release`: release a socket that was looked up (Linux 4.20).
    SkRelease = 86,
    /// `bpf_skc_lookup_tcp`: look up the socket of a TCP packet, listening or not (Linux 5.2).
    SkcLookupTcp = 99,
    /// `bpf_tcp_check_syncookie`: check whether an ACK returns a cookie of this listener (Linux
    /// 5.2).
    TcpCheckSyncookie = 100,
    /// `bpf_tcp_gen_syncookie`: generate a cookie for a SYN to this listener, and the MSS (Linux
    /// 5.3).
    TcpGenSyncookie = 110,
    /// `bpf_xdp_get_buff_len`: the whole packet's length, fragments included (Linux 5.18).
    XdpGetBuffLen = 188,
    /// `bpf_xdp_load_bytes`: copy out of the packet, fragments included (Linux 5.18).
    XdpLoadBytes = 189,
    /// `bpf_xdp_store_bytes`: copy into the packet, fragments included (Linux 5.18).
    XdpStoreBytes = 190,
    /// `bpf_ktime_get_tai_ns`: `CLOCK_TAI` (Linux 6.1).
    KtimeGetTaiNs = 208,
}

/// One instruction, in the layout of the kernel's `struct bpf_insn`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Insn {
    /// Operation, class and width.
    pub code: u8,
    /// Number of the destination register.
    pub dst: u8,
    /// Number of the source register, or a pseudo source.
    pub src: u8,
    /// Jump distance in instructions from the next one, or memory offset in bytes.
    pub off: i16,
    /// The constant.
    pub imm: i32,
}

impl Insn {
    /// The eight bytes as one word in this machine's byte order, as the loader expects them.
    pub fn to_word(self) -> u64 {
        let regs = if cfg!(target_endian = "little") {
            self.dst | self.src << 4
        } else {
            self.dst << 4 | self.src
        };
        let [off0, off1] = self.off.to_ne_bytes();
        let [imm0, imm1, imm2, imm3] = self.imm.to_ne_bytes();
        u64::from_ne_bytes([self.code, regs, off0, off1, imm0, imm1, imm2, imm3])
    }

    /// Inverse of [`Insn::to_word`].
    pub fn from_word(word: u64) -> Self {
        let [code, regs, off0, off1, imm0, imm1, imm2, imm3] = word.to_ne_bytes();
        let (low, high) = (regs & 0xf, regs >> 4);
        let (dst, src) = if cfg!(target_endian = "little") {
            (low, high)
        } else {
            (high, low)
        };
        Self {
            code,
            dst,
            src,
            off: i16::from_ne_bytes([off0, off1]),
            imm: i32::from_ne_bytes([imm0, imm1, imm2, imm3]),
        }
    }

    /// The instruction's class, one of the `CLASS_` constants.
    pub const fn class(self) -> u8 {
        self.code & 0x07
    }

    /// Whether this is the first half of a 64-bit constant, which the next word completes.
    pub const fn is_wide(self) -> bool {
        self.code == CLASS_LD | MODE_IMM | Width::D as u8
    }
}

impl fmt::Debug for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "code {:#04x} dst r{} src r{} off {} imm {:#x}",
            self.code, self.dst, self.src, self.off, self.imm
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_carry_every_field() {
        let insn = Insn {
            code: 0x61,
            dst: 2,
            src: 10,
            off: -8,
            imm: -2,
        };
        assert_eq!(Insn::from_word(insn.to_word()), insn);
        #[cfg(target_endian = "little")]
        assert_eq!(
            insn.to_word().to_ne_bytes(),
            [0x61, 0xa2, 0xf8, 0xff, 0xfe, 0xff, 0xff, 0xff]
        );
    }
}
