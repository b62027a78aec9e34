//! ICMP and ICMPv6 echo requests (RFC 792, RFC 4443 section 4.1).
//!
//! The identifier is a keyed source port, so that replies to other programs' requests need not be
//! received; the sequence number is keyed, too. The data contain the send time, offset by a keyed
//! number.

use std::net::IpAddr;

use wire::checksum::Sum;

use super::{Numbers, Probe, Row, Stamp, Template};
use crate::answer::{Answer, AnswerClassifier, Evidence, Quote, Received, State};
use crate::frame::Options;
use crate::payload::Payload;
use crate::port::Protocol;

const HEADER_LEN: usize = 8;
/// Length of the data: the offset send time, and a value that verifies the offset.
const DATA_LEN: usize = 8;
const REQUEST: u8 = 8;
const REQUEST_V6: u8 = 128;
const REPLY_V6: u8 = 129;

pub(super) static ROW: Row = Row {
    probe: Probe::Echo,
    word: "echo",
    protocol: Protocol::Icmp,
    ip_protocol: [1, 58],
    template,
    stamp,
    answer,
    quoted: |classifier, quote| quoted(classifier, quote, (Probe::Echo, request(quote.to))),
    filter: [
        "icmp and icmp[0] = 0 and icmp[4:2] >= FIRST and icmp[4:2] <= LAST",
        "icmp6 and ip6[40] = 129 and ip6[44:2] >= FIRST and ip6[44:2] <= LAST",
    ],
    source_port_at: 4,
};

fn template(is_ipv6: bool, _: Options, _: &Payload) -> Template {
    let mut bytes = vec![0; HEADER_LEN + DATA_LEN];
    bytes[0] = if is_ipv6 { REQUEST_V6 } else { REQUEST };
    Template {
        bytes,
        stamp: Stamp::default(),
        has_pseudo: is_ipv6,
    }
}

fn stamp(_: &Stamp, icmp: &mut [u8], sum: Sum, numbers: &Numbers<'_>) {
    let cookie = numbers.cookie;
    let sequence = cookie.seq as u16;
    let clock = numbers.clock_us.wrapping_add(cookie.timestamp);
    icmp[4..6].copy_from_slice(&numbers.src_port.to_be_bytes());
    icmp[6..8].copy_from_slice(&sequence.to_be_bytes());
    icmp[8..12].copy_from_slice(&clock.to_be_bytes());
    icmp[12..16].copy_from_slice(&cookie.seq.to_be_bytes());
    let sum = sum.add_u16(numbers.src_port).add_u16(sequence);
    let sum = sum.add_u32(clock).add_u32(cookie.seq);
    icmp[2..4].copy_from_slice(&sum.finish().to_be_bytes());
}

fn answer(classifier: &AnswerClassifier<'_>, packet: &Received<'_>) -> Option<Answer> {
    let found = packet.found;
    let reply = if found.ip_version == 6 { REPLY_V6 } else { 0 };
    if !found.icmp_type_read || found.icmp_type != reply || found.icmp_code != 0 {
        return None;
    }
    let icmp = packet.bytes.get(usize::from(found.transport_offset)..)?;
    let [_, _, _, _, i0, i1, s0, s1] = *icmp.first_chunk()?;
    let (target, cookie) = classifier.target(Probe::Echo, packet.from, 0)?;
    let is_ours = u16::from_be_bytes([i0, i1]) == classifier.source().port(&cookie)
        && u16::from_be_bytes([s0, s1]) == cookie.seq as u16;
    let data: Option<&[u8; DATA_LEN]> = icmp[HEADER_LEN..].first_chunk();
    let clock = data.and_then(|[c0, c1, c2, c3, check @ ..]| {
        let clock = u32::from_be_bytes([*c0, *c1, *c2, *c3]);
        (*check == cookie.seq.to_be_bytes()).then(|| clock.wrapping_sub(cookie.timestamp))
    });
    is_ours.then(|| Answer {
        sent_us: clock,
        ..packet.answer(target, State::Up, Evidence::Echo)
    })
}

/// The type of a request.
fn request(addr: IpAddr) -> u8 {
    if addr.is_ipv6() { REQUEST_V6 } else { REQUEST }
}

/// Evaluates an ICMP error about a request of this type, which has an identifier and a sequence
/// number.
pub(super) fn quoted(
    classifier: &AnswerClassifier<'_>,
    quote: &Quote<'_>,
    (probe, request): (Probe, u8),
) -> Option<Answer> {
    let [kind, code, _, _, i0, i1, s0, s1] = *quote.start;
    let (target, cookie) = classifier.target(probe, quote.to, 0)?;
    let is_ours = (kind, code) == (request, 0)
        && u16::from_be_bytes([i0, i1]) == classifier.source().port(&cookie)
        && u16::from_be_bytes([s0, s1]) == cookie.seq as u16;
    is_ours.then(|| quote.answer(target, State::Filtered))
}
