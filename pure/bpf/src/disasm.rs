//! Prints programs: cBPF as `tcpdump -d` does, character for character, and eBPF in the notation of
//! the kernel's verifier.
//!
//! ```
//! use barewire_bpf::cbpf::Insn;
//! use barewire_bpf::disasm::Classic;
//! let text = format!("{}", Classic(&[Insn::new(0x28, 0, 0, 12), Insn::new(0x16, 0, 0, 0)]));
//! assert_eq!(text, "(000) ldh      [12]\n(001) ret      \n");
//! ```

use core::fmt::{self, Display, Formatter};

use crate::cbpf::{self, ANCILLARIES, ANCILLARY_BASE, Form, Reg};
use crate::ebpf::{
    ATOMIC_COMPARE_EXCHANGE, CLASS_ALU32, CLASS_ALU64, CLASS_JMP, CLASS_JMP32, CLASS_LD, CLASS_LDX,
    CLASS_ST, CLASS_STX, Insn, MODE_ABS, MODE_ATOMIC, MODE_IND, PSEUDO_CALL, PSEUDO_KFUNC_CALL,
    PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, SOURCE_X,
};

/// cBPF instructions, one line each.
#[derive(Clone, Copy, Debug)]
pub struct Classic<'a>(pub &'a [cbpf::Insn]);

impl Display for Classic<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, &insn) in self.0.iter().enumerate() {
            classic_line(f, at, insn)?;
        }
        Ok(())
    }
}

/// One cBPF instruction as [`Classic`] prints it, at an index of its program.
#[derive(Clone, Copy, Debug)]
pub struct ClassicLine(pub usize, pub cbpf::Insn);

impl Display for ClassicLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        classic_line(f, self.0, self.1)
    }
}

fn classic_line(f: &mut Formatter<'_>, at: usize, insn: cbpf::Insn) -> fmt::Result {
    let Some(info) = cbpf::op_info(insn.code) else {
        return writeln!(f, "({at:03}) unimp    {:#x}", insn.code);
    };
    write!(f, "({at:03}) {:<8} ", info.name)?;
    if let Form::JumpIf(_, x) = info.form {
        let (yes, no) = (at + 1 + usize::from(insn.jt), at + 1 + usize::from(insn.jf));
        return if x {
            writeln!(f, "{:<16} jt {yes}\tjf {no}", "x")
        } else {
            // Padded after the number, which has no width of its own.
            let digits = if insn.k == 0 {
                1
            } else {
                insn.k.ilog2() as usize / 4 + 1
            };
            writeln!(
                f,
                "#{:#x}{:pad$} jt {yes}\tjf {no}",
                insn.k,
                "",
                pad = 13 - digits
            )
        };
    }
    let signed = insn.k as i32;
    match info.form {
        Form::Abs(_) => match ancillary_name(insn.k) {
            Some(name) => write!(f, "[{name}]"),
            None => write!(f, "[{signed}]"),
        },
        Form::Ind(_) => write!(f, "[x + {signed}]"),
        Form::Len(_) => f.write_str("#pktlen"),
        Form::Imm(_) => write!(f, "#{:#x}", insn.k),
        Form::Mem(_) | Form::Store(Reg::A | Reg::X) => write!(f, "M[{signed}]"),
        Form::Msh => write!(f, "4*([{signed}]&0xf)"),
        Form::Alu {
            op: cbpf::Alu::Neg, ..
        } => Ok(()),
        Form::Alu { x: true, .. } => f.write_str("x"),
        Form::Alu { hex: true, .. } => write!(f, "#{:#x}", insn.k),
        Form::Alu { .. } | Form::RetK => write!(f, "#{signed}"),
        Form::Jump => write!(f, "{}", at + 1 + insn.k as usize),
        Form::JumpIf(..) | Form::RetA | Form::Tax | Form::Txa => Ok(()),
    }?;
    writeln!(f)
}

fn ancillary_name(index: u32) -> Option<&'static str> {
    let off = index.checked_sub(ANCILLARY_BASE)?;
    let row = ANCILLARIES
        .get(off as usize / 4)
        .filter(|_| off.is_multiple_of(4))?;
    Some(row.1)
}

/// eBPF instructions, one line each; a 64-bit constant is one line, although two instructions long.
#[derive(Clone, Copy, Debug)]
pub struct Extended<'a>(pub &'a [Insn]);

