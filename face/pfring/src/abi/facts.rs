//! Counters, version, and facts about the device.

use std::ffi::{c_char, c_int};

use sys::boundary::guard;
use sys::link::Link;

use super::{bytes, or_errno, with};
use crate::device::speed_mbps;
use crate::header::{LONG_LEN, SHORT_LEN};
use crate::ring::{Ring, Statistics};
use crate::status::{INVALID_ARGUMENT, NOT_SUPPORTED, UNKNOWN_ADAPTER};

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

/// Length of the header that `pfring_recv` stores.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_slot_header_len(ring: *mut Ring) -> u16 {
    let body = |ring: &Ring| {
        let len = if ring.long_header {
            LONG_LEN
        } else {
            SHORT_LEN
        };
        Ok(len as c_int)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }.max(0) as u16
}

/// Stores the index of an interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_device_ifindex(
    ring: *mut Ring,
    device: *const c_char,
    place: *mut c_int,
) -> c_int {
    let body = |_: &Ring| {
        // SAFETY: null or a text; null or a place of the program.
        let (name, place) = unsafe { (bytes(device), place.as_mut()) };
        let (Some(name), Some(place)) = (name, place) else {
            return Err(INVALID_ARGUMENT);
        };
        let link = Link::by_name(&String::from_utf8_lossy(name)).map_err(|_| UNKNOWN_ADAPTER)?;
        *place = c_int::try_from(link.index).map_err(|_| UNKNOWN_ADAPTER)?;
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// The link type as a `DLT_` number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_link_type(ring: *mut Ring) -> c_int {
    /// `LINKTYPE_RAW` and `DLT_RAW`; the others of interfaces are the same.
    const RAW: (u16, c_int) = (101, 12);
    let body = |ring: &Ring| match ring.link_type() {
        link_type if link_type == RAW.0 => Ok(RAW.1),
        link_type => Ok(link_type.into()),
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// The maximum number of bytes returned of a packet, as given to `pfring_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_caplen(ring: *mut Ring) -> c_int {
    let body = |ring: &Ring| Ok(ring.settings().snaplen.min(c_int::MAX.cast_unsigned()) as c_int);
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// The speed of the interface in Mbit/s, 0 if unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_interface_speed(ring: *mut Ring) -> u32 {
    // SAFETY: null or a ring.
    let speed = || unsafe { ring.as_ref() }?.device().speed_mbps();
    guard(0, || speed().unwrap_or(0))
}

/// The speed of an interface in Mbit/s, 0 if unknown. A prefix (`zc:`) and a queue number (`@2`) do
/// not matter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_ethtool_link_speed(interface: *const c_char) -> u32 {
    guard(0, || {
        // SAFETY: null or a text.
        let name = unsafe { bytes(interface) }.map(String::from_utf8_lossy);
        name.and_then(|name| speed_mbps(interface_of(&name)))
            .unwrap_or(0)
    })
}

/// The interface in the name of a device: `eth0` of `zc:eth0@2`.
fn interface_of(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or_default();
    name.rsplit(':').next().unwrap_or_default()
}

/// The clocks of cards are set by ptp4l and phc_ctl.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_device_clock(
    _ring: *mut Ring,
    _time: *mut libc::timespec,
) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_device_clock(
    _ring: *mut Ring,
    _time: *const libc::timespec,
) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_adjust_device_clock(
    _ring: *mut Ring,
    _offset: *const libc::timespec,
    _sign: i8,
) -> c_int {
    NOT_SUPPORTED
}

/// Fills a buffer with a pattern: byte `n` is `n`, as PF_RING's kernel module does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_loopback_test(
    ring: *mut Ring,
    buffer: *mut c_char,
    buffer_len: u32,
    len: u32,
) -> c_int {
    let body = |_: &Ring| {
        if buffer.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        for at in 0..buffer_len.min(len) as usize {
            // SAFETY: so many bytes of the program.
            unsafe { buffer.cast::<u8>().add(at).write(at as u8) };
        }
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Identifies a ring within the process: 0, since packets do not name it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_ring_id(_ring: *mut Ring) -> u32 {
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
    or_errno(Err(NOT_SUPPORTED))
}

/// Scheduling is left to the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_config(_percentage: u16) {}

#[cfg(test)]
mod tests {
    use super::interface_of;

    #[test]
    fn a_prefix_and_a_queue_are_no_part_of_an_interface() {
        for name in ["eth0", "zc:eth0", "eth0@2", "zc:eth0@2"] {
            assert_eq!(interface_of(name), "eth0", "{name}");
        }
        assert_eq!((interface_of(""), interface_of("zc:@2")), ("", ""));
    }
}
