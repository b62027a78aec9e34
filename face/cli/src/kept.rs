//! Registers the input files of a command before it runs, so that none of its outputs truncates
//! one, whatever the order in which the command opens them (`sys::create::kept`), and refuses two
//! outputs to one file.
//!
//! Each argument that names an existing file is an input unless [`OUTPUTS`] lists it: so a new
//! input is protected from the start, and a new output that is missing there refuses to replace its
//! own file, which is noticed. Files named inside of inputs (lists of captures and of prefixes,
//! topologies) are registered where they are read.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use export::{Place, Target};
use runtime::scan::OutputName;
use sys::create::kept;
use sys::{Error, ErrorKind, Result};

/// What the value of an output is.
#[derive(Clone, Copy)]
enum Syntax {
    /// A port, no file.
    Port,
    /// A path, whatever characters it has.
    Plain,
    /// `FORMAT:FILE`, as the command parses it.
    WithFormat,
}

use Syntax::{Plain, Port, WithFormat};

/// Arguments that name outputs, by command and identifier; of those that name files and not ports,
/// no two may be one file. An input that they name in addition
/// (certificates in the URL of an export) is registered by [`keep_target`].
const OUTPUTS: [(&str, &str, Syntax); 14] = [
    ("capture", "write", Plain),
    ("extcap", "fifo", Plain),
    ("flows", "report", Plain),
    // The path is in the parsed value.
    ("flows", "export", WithFormat),
    ("flows", "egress", Port),
    ("forward", "to", Port),
    ("guard", "sample_drops", Plain),
    ("scan", "output", WithFormat),
    ("scan", "pcap", Plain),
    ("scan", "state", Plain),
    ("cluster run", "app", Port),
    ("cluster run", "return_to", Port),
    ("cluster show", "svg", Plain),
    ("filter compile", "object", Plain),
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
/// `InvalidInput` if standard output is one of them, or if two outputs are one file.
pub fn keep_inputs(command: &Command, matches: &ArgMatches) -> Result<()> {
    kept::keep_open_input(&io::stdin());
    let mut outputs = Vec::new();
    walk("", command, matches, &mut outputs);
    refuse_equal(&outputs)?;
    let checked = kept::check_open_output(&io::stdout());
    checked.map_err(|error| Error::from_io("write to standard output", error))
}

/// Registers the inputs, and collects the names of the outputs.
fn walk(name: &str, command: &Command, matches: &ArgMatches, outputs: &mut Vec<PathBuf>) {
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if id == "export" {
            let targets = matches.try_get_many::<Target>(id).ok().flatten();
            for target in targets.into_iter().flatten() {
                keep_target(target);
                if let Place::Path(path) = &target.place {
                    outputs.push(path.clone());
                }
            }
            continue;
        }
        let output = OUTPUTS.iter().find(|row| (row.0, row.1) == (name, id));
        if let Some((_, _, syntax)) = output {
            let values = matches.try_get_raw(id).ok().flatten();
            for value in values.into_iter().flatten() {
                outputs.extend(output_paths(*syntax, value));
            }
            continue;
        }
        if !may_be_file(arg) {
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
        let name = format!("{name} {inner}");
        walk(name.trim_start(), command, matches, outputs);
    }
}

/// The files that the value of an output names: several for `all:scan`.
fn output_paths(syntax: Syntax, value: &OsStr) -> Vec<PathBuf> {
    match syntax {
        Port => Vec::new(),
        Plain => vec![PathBuf::from(value)],
        WithFormat => {
            // The command refuses a format that it does not know.
            let names = OutputName::parse(value, &export::scan::FORMATS).unwrap_or_default();
            names.into_iter().map(|name| name.path).collect()
        }
    }
}

/// Fails if two outputs are one regular file (by links too), or both standard output. Two may share
/// a directory, a pipe and `/dev/null`.
fn refuse_equal(outputs: &[PathBuf]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for path in outputs {
        if let Some(identity) = Identity::of(path)
            && !seen.insert(identity)
        {
            let what = format!("write {}", path.display());
            let why = "two outputs are this file, and each would overwrite the other";
            return Err(Error::new(ErrorKind::InvalidInput, what, why)
                .with_hint("give each output a file of its own"));
        }
    }
    Ok(())
}

/// What two names of one file have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// Device and inode.
    Existing(u64, u64),
    /// The name of a file to be created, in a directory without symbolic links, or `-`.
    New(PathBuf),
}

