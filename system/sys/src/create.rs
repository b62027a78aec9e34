//! Creates files for a process that may be privileged: readable by their owner only, and never
//! through a link or file that another user created.
//!
//! Anyone with write access to the directory (`/tmp`) could create a symbolic link with the name of
//! the output, so that a privileged process overwrites the file it points to; or create a file with
//! that name, and read what is written to it. The kernel refuses both in sticky directories where
//! `fs.protected_symlinks`, `fs.protected_regular` and `fs.protected_fifos` are set (Linux
//! `Documentation/admin-guide/sysctl/fs.rst`). Here such files are always refused, and such links
//! in every directory.
//!
//! No call waits for the reader of a pipe: see [`CreateOptions::open_pipe`].
//!
//! No input of the process is ever opened as an output: see [`kept`].

pub mod kept;

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most symbolic links followed in a row, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// How many times to retry if a file appears or disappears in the meantime.
const TRIES_MAX: usize = 16;

/// Permission bits of a directory: the group or others may create files in it; with the sticky bit,
/// only owners may delete them.
const SHARED: u32 = 0o022;
const STICKY: u32 = libc::S_ISVTX;

/// How files are made.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions<'a> {
    /// Permissions of new files, less the umask (open(2)).
    pub mode: u32,
    /// Device and inode of files that must not be truncated under any name, in addition to the
    /// inputs of the process ([`kept`]).
    pub keep: &'a [(u64, u64)],
}

/// A file opened for writing.
#[derive(Debug)]
pub struct Made {
    /// The file.
    pub file: File,
    /// Whether it did not exist before.
    pub is_new: bool,
}

impl CreateOptions<'_> {
    /// New files are accessible to their owner only.
    pub const PRIVATE: CreateOptions<'static> = CreateOptions {
        mode: 0o600,
        keep: &[],
    };

    /// New files have the permissions that the umask leaves.
    pub const BY_UMASK: CreateOptions<'static> = CreateOptions {
        mode: 0o666,
        keep: &[],
    };

    /// Creates a file, or empties an existing one.
    ///
    /// # Errors
    /// Errors of open(2); `PermissionDenied` for a link of another user, and for a file or pipe of
    /// another user in a sticky directory where others may make files; `NotConnected` for a pipe
    /// that no program reads.
    pub fn create(self, path: &Path) -> io::Result<File> {
        let file = self.open(path)?.file;
        // Truncated only now that it is known which file this is.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Creates a file, or opens an existing one without changing its contents.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn open(self, path: &Path) -> io::Result<Made> {
        self.resolve(path, Self::open_or_make)
    }

    /// Creates a file that does not exist yet, not even as a link.
    ///
    /// # Errors
    /// `AlreadyExists`, and errors of open(2).
    pub fn create_new(self, path: &Path) -> io::Result<File> {
        let place = Place::of(path)?;
        place.open(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW, self.mode)
    }

    /// Checks whether an existing file could be emptied: opens it as [`create`](Self::create) does,
    /// and does not change it.
    ///
    /// # Errors
    /// As `create`, and `NotFound`.
    pub fn check(self, path: &Path) -> io::Result<()> {
        self.resolve(path, |making, place, flags| {
            making.open_existing(place, flags).map(drop)
        })
    }

    /// Opens a pipe; `None` if no program has it open for reading.
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

    /// Calls `open` with the path behind symbolic links, and the flags for it.
    fn resolve<T>(
        self,
        path: &Path,
        open: impl Fn(Self, &Place, i32) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            // The kernel follows no link, so the file that was checked is the one that is opened.
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

    /// In two steps, because the check of existing files must not apply to one created here: on a
    /// network file system the new file may belong to another user.
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
            // Another process holds a lease, and the kernel has asked it to give the lease up
            // (fcntl(2)).
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
        if self.keep.contains(&(data.dev(), data.ino())) || kept::is_kept(data) {
            return Err(kept::IsInput.into());
        }
        Ok(())
    }
}

/// A name in a directory. The directory is held open: nobody can replace it by another one.
struct Place {
    folder: File,
    name: CString,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let bytes = path.as_os_str().as_bytes();
        let at = bytes.iter().rposition(|byte| *byte == b'/');
        // Including its slash: for a file in the root directory there is nothing else.
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

    /// Opens it for writing.
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

    /// Refuses a file or pipe of another user in a directory where every user may create files, as
    /// the kernel's `may_create_in_sticky` does (Linux `fs/namei.c`): its owner could read what is
    /// written.
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

/// Makes writes block again: clears `O_NONBLOCK`.
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

/// Checks a directory in which files will be created: if it is a symbolic link, that link and all
/// those behind it must have been created by root or the effective user. A directory that does not
/// exist is not refused.
///
/// # Errors
/// `PermissionDenied` for a link of another user, and errors of open(2).
pub fn check_folder(path: &Path) -> io::Result<()> {
    // Without a trailing slash, which would refer to the target of the link.
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

/// The target of a symbolic link.
enum Link {
    /// Another path.
    Path(PathBuf),
    /// A file that a process has open, which has no path of its own: the target of `/dev/stdout`
    /// and of a shell's `>(command)` (proc(5), `/proc/pid/fd`).
    OpenFile,
}

/// The target of a link created by root or the effective user. A link of the user to whom the file
/// will be given is not followed: that user could name any file of root's.
fn follow(path: &Path) -> io::Result<Link> {
    let mut options = File::options();
    options.custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC);
    // Held open, so that owner and target belong to the same link.
    let link = options.read(true).open(path)?;
    let data = link.metadata()?;
    if !data.is_symlink() {
        // It was replaced in the meantime.
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
    // An absolute target replaces the directory.
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
