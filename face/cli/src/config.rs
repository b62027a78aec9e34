//! `flows --config FILE`: a TOML file in which every option of `flows` is a key.
//!
//! The keys are turned into arguments before parsing, so that a key has the name, values and errors
//! of its option, and a new option is a new key. The command line takes precedence over the file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, Parser};
use sys::{Error, ErrorKind, Result};
use toml::{Table, Value};

use crate::Cli;

/// The subcommand with a configuration file.
const SUBCOMMAND: &str = "flows";
/// Keys for positional arguments.
const PORT: &str = "port";
const FILTER: &str = "filter";
/// Maximum file size in bytes.
const LEN_MAX: u64 = 1 << 20;

/// The settings of a file: the texts of the values by key.
pub type Settings = BTreeMap<String, Vec<String>>;

/// The path of the configuration file on this command line, if any.
pub fn path(arguments: &[OsString]) -> Option<PathBuf> {
    if arguments.get(1)? != SUBCOMMAND {
        return None;
    }
    given(arguments)?.get_one::<PathBuf>("config").cloned()
}

/// Parses the command line alone; required arguments may be missing, as they may be in the file.
fn given(arguments: &[OsString]) -> Option<ArgMatches> {
    let command = Cli::command().ignore_errors(true);
    let command = command.mut_subcommand(SUBCOMMAND, |flows| flows.ignore_errors(true));
    let matches = command.try_get_matches_from(arguments).ok()?;
    let (name, matches) = matches.subcommand()?;
    (name == SUBCOMMAND).then(|| matches.clone())
}

/// Merges the command line with the settings.
///
/// # Errors
/// If the file cannot be read, is not TOML, or has an unknown key or invalid value.
pub fn merged(arguments: &[OsString], settings: &Settings) -> Vec<OsString> {
    let Some(matches) = given(arguments) else {
        return arguments.to_vec();
    };
    let is_given = |name: &str| {
        let id = name.replace('-', "_");
        let known = matches.ids().any(|of| of.as_str() == id);
        known && matches.value_source(&id) == Some(clap::parser::ValueSource::CommandLine)
    };
    let mut flags: Vec<OsString> = Vec::new();
    let mut positional: Vec<OsString> = Vec::new();
    for (name, values) in settings {
        if name == PORT || name == FILTER || is_given(name) {
            continue;
        }
        for value in values {
            flags.push(match value.as_str() {
                "" => format!("--{name}").into(),
                value => format!("--{name}={value}").into(),
            });
        }
    }
    if !is_given(PORT) {
        let words = [PORT, FILTER]
            .into_iter()
            .filter_map(|name| settings.get(name));
        positional.extend(words.flatten().map(OsString::from));
    } else if !is_given(FILTER) {
        positional.extend(
            settings
                .get(FILTER)
                .into_iter()
                .flatten()
                .map(OsString::from),
        );
    }
    // After the subcommand: a filter takes all words that follow it.
    let (head, rest) = arguments.split_at(2.min(arguments.len()));
    [head, &flags, rest, &positional].concat()
}

/// Reads a file.
///
/// # Errors
/// If it cannot be read, is not TOML, or has an unknown key.
pub fn read(path: &Path) -> Result<Settings> {
    let what = || format!("read {}", path.display());
    let text = runtime::text::read_text(path, LEN_MAX, what)?;
    settings(&text).map_err(|(why, hint)| {
        let error = Error::new(ErrorKind::InvalidInput, what(), why);
        error.with_hint(hint)
    })
}

/// An error and a hint.
type Wrong = (String, String);

fn settings(text: &str) -> std::result::Result<Settings, Wrong> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let why = error.to_string().trim_end().replace('\n', "\n  ");
        (
            why,
            "write `key = value`, with strings in quotes".to_owned(),
        )
    })?;
    let command = Cli::command();
    let Some(flows) = command.find_subcommand(SUBCOMMAND) else {
        return Ok(Settings::new());
    };
    let mut settings = Settings::new();
    for (key, value) in &table {
        let name = key.replace('_', "-");
        let arg = find(flows, &name).ok_or_else(|| unknown(flows, key))?;
        settings.insert(name, values(key, value, arg)?);
    }
    Ok(settings)
}

