//! Checks disk space for a full build.
//!
//! Without enough space, linkers and tests fail far from the cause, so it is checked first.

use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::sys::statvfs::statvfs;

use crate::run::target_dir;

const GIB: u64 = 1 << 30;

/// Total for lints, docs, fuzz targets and tests, with room for files that tests write.
const NEEDED: u64 = 12 * GIB;

/// Refuses to start if the build directory has too little space for a full build.
///
/// # Errors
/// If there is too little, or it cannot be determined.
pub fn check() -> Result<()> {
    let folder = target_dir()?;
    let system = statvfs(&folder).with_context(|| folder.display().to_string())?;
    let free = system.blocks_available() * system.fragment_size();
    require(free, || size(&folder), &folder)
}

/// What is already built needs no more space.
fn require(free: u64, built: impl Fn() -> u64, folder: &Path) -> Result<()> {
    if free >= NEEDED || free + built() >= NEEDED {
        return Ok(());
    }
    bail!(
        "{} has {} GiB of free space, and a build of everything takes up to {} GiB: free some, or \
         set CARGO_TARGET_DIR to a folder on another disk",
        folder.display(),
        free / GIB,
        NEEDED / GIB
    )
}

/// Bytes of all files in a directory; what cannot be read does not count.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => size(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_is_an_error_with_a_hint() {
        let folder = Path::new("build");
        let none = || 0;
        assert!(require(NEEDED, none, folder).is_ok());
        assert!(require(GIB, || NEEDED - GIB, folder).is_ok());
        let error = require(2 * GIB, none, folder).unwrap_err().to_string();
        assert!(error.starts_with("build has 2 GiB"), "{error}");
        assert!(error.contains("CARGO_TARGET_DIR"), "{error}");
    }

    #[test]
    fn the_size_of_a_folder_is_that_of_its_files() {
        let folder = std::env::temp_dir().join(format!("bw-space-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("inner")).unwrap();
        std::fs::write(folder.join("a"), [0; 100]).unwrap();
        std::fs::write(folder.join("inner/b"), [0; 23]).unwrap();
        assert_eq!(size(&folder), 123);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
