//! Counters, version, and facts about the device.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use super::with;
use crate::ring::{Ring, Statistics};
use crate::status::{INVALID_ARGUMENT, UNKNOWN_ADAPTER};

/// The version of PF_RING whose structures are used: 8.0.0.
const VERSION: u32 = 0x08_00_00;

/// Largest number of channels that programs have room for (`MAX_NUM_RX_CHANNELS`).
const CHANNELS_MAX: u32 = 64;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_stats(ring: *mut Ring, place: *mut Statistics) -> c_int {
    let body = |ring: &Ring| {
        let statistics = ring.statistics()?;
        if place.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the program's structure.
        unsafe { place.write_unaligned(statistics) };
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_version(ring: *mut Ring, place: *mut u32) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| pfring_version_of_library(place)) }
}

fn pfring_version_of_library(place: *mut u32) -> Result<c_int, i32> {
    // SAFETY: null or a place of the program.
    let place = unsafe { place.as_mut() }.ok_or(INVALID_ARGUMENT)?;
    *place = VERSION;
    Ok(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_version_noring(place: *mut u32) -> c_int {
    pfring_version_of_library(place).unwrap_or_else(|status| status)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_bound_device_address(
    ring: *mut Ring,
    place: *mut [u8; 6],
) -> c_int {
    let body = |ring: &Ring| {
        let link = ring.device().link().ok_or(UNKNOWN_ADAPTER)?;
        let address = <[u8; 6]>::try_from(&link.address[..]).map_err(|_| UNKNOWN_ADAPTER)?;
        // SAFETY: null or six bytes of the program.
        *unsafe { place.as_mut() }.ok_or(INVALID_ARGUMENT)? = address;
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_bound_device_ifindex(
    ring: *mut Ring,
    place: *mut c_int,
) -> c_int {
    let body = |ring: &Ring| {
        let link = ring.device().link().ok_or(UNKNOWN_ADAPTER)?;
        let index = c_int::try_from(link.index).map_err(|_| UNKNOWN_ADAPTER)?;
        // SAFETY: null or a place of the program.
        *unsafe { place.as_mut() }.ok_or(INVALID_ARGUMENT)? = index;
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// `pfring_card_settings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CardSettings {
    /// Longest packet, from its link header on.
    pub packet_len_max: u32,
    /// Slots of the card's rings: not known, as without PF_RING ZC.
    pub slot_counts: [u32; 2],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_card_settings(
    ring: *mut Ring,
    place: *mut CardSettings,
) -> c_int {
    let body = |ring: &Ring| {
        let settings = CardSettings {
            packet_len_max: packet_len_max(ring),
            slot_counts: [0; 2],
        };
        // SAFETY: null or a structure of the program.
        *unsafe { place.as_mut() }.ok_or(INVALID_ARGUMENT)? = settings;
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_mtu_size(ring: *mut Ring) -> c_int {
    let body = |ring: &Ring| {
        let link = ring.device().link().ok_or(UNKNOWN_ADAPTER)?;
        c_int::try_from(link.mtu).map_err(|_| UNKNOWN_ADAPTER)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// The length of the longest packet of a device: with a VLAN tag that the card may remove, and at
/// most what a packet of a cluster or a file can have.
fn packet_len_max(ring: &Ring) -> u32 {
    const LEN_MAX: u32 = 65_535;
    const ETHERNET_AND_TAG: u32 = 14 + 4;
    let link = ring.device().link();
    link.map_or(LEN_MAX, |link| (link.mtu + ETHERNET_AND_TAG).min(LEN_MAX))
}

/// Whether the link is up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_link_status(ring: *mut Ring) -> c_int {
    let body = |ring: &Ring| {
        let link = ring.device().link().ok_or(UNKNOWN_ADAPTER)?;
        Ok(c_int::from(link.is_running()))
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Number of receive queues of the interface, 1 if unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_num_rx_channels(ring: *mut Ring) -> u8 {
    let count = |ring: &Ring| {
        let link = ring.device().link();
        Ok(link.map_or(1, |link| link.rx_queue_max.min(CHANNELS_MAX) as c_int))
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, count) }.max(1) as u8
}

/// Identifies a ring within the process: 0, since packets do not name it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_ring_id(_ring: *mut Ring) -> u16 {
    0
}

/// The number is not known; at least 0 packets wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_num_queued_pkts(_ring: *mut Ring) -> u32 {
    0
}

/// There is no such file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_appl_stats_file_name(
    _ring: *mut Ring,
    _place: *mut c_char,
    _len: u32,
) -> *mut c_char {
    null_mut()
}

/// Scheduling is left to the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_config(_percentage: u16) {}
