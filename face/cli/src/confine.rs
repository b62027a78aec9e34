//! Confinement of a command once everything is open: it drops privileges, then blocks system calls.

use sys::Result;
use sys::rights::{self, Capability, User};
use sys::seccomp::{self, Keep};

use crate::out::say;

/// Whether system calls are blocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct ConfineArgs {
    /// Do not give up system calls once everything is open (seccomp)
    #[arg(long)]
    pub no_seccomp: bool,
}

impl ConfineArgs {
    /// Drops all privileges except those to keep, and blocks the system calls that no command needs
    /// while it runs: starting programs, tracing others, changing mounts, modules, keys and the
    /// clock.
    ///
    /// # Errors
    /// As [`rights::give_up`] and [`seccomp::confine`].
    pub fn give_up(self, user: Option<&User>, keep: &[Capability]) -> Result<()> {
        rights::give_up(user, keep)?;
        self.calls(Keep::default())
    }

    /// Blocks system calls only.
    ///
    /// # Errors
    /// As [`seccomp::confine`].
    pub fn calls(self, keep: Keep) -> Result<()> {
        if !self.no_seccomp && !seccomp::confine(keep)? {
            say!("no system calls are given up: seccomp is not available here");
        }
        Ok(())
    }
}
