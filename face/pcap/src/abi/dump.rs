//! Writing capture files. A `pcap_dumper_t` is a C stream, as programs that use it as one expect.

use std::ffi::{c_char, c_int, c_long};
use std::ptr::null_mut;

use super::raw::{Handle, PacketHeader, bytes, errno, state};
use super::stream;
use crate::failure::{ERROR, Failure, Result};
use crate::handle::{Kind, State};
use crate::link;
use sys::boundary::guard;

const MICROSECONDS_MAGIC: u32 = 0xa1b2_c3d4;
const NANOSECONDS_MAGIC: u32 = 0xa1b2_3c4d;

/// Length of a file header.
const HEADER_LEN: usize = 24;

/// Length of a packet's header.
const RECORD_HEADER_LEN: usize = 16;
/// Packets up to this length are written together with their header: a call of the C library costs
/// more than copying them.
const TOGETHER_MAX: usize = 240;

const NO_NAME: &str = "A null pointer was supplied as the file name";

/// The file header for a handle's packets, in this machine's byte order.
fn header(state: &State) -> [u8; HEADER_LEN] {
    let magic = match state.nanoseconds {
        true => NANOSECONDS_MAGIC,
        false => MICROSECONDS_MAGIC,
    };
    let number = link::to_file(state.dlt) | state.dlt_ext;
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&magic.to_ne_bytes());
    header[4..6].copy_from_slice(&2u16.to_ne_bytes());
    header[6..8].copy_from_slice(&4u16.to_ne_bytes());
    header[16..20].copy_from_slice(&state.snaplen.to_ne_bytes());
    header[20..].copy_from_slice(&number.to_ne_bytes());
    header
}

/// Checks that the handle's packets can be written to a file.
fn check(state: &State, name: &str) -> Result<()> {
    if matches!(state.kind, Kind::Created(_)) {
        return Err(Failure::new(format!(
            "{name}: not-yet-activated pcap_t passed to pcap_dump_open"
        )));
    }
    if !link::has_file_number(state.dlt) {
        let dlt = state.dlt;
        return Err(Failure::new(format!(
            "{name}: link-layer type {dlt} isn't supported in savefiles"
        )));
    }
    Ok(())
}

/// # Safety
/// The stream is open.
unsafe fn start(state: &State, file: *mut libc::FILE, name: &str) -> Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { stream::write(file, &header(state)) } {
        true => Ok(()),
        false => Err(Failure::system(&format!("Can't write to {name}"), errno())),
    }
}

/// Runs `body` with the handle; on failure returns null and sets the handle's error.
///
/// # Safety
/// `p` is null or an open handle.
unsafe fn opened(
    p: *mut Handle,
    body: impl FnOnce(&mut State) -> Result<*mut libc::FILE>,
) -> *mut libc::FILE {
    // SAFETY: the caller's promise.
    guard(null_mut(), || match unsafe { state(p) } {
        None => null_mut(),
        Some(state) => body(state).unwrap_or_else(|failure| {
            state.error.set(&failure.text);
            null_mut()
        }),
    })
}

