//! Exit codes, and how errors are printed: what failed and why on one line, what to do next on a
//! `hint:` line.

use std::process::ExitCode;

use sys::{Error, ErrorKind, Result};

use crate::out::say;

/// The table of codes, shown in help and man pages.
pub const HELP: &str = "Exit codes:\n  \
    0  success (also after Ctrl-C, which stops cleanly and prints totals)\n  \
    1  failure: the error says what failed, why, and what to do next\n  \
    2  usage error\n  \
    3  damaged input: everything before the damage was processed\n  \
    4  the device went away";

/// Prints an error, if there is one, and returns the exit code.
pub fn report(result: Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    // The reader of our standard output has left (`| head`): that is how it says that it has
    // enough.
    if error.os_code() == Some(32) {
        return ExitCode::SUCCESS;
    }
    tell(&error);
    ExitCode::from(match error.kind() {
        ErrorKind::Damaged => 3,
        ErrorKind::Gone => 4,
        _ => 1,
    })
}

/// Prints a usage error (or the help that was asked for) and ends the process: what is wrong, the
/// usage, and on a `hint:` line what to do.
pub fn usage(error: &clap::Error) -> ! {
    if !error.use_stderr() {
        // `--help` and `--version` are not errors; a reader that has left wants no more.
        let _ = error.print();
        std::process::exit(0);
    }
    crate::out::words(with_hint(&error.render().to_string()).into_bytes());
    crate::out::finish();
    std::process::exit(2);
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

/// The parser's message, with its tip or a pointer to the help on a `hint:` line at the end.
fn with_hint(text: &str) -> String {
    let mut hint = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        if let Some(tip) = line.trim_start().strip_prefix("tip: ") {
            hint = Some(tip.to_owned());
        } else if !line.starts_with("For more information") {
            lines.push(line);
        }
    }
    let usage = lines.iter().find_map(|line| line.strip_prefix("Usage: "));
    let words = usage.unwrap_or("barewire").split_whitespace();
    let name: Vec<&str> = words
        .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    let hint = hint.unwrap_or_else(|| format!("see `{} --help`", name.join(" ")));
    format!("{}\nhint: {hint}\n", lines.join("\n").trim_end())
}

/// Prints an error on standard error.
pub fn tell(error: &Error) {
    let hint = error.hint().unwrap_or_else(|| fallback(error.kind()));
    say!("barewire: {error}\nhint: {hint}");
}

/// The hint for an error that has none of its own.
fn fallback(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Damaged => "everything before the damage was processed; the rest is unreadable",
        ErrorKind::Permission => "run as root; privileges are dropped once the port is open",
        ErrorKind::NotFound => "check the name; `barewire devices` lists the interfaces",
        ErrorKind::Unsupported => "`barewire doctor` shows what this host supports",
        ErrorKind::Busy => {
            "`barewire devices` shows what uses an interface; try again when it is free"
        }
        ErrorKind::Gone => "restart when the interface is back",
        ErrorKind::NoSpace => "free some space, or request less",
        _ => "see --help for the options; `barewire doctor` checks the host",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn wrong_usage_has_a_hint() {
        for (line, hint) in [
            (
                vec!["barewire", "capture", "--cuont", "3"],
                "hint: a similar argument exists: '--count",
            ),
            (
                vec!["barewire", "flows"],
                "hint: see `barewire flows --help`",
            ),
            (vec!["barewire"], ""),
        ] {
            let error = crate::Cli::command()
                .try_get_matches_from(line)
                .unwrap_err();
            let text = with_hint(&error.render().to_string());
            assert!(text.contains(hint), "{text}");
            assert!(!text.contains("For more information"), "{text}");
        }
    }
}
