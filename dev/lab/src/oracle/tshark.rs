//! tshark: what it dissects in a capture file, as rows of fields.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::checked;
use crate::netns::run_checked;

/// Between the fields of a row; no field of a packet prints it.
const SEPARATOR: char = '\u{1f}';

/// The values of `fields` for each packet of a file, in order. A field that a packet does not
/// have is empty; one that it has several times (an outer and an inner address) is joined by
/// commas. No names are resolved. `options` are added to tshark's command line, for example
/// `["-o", "ip.defragment:FALSE"]` or `["-Y", "tcp"]`.
///
/// # Errors
/// When tshark fails, as it does for a truncated file.
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
/// When tshark cannot be run.
pub fn version() -> Result<String> {
    let text = run_checked(quiet(Command::new("tshark").arg("--version")))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Keeps a user's own profile and plugins out of the answer.
fn quiet(command: &mut Command) -> &mut Command {
    let nowhere = "/nonexistent";
    command
        .env("WIRESHARK_CONFIG_DIR", nowhere)
        .env("WIRESHARK_PLUGIN_DIR", nowhere)
}
