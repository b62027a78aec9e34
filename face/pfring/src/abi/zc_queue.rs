//! PF_RING ZC: receiving and sending.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;

use sys::boundary::{cancellation_point, guard};

use super::{bytes, or_errno};
use crate::ring::Outcome;
use crate::status::{GENERIC, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::zc::buffer::Buffer;
use crate::zc::hash;
use crate::zc::queue::{MultiQueue, Queue, Statistics};

/// Runs `body` with a queue, and returns its number or its status.
///
/// # Safety
/// `queue` is null or valid.
unsafe fn with(queue: *const Queue, body: impl FnOnce(&Queue) -> Outcome<c_int>) -> c_int {
    // SAFETY: the caller's promise; all state of a queue is behind locks or atomic.
    guard(GENERIC, || match unsafe { queue.as_ref() } {
        Some(queue) => body(queue).unwrap_or_else(|status| status),
        None => INVALID_ARGUMENT,
    })
}

/// The program's place for a buffer.
///
/// # Safety
/// `place` is null or a place of the program, with null or a buffer that only it uses; for `'t`
/// nothing else accesses them.
unsafe fn buffer<'t>(place: *mut *mut Buffer) -> Outcome<&'t mut Box<Buffer>> {
    // SAFETY: the caller's promise. A box of a sized type is a pointer that is not null, and the
    // buffers of programs were boxes.
    unsafe {
        match place.is_null() || (*place).is_null() {
            true => Err(INVALID_ARGUMENT),
            false => Ok(&mut *place.cast::<Box<Buffer>>()),
        }
    }
}

/// The wait of a call is not over; no status.
const WAITING: c_int = c_int::MIN;

/// Runs `part` until it is not `WAITING`; between two parts, the thread may be cancelled.
///
/// # Safety
/// As for [`with`]. There is nothing to drop in the callers.
unsafe fn in_parts(
    queue: *const Queue,
    may_wait: bool,
    part: impl Fn(&Queue) -> Outcome<c_int>,
) -> c_int {
    loop {
        // SAFETY: the caller's promise.
        let code = unsafe { with(queue, &part) };
        if may_wait {
            // SAFETY: the caller's promise; nothing is dropped here.
            unsafe { cancellation_point() };
        }
        if code != WAITING {
            return code;
        }
    }
}

/// Returns 1 for a packet, 0 for none or if a call that waits was asked to stop.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pfring_zc_recv_pkt(
    queue: *mut Queue,
    place: *mut *mut Buffer,
    may_wait: u8,
) -> c_int {
    // SAFETY: null or a queue; the program's place.
    unsafe {
        in_parts(queue, may_wait != 0, |queue| {
            let received = queue.receive_part(buffer(place)?, may_wait != 0)?;
            Ok(received.map_or(WAITING, c_int::from))
        })
    }
}

/// Returns the number of packets; waits at most for the first one.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pfring_zc_recv_pkt_burst(
    queue: *mut Queue,
    places: *mut *mut Buffer,
    max: u32,
    may_wait: u8,
) -> c_int {
    // SAFETY: null or a queue; `max` places of the program.
    unsafe {
        in_parts(queue, may_wait != 0, |queue| {
            let mut count = 0;
            while count < max as usize {
                let may_wait = may_wait != 0 && count == 0;
                let place = match buffer(places.wrapping_add(count)) {
                    Ok(place) => place,
                    Err(status) if count == 0 => return Err(status),
                    Err(_) => break,
                };
                match queue.receive_part(place, may_wait) {
                    Ok(Some(true)) => count += 1,
                    Ok(None) => return Ok(WAITING),
                    Err(status) if count == 0 => return Err(status),
                    _ => break,
                }
            }
            Ok(count as c_int)
        })
    }
}

/// Sends a packet, and sets `errno` to `EMSGSIZE` for one that can never be sent: programs that
/// forward repeat it for any other error.
fn send(queue: &Queue, place: &mut Box<Buffer>, flush: bool) -> Outcome<i32> {
    let sent = queue.send(place, flush);
    if sent == Err(INVALID_ARGUMENT) {
        // SAFETY: the thread's errno.
        unsafe { *libc::__errno_location() = libc::EMSGSIZE };
    }
    sent
}

/// Returns the length of the packet, -1 if there is no room, or -2 for a packet that can never be
/// sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_send_pkt(
    queue: *mut Queue,
    place: *mut *mut Buffer,
    flush: u8,
) -> c_int {
    // SAFETY: null or a queue; the program's place.
    unsafe { with(queue, |queue| send(queue, buffer(place)?, flush != 0)) }
}

/// Returns the number of packets sent, or what `pfring_zc_send_pkt` returns for the first one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_send_pkt_burst(
    queue: *mut Queue,
    places: *mut *mut Buffer,
    max: u32,
    flush: u8,
) -> c_int {
    // SAFETY: null or a queue; `max` places of the program.
    unsafe {
        with(queue, |queue| {
            let mut count = 0;
            while count < max as usize {
                let place = match buffer(places.wrapping_add(count)) {
                    Ok(place) => place,
                    Err(status) if count == 0 => return Err(status),
                    Err(_) => break,
                };
                match send(queue, place, false) {
                    Ok(_) => count += 1,
                    Err(status) if count == 0 => return Err(status),
                    Err(_) => break,
                }
            }
            if flush != 0 {
                queue.flush();
            }
            Ok(count as c_int)
        })
    }
}

