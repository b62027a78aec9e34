//! Lets tests of all crates report that they cannot run here, and why.
//!
//! The line `SKIPPED: TEST: WHY` goes to standard error past libtest's capture, and to the file
//! named by `BAREWIRE_SKIPS`, from which `cargo xtask test` prints and counts them: libtest counts
//! a test that returns early as passed. `REDUCED: TEST: HOW` is the line of a test that runs on a
//! part of its input, because the rest is not on this machine. Bodies of child processes are
//! recorded there, too ([`child_body!`]). The lab reports more about missing requirements
//! (`lab::skip`), and also uses this crate, which has no dependencies so that every crate can use
//! it.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;

/// The variable with the file to which skips are appended, one line each.
pub const SKIPS_FILE_VAR: &str = "BAREWIRE_SKIPS";

/// How a line in that file starts that names a body of a child process instead of a skip.
pub const CHILD_PREFIX: &str = "CHILD: ";

/// Set in the guest of the lab, which has no file of skips: the lines are printed there.
const GUEST_VAR: &str = "BAREWIRE_GUEST";

/// If set and not empty, every skip is a failure.
pub const STRICT_VAR: &str = "BAREWIRE_NO_SKIPS";

/// Start of the line of a test that cannot run here.
pub const SKIPPED: &str = "SKIPPED: ";

/// Start of the line of a test that runs on less input than there could be.
pub const REDUCED: &str = "REDUCED: ";

/// Records that `test` cannot run here; called by the macros.
///
/// # Panics
/// If `BAREWIRE_NO_SKIPS` is set, or the line cannot be written.
pub fn record(test: &str, why: impl fmt::Display) {
    if is_strict() {
        panic!("{test} would be skipped ({why}), and {STRICT_VAR} is set");
    }
    write(SKIPPED, test, &why.to_string());
}

/// Records that `test` runs on less input than on a machine that has all of it: `ran on 4 of 700
/// captures`. It counts as passed; `cargo xtask test` prints how many tests of each kind there
/// were.
///
/// # Panics
/// If `BAREWIRE_NO_SKIPS` is set, or the line cannot be written.
pub fn reduced(test: &str, how: impl fmt::Display) {
    if is_strict() {
        panic!("{test} {how}, and {STRICT_VAR} is set");
    }
    write(REDUCED, test, &how.to_string());
}

fn is_strict() -> bool {
    std::env::var_os(STRICT_VAR).is_some_and(|value| !value.is_empty())
}

fn write(kind: &str, test: &str, why: &str) {
    let why = why.replace('\n', " ");
    let line = format!("{kind}{test}: {why}\n");
    // Written to the stream itself: libtest captures only the print macros.
    let _ = std::io::stderr().write_all(line.as_bytes());
    append(&line);
}

/// Appends a line to the file of skips, if there is one.
fn append(line: &str) {
    if let Some(file) = std::env::var_os(SKIPS_FILE_VAR) {
        // One write in append mode, so that lines of several test processes do not mix.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&file)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(
            written.is_ok(),
            "cannot write {}: {written:?}",
            file.display()
        );
    }
}

/// The value of this variable in a child process; elsewhere `None`, and `test` is recorded as the
/// body of a child, which tests nothing there. Called by the macro.
///
/// # Panics
/// If the value is not UTF-8, or the line cannot be written.
pub fn child(test: &str, variable: &str) -> Option<String> {
    if let Some(value) = std::env::var_os(variable) {
        return Some(value.into_string().expect("UTF-8"));
    }
    let line = format!("{CHILD_PREFIX}{test}\n");
    if std::env::var_os(GUEST_VAR).is_some() {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    append(&line);
    None
}

/// The return value of a skipped test, for tests that return nothing and for those that return a
/// result.
pub trait Skipped {
    /// The value.
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() {}
}

impl<E> Skipped for Result<(), E> {
    fn skipped() -> Self {
        Ok(())
    }
}

/// The path of the function that contains a local item of type `T`; helper of the macros.
pub fn name_of<T>(_: T) -> &'static str {
    let name = std::any::type_name::<T>();
    let name = name.strip_suffix("::here").unwrap_or(name);
    name.trim_end_matches("::{{closure}}")
}

