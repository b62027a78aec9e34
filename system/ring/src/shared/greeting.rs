//! The messages between a process that wants to attach and the owner of the queues: a request of
//! fixed length, and a greeting with descriptors, or a refusal.

use sys::{Error, ErrorKind, Result};

use super::{ATTACH, NAME_LEN_MAX, check_name};

/// First bytes of a request.
const REQUEST: [u8; 8] = *b"bw-want3";
/// First bytes of a greeting.
const GREETING: [u8; 8] = *b"bw-pool3";

/// Length of a request: magic, kind, queue number, length of the name, name.
pub(super) const REQUEST_LEN: usize = 8 + 3 * 4 + NAME_LEN_MAX;
/// Length of the fixed part of a greeting: magic, result, queue number, length of the text.
pub(super) const HEADER_LEN: usize = 8 + 3 * 4;
/// Maximum length of a greeting.
pub(super) const GREETING_LEN_MAX: usize = 8192;

/// Maximum number of interfaces that a greeting names.
const INTERFACE_COUNT_MAX: usize = 64;

/// What a process asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A queue without a reader, of the only application.
    Any,
    /// A queue without a reader, of this application.
    Application(String),
    /// The queue with this number.
    Queue(u32),
    /// To send packets to the queue with this number, not to receive from it. Queues of programs
    /// that use PF_RING ZC accept this.
    Send(u32),
    /// The counts of all queues, as text.
    Status,
    /// To end in order: no more packets are received, and readers have this many seconds to read
    /// what is in their queues. The answer is the status at the end.
    Drain(u32),
}

impl Request {
    pub(super) fn encode(&self) -> [u8; REQUEST_LEN] {
        let (kind, number, name) = match self {
            Self::Any => (0, 0, ""),
            Self::Application(name) => (1, 0, name.as_str()),
            Self::Queue(number) => (2, *number, ""),
            Self::Status => (3, 0, ""),
            Self::Drain(seconds) => (4, *seconds, ""),
            Self::Send(number) => (5, *number, ""),
        };
        let mut bytes = [0; REQUEST_LEN];
        bytes[..8].copy_from_slice(&REQUEST);
        for (at, value) in [kind, number, name.len() as u32].into_iter().enumerate() {
            bytes[8 + 4 * at..][..4].copy_from_slice(&value.to_ne_bytes());
        }
        let len = name.len().min(NAME_LEN_MAX);
        bytes[20..20 + len].copy_from_slice(&name.as_bytes()[..len]);
        bytes
    }

    /// `None` for anything else: the peer is not trusted.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST_LEN] = bytes.try_into().ok()?;
        if bytes[..8] != REQUEST {
            return None;
        }
        Some(match number(bytes, 8) {
            0 => Self::Any,
            1 => {
                let name = bytes[20..].get(..number(bytes, 16) as usize)?;
                let name = std::str::from_utf8(name).ok()?;
                check_name(name).ok()?;
                Self::Application(name.to_owned())
            }
            2 => Self::Queue(number(bytes, 12)),
            3 => Self::Status,
            4 => Self::Drain(number(bytes, 12)),
            5 => Self::Send(number(bytes, 12)),
            _ => return None,
        })
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]))
}

/// An interface that packets came from, by the number in their metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Link type of its packets, as numbered in capture files.
    pub link_type: u16,
    /// Its name.
    pub name: String,
}

/// What a peer needs to know about its queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Number of the queue in its cluster.
    pub queue: u32,
    /// The interfaces that packets come from: at least one.
    pub interfaces: Vec<Interface>,
}

/// Why a process gets no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue, or each of the application, has a reader.
    Busy,
    /// There is no such queue or application.
    NotFound,
    /// The request is ambiguous or invalid.
    Invalid,
}

