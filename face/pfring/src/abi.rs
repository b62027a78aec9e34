//! The functions of PF_RING's library, as C calls them.
//!
//! Rules for all of them: pointers may be null, which is an invalid argument; a panic ends at the
//! boundary ([`sys::boundary`]).
//!
//! What callers must ensure, as with the original: pointers are null or valid; a ring is not used
//! after `pfring_close`; only one thread at a time receives. Everything else may be called by other
//! threads meanwhile, except `pfring_disable_ring` and `pfring_close`: after them the last packet
//! is no longer valid.

mod bpf;
mod devices;
mod facts;
mod module;
mod open;
mod others;
mod receive;
mod rules;
mod send;
mod settings;
#[cfg(test)]
mod tests;
mod text;
mod trailers;
mod zc;
mod zc_facts;
mod zc_queue;
mod zc_worker;

use std::ffi::{CStr, c_char, c_int};

use sys::boundary::guard;

use crate::ring::{Outcome, Ring};
use crate::status::{GENERIC, INVALID_ARGUMENT};

/// Runs `body` with a ring, and returns its number or its status.
///
/// # Safety
/// `ring` is null or open.
unsafe fn with(ring: *const Ring, body: impl FnOnce(&Ring) -> Outcome<c_int>) -> c_int {
    // SAFETY: the caller's promise; all state of a ring is behind locks or atomic.
    guard(GENERIC, || match unsafe { ring.as_ref() } {
        Some(ring) => body(ring).unwrap_or_else(|status| status),
        None => INVALID_ARGUMENT,
    })
}

/// Returns a pointer, or null with the thread's `errno` set.
fn or_errno<T>(outcome: Outcome<*const T>) -> *mut T {
    match outcome {
        Ok(place) => place.cast_mut(),
        Err(failed) => {
            with_errno(failed);
            std::ptr::null_mut()
        }
    }
}

/// Sets the thread's `errno` for the status of a call that failed, and returns the status.
fn with_errno(failed: c_int) -> c_int {
    // SAFETY: the thread's errno.
    unsafe { *libc::__errno_location() = crate::status::errno(failed) };
    failed
}

/// The text at a pointer; `None` for null.
///
/// # Safety
/// `text` is null or ends with a zero, and is alive for `'t`.
unsafe fn bytes<'t>(text: *const c_char) -> Option<&'t [u8]> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}
