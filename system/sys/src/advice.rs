//! Hints about memory reserved elsewhere, for the kernel and for the processor.

/// Requests large pages for this range of the process's memory, which should not have been touched
/// yet. Where transparent huge pages are set to `madvise` (`/sys/kernel/mm/transparent_hugepage`),
/// random look-ups in a table then miss the TLB less often. The kernel may ignore the hint, and
/// errors are ignored here.
pub fn large_pages(address: usize, len: usize) {
    const PAGE: usize = 4096;
    let from = address.next_multiple_of(PAGE);
    let to = address.saturating_add(len) & !(PAGE - 1);
    if to <= from || to - from < 2 << 20 {
        return;
    }
    // SAFETY: MADV_HUGEPAGE changes how memory is backed, never its contents or permissions, for
    // any range; a range that is not mapped is an error.
    unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_HUGEPAGE) };
}

/// Prefetches the cache lines at these addresses, all at once and without waiting. Invalid
/// addresses are harmless: a prefetch has no visible effect and never faults.
#[inline]
pub fn prefetch(addresses: &[usize]) {
    for address in addresses {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction has no effect but on caches (Intel SDM volume 2, PREFETCHh), and
        // SSE, which it belongs to, is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(*address as *const i8);
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: likewise (Arm ARM C6.2, PRFM); no memory, flag or stack is touched.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) *address,
                options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = address;
    }
}

/// Like [`prefetch`], for cache lines that are about to be written: no other processor has them
/// afterwards.
#[inline(always)]
pub fn prefetch_for_write(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction has no effect but on caches (Intel SDM volume 2, PREFETCHW), and none
    // at all on 64-bit processors that do not have it.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: likewise (Arm ARM C6.2, PRFM); no memory, flag or stack is touched.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
