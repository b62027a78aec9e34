//! A socket that front-ends connect to, one after the other, and the thread that serves them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sys::descriptors;
use sys::eventfd::EventFd;
use sys::poll::{self, Wanted};
use sys::{Error, ErrorKind, Result};

use crate::connection::{Connection, Outcome};
use crate::queues::{Event, Queues};
use crate::session::Session;

const LISTEN: &str = "listen for a virtual machine";

/// No process listens on a socket.
const ECONNREFUSED: i32 = 111;

/// Only this user and root can connect.
const PERMISSIONS: u32 = 0o600;

/// Time between attempts to accept after an error, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket and its thread.
pub struct Server {
    shared: Arc<Shared>,
    thread: OnceLock<Mutex<Option<JoinHandle<()>>>>,
    path: PathBuf,
    /// Device and inode of the socket.
    identity: Option<(u64, u64)>,
}

struct Shared {
    listener: UnixListener,
    queues: Arc<Queues>,
    stop: EventFd,
    /// Packets from the guest have no reader: they are returned unread.
    discards: bool,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let data = fs::symlink_metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

impl Server {
    /// Listens on `path`, to which only this user and root can connect. A socket left by a process
    /// that was killed is replaced. With `discards`, packets from the guest are dropped.
    ///
    /// # Errors
    /// `Busy` if another process listens there, and any error of the system.
    pub fn listen(path: &Path, queues: Arc<Queues>, discards: bool) -> Result<Self> {
        let from_io = |error: io::Error| {
            let error = Error::from_io(LISTEN, error);
            let why = format!("{}: {}", path.display(), error.why());
            error.with_why(why)
        };
        let is_socket = fs::symlink_metadata(path).is_ok_and(|what| what.file_type().is_socket());
        if is_socket {
            match descriptors::connect(path, Duration::ZERO) {
                Err(error) if error.os_code() == Some(ECONNREFUSED) => {
                    fs::remove_file(path).map_err(from_io)?;
                }
                Ok(_) => {
                    let why = format!("{}: another process listens there", path.display());
                    return Err(Error::new(ErrorKind::Busy, LISTEN, why));
                }
                // Nothing is known: a process may listen.
                Err(error) => return Err(error),
            }
        }
        let listener = descriptors::listen(path, PERMISSIONS)?;
        Ok(Self {
            identity: identity(path),
            path: path.to_owned(),
            thread: OnceLock::new(),
            shared: Arc::new(Shared {
                listener,
                queues,
                stop: EventFd::new()?,
                discards,
            }),
        })
    }

    /// The vrings.
    pub fn queues(&self) -> &Arc<Queues> {
        &self.shared.queues
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts the thread, if this is the first call. Not when the socket is made: the process may
    /// drop its privileges afterwards, which only new threads inherit.
    ///
    /// # Errors
    /// If there can be no more threads; then with each call.
    #[inline]
    pub fn start(&self) -> Result<()> {
        match self.thread.get() {
            Some(_) => Ok(()),
            None => self.spawn(),
        }
    }

    #[cold]
    fn spawn(&self) -> Result<()> {
        let thread = self.thread.get_or_init(|| {
            let shared = self.shared.clone();
            let builder = thread::Builder::new().name("vhost-user".into());
            Mutex::new(builder.spawn(move || shared.serve()).ok())
        });
        let thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
        match thread.is_some() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NoSpace, LISTEN, "no more threads")),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.signal();
        if let Some(thread) = self.thread.get() {
            let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = thread.take().map(JoinHandle::join);
        }
        // Not the socket of another process.
        if identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Shared {
    /// Serves one front-end after the other until it is stopped.
    fn serve(&self) {
        loop {
            if self.wait(self.listener.as_fd()) {
                return;
            }
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let session = Session::new(self.queues.clone());
                    let Ok(connection) = Connection::new(socket, session) else {
                        continue;
                    };
                    self.queues.add_event(Event::Connected);
                    if self.attend(connection) {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    if self.stop.wait(PAUSE).unwrap_or(true) {
                        return;
                    }
                }
            }
        }
    }

    /// Serves a front-end until it closes the connection; true if the server was stopped.
    fn attend(&self, mut connection: Connection) -> bool {
        loop {
            if self.wait(connection.poll_fd()) {
                return true;
            }
            let event = match connection.read() {
                Outcome::Open => continue,
                Outcome::Closed => Event::Disconnected,
                Outcome::Refused(why) => Event::Refused(why),
            };
            // Before the event: whoever reads it finds the vrings stopped.
            drop(connection);
            self.queues.add_event(event);
            return false;
        }
    }

    /// Sleeps until a descriptor is readable, and meanwhile discards packets without a reader; true
    /// if the server was stopped.
    fn wait(&self, fd: BorrowedFd<'_>) -> bool {
        loop {
            let mut wanted = vec![Wanted::readable(&self.stop), Wanted::readable(&fd)];
            let pairs = match self.discards {
                true => 0..self.queues.pair_count(),
                false => 0..0,
            };
            let fds: Vec<_> = pairs
                .clone()
                .map(|pair| self.queues.from_guest(pair).poll_fd())
                .collect();
            wanted.extend(fds.iter().map(Wanted::readable));
            // Fails only for too many descriptors, of which there were fewer before.
            if poll::wait(&mut wanted, Duration::from_secs(3600)).is_err() {
                return true;
            }
            if wanted[0].is_ready() {
                return true;
            }
            let is_ready = wanted[1].is_ready();
            for pair in pairs {
                if wanted[2 + pair as usize].is_ready() {
                    let queue = self.queues.from_guest(pair);
                    queue.take_kicks();
                    queue.lock().discard();
                }
            }
            if is_ready {
                return false;
            }
        }
    }
}
