//! tshark: dissected fields of a capture file, in rows.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::checked;
use crate::netns::run_checked;

/// Separator of the fields of a row; it occurs in no field.
const SEPARATOR: char = '\u{1f}';

/// The values of `fields` for each packet of a file, in order. A missing field is empty; one that
/// occurs several times (an outer and an inner address) is joined by commas. Names are not
/// resolved. `options` are added to tshark's command line, for example `["-o",
/// "ip.defragment:FALSE"]` or `["-Y", "tcp"]`.
///
/// # Errors
/// If tshark fails, as it does for a truncated file.
pub fn fields(file: &Path, fields: &[&str], options: &[&str]) -> Result<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command
        .arg("-n")
        .arg("-r")
        .arg(file)
        .args(options)
        .args(["-T", "fields"]);
    command.arg("-E").arg(format!("separator={SEPARATOR}"));
    for field in fields {
        command.args(["-e", field]);
    }
    let text = checked(quiet(&mut command), file)?;
    Ok(text
        .lines()
        .map(|row| row.split(SEPARATOR).map(str::to_owned).collect())
        .collect())
}

/// The version, for messages: the first line of `tshark --version`.
///
/// # Errors
/// If tshark cannot be run.
pub fn version() -> Result<String> {
    let text = run_checked(quiet(Command::new("tshark").arg("--version")))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Keeps a user's own profile and plugins from affecting the output.
fn quiet(command: &mut Command) -> &mut Command {
    let nowhere = "/nonexistent";
    command
        .env("WIRESHARK_CONFIG_DIR", nowhere)
        .env("WIRESHARK_PLUGIN_DIR", nowhere)
}
