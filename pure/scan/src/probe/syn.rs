//! TCP SYN probes with a keyed sequence number and source port (RFC 9293).

use wire::LayerKind;
use wire::checksum::Sum;

use super::{Numbers, Probe, Row, Stamp, Template, flags};
use crate::answer::{Answer, AnswerClassifier, Evidence, Received, State};
use crate::frame::Options;
use crate::payload::Payload;
use crate::port::Protocol;

const HEADER_LEN: usize = 20;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

pub(super) static ROW: Row = Row {
    probe: Probe::Syn,
    word: "syn",
    protocol: Protocol::Tcp,
    ip_protocol: [6, 6],
    template,
    stamp,
    answer,
    quoted: |classifier, quote| flags::quoted(classifier, quote, Probe::Syn),
    filter: [
        "ip and tcp and dst portrange FIRST-LAST",
        "ip6 and tcp and dst portrange FIRST-LAST",
    ],
    source_port_at: 0,
};

fn template(_is_ipv6: bool, options: Options, _: &Payload) -> Template {
    let (option_bytes, timestamp) = options.bytes();
    let mut bytes = vec![0; HEADER_LEN];
    bytes[12] = ((HEADER_LEN + option_bytes.len()) as u8 / 4) << 4;
    bytes[13] = SYN;
    bytes[14..16].copy_from_slice(&options.window().to_be_bytes());
    bytes.extend(option_bytes);
    Template {
        bytes,
        stamp: Stamp {
            timestamp_at: timestamp.map(|at| HEADER_LEN + at),
            ..Stamp::default()
        },
        has_pseudo: true,
    }
}

#[inline]
fn stamp(stamp: &Stamp, tcp: &mut [u8], sum: Sum, numbers: &Numbers<'_>) {
    let Some((head, rest)) = tcp.split_first_chunk_mut::<HEADER_LEN>() else {
        return;
    };
    let (src_port, port, cookie) = (numbers.src_port, numbers.port, numbers.cookie);
    let mut sum = sum.add_u16(src_port).add_u16(port).add_u32(cookie.seq);
    head[0..2].copy_from_slice(&src_port.to_be_bytes());
    head[2..4].copy_from_slice(&port.to_be_bytes());
    head[4..8].copy_from_slice(&cookie.seq.to_be_bytes());
    if let Some(at) = stamp.timestamp_at {
        let value = cookie.timestamp.wrapping_add(numbers.clock_us);
        sum = sum.add_u32(value);
        if let Some(bytes) = rest.get_mut(at - HEADER_LEN..at - HEADER_LEN + 4) {
            bytes.copy_from_slice(&value.to_be_bytes());
        }
    }
    head[16..18].copy_from_slice(&sum.finish().to_be_bytes());
}

fn answer(classifier: &AnswerClassifier<'_>, packet: &Received<'_>) -> Option<Answer> {
    let found = packet.found;
    let flags = u16::from(SYN | RST | ACK) & found.tcp_flags;
    let (state, evidence) = match flags as u8 {
        flags if flags == SYN | ACK => (State::Open, Evidence::SynAck),
        flags if flags == RST | ACK => (State::Closed, Evidence::Reset),
        _ => return None,
    };
    if !found.has(LayerKind::Tcp) || !found.has_ports() {
        return None;
    }
    let (target, cookie) = classifier.target(Probe::Syn, packet.from, found.src_port)?;
    let is_ours = found.tcp_ack == cookie.seq.wrapping_add(1)
        && found.dst_port == classifier.source().port(&cookie);
    is_ours.then(|| Answer {
        sent_us: echoed(packet).map(|value| value.wrapping_sub(cookie.timestamp)),
        ..packet.answer(target, state, evidence)
    })
}

/// The timestamp that the target echoed, if any (RFC 7323 section 3.2).
fn echoed(packet: &Received<'_>) -> Option<u32> {
    const TIMESTAMP: u8 = 8;
    let at = usize::from(packet.found.transport_offset);
    let tcp = packet.bytes.get(at..)?;
    let len = usize::from(tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(HEADER_LEN..len)?;
    loop {
        options = match options {
            [TIMESTAMP, 10, _, _, _, _, echo @ ..] => {
                return echo.first_chunk().copied().map(u32::from_be_bytes);
            }
            [1, rest @ ..] => rest,
            [2..=255, len, ..] => options.get(usize::from((*len).max(2))..)?,
            _ => return None,
        };
    }
}