impl Display for Extended<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().enumerate();
        while let Some((at, &insn)) = rest.next() {
            write!(f, "{at:4}: ")?;
            if insn.is_wide() {
                let high = rest.next().map_or(0, |(_, insn)| insn.imm);
                wide(f, insn, high)?;
            } else {
                extended(f, at, insn)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn wide(f: &mut Formatter<'_>, insn: Insn, high: i32) -> fmt::Result {
    let dst = insn.dst;
    match insn.src {
        PSEUDO_MAP_FD => write!(f, "r{dst} = map of fd {}", insn.imm),
        PSEUDO_MAP_VALUE => write!(f, "r{dst} = value of map of fd {} + {high}", insn.imm),
        _ => {
            let value = u64::from(high as u32) << 32 | u64::from(insn.imm as u32);
            write!(f, "r{dst} = {value:#x} ll")
        }
    }
}

/// Operation bits of an opcode and their notation; the bits are the same in every class of their
/// kind.
const ALU_SIGNS: [(u8, &str); 12] = [
    (0x00, "+="),
    (0x10, "-="),
    (0x20, "*="),
    (0x30, "/="),
    (0x40, "|="),
    (0x50, "&="),
    (0x60, "<<="),
    (0x70, ">>="),
    (0x90, "%="),
    (0xa0, "^="),
    (0xb0, "="),
    (0xc0, "s>>="),
];

const JUMP_SIGNS: [(u8, &str); 11] = [
    (0x10, "=="),
    (0x20, ">"),
    (0x30, ">="),
    (0x40, "&"),
    (0x50, "!="),
    (0x60, "s>"),
    (0x70, "s>="),
    (0xa0, "<"),
    (0xb0, "<="),
    (0xc0, "s<"),
    (0xd0, "s<="),
];

fn sign(table: &[(u8, &'static str)], code: u8) -> &'static str {
    table
        .iter()
        .find(|row| row.0 == code & 0xf0)
        .map_or("?", |row| row.1)
}

fn width(code: u8) -> &'static str {
    match code & 0x18 {
        0x00 => "u32",
        0x08 => "u16",
        0x10 => "u8",
        _ => "u64",
    }
}

/// The second operand of arithmetic and jumps.
struct Second(Insn, char);

impl Display for Second {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.code & SOURCE_X != 0 {
            write!(f, "{}{}", self.1, self.0.src)
        } else if self.0.imm < 0 || self.0.imm < 10 {
            write!(f, "{}", self.0.imm)
        } else {
            write!(f, "{:#x}", self.0.imm)
        }
    }
}

fn extended(f: &mut Formatter<'_>, at: usize, insn: Insn) -> fmt::Result {
    let Insn {
        code,
        dst,
        src,
        off,
        imm,
    } = insn;
    let target = at as i64 + 1 + i64::from(off);
    match insn.class() {
        class @ (CLASS_ALU32 | CLASS_ALU64) => {
            let reg = if class == CLASS_ALU32 { 'w' } else { 'r' };
            match code & 0xf0 {
                0x80 => write!(f, "{reg}{dst} = -{reg}{dst}"),
                0xd0 => {
                    let order = if code & SOURCE_X != 0 { "be" } else { "le" };
                    write!(f, "r{dst} = {order}{imm} r{dst}")
                }
                _ => write!(
                    f,
                    "{reg}{dst} {} {}",
                    sign(&ALU_SIGNS, code),
                    Second(insn, reg)
                ),
            }
        }
        CLASS_LDX => write!(f, "r{dst} = *({} *)(r{src} {off:+})", width(code)),
        CLASS_ST => write!(f, "*({} *)(r{dst} {off:+}) = {imm}", width(code)),
        CLASS_STX if code & 0xe0 == MODE_ATOMIC && imm == ATOMIC_COMPARE_EXCHANGE => write!(
            f,
            "r0 = atomic64_cmpxchg((u64 *)(r{dst} {off:+}), r0, r{src})"
        ),
        CLASS_STX => write!(f, "*({} *)(r{dst} {off:+}) = r{src}", width(code)),
        CLASS_LD => match code & 0xe0 {
            MODE_ABS => write!(f, "r0 = *({} *)skb[{imm}]", width(code)),
            MODE_IND => write!(f, "r0 = *({} *)skb[r{src} {imm:+}]", width(code)),
            _ => write!(f, "? {code:#04x}"),
        },
        CLASS_JMP if code & 0xf0 == 0x80 => {
            if src == PSEUDO_CALL {
                write!(f, "call {}", at as i64 + 1 + i64::from(imm))
            } else if src == PSEUDO_KFUNC_CALL {
                write!(f, "call kernel function of BTF id {imm}")
            } else {
                match HELPERS.iter().find(|row| row.0 == imm) {
                    Some((_, name)) => write!(f, "call {name}#{imm}"),
                    None => write!(f, "call #{imm}"),
                }
            }
        }
        CLASS_JMP if code & 0xf0 == 0x90 => f.write_str("exit"),
        CLASS_JMP if code & 0xf0 == 0x00 => write!(f, "goto {target}"),
        class @ (CLASS_JMP | CLASS_JMP32) => {
            let reg = if class == CLASS_JMP32 { 'w' } else { 'r' };
            let sign = sign(&JUMP_SIGNS, code);
            write!(
                f,
                "if {reg}{dst} {sign} {} goto {target}",
                Second(insn, reg)
            )
        }
        _ => write!(f, "? {code:#04x}"),
    }
}

/// Numbers and names of the helpers in [`crate::ebpf::Helper`].
const HELPERS: [(i32, &str); 17] = [
    (1, "bpf_map_lookup_elem"),
    (5, "bpf_ktime_get_ns"),
    (7, "bpf_get_prandom_u32"),
    (8, "bpf_get_smp_processor_id"),
    (18, "bpf_skb_vlan_push"),
    (19, "bpf_skb_vlan_pop"),
    (23, "bpf_redirect"),
    (25, "bpf_perf_event_output"),
    (26, "bpf_skb_load_bytes"),
    (39, "bpf_skb_pull_data"),
    (51, "bpf_redirect_map"),
    (54, "bpf_xdp_adjust_meta"),
    (65, "bpf_xdp_adjust_tail"),
    (188, "bpf_xdp_get_buff_len"),
    (189, "bpf_xdp_load_bytes"),
    (190, "bpf_xdp_store_bytes"),
    (208, "bpf_ktime_get_tai_ns"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asm::Asm;
    use crate::ebpf::Reg::{R0, R1, R2, R6, R10};
    use crate::ebpf::{Alu, Cond, Helper, Width};
    use std::format;

    #[test]
    fn every_classic_instruction_has_a_distinct_line() {
        let lines: std::collections::BTreeSet<_> = cbpf::OPS
            .iter()
            .map(|info| format!("{}", Classic(&[cbpf::Insn::new(info.code, 1, 2, 3)])))
            .collect();
        assert_eq!(lines.len(), cbpf::OPS.len());
    }

    #[test]
    fn columns_are_those_of_tcpdump() {
        for (insn, expected) in [
            (
                (0x15, 0, 5, 0x86dd),
                "(000) jeq      #0x86dd          jt 1\tjf 6\n",
            ),
            (
                (0x45, 1, 0, 0),
                "(000) jset     #0x0             jt 2\tjf 1\n",
            ),
            (
                (0x25, 1, 0, u32::MAX),
                "(000) jgt      #0xffffffff      jt 2\tjf 1\n",
            ),
            (
                (0x2d, 1, 0, 0),
                "(000) jgt      x                jt 2\tjf 1\n",
            ),
            (
                (0x30, 0, 0, ANCILLARY_BASE + 48),
                "(000) ldb      [vlanp]\n",
            ),
            ((0x28, 0, 0, ANCILLARY_BASE - 1), "(000) ldh      [-4097]\n"),
            ((0xb1, 0, 0, 14), "(000) ldxb     4*([14]&0xf)\n"),
            ((0x06, 0, 0, 262_144), "(000) ret      #262144\n"),
        ] {
            let (code, jt, jf, k) = insn;
            assert_eq!(
                format!("{}", Classic(&[cbpf::Insn::new(code, jt, jf, k)])),
                expected
            );
        }
        assert_eq!(
            format!("{}", Classic(&[cbpf::Insn::new(0xff, 0, 0, 0)])),
            "(000) unimp    0xff\n"
        );
    }

    #[test]
    fn extended_text_is_that_of_the_verifier() {
        let mut a = Asm::new();
        let end = a.label();
        a.mov(R6, R1);
        a.load(Width::W, R2, R6, 4);
        a.alu32(Alu::And, R2, 0xfff);
        a.swap_be(R2, 16);
        a.jump32_if(Cond::SignedLe, R2, -1, end);
        a.load_imm64(R0, u64::MAX);
        a.load_map(R1, 5);
        a.load_map_value(R1, 5, 24);
        a.store(Width::B, R10, -8, 7);
        a.store(Width::D, R10, -8, R1);
        a.call(Helper::RedirectMap);
        a.call_kfunc(1234);
        a.load_ind(Width::H, R2, 14);
        a.alu(Alu::Neg, R0, 0);
        a.jump(end);
        a.bind(end);
        a.exit();
        let text = format!("{}", Extended(&a.finish().unwrap()));
        let expected = "   0: r6 = r1
   1: r2 = *(u32 *)(r6 +4)
   2: w2 &= 0xfff
   3: r2 = be16 r2
   4: if w2 s<= -1 goto 18
   5: r0 = 0xffffffffffffffff ll
   7: r1 = map of fd 5
   9: r1 = value of map of fd 5 + 24
  11: *(u8 *)(r10 -8) = 7
  12: *(u64 *)(r10 -8) = r1
  13: call bpf_redirect_map#51
  14: call kernel function of BTF id 1234
  15: r0 = *(u16 *)skb[r2 +14]
  16: r0 = -r0
  17: goto 18
  18: exit
";
        assert_eq!(text, expected);
    }

    #[test]
    fn loads_from_packets_are_printed() {
        let mut a = Asm::new();
        a.load_abs(Width::W, 12);
        a.load_ind(Width::B, R1, -1);
        let text = format!("{}", Extended(&a.finish().unwrap()));
        let expected = "   0: r0 = *(u32 *)skb[12]\n   1: r0 = *(u8 *)skb[r1 -1]\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn invalid_instructions_are_printed_too() {
        for code in 0..=255 {
            let insn = Insn {
                code,
                dst: 15,
                src: 15,
                off: i16::MIN,
                imm: i32::MIN,
            };
            assert!(!format!("{}", Extended(&[insn])).is_empty());
            let insn = cbpf::Insn::new(code.into(), 255, 255, u32::MAX);
            assert!(!format!("{}", Classic(&[insn])).is_empty());
        }
    }
}
