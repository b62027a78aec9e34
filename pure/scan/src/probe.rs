//! The kinds of probes: one file and one table row each.
//!
//! A row defines the transport part of a probe, the fields that are filled in, and what counts as
//! an answer. Everything else (IP headers, order, pacing, reports) is common to all kinds.

mod arp;
mod echo;
mod flags;
mod protocol;
mod sctp;
mod syn;
mod timestamp;
mod udp;

use wire::checksum::Sum;

use crate::answer::{Answer, AnswerClassifier, Quote, Received};
use crate::cookie::Cookie;
use crate::frame::Options;
use crate::payload::{Id, Payload};
use crate::port::Protocol;
use crate::source::Source;

/// Kind of probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Probe {
    /// A TCP SYN.
    Syn,
    /// A UDP datagram.
    Udp,
    /// An ICMP or ICMPv6 echo request.
    Echo,
    /// A TCP ACK.
    Ack,
    /// A TCP FIN.
    Fin,
    /// A TCP segment with FIN, PSH and URG.
    Xmas,
    /// A TCP segment without flags.
    Null,
    /// An SCTP INIT.
    SctpInit,
    /// An ICMP timestamp request.
    Timestamp,
    /// An IPv4 packet of the protocol whose number is the port.
    Protocol,
    /// An ARP request, or a Neighbor Solicitation.
    Arp,
}

/// All rows, indexed by the number of the probe.
static ROWS: [&Row; 11] = [
    &syn::ROW,
    &udp::ROW,
    &echo::ROW,
    &flags::ACK_ROW,
    &flags::FIN_ROW,
    &flags::XMAS_ROW,
    &flags::NULL_ROW,
    &sctp::ROW,
    &timestamp::ROW,
    &protocol::ROW,
    &arp::ROW,
];

/// In the place of a protocol's number: any.
pub(crate) const ANY_PROTOCOL: u8 = 255;
/// In the place of a protocol's number: there is no such probe of IPv6.
const NOT_IPV6: u8 = 0;

/// Definition of one kind of probe.
pub(crate) struct Row {
    pub probe: Probe,
    pub word: &'static str,
    pub protocol: Protocol,
    /// Protocol number in the IP header, for IPv4 and for IPv6.
    pub ip_protocol: [u8; 2],
    /// Builds the transport header and what follows it, with zeros in the fields to be filled in.
    pub template: fn(is_ipv6: bool, options: Options, payload: &Payload) -> Template,
    /// Fills the fields that differ and the checksum into a copy of the template.
    pub stamp: fn(stamp: &Stamp, transport: &mut [u8], sum: Sum, numbers: &Numbers<'_>),
    /// Evaluates a packet of the probe's protocol.
    pub answer: fn(classifier: &AnswerClassifier<'_>, packet: &Received<'_>) -> Option<Answer>,
    /// Evaluates an ICMP error that quotes a packet of the probe's protocol.
    pub quoted: fn(classifier: &AnswerClassifier<'_>, quote: &Quote<'_>) -> Option<Answer>,
    /// The pcap expression of answers, of IPv4 and of IPv6; `FIRST` and `LAST` stand for the source
    /// ports. Empty if nothing but errors is received.
    pub filter: [&'static str; 2],
    /// Offset of the source port, or of the field that carries its number, in the transport header.
    pub source_port_at: usize,
}

/// The transport part of a probe.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub bytes: Vec<u8>,
    pub stamp: Stamp,
    /// Whether the checksum covers a pseudo header.
    pub has_pseudo: bool,
}

/// Offsets of the fields to be filled in, apart from those of the protocol itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamp {
    /// The value of the TCP timestamp option.
    pub timestamp_at: Option<usize>,
    /// The identification in a UDP payload, relative to the UDP header.
    pub id: Id,
}

/// The values that are filled in.
pub(crate) struct Numbers<'a> {
    pub src_port: u16,
    pub port: u16,
    pub cookie: &'a Cookie,
    /// The send time in microseconds; it wraps.
    pub clock_us: u32,
}

