//! Parses lists of targets: ranges, and host names, which the system's resolver looks up.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::sync::Arc;

use ::scan::grab::Names;
use ::scan::{
    AddrRange, Pair, PairPort, RangeList, parse_octets, parse_range, split_pair, words_of,
};

use super::services::Services;

/// Maximum number of names to look up: each may take seconds.
const NAMES_MAX: usize = 10_000;
/// Number of ranges from which on a list is merged whenever it has doubled.
const UNMERGED_MAX: usize = 1 << 20;
/// Maximum length of a name (RFC 1035 section 2.3.4).
const NAME_LEN_MAX: usize = 253;

/// A list of targets.
#[derive(Clone, Debug, Default)]
pub struct TargetList {
    /// The address ranges.
    pub ranges: RangeList,
    /// Number of ranges after the last merge.
    merged_count: usize,
    /// Those of the line that is read.
    line: Vec<AddrRange>,
    /// Ports of single addresses.
    pub pairs: Vec<Pair>,
    /// The interface of link-local addresses with a zone (`fe80::1%eth0`, RFC 4007 section 11).
    pub zone: Option<String>,
    /// The names of addresses that were given by name.
    pub names: Names,
    name_count: usize,
    takes_all_addrs: bool,
    services: Services,
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
    /// stands for all its IPv4 addresses, or for its IPv6 addresses if it has no IPv4 address. A
    /// port after an address or name (`192.0.2.7:443`, `[2001:db8::1]:443`, or `192.0.2.7 443`)
    /// makes a pair; several (`192.0.2.7:80,8000-8010`) make several, and a service (`host:http`)
    /// stands for its port.
    ///
    /// # Errors
    /// The reason why a word is invalid, as a sentence without a full stop.
    pub fn add_line(&mut self, line: &str) -> Result<(), String> {
        self.line.clear();
        let mut words = words_of(line).peekable();
        while let Some(word) = words.next() {
            if self.add_pair(word)? {
                continue;
            }
            let before = self.line.len();
            let word = &*self.without_zone(word)?;
            match (parse_range(word), parse_octets(word)) {
                (Ok(range), _) => self.line.push(range),
                (_, Some(ranges)) => self.line.extend(ranges?),
                _ if is_name(word) => self.add_name(word)?,
                (Err(why), _) => return Err(why),
            }
            let mut ports = Vec::new();
            while let Some(port) = words.next_if(|word| is_port(word)) {
                ports.push(PairPort::parse(port)?);
            }
            if !ports.is_empty() {
                self.pair(word, before, &ports)?;
            }
            self.keep();
        }
        self.keep();
        Ok(())
    }

    /// Moves the ranges of a word to the list. A word of octets may be 65,536 ranges, and a list of
    /// such words cover the same addresses many times: it is merged as it grows.
    fn keep(&mut self) {
        self.ranges.extend(self.line.drain(..));
        if self.ranges.len() >= UNMERGED_MAX.max(2 * self.merged_count) {
            self.ranges.merge();
            self.merged_count = self.ranges.len();
        }
    }

    /// Adds `host:port`; false if the word has another form.
    fn add_pair(&mut self, word: &str) -> Result<bool, String> {
        let Some((host, port)) = split_pair(word) else {
            return Ok(false);
        };
        let host = &*self.without_zone(host)?;
        let before = self.line.len();
        let addr: Option<IpAddr> = match word.starts_with('[') {
            true => host.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            false => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        };
        match addr {
            Some(addr) => self.line.push(AddrRange::single(addr)),
            None if is_name(host) => self.add_name(host)?,
            None => return Ok(false),
        }
        let services = &mut self.services;
        let ports = PairPort::parse_list(port, |name, of| services.port_of(name, of))?;
        self.pair(word, before, &ports)?;
        Ok(true)
    }

    /// Removes the zone of a link-local address, and keeps it.
    fn without_zone<'a>(&mut self, word: &'a str) -> Result<Cow<'a, str>, String> {
        let Some((addr, zone)) = word.split_once('%') else {
            return Ok(word.into());
        };
        let (zone, end) = match zone.strip_suffix(']') {
            Some(zone) => (zone, "]"),
            None => (zone, ""),
        };
        let addr = format!("{addr}{end}");
        match parse_range(&addr).map(|range| range.first_addr()) {
            Ok(IpAddr::V6(first)) if first.is_unicast_link_local() && !zone.is_empty() => {}
            _ => {
                let why = "only a link-local address (fe80::1%eth0) has an interface";
                return Err(format!("{word:?}: {why}"));
            }
        }
        match &self.zone {
            Some(other) if other != zone => Err(format!(
                "{word:?} is on another interface than {other}: a scan has one interface"
            )),
            _ => {
                self.zone = Some(zone.to_owned());
                Ok(addr.into())
            }
        }
    }

    /// Makes pairs of the addresses from an index on.
    fn pair(&mut self, word: &str, before: usize, ports: &[PairPort]) -> Result<(), String> {
        if self.takes_all_addrs {
            return Err(format!(
                "{word:?} has a port: only whole addresses can be excluded"
            ));
        }
        for range in self.line.drain(before..) {
            if range.first != range.last {
                return Err(format!(
                    "{word:?} is followed by a port, and is not one address"
                ));
            }
            let addr = range.first_addr();
            self.pairs
                .extend(ports.iter().map(|port| Pair { addr, port: *port }));
        }
        Ok(())
    }

    /// Whether there is no target.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.pairs.is_empty()
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
        let before = self.line.len();
        let shared: Arc<str> = name.into();
        for addr in taken {
            self.line.push(AddrRange::single(addr));
            if !all {
                let names = self.names.entry(addr).or_default();
                // A name may be given for several ports.
                if !names.contains(&shared) {
                    names.push(shared.clone());
                }
            }
        }
        match self.line.len() == before {
            true => Err(format!("{name:?} has no address")),
            false => Ok(()),
        }
    }
}

