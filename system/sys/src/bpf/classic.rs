//! cBPF on a socket of any kind (`SO_ATTACH_FILTER`, socket(7)). Needs no rights.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::libpcap::ClassicInsn;
use crate::{Error, ErrorKind, Result};

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    insns: *const ClassicInsn,
}

/// Puts a filter on a socket, in place of what was there: what it refuses is dropped, the rest cut
/// to what it returns.
///
/// # Errors
/// `InvalidInput` for a program that the kernel's checker refuses.
pub fn attach_classic(socket: BorrowedFd<'_>, insns: &[ClassicInsn]) -> Result<()> {
    let what = "attach a socket filter";
    let Ok(len) = u16::try_from(insns.len()) else {
        let why = format!("it has {} instructions", insns.len());
        return Err(Error::new(ErrorKind::InvalidInput, what, why));
    };
    let program = Program {
        len,
        insns: insns.as_ptr(),
    };
    // SAFETY: the option takes a `sock_fprog`; the kernel copies `len` instructions, which are
    // live, during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
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
