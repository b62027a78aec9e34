//! Reads masscan configuration files: lines of `name = value`, as `masscan --echo` writes them.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use sys::{Error, ErrorKind, Result};

use super::Meaning::{self, Hint, Ignored, Is, Nothing, Takes};
use super::ping::PING;
use super::table::LONG;

/// Maximum length of a file in bytes.
const LEN_MAX: u64 = 16 << 20;

/// Names, without dashes, and their meanings, beside those of [`LONG`]. [`Is`] accepts `true` and
/// `false`; the target is the argument without a name.
const NAMES: &[(&str, Meaning)] = &[
    ("rate", Takes("--rate")),
    ("maxrate", Takes("--rate")),
    ("ports", Takes("--ports")),
    ("port", Takes("--ports")),
    ("topports", Takes("--top-ports")),
    ("destinationip", Takes("")),
    ("exclude", Takes("--exclude")),
    ("excluderange", Takes("--exclude")),
    ("excludefile", Takes("--exclude-file")),
    ("excludeports", Takes("--exclude-ports")),
    ("il", Takes("--target-file")),
    ("shard", Takes("--shard")),
    ("seed", Takes("--seed")),
    ("retries", Takes("--retries")),
    ("retry", Takes("--retries")),
    ("wait", Takes("--wait")),
    ("ttl", Takes("--ttl")),
    ("adapter", Takes("--interface")),
    ("interface", Takes("--interface")),
    ("adapterip", Takes("--source-ip")),
    ("sourceip", Takes("--source-ip")),
    ("adapterport", Takes("--source-port")),
    ("sourceport", Takes("--source-port")),
    ("routermac", Takes("--router-mac")),
    ("routerip", Takes("--router-ip")),
    ("gatewayip", Takes("--router-ip")),
    ("connections", Takes("--connections")),
    ("pcap", Takes("--pcap")),
    ("banners", Is("--banners")),
    ("open", Is("--open")),
    ("appendoutput", Is("--append-output")),
    ("show", Nothing),
    ("noshow", Nothing),
    ("rotate", Nothing),
    ("rotatedir", Nothing),
    ("rotateoffset", Nothing),
    ("rotatesize", Nothing),
    ("httpuseragent", Takes("--user-agent")),
    ("nmappayload", Takes("--payload-file")),
    ("nmappayloads", Takes("--payload-file")),
    ("pcappayload", Takes("--payload-file")),
    ("pcappayloads", Takes("--payload-file")),
];

/// All meanings in the table.
#[cfg(test)]
pub(super) fn meanings() -> impl Iterator<Item = &'static Meaning> {
    NAMES.iter().map(|row| &row.1)
}

