//! Queues by name: the owner listens on a unix socket in the file system, and sends the file
//! descriptors of the pool and of a queue to each peer that it admits.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sys::descriptors::{self, Credentials};
use sys::memfd::Access;
use sys::{Error, ErrorKind, Result};

use super::greeting::{self, GREETING_LEN_MAX, REQUEST_LEN, Refusal, Request, Terms};
use super::sending::Sender;
use super::{ATTACH, OwnerEnd, PeerEnd};
use crate::pool::Pool;

const OFFER: &str = "offer queues to other processes";

/// Time that a peer waits for the connection and for the greeting of an owner.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time that an owner waits for the request of a peer, which is sent right after the connect.
const REQUEST_MAX: Duration = Duration::from_millis(200);

/// Maximum length of a status text in bytes.
const STATUS_LEN_MAX: usize = 1 << 20;

/// Queues over a pool, offered to the processes that connect to a socket.
pub struct Offer {
    /// The pool's file descriptor, for the peers.
    frames: OwnedFd,
    tag: u32,
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket.
    identity: Option<(u64, u64)>,
}

/// A process that has connected and sent a request.
#[derive(Debug)]
pub struct Caller {
    socket: UnixStream,
    /// The process, as the kernel reports it.
    pub process: Credentials,
    /// What it asks for.
    pub request: Request,
}

impl Caller {
    /// Refuses the request, with the reason.
    pub fn refuse(self, refusal: Refusal, why: &str) {
        // A peer that has exited does not need the reason.
        let _ = descriptors::send_bytes(&self.socket, &refusal.encode(why));
    }

    /// Answers a request for the status with a text.
    pub fn answer(self, text: &str) {
        let _ = descriptors::send_bytes(&self.socket, text.as_bytes());
    }
}

