//! Filters on a socket's packet through eBPF's own packet loads (`BPF_LD | BPF_ABS`, `BPF_IND`), to
//! which the kernel itself translates cBPF. They convert byte order, and end the program with 0
//! outside the packet.
//!
//! A is R0, where these loads put their result; X is R7; R8 holds intermediate values.

use super::plan::{OFFSET_MAX, Plan};
use super::{Access, Out, TranslateError, ebpf_width};
use crate::asm::{Asm, Label};
use crate::cbpf::{self, Ancillary, Place, Program};
use crate::ebpf::Reg::{self, R0, R6, R7, R8};
use crate::ebpf::{Alu, Cond, Helper, Width};

/// Field offsets in `struct __sk_buff`.
const SKB_LEN: i16 = 0;

/// Offset of an ancillary value in `struct __sk_buff`, and whether it is in network byte order.
#[rustfmt::skip]
const FIELDS: [(Ancillary, i16, bool); 9] = [
    (Ancillary::PacketType,   4,  false),
    (Ancillary::Mark,         8,  false),
    (Ancillary::Queue,        12, false),
    (Ancillary::Protocol,     16, true),
    (Ancillary::VlanPresent,  20, false),
    (Ancillary::VlanTci,      24, false),
    (Ancillary::VlanProtocol, 28, true),
    (Ancillary::Ifindex,      40, false),
    (Ancillary::RxHash,       68, false),
];

pub(super) fn emit(
    asm: &mut Asm,
    program: &Program,
    stack_top: i16,
    hit: Label,
    miss: Label,
) -> Result<(), TranslateError> {
    let plan = Plan::new(program)?;
    Out::new(asm, &plan, stack_top, hit, miss).body(&mut Skb)
}

struct Skb;

const A: Reg = R0;
const X: Reg = R7;

impl Access for Skb {
    fn a(&self) -> Reg {
        A
    }

    fn x(&self) -> Reg {
        X
    }

    fn load_abs(
        &mut self,
        out: &mut Out<'_>,
        at: usize,
        width: cbpf::Width,
        k: u32,
    ) -> Result<(), TranslateError> {
        let what = match Place::of(k) {
            Place::Ancillary(what) => what,
            // The kernel defines negative indices relative to headers.
            _ => {
                out.asm.load_abs(ebpf_width(width), k as i32);
                return Ok(());
            }
        };
        match what {
            Ancillary::XorX => out.asm.alu32(Alu::Xor, A, X),
            Ancillary::Cpu => out.asm.call(Helper::GetSmpProcessorId),
            Ancillary::Random => out.asm.call(Helper::GetPrandomU32),
            _ => {
                let field = FIELDS.iter().find(|field| field.0 == what);
                let &(_, off, swap) = field.ok_or(TranslateError::Ancillary { at, what })?;
                out.asm.load(Width::W, A, R6, off);
                if swap {
                    out.asm.swap_be(A, 16);
                }
            }
        }
        Ok(())
    }

    fn load_ind(&mut self, out: &mut Out<'_>, _: usize, width: cbpf::Width, k: u32) {
        // Above this, the sum could become one of the negative indices.
        out.asm.jump32_if(Cond::Gt, X, OFFSET_MAX as i32, out.miss);
        out.asm.load_ind(ebpf_width(width), X, k as i32);
    }

    fn load_msh(&mut self, out: &mut Out<'_>, _: usize, k: u32) {
        out.asm.mov32(R8, A);
        out.asm.load_abs(Width::B, k as i32);
        out.asm.mov32(X, R0);
        out.asm.alu32(Alu::And, X, 0xf);
        out.asm.alu32(Alu::Lsh, X, 2);
        out.asm.mov32(A, R8);
    }

    fn load_len(&mut self, out: &mut Out<'_>, to: Reg) {
        out.asm.load(Width::W, to, R6, SKB_LEN);
    }
}
