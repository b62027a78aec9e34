//! Filters as programs in the caller's memory (`struct bpf_program`).

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use bpf::cbpf::Insn;
use bpf::vm_cbpf;
use port::FilterTarget;
use runtime::filter::Expression;
use sys::boundary::guard;

use super::bytes;
use crate::status::{GENERIC, INVALID_ARGUMENT, NO_MEMORY};

/// `struct bpf_program`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BpfProgram {
    len: u32,
    insns: *mut Insn,
}

/// Maximum number of instructions searched for the end of a program.
const INSN_COUNT_MAX: usize = 65_535;
/// Longest packet.
const CAPLEN_MAX: u32 = 262_144;

/// Compiles an expression for Ethernet. The program is freed by [`pfring_free_bpf_filter`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_parse_bpf_filter(
    text: *const c_char,
    caplen: u32,
    place: *mut BpfProgram,
) -> c_int {
    const ETHERNET: FilterTarget = FilterTarget {
        link_type: 1,
        tap: None,
    };
    guard(GENERIC, || {
        // SAFETY: null or a text; null or a place of the program.
        let (text, place) = unsafe { (bytes(text), place.as_mut()) };
        let (Some(Ok(text)), Some(place)) = (text.map(std::str::from_utf8), place) else {
            return INVALID_ARGUMENT;
        };
        let snaplen = match caplen {
            0 => CAPLEN_MAX,
            caplen => caplen.min(CAPLEN_MAX),
        };
        let Ok(program) = Expression::new(text).program(ETHERNET, snaplen) else {
            return INVALID_ARGUMENT;
        };
        let insns = program.insns();
        // SAFETY: room for the instructions, which are copied there.
        unsafe {
            let memory = libc::malloc(size_of_val(insns)).cast::<Insn>();
            if memory.is_null() {
                return NO_MEMORY;
            }
            memory.copy_from_nonoverlapping(insns.as_ptr(), insns.len());
            (place.len, place.insns) = (insns.len() as u32, memory);
        }
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_free_bpf_filter(place: *mut BpfProgram) {
    guard((), || {
        // SAFETY: null, or a program of pfring_parse_bpf_filter, or one without instructions.
        unsafe {
            if let Some(place) = place.as_mut() {
                libc::free(place.insns.cast::<c_void>());
                (place.len, place.insns) = (0, null_mut());
            }
        }
    });
}

/// Runs a program on a packet, of which `cap_len` bytes are there: returns the number of bytes to
/// keep, 0 if it rejects the packet. Without a program every packet passes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_bpf_filter(
    first: *const Insn,
    packet: *const u8,
    cap_len: u32,
    wire_len: u32,
) -> u32 {
    if first.is_null() {
        return u32::MAX;
    }
    // SAFETY: a program that ends, which is what the function needs; as many bytes.
    guard(0, || unsafe {
        let insns = std::slice::from_raw_parts(first, reachable(first));
        let packet = match packet.is_null() {
            true => &[],
            false => std::slice::from_raw_parts(packet, cap_len as usize),
        };
        vm_cbpf::run_insns(insns, packet, wire_len)
    })
}

/// The length of a program of which only the start is known: no jump and no instruction leads
/// beyond it.
///
/// # Safety
/// Every path through the program ends with a return.
unsafe fn reachable(first: *const Insn) -> usize {
    /// The classes of instructions that return and that jump, and the jump without a condition.
    const RETURN: u16 = 6;
    const JUMP: u16 = 5;
    let (mut at, mut last) = (0usize, 0usize);
    while at <= last && at < INSN_COUNT_MAX {
        // SAFETY: an instruction before leads here.
        let insn = unsafe { *first.add(at) };
        at += 1;
        last = last.max(match insn.code & 7 {
            RETURN => continue,
            JUMP if insn.code == JUMP => at.saturating_add(insn.k as usize),
            JUMP => at + usize::from(insn.jt.max(insn.jf)),
            _ => at,
        });
    }
    at
}
