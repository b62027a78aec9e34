//! The directory of records of what cards were like before they were changed. What is recorded is
//! applied to cards later, so nobody but the user of this process may write it: a directory below
//! `/run` that no other user can enter, and no links.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sys::create::CreateOptions;
use sys::descriptors::Credentials;

/// The directory; `/run` itself belongs to root.
pub(crate) const FOLDER: &str = "/run/barewire-nic";
/// Mode of the directory: other users can neither read it nor lock it.
const MODE: u32 = 0o700;
/// Permission bits that let other users write.
const WRITABLE: u32 = 0o022;
/// Maximum length of a record, in bytes.
const LEN_MAX: u64 = 4 << 20;

/// Opens the directory, after creating it; its parent must exist.
///
/// # Errors
/// `PermissionDenied` if it is a link, belongs to another user or is writable by others; any error
/// of the system.
pub(crate) fn open_folder(path: &Path) -> io::Result<File> {
    match DirBuilder::new().mode(MODE).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => check_folder(path)?,
    }
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    File::open(path)
}

/// Checks that nobody else can write in the directory.
fn check_folder(path: &Path) -> io::Result<()> {
    let data = path.symlink_metadata()?;
    refuse_unless(data.is_dir(), path, "is no directory")?;
    check_owner(&data, path)
}

fn check_owner(data: &Metadata, path: &Path) -> io::Result<()> {
    let is_own = [0, Credentials::own().uid].contains(&data.uid());
    refuse_unless(is_own, path, "belongs to another user")?;
    let is_private = data.mode() & WRITABLE == 0;
    refuse_unless(is_private, path, "is writable by other users")
}

fn refuse_unless(condition: bool, path: &Path, why: &str) -> io::Result<()> {
    if condition {
        return Ok(());
    }
    let why = format!("{} {why}", path.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

/// Opens a record; `None` if there is none.
///
/// # Errors
/// As [`open_folder`], for the directory and the file, which must be a regular one.
pub(crate) fn open(file: &Path) -> io::Result<Option<File>> {
    let checked = || {
        check_folder(folder_of(file))?;
        let data = file.symlink_metadata()?;
        refuse_unless(data.is_file(), file, "is no regular file")?;
        check_owner(&data, file)?;
        // Nobody else can replace it in that directory.
        File::open(file)
    };
    match checked() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// The text of a record; `None` if there is none.
///
/// # Errors
/// As [`open`]; `InvalidData` if it is not UTF-8.
pub(crate) fn read(file: &Path) -> io::Result<Option<String>> {
    let Some(open) = open(file)? else {
        return Ok(None);
    };
    let mut text = String::new();
    open.take(LEN_MAX).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Writes a record completely or not at all, instead of an earlier one; creates the directory. The
/// result is locked, which marks the record as in use.
///
/// # Errors
/// As [`open_folder`].
pub(crate) fn write(file: &Path, text: &str) -> io::Result<File> {
    open_folder(folder_of(file))?;
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    // Of a process that was killed.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut open = CreateOptions::PRIVATE.create_new(&unfinished)?;
    open.write_all(text.as_bytes())?;
    open.lock()?;
    fs::rename(&unfinished, file)?;
    Ok(open)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory, deleted on drop, and the path of the directory of records in it.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Root {
            let name = format!("barewire-records-{}-{name}", std::process::id());
            let root = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&root);
            fs::create_dir(&root).unwrap();
            Root(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o777
    }

    #[test]
    fn records_are_private() {
        let root = Root::new("private");
        let file = root.0.join("records/a.b");
        assert_eq!(read(&file).unwrap(), None);
        for text in ["one\n", "another\n"] {
            write(&file, text).unwrap();
            assert_eq!(read(&file).unwrap().as_deref(), Some(text));
        }
        assert_eq!(mode(&file), 0o600);
        assert_eq!(mode(file.parent().unwrap()), 0o700);
        // A directory that others can read, and so could lock.
        fs::set_permissions(file.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
        write(&file, "").unwrap();
        assert_eq!(mode(file.parent().unwrap()), 0o700);
    }

    #[test]
    fn links_and_directories_of_others_are_refused() {
        let root = Root::new("planted");
        let (folder, victim) = (root.0.join("records"), root.0.join("victim"));
        let file = folder.join("a");
        let refused = |why: &str| {
            for error in [write(&file, "x").unwrap_err(), read(&file).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
                assert!(error.to_string().contains(why), "{error}");
            }
        };
        fs::create_dir(&victim).unwrap();
        symlink(&victim, &folder).unwrap();
        refused("is no directory");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
        fs::remove_file(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o1777)).unwrap();
        refused("is writable by other users");
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        if Credentials::own().uid == 0 {
            std::os::unix::fs::chown(&folder, Some(1), None).unwrap();
            refused("belongs to another user");
            std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
        }
    }

    #[test]
    fn links_in_the_place_of_records_are_not_followed() {
        let root = Root::new("links");
        let (file, victim) = (root.0.join("records/a"), root.0.join("victim"));
        open_folder(folder_of(&file)).unwrap();
        fs::write(&victim, "untouched").unwrap();
        symlink(&victim, &file).unwrap();
        symlink(&victim, folder_of(&file).join("a.unfinished")).unwrap();
        let error = read(&file).unwrap_err();
        assert!(error.to_string().contains("no regular file"), "{error}");
        write(&file, "x").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(read(&file).unwrap().as_deref(), Some("x"));
        // A forged record.
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        read(&file).unwrap_err();
    }
}
