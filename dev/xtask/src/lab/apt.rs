//! Packages from Debian's suites without changing the machine: apt with its own lists, cache and
//! sources, signatures checked with the system's Debian keyring, nothing installed.
//!
//! The mirror is the one that the machine already uses.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::fetch::NoGuest;
use crate::run::{quietly, which};

/// Debian's keys, from the package debian-archive-keyring of every Debian system.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The release that everything comes from, from its backports if they have it: the guest is the
/// same on every machine.
pub const RELEASE: &str = "trixie";

/// A private view of Debian's suites.
pub struct Apt {
    pub(super) dir: PathBuf,
}

impl Apt {
    /// Writes sources to `dir` and fetches the lists: of [`RELEASE`], its backports, and `suites`.
    ///
    /// # Errors
    /// [`NoGuest`] if this is not Debian or its mirror cannot be reached; another error if the
    /// mirror's data is not signed.
    pub fn open(dir: &Path, suites: &[&str]) -> Result<Apt> {
        if which("apt-get").is_none() || which("dpkg-deb").is_none() {
            bail!(NoGuest("not a Debian: there is no apt-get".into()));
        }
        if !Path::new(KEYRING).is_file() {
            bail!(NoGuest(format!("not a Debian: there is no {KEYRING}")));
        }
        let codename = codename()?;
        let mirror = machine_sources(&codename)
            .into_iter()
            .find(|source| source.suite == codename)
            .map(|source| source.uri)
            .ok_or_else(|| NoGuest(format!("/etc/apt names no mirror of {codename}")))?;
        let mut sources = Vec::new();
        let usual = [RELEASE.to_owned(), backports()].into_iter();
        for suite in usual.chain(suites.iter().map(|suite| (*suite).to_owned())) {
            let source = Source {
                uri: mirror.clone(),
                suite,
            };
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        let apt = Apt::of(dir, &sources)?;
        eprintln!("lab: fetching the lists of packages");
        apt.update()?;
        Ok(apt)
    }

    /// A view of these sources; nothing is fetched yet.
    pub(super) fn of(dir: &Path, sources: &[Source]) -> Result<Apt> {
        for part in ["lists/partial", "cache/archives/partial", "none"] {
            std::fs::create_dir_all(dir.join(part)).with_context(|| dir.display().to_string())?;
        }
        let lines: String = sources
            .iter()
            .map(|Source { uri, suite }| format!("deb [signed-by={KEYRING}] {uri} {suite} main\n"))
            .collect();
        std::fs::write(dir.join("sources.list"), lines)?;
        // Nothing counts as installed in this view, whatever the machine has.
        std::fs::write(dir.join("status"), "")?;
        Ok(Apt {
            dir: dir.to_owned(),
        })
    }

    /// Fetches the lists.
    fn update(&self) -> Result<()> {
        // By default a transient failure of a mirror is only a warning.
        let strict = ["-o", "APT::Update::Error-Mode=any", "update", "-qq"];
        judged(self.command("apt-get").args(strict)).map(drop)
    }

    /// These packages and all their dependencies, down to the C library and its loader, each as
    /// `NAME=VERSION`.
    ///
    /// Including those installed here: the cache may be used on another machine.
    pub fn with_libraries(&self, packages: &[&str]) -> Result<Vec<String>> {
        let status = format!("Dir::State::status={}", self.dir.join("status").display());
        let mut command = self.command("apt-get");
        command.args(["-t", &backports(), "-o", &status, "-qq"]);
        command.args(["--no-install-recommends", "--simulate", "install"]);
        let text = judged(command.args(packages))?;
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

    /// The direct dependencies of a package, without optional ones.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let text = judged(self.command("apt-cache").args(["depends", package]))?;
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
        match packages {
            [first, _, _, _, ..] => eprintln!("fetching {first} and {} others", packages.len() - 1),
            few => eprintln!("fetching {}", few.join(", ")),
        }
        let mut command = self.command("apt-get");
        judged(
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

    /// apt-get or apt-cache on the private directory.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let option = |name: &str, path: PathBuf| format!("{name}={}", path.display());
        let dir = &self.dir;
        for setting in [
            option("Dir::Etc::sourcelist", dir.join("sources.list")),
            option("Dir::Etc::sourceparts", dir.join("none")),
            option("Dir::Etc::preferencesparts", dir.join("none")),
            option("Dir::State::lists", dir.join("lists")),
            option("Dir::Cache", dir.join("cache")),
            // Also without permission to switch to apt's own user.
            format!("APT::Sandbox::User={}", user()),
            // The machine's own settings do not apply.
            "APT::Get::AllowUnauthenticated=false".into(),
            "Acquire::AllowInsecureRepositories=false".into(),
            "Acquire::AllowWeakRepositories=false".into(),
            "Acquire::AllowDowngradeToInsecureRepositories=false".into(),
            "Acquire::Languages=none".into(),
            "Acquire::Retries=3".into(),
            // Catalogues of desktop software that some machines configure.
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

fn backports() -> String {
    format!("{RELEASE}-backports")
}

/// apt's messages, with `LC_ALL=C`, if it cannot reach its mirror, or the mirror lacks the suites.
const UNREACHED: &[&str] = &[
    "Could not resolve",
    "Temporary failure resolving",
    "Something wicked happened resolving",
    "Could not connect",
    "Unable to connect",
    "Cannot initiate the connection",
    "Connection failed",
    "Connection refused",
    "Connection timed out",
    "Connection reset",
    "Network is unreachable",
    "No route to host",
    "Failed to connect",
    "Could not wait for server",
    // A mirror of the machine's release alone.
    "does not have a Release file",
];

/// Its messages for data with a wrong signature.
const FORGED: &[&str] = &[
    "Hash Sum mismatch",
    "unexpected size",
    "GPG error",
    "NO_PUBKEY",
    "BADSIG",
    "EXPKEYSIG",
    "is not signed",
    "isn't valid",
    "verif",
    "be authenticated",
    "is expired",
    "is not valid yet",
];

/// Runs apt. A mirror that cannot be reached is [`NoGuest`]; any other error is a failure, and so
/// are both at once.
pub(super) fn judged(command: &mut Command) -> Result<String> {
    quietly(command).map_err(|error| {
        let text = format!("{error:#}");
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if says(UNREACHED) && !says(FORGED) {
            return NoGuest(format!("the mirror is not reached: {text}")).into();
        }
        error
    })
}

/// The user of this process, by name if root.
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

/// The name of the machine's release, for example bookworm.
///
/// # Errors
/// [`NoGuest`] if it has none.
fn codename() -> Result<String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !release.lines().any(|line| line == "ID=debian") {
        return Err(NoGuest("/etc/os-release says that this is not Debian".into()).into());
    }
    let name = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned());
    Ok(name.ok_or_else(|| NoGuest("/etc/os-release names no release of Debian".into()))?)
}

/// A suite at a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    uri: String,
    suite: String,
}

/// The machine's sources of its release.
fn machine_sources(codename: &str) -> Vec<Source> {
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
    sources.retain(|source| source.suite == codename);
    let mut unique: Vec<Source> = Vec::new();
    for source in sources {
        if !unique.contains(&source) {
            unique.push(source);
        }
    }
    unique
}

/// Parses sources in deb822 format (sources.list(5)).
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

/// Parses sources in one-line format: `deb [OPTIONS] URI SUITE COMPONENT…`.
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

    /// Whether this machine has Debian's apt-get.
    fn has_apt() -> bool {
        which("apt-get").is_some() && Path::new(KEYRING).is_file()
    }

    /// The error of fetching lists from a mirror at this address.
    fn fetched_from(uri: &str) -> anyhow::Error {
        let name = format!("barewire-apt-{}-{}", std::process::id(), uri.len());
        let dir = std::env::temp_dir().join(name);
        let apt = Apt::of(&dir, &[source(uri, "sid")]).unwrap();
        let error = apt.update().unwrap_err();
        std::fs::remove_dir_all(&dir).unwrap();
        error
    }

    #[test]
    fn an_unreachable_mirror_is_no_failure() {
        if !has_apt() {
            skip::skip!("needs Debian's apt-get");
        }
        // A port of this machine without a listener.
        let error = fetched_from("http://127.0.0.1:9/debian");
        assert!(error.is::<NoGuest>(), "{error:#}");
    }

    #[test]
    fn unsigned_data_is_a_failure() {
        if !has_apt() {
            skip::skip!("needs Debian's apt-get");
        }
        let mirror = std::env::temp_dir().join(format!("barewire-mirror-{}", std::process::id()));
        let suite = mirror.join("dists/sid");
        std::fs::create_dir_all(&suite).unwrap();
        let release = "Origin: Debian\nSuite: sid\nCodename: sid\nComponents: main\n\
                       Date: Sat, 01 Aug 2026 00:00:00 UTC\nSHA256:\n";
        let signed = format!(
            "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{release}\
             -----BEGIN PGP SIGNATURE-----\n\niQ==\n-----END PGP SIGNATURE-----\n"
        );
        for (file, text) in [("Release", release), ("InRelease", &signed)] {
            std::fs::write(suite.join(file), text).unwrap();
            let error = fetched_from(&format!("file:{}", mirror.display()));
            assert!(!error.is::<NoGuest>(), "{file}: {error:#}");
        }
        std::fs::remove_dir_all(&mirror).unwrap();
    }

    #[test]
    fn both_formats_of_sources_are_parsed() {
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
