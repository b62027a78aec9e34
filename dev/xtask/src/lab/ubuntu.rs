//! Packages of Ubuntu, of programs that Debian no longer has, and of its kernel.
//!
//! Each is named by its path in the archive and its SHA-256, which apt compares; nothing else is
//! fetched from there, not even the lists of packages. The mirror is the one that debootstrap's
//! script for Ubuntu names, or that in `BAREWIRE_UBUNTU_MIRROR`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::{Apt, judged};
use crate::run::quietly;

/// Variable with the address of another mirror.
const MIRROR_VAR: &str = "BAREWIRE_UBUNTU_MIRROR";

/// apt's program that fetches one file.
const HELPER: &str = "/usr/lib/apt/apt-helper";

/// A package. Those of a release do not change, and stay as long as the release is supported.
pub struct Deb {
    /// Path below the mirror's address.
    pub path: &'static str,
    /// Hash of the whole file, in hexadecimal.
    pub sha256: &'static str,
}

/// Fetches packages and unpacks them below `into`.
///
/// # Errors
/// [`NoGuest`](super::fetch::NoGuest) if the mirror cannot be reached; another error if a file is
/// not what was expected.
pub fn unpack(apt: &Apt, debs: &[Deb], into: &Path) -> Result<()> {
    if debs.is_empty() {
        return Ok(());
    }
    let mirror = mirror(apt)?;
    std::fs::create_dir_all(into)?;
    for deb in debs {
        let file = apt.dir.join("ubuntu.deb");
        fetch(apt, &format!("{mirror}/{}", deb.path), deb.sha256, &file)?;
        quietly(Command::new("dpkg-deb").arg("-x").arg(&file).arg(into))?;
        std::fs::remove_file(&file)?;
    }
    Ok(())
}

/// Fetches one file and compares its hash.
fn fetch(apt: &Apt, address: &str, sha256: &str, to: &Path) -> Result<()> {
    eprintln!("fetching {address}");
    let _ = std::fs::remove_file(to);
    let mut command = apt.command(HELPER);
    command.arg("download-file").arg(address).arg(to);
    judged(command.arg(format!("SHA256:{sha256}"))).map(drop)
}

/// The mirror's address, without a slash at its end.
fn mirror(apt: &Apt) -> Result<String> {
    if let Ok(mirror) = std::env::var(MIRROR_VAR) {
        return Ok(mirror.trim_end_matches('/').to_owned());
    }
    let folder = apt.dir.join("debootstrap");
    let script = folder.join("usr/share/debootstrap/scripts/noble");
    if !script.is_file() {
        apt.unpack(&["debootstrap".into()], &folder)?;
    }
    let text = std::fs::read_to_string(&script).with_context(|| script.display().to_string())?;
    let found = mirror_of(&text).context("debootstrap's script names no mirror")?;
    Ok(found.to_owned())
}

/// The mirror of amd64, which is the first one that a script of debootstrap names.
fn mirror_of(script: &str) -> Option<&str> {
    let mut lines = script.lines().map(str::trim);
    let mirror = lines.find_map(|line| line.strip_prefix("default_mirror "))?;
    Some(mirror.trim().trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fetch::NoGuest;
    use crate::run::which;

    #[test]
    fn the_first_mirror_of_a_script_is_used() {
        let script = "case $ARCH in\n  amd64)\n    default_mirror http://one.example/u/\n    ;;\n\
                      *)\n    default_mirror http://two.example/u\n";
        assert_eq!(mirror_of(script), Some("http://one.example/u"));
        assert_eq!(mirror_of("mirror_style release\n"), None);
    }

    /// A file with another hash is a failure, and is not kept; a mirror that cannot be reached is
    /// none.
    #[test]
    fn files_with_another_hash_are_refused() {
        if which("apt-get").is_none() || !Path::new(HELPER).is_file() {
            skip::skip!("needs Debian's apt-get");
        }
        let dir = std::env::temp_dir().join(format!("barewire-ubuntu-{}", std::process::id()));
        let apt = Apt::of(&dir, &[]).unwrap();
        let (from, to) = (dir.join("there"), dir.join("here"));
        std::fs::write(&from, "abc").unwrap();
        let address = format!("copy:{}", from.display());
        // FIPS 180-2, B.1.
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        fetch(&apt, &address, hash, &to).unwrap();
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "abc");
        std::fs::write(&from, "abd").unwrap();
        let error = fetch(&apt, &address, hash, &to).unwrap_err();
        assert!(!error.is::<NoGuest>(), "{error:#}");
        assert!(error.to_string().contains("Hash Sum mismatch"), "{error:#}");
        assert!(!to.exists());
        let error = fetch(&apt, "http://127.0.0.1:9/x", hash, &to).unwrap_err();
        assert!(error.is::<NoGuest>(), "{error:#}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
