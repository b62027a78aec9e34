//! Sending.

use std::ffi::{c_char, c_int};

use super::with;
use crate::ring::Ring;
use crate::status::INVALID_ARGUMENT;

/// Longest packet that can be sent.
const LEN_MAX: u32 = 65_535;

/// Sends a packet, at once if `flush` is not 0, otherwise within about a millisecond. Returns its
/// length, `NO_TX_SLOT` if the program must try again, or `GENERIC` if the device cannot send it,
/// as sendto(2) does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_send(
    ring: *mut Ring,
    packet: *const c_char,
    len: u32,
    flush: u8,
) -> c_int {
    let body = |ring: &Ring| {
        if packet.is_null() || !(1..=LEN_MAX).contains(&len) {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: so many bytes of the program.
        let bytes = unsafe { std::slice::from_raw_parts(packet.cast(), len as usize) };
        ring.send(bytes, flush != 0).map(|()| len as c_int)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_flush_tx_packets(ring: *mut Ring) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| ring.flush().map(|()| 0)) }
}
