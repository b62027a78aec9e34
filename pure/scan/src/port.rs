//! The ports of a scan, as nmap and masscan write them: `80,443,8000-8100,U:53`.

use crate::probe::Probe;

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Ports of TCP.
    Tcp,
    /// Ports of UDP.
    Udp,
    /// Ports of SCTP.
    Sctp,
    /// The host itself, asked by ICMP or ICMPv6: no port.
    Icmp,
    /// The host itself, asked by ARP or Neighbor Discovery: no port.
    Link,
    /// The port is the number of an IP protocol.
    Ip,
}

impl Protocol {
    /// The word in reports and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
            Self::Icmp => "icmp",
            Self::Link => "link",
            Self::Ip => "ip",
        }
    }
}

/// A sorted list of distinct ports, each with its probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(Vec<(Probe, u16)>);

impl Ports {
    /// Parses a list. `T:` switches to TCP, which it begins with; `-` alone is every port from 1.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence without a full stop.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut ports = Vec::new();
        for word in text.split(',').map(str::trim) {
            let range = match word.split_once(':') {
                None => word,
                Some(("T" | "t", range)) => range,
                Some((other, _)) => {
                    return Err(format!("{other:?} in {word:?} is not a protocol: T is TCP"));
                }
            };
            let (first, last) = bounds(range)?;
            ports.extend((first..=last).map(|port| (Probe::Syn, port)));
        }
        ports.sort_unstable();
        ports.dedup();
        Ok(Self(ports))
    }

    /// The ports in order.
    pub fn as_slice(&self) -> &[(Probe, u16)] {
        &self.0
    }

    /// Whether a port is in the list.
    pub fn contains(&self, probe: Probe, port: u16) -> bool {
        self.0.binary_search(&(probe, port)).is_ok()
    }
}

fn bounds(text: &str) -> Result<(u16, u16), String> {
    let port = |part: &str, absent: u16| match part {
        "" => Ok(absent),
        _ => part
            .parse::<u16>()
            .map_err(|_| format!("{part:?} is not a port from 0 to 65535")),
    };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first, 1)?, port(last, u16::MAX)?),
        None if text.is_empty() => return Err("a port is missing".into()),
        None => (port(text, 0)?, port(text, 0)?),
    };
    if first > last {
        return Err(format!("the range {text:?} ends before it begins"));
    }
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_each_port_is_in_them_once() {
        let of = |text: &str| -> Vec<u16> {
            let ports = Ports::parse(text).unwrap();
            ports.as_slice().iter().map(|(_, port)| *port).collect()
        };
        assert_eq!(of("443,80,80,T:79-81"), [79, 80, 81, 443]);
        assert_eq!(of("65530-").len(), 6);
        assert_eq!(of("-3"), [1, 2, 3]);
        assert_eq!(of("-").len(), 65_535);
        assert_eq!(of("0-65535").len(), 65_536);
        assert!(Ports::parse("22, 80").unwrap().contains(Probe::Syn, 80));
    }

    #[test]
    fn what_is_no_port_is_refused() {
        for text in [
            "",
            "80,",
            "65536",
            "90-80",
            "http",
            "X:80",
            "80-90-100",
            "+80-",
        ] {
            let parsed = Ports::parse(text);
            // `u16` takes a sign: "+80" is 80 to it, and to nmap too.
            assert!(
                parsed.is_err() || text.starts_with('+'),
                "{text}: {parsed:?}"
            );
        }
    }
}
