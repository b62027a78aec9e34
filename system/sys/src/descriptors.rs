//! Passes descriptors to another process over a unix socket (`SCM_RIGHTS`), and identifies that
//! process (`SO_PEERCRED`): unix(7).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Error, ErrorKind, Result};

/// Maximum number of descriptors in a message.
pub const DESCRIPTORS_MAX: usize = 16;

const SEND: &str = "pass descriptors over a unix socket";
const RECEIVE: &str = "receive descriptors over a unix socket";

/// Buffer for control messages, aligned as their header requires.
#[repr(C, align(8))]
struct Control([u8; 256]);

const _: () = assert!(
    // SAFETY: pure arithmetic.
    unsafe { libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<RawFd>()) as u32) } as usize
        <= size_of::<Control>()
);

/// The process at the other end of a unix socket, at the time of its connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl Credentials {
    /// Returns the credentials of this process.
    pub fn own() -> Self {
        // SAFETY: plain system calls.
        unsafe {
            Self {
                pid: libc::getpid(),
                uid: libc::geteuid(),
                gid: libc::getegid(),
            }
        }
    }
}

/// Counts the entries of an open directory, without `.` and `..`: of `/proc/self/fd`, the open
/// descriptors of this process, the directory's own included. It can be read again later, also if
/// opening it would no longer be allowed.
///
/// # Errors
/// Any error of the system.
pub fn count_entries(folder: &File) -> Result<u64> {
    let failed = || Error::last_os("read a directory");
    let descriptor = folder.as_raw_fd();
    // SAFETY: a plain system call.
    if unsafe { libc::lseek(descriptor, 0, libc::SEEK_SET) } < 0 {
        return Err(failed());
    }
    let mut buffer = [0_u8; 4096];
    let mut count = 0;
    loop {
        let call = libc::SYS_getdents64;
        // SAFETY: the kernel writes at most the length passed to it.
        let len = unsafe { libc::syscall(call, descriptor, buffer.as_mut_ptr(), buffer.len()) };
        let len = usize::try_from(len).map_err(|_| failed())?;
        let mut entries = buffer.get(..len).unwrap_or_default();
        if entries.is_empty() {
            return Ok(count);
        }
        // linux_dirent64: inode and offset of 8 bytes each, length of 2, type of 1, name.
        while let Some(&[low, high, _, first, second, third]) = entries.get(16..22) {
            let is_parent = second == 0 || second == b'.' && third == 0;
            count += u64::from(first != b'.' || !is_parent);
            let next = usize::from(u16::from_ne_bytes([low, high])).max(22);
            entries = entries.get(next..).unwrap_or_default();
        }
    }
}

/// Identifies the process at the other end.
///
/// # Errors
/// Any error of the system.
pub fn credentials(socket: &UnixStream) -> Result<Credentials> {
    let mut raw = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes at most `len` bytes into a live value.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut raw).cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        return Err(Error::last_os("ask who is at the end of a unix socket"));
    }
    let libc::ucred { pid, uid, gid } = raw;
    Ok(Credentials { pid, uid, gid })
}

fn header(bytes: &mut libc::iovec, control: &mut Control, len: usize) -> libc::msghdr {
    // SAFETY: all-zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = bytes;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control.0).cast();
    message.msg_controllen = len as _;
    message
}

/// Sends `bytes` and descriptors in one message. If the peer is gone, returns an error instead of
/// raising a signal.
///
/// # Errors
/// `InvalidInput` for no bytes or too many descriptors; `Io` if not all bytes were accepted, and
/// any error of the system.
pub fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    if bytes.is_empty() || fds.is_empty() || fds.len() > DESCRIPTORS_MAX {
        let why = format!("{} descriptors with {} bytes", fds.len(), bytes.len());
        return Err(Error::new(ErrorKind::InvalidInput, SEND, why));
    }
    match send_message(socket.as_fd(), bytes, fds) {
        Err(error) => Err(Error::from_io(SEND, error)),
        Ok(sent) if sent < bytes.len() => {
            let why = format!("the socket accepted {sent} of {} bytes", bytes.len());
            Err(Error::new(ErrorKind::Io, SEND, why))
        }
        Ok(_) => Ok(()),
    }
}

