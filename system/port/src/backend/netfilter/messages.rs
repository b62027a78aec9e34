//! Finds packets in messages of netfilter: `nfnetlink_log.h` and `nfnetlink_queue.h` of the kernel.
//!
//! ```text
//! family u8, version u8 (0), group or queue u16, attributes
//! ```

use std::ops::Range;

use sys::netfilter::{LOGGED, QUEUED};
use sys::netlink::attributes;

/// Bytes in front of the attributes.
const HEAD_LEN: usize = 4;
/// Bytes in front of an attribute's value.
const ATTRIBUTE_LEN: usize = 4;

/// Attributes of a logged packet (`NFULA_`).
const LOG_TIME: u16 = 3;
const LOG_NUMBER: u16 = 12;
/// Attributes of a queued packet (`NFQA_`).
const QUEUE_HEADER: u16 = 1;
const QUEUE_TIME: u16 = 4;
const QUEUE_PAYLOAD: u16 = 10;
const QUEUE_WIRE_LEN: u16 = 13;

/// Hooks of packets that leave this host: `NF_INET_LOCAL_OUT`, `NF_INET_POST_ROUTING`.
const LEAVING: [u8; 2] = [3, 4];

/// Longest packet: what fits into an attribute, and the other attributes.
pub(super) const PACKET_LEN_MAX: u32 = (1 << 16) + 4096;

/// What is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Log,
    Queue,
}

impl Kind {
    /// LINKTYPE_NFLOG, LINKTYPE_RAW.
    pub fn link_type(self) -> u16 {
        match self {
            Self::Log => 239,
            Self::Queue => 101,
        }
    }

    /// The type of its messages.
    fn message(self) -> u16 {
        match self {
            Self::Log => LOGGED,
            Self::Queue => QUEUED,
        }
    }
}

/// A packet in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Where its bytes are.
    pub place: Range<usize>,
    pub wire_len: u32,
    /// Nanoseconds since the Unix epoch; 0 if the kernel has not stamped it.
    pub time_ns: u64,
    /// Whether it leaves this host.
    pub is_outgoing: bool,
    /// The kernel's number of it, and its group or queue.
    pub number: u32,
    pub group: u16,
}

/// Seconds and microseconds, in network byte order.
fn time_ns(value: &[u8]) -> u64 {
    let (words, _) = value.as_chunks::<8>();
    let [sec, usec] = words else { return 0 };
    let [sec, usec] = [sec, usec].map(|it| u64::from_be_bytes(*it));
    let usec = usec.min(999_999);
    sec.checked_mul(1_000_000_000)
        .map_or(0, |ns| ns.saturating_add(usec * 1000))
}

fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|it| u32::from_be_bytes(*it))
}

/// The packet in a message of this type, which is at `place` of `bytes`. `Ok(None)` for a message
/// of another kind.
///
/// # Errors
/// A message without a number, or without a queued packet.
pub(super) fn find(
    kind: Kind,
    message: u16,
    bytes: &mut [u8],
    place: Range<usize>,
) -> Result<Option<Found>, ()> {
    if message != kind.message() {
        return Ok(None);
    }
    let body = bytes.get_mut(place.clone()).ok_or(())?;
    let head = body.first_chunk::<HEAD_LEN>().ok_or(())?;
    let group = u16::from_be_bytes([head[2], head[3]]);
    let found = match kind {
        Kind::Log => logged(body),
        Kind::Queue => queued(body),
    };
    let mut found = found.ok_or(())?;
    found.group = group;
    found.place = place.start + found.place.start..place.start + found.place.end;
    Ok(Some(found))
}

/// Where a value of an attribute is in the message.
fn place_of(body: &[u8], value: &[u8]) -> Range<usize> {
    let start = value.as_ptr() as usize - body.as_ptr() as usize;
    start..start + value.len()
}

/// A logged packet is its message, without the number that the kernel was asked for. A rule can
/// log no bytes of the packet: the message then has only the other attributes.
fn logged(body: &mut [u8]) -> Option<Found> {
    let mut found = Found::default();
    let mut numbered = None;
    for (kind, value) in attributes(&body[HEAD_LEN..]) {
        match kind {
            LOG_TIME => found.time_ns = time_ns(value),
            LOG_NUMBER if value.len() == 4 => {
                numbered = number(value).map(|it| (it, place_of(body, value)));
            }
            _ => {}
        }
    }
    let (number, place) = numbered?;
    let attribute = place.start - ATTRIBUTE_LEN..place.end;
    // What is in front of it moves over it: there is little.
    let len = attribute.end - attribute.start;
    body.copy_within(..attribute.start, len);
    found.number = number;
    found.place = len..body.len();
    found.wire_len = found.place.len() as u32;
    Some(found)
}

