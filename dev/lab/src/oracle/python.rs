//! Python with installed modules: DuckDB, Apache Arrow.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::skip::Missing;

/// A Python interpreter that has all of these modules: that of `cargo xtask setup`, else the
/// system's.
///
/// # Errors
/// [`Missing::Machine`] if there is none.
pub fn python(modules: &[&str]) -> Result<PathBuf, Missing> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python3");
    let import = format!("import {}", modules.join(", "));
    let has = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-c", &import]).stdin(Stdio::null());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    [own, PathBuf::from("python3")]
        .into_iter()
        .find(has)
        .ok_or_else(|| {
            let modules = modules.join(" and ");
            Missing::Machine(format!("Python with {modules} (cargo xtask setup)"))
        })
}
