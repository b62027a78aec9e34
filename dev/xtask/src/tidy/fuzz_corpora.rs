//! Fuzz targets without committed inputs, and those whose inputs no test replays: a fix of what
//! they found would not be held.

use std::path::Path;

use super::{File, Finding};

const TARGETS: &str = "fuzz/fuzz_targets";
const CORPORA: &str = "fuzz/corpus";

/// Targets without inputs or without a test that reads them.
pub fn unreplayed(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for target in files.iter().filter(|file| file.path.starts_with(TARGETS)) {
        let Some(name) = target.path.file_stem().and_then(|stem| stem.to_str()) else {
            continue;
        };
        let folder = Path::new(CORPORA).join(name);
        if !files.iter().any(|file| file.path.starts_with(&folder)) {
            let what = format!("no committed inputs in {}", folder.display());
            findings.push(Finding::new(&target.path, 0, what));
        }
        // By its whole path, or by its name in a file that reads several of them.
        let (path, word) = (format!("{CORPORA}/{name}\""), format!("\"{name}\""));
        let reads = |file: &File| {
            let text = file.text.as_deref().unwrap_or_default();
            text.contains(&path) || text.contains(CORPORA) && text.contains(&word)
        };
        let is_elsewhere = |file: &&File| {
            file.has_extension("rs") && !file.path.starts_with("fuzz") && !is_tidy(file)
        };
        if !files.iter().filter(is_elsewhere).any(reads) {
            let what = format!("no test replays the inputs in {}", folder.display());
            findings.push(Finding::new(&target.path, 0, what));
        }
    }
    findings
}

fn is_tidy(file: &File) -> bool {
    file.path.starts_with("dev/xtask")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_without_inputs_and_without_a_test_are_found() {
        let file = |path: &str, text: &str| File {
            path: path.into(),
            len: 0,
            text: Some(text.into()),
        };
        let target = |name: &str| file(&format!("{TARGETS}/{name}.rs"), "");
        let input = |name: &str| file(&format!("{CORPORA}/{name}/one"), "");
        let one = file("pure/a/tests/laws.rs", r#"join("../../fuzz/corpus/whole")"#);
        let several = r#"("listed", law) join("../../fuzz/corpus").join(target)"#;
        let several = file("pure/b/tests/laws.rs", several);
        let found = |files: &[File]| unreplayed(files).len();
        let whole = [
            target("whole"),
            input("whole"),
            target("listed"),
            input("listed"),
            one,
            several,
        ];
        assert_eq!(found(&whole), 0);
        assert_eq!(found(&[target("whole"), input("whole")]), 1);
        assert_eq!(found(&[target("other"), input("whole")]), 2);
    }
}
