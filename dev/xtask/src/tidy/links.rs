//! Checks that relative links of Markdown files have targets, including anchors.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::{File, Finding};

/// Links to missing files and to missing headings.
pub fn relative(files: &[File]) -> Vec<Finding> {
    let mut places: BTreeSet<PathBuf> = BTreeSet::new();
    for file in files {
        places.extend(file.path.ancestors().map(Path::to_owned));
    }
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.has_extension("md")) {
        for (line, target) in links(file.text.as_deref().unwrap_or_default()) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = match target.split_once('#') {
                Some((path, anchor)) => (path, Some(anchor)),
                None => (target.as_str(), None),
            };
            let directory = file.path.parent().unwrap_or(Path::new(""));
            let place = if path.is_empty() {
                file.path.clone()
            } else {
                join(directory, path)
            };
            if !places.contains(&place) {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("no such file: {target}"),
                ));
                continue;
            }
            let Some(anchor) = anchor else { continue };
            let page = files.iter().find(|file| file.path == place);
            let text = page
                .and_then(|page| page.text.as_deref())
                .unwrap_or_default();
            if page.is_some_and(|page| page.has_extension("md")) && !anchors(text).contains(anchor)
            {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("no such heading: {target}"),
                ));
            }
        }
    }
    findings
}

/// The targets of `[text](target)` and `![text](target "title")` outside of code, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else {
                break;
            };
            let target = target.split_whitespace().next().unwrap_or_default();
            found.push((number, target.trim_matches(['<', '>']).to_owned()));
            rest = after;
        }
    }
    found
}

/// GitHub's anchors of the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let titles = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let slug = |title: String| -> String {
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    titles.map(slug).collect()
}

/// Lines outside of fenced code, with code spans blanked, numbered from 1.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let outside = line.split('`').step_by(2).collect::<Vec<_>>();
            lines.push((index + 1, outside.join("`")));
        }
    }
    lines
}

/// `directory/path` without `.` and `..`.
fn join(directory: &Path, path: &str) -> PathBuf {
    let mut joined = PathBuf::new();
    for part in directory.join(path).components() {
        match part {
            Component::ParentDir => {
                // Outside of the repository: keep a path that does not exist.
                if !joined.pop() {
                    joined.push("..");
                }
            }
            Component::CurDir => {}
            part => joined.push(part),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File {
            path: path.into(),
            len: 0,
            text: Some(text.to_owned()),
        };
        let files = [
            file("docs/page.md", text),
            file("docs/other.md", "# Top\n\n## How to add a `row`, quickly\n"),
            file("README.md", "# Readme\n"),
            file("docs/picture.svg", ""),
        ];
        relative(&files)
            .into_iter()
            .map(|finding| finding.what)
            .collect()
    }

    #[test]
    fn valid_links_are_accepted() {
        let text = "# Here\n[a](other.md) [b](../README.md)\n\
                    ![p](picture.svg \"title\") [d](../docs)\n\
                    [c](https://example.org/x) [e](#here) [f](other.md#how-to-add-a-row-quickly)\n\
                    `[g](nowhere.md)`\n```\n[h](nowhere.md)\n```\n";
        assert_eq!(findings(text), Vec::<String>::new());
    }

    #[test]
    fn broken_links_are_found() {
        let planted = [
            "nowhere.md",
            "../../README.md",
            "other.md#no",
            "#no",
            "other",
        ];
        for target in planted {
            assert_eq!(findings(&format!("x [a]({target}) y")).len(), 1, "{target}");
        }
    }
}