/// Converts a file to arguments.
///
/// # Errors
/// A file that cannot be read; a line that is invalid or not supported, with its number.
pub(super) fn read(path: &Path) -> Result<Vec<OsString>> {
    let what = || format!("read {}", path.display());
    let failed = |error| Error::from_io(what(), error);
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    // Read up to the limit, not measured: a device or a pipe has no length.
    let len = file.take(LEN_MAX + 1).read_to_string(&mut text);
    if len.map_err(failed)? as u64 > LEN_MAX {
        let why = format!("it is longer than {LEN_MAX} bytes");
        return Err(Error::new(ErrorKind::InvalidInput, what(), why));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    arguments(text).map_err(|(line, why, hint)| {
        let what = format!("read line {line} of {}", path.display());
        let error = Error::new(ErrorKind::InvalidInput, what, why);
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    })
}

/// The number of a line, the reason why it is refused, and a hint.
type Wrong = (usize, String, Option<&'static str>);

fn arguments(text: &str) -> std::result::Result<Vec<OsString>, Wrong> {
    let mut out = Vec::new();
    let (mut format, mut file) = (None, None);
    let mut router_mac: Option<&str> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once('=').unwrap_or((line, "true"));
        let (name, value) = (plain(name), value.trim());
        if name.starts_with("routermac") {
            if router_mac.is_some_and(|before| !before.eq_ignore_ascii_case(value)) {
                let why = "it is not the router's MAC address above".to_owned();
                let hint = "all probes go to one router: scan IPv4 and IPv6 addresses separately";
                return Err((number, why, Some(hint)));
            }
            router_mac = Some(value);
        }
        match name.as_str() {
            "outputformat" => {
                format = Some(known_format(value).map_err(|why| (number, why, None))?);
            }
            "outputfilename" => file = Some(value.to_owned()),
            // masscan writes the ports of its --ping as I:0.
            "ports" | "port" if value.contains("I:") => {
                let ports = value.split(',').map(str::trim);
                let kept: Vec<&str> = ports.filter(|port| !port.starts_with("I:")).collect();
                if !kept.is_empty() {
                    out.push(format!("--ports={}", kept.join(",")).into());
                }
                out.push(PING.into());
            }
            _ => out.extend(argument(&name, value).map_err(|(why, hint)| (number, why, hint))?),
        }
    }
    match (format, file) {
        (Some(Some(format)), Some(file)) => out.push(format!("--output={format}:{file}").into()),
        (None, Some(file)) => out.push(format!("--output=xml:{file}").into()),
        _ => {}
    }
    Ok(out)
}

/// Normalizes a name: lower case, without the dashes and the index that masscan ignores.
fn plain(name: &str) -> String {
    let name = name.split('[').next().unwrap_or_default().trim();
    let letters = name.chars().filter(|letter| !"-_.".contains(*letter));
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Maps a format to the word used here; `None` if it means no file.
pub(super) fn known_format(value: &str) -> std::result::Result<Option<&'static str>, String> {
    let words = super::format_words();
    match value {
        "interactive" | "none" | "unknown(0)" | "" => Ok(None),
        _ => match words.iter().find(|word| **word == value) {
            Some(word) => Ok(Some(*word)),
            None => Err(format!(
                "unknown format {value:?}: there are {}",
                words.join(", ")
            )),
        },
    }
}

/// The meaning of a name without dashes.
fn meaning(name: &str) -> Option<&'static Meaning> {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    let long = || LONG.iter().find(|(known, _)| plain(known) == name);
    found.or_else(long).map(|(_, meaning)| meaning)
}