/// A queued packet is the value of an attribute.
fn queued(body: &[u8]) -> Option<Found> {
    let mut found = Found::default();
    let (mut packet, mut id, mut wire_len) = (None, None, None);
    for (kind, value) in attributes(&body[HEAD_LEN..]) {
        match kind {
            QUEUE_HEADER => {
                id = number(value);
                found.is_outgoing = value.get(6).is_some_and(|hook| LEAVING.contains(hook));
            }
            QUEUE_TIME => found.time_ns = time_ns(value),
            QUEUE_WIRE_LEN => wire_len = number(value),
            QUEUE_PAYLOAD => packet = Some(place_of(body, value)),
            _ => {}
        }
    }
    found.number = id?;
    found.place = packet?;
    let len = found.place.len() as u32;
    found.wire_len = wire_len.unwrap_or(len).max(len);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with these attributes.
    fn message(parts: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = vec![2, 0, 0, 5];
        for (kind, value) in parts {
            out.extend((value.len() as u16 + 4).to_ne_bytes());
            out.extend(kind.to_ne_bytes());
            out.extend(*value);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }

    const TIME: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9];

    #[test]
    fn a_logged_packet_is_its_message_without_its_number() {
        let before: [(u16, &[u8]); 2] = [(10, b"web\0"), (3, &TIME)];
        let packet: (u16, &[u8]) = (9, &[0x45; 21]);
        let numbered = [before[0], before[1], (12, &[0, 0, 1, 2]), packet];
        let expected = message(&[before[0], before[1], packet]);
        let mut bytes = [vec![0xee; 16], message(&numbered), vec![0xee; 8]].concat();
        let place = 16..bytes.len() - 8;
        let found = find(Kind::Log, LOGGED, &mut bytes, place.clone());
        let found = found.unwrap().unwrap();
        assert_eq!(bytes[found.place.clone()], expected);
        assert_eq!((found.number, found.group), (0x102, 5));
        assert_eq!((found.time_ns, found.wire_len), (7_000_009_000, 60));
        assert_eq!(find(Kind::Log, QUEUED, &mut bytes, place), Ok(None));
        // Of a rule that logs no bytes.
        let mut bytes = message(&numbered[..3]);
        let place = 0..bytes.len();
        let found = find(Kind::Log, LOGGED, &mut bytes, place);
        let found = found.unwrap().unwrap();
        assert_eq!(bytes[found.place.clone()], message(&before));
        assert_eq!((found.number, found.wire_len), (0x102, 32));
        // Without a number.
        let mut bytes = message(&[before[0], packet]);
        let place = 0..bytes.len();
        assert_eq!(find(Kind::Log, LOGGED, &mut bytes, place), Err(()));
    }

    #[test]
    fn a_queued_packet_is_in_its_message() {
        for (hook, is_outgoing) in [(1, false), (3, true), (4, true)] {
            let header = [0, 0, 0, 9, 8, 0, hook];
            let parts: [(u16, &[u8]); 3] = [(1, &header), (10, &[0x45; 30]), (13, &[0, 0, 5, 0])];
            let mut bytes = message(&parts);
            let place = 0..bytes.len();
            let found = find(Kind::Queue, QUEUED, &mut bytes, place)
                .unwrap()
                .unwrap();
            assert_eq!(bytes[found.place.clone()], [0x45; 30]);
            assert_eq!((found.number, found.wire_len), (9, 0x500));
            assert_eq!((found.is_outgoing, found.time_ns), (is_outgoing, 0));
        }
    }

    /// Whatever the bytes are, what is found is inside of them.
    #[test]
    fn damaged_messages_are_refused() {
        let header = [0, 0, 0, 9, 8, 0, 1];
        let log: [(u16, &[u8]); 3] = [(3, &TIME), (12, &[0; 4]), (9, &[1; 9])];
        let queue: [(u16, &[u8]); 2] = [(1, &header), (10, &[1; 9])];
        let mut state = 1_u64;
        for (kind, whole) in [(Kind::Log, message(&log)), (Kind::Queue, message(&queue))] {
            for round in 0..20_000 {
                let mut bytes = whole.clone();
                for _ in 0..round % 4 {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let at = (state >> 33) as usize % bytes.len();
                    bytes[at] = (state >> 56) as u8;
                }
                bytes.truncate((state >> 20) as usize % (whole.len() + 1));
                let place = 0..bytes.len();
                if let Ok(Some(found)) = find(kind, kind.message(), &mut bytes, place) {
                    assert!(found.place.end <= bytes.len() && found.place.start <= found.place.end);
                }
            }
        }
    }
}
