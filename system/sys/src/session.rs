//! Sessions (credentials(7)): which processes get the hangup and the signals of a terminal.

use crate::{Error, Result};

/// Makes this process the first of a session of its own, without a terminal (setsid(2)).
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
