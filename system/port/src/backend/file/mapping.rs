//! A capture file mapped into memory, private and writable, so that slots can point into it and
//! packets can be changed in place without changing the file (copy on write, per page).
//!
//! If another process truncates the file, or the disk fails, accessing the lost pages raises
//! `SIGBUS`, which kills the process by default. A capture file is untrusted, so a handler keeps a
//! list of all file mappings of this module and, if the fault is in one of them, maps zeroed pages
//! over the rest of it and sets a flag. The reader checks the flag once per batch and ends with an
//! error that describes it. Other faults go to the previous handler.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use sys::{Error, ErrorKind, Result};

use super::watched::WatchedRange;

/// Number of bytes mapped in advance and released after the reader, so that memory use stays small
/// for large files.
const WINDOW_LEN: usize = 4 << 20;

/// Number of bytes between two checks whether the file was changed; less before its end, where a
/// file being written grows.
const LOOK_LEN: usize = 1 << 20;

const _: () = assert!(LOOK_LEN > wire::file::USUAL_NEED);

/// Maximum number of file mappings that the handler can watch; further files are read through a
/// buffer.
const WATCHED_MAX: usize = 64;

/// `MADV_POPULATE_READ`, since Linux 5.14; older kernels refuse it, and pages are then faulted in
/// one by one.
const MADV_POPULATE_READ: libc::c_int = 22;

/// A mapped capture file.
#[derive(Debug)]
pub(super) struct FileMapping {
    base: NonNull<u8>,
    len: usize,
    watch: &'static Watch,
    /// Everything before this was released to the kernel.
    dropped: usize,
    /// Everything before this has been requested.
    populated: usize,
    /// Position before which no check for changes is needed.
    looked: usize,
    state: FileState,
}

// SAFETY: the mapping is plain private memory without thread affinity.
unsafe impl Send for FileMapping {}

/// Attributes that reveal a change of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    len: u64,
    modified: (i64, i64),
}

impl FileState {
    fn of(file: &File) -> Option<Self> {
        let data = file.metadata().ok()?;
        Some(Self {
            len: data.len(),
            modified: (data.mtime(), data.mtime_nsec()),
        })
    }
}

impl FileMapping {
    /// Maps a whole regular file; `None` if that is not possible (empty, no address space, too many
    /// mappings), and the file must be read instead.
    pub(super) fn new(file: &File) -> Option<Self> {
        let state = FileState::of(file)?;
        let len = usize::try_from(state.len).ok().filter(|&len| len != 0)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        // SAFETY: a null hint lets the kernel choose the place; no existing mapping is replaced
        // (no MAP_FIXED).
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = NonNull::new(base.cast::<u8>())?;
        let Some(watch) = Watch::over(base.as_ptr() as usize, len) else {
            // SAFETY: the range was mapped above and is not shared yet.
            unsafe { libc::munmap(base.as_ptr().cast(), len) };
            return None;
        };
        // SAFETY: the range is the mapping just made; the advice has no effect on its contents.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_SEQUENTIAL) };
        Some(Self {
            base,
            len,
            watch,
            dropped: 0,
            populated: 0,
            looked: 0,
            state,
        })
    }

    /// Length of the mapping.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Start address.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The bytes from `at` on. The pointer of a slot must come from [`FileMapping::base`] instead,
    /// because packets may be written through it.
    pub(super) fn rest(&self, at: usize) -> &[u8] {
        let at = at.min(self.len);
        // SAFETY: the range lies in the mapping, which lives as long as `self`. Another process
        // may change the file meanwhile; these are plain bytes of which nothing is assumed, and
        // lengths read from them are checked against the slice after they were read.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), self.len - at) }
    }

