//! RTP and RTCP (RFC 3550 §5.1, §6.4): payload type and source of the first stream.
//!
//! One RTP packet proves nothing. A packet that may be one makes the flow a candidate; the flow is
//! named when [`RUN`] packets of a direction have the same source and payload type and increasing
//! sequence numbers. Until two packets agree, a datagram that cannot share a flow with RTP ends the
//! candidate: one in fifteen flows of random bytes begins like RTP. A compound RTCP packet is proof
//! by itself: its lengths add up, and its description is from the sender of its report.

use super::{Context, Decode, First, Match, Progress, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::{Byte, Pattern};

const HEADER_LEN: usize = 12;
/// Number of packets of one stream that identify the flow.
const RUN: u8 = 4;
/// Maximum number of datagrams read of a candidate.
const LOOK_MAX: u8 = 24;
/// Maximum step of the sequence number between two packets of a run: some may be lost.
const STEP_MAX: u16 = 16;
/// Maximum step of the timestamp: ten seconds of video.
const CLOCK_MAX: u32 = 900_000;

/// STUN magic cookie (RFC 8489 §5, RFC 6189 §5).
const STUN_COOKIE: u32 = 0x2112_a442;
const ZRTP_COOKIE: u32 = u32::from_be_bytes(*b"ZRTP");

const SENDER_REPORT: u8 = 200;
const RECEIVER_REPORT: u8 = 201;
const DESCRIPTION: u8 = 202;

/// Version 2.
pub(super) const STARTS: &[Pattern] = &[Pattern::Bytes(&[Byte::In(0x80, 0xbf)])];

/// The relevant fields of an RTP header.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Packet {
    payload_type: u8,
    sequence: u16,
    clock: u32,
    source: u32,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*bytes))
}

/// Whether a payload type is assigned by RFC 3551, or dynamic.
fn is_payload_type(number: u8) -> bool {
    matches!(number, 0 | 3..=18 | 25 | 26 | 28 | 31..=34 | 96..=127)
}

fn packet(bytes: &[u8]) -> Option<Packet> {
    let head = bytes.first_chunk::<HEADER_LEN>()?;
    let payload_type = head[1] & 0x7f;
    if head[0] >> 6 != 2 || !is_payload_type(payload_type) {
        return None;
    }
    let mut len = HEADER_LEN + 4 * usize::from(head[0] & 0x0f);
    if head[0] & 0x10 != 0 {
        let extension = word(bytes, len)? & 0xffff;
        len += 4 + 4 * extension as usize;
    }
    if head[0] & 0x20 != 0 {
        let padding = *bytes.last()?;
        len += usize::from(padding.max(1));
    }
    let source = word(bytes, 8)?;
    (len < bytes.len() && source != 0).then_some(Packet {
        payload_type,
        sequence: u16::from_be_bytes([head[2], head[3]]),
        clock: word(bytes, 4)?,
        source,
    })
}

/// The source of a compound packet (§6.1): a report, then its sender's description, to the end.
fn report(bytes: &[u8]) -> Option<u32> {
    let source = word(bytes, 4)?;
    let (mut rest, mut is_described, mut count) = (bytes, false, 0);
    while let Some(head) = rest.first_chunk::<4>() {
        let len = 4 * (usize::from(u16::from_be_bytes([head[2], head[3]])) + 1);
        let (body, behind) = rest.split_at_checked(len)?;
        let (blocks, kind) = (usize::from(head[0] & 0x1f), head[1]);
        let least = match kind {
            SENDER_REPORT => 28 + 24 * blocks,
            RECEIVER_REPORT => 8 + 24 * blocks,
            // Description, goodbye, application, feedback (RFC 4585), extended report (RFC 3611).
            DESCRIPTION..=207 => 4,
            _ => return None,
        };
        let is_first = count == 0;
        let is_report = matches!(kind, SENDER_REPORT | RECEIVER_REPORT);
        if head[0] >> 6 != 2 || len < least || is_first && !is_report {
            return None;
        }
        is_described |= kind == DESCRIPTION && blocks != 0 && word(body, 4) == Some(source);
        (rest, count) = (behind, count + 1);
    }
    (rest.is_empty() && is_described && source != 0).then_some(source)
}

