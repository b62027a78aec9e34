//! Filters: compiling, setting, running and printing them.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use bpf::cbpf::{Insn, LONG_INSN_COUNT_MAX, Program};
use bpf::disasm::ClassicLine;
use bpf::vm_cbpf;

use super::raw::{Handle, PacketHeader, ProgramRaw, bytes, free, with};
use super::stream;
use crate::compile::{self, Source, Target};
use crate::failure::{ERROR, Failure, Result};
use crate::handle::Kind;
use sys::boundary::guard;

/// `PCAP_NETMASK_UNKNOWN`.
const NETMASK_UNKNOWN: u32 = u32::MAX;

/// Writes instructions to a program, in memory that `pcap_freecode` frees.
///
/// # Safety
/// The place can be written to.
unsafe fn give(program: *mut ProgramRaw, insns: &[Insn]) -> Result<c_int> {
    let len = size_of_val(insns);
    // SAFETY: any length is fine.
    let memory = unsafe { libc::malloc(len.max(1)) }.cast::<Insn>();
    if memory.is_null() {
        return Err(Failure::system("malloc", libc::ENOMEM));
    }
    // SAFETY: as many instructions as were allocated for; the caller's promise for the place.
    unsafe {
        std::ptr::copy_nonoverlapping(insns.as_ptr(), memory, insns.len());
        program.write(ProgramRaw {
            len: insns.len() as u32,
            insns: memory,
        });
    }
    Ok(0)
}

/// The instructions of a program; `None` if there are none, or more than allowed.
///
/// # Safety
/// The program is null, or points to as many instructions as it says.
unsafe fn insns<'a>(program: *const ProgramRaw) -> Option<&'a [Insn]> {
    // SAFETY: the caller's promise.
    unsafe {
        let program = program.as_ref()?;
        let len = program.len as usize;
        if program.insns.is_null() || len == 0 || len > LONG_INSN_COUNT_MAX {
            return None;
        }
        Some(std::slice::from_raw_parts(program.insns, len))
    }
}

/// An expression as text; null is the empty expression.
///
/// # Safety
/// Null, or ends with a zero.
unsafe fn expression<'a>(text: *const c_char) -> std::borrow::Cow<'a, str> {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { bytes(text) }.unwrap_or(b""))
}

