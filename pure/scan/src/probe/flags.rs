//! TCP segments that do not open a connection: ACK, FIN, FIN+PSH+URG, and no flags (RFC 9293
//! section 3.10.7, states CLOSED and LISTEN).
//!
//! A host answers an ACK with a reset, whether the port is open or closed, so a reset means that
//! the port is not filtered. A closed port answers the other segments with a reset; an open one
//! does not answer. The sequence number, the acknowledgment number and the source port are keyed.

use wire::LayerKind;
use wire::checksum::Sum;

use super::{Numbers, Probe, Row, Stamp, Template};
use crate::answer::{Answer, AnswerClassifier, Evidence, Quote, Received, State};
use crate::frame::Options;
use crate::payload::Payload;
use crate::port::Protocol;

const HEADER_LEN: usize = 20;
const FIN: u8 = 0x01;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;

const FILTER: [&str; 2] = [
    "ip and tcp and dst portrange FIRST-LAST",
    "ip6 and tcp and dst portrange FIRST-LAST",
];

/// Defines a row of the table: its functions cannot be closures.
macro_rules! row {
    ($name:ident, $probe:expr, $word:literal, $flags:expr) => {
        pub(super) static $name: Row = Row {
            probe: $probe,
            word: $word,
            protocol: Protocol::Tcp,
            ip_protocol: [6, 6],
            template: |_, options, _: &Payload| template(options, $flags),
            stamp,
            answer: |classifier, packet| answer(classifier, packet, $probe, $flags),
            quoted: |classifier, quote| quoted(classifier, quote, $probe),
            filter: FILTER,
            source_port_at: 0,
        };
    };
}

row!(ACK_ROW, Probe::Ack, "ack", ACK);
row!(FIN_ROW, Probe::Fin, "fin", FIN);
row!(XMAS_ROW, Probe::Xmas, "xmas", FIN | PSH | URG);
row!(NULL_ROW, Probe::Null, "null", 0);

fn template(options: Options, flags: u8) -> Template {
    let mut bytes = vec![0; HEADER_LEN];
    bytes[12] = ((HEADER_LEN / 4) as u8) << 4;
    bytes[13] = flags;
    bytes[14..16].copy_from_slice(&options.window().to_be_bytes());
    Template {
        bytes,
        stamp: Stamp::default(),
        has_pseudo: true,
    }
}

#[inline]
fn stamp(_: &Stamp, tcp: &mut [u8], sum: Sum, numbers: &Numbers<'_>) {
    let Some(head) = tcp.first_chunk_mut::<HEADER_LEN>() else {
        return;
    };
    let (src_port, port, cookie) = (numbers.src_port, numbers.port, numbers.cookie);
    let sum = sum.add_u16(src_port).add_u16(port);
    let sum = sum.add_u32(cookie.seq).add_u32(cookie.timestamp);
    head[0..2].copy_from_slice(&src_port.to_be_bytes());
    head[2..4].copy_from_slice(&port.to_be_bytes());
    head[4..8].copy_from_slice(&cookie.seq.to_be_bytes());
    head[8..12].copy_from_slice(&cookie.timestamp.to_be_bytes());
    head[16..18].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Evaluates a reset. If the probe is an ACK, the reset has its acknowledgment number as sequence
/// number; otherwise it acknowledges the probe's sequence number, plus one for a FIN.
fn answer(
    classifier: &AnswerClassifier<'_>,
    packet: &Received<'_>,
    probe: Probe,
    flags: u8,
) -> Option<Answer> {
    let found = packet.found;
    if !found.has(LayerKind::Tcp) || !found.has_ports() || found.tcp_flags & u16::from(RST) == 0 {
        return None;
    }
    let (target, cookie) = classifier.target(probe, packet.from, found.src_port)?;
    let is_quoted = match flags & ACK {
        0 => {
            found.tcp_flags & u16::from(ACK) != 0
                && found.tcp_ack == cookie.seq.wrapping_add(u32::from(flags & FIN))
        }
        _ => found.tcp_seq == cookie.timestamp,
    };
    let state = match flags & ACK {
        0 => State::Closed,
        _ => State::Unfiltered,
    };
    let is_ours = is_quoted && found.dst_port == classifier.source().port(&cookie);
    is_ours.then(|| packet.answer(target, state, Evidence::Reset))
}

/// Evaluates an ICMP error about a segment of any kind: it quotes at least the ports and the
/// sequence number (RFC 792).
pub(super) fn quoted(
    classifier: &AnswerClassifier<'_>,
    quote: &Quote<'_>,
    probe: Probe,
) -> Option<Answer> {
    let [s0, s1, d0, d1, seq @ ..] = *quote.start;
    let (target, cookie) = classifier.target(probe, quote.to, u16::from_be_bytes([d0, d1]))?;
    let is_ours = u32::from_be_bytes(seq) == cookie.seq
        && u16::from_be_bytes([s0, s1]) == classifier.source().port(&cookie);
    is_ours.then(|| quote.answer(target, State::Filtered))
}
