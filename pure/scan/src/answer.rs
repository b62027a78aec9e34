//! Evaluates received packets: answers are recognized by the cookie alone.

use std::collections::BTreeSet;
use std::net::IpAddr;

use wire::{Dissection, LinkType, dissect, dissect_inner};

use crate::cookie::{Cookie, Cookies, ProbeTarget};
use crate::grab::segment::Incoming;
use crate::payload::Payload;
use crate::plan::Plan;
use crate::probe::{ANY_PROTOCOL, Probe, Row};
use crate::source::Source;

/// Maximum number of ports whose services may answer from another port: each of them is tried.
const ELSEWHERE_MAX: usize = 8;

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Open: a program listens.
    Open,
    /// Closed: the host answered with a reset, or reported the port as unreachable (UDP).
    Closed,
    /// Filtered: a router or host reported that the probe was not delivered.
    Filtered,
    /// Unfiltered: the host answered, but the port may be open or closed (ACK probes).
    Unfiltered,
    /// Up: the host answered a probe that has no port.
    Up,
}

impl State {
    /// The name in reports and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Filtered => "filtered",
            Self::Unfiltered => "unfiltered",
            Self::Up => "up",
        }
    }
}

/// The kind of answer that proves a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// SYN and ACK.
    SynAck,
    /// A reset.
    Reset,
    /// A UDP datagram.
    Udp,
    /// An SCTP INIT ACK.
    InitAck,
    /// An SCTP ABORT.
    Abort,
    /// An ICMP echo reply.
    Echo,
    /// An ICMP timestamp reply.
    Timestamp,
    /// An ARP reply.
    Arp,
    /// A Neighbor Advertisement.
    Neighbour,
    /// An ICMP error that quotes the probe.
    Icmp {
        /// Whether it is an ICMPv6 error.
        is_ipv6: bool,
        /// The ICMP type.
        kind: u8,
        /// The ICMP code.
        code: u8,
    },
}

impl Evidence {
    /// The name in reports and JSON; nmap's, if nmap has one.
    pub fn word(self) -> &'static str {
        match self {
            Self::SynAck => "syn-ack",
            Self::Reset => "reset",
            Self::Udp => "udp-response",
            Self::InitAck => "init-ack",
            Self::Abort => "abort",
            Self::Echo => "echo-reply",
            Self::Timestamp => "timestamp-reply",
            Self::Arp => "arp-response",
            Self::Neighbour => "nd-response",
            Self::Icmp {
                is_ipv6,
                kind,
                code,
            } => icmp_word(is_ipv6, kind, code),
        }
    }
}

/// Names of errors (RFC 792, RFC 1812 section 5.2.7.1, RFC 4443).
fn icmp_word(is_ipv6: bool, kind: u8, code: u8) -> &'static str {
    match (is_ipv6, kind, code) {
        (false, 3, 0 | 6 | 11) => "net-unreach",
        (false, 3, 1 | 7 | 12) => "host-unreach",
        (false, 3, 2) => "proto-unreach",
        (false, 3, 3) => "port-unreach",
        (false, 3, 9) => "net-prohibited",
        (false, 3, 10) => "host-prohibited",
        (false, 3, 13) => "admin-prohibited",
        (false, 11, _) => "time-exceeded",
        (true, 1, 0) => "no-route",
        (true, 1, 1) => "admin-prohibited",
        (true, 1, 3) => "addr-unreach",
        (true, 1, 4) => "port-unreach",
        (true, 3, _) => "time-exceeded",
        _ => "icmp-error",
    }
}

/// An answer to a probe of this scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The probe's destination.
    pub target: ProbeTarget,
    /// The state that it proves.
    pub state: State,
    /// The kind of answer.
    pub evidence: Evidence,
    /// TTL or hop limit of the answer.
    pub ttl: u8,
    /// The sender: the target, or the router that reports an error.
    pub from: IpAddr,
    /// Offset and length of the answer's data in the packet, such as the reply of a UDP service.
    pub payload: (u16, u16),
    /// When the probe was sent, by the [clock of the prober](crate::Prober::set_clock), if the
    /// answer contains it.
    pub sent_us: Option<u32>,
}