/// Sends `bytes` with or without descriptors, and returns how many bytes the socket accepted. It
/// neither allocates nor panics.
///
/// # Errors
/// Any error of the system; `InvalidInput` for too many descriptors.
pub(crate) fn send_message(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if fds.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Control([0; 256]);
    let data_len = (fds.len() * size_of::<RawFd>()) as u32;
    // SAFETY: pure arithmetic.
    let space = unsafe { libc::CMSG_SPACE(data_len) };
    let mut message = header(&mut part, &mut control, space as usize);
    if fds.is_empty() {
        message.msg_controllen = 0;
    } else {
        // SAFETY: `control` has room for `space` bytes (checked above), so there is a first header,
        // with room for the descriptors after it.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(data_len) as _;
            let data: *mut RawFd = libc::CMSG_DATA(first).cast();
            for (at, fd) in fds.iter().enumerate() {
                data.add(at).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    let (raw, message) = (socket.as_raw_fd(), &raw const message);
    // Not by the C library: it would be a cancellation point.
    // SAFETY: `message` points to values that are alive for the call.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, raw, message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends `bytes` without descriptors and without blocking. If the peer is gone, returns an error
/// instead of raising a signal.
///
/// # Errors
/// `Io` if not all bytes were accepted, and any error of the system.
pub fn send_bytes(socket: &UnixStream, bytes: &[u8]) -> Result<()> {
    let what = "send a message over a unix socket";
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: live bytes and an open descriptor.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
        )
    };
    match usize::try_from(sent) {
        Err(_) => Err(Error::last_os(what)),
        Ok(sent) if sent < bytes.len() => {
            let why = format!("the socket accepted {sent} of {} bytes", bytes.len());
            Err(Error::new(ErrorKind::Io, what, why))
        }
        Ok(_) => Ok(()),
    }
}

/// The address of the unix socket at `path`.
fn address_of(path: &Path, what: impl Fn() -> String) -> Result<libc::sockaddr_un> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all-zero is a valid value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        let why = "the path is too long for a unix socket";
        return Err(Error::new(ErrorKind::InvalidInput, what(), why));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(address)
}

/// A new stream socket, non-blocking.
fn stream(what: impl Fn() -> String) -> Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain system call.
    let raw = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if raw < 0 {
        return Err(Error::last_os(what()));
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Listens on a new unix socket at `path`, without blocking. It has these permissions, or fewer
/// (umask), from the moment when it is there; a path that was replaced meanwhile is not followed.
///
/// # Errors
/// Any error of the system, for example if the path exists; `InvalidInput` for a path that is too
/// long.
pub fn listen(path: &Path, permissions: u32) -> Result<UnixListener> {
    let what = || format!("listen on {}", path.display());
    let address = address_of(path, what)?;
    let socket = stream(what)?;
    let raw = socket.as_raw_fd();
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: an open descriptor, and a live address of that length. The path's permissions are
    // those of the socket when it is bound (unix_bind_bsd in the kernel).
    let is_done = unsafe {
        libc::fchmod(raw, permissions) == 0
            && libc::bind(raw, (&raw const address).cast(), len) == 0
            && libc::listen(raw, 128) == 0
    };
    match is_done {
        true => Ok(socket.into()),
        false => Err(Error::last_os(what())),
    }
}

/// Connects to the unix socket at `path`. While its queue of connections is full, tries again for
/// at most `timeout`. (A blocking connect waits without a bound.)
///
/// # Errors
/// Any error of the system, for example with the code of ECONNREFUSED if no process listens there;
/// `InvalidInput` for a path that is too long.
pub fn connect(path: &Path, timeout: Duration) -> Result<UnixStream> {
    let what = || format!("connect to {}", path.display());
    let address = address_of(path, what)?;
    let socket = UnixStream::from(stream(what)?);
    let raw = socket.as_raw_fd();
    let end = Instant::now() + timeout;
    loop {
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: a live address of that length.
        if unsafe { libc::connect(raw, (&raw const address).cast(), len) } == 0 {
            break;
        }
        let error = io::Error::last_os_error();
        let is_full = matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        );
        if !is_full || Instant::now() >= end {
            return Err(Error::from_io(what(), error));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    socket
        .set_nonblocking(false)
        .map_err(|error| Error::from_io(what(), error))?;
    Ok(socket)
}

/// Receives a message: returns the number of bytes in `buffer` (0 at the end of the stream), and
/// its descriptors, which are close-on-exec.
///
/// # Errors
/// `Damaged` for more descriptors than [`DESCRIPTORS_MAX`], which are closed; and any error of the
/// system.
pub fn receive(socket: &UnixStream, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut control = Control([0; 256]);
    // SAFETY: pure arithmetic.
    let space = unsafe { libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<RawFd>()) as u32) };
    let mut message = header(&mut part, &mut control, space as usize);
    let received = loop {
        let flags = libc::MSG_CMSG_CLOEXEC;
        // SAFETY: `message` points to values that are alive for the call and large enough.
        let received =
            unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
        if let Ok(received) = usize::try_from(received) {
            break received;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(Error::from_io(RECEIVE, error));
        }
    };
    let mut fds = Vec::new();
    // SAFETY: the kernel filled in `message` and `control`; the macros walk within them. Each
    // descriptor is new and owned by nothing else.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const message);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let data_len = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data: *const RawFd = libc::CMSG_DATA(at).cast();
                for place in 0..data_len / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(place).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(&raw const message, at);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        let why = "the message has more descriptors than expected";
        return Err(Error::new(ErrorKind::Damaged, RECEIVE, why));
    }
    Ok((received, fds))
}

