//! Lines and words of source files.

use super::{File, Finding};

/// Maximum length of a source line, in characters.
const LINE_MAX: usize = 100;

/// Maximum file size in bytes: history keeps every version.
const BLOB_MAX: u64 = 256 * 1024;

/// Files that are too large for the history.
pub fn blob(file: &File) -> Option<Finding> {
    (file.len > BLOB_MAX).then(|| {
        let what = format!("{} KiB; at most {} KiB", file.len / 1024, BLOB_MAX / 1024);
        Finding::new(&file.path, 0, what)
    })
}

/// Paths on a developer's machine.
pub fn machine_paths(file: &File) -> Vec<Finding> {
    // Split, or this file would match.
    let places = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    let mut findings = Vec::new();
    for (number, line) in lines(file) {
        for place in places {
            if line.contains(place) {
                let what = format!("a path of one machine ({place})");
                findings.push(Finding::new(&file.path, number, what));
            }
        }
    }
    findings
}

/// Tests of crates that print a skip themselves: it would be counted as passed.
pub fn bare_skips(file: &File) -> Vec<Finding> {
    // Split, or this file would match.
    let word = concat!("println!(\"SKIP", "PED");
    let found =
        lines(file).filter(|(_, line)| line.contains(word) && !file.path.starts_with("dev"));
    let what = "a skip that is not counted; skip::skip!(\"WHY\") is";
    found
        .map(|(number, _)| Finding::new(&file.path, number, what))
        .collect()
}

/// Files that commands create without `sys::create`, which refuses the inputs of the command.
pub fn unchecked_outputs(file: &File) -> Vec<Finding> {
    let is_above = ["host", "face"]
        .iter()
        .any(|dir| file.path.starts_with(dir));
    let is_test = file.path.ends_with("tests.rs") || file.path.iter().any(|part| part == "tests");
    let creates = |line: &str| {
        let words = ["fs::write(", "fs::copy(", ".truncate(true)"];
        // With two arguments it is not that of std.
        let is_std = line.contains("File::create(") && !line.contains(", ");
        is_std || words.iter().any(|word| line.contains(word))
    };
    let code = lines(file).take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    let found = code.filter(|(_, line)| is_above && !is_test && creates(line));
    let what = "a file that may be an input of the command; sys::create::CreateOptions checks that";
    found
        .map(|(number, _)| Finding::new(&file.path, number, what))
        .collect()
}

/// Code above the backends that depends on a backend's or format's name: what it needs to know is a
/// column of the row, so that a new row needs no other change.
pub fn dispatch_by_name(file: &File) -> Vec<Finding> {
    let is_above = ["host", "face"]
        .iter()
        .any(|dir| file.path.starts_with(dir));
    let is_test = file.path.ends_with("tests.rs") || file.path.iter().any(|part| part == "tests");
    let compares = |line: &str| {
        ["scheme == \"", "scheme != \"", "format.name == \""]
            .iter()
            .any(|pattern| line.contains(pattern))
            || line.contains("match") && line.trim_end().ends_with("scheme {")
    };
    let found = lines(file).filter(|(_, line)| is_above && !is_test && compares(line));
    let what =
        "a backend or format is reported by its name; make what is asked a column of its row";
    found
        .map(|(number, _)| Finding::new(&file.path, number, what))
        .collect()
}

/// Lines that are too long. rustfmt does not wrap comments and strings.
pub fn line_length(file: &File) -> Vec<Finding> {
    let long = lines(file).map(|(number, line)| (number, line.chars().count()));
    let long = long.filter(|(_, len)| *len > LINE_MAX);
    long.map(|(number, len)| {
        Finding::new(
            &file.path,
            number,
            format!("{len} columns; at most {LINE_MAX}"),
        )
    })
    .collect()
}

/// Files that do not start with a description of their purpose.
pub fn module_docs(file: &File) -> Option<Finding> {
    let first = file.text.as_deref()?.lines().next().unwrap_or_default();
    let reported = first
        .strip_prefix("//!")
        .is_some_and(|text| !text.trim().is_empty());
    (!reported).then(|| {
        Finding::new(
            &file.path,
            1,
            "the first line is not `//!` and what it is for",
        )
    })
}

