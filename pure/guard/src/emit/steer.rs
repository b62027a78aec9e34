//! Packets for user space: the program redirects each to the AF_XDP socket of its receive queue
//! (`BPF_MAP_TYPE_XSKMAP`).
//!
//! User space may return packets to the host through live frames (`BPF_PROG_TEST_RUN` with
//! `XDP_PASS`). A program in the driver does not see these again, but one in generic mode does:
//! they then carry a mark in the 8 bytes before the packet, a number that only this process knows.
//! The entry of the program passes a marked packet uncounted, and erases the mark, so that the
//! memory cannot mark another packet later.

use bpf::asm::{Asm, Label};
use bpf::ebpf::Reg::{R0, R1, R2, R3, R6};
use bpf::ebpf::{Alu, Cond, Helper, Width};

use super::end;

/// `XDP_PASS`, `XDP_REDIRECT`.
const XDP_PASS: i32 = 2;
pub(super) const XDP_REDIRECT: i32 = 4;

/// Field offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_META: i16 = 8;
const MD_RX_QUEUE_INDEX: i16 = 16;

/// Length of the mark in bytes.
const MARK_LEN: i32 = 8;

/// Where packets for user space go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// File descriptor of a `BPF_MAP_TYPE_XSKMAP` with a socket for each receive queue.
    pub sockets: i32,
    /// Whether packets of a queue without a socket are dropped; otherwise they pass.
    pub drops: bool,
    /// The mark of packets that user space has returned to the host. For generic mode only.
    pub mark: Option<u64>,
}

/// Emits the entry: a marked packet passes at once. Expects the context in R1 and leaves it there.
pub(super) fn emit_entry(a: &mut Asm, mark: u64) {
    let (plain, other) = (a.label(), a.label());
    a.mov(R6, R1);
    adjust_meta(a, -MARK_LEN);
    // No room before the packet: it is not one of ours.
    a.jump_if(Cond::Ne, R0, 0, plain);
    a.load(Width::W, R2, R6, MD_DATA_META);
    a.load(Width::W, R3, R6, MD_DATA);
    a.mov(R1, R2);
    a.alu(Alu::Add, R1, MARK_LEN);
    // Never taken, but the verifier requires the check.
    a.jump_if(Cond::Gt, R1, R3, other);
    a.load(Width::D, R1, R2, 0);
    a.load_imm64(R3, mark);
    a.jump_if(Cond::Ne, R1, R3, other);
    a.mov(R1, 0);
    a.store(Width::D, R2, 0, R1);
    adjust_meta(a, MARK_LEN);
    end(a, XDP_PASS);
    a.bind(other);
    adjust_meta(a, MARK_LEN);
    a.bind(plain);
    a.mov(R1, R6);
}

fn adjust_meta(a: &mut Asm, by: i32) {
    a.mov(R1, R6);
    a.mov(R2, by);
    a.call(Helper::XdpAdjustMeta);
}

/// Redirects the packet, and jumps to `gone` if its queue has no socket. Expects the context in R6.
pub(super) fn emit_redirect(a: &mut Asm, steering: Steering, gone: Label) {
    a.load_map(R1, steering.sockets);
    a.load(Width::W, R2, R6, MD_RX_QUEUE_INDEX);
    // The result without a socket: anything but a redirection.
    a.mov(R3, XDP_PASS);
    a.call(Helper::RedirectMap);
    a.jump_if(Cond::Ne, R0, XDP_REDIRECT, gone);
}
