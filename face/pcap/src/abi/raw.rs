//! The structures of pcap.h, and access through pointers.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use bpf::cbpf::Insn;
use port::Waker;

use crate::failure::{ERROR, ERROR_LEN, Failure, Result};
use crate::handle::{Kind, State};
use crate::savefile::Header;
use sys::boundary::guard;

/// `pcap_t`.
pub struct Handle {
    /// Whether `pcap_breakloop` was called. Other threads and signal handlers access only this and
    /// `waker`.
    pub break_loop: AtomicBool,
    /// Wakes a live capture from a wait; set once.
    pub waker: OnceLock<Waker>,
    /// The stream of a capture file.
    pub file: *mut libc::FILE,
    /// The header that `pcap_next_ex` points to.
    pub header: UnsafeCell<PacketHeader>,
    state: UnsafeCell<State>,
    process: u32,
}

/// `struct pcap_pkthdr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct PacketHeader {
    /// `ts.tv_sec`.
    pub seconds: i64,
    /// `ts.tv_usec`, or nanoseconds.
    pub fraction: i64,
    /// `caplen`.
    pub cap_len: u32,
    /// `len`.
    pub wire_len: u32,
}

impl From<Header> for PacketHeader {
    fn from(header: Header) -> Self {
        Self {
            seconds: header.seconds,
            fraction: header.fraction,
            cap_len: header.cap_len,
            wire_len: header.wire_len,
        }
    }
}

/// `struct bpf_program`.
#[repr(C)]
pub struct ProgramRaw {
    /// Number of instructions.
    pub len: u32,
    /// Allocated by malloc.
    pub insns: *mut Insn,
}

/// `struct pcap_stat`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Statistics {
    /// Packets received.
    pub received: u32,
    /// Packets dropped because the ring was full.
    pub dropped: u32,
    /// Packets dropped by the interface.
    pub interface_dropped: u32,
}

/// `pcap_handler`. The program may end its thread in it.
pub type Handler = unsafe extern "C-unwind" fn(*mut u8, *const PacketHeader, *const u8);

impl Handle {
    /// Creates a handle, which `pcap_close` frees.
    pub fn new(state: State, file: *mut libc::FILE) -> *mut Handle {
        Box::into_raw(Box::new(Handle {
            break_loop: AtomicBool::new(false),
            waker: OnceLock::new(),
            file,
            header: UnsafeCell::default(),
            state: UnsafeCell::new(state),
            process: std::process::id(),
        }))
    }

    /// Whether this process opened it, rather than its parent.
    pub fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// Whether it is a live capture.
    pub fn is_live(&mut self) -> bool {
        matches!(self.state.get_mut().kind, Kind::Live(_))
    }
}

/// The handle behind a pointer; `None` for null.
///
/// # Safety
/// `p` is null or an open handle, and nothing else that this function gave for it is in use.
pub unsafe fn state<'a>(p: *mut Handle) -> Option<&'a mut State> {
    // SAFETY: the caller's promise; the cell allows it.
    unsafe { p.as_ref().map(|handle| &mut *handle.state.get()) }
}

/// Runs `body` with a handle: returns its number, or sets the handle's error and returns its code.
///
/// # Safety
/// As [`state`].
pub unsafe fn with(p: *mut Handle, body: impl FnOnce(&mut State) -> Result<c_int>) -> c_int {
    // SAFETY: the caller's promise.
    guard(ERROR, || match unsafe { state(p) } {
        Some(state) => match body(state) {
            Ok(value) => value,
            Err(failure) => {
                state.error.set(&failure.text);
                failure.code
            }
        },
        None => ERROR,
    })
}

/// Copies text to a caller's error buffer, truncated to fit.
///
/// # Safety
/// The buffer is null or has `PCAP_ERRBUF_SIZE` bytes.
pub unsafe fn put_error(buffer: *mut c_char, text: &str) {
    if buffer.is_null() {
        return;
    }
    let len = text.floor_char_boundary(text.len().min(ERROR_LEN - 1));
    // SAFETY: at most as many bytes as the buffer has, and the text is no part of it.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, len);
        *buffer.add(len) = 0;
    }
}

/// The value, or null with the error in a caller's buffer.
///
/// # Safety
/// As [`put_error`].
pub unsafe fn or_null(buffer: *mut c_char, result: Result<*mut Handle>) -> *mut Handle {
    match result {
        Ok(value) => value,
        Err(Failure { text, .. }) => {
            // SAFETY: the caller's promise.
            unsafe { put_error(buffer, &text) };
            std::ptr::null_mut()
        }
    }
}

/// The bytes of a C string; `None` for null.
///
/// # Safety
/// The text is null or ends with a zero, and stays as it is.
pub unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Allocates an array of numbers, which the program frees.
pub fn allocated(numbers: &[c_int]) -> *mut c_int {
    let len = size_of_val(numbers).max(1);
    // SAFETY: any length is fine.
    let memory = unsafe { libc::malloc(len) }.cast::<c_int>();
    if !memory.is_null() {
        // SAFETY: as many numbers as were allocated for.
        unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr(), memory, numbers.len()) };
    }
    memory
}

/// Frees memory from [`allocated`] or malloc; null is allowed.
///
/// # Safety
/// The pointer is null or from malloc, and not used again.
pub unsafe fn free<T>(memory: *mut T) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(memory.cast::<c_void>()) };
}

/// The last system error number.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
