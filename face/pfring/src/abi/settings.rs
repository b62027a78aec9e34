//! Settings, filters, clusters.

use std::ffi::{c_char, c_int};

use super::{bytes, with};
use crate::ring::Ring;
use crate::settings::{Mode, Wanted};
use crate::status::{INVALID_ARGUMENT, NOT_SUPPORTED};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_direction(ring: *mut Ring, direction: c_int) -> c_int {
    let body = |ring: &Ring| {
        ring.set_wanted(match direction {
            0 => Wanted::Both,
            1 => Wanted::Received,
            2 => Wanted::Sent,
            _ => return Err(INVALID_ARGUMENT),
        })?;
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_socket_mode(ring: *mut Ring, mode: c_int) -> c_int {
    let body = |ring: &Ring| {
        let mode = match mode {
            0 => Mode::Both,
            1 => Mode::Send,
            2 => Mode::Receive,
            _ => return Err(INVALID_ARGUMENT),
        };
        ring.set(|settings| settings.mode = mode).map(|()| 0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_cluster(ring: *mut Ring, cluster: u32, kind: c_int) -> c_int {
    let kind = u32::try_from(kind).unwrap_or(u32::MAX);
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| ring.set_cluster(cluster, kind).map(|()| 0)) }
}

/// A ring leaves its cluster when it is closed or disabled; before it is enabled it is in none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_remove_from_cluster(ring: *mut Ring) -> c_int {
    let body = |ring: &Ring| ring.set(|settings| settings.cluster = None);
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| body(ring).map(|()| 0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_bpf_filter(ring: *mut Ring, text: *const c_char) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a text.
        let text = unsafe { bytes(text) }.ok_or(INVALID_ARGUMENT)?;
        let text = std::str::from_utf8(text).map_err(|_| INVALID_ARGUMENT)?;
        ring.set_filter(Some(text)).map(|()| 0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_remove_bpf_filter(ring: *mut Ring) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| ring.set_filter(None).map(|()| 0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_application_name(
    ring: *mut Ring,
    name: *const c_char,
) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a text.
        ring.set_application(unsafe { bytes(name) }.ok_or(INVALID_ARGUMENT)?);
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// PF_RING shows this text in /proc; here there is no such place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_application_stats(
    ring: *mut Ring,
    _text: *const c_char,
) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_sampling_rate(ring: *mut Ring, rate: u32) -> c_int {
    if rate == 0 {
        return INVALID_ARGUMENT;
    }
    // SAFETY: null or a ring.
    unsafe {
        with(ring, |ring| {
            ring.set_sampling(rate);
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_poll_duration(ring: *mut Ring, duration_ms: u32) -> c_int {
    // SAFETY: null or a ring.
    unsafe {
        with(ring, |ring| {
            ring.set_poll_duration(duration_ms);
            Ok(0)
        })
    }
}

/// Accepted without effect: the kernel gathers packets by time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_poll_watermark(ring: *mut Ring, _packets: u16) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
}

/// Accepted without effect: packets are sent in batches of 32, or after a millisecond.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_tx_watermark(ring: *mut Ring, _packets: u16) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
}

/// Accepted without effect: the hash of a cluster does not depend on the card.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_enable_rss_rehash(ring: *mut Ring) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
}

/// Queues are chosen by name: `zc:eth0@2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_channel_id(_ring: *mut Ring, _channel: u32) -> c_int {
    NOT_SUPPORTED
}
