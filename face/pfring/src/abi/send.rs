//! Sending.

use std::ffi::{c_char, c_int};

use super::{bytes, with};
use crate::ring::Ring;
use crate::status::{INVALID_ARGUMENT, NOT_SUPPORTED};

/// Longest packet that can be sent.
const LEN_MAX: u32 = 65_535;

/// Sends a packet, at once if `flush` is not 0, otherwise within about a millisecond. Returns its
/// length, `NO_TX_SLOT` if the program must try again, or `INVALID_ARGUMENT` if the device cannot
/// send it: pfsend repeats it for any other error.
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

/// The time at which a packet leaves the card is not known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_send_get_time(
    _ring: *mut Ring,
    _packet: *const c_char,
    _len: u32,
    _time: *mut libc::timespec,
) -> c_int {
    NOT_SUPPORTED
}

/// Sends the packet that was received last to another interface, by its index. A packet that was
/// truncated, or that is longer than the interface's MTU, is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_send_last_rx_packet(ring: *mut Ring, if_index: c_int) -> c_int {
    let body = |ring: &Ring| {
        let if_index = u32::try_from(if_index).map_err(|_| INVALID_ARGUMENT)?;
        ring.send_last(if_index).map(|()| 0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Sends all packets that are received from now on to a device; null ends that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_reflector_device(
    ring: *mut Ring,
    device: *const c_char,
) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a text.
        let device = unsafe { bytes(device) }.map(String::from_utf8_lossy);
        ring.set_reflector(device.as_deref()).map(|()| 0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Of PF_RING's libraries before ZC.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_register_zerocopy_tx_ring(
    _ring: *mut Ring,
    _other: *mut Ring,
) -> c_int {
    NOT_SUPPORTED
}
