//! `cargo xtask tidy`: checks the rules of STYLE.md that a program can check. It is also a test, so
//! that `cargo test` finds what tidy finds.
//!
//! A check is a function from the repository's files and metadata to findings; each has a test with
//! planted violations.

mod changelog;
mod crates;
mod fuzz_corpora;
mod lab_tests;
mod lengths;
mod links;
mod promises;
mod text;
mod words;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::run::{cargo, no_more, quietly, root};

/// A violation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// Path relative to the root.
    file: PathBuf,
    /// Line from 1; 0 for the whole file.
    line: usize,
    /// The problem, and the remedy.
    what: String,
    /// A warning rather than a failure.
    warning: bool,
}

impl Finding {
    fn new(file: impl Into<PathBuf>, line: usize, what: impl Into<String>) -> Finding {
        Finding {
            file: file.into(),
            line,
            what: what.into(),
            warning: false,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "warning" } else { "error" };
        write!(
            f,
            "{kind}: {}:{}: {}",
            self.file.display(),
            self.line,
            self.what
        )
    }
}

/// A file of the repository.
struct File {
    /// Path relative to the root.
    path: PathBuf,
    len: u64,
    /// `None` if it is not UTF-8, or a recorded capture or corpus.
    text: Option<String>,
}

impl File {
    fn has_extension(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|e| e == extension)
    }
}

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    no_more(args)?;
    let findings = check(&root())?;
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| !finding.warning).count();
    println!(
        "tidy: {errors} errors, {} warnings",
        findings.len() - errors
    );
    Ok(if errors == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs all checks on the repository at `root`.
fn check(root: &Path) -> Result<Vec<Finding>> {
    let files = files(root)?;
    let metadata = metadata(root)?;
    let mut findings = Vec::new();
    findings.extend(crates::layers(&metadata));
    findings.extend(crates::forbid_unsafe(&metadata, &files));
    findings.extend(crates::outside_dependencies(&metadata, &files));
    for file in &files {
        findings.extend(text::blob(file));
        findings.extend(text::machine_paths(file));
        findings.extend(words::refused(file));
        if file.has_extension("rs") {
            findings.extend(text::line_length(file));
            findings.extend(text::bare_skips(file));
            findings.extend(lab_tests::uncounted_bodies(file));
            findings.extend(text::dispatch_by_name(file));
            findings.extend(text::unchecked_outputs(file));
            findings.extend(lengths::too_long(file));
            findings.extend(text::module_docs(file));
            findings.extend(text::markers(file));
        }
        if file.path == Path::new("CHANGELOG.md") {
            findings.extend(changelog::form(file));
        }
    }
    findings.extend(lab_tests::unnamed(&files));
    findings.extend(lengths::needless_exceptions(&files));
    findings.extend(links::relative(&files));
    findings.extend(promises::citations(&files));
    findings.extend(fuzz_corpora::unreplayed(&files));
    findings.sort();
    Ok(findings)
}

/// Files that git tracks or would track; in an exported tree without git, everything but build
/// output.
fn files(root: &Path) -> Result<Vec<File>> {
    let list = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let paths: Vec<PathBuf> = match quietly(Command::new("git").current_dir(root).args(list)) {
        Ok(text) => text.split_terminator('\0').map(PathBuf::from).collect(),
        Err(_) => {
            let mut paths = Vec::new();
            walk(root, Path::new(""), &mut paths)?;
            paths
        }
    };
    let mut files = Vec::new();
    for path in paths {
        let whole = root.join(&path);
        // Deleted but not yet committed.
        let Ok(metadata) = whole.symlink_metadata() else {
            continue;
        };
        if !metadata.is_file() {
            continue;
        }
        let bytes = std::fs::read(&whole).with_context(|| whole.display().to_string())?;
        let recorded = ["testdata", "fuzz/corpus"]
            .iter()
            .any(|dir| path.starts_with(dir));
        let text = if recorded {
            None
        } else {
            String::from_utf8(bytes).ok()
        };
        files.push(File {
            path,
            len: metadata.len(),
            text,
        });
    }
    Ok(files)
}

fn walk(root: &Path, below: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        let built = ["target", ".git", "artifacts"]
            .iter()
            .any(|name| path.ends_with(name));
        match entry.file_type()? {
            kind if kind.is_dir() && !built => walk(root, &path, paths)?,
            kind if kind.is_file() => paths.push(path),
            _ => {}
        }
    }
    Ok(())
}

/// Cargo's metadata of the workspace's members.
fn metadata(root: &Path) -> Result<Value> {
    let args = ["metadata", "--no-deps", "--format-version=1", "--offline"];
    let text = quietly(cargo().current_dir(root).args(args))?;
    serde_json::from_str(&text).context("JSON of cargo metadata")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let findings = check(&root()).unwrap();
        let errors: Vec<_> = findings.iter().filter(|finding| !finding.warning).collect();
        let list: String = errors
            .iter()
            .map(|finding| format!("\n{finding}"))
            .collect();
        assert!(errors.is_empty(), "{list}");
    }

    #[test]
    fn a_tree_without_git_is_walked() {
        let mut paths = Vec::new();
        walk(&root().join("dev/xtask"), Path::new(""), &mut paths).unwrap();
        assert!(paths.contains(&PathBuf::from("src/tidy.rs")), "{paths:?}");
        assert!(paths.contains(&PathBuf::from("Cargo.toml")), "{paths:?}");
    }
}
