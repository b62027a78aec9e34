//! Files of `dev/lab/tests` that no test binary names: they would never be compiled or run. And
//! bodies of child processes that would count as passed tests.

use std::path::Path;

use super::{File, Finding};

/// The directory of the lab's tests, and the files that are test binaries.
const FOLDER: &str = "dev/lab/tests";
const BINARIES: [&str; 2] = ["all.rs", "guest.rs"];

/// Test files that are a module of no test binary.
pub fn unnamed(files: &[File]) -> Vec<Finding> {
    let folder = Path::new(FOLDER);
    let text_of = |name: &&str| {
        let path = folder.join(name);
        let file = files.iter().find(|file| file.path == path)?;
        file.text.as_deref()
    };
    let named: Vec<&str> = BINARIES
        .iter()
        .filter_map(text_of)
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let mut findings = Vec::new();
    for file in files {
        let beside = file.path.parent() == Some(folder) && file.has_extension("rs");
        let Some(module) = file.path.file_stem().and_then(|stem| stem.to_str()) else {
            continue;
        };
        let is_binary = BINARIES.iter().any(|name| file.path.ends_with(name));
        if beside && !is_binary && !named.contains(&module) {
            let what = format!("never runs: named by neither {}", BINARIES.join(" nor "));
            findings.push(Finding::new(&file.path, 0, what));
        }
    }
    findings
}

/// Tests named `child…`, which other tests start as a process, that do not begin with
/// `skip::child_body!`.
pub fn uncounted_bodies(file: &File) -> Vec<Finding> {
    let lines: Vec<&str> = file.text.as_deref().unwrap_or_default().lines().collect();
    let mut findings = Vec::new();
    for (index, pair) in lines.windows(2).enumerate() {
        let is_test = pair[0].trim() == "#[test]";
        let name = pair[1].trim().strip_prefix("fn ").unwrap_or_default();
        // The common code of the conformance suite does it for its callers.
        let mut begin = lines.iter().skip(index + 2).take(2);
        let is_counted =
            begin.any(|line| line.contains("child_body!") || line.contains("hold_a_port"));
        if is_test && name.starts_with("child") && !is_counted {
            let what = "passes without testing; begin it with skip::child_body!(VARIABLE)";
            findings.push(Finding::new(&file.path, index + 2, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_children_that_count_as_passed_are_found() {
        let found = |text: &str| {
            let file = File {
                path: "dev/lab/tests/x.rs".into(),
                len: 0,
                text: Some(text.into()),
            };
            uncounted_bodies(&file).len()
        };
        let body = "#[test]\nfn child_reads() {\n    let name = skip::child_body!(CHILD);\n";
        assert_eq!(found(body), 0);
        assert_eq!(found("    #[test]\n    fn child() {\n        return;\n"), 1);
        assert_eq!(found("fn child(name: &str) {\n"), 0);
        assert_eq!(found("#[test]\nfn the_child_reads() {\n"), 0);
    }

    #[test]
    fn files_that_no_binary_names_are_found() {
        let file = |path: &str, text: &str| File {
            path: path.into(),
            len: text.len() as u64,
            text: Some(text.into()),
        };
        let files = [
            file(
                "dev/lab/tests/all.rs",
                "//! All.\nmod shared;\nmod named;\n",
            ),
            file("dev/lab/tests/guest.rs", "mod guest_nic;\n"),
            file("dev/lab/tests/named.rs", ""),
            file("dev/lab/tests/guest_nic.rs", ""),
            file("dev/lab/tests/forgotten.rs", ""),
            file("dev/lab/tests/shared/part.rs", ""),
            file("pure/wire/tests/laws.rs", ""),
        ];
        let found = unnamed(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].file, Path::new("dev/lab/tests/forgotten.rs"));
    }
}
