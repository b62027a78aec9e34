//! Packages from Debian's suites without touching the machine: apt with lists, cache and sources
//! of its own, signatures checked with the system's Debian keyring, nothing installed.
//!
//! The mirror is the one that the machine uses already.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::run::{quietly, which};

/// Debian's keys, from the package debian-archive-keyring that every Debian has.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A private view of Debian's suites.
pub struct Apt {
    dir: PathBuf,
    /// Name of the machine's own release, for example bookworm.
    codename: String,
}

impl Apt {
    /// Writes sources into `dir` and fetches the lists: of the machine's release, its backports,
    /// and `suite`.
    ///
    /// # Errors
    /// When this is no Debian, or its mirror cannot be reached or does not sign what it gives.
    pub fn open(dir: &Path, suite: &str) -> Result<Apt> {
        ensure!(
            which("apt-get").is_some() && which("dpkg-deb").is_some(),
            "not a Debian: there is no apt-get"
        );
        ensure!(Path::new(KEYRING).is_file(), "{KEYRING} is not there");
        let release = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
        let codename = release
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
            .map(|name| name.trim_matches('"').to_owned())
            .context("/etc/os-release names no Debian release")?;
        let machine = machine_sources(&codename)?;
        let mirror = machine
            .iter()
            .find(|source| source.suite == codename)
            .map(|source| source.uri.clone())
            .with_context(|| format!("no mirror of {codename} in /etc/apt"))?;
        let mut sources = machine;
        for suite in [format!("{codename}-backports"), suite.to_owned()] {
            let source = Source {
                uri: mirror.clone(),
                suite,
            };
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        for part in ["lists/partial", "cache/archives/partial", "none"] {
            std::fs::create_dir_all(dir.join(part)).with_context(|| dir.display().to_string())?;
        }
        let lines: String = sources
            .iter()
            .map(|Source { uri, suite }| format!("deb [signed-by={KEYRING}] {uri} {suite} main\n"))
            .collect();
        std::fs::write(dir.join("sources.list"), lines)?;
        let apt = Apt {
            dir: dir.to_owned(),
            codename,
        };
        eprintln!("lab: fetching the lists of packages");
        // A transient failure of a mirror is a warning only unless told otherwise.
        let strict = ["-o", "APT::Update::Error-Mode=any", "update", "-qq"];
        quietly(apt.command("apt-get").args(strict))?;
        Ok(apt)
    }

    /// What would have to be installed for these packages here, from the machine's release with
    /// its backports; packages that are installed already are left out.
    pub fn missing_for(&self, packages: &[&str]) -> Result<Vec<String>> {
        let backports = format!("{}-backports", self.codename);
        let args = [
            "-t",
            &backports,
            "-qq",
            "--no-install-recommends",
            "--simulate",
            "install",
        ];
        let text = quietly(self.command("apt-get").args(args).args(packages))?;
        // Inst libfdt1 (1.6.1-4+b1 Debian:12.15/oldstable [amd64])
        let lines = text.lines().filter_map(|line| line.strip_prefix("Inst "));
        Ok(lines
            .filter_map(|line| {
                let (name, rest) = line.split_once(' ')?;
                let version = rest.split_once('(')?.1.split(' ').next()?;
                Some(format!("{name}={version}"))
            })
            .collect())
    }

    /// The packages that a package needs directly, without those that need not be there.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let text = quietly(self.command("apt-cache").args(["depends", package]))?;
        let names = text.lines().filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("Depends: ").map(str::to_owned)
        });
        Ok(names.collect())
    }

    /// Downloads these (`NAME`, `NAME=VERSION` or `NAME/SUITE`) and unpacks them below `into`.
    ///
    /// apt compares each file with the hash in the signed list.
    pub fn unpack(&self, packages: &[String], into: &Path) -> Result<()> {
        let debs = self.dir.join("debs");
        let _ = std::fs::remove_dir_all(&debs);
        std::fs::create_dir_all(&debs)?;
        std::fs::create_dir_all(into)?;
        for package in packages {
            eprintln!("lab: fetching {package}");
        }
        let mut command = self.command("apt-get");
        quietly(
            command
                .current_dir(&debs)
                .args(["-qq", "download"])
                .args(packages),
        )?;
        let mut count = 0;
        for entry in std::fs::read_dir(&debs)? {
            let mut unpack = Command::new("dpkg-deb");
            quietly(unpack.arg("-x").arg(entry?.path()).arg(into))?;
            count += 1;
        }
        if count < packages.len() {
            bail!("{count} of {} packages came", packages.len());
        }
        std::fs::remove_dir_all(&debs).context("removing the packages")
    }

    /// apt-get or apt-cache on the private folder.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let option = |name: &str, path: PathBuf| format!("{name}={}", path.display());
        let dir = &self.dir;
        for setting in [
            option("Dir::Etc::sourcelist", dir.join("sources.list")),
            option("Dir::Etc::sourceparts", dir.join("none")),
            option("Dir::Etc::preferencesparts", dir.join("none")),
            option("Dir::State::lists", dir.join("lists")),
            option("Dir::Cache", dir.join("cache")),
            // Also without the rights to switch to apt's own user.
            format!("APT::Sandbox::User={}", user()),
            "Acquire::Languages=none".into(),
            "Acquire::Retries=3".into(),
            // Catalogues of desktop software that some machines ask for.
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "Acquire::IndexTargets::deb::CNF::DefaultEnabled=false".into(),
        ] {
            command.args(["-o", &setting]);
        }
        command.env("LC_ALL", "C");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// The user that runs us, by name where root.