/// Finds the argument of this key.
fn find<'a>(flows: &'a Command, name: &str) -> Option<&'a Arg> {
    let mut args = flows.get_arguments();
    args.find(|arg| match arg.get_long() {
        Some(long) => long == name && !matches!(name, "config" | "help" | "version"),
        None => arg.get_id() == name && matches!(name, PORT | FILTER),
    })
}

fn unknown(flows: &Command, key: &str) -> Wrong {
    let names = flows
        .get_arguments()
        .map(|arg| arg.get_long().unwrap_or(arg.get_id().as_str()));
    let nearest = names
        .filter(|name| !matches!(*name, "config" | "help" | "version"))
        .map(|name| {
            // Typing errors rarely affect the first letter.
            let is_other = name.chars().next() != key.chars().next();
            (distance(name, &key.replace('_', "-")), is_other, name)
        })
        .min();
    let hint = match nearest {
        Some((0..=3, _, name)) => format!("a similar key exists: {name}"),
        _ => "keys are the long options of `barewire flows --help`, port and filter".to_owned(),
    };
    (format!("unknown key {key:?}"), hint)
}

/// Edit distance (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

/// The texts of a value; an empty text stands for a flag without value.
fn values(key: &str, value: &Value, arg: &Arg) -> std::result::Result<Vec<String>, Wrong> {
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let wrong = |why: &str| {
        let hint = match is_switch {
            true => format!("write {key} = true or {key} = false"),
            false => {
                format!("for example {key} = \"…\", or a list: {key} = [\"…\", \"…\"]")
            }
        };
        Err((format!("{key}: {why}"), hint))
    };
    match value {
        Value::Boolean(is_set) if is_switch => Ok(match is_set {
            true => vec![String::new()],
            false => Vec::new(),
        }),
        _ if is_switch => wrong("expected true or false"),
        Value::Array(items) => {
            let takes_several =
                matches!(arg.get_action(), ArgAction::Append) || [PORT, FILTER].contains(&key);
            if !takes_several && items.len() > 1 {
                return wrong("it takes one value");
            }
            let texts = items.iter().map(text);
            let texts: Option<Vec<String>> = texts.collect();
            texts.map_or_else(|| wrong("expected a list of strings and numbers"), Ok)
        }
        value => match text(value) {
            Some(text) => Ok(vec![text]),
            None => wrong("expected a string, a number, or a list of those"),
        },
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The arguments of the process, with those of its configuration file.
///
/// # Errors
/// As [`read`], and the parser's errors in the file's values.
pub fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some(path) = path(&arguments) else {
        return Ok(arguments);
    };
    let settings = read(&path)?;
    let all = merged(&arguments, &settings);
    // The parser reports errors in the command line itself.
    if let Err(error) = Cli::try_parse_from(&all)
        && error.use_stderr()
        && !settings.is_empty()
    {
        let (why, hint) = crate::exit::why_and_hint(&error, "see `barewire flows --help`");
        let what = format!("use {}", path.display());
        let error = Error::new(ErrorKind::InvalidInput, what, why);
        return Err(error.with_hint(hint));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(line: &[&str], text: &str) -> Vec<String> {
        let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
        let merged = merged(&arguments, &settings(text).unwrap());
        Cli::try_parse_from(&merged).unwrap();
        merged
            .into_iter()
            .map(|arg| arg.into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_file_becomes_arguments() {
        let text = "port = 'eth0'\nfilter = 'udp port 53'\ntop = 7\nplain = true\nuniflow = false\n\
                    decode = ['tls', 'dns']\nexport = ['csv:a', 'ipfix:udp://h']\n\
                    idle_timeout = 'tcp=2m'\nqueues = 2\n";
        let line = ["barewire", "flows", "--config", "x"];
        assert_eq!(
            all(&line, text)[2..],
            [
                "--decode=tls",
                "--decode=dns",
                "--export=csv:a",
                "--export=ipfix:udp://h",
                "--idle-timeout=tcp=2m",
                "--plain",
                "--queues=2",
                "--top=7",
                "--config",
                "x",
                "eth0",
                "udp port 53",
            ]
        );
        // The command line takes precedence.
        let line = [
            "barewire",
            "flows",
            "--config=x",
            "--top",
            "3",
            "eth1",
            "tcp",
        ];
        let args = all(&line, text);
        assert!(!args.contains(&"--top=7".to_owned()) && !args.contains(&"eth0".to_owned()));
        assert_eq!(args.last().map(String::as_str), Some("tcp"));
    }

    #[test]
    fn errors_suggest_the_right_value() {
        for (text, why, hint) in [
            (
                "tpo = 3",
                "unknown key \"tpo\"",
                "a similar key exists: top",
            ),
            ("expotr = 'x'", "unknown key", "export"),
            ("nonsense_entirely = 3", "unknown key", "long options"),
            ("config = 'x'", "unknown key", "long options"),
            (
                "plain = 3",
                "plain: expected true or false",
                "plain = true or",
            ),
            ("top = [1, 2]", "it takes one value", "top"),
            ("top = { a = 1 }", "expected a string", "top"),
            ("top = ", "line 1", "key = value"),
        ] {
            let (w, h) = settings(text).unwrap_err();
            assert!(w.contains(why) && h.contains(hint), "{text}: {w} / {h}");
        }
    }

    /// A pseudorandom number generator (xorshift64*).
    fn below(state: &mut u64, bound: usize) -> usize {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as usize % bound
    }

    const KEYS: [&str; 8] = [
        "filter",
        "top",
        "plain",
        "decode",
        "export",
        "idle_timeout",
        "queues",
        "nonsense",
    ];
    const VALUES: [&str; 9] = [
        "7",
        "-7",
        "1e400",
        "true",
        "'tls'",
        "''",
        "['tls', 'dns']",
        "[1, [2]]",
        "{ a = 1 }",
    ];
    /// Fragments that damage inserts into a file.
    const PARTS: [&str; 12] = [
        " = ", "= ", "[", "]", "{", "}", "'", "\"", "\n", ".", "\u{0}", "ü",
    ];

    /// Replaces up to nine bytes of a text by one of [`PARTS`].
    fn damage(text: &mut String, state: &mut u64) {
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let from = starts[below(state, starts.len())];
        let to = text.floor_char_boundary(from + below(state, 10));
        text.replace_range(from..to, PARTS[below(state, PARTS.len())]);
    }

    /// A file with any values, every other one damaged, is refused with a reason or becomes
    /// arguments, which the parser accepts or refuses with its own message.
    #[test]
    fn any_file_is_accepted_or_refused_with_a_reason() {
        let line = ["barewire", "flows", "--config", "x"].map(OsString::from);
        let mut state = 0x5eed;
        let (mut accepted, mut refused_by_parser, mut refused) = (0, 0, 0);
        for round in 0..1000 {
            let mut text = "port = 'eth0'\n".to_owned();
            for _ in 0..1 + round % 3 {
                let key = KEYS[below(&mut state, KEYS.len())];
                let value = VALUES[below(&mut state, VALUES.len())];
                text += &format!("{key} = {value}\n");
            }
            if round % 2 == 0 {
                damage(&mut text, &mut state);
            }
            match settings(&text) {
                Ok(settings) => {
                    let all = merged(&line, &settings);
                    assert_eq!(all[..2], line[..2], "{text}");
                    match Cli::try_parse_from(&all) {
                        Ok(_) => accepted += 1,
                        Err(error) => {
                            assert!(!error.to_string().is_empty(), "{text}");
                            refused_by_parser += 1;
                        }
                    }
                }
                Err((why, hint)) => {
                    assert!(!why.is_empty() && !hint.is_empty(), "{text}");
                    refused += 1;
                }
            }
        }
        assert!(
            accepted >= 20 && refused_by_parser >= 20 && refused >= 20,
            "{accepted} accepted, {refused_by_parser} refused by the parser, {refused} refused"
        );
    }

    /// Every flag in the help is a key.
    #[test]
    fn every_flag_is_a_key() {
        let command = Cli::command();
        let flows = command.find_subcommand(SUBCOMMAND).unwrap();
        let longs = flows.get_arguments().filter_map(Arg::get_long);
        let longs: Vec<&str> = longs.filter(|name| *name != "config").collect();
        assert!(longs.len() > 30 && longs.iter().all(|name| find(flows, name).is_some()));
    }
}
