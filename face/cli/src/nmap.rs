//! Arguments of `barewire scan` as nmap and masscan write them: words of one dash and two letters,
//! which the parser of arguments would take for two options. They become the options that they
//! mean, before they are parsed.

use std::ffi::{OsStr, OsString};

use ::scan::report::FORMATS;
use sys::{Error, ErrorKind, Result};

/// The subcommand that takes them.
const SUBCOMMAND: &str = "scan";

/// The arguments of the process, with those of nmap replaced.
///
/// # Errors
/// For an option of nmap without its value, and for those that are something else here.
pub fn replace(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    if arguments.get(1).is_none_or(|word| word != SUBCOMMAND) {
        return Ok(arguments);
    }
    let mut out = Vec::new();
    let mut words = arguments.into_iter();
    out.extend(words.by_ref().take(2));
    while let Some(word) = words.next() {
        if word == "--" {
            out.push(word);
            out.extend(words);
            break;
        }
        match output(&word) {
            None => out.push(word),
            Some(format) => {
                let name = words.next().ok_or_else(|| {
                    let what = format!("use {}", word.to_string_lossy());
                    Error::new(ErrorKind::InvalidInput, what, "no file follows")
                })?;
                let mut option = OsString::from(format!("--output={format}:"));
                option.push(name);
                out.push(option);
            }
        }
    }
    Ok(out)
}

/// The format of an option such as `-oX`.
fn output(word: &OsStr) -> Option<&'static str> {
    let letter = word.to_str()?.strip_prefix("-o")?;
    let mut letters = letter.chars();
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
        let words = line.iter().map(OsString::from).collect();
        let words = replace(words)?.into_iter();
        Ok(words.map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn outputs_become_long_options() {
        let words = replaced(&[
            "barewire", "scan", "-oX", "a", "-p80", "-oA", "b", "--", "-oX",
        ]);
        let expected = [
            "scan",
            "--output=xml:a",
            "-p80",
            "--output=all:b",
            "--",
            "-oX",
        ];
        assert_eq!(words.unwrap()[1..], expected);
        for format in FORMATS {
            let option = format!("-o{}", format.letter);
            let words = replaced(&["barewire", "scan", &option, "f"]).unwrap();
            assert_eq!(words[2], format!("--output={}:f", format.word));
        }
        assert!(replaced(&["barewire", "scan", "-oX"]).is_err());
        let other = ["barewire", "capture", "-oX", "a"];
        assert_eq!(replaced(&other).unwrap(), other);
    }
}
