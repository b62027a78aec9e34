//! Checks that the files, functions, crates and fuzz targets that PROMISES.md cites exist.
//!
//! The second column of its tables cites in code spans: a file, of a crate if one is named before
//! it, and in parentheses behind it functions of that file; otherwise crates, folders and fuzz
//! targets. Whatever is none of them must be in [`PROGRAMS`].

use std::path::{Path, PathBuf};

use super::{File, Finding};

const PROMISES: &str = "PROMISES.md";

/// What counts as a citation though it is no file: it runs over every backend, or every target.
const SUITES: [&str; 2] = ["conformance suite", "fuzz targets with corpora"];

/// Section without tests: what it cites are commands.
const BENCHMARKS: &str = "## Cost";

/// Where the files of lab tests are, which are cited without it.
const LAB_TESTS: &str = "dev/lab/tests";

/// Programs that tests run, cited among tests.
const PROGRAMS: [&str; 4] = ["nft", "nft list ruleset", "openssl x509", "ssh-keygen"];

/// Citations of something that does not exist, and rows without any.
pub fn citations(files: &[File]) -> Vec<Finding> {
    let page = files.iter().find(|file| file.path == Path::new(PROMISES));
    let text = page.and_then(|page| page.text.as_deref());
    let mut findings = Vec::new();
    for (index, line) in text.unwrap_or_default().lines().enumerate() {
        if line == BENCHMARKS {
            break;
        }
        let Some(cell) = cited(line) else { continue };
        let mut row = Row::new(files);
        row.read(cell);
        let is_empty = row.count == 0 && row.wrong.is_empty();
        let wrong = row.wrong.into_iter();
        findings.extend(wrong.map(|what| Finding::new(PROMISES, index + 1, what)));
        let known = ["not yet tested", "benchmark only"].iter().chain(&SUITES);
        if is_empty && !known.into_iter().any(|words| cell.contains(words)) {
            let what = "the promise cites no test; write `not yet tested` or `benchmark only`";
            findings.push(Finding::new(PROMISES, index + 1, what));
        }
    }
    findings
}

/// The last cell of a row that promises something.
fn cited(line: &str) -> Option<&str> {
    let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let (promise, cell) = row.rsplit_once(" | ")?;
    (promise != "promise" && promise != "---").then_some(cell)
}

/// A row that is read from left to right.
struct Row<'a> {
    files: &'a [File],
    /// The crate or folder that was cited last.
    folder: PathBuf,
    /// The file that was cited last, and text between it and the next citation.
    file: Option<&'a File>,
    /// Citations that were found.
    count: usize,
    wrong: Vec<String>,
}

impl<'a> Row<'a> {
    fn new(files: &'a [File]) -> Row<'a> {
        Row {
            files,
            folder: PathBuf::new(),
            file: None,
            count: 0,
            wrong: Vec::new(),
        }
    }

    fn read(&mut self, cell: &str) {
        let mut pieces = cell.split('`');
        let mut before = pieces.next().unwrap_or_default();
        // Whether the citation is in parentheses behind a file.
        let mut is_inside = false;
        while let Some(word) = pieces.next() {
            is_inside = match before.rfind(['(', ')']) {
                Some(at) => before[at..].starts_with('('),
                None => is_inside,
            };
            // Words between a file and the parentheses: these are about something else.
            if is_inside
                && before
                    .find('(')
                    .is_some_and(|at| !before[..at].trim().is_empty())
            {
                self.file = None;
            }
            let is_function = is_inside && self.file.is_some() && is_name(word);
            let is_found = match is_function {
                true => self.function(word),
                false => self.place(word, is_inside),
            };
            self.count += usize::from(is_found);
            if !is_found && !PROGRAMS.contains(&word) && !is_option(word) {
                self.wrong.push(match (is_function, self.file) {
                    (true, Some(file)) => format!("no function {word} in {}", file.path.display()),
                    _ => format!("no such test, folder or fuzz target: {word}"),
                });
            }
            before = pieces.next().unwrap_or_default();
        }
    }

    /// A file, a folder or crate, or a fuzz target.
    fn place(&mut self, word: &str, is_inside: bool) -> bool {
        if word.ends_with(".rs") {
            self.file = self.find(word, is_inside);
            return self.file.is_some();
        }
        self.file = None;
        let folders = ["", "pure", "system", "host", "face", "dev"].map(Path::new);
        let mut folders = folders.into_iter().map(|layer| layer.join(word));
        let is_there = |folder: &PathBuf| self.files.iter().any(|f| f.path.starts_with(folder));
        if let Some(folder) = folders.find(is_there) {
            self.folder = folder;
            return true;
        }
        let module = self.folder.join("src").join(word);
        let tests = self.folder.join(word);
        if is_inside && is_there(&tests) {
            return true;
        }
        if is_inside && (is_there(&module) || is_there(&module.with_extension("rs"))) {
            return true;
        }
        // A function of the crate that is cited before it: `pure/flow` (`bytes_per_flow`).
        if is_inside && is_name(word) && self.in_crate(word) {
            return true;
        }
        let target = Path::new("fuzz/fuzz_targets").join(format!("{word}.rs"));
        self.files.iter().any(|file| file.path == target) || self.in_suites(word)
    }

    /// A file by its path: in parentheses, one of the crate that is cited before them; else of the
    /// repository, or one of the tests of the lab.
    fn find(&self, word: &str, is_inside: bool) -> Option<&'a File> {
        let is_of_crate = is_inside && !self.folder.as_os_str().is_empty();
        let folders = match is_of_crate {
            true => ["src", "tests", ""].map(|part| self.folder.join(part)),
            false => [PathBuf::new(), LAB_TESTS.into(), LAB_TESTS.into()],
        };
        let mut places = folders.into_iter().map(|folder| folder.join(word));
        places.find_map(|place| self.files.iter().find(|file| file.path == place))
    }

