//! One descriptor for several (`epoll(7)`): it is readable when one of them is.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use crate::{Error, Result};

/// A set of descriptors.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    /// If no more descriptors can be opened.
    pub fn new() -> Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os("create a set of descriptors"));
        }
        // SAFETY: new, and owned by nothing else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a descriptor; the set is readable while this one is. A descriptor that is closed leaves
    /// the set.
    ///
    /// # Errors
    /// If it cannot be polled, or is in the set.
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.insert(fd, libc::EPOLLIN)
    }

    /// Adds a descriptor of which another process may hold a copy: each event makes the set
    /// readable once, until [`take`](Self::take), and nothing is read from the descriptor itself,
    /// whose mode belongs to both processes.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_edges(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.insert(fd, libc::EPOLLIN | libc::EPOLLET)
    }

    /// Removes a descriptor. One that another process holds, too, stays in the set otherwise.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let none = std::ptr::null_mut();
        // SAFETY: the event is ignored. A descriptor that is not in the set is an error without
        // effect.
        unsafe {
            let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
            libc::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, none);
        }
    }

    /// Takes the events that occurred since the last call, without waiting; returns whether there
    /// were any.
    pub fn take(&self) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: writes at most that many events into live values.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 8, 0) > 0 }
    }

    fn insert(&self, fd: BorrowedFd<'_>, events: i32) -> Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: 0,
        };
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: the event is alive for the call.
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(Error::last_os("add a descriptor to a set")),
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::eventfd::EventFd;
    use crate::poll::{self, Wanted};

    #[test]
    fn each_event_of_a_shared_descriptor_counts_once() {
        let set = Epoll::new().unwrap();
        let event = EventFd::new().unwrap();
        set.add_edges(event.as_fd()).unwrap();
        assert!(!set.take());
        for _ in 0..2 {
            event.signal();
            assert!(set.take());
            assert!(!set.take(), "the event was taken");
        }
        set.remove(event.as_fd());
        event.signal();
        assert!(!set.take());
        set.remove(event.as_fd());
    }

    #[test]
    fn the_set_is_readable_while_one_descriptor_is() {
        let set = Epoll::new().unwrap();
        let events = [EventFd::new().unwrap(), EventFd::new().unwrap()];
        for event in &events {
            set.add(event.as_fd()).unwrap();
        }
        assert!(set.add(events[0].as_fd()).is_err());
        let is_readable = || {
            let mut wanted = [Wanted::readable(&set)];
            poll::wait(&mut wanted, Duration::ZERO).unwrap();
            wanted[0].is_ready()
        };
        assert!(!is_readable());
        events[1].signal();
        assert!(is_readable());
        assert!(events[1].take());
        assert!(!is_readable());
    }
}
