//! The transmit program: run over the kernel's live test frames, it fills each one with the next
//! packet from the user-space ring and redirects it to the device, or passes it to the host.
//!
//! ```text
//! index = control.next                 control.next = index + 1, or 0 at control.wrap
//! slot = slots + index * stride        its first word is the packet's length
//! adjust_tail(length - frame)          only where lengths differ
//! copy the bytes                       64 at a time, then 32, 16, 8, 4, 2, 1
//! redirect_map(device)                 submitted += 1, or refused += 1
//! or write the mark, and pass          submitted += 1
//! ```
//!
//! It runs on one processor at a time, so its counters need no atomic operations.

use std::os::fd::RawFd;

use bpf::asm::{Asm, Label};
use bpf::ebpf::Reg::{self, R0, R1, R2, R3, R4, R6, R7, R8, R9};
use bpf::ebpf::{Alu, Cond, Helper, Insn, Width};
use sys::{Error, ErrorKind, Result};

use super::redirect::{XDP_PASS, XDP_REDIRECT};

/// `XDP_DROP` of `enum xdp_action`.
const XDP_DROP: i32 = 1;

/// Field offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_DATA_META: i16 = 8;

/// Byte offsets of the words in the control map's value.
pub(crate) mod control {
    /// Index of the next slot.
    pub const NEXT: i16 = 0;
    /// Number of slots, after which the index wraps to 0.
    pub const WRAP: i16 = 8;
    /// Initial length of the frames.
    pub const FRAME_LEN: i16 = 16;
    /// Packets handed to the device, since creation.
    pub const SUBMITTED: i16 = 24;
    /// Packets that could not be handed over, since creation.
    pub const REFUSED: i16 = 32;
    /// Length of the value.
    pub const LEN: u32 = 64;
}

/// Length of the header before a slot's packet, which contains its length.
pub(crate) const SLOT_HEAD_LEN: usize = 8;

/// Where packets go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exit {
    /// The device in this map (`BPF_MAP_TYPE_DEVMAP`).
    Device(RawFd),
    /// The host's network stack, with this number in the 8 bytes before the packet.
    Host { mark: Option<u64> },
}

/// Maps and layout that the program uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransmitMaps {
    pub control_fd: RawFd,
    pub slots_fd: RawFd,
    pub exit: Exit,
    pub slot_count: u32,
    /// Distance between slots in bytes, a power of two.
    pub stride: u32,
    /// Maximum packet length.
    pub len_max: u32,
}

/// Generates the instructions.
pub(crate) fn generate(maps: &TransmitMaps) -> Result<Vec<Insn>> {
    let mut a = Asm::new();
    let (refuse, no_wrap, same, tail) = (a.label(), a.label(), a.label(), a.label());
    a.mov(R6, R1);
    a.load_map_value(R7, maps.control_fd, 0);
    a.load(Width::D, R1, R7, control::NEXT);
    a.mov(R2, R1);
    a.alu(Alu::Add, R2, 1);
    a.load(Width::D, R3, R7, control::WRAP);
    a.jump_if(Cond::Lt, R2, R3, no_wrap);
    a.mov(R2, 0);
    a.bind(no_wrap);
    a.store(Width::D, R7, control::NEXT, R2);

    a.jump_if(Cond::Ge, R1, maps.slot_count as i32, refuse);
    a.alu(Alu::Lsh, R1, maps.stride.trailing_zeros() as i32);
    a.load_map_value(R8, maps.slots_fd, 0);
    a.alu(Alu::Add, R8, R1);
    a.load(Width::W, R9, R8, 0);
    a.jump_if(Cond::Gt, R9, maps.len_max as i32, refuse);
    a.alu(Alu::Add, R8, SLOT_HEAD_LEN as i32);

    a.load(Width::D, R1, R7, control::FRAME_LEN);
    a.jump_if(Cond::Eq, R9, R1, same);
    a.mov(R2, R9);
    a.alu(Alu::Sub, R2, R1);
    a.mov(R1, R6);
    a.call(Helper::XdpAdjustTail);
    a.jump_if(Cond::Ne, R0, 0, refuse);
    a.bind(same);

    a.load(Width::W, R2, R6, MD_DATA);
    a.load(Width::W, R3, R6, MD_DATA_END);
    for _ in 0..maps.len_max / 64 {
        copy(&mut a, 64, tail);
    }
    a.bind(tail);
    for len in [32, 16, 8, 4, 2, 1] {
        let shorter = a.label();
        copy(&mut a, len, shorter);
        a.bind(shorter);
    }

    match maps.exit {
        Exit::Device(device_fd) => {
            a.load_map(R1, device_fd);
            a.mov(R2, 0);
            a.mov(R3, XDP_DROP);
            a.call(Helper::RedirectMap);
            a.jump_if(Cond::Ne, R0, XDP_REDIRECT, refuse);
        }
        Exit::Host { mark } => {
            if let Some(mark) = mark {
                write_mark(&mut a, mark, refuse);
            }
            a.mov(R0, XDP_PASS);
        }
    }
    count(&mut a, R1, control::SUBMITTED);
    a.exit();

    a.bind(refuse);
    count(&mut a, R1, control::REFUSED);
    a.mov(R0, XDP_DROP);
    a.exit();
    a.finish().map_err(|e| {
        Error::new(
            ErrorKind::InvalidInput,
            "generate the program",
            e.to_string(),
        )
    })
}

/// Copies `len` bytes, a power of two, from R8 to the packet at R2 and advances both; jumps to
/// `shorter` if the packet ends before. Clobbers R1 and R4.
fn copy(a: &mut Asm, len: i16, shorter: Label) {
    a.mov(R4, R2);
    a.alu(Alu::Add, R4, i32::from(len));
    a.jump_if(Cond::Gt, R4, R3, shorter);
    let width = match len {
        1 => Width::B,
        2 => Width::H,
        4 => Width::W,
        _ => Width::D,
    };
    for off in (0..len).step_by(width.bytes() as usize) {
        a.load(width, R1, R8, off);
        a.store(width, R2, off, R1);
    }
    a.mov(R2, R4);
    a.alu(Alu::Add, R8, i32::from(len));
}

/// Writes the mark before the packet, which is no metadata of it afterwards. Clobbers R0 to R5.
fn write_mark(a: &mut Asm, mark: u64, refuse: Label) {
    const LEN: i32 = 8;
    a.mov(R1, R6);
    a.mov(R2, -LEN);
    a.call(Helper::XdpAdjustMeta);
    a.jump_if(Cond::Ne, R0, 0, refuse);
    a.load(Width::W, R2, R6, MD_DATA_META);
    a.load(Width::W, R3, R6, MD_DATA);
    a.mov(R1, R2);
    a.alu(Alu::Add, R1, LEN);
    // Never taken, but the verifier requires the check.
    a.jump_if(Cond::Gt, R1, R3, refuse);
    a.load_imm64(R3, mark);
    a.store(Width::D, R2, 0, R3);
    a.mov(R1, R6);
    a.mov(R2, LEN);
    a.call(Helper::XdpAdjustMeta);
}

/// `counter += 1`.
fn count(a: &mut Asm, temporary: Reg, counter: i16) {
    a.load(Width::D, temporary, R7, counter);
    a.alu(Alu::Add, temporary, 1);
    a.store(Width::D, R7, counter, temporary);
}
