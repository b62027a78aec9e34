//! Runs a program of unpacked packages in a root directory of its own, in which nothing of this
//! machine is but what it is given: an installed version of the same program has modules and
//! configuration where this one looks for its own.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::fetch::NoGuest;
use crate::run::{is_root, quietly};

/// Makes the root directory; the lab's tests run the same script.
const SCRIPT: &str = include_str!("../../../lab/src/unpacked.sh");

/// All of the program's environment.
const ENVIRONMENT: [&str; 4] = [
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/",
    "TZ=UTC",
    "LC_ALL=C",
];

/// Checks that root directories can be made here.
///
/// # Errors
/// [`NoGuest`] without root privileges on a machine that has no user namespaces for all.
pub fn check() -> Result<()> {
    if is_root() {
        return Ok(());
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--ipc", "--user", "--map-root-user", "true"]);
    if quietly(&mut command).is_err() {
        bail!(NoGuest("without root, QEMU needs user namespaces".into()));
    }
    Ok(())
}

/// A command line that runs a program, by its path in these packages, through the command
/// `through`. It sees the directories `given`, under their own paths. Its working directory stays,
/// if it is among them. Without root privileges, it is root in a user namespace.
pub fn words(packages: &Path, given: &[&Path], through: &[String], program: &Path) -> Vec<String> {
    let mut words: Vec<String> = ["env", "-i"].map(str::to_owned).into();
    words.extend(ENVIRONMENT.map(str::to_owned));
    words.extend(["unshare", "--mount", "--ipc"].map(str::to_owned));
    if !is_root() {
        words.extend(["--user", "--map-root-user"].map(str::to_owned));
    }
    words.push("--".into());
    words.extend(through.iter().cloned());
    words.extend(["sh", "-c", SCRIPT, "own-root"].map(str::to_owned));
    let paths = [packages].into_iter().chain(given.iter().copied());
    words.extend(paths.map(|path| path.display().to_string()));
    words.extend(["--".to_owned(), program.display().to_string()]);
    words
}
