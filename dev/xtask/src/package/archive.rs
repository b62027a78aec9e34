//! The tarball, for systems without dpkg: it is installed by unpacking it below `/usr/local`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::tree::Tree;
use super::{Parts, UNITS};
use crate::run::{quietly, root};

/// Builds the tarball.
pub fn make(parts: &Parts) -> Result<()> {
    let name = format!("barewire-{}-{}", parts.version, parts.arch);
    let tree = Tree::new(parts.work.join("tarball"))?;
    parts.common(&tree, &name)?;
    for service in UNITS {
        let unit = std::fs::read_to_string(root().join("dist").join(service))?;
        let local = unit.replace("/usr/bin/barewire", "/usr/local/bin/barewire");
        ensure!(local != unit, "{service} does not start /usr/bin/barewire");
        let place = format!("{name}/lib/systemd/system/{service}");
        tree.text(&local, &place, 0o644)?;
    }
    let doc = format!("{name}/share/doc/barewire");
    for file in [
        "README.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "dist/flows-example.toml",
    ] {
        let last = file.rsplit('/').next().unwrap_or(file);
        tree.copy(&root().join(file), &format!("{doc}/{last}"), 0o644)?;
    }
    tree.bytes(
        &parts.notices,
        &format!("{doc}/THIRD-PARTY-LICENSES"),
        0o644,
    )?;
    let packed = parts.named(".tar.gz");
    let plain = parts.work.join("tarball.tar");
    tar(tree.root(), &[&name], &plain, parts.epoch)?;
    std::fs::write(packed, super::tree::gzip(&std::fs::read(plain)?)?)?;
    Ok(())
}

/// Packs members of a directory into a tar file whose bytes depend only on them.
pub fn tar(folder: &Path, members: &[&str], to: &Path, epoch: u64) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--format=ustar", "--sort=name", "--owner=0", "--group=0"]);
    command.args(["--numeric-owner", &format!("--mtime=@{epoch}")]);
    command
        .arg("--create")
        .arg("--file")
        .arg(to)
        .arg("-C")
        .arg(folder);
    quietly(command.arg("--").args(members)).map(drop)
}
