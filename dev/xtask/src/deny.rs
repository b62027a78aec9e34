//! `cargo xtask deny`: licences, duplicate versions and sources of all dependencies, by the policy
//! in `deny.toml`.
//!
//! cargo-deny does it if installed. It takes minutes to build, so CI does not use it: the same file
//! is then checked here, with cargo's own list of packages, offline. A key of the file that is not
//! supported here is an error, never ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::run::{cargo, no_more, quietly, root, visibly, which};

/// The policy, at the root of the repository.
const FILE: &str = "deny.toml";

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    no_more(args)?;
    check()?;
    Ok(ExitCode::SUCCESS)
}

/// Checks all dependencies.
///
/// # Errors
/// If one violates the policy, or the policy cannot be read.
pub fn check() -> Result<()> {
    if which("cargo-deny").is_some() {
        let checks = ["bans", "licenses", "sources"];
        return visibly(
            cargo()
                .args(["deny", "--workspace", "--offline", "check"])
                .args(checks),
        );
    }
    let text = std::fs::read_to_string(root().join(FILE)).context(FILE)?;
    let policy = Policy::read(&text).context(FILE)?;
    let metadata = [
        "metadata",
        "--format-version=1",
        "--offline",
        "--filter-platform",
    ];
    let metadata = quietly(cargo().args(metadata).arg(&policy.target))?;
    let packages = packages(&serde_json::from_str(&metadata)?)?;
    let findings = policy.findings(&packages);
    for finding in &findings {
        eprintln!("error: {finding}");
    }
    ensure!(
        findings.is_empty(),
        "{} dependencies are against {FILE}",
        findings.len()
    );
    eprintln!(
        "{} packages have an allowed licence, version and source (no cargo-deny here: checked by \
         xtask)",
        packages.len()
    );
    Ok(())
}

/// A package that is built for the target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: Option<String>,
    /// `None` for members of the workspace.
    source: Option<String>,
}

/// The packages of `cargo metadata`.
fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let list = metadata["packages"]
        .as_array()
        .context("packages of cargo metadata")?;
    let packages = list.iter().map(|package| {
        let text = |name: &str| package[name].as_str().map(str::to_owned);
        Some(Package {
            name: text("name")?,
            version: text("version")?,
            licence: text("license"),
            source: text("source"),
        })
    });
    let packages: Option<Vec<_>> = packages.collect();
    let packages = packages.context("a package of cargo metadata without a name")?;
    ensure!(!packages.is_empty(), "cargo metadata names no package");
    Ok(packages)
}

/// The parts of `deny.toml` that are checked here.
#[derive(Debug)]
struct Policy {
    target: String,
    licences: BTreeSet<String>,
    /// Versions allowed in addition to another one: name and first numbers of the version.
    skip: Vec<(String, String)>,
    registries: BTreeSet<String>,
}

impl Policy {
    /// Parses the file, and refuses unsupported settings.
    fn read(text: &str) -> Result<Policy> {
        let file: toml::Table = text.parse()?;
        only(&file, &["graph", "licenses", "bans", "sources"])?;
        let section = |name: &str, keys: &[&str]| -> Result<toml::Table> {
            let table = file.get(name).and_then(toml::Value::as_table);
            let table = table.with_context(|| format!("no section [{name}]"))?;
            only(table, keys).with_context(|| format!("[{name}]"))?;
            Ok(table.clone())
        };
        let graph = section("graph", &["targets"])?;
        let [target] = &texts(&graph, "targets")?[..] else {
            bail!("one target is expected");
        };
        let bans = section("bans", &["multiple-versions", "skip"])?;
        denied(&bans, "multiple-versions")?;
        let sources = section(
            "sources",
            &["unknown-registry", "unknown-git", "allow-registry"],
        )?;
        denied(&sources, "unknown-registry")?;
        denied(&sources, "unknown-git")?;
        let licences = section("licenses", &["allow"])?;
        Ok(Policy {
            target: target.clone(),
            licences: texts(&licences, "allow")?.into_iter().collect(),
            skip: skips(&bans)?,
            registries: texts(&sources, "allow-registry")?.into_iter().collect(),
        })
    }

