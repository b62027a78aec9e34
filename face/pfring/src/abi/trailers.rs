//! Timestamps that other devices append to packets, and functions of other libraries.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

use sys::boundary::guard;

use super::text::gmt_to_local;
use crate::header::SHORT_LEN;
use crate::status::{GENERIC, INVALID_ARGUMENT};
use crate::trailers::{self, ARISTA_LEN, IXIA_LEN, KeyFrame, METAWATCH_LEN};

/// The last key frame: the functions of this interface have no handle to which it could belong.
static KEY_FRAME: Mutex<Option<KeyFrame>> = Mutex::new(None);

/// A packet of the program; `None` for null.
///
/// # Safety
/// `packet` is null or so many bytes.
unsafe fn slice<'p>(packet: *const u8, len: u32) -> Option<&'p [u8]> {
    // SAFETY: the caller's promise.
    (!packet.is_null()).then(|| unsafe { std::slice::from_raw_parts(packet, len as usize) })
}

/// Devices append local time.
fn utc(seconds: u32) -> i64 {
    // SAFETY: any time.
    i64::from(seconds) - i64::from(unsafe { gmt_to_local(0) })
}

/// Stores a time and returns the length of its trailer; stores zeros and returns 0 without one.
///
/// # Safety
/// `place` is null or a place of the program.
unsafe fn store(place: *mut libc::timespec, time: Option<trailers::Time>, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    let Some(place) = (unsafe { place.as_mut() }) else {
        return INVALID_ARGUMENT;
    };
    (place.tv_sec, place.tv_nsec) = time.map_or((0, 0), |(seconds, ns)| (utc(seconds), ns.into()));
    time.map_or(0, |_| len as c_int)
}

/// Sets the time of a header, and shortens the packet by its trailer. A packet that was truncated
/// has none: -1.
///
/// # Safety
/// `header` is null or a header of the program, `packet` is null or as many bytes as it says.
unsafe fn strip(
    packet: *const u8,
    header: *mut u8,
    len: usize,
    time_of: impl FnOnce(&[u8]) -> Option<u64>,
) -> c_int {
    guard(GENERIC, || {
        if header.is_null() {
            return INVALID_ARGUMENT;
        }
        // SAFETY: the caller's promise.
        let header = unsafe { &mut *header.cast::<[u8; SHORT_LEN]>() };
        let word = |at: usize| [0, 1, 2, 3].map(|more| header[at + more]);
        let (cap_len, wire_len) = (u32::from_ne_bytes(word(16)), u32::from_ne_bytes(word(20)));
        // SAFETY: as above.
        let Some(packet) = (unsafe { slice(packet, cap_len) }) else {
            return INVALID_ARGUMENT;
        };
        if cap_len != wire_len || packet.len() < len {
            return GENERIC;
        }
        if let Some(time_ns) = time_of(packet) {
            let left = (packet.len() - len) as u32;
            header[..8].copy_from_slice(&(time_ns / 1_000_000_000).to_ne_bytes());
            header[8..16].copy_from_slice(&(time_ns % 1_000_000_000 / 1000).to_ne_bytes());
            header[16..20].copy_from_slice(&left.to_ne_bytes());
            header[20..24].copy_from_slice(&left.to_ne_bytes());
            header[24..32].copy_from_slice(&time_ns.to_ne_bytes());
        }
        0
    })
}

