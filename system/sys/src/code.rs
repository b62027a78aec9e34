//! Machine code generated at run time: memory that is first writable, then executable only.

use std::ptr::NonNull;

use crate::mmap::Mapping;
use crate::{Error, Result};

/// A filter as machine code, as `bpf::native` generates it.
#[derive(Debug)]
pub struct FilterCode {
    memory: Mapping,
}

impl FilterCode {
    /// Longest packet that this code accepts.
    pub const PACKET_MAX: usize = i32::MAX as usize;

    /// Copies code into memory of its own, and makes that executable and no longer writable.
    ///
    /// # Errors
    /// Errors of mmap(2) and mprotect(2); a system may forbid code made at run time (SELinux
    /// `execmem`).
    ///
    /// # Safety
    /// The code must be a whole function for this processor, of the convention
    /// `extern "sysv64" fn(packet: *const u8, len: usize, wire_len: u32) -> u32`, that reads
    /// nothing but the `len` bytes of the packet for any `len` up to [`Self::PACKET_MAX`], writes
    /// nothing but its stack, and returns.
    pub unsafe fn new(code: &[u8]) -> Result<Self> {
        let memory = Mapping::anonymous(code.len().max(1))?;
        let start = memory.base().as_ptr();
        // SAFETY: the mapping is as long, writable, and used by nothing else.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), start, code.len()) };
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: the range is the mapping just made, which nothing writes from here on.
        if unsafe { libc::mprotect(start.cast(), memory.len(), rights) } != 0 {
            return Err(Error::last_os("make the code of a filter executable"));
        }
        Ok(FilterCode { memory })
    }

    /// Runs the filter: how many bytes of the packet to keep. `None` for packets longer than
    /// [`Self::PACKET_MAX`], and on other processors.
    #[inline]
    pub fn run(&self, bytes: &[u8], wire_len: u32) -> Option<u32> {
        if bytes.len() > Self::PACKET_MAX {
            return None;
        }
        call(self.memory.base(), bytes, wire_len)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn call(code: NonNull<u8>, bytes: &[u8], wire_len: u32) -> Option<u32> {
    type Filter = unsafe extern "sysv64" fn(*const u8, usize, u32) -> u32;
    // SAFETY: `new` was given a function of this convention, which lies at the start of executable
    // memory that outlives the call.
    let filter = unsafe { std::mem::transmute::<*mut u8, Filter>(code.as_ptr()) };
    // SAFETY: the function reads `bytes.len()` bytes at most, as `new` was promised.
    Some(unsafe { filter(bytes.as_ptr(), bytes.len(), wire_len) })
}

#[cfg(not(target_arch = "x86_64"))]
fn call(_: NonNull<u8>, _: &[u8], _: u32) -> Option<u32> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn code_gets_its_arguments_and_cannot_be_written() {
        // lea eax, [rsi + rdx]; ret
        // SAFETY: it adds two numbers.
        let code = unsafe { FilterCode::new(&[0x8d, 0x04, 0x16, 0xc3]) }.unwrap();
        assert_eq!(code.run(&[1, 2, 3], 40), Some(43));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{:x}-", code.memory.base().as_ptr().addr());
        let line = maps.lines().find(|line| line.starts_with(&start)).unwrap();
        assert!(line.contains(" r-xp "), "{line}");
    }
}
