//! Parses pairs of an address and a port: `192.0.2.7:443`, `[2001:db8::1]:53/udp`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::port::{Protocol, check_number};

/// A port of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// The address.
    pub addr: IpAddr,
    /// The port.
    pub port: PairPort,
}

/// The port of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairPort {
    /// The port, or the number of an IP protocol.
    pub port: u16,
    /// Its protocol; `None`: that of the probes.
    pub protocol: Option<Protocol>,
}

impl PairPort {
    /// Parses `443`, `53/udp`, `9/sctp` or `47/ip`.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence without a full stop.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (port, protocol) = match text.split_once('/') {
            None => (text, None),
            Some((port, word)) => {
                let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp, Protocol::Ip];
                let found = known.into_iter().find(|protocol| protocol.word() == word);
                let why = || format!("{word:?} in {text:?} is not tcp, udp, sctp or ip");
                (port, Some(found.ok_or_else(why)?))
            }
        };
        // `u16` takes a sign.
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number);
        let port = port.ok_or_else(|| format!("{text:?} is not a port from 0 to 65535"))?;
        if protocol == Some(Protocol::Ip) {
            check_number(port)?;
        }
        Ok(Self { port, protocol })
    }
}

/// Splits a word into a host and a port: `host:443`, `[2001:db8::1]:443`. `None` if it has no port.
pub fn split_pair(word: &str) -> Option<(&str, &str)> {
    match word.strip_prefix('[') {
        Some(rest) => rest.split_once("]:"),
        None => word
            .split_once(':')
            .filter(|(host, port)| !host.is_empty() && !port.contains(':')),
    }
}

/// Parses a pair whose host is an address; `None` if the word is not one.
///
/// # Errors
/// What is wrong with its port, as a sentence without a full stop.
pub fn parse_pair(word: &str) -> Option<Result<Pair, String>> {
    let (host, port) = split_pair(word)?;
    let addr: IpAddr = match word.starts_with('[') {
        true => host.parse::<Ipv6Addr>().ok()?.into(),
        false => host.parse::<Ipv4Addr>().ok()?.into(),
    };
    Some(PairPort::parse(port).map(|port| Pair { addr, port }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_an_address_and_a_port() {
        for (word, addr, port, protocol) in [
            ("192.0.2.7:443", "192.0.2.7", 443, None),
            ("192.0.2.7:53/udp", "192.0.2.7", 53, Some(Protocol::Udp)),
            (
                "[2001:db8::1]:80/tcp",
                "2001:db8::1",
                80,
                Some(Protocol::Tcp),
            ),
            ("[::1]:47/ip", "::1", 47, Some(Protocol::Ip)),
            ("192.0.2.7:0", "192.0.2.7", 0, None),
        ] {
            let port = PairPort { port, protocol };
            let addr = addr.parse().unwrap();
            assert_eq!(parse_pair(word), Some(Ok(Pair { addr, port })), "{word}");
        }
        assert_eq!(
            split_pair("host.example:443"),
            Some(("host.example", "443"))
        );
    }

    #[test]
    fn other_words_are_no_pairs_and_wrong_ports_are_named() {
        for word in [
            "192.0.2.7",
            "2001:db8::1",
            "::1",
            "[::1]",
            "[192.0.2.7]:80",
            "192.0.2.0/24",
            "",
            ":",
            ":80",
            "[]:80",
            "host:80",
        ] {
            assert_eq!(parse_pair(word), None, "{word}");
        }
        for word in [
            "192.0.2.7:",
            "192.0.2.7:65536",
            "192.0.2.7:+80",
            "192.0.2.7:80/icmp",
            "[::1]:256/ip",
            "192.0.2.7:80/",
            "192.0.2.7:80-90",
        ] {
            let port = split_pair(word).unwrap().1;
            let why = parse_pair(word).unwrap().unwrap_err();
            assert!(
                !why.is_empty() && (port.is_empty() || why.contains(&port[..2])),
                "{why}"
            );
        }
    }
}
