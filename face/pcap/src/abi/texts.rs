//! Texts that need no handle: versions, status codes, timestamp types.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null;

use super::raw::bytes;
use crate::failure::ERROR;
use crate::status::{self, TIMESTAMP_TYPES};
use sys::boundary::guard;

/// The version of the interface: an exported variable of the original.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static pcap_version: [u8; 7] = *b"1.10.3\0";

const VERSION: &CStr = match CStr::from_bytes_with_nul(
    concat!(
        "libpcap version 1.10.3 (barewire ",
        env!("CARGO_PKG_VERSION"),
        ")\0"
    )
    .as_bytes(),
) {
    Ok(text) => text,
    Err(_) => panic!("one zero, at the end"),
};

#[unsafe(no_mangle)]
pub extern "C" fn pcap_lib_version() -> *const c_char {
    VERSION.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn pcap_strerror(number: c_int) -> *const c_char {
    // SAFETY: strerror takes any number.
    unsafe { libc::strerror(number) }
}

thread_local! {
    static UNKNOWN: RefCell<String> = const { RefCell::new(String::new()) };
}

#[unsafe(no_mangle)]
pub extern "C" fn pcap_statustostr(code: c_int) -> *const c_char {
    guard(null(), || match status::text(code) {
        Some(text) => text.as_ptr(),
        None => UNKNOWN.with_borrow_mut(|text| {
            *text = format!("Unknown error: {code}\0");
            text.as_ptr().cast()
        }),
    })
}

fn timestamp_type(number: c_int) -> Option<&'static (&'static CStr, &'static CStr)> {
    TIMESTAMP_TYPES.get(usize::try_from(number).ok()?)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_tstamp_type_name_to_val(name: *const c_char) -> c_int {
    guard(ERROR, || {
        // SAFETY: null or a text.
        let Some(name) = (unsafe { bytes(name) }) else {
            return ERROR;
        };
        let is_it = |row: &(&CStr, &CStr)| row.0.to_bytes().eq_ignore_ascii_case(name);
        let found = TIMESTAMP_TYPES.iter().position(is_it);
        found.map_or(ERROR, |number| number as c_int)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pcap_tstamp_type_val_to_name(number: c_int) -> *const c_char {
    timestamp_type(number).map_or(null(), |row| row.0.as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn pcap_tstamp_type_val_to_description(number: c_int) -> *const c_char {
    timestamp_type(number).map_or(null(), |row| row.1.as_ptr())
}
