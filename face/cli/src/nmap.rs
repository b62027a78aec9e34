//! Accepts nmap's and masscan's command line options in `barewire scan`. Options of one dash and
//! two letters would be parsed as two options, so they are replaced by their equivalents before the
//! command line is parsed; so are the lines of a masscan configuration file.

mod conf;
mod file;
mod meaning;
mod ping;
mod table;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use runtime::scan::OutputFormat;
use sys::{Error, ErrorKind, Result};

use meaning::Meaning::{self, Hint, Ignored, Is, Nothing, Takes};
use table::{LONG, OPTIONS, PREFIXES, SCANS};

/// The subcommand that accepts these options.
const SUBCOMMAND: &str = "scan";

/// Replaces nmap's and masscan's options in the arguments of the process.
///
/// # Errors
/// An option without its value, an option that is not supported, and any error of a configuration
/// file.
pub fn replace(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    if arguments.get(1).is_none_or(|word| word != SUBCOMMAND) {
        return Ok(arguments);
    }
    let mut words = arguments.into_iter();
    let mut head: Vec<OsString> = words.by_ref().take(2).collect();
    let mut out = Vec::new();
    let mut file = file::OutputFile::default();
    while let Some(word) = words.next() {
        if file.take(&word, &mut words)? {
            continue;
        }
        if word == "--" {
            out.push(word);
            out.extend(words);
            break;
        }
        if word == "-c" || word == "--conf" {
            // Inserted first, because the command line takes precedence.
            let path = value(&word, words.next())?;
            head.extend(conf::read(Path::new(&path))?);
            let mut option = OsString::from("--conf=");
            option.push(path);
            head.push(option);
            continue;
        }
        if !one(&word, &mut words, &mut out)? {
            out.push(word);
        }
    }
    head.extend(file.option()?);
    let mut all = [head, out].concat();
    ping::complete(&mut all);
    Ok(all)
}

/// Replaces one argument; returns false if it is not an option of nmap or masscan.
fn one(
    word: &OsStr,
    words: &mut impl Iterator<Item = OsString>,
    out: &mut Vec<OsString>,
) -> Result<bool> {
    let Some(text) = word.to_str() else {
        return Ok(false);
    };
    if let Some(format) = output(text) {
        let mut option = OsString::from(format!("--output={format}:"));
        option.push(value(word, words.next())?);
        out.push(option);
        return Ok(true);
    }
    if let Some((_, meaning)) = OPTIONS.iter().find(|(option, _)| *option == text) {
        take(text, meaning, words, out)?;
        return Ok(true);
    }
    if let Some(found) = long(text) {
        let (name, meaning, value) = found;
        let value = value.map(OsString::from);
        return take(name, meaning, &mut value.into_iter().chain(words), out).map(|()| true);
    }
    if let Some((meaning, value)) = glued(text) {
        let value = Some(value).filter(|value| !value.is_empty());
        let mut words = value.map(OsString::from).into_iter().chain(words);
        return take(text, meaning, &mut words, out).map(|()| true);
    }
    // Several letters may be combined: -sSU.
    let Some(letters) = text.strip_prefix("-s").filter(|rest| !rest.is_empty()) else {
        return Ok(false);
    };
    let found = letters
        .chars()
        .map(|letter| SCANS.iter().find(|row| row.0 == letter));
    let Some(rows) = found.collect::<Option<Vec<_>>>() else {
        let known: Vec<String> = SCANS.iter().map(|row| format!("-s{}", row.0)).collect();
        let why = "there is no such scan".to_owned();
        let hint = format!("there are {}", known.join(", "));
        return Err(refused(text, why, hint));
    };
    for (_, meaning) in rows {
        take(text, meaning, words, out)?;
    }
    Ok(true)
}

/// Finds a long option: its name, its meaning, and its value if that follows `=`.
fn long(text: &str) -> Option<(&'static str, &'static Meaning, Option<&str>)> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let (name, meaning) = LONG.iter().find(|row| row.0 == name)?;
    Some((name, meaning, value))
}

/// Finds an option that is followed by its value without a blank: `-g53`, `-PS22`, `-T4`.
fn glued(text: &str) -> Option<(&'static Meaning, &str)> {
    PREFIXES.iter().find_map(|(name, meaning, is_value)| {
        let value = text.strip_prefix(name)?;
        is_value(value).then_some((meaning, value))
    })
}

const NOT_OURS: &str = "it is not an option of barewire scan";

fn take(
    text: &str,
    meaning: &Meaning,
    words: &mut impl Iterator<Item = OsString>,
    out: &mut Vec<OsString>,
) -> Result<()> {
    match meaning {
        Is(option) => out.push(option.into()),
        Takes("") => out.push(value(OsStr::new(text), words.next())?),
        Takes(option) => {
            let mut option = OsString::from(format!("{option}="));
            option.push(value(OsStr::new(text), words.next())?);
            out.push(option);
        }
        Nothing => {}
        Ignored => drop(value(OsStr::new(text), words.next())?),
        Hint(hint) => {
            return Err(refused(text, NOT_OURS.to_owned(), (*hint).to_owned()));
        }
    }
    Ok(())
}

