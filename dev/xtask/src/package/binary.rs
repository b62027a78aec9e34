//! The program without debug information, which is in a separate file that gdb and addr2line find
//! by a link in the program (gdb, "Debugging Information in Separate Files").

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::quietly;

/// Splits a binary into `barewire` and `barewire.debug` in this directory; returns the path of the
/// first.
pub fn split(binary: &Path, out: &Path) -> Result<PathBuf> {
    let (program, debug) = (out.join("barewire"), out.join("barewire.debug"));
    // The file of an earlier run would be kept as the information of this one.
    let _ = fs::remove_file(&debug);
    quietly(
        Command::new("objcopy")
            .arg("--only-keep-debug")
            .arg(binary)
            .arg(&debug),
    )?;
    let strip = ["--strip-debug", "--strip-unneeded"];
    // By file name alone: the link names no directory, so the file can be next to the program.
    let link = "--add-gnu-debuglink=barewire.debug";
    let mut command = Command::new("objcopy");
    command.current_dir(out).args(strip).arg(link);
    quietly(
        command
            .args(["--remove-section=.comment"])
            .arg(binary)
            .arg(&program),
    )?;
    Ok(program)
}

/// The newest version of the C library whose symbols a binary needs: `2.34`.
pub fn libc_version(binary: &Path) -> Result<String> {
    let mut command = Command::new("readelf");
    let output = quietly(command.args(["--wide", "--version-info"]).arg(binary))?;
    newest(&output).with_context(|| format!("{} needs no GLIBC", binary.display()))
}

fn newest(output: &str) -> Option<String> {
    let versions = output.split("GLIBC_").skip(1);
    let numbers = versions.filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let text = &rest[..end.unwrap_or(rest.len())];
        let parts: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        parts
    });
    let parts: Vec<String> = numbers.max()?.iter().map(ToString::to_string).collect();
    Some(parts.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let output = "  0x0010: Name: GLIBC_2.9  Flags: none\n  0x0020: Name: GLIBC_2.34\n\
                      0x0030: Name: GLIBC_2.3.4  Flags: none\n  GLIBC_PRIVATE GCC_4.2.0\n";
        assert_eq!(newest(output).as_deref(), Some("2.34"));
        assert_eq!(newest("GCC_3.0"), None);
    }
}