    /// Violations of the policy, one line each.
    fn findings(&self, packages: &[Package]) -> Vec<String> {
        let licences = packages.iter().filter_map(|package| self.licence(package));
        let sources = packages.iter().filter_map(|package| self.source(package));
        licences
            .chain(sources)
            .chain(self.duplicates(packages))
            .collect()
    }

    fn licence(&self, package: &Package) -> Option<String> {
        let Package {
            name,
            version,
            licence,
            ..
        } = package;
        let Some(licence) = licence else {
            return Some(format!("{name} {version} names no licence"));
        };
        // LAX accepts the old form with a slash, too.
        let why = match Expression::parse_mode(licence, ParseMode::LAX) {
            Ok(terms) if terms.evaluate(|term| self.licences.contains(&term.to_string())) => {
                return None;
            }
            Ok(_) => "is not allowed",
            Err(_) => "is no SPDX expression",
        };
        Some(format!("{name} {version}: the licence {licence:?} {why}"))
    }

    fn source(&self, package: &Package) -> Option<String> {
        let Package {
            name,
            version,
            source,
            ..
        } = package;
        let source = source.as_deref()?;
        let is_known = source
            .strip_prefix("registry+")
            .is_some_and(|registry| self.registries.contains(registry));
        (!is_known).then(|| format!("{name} {version} comes from {source}, which is not allowed"))
    }

    fn duplicates(&self, packages: &[Package]) -> Vec<String> {
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for Package { name, version, .. } in packages {
            versions.entry(name).or_default().insert(version);
        }
        let mut findings = Vec::new();
        for (name, start) in &self.skip {
            let all = versions.get(name.as_str());
            let is_met = all.is_some_and(|all| all.iter().any(|version| begins(version, start)));
            if !is_met || all.is_some_and(|all| all.len() == 1) {
                findings.push(format!(
                    "{FILE} skips {name} {start}, which is no duplicate"
                ));
            }
        }
        for (name, all) in versions {
            let skipped = |version: &&&str| {
                let mut rows = self.skip.iter();
                !rows.any(|(of, start)| of == name && begins(version, start))
            };
            if all.iter().filter(skipped).count() > 1 {
                let all: Vec<_> = all.into_iter().collect();
                findings.push(format!("{name} is there in versions {}", all.join(" and ")));
            }
        }
        findings
    }
}

/// Whether a version starts with these numbers, each compared completely.
fn begins(version: &str, start: &str) -> bool {
    let rest = version.strip_prefix(start);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Refuses unknown keys.
fn only(table: &toml::Table, known: &[&str]) -> Result<()> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => bail!("the key {key:?} is not known to xtask; cargo-deny may know it"),
        None => Ok(()),
    }
}

/// Requires a key to be `deny`.
fn denied(table: &toml::Table, key: &str) -> Result<()> {
    let value = table.get(key).and_then(toml::Value::as_str);
    ensure!(value == Some("deny"), "{key} is not \"deny\"");
    Ok(())
}

/// A list of strings.
fn texts(table: &toml::Table, key: &str) -> Result<Vec<String>> {
    let list = table.get(key).and_then(toml::Value::as_array);
    let texts = list.with_context(|| format!("no list {key}"))?.iter();
    let texts: Option<Vec<_>> = texts.map(|text| text.as_str().map(str::to_owned)).collect();
    texts.with_context(|| format!("{key}: a text is expected"))
}

