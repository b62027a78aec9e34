//! UDP probes with a payload that the usual service of the port answers (RFC 768).
//!
//! The source port is keyed, and so is the identification in the payload if the protocol has one.
//! An error must also quote the keyed IPv4 identification or IPv6 flow label: the 8 bytes of the
//! UDP header contain nothing else that is keyed.

use wire::LayerKind;
use wire::checksum::{self, Sum};

use super::{Numbers, Probe, Row, Stamp, Template, add_at};
use crate::answer::{Answer, AnswerClassifier, Evidence, Quote, Received, State};
use crate::frame::Options;
use crate::payload::Payload;
use crate::port::Protocol;

const HEADER_LEN: usize = 8;

pub(super) static ROW: Row = Row {
    probe: Probe::Udp,
    word: "udp",
    protocol: Protocol::Udp,
    ip_protocol: [17, 17],
    template,
    stamp,
    answer,
    quoted,
    filter: [
        "ip and udp and dst portrange FIRST-LAST",
        "ip6 and udp and dst portrange FIRST-LAST",
    ],
    source_port_at: 0,
};

fn template(_is_ipv6: bool, _: Options, payload: &Payload) -> Template {
    let len = (HEADER_LEN + payload.bytes.len()) as u16;
    let mut bytes = vec![0; HEADER_LEN];
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
    bytes.extend(payload.bytes.iter());
    Template {
        bytes,
        stamp: Stamp {
            id: payload.id.moved(HEADER_LEN),
            ..Stamp::default()
        },
        has_pseudo: true,
    }
}

fn stamp(stamp: &Stamp, udp: &mut [u8], sum: Sum, numbers: &Numbers<'_>) {
    let (src_port, port) = (numbers.src_port, numbers.port);
    udp[0..2].copy_from_slice(&src_port.to_be_bytes());
    udp[2..4].copy_from_slice(&port.to_be_bytes());
    let mut sum = sum.add_u16(src_port).add_u16(port);
    let (at, id, len) = stamp.id.bytes(numbers.cookie.seq);
    if let Some(place) = udp.get_mut(at..at + len) {
        place.copy_from_slice(&id[..len]);
        sum = add_at(sum, at, &id[..len]);
    }
    let sum = checksum::udp(sum.finish());
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
}

fn answer(classifier: &AnswerClassifier<'_>, packet: &Received<'_>) -> Option<Answer> {
    let found = packet.found;
    if !found.has(LayerKind::Udp) || !found.has_ports() || found.fragment.is_later() {
        return None;
    }
    let at = found.transport_offset.checked_add(HEADER_LEN as u16)?;
    let wire_len = (found.ip_total_len + u32::from(found.ip_offset)).saturating_sub(at.into());
    let len = packet.bytes.len().saturating_sub(at.into());
    let len = u16::try_from(len.min(wire_len as usize)).ok()?;
    let data = packet.bytes.get(usize::from(at)..usize::from(at + len))?;
    let port = classifier.answers_of(packet.from, found.src_port, found.dst_port, data)?;
    let (target, _) = classifier.target(Probe::Udp, packet.from, port)?;
    Some(Answer {
        payload: (at, len),
        ..packet.answer(target, State::Open, Evidence::Udp)
    })
}

impl AnswerClassifier<'_> {
    /// The port whose probe these data answer: the one they come from, or that of a service which
    /// answers from another port.
    fn answers_of(&self, from: std::net::IpAddr, src: u16, dst: u16, data: &[u8]) -> Option<u16> {
        let is_for = |port: u16| {
            let (_, cookie) = self.target(Probe::Udp, from, port)?;
            (self.source().port(&cookie) == dst).then_some(cookie)
        };
        if let Some(cookie) = is_for(src) {
            let payloads = self.payloads_of(src);
            let mut checks = payloads.map(|payload| payload.is_answer(data, cookie.seq));
            // An answer in a protocol other than that of any payload is accepted by its ports.
            let mut is_wrong = false;
            let is_right = checks.any(|check| {
                is_wrong |= check == Some(false);
                check == Some(true)
            });
            return (is_right || !is_wrong).then_some(src);
        }
        let mut elsewhere = self.elsewhere().iter();
        let found = elsewhere.find(|(port, payload)| {
            let cookie = is_for(*port);
            cookie.is_some_and(|cookie| payload.is_answer(data, cookie.seq) == Some(true))
        });
        found.map(|(port, _)| *port)
    }
}

/// Closed if the target itself reports the port as unreachable; filtered if another host does.
fn quoted(classifier: &AnswerClassifier<'_>, quote: &Quote<'_>) -> Option<Answer> {
    let [s0, s1, d0, d1, ..] = *quote.start;
    let (target, cookie) = classifier.target(Probe::Udp, quote.to, u16::from_be_bytes([d0, d1]))?;
    let is_ours = quote.ip_id == cookie.ip_id
        && u16::from_be_bytes([s0, s1]) == classifier.source().port(&cookie);
    let is_closed = quote.is_port_unreachable() && quote.from == quote.to;
    let state = if is_closed {
        State::Closed
    } else {
        State::Filtered
    };
    is_ours.then(|| quote.answer(target, state))
}
