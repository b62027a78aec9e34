//! Who owns what the guard leaves in the kernel: the program of `--keep`, the rules of iptables. A
//! lock in a directory that only root can write to shows that the process still runs; no other user
//! can take it, or keep it from being taken. The file of the lock names the process.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use sys::{Error, ErrorKind, Result};

use super::iptables::pinned::namespace;

/// The directory of locks; `/run` belongs to root.
pub(super) const LOCKS: &str = "/run/barewire-guard";
/// Attempts to lock a file that its owner deletes at that moment.
const LOCKS_MAX: u32 = 100;
/// How often to look whether a lock is free.
const LOOK: Duration = Duration::from_millis(50);
/// How long to wait for what a killed owner has left running.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Permission bits that let other users write.
const WRITABLE: u32 = 0o022;
/// Users may delete and rename only their own files, as in `/tmp`.
const STICKY: u32 = 0o1000;

/// What is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The program that stays attached.
    Program,
    /// Rules of iptables.
    Rules,
}

impl Kind {
    /// The name of the lock of an interface in a network namespace.
    fn name(self, namespace: u64, interface: &str) -> String {
        let kind = match self {
            Self::Program => "link",
            Self::Rules => "iptables",
        };
        format!("{kind}-{namespace}-{interface}")
    }

    /// The error if another process is the owner.
    fn busy(self, interface: &str) -> Error {
        let (what, why, hint) = match self {
            Self::Program => (
                "guard",
                "another barewire guard keeps its program there",
                "stop it first",
            ),
            Self::Rules => (
                "use iptables on",
                "another barewire guard has rules there",
                "stop it first",
            ),
        };
        Error::new(ErrorKind::Busy, format!("{what} {interface}"), why).with_hint(hint)
    }
}

/// The one process, with the commands that it has started, that may change something of an
/// interface in this network namespace.
#[derive(Debug)]
pub(super) struct Owner {
    file: PathBuf,
    /// Locked; closed, and so unlocked, after the file is deleted.
    lock: File,
}

impl Owner {
    /// Becomes the owner. If the last one was killed, waits up to a minute for its last commands,
    /// and for the helper process that removes its rules.
    ///
    /// # Errors
    /// `Busy` if another process is; an error if the directory of locks is not root's alone.
    pub fn become_owner(kind: Kind, interface: &str) -> Result<Self> {
        let file = file(kind, interface)?;
        let until = Instant::now() + WAIT_MAX;
        loop {
            match Self::of_file(&file, || kind.busy(interface)) {
                Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < until => {
                    // In another PID namespace it may seem to be dead; then this only takes longer.
                    if name_in(&file).is_some_and(|name| is_alive(&name)) {
                        return Err(error);
                    }
                }
                result => return result,
            }
            thread::sleep(LOOK);
        }
    }

    /// Becomes the owner after the one of this name has been killed and its last commands have
    /// ended; `None` if another process was faster. The file keeps the name, so that others wait.
    ///
    /// # Errors
    /// As [`become_owner`](Self::become_owner), except `Busy`.
    pub fn succeed(kind: Kind, interface: &str, last: &str) -> Result<Option<Self>> {
        Self::succeed_in(&file(kind, interface)?, last)
    }

    fn succeed_in(file: &Path, last: &str) -> Result<Option<Self>> {
        let busy = || Error::new(ErrorKind::Busy, "lock a file", "another process has");
        loop {
            match Self::lock(file, busy) {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                result => return result.map(Some),
            }
            // A new owner writes its name after it has locked the file.
            if name_in(file).is_some_and(|name| name != last) {
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }

    fn of_file(file: &Path, busy: impl Fn() -> Error) -> Result<Self> {
        let owner = Self::lock(file, busy)?;
        let name = process(std::process::id()).unwrap_or_default();
        let mut lock = &owner.lock;
        let written = lock
            .set_len(0)
            .and_then(|()| lock.write_all(name.as_bytes()));
        written.map_err(|error| Error::from_io(format!("write {}", file.display()), error))?;
        Ok(owner)
    }

    fn lock(file: &Path, busy: impl Fn() -> Error) -> Result<Self> {
        let folder = file.parent().unwrap_or(file);
        let failed = |error| {
            let what = format!("lock a file in {}", folder.display());
            Error::from_io(what, error).with_hint("run as root; /run must be root's, too")
        };
        for _ in 0..LOCKS_MAX {
            let lock = match open_lock(folder, file) {
                // Its last owner has deleted the directory in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => result.map_err(failed)?,
            };
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(busy()),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The same for the file.
            let is_same = |now: Metadata| {
                let of_lock = lock.metadata();
                of_lock.is_ok_and(|l| (l.dev(), l.ino()) == (now.dev(), now.ino()))
            };
            if fs::symlink_metadata(file).is_ok_and(is_same) {
                let file = file.to_owned();
                return Ok(Self { file, lock });
            }
        }
        let why = "the file of its lock changes all the time";
        Err(busy().with_why(why))
    }

    /// The lock as the standard output of a command that prints nothing there: until it ends, no
    /// other process becomes the owner, even if this one is killed.
    ///
    /// # Errors
    /// If the descriptor cannot be duplicated.
    pub fn held(&self) -> Result<Stdio> {
        let copy = self.lock.try_clone();
        let copy = copy.map_err(|error| Error::from_io("duplicate a descriptor", error))?;
        Ok(OwnedFd::from(copy).into())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
        // Fails if there are other locks, or after privileges were dropped.
        let _ = self.file.parent().map(fs::remove_dir);
    }
}

/// The file of a lock.
fn file(kind: Kind, interface: &str) -> Result<PathBuf> {
    Ok(Path::new(LOCKS).join(kind.name(namespace()?, interface)))
}

/// The name of the last owner of a lock; empty if there is none.
///
/// # Errors
/// If the network namespace cannot be identified.
pub(super) fn name_of_last(kind: Kind, interface: &str) -> Result<String> {
    Ok(name_in(&file(kind, interface)?).unwrap_or_default())
}

fn name_in(file: &Path) -> Option<String> {
    let name = fs::read_to_string(file).ok();
    name.filter(|name| !name.is_empty())
}

/// A process's unique name: its number and when it began, in clock ticks since boot (field 22 of
/// `/proc/PID/stat`). `None` if there is no such process, or it has ended and is a zombie.
fn process(id: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field, in parentheses, is any text.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let began = fields.nth(18)?;
    (!matches!(state, "Z" | "X")).then(|| format!("{id} {began}"))
}

/// Whether the process of this name runs.
fn is_alive(name: &str) -> bool {
    let id = name.split(' ').next().and_then(|id| id.parse().ok());
    id.and_then(process).is_some_and(|now| now == name)
}

/// Opens a file of a directory that only root can write to, after creating both.
fn open_lock(folder: &Path, file: &Path) -> io::Result<File> {
    let parent = folder.parent().unwrap_or(folder);
    let data = fs::metadata(parent)?;
    // Otherwise others could put another directory in its place.
    let is_safe = data.mode() & WRITABLE == 0 || data.mode() & STICKY != 0;
    refuse_unless(data.uid() == 0 && is_safe, parent)?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let data = fs::symlink_metadata(folder)?;
    let is_private = data.is_dir() && data.uid() == 0 && data.mode() & WRITABLE == 0;
    refuse_unless(is_private, folder)?;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(file)
}

fn refuse_unless(condition: bool, path: &Path) -> io::Result<()> {
    if condition {
        return Ok(());
    }
    let why = format!("{} is not a directory of root's alone", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests;
