//! Creates files for a process that may be privileged: readable by their owner only, and never
//! through a link or file that another user placed there.
//!
//! Anyone with write access to the directory (`/tmp`) could put a symbolic link there under the
//! name of the output, and have a privileged process overwrite the file behind it; or put a file of
//! their own there, and read what is written to it. The kernel refuses both in sticky directories
//! where `fs.protected_symlinks`, `fs.protected_regular` and `fs.protected_fifos` are set (Linux
//! `Documentation/admin-guide/sysctl/fs.rst`); here they are refused always, and links everywhere.
//!
//! No call waits for the reader of a pipe: see [`CreateOptions::open_pipe`].

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Links that are followed one after the other at most, as the kernel does (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// How often a file that appears and disappears meanwhile is tried.
const TRIES_MAX: usize = 16;

/// Permission bits of a directory: others, or its group, may make files there; only their owners
/// may delete them.
const SHARED: u32 = 0o022;
const STICKY: u32 = libc::S_ISVTX;

/// How files are made.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions<'a> {
    /// Permissions of new files, less the umask (open(2)).
    pub mode: u32,
    /// Device and inode of files that must not be truncated under any name: the inputs.
    pub keep: &'a [(u64, u64)],
}

/// A file that was opened to be written.
#[derive(Debug)]
pub struct Made {
    /// The file.
    pub file: File,
    /// It was not there before.
    pub is_new: bool,
}

