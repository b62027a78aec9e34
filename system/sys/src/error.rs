//! The error type of the control path: what was tried, why it failed, and what to do next.
//!
//! The packet path never creates such an error: a refused packet has a one-byte reason and a
//! counter.

use std::fmt;
use std::io;

use crate::create::kept::{IsInput, is_input_error};

/// The result of an operation on the control path.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of failure: programs branch on it, people read the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The interface, file or queue does not exist.
    NotFound,
    /// The process lacks a privilege (a capability, a file permission, locked memory).
    Permission,
    /// The kernel, driver or library cannot do it; see [`Unsupported`].
    Unsupported,
    /// The resource is in use.
    Busy,
    /// The caller's arguments are invalid.
    InvalidInput,
    /// The device disappeared while in use.
    Gone,
    /// The interface is down; packets pass again once it is up.
    Down,
    /// Input is damaged; the text carries the offset in bytes.
    Damaged,
    /// No space left: disk, memory, pool.
    NoSpace,
    /// The run is complete, but an export lost records.
    Lost,
    /// The run was stopped before it was complete; what is done is valid.
    Incomplete,
    /// Any other failure of the system.
    Io,
}

/// A kernel release, for example 6.18.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// The 6 of 6.18.
    pub major: u16,
    /// The 18 of 6.18.
    pub minor: u16,
}

impl KernelVersion {
    /// Short form for tables.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// The version of the running kernel, from `/proc/sys/kernel/osrelease`; `None` if that cannot
    /// be read.
    pub fn running() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        let mut parts = text.trim().split(|c: char| !c.is_ascii_digit());
        Some(Self {
            major: parts.next()?.parse().ok()?,
            minor: parts.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A feature that this kernel or driver lacks: separate from other failures, because the hint names
/// what would provide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The feature's name in the kernel documentation.
    pub feature: &'static str,
    /// The first kernel that has it, if known.
    pub since: Option<KernelVersion>,
}

/// An error of the control path. `Display` prints "cannot WHAT: WHY"; [`Error::hint`] continues its
/// own line.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    why: String,
    hint: Option<String>,
    unsupported: Option<Unsupported>,
    source: Option<io::Error>,
}

impl Error {
    /// An error with its texts: `what` completes "cannot …", `why` is the reason in plain words.
    pub fn new(kind: ErrorKind, what: impl Into<String>, why: impl Into<String>) -> Self {
        let (what, why) = (what.into(), why.into());
        Self {
            kind,
            what,
            why,
            hint: None,
            unsupported: None,
            source: None,
        }
    }

    /// A failed system call: the kind follows from the errno.
    pub fn from_io(what: impl Into<String>, source: io::Error) -> Self {
        let kind = match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => ErrorKind::NotFound,
            Some(libc::EPERM | libc::EACCES) => ErrorKind::Permission,
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => {
                ErrorKind::Unsupported
            }
            Some(libc::EBUSY | libc::EEXIST | libc::EADDRINUSE) => ErrorKind::Busy,
            Some(libc::EINVAL | libc::ERANGE) => ErrorKind::InvalidInput,
            Some(libc::ENETDOWN) => ErrorKind::Gone,
            Some(libc::ENOSPC | libc::ENOMEM | libc::ENOBUFS | libc::EDQUOT) => ErrorKind::NoSpace,
            None if is_input_error(&source) => {
                return Self::new(ErrorKind::InvalidInput, what, IsInput.to_string())
                    .with_hint(IsInput::HINT);
            }
            _ => ErrorKind::Io,
        };
        let why = source.to_string();
        Self {
            source: Some(source),
            ..Self::new(kind, what, why)
        }
    }

    /// The failure described by the current `errno`.
    pub fn last_os(what: impl Into<String>) -> Self {
        Self::from_io(what, io::Error::last_os_error())
    }

    /// The error for a feature that is not present.
    pub fn unsupported(what: impl Into<String>, feature: Unsupported) -> Self {
        let why = match (feature.since, KernelVersion::running()) {
            (Some(since), Some(now)) => {
                format!("{} needs Linux {since}, this is {now}", feature.feature)
            }
            (Some(since), None) => format!("{} needs Linux {since}", feature.feature),
            (None, _) => format!("{} is not supported here", feature.feature),
        };
        Self {
            unsupported: Some(feature),
            ..Self::new(ErrorKind::Unsupported, what, why)
        }
    }

    /// What to do next, printed on a `hint:` line.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with a better reason than the text of the errno.
    #[must_use]
    pub fn with_why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// The same error with another kind.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The reason alone.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// What to do next, if we know.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The feature that is missing, if that is what went wrong.
    pub fn missing_feature(&self) -> Option<Unsupported> {
        self.unsupported
    }

    /// The errno, if a system call failed.
    pub fn os_code(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.what, self.why)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_what_and_why() {
        let e = Error::from_io("open eth9", io::Error::from_raw_os_error(libc::ENODEV))
            .with_why("no such interface")
            .with_hint("barewire devices lists them");
        assert_eq!(e.to_string(), "cannot open eth9: no such interface");
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert_eq!(e.os_code(), Some(libc::ENODEV));
        assert!(e.hint().is_some());
    }

    #[test]
    fn running_kernel_is_known() {
        assert!(KernelVersion::running().is_some_and(|v| v > KernelVersion::new(2, 6)));
    }
}
