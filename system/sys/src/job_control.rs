//! Job control and the size of the terminal (credentials(7), signal(7)), for a program that draws
//! on a terminal: on `SIGTSTP` it must restore the terminal, and after `SIGCONT` or `SIGWINCH` it
//! must draw everything again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::signal::{install, is_ignored};
use crate::{Error, Result};

static SUSPEND: AtomicBool = AtomicBool::new(false);
static CONTINUED: AtomicBool = AtomicBool::new(false);
static RESIZED: AtomicBool = AtomicBool::new(false);

/// Signals since the last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The process is requested to stop (`SIGTSTP`): restore the terminal, then call [`suspend`].
    pub suspend: bool,
    /// The process was stopped and continues (`SIGCONT`): another program may have used the
    /// terminal.
    pub continued: bool,
    /// The terminal may have another size (`SIGWINCH`).
    pub resized: bool,
}

/// From now on the three signals are recorded for [`changes`], and `SIGTSTP` no longer stops the
/// process by itself. A `SIGTSTP` that is ignored (as in a shell without job control) stays
/// ignored.
///
/// # Errors
/// If a handler cannot be installed.
pub fn watch() -> Result<()> {
    if !is_ignored(libc::SIGTSTP) {
        install(libc::SIGTSTP, handle)?;
    }
    install(libc::SIGCONT, handle)?;
    install(libc::SIGWINCH, handle)
}

/// What was recorded since the last call.
pub fn changes() -> Changes {
    Changes {
        suspend: SUSPEND.swap(false, Ordering::Relaxed),
        continued: CONTINUED.swap(false, Ordering::Relaxed),
        resized: RESIZED.swap(false, Ordering::Relaxed),
    }
}

/// Sends `SIGTSTP` to the process group, as the terminal does at Ctrl-Z when it is not in raw mode:
/// all programs of a pipeline stop.
pub fn suspend_group() {
    // SAFETY: no memory is touched. It fails only if the signal must not be sent to any process.
    unsafe { libc::kill(0, libc::SIGTSTP) };
}

/// Stops this process with the default action of `SIGTSTP`, and returns when it is continued; at
/// once in an orphaned process group, where no shell could continue it.
///
/// # Errors
/// If the handler cannot be installed again.
pub fn suspend() -> Result<()> {
    if is_ignored(libc::SIGTSTP) {
        return Ok(());
    }
    // SAFETY: no handler is set, and no memory is touched.
    let result = unsafe {
        libc::signal(libc::SIGTSTP, libc::SIG_DFL);
        libc::raise(libc::SIGTSTP)
    };
    install(libc::SIGTSTP, handle)?;
    match result {
        0 => Ok(()),
        _ => Err(Error::last_os("stop the process")),
    }
}

/// A signal handler: it may interrupt anything, so it uses only atomics.
extern "C" fn handle(signal: libc::c_int) {
    let flag = match signal {
        libc::SIGTSTP => &SUSPEND,
        libc::SIGCONT => &CONTINUED,
        _ => &RESIZED,
    };
    flag.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only test of this process that uses these signals.
    #[test]
    fn signals_are_recorded_once() {
        watch().unwrap();
        let before = changes();
        for signal in [libc::SIGWINCH, libc::SIGCONT] {
            crate::signal::send(std::process::id(), signal).unwrap();
        }
        // A signal to the process may be delivered in another thread.
        let mut seen = before;
        while !(seen.resized && seen.continued) {
            let more = changes();
            seen.resized |= more.resized;
            seen.continued |= more.continued;
            std::thread::yield_now();
        }
        let after = changes();
        assert!(!after.resized && !after.continued && !after.suspend);
    }
}
