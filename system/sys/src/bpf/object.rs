//! What all kinds of BPF objects share: ids, opening by id, and the kernel's description.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::{
    LINK_GET_FD_BY_ID, LINK_GET_NEXT_ID, MAP_GET_FD_BY_ID, MAP_GET_NEXT_ID, OBJ_GET_INFO_BY_FD,
    PROG_GET_FD_BY_ID, PROG_GET_NEXT_ID, bpf, bpf_fd,
};
use crate::{Error, Result};

/// The kind of object that an id identifies: each kind has its own ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Maps.
    Map,
    /// Programs.
    Program,
    /// Links (Linux 5.8).
    Link,
}

#[repr(C)]
#[derive(Default)]
struct IdAttr {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct InfoAttr {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The kernel's description of an object; the kernel fills as many bytes as `T` has.
pub(super) fn info<T: Copyable>(fd: BorrowedFd<'_>, mut out: T) -> io::Result<T> {
    let mut attr = InfoAttr {
        bpf_fd: fd.as_raw_fd() as u32,
        info_len: std::mem::size_of::<T>() as u32,
        info: std::ptr::from_mut(&mut out) as u64,
    };
    // SAFETY: the kernel writes at most `info_len` bytes at `info`, and reads there only addresses
    // of further buffers, which `T` leaves zero.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr)? };
    Ok(out)
}

/// Structs of plain integers, for which any bytes are a valid value.
///
/// # Safety
/// `repr(C)`, integers and arrays of integers only, no padding that matters.
pub(super) unsafe trait Copyable {}

/// The ids of all objects of a kind that exist now.
///
/// # Errors
/// `Permission` without CAP_SYS_ADMIN (or CAP_BPF, for links and since Linux 5.8).
pub fn object_ids(kind: ObjectKind) -> Result<Vec<u32>> {
    let cmd = match kind {
        ObjectKind::Map => MAP_GET_NEXT_ID,
        ObjectKind::Program => PROG_GET_NEXT_ID,
        ObjectKind::Link => LINK_GET_NEXT_ID,
    };
    let mut ids = Vec::new();
    let mut attr = IdAttr::default();
    loop {
        // SAFETY: the attribute holds no address.
        match unsafe { bpf(cmd, &mut attr) } {
            Ok(_) => ids.push(attr.next_id),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
            Err(e) => return Err(Error::from_io("list BPF objects", e)),
        }
        attr.id = attr.next_id;
    }
}

/// Opens an object by its id.
///
/// # Errors
/// `NotFound` if it is gone, `Permission` without CAP_SYS_ADMIN.
pub fn open_by_id(kind: ObjectKind, id: u32) -> Result<OwnedFd> {
    let cmd = match kind {
        ObjectKind::Map => MAP_GET_FD_BY_ID,
        ObjectKind::Program => PROG_GET_FD_BY_ID,
        ObjectKind::Link => LINK_GET_FD_BY_ID,
    };
    let mut attr = IdAttr {
        id,
        ..IdAttr::default()
    };
    // SAFETY: the attribute holds no address, and these commands return a descriptor.
    unsafe { bpf_fd(cmd, &mut attr) }
        .map_err(|e| Error::from_io(format!("open the BPF object {id}"), e))
}
