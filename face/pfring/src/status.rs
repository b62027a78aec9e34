//! Return values of functions that fail (`pf_ring.h`).

use sys::{Error, ErrorKind};

/// Any other error.
pub const GENERIC: i32 = -1;
/// An argument is invalid.
pub const INVALID_ARGUMENT: i32 = -2;
/// There is no packet.
pub const NO_PACKET: i32 = -3;
/// There is no room for another packet.
pub const NO_TX_SLOT: i32 = -4;
/// The call does not fit the ring's settings.
pub const WRONG_CONFIGURATION: i32 = -5;
/// The device or the library does not support the call.
pub const NOT_SUPPORTED: i32 = -7;
/// The device does not exist.
pub const UNKNOWN_ADAPTER: i32 = -9;
/// There is not enough memory.
pub const NO_MEMORY: i32 = -10;
/// The ring is not enabled.
pub const NOT_ENABLED: i32 = -12;

/// The return value for an error of barewire.
pub fn of(error: &Error) -> i32 {
    match error.kind() {
        ErrorKind::InvalidInput => INVALID_ARGUMENT,
        ErrorKind::NotFound | ErrorKind::Gone => UNKNOWN_ADAPTER,
        ErrorKind::Unsupported => NOT_SUPPORTED,
        ErrorKind::NoSpace => NO_MEMORY,
        ErrorKind::Busy => WRONG_CONFIGURATION,
        _ => GENERIC,
    }
}

/// The `errno` for a return value: PF_RING's functions that return a pointer set it.
pub fn errno(status: i32) -> i32 {
    match status {
        INVALID_ARGUMENT => libc::EINVAL,
        UNKNOWN_ADAPTER => libc::ENODEV,
        NOT_SUPPORTED => libc::EOPNOTSUPP,
        NO_MEMORY => libc::ENOMEM,
        WRONG_CONFIGURATION => libc::EBUSY,
        _ => libc::EIO,
    }
}
