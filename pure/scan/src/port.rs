//! The ports of a scan, as nmap and masscan write them: `80,443,8000-8100,U:53`.

mod top;

use crate::cookie::ProbeTarget;
use crate::payload::Payloads;
use crate::plan::PlannedProbe;
use crate::probe::Probe;
use crate::target::Pair;
pub use top::top_ports;

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP ports.
    Tcp,
    /// UDP ports.
    Udp,
    /// SCTP ports.
    Sctp,
    /// No port: the host itself, probed by ICMP or ICMPv6.
    Icmp,
    /// No port: the host itself, probed by ARP or Neighbor Discovery.
    Link,
    /// The port is an IP protocol number.
    Ip,
}

impl Protocol {
    /// The name in reports and JSON.
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

/// Ports as written, before the kinds of probes are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortList(Vec<(Option<Protocol>, u16, u16)>);

impl PortList {
    /// Parses a list. `T:` is TCP, `U:` UDP, `S:` SCTP, and `P:` numbers of IP protocols, up to the
    /// next such letter; ports before the first one apply to every protocol that is probed. `-`
    /// alone is every port from 1.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence without a full stop.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_with(text, |name, _| {
            Err(format!("{name:?} is not a port from 0 to 65535"))
        })
    }

    /// Parses a list as [`PortList::parse`] does, with names of services: `port_of` returns the
    /// port of a name, for the protocol of the letter before it, if there is one. A word with a
    /// letter of the alphabet is a name; numbers of IP protocols have none.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence without a full stop; errors of `port_of`.
    pub fn parse_with(
        text: &str,
        mut port_of: impl FnMut(&str, Option<Protocol>) -> Result<u16, String>,
    ) -> Result<Self, String> {
        let mut list = Vec::new();
        let mut protocol = None;
        for word in text.split(',').map(str::trim) {
            let range = match word.split_once(':') {
                None => word,
                Some((letter, range)) => {
                    protocol = Some(match letter {
                        "T" | "t" => Protocol::Tcp,
                        "U" | "u" => Protocol::Udp,
                        "S" | "s" => Protocol::Sctp,
                        "P" | "p" => Protocol::Ip,
                        other => {
                            let why =
                                "is not a protocol: T is TCP, U is UDP, S is SCTP, P is IP itself";
                            return Err(format!("{other:?} in {word:?} {why}"));
                        }
                    });
                    range
                }
            };
            let is_name = range.bytes().any(|byte| byte.is_ascii_alphabetic());
            let (first, last) = match protocol {
                Some(Protocol::Ip) => bounds(range)?,
                _ if is_name => {
                    let port = port_of(range, protocol)?;
                    (port, port)
                }
                _ => bounds(range)?,
            };
            if protocol == Some(Protocol::Ip) {
                check_number(last)?;
            }
            list.push((protocol, first, last));
        }
        Ok(Self(list))
    }

    /// All ports, if none has a letter.
    ///
    /// # Errors
    /// If one has, as a sentence without a full stop.
    pub fn numbers(&self) -> Result<Vec<u16>, String> {
        let mut out = Vec::new();
        for (protocol, first, last) in &self.0 {
            if protocol.is_some() {
                return Err("the protocol is UDP: no letter is expected".into());
            }
            out.extend(*first..=*last);
        }
        out.sort_unstable();
        out.dedup();
        Ok(out)
    }

    /// Whether there is no port.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the first ports of a protocol by [rank](top_ports).
    pub fn add_top(&mut self, protocol: Protocol, count: u16) {
        let ports = top_ports(protocol, count).into_iter();
        self.0
            .extend(ports.map(|port| (Some(protocol), port, port)));
    }
}

/// One probe of each address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The kind of probe.
    pub probe: Probe,
    /// The port; 0 for probes without one.
    pub port: u16,
    /// Index of the payload.
    pub payload: u16,
}

/// A sorted list of distinct ports, each with its probe and payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    entries: Vec<Entry>,
    probes: Vec<Probe>,
    payloads: Payloads,
}

