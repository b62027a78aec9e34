//! Names of clusters, and the sockets of their owners: `/run/barewire/NAME` for root's,
//! `$XDG_RUNTIME_DIR/barewire/NAME` for those of other users.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sys::descriptors::Credentials;
use sys::{Error, ErrorKind, Result};

/// Maximum length of a name, in bytes.
pub const NAME_LEN_MAX: usize = 32;

/// The directory of root's sockets.
const SYSTEM: &str = "/run/barewire";

/// Mode of that directory: as of `/tmp`, so that an owner that has dropped privileges can remove
/// its socket. A process attaches only to owners that run as root or as its own user.
const SHARED: u32 = 0o1777;

/// Checks the name of a cluster or an application: 1 to 32 letters, digits, `.`, `-` and `_`,
/// beginning with a letter or digit (programs of PF_RING name clusters by number).
///
/// # Errors
/// `InvalidInput`.
pub fn check_name(name: &str) -> Result<()> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_name = name.len() <= NAME_LEN_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_valid);
    if is_name {
        return Ok(());
    }
    let what = format!("use the name {name:?}");
    let why = "a name consists of 1 to 32 letters, digits, '.', '-' and '_', and begins with a \
               letter or digit";
    Err(Error::new(ErrorKind::InvalidInput, what, why))
}

/// The directory of this user's own sockets, if it is known.
fn own() -> Option<PathBuf> {
    if Credentials::own().uid == 0 {
        return Some(SYSTEM.into());
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    folder
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("barewire"))
}

/// Returns the directory in which this process creates its sockets, after creating it.
///
/// # Errors
/// `NotFound` if `XDG_RUNTIME_DIR` is not set for a user other than root; any error of the system.
pub fn directory() -> Result<PathBuf> {
    let Some(folder) = own() else {
        let why = "XDG_RUNTIME_DIR is not set";
        return Err(Error::new(ErrorKind::NotFound, "create a socket", why)
            .with_hint("set it to a directory of this user, or start as root"));
    };
    let is_shared = folder.as_path() == Path::new(SYSTEM);
    let mode = if is_shared { SHARED } else { 0o700 };
    let from_io = |error| Error::from_io(format!("create {}", folder.display()), error);
    match fs::DirBuilder::new().mode(mode).create(&folder) {
        Ok(()) => {
            // The umask has reduced it.
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(&folder, mode).map_err(from_io)?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(from_io(error)),
    }
    Ok(folder)
}

/// Returns the path of the socket of a cluster that this process offers.
///
/// # Errors
/// As [`check_name`] and [`directory`].
pub fn path_of(name: &str) -> Result<PathBuf> {
    check_name(name)?;
    Ok(directory()?.join(name))
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|what| what.file_type().is_socket())
}

/// The directories in which to look for clusters: this user's, and root's.
fn places() -> Vec<PathBuf> {
    let mut places = Vec::from_iter(own());
    if !places.iter().any(|place| place == Path::new(SYSTEM)) {
        places.push(SYSTEM.into());
    }
    places
}

/// Finds the socket of a cluster: one of this user, or one of root.
///
/// # Errors
/// `NotFound`; `InvalidInput` as [`check_name`].
pub fn find(name: &str) -> Result<PathBuf> {
    check_name(name)?;
    let paths = places().into_iter().map(|place| place.join(name));
    paths
        .into_iter()
        .find(|path| is_socket(path))
        .ok_or_else(|| {
            let why = "there is no cluster of this name";
            Error::new(ErrorKind::NotFound, format!("attach to cluster {name}"), why).with_hint(
            "`barewire cluster show` lists those that run; start one with `barewire cluster run`",
        )
        })
}

/// Lists the sockets of clusters, sorted by name; their owners may have exited.
pub fn list() -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for place in places() {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            let is_new = !found.iter().any(|(other, _)| *other == name);
            if is_new && check_name(&name).is_ok() && is_socket(&entry.path()) {
                found.push((name, entry.path()));
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_directory() {
        for name in ["x", "ids-1", "a.b_c", "99", &"n".repeat(NAME_LEN_MAX)] {
            check_name(name).unwrap();
        }
        for name in [
            "",
            ".",
            "..",
            ".x",
            "-7",
            "a/b",
            "a b",
            "é",
            &"n".repeat(33),
        ] {
            assert_eq!(
                check_name(name).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            assert!(find(name).is_err());
        }
        let missing = find("barewire-test-missing").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