fn netmask(value: u32) -> Option<u32> {
    (value != NETMASK_UNKNOWN).then(|| u32::from_be(value))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_compile(
    p: *mut Handle,
    program: *mut ProgramRaw,
    text: *const c_char,
    optimize: c_int,
    mask: u32,
) -> c_int {
    let body = |state: &mut crate::handle::State| {
        if program.is_null() {
            return Err(Failure::new("no place for the program"));
        }
        // SAFETY: not null, so it can be written to.
        unsafe { program.write(empty()) };
        if matches!(state.kind, Kind::Created(_)) {
            return Err(Failure::new(
                "not-yet-activated pcap_t passed to pcap_compile",
            ));
        }
        let target = Target {
            dlt: state.dlt,
            snaplen: state.snaplen,
            tap: match &state.kind {
                Kind::Live(live) => live.target.tap,
                _ => None,
            },
            netmask: netmask(mask),
            optimize: optimize != 0,
            source: match &state.kind {
                Kind::Savefile(_) => Source::File,
                Kind::Live(_) => Source::Device,
                _ => Source::Unknown,
            },
        };
        // SAFETY: as pcap.h says of these arguments.
        unsafe { give(program, &compile::compile(&expression(text), &target)?) }
    };
    // SAFETY: as pcap.h says of these arguments.
    unsafe { with(p, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_compile_nopcap(
    snaplen: c_int,
    dlt: c_int,
    program: *mut ProgramRaw,
    text: *const c_char,
    optimize: c_int,
    mask: u32,
) -> c_int {
    guard(ERROR, || {
        if program.is_null() {
            return ERROR;
        }
        let target = Target {
            dlt,
            snaplen,
            tap: None,
            netmask: netmask(mask),
            optimize: optimize != 0,
            source: Source::Unknown,
        };
        // SAFETY: as pcap.h says of these arguments.
        unsafe {
            program.write(empty());
            let compiled = compile::compile(&expression(text), &target);
            compiled
                .and_then(|insns| give(program, &insns))
                .unwrap_or(ERROR)
        }
    })
}

const fn empty() -> ProgramRaw {
    ProgramRaw {
        len: 0,
        insns: null_mut(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_freecode(program: *mut ProgramRaw) {
    guard((), || {
        // SAFETY: null or a program; its instructions are from malloc, or null.
        unsafe {
            if let Some(program) = program.as_mut() {
                free(program.insns);
                *program = empty();
            }
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setfilter(p: *mut Handle, program: *mut ProgramRaw) -> c_int {
    let body = |state: &mut crate::handle::State| {
        state.takes_filter()?;
        if program.is_null() {
            return Err(Failure::new("setfilter: No filter specified"));
        }
        // SAFETY: as pcap.h says of these arguments.
        let Some(insns) = (unsafe { insns(program) }) else {
            return Err(Failure::new("BPF program is not valid"));
        };
        state.set_filter(insns.to_vec()).map(|()| 0)
    };
    // SAFETY: as pcap.h says of these arguments.
    unsafe { with(p, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_offline_filter(
    program: *const ProgramRaw,
    header: *const PacketHeader,
    data: *const u8,
) -> c_int {
    guard(0, || {
        // SAFETY: as pcap.h says of these arguments.
        unsafe {
            match (insns(program), header.as_ref()) {
                (Some(insns), Some(header)) => {
                    let packet = packet(data, header.cap_len);
                    vm_cbpf::run_insns(insns, packet, header.wire_len).cast_signed()
                }
                _ => 0,
            }
        }
    })
}

/// # Safety
/// Null, or as many bytes.
unsafe fn packet<'a>(data: *const u8, len: u32) -> &'a [u8] {
    match data.is_null() {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { std::slice::from_raw_parts(data, len as usize) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_filter(
    first: *const Insn,
    data: *const u8,
    wire_len: u32,
    cap_len: u32,
) -> u32 {
    if first.is_null() {
        // Without a program every packet matches completely.
        return u32::MAX;
    }
    // SAFETY: a program that ends, which is what the function needs; as many bytes.
    guard(0, || unsafe {
        let insns = std::slice::from_raw_parts(first, reachable(first));
        vm_cbpf::run_insns(insns, packet(data, cap_len), wire_len)
    })
}

/// The length of a program of which only the start is known: no jump and no instruction leads
/// beyond it.
///
/// # Safety
/// Every path through the program ends with a return.
unsafe fn reachable(first: *const Insn) -> usize {
    let (mut at, mut last) = (0usize, 0usize);
    while at <= last && at < LONG_INSN_COUNT_MAX {
        // SAFETY: an instruction before leads here.
        let insn = unsafe { *first.add(at) };
        at += 1;
        let furthest = match insn.code & 0x07 {
            // Returns end a path, and so do unknown codes.
            0x06 => continue,
            0x05 if insn.code & 0xf0 == 0 => {
                at.saturating_add_signed(insn.k.cast_signed() as isize)
            }
            0x05 => at + usize::from(insn.jt.max(insn.jf)),
            _ => at,
        };
        last = last.max(furthest);
    }
    at
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_validate(first: *const Insn, len: c_int) -> c_int {
    guard(0, || {
        let Ok(len) = usize::try_from(len) else {
            return 0;
        };
        if first.is_null() || len == 0 || len > LONG_INSN_COUNT_MAX {
            return 0;
        }
        // SAFETY: as many instructions as the caller says.
        let insns = unsafe { std::slice::from_raw_parts(first, len) };
        Program::long(insns.to_vec()).is_ok().into()
    })
}

thread_local! {
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Formats an instruction as `tcpdump -d` does. The text is valid until the thread's next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_image(insn: *const Insn, at: c_int) -> *mut c_char {
    guard(null_mut(), || {
        // SAFETY: null or an instruction.
        let Some(&insn) = (unsafe { insn.as_ref() }) else {
            return null_mut();
        };
        LINE.with_borrow_mut(|line| {
            *line = ClassicLine(usize::try_from(at).unwrap_or(0), insn).to_string();
            line.truncate(line.trim_end_matches('\n').len());
            line.push('\0');
            line.as_mut_ptr().cast()
        })
    })
}

/// Prints a program on standard output: with `option` 2 as rows of a C array, with 3 as numbers,
/// otherwise as text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_dump(program: *const ProgramRaw, option: c_int) {
    guard((), || {
        // SAFETY: null or a program.
        let Some(insns) = (unsafe { insns(program) }) else {
            return;
        };
        let text = match option {
            3.. => filter::print::bytecode(insns).replace(',', "\n") + "\n",
            2 => filter::print::c_array(insns),
            _ => bpf::disasm::Classic(insns).to_string(),
        };
        // SAFETY: the standard output is open or refuses.
        unsafe { stream::write(stream::standard_output(), text.as_bytes()) };
    });
}
