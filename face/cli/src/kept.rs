//! Registers the input files of a command before it runs, so that none of its outputs truncates
//! one, whatever the order in which the command opens them (`sys::create::kept`).
//!
//! Each argument that names an existing file is an input unless [`OUTPUTS`] lists it: so a new
//! input is protected from the start, and a new output that is missing there refuses to replace its
//! own file, which is noticed. Files named inside of inputs (lists of captures and of prefixes,
//! topologies) are registered where they are read.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::{Arg, ArgMatches, Command};
use export::Target;
use sys::create::kept;
use sys::{Error, Result};

/// Arguments that name outputs, by command and identifier. An input that they name in addition
/// (certificates in the URL of an export) is registered by [`keep_target`].
const OUTPUTS: [(&str, &str); 14] = [
    ("capture", "write"),
    ("extcap", "fifo"),
    ("flows", "report"),
    ("flows", "export"),
    ("flows", "egress"),
    ("forward", "to"),
    ("guard", "sample_drops"),
    ("scan", "output"),
    ("scan", "pcap"),
    ("scan", "state"),
    ("cluster run", "app"),
    ("cluster run", "return_to"),
    ("cluster show", "svg"),
    ("filter compile", "object"),
];

/// Names of values that are never files, though a file of that name may exist.
const NO_FILES: [&str; 12] = [
    "ADDRESS", "COMMAND", "COMPILER", "EXPR", "FILTER", "IFACE", "MODE", "N", "NAME", "NAMES",
    "TIME", "USER",
];

/// The name of values that are ports, followed by the words of a filter.
const PORTS_AND_FILTER: &str = "PORT FILTER";

/// Registers the input files named on a command line, and standard input.
///
/// # Errors
/// `InvalidInput` if standard output is one of them.
pub fn keep_inputs(command: &Command, matches: &ArgMatches) -> Result<()> {
    kept::keep_open_input(&io::stdin());
    walk("", command, matches);
    let checked = kept::check_open_output(&io::stdout());
    checked.map_err(|error| Error::from_io("write to standard output", error))
}

fn walk(name: &str, command: &Command, matches: &ArgMatches) {
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if id == "export" {
            let targets = matches.try_get_many::<Target>(id).ok().flatten();
            targets.into_iter().flatten().for_each(keep_target);
        }
        if OUTPUTS.contains(&(name, id)) || !may_be_file(arg) {
            continue;
        }
        let is_filter = value_name(arg) == PORTS_AND_FILTER;
        let values = matches.try_get_raw(id).ok().flatten();
        for (index, value) in values.into_iter().flatten().enumerate() {
            // The second name of `send` is where packets are sent.
            let is_output = (name, id, index) == ("send", "names", 1);
            // `port` may be a file in this directory, and is a keyword.
            let is_word = is_filter && index != 0 && !has_any(value, b"./:");
            if !is_output && !is_word {
                keep_value(value);
            }
        }
    }
    if let Some((inner, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(inner)
    {
        walk(format!("{name} {inner}").trim_start(), command, matches);
    }
}

fn value_name(arg: &Arg) -> &str {
    let names = arg.get_value_names().unwrap_or_default();
    names.first().map_or("", |name| name.as_str())
}

fn may_be_file(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !NO_FILES.contains(&value_name(arg))
}

fn has_any(value: &OsStr, wanted: &[u8]) -> bool {
    value.as_bytes().iter().any(|byte| wanted.contains(byte))
}

/// Registers the file of a value: `x`, `file:x`, `file:x?options`, `PORTS=x`.
fn keep_value(value: &OsStr) {
    let whole = value.as_bytes();
    let after = |separator: u8| {
        let at = whole.iter().position(|byte| *byte == separator)?;
        whole.get(at + 1..)
    };
    let parts = [Some(whole), after(b':'), after(b'=')];
    for part in parts.into_iter().flatten() {
        kept::keep_input(Path::new(OsStr::from_bytes(part)));
        if let Some(at) = part.iter().position(|byte| *byte == b'?') {
            kept::keep_input(Path::new(OsStr::from_bytes(&part[..at])));
        }
    }
}

/// Registers the files that an export reads: certificates, and files of librdkafka's properties.
pub fn keep_target(target: &Target) {
    let options = &target.options;
    for file in [&options.ca, &options.cert, &options.key] {
        file.iter().for_each(|file| kept::keep_input(file));
    }
    for (_, value) in &options.properties {
        kept::keep_input(Path::new(value));
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_output_is_an_argument() {
        let root = crate::Cli::command();
        for (name, id) in OUTPUTS {
            let mut parts = name.split(' ');
            let found = parts.try_fold(&root, |command, part| command.find_subcommand(part));
            let command = found.unwrap_or_else(|| panic!("there is no command {name}"));
            let is_there = command.get_arguments().any(|arg| arg.get_id() == id);
            assert!(is_there, "{name} has no argument {id}");
        }
    }
}