/// Whether a word is a port that follows an address: a number, and perhaps a protocol.
fn is_port(word: &str) -> bool {
    let number = word.split('/').next().unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
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
        let firsts: Vec<IpAddr> = list.ranges.iter().map(|range| range.first_addr()).collect();
        assert_eq!(firsts[0], IpAddr::from([192, 0, 2, 0]));
        assert!(firsts[1..].iter().all(IpAddr::is_loopback) && firsts.len() > 1);
        assert_eq!(*list.names[&firsts[1]], ["localhost".into()]);
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

    #[test]
    fn octets_after_commas_are_hosts_and_not_ports() {
        let mut list = TargetList::default();
        list.add_line("198.18.4.1,2,7, 198.18.5.9 - 198.18.5.11,[2001:db8::7]")
            .unwrap();
        assert!(list.pairs.is_empty());
        list.ranges.merge();
        let count = |range: AddrRange| range.last - range.first + 1;
        let counts: Vec<u128> = list.ranges.iter().map(count).collect();
        assert_eq!(counts, [2, 1, 3, 1]);
        let why = TargetList::default().add_line("192.0.2.1,443").unwrap_err();
        assert!(why.contains("colon"), "{why}");
    }

    #[test]
    fn the_zone_of_a_link_local_address_is_its_interface() {
        let mut list = TargetList::default();
        list.add_line("fe80::1%eth0 fe80::2,[fe80::3%eth0] [fe80::4%eth0]:80")
            .unwrap();
        assert_eq!(list.zone.as_deref(), Some("eth0"));
        assert_eq!((list.ranges.len(), list.pairs.len()), (3, 1));
        for line in [
            "fe80::1%eth1",
            "2001:db8::1%eth0",
            "fe80::1%",
            "192.0.2.1%eth0",
        ] {
            assert!(list.add_line(line).is_err(), "{line}");
        }
    }

    #[test]
    fn many_words_of_octets_are_merged_as_they_are_read() {
        let mut list = TargetList::default();
        // Each is 65,536 ranges; all are the same.
        for _ in 0..64 {
            list.add_line("10.7.*.*, 10.*.0-254.1,10.*.0-254.1 # again")
                .unwrap();
            assert!(list.ranges.len() <= UNMERGED_MAX + (1 << 17));
        }
        list.ranges.merge();
        assert_eq!(list.ranges.len(), 255 * 255 + 1);
    }

    #[test]
    fn ports_after_an_address_or_name_make_pairs() {
        let mut list = TargetList::default();
        list.add_line("192.0.2.1 443 80/tcp, 192.0.2.0/24 192.0.2.2:53/udp [::1]:80 # 9")
            .unwrap();
        assert_eq!(list.ranges.len(), 1, "the prefix");
        let texts: Vec<_> = list
            .pairs
            .iter()
            .map(|p| (p.addr.to_string(), p.port.port))
            .collect();
        let expected = [
            ("192.0.2.1", 443),
            ("192.0.2.1", 80),
            ("192.0.2.2", 53),
            ("::1", 80),
        ];
        assert!(
            texts
                .iter()
                .map(|(addr, port)| (addr.as_str(), *port))
                .eq(expected)
        );
        let mut list = TargetList::default();
        list.add_line("localhost:80").unwrap();
        list.add_line("localhost 443").unwrap();
        assert!(list.ranges.is_empty() && list.pairs.len() >= 2);
        assert!(list.pairs.iter().all(|pair| pair.addr.is_loopback()));
        let mut list = TargetList::default();
        list.add_line("192.0.2.1:80,8000-8002 192.0.2.2:http,[::1]:443,53/udp")
            .unwrap();
        let ports: Vec<u16> = list.pairs.iter().map(|pair| pair.port.port).collect();
        assert_eq!(ports, [80, 8000, 8001, 8002, 80, 443, 53]);
        assert!(
            list.pairs[5]
                .port
                .protocol
                .is_some_and(|it| it.word() == "udp")
        );
        for line in [
            "192.0.2.1:no-such-service",
            "192.0.2.1:90-80",
            "192.0.2.0/24 80",
            "80",
            "192.0.2.1:x",
            "192.0.2.1 70000",
            "[::1]:",
        ] {
            assert!(TargetList::default().add_line(line).is_err(), "{line}");
        }
        let why = TargetList::excluded().add_line("192.0.2.1:80").unwrap_err();
        assert!(why.contains("whole addresses"), "{why}");
    }
}
