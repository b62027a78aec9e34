//! The programs and libraries under test, built if needed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// The `barewire` binary of this build.
///
/// `BAREWIRE_BIN` names another one (a release build, an installed package). Otherwise cargo is run
/// once per process to bring `target/PROFILE/barewire` up to date, so that tests never run an old
/// program.
///
/// # Errors
/// If it does not build.
pub fn barewire() -> Result<PathBuf> {
    static BUILT: Built = OnceLock::new();
    build_once(&BUILT, "BAREWIRE_BIN", &["--bin", "barewire"], "barewire")
}

/// The program of an example of the facade crate, built if needed, as [`barewire`].
///
/// # Errors
/// If it does not build.
pub fn example(name: &str) -> Result<PathBuf> {
    build(&["--examples"], &format!("examples/{name}"))
}

/// The `libpcap.so` of this build, built if needed, as [`barewire`]. `BAREWIRE_LIBPCAP` names
/// another one.
///
/// # Errors
/// If it does not build.
pub fn libpcap() -> Result<PathBuf> {
    static BUILT: Built = OnceLock::new();
    build_once(&BUILT, "BAREWIRE_LIBPCAP", &["--lib"], "libpcap.so")
}

/// Path of `libpfring.so`, built if needed; `BAREWIRE_LIBPFRING` names another one.
///
/// # Errors
/// If it does not build.
pub fn libpfring() -> Result<PathBuf> {
    static BUILT: Built = OnceLock::new();
    build_once(&BUILT, "BAREWIRE_LIBPFRING", &["--lib"], "libpfring.so")
}

type Built = OnceLock<Result<PathBuf, String>>;

/// The variable with a file that is created when a test asks for a program or library:
/// `cargo xtask test dead` replaces them, and such a test must not pass.
const ASKED_VAR: &str = "BAREWIRE_ASKED";

/// The file that an environment variable names, or else one that is built once per process.
fn build_once(built: &Built, variable: &str, targets: &[&str], file: &str) -> Result<PathBuf> {
    if let Some(asked) = std::env::var_os(ASKED_VAR) {
        std::fs::write(asked, variable)?;
    }
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let result = built.get_or_init(|| build(targets, file).map_err(|error| format!("{error:#}")));
    result.clone().map_err(anyhow::Error::msg)
}

/// The program behind `cargo xtask`, built if needed, as [`barewire`].
///
/// # Errors
/// If it does not build.
pub fn xtask() -> Result<PathBuf> {
    build(&["--bin", "barewire-xtask"], "barewire-xtask")
}

/// Builds targets of the workspace in the profile of the tests; returns the path of `program` in
/// the build directory.
fn build(targets: &[&str], program: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let (directory, target, profile) = place_of(&test)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(cargo);
    command
        .current_dir(&root)
        // The whole workspace, of which only this is built: with a single package, its dependencies
        // would have other features than in a run of all tests, and be rebuilt.
        .args(["build", "--quiet", "--workspace"])
        .args(targets)
        .args(["--profile", profile, "--target-dir"])
        .arg(target);
    crate::netns::run_checked(&mut command)?;
    let binary = directory.join(program);
    if !binary.is_file() {
        bail!("{} is not there after the build", binary.display());
    }
    Ok(binary)
}

/// The build directory of a test, cargo's target directory, and the build's profile:
/// `target/PROFILE/deps/TEST-HASH`.
fn place_of(test: &Path) -> Result<(&Path, &Path, &str)> {
    let directory = test
        .ancestors()
        .skip(1)
        .find(|directory| directory.file_name() != Some(OsStr::new("deps")))
        .context("the test binary has no directory")?;
    let target = directory.parent().context("the build has no directory")?;
    let profile = match directory.file_name().and_then(OsStr::to_str) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => bail!("{} is not a build directory", directory.display()),
    };
    Ok((directory, target, profile))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_directory_is_found() {
        // Nothing is built, because that would wait for a running build. The tests of the command
        // do that.
        let test = std::env::current_exe().unwrap();
        let (directory, target, _) = place_of(&test).unwrap();
        assert!(directory.join("deps").is_dir() && test.starts_with(directory));
        assert_eq!(directory.parent(), Some(target));
        for (test, profile) in [
            ("/t/debug/deps/all-1", "dev"),
            ("/t/release/all-1", "release"),
        ] {
            let (directory, target, found) = place_of(Path::new(test)).unwrap();
            assert_eq!((target, found), (Path::new("/t"), profile), "{directory:?}");
        }
        assert!(place_of(Path::new("/all-1")).is_err());
    }
}
