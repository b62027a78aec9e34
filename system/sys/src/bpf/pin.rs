//! Names of objects in a mounted BPF file system, which keep them loaded or attached.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::{OBJ_GET, OBJ_PIN, bpf, bpf_fd};

#[repr(C)]
struct PinAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Gives an object a name, which keeps it until the file is removed.
///
/// # Errors
/// `AlreadyExists`; `PermissionDenied` for a path in another file system.
pub fn pin(object: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    let mut attr = PinAttr {
        path: path.as_ptr() as u64,
        fd: object.as_raw_fd() as u32,
        flags: 0,
    };
    // SAFETY: the kernel reads the path up to its zero byte, which is live memory.
    unsafe { bpf(OBJ_PIN, &mut attr) }?;
    Ok(())
}

/// Opens an object by its name.
///
/// # Errors
/// `NotFound`; `PermissionDenied` for a path in another file system.
pub fn open_pinned(path: &str) -> io::Result<OwnedFd> {
    let path = CString::new(path)?;
    let mut attr = PinAttr {
        path: path.as_ptr() as u64,
        fd: 0,
        flags: 0,
    };
    // SAFETY: as in `pin`, and the command returns a descriptor.
    unsafe { bpf_fd(OBJ_GET, &mut attr) }
}