impl Ports {
    /// The ports of a list for these probes, and the probes that have no port. Ports are probed by
    /// SYNs, and those after `U:` by UDP datagrams, if no probe of their protocol is given.
    ///
    /// # Errors
    /// What is missing, as a sentence without a full stop.
    pub fn new(list: &PortList, probes: &[Probe], payloads: Payloads) -> Result<Self, String> {
        let mut entries = Vec::new();
        for &(protocol, first, last) in &list.0 {
            let probes = probes_of(protocol, probes);
            if probes.contains(&Probe::Protocol) {
                check_number(last)?;
            }
            for (port, probe) in (first..=last).flat_map(|n| probes.iter().map(move |p| (n, *p))) {
                let entry = |payload| Entry {
                    probe,
                    port,
                    payload,
                };
                match probe {
                    Probe::Udp => entries.extend(payloads.numbers_of(port).map(entry)),
                    _ => entries.push(entry(0)),
                }
            }
            // A list may name the same ports again and again.
            if entries.len() > ENTRIES_MAX {
                entries.sort_unstable();
                entries.dedup();
            }
        }
        let (portless, others): (Vec<Probe>, Vec<Probe>) =
            probes.iter().partition(|probe| !probe.has_ports());
        if list.0.is_empty() && !others.is_empty() {
            return Err("these probes need ports".into());
        }
        entries.extend(portless.into_iter().map(|probe| Entry {
            probe,
            port: 0,
            payload: 0,
        }));
        entries.sort_unstable();
        entries.dedup();
        if entries.is_empty() {
            return Err("there is no port".into());
        }
        let mut probes: Vec<Probe> = entries.iter().map(|entry| entry.probe).collect();
        probes.dedup();
        Ok(Self {
            entries,
            probes,
            payloads,
        })
    }

    /// The ports that are not in a list; one without a letter is of every protocol that has ports.
    ///
    /// # Errors
    /// If none is left, as a sentence without a full stop.
    pub fn without(mut self, list: &PortList) -> Result<Self, String> {
        let is_excluded = |entry: &Entry| {
            let (probe, port) = (entry.probe, entry.port);
            let mut rows = list.0.iter();
            probe.has_ports()
                && rows.any(|(protocol, first, last)| {
                    let is_of = protocol.is_none_or(|protocol| protocol == probe.protocol());
                    is_of && (*first..=*last).contains(&port)
                })
        };
        self.entries.retain(|entry| !is_excluded(entry));
        if self.entries.is_empty() {
            return Err("no port is left after the exclusions".into());
        }
        self.probes = self.entries.iter().map(|entry| entry.probe).collect();
        self.probes.dedup();
        Ok(self)
    }

    /// No ports: for scans of pairs alone.
    pub fn none(payloads: Payloads) -> Self {
        Self {
            entries: Vec::new(),
            probes: Vec::new(),
            payloads,
        }
    }

    /// The probes of pairs, as [`Ports::new`] chooses them, sorted and distinct.
    ///
    /// # Errors
    /// What is wrong with one of them, as a sentence without a full stop.
    pub fn of_pairs(
        pairs: &[Pair],
        probes: &[Probe],
        payloads: &Payloads,
    ) -> Result<Vec<PlannedProbe>, String> {
        let mut out = Vec::new();
        for Pair { addr, port } in pairs {
            for probe in probes_of(port.protocol, probes) {
                if probe == Probe::Protocol {
                    check_number(port.port)?;
                }
                let (addr, port) = (*addr, port.port);
                let target = ProbeTarget { addr, probe, port };
                match probe {
                    Probe::Udp => {
                        out.extend(payloads.numbers_of(port).map(|payload| (target, payload)));
                    }
                    _ => out.push((target, 0)),
                }
            }
        }
        out.sort_unstable();
        out.dedup();
        Ok(out)
    }

    /// Parses a list of TCP ports, probed by SYNs.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence without a full stop.
    pub fn tcp(text: &str) -> Result<Self, String> {
        Self::new(&PortList::parse(text)?, &[], Payloads::built_in())
    }

