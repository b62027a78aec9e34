//! Values of options of `barewire scan`.

use std::path::PathBuf;
use std::time::Duration;

use ::scan::grab::IDENTITY_MAX;
use ::scan::{Options, PortList};
use traffic::Rate;
use wire::Mac;

use crate::args::parse_duration;

pub fn parse_rate(text: &str) -> std::result::Result<Rate, String> {
    let rate = match text.parse() {
        Ok(number) => Rate::packets(number),
        Err(_) => Rate::parse(text),
    };
    rate.map_err(|error| {
        format!(
            "{}\nhint: write for example 100, 250kpps or 3Mbps",
            error.why
        )
    })
}

/// Joins `192.0.2.1 - 192.0.2.9` on the command line, which a shell splits into three arguments.
pub fn join_ranges(targets: &[String]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut is_open = false;
    for target in targets {
        match out.last_mut() {
            Some(last) if is_open || target == "-" => {
                *last += target;
                is_open = target == "-";
            }
            _ => out.push(target.clone()),
        }
    }
    out
}

/// A wait until the scan is stopped.
pub const FOREVER: Duration = Duration::from_secs(1_000_000_000);

/// A time to wait, which may be none, or `forever`: until the scan is stopped.
pub fn parse_wait(text: &str) -> std::result::Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        "forever" => Ok(FOREVER),
        _ => parse_duration(text),
    }
}

/// A seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// As given.
    Number(u64),
    /// Another one for each scan, as with masscan's `time`; a resumed scan keeps its own.
    New,
}

/// Parses a number, or `time`.
pub fn parse_seed(text: &str) -> std::result::Result<Seed, String> {
    if text == "time" {
        return Ok(Seed::New);
    }
    let number = text.parse().map(Seed::Number);
    number.map_err(|_| "expected a number from 0 to 18446744073709551615, or time".to_owned())
}

/// A user agent or a contact, which become part of lines.
pub fn parse_identity(text: &str) -> std::result::Result<String, String> {
    let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match is_printable && (1..=IDENTITY_MAX).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected 1 to {IDENTITY_MAX} printable ASCII characters"
        )),
    }
}

pub fn parse_source_ports(text: &str) -> std::result::Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(first @ 1..), Ok(last)) if first <= last => Ok((first, last - first + 1)),
        _ => Err("expected a port from 1 to 65535, or a range such as 40000-40099".into()),
    }
}

pub fn parse_mac(text: &str) -> std::result::Result<Mac, String> {
    let range = traffic::Range::macs(text).map_err(|error| error.why)?;
    let bits = range.single().ok_or("expected one MAC address")?;
    let bytes = bits.to_be_bytes();
    Ok(Mac(*bytes.last_chunk().unwrap_or(&[0; 6])))
}

/// Sets of TCP options for probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OptionsText {
    /// MSS only
    Minimal,
    /// As Linux sends them
    Linux,
    /// As Windows sends them
    Windows,
    /// As FreeBSD and macOS send them
    Bsd,
}

impl From<OptionsText> for Options {
    fn from(text: OptionsText) -> Self {
        match text {
            OptionsText::Minimal => Self::Minimal,
            OptionsText::Linux => Self::Linux,
            OptionsText::Windows => Self::Windows,
            OptionsText::Bsd => Self::Bsd,
        }
    }
}

/// A payload for ports.
#[derive(Clone, Debug)]
pub struct PayloadArg {
    pub ports: Vec<u16>,
    pub path: PathBuf,
}

impl PayloadArg {
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let parts = text.split_once('=').filter(|(_, path)| !path.is_empty());
        let (ports, path) = parts.ok_or("expected PORTS=FILE, for example 53,5353=query.bin")?;
        Ok(Self {
            ports: PortList::parse(ports)?.numbers()?,
            path: path.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_port_lists_are_parsed() {
        assert_eq!(parse_rate("100"), Ok(Rate::Packets(100.0)));
        assert_eq!(parse_rate("0.5"), Ok(Rate::Packets(0.5)));
        assert_eq!(parse_rate("3Mbps"), Ok(Rate::Bits(3e6)));
        assert!(parse_rate("0").is_err() && parse_rate("fast").is_err());
        let hint = parse_rate("max").unwrap_err();
        assert!(!hint.contains("or max"), "{hint}");
        let targets = ["192.0.2.1", "-", "192.0.2.9", "x", "y"].map(str::to_owned);
        assert_eq!(join_ranges(&targets), ["192.0.2.1-192.0.2.9", "x", "y"]);
        assert_eq!(parse_wait("0"), Ok(Duration::ZERO));
        assert_eq!(parse_wait("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_wait("forever"), Ok(FOREVER));
        assert!(parse_wait("-1").is_err());
        let max = parse_seed("18446744073709551615");
        assert_eq!(max, Ok(Seed::Number(u64::MAX)));
        assert_eq!(parse_seed("time"), Ok(Seed::New));
        assert!(parse_seed("now").is_err());
        assert_eq!(parse_source_ports("40000-40009"), Ok((40_000, 10)));
        assert_eq!(parse_source_ports("65535"), Ok((65_535, 1)));
        assert_eq!(parse_source_ports("1-65535"), Ok((1, 65_535)));
        for bad in ["0", "", "9-8", "1-", "70000"] {
            assert!(parse_source_ports(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_mac("02:00:00:00:00:09"), Ok(Mac([2, 0, 0, 0, 0, 9])));
    }
}
