//! Restricts a process permanently to some files and directories (landlock(7)), even if it runs as
//! root: a parser subverted by packets can access no others.
//!
//! Landlock restricts the calling thread and the threads and processes it starts later: call
//! [`confine`] before starting threads. Open descriptors are not restricted.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::{Error, ErrorKind, Result};

/// What stays allowed on a file, or on a directory and everything below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read files, list directories.
    Read,
    /// Also write existing files, and call any ioctl(2) of devices.
    Devices,
    /// Delete files, nothing else.
    Delete,
    /// Read, write, create, rename and delete files; create directories.
    Write,
}

/// A path that stays accessible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The file or directory. One that does not exist is skipped.
    pub path: PathBuf,
    /// What may be done there.
    pub access: Access,
}

/// Access rights to files (Linux `include/uapi/linux/landlock.h`, `LANDLOCK_ACCESS_FS_`), by the
/// version of the ABI that added them.
mod right {
    pub(super) const WRITE_FILE: u64 = 1 << 1;
    pub(super) const READ_FILE: u64 = 1 << 2;
    pub(super) const READ_DIR: u64 = 1 << 3;
    pub(super) const REMOVE_FILE: u64 = 1 << 5;
    pub(super) const MAKE_DIR: u64 = 1 << 7;
    pub(super) const MAKE_REG: u64 = 1 << 8;
    pub(super) const REFER: u64 = 1 << 13;
    pub(super) const TRUNCATE: u64 = 1 << 14;
    pub(super) const IOCTL_DEV: u64 = 1 << 15;
    /// The rights that apply to files; the others apply to directories only.
    pub(super) const OF_FILES: u64 = 1 | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
}

impl Access {
    const fn rights(self) -> u64 {
        use right::*;
        match self {
            Access::Read => READ_FILE | READ_DIR,
            Access::Devices => READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | IOCTL_DEV,
            Access::Delete => REMOVE_FILE,
            Access::Write => {
                let of_files = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE;
                of_files | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER
            }
        }
    }
}

/// All access rights to files in a version of the ABI. Versions 5 to 7 added none, and rights of
/// later versions are not restricted.
const fn known(abi: u32) -> u64 {
    match abi {
        0 => 0,
        1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    }
}

// The same numbers on every architecture.
const CREATE_RULESET: libc::c_long = 444;
const ADD_RULE: libc::c_long = 445;
const RESTRICT_SELF: libc::c_long = 446;
/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION: u32 = 1;
/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: libc::c_int = 1;

/// `struct landlock_ruleset_attr` as of version 1: what is not in it is not restricted.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// The version of Landlock's ABI in the running kernel.
///
/// # Errors
/// Why there is none: not built in, not turned on at boot, refused by a container's seccomp filter.
pub fn abi() -> Result<u32> {
    let nothing = std::ptr::null::<RulesetAttr>();
    // SAFETY: a plain system call; without attributes it reads no memory.
    let version = unsafe { libc::syscall(CREATE_RULESET, nothing, 0usize, VERSION) };
    match u32::try_from(version) {
        Ok(version) => Ok(version),
        Err(_) => Err(absent(io::Error::last_os_error())),
    }
}

fn absent(error: io::Error) -> Error {
    let (why, hint) = match error.raw_os_error() {
        Some(libc::ENOSYS) => (
            "the kernel does not support it",
            "use Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK",
        ),
        Some(libc::EOPNOTSUPP) => (
            "it was not enabled at boot",
            "add landlock to lsm= on the kernel's command line",
        ),
        Some(libc::EPERM) => (
            "a seccomp filter, such as a container's, blocks it",
            "allow landlock_create_ruleset, landlock_add_rule and landlock_restrict_self there",
        ),
        _ => return Error::from_io("use Landlock", error),
    };
    Error::new(ErrorKind::Unsupported, "use Landlock", why).with_hint(hint)
}

/// Restricts this thread, and everything it starts later, to the files of the rules, permanently;
/// programs can no longer gain privileges. Rights that the kernel does not know stay allowed.
/// Returns false if the kernel has no Landlock.
///
/// # Errors
/// The kernel's.
pub fn confine(rules: &[Rule]) -> Result<bool> {
    let Ok(abi) = abi() else {
        return Ok(false);
    };
    let failed = || Error::last_os("restrict access to files");
    let handled = known(abi);
    let attr = RulesetAttr {
        handled_access_fs: handled,
    };
    // SAFETY: the kernel reads as many bytes of `attr` as the length says, while it lives.
    let ruleset =
        unsafe { libc::syscall(CREATE_RULESET, &raw const attr, size_of_val(&attr), 0u32) };
    if ruleset < 0 {
        return Err(failed());
    }
    // SAFETY: the kernel has just made this descriptor, which nobody else owns.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset as libc::c_int) };
    for rule in rules {
        add(&ruleset, rule, handled)?;
    }
    // SAFETY: plain system calls with integers and an open descriptor.
    let result = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return Err(failed());
        }
        libc::syscall(RESTRICT_SELF, ruleset.as_raw_fd(), 0u32)
    };
    match result {
        0 => Ok(true),
        _ => match io::Error::last_os_error().raw_os_error() {
            // Too many rulesets restrict this thread already.
            Some(libc::E2BIG) => Ok(false),
            _ => Err(failed()),
        },
    }
}

fn add(ruleset: &OwnedFd, rule: &Rule, handled: u64) -> Result<()> {
    // `O_PATH`: opens only the location, which needs no access to the contents.
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_PATH);
    let Ok(place) = options.open(&rule.path) else {
        // What cannot be accessed now stays inaccessible.
        return Ok(());
    };
    let is_folder = place.metadata().is_ok_and(|data| data.is_dir());
    let possible = if is_folder { u64::MAX } else { right::OF_FILES };
    let attr = PathBeneathAttr {
        allowed_access: rule.access.rights() & possible & handled,
        parent_fd: place.as_raw_fd(),
    };
    if attr.allowed_access == 0 {
        return Ok(());
    }
    // SAFETY: the kernel reads `attr`, and the descriptor in it, which live through the call.
    let result = unsafe {
        let (ruleset, attr) = (ruleset.as_raw_fd(), &raw const attr);
        libc::syscall(ADD_RULE, ruleset, PATH_BENEATH, attr, 0u32)
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        // A pipe or socket: open descriptors are not restricted.
        Some(libc::EBADFD) => Ok(()),
        _ => Err(Error::last_os(format!(
            "keep access to {}",
            rule.path.display()
        ))),
    }
}

#[cfg(test)]
mod tests;
