//! The language of libpcap's manual, pcap-filter(7): every primitive, name and operator that it
//! describes is compiled.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Command;

use filter::expression::{Names, Options, compile};
use sys::libpcap::PacketSource;

/// Link type and expression in each line.
const EXPRESSIONS: &str = include_str!("../../../testdata/filter/manual.txt");

/// Primitives of the manual that barewire refuses.
const REFUSED: &[&str] = &[];

/// Spellings of the manual that libpcap refuses: its own are `oamf4sc` and `oamf4ec`.
const MISSPELT: &[&str] = &["oamf4s", "oamf4e"];

/// Words in the headings of the manual that are no keywords.
const NO_KEYWORDS: &[&str] = &["type", "dir", "proto"];

const MANUALS: &[&str] = &[
    "/usr/share/man/man7/pcap-filter.7.gz",
    "/usr/share/man/man7/pcap-filter.7",
];

struct Router;

impl Names for Router {
    fn hosts(&self, name: &str) -> Vec<IpAddr> {
        let address = (name == "router").then(|| [192, 0, 2, 1].into());
        address.into_iter().collect()
    }

    fn ether(&self, name: &str) -> Option<[u8; 6]> {
        (name == "router").then_some([2, 0, 0, 0, 0, 1])
    }
}

fn rows() -> impl Iterator<Item = (u16, &'static str)> {
    EXPRESSIONS.lines().map(|line| {
        let (link_type, text) = line.split_once(' ').unwrap();
        (link_type.parse().unwrap(), text)
    })
}

#[test]
fn every_primitive_of_the_manual_is_compiled() {
    let mut found = Vec::new();
    for (link_type, text) in rows() {
        let options = Options {
            link_type,
            names: &Router,
            ..Options::default()
        };
        let is_refused = compile(text, &options).err();
        if is_refused.is_some() != REFUSED.contains(&text) {
            found.push(format!("{link_type} {text:?}: {is_refused:?}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn libpcap_compiles_the_same_primitives() {
    if sys::libpcap::version().is_err() {
        skip::skip!("libpcap is not installed");
    }
    let swapped = false;
    for (link_type, text) in rows().filter(|row| !row.1.contains("gateway")) {
        let source = PacketSource::File { link_type, swapped };
        let theirs = sys::libpcap::compile(text, source, 262_144, true);
        assert_eq!(
            theirs.is_err(),
            MISSPELT.contains(&text),
            "{text}: {theirs:?}"
        );
    }
}

/// Words in bold type in a line of a manual page.
fn bold(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in line.split("\\fB").skip(1) {
        let part = part.split("\\f").next().unwrap_or("");
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let all = part.split(|c| !is_word(c)).filter(|word| !word.is_empty());
        words.extend(all.map(str::to_owned));
    }
    words
}

#[test]
fn every_heading_of_the_installed_manual_has_an_expression() {
    let Some(path) = MANUALS
        .iter()
        .find(|path| std::fs::exists(path).unwrap_or(false))
    else {
        skip::skip!("the manual of libpcap is not installed");
    };
    let text = match path.ends_with(".gz") {
        true => {
            Command::new("gzip")
                .args(["-cd", path])
                .output()
                .unwrap()
                .stdout
        }
        false => std::fs::read(path).unwrap(),
    };
    let text = String::from_utf8(text).unwrap();
    let known: BTreeSet<&str> = rows()
        .flat_map(|(_, text)| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-'))
        .collect();
    let headings = text.lines().filter(|line| line.starts_with(".IP"));
    let words: BTreeSet<String> = headings.flat_map(bold).collect();
    assert!(words.len() > 80, "{} words", words.len());
    let missing: Vec<&String> = words
        .iter()
        .filter(|word| !known.contains(word.as_str()) && !NO_KEYWORDS.contains(&word.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