impl Identity {
    /// `None` for what several outputs may share.
    fn of(path: &Path) -> Option<Self> {
        if path == Path::new("-") {
            return Some(Self::New(path.to_owned()));
        }
        if let Ok(metadata) = path.metadata() {
            let is_file = metadata.is_file();
            return is_file.then(|| Self::Existing(metadata.dev(), metadata.ino()));
        }
        let name = path.file_name()?;
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let folder = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(Self::New(folder.join(name)))
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
        for (name, id, _) in OUTPUTS {
            let mut parts = name.split(' ');
            let found = parts.try_fold(&root, |command, part| command.find_subcommand(part));
            let command = found.unwrap_or_else(|| panic!("there is no command {name}"));
            let is_there = command.get_arguments().any(|arg| arg.get_id() == id);
            assert!(is_there, "{name} has no argument {id}");
        }
    }

    /// Whether the outputs of this command line are accepted.
    fn is_accepted(words: &[&str]) -> bool {
        let root = crate::Cli::command();
        let words = std::iter::once("barewire").chain(words.iter().copied());
        let matches = root.clone().try_get_matches_from(words).unwrap();
        let mut outputs = Vec::new();
        walk("", &root, &matches, &mut outputs);
        let result = refuse_equal(&outputs);
        if let Err(error) = &result {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        result.is_ok()
    }

    /// Whether a scan with this `--output` and this `--pcap` is accepted.
    fn scan_is_accepted(output: &str, pcap: &str) -> bool {
        let scan = ["scan", "192.0.2.1", "-p", "80"];
        is_accepted(&[&scan[..], &["--output", output, "--pcap", pcap]].concat())
    }

    #[test]
    fn colons_and_question_marks_are_part_of_plain_names() {
        for (output, pcap, is_right) in [
            ("json:1.pcap", "a:1.pcap", true),
            ("json:1.pcap", "json:1.pcap", true),
            ("json:a:1.pcap", "a:1.pcap", false),
            ("json:1.pcap", "1.pcap?a", true),
            ("json:1.pcap?a", "1.pcap?a", false),
            ("all:run", "run.xml", false),
            ("all:run", "run", true),
        ] {
            assert_eq!(scan_is_accepted(output, pcap), is_right, "{output} {pcap}");
        }
        for (report, is_right) in [("run:1", false), ("./run:1", false), ("1", true)] {
            let words = ["flows", "a.pcap", "--export", "csv:./run:1"];
            let words = [&words[..], &["--report", report]].concat();
            assert_eq!(is_accepted(&words), is_right, "{report}");
        }
    }

    #[test]
    fn two_outputs_are_never_one_file() {
        let folder = std::env::temp_dir().join(format!("barewire-kept-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("inner")).unwrap();
        let name = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        std::fs::write(name("there"), "x").unwrap();
        std::os::unix::fs::symlink(name("there"), name("link")).unwrap();
        std::fs::hard_link(name("there"), name("hard")).unwrap();
        let pairs = [
            ("new", "new", false),
            ("new", "inner/../new", false),
            ("there", "there", false),
            ("there", "link", false),
            ("link", "hard", false),
            ("new", "other", true),
            ("there", "inner/there", true),
        ];
        for (first, second, is_right) in pairs {
            let (first, second) = (name(first), name(second));
            let csv = format!("csv:{first}");
            for json in [
                format!("json:{second}"),
                format!("json:file://{second}?queue=1000"),
            ] {
                let words = ["flows", "a.pcap", "--export", &csv, "--export", &json];
                assert_eq!(is_accepted(&words), is_right, "{csv} {json}");
            }
            let words = ["flows", "a.pcap", "--export", &csv, "--report", &second];
            assert_eq!(is_accepted(&words), is_right, "{csv} {second}");
            let xml = format!("xml:{first}");
            assert_eq!(scan_is_accepted(&xml, &second), is_right, "{xml} {second}");
        }
        let to_stdout = ["flows", "a.pcap", "--export", "csv:-", "--export", "json:-"];
        assert!(!is_accepted(&to_stdout));
        for shared in ["/dev/null", &name("inner")] {
            let (csv, json) = (format!("csv:{shared}"), format!("json:{shared}"));
            let words = ["flows", "a.pcap", "--export", &csv, "--export", &json];
            assert!(is_accepted(&words), "{shared}");
        }
        // Ports are no files.
        let ports = ["cluster", "run", "eth0", "--app", "ids:2", "--app", "ips:2"];
        assert!(is_accepted(&ports));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
