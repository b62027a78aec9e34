//! Creates capture files: readable by their owner alone, and never through another user's symbolic
//! link.
//!
//! Anyone with write access to the folder (`/tmp`) could put a link there under the name of the
//! capture, and have a privileged process overwrite the file behind it. The kernel refuses such
//! links in sticky folders where `fs.protected_symlinks` is set; here they are refused everywhere.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Links that are followed one after the other at most, as the kernel does (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// How files are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making {
    /// Permissions of new files, less the umask (open(2)).
    pub(super) mode: u32,
    /// Device and inode of a file that must not be truncated under any name: the input.
    pub(super) keep: Option<(u64, u64)>,
}

impl Making {
    /// Makes or empties a file.
    ///
    /// # Errors
    /// Errors of open(2); `PermissionDenied` for a link of another user.
    pub(super) fn create(self, path: &Path) -> io::Result<File> {
        self.resolve(path, Self::open)
    }

    /// Whether a file that exists could be emptied: opens it as [`create`](Self::create) does, and
    /// leaves it as it is.
    ///
    /// # Errors
    /// As `create`, and `NotFound`.
    pub(super) fn check(self, path: &Path) -> io::Result<()> {
        let open = |making: Making, path: &Path, flags| {
            let mut options = File::options();
            options.write(true).custom_flags(libc::O_CLOEXEC | flags);
            making.refuse_input(&options.open(path)?)
        };
        self.resolve(path, open)
    }

    /// Calls `open` with the path behind symbolic links, and the flags for it.
    fn resolve<T>(
        self,
        path: &Path,
        open: impl Fn(Self, &Path, i32) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            // The kernel follows no link: what was checked is what is opened.
            match open(self, &path, libc::O_NOFOLLOW) {
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => match follow(&path)? {
                    Link::Path(target) => path = target,
                    Link::OpenFile => return open(self, &path, 0),
                },
                result => return result,
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    fn open(self, path: &Path, flags: i32) -> io::Result<File> {
        let mut options = File::options();
        options.write(true).create(true).mode(self.mode);
        options.custom_flags(libc::O_CLOEXEC | flags);
        let file = options.open(path)?;
        self.refuse_input(&file)?;
        // Not before it is known which file it is.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(file)
    }

    fn refuse_input(self, file: &File) -> io::Result<()> {
        let data = file.metadata()?;
        if self.keep == Some((data.dev(), data.ino())) {
            let why = "it is also the input file, and would be truncated";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(())
    }
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
            "it is a symbolic link to {} that user {} made",
            target.display(),
            data.uid()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if is_of_proc(&link)? {
        return Ok(Link::OpenFile);
    }
    // A target that is absolute replaces the folder.
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
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("barewire-create-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const PRIVATE: Making = Making {
        mode: 0o600,
        keep: None,
    };

    #[test]
    fn the_input_is_kept_by_any_name() {
        let folder = Folder::new("input");
        let [input, hard, link] = ["input", "hard", "link"].map(|name| folder.0.join(name));
        std::fs::write(&input, "kept").unwrap();
        std::fs::hard_link(&input, &hard).unwrap();
        symlink("input", &link).unwrap();
        let data = std::fs::metadata(&input).unwrap();
        let making = Making {
            keep: Some((data.dev(), data.ino())),
            ..PRIVATE
        };
        for path in [&input, &hard, &link] {
            for error in [
                making.create(path).unwrap_err(),
                making.check(path).unwrap_err(),
            ] {
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            }
        }
        PRIVATE.check(&link).unwrap();
        assert_eq!(std::fs::read_to_string(&input).unwrap(), "kept");
    }

    #[test]
    fn new_files_are_private_unless_asked() {
        let folder = Folder::new("mode");
        for (name, mode) in [("a", 0o600), ("b", 0o400)] {
            let file = Making { mode, ..PRIVATE }
                .create(&folder.0.join(name))
                .unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o777, mode);
        }
        // One that is there keeps its permissions, and is emptied.
        let path = folder.0.join("c");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let file = PRIVATE.create(&path).unwrap();
        let data = file.metadata().unwrap();
        assert_eq!((data.mode() & 0o777, data.len()), (0o640, 0));
    }

    #[test]
    fn a_pipe_of_this_process_has_a_name() {
        use std::io::{Read, Write};
        let folder = Folder::new("pipe");
        let (mut reader, pipe) = io::pipe().unwrap();
        let names = ["/proc/self/fd", "/dev/fd"].map(|fds| format!("{fds}/{}", pipe.as_raw_fd()));
        // A link to it, too: `/dev/stdout` is one.
        let link = folder.0.join("link");
        symlink(&names[0], &link).unwrap();
        for path in names.iter().map(Path::new).chain([link.as_path()]) {
            PRIVATE.create(path).unwrap().write_all(b"x").unwrap();
        }
        drop(pipe);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "xxx");
    }

    #[test]
    fn links_of_other_users_are_not_followed() {
        let folder = Folder::new("link");
        let [file, link] = ["file", "link"].map(|name| folder.0.join(name));
        std::fs::write(&file, "kept").unwrap();
        symlink(&file, &link).unwrap();
        // SAFETY: a plain system call without arguments.
        if unsafe { libc::geteuid() } != 0 {
            skip::skip!("root, to make a link of another user");
        }
        lchown(&link, Some(12_345), None).unwrap();
        let error = PRIVATE.check(&link).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let error = PRIVATE.create(&link).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("user 12345 made"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
        lchown(&link, Some(0), None).unwrap();
        PRIVATE.create(&link).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
        // A link to a link is looked at as well, and a relative one is of its folder.
        let [first, loops] = ["first", "loops"].map(|name| folder.0.join(name));
        symlink("link", &first).unwrap();
        PRIVATE.create(&first).unwrap();
        lchown(&link, Some(12_345), None).unwrap();
        let error = PRIVATE.create(&first).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        symlink("loops", &loops).unwrap();
        let error = PRIVATE.create(&loops).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    }
}
