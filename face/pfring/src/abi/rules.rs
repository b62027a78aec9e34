//! Rules and features that are not supported. Programs such as Snort's DAQ module call these
//! functions, and continue without what they ask for.

use std::ffi::{c_int, c_void};

use super::with;
use crate::ring::Ring;
use crate::status::{INVALID_ARGUMENT, NOT_SUPPORTED};

/// Number of modes (`filtering_mode`).
const MODE_COUNT: u32 = 3;

/// Filters in the card are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_add_hw_rule(_ring: *mut Ring, _rule: *const c_void) -> c_int {
    NOT_SUPPORTED
}

/// Filters in the card are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_remove_hw_rule(_ring: *mut Ring, _rule: u16) -> c_int {
    NOT_SUPPORTED
}

/// Filtering rules are not supported: use `pfring_set_bpf_filter`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_add_filtering_rule(
    _ring: *mut Ring,
    _rule: *const c_void,
) -> c_int {
    NOT_SUPPORTED
}

/// Filtering rules are not supported: use `pfring_set_bpf_filter`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_remove_filtering_rule(_ring: *mut Ring, _rule: u16) -> c_int {
    NOT_SUPPORTED
}

/// Filtering rules are not supported: use `pfring_set_bpf_filter`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_toggle_filtering_policy(_ring: *mut Ring, _policy: u8) -> c_int {
    NOT_SUPPORTED
}

/// Filtering rules are not supported: a program that asks to drop a flow keeps receiving it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_handle_hash_filtering_rule(
    _ring: *mut Ring,
    _rule: *const c_void,
    _is_added: u8,
) -> c_int {
    NOT_SUPPORTED
}

/// There are no rules.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_purge_idle_hash_rules(_ring: *mut Ring, _idle_s: u16) -> c_int {
    NOT_SUPPORTED
}

/// There are no rules.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_purge_idle_rules(_ring: *mut Ring, _idle_s: u16) -> c_int {
    NOT_SUPPORTED
}

/// Accepted: rules are supported neither in the card nor in software.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_filtering_mode(ring: *mut Ring, mode: u32) -> c_int {
    let body = |_: &Ring| match mode < MODE_COUNT {
        true => Ok(0),
        false => Err(INVALID_ARGUMENT),
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Packets are not parsed: no layer was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_parse_pkt(
    _packet: *mut u8,
    _header: *mut c_void,
    _level: u8,
    _add_timestamp: u8,
    _add_hash: u8,
) -> c_int {
    0
}

/// A received packet cannot be sent on without a copy: use `pfring_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_send_last_rx_packet(_ring: *mut Ring, _if_index: c_int) -> c_int {
    NOT_SUPPORTED
}