impl Answer {
    /// The data of the answer; empty if there is none.
    pub fn payload<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        let (at, len) = (usize::from(self.payload.0), usize::from(self.payload.1));
        packet.get(at..at + len).unwrap_or_default()
    }

    /// Whether the packet of a SYN and ACK has a right checksum, or that of the pseudo header only,
    /// as the kernel hands out where a card would complete it. Other answers are not verified.
    pub fn is_intact(&self, packet: &[u8]) -> bool {
        if self.evidence != Evidence::SynAck {
            return true;
        }
        let mut found = Dissection::EMPTY;
        dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut found);
        Incoming::of(&found, packet).is_some()
    }
}

/// A packet that may be an answer.
pub(crate) struct Received<'a> {
    pub bytes: &'a [u8],
    pub found: &'a Dissection,
    pub from: IpAddr,
}

impl Received<'_> {
    /// Builds an answer from this packet.
    pub fn answer(&self, target: ProbeTarget, state: State, evidence: Evidence) -> Answer {
        Answer {
            target,
            state,
            evidence,
            ttl: self.found.ttl,
            from: self.from,
            payload: (0, 0),
            sent_us: None,
        }
    }
}

/// An ICMP error about a packet that was sent from the scanner's address.
pub(crate) struct Quote<'a> {
    /// Sender of the error.
    pub from: IpAddr,
    /// The destination of the quoted packet.
    pub to: IpAddr,
    /// IPv4 identification of the quoted packet, or the lower 16 bits of its flow label.
    pub ip_id: u16,
    /// The protocol of the quoted packet.
    pub ip_protocol: u8,
    /// The first 8 bytes after its IP header.
    pub start: &'a [u8; 8],
    found: &'a Dissection,
}

impl Quote<'_> {
    /// Builds an answer from this error.
    pub fn answer(&self, target: ProbeTarget, state: State) -> Answer {
        Answer {
            target,
            state,
            evidence: Evidence::Icmp {
                is_ipv6: self.found.ip_version == 6,
                kind: self.found.icmp_type,
                code: self.found.icmp_code,
            },
            ttl: self.found.ttl,
            from: self.from,
            payload: (0, 0),
            sent_us: None,
        }
    }

    /// Whether the error is that the host does not have the protocol (IPv4).
    pub fn is_protocol_unreachable(&self) -> bool {
        let found = self.found;
        found.ip_version == 4 && (found.icmp_type, found.icmp_code) == (3, 2)
    }

    /// Whether the error is that no program listens on the port.
    pub fn is_port_unreachable(&self) -> bool {
        let kind = (self.found.icmp_type, self.found.icmp_code);
        kind == if self.found.ip_version == 6 {
            (1, 4)
        } else {
            (3, 3)
        }
    }
}

/// Recognizes answers.
pub struct AnswerClassifier<'p> {
    plan: &'p Plan,
    cookies: &'p Cookies,
    /// UDP ports of the scan whose services answer from another port, with their payloads.
    elsewhere: Vec<(u16, &'p Payload)>,
    /// Whether ARP replies are answers.
    has_arp: bool,
}

impl<'p> AnswerClassifier<'p> {
    /// Recognizes answers to the probes of this plan, made with these cookies.
    pub fn new(plan: &'p Plan, cookies: &'p Cookies) -> Self {
        let ports = plan.ports();
        let payloads = ports.payloads().as_slice();
        let udp = ports.as_slice().iter().filter(|e| e.probe == Probe::Udp);
        let udp = udp.map(|entry| (entry.port, entry.payload));
        let pairs = plan.pairs().iter().filter(|(p, _)| p.probe == Probe::Udp);
        let pairs = pairs.map(|(pair, payload)| (pair.port, *payload));
        let is_from_any = |(_, payload): &(u16, u16)| {
            let payload = payloads.get(usize::from(*payload));
            payload.is_some_and(|payload| payload.is_from_any_port)
        };
        let from_any: BTreeSet<_> = udp.chain(pairs).filter(is_from_any).collect();
        let elsewhere = from_any
            .into_iter()
            .filter_map(|(port, payload)| Some((port, payloads.get(usize::from(payload))?)));
        Self {
            plan,
            cookies,
            elsewhere: elsewhere.take(ELSEWHERE_MAX).collect(),
            has_arp: plan.kinds().contains(&Probe::Arp),
        }
    }

