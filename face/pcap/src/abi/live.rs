//! Live captures: settings, activation, sending, counters.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use super::open::{pcap_close, pcap_geterr};
use super::raw::{Handle, Statistics, allocated, bytes, errno, free, put_error, state, with};
use crate::device::Device;
use crate::failure::{ACTIVATED, ERROR, Failure, Result};
use crate::handle::{Kind, Settings, State};
use crate::live::{Live, NO_SUCH_DEVICE, PERMISSION_DENIED, TIMESTAMP_NOT_SUPPORTED};
use crate::status;
use sys::boundary::guard;

/// Maximum number of bytes captured per packet.
const SNAPLEN_MAX: c_int = crate::link::SNAPLEN_MAX as c_int;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_create(device: *const c_char, _errors: *mut c_char) -> *mut Handle {
    guard(null_mut(), || {
        // SAFETY: null or a text; null is the device of all interfaces.
        let device = unsafe { bytes(device) }.unwrap_or(b"any");
        let device = String::from_utf8_lossy(device).into_owned();
        let kind = Kind::Created(Settings::new(device));
        Handle::new(State::new(kind, -1, 0, false), null_mut())
    })
}

/// Changes a setting, which is possible only before activation.
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
                "can't perform  operation on activated capture",
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
    unsafe {
        with(p, |state| match state.kind {
            Kind::Dead => {
                let text = "Rfmon mode doesn't apply on a pcap_open_dead pcap_t";
                Err(Failure::new(text))
            }
            _ => Ok(0),
        })
    }
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
            // An invalid size leaves the default, as in the original.
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
            let types = Device::new(&settings.device).timestamp_types();
            if !types.contains(&number) {
                return Ok(TIMESTAMP_NOT_SUPPORTED);
            }
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
                    "can't perform  operation on activated capture",
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
pub unsafe extern "C" fn pcap_set_protocol_linux(p: *mut Handle, protocol: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        set(p, |settings| {
            // The kernel has 16 bits for it.
            settings.protocol = protocol as u16;
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_activate(p: *mut Handle) -> c_int {
    let body = |state: &mut State| {
        let Kind::Created(settings) = &mut state.kind else {
            return Err(Failure::of(
                ACTIVATED,
                "can't perform  operation on activated capture",
            ));
        };
        if !(1..=SNAPLEN_MAX).contains(&settings.snaplen) {
            settings.snaplen = SNAPLEN_MAX;
        }
        let opened = super::kinds::refuse(&settings.device).and_then(|()| Live::open(settings));
        let opened = opened.map_err(|failure| match failure.text.is_empty() {
            true => Failure::of(failure.code, status_text(failure.code)),
            false => failure,
        });
        let promiscuous = settings.promiscuous;
        let live = opened?;
        let (status, warning) = live.warning();
        if let Some(text) = warning {
            state.error.set(&text);
        }
        if promiscuous && live.is_any() {
            state
                .error
                .set("Promiscuous mode not supported on the \"any\" device");
        }
        // SAFETY: a handle, as `with` found; this field is not in the part that is borrowed.
        let _ = unsafe { (*p).waker.set(live.waker()) };
        (state.dlt, state.snaplen) = (live.dlt(), live.snaplen().cast_signed());
        state.kind = Kind::Live(Box::new(live));
        Ok(status)
    };
    // SAFETY: a handle.
    unsafe { with(p, body) }
}

/// The text of a status.
fn status_text(code: c_int) -> String {
    status::text(code).map_or_else(String::new, |text| text.to_string_lossy().into_owned())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_live(
    device: *const c_char,
    snaplen: c_int,
    promiscuous: c_int,
    timeout_ms: c_int,
    errors: *mut c_char,
) -> *mut Handle {
    guard(null_mut(), || {
        // SAFETY: null or a text, and the buffer that pcap.h asks for; the handle is new.
        unsafe {
            let p = pcap_create(device, errors);
            if p.is_null() {
                return p;
            }
            pcap_set_snaplen(p, snaplen);
            pcap_set_promisc(p, promiscuous);
            pcap_set_timeout(p, timeout_ms);
            let code = pcap_activate(p);
            if code >= 0 {
                return p;
            }
            let text = String::from_utf8_lossy(bytes(pcap_geterr(p)).unwrap_or(b""));
            let device = String::from_utf8_lossy(bytes(device).unwrap_or(b"any"));
            let status = status_text(code);
            let text = match code {
                ERROR => format!("{device}: {text}"),
                NO_SUCH_DEVICE | PERMISSION_DENIED => format!("{device}: {status} ({text})"),
                _ => format!("{device}: {status}"),
            };
            put_error(errors, &text);
            pcap_close(p);
            null_mut()
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_stats(p: *mut Handle, place: *mut Statistics) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            if let Kind::Live(live) = &mut state.kind {
                let [received, dropped, by_interface] = live.statistics()?;
                if let Some(place) = place.as_mut() {
                    *place = Statistics {
                        received: received as u32,
                        dropped: dropped as u32,
                        interface_dropped: by_interface as u32,
                    };
                }
                return Ok(0);
            }
            Err(state.not_live(
                "Statistics aren't available from savefiles",
                "Statistics aren't available from",
            ))
        })
    }
}

/// The error of sending nothing, behind which the original puts what the last system call said.
fn none(text: &str) -> Failure {
    Failure::system(text, errno())
}

/// # Safety
/// `p` is null or an open handle, `data` null or so many bytes.
unsafe fn send(p: *mut Handle, data: *const u8, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(p, |state| {
            if let Kind::Live(live) = &mut state.kind {
                let sent = c_int::try_from(len).ok().filter(|_| !data.is_null());
                let sent = sent.ok_or_else(|| Failure::new("send: no packet"))?;
                if live.is_any() {
                    let text = "Sending packets isn't supported on the \"any\" device";
                    return Err(Failure::new(text));
                }
                if live.is_cooked() {
                    let text = "Sending packets isn't supported in cooked mode";
                    return Err(Failure::new(text));
                }
                let Some(socket) = live.socket() else {
                    let packet = std::slice::from_raw_parts(data, len);
                    return live.send(packet).map(|()| sent);
                };
                let sent = libc::send(socket, data.cast(), len, 0);
                return match c_int::try_from(sent) {
                    Ok(sent) if sent >= 0 => Ok(sent),
                    _ => Err(Failure::system("send", errno())),
                };
            }
            Err(state.not_live(
                "Sending packets isn't supported on savefiles",
                "Packets can't be sent on",
            ))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_inject(p: *mut Handle, data: *const c_void, len: usize) -> c_int {
    // SAFETY: a handle, and so many bytes.
    unsafe {
        match len {
            0 => with(p, |_| {
                Err(none("The number of bytes to be injected must not be zero"))
            }),
            _ => send(p, data.cast(), len),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_sendpacket(p: *mut Handle, data: *const u8, len: c_int) -> c_int {
    // SAFETY: a handle, and so many bytes.
    unsafe {
        match usize::try_from(len) {
            Ok(len @ 1..) => send(p, data, len).min(0),
            _ => with(p, |_| {
                Err(none("The number of bytes to be sent must be positive"))
            }),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setdirection(p: *mut Handle, direction: c_int) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            if !(0..=2).contains(&direction) {
                return Err(Failure::new("Invalid direction"));
            }
            if let Kind::Live(live) = &mut state.kind {
                live.direction = direction;
                return Ok(0);
            }
            Err(state.not_live(
                "Setting direction is not supported on savefiles",
                "The packet direction cannot be set on",
            ))
        })
    }
}

const NO_MODE: &str = "A pcap_open_dead pcap_t does not have a non-blocking mode setting";

/// Sets the handle's error, and that of the caller if the code does not say enough.
///
/// # Safety
/// As [`put_error`].
unsafe fn refuse_mode(state: &mut State, errors: *mut c_char, failure: &Failure) -> c_int {
    state.error.set(&failure.text);
    if failure.code == ERROR {
        // SAFETY: the caller's promise.
        unsafe { put_error(errors, &failure.text) };
    }
    failure.code
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
            if let Kind::Live(live) = &mut state.kind {
                live.nonblocking = on != 0;
                return 0;
            }
            let failure = match state.kind {
                Kind::Dead => Failure::new(NO_MODE),
                _ => state.not_live("Savefiles cannot be put into non-blocking mode", ""),
            };
            refuse_mode(state, errors, &failure)
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
                Kind::Live(live) => live.nonblocking.into(),
                _ => {
                    let failure = match state.kind {
                        Kind::Dead => Failure::new(NO_MODE),
                        _ => state.not_live("", ""),
                    };
                    refuse_mode(state, errors, &failure)
                }
            }
        }
    })
}

/// The descriptor of a device, if it has one.
pub fn live_fd(state: &mut State) -> Option<c_int> {
    match &mut state.kind {
        Kind::Live(live) => live.fd(),
        _ => None,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_selectable_fd(p: *mut Handle) -> c_int {
    // SAFETY: null or a handle.
    guard(ERROR, || unsafe {
        match p.as_ref() {
            Some(handle) if !handle.file.is_null() => libc::fileno(handle.file),
            _ => state(p).and_then(live_fd).unwrap_or(ERROR),
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
        with(p, |state| {
            if list.is_null() {
                return Err(Failure::new("no place for the list"));
            }
            let types = match &state.kind {
                Kind::Created(settings) => Device::new(&settings.device).timestamp_types(),
                Kind::Live(live) => live.timestamp_types(),
                _ => vec![0],
            };
            *list = allocated(&types);
            match (*list).is_null() {
                true => Err(Failure::system("malloc", libc::ENOMEM)),
                false => Ok(types.len() as c_int),
            }
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_free_tstamp_types(list: *mut c_int) {
    // SAFETY: what pcap_list_tstamp_types gave.
    unsafe { free(list) };
}