/// Skips the current test loudly: `skip::skip!("no libpcap: {error}")`.
#[macro_export]
macro_rules! skip {
    ($($why:tt)+) => {{
        fn here() {}
        $crate::record($crate::name_of(here), format_args!($($why)+));
        return $crate::Skipped::skipped();
    }};
}

/// Begins a test that is the body of a child process, which another test starts with this variable
/// set: `let name = skip::child_body!(CHILD);`. Without it the test returns, and `cargo xtask test`
/// does not count it as passed.
#[macro_export]
macro_rules! child_body {
    ($variable:expr) => {{
        fn here() {}
        match $crate::child($crate::name_of(here), $variable) {
            Some(value) => value,
            None => return,
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_named_after_its_test() {
        fn here() {}
        assert_eq!(name_of(here), "skip::tests::a_skip_is_named_after_its_test");
        let inner = || {
            fn here() {}
            name_of(here)
        };
        assert_eq!(inner(), "skip::tests::a_skip_is_named_after_its_test");
    }

    /// Set in a process that is to run a body: what it prints.
    const BODY_VAR: &str = "BAREWIRE_SKIP_BODY";

    #[test]
    fn child_prints_its_order() {
        println!("ordered {}", child_body!(BODY_VAR));
    }

    #[test]
    fn the_body_of_a_child_is_recorded_unless_it_runs() {
        let name = format!("barewire-skip-{}-body", std::process::id());
        let file = std::env::temp_dir().join(name);
        let run = |order: Option<&str>| {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "tests::child_prints_its_order", "--nocapture"]);
            command.env(SKIPS_FILE_VAR, &file).env(STRICT_VAR, "1");
            command.envs(order.map(|order| (BODY_VAR, order)));
            let out = command.output().unwrap();
            assert!(out.status.success());
            let lines = std::fs::read_to_string(&file).unwrap_or_default();
            let _ = std::fs::remove_file(&file);
            (String::from_utf8_lossy(&out.stdout).into_owned(), lines)
        };
        let (printed, lines) = run(None);
        assert!(!printed.contains("ordered"), "{printed}");
        assert_eq!(lines, "CHILD: skip::tests::child_prints_its_order\n");
        let (printed, lines) = run(Some("this"));
        assert!(printed.contains("ordered this"), "{printed}");
        assert_eq!(lines, "");
    }

    /// Set in the child.
    const CHILD_VAR: &str = "BAREWIRE_SKIP_CHILD";

    /// Runs a test of this file in a child, with a file for its lines; returns its output, its
    /// lines, and whether it passed.
    fn child(test: &str, strict: &str) -> (String, String, bool) {
        let name = format!("barewire-skip-{}-{test}-{strict}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("tests::{test}")])
            .env(CHILD_VAR, "1")
            .env(SKIPS_FILE_VAR, &file)
            .env(STRICT_VAR, strict)
            .output()
            .unwrap();
        let lines = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        let printed = String::from_utf8_lossy(&out.stderr).into_owned();
        (printed, lines, out.status.success())
    }

    /// One line, past libtest's capture and in the file; with the strict variable, a failure.
    fn is_loud_and_counted(test: &str, line: &str) {
        let (printed, lines, passed) = child(test, "");
        assert!(printed.contains(line), "{printed}");
        assert_eq!((lines.as_str(), passed), (line, true));
        let (_, lines, passed) = child(test, "1");
        assert_eq!((lines.as_str(), passed), ("", false));
    }

    #[test]
    fn a_skip_is_loud_and_counted() {
        if std::env::var_os(CHILD_VAR).is_some() {
            skip!("needs {}\nand more", "a thing");
        }
        let line = "SKIPPED: skip::tests::a_skip_is_loud_and_counted: needs a thing and more\n";
        is_loud_and_counted("a_skip_is_loud_and_counted", line);
    }

    #[test]
    fn less_input_is_loud_and_counted() {
        if std::env::var_os(CHILD_VAR).is_some() {
            reduced("a::test", "ran on 4 of 700 captures");
            return;
        }
        let line = "REDUCED: a::test: ran on 4 of 700 captures\n";
        is_loud_and_counted("less_input_is_loud_and_counted", line);
    }
}
