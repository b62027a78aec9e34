//! bpf(2): maps, programs, links and their info (`include/uapi/linux/bpf.h`).
//!
//! Objects are owned file descriptors. Each [`Map`] knows the sizes that the kernel reads and
//! writes, so no call can overrun a caller's buffer.
//!
//! # Since Linux
//! Each call's documentation names the first kernel that has it; without a note it is 4.18.

mod classic;
mod events;
mod link;
mod loader;
mod map;
mod object;
mod pin;
mod program;

pub(crate) use classic::set_program;
pub use classic::{ClassicInsn, attach_classic};
pub use events::Events;
pub use link::{Link, LinkInfo};
pub use loader::Loader;
pub use map::{Map, MapMemory, MapSpec, MapType, UpdateMode, possible_cpu_count};
pub use object::{ObjectKind, object_ids, open_by_id};
pub use pin::{open_pinned, pin};
pub use program::{
    LoadFailure, Program, ProgramInfo, ProgramSpec, ProgramType, TestRun, TestRunResult,
    XDP_FLAG_DEVICE_BOUND, XDP_FLAG_FRAGS,
};

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

const MAP_CREATE: u32 = 0;
const MAP_LOOKUP_ELEM: u32 = 1;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const PROG_LOAD: u32 = 5;
const OBJ_PIN: u32 = 6;
const OBJ_GET: u32 = 7;
const PROG_TEST_RUN: u32 = 10;
const PROG_GET_NEXT_ID: u32 = 11;
const MAP_GET_NEXT_ID: u32 = 12;
const PROG_GET_FD_BY_ID: u32 = 13;
const MAP_GET_FD_BY_ID: u32 = 14;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const LINK_GET_FD_BY_ID: u32 = 30;
const LINK_GET_NEXT_ID: u32 = 31;
const LINK_DETACH: u32 = 34;

/// Makes the system call. `attr` must be one of the `repr(C)` parts of `union bpf_attr`, and match
/// `cmd`.
///
/// # Safety
/// Every address in `attr` must be valid for what `cmd` reads or writes there.
unsafe fn bpf<T>(cmd: u32, attr: &mut T) -> io::Result<i32> {
    // SAFETY: `attr` is live and exactly `size_of::<T>()` bytes long; the kernel reads and, for
    // some commands, writes no more than that. The addresses inside are the caller's promise.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            cmd,
            std::ptr::from_mut(attr),
            std::mem::size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

/// As [`bpf`], for commands that return a new descriptor.
///
/// # Safety
/// As [`bpf`], and `cmd` must be one that returns a descriptor.
unsafe fn bpf_fd<T>(cmd: u32, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: promised by the caller.
    let fd = unsafe { bpf(cmd, attr)? };
    // SAFETY: the kernel just made this descriptor for us; nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An object's name as the kernel stores it: at most 15 bytes of letters, digits, `_` and `.`.
fn object_name(name: &str) -> [u8; 16] {
    let mut out = [0; 16];
    for (to, from) in out[..15].iter_mut().zip(name.bytes()) {
        *to = if from.is_ascii_alphanumeric() || from == b'.' {
            from
        } else {
            b'_'
        };
    }
    out
}

/// The text of a name field, up to the first zero byte.
fn name_text(bytes: &[u8; 16]) -> String {
    let len = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[cfg(test)]
mod tests;
