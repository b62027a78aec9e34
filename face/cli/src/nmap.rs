//! Accepts nmap's and masscan's command line options in `barewire scan`. Options of one dash and
//! two letters would be parsed as two options, so they are replaced by their equivalents before the
//! command line is parsed; so are the lines of a masscan configuration file.

mod conf;
mod meaning;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use ::scan::report::FORMATS;
use sys::{Error, ErrorKind, Result};

use meaning::Meaning::{self, Hint, Is, Nothing, Takes};

/// The subcommand that accepts these options.
const SUBCOMMAND: &str = "scan";

/// Options by name, except `-o` and `-s`.
const OPTIONS: &[(&str, Meaning)] = &[
    ("-iL", Takes("--target-file")),
    ("-iR", Takes("--random-targets")),
    ("-Pn", Nothing),
    ("-P0", Nothing),
    ("-PN", Nothing),
    ("-n", Nothing),
    (
        "-6",
        Hint("give IPv6 addresses; a name stands for its IPv4 addresses if it has any"),
    ),
    ("-v", Nothing),
    ("-vv", Nothing),
    ("-d", Nothing),
    ("--reason", Nothing),
    ("--randomize-hosts", Nothing),
    ("-F", Is("--top-ports=100")),
    ("-PE", Is("--probe=echo")),
    ("-PP", Is("--probe=timestamp")),
    ("-PR", Is("--probe=arp")),
    ("-g", Takes("--source-port")),
    ("-S", Takes("--source-ip")),
    (
        "-A",
        Hint("--banners reads what services send; there are no scripts and no OS detection"),
    ),
    (
        "-O",
        Hint("there is no OS detection in scan; `barewire filter p0f` reads signatures of SYNs"),
    ),
    ("-T0", RATE),
    ("-T1", RATE),
    ("-T2", RATE),
    ("-T3", RATE),
    ("-T4", RATE),
    ("-T5", RATE),
    (
        "-oN",
        Hint("redirect standard output to a file; it is text"),
    ),
    (
        "-oB",
        Hint("-oD FILE writes all fields, one JSON object per line"),
    ),
];

const RATE: Meaning = Hint("--rate 10kpps sets the rate; there are no timing templates");

/// Scan types by letter: `U` in `-sU`.
const SCANS: &[(char, Meaning)] = &[
    ('S', Is("--probe=syn")),
    ('U', Is("--probe=udp")),
    ('n', Is("--probe=echo")),
    ('P', Is("--probe=echo")),
    ('A', Is("--probe=ack")),
    ('F', Is("--probe=fin")),
    ('X', Is("--probe=xmas")),
    ('N', Is("--probe=null")),
    ('Y', Is("--probe=sctp-init")),
    ('O', Is("--probe=protocol")),
    ('V', Is("--banners")),
    (
        'T',
        Hint("the default, --probe syn, finds the same ports; --banners connects to them"),
    ),
    (
        'C',
        Hint("--banners reads what services send; there are no scripts"),
    ),
    ('L', Hint("--dry-run shows what would be sent")),
];

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
    while let Some(word) = words.next() {
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
    Ok([head, out].concat())
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

fn take(
    text: &str,
    meaning: &Meaning,
    words: &mut impl Iterator<Item = OsString>,
    out: &mut Vec<OsString>,
) -> Result<()> {
    match meaning {
        Is(option) => out.push(option.into()),
        Takes(option) => {
            let mut option = OsString::from(format!("{option}="));
            option.push(value(OsStr::new(text), words.next())?);
            out.push(option);
        }
        Nothing => {}
        Hint(hint) => {
            let why = "it is not an option of barewire scan".to_owned();
            return Err(refused(text, why, (*hint).to_owned()));
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
    let found = FORMATS.iter().find(|format| format.letter == letter);
    found.map(|format| format.word)
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
        for format in FORMATS {
            let option = format!("-o{}", format.letter);
            let words = replaced(&[&option, "f"]).unwrap();
            assert_eq!(words, [format!("--output={}:f", format.word)]);
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
            .map(|row| &row.1)
            .chain(SCANS.iter().map(|row| &row.1));
        for meaning in rows.chain(conf::meanings()) {
            if let Is(option) | Takes(option) = meaning {
                let name = option.split('=').next().unwrap().trim_start_matches('-');
                assert!(name.is_empty() || known.contains(&name), "{option}");
            }
        }
    }
}
