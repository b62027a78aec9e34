//! Reading packets.

use std::ffi::c_int;
use std::ptr::null;
use std::sync::atomic::Ordering;

use super::raw::{Handle, Handler, PacketHeader, state};
use crate::failure::{BREAK, ERROR, Failure, Result};
use crate::handle::State;
use crate::live::Next;
use sys::boundary::guard;

/// A packet, whose bytes are valid until the next is read.
struct Found {
    header: PacketHeader,
    data: *const u8,
}

/// The result of reading: a packet, one that the filter rejects, none yet, or the end.
enum Read {
    Found(Found),
    Rejected,
    Nothing,
    End,
}

fn next(state: &mut State, may_wait: bool) -> Result<Read> {
    Ok(match state.next(may_wait)? {
        Next::Packet(header) => Read::Found(Found {
            header: header.into(),
            data: state.data.as_ptr(),
        }),
        Next::Held(header, data) => Read::Found(Found {
            header: header.into(),
            data,
        }),
        Next::Rejected => Read::Rejected,
        Next::Nothing => Read::Nothing,
        Next::End => Read::End,
    })
}

/// The next packet of the batch, if it needs neither a filter nor a copy.
///
/// # Safety
/// As [`state`].
#[inline]
unsafe fn held(p: *mut Handle) -> Option<Found> {
    // SAFETY: the caller's promise; the borrow ends here.
    let (header, data) = unsafe { state(p) }?.next_held()?;
    Some(Found {
        header: header.into(),
        data,
    })
}

/// Reads a packet; on failure sets the handle's error and returns the code.
///
/// # Safety
/// As [`state`].
unsafe fn read(p: *mut Handle, may_wait: bool) -> std::result::Result<Read, c_int> {
    // SAFETY: the caller's promise; the borrow ends here.
    let state = unsafe { state(p) }.ok_or(ERROR)?;
    next(state, may_wait).map_err(|Failure { code, text }| {
        state.error.set(&text);
        code
    })
}

/// Passes up to `count` packets to the handler, or all if `count` is not positive: all of a file,
/// or all available from a device. Returns their number or a code, and whether the end was reached.
///
/// # Safety
/// `p` is an open handle; the handler is as pcap.h says. Nothing of the handle is borrowed while
/// the handler runs: it may use the handle.
unsafe fn dispatch(p: *mut Handle, count: c_int, handler: Handler, user: *mut u8) -> (c_int, bool) {
    // SAFETY: the caller's promise.
    let result = unsafe { pass(p, count, handler, user) };
    // SAFETY: the caller's promise; no packet is in use.
    match unsafe { finish(p) } {
        Err(code) if result.0 == 0 => (code, false),
        _ => result,
    }
}

/// Ends a call that read packets, which are then no longer valid; on failure as [`read`].
///
/// # Safety
/// As [`state`].
unsafe fn finish(p: *mut Handle) -> std::result::Result<(), c_int> {
    // SAFETY: the caller's promise; the borrow ends here.
    let state = unsafe { state(p) }.ok_or(ERROR)?;
    state.finish().map_err(|Failure { code, text }| {
        state.error.set(&text);
        code
    })
}

/// What [`dispatch`] does before it ends.
///
/// # Safety
/// As [`dispatch`].
unsafe fn pass(p: *mut Handle, count: c_int, handler: Handler, user: *mut u8) -> (c_int, bool) {
    let mut given = 0;
    loop {
        // SAFETY: open, as the caller promises.
        let break_loop = unsafe { &(*p).break_loop };
        if break_loop.load(Ordering::Relaxed) {
            if given > 0 {
                return (given, false);
            }
            break_loop.store(false, Ordering::Relaxed);
            return (BREAK, false);
        }
        // SAFETY: the caller's promise.
        let found = match unsafe { held(p) } {
            Some(found) => found,
            // SAFETY: as above.
            None => match unsafe { read(p, given == 0) } {
                Err(code) => return (code, false),
                Ok(Read::Rejected) => continue,
                Ok(Read::Nothing) if given == 0 && is_broken(p) => continue,
                Ok(Read::Nothing) => return (given, false),
                Ok(Read::End) => return (given, true),
                Ok(Read::Found(found)) => found,
            },
        };
        // SAFETY: the caller's promise; header and bytes live through the call.
        unsafe { handler(user, &raw const found.header, found.data) };
        given += 1;
        if given == count || given == c_int::MAX {
            return (given, false);
        }
    }
}

/// Whether `pcap_breakloop` was called.
fn is_broken(p: *mut Handle) -> bool {
    // SAFETY: open, as the callers promise; the field is atomic.
    unsafe { &*p }.break_loop.load(Ordering::Relaxed)
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
        Some(handler) if !p.is_null() => unsafe { dispatch(p, count, handler, user) }.0,
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
            let (given, is_end) = unsafe { dispatch(p, left, handler, user) };
            if given < 0 || given == 0 && is_end {
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

/// Reads one packet; the error is 0 if there is none yet, or a code: `BREAK` at the end, too.
///
/// # Safety
/// `p` is an open handle.
unsafe fn one(p: *mut Handle) -> std::result::Result<Found, c_int> {
    // SAFETY: the caller's promise.
    let handle = unsafe { &*p };
    let found = loop {
        if handle.break_loop.swap(false, Ordering::Relaxed) {
            return Err(BREAK);
        }
        // SAFETY: the caller's promise.
        match unsafe { read(p, true) }? {
            Read::Found(found) => break Some(found),
            Read::Rejected => {}
            Read::Nothing if handle.break_loop.swap(false, Ordering::Relaxed) => return Err(BREAK),
            Read::Nothing => break None,
            Read::End => return Err(BREAK),
        }
    };
    // The last packet of a batch is copied, so that its memory returns to the device now: its
    // descriptor would stay readable, or would not become readable again. SAFETY: as above.
    let copy = unsafe { state(p) }.ok_or(ERROR)?.keep_last();
    // SAFETY: as above.
    unsafe { finish(p) }?;
    let found = found.map(|found| Found {
        data: copy.unwrap_or(found.data),
        ..found
    });
    found.ok_or(0)
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
    // Called in signal handlers: only a store and a write, and no guard. SAFETY: null or an open
    // handle; the field is atomic.
    if let Some(handle) = unsafe { p.as_ref() } {
        handle.break_loop.store(true, Ordering::Relaxed);
        if let Some(waker) = handle.waker.get() {
            waker.wake();
        }
    }
}