fn nanoseconds((seconds, ns): trailers::Time) -> u64 {
    utc(seconds).max(0).cast_unsigned() * 1_000_000_000 + u64::from(ns)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_read_ixia_hw_timestamp(
    packet: *const u8,
    len: u32,
    place: *mut libc::timespec,
) -> c_int {
    // SAFETY: null or so many bytes, and a place of the program.
    guard(GENERIC, || unsafe {
        let time = slice(packet, len).and_then(trailers::ixia);
        store(place, time, IXIA_LEN)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_handle_ixia_hw_timestamp(
    packet: *const u8,
    header: *mut u8,
) -> c_int {
    let time = |packet: &[u8]| trailers::ixia(packet).map(nanoseconds);
    // SAFETY: null, or a header and as many bytes as it says.
    unsafe { strip(packet, header, IXIA_LEN, time) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_read_metawatch_hw_timestamp(
    packet: *const u8,
    len: u32,
    place: *mut libc::timespec,
) -> c_int {
    // SAFETY: null or so many bytes, and a place of the program.
    guard(GENERIC, || unsafe {
        let found = slice(packet, len).and_then(trailers::metawatch);
        store(place, found.map(|(time, ..)| time), METAWATCH_LEN)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_read_metawatch_device_info(
    packet: *const u8,
    len: u32,
    device: *mut u16,
    port: *mut u8,
) -> c_int {
    // SAFETY: null or so many bytes, and places of the program.
    guard(GENERIC, || unsafe {
        let (Some(device), Some(port)) = (device.as_mut(), port.as_mut()) else {
            return INVALID_ARGUMENT;
        };
        match slice(packet, len).and_then(trailers::metawatch) {
            Some((_, number, at)) => {
                (*device, *port) = (number, at);
                METAWATCH_LEN as c_int
            }
            None => 0,
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_handle_metawatch_hw_timestamp(
    packet: *const u8,
    header: *mut u8,
) -> c_int {
    let time = |packet: &[u8]| trailers::metawatch(packet).map(|(time, ..)| nanoseconds(time));
    // SAFETY: null, or a header and as many bytes as it says.
    unsafe { strip(packet, header, METAWATCH_LEN, time) }
}

/// Reads a key frame of Arista 7150; 0 if it is one. It counts for the packets after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_read_arista_7150_keyframe(
    packet: *const u8,
    len: u32,
    time_ns: *mut u64,
    ticks: *mut u32,
) -> c_int {
    // SAFETY: null or so many bytes, and places of the program.
    guard(GENERIC, || unsafe {
        let (Some(time_ns), Some(ticks)) = (time_ns.as_mut(), ticks.as_mut()) else {
            return INVALID_ARGUMENT;
        };
        let Some(frame) = slice(packet, len).and_then(KeyFrame::read) else {
            return GENERIC;
        };
        (*time_ns, *ticks) = (frame.time_ns, frame.ticks);
        *KEY_FRAME.lock().unwrap_or_else(PoisonError::into_inner) = Some(frame);
        0
    })
}

/// The time of a packet with ticks of Arista 7150: 0 before the first key frame.
fn arista_ns(packet: &[u8]) -> Option<u64> {
    let ticks = trailers::arista_ticks(packet)?;
    let frame = *KEY_FRAME.lock().unwrap_or_else(PoisonError::into_inner);
    Some(frame.map_or(0, |frame| frame.time_ns(ticks)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_read_arista_7150_hw_timestamp(
    packet: *const u8,
    len: u32,
    time_ns: *mut u64,
) -> c_int {
    // SAFETY: null or so many bytes, and a place of the program.
    guard(GENERIC, || unsafe {
        let Some(place) = time_ns.as_mut() else {
            return INVALID_ARGUMENT;
        };
        match slice(packet, len).and_then(arista_ns) {
            Some(time_ns) => {
                *place = time_ns;
                ARISTA_LEN as c_int
            }
            None => 0,
        }
    })
}

/// Sets the time of a packet; 1 for a key frame, which is to be skipped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_handle_arista_hw_timestamp(
    packet: *const u8,
    header: *mut u8,
) -> c_int {
    let mut is_key_frame = false;
    let time = |packet: &[u8]| {
        if let Some(frame) = KeyFrame::read(packet) {
            *KEY_FRAME.lock().unwrap_or_else(PoisonError::into_inner) = Some(frame);
            is_key_frame = true;
            return None;
        }
        arista_ns(packet)
    };
    // SAFETY: null, or a header and as many bytes as it says.
    let code = unsafe { strip(packet, header, ARISTA_LEN, time) };
    if is_key_frame { 1 } else { code }
}

/// `struct thirdparty_func`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Wanted {
    name: *const c_char,
    function: *mut c_void,
}

/// Finds functions of a library, those whose places are null, in a list that ends with a null name.
/// The library stays loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_thirdparty_lib_init(library: *const c_char, list: *mut Wanted) {
    guard((), || {
        if library.is_null() || list.is_null() {
            return;
        }
        // SAFETY: the program's name of a library, and its list.
        unsafe {
            let loaded = libc::dlopen(library, libc::RTLD_LAZY);
            if loaded.is_null() {
                return;
            }
            let mut at = list;
            while !(*at).name.is_null() {
                if (*at).function.is_null() {
                    (*at).function = libc::dlsym(loaded, (*at).name);
                }
                at = at.add(1);
            }
        }
    });
}