    /// Called between batches with the position of the reader: releases the pages before it and
    /// requests those ahead. Returns false if the file's contents cannot be read there (a disk
    /// error, a truncation).
    pub(super) fn advance(&mut self, at: usize) -> bool {
        let at = at.min(self.len);
        if at - self.dropped >= 2 * WINDOW_LEN {
            let end = at & !(WINDOW_LEN - 1);
            // SAFETY: no slot points before the reader's position between batches, so there are no
            // users of the released pages (changed pages fall back to the file's contents). Start
            // and end are multiples of the page size.
            unsafe {
                let start = self.base.as_ptr().add(self.dropped);
                libc::madvise(start.cast(), end - self.dropped, libc::MADV_DONTNEED);
            }
            self.dropped = end;
        }
        if at < self.populated || self.populated == self.len {
            return true;
        }
        let start = at & !(WINDOW_LEN - 1);
        let end = (start + WINDOW_LEN).min(self.len);
        self.populated = end;
        // SAFETY: the range lies in the mapping; it is only made present.
        let failed = unsafe {
            let address = self.base.as_ptr().add(start);
            libc::madvise(address.cast(), end - start, MADV_POPULATE_READ) < 0
        };
        // EINVAL: not supported by the kernel. EFAULT: it would have been SIGBUS.
        !failed || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    }

    /// Whether the file is unchanged since it was mapped. For a reader at `at`; checked once per
    /// mebibyte, and each time in the last one.
    pub(super) fn is_unchanged(&mut self, file: &File, at: usize) -> bool {
        if at < self.looked {
            return true;
        }
        // The last mebibyte is longer than any packet: a reader at an incomplete packet checks
        // again, however far the last check reached.
        self.looked = at
            .saturating_add(LOOK_LEN)
            .min(self.len.saturating_sub(LOOK_LEN));
        self.is_as_mapped(file)
    }

    /// Whether the file is unchanged since it was mapped.
    pub(super) fn is_as_mapped(&self, file: &File) -> bool {
        FileState::of(file) == Some(self.state)
    }

    /// Returns an error if pages were lost since the last batch: the delivered data may read as
    /// zeros.
    pub(super) fn check(&self, path: &str, at: u64) -> Result<()> {
        if !self.watch.hit.load(Ordering::Relaxed) {
            return Ok(());
        }
        let why = format!(
            "the file was truncated, or its disk failed, during reading: the last packets up to \
             byte {at} may read as zeros"
        );
        Err(Error::new(ErrorKind::Damaged, format!("read {path}"), why))
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // Unregister it first: another mapping may get its addresses at once.
        self.watch.free();
        // SAFETY: the range was mapped by `new` and is unmapped only here; no slot is held any
        // more, so that no fault can occur in between.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A file mapping that the handler watches. Only atomics: the signal handler reads them.
#[derive(Debug)]
struct Watch {
    taken: AtomicBool,
    range: WatchedRange,
    hit: AtomicBool,
}

static WATCHES: [Watch; WATCHED_MAX] = [const {
    Watch {
        taken: AtomicBool::new(false),
        range: WatchedRange {
            version: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        },
        hit: AtomicBool::new(false),
    }
}; WATCHED_MAX];

impl Watch {
    fn over(base: usize, len: usize) -> Option<&'static Self> {
        install();
        let free = |watch: &&Watch| {
            watch
                .taken
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let watch = WATCHES.iter().find(free)?;
        watch.hit.store(false, Ordering::Relaxed);
        watch.range.set(base, len);
        Some(watch)
    }

    fn free(&self) {
        self.range.set(0, 0);
        self.taken.store(false, Ordering::Release);
    }
}

/// The previous action; set once, before the handler can run.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `sigaction` is plain data for which all zeros is a value; the pointers are to
        // live values; the handler calls nothing but mmap and sigaction, reads atomics, and keeps
        // errno.
        unsafe {
            let mut previous: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut previous);
            PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::Release);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            // SA_ONSTACK: std's own handler uses the alternate stack, too.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    });
}

