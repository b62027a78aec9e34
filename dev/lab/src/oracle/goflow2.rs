//! goflow2, a collector that Debian does not package: built by `cargo xtask setup`.

use std::path::{Path, PathBuf};

use crate::skip::Missing;

/// The program.
///
/// # Errors
/// [`Missing::Machine`] if it has not been built.
pub fn goflow2() -> Result<PathBuf, Missing> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/goflow2/goflow2");
    match path.is_file() {
        true => Ok(path),
        false => Err(Missing::Machine("goflow2 (cargo xtask setup)".into())),
    }
}