impl Terms {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = String::new();
        for interface in self.interfaces.iter().take(INTERFACE_COUNT_MAX) {
            let is_plain = |c: &char| !c.is_control();
            let name: String = interface.name.chars().filter(is_plain).take(60).collect();
            // Writing to a String cannot fail.
            let _ = std::fmt::Write::write_fmt(
                &mut text,
                format_args!("{} {name}\n", interface.link_type),
            );
        }
        encode(0, self.queue, &text)
    }
}

impl Refusal {
    pub(super) fn encode(self, why: &str) -> Vec<u8> {
        let code = match self {
            Self::Busy => 1,
            Self::NotFound => 2,
            Self::Invalid => 3,
        };
        encode(code, 0, why)
    }
}

fn encode(result: u32, queue: u32, text: &str) -> Vec<u8> {
    let mut len = text.len().min(GREETING_LEN_MAX - HEADER_LEN);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    let mut bytes = GREETING.to_vec();
    for value in [result, queue, len as u32] {
        bytes.extend(value.to_ne_bytes());
    }
    bytes.extend(&text.as_bytes()[..len]);
    bytes
}

/// Reads a greeting.
///
/// # Errors
/// Those of a refusal, with the owner's reason; `InvalidInput` for anything that is no greeting.
pub(super) fn decode(bytes: &[u8]) -> Result<Terms> {
    let refuse = |kind, why: String| Err(Error::new(kind, ATTACH, why));
    let is_greeting = bytes.len() >= HEADER_LEN
        && bytes[..8] == GREETING
        && number(bytes, 16) as usize == bytes.len() - HEADER_LEN;
    let text = bytes
        .get(HEADER_LEN..)
        .and_then(|text| std::str::from_utf8(text).ok());
    let (true, Some(text)) = (is_greeting, text) else {
        return refuse(
            ErrorKind::InvalidInput,
            "no owner of queues answered".into(),
        );
    };
    let is_shown = |c: &char| !c.is_control();
    match number(bytes, 8) {
        0 => {}
        result => {
            let kind = match result {
                1 => ErrorKind::Busy,
                2 => ErrorKind::NotFound,
                _ => ErrorKind::InvalidInput,
            };
            return refuse(kind, text.chars().filter(is_shown).take(400).collect());
        }
    }
    let mut interfaces = Vec::new();
    for line in text.lines().take(INTERFACE_COUNT_MAX) {
        if let Some((link_type, name)) = line.split_once(' ')
            && let Ok(link_type) = link_type.parse()
        {
            let name = name.chars().filter(is_shown).collect();
            interfaces.push(Interface { link_type, name });
        }
    }
    if interfaces.is_empty() {
        return refuse(
            ErrorKind::InvalidInput,
            "the owner did not state a link type".into(),
        );
    }
    Ok(Terms {
        queue: number(bytes, 12),
        interfaces,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_greetings_are_read_as_written() {
        for request in [
            Request::Any,
            Request::Application("ids".into()),
            Request::Queue(7),
            Request::Send(3),
            Request::Status,
            Request::Drain(30),
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let terms = Terms {
            queue: 3,
            interfaces: vec![Interface {
                link_type: 1,
                name: "eth0 up".into(),
            }],
        };
        assert_eq!(decode(&terms.encode()).unwrap(), terms);
        let refused = decode(&Refusal::Busy.encode("in use")).unwrap_err();
        assert_eq!((refused.kind(), refused.why()), (ErrorKind::Busy, "in use"));
    }

    #[test]
    fn damaged_messages_are_refused() {
        let good = Request::Application("ids".into()).encode();
        for at in [0, 8, 17, 20] {
            let mut bytes = good;
            bytes[at] = 0xff;
            assert_eq!(Request::decode(&bytes), None, "byte {at}");
        }
        assert_eq!(Request::decode(&good[1..]), None);
        let good = Terms::default().encode();
        assert!(decode(&good).is_err(), "without an interface");
        assert!(decode(&good[..HEADER_LEN - 1]).is_err());
        let long = Refusal::Invalid.encode(&"é".repeat(GREETING_LEN_MAX));
        assert!(long.len() <= GREETING_LEN_MAX);
        assert_eq!(decode(&long).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
