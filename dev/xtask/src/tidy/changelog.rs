//! The form of CHANGELOG.md: Keep a Changelog 1.1.0.

use super::{File, Finding};

/// The kinds of change, as <https://keepachangelog.com/en/1.1.0/> names them.
const KINDS: &[&str] = &[
    "Added",
    "Changed",
    "Deprecated",
    "Removed",
    "Fixed",
    "Security",
];

/// Deviations from the form: a title, `## [Unreleased]` first, then versions with their dates,
/// newest first, changes under one of the six kinds.
pub fn form(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line, what: &str| findings.push(Finding::new(&file.path, line, what));
    let text = file.text.as_deref().unwrap_or_default();
    if text.lines().next() != Some("# Changelog") {
        found(1, "the first line is not `# Changelog`");
    }
    let mut last_version: Option<Vec<u64>> = None;
    let mut section = None;
    let mut kind = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if let Some(title) = line.strip_prefix("## ") {
            if section.is_none() && title != "[Unreleased]" {
                found(number, "the first section is not `## [Unreleased]`");
            } else if section.is_some() {
                match version(title) {
                    Some(version) => {
                        if last_version.as_ref().is_some_and(|last| *last <= version) {
                            found(number, "versions are not newest first");
                        }
                        last_version = Some(version);
                    }
                    None => found(number, "not `## [1.2.3] - 2026-01-31`"),
                }
            }
            section = Some(number);
            kind = false;
        } else if let Some(title) = line.strip_prefix("### ") {
            if !KINDS.contains(&title) {
                found(number, &format!("not one of {}", KINDS.join(", ")));
            }
            kind = true;
        } else if line.starts_with("- ") && !kind {
            found(number, "a change outside of `### Added` and its like");
        }
    }
    if section.is_none() {
        found(0, "no section `## [Unreleased]`");
    }
    findings
}

/// The numbers of `[1.2.3] - 2026-01-31`; `None` for any other title.
fn version(title: &str) -> Option<Vec<u64>> {
    let (version, date) = title.strip_prefix('[')?.split_once("] - ")?;
    let numbers = |text: &str, separator| -> Option<Vec<u64>> {
        text.split(separator)
            .map(|part| part.parse().ok())
            .collect()
    };
    let date_is_one = date.len() == 10
        && numbers(date, '-').is_some_and(|date| {
            date.len() == 3 && (1..=12).contains(&date[1]) && (1..=31).contains(&date[2])
        });
    numbers(version, '.').filter(|version| version.len() == 3 && date_is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<usize> {
        let text = Some(text.to_owned());
        let file = File {
            path: "CHANGELOG.md".into(),
            len: 0,
            text,
        };
        form(&file).iter().map(|finding| finding.line).collect()
    }

    const GOOD: &str = "# Changelog\n\nWords.\n\n## [Unreleased]\n\n### Added\n\n- A.\n\n\
                        ## [0.10.0] - 2026-12-01\n\n### Fixed\n\n- B.\n\n\
                        ## [0.9.1] - 2026-11-30\n";

    #[test]
    fn the_form_is_accepted() {
        assert_eq!(findings(GOOD), [0; 0]);
    }

    #[test]
    fn deviations_are_found_on_their_line() {
        assert_eq!(findings(&GOOD.replace("# Changelog\n", "# Changes\n")), [1]);
        assert_eq!(findings(&GOOD.replace("[Unreleased]", "[Next]")), [5]);
        assert_eq!(findings(&GOOD.replace("### Added", "### New")), [7]);
        assert_eq!(findings(&GOOD.replace("### Added\n", "\n")), [9]);
        assert_eq!(findings(&GOOD.replace("2026-12-01", "1.12.2026")), [11]);
        assert_eq!(findings(&GOOD.replace("2026-12-01", "2026-13-01")), [11]);
        assert_eq!(findings(&GOOD.replace("0.9.1", "0.11.0")), [17]);
        assert_eq!(findings("# Changelog\n"), [0]);
    }
}