    /// Whether the file that was cited, or a file of its module, has this function.
    fn function(&self, name: &str) -> bool {
        let Some(file) = self.file else { return false };
        let module = file.path.with_extension("");
        let parts = self.files.iter();
        let mut parts =
            parts.filter(|part| part.path == file.path || part.path.starts_with(&module));
        parts.any(|part| has_function(part, name))
    }

    fn in_crate(&self, name: &str) -> bool {
        let all = self.files.iter();
        let mut all = all.filter(|file| file.path.starts_with(&self.folder));
        !self.folder.as_os_str().is_empty() && all.any(|file| has_function(file, name))
    }

    /// A case or a rig of the conformance suite, or a suite of the guest.
    fn in_suites(&self, name: &str) -> bool {
        let quoted = format!("\"{name}\"");
        let folders = ["dev/lab/src/conformance", "dev/xtask/src/lab/suites.rs"];
        let all = self.files.iter();
        let mut all = all.filter(|file| folders.iter().any(|it| file.path.starts_with(it)));
        all.any(|file| {
            let text = file.text.as_deref().unwrap_or_default();
            has_function(file, name) || text.contains(&quoted)
        })
    }
}

fn has_function(file: &File, name: &str) -> bool {
    let start = format!("fn {name}(");
    file.text
        .as_deref()
        .is_some_and(|text| text.contains(&start))
}

fn is_name(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.contains('_') && word.chars().all(is_part)
}

/// A port or an option that a test is said to use.
fn is_option(word: &str) -> bool {
    word.ends_with(':') || word.starts_with('-') || matches!(word, "live")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(row: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File {
            path: path.into(),
            len: 0,
            text: Some(text.to_owned()),
        };
        let page =
            format!("| promise | kept by |\n| --- | --- |\n{row}\n{BENCHMARKS}\n| x | y |\n");
        let files = [
            file(PROMISES, &page),
            file("dev/lab/tests/some_live.rs", "fn it_is_counted() {}"),
            file("dev/lab/tests/other/part.rs", "fn a_part_holds() {}"),
            file("dev/lab/tests/other.rs", "mod part;"),
            file("pure/flow/src/table/tests.rs", "fn bytes_per_flow() {}"),
            file("pure/flow/tests/laws.rs", ""),
            file("fuzz/fuzz_targets/pcap.rs", ""),
        ];
        citations(&files).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn citations_of_what_exists_are_accepted() {
        for row in [
            "| a | `some_live.rs` |",
            "| a | `dev/lab/tests/some_live.rs`, `other.rs` |",
            "| a | `some_live.rs` (`it_is_counted`), by `nft`; `pure/flow` tests |",
            "| a | `other.rs` (`a_part_holds`), `pure/flow` (`table/tests.rs`, `laws.rs`) |",
            "| a | `pure/flow` (`bytes_per_flow`), `flow` (`table/tests.rs`: damage) |",
            "| a | `pure/flow/src/table/`, fuzz target `pcap` |",
            "| a | not yet tested |",
        ] {
            assert_eq!(findings(row), Vec::<String>::new(), "{row}");
        }
    }

    #[test]
    fn citations_of_what_does_not_exist_are_found() {
        for row in [
            "| a | `none_live.rs` |",
            "| a | `some_live.rs` (`it_is_lost`) |",
            "| a | `some_live.rs` (`it_is_counted`, `it_is_lost`) |",
            "| a | `other.rs` (`it_is_counted`) |",
            "| a | `pure/flow` (`bytes_per_packet`) |",
            "| a | `pure/flow` (`some_live.rs`) |",
            "| a | `pure/flow`, `pure/wire` |",
            "| a | `some_live.rs`, fuzz target `pcapng` |",
            "| a | a careful look |",
        ] {
            assert_eq!(findings(row).len(), 1, "{row}: {:?}", findings(row));
        }
    }
}
