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
        let (port, protocol) = split_protocol(text)?;
        Self::of(number(text, port)?, protocol)
    }

    /// Parses a list such as `80,443,8000-8100/tcp` or `http`: numbers, ranges, and names of
    /// services, which `port_of` looks up; the protocol, after the last item, is that of all.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and those of `port_of`.
    pub fn parse_list(
        text: &str,
        mut port_of: impl FnMut(&str, Option<Protocol>) -> Result<u16, String>,
    ) -> Result<Vec<Self>, String> {
        let (list, protocol) = split_protocol(text)?;
        let mut out = Vec::new();
        for item in list.split(',') {
            let ports = match item.split_once('-') {
                _ if item.bytes().any(|byte| byte.is_ascii_alphabetic()) => {
                    let port = port_of(item, protocol)?;
                    port..=port
                }
                Some((first, last)) => number(text, first)?..=number(text, last)?,
                None => {
                    let port = number(text, item)?;
                    port..=port
                }
            };
            if ports.is_empty() {
                return Err(format!("{item:?} ends before it begins"));
            }
            for port in ports {
                out.push(Self::of(port, protocol)?);
            }
        }
        Ok(out)
    }

    fn of(port: u16, protocol: Option<Protocol>) -> Result<Self, String> {
        if protocol == Some(Protocol::Ip) {
            check_number(port)?;
        }
        Ok(Self { port, protocol })
    }
}

/// Splits off the protocol after a slash.
fn split_protocol(text: &str) -> Result<(&str, Option<Protocol>), String> {
    let Some((ports, word)) = text.split_once('/') else {
        return Ok((text, None));
    };
    let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp, Protocol::Ip];
    let found = known.into_iter().find(|protocol| protocol.word() == word);
    let why = || format!("{word:?} in {text:?} is not tcp, udp, sctp or ip");
    Ok((ports, Some(found.ok_or_else(why)?)))
}

/// A port number, part of `text`.
fn number(text: &str, port: &str) -> Result<u16, String> {
    // `u16` takes a sign.
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_number);
    port.ok_or_else(|| format!("{text:?} is not a port from 0 to 65535"))
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
    fn lists_of_ports_are_numbers_ranges_and_names() {
        let port_of = |name: &str, protocol: Option<Protocol>| match (name, protocol) {
            ("http", None | Some(Protocol::Tcp)) => Ok(80),
            ("http-alt", _) => Ok(8080),
            _ => Err(format!("no service {name}")),
        };
        let ports = |text: &str| {
            let list = PairPort::parse_list(text, port_of)?;
            Ok::<_, String>(list.iter().map(|port| port.port).collect::<Vec<_>>())
        };
        assert_eq!(ports("443"), Ok(vec![443]));
        assert_eq!(ports("80-83,9"), Ok(vec![80, 81, 82, 83, 9]));
        assert_eq!(ports("http,http-alt/tcp"), Ok(vec![80, 8080]));
        assert_eq!(ports("0-65535").unwrap().len(), 1 << 16);
        let list = PairPort::parse_list("53,54/udp", port_of).unwrap();
        assert!(list.iter().all(|port| port.protocol == Some(Protocol::Udp)));
        for bad in [
            "",
            "9-8",
            "80-",
            "80,",
            "x",
            "http/udp",
            "70000",
            "1-255,256/ip",
            "80/icmp",
        ] {
            assert!(ports(bad).is_err(), "{bad}");
        }
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