/// The rows of `skip`. A version is one number, or `0.` and another: as a cargo requirement it then
/// covers all versions with this prefix.
fn skips(bans: &toml::Table) -> Result<Vec<(String, String)>> {
    let rows = bans.get("skip").and_then(toml::Value::as_array);
    let mut skips = Vec::new();
    for row in rows.context("no list skip")? {
        let row = row.as_table().context("skip: a table is expected")?;
        only(row, &["crate", "reason"])?;
        let text = |key: &str| row.get(key).and_then(toml::Value::as_str);
        ensure!(
            text("reason").is_some_and(|why| !why.is_empty()),
            "skip: a row has no reason"
        );
        let spec = text("crate").context("skip: a row names no crate")?;
        let (name, version) = spec
            .split_once('@')
            .with_context(|| format!("{spec}: no @"))?;
        let numbers: Vec<_> = version.split('.').map(str::parse::<u64>).collect();
        let is_plain = matches!(numbers[..], [Ok(1..)] | [Ok(0), Ok(1..)]);
        ensure!(is_plain, "{spec}: a version is N or 0.N");
        skips.push((name.to_owned(), version.to_owned()));
    }
    Ok(skips)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

    fn policy() -> Policy {
        let text = std::fs::read_to_string(root().join(FILE)).unwrap();
        Policy::read(&text).unwrap()
    }

    fn package(name: &str, version: &str, licence: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            licence: (!licence.is_empty()).then(|| licence.into()),
            source: Some(CRATES_IO.into()),
        }
    }

    /// Findings for these packages, in addition to those of every tree.
    fn findings(more: &[Package]) -> Vec<String> {
        let mut packages = Vec::new();
        for (name, version) in &policy().skip {
            packages.push(package(name, &format!("{version}.7"), "MIT"));
            packages.push(package(name, "99.0.0", "MIT"));
        }
        assert!(policy().findings(&packages).is_empty());
        packages.extend_from_slice(more);
        policy().findings(&packages)
    }

    #[test]
    fn the_dependencies_of_the_workspace_are_allowed() {
        let metadata = [
            "metadata",
            "--format-version=1",
            "--offline",
            "--filter-platform",
        ];
        let metadata = quietly(cargo().args(metadata).arg(policy().target)).unwrap();
        let packages = packages(&serde_json::from_str(&metadata).unwrap()).unwrap();
        assert!(packages.len() > 100, "{}", packages.len());
        assert_eq!(policy().findings(&packages), Vec::<String>::new());
    }

    #[test]
    fn licences_are_read_as_expressions() {
        for licence in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0",
        ] {
            assert_eq!(
                findings(&[package("a", "1.0.0", licence)]),
                [""; 0],
                "{licence}"
            );
        }
        for licence in [
            "",
            "GPL-3.0-only",
            "MIT AND MPL-2.0",
            "non-standard",
            "MIT OR",
        ] {
            let findings = findings(&[package("a", "1.0.0", licence)]);
            assert_eq!(findings.len(), 1, "{licence}: {findings:?}");
            assert!(findings[0].contains("licence"), "{findings:?}");
        }
    }

    #[test]
    fn a_duplicate_version_needs_a_row() {
        let found = findings(&[package("a", "1.0.0", "MIT"), package("a", "2.0.0", "MIT")]);
        assert_eq!(found, ["a is there in versions 1.0.0 and 2.0.0"]);
        let (name, version) = policy().skip.remove(0);
        // A row covers one line of versions, not two others, nor one that merely looks similar.
        for other in ["98.0.0".to_owned(), format!("{version}1.0")] {
            let found = findings(&[package(&name, &other, "MIT")]);
            assert_eq!(found.len(), 1, "{found:?}");
        }
        // A row that is no longer needed.
        let mut policy = policy();
        policy.skip.truncate(1);
        let alone = [package(&name, &format!("{version}.7"), "MIT")];
        assert!(policy.findings(&alone)[0].contains("no duplicate"));
        assert!(policy.findings(&[])[0].contains("no duplicate"));
    }

    #[test]
    fn other_sources_are_refused() {
        for source in [
            "git+https://example.org/a.git#0123",
            "registry+https://example.org/index",
        ] {
            let mut from = package("a", "1.0.0", "MIT");
            from.source = Some(source.into());
            let found = findings(&[from]);
            assert!(found.len() == 1 && found[0].contains(source), "{found:?}");
        }
        let mut own = package("a", "1.0.0", "MIT");
        own.source = None;
        assert_eq!(findings(&[own]), [""; 0]);
    }

    #[test]
    fn a_policy_with_unknown_keys_is_refused() {
        let text = std::fs::read_to_string(root().join(FILE)).unwrap();
        assert!(Policy::read(&text).is_ok());
        for (old, new) in [
            ("[bans]", "[bans]\nwildcards = \"deny\""),
            ("[sources]", "[advisories]\n[sources]"),
            (
                "multiple-versions = \"deny\"",
                "multiple-versions = \"warn\"",
            ),
            ("syn@2", "syn@2.1"),
            ("syn@2", "syn@=2"),
            ("allow = [", "allow = [1,"),
            ("reason = \"ring", "reasons = \"ring"),
        ] {
            assert!(text.contains(old), "{old}");
            assert!(Policy::read(&text.replace(old, new)).is_err(), "{new}");
        }
    }
}