/// Markers of unfinished work, and debugging leftovers.
pub fn markers(file: &File) -> Vec<Finding> {
    let words = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[ig", "nore"),
        concat!("dbg", "!("),
    ];
    let mut findings = Vec::new();
    for (number, line) in lines(file) {
        for word in words {
            if line.contains(word) {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("{word} is not for here"),
                ));
            }
        }
    }
    findings
}

/// The lines of a file, numbered from 1.
fn lines(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let text = file.text.as_deref().unwrap_or_default();
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.into(),
            len: text.len() as u64,
            text: Some(text.into()),
        }
    }

    #[test]
    fn long_lines_are_found_and_characters_counted() {
        let text = format!(
            "{}\n{}\n{}\n",
            "x".repeat(100),
            "x".repeat(101),
            "µ".repeat(100)
        );
        let findings = line_length(&file("a.rs", &text));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 2);
    }

    #[test]
    fn files_without_a_purpose_are_found() {
        assert_eq!(
            module_docs(&file("a.rs", "//! What for.\nfn x() {}\n")),
            None
        );
        for text in ["fn x() {}\n", "//!\n", "// Comment.\n//! Doc.\n", ""] {
            assert!(module_docs(&file("a.rs", text)).is_some(), "{text:?}");
        }
    }

    #[test]
    fn markers_are_found() {
        let planted = [
            concat!("    todo", "!()"),
            concat!("unimplemented", "!(\"later\")"),
            concat!("#[ig", "nore]"),
            concat!("#[ig", "nore = \"slow\"]"),
            concat!("let x = dbg", "!(y);"),
        ];
        for line in planted {
            let findings = markers(&file("a.rs", &format!("//! Doc.\n{line}\n")));
            assert_eq!(findings.len(), 1, "{line}");
            assert_eq!(findings[0].line, 2);
        }
        assert_eq!(markers(&file("a.rs", "let ignored = list_of_todos();")), []);
    }

    #[test]
    fn uncounted_skips_are_found() {
        let text = concat!("    eprintln!(\"SKIP", "PED this: no that\");\n");
        assert_eq!(bare_skips(&file("pure/a.rs", text)).len(), 1);
        assert!(bare_skips(&file("pure/a.rs", "skip::skip!(\"no that\");\n")).is_empty());
    }

    #[test]
    fn a_comparison_with_a_backends_name_is_found() {
        for line in [
            "let is_live = description.scheme != \"file\";",
            "match name.scheme {",
            "if format.name == \"ipfix\" {",
        ] {
            assert_eq!(dispatch_by_name(&file("host/a/src/b.rs", line)).len(), 1);
            assert!(dispatch_by_name(&file("system/port/src/b.rs", line)).is_empty());
        }
        let reported = "text += description.scheme;";
        assert!(dispatch_by_name(&file("face/a/src/b.rs", reported)).is_empty());
    }

    #[test]
    fn outputs_that_nothing_checks_are_found() {
        let found = |path: &str, text: &str| unchecked_outputs(&file(path, text)).len();
        for line in [
            "let f = File::create(path)?;",
            "std::fs::write(path, text)?;",
        ] {
            assert_eq!(found("host/a/src/b.rs", line), 1);
            assert_eq!(found("face/a/src/b/tests.rs", line), 0);
            assert_eq!(
                found("face/a/src/b.rs", &format!("    #[cfg(test)]\n{line}")),
                0
            );
            assert_eq!(found("system/nic/src/b.rs", line), 0);
        }
        assert_eq!(
            found("face/a/src/b.rs", "CreateOptions::BY_UMASK.create(path)"),
            0
        );
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        for place in [
            concat!("/ro", "ot/x"),
            concat!("/ho", "me/me"),
            concat!("/wo", "rk/y"),
        ] {
            assert_eq!(machine_paths(&file("README.md", place)).len(), 1);
        }
        assert_eq!(
            machine_paths(&file("README.md", "see net/core and ./work")),
            []
        );
    }

    #[test]
    fn large_files_are_found() {
        let of = |len| File {
            path: "x.bin".into(),
            len,
            text: None,
        };
        assert_eq!(blob(&of(BLOB_MAX)), None);
        assert!(blob(&of(BLOB_MAX + 1)).is_some());
    }
}
