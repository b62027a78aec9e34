//! Advice to the kernel about memory that somebody else reserved.

/// Asks for large pages in this piece of the process's memory, which should not have been touched
/// yet: where transparent huge pages are on `madvise` (`/sys/kernel/mm/transparent_hugepage`), a
/// table that is looked up at random misses the TLB less. Advice may be ignored, and then is.
pub fn large_pages(address: usize, len: usize) {
    const PAGE: usize = 4096;
    let from = address.next_multiple_of(PAGE);
    let to = address.saturating_add(len) & !(PAGE - 1);
    if to <= from || to - from < 2 << 20 {
        return;
    }
    // SAFETY: MADV_HUGEPAGE changes how memory is backed, never what is in it or who may use it,
    // whatever the range; a range that is not mapped is an error.
    unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_HUGEPAGE) };
}