    /// Evaluates an Ethernet packet; `None` unless it answers a probe of this scan.
    ///
    /// Checksums are not verified here: see [`Answer::is_intact`].
    pub fn classify(&self, packet: &[u8]) -> Option<Answer> {
        if self.has_arp
            && let Some(answer) = self.arp_reply(packet)
        {
            return Some(answer);
        }
        let mut found = Dissection::EMPTY;
        dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut found);
        if !self.plan.source().is_own(found.dst_addr()?) {
            return None;
        }
        let from = found.src_addr()?;
        if found.inner_is_quote {
            return self.quote(from, packet, &found);
        }
        let received = Received {
            bytes: packet,
            found: &found,
            from,
        };
        self.first(&found, |row| (row.answer)(self, &received))
    }

    /// The first answer that any row of the packet's protocol finds.
    fn first(&self, of: &Dissection, say: impl Fn(&Row) -> Option<Answer>) -> Option<Answer> {
        let family = usize::from(of.ip_version == 6);
        let rows = self.plan.kinds().iter().map(|probe| probe.row());
        let is_of = |row: &&Row| [of.ip_protocol, ANY_PROTOCOL].contains(&row.ip_protocol[family]);
        rows.filter(is_of).find_map(say)
    }

    fn quote(&self, from: IpAddr, packet: &[u8], found: &Dissection) -> Option<Answer> {
        let mut quoted = Dissection::EMPTY;
        if !dissect_inner(packet, found, &mut quoted) {
            return None;
        }
        if !self.plan.source().is_own(quoted.src_addr()?) {
            return None;
        }
        let (at, ip_protocol) = match quoted.ip_version {
            // As in the header: probes may be of any protocol.
            4 => {
                let ip = packet.get(usize::from(quoted.ip_offset)..)?;
                let header_len = usize::from(ip.first()? & 15) * 4;
                (usize::from(quoted.ip_offset) + header_len, *ip.get(9)?)
            }
            _ if quoted.transport_offset == 0 => return None,
            _ => (usize::from(quoted.transport_offset), quoted.ip_protocol),
        };
        let quote = Quote {
            from,
            to: quoted.dst_addr()?,
            ip_id: match quoted.ip_version {
                6 => quoted.flow_label as u16,
                _ => quoted.fragment_id as u16,
            },
            ip_protocol,
            start: packet.get(at..)?.first_chunk()?,
            found,
        };
        self.first(&quoted, |row| (row.quoted)(self, &quote))
    }

    /// The scanner's own addresses and ports.
    pub(crate) fn source(&self) -> &Source {
        self.plan.source()
    }

    /// The probe of a port, and its cookie, if this scan includes it.
    pub(crate) fn target(
        &self,
        probe: Probe,
        addr: IpAddr,
        port: u16,
    ) -> Option<(ProbeTarget, Cookie)> {
        let target = ProbeTarget { addr, probe, port };
        self.plan
            .contains(&target)
            .then(|| (target, self.cookies.of(&target)))
    }

    /// The payloads of a UDP port.
    pub(crate) fn payloads_of(&self, port: u16) -> impl Iterator<Item = &Payload> {
        let payloads = self.plan.ports().payloads();
        let numbers = payloads.numbers_of(port);
        numbers.filter_map(|number| payloads.as_slice().get(usize::from(number)))
    }

    /// UDP ports of the scan whose services answer from another port, with their payloads.
    pub(crate) fn elsewhere(&self) -> &[(u16, &'p Payload)] {
        &self.elsewhere
    }
}

#[cfg(test)]
mod tests;