fn user() -> String {
    if crate::run::is_root() {
        "root".into()
    } else {
        nix::unistd::User::from_uid(nix::unistd::geteuid())
            .ok()
            .flatten()
            .map_or_else(|| "nobody".into(), |user| user.name)
    }
}

/// A suite at a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    uri: String,
    suite: String,
}

/// Sources of the machine that are of its release: the release itself, updates, security.
fn machine_sources(codename: &str) -> Result<Vec<Source>> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = std::fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort();
    let mut sources = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue;
        };
        let of_file = match file.extension().and_then(|e| e.to_str()) {
            Some("sources") => stanzas(&text),
            _ => one_line(&text),
        };
        sources.extend(of_file);
    }
    let ours = ["", "-updates", "-security"].map(|suffix| format!("{codename}{suffix}"));
    sources.retain(|source| ours.contains(&source.suite));
    let mut unique: Vec<Source> = Vec::new();
    for source in sources {
        if !unique.contains(&source) {
            unique.push(source);
        }
    }
    ensure!(!unique.is_empty(), "/etc/apt names no mirror of {codename}");
    Ok(unique)
}

/// Sources in deb822 form (sources.list(5)).
fn stanzas(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            let line = stanza.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.split_whitespace())
                .into_iter()
                .flatten()
        };
        if field("Enabled:").next() == Some("no") || !field("Types:").any(|word| word == "deb") {
            continue;
        }
        for uri in field("URIs:") {
            for suite in field("Suites:") {
                sources.push(Source {
                    uri: uri.into(),
                    suite: suite.into(),
                });
            }
        }
    }
    sources
}

/// Sources in the form of one line each: `deb [OPTIONS] URI SUITE COMPONENT…`.
fn one_line(text: &str) -> Vec<Source> {
    let lines = text.lines().filter_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']')?.1,
            None => rest,
        };
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        Some(Source {
            uri: uri.into(),
            suite: suite.into(),
        })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(uri: &str, suite: &str) -> Source {
        Source {
            uri: uri.into(),
            suite: suite.into(),
        }
    }

    #[test]
    fn both_forms_of_sources_are_read() {
        let text = "Types: deb\n# old\nURIs: http://one.example/debian\nSuites: a a-updates\n\
                    Components: main\n\nTypes: deb-src\nURIs: http://two.example\nSuites: a\n\n\
                    Types: deb\nEnabled: no\nURIs: http://three.example\nSuites: a\n";
        assert_eq!(
            stanzas(text),
            [
                source("http://one.example/debian", "a"),
                source("http://one.example/debian", "a-updates")
            ]
        );
        let text = "# deb http://no.example a main\ndeb http://one.example/debian a main contrib\n\
                    deb-src http://one.example/debian a main\n\
                    deb [arch=amd64 signed-by=/k] http://two.example b main\n";
        assert_eq!(
            one_line(text),
            [
                source("http://one.example/debian", "a"),
                source("http://two.example", "b")
            ]
        );
    }
}