pub(super) fn first(first: &First<'_>) -> Match {
    match packet(first.bytes).is_some() || report(first.bytes).is_some() {
        true => Match::Yes,
        false => Match::No,
    }
}

/// A run of matching packets.
#[derive(Clone, Copy)]
struct Run {
    last: Packet,
    count: u8,
}

impl Run {
    fn goes_on(&self, next: &Packet) -> bool {
        let last = &self.last;
        let step = next.sequence.wrapping_sub(last.sequence);
        // Video frames may be sent out of timestamp order.
        let ahead = next.clock.wrapping_sub(last.clock);
        next.source == last.source
            && next.payload_type == last.payload_type
            && (1..=STEP_MAX).contains(&step)
            && ahead.min(ahead.wrapping_neg()) <= CLOCK_MAX
    }
}

/// Whether a datagram may share a flow with RTP (RFC 7983 §7): RTCP, STUN, DTLS and ZRTP, or one
/// too short for any of them, such as a NAT keepalive.
fn belongs(bytes: &[u8]) -> bool {
    match bytes {
        // The types of RTCP, which RTP does not use (RFC 5761 §4).
        [0x80..=0xbf, 192..=223, ..] | [20..=63, 0xfe, 0xfd | 0xff, ..] => true,
        [0..=3, ..] if word(bytes, 4) == Some(STUN_COOKIE) => true,
        [0x10, ..] if word(bytes, 4) == Some(ZRTP_COOKIE) => true,
        _ => bytes.len() < HEADER_LEN || packet(bytes).is_some(),
    }
}

/// State of a candidate.
pub(crate) struct Rtp {
    runs: [Option<Run>; 2],
    /// Whether two packets of a direction match.
    agrees: bool,
    looked_at: u8,
}

impl Rtp {
    /// Whether the bytes are a packet of a source seen before, without payload or of an unassigned
    /// type.
    fn is_source(&self, bytes: &[u8]) -> bool {
        let source = word(bytes, 8);
        let mut runs = self.runs.iter().flatten();
        runs.any(|run| source == Some(run.last.source))
    }
}

impl Decode for Rtp {
    fn new() -> Rtp {
        Rtp {
            runs: [None; 2],
            agrees: false,
            looked_at: 0,
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        self.looked_at += 1;
        // Both may share a pair of ports (RFC 5761): packets that have begun to match come first.
        let has_run = self.runs.iter().any(|run| run.is_some());
        if let Some(source) = report(input).filter(|_| !has_run) {
            out.named(Protocol::Rtcp);
            out.field(Field::RtpSsrc, Value::Number(source.into()));
            return Progress::Done;
        }
        if !self.agrees && !belongs(input) && !self.is_source(input) {
            return Progress::Reject(Reason::Unknown);
        }
        let run = &mut self.runs[context.origin.from as usize];
        if let Some(packet) = packet(input) {
            let count = match run {
                // A duplicate, as captured by taps at two points.
                Some(run) if run.last == packet => run.count,
                Some(run) if run.goes_on(&packet) => run.count + 1,
                _ => 1,
            };
            let last = packet;
            *run = Some(Run { last, count });
            self.agrees |= count > 1;
            if count == RUN {
                let Packet {
                    payload_type,
                    source,
                    ..
                } = packet;
                out.named(Protocol::Rtp);
                out.field(Field::RtpPayloadType, Value::Number(payload_type.into()));
                out.field(Field::RtpSsrc, Value::Number(source.into()));
                return Progress::Done;
            }
        }
        match self.looked_at < LOOK_MAX {
            true => Progress::Need(HEADER_LEN),
            false => Progress::Reject(Reason::Unknown),
        }
    }
}
