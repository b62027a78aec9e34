//! cBPF on a socket of any kind (`SO_ATTACH_FILTER`, socket(7)). Needs no privileges.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::{Error, ErrorKind, Result};

/// One cBPF instruction, in the layout of the kernel's `struct sock_filter` and libpcap's `struct
/// bpf_insn`, which are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ClassicInsn {
    /// The operation.
    pub code: u16,
    /// How many instructions to skip if the condition holds.
    pub jt: u8,
    /// How many instructions to skip if it does not.
    pub jf: u8,
    /// The constant.
    pub k: u32,
}

/// `BPF_MAXINSNS`: the kernel refuses longer programs.
const INSN_COUNT_MAX: usize = 4096;

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    insns: *const ClassicInsn,
}

/// Attaches a filter to a socket, replacing the present one: packets for which it returns 0 are
/// dropped, others are cut to the length it returns.
///
/// # Errors
/// `InvalidInput` for a program that the kernel's checker refuses.
pub fn attach_classic(socket: BorrowedFd<'_>, insns: &[ClassicInsn]) -> Result<()> {
    let option = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    set_program(socket, option, insns, "attach a socket filter")
}

/// Sets a socket option (level and name) whose value is a program.
pub(crate) fn set_program(
    socket: BorrowedFd<'_>,
    (level, name): (c_int, c_int),
    insns: &[ClassicInsn],
    what: &str,
) -> Result<()> {
    let len = insns.len();
    if len == 0 || len > INSN_COUNT_MAX {
        let why = format!("it has {len} instructions, not 1 to {INSN_COUNT_MAX}");
        return Err(Error::new(ErrorKind::InvalidInput, what, why));
    }
    let program = Program {
        len: len as u16,
        insns: insns.as_ptr(),
    };
    // SAFETY: the option takes a `sock_fprog`; the kernel copies `len` instructions, which are
    // live, during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(&program).cast(),
            size_of::<Program>() as u32,
        )
    };
    if result < 0 {
        Err(Error::last_os(what))
    } else {
        Ok(())
    }
}
