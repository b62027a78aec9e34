//! Getting packets.

use std::ffi::c_int;
use std::ptr::null;
use std::sync::atomic::Ordering;

use super::guard::guard;
use super::raw::{Handle, Handler, PacketHeader, state};
use crate::failure::{BREAK, ERROR, Failure, Result};
use crate::handle::State;

/// A packet, whose bytes stay until the next is read.
struct Found {
    header: PacketHeader,
    data: *const u8,
}

fn next(state: &mut State) -> Result<Option<Found>> {
    let header = state.next()?;
    Ok(header.map(|header| Found {
        header: header.into(),
        data: state.data.as_ptr(),
    }))
}

/// Reads a packet; a failure becomes the handle's error and the code to return.
///
/// # Safety
/// As [`state`].
unsafe fn read(p: *mut Handle) -> std::result::Result<Option<Found>, c_int> {
    // SAFETY: the caller's promise; the borrow ends here.
    let state = unsafe { state(p) }.ok_or(ERROR)?;
    next(state).map_err(|Failure { code, text }| {
        state.error.set(&text);
        code
    })
}

/// Gives up to `count` packets to the handler, all if that is not above 0; how many, or a code.
///
/// # Safety
/// `p` is an open handle; the handler is as pcap.h says. Nothing of the handle is borrowed while
/// the handler runs: it may use the handle.
unsafe fn dispatch(p: *mut Handle, count: c_int, handler: Handler, user: *mut u8) -> c_int {
    let mut given = 0;
    loop {
        // SAFETY: open, as the caller promises.
        let break_loop = unsafe { &(*p).break_loop };
        if break_loop.load(Ordering::Relaxed) {
            if given > 0 {
                return given;
            }
            break_loop.store(false, Ordering::Relaxed);
            return BREAK;
        }
        // SAFETY: the caller's promise.
        let found = match unsafe { read(p) } {
            Err(code) => return code,
            Ok(None) => return given,
            Ok(Some(found)) => found,
        };
        // SAFETY: the caller's promise; header and bytes live through the call.
        unsafe { handler(user, &raw const found.header, found.data) };
        given += 1;
        if given == count || given == c_int::MAX {
            return given;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dispatch(
    p: *mut Handle,
    count: c_int,
    handler: Option<Handler>,
    user: *mut u8,
) -> c_int {
    guard(ERROR, || match handler {
        // SAFETY: as pcap.h says of these arguments.
        Some(handler) if !p.is_null() => unsafe { dispatch(p, count, handler, user) },
        _ => ERROR,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_loop(
    p: *mut Handle,
    count: c_int,
    handler: Option<Handler>,
    user: *mut u8,
) -> c_int {
    guard(ERROR, || {
        let (Some(handler), false) = (handler, p.is_null()) else {
            return ERROR;
        };
        let mut left = count;
        loop {
            // SAFETY: as pcap.h says of these arguments.
            let given = unsafe { dispatch(p, left, handler, user) };
            if given <= 0 {
                return given;
            }
            if count > 0 {
                left -= given;
                if left <= 0 {
                    return 0;
                }
            }
        }
    })
}

/// One packet; 0 for none, or a code.
///
/// # Safety
/// `p` is an open handle.
unsafe fn one(p: *mut Handle) -> std::result::Result<Found, c_int> {
    // SAFETY: the caller's promise.
    let handle = unsafe { &*p };
    if handle.break_loop.swap(false, Ordering::Relaxed) {
        return Err(BREAK);
    }
    // SAFETY: the caller's promise.
    unsafe { read(p) }?.ok_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next(p: *mut Handle, header: *mut PacketHeader) -> *const u8 {
    guard(null(), || {
        if p.is_null() {
            return null();
        }
        // SAFETY: not null, so an open handle.
        match unsafe { one(p) } {
            Err(_) => null(),
            Ok(found) => {
                // SAFETY: null or a header of the program.
                if let Some(header) = unsafe { header.as_mut() } {
                    *header = found.header;
                }
                found.data
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next_ex(
    p: *mut Handle,
    header: *mut *mut PacketHeader,
    data: *mut *const u8,
) -> c_int {
    guard(ERROR, || {
        if p.is_null() || header.is_null() || data.is_null() {
            return ERROR;
        }
        // SAFETY: not null, so an open handle and places of the program.
        unsafe {
            match one(p) {
                // The end of a file is a code of its own here.
                Err(0) => BREAK,
                Err(code) => code,
                Ok(found) => {
                    let place = (*p).header.get();
                    *place = found.header;
                    *header = place;
                    *data = found.data;
                    1
                }
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_breakloop(p: *mut Handle) {
    // Called in signal handlers: nothing but this store, and no guard.
    // SAFETY: null or an open handle; the field is atomic.
    if let Some(handle) = unsafe { p.as_ref() } {
        handle.break_loop.store(true, Ordering::Relaxed);
    }
}
