//! Receiving.

use std::ffi::c_int;
use std::ptr::{copy_nonoverlapping, null};
use std::time::Duration;

use super::with;
use crate::header::{Header, LONG_LEN, SHORT_LEN};
use crate::ring::{Outcome, Ring};
use crate::status::{INVALID_ARGUMENT, NO_PACKET, NOT_SUPPORTED};

/// `pfringProcesssPacket`.
type Handler = unsafe extern "C" fn(*const u8, *const u8, *const u8);

/// Receives a packet: returns 1 for a packet and 0 for none, as PF_RING documents. masscan takes a
/// nonzero result for an error: it gets 0 for a packet and `NO_PACKET` for none.
///
/// With `len` 0, `*buffer` is set to the packet, which is valid until the next call; otherwise the
/// packet is copied there, truncated to `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_recv(
    ring: *mut Ring,
    buffer: *mut *mut u8,
    len: u32,
    header: *mut u8,
    may_wait: u8,
) -> c_int {
    let body = |ring: &Ring| {
        if buffer.is_null() || header.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the program's places for a packet and its header.
        let received = unsafe { receive(ring, buffer, len, header, may_wait != 0) };
        let is_masscan = ring.is_masscan();
        if received == Ok(false) {
            // A request to stop ends one call.
            ring.take_stop();
        }
        if received != Ok(true) {
            // Programs look at the captured length, too.
            // SAFETY: the header has this field.
            unsafe { header.add(16).cast::<u32>().write_unaligned(0) };
        }
        Ok(match (received?, is_masscan) {
            (true, is_masscan) => c_int::from(!is_masscan),
            (false, true) => NO_PACKET,
            (false, false) => 0,
        })
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// # Safety
/// As for `pfring_recv`, and no pointer is null.
unsafe fn receive(
    ring: &Ring,
    buffer: *mut *mut u8,
    len: u32,
    header: *mut u8,
    may_wait: bool,
) -> Outcome<bool> {
    let is_long = ring.long_header;
    let use_it = |mut found: Header, packet: &[u8]| {
        // SAFETY: the caller's promises: a place for a pointer, at which there are `len` bytes; a
        // place for the header, long if the ring was opened so.
        unsafe {
            if len == 0 {
                buffer.write(packet.as_ptr().cast_mut());
            } else if (*buffer).is_null() {
                return Err(INVALID_ARGUMENT);
            } else {
                found.cap_len = found.cap_len.min(len);
                copy_nonoverlapping(packet.as_ptr(), *buffer, found.cap_len as usize);
            }
            write_header(&found, is_long, header);
        }
        Ok(())
    };
    ring.receive(may_wait, use_it)?
        .transpose()
        .map(|got| got.is_some())
}

/// # Safety
/// There is room for a header, long or short.
unsafe fn write_header(header: &Header, is_long: bool, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match is_long {
            true => to.cast::<[u8; LONG_LEN]>().write_unaligned(header.long()),
            false => to.cast::<[u8; SHORT_LEN]>().write_unaligned(header.short()),
        }
    }
}

/// Like [`pfring_recv`]. The header's part for what the packet was parsed into stays zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_recv_parsed(
    ring: *mut Ring,
    buffer: *mut *mut u8,
    len: u32,
    header: *mut u8,
    may_wait: u8,
    _level: u8,
    _add_timestamp: u8,
    _add_hash: u8,
) -> c_int {
    // SAFETY: the same arguments.
    unsafe { pfring_recv(ring, buffer, len, header, may_wait) }
}

/// Chunks of several packets exist on some cards only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_recv_chunk(
    _ring: *mut Ring,
    _chunk: *mut *mut u8,
    _len: *mut u32,
    _may_wait: u8,
) -> c_int {
    NOT_SUPPORTED
}

/// Passes packets to a function until `pfring_breakloop`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_loop(
    ring: *mut Ring,
    handler: Option<Handler>,
    user: *const u8,
    may_wait: u8,
) -> c_int {
    let body = |ring: &Ring| {
        let handler = handler.ok_or(INVALID_ARGUMENT)?;
        let is_long = ring.long_header;
        ring.take_stop();
        while !ring.take_stop() {
            let mut header = [0; LONG_LEN];
            let use_it = |found: Header, packet: &[u8]| {
                // SAFETY: room for the long one.
                unsafe { write_header(&found, is_long, header.as_mut_ptr()) };
                packet.as_ptr()
            };
            let packet = ring.receive(may_wait != 0, use_it)?.unwrap_or(null());
            if !packet.is_null() {
                // SAFETY: the program's function; the packet is valid until this thread receives
                // again. No lock is held, so it may call the library.
                unsafe { handler(header.as_ptr(), packet, user) };
            }
        }
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Waits for packets, at most so many milliseconds; returns 1 if there may be some, otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_poll(ring: *mut Ring, wait_ms: u32) -> c_int {
    let timeout = Duration::from_millis(wait_ms.into());
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| ring.poll(timeout).map(c_int::from)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_is_pkt_available(ring: *mut Ring) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| ring.poll(Duration::ZERO).map(c_int::from)) }
}

/// A descriptor that is readable when there may be packets, once a call found none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_selectable_fd(ring: *mut Ring) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, Ring::fd) }
}
