//! Numbers and packets as text, and the time zone.

use std::ffi::{c_char, c_int};

use sys::boundary::guard;

use super::rules::parse;
use crate::header::LONG_LEN;
use crate::status::{GENERIC, INVALID_ARGUMENT};
use crate::text;

/// Writes a text with its zero, truncated to the buffer.
///
/// # Safety
/// There are `len` bytes at `to`.
unsafe fn write(text: &str, to: *mut c_char, len: u32) {
    let Some(room) = (len as usize).checked_sub(1) else {
        return;
    };
    let count = text.len().min(room);
    // SAFETY: the caller's promise.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), count);
        to.add(count).write(0);
    }
}

/// Writes a number with `'` between groups of three digits; returns the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_format_numbers(
    value: f64,
    buffer: *mut c_char,
    len: u32,
    has_decimals: u8,
) -> *mut c_char {
    guard(buffer, || {
        if !buffer.is_null() {
            // SAFETY: so many bytes of the program.
            unsafe { write(&text::number(value, has_decimals != 0), buffer, len) };
        }
        buffer
    })
}

/// Writes what a packet's parsed header says of it; returns the length of the text, which is
/// truncated if there is less room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_print_parsed_pkt(
    buffer: *mut c_char,
    len: u32,
    packet: *const u8,
    header: *const u8,
) -> c_int {
    guard(GENERIC, || {
        if buffer.is_null() || packet.is_null() || header.is_null() {
            return INVALID_ARGUMENT;
        }
        // SAFETY: a long header, as many bytes of a packet as it says, and of the buffer.
        unsafe {
            let header = &*header.cast::<[u8; LONG_LEN]>();
            let [a, b, c, d] = [16, 17, 18, 19].map(|at| header[at]);
            let cap_len = u32::from_ne_bytes([a, b, c, d]);
            let packet = std::slice::from_raw_parts(packet, cap_len as usize);
            let text = text::packet(header, packet);
            write(&text, buffer, len);
            text.len() as c_int
        }
    })
}

/// Parses an Ethernet packet, and writes the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_print_pkt(
    buffer: *mut c_char,
    buffer_len: u32,
    packet: *const u8,
    len: u32,
    cap_len: u32,
) -> c_int {
    const ETHERNET: u16 = 1;
    const LEVEL: u8 = 4;
    let mut header = [0; LONG_LEN];
    header[16..20].copy_from_slice(&cap_len.to_ne_bytes());
    header[20..24].copy_from_slice(&len.to_ne_bytes());
    // SAFETY: a header with the lengths of the program's packet.
    unsafe {
        let level = parse(ETHERNET, packet, header.as_mut_ptr(), LEVEL, 0, 1);
        match level < 0 {
            true => level,
            false => pfring_print_parsed_pkt(buffer, buffer_len, packet, header.as_ptr()),
        }
    }
}

/// Seconds by which local time is ahead of UTC: at a time, or now for 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gmt_to_local(time: libc::time_t) -> i32 {
    // SAFETY: places of this function.
    guard(0, || unsafe {
        let time = if time == 0 {
            libc::time(std::ptr::null_mut())
        } else {
            time
        };
        let mut local: libc::tm = std::mem::zeroed();
        match libc::localtime_r(&raw const time, &raw mut local).is_null() {
            true => 0,
            false => local.tm_gmtoff as i32,
        }
    })
}