/// The time at which a packet leaves the card is not known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_send_pkt_get_time(
    _queue: *mut Queue,
    _place: *mut *mut Buffer,
    _time: *mut libc::timespec,
) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_queue_is_empty(queue: *mut Queue) -> c_int {
    // SAFETY: null or a queue.
    unsafe { with(queue, |queue| Ok(queue.is_empty().into())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_queue_is_full(queue: *mut Queue) -> c_int {
    // SAFETY: null or a queue.
    unsafe { with(queue, |queue| Ok(queue.is_full().into())) }
}

/// Ends a call that waits for packets, in any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_queue_breakloop(queue: *mut Queue) {
    // SAFETY: null or a queue.
    unsafe {
        with(queue, |queue| {
            queue.stop();
            Ok(0)
        });
    }
}

/// Starts the device on packets that wait to be sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_sync_queue(queue: *mut Queue, _direction: u32) {
    // SAFETY: null or a queue.
    unsafe {
        with(queue, |queue| {
            queue.flush();
            Ok(0)
        });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_set_bpf_filter(queue: *mut Queue, text: *const c_char) -> c_int {
    let body = |queue: &Queue| {
        // SAFETY: null or a text.
        let text = unsafe { bytes(text) }.ok_or(INVALID_ARGUMENT)?;
        let text = std::str::from_utf8(text).map_err(|_| INVALID_ARGUMENT)?;
        queue.set_filter(Some(text)).map(|()| 0)
    };
    // SAFETY: null or a queue.
    unsafe { with(queue, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_remove_bpf_filter(queue: *mut Queue) -> c_int {
    // SAFETY: null or a queue.
    unsafe { with(queue, |queue| queue.set_filter(None).map(|()| 0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_stats(queue: *mut Queue, place: *mut Statistics) -> c_int {
    let body = |queue: &Queue| {
        let statistics = queue.statistics()?;
        if place.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the program's structure.
        unsafe { place.write_unaligned(statistics) };
        Ok(0)
    };
    // SAFETY: null or a queue.
    unsafe { with(queue, body) }
}

/// Combines queues, to which packets are then sent with `pfring_zc_send_pkt_multi`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_create_multi_queue(
    queues: *const *const Queue,
    count: u32,
) -> *mut MultiQueue {
    guard(null_mut(), || {
        // SAFETY: so many queues of the program.
        let queues = unsafe { shared(queues, count) };
        or_errno(queues.and_then(|queues| MultiQueue::create(&queues)))
    })
}

/// References to queues, which keep them alive.
///
/// # Safety
/// `queues` is null or `count` pointers, each of which is null or a valid queue.
pub(super) unsafe fn shared(queues: *const *const Queue, count: u32) -> Outcome<Vec<Arc<Queue>>> {
    /// More than any program opens.
    const COUNT_MAX: u32 = 1024;
    if queues.is_null() || count > COUNT_MAX {
        return Err(INVALID_ARGUMENT);
    }
    let one = |at: usize| {
        // SAFETY: the caller's promise; queues are in an `Arc`, which gets one more reference.
        unsafe {
            let queue = queues.add(at).read();
            if queue.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            Arc::increment_strong_count(queue);
            Ok(Arc::from_raw(queue))
        }
    };
    (0..count as usize).map(one).collect()
}

/// Returns the number of queues that had room. The mask had 32 bits before PF_RING 8: the bits of
/// queues that do not exist are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_send_pkt_multi(
    multi: *mut MultiQueue,
    place: *mut *mut Buffer,
    mask: u64,
    flush: u8,
) -> c_int {
    // SAFETY: null or valid; the program's place.
    guard(GENERIC, || unsafe {
        match (multi.as_ref(), buffer(place)) {
            (Some(multi), Ok(place)) => multi.send(place, mask.into(), flush != 0),
            _ => INVALID_ARGUMENT,
        }
    })
}

/// # Safety
/// `buffer` is null or a buffer of the program.
unsafe fn hashed(buffer: *const Buffer, hash: fn(&[u8]) -> u32) -> u32 {
    guard(0, || {
        // SAFETY: the caller's promise.
        unsafe { buffer.as_ref() }.map_or(0, |it| hash(it.packet()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_builtin_ip_hash(buffer: *mut Buffer, _queue: *mut Queue) -> u32 {
    // SAFETY: null or a buffer.
    unsafe { hashed(buffer, hash::by_addresses) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_builtin_5tuple_hash(
    buffer: *mut Buffer,
    _queue: *mut Queue,
) -> u32 {
    // SAFETY: null or a buffer.
    unsafe { hashed(buffer, hash::by_flow) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_builtin_gre_hash(
    buffer: *mut Buffer,
    _queue: *mut Queue,
) -> u32 {
    // SAFETY: null or a buffer.
    unsafe { hashed(buffer, hash::by_gre) }
}

/// In PF_RING 7.8 and later a third argument is a place for facts about the tunnel; it is left as
/// it is, because programs for earlier ones do not have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_builtin_gtp_hash(
    buffer: *mut Buffer,
    _queue: *mut Queue,
) -> u32 {
    // SAFETY: null or a buffer.
    unsafe { hashed(buffer, hash::by_gtp) }
}
