//! The Debian package (Debian Policy; deb(5), deb-control(5)), built by dpkg-deb alone, without
//! debhelper.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result};

use super::tree::Tree;
use super::{Parts, UNITS, binary};
use crate::run::{quietly, root};

/// Scripts of `dist/deb` that dpkg runs.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// The configuration file; dpkg asks before it replaces a changed one.
const CONFIGURATION: &str = "etc/barewire/flows-example.toml";

/// The maintainer of the package unless `DEBFULLNAME` and `DEBEMAIL` (debchange(1)) are set.
const MAINTAINER: (&str, &str) = ("barewire packagers", "packagers@barewire.invalid");

/// Builds the package.
pub fn make(parts: &Parts) -> Result<()> {
    let tree = Tree::new(parts.work.join("deb"))?;
    parts.common(&tree, "usr")?;
    for service in UNITS {
        let place = format!("usr/lib/systemd/system/{service}");
        tree.copy(&root().join("dist").join(service), &place, 0o644)?;
    }
    tree.copy(
        &root().join("dist/flows-example.toml"),
        CONFIGURATION,
        0o644,
    )?;
    documents(parts, &tree)?;
    let installed: u64 = tree
        .files()?
        .iter()
        .map(|file| fs::metadata(tree.root().join(file)).map_or(0, |file| file.len()))
        .sum();
    let sums = quietly(
        Command::new("md5sum")
            .current_dir(tree.root())
            .arg("--")
            .args(tree.files()?),
    )?;
    tree.text(&sums, "DEBIAN/md5sums", 0o644)?;
    tree.text(&format!("/{CONFIGURATION}\n"), "DEBIAN/conffiles", 0o644)?;
    let control = control(parts, installed.div_ceil(1024))?;
    tree.text(&control, "DEBIAN/control", 0o644)?;
    for script in SCRIPTS {
        let from = root().join("dist/deb").join(script);
        tree.copy(&from, &format!("DEBIAN/{script}"), 0o755)?;
    }
    let file = parts
        .out
        .join(format!("barewire_{}_{}.deb", parts.version, parts.arch));
    let mut command = Command::new("dpkg-deb");
    command.env("SOURCE_DATE_EPOCH", parts.epoch.to_string());
    command.args(["--root-owner-group", "-Zxz", "--build"]);
    quietly(command.arg(tree.root()).arg(&file))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

fn maintainer() -> String {
    let of = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let (name, address) = MAINTAINER;
    format!("{} <{}>", of("DEBFULLNAME", name), of("DEBEMAIL", address))
}

fn control(parts: &Parts, installed_kib: u64) -> Result<String> {
    let text = fs::read_to_string(root().join("dist/deb/control")).context("dist/deb/control")?;
    let values = [
        ("@VERSION@", parts.version.clone()),
        ("@ARCHITECTURE@", parts.arch.clone()),
        ("@MAINTAINER@", maintainer()),
        ("@INSTALLED@", installed_kib.to_string()),
        ("@LIBC@", binary::libc_version(&parts.binary)?),
    ];
    Ok(values
        .iter()
        .fold(text, |text, (name, value)| text.replace(name, value)))
}

/// Changelogs, copyright, and the licences of linked crates.
fn documents(parts: &Parts, tree: &Tree) -> Result<()> {
    let doc = "usr/share/doc/barewire";
    let changes = fs::read(root().join("CHANGELOG.md"))?;
    tree.packed(&changes, &format!("{doc}/CHANGELOG.md.gz"))?;
    let log = format!(
        "barewire ({}) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- {}  {}\n",
        parts.version,
        maintainer(),
        parts.date("-R")?
    );
    tree.packed(log.as_bytes(), &format!("{doc}/changelog.gz"))?;
    tree.packed(&parts.notices, &format!("{doc}/THIRD-PARTY-LICENSES.gz"))?;
    let mit = fs::read_to_string(root().join("LICENSE-MIT"))?;
    let copyright = fs::read_to_string(root().join("dist/deb/copyright"))?;
    let mut copyright = copyright.trim_end().to_owned() + "\n";
    for line in mit.trim().lines() {
        copyright += &match line.trim() {
            "" => " .\n".to_owned(),
            line => format!(" {line}\n"),
        };
    }
    tree.text(&copyright, &format!("{doc}/copyright"), 0o644)
}
