//! Programs that `cargo xtask setup` and `cargo xtask lab` have unpacked below `target`. Each runs
//! in a root directory of its own (`unpacked.sh`): whatever is installed, configured or running on
//! this machine, it sees nothing of it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::dropin::Dropin;
use crate::netns::Netns;
use crate::skip::{self, Missing};

/// Makes the root directory; xtask runs the same script for QEMU.
const SCRIPT: &str = include_str!("unpacked.sh");

/// All of the environment that programs get, besides [`Unpacked::with_variable`].
const ENVIRONMENT: [&str; 4] = [
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/",
    "TZ=UTC",
    "LC_ALL=C",
];

/// Sockets of the clusters of root.
const CLUSTERS: &str = "/run/barewire";

/// A program, and what it may see of this machine.
#[derive(Clone, Debug)]
pub struct Unpacked {
    packages: PathBuf,
    /// The path in its own root directory.
    program: String,
    given: Vec<PathBuf>,
    variables: Vec<OsString>,
    has_processes: bool,
    ends_with_parent: bool,
}

/// Checks that a root directory can be made: as root, or in a user namespace.
///
/// # Errors
/// Without either.
pub fn namespaces() -> Result<(), Missing> {
    static ARE_THERE: OnceLock<bool> = OnceLock::new();
    let probe = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--ipc", "--user", "--map-root-user", "true"]);
        command.output().is_ok_and(|done| done.status.success())
    };
    if skip::root().is_ok() || *ARE_THERE.get_or_init(probe) {
        return Ok(());
    }
    Err(Missing::Machine("root or user namespaces".into()))
}

impl Unpacked {
    /// The program at this path below a directory of `target`.
    ///
    /// # Errors
    /// If it was not unpacked, or cannot be run here.
    pub fn find(folder: &str, program: &str) -> Result<Unpacked, Missing> {
        namespaces()?;
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        Unpacked::at(&target.join(folder), program)
            .ok_or_else(|| Missing::Machine(format!("{folder} below target (cargo xtask setup)")))
    }

    /// The program at this path below a directory, if it is there.
    pub fn at(packages: &Path, program: &str) -> Option<Unpacked> {
        let packages = packages.canonicalize().ok()?;
        packages.join(program).is_file().then(|| Unpacked {
            packages,
            program: format!("/{program}"),
            given: Vec::new(),
            variables: Vec::new(),
            has_processes: false,
            ends_with_parent: false,
        })
    }

    /// The directory that it was unpacked to.
    pub fn packages(&self) -> &Path {
        &self.packages
    }

    /// Gives it a file or directory of this machine, which must exist when it starts. Its path is
    /// the same inside.
    #[must_use]
    pub fn with(mut self, path: impl Into<PathBuf>) -> Unpacked {
        self.given.push(path.into());
        self
    }

    /// Gives it this build's library, and with it the clusters that run.
    #[must_use]
    pub fn with_library(mut self, library: Option<&Dropin>) -> Unpacked {
        let Some(library) = library else { return self };
        let folder = library.folder();
        self.given.push(folder.to_owned());
        if Path::new(CLUSTERS).is_dir() {
            self.given.push(CLUSTERS.into());
        }
        self.with_variable("LD_LIBRARY_PATH", folder)
    }

    /// Adds a variable to its environment.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Unpacked {
        let mut variable = OsString::from(format!("{name}="));
        variable.push(value);
        self.variables.push(variable);
        self
    }

    /// Runs it as the first process of a process namespace: whatever it starts ends with it.
    #[must_use]
    pub fn with_processes(mut self) -> Unpacked {
        self.has_processes = true;
        self
    }

    /// Ends it with the thread that starts it.
    #[must_use]
    pub fn with_parent(mut self) -> Unpacked {
        self.ends_with_parent = true;
        self
    }

    /// Runs it, in a network namespace if one is given. Its working directory is that of the
    /// command, if it can see that.
    pub fn command(&self, ns: Option<&Netns>) -> Command {
        let mut words = self.words().into_iter();
        let first = words.next().unwrap_or_default();
        let mut command = match ns {
            Some(ns) => ns.command(first),
            None => Command::new(first),
        };
        command.args(words);
        command
    }

    /// The whole command line, to which arguments of the program can be added.
    pub fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        let mut add = |list: &[&str]| words.extend(list.iter().map(OsString::from));
        add(&["env", "-i"]);
        add(&ENVIRONMENT);
        words.extend(self.variables.iter().cloned());
        let mut add = |list: &[&str]| words.extend(list.iter().map(OsString::from));
        add(&["unshare", "--mount", "--ipc"]);
        if skip::root().is_err() {
            add(&["--user", "--map-root-user"]);
        }
        if self.has_processes {
            add(&["--pid", "--fork", "--kill-child"]);
        }
        add(&["--"]);
        if self.ends_with_parent {
            add(&["setpriv", "--pdeathsig", "KILL", "--"]);
        }
        add(&["sh", "-c", SCRIPT, "own-root"]);
        words.push(self.packages.clone().into());
        words.extend(self.given.iter().map(OsString::from));
        words.extend([OsString::from("--"), OsString::from(&self.program)]);
        words
    }
}
