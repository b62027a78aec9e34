//! The crates as published to a registry, and a check that the command builds from nothing else:
//! files that `cargo package` leaves out are detected before a release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Parts;
use crate::run::{cargo, quietly, root, target_dir, visibly};

/// Crates that are only for the workspace.
const NOT_PUBLISHED: [&str; 4] = [
    "barewire-bench",
    "barewire-lab",
    "barewire-skip",
    "barewire-xtask",
];

/// The version of all crates of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The crate for `cargo install`.
const PROGRAM: &str = "barewire-cli";

/// Packages the crates, and checks them.
pub fn make(parts: &Parts) -> Result<()> {
    verify(&parts.out.join("crates"), &parts.work.join("crates"))
}

/// Writes the packaged crates to one directory and unpacks them in another, which is created anew;
/// checks that the command builds there.
pub fn verify(to: &Path, folder: &Path) -> Result<()> {
    let target = target_dir()?;
    let mut package = vec![
        "package",
        "--quiet",
        "--workspace",
        "--no-verify",
        "--allow-dirty",
    ];
    package.extend(NOT_PUBLISHED.iter().flat_map(|name| ["--exclude", name]));
    visibly(cargo().args(package).arg("--target-dir").arg(&target))?;
    for folder in [to, folder] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let ending = format!("-{VERSION}.crate");
    let mut names = Vec::new();
    for entry in fs::read_dir(target.join("package"))? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(&ending) else {
            continue;
        };
        fs::copy(entry.path(), to.join(&file))?;
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(entry.path()).arg("-C").arg(folder);
        quietly(&mut tar)?;
        names.push(name.to_owned());
    }
    names.sort();
    ensure!(
        names.iter().any(|name| name == PROGRAM),
        "cargo package made no {PROGRAM}"
    );
    check(folder, &names, &target)
}

/// Checks the command with every crate of the workspace taken from the directory. External crates
/// are those of `Cargo.lock`, and built already.
fn check(folder: &Path, names: &[String], target: &Path) -> Result<()> {
    let of = |name: &str| -> PathBuf { folder.join(format!("{name}-{VERSION}")) };
    let mut config = profile()? + "[patch.crates-io]\n";
    for name in names.iter().filter(|name| *name != PROGRAM) {
        config += &format!("{name} = {{ path = {:?} }}\n", of(name));
    }
    let file = folder.join("patch.toml");
    fs::write(&file, config).with_context(|| file.display().to_string())?;
    let mut command = cargo();
    command
        .current_dir(of(PROGRAM))
        .args(["check", "--quiet", "--config"]);
    command.arg(&file).arg("--target-dir").arg(target);
    visibly(&mut command)
}

/// The profile of the workspace: with another one all external crates would be checked again.
fn profile() -> Result<String> {
    let text = fs::read_to_string(root().join("Cargo.toml")).context("Cargo.toml")?;
    let (_, rest) = text
        .split_once("[profile.dev]\n")
        .context("no [profile.dev]")?;
    let lines: Vec<&str> = rest
        .lines()
        .take_while(|line| !line.starts_with('['))
        .collect();
    Ok(format!("[profile.dev]\n{}\n", lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_that_of_the_workspace() {
        let profile = profile().unwrap();
        assert!(
            profile.starts_with("[profile.dev]\nopt-level = "),
            "{profile}"
        );
        assert_eq!(profile.matches('[').count(), 1, "{profile}");
    }
}