fn create(state: &State, name: Option<&[u8]>) -> Result<*mut libc::FILE> {
    check(
        state,
        &name.map_or("(null)".into(), String::from_utf8_lossy),
    )?;
    let Some(name) = name else {
        return Err(Failure::new(NO_NAME));
    };
    let shown = String::from_utf8_lossy(name);
    if name == b"-" {
        let file = stream::standard_output();
        // SAFETY: the standard output is open or refuses.
        return unsafe { start(state, file, "standard output") }.map(|()| file);
    }
    let file = stream::open(name, c"wb")?;
    // SAFETY: just opened.
    unsafe {
        start(state, file, &shown).inspect_err(|_| {
            libc::fclose(file);
        })?;
    }
    Ok(file)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dump_open(p: *mut Handle, name: *const c_char) -> *mut libc::FILE {
    // SAFETY: as pcap.h says of these arguments.
    unsafe { opened(p, |state| create(state, bytes(name))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dump_fopen(p: *mut Handle, file: *mut libc::FILE) -> *mut libc::FILE {
    let body = |state: &mut State| {
        check(state, "stream")?;
        match file.is_null() {
            true => Err(Failure::new("Null FILE * pointer provided")),
            // SAFETY: as pcap.h says of these arguments.
            false => unsafe { start(state, file, "stream") }.map(|()| file),
        }
    };
    // SAFETY: as pcap.h says of these arguments.
    unsafe { opened(p, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dump_open_append(
    p: *mut Handle,
    name: *const c_char,
) -> *mut libc::FILE {
    let body = |state: &mut State| {
        // SAFETY: as pcap.h says of these arguments.
        let Some(name) = (unsafe { bytes(name) }) else {
            return Err(Failure::new(NO_NAME));
        };
        if name == b"-" {
            return create(state, Some(name));
        }
        let shown = String::from_utf8_lossy(name);
        check(state, &shown)?;
        let file = stream::open(name, c"ab+")?;
        // SAFETY: just opened.
        unsafe {
            append(state, file, &shown).inspect_err(|_| {
                libc::fclose(file);
            })?;
        }
        Ok(file)
    };
    // SAFETY: as pcap.h says of these arguments.
    unsafe { opened(p, body) }
}

/// Compares a file's header with the one that would be written, or writes it.
///
/// # Safety
/// The stream is open for reading and appending.
unsafe fn append(state: &State, file: *mut libc::FILE, name: &str) -> Result<()> {
    let mut found = [0u8; HEADER_LEN];
    // SAFETY: the caller's promise; as many bytes as there are.
    let count = unsafe {
        libc::fseek(file, 0, libc::SEEK_SET);
        libc::fread(found.as_mut_ptr().cast(), 1, HEADER_LEN, file)
    };
    if count == 0 {
        // SAFETY: as above.
        return unsafe {
            libc::fseek(file, 0, libc::SEEK_END);
            start(state, file, name)
        };
    }
    let wanted = header(state);
    let magic = u32::from_ne_bytes([found[0], found[1], found[2], found[3]]);
    let is = |range: std::ops::Range<usize>| found[range.clone()] == wanted[range];
    let why = match magic {
        _ if count < HEADER_LEN => "truncated pcap file header".to_owned(),
        MICROSECONDS_MAGIC | NANOSECONDS_MAGIC if !is(0..4) => {
            "different time stamp precision, cannot append to file".to_owned()
        }
        MICROSECONDS_MAGIC | NANOSECONDS_MAGIC => match (is(4..8), is(20..24), is(16..20)) {
            (false, ..) => {
                let number = |at: usize| u16::from_ne_bytes([found[at], found[at + 1]]);
                let (major, minor) = (number(4), number(6));
                format!("version is {major}.{minor}, cannot append to file")
            }
            (_, false, _) => "different linktype, cannot append to file".to_owned(),
            (_, _, false) => "different snaplen, cannot append to file".to_owned(),
            _ => {
                // SAFETY: as above.
                unsafe { libc::fseek(file, 0, libc::SEEK_END) };
                return Ok(());
            }
        },
        magic if matches!(magic.swap_bytes(), MICROSECONDS_MAGIC | NANOSECONDS_MAGIC) => {
            "different byte order, cannot append to file".to_owned()
        }
        _ => "not a pcap file".to_owned(),
    };
    Err(Failure::new(format!("{name}: {why}")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dump(user: *mut u8, header: *const PacketHeader, data: *const u8) {
    let file = user.cast::<libc::FILE>();
    // SAFETY: null or what pcap.h says.
    let Some(header) = (unsafe { header.as_ref() }) else {
        return;
    };
    if file.is_null() || data.is_null() && header.cap_len > 0 {
        return;
    }
    let mut record = [0; RECORD_HEADER_LEN + TOGETHER_MAX];
    let words = [
        header.seconds as u32,
        header.fraction as u32,
        header.cap_len,
        header.wire_len,
    ];
    for (to, word) in record.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    let len = header.cap_len as usize;
    // SAFETY: an open stream, and as many bytes as the header says. Failures set the stream's error
    // flag, which pcap_dump_flush returns; nothing is written after that.
    unsafe {
        if stream::has_failed(file) {
            return;
        }
        if len <= TOGETHER_MAX {
            if len > 0 {
                let to = record[RECORD_HEADER_LEN..].as_mut_ptr();
                std::ptr::copy_nonoverlapping(data, to, len);
            }
            stream::write(file, &record[..RECORD_HEADER_LEN + len]);
        } else if stream::write(file, &record[..RECORD_HEADER_LEN]) {
            stream::write(file, std::slice::from_raw_parts(data, len));
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dump_file(file: *mut libc::FILE) -> *mut libc::FILE {
    file
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dump_flush(file: *mut libc::FILE) -> c_int {
    // SAFETY: an open stream, or null for all that are open, as the original passes it on.
    match unsafe { libc::fflush(file) } {
        0 => 0,
        _ => ERROR,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dump_ftell(file: *mut libc::FILE) -> c_long {
    match file.is_null() {
        true => -1,
        // SAFETY: an open stream.
        false => unsafe { libc::ftell(file) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dump_ftell64(file: *mut libc::FILE) -> i64 {
    match file.is_null() {
        true => -1,
        // SAFETY: an open stream.
        false => unsafe { libc::ftello(file) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dump_close(file: *mut libc::FILE) {
    if !file.is_null() {
        // SAFETY: an open stream that the program does not use again.
        unsafe { libc::fclose(file) };
    }
}
