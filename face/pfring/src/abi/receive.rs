//! Receiving.

use std::ffi::{c_int, c_void};
use std::ptr::{copy_nonoverlapping, null};
use std::time::{Duration, Instant};

use sys::boundary::cancellation_point;

use super::rules::parse;
use super::with;
use crate::header::{Header, LONG_LEN, SHORT_LEN};
use crate::ring::{Outcome, Ring};
use crate::status::{INVALID_ARGUMENT, NO_PACKET, NOT_SUPPORTED};

/// `pfringProcesssPacket`. The program may end its thread in it.
type Handler = unsafe extern "C-unwind" fn(*const u8, *const u8, *const u8);

/// Longest part of a wait, after which the thread can be cancelled.
const PART: Duration = Duration::from_millis(100);
/// The step of [`pfring_loop`] that `pfring_breakloop` ended; no status.
const STOPPED: c_int = 1;

/// Receives a packet: returns 1 for a packet and 0 for none, as PF_RING documents. masscan takes a
/// nonzero result for an error: it gets 0 for a packet and `NO_PACKET` for none.
///
/// With `len` 0, `*buffer` is set to the packet, which is valid until the next call; otherwise the
/// packet is copied there, truncated to `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pfring_recv(
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
    let code = unsafe { with(ring, body) };
    if may_wait != 0 {
        // SAFETY: nothing is left to drop.
        unsafe { cancellation_point() };
    }
    code
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

/// Like [`pfring_recv`], with the headers of the packet parsed up to layer `level`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pfring_recv_parsed(
    ring: *mut Ring,
    buffer: *mut *mut u8,
    len: u32,
    header: *mut u8,
    may_wait: u8,
    level: u8,
    add_timestamp: u8,
    add_hash: u8,
) -> c_int {
    // SAFETY: the same arguments; a packet was stored if its length is not 0.
    unsafe {
        let code = pfring_recv(ring, buffer, len, header, may_wait);
        if code >= 0 && header.add(16).cast::<u32>().read_unaligned() != 0 {
            header.add(SHORT_LEN).write_bytes(0, LONG_LEN - SHORT_LEN);
            let link_type = ring.as_ref().map_or(0, Ring::link_type);
            parse(link_type, *buffer, header, level, add_timestamp, add_hash);
        }
        code
    }
}

/// `pfring_packet_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PacketInfo {
    data: *const u8,
    time: libc::timeval,
    cap_len: u16,
    len: u16,
    flags: u32,
    hash: u32,
}

/// Receives up to `max` packets that arrived together, waiting at most for the first; returns their
/// number. They are valid until the next call. Lengths have 16 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pfring_recv_burst(
    ring: *mut Ring,
    places: *mut PacketInfo,
    max: u8,
    may_wait: u8,
) -> c_int {
    let body = |ring: &Ring| {
        if places.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let use_it = |at: usize, header: Header, packet: &[u8]| {
            let info = PacketInfo {
                data: packet.as_ptr(),
                time: libc::timeval {
                    tv_sec: (header.time_ns / 1_000_000_000) as i64,
                    tv_usec: (header.time_ns % 1_000_000_000 / 1000) as i64,
                },
                cap_len: header.cap_len.min(u16::MAX.into()) as u16,
                len: header.wire_len.min(u16::MAX.into()) as u16,
                flags: header.flags,
                hash: header.hash,
            };
            // SAFETY: the program has `max` places.
            unsafe { places.add(at).write_unaligned(info) };
        };
        let count = ring.receive_burst(max.into(), may_wait != 0, use_it)?;
        if count == 0 {
            // A request to stop ends one call.
            ring.take_stop();
        }
        Ok(count as c_int)
    };
    // SAFETY: null or a ring.
    let code = unsafe { with(ring, body) };
    if may_wait != 0 {
        // SAFETY: nothing is left to drop.
        unsafe { cancellation_point() };
    }
    code
}

/// Stores the time of the packet that the next call returns. The last packet is then no longer
/// valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_next_pkt_time(
    ring: *mut Ring,
    place: *mut libc::timespec,
) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a place of the program.
        let place = unsafe { place.as_mut() }.ok_or(INVALID_ARGUMENT)?;
        let time_ns = ring.next_time_ns()?;
        place.tv_sec = (time_ns / 1_000_000_000) as i64;
        place.tv_nsec = (time_ns % 1_000_000_000) as i64;
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Timestamps are the kernel's or the file's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_next_pkt_raw_timestamp(
    _ring: *mut Ring,
    _place: *mut u64,
) -> c_int {
    NOT_SUPPORTED
}

/// Cards that report flows are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_recv_flow(
    _ring: *mut Ring,
    _flow: *mut c_void,
    _may_wait: u8,
) -> c_int {
    NOT_SUPPORTED
}

/// Packets have no metadata of other programs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_metadata(
    _ring: *mut Ring,
    _place: *mut *mut u8,
    _len: *mut u32,
) -> c_int {
    NOT_SUPPORTED
}

/// There are no indexes of the program's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_sync_indexes_with_kernel(_ring: *mut Ring) {}

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
pub unsafe extern "C-unwind" fn pfring_loop(
    ring: *mut Ring,
    handler: Option<Handler>,
    user: *const u8,
    may_wait: u8,
) -> c_int {
    let Some(handler) = handler else {
        return INVALID_ARGUMENT;
    };
    let start = |ring: &Ring| {
        ring.take_stop();
        Ok(0)
    };
    // SAFETY: null or a ring.
    let mut code = unsafe { with(ring, start) };
    let (mut header, mut packet) = ([0; LONG_LEN], null());
    while code >= 0 {
        let body = |ring: &Ring| {
            let use_it = |found: Header, packet: &[u8]| {
                // SAFETY: room for the long one.
                unsafe { write_header(&found, ring.long_header, header.as_mut_ptr()) };
                packet.as_ptr()
            };
            if ring.take_stop() {
                return Ok(STOPPED);
            }
            packet = ring.receive(may_wait != 0, use_it)?.unwrap_or(null());
            Ok(0)
        };
        // SAFETY: null or a ring.
        code = unsafe { with(ring, body) };
        if code == STOPPED {
            return 0;
        }
        match packet.is_null() || code < 0 {
            // SAFETY: nothing is dropped in this function.
            true => unsafe { cancellation_point() },
            // SAFETY: the program's function; the packet is valid until this thread receives
            // again. No lock is held and nothing is left to drop: it may call the library, and end
            // the thread.
            false => unsafe { handler(header.as_ptr(), packet, user) },
        }
    }
    code
}

/// Waits for packets, at most so many milliseconds; returns 1 if there may be some, otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pfring_poll(ring: *mut Ring, wait_ms: u32) -> c_int {
    let end = Instant::now() + Duration::from_millis(wait_ms.into());
    loop {
        let start = Instant::now();
        let left = end.saturating_duration_since(start);
        // SAFETY: null or a ring.
        let code = unsafe { with(ring, |ring| ring.poll(left.min(PART)).map(c_int::from)) };
        // SAFETY: nothing is left to drop.
        unsafe { cancellation_point() };
        // A wait that ended earlier was ended by a signal or `pfring_breakloop`.
        if code != 0 || left <= PART || start.elapsed() < PART {
            return code;
        }
    }
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