impl Probe {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Syn,
        Self::Udp,
        Self::Echo,
        Self::Ack,
        Self::Fin,
        Self::Xmas,
        Self::Null,
        Self::SctpInit,
        Self::Timestamp,
        Self::Protocol,
        Self::Arp,
    ];

    #[inline]
    pub(crate) fn row(self) -> &'static Row {
        ROWS[self as usize]
    }

    /// The name on the command line.
    pub fn word(self) -> &'static str {
        self.row().word
    }

    /// Parses the name of a probe.
    ///
    /// # Errors
    /// The valid names, as a sentence without a full stop.
    pub fn parse(word: &str) -> Result<Self, String> {
        let found = ROWS.iter().find(|row| row.word == word);
        found.map(|row| row.probe).ok_or_else(|| {
            let words = Self::ALL.map(Self::word).join(", ");
            format!("{word:?} is not a probe: there are {words}")
        })
    }

    /// Whether there is no such probe of IPv6.
    pub fn is_ipv4_only(self) -> bool {
        self.row().ip_protocol[1] == NOT_IPV6
    }

    /// Whether the probe has a port, or the number of an IP protocol.
    pub fn has_ports(self) -> bool {
        !matches!(self.protocol(), Protocol::Icmp | Protocol::Link)
    }

    /// The protocol that the probe's ports are of.
    pub fn protocol(self) -> Protocol {
        self.row().protocol
    }

    /// The pcap expressions for all possible answers to these probes from this source: no other
    /// packets are needed.
    pub fn filters(probes: &[Self], source: &Source) -> Vec<String> {
        let (first, count) = source.ports;
        let last = first + (count - 1);
        let ports = |text: &str| {
            let text = text.replace("FIRST", &first.to_string());
            text.replace("LAST", &last.to_string())
        };
        let mut parts = Vec::new();
        for row in probes.iter().map(|probe| probe.row()) {
            if row.protocol == Protocol::Link {
                let ipv4 = source.ipv4.map(|addr| (row.filter[0], addr.to_string()));
                let ipv6 = source.ipv6.map(|addr| (row.filter[1], addr.to_string()));
                let both = ipv4.into_iter().chain(ipv6);
                parts.extend(both.map(|(filter, addr)| format!("(dst host {addr} and {filter})")));
                continue;
            }
            if let Some(addr) = source.ipv4
                && row.protocol == Protocol::Ip
            {
                // 8 bytes after the quoted IPv4 header, and no error about their length.
                parts.push(format!(
                    "(icmp and dst host {addr} and icmp[0] = 3 and icmp[1] != 4 and \
                     icmp[10:2] = 28)"
                ));
            } else if let Some(addr) = source.ipv4 {
                // After 8 bytes the quoted IPv4 header of 20, then the quoted transport header.
                let (protocol, at) = (row.ip_protocol[0], 28 + row.source_port_at);
                parts.push(format!("(dst host {addr} and {})", ports(row.filter[0])));
                parts.push(ports(&format!(
                    "(icmp and dst host {addr} and (icmp[0] = 3 or icmp[0] = 11) and \
                     icmp[17] = {protocol} and icmp[{at}:2] >= FIRST and icmp[{at}:2] <= LAST)"
                )));
            }
            if let Some(addr) = source.ipv6
                && row.ip_protocol[1] != NOT_IPV6
            {
                let (protocol, at) = (row.ip_protocol[1], 88 + row.source_port_at);
                parts.push(format!("(dst host {addr} and {})", ports(row.filter[1])));
                parts.push(ports(&format!(
                    "(icmp6 and dst host {addr} and ip6[40] < 128 and ip6[54] = {protocol} and \
                     ip6[{at}:2] >= FIRST and ip6[{at}:2] <= LAST)"
                )));
            }
        }
        parts.sort_unstable();
        parts.dedup();
        parts
    }
}

/// Adds bytes at an offset to a sum; an odd offset swaps them.
pub(crate) fn add_at(sum: Sum, at: usize, bytes: &[u8]) -> Sum {
    bytes.iter().zip(at..).fold(sum, |sum, (byte, at)| {
        let shift = if at % 2 == 0 { 8 } else { 0 };
        sum.add_u16(u16::from(*byte) << shift)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_indexed_by_the_numbers_of_their_probes() {
        for (number, probe) in Probe::ALL.into_iter().enumerate() {
            assert_eq!(probe as usize, number);
            assert_eq!(probe.row().probe, probe);
            assert_eq!(Probe::parse(probe.word()), Ok(probe));
        }
        assert_eq!(Probe::ALL.len(), ROWS.len());
        assert!(Probe::parse("sin").unwrap_err().contains("syn, udp"));
    }

    #[test]
    fn bytes_are_summed_at_any_offset() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let whole = Sum::new().add_bytes(&bytes).finish();
        for cut in 0..bytes.len() {
            for end in cut..=bytes.len() {
                let mut rest = bytes;
                rest[cut..end].fill(0);
                let sum = Sum::new().add_bytes(&rest);
                assert_eq!(add_at(sum, cut, &bytes[cut..end]).finish(), whole);
            }
        }
    }
}
