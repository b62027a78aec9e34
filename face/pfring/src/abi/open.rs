//! Opening, enabling and closing.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use sys::boundary::guard;

use super::{bytes, or_errno, with};
use crate::ring::Ring;
use crate::status::INVALID_ARGUMENT;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_open(device: *const c_char, caplen: u32, flags: u32) -> *mut Ring {
    guard(null_mut(), || {
        // SAFETY: null or a text.
        let name = unsafe { bytes(device) }.map(String::from_utf8_lossy);
        let opened = match name {
            Some(name) => Ring::new(&name, caplen, flags),
            None => Err(INVALID_ARGUMENT),
        };
        or_errno(opened.map(|ring| Box::into_raw(Box::new(ring)).cast_const()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_close(ring: *mut Ring) {
    guard((), || {
        if !ring.is_null() {
            // SAFETY: of pfring_open, and used no more; `Ring` is dropped as it was made.
            let ring = unsafe { Box::from_raw(ring) };
            match ring.is_own() {
                true => drop(ring),
                // In a child of that process, which continues with the shared memory.
                false => drop(Box::into_raw(ring)),
            }
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_enable_ring(ring: *mut Ring) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| ring.enable().map(|()| 0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_disable_ring(ring: *mut Ring) -> c_int {
    // SAFETY: null or a ring.
    unsafe {
        with(ring, |ring| {
            ring.disable();
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_shutdown(ring: *mut Ring) {
    // SAFETY: null or a ring.
    unsafe { pfring_breakloop(ring) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_breakloop(ring: *mut Ring) {
    // SAFETY: null or a ring.
    unsafe {
        with(ring, |ring| {
            ring.stop();
            Ok(0)
        });
    }
}
