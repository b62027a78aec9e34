//! `cargo xtask package`: the packages that users install. A stripped binary with separate debug
//! information, a Debian package, a tarball, a container image, and the crates as published to a
//! registry.
//!
//! The same sources, compiler and machine give the same bytes: file times are that of the last
//! commit.

mod archive;
mod binary;
mod crates;
mod deb;
mod image;
mod notices;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::run::{cargo, quietly, root, take_option, target_dir, visibly, which};
use tree::Tree;

/// Units of systemd, in `dist`.
const UNITS: [&str; 2] = ["barewire-flows@.service", "barewire-cluster@.service"];

/// Builds one kind of package.
type Make = fn(&Parts) -> Result<()>;

/// All kinds of packages. A new one is a row.
const KINDS: &[(&str, Make)] = &[
    ("deb", deb::make),
    ("tarball", archive::make),
    ("image", image::make),
    ("crates", crates::make),
];

/// Programs that are run, and the Debian package of each.
const PROGRAMS: &[(&str, &str)] = &[
    ("dpkg", "dpkg"),
    ("dpkg-deb", "dpkg"),
    ("gzip", "gzip"),
    ("ldd", "libc-bin"),
    ("objcopy", "binutils"),
    ("readelf", "binutils"),
    ("sha256sum", "coreutils"),
    ("tar", "tar"),
];

/// Shells, and the paths of their completion scripts below the prefix.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/barewire"),
    ("zsh", "share/zsh/vendor-completions/_barewire"),
    ("fish", "share/fish/vendor_completions.d/barewire.fish"),
];

