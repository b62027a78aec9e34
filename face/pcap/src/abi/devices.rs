//! Devices.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use super::guard::guard;
use super::raw::put_error;
use crate::failure::ERROR;

const NOT_YET: &str = "listing devices is not supported yet";

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_findalldevs(list: *mut *mut c_void, errors: *mut c_char) -> c_int {
    guard(ERROR, || {
        // SAFETY: null or a place for the list; the buffer that pcap.h asks for.
        unsafe {
            if let Some(list) = list.as_mut() {
                *list = null_mut();
            }
            put_error(errors, NOT_YET);
        }
        ERROR
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_freealldevs(_list: *mut c_void) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_lookupdev(errors: *mut c_char) -> *mut c_char {
    // SAFETY: the buffer that pcap.h asks for.
    guard(null_mut(), || unsafe {
        put_error(errors, NOT_YET);
        null_mut()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_lookupnet(
    _device: *const c_char,
    network: *mut u32,
    mask: *mut u32,
    errors: *mut c_char,
) -> c_int {
    guard(ERROR, || {
        // SAFETY: null or places for the numbers; the buffer that pcap.h asks for.
        unsafe {
            if let (Some(network), Some(mask)) = (network.as_mut(), mask.as_mut()) {
                (*network, *mask) = (0, 0);
            }
            put_error(errors, NOT_YET);
        }
        ERROR
    })
}
