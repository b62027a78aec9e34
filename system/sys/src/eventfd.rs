//! A counter as a file descriptor (`eventfd(2)`): how VFIO reports an interrupt.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::poll::{self, Wanted};
use crate::{Error, Result};

/// An eventfd; readable once it has been signalled, until that is taken.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
    /// Another process made it, and may change its mode.
    is_of_peer: bool,
}

impl EventFd {
    /// A new one, not signalled.
    pub fn new() -> Result<Self> {
        // SAFETY: a plain system call.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            return Err(Error::last_os("create an eventfd"));
        }
        // SAFETY: the descriptor was just returned to us and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self {
            fd,
            is_of_peer: false,
        })
    }

    /// Takes over one that another process made, and sets it to non-blocking.
    ///
    /// The mode belongs to both processes. If the other one changes it back and fills the counter
    /// just between the check for that and the write, [`signal`](Self::signal) waits until the
    /// counter is read or this process receives a signal.
    ///
    /// # Errors
    /// `InvalidInput` for any other kind of descriptor.
    pub fn of_peer(fd: OwnedFd) -> Result<Self> {
        let what = "use an eventfd of another process";
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let kind = std::fs::read_link(link).map_err(|error| Error::from_io(what, error))?;
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            let why = format!("the descriptor is {}", kind.display());
            return Err(Error::new(crate::ErrorKind::InvalidInput, what, why));
        }
        // SAFETY: plain system calls on an open descriptor.
        unsafe {
            let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
            if libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
                return Err(Error::last_os(what));
            }
        }
        Ok(Self {
            fd,
            is_of_peer: true,
        })
    }

    /// Signals it.
    pub fn signal(&self) {
        if self.is_of_peer && !self.has_room() {
            return;
        }
        // SAFETY: writes eight bytes of a live value to a descriptor that we own. A full counter
        // is signalled already.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const ONE).cast(), 8) };
    }

    /// Whether the counter can be increased; if not, it is signalled already.
    fn has_room(&self) -> bool {
        let mut wanted = [Wanted::writable(self)];
        poll::wait(&mut wanted, Duration::ZERO).is_ok() && wanted[0].is_ready()
    }

    /// Takes the signal: returns whether it was signalled, and resets it.
    pub fn take(&self) -> bool {
        let mut count = 0u64;
        // SAFETY: reads at most eight bytes into a live value.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
    }

    /// Sleeps until it is signalled, at most `timeout` (rounded up to whole milliseconds, so that a
    /// short wait does not spin), and takes the signal. Returns false if the time ran out or the
    /// process received a signal.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        let ms = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one element, alive for the call.
        let count = unsafe { libc::poll(&raw mut poll, 1, ms) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EINTR) => Ok(false),
                _ => Err(Error::from_io("wait for an interrupt", error)),
            };
        }
        Ok(count > 0 && self.take())
    }

    /// Sleeps until it is signalled, or `other` is readable or has an error, at most `timeout`
    /// (rounded up as for [`wait`](Self::wait)); does not take the signal. Returns true if a signal
    /// to the process ended the wait.
    pub fn wait_beside(&self, other: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<bool> {
        let ms = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        // A negative descriptor is skipped (poll(2)).
        let mut polls = [Some(self.as_fd()), other].map(|fd| libc::pollfd {
            fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: two elements, alive for the call.
        if unsafe { libc::poll(polls.as_mut_ptr(), 2, ms) } >= 0 {
            return Ok(false);
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EINTR) => Ok(true),
            error => Err(Error::from_io("wait for packets or a waker", error)),
        }
    }
}

static ONE: u64 = 1;

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_descriptor_may_end_the_wait() {
        let (event, other) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        // Other tests of this process raise signals, which also end a wait.
        let wait = |other, time| while event.wait_beside(other, time).unwrap() {};
        let long = Duration::from_secs(60);
        for signalled in [&event, &other] {
            signalled.signal();
            wait(Some(other.as_fd()), long);
            assert!(signalled.take(), "nothing was taken");
        }
        let short = Duration::from_micros(10);
        wait(Some(other.as_fd()), short);
        wait(None, short);
    }

    #[test]
    fn only_an_eventfd_of_a_peer_is_accepted() {
        // SAFETY: a plain system call; the result is checked.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert!(raw >= 0);
        // SAFETY: new, and owned by nothing else.
        let event = EventFd::of_peer(unsafe { OwnedFd::from_raw_fd(raw) }).unwrap();
        // It would block otherwise.
        assert!(!event.take());
        event.signal();
        assert!(event.take());
        let (pipe, _writer) = std::io::pipe().unwrap();
        let error = EventFd::of_peer(pipe.into()).unwrap_err();
        assert!(error.to_string().contains("pipe"), "{error}");
    }

    /// The other process may make it block again, and fill it.
    #[test]
    fn a_full_counter_of_a_peer_does_not_block() {
        // SAFETY: a plain system call; the result is checked.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert!(raw >= 0);
        // SAFETY: new, and owned by nothing else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let peer = fd.try_clone().unwrap();
        let event = EventFd::of_peer(fd).unwrap();
        let full = u64::MAX - 1;
        // SAFETY: plain calls on a descriptor that is open, the second with a live value.
        unsafe {
            assert_eq!(libc::fcntl(peer.as_raw_fd(), libc::F_SETFL, 0), 0);
            assert_eq!(libc::write(raw, (&raw const full).cast(), 8), 8);
        }
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            event.signal();
            done.send(event.take()).unwrap();
        });
        assert!(is_done.recv_timeout(Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn is_taken_once() {
        let event = EventFd::new().unwrap();
        assert!(!event.take());
        event.signal();
        event.signal();
        assert!(event.wait(Duration::from_secs(5)).unwrap());
        assert!(!event.take());
        assert!(!event.wait(Duration::from_micros(10)).unwrap());
    }
}
