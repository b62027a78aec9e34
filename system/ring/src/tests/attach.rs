//! A pool in a second process: this test program, started again as a child with a socket.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use sys::ErrorKind;
use sys::descriptors;
use sys::memfd::{Access, HugePages, MemoryFile};

use crate::{Frame, FrameCache, OwnerCounts, Pool, PoolConfig};

const FRAMES: u32 = 8;
/// Environment variable of the child: the access it attaches with.
const CHILD: &str = "BAREWIRE_RING_ATTACH";

fn pool() -> Pool {
    Pool::new(PoolConfig {
        frame_count: FRAMES,
        frame_len: 2048,
        huge_pages: HugePages::Never,
    })
    .unwrap()
}

/// Starts the child, which receives the pool's descriptor; returns the socket to it.
fn start(pool: &Pool, access: Access) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::attach::child", "--nocapture"])
        .env(CHILD, format!("{access:?}"))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .unwrap();
    let fd = pool.share(access).unwrap();
    descriptors::send(&ours, b"p", &[fd.as_fd()]).unwrap();
    (child, ours)
}

/// Code of the child; does nothing in the test process itself.
#[test]
fn child() {
    let access = skip::child_body!(CHILD);
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut parent = UnixStream::from(stdin);
    let (_, mut fds) = descriptors::receive(&parent, &mut [0]).unwrap();
    let fd = fds.pop().unwrap();
    match access.as_str() {
        "Read" => read(fd, &mut parent),
        _ => write(fd, &mut parent),
    }
    parent.write_all(b"done").unwrap();
}

/// Waits for the other process.
fn next(socket: &mut UnixStream) {
    socket.read_exact(&mut [0]).unwrap();
}

/// The frame that the other process uses.
fn frame(pool: &Pool, index: u32, len: u32) -> Frame {
    let mut frame = pool.issue(index);
    pool.set_range(&mut frame, 0, len);
    frame
}

/// A consumer with read access sees all writes, and cannot write in any way.
fn read(fd: OwnedFd, parent: &mut UnixStream) {
    let refused = Pool::attach(fd.try_clone().unwrap(), Access::Write);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Permission);
    let file = File::from(fd.try_clone().unwrap());
    assert!(file.write_at(&[1], 0).is_err());
    let pool = Pool::attach(fd, Access::Read).unwrap();
    assert!(!pool.is_writable());
    assert_eq!((pool.frame_count(), pool.frame_len()), (FRAMES, 2048));
    let peer = OwnerCounts {
        peer: FRAMES,
        ..OwnerCounts::default()
    };
    assert_eq!(pool.counts(), peer);
    assert!(FrameCache::new(pool.clone()).take().is_none());
    assert_eq!(pool.bytes(&frame(&pool, 5, 6)), b"before");
    parent.write_all(b"r").unwrap();
    next(parent);
    let mut fifth = frame(&pool, 5, 6);
    assert_eq!(pool.bytes(&fifth), b"behind");
    let writes = std::panic::AssertUnwindSafe(|| pool.bytes_mut(&mut fifth).fill(0));
    assert!(std::panic::catch_unwind(writes).is_err());
    let mut memory = File::options().write(true).open("/proc/self/mem").unwrap();
    let at = pool.base().addr().get() as u64;
    memory.seek(SeekFrom::Start(at)).unwrap();
    assert!(memory.write_all(&[9]).is_err());
}

/// A consumer with write access writes.
fn write(fd: OwnedFd, parent: &mut UnixStream) {
    let pool = Pool::attach(fd, Access::Write).unwrap();
    assert!(pool.is_writable());
    next(parent);
    let mut fifth = frame(&pool, 5, 6);
    pool.bytes_mut(&mut fifth).copy_from_slice(b"behind");
}

/// Waits for the child, which must finish successfully.
fn end(mut child: Child, mut socket: UnixStream) {
    let mut text = Vec::new();
    socket.read_to_end(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(text, b"done");
}

#[test]
fn a_reading_process_sees_the_frames_and_cannot_write_them() {
    let pool = pool();
    let mut fifth = frame(&pool, 5, 6);
    pool.bytes_mut(&mut fifth).copy_from_slice(b"before");
    let (child, mut socket) = start(&pool, Access::Read);
    next(&mut socket);
    pool.bytes_mut(&mut fifth).copy_from_slice(b"behind");
    socket.write_all(b"w").unwrap();
    end(child, socket);
    assert_eq!(pool.bytes(&fifth), b"behind");
    assert_eq!(pool.counts().free, FRAMES, "nobody changed the table");
}

#[test]
fn a_writing_process_writes_into_the_same_frames() {
    let pool = pool();
    let (child, mut socket) = start(&pool, Access::Write);
    socket.write_all(b"w").unwrap();
    end(child, socket);
    assert_eq!(pool.bytes(&frame(&pool, 5, 6)), b"behind");
}

/// Uses huge pages if some are reserved, otherwise small ones; the header's tests cover the numbers
/// of both.
#[test]
fn a_pool_of_any_page_size_is_attached() {
    let config = PoolConfig {
        frame_count: 600,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config).unwrap();
    let fd = pool.share(Access::Read).unwrap();
    let attached = Pool::attach(fd, Access::Read).unwrap();
    assert_eq!((attached.frame_count(), attached.frame_len()), (600, 4096));
}

/// A process with write access can overwrite the header, too: later attaches are refused, and the
/// creator's own pool is unaffected.
#[test]
fn a_header_that_was_overwritten_is_refused() {
    let pool = pool();
    let fd = pool.share(Access::Write).unwrap();
    let file = File::from(fd.try_clone().unwrap());
    let at = file.metadata().unwrap().len() - 64;
    let mut good = [0; 64];
    file.read_exact_at(&mut good, at).unwrap();
    for (place, number) in [
        (0, 0),
        (8, 9),
        (12, 0),
        (12, 1 << 24),
        (12, 1000),
        (16, 4096),
    ] {
        let mut bytes = good;
        bytes[place..place + 4].copy_from_slice(&u32::to_ne_bytes(number));
        file.write_all_at(&bytes, at).unwrap();
        let refused = Pool::attach(fd.try_clone().unwrap(), Access::Read);
        assert!(refused.is_err(), "{number} at byte {place}");
    }
    assert_eq!((pool.frame_count(), pool.frame_len()), (FRAMES, 2048));
    file.write_all_at(&good, at).unwrap();
    Pool::attach(fd, Access::Read).unwrap();
}

#[test]
fn other_memory_files_are_refused() {
    for len in [4096, 1 << 20] {
        let other = MemoryFile::new(c"barewire-test", len, HugePages::Never).unwrap();
        let refused = Pool::attach(other.share(Access::Read).unwrap(), Access::Read);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let file = File::open("/proc/self/exe").unwrap();
    let refused = Pool::attach(file.into(), Access::Read);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
}
