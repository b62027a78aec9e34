//! ICMP timestamp requests (RFC 792), IPv4 only. Hosts that do not answer echo requests may answer
//! these.
//!
//! The identifier and sequence number are keyed as in echo requests. The originate timestamp, which
//! the reply repeats, is the time of sending plus a keyed offset.

use wire::checksum::Sum;

use super::{NOT_IPV6, Numbers, Probe, Row, Stamp, Template, echo};
use crate::answer::{Answer, AnswerClassifier, Evidence, Received, State};
use crate::frame::Options;
use crate::payload::Payload;
use crate::port::Protocol;

const LEN: usize = 20;
const REQUEST: u8 = 13;
const REPLY: u8 = 14;

pub(super) static ROW: Row = Row {
    probe: Probe::Timestamp,
    word: "timestamp",
    protocol: Protocol::Icmp,
    ip_protocol: [1, NOT_IPV6],
    template,
    stamp,
    answer,
    quoted: |classifier, quote| echo::quoted(classifier, quote, (Probe::Timestamp, REQUEST)),
    filter: [
        "icmp and icmp[0] = 14 and icmp[4:2] >= FIRST and icmp[4:2] <= LAST",
        "",
    ],
    source_port_at: 4,
};

fn template(_: bool, _: Options, _: &Payload) -> Template {
    let mut bytes = vec![0; LEN];
    bytes[0] = REQUEST;
    Template {
        bytes,
        stamp: Stamp::default(),
        has_pseudo: false,
    }
}

fn stamp(_: &Stamp, icmp: &mut [u8], sum: Sum, numbers: &Numbers<'_>) {
    let cookie = numbers.cookie;
    let sequence = cookie.seq as u16;
    let clock = numbers.clock_us.wrapping_add(cookie.timestamp);
    icmp[4..6].copy_from_slice(&numbers.src_port.to_be_bytes());
    icmp[6..8].copy_from_slice(&sequence.to_be_bytes());
    icmp[8..12].copy_from_slice(&clock.to_be_bytes());
    let sum = sum.add_u16(numbers.src_port).add_u16(sequence);
    let sum = sum.add_u32(clock);
    icmp[2..4].copy_from_slice(&sum.finish().to_be_bytes());
}

fn answer(classifier: &AnswerClassifier<'_>, packet: &Received<'_>) -> Option<Answer> {
    let found = packet.found;
    if !found.icmp_type_read || found.icmp_type != REPLY || found.icmp_code != 0 {
        return None;
    }
    let icmp = packet.bytes.get(usize::from(found.transport_offset)..)?;
    let [_, _, _, _, i0, i1, s0, s1, clock @ ..] = *icmp.first_chunk::<12>()?;
    let (target, cookie) = classifier.target(Probe::Timestamp, packet.from, 0)?;
    let is_ours = u16::from_be_bytes([i0, i1]) == classifier.source().port(&cookie)
        && u16::from_be_bytes([s0, s1]) == cookie.seq as u16;
    is_ours.then(|| Answer {
        sent_us: Some(u32::from_be_bytes(clock).wrapping_sub(cookie.timestamp)),
        ..packet.answer(target, State::Up, Evidence::Timestamp)
    })
}
