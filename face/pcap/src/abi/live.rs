//! Live captures: what is set before, activating, sending, counters.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use super::guard::guard;
use super::raw::{Handle, Statistics, allocated, bytes, free, or_null, put_error, state, with};
use crate::failure::{ACTIVATED, ERROR, Failure, Result};
use crate::handle::{Kind, Settings, State};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_create(device: *const c_char, errors: *mut c_char) -> *mut Handle {
    guard(null_mut(), || {
        // SAFETY: null or a text; null is the device of all interfaces.
        let device = unsafe { bytes(device) }.unwrap_or(b"any");
        let device = String::from_utf8_lossy(device).into_owned();
        let created = match device.is_empty() {
            true => Err(Failure::new("the name of the device is empty")),
            false => {
                let kind = Kind::Created(Settings::new(device));
                Ok(Handle::new(State::new(kind, -1, 0, false), null_mut()))
            }
        };
        // SAFETY: as pcap.h says of the buffer.
        unsafe { or_null(errors, created) }
    })
}

/// Sets something that can only be set before activation.
///
/// # Safety
/// `p` is null or an open handle.
unsafe fn set(p: *mut Handle, set: impl FnOnce(&mut Settings) -> Result<c_int>) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(p, |state| match &mut state.kind {
            Kind::Created(settings) => set(settings),
            _ => Err(Failure::of(
                ACTIVATED,
                "can't perform operation on activated capture",
            )),
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_snaplen(p: *mut Handle, snaplen: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |settings| {
            settings.snaplen = snaplen;
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_promisc(p: *mut Handle, on: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |settings| {
            settings.promiscuous = on != 0;
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_rfmon(p: *mut Handle, on: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |settings| {
            settings.monitor = on != 0;
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_can_set_rfmon(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe { set(p, |_| Ok(0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_timeout(p: *mut Handle, timeout_ms: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |settings| {
            settings.timeout_ms = timeout_ms;
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_immediate_mode(p: *mut Handle, on: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |settings| {
            settings.immediate = on != 0;
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_buffer_size(p: *mut Handle, bytes: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |settings| {
            // A size that is none leaves the default, as in the original.
            if bytes > 0 {
                settings.buffer_bytes = bytes;
            }
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_tstamp_type(p: *mut Handle, number: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |settings| {
            settings.timestamp_type = number;
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_tstamp_precision(p: *mut Handle, precision: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            if !matches!(state.kind, Kind::Created(_)) {
                return Err(Failure::of(
                    ACTIVATED,
                    "can't perform operation on activated capture",
                ));
            }
            match precision {
                0 | 1 => state.nanoseconds = precision == 1,
                _ => {
                    return Err(Failure::of(-12, ""));
                }
            }
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_protocol_linux(p: *mut Handle, _protocol: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |_| {
            Err(Failure::new("setting the protocol is not supported"))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_activate(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |settings| {
            let device = &settings.device;
            Err(Failure::new(format!(
                "{device}: live captures are not supported yet"
            )))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_live(
    device: *const c_char,
    _snaplen: c_int,
    _promiscuous: c_int,
    _timeout_ms: c_int,
    errors: *mut c_char,
) -> *mut Handle {
    guard(null_mut(), || {
        // SAFETY: null or a text, and the buffer that pcap.h asks for.
        unsafe {
            let device = String::from_utf8_lossy(bytes(device).unwrap_or(b"any"));
            put_error(
                errors,
                &format!("{device}: live captures are not supported yet"),
            );
        }
        null_mut()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_stats(p: *mut Handle, place: *mut Statistics) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            let _ = place;
            Err(state.not_live(
                "Statistics aren't available from savefiles",
                "Statistics aren't available from",
            ))
        })
    }
}

/// # Safety
/// `p` is null or an open handle.
unsafe fn send(p: *mut Handle) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(p, |state| {
            Err(state.not_live(
                "Sending packets isn't supported on savefiles",
                "Packets can't be sent on",
            ))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_inject(p: *mut Handle, _data: *const c_void, _len: usize) -> c_int {
    // SAFETY: a handle.
    unsafe { send(p) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_sendpacket(p: *mut Handle, _data: *const u8, _len: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe { send(p) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setdirection(p: *mut Handle, _direction: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            Err(state.not_live(
                "Setting direction is not supported on savefiles",
                "The packet direction cannot be set on",
            ))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setnonblock(p: *mut Handle, on: c_int, errors: *mut c_char) -> c_int {
    guard(ERROR, || {
        // SAFETY: null or a handle, and the buffer that pcap.h asks for.
        unsafe {
            let Some(state) = state(p) else {
                return ERROR;
            };
            if let Kind::Created(settings) = &mut state.kind {
                settings.nonblocking = on != 0;
                return 0;
            }
            let failure = state.not_live(
                "Savefiles cannot be put into non-blocking mode",
                "There is no non-blocking mode on",
            );
            put_error(errors, &failure.text);
            failure.code
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_getnonblock(p: *mut Handle, errors: *mut c_char) -> c_int {
    guard(ERROR, || {
        // SAFETY: null or a handle, and the buffer that pcap.h asks for.
        unsafe {
            let Some(state) = state(p) else {
                return ERROR;
            };
            match &state.kind {
                Kind::Savefile(_) => 0,
                _ => {
                    let failure = state.not_live("", "There is no non-blocking mode on");
                    put_error(errors, &failure.text);
                    failure.code
                }
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_selectable_fd(p: *mut Handle) -> c_int {
    // SAFETY: null or a handle.
    guard(ERROR, || unsafe {
        match p.as_ref() {
            Some(handle) if !handle.file.is_null() => libc::fileno(handle.file),
            _ => ERROR,
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_required_select_timeout(_p: *mut Handle) -> *const libc::timeval {
    null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_list_tstamp_types(p: *mut Handle, list: *mut *mut c_int) -> c_int {
    // SAFETY: a handle; a place for the list.
    unsafe {
        with(p, |_| {
            if list.is_null() {
                return Err(Failure::new("no place for the list"));
            }
            *list = allocated(&[0]);
            Ok(if (*list).is_null() { 0 } else { 1 })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_free_tstamp_types(list: *mut c_int) {
    // SAFETY: what pcap_list_tstamp_types gave.
    unsafe { free(list) };
}
