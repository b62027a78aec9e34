//! IPv4 packets of any protocol: the protocol number replaces the port, and 8 keyed bytes follow
//! the header.
//!
//! Hosts report protocols that they do not support (RFC 1122 section 3.2.2.1). Answers of the
//! protocol itself are not evaluated: they contain nothing keyed, and may belong to traffic of the
//! local host. Protocols missing in the results are therefore open, or filtered without an error.

use wire::checksum::Sum;

use super::{ANY_PROTOCOL, NOT_IPV6, Numbers, Probe, Row, Stamp, Template};
use crate::answer::{Answer, AnswerClassifier, Quote, Received, State};
use crate::frame::Options;
use crate::payload::Payload;
use crate::port::Protocol;

const LEN: usize = 8;

pub(super) static ROW: Row = Row {
    probe: Probe::Protocol,
    word: "protocol",
    protocol: Protocol::Ip,
    ip_protocol: [ANY_PROTOCOL, NOT_IPV6],
    template,
    stamp,
    answer,
    quoted,
    filter: ["", ""],
    source_port_at: 0,
};

fn template(_: bool, _: Options, _: &Payload) -> Template {
    Template {
        bytes: vec![0; LEN],
        stamp: Stamp::default(),
        has_pseudo: false,
    }
}

fn stamp(_: &Stamp, bytes: &mut [u8], _: Sum, numbers: &Numbers<'_>) {
    bytes[..4].copy_from_slice(&numbers.cookie.seq.to_be_bytes());
    bytes[4..].copy_from_slice(&numbers.cookie.timestamp.to_be_bytes());
}

fn answer(_: &AnswerClassifier<'_>, _: &Received<'_>) -> Option<Answer> {
    None
}

/// Evaluates an error from the target itself: the protocol is not supported, or it is, but the port
/// is closed.
fn quoted(classifier: &AnswerClassifier<'_>, quote: &Quote<'_>) -> Option<Answer> {
    let [seq @ .., t0, t1, t2, t3] = *quote.start;
    let number = quote.ip_protocol.into();
    let (target, cookie) = classifier.target(Probe::Protocol, quote.to, number)?;
    let is_ours = u32::from_be_bytes(seq) == cookie.seq
        && u32::from_be_bytes([t0, t1, t2, t3]) == cookie.timestamp;
    let state = match quote.from == quote.to {
        true if quote.is_protocol_unreachable() => State::Closed,
        true if quote.is_port_unreachable() => State::Open,
        _ => State::Filtered,
    };
    is_ours.then(|| quote.answer(target, state))
}
