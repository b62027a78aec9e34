//! Access of a process to a memory file that was shared with it.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use super::*;

const LEN: usize = 2 * 4096;

fn file() -> MemoryFile {
    let file = MemoryFile::new(c"barewire-test", LEN, HugePages::Never).unwrap();
    // SAFETY: the first byte of a mapping that only this test uses.
    unsafe { file.mapping().base().write_volatile(7) };
    file
}

fn first_byte(file: &MemoryFile) -> u8 {
    // SAFETY: the first byte of a mapping; a byte may have any value.
    unsafe { file.mapping().base().read_volatile() }
}

#[test]
fn a_file_shared_for_reading_cannot_be_written() {
    let ours = file();
    let fd = ours.share(Access::Read).unwrap();
    let refused = MemoryFile::open(fd.try_clone().unwrap(), LEN, Access::Write);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Permission);
    let again = ours.share(Access::Write).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Permission);
    // Opened for writing, as root or the same user can: it can be neither mapped writable nor
    // written.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let writable = File::options().read(true).write(true).open(path).unwrap();
    assert!(writable.write_at(&[1], 0).is_err());
    assert!(writable.set_len(0).is_err() && writable.set_len(3 * 4096).is_err());
    let refused = MemoryFile::open(writable.into(), LEN, Access::Write);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Permission);
    // A read-only mapping stays read-only, and shows writes made elsewhere.
    let theirs = MemoryFile::open(fd, LEN, Access::Read).unwrap();
    assert_eq!(first_byte(&theirs), 7);
    // SAFETY: the range is within the mapping.
    let changed = unsafe {
        let base = theirs.mapping().base().as_ptr();
        libc::mprotect(base.cast(), LEN, libc::PROT_READ | libc::PROT_WRITE)
    };
    assert_eq!(changed, -1, "the mapping was made writable");
    // SAFETY: as in `file`.
    unsafe { ours.mapping().base().write_volatile(8) };
    assert_eq!(first_byte(&theirs), 8);
}

/// Debuggers can write to private read-only mappings (`/proc/PID/mem`), but not to shared ones.
#[test]
fn reading_processes_cannot_write_through_proc() {
    let ours = file();
    let theirs = MemoryFile::open(ours.share(Access::Read).unwrap(), LEN, Access::Read).unwrap();
    let mut memory = File::options()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    let at = theirs.mapping().base().addr().get() as u64;
    let mut byte = [0];
    memory.seek(SeekFrom::Start(at)).unwrap();
    memory.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [7]);
    memory.seek(SeekFrom::Start(at)).unwrap();
    assert!(memory.write_all(&[9]).is_err());
    assert_eq!(first_byte(&ours), 7);
}

#[test]
fn a_file_shared_for_writing_is_shared() {
    let ours = file();
    let fd = ours.share(Access::Write).unwrap();
    // A process that the file was shared with cannot revoke write access of others.
    assert!(add_seals(fd.as_fd(), libc::F_SEAL_FUTURE_WRITE).is_err());
    let theirs = MemoryFile::open(fd, LEN, Access::Write).unwrap();
    // SAFETY: as in `file`.
    unsafe { theirs.mapping().base().write_volatile(9) };
    assert_eq!(first_byte(&ours), 9);
    // A reader receives a read-only descriptor.
    let reader = ours.share(Access::Read).unwrap();
    assert!(MemoryFile::open(reader, LEN, Access::Write).is_err());
}

#[test]
fn only_memory_files_of_a_fixed_length_are_accepted() {
    let ours = file();
    let measured = measure(ours.fd().as_fd()).unwrap();
    assert_eq!((measured.len, measured.page_len), (LEN, 4096));
    let wrong = MemoryFile::open(ours.fd().try_clone().unwrap(), LEN + 4096, Access::Read);
    assert_eq!(wrong.unwrap_err().kind(), ErrorKind::InvalidInput);
    let refuses = |fd: BorrowedFd<'_>| {
        assert_eq!(measure(fd).unwrap_err().kind(), ErrorKind::InvalidInput);
    };
    refuses(File::open("/proc/self/exe").unwrap().as_fd());
    let (pipe, _other) = std::io::pipe().unwrap();
    refuses(pipe.as_fd());
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a valid C string.
    let raw = unsafe { libc::memfd_create(c"barewire-test".as_ptr(), flags) };
    assert!(raw >= 0);
    // SAFETY: just returned, and owned by nothing else.
    let unsealed = unsafe { OwnedFd::from_raw_fd(raw) };
    refuses(unsealed.as_fd());
    add_seals(unsealed.as_fd(), libc::F_SEAL_GROW).unwrap();
    refuses(unsealed.as_fd());
}