/// Signal handler, called by the kernel on access to a lost page.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    for watch in &WATCHES {
        // An entry that is being changed is not the one of this fault: the interrupted thread uses
        // its mapping, which therefore stays until the handler returns.
        let Some((base, len)) = watch.range.get() else {
            continue;
        };
        if address.wrapping_sub(base) < len && replace(address, base + len) {
            watch.hit.store(true, Ordering::Relaxed);
            return;
        }
    }
    let previous = PREVIOUS.load(Ordering::Acquire);
    // SAFETY: set before this handler was installed and never freed.
    let Some(previous) = (unsafe { previous.as_ref() }) else {
        return;
    };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores what was there; the access is tried again on return and ends the
            // process as it would have without us.
            unsafe { libc::sigaction(signal, previous, std::ptr::null_mut()) };
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler installed with SA_SIGINFO has this type.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler installed without SA_SIGINFO has this type.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Maps zeroed pages from the page of `address` up to `end`.
fn replace(address: usize, end: usize) -> bool {
    // The smallest possible page: the kernel refuses a start that is not a multiple of a larger
    // one, and the fault then goes to the previous handler.
    let start = address & !4095;
    // SAFETY: the range lies in a private file mapping of ours whose pages are lost; it is
    // replaced as a whole, so no other mapping is touched. errno is put back for the interrupted
    // thread.
    unsafe {
        let errno = *libc::__errno_location();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let made = libc::mmap(start as *mut libc::c_void, end - start, prot, flags, -1, 0);
        *libc::__errno_location() = errno;
        made != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn temp(name: &str) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("bw-map-{}-{name}", std::process::id()));
        let options = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        (path.clone(), options.unwrap())
    }

    #[test]
    fn truncation_while_reading_is_detected_and_survived() {
        let (path, file) = temp("cut");
        file.write_all_at(&[7; 5 * 4096], 0).unwrap();
        let mut mapping = FileMapping::new(&file).unwrap();
        assert!(mapping.advance(0));
        assert_eq!(mapping.rest(8192)[0], 7);
        assert!(mapping.is_unchanged(&file, 0));
        file.set_len(4096).unwrap();
        assert!(!mapping.is_unchanged(&file, 0));
        // Without the handler this would kill the process.
        assert_eq!(mapping.rest(8192)[0], 0);
        assert_eq!(mapping.rest(4095)[0], 7);
        assert_eq!(mapping.rest(5 * 4096 - 1), [0]);
        let error = mapping.check("x", 99).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        drop(mapping);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn writing_changes_the_memory_and_not_the_file() {
        let (path, file) = temp("write");
        file.write_all_at(&[1; 100], 0).unwrap();
        let mapping = FileMapping::new(&file).unwrap();
        // SAFETY: byte 50 of 100, and no slice is held.
        unsafe { mapping.base().as_ptr().add(50).write(9) };
        assert_eq!(mapping.rest(50)[0], 9);
        let mut byte = [0];
        file.read_exact_at(&mut byte, 50).unwrap();
        assert_eq!(byte, [1]);
        mapping.check("x", 0).unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn memory_already_read_is_released() {
        let (path, file) = temp("back");
        let len = 5 * WINDOW_LEN;
        file.set_len(len as u64).unwrap();
        let mut mapping = FileMapping::new(&file).unwrap();
        let mut at = 0;
        while at < len {
            assert!(mapping.advance(at));
            assert_eq!(mapping.rest(at)[0], 0);
            at += 1000;
        }
        assert!(mapping.advance(len) && mapping.advance(len + 1));
        assert!(
            mapping.dropped >= len - 2 * WINDOW_LEN,
            "{}",
            mapping.dropped
        );
        assert_eq!(mapping.populated, len);
        assert_eq!(mapping.rest(len), []);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_empty_file_is_not_mapped() {
        let (path, file) = temp("empty");
        assert!(FileMapping::new(&file).is_none());
        std::fs::remove_file(path).unwrap();
    }
}