/// Inputs of all kinds.
pub struct Parts {
    /// Output directory.
    out: PathBuf,
    /// Temporary directory, removed at the end.
    work: PathBuf,
    version: String,
    /// Debian's name of the architecture: `amd64`.
    arch: String,
    /// The stripped binary.
    binary: PathBuf,
    /// Licences of the crates in the binary.
    notices: Vec<u8>,
    /// Time of every file, in seconds since 1970.
    epoch: u64,
}

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let given = take_option(&mut args, "--binary")?.map(PathBuf::from);
    let out = take_option(&mut args, "--out")?.map(PathBuf::from);
    for arg in &args {
        if !KINDS.iter().any(|(name, _)| name == arg) {
            let kinds: Vec<_> = KINDS.iter().map(|(name, _)| *name).collect();
            bail!(
                "no such package: {arg:?}\nhint: there are {}",
                kinds.join(", ")
            );
        }
    }
    for (name, package) in PROGRAMS {
        ensure!(
            which(name).is_some(),
            "{name} is missing\nhint: apt-get install {package}"
        );
    }
    let out = match out {
        // cargo runs at the root of the repository, this process perhaps elsewhere.
        Some(out) => std::path::absolute(out)?,
        None => target_dir()?.join("package-out"),
    };
    let binary = match given {
        Some(binary) => std::path::absolute(binary)?,
        None => {
            visibly(cargo().args(["build", "--release", "--package", "barewire-cli"]))?;
            target_dir()?.join("release/barewire")
        }
    };
    ensure!(binary.is_file(), "{} is not there", binary.display());
    let work = out.join(".barewire-package");
    // Left behind by a run that was killed.
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
    let made = Parts::new(&binary, &out, &work).and_then(|parts| {
        let chosen = |name: &str| args.is_empty() || args.iter().any(|arg| arg == name);
        for (name, make) in KINDS.iter().filter(|(name, _)| chosen(name)) {
            make(&parts).with_context(|| format!("package {name}"))?;
        }
        Ok(())
    });
    let _ = fs::remove_dir_all(&work);
    made?;
    report(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Packages the crates below `target` and checks that the command builds from them.
pub fn verify_crates() -> Result<()> {
    let folder = target_dir()?.join("package-check");
    crates::verify(&folder.join("crates"), &folder.join("unpacked"))
}

impl Parts {
    fn new(binary: &Path, out: &Path, work: &Path) -> Result<Parts> {
        let output = quietly(Command::new(binary).arg("--version"))?;
        let version = output.trim().strip_prefix("barewire ");
        let version = version.with_context(|| format!("not barewire: {output:?}"))?;
        let arch = quietly(Command::new("dpkg").arg("--print-architecture"))?;
        Ok(Parts {
            binary: binary::split(binary, out)?,
            notices: notices::collect()?,
            version: version.to_owned(),
            arch: arch.trim().to_owned(),
            epoch: epoch()?,
            out: out.to_owned(),
            work: work.to_owned(),
        })
    }

    /// Files below a prefix such as `usr`: program, man pages, completions, dashboard.
    fn common(&self, tree: &Tree, prefix: &str) -> Result<()> {
        let at = |path: &str| format!("{prefix}/{path}");
        tree.copy(&self.binary, &at("bin/barewire"), 0o755)?;
        let pages = self.work.join("man");
        quietly(Command::new(&self.binary).arg("man").arg(&pages))?;
        for page in fs::read_dir(&pages)? {
            let page = page?;
            let name = page.file_name().to_string_lossy().into_owned();
            tree.packed(
                &fs::read(page.path())?,
                &at(&format!("share/man/man1/{name}.gz")),
            )?;
        }
        for (shell, path) in COMPLETIONS {
            let script = quietly(Command::new(&self.binary).args(["completions", shell]))?;
            tree.text(&script, &at(path), 0o644)?;
        }
        for name in ["grafana/barewire.json", "prometheus/barewire.rules.yml"] {
            let file = root().join("dist").join(name);
            tree.copy(&file, &at(&format!("share/barewire/{name}")), 0o644)?;
        }
        Ok(())
    }

    /// The path of a result: `barewire-0.1.0-amd64` and `rest`.
    fn named(&self, rest: &str) -> PathBuf {
        let name = format!("barewire-{}-{}{rest}", self.version, self.arch);
        self.out.join(name)
    }

    fn date(&self, form: &str) -> Result<String> {
        let at = format!("@{}", self.epoch);
        let date = quietly(
            Command::new("date")
                .env("LC_ALL", "C")
                .args(["-u", "-d", &at, form]),
        )?;
        Ok(date.trim().to_owned())
    }
}

/// The time of all files: `SOURCE_DATE_EPOCH` if set, else that of the last commit.
fn epoch() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().context("SOURCE_DATE_EPOCH");
    }
    let log = ["log", "-1", "--format=%ct"];
    let time = quietly(Command::new("git").current_dir(root()).args(log))
        .context("the time of the last commit; set SOURCE_DATE_EPOCH where there is no git")?;
    time.trim().parse().context("the time of the last commit")
}

/// The packages in a directory, including those of an earlier run; other files are ignored.
fn results(out: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(out)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && name.starts_with("barewire") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Writes the sums of all results, and prints their names and sizes.
fn report(out: &Path) -> Result<()> {
    let names = results(out)?;
    let sums = quietly(
        Command::new("sha256sum")
            .current_dir(out)
            .arg("--")
            .args(&names),
    )?;
    fs::write(out.join("SHA256SUMS"), sums)?;
    for name in &names {
        let len = fs::metadata(out.join(name))?.len();
        println!("{:>7.1} MB  {}", len as f64 / 1e6, out.join(name).display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_not_among_the_results() {
        let out = std::env::temp_dir().join(format!("bw-results-{}", std::process::id()));
        fs::create_dir_all(out.join("barewire-folder")).unwrap();
        for name in ["barewire_0.1.0_amd64.deb", "notes.txt", "SHA256SUMS"] {
            fs::write(out.join(name), name).unwrap();
        }
        let found = results(&out);
        fs::remove_dir_all(&out).unwrap();
        assert_eq!(found.unwrap(), ["barewire_0.1.0_amd64.deb"]);
    }
}
