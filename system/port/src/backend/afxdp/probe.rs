//! Detects when the driver has released the queue of a closed zero-copy socket, so that its frames
//! can be reused.
//!
//! Closing such a socket does not wait for the driver: `xsk_destruct` leaves that to a work item
//! (`xp_put_pool`, `xp_release_deferred` in `net/xdp/xsk_buff_pool.c`), and until it has run the
//! card may write into frames. Under one lock (RTNL) the work item has the driver stop the queue
//! (`XDP_SETUP_XSK_POOL` without a pool, which returns when the card has finished with it) and then
//! removes the buffer pool from the queue. A bind takes the same lock and is refused with EBUSY
//! while a buffer pool is on the queue: once it is not refused for that reason, the driver has
//! stopped. When the interface is removed, the kernel does the same before releasing it.
//!
//! Creating a socket takes privileges that may be dropped while the port is open, but binding takes
//! none: the probing socket is therefore created with the port.

use std::io;
use std::time::{Duration, Instant};

use sys::Result;
use sys::mmap::Mapping;
use sys::xsk::{Bind, RingKind, XskSocket};

/// Interval between two attempts.
const ASK_EVERY: Duration = Duration::from_millis(1);
/// Length of its rings, and of its single frame: the minimum that the kernel accepts.
const RING_LEN: u32 = 2;
const CHUNK_LEN: u32 = 2048;
const MEMORY_LEN: usize = 4096;

/// Checks whether a queue has been released.
pub(super) struct Probe {
    // Before the memory that is registered with it.
    socket: XskSocket,
    #[allow(dead_code, reason = "held while it is registered")]
    memory: Mapping,
    ifindex: u32,
    queue_index: u32,
}

impl Probe {
    /// Creates an unbound socket for a queue of an interface in this network namespace.
    ///
    /// # Errors
    /// Those of a socket: `Permission`, `NoSpace`.
    pub(super) fn new(ifindex: u32, queue_index: u32) -> Result<Self> {
        let memory = Mapping::anonymous(MEMORY_LEN)?;
        let socket = XskSocket::open()?;
        // SAFETY: the mapping lives longer than the socket, and nothing reads it.
        unsafe { socket.register_memory(memory.base().as_ptr(), MEMORY_LEN, CHUNK_LEN) }?;
        // A mapped ring would keep the socket bound.
        for kind in [RingKind::Fill, RingKind::Completion, RingKind::Rx] {
            drop(socket.ring(kind, RING_LEN)?);
        }
        Ok(Self {
            socket,
            memory,
            ifindex,
            queue_index,
        })
    }

    /// Waits until the queue has no buffer pool, at most this long; false if it still has one,
    /// which may belong to another process by then, or if this cannot be determined.
    pub(super) fn wait(self, most: Duration) -> bool {
        let end = Instant::now() + most;
        loop {
            let bound = self.socket.bind(Bind {
                ifindex: self.ifindex,
                queue_index: self.queue_index,
                // Copy mode does not involve the driver.
                zero_copy: false,
                ..Bind::default()
            });
            if is_released(&bound) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(ASK_EVERY);
        }
    }
}

/// Whether a bind's result means that the queue has no buffer pool: bound, or the interface no
/// longer exists. Any other error, such as ENOMEM, may occur before the kernel has checked the
/// queue.
fn is_released(bound: &io::Result<()>) -> bool {
    match bound {
        Ok(()) => true,
        Err(error) => matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bind_or_a_missing_interface_releases_the_queue() {
        assert!(is_released(&Ok(())));
        for (code, expected) in [
            (libc::ENODEV, true),
            (libc::ENXIO, true),
            (libc::EBUSY, false),
            (libc::ENOMEM, false),
            (libc::ENOBUFS, false),
            (libc::EINVAL, false),
            (libc::EINTR, false),
        ] {
            let bound = Err(io::Error::from_raw_os_error(code));
            assert_eq!(is_released(&bound), expected, "{bound:?}");
        }
    }

    /// Loopback has one queue, and sockets in copy mode: the buffer pool is attached as with any
    /// other.
    #[test]
    fn a_queue_is_held_until_its_socket_is_gone() {
        let body = || {
            let (lo, long) = (1, Duration::from_secs(60));
            assert!(Probe::new(lo, 0).unwrap().wait(long), "nobody has it");
            let holder = Probe::new(lo, 0).unwrap();
            let bind = Bind {
                ifindex: lo,
                ..Bind::default()
            };
            // The first probe's own socket is also released by a work item.
            let end = Instant::now() + long;
            while let Err(error) = holder.socket.bind(bind) {
                assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{error}");
                assert!(Instant::now() < end);
            }
            assert!(!Probe::new(lo, 0).unwrap().wait(Duration::from_millis(20)));
            let second = Probe::new(lo, 0).unwrap();
            drop(holder);
            assert!(second.wait(long));
            assert!(Probe::new(1000, 0).unwrap().wait(long), "no interface");
        };
        if let Err(error) = sys::netns::in_new(body) {
            assert_eq!(error.kind(), sys::ErrorKind::Permission, "{error}");
            skip::record("a_queue_is_held_until_its_socket_is_gone", error);
        }
    }
}
