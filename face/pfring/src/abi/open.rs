//! Opening, enabling and closing.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use port::Fanout;
use sys::boundary::guard;

use super::module::module_functions;
use super::{bytes, or_errno, with};
use crate::device::Device;
use crate::ring::Ring;
use crate::settings::Settings;
use crate::status::{INVALID_ARGUMENT, NOT_SUPPORTED};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_open(device: *const c_char, caplen: u32, flags: u32) -> *mut Ring {
    guard(null_mut(), || {
        // SAFETY: null or a text.
        let name = unsafe { bytes(device) }.map(String::from_utf8_lossy);
        let opened = match name {
            Some(name) => Ring::new(&name, caplen, flags),
            None => Err(INVALID_ARGUMENT),
        };
        or_errno(opened.map(handle))
    })
}

/// The handle of a ring.
fn handle(mut ring: Ring) -> *const Ring {
    ring.visible.functions = module_functions();
    Box::into_raw(Box::new(ring)).cast_const()
}

/// Opens a ring for each receive queue of an interface, at most 64; returns their number. Those of
/// a tap are a fan-out group: once all are enabled, each gets the packets of its queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_open_multichannel(
    device: *const c_char,
    caplen: u32,
    flags: u32,
    places: *mut *mut Ring,
) -> u8 {
    guard(0, || {
        // SAFETY: null or a text.
        let Some(name) = unsafe { bytes(device) }.map(String::from_utf8_lossy) else {
            return 0;
        };
        if places.is_null() {
            return 0;
        }
        let mut count = 0;
        for ring in channels(&name, caplen, flags) {
            // SAFETY: the program has 64 places (`MAX_NUM_RX_CHANNELS`).
            unsafe { places.add(count.into()).write(handle(ring).cast_mut()) };
            count += 1;
        }
        count
    })
}

/// The rings of [`pfring_open_multichannel`].
fn channels(name: &str, caplen: u32, flags: u32) -> Vec<Ring> {
    let Ok(device) = Device::new(name) else {
        return Vec::new();
    };
    let count = device.channel_count();
    let group = next_group();
    let open = |at: u32| {
        if count == 1 || !device.is_bypass {
            let ring = Ring::new(name, caplen, flags).ok()?;
            if count > 1 {
                let join = |settings: &mut Settings| {
                    settings.cluster = Some((group, Fanout::Queue));
                };
                ring.set(join).ok()?;
            }
            return Some(ring);
        }
        Ring::new(&format!("{name}@{at}"), caplen, flags).ok()
    };
    (0..count).map_while(open).collect()
}

/// A number for a fan-out group that other processes are not likely to use.
fn next_group() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::process::id().wrapping_mul(0x9e37).wrapping_add(number) as u16
}

/// A ring reads the device that it was opened with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_bind(ring: *mut Ring, device: *const c_char) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a text.
        let name = unsafe { bytes(device) }.ok_or(INVALID_ARGUMENT)?;
        match Device::new(&String::from_utf8_lossy(name))? == *ring.device() {
            true => Ok(0),
            false => Err(NOT_SUPPORTED),
        }
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Accepted without effect: the name is for /proc/net/pf_ring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_bound_dev_name(ring: *mut Ring, _name: *const c_char) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
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
