//! Confinement of a command once everything is open: drops privileges, then restricts access to
//! files, then blocks system calls.

mod files;

use sys::privileges::{self, Capability, User};
use sys::seccomp::{self, Keep};
use sys::{Error, ErrorKind, Result, landlock};

use port::PortName;

use crate::out::say;

pub use files::Files;

/// Options of confinement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct ConfineArgs {
    /// Do not restrict access to files once everything is open (Landlock)
    #[arg(long)]
    pub no_landlock: bool,
    /// Do not block system calls once everything is open (seccomp)
    #[arg(long)]
    pub no_seccomp: bool,
}

/// What a command still needs once everything is open.
#[derive(Clone, Debug)]
pub struct Needs {
    /// Files that it opens; `None`: any.
    pub files: Option<Files>,
    /// System calls.
    pub calls: Keep,
}

impl Needs {
    /// These files and those of the system, and none of the system calls that can be blocked except
    /// bpf(2) if `bpf`.
    pub fn files(files: Files, bpf: bool) -> Needs {
        Needs {
            files: Some(files),
            calls: Keep { exec: false, bpf },
        }
    }

    /// Adds the files that ports of these names delete when they are closed.
    ///
    /// # Errors
    /// As [`PortName::parse`].
    pub fn of_ports<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Result<Needs> {
        for name in names {
            let name = PortName::parse(name)?;
            let file = name.backend().and_then(|row| (row.deletes)(&name));
            if let (Some(files), Some(file)) = (&mut self.files, file) {
                files.delete(&file);
            }
        }
        Ok(self)
    }
}

impl ConfineArgs {
    /// Drops all privileges except those to keep, restricts access to the files needed and those of
    /// the system, and blocks system calls that no running command needs: starting programs,
    /// tracing, creating namespaces, changing mounts, modules, keys and the clock; and bpf(2),
    /// unless needed. Call it before threads are started.
    ///
    /// # Errors
    /// As [`privileges::drop_privileges`], [`landlock::confine`] and [`seccomp::confine`].
    pub fn drop_privileges(
        self,
        user: Option<&User>,
        keep: &[Capability],
        needs: &Needs,
    ) -> Result<()> {
        privileges::drop_privileges(user, keep)?;
        if let Some(files) = &needs.files
            && !self.no_landlock
        {
            // Many kernels lack it: `barewire doctor` reports that.
            landlock::confine(&files.rules())?;
        }
        if !self.no_seccomp && !seccomp::confine(needs.calls)? {
            say!("no system calls are blocked: seccomp is not available here");
        }
        Ok(())
    }

    /// Adds a hint to the error of a file opened later, if access to files is restricted.
    pub fn explain(self, error: Error) -> Error {
        let is_refusal = error.kind() == ErrorKind::Permission
            // A file named in another file.
            || error.why().contains("Permission denied");
        if self.no_landlock || !is_refusal || landlock::abi().is_err() {
            return error;
        }
        error.with_hint(
            "only directories in use at startup are accessible: restart, or use --no-landlock",
        )
    }
}