    /// The ports in order.
    pub fn as_slice(&self) -> &[Entry] {
        &self.entries
    }

    /// The kinds of probes, without duplicates.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// The payloads that the entries refer to.
    pub fn payloads(&self) -> &Payloads {
        &self.payloads
    }

    /// The entries of a port, one per payload.
    pub fn of(&self, probe: Probe, port: u16) -> &[Entry] {
        let wanted = (probe, port);
        let is_before = |entry: &Entry| (entry.probe, entry.port) < wanted;
        let first = self.entries.partition_point(is_before);
        let rest = &self.entries[first..];
        let len = rest
            .iter()
            .take_while(|entry| (entry.probe, entry.port) == wanted)
            .count();
        &rest[..len]
    }

    /// Whether a port is in the list.
    pub fn contains(&self, probe: Probe, port: u16) -> bool {
        !self.of(probe, port).is_empty()
    }
}

/// Entries collected before duplicates are removed: twice the ports of all probes.
const ENTRIES_MAX: usize = (2 * Probe::ALL.len()) << 16;

/// The last number of an IP protocol.
const NUMBER_MAX: u16 = 255;

/// Refuses numbers that are not those of IP protocols.
pub(crate) fn check_number(number: u16) -> Result<(), String> {
    match number <= NUMBER_MAX {
        true => Ok(()),
        false => Err(format!(
            "{number} is not the number of an IP protocol, from 0 to {NUMBER_MAX}"
        )),
    }
}