impl CreateOptions<'_> {
    /// New files are for their owner alone.
    pub const PRIVATE: CreateOptions<'static> = CreateOptions {
        mode: 0o600,
        keep: &[],
    };

    /// New files have the permissions that the umask leaves.
    pub const BY_UMASK: CreateOptions<'static> = CreateOptions {
        mode: 0o666,
        keep: &[],
    };

    /// Makes or empties a file.
    ///
    /// # Errors
    /// Errors of open(2); `PermissionDenied` for a link of another user, and for a file or pipe of
    /// another user in a sticky directory where others may make files; `NotConnected` for a pipe
    /// that no program reads.
    pub fn create(self, path: &Path) -> io::Result<File> {
        let file = self.open(path)?.file;
        // Not before it is known which file it is.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Makes a file, or opens it with the contents that it has.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn open(self, path: &Path) -> io::Result<Made> {
        self.resolve(path, Self::open_or_make)
    }

    /// Makes a file that does not exist yet, not even as a link.
    ///
    /// # Errors
    /// `AlreadyExists`, and errors of open(2).
    pub fn create_new(self, path: &Path) -> io::Result<File> {
        let place = Place::of(path)?;
        place.open(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW, self.mode)
    }

    /// Whether a file that exists could be emptied: opens it as [`create`](Self::create) does, and
    /// leaves it as it is.
    ///
    /// # Errors
    /// As `create`, and `NotFound`.
    pub fn check(self, path: &Path) -> io::Result<()> {
        self.resolve(path, |making, place, flags| {
            making.open_existing(place, flags).map(drop)
        })
    }

    /// Opens a pipe that a program reads; `None` for a pipe that none reads yet, or none any more.
    ///
    /// # Errors
    /// As [`create`](Self::create); `NotFound`; `InvalidInput` for what is no pipe.
    pub fn open_pipe(self, path: &Path) -> io::Result<Option<File>> {
        let opened = self.resolve(path, Self::open_existing);
        match opened {
            Ok(file) if file.metadata()?.file_type().is_fifo() => Ok(Some(file)),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no pipe")),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Calls `open` with the place behind symbolic links, and the flags for it.
    fn resolve<T>(
        self,
        path: &Path,
        open: impl Fn(Self, &Place, i32) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            // The kernel follows no link: what was checked is what is opened.
            let place = Place::of(&path)?;
            match open(self, &place, libc::O_NOFOLLOW) {
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => match follow(&path)? {
                    Link::Path(target) => path = target,
                    Link::OpenFile => return open(self, &place, 0),
                },
                result => return result,
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    /// In two steps, because what holds for a file that is there does not for one made here: on a
    /// network file system that one may belong to another user.
    fn open_or_make(self, place: &Place, flags: i32) -> io::Result<Made> {
        for _ in 0..TRIES_MAX {
            match self.open_existing(place, flags) {
                Ok(file) => {
                    let is_new = false;
                    return Ok(Made { file, is_new });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            match place.open(flags | libc::O_CREAT | libc::O_EXCL, self.mode) {
                Ok(file) => {
                    let is_new = true;
                    return Ok(Made { file, is_new });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn open_existing(self, place: &Place, flags: i32) -> io::Result<File> {
        let file = match place.open(flags | libc::O_NONBLOCK, 0) {
            // A lease, which the kernel has asked its holder to return by now (fcntl(2)).
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => place.open(flags, 0)?,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && place.is_pipe() => {
                let why = "it is a pipe without a reader";
                return Err(io::Error::new(io::ErrorKind::NotConnected, why));
            }
            result => result?,
        };
        let data = file.metadata()?;
        place.refuse_planted(&data)?;
        self.refuse_input(&data)?;
        wait_for_room(&file)?;
        Ok(file)
    }

    fn refuse_input(self, data: &Metadata) -> io::Result<()> {
        if self.keep.contains(&(data.dev(), data.ino())) {
            let why = "it is also an input file, and would be truncated";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(())
    }
}

/// A name in a directory. The directory is open: nobody can put another one in its place.
struct Place {
    folder: File,
    name: CString,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let bytes = path.as_os_str().as_bytes();
        let at = bytes.iter().rposition(|byte| *byte == b'/');
        // With its slash: of a file in the root that is all.
        let (folder, name) = bytes.split_at(at.map_or(0, |at| at + 1));
        if name.is_empty() {
            let code = if bytes.is_empty() {
                libc::ENOENT
            } else {
                libc::EISDIR
            };
            return Err(io::Error::from_raw_os_error(code));
        }
        let folder = if folder.is_empty() { b"." } else { folder };
        let mut options = File::options();
        options.custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
        Ok(Place {
            folder: options.read(true).open(OsStr::from_bytes(folder))?,
            name: CString::new(name)?,
        })
    }

    /// Opens it to be written.
    fn open(&self, flags: i32, mode: u32) -> io::Result<File> {
        let flags = flags | libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOCTTY;
        // SAFETY: the descriptor is open and the name a string that ends in zero; both live until
        // after the call.
        let fd = unsafe { libc::openat(self.folder.as_raw_fd(), self.name.as_ptr(), flags, mode) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it, for nobody else.
        Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn is_pipe(&self) -> bool {
        // SAFETY: all zeros is a value of this plain structure, which the kernel fills.
        let mut data: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, the name ends in zero, and all live until after the call.
        let code = unsafe {
            let folder = self.folder.as_raw_fd();
            libc::fstatat(folder, self.name.as_ptr(), &raw mut data, 0)
        };
        code == 0 && data.st_mode & libc::S_IFMT == libc::S_IFIFO
    }

    /// Refuses a file or pipe of another user in a directory where every user may make files, as
    /// `may_create_in_sticky` of the kernel does (Linux `fs/namei.c`): who made it reads what is
    /// written there.
    fn refuse_planted(&self, data: &Metadata) -> io::Result<()> {
        let kind = data.file_type();
        if !kind.is_file() && !kind.is_fifo() {
            return Ok(());
        }
        let folder = self.folder.metadata()?;
        let is_shared = folder.mode() & STICKY != 0 && folder.mode() & SHARED != 0;
        // SAFETY: a plain system call without arguments.
        let user = unsafe { libc::geteuid() };
        if !is_shared || [user, folder.uid()].contains(&data.uid()) {
            return Ok(());
        }
        let why = format!(
            "user {} created it, in a directory where other users can create files",
            data.uid()
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
}

/// From now on writes wait for room: takes `O_NONBLOCK` off.
fn wait_for_room(file: &File) -> io::Result<()> {
    // SAFETY: plain system calls with integers, on a descriptor of ours.
    let result = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK)
    };
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Checks a directory in which files will be made: where it is a symbolic link, root or the
/// effective user made that, and those behind it. A directory that does not exist is not refused.
///
/// # Errors
/// `PermissionDenied` for a link of another user, and errors of open(2).
pub fn check_folder(path: &Path) -> io::Result<()> {
    // Without a slash at its end, which would mean what follows the link.
    let mut path: PathBuf = path.components().collect();
    for _ in 0..LINKS_MAX {
        if !path.symlink_metadata().is_ok_and(|data| data.is_symlink()) {
            return Ok(());
        }
        match follow(&path)? {
            Link::Path(target) => path = target.components().collect(),
            Link::OpenFile => return Ok(()),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Where a symbolic link leads.
enum Link {
    /// To another path.
    Path(PathBuf),
    /// To a file that a process has open, whose location only the kernel has: the target of
    /// `/dev/stdout` and a shell's `>(command)` (proc(5), `/proc/pid/fd`).
    OpenFile,
}

/// Where a link leads that root or the effective user made. The link of a user to whom the file
/// will be given is not followed: that user could name any file of root's.
fn follow(path: &Path) -> io::Result<Link> {
    let mut options = File::options();
    options.custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC);
    // Held open, so that owner and target are those of the same link.
    let link = options.read(true).open(path)?;
    let data = link.metadata()?;
    if !data.is_symlink() {
        // It has changed meanwhile.
        return Ok(Link::Path(path.to_owned()));
    }
    let target = target_of(&link)?;
    // SAFETY: a plain system call without arguments.
    let user = unsafe { libc::geteuid() };
    if ![user, 0].contains(&data.uid()) {
        let why = format!(
            "it is a symbolic link to {} that user {} created",
            target.display(),
            data.uid()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if is_of_proc(&link)? {
        return Ok(Link::OpenFile);
    }
    // A target that is absolute replaces the directory.
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(Link::Path(folder.join(target)))
}

/// Whether a link is the kernel's own: users cannot create links in `/proc`.
fn is_of_proc(link: &File) -> io::Result<bool> {
    // SAFETY: all zeros is a value of this plain structure, which the kernel fills.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the structure lives until after the call.
    match unsafe { libc::fstatfs(link.as_raw_fd(), &raw mut system) } {
        0 => Ok(system.f_type == libc::PROC_SUPER_MAGIC),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The target of an open link (readlinkat(2), with an empty path).
fn target_of(link: &File) -> io::Result<PathBuf> {
    let mut bytes = vec![0; libc::PATH_MAX as usize];
    // SAFETY: the path is a string that ends in zero, and the kernel writes at most `bytes.len()`
    // bytes into `bytes`, which lives until after the call.
    let len = unsafe {
        libc::readlinkat(
            link.as_raw_fd(),
            c"".as_ptr(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
        )
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    bytes.truncate(len);
    Ok(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests;
