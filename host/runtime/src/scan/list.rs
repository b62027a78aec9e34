//! Parses lists of targets: ranges, and host names, which the system's resolver looks up.

use std::net::{IpAddr, ToSocketAddrs};

use ::scan::{AddrRange, parse_range, words_of};

/// Maximum number of names to look up: each may take seconds.
const NAMES_MAX: usize = 10_000;
/// Maximum length of a name (RFC 1035 section 2.3.4).
const NAME_LEN_MAX: usize = 253;

/// A list of targets.
#[derive(Clone, Debug, Default)]
pub struct TargetList {
    /// The address ranges.
    pub ranges: Vec<AddrRange>,
    name_count: usize,
    takes_all_addrs: bool,
}

impl TargetList {
    /// Creates a list of addresses to exclude: a name stands for all its addresses.
    pub fn excluded() -> Self {
        Self {
            takes_all_addrs: true,
            ..Self::default()
        }
    }

    /// Adds the targets of one line, separated by commas or blanks; `#` starts a comment. A name
    /// stands for all its IPv4 addresses, or for its IPv6 addresses if it has no IPv4 address.
    ///
    /// # Errors
    /// The reason why a word is invalid, as a sentence without a full stop.
    pub fn add_line(&mut self, line: &str) -> Result<(), String> {
        for word in words_of(line) {
            match parse_range(word) {
                Ok(range) => self.ranges.push(range),
                Err(_) if is_name(word) => self.add_name(word)?,
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn add_name(&mut self, name: &str) -> Result<(), String> {
        self.name_count += 1;
        if self.name_count > NAMES_MAX {
            return Err(format!("there are more than {NAMES_MAX} host names"));
        }
        let found = (name, 0).to_socket_addrs();
        let found = found.map_err(|error| format!("{name:?} has no address: {error}"))?;
        let addrs: Vec<IpAddr> = found.map(|addr| addr.ip()).collect();
        let has_v4 = addrs.iter().any(IpAddr::is_ipv4);
        let all = self.takes_all_addrs;
        let taken = addrs
            .into_iter()
            .filter(|addr| all || addr.is_ipv4() == has_v4);
        let before = self.ranges.len();
        self.ranges.extend(taken.map(AddrRange::single));
        match self.ranges.len() == before {
            true => Err(format!("{name:?} has no address")),
            false => Ok(()),
        }
    }
}

/// Whether a word can be a host name: letters, digits, dashes and dots, but not a malformed
/// address.
fn is_name(word: &str) -> bool {
    let is_label = |label: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && !label.starts_with('-') && label.bytes().all(is_letter)
    };
    let labels = word.strip_suffix('.').unwrap_or(word);
    let last = labels.rsplit('.').next().unwrap_or_default();
    word.len() <= NAME_LEN_MAX
        && labels.split('.').all(is_label)
        && last.bytes().any(|byte| byte.is_ascii_alphabetic())
        // The resolver takes hexadecimal numbers for parts of an address.
        && !last.starts_with("0x")
        && !last.starts_with("0X")
        // A range of addresses with an error.
        && word.split('-').next().is_none_or(|first| first.parse::<IpAddr>().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_that_cannot_be_addresses() {
        for name in [
            "localhost",
            "host.example",
            "a-b.example.",
            "x",
            "3com.example",
        ] {
            assert!(is_name(name), "{name}");
        }
        for other in [
            "",
            ".",
            "192.0.2",
            "192.0.2.1-9",
            "10.0.0.0/8",
            "::1",
            "-a",
            "a..b",
            "a b",
            "192.0.2.0x1",
            "0X0a",
            "192.0.2.1-192.0.2.x",
        ] {
            assert!(!is_name(other), "{other}");
        }
        assert!(!is_name(&"a".repeat(300)));
    }

    #[test]
    fn names_are_looked_up_and_lines_may_mix_them_with_ranges() {
        let mut list = TargetList::default();
        list.add_line("192.0.2.0/24, localhost # more").unwrap();
        let firsts: Vec<IpAddr> = list.ranges.iter().map(AddrRange::first_addr).collect();
        assert_eq!(firsts[0], IpAddr::from([192, 0, 2, 0]));
        assert!(firsts[1..].iter().all(IpAddr::is_loopback) && firsts.len() > 1);
        let mut list = TargetList::excluded();
        list.add_line("localhost").unwrap();
        assert!(list.ranges.len() >= firsts.len() - 1);
        // RFC 6761 section 6.4: this name never has an address.
        let why = list.add_line("no-such-host.invalid").unwrap_err();
        assert!(why.contains("no-such-host.invalid"), "{why}");
        assert!(
            list.add_line("192.0.2.0/33")
                .unwrap_err()
                .contains("prefix length")
        );
    }
}
