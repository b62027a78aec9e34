//! Lengths of files and functions: a longer one does more than one thing.
//!
//! Functions are found by rustfmt's indentation, not by a parser: the body ends with the brace in
//! the column where the function starts.

use super::{File, Finding};

/// Maximum number of lines of a source file, comments and tests included.
const FILE_MAX: usize = 600;

/// Maximum number of lines of a function, from its name to its last brace, without blank lines and
/// comments.
const FUNCTION_MAX: usize = 70;

/// An exception.
struct Exception {
    path: &'static str,
    /// `None` for the whole file.
    function: Option<&'static str>,
    /// Why it is not split.
    why: &'static str,
}

const EXCEPTIONS: &[Exception] = &[Exception {
    path: "pure/bpf/src/vm_cbpf.rs",
    function: Some("run_or_refuse"),
    why: "an interpreter is one loop with a line for each instruction",
}];

/// Files and functions that are too long.
pub fn too_long(file: &File) -> Vec<Finding> {
    let text = file.text.as_deref().unwrap_or_default();
    let mut findings = Vec::new();
    let count = text.lines().count();
    if count > FILE_MAX && exception(file, None).is_none() {
        let what = format!("{count} lines; at most {FILE_MAX}: split the file where it has a seam");
        findings.push(Finding::new(&file.path, 0, what));
    }
    for function in functions(text) {
        let Function { name, line, count } = function;
        if count > FUNCTION_MAX && exception(file, Some(name)).is_none() {
            let what = format!("{name} has {count} lines of code; at most {FUNCTION_MAX}");
            findings.push(Finding::new(&file.path, line, what));
        }
    }
    findings
}

/// Exceptions that are no longer needed.
pub fn needless_exceptions(files: &[File]) -> Vec<Finding> {
    let is_needed = |exception: &Exception| {
        let file = files
            .iter()
            .find(|file| file.path.as_path() == std::path::Path::new(exception.path));
        let text = file
            .and_then(|file| file.text.as_deref())
            .unwrap_or_default();
        match exception.function {
            None => text.lines().count() > FILE_MAX,
            Some(name) => functions(text)
                .iter()
                .any(|function| function.name == name && function.count > FUNCTION_MAX),
        }
    };
    let needless = EXCEPTIONS.iter().filter(|exception| !is_needed(exception));
    needless
        .map(|exception| Finding {
            warning: true,
            ..Finding::new(
                exception.path,
                0,
                format!(
                    "short enough now: delete its exception ({}) from tidy/lengths.rs",
                    exception.why
                ),
            )
        })
        .collect()
}

fn exception(file: &File, function: Option<&str>) -> Option<&'static Exception> {
    EXCEPTIONS.iter().find(|exception| {
        file.path.as_path() == std::path::Path::new(exception.path)
            && exception.function == function
    })
}

struct Function<'a> {
    name: &'a str,
    /// First line, from 1.
    line: usize,
    /// Lines of code.
    count: usize,
}

/// The functions of a file that have a body.
fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let rest = &lines[index..];
        // The end of the signature: a body, a declaration, or a body in the same line.
        let head = rest.iter().position(|line| line.ends_with(['{', ';', '}']));
        let Some(head) = head.filter(|at| rest[*at].ends_with('{')) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_end = |line: &&str| line.strip_prefix(indent) == Some("}");
        let Some(end) = rest[head..].iter().position(is_end) else {
            continue;
        };
        let code = rest[..=head + end].iter().map(|line| line.trim());
        found.push(Function {
            name,
            line: index + 1,
            count: code
                .filter(|line| !line.is_empty() && !line.starts_with("//"))
                .count(),
        });
    }
    found
}

/// The name of the function that starts in this line.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.trim_start().split_once("fn ")?;
    let is_qualifier = |word: &str| {
        word.starts_with("pub")
            || word.starts_with('"')
            || ["const", "async", "unsafe", "extern", "default"].contains(&word)
    };
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_');
    let name = &after[..end?];
    (!name.is_empty() && before.split_whitespace().all(is_qualifier)).then_some(name)
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

    /// A method of this many lines of code, and some lines that do not count.
    fn method(head: &str, count: usize) -> String {
        let code = "        let x = 1;\n".repeat(count - 2);
        format!("impl X {{\n    {head} {{\n\n        // Why.\n{code}    }}\n}}\n")
    }

    #[test]
    fn long_functions_are_found() {
        for head in [
            "fn x(&self)",
            "pub fn x<T>(x: T) -> u32",
            "pub(super) const unsafe fn x()",
            "pub extern \"C\" fn x()",
        ] {
            let found = |count| too_long(&file("a.rs", &method(head, count)));
            assert_eq!(found(70), [], "{head}");
            let [finding] = &found(71)[..] else {
                panic!("{head}: {:?}", found(71))
            };
            assert_eq!(finding.line, 2);
            assert!(finding.what.starts_with("x has 71 lines"), "{finding}");
            assert!(!finding.warning);
        }
    }

    #[test]
    fn every_function_is_counted_by_itself() {
        // A declaration, one in a line, a signature of several lines, one in another.
        let text = "trait X {\n    fn a(&self);\n    fn b(\n        x: u32,\n    ) -> u32;\n\
                    \x20   fn c() {}\n    fn d<T>(x: T)\n    where\n        T: Y,\n    {\n\
                    \x20       fn e() {\n            x();\n        }\n    }\n}\n";
        let found = functions(text);
        let found: Vec<_> = found.iter().map(|f| (f.name, f.line, f.count)).collect();
        assert_eq!(found, [("d", 7, 8), ("e", 11, 3)]);
        // Not a function: a function pointer, a comment.
        assert_eq!(function_name("    let x: fn (u32) = y;"), None);
        assert_eq!(function_name("    // a const fn for all"), None);
    }

    #[test]
    fn long_files_are_found_with_their_tests() {
        let text = |count: usize| "//! Doc.\n".to_owned() + &"\n".repeat(count - 1);
        assert_eq!(too_long(&file("a.rs", &text(600))), []);
        assert_eq!(too_long(&file("a.rs", &text(601))).len(), 1);
        assert_eq!(too_long(&file("a/tests.rs", &text(601))).len(), 1);
    }

    #[test]
    fn exceptions_are_for_one_function_and_reported_when_needless() {
        let path = "pure/bpf/src/vm_cbpf.rs";
        let excepted = file(path, &method("fn run_or_refuse()", 71));
        assert_eq!(too_long(&excepted), []);
        assert_eq!(too_long(&file(path, &method("fn other()", 71))).len(), 1);
        let needless = |file: File| {
            let needless = needless_exceptions(&[file]);
            assert!(needless.iter().all(|finding| finding.warning));
            needless.len()
        };
        assert_eq!(needless(excepted), EXCEPTIONS.len() - 1);
        let short = file(path, &method("fn run_or_refuse()", 70));
        assert_eq!(needless(short), EXCEPTIONS.len());
    }
}
