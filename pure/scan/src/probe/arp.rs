//! ARP requests (RFC 826), and Neighbor Solicitations for IPv6 targets (RFC 4861): which addresses
//! of the local link are in use, and by which MAC addresses.
//!
//! These packets have no transport header and nothing keyed: an answer is recognized by its
//! addresses, and any host on the link can forge it.

use wire::arp::Arp;
use wire::checksum::Sum;

use super::{Numbers, Probe, Row, Stamp, Template};
use crate::answer::{Answer, AnswerClassifier, Evidence, Received, State};
use crate::frame::Options;
use crate::neighbour::neighbour_at;
use crate::payload::Payload;
use crate::port::Protocol;

/// Length of a MAC address.
const MAC_LEN: u16 = 6;
/// Length of an Ethernet header.
const ETHERNET_LEN: usize = 14;

pub(super) static ROW: Row = Row {
    probe: Probe::Arp,
    word: "arp",
    protocol: Protocol::Link,
    // ARP is not an IP protocol; Neighbor Discovery is part of ICMPv6.
    ip_protocol: [0, 58],
    template,
    stamp,
    answer,
    quoted: |_, _| None,
    filter: ["arp and arp[6:2] = 2", "icmp6 and ip6[40] = 136"],
    source_port_at: 0,
};

/// Nothing: [`Solicitor`](crate::Solicitor) builds the whole packet.
fn template(_: bool, _: Options, _: &Payload) -> Template {
    Template {
        bytes: Vec::new(),
        stamp: Stamp::default(),
        has_pseudo: false,
    }
}

fn stamp(_: &Stamp, _: &mut [u8], _: Sum, _: &Numbers<'_>) {}

/// Evaluates a Neighbor Advertisement to one of the scanner's own addresses.
fn answer(classifier: &AnswerClassifier<'_>, packet: &Received<'_>) -> Option<Answer> {
    let (addr, mac_at) = neighbour_at(packet.bytes)?;
    let (target, _) = classifier.target(Probe::Arp, addr, 0)?;
    Some(Answer {
        payload: (u16::try_from(mac_at).ok()?, MAC_LEN),
        from: addr,
        ..packet.answer(target, State::Up, Evidence::Neighbour)
    })
}

impl AnswerClassifier<'_> {
    /// Evaluates an ARP reply to the scanner's own address, which is not an IP packet.
    pub(crate) fn arp_reply(&self, packet: &[u8]) -> Option<Answer> {
        if packet.get(12..ETHERNET_LEN)? != [0x08, 0x06] {
            return None;
        }
        let arp = Arp::parse(&packet[ETHERNET_LEN..]).ok()?.ethernet_ipv4()?;
        let (addr, mac_at) = neighbour_at(packet)?;
        let (target, _) = self.target(Probe::Arp, addr, 0)?;
        self.source().is_own(arp.target.into()).then_some(Answer {
            target,
            state: State::Up,
            evidence: Evidence::Arp,
            ttl: 0,
            from: addr,
            payload: (u16::try_from(mac_at).ok()?, MAC_LEN),
            sent_us: None,
        })
    }
}
