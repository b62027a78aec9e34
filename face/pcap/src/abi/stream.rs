//! C streams, which programs pass in and receive.

use std::ffi::{CStr, CString, c_int, c_void};

use sys::boundary::is_single_threaded;

use super::raw::errno;
use crate::failure::{Failure, Result};
use crate::savefile::Input;

unsafe extern "C" {
    static stdin: *mut libc::FILE;
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
    fn fwrite_unlocked(
        data: *const c_void,
        size: usize,
        count: usize,
        file: *mut libc::FILE,
    ) -> usize;
    fn ferror_unlocked(file: *mut libc::FILE) -> c_int;
}

/// The program's standard input.
pub fn standard_input() -> *mut libc::FILE {
    // SAFETY: libc's variable; the program may set it, but not while it calls us.
    unsafe { stdin }
}

/// The program's standard output.
pub fn standard_output() -> *mut libc::FILE {
    // SAFETY: as above.
    unsafe { stdout }
}

/// The program's standard error.
pub fn standard_error() -> *mut libc::FILE {
    // SAFETY: as above.
    unsafe { stderr }
}

/// Opens a file.
///
/// # Errors
/// The file name and the reason.
pub fn open(name: &[u8], mode: &CStr) -> Result<*mut libc::FILE> {
    let shown = String::from_utf8_lossy(name);
    let path = CString::new(name).map_err(|_| Failure::system(&shown, libc::EINVAL))?;
    // SAFETY: both texts end with a zero.
    let file = unsafe { libc::fopen(path.as_ptr(), mode.as_ptr()) };
    match file.is_null() {
        true => Err(Failure::system(&shown, errno())),
        false => Ok(file),
    }
}

/// A stream to read a capture file from. The handle closes it.
pub struct Stream(*mut libc::FILE);

// SAFETY: C streams have a lock of their own.
unsafe impl Send for Stream {}

impl Stream {
    /// Wraps a stream that stays open for as long as this value.
    ///
    /// # Safety
    /// The stream is open, and is not closed before this is dropped.
    pub unsafe fn new(file: *mut libc::FILE) -> Self {
        Self(file)
    }
}

impl Input for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::result::Result<usize, i32> {
        if into.is_empty() {
            return Ok(0);
        }
        // SAFETY: the stream is open, by `new`; the bytes are ours to write.
        unsafe {
            let count = libc::fread(into.as_mut_ptr().cast(), 1, into.len(), self.0);
            if count < into.len() && libc::ferror(self.0) != 0 {
                return Err(errno());
            }
            Ok(count)
        }
    }
}

/// Writes all bytes; false if that fails.
///
/// # Safety
/// The stream is open.
pub unsafe fn write(file: *mut libc::FILE, bytes: &[u8]) -> bool {
    // SAFETY: the caller's promise; the bytes are ours.
    unsafe {
        let (data, len) = (bytes.as_ptr().cast(), bytes.len());
        match is_single_threaded() {
            true => fwrite_unlocked(data, 1, len, file) == len,
            false => libc::fwrite(data, 1, len, file) == len,
        }
    }
}

/// Whether the stream's error flag is set.
///
/// # Safety
/// The stream is open.
pub unsafe fn has_failed(file: *mut libc::FILE) -> bool {
    // SAFETY: the caller's promise. The flag is an integer, which is read as one.
    unsafe { ferror_unlocked(file) != 0 }
}
