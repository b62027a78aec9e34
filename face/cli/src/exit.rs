//! Exit codes, and how errors are printed: what failed and why on one line, what to do next on a
//! `hint:` line.

use std::ffi::OsString;
use std::process::ExitCode;

use sys::{Error, ErrorKind, Result};

use crate::out::Level;

/// The table of exit codes, shown in help and man pages.
pub const HELP: &str = "Exit codes:\n  \
    0  success (also after Ctrl-C, which stops cleanly and prints totals; of a scan: 6)\n  \
    1  failure: the error says what failed, why, and what to do next\n  \
    2  usage error; of guard check: an error in the rule file\n  \
    3  damaged input: everything before the damage was processed\n  \
    4  the device went away\n  \
    5  records or answers were lost: the run is complete, the error says what is missing\n  \
    6  a scan ended before all its probes were sent";

/// Prints an error, if there is one, and returns the exit code.
pub fn report(result: Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    // The reader of standard output has closed it (`| head`): it has read enough.
    if runtime::output::is_closed(&error) {
        return ExitCode::SUCCESS;
    }
    print(&error);
    ExitCode::from(match error.kind() {
        ErrorKind::Damaged => 3,
        ErrorKind::Gone => 4,
        ErrorKind::Lost => 5,
        ErrorKind::Incomplete => 6,
        _ => 1,
    })
}

/// Prints a usage error (or the requested help) and ends the process: the error, the usage, and on
/// a `hint:` line what to do.
pub fn usage(error: &clap::Error) -> ! {
    if !error.use_stderr() {
        // `--help` and `--version` are not errors; a reader that has closed the pipe is not an
        // error either.
        let _ = error.print();
        std::process::exit(0);
    }
    let command = command_of(std::env::args_os().skip(1));
    let text = with_hint(&error.render().to_string(), &command);
    crate::out::line(Level::Error, text.trim_end().to_owned());
    crate::out::finish();
    std::process::exit(2);
}

/// Prints the error in a file that was to be checked, and ends the process.
pub fn wrong_file(error: &Error) -> ! {
    print(error);
    crate::out::finish();
    std::process::exit(2);
}

/// The parser's error and hint, or `otherwise` as the hint: for arguments from a file.
pub fn why_and_hint(error: &clap::Error, otherwise: &str) -> (String, String) {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or_default();
    let hint = text.lines().find_map(|line| line.strip_prefix("hint: "));
    let why = line.strip_prefix("error: ").unwrap_or(line);
    (why.to_owned(), hint.unwrap_or(otherwise).to_owned())
}

/// As [`usage`], for errors that a subcommand finds after parsing.
pub fn wrong_usage(subcommand: &str, what: &str) -> ! {
    use clap::CommandFactory;
    let mut command = crate::Cli::command();
    command.build();
    let kind = clap::error::ErrorKind::ArgumentConflict;
    let error = match command.find_subcommand_mut(subcommand) {
        Some(found) => found.error(kind, what),
        None => command.error(kind, what),
    };
    usage(&error)
}

/// The subcommand of these arguments, as typed: `barewire nic bind`.
fn command_of(arguments: impl Iterator<Item = OsString>) -> String {
    use clap::CommandFactory;
    let mut name = "barewire".to_owned();
    let root = crate::Cli::command();
    let mut command = &root;
    for argument in arguments {
        let Some(inner) = argument
            .to_str()
            .and_then(|arg| command.find_subcommand(arg))
        else {
            break;
        };
        name = format!("{name} {}", inner.get_name());
        command = inner;
    }
    name
}

/// The parser's message, with its tip or a pointer to the command's help on a `hint:` line at the
/// end.
fn with_hint(text: &str, command: &str) -> String {
    let mut hint = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let tip = line.trim_start().strip_prefix("tip: ");
        // Values have their own hints.
        if let Some(tip) = tip.or_else(|| line.strip_prefix("hint: ")) {
            hint = Some(tip.to_owned());
        } else if !line.starts_with("For more information") {
            lines.push(line);
        }
    }
    let hint = hint.unwrap_or_else(|| format!("see `{command} --help`"));
    format!("{}\nhint: {hint}\n", lines.join("\n").trim_end())
}

/// Code of the kernel for a process that has too many open files (Linux
/// `include/uapi/asm-generic/errno-base.h`).
const EMFILE: i32 = 24;

/// Prints an error on standard error.
pub fn print(error: &Error) {
    let hint = error.hint().unwrap_or_else(|| match error.os_code() {
        Some(EMFILE) => "raise the limit of open files: ulimit -n",
        _ => fallback(error.kind()),
    });
    crate::out::line(Level::Error, format!("barewire: {error}\nhint: {hint}"));
}

/// The default hint for an error without one.
fn fallback(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Damaged => "everything before the damage was processed; the rest is unreadable",
        ErrorKind::Permission => "run as root; privileges are dropped once the port is open",
        ErrorKind::NotFound => "check the path or name",
        ErrorKind::Unsupported => "`barewire doctor` shows what this host supports",
        ErrorKind::Busy => "try again when it is free",
        ErrorKind::Gone => "restart when the interface is back",
        ErrorKind::Lost => {
            "check the collector or the disk; a capture file can be metered and exported again"
        }
        ErrorKind::Incomplete => "resume it, or run it again",
        ErrorKind::NoSpace => "free some space, or request less",
        _ => "see --help for the options; `barewire doctor` checks the host",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn usage_errors_have_a_hint() {
        for (line, hint) in [
            (
                vec!["barewire", "capture", "--cuont", "3"],
                "hint: a similar argument exists: '--count",
            ),
            (
                vec!["barewire", "flows"],
                "hint: see `barewire flows --help`",
            ),
            (vec!["barewire"], "hint: see `barewire --help`"),
            (
                vec!["barewire", "nic", "bind"],
                "hint: see `barewire nic bind --help`",
            ),
            (
                vec!["barewire", "capture", "lo", "-C", "none"],
                "hint: see `barewire capture --help`",
            ),
            (
                vec!["barewire", "flows", "lo", "--export", "xml:x"],
                "hint: use one of ipfix",
            ),
        ] {
            let arguments = line.iter().skip(1).map(OsString::from);
            let command = command_of(arguments);
            let error = crate::Cli::command()
                .try_get_matches_from(line)
                .unwrap_err();
            let text = with_hint(&error.render().to_string(), &command);
            assert_eq!(text.matches("hint: ").count(), 1, "{text}");
            assert!(text.contains(hint), "{text}");
            assert!(!text.contains("For more information"), "{text}");
        }
    }
}