fn refused(text: &str, why: String, hint: String) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("use {text}"), why).with_hint(hint)
}

/// Returns the argument after an option.
fn value(option: &OsStr, word: Option<OsString>) -> Result<OsString> {
    word.ok_or_else(|| {
        let what = format!("use {}", option.to_string_lossy());
        Error::new(ErrorKind::InvalidInput, what, "its value is missing")
    })
}

/// Returns the format selected by an option such as `-oX`.
fn output(word: &str) -> Option<&'static str> {
    let mut letters = word.strip_prefix("-o")?.chars();
    let letter = letters.next()?;
    if letters.next().is_some() {
        return None;
    }
    if letter == 'A' {
        return Some("all");
    }
    let mut formats = formats().into_iter();
    let found = formats.find(|format| format.letter() == letter);
    found.map(OutputFormat::word)
}

/// All formats of files.
fn formats() -> Vec<OutputFormat> {
    OutputFormat::all(&export::scan::FORMATS)
}

/// Their names.
fn format_words() -> Vec<&'static str> {
    formats().into_iter().map(OutputFormat::word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(line: &[&str]) -> Result<Vec<String>> {
        let words = ["barewire", "scan"].iter().chain(line);
        let words = replace(words.map(OsString::from).collect())?.into_iter();
        Ok(words
            .skip(2)
            .map(|word| word.into_string().unwrap())
            .collect())
    }

    #[test]
    fn outputs_become_long_options() {
        let words = replaced(&["-oX", "a", "-p80", "-oA", "b", "--", "-oX"]);
        let expected = ["--output=xml:a", "-p80", "--output=all:b", "--", "-oX"];
        assert_eq!(words.unwrap(), expected);
        for format in formats() {
            let option = format!("-o{}", format.letter());
            let words = replaced(&[&option, "f"]).unwrap();
            assert_eq!(words, [format!("--output={}:f", format.word())]);
        }
        assert!(replaced(&["-oX"]).is_err());
        let other = ["barewire", "capture", "-oX", "a"].map(OsString::from);
        assert_eq!(replace(other.to_vec()).unwrap(), other);
    }

    #[test]
    fn options_of_nmap_become_ours_or_are_explained() {
        let line = [
            "-sSU", "-Pn", "-n", "-iL", "list", "-F", "-e", "eth0", "-g", "53",
        ];
        let expected = [
            "--probe=syn",
            "--probe=udp",
            "--target-file=list",
            "--top-ports=100",
            "-e",
            "eth0",
            "--source-port=53",
        ];
        assert_eq!(replaced(&line).unwrap(), expected);
        for word in ["-T4", "-A", "-sT", "-oN", "-sZ"] {
            let error = replaced(&[word, "9"]).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let line = [
            "--echo",
            "--shards=1/4",
            "--max-retries",
            "2",
            "--output-format",
            "json",
        ];
        let line = [&line[..], &["--output-filename=a.json", "--interactive"]].concat();
        let expected = [
            "--output=json:a.json",
            "--dry-run",
            "--shard=1/4",
            "--retries=2",
        ];
        assert_eq!(replaced(&line).unwrap(), expected);
        for word in [
            "--script=x",
            "-PS80",
            "--spoof-mac",
            "--output-format=binary",
        ] {
            let error = replaced(&[word, "9"]).unwrap_err().to_string();
            assert!(error.contains(&word[..5]), "{error}");
        }
        assert!(replaced(&["--output-format=json"]).is_err());
        let same = ["10.0.0.1", "-p", "80", "--open", "-s"];
        assert_eq!(replaced(&same).unwrap(), same);
    }

    /// Every replacement is an existing option.
    #[test]
    fn meanings_are_options() {
        use clap::CommandFactory as _;
        let command = crate::Cli::command();
        let scan = command.find_subcommand(SUBCOMMAND).unwrap();
        let known: Vec<&str> = scan
            .get_arguments()
            .filter_map(|arg| arg.get_long())
            .collect();
        let rows = OPTIONS
            .iter()
            .chain(LONG)
            .map(|row| &row.1)
            .chain(SCANS.iter().map(|row| &row.1))
            .chain(PREFIXES.iter().map(|row| &row.1));
        for meaning in rows.chain(conf::meanings()) {
            if let Is(option) | Takes(option) = meaning {
                if *option == ping::PING {
                    continue;
                }
                let name = option.split('=').next().unwrap().trim_start_matches('-');
                assert!(name.is_empty() || known.contains(&name), "{option}");
            }
        }
    }
}
