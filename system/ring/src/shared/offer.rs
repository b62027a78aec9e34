//! Queues by name: the owner listens on a unix socket in the file system, and sends the file
//! descriptors of the pool and of a queue to each peer that connects.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sys::descriptors::{self, Credentials};
use sys::memfd::Access;
use sys::{Error, ErrorKind, Result};

use super::{ATTACH, OwnerEnd, PeerEnd, Renewed};
use crate::cache::FrameCache;
use crate::pool::Pool;

/// The message that the descriptors are sent with.
const GREETING: &[u8; 8] = b"bw-pool1";

const OFFER: &str = "offer queues to other processes";

/// Time that a peer waits for the greeting of an owner.
const PATIENCE: Duration = Duration::from_secs(10);

/// Queues over a pool, offered to the processes that connect to a socket.
pub struct Offer {
    pool: Pool,
    /// The pool's file descriptor, for the peers.
    frames: OwnedFd,
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket.
    identity: Option<(u64, u64)>,
    entry_count: u32,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let data = fs::symlink_metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

impl Offer {
    /// Listens on `path`, to which only this user and root can connect. Peers map the frames with
    /// `access`; each peer has a queue of `entry_count` packets. A socket left by an owner that was
    /// killed is replaced.
    ///
    /// # Errors
    /// `Busy` if another process listens there, and any error of the system.
    pub fn new(pool: &Pool, path: &Path, access: Access, entry_count: u32) -> Result<Self> {
        let from_io = |error: io::Error| {
            let error = Error::from_io(OFFER, error);
            let why = format!("{}: {}", path.display(), error.why());
            error.with_why(why)
        };
        let is_socket = fs::symlink_metadata(path).is_ok_and(|what| what.file_type().is_socket());
        if is_socket {
            match UnixStream::connect(path) {
                Ok(_) => {
                    let why = format!("{}: another process offers queues there", path.display());
                    return Err(Error::new(ErrorKind::Busy, OFFER, why));
                }
                // Nothing listens. After any other error, something may.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(from_io)?;
                }
                Err(error) => return Err(from_io(error)),
            }
        }
        // Here and not for each peer: this process may drop privileges later.
        let frames = pool.share(access)?;
        let listener = UnixListener::bind(path).map_err(from_io)?;
        let offer = Self {
            pool: pool.clone(),
            frames,
            identity: identity(path),
            listener,
            path: path.into(),
            entry_count,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(from_io)?;
        offer.listener.set_nonblocking(true).map_err(from_io)?;
        Ok(offer)
    }

    /// Returns a descriptor that is readable when a peer wants to connect.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts the next connection without waiting. `may` decides, by the credentials that the
    /// kernel reports, whether the process may access the frames; other users' never may.
    fn next(&self, may: impl Fn(Credentials) -> bool) -> Result<Option<UnixStream>> {
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(Error::from_io(OFFER, error)),
        };
        let peer = descriptors::credentials(&socket)?;
        if (peer.uid != 0 && peer.uid != Credentials::own().uid) || !may(peer) {
            // Closed without a greeting.
            let why = format!("process {} of user {} has no access", peer.pid, peer.uid);
            return Err(Error::new(ErrorKind::Permission, OFFER, why));
        }
        Ok(Some(socket))
    }

    /// Creates a queue to the next peer that connects; `None` if no connection is pending.
    ///
    /// # Errors
    /// `Permission` for a process that may not access the frames: its connection is closed, and the
    /// next call accepts the next one. Otherwise as [`OwnerEnd::new`].
    pub fn accept(&self, may: impl Fn(Credentials) -> bool) -> Result<Option<OwnerEnd>> {
        let Some(socket) = self.next(may)? else {
            return Ok(None);
        };
        let end = OwnerEnd::new(&self.pool, self.entry_count, socket)?;
        self.greet(&end)?;
        Ok(Some(end))
    }

    /// Connects the next peer to `end`, where it continues after the previous peer, which has
    /// exited.
    ///
    /// # Errors
    /// As [`accept`](Self::accept) and [`OwnerEnd::renew`].
    pub fn accept_after(
        &self,
        end: &mut OwnerEnd,
        cache: &mut FrameCache,
        may: impl Fn(Credentials) -> bool,
    ) -> Result<Option<Renewed>> {
        end.check_gone()?;
        let Some(socket) = self.next(may)? else {
            return Ok(None);
        };
        let renewed = end.renew(socket, cache)?;
        self.greet(end)?;
        Ok(Some(renewed))
    }

    /// Sends the descriptors; the socket is new, so this does not block.
    fn greet(&self, end: &OwnerEnd) -> Result<()> {
        let queue = end.queue()?;
        descriptors::send(
            end.socket(),
            GREETING,
            &[self.frames.as_fd(), queue.as_fd()],
        )
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // Not the socket of another owner.
        if identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Connects to the queues offered on `path`.
///
/// # Errors
/// `Permission` if the owner refuses this process, or runs as a user other than this one and root;
/// `InvalidInput` if the owner does not send the expected message; and any error of the system.
pub fn connect(path: &Path, access: Access) -> Result<PeerEnd> {
    let from_io = |error| Error::from_io(format!("{ATTACH} at {}", path.display()), error);
    let refuse = |kind, why: &str| Err(Error::new(kind, ATTACH, why.to_owned()));
    let socket = UnixStream::connect(path).map_err(from_io)?;
    let owner = descriptors::credentials(&socket)?;
    if owner.uid != 0 && owner.uid != Credentials::own().uid {
        return refuse(ErrorKind::Permission, "the owner is another user's process");
    }
    socket.set_read_timeout(Some(PATIENCE)).map_err(from_io)?;
    let mut greeting = [0; GREETING.len()];
    let (len, fds) = descriptors::receive(&socket, &mut greeting)?;
    if len == 0 {
        return refuse(ErrorKind::Permission, "the owner refused this process");
    }
    let (GREETING, Ok([pool, queue])) = (&greeting, <[OwnedFd; 2]>::try_from(fds)) else {
        return refuse(ErrorKind::InvalidInput, "no owner of queues answered");
    };
    PeerEnd::attach(Pool::attach(pool, access)?, queue, socket)
}