/// A process in an error message.
fn named(process: Credentials) -> String {
    format!("process {} of user {}", process.pid, process.uid)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let data = fs::symlink_metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

/// The error for a path that is in use.
fn taken(path: &Path, why: &str, hint: impl Into<String>) -> Error {
    let why = format!("{}: {why}", path.display());
    Error::new(ErrorKind::Busy, OFFER, why).with_hint(hint)
}

/// Removes a socket whose owner has exited.
fn clear(path: &Path) -> Result<()> {
    let Ok(what) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !what.file_type().is_socket() {
        // Not removed: nothing shows what it is for.
        let why = format!("a file of user {} that is not a socket", what.uid());
        return Err(taken(path, &why, "remove it, or use another name"));
    }
    match descriptors::connect(path, Duration::ZERO) {
        // A full queue of connections shows that a process listens.
        Err(error) if error.os_code() == Some(ECONNREFUSED) => fs::remove_file(path)
            .map_err(|error| Error::from_io(format!("remove {}", path.display()), error)),
        Ok(socket) => {
            let who = descriptors::credentials(&socket).map(named);
            let who = who.unwrap_or_else(|_| "another process".into());
            let hint = "end it, or use another name";
            Err(taken(path, &format!("{who} offers queues there"), hint))
        }
        Err(error) if error.os_code() == Some(EPROTOTYPE) => {
            let why = format!("a socket of user {} that is of another kind", what.uid());
            Err(taken(
                path,
                &why,
                "end the process that listens there, or use another name",
            ))
        }
        // Nothing is known: a process may listen.
        Err(error) => Err(error),
    }
}

impl Offer {
    /// Listens on `path`. Peers map the frames with `access`. A socket left by an owner that was
    /// killed is replaced. Only this user and root can connect; with `everyone`, any user can, and
    /// [`next`](Self::next) decides.
    ///
    /// # Errors
    /// `Busy` if another process listens there, or if something other than a socket has this path;
    /// and any error of the system.
    pub fn new(pool: &Pool, path: &Path, access: Access, everyone: bool) -> Result<Self> {
        let from_io = |error: io::Error| {
            let error = Error::from_io(OFFER, error);
            let why = format!("{}: {}", path.display(), error.why());
            error.with_why(why)
        };
        clear(path)?;
        // Here and not for each peer: this process may drop privileges later.
        let frames = pool.share(access)?;
        let listener = UnixListener::bind(path).map_err(from_io)?;
        let offer = Self {
            frames,
            tag: pool.tag(),
            identity: identity(path),
            listener,
            path: path.into(),
        };
        let mode = if everyone { 0o666 } else { 0o600 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(from_io)?;
        offer.listener.set_nonblocking(true).map_err(from_io)?;
        Ok(offer)
    }

    /// Offers queues over another pool to the peers that connect from now on.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn set_pool(&mut self, pool: &Pool, access: Access) -> Result<()> {
        self.frames = pool.share(access)?;
        self.tag = pool.tag();
        Ok(())
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the socket to another user, to which this process will drop its privileges.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn give_to(&self, uid: u32, gid: u32) -> Result<()> {
        std::os::unix::fs::lchown(&self.path, Some(uid), Some(gid))
            .map_err(|error| Error::from_io(OFFER, error))
    }

    /// Returns a descriptor that is readable when a process wants to connect.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts the next connection and reads its request; `None` if no connection is pending.
    /// `may` decides, by the credentials that the kernel reports, whether the process may access
    /// the queues. Waits for a request at most 200 ms.
    ///
    /// # Errors
    /// `Permission` for a process without access, `InvalidInput` for one that does not send a
    /// request in time: its connection is closed, and the next call accepts the next one. Otherwise
    /// any error of the system.
    pub fn next(&self, may: impl Fn(Credentials) -> bool) -> Result<Option<Caller>> {
        let from_io = |error| Error::from_io(OFFER, error);
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(from_io(error)),
        };
        let process = descriptors::credentials(&socket)?;
        if !may(process) {
            // Closed without a greeting.
            let why = format!("{} has no access", named(process));
            return Err(Error::new(ErrorKind::Permission, OFFER, why));
        }
        socket
            .set_read_timeout(Some(REQUEST_MAX))
            .map_err(from_io)?;
        let mut bytes = [0; REQUEST_LEN];
        let len = descriptors::receive(&socket, &mut bytes).map_or(0, |(len, _)| len);
        let Some(request) = Request::decode(&bytes[..len]) else {
            let why = format!("process {} sent no valid request", process.pid);
            return Err(Error::new(ErrorKind::InvalidInput, OFFER, why));
        };
        Ok(Some(Caller {
            socket,
            process,
            request,
        }))
    }

    /// Connects a caller to `end`, which has no peer, and sends it the descriptors.
    ///
    /// # Errors
    /// `Busy` if the end has a peer, `InvalidInput` if it belongs to another pool; any error of the
    /// system. If the greeting could not be sent, the end has a peer that is gone.
    pub fn admit(&self, caller: Caller, end: &mut OwnerEnd, terms: &Terms) -> Result<()> {
        if end.tag() != self.tag {
            let why = "the queue belongs to another pool";
            return Err(Error::new(ErrorKind::InvalidInput, OFFER, why));
        }
        let queue = end.queue()?;
        end.check_gone()?;
        // Before the end has a peer, which would wait for the greeting.
        let way_back = end.open_way_back()?;
        end.attach(caller.socket)?;
        let Some(socket) = end.socket() else {
            return Ok(());
        };
        // The socket is new, so this does not block.
        let mut fds = vec![self.frames.as_fd(), queue.as_fd()];
        fds.extend(way_back.as_ref().map(AsFd::as_fd));
        descriptors::send(socket, &terms.encode(), &fds)
    }
}

impl Offer {
    /// Connects a reader in this process to `end`, which has no peer. It sees of the pool what
    /// other processes see, and its exit is that of the returned end.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    pub fn join(&self, end: &mut OwnerEnd, access: Access) -> Result<PeerEnd> {
        let from_io = |error| Error::from_io(OFFER, error);
        let (ours, theirs) = UnixStream::pair().map_err(from_io)?;
        let queue = end.queue()?;
        let frames = self.frames.try_clone().map_err(from_io)?;
        let peer = PeerEnd::attach(Pool::attach(frames, access)?, queue, theirs)?;
        end.attach(ours)?;
        Ok(peer)
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

/// Codes of the kernel (Linux `include/uapi/asm-generic/errno.h` and `errno-base.h`).
const ECONNREFUSED: i32 = 111;
const EPROTOTYPE: i32 = 91;
const ECONNRESET: i32 = 104;
const EPIPE: i32 = 32;

fn ask(path: &Path, request: &Request, patience: Duration) -> Result<UnixStream> {
    let from_io = |error| Error::from_io(format!("{ATTACH} at {}", path.display()), error);
    let socket = descriptors::connect(path, patience).map_err(|error| {
        let what = format!("{ATTACH} at {}", path.display());
        match error.os_code() {
            Some(ECONNREFUSED) => Error::new(ErrorKind::NotFound, what, "its owner has exited")
                .with_hint("start it again: barewire cluster run"),
            Some(EPROTOTYPE) => {
                let why = "the socket is of another kind, and not of a cluster";
                Error::new(ErrorKind::InvalidInput, what, why).with_hint(
                    "any user may create a name in /run/barewire; \
                     `barewire cluster show` lists clusters",
                )
            }
            _ => error,
        }
    })?;
    let owner = descriptors::credentials(&socket)?;
    if owner.uid != 0 && owner.uid != Credentials::own().uid {
        let why = format!("its owner is {}, neither root nor this user", named(owner));
        return Err(Error::new(ErrorKind::Permission, ATTACH, why)
            .with_hint("any user may create a name in /run/barewire: this is another cluster"));
    }
    socket.set_read_timeout(Some(patience)).map_err(from_io)?;
    descriptors::send_bytes(&socket, &request.encode()).map_err(or_refused)?;
    Ok(socket)
}

/// The owner closes the connection of a process without access, before or after its request has
/// arrived.
fn or_refused(error: Error) -> Error {
    match error.os_code() {
        Some(ECONNRESET | EPIPE) => refused_by_owner(),
        _ => error,
    }
}

fn refused_by_owner() -> Error {
    let why = "the owner refused this process, or has exited";
    Error::new(ErrorKind::Permission, ATTACH, why)
        .with_hint("attach as the owner's user or as root, or start it with --allow")
}

/// Connects to one of the queues offered on `path`. Waits at most 20 seconds.
///
/// # Errors
/// `Permission` if the owner refuses this process, or runs as a user other than this one and root;
/// `Busy` or `NotFound` if it has no such queue without a reader; `NotFound` if it has exited;
/// `InvalidInput` if it does not send the expected message; and any error of the system.
pub fn connect(path: &Path, access: Access, request: &Request) -> Result<(PeerEnd, Terms)> {
    let socket = ask(path, request, PATIENCE)?;
    let mut greeting = [0; GREETING_LEN_MAX];
    let (len, fds) = descriptors::receive(&socket, &mut greeting).map_err(or_refused)?;
    if len == 0 {
        return Err(refused_by_owner());
    }
    let terms = greeting::decode(&greeting[..len])?;
    let mut fds = fds.into_iter();
    let (Some(pool), Some(queue), way_back, None) =
        (fds.next(), fds.next(), fds.next(), fds.next())
    else {
        let why = "the owner sent no descriptors";
        return Err(Error::new(ErrorKind::InvalidInput, ATTACH, why));
    };
    let mut peer = PeerEnd::attach(Pool::attach(pool, access)?, queue, socket)?;
    if let Some(way_back) = way_back {
        peer.sender = Some(Sender::attach(&peer.pool, way_back)?);
    }
    Ok((peer, terms))
}

/// Returns the status that the owner at `path` reports: a text whose format the owner defines.
///
/// # Errors
/// As [`connect`].
pub fn status(path: &Path) -> Result<String> {
    status_within(path, PATIENCE)
}

/// As [`status`], for a caller that does not wait long: at most `patience` for the connection, and
/// twice that for the answer.
///
/// # Errors
/// As [`connect`]; the system's if the time is up.
pub fn status_within(path: &Path, patience: Duration) -> Result<String> {
    let socket = ask(path, &Request::Status, patience)?;
    read_status(&socket, patience)
}

/// Asks the owner at `path` to end in order, waits until it has, and returns its last status.
/// Readers have `seconds` to read what is in their queues.
///
/// # Errors
/// As [`connect`]; `Permission` also if this process may attach, but is neither root's nor of the
/// owner's user.
pub fn drain(path: &Path, seconds: u32) -> Result<String> {
    let socket = ask(path, &Request::Drain(seconds), PATIENCE)?;
    let patience = PATIENCE + Duration::from_secs(seconds.into());
    socket
        .set_read_timeout(Some(patience))
        .map_err(|error| Error::from_io(format!("{ATTACH} at {}", path.display()), error))?;
    read_status(&socket, patience).map_err(|error| match error.kind() {
        ErrorKind::Permission => {
            let why = "the owner refused this process, or has exited";
            Error::new(ErrorKind::Permission, ATTACH, why)
                .with_hint("only root and the owner's own user may end it")
        }
        _ => error,
    })
}

/// Reads a text until the owner closes the connection.
fn read_status(socket: &UnixStream, patience: Duration) -> Result<String> {
    let end = Instant::now() + patience;
    let mut text = Vec::new();
    let mut part = [0; 4096];
    while text.len() < STATUS_LEN_MAX && Instant::now() < end {
        let (len, _) = descriptors::receive(socket, &mut part).map_err(or_refused)?;
        if len == 0 {
            break;
        }
        text.extend_from_slice(&part[..len]);
    }
    if text.is_empty() {
        return Err(refused_by_owner());
    }
    String::from_utf8(text)
        .map_err(|_| Error::new(ErrorKind::InvalidInput, ATTACH, "the status is not text"))
}
