//! Sessions (credentials(7)): which processes get a terminal's hangup and signals.

use crate::{Error, Result};

/// Puts this process into a new session without a terminal (setsid(2)).
///
/// # Errors
/// `Permission` if it leads a process group.
pub fn begin() -> Result<()> {
    // SAFETY: no memory is touched.
    match unsafe { libc::setsid() } {
        -1 => Err(Error::last_os("start a session")),
        _ => Ok(()),
    }
}