/// The probes of ports of a protocol, of the selected ones or by default.
fn probes_of(protocol: Option<Protocol>, selected: &[Probe]) -> Vec<Probe> {
    let of = |protocol| {
        selected
            .iter()
            .copied()
            .filter(move |p| p.protocol() == protocol)
    };
    let or = |protocol, other| {
        let found: Vec<Probe> = of(protocol).collect();
        if found.is_empty() { vec![other] } else { found }
    };
    match protocol {
        None => {
            let found: Vec<Probe> = selected.iter().copied().filter(|p| p.has_ports()).collect();
            // Ports with probes of the host alone: nmap and masscan scan both.
            if found.is_empty() {
                vec![Probe::Syn]
            } else {
                found
            }
        }
        Some(Protocol::Udp) => or(Protocol::Udp, Probe::Udp),
        Some(Protocol::Sctp) => or(Protocol::Sctp, Probe::SctpInit),
        Some(Protocol::Ip) => or(Protocol::Ip, Probe::Protocol),
        Some(_) => or(Protocol::Tcp, Probe::Syn),
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

    fn ports(text: &str, probes: &[Probe]) -> Result<Vec<(Probe, u16)>, String> {
        let list = match text {
            "" => PortList::default(),
            _ => PortList::parse(text)?,
        };
        let ports = Ports::new(&list, probes, Payloads::built_in())?;
        let mut found: Vec<_> = ports.as_slice().iter().map(|e| (e.probe, e.port)).collect();
        found.dedup();
        Ok(found)
    }

    #[test]
    fn lists_are_sorted_and_each_port_is_in_them_once() {
        let of = |text: &str| -> Vec<u16> {
            let ports = Ports::tcp(text).unwrap();
            ports.as_slice().iter().map(|entry| entry.port).collect()
        };
        assert_eq!(of("443,80,80,T:79-81"), [79, 80, 81, 443]);
        assert_eq!(of("65530-").len(), 6);
        assert_eq!(of("-3"), [1, 2, 3]);
        assert_eq!(of("-").len(), 65_535);
        assert_eq!(of("0-65535").len(), 65_536);
        assert!(Ports::tcp("22, 80").unwrap().contains(Probe::Syn, 80));
    }

    #[test]
    fn letters_choose_the_protocol_up_to_the_next_one() {
        use Probe::{Echo, Syn, Udp};
        let same = ports("80,U:53,111,T:443,22", &[]).unwrap();
        assert_eq!(
            same,
            [(Syn, 22), (Syn, 80), (Syn, 443), (Udp, 53), (Udp, 111)]
        );
        assert_eq!(ports("53", &[Udp]), Ok(vec![(Udp, 53)]));
        assert_eq!(ports("53", &[Udp, Syn]), Ok(vec![(Syn, 53), (Udp, 53)]));
        assert_eq!(ports("T:80,U:53", &[Udp]), Ok(vec![(Syn, 80), (Udp, 53)]));
        assert_eq!(ports("", &[Echo]), Ok(vec![(Echo, 0)]));
        assert_eq!(ports("T:80", &[Echo]), Ok(vec![(Syn, 80), (Echo, 0)]));
        assert_eq!(ports("80", &[Echo]), Ok(vec![(Syn, 80), (Echo, 0)]));
        assert!(ports("", &[Udp]).unwrap_err().contains("need ports"));
        assert!(ports("", &[]).is_err());
    }

    #[test]
    fn a_port_has_an_entry_for_each_of_its_payloads() {
        let list = PortList::parse("U:160-162,53").unwrap();
        let ports = Ports::new(&list, &[], Payloads::built_in()).unwrap();
        assert_eq!(ports.of(Probe::Udp, 161).len(), 2);
        assert_eq!(ports.of(Probe::Udp, 160).len(), 1);
        assert_eq!(ports.of(Probe::Udp, 159).len(), 0);
        assert_eq!(ports.of(Probe::Syn, 161).len(), 0);
        assert_eq!(ports.as_slice().len(), 5);
        assert_eq!(ports.probes(), [Probe::Udp]);
    }

    #[test]
    fn excluded_ports_are_not_among_them() {
        let without = |text: &str, excluded: &str| {
            let list = PortList::parse(text).unwrap();
            let ports = Ports::new(&list, &[Probe::Syn, Probe::Echo], Payloads::built_in());
            let ports = ports
                .unwrap()
                .without(&PortList::parse(excluded).unwrap())?;
            let found = ports.as_slice().iter().map(|e| (e.probe, e.port)).collect();
            Ok::<Vec<_>, String>(found)
        };
        use Probe::{Echo, Syn, Udp};
        let all = "79-82,U:53,80";
        let found = [(Syn, 79), (Syn, 82), (Udp, 53), (Echo, 0)];
        assert_eq!(without(all, "80-81").unwrap(), found);
        let found = [
            (Syn, 79),
            (Syn, 80),
            (Syn, 81),
            (Syn, 82),
            (Udp, 80),
            (Echo, 0),
        ];
        assert_eq!(without(all, "U:53,T:1").unwrap(), found);
        assert_eq!(without(all, "0-").unwrap(), [(Echo, 0)]);
        let list = PortList::parse("80").unwrap();
        let ports = Ports::new(&list, &[], Payloads::built_in()).unwrap();
        assert!(ports.without(&list).is_err());
    }

    #[test]
    fn names_of_services_are_looked_up_for_the_protocol_of_their_letter() {
        let port_of = |name: &str, protocol| match (name, protocol) {
            ("http-alt", None) => Ok(8080),
            ("domain", Some(Protocol::Udp)) => Ok(53),
            _ => Err(format!("no {name:?}")),
        };
        assert_eq!(
            PortList::parse_with("http-alt,22-23,U:domain, 161 ,T:1", port_of),
            PortList::parse("8080,22-23,U:53,161,T:1")
        );
        for (text, why) in [
            ("domain", "no \"domain\""),
            ("U:http-alt", "no \"http-alt\""),
            ("1-domain", "no \"1-domain\""),
            ("P:tcp", "\"tcp\" is not a port"),
        ] {
            let error = PortList::parse_with(text, port_of).unwrap_err();
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }

    #[test]
    fn invalid_ports_are_refused() {
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
            let parsed = PortList::parse(text);
            // `u16` takes a sign: "+80" is 80 to it, and to nmap too.
            assert!(
                parsed.is_err() || text.starts_with('+'),
                "{text}: {parsed:?}"
            );
        }
    }
}
