//! Opening and closing handles, and properties of every handle.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use super::live::live_fd;
use super::raw::{Handle, bytes, or_null, put_error, state, with};
use super::stream::{self, Stream};
use crate::failure::{ERROR, Failure, Result};
use crate::handle::{Kind, State};
use crate::savefile::Reader;
use sys::boundary::guard;

/// `PCAP_TSTAMP_PRECISION_NANO`.
const NANOSECONDS: c_uint = 1;

fn precision(value: c_uint) -> Result<bool> {
    match value {
        0 | NANOSECONDS => Ok(value == NANOSECONDS),
        _ => Err(Failure::new(format!(
            "unknown time stamp resolution {value}"
        ))),
    }
}

/// # Safety
/// The stream is open, and the handle's from here on.
unsafe fn open_stream(file: *mut libc::FILE, nanoseconds: bool) -> Result<*mut Handle> {
    // SAFETY: the handle has the reader and closes the stream after it.
    let reader = Reader::new(Box::new(unsafe { Stream::new(file) }), nanoseconds)?;
    Ok(Handle::new(State::savefile(reader, nanoseconds), file))
}

/// # Safety
/// The name is null or ends with a zero.
unsafe fn open_name(name: *const c_char, value: c_uint) -> Result<*mut Handle> {
    // SAFETY: the caller's promise.
    let Some(name) = (unsafe { bytes(name) }) else {
        return Err(Failure::new("A null pointer was supplied as the file name"));
    };
    let nanoseconds = precision(value)?;
    let file = match name {
        b"-" if stream::standard_input().is_null() => {
            return Err(Failure::new("The standard input is not open"));
        }
        b"-" => stream::standard_input(),
        name => stream::open(name, c"rb")?,
    };
    // SAFETY: it was just opened, or is the standard input, which stays open.
    let opened = unsafe { open_stream(file, nanoseconds) };
    if opened.is_err() && file != stream::standard_input() {
        // SAFETY: nothing else uses it.
        unsafe { libc::fclose(file) };
    }
    opened
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_offline(
    name: *const c_char,
    errors: *mut c_char,
) -> *mut Handle {
    // SAFETY: as pcap.h says of these arguments.
    guard(null_mut(), || unsafe {
        or_null(errors, open_name(name, 0))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_offline_with_tstamp_precision(
    name: *const c_char,
    precision: c_uint,
    errors: *mut c_char,
) -> *mut Handle {
    // SAFETY: as pcap.h says of these arguments.
    guard(null_mut(), || unsafe {
        or_null(errors, open_name(name, precision))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_fopen_offline(
    file: *mut libc::FILE,
    errors: *mut c_char,
) -> *mut Handle {
    // SAFETY: as pcap.h says of these arguments.
    unsafe { pcap_fopen_offline_with_tstamp_precision(file, 0, errors) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_fopen_offline_with_tstamp_precision(
    file: *mut libc::FILE,
    value: c_uint,
    errors: *mut c_char,
) -> *mut Handle {
    guard(null_mut(), || {
        let opened = match file.is_null() {
            true => Err(Failure::new(
                "Null FILE * pointer provided to savefile open routine",
            )),
            // SAFETY: as pcap.h says of these arguments.
            false => precision(value).and_then(|value| unsafe { open_stream(file, value) }),
        };
        // SAFETY: as pcap.h says of these arguments.
        unsafe { or_null(errors, opened) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_dead(dlt: c_int, snaplen: c_int) -> *mut Handle {
    // SAFETY: it takes any numbers.
    unsafe { pcap_open_dead_with_tstamp_precision(dlt, snaplen, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_dead_with_tstamp_precision(
    dlt: c_int,
    snaplen: c_int,
    value: c_uint,
) -> *mut Handle {
    guard(null_mut(), || {
        // The original takes everything else for microseconds.
        let nanoseconds = value == NANOSECONDS;
        Handle::new(
            State::new(Kind::Dead, dlt, snaplen, nanoseconds),
            null_mut(),
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_close(p: *mut Handle) {
    guard((), || {
        if p.is_null() {
            return;
        }
        // SAFETY: the handle is from `Handle::new`, and the program does not use it again.
        let mut handle = unsafe { Box::from_raw(p) };
        if handle.is_live() && !handle.is_own() {
            // In a child of the process that opened it: ring and filter are shared with the parent,
            // which continues. What the child has of them ends with it.
            let _ = Box::into_raw(handle);
            return;
        }
        let file = handle.file;
        drop(handle);
        if !file.is_null() && file != stream::standard_input() {
            // SAFETY: the handle had it, whoever opened it: so says pcap_fopen_offline(3).
            unsafe { libc::fclose(file) };
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_snapshot(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            state.activated()?;
            Ok(state.snaplen)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_is_swapped(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe { with(p, |state| facts(state, |facts| facts.is_swapped.into())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_major_version(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe { with(p, |state| facts(state, |facts| facts.version.0.into())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_minor_version(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe { with(p, |state| facts(state, |facts| facts.version.1.into())) }
}

/// A property from the file's start; 0 without a file.
fn facts(state: &State, of: impl FnOnce(&crate::savefile::Facts) -> c_int) -> Result<c_int> {
    state.activated()?;
    Ok(match &state.kind {
        Kind::Savefile(reader) => of(reader.facts()),
        _ => 0,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_bufsize(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe {
        with(p, |state| {
            state.activated()?;
            Ok(match state.kind {
                Kind::Dead => 0,
                _ => state.snaplen,
            })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_file(p: *mut Handle) -> *mut libc::FILE {
    guard(null_mut(), || {
        // SAFETY: null or a handle, whose field nobody writes.
        let handle = unsafe { p.as_ref() };
        handle.map_or(null_mut(), |handle| handle.file)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_fileno(p: *mut Handle) -> c_int {
    // A savefile has none here, only one to select on: argus decides by that how to read.
    // SAFETY: null or a handle.
    guard(ERROR, || unsafe {
        state(p).and_then(live_fd).unwrap_or(ERROR)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_geterr(p: *mut Handle) -> *mut c_char {
    // SAFETY: null or a handle; the text belongs to it.
    guard(null_mut(), || match unsafe { state(p) } {
        Some(state) => state.error.as_mut_ptr(),
        None => c"no handle".as_ptr().cast_mut(),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_perror(p: *mut Handle, prefix: *const c_char) {
    guard((), || {
        // SAFETY: null or a handle and a text; standard error is what the function is for.
        unsafe {
            let Some(text) = bytes(pcap_geterr(p)) else {
                return;
            };
            let prefix = bytes(prefix).unwrap_or(b"");
            let line = [prefix, b": ", text, b"\n"].concat();
            stream::write(stream::standard_error(), &line);
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_tstamp_precision(p: *mut Handle) -> c_int {
    // SAFETY: a handle.
    unsafe { with(p, |state| Ok(state.nanoseconds.into())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_init(options: c_uint, errors: *mut c_char) -> c_int {
    guard(ERROR, || {
        // Names and texts are UTF-8 or plain bytes either way.
        let first = match options {
            0 | 1 => INITIALIZED.compare_exchange(NEVER, options, SeqCst, SeqCst),
            _ => {
                // SAFETY: as pcap.h says of the buffer.
                unsafe { put_error(errors, "Unknown options specified") };
                return ERROR;
            }
        };
        if first.is_err_and(|first| first != options) {
            let text = "Multiple pcap_init calls with different character encodings";
            // SAFETY: as pcap.h says of the buffer.
            unsafe { put_error(errors, text) };
            return ERROR;
        }
        0
    })
}

/// The options of `pcap_init`, or [`NEVER`].
static INITIALIZED: AtomicU32 = AtomicU32::new(NEVER);
const NEVER: u32 = u32::MAX;

/// Whether `pcap_init` was called: deprecated functions then fail.
pub fn is_initialized() -> bool {
    INITIALIZED.load(SeqCst) != NEVER
}
