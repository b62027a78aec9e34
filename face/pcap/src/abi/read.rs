//! Reading packets.

use std::ffi::c_int;
use std::ptr::null;
use std::sync::atomic::Ordering;

use super::raw::{Handle, Handler, PacketHeader, state};
use crate::failure::{BREAK, ERROR, Failure, Result};
use crate::handle::State;
use crate::live::Next;
use sys::boundary::{cancellation_point, guard, guard_brief};

/// A packet, whose bytes are valid until the next is read.
struct Found {
    header: PacketHeader,
    data: *const u8,
}

/// The result of reading: a packet, one that the filter rejects, none yet, none before the wait
/// continues, or the end.
enum Read {
    Found(Found),
    Rejected,
    Nothing,
    Waiting,
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
        Next::Waiting => Read::Waiting,
        Next::End => Read::End,
    })
}

/// The bytes of the next packet of the batch, if it needs neither a filter nor a copy, else null;
/// its header is written to `place`: copying a header just written loads it with wider accesses
/// than the stores, which defeats store forwarding.
///
/// # Safety
/// As [`state`].
#[inline]
unsafe fn held(p: *mut Handle, place: &mut PacketHeader) -> *const u8 {
    // SAFETY: the caller's promise; the borrow ends here.
    let found = unsafe { state(p) }.and_then(State::next_held);
    let Some((header, data)) = found else {
        return null();
    };
    *place = header.into();
    data
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
/// Packets are read within guards, the handler runs outside of them: it may use the handle, end the
/// thread, or be cancelled. So there must be nothing to drop in this function and its callers.
///
/// # Safety
/// `p` is an open handle; the handler is as pcap.h says.
unsafe fn dispatch(p: *mut Handle, count: c_int, handler: Handler, user: *mut u8) -> (c_int, bool) {
    let mut given = 0;
    let mut header = PacketHeader::default();
    let result = loop {
        // SAFETY: the caller's promise.
        let data = match unsafe { step(p, given, &mut header) } {
            Step::Packet(data) => data,
            Step::Again => {
                // SAFETY: nothing is dropped in this function and its callers.
                unsafe { cancellation_point() };
                continue;
            }
            Step::Done(code, is_end) => {
                // Also a wait that is shorter than a part ends here.
                // SAFETY: as above.
                unsafe { cancellation_point() };
                break (code, is_end);
            }
        };
        // SAFETY: the caller's promise; header and bytes live through the call.
        unsafe { handler(user, &raw const header, data) };
        given += 1;
        if given == count || given == c_int::MAX {
            break (given, false);
        }
    };
    // SAFETY: the caller's promise; no packet is in use.
    match guard(Err(ERROR), || unsafe { finish(p) }) {
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

/// What a call does next.
enum Step {
    /// Pass a packet with these bytes to the program.
    Packet(*const u8),
    /// Take another step.
    Again,
    /// Return a number of packets or a code; true at the end of the packets.
    Done(c_int, bool),
}

/// The next step of a call that has passed `given` packets. The header of a packet is written to
/// `header`.
///
/// # Safety
/// `p` is an open handle.
#[inline]
unsafe fn step(p: *mut Handle, given: c_int, header: &mut PacketHeader) -> Step {
    // SAFETY: the caller's promise.
    if unsafe { is_broken(p) } {
        if given == 0 {
            // SAFETY: open, as the caller promises; the field is atomic.
            unsafe { &*p }.break_loop.store(false, Ordering::Relaxed);
            return Step::Done(BREAK, false);
        }
        return Step::Done(given, false);
    }
    // SAFETY: the caller's promise. It makes no system call.
    let data = guard_brief(null(), || unsafe { held(p, header) });
    if !data.is_null() {
        return Step::Packet(data);
    }
    guard(Step::Done(ERROR, false), || {
        // SAFETY: the caller's promise.
        match unsafe { read(p, given == 0) } {
            Err(code) => Step::Done(code, false),
            Ok(Read::Found(found)) => {
                *header = found.header;
                Step::Packet(found.data)
            }
            Ok(Read::Rejected | Read::Waiting) => Step::Again,
            // SAFETY: the caller's promise.
            Ok(Read::Nothing) if given == 0 && unsafe { is_broken(p) } => Step::Again,
            Ok(Read::Nothing) => Step::Done(given, false),
            Ok(Read::End) => Step::Done(given, true),
        }
    })
}

/// Whether `pcap_breakloop` was called.
///
/// # Safety
/// `p` is an open handle.
unsafe fn is_broken(p: *mut Handle) -> bool {
    // SAFETY: the caller's promise; the field is atomic.
    unsafe { &*p }.break_loop.load(Ordering::Relaxed)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_dispatch(
    p: *mut Handle,
    count: c_int,
    handler: Option<Handler>,
    user: *mut u8,
) -> c_int {
    match handler {
        // SAFETY: as pcap.h says of these arguments.
        Some(handler) if !p.is_null() => unsafe { dispatch(p, count, handler, user) }.0,
        _ => ERROR,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_loop(
    p: *mut Handle,
    count: c_int,
    handler: Option<Handler>,
    user: *mut u8,
) -> c_int {
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
}

/// One packet of a call, or why there is none.
enum One {
    Packet(Found),
    /// Try again.
    Again,
    /// Return without a packet: 0 if there is none yet, or a code, `BREAK` at the end, too.
    Done(c_int),
}

/// Reads one packet.
///
/// # Safety
/// `p` is an open handle.
unsafe fn one(p: *mut Handle) -> One {
    // SAFETY: the caller's promise.
    let handle = unsafe { &*p };
    if handle.break_loop.swap(false, Ordering::Relaxed) {
        // SAFETY: the caller's promise; the borrow ends here.
        if let Some(state) = unsafe { state(p) } {
            state.end_wait();
        }
        return One::Done(BREAK);
    }
    // SAFETY: the caller's promise.
    let found = match unsafe { read(p, true) } {
        Err(code) => return One::Done(code),
        Ok(Read::Found(found)) => Some(found),
        Ok(Read::Rejected | Read::Waiting) => return One::Again,
        Ok(Read::Nothing) if handle.break_loop.swap(false, Ordering::Relaxed) => {
            return One::Done(BREAK);
        }
        Ok(Read::Nothing) => None,
        Ok(Read::End) => return One::Done(BREAK),
    };
    // The last packet of a batch is copied, so that its memory returns to the device now: its
    // descriptor would stay readable, or would not become readable again. SAFETY: as above.
    let copy = unsafe { state(p) }.and_then(State::keep_last);
    // SAFETY: as above.
    if let Err(code) = unsafe { finish(p) } {
        return One::Done(code);
    }
    match found {
        Some(found) => One::Packet(Found {
            data: copy.unwrap_or(found.data),
            ..found
        }),
        None => One::Done(0),
    }
}

/// The packet of `pcap_next` and `pcap_next_ex`, or the code. As for [`dispatch`], there must be
/// nothing to drop in this function and its callers.
///
/// # Safety
/// `p` is an open handle.
unsafe fn next_one(p: *mut Handle) -> std::result::Result<Found, c_int> {
    loop {
        // SAFETY: the caller's promise.
        match guard(One::Done(ERROR), || unsafe { one(p) }) {
            One::Packet(found) => return Ok(found),
            // SAFETY: nothing is dropped in this function and its callers.
            One::Again => unsafe { cancellation_point() },
            One::Done(code) => {
                // SAFETY: as above.
                unsafe { cancellation_point() };
                return Err(code);
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_next(p: *mut Handle, header: *mut PacketHeader) -> *const u8 {
    if p.is_null() {
        return null();
    }
    // SAFETY: not null, so an open handle.
    match unsafe { next_one(p) } {
        Err(_) => null(),
        Ok(found) => {
            // SAFETY: null or a header of the program.
            if let Some(header) = unsafe { header.as_mut() } {
                *header = found.header;
            }
            found.data
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_next_ex(
    p: *mut Handle,
    header: *mut *mut PacketHeader,
    data: *mut *const u8,
) -> c_int {
    if p.is_null() || header.is_null() || data.is_null() {
        return ERROR;
    }
    // SAFETY: not null, so an open handle and places of the program.
    unsafe {
        match next_one(p) {
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
