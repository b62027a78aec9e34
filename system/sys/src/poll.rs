//! Waiting for several descriptors at once (`poll(2)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::{Error, Result};

/// The event that is awaited on a descriptor, and whether it occurred.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Wanted<'fd> {
    entry: libc::pollfd,
    lifetime: std::marker::PhantomData<&'fd ()>,
}

impl<'fd> Wanted<'fd> {
    /// Awaits data to read, a connection to accept, or the end of the stream.
    pub fn readable(fd: &'fd impl AsFd) -> Self {
        Self::new(fd, libc::POLLIN)
    }

    /// Awaits space for writing.
    pub fn writable(fd: &'fd impl AsFd) -> Self {
        Self::new(fd, libc::POLLOUT)
    }

    fn new(fd: &'fd impl AsFd, events: i16) -> Self {
        Self {
            entry: libc::pollfd {
                fd: fd.as_fd().as_raw_fd(),
                events,
                revents: 0,
            },
            lifetime: std::marker::PhantomData,
        }
    }

    /// Whether the event occurred, or an error or the end of the stream, which the next call on the
    /// descriptor reports.
    pub fn is_ready(&self) -> bool {
        self.entry.revents != 0
    }
}

/// Sleeps until one of the awaited events occurs, at most `timeout` (rounded up to milliseconds). A
/// signal ends the sleep early; then nothing is ready.
///
/// # Errors
/// The system's error, for example for too many descriptors.
pub fn wait(wanted: &mut [Wanted<'_>], timeout: Duration) -> Result<()> {
    let ms = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
    // SAFETY: `Wanted` is transparent over `pollfd`; the slice is alive for the call, its
    // descriptors are borrowed as long as it is.
    let count = unsafe { libc::poll(wanted.as_mut_ptr().cast(), wanted.len() as u64, ms) };
    if count < 0 {
        let error = io::Error::last_os_error();
        wanted
            .iter_mut()
            .for_each(|wanted| wanted.entry.revents = 0);
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(Error::from_io("wait for descriptors", error));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_received_bytes_are_ready() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let (c, _d) = UnixStream::pair().unwrap();
        let mut wanted = [
            Wanted::readable(&b),
            Wanted::readable(&c),
            Wanted::writable(&c),
        ];
        wait(&mut wanted[..2], Duration::ZERO).unwrap();
        assert!(!wanted[0].is_ready() && !wanted[1].is_ready());
        a.write_all(b"x").unwrap();
        wait(&mut wanted, Duration::from_secs(60)).unwrap();
        assert_eq!(wanted.map(|wanted| wanted.is_ready()), [true, false, true]);
        drop(a);
        let mut wanted = [Wanted::readable(&b)];
        wait(&mut wanted, Duration::from_secs(60)).unwrap();
        assert!(wanted[0].is_ready(), "the end is an event, too");
    }
}