type WrongName = (String, Option<&'static str>);

fn argument(name: &str, value: &str) -> std::result::Result<Option<OsString>, WrongName> {
    let meaning = meaning(name).ok_or_else(|| (format!("unknown name {name:?}"), None))?;
    match meaning {
        Nothing | Ignored => Ok(None),
        // masscan also writes what is off.
        Hint(_) if matches!(value, "false" | "0" | "no") => Ok(None),
        Hint(hint) => Err((format!("{name:?} is not supported"), Some(*hint))),
        Is(option) => match value {
            "true" | "1" | "yes" => Ok(Some(option.into())),
            "false" | "0" | "no" => Ok(None),
            _ => Err((format!("{name:?} is true or false, not {value:?}"), None)),
        },
        Takes(_) if value.is_empty() => Err((format!("{name:?} has no value"), None)),
        // Not an option: the names are the ones that a file may set.
        Takes("") if value.starts_with('-') => Err((format!("{value:?} is not a target"), None)),
        Takes("") => Ok(Some(value.into())),
        // masscan may write a whole number of seconds or packets as 100.00.
        Takes(option) => Ok(Some(format!("{option}={value}").into())),
    }
}

/// Checks any text as a file: it is refused with the number of one of its lines, or becomes targets
/// and options that a file may set, one argument each. Returns whether it was accepted.
#[cfg(any(test, fuzzing))]
pub fn text_input(text: &str) -> bool {
    let arguments = match arguments(text) {
        Ok(arguments) => arguments,
        Err((line, why, _)) => {
            assert!((1..=text.lines().count()).contains(&line) && !why.is_empty());
            return false;
        }
    };
    // A line of ports may also be one of echo requests.
    assert!(arguments.len() <= 2 * text.lines().count());
    for argument in arguments {
        let argument = argument.into_string().expect("made of text");
        let is_option = NAMES.iter().chain(LONG).any(|(_, meaning)| match meaning {
            Is(option) => argument == *option,
            Takes("") => !argument.starts_with('-'),
            Takes(option) => argument
                .strip_prefix(option)
                .is_some_and(|value| value.starts_with('=')),
            Nothing | Ignored | Hint(_) => false,
        });
        let is_output = argument.starts_with("--output=");
        assert!(is_option || is_output, "{argument}");
        assert!(!argument.contains('\n') && !argument.is_empty());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_as_masscan_writes_them_become_arguments() {
        let text = "# masscan\nrate =     100.00\nshard = 1/1\nnocapture = servername\n\n\
                    output-format = json\nshow = open,,\noutput-filename = a.json\nrotate = 0\n\
                    adapter-ip[0] = 192.0.2.7\nbanners = true\nopen-only\nports = 80,U:53\n\
                    range = 198.51.100.0/24\nrange = 203.0.113.0/24 # more\n";
        let expected = [
            "--rate=100.00",
            "--shard=1/1",
            "--source-ip=192.0.2.7",
            "--banners",
            "--open",
            "--ports=80,U:53",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "--output=json:a.json",
        ];
        assert_eq!(arguments(text).unwrap(), expected.map(OsString::from));
        assert_eq!(
            arguments("output-filename = x").unwrap(),
            ["--output=xml:x"]
        );
        assert!(arguments("output-format = interactive").unwrap().is_empty());
    }

    #[test]
    fn one_router_is_written_twice_and_pings_as_a_port() {
        let text = "router-mac-ipv4 = 02-00-00-00-00-02\nrouter-mac-ipv6 = 02-00-00-00-00-02\n\
                    ports = 80,I:0\nnoreset = false\nheartbleed = false\n\
                    nmap-payloads = x\nhttp-user-agent = a/1\n";
        let expected = [
            "--router-mac=02-00-00-00-00-02",
            "--router-mac=02-00-00-00-00-02",
            "--ports=80",
            "--ping",
            "--payload-file=x",
            "--user-agent=a/1",
        ];
        assert_eq!(arguments(text).unwrap(), expected.map(OsString::from));
        let text = "router-mac-ipv4 = 02-00-00-00-00-02\nrouter-mac-ipv6 = 02-00-00-00-00-03";
        assert_eq!(arguments(text).unwrap_err().0, 2);
        assert_eq!(arguments("heartbleed = true").unwrap_err().0, 1);
    }

    #[test]
    fn a_line_that_cannot_be_used_is_named() {
        for (text, line, part) in [
            ("rate = 1\nratte = 2", 2, "unknown name \"ratte\""),
            ("\n\nresume-index = 7", 3, "not supported"),
            ("banners = perhaps", 1, "true or false"),
            ("ports =", 1, "no value"),
            ("range = --no-seccomp", 1, "not a target"),
            ("output-format = binary", 1, "unknown format"),
        ] {
            let (number, why, _) = arguments(text).unwrap_err();
            assert_eq!(number, line, "{text}");
            assert!(why.contains(part), "{why}");
        }
    }

    /// The inputs of the fuzz target `scan_conf`: their names state the result.
    #[test]
    fn files_of_the_corpus_are_accepted_or_refused_as_they_are_named() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/scan_conf");
        let mut counts = [0; 2];
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let is_accepted = text_input(&String::from_utf8_lossy(&bytes));
            assert_eq!(is_accepted, name.starts_with("accepted-"), "{name}");
            counts[usize::from(is_accepted)] += 1;
        }
        assert!(counts.iter().all(|count| *count >= 8), "{counts:?}");
    }

    #[test]
    fn any_file_is_accepted_or_refused_with_a_line() {
        const VALUES: [&str; 10] = [
            "true",
            "no",
            "",
            "80,U:53",
            "--json",
            "-e",
            "192.0.2.0/24",
            "100.00",
            "xml",
            "= =",
        ];
        const PARTS: [&str; 8] = ["=", "\n", "#", "-", "[0]", " ", "\u{0}", "ü"];
        let mut state = 0x5eed_0c0f_u64;
        let mut below = |end: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % end
        };
        let mut counts = [0; 2];
        for _ in 0..5_000 {
            let mut text = String::new();
            for _ in 0..=below(2) {
                let (name, value) = (NAMES[below(NAMES.len())].0, VALUES[below(VALUES.len())]);
                text += &format!("{name} = {value}\n");
            }
            if below(2) == 0 {
                let at = text.floor_char_boundary(below(text.len() + 1));
                text.insert_str(at, PARTS[below(PARTS.len())]);
            }
            counts[usize::from(text_input(&text))] += 1;
        }
        assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
    }
}
