//! Files that no output of this process may truncate: its inputs.
//!
//! A slip on the command line (two arguments swapped, one name given twice) must not destroy the
//! file that the command was to read. Like the umask, this holds for the whole process, and applies
//! wherever it creates a file: an output cannot forget it. Files are compared by device, inode and
//! time of birth, so that links and rotated names are recognized, and a new file with the inode of
//! a deleted input is none. A program that names no inputs here is not
//! affected.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

/// Device, inode and time of birth of a file; no time where the file system keeps none.
type Identity = (u64, u64, Option<SystemTime>);

/// Each input.
static INPUTS: RwLock<BTreeSet<Identity>> = RwLock::new(BTreeSet::new());

/// The error of an output that is also an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsInput;

impl IsInput {
    /// What to do about it.
    pub const HINT: &'static str = "write to another file, and rename it afterwards";
}

impl fmt::Display for IsInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is also an input file, and would be overwritten")
    }
}

impl std::error::Error for IsInput {}

impl From<IsInput> for io::Error {
    fn from(error: IsInput) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Whether an error is [`IsInput`].
pub fn is_input_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<IsInput>())
}

/// Names an input: from now on this process truncates it under no name. What is not a regular file
/// cannot be truncated, and is ignored.
pub fn keep_input(path: &Path) {
    // A path that cannot be read is reported when it is opened.
    if let Ok(data) = std::fs::metadata(path) {
        keep(&data);
    }
}

/// As [`keep_input`], for an open file such as standard input.
pub fn keep_open_input(file: &impl AsFd) {
    if let Some(data) = metadata_of(file) {
        keep(&data);
    }
}

/// Refuses an open file as an output, such as standard output, if it is an input: what is appended
/// to a file while it is read never ends, and a shell may have emptied it.
///
/// # Errors
/// [`IsInput`].
pub fn check_open_output(file: &impl AsFd) -> io::Result<()> {
    match metadata_of(file) {
        Some(data) if is_kept(&data) => Err(IsInput.into()),
        _ => Ok(()),
    }
}

/// Whether it is one of the inputs.
pub(super) fn is_kept(data: &Metadata) -> bool {
    let inputs = INPUTS.read().unwrap_or_else(PoisonError::into_inner);
    inputs.contains(&identity(data))
}

fn keep(data: &Metadata) {
    if data.is_file() {
        let mut inputs = INPUTS.write().unwrap_or_else(PoisonError::into_inner);
        inputs.insert(identity(data));
    }
}

fn identity(data: &Metadata) -> Identity {
    (data.dev(), data.ino(), data.created().ok())
}

fn metadata_of(file: &impl AsFd) -> Option<Metadata> {
    // The kernel's link to the open file, whatever its names are now.
    let fd = file.as_fd().as_raw_fd();
    std::fs::metadata(format!("/proc/self/fd/{fd}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_with_the_inode_of_a_deleted_input_is_none() {
        let name = format!("barewire-kept-inode-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut kept = BTreeSet::new();
        // Most file systems give an inode again soon. Times of birth may have the resolution of a
        // clock tick.
        for _ in 0..10 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            std::fs::write(&path, "x").unwrap();
            let data = std::fs::metadata(&path).unwrap();
            let is_new = kept.insert(data.ino());
            if data.created().is_ok() {
                assert!(!is_kept(&data), "a new file, its inode is new: {is_new}");
            }
            keep_input(&path);
            assert!(is_kept(&data));
            std::fs::remove_file(&path).unwrap();
        }
    }
}
