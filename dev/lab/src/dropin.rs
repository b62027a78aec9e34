//! Runs programs with this build's `libpcap.so` or `libpfring.so`, and with the originals.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{libpcap, libpfring};
use crate::skip::which;

/// The dynamic linker's variable for library directories.
const FOLDERS: &str = "LD_LIBRARY_PATH";

/// Names under which programs look for the library.
const NAMES: [&str; 3] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"];

/// A directory with a library of this build under all its names, deleted on drop.
#[derive(Debug)]
pub struct Dropin {
    folder: PathBuf,
    name: &'static str,
}

impl Dropin {
    /// Builds `libpcap.so` if needed, and creates the directory.
    ///
    /// # Errors
    /// If it does not build, or the directory cannot be created.
    pub fn new() -> Result<Dropin> {
        Self::of(&libpcap()?, &NAMES)
    }

    /// Like [`new`](Self::new), for `libpfring.so`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn pfring() -> Result<Dropin> {
        Self::of(&libpfring()?, &["libpfring.so"])
    }

    fn of(library: &Path, names: &[&'static str]) -> Result<Dropin> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("barewire-dropin-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let name = names[0];
        let made = Dropin { folder, name };
        for name in names {
            // A copy: programs that drop privileges may not be able to read the build directory.
            let to = made.folder.join(name);
            if std::fs::hard_link(library, &to).is_err() {
                std::fs::copy(library, &to)?;
            }
        }
        Ok(made)
    }

    /// The directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The library under one of its names.
    pub fn library(&self) -> PathBuf {
        self.folder.join(self.name)
    }

    /// Runs a program with this build's library.
    pub fn command(&self, program: &str) -> Command {
        self.with(plain(program))
    }

    /// Runs a command with this build's library.
    pub fn with(&self, mut command: Command) -> Command {
        command.env(FOLDERS, &self.folder);
        command
    }
}

impl Drop for Dropin {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a program with the system's library.
pub fn original(program: &str) -> Command {
    let mut command = plain(program);
    command.env_remove(FOLDERS);
    command
}

fn plain(program: &str) -> Command {
    let mut command = Command::new(which(program).unwrap_or_else(|| program.into()));
    command.env("TZ", "UTC").env("LC_ALL", "C");
    command
}