/// Wakes a peer that waits for the socket to become readable: sends one byte, without blocking. If
/// the socket buffer is full, the peer is awake already; if the peer has exited, there is nothing
/// to do.
///
/// Neither the peer nor the file status flags, which may be shared, can make this call block.
pub fn wake(socket: &UnixStream) {
    let byte = 0_u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one live byte and an open descriptor.
    unsafe { libc::send(socket.as_raw_fd(), (&raw const byte).cast(), 1, flags) };
}

/// Reads at most 64 bytes without blocking; their values have no meaning. Returns false if the peer
/// has closed its end or exited.
pub fn is_open(socket: &UnixStream) -> bool {
    let mut bytes = [0_u8; 64];
    let fd = socket.as_raw_fd();
    // SAFETY: writes at most 64 bytes into a live buffer. Descriptors that may be in the message
    // are not taken over, so the kernel closes them.
    let received = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), 64, libc::MSG_DONTWAIT) };
    let would_wait = || {
        let error = io::Error::last_os_error();
        let kind = error.kind();
        kind == io::ErrorKind::WouldBlock || kind == io::ErrorKind::Interrupted
    };
    received > 0 || received < 0 && would_wait()
}

/// Raises the limit of open descriptors as far as the process may: the soft limit, which is low for
/// the sake of select(2), to the hard one. Without effect if that fails.
pub fn raise_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a live value of that type.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    if result == 0 && limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: as above.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn descriptors_arrive_and_work() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let (mut reader2, writer2) = io::pipe().unwrap();
        send(&one, b"two pipes", &[writer.as_fd(), writer2.as_fd()]).unwrap();
        drop((writer, writer2));
        let mut buffer = [0; 64];
        let (len, fds) = receive(&other, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"two pipes");
        for (fd, text) in fds.into_iter().zip([b"first", b"other"]) {
            // SAFETY: an open descriptor.
            let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
            File::from(fd).write_all(text).unwrap();
        }
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        reader2.read_to_end(&mut text).unwrap();
        assert_eq!(text, b"firstother");
    }

    #[test]
    fn the_peer_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(credentials(&one).unwrap(), Credentials::own());
    }

    #[test]
    fn a_peer_is_woken_until_it_is_gone() {
        let (one, other) = UnixStream::pair().unwrap();
        assert!(is_open(&other));
        // More than fit into the buffer: no call blocks.
        (0..100_000).for_each(|_| wake(&one));
        let mut wanted = [crate::poll::Wanted::readable(&other)];
        crate::poll::wait(&mut wanted, std::time::Duration::from_secs(60)).unwrap();
        assert!(wanted[0].is_ready());
        assert!(is_open(&other) && is_open(&one));
        drop(one);
        // Data sent before the close is read first.
        while is_open(&other) {}
        wake(&other);
    }

    #[test]
    fn end_of_stream_and_invalid_calls() {
        let (one, other) = UnixStream::pair().unwrap();
        let fd = one.as_fd();
        for (bytes, fds) in [
            (&b""[..], vec![fd]),
            (b"x", vec![]),
            (b"x", vec![fd; DESCRIPTORS_MAX + 1]),
        ] {
            let refused = send(&one, bytes, &fds).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        }
        send(&one, b"x", &[fd; DESCRIPTORS_MAX]).unwrap();
        let (len, fds) = receive(&other, &mut [0; 8]).unwrap();
        assert_eq!((len, fds.len()), (1, DESCRIPTORS_MAX));
        // A message may contain only bytes.
        assert_eq!(send_message(fd, b"yz", &[]).unwrap(), 2);
        let (len, none) = receive(&other, &mut [0; 8]).unwrap();
        assert_eq!((len, none.len()), (2, 0));
        drop((fds, one));
        assert_eq!(receive(&other, &mut [0; 8]).unwrap().0, 0);
        assert!(send(&other, b"x", &[other.as_fd()]).is_err());
    }
}
