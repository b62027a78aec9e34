//! Extra fields of a flow: the rarer parts of its key, its application, its Community ID. The
//! caller selects them once; records without extra fields are exported without them.

use inspect::{Application, CommunityId, Field, Protocol, Transport};

use crate::extra::Extra;
use crate::meter::KeyParts;
use crate::origin::OriginParts;
use crate::record::Record;

/// Fields to add to the standard record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraFields {
    /// Parts of the key that are kept outside the record.
    pub key: KeyParts,
    /// In JSON, the interface of every record: it is part of the key, and 0 is the first one. Other
    /// formats have their own column for it.
    pub interface: bool,
    /// The application found by decoders, or suggested by ports.
    pub application: bool,
    /// The Community ID, with this seed.
    pub community_seed: Option<u16>,
    /// Enrichment of the endpoints.
    pub origin: OriginParts,
    /// All fields of the record, in formats that omit some.
    pub record: bool,
    /// The first packets.
    pub packets: bool,
    /// Gaps between packets, and packet lengths.
    pub timing: bool,
    /// Histogram of the payload's byte values.
    pub bytes: bool,
}

impl ExtraFields {
    /// Whether any field is selected.
    pub fn any(&self) -> bool {
        let is_named = self.application || self.community_seed.is_some() || self.origin.any();
        self.key.any() || is_named || self.record || self.measured()
    }

    /// Whether any field of [`super::measured`] is selected.
    pub fn measured(&self) -> bool {
        self.packets || self.timing || self.bytes
    }
}

/// The Community ID of a record; for ICMP that of the initiator's messages.
pub fn community_id(record: &Record, seed: u16) -> CommunityId {
    let (key, initiator) = (record.key(), record.initiator());
    let end = |side| (key.addr(side), key.port(side));
    let (source, destination) = (end(initiator), end(initiator.other()));
    inspect::community_id(seed, key.protocol(), source, destination)
}

/// How an application was determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By content: the protocol identified.
    Content(Protocol),
    /// By nDPI, which has the name.
    Ndpi,
    /// By port: the protocol customary on it.
    Port(u16, &'static str),
    /// Unknown except for the IP protocol.
    Nothing(u8),
}

impl By {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            By::Content(_) => "content",
            By::Ndpi => "ndpi",
            By::Port(..) => "port",
            By::Nothing(_) => "none",
        }
    }
}

/// The application of a record.
pub struct Known {
    /// The findings of decoders.
    pub found: Application,
    /// How the application was determined.
    pub by: By,
}

impl Known {
    /// Determines the application of a record.
    pub fn of(record: &Record, extra: &Extra<'_>) -> Known {
        let found = extra.application().unwrap_or(Application::EMPTY);
        let (key, initiator) = (record.key(), record.initiator());
        let by = match (found.protocol(), transport(record)) {
            (Protocol::Unknown, _) if found.has(Field::Ndpi) => By::Ndpi,
            (Protocol::Unknown, Some(transport)) => {
                let ports = [key.port(initiator), key.port(initiator.other())];
                match inspect::guess_port(transport, ports[0], ports[1]) {
                    Some((port, name)) => By::Port(port, name),
                    None => By::Nothing(key.protocol()),
                }
            }
            (Protocol::Unknown, None) => By::Nothing(key.protocol()),
            (protocol, _) => By::Content(protocol),
        };
        Known { found, by }
    }

    /// Name of the application.
    pub fn name(&self) -> Option<&str> {
        match self.by {
            By::Content(protocol) => Some(protocol.name()),
            By::Ndpi => self.found.ndpi_name(),
            By::Port(_, name) => Some(name),
            By::Nothing(_) => None,
        }
    }

    /// Whether no content identified it.
    pub fn is_guess(&self) -> bool {
        matches!(self.by, By::Port(..) | By::Nothing(_))
    }

    /// The customary application of the port, if none was identified.
    pub fn guess(&self) -> Option<&'static str> {
        match self.by {
            By::Port(_, name) => Some(name),
            _ => None,
        }
    }
}

/// Transport protocol of the flow, if decoders support it.
pub fn transport(record: &Record) -> Option<Transport> {
    match record.key().protocol() {
        6 => Some(Transport::Tcp),
        17 => Some(Transport::Udp),
        _ => None,
    }
}

/// Classification engines of RFC 6759 §4.1: IP protocols, ports, and vendor-specific.
const IANA_L3: u8 = 1;
const IANA_L4: u8 = 3;
const PANA_L7: u8 = 13;

/// The applicationId (RFC 6759 §4.2) in four bytes: the engine, and its number. An identified
/// protocol has one of barewire's own numbers, 0 for everything that only nDPI named; a guess by
/// port is exported as the port; otherwise the IP protocol.
pub fn application_id(by: By) -> [u8; 4] {
    let (engine, selector) = match by {
        By::Content(protocol) => (PANA_L7, u16::from(protocol as u8)),
        By::Ndpi => (PANA_L7, 0),
        By::Port(port, _) => (IANA_L4, port),
        By::Nothing(protocol) => (IANA_L3, protocol.into()),
    };
    let [high, low] = selector.to_be_bytes();
    [engine, 0, high, low]
}

/// All ids that have a name, with the name, for options records.
pub fn application_names() -> Vec<([u8; 4], String)> {
    let protocols = Protocol::ALL
        .into_iter()
        .filter(|p| *p != Protocol::Unknown);
    let mut names: Vec<([u8; 4], String)> = protocols
        .map(|p| (application_id(By::Content(p)), p.name().to_owned()))
        .chain([(application_id(By::Ndpi), "ndpi".to_owned())])
        .collect();
    for (port, _, name) in inspect::known_ports() {
        let id = application_id(By::Port(port, name));
        match names.last_mut() {
            // One number with two names, for TCP and UDP.
            Some((last, both)) if *last == id => {
                if both != name {
                    both.push('/');
                    both.push_str(name);
                }
            }
            _ => names.push((id, name.to_owned())),
        }
    }
    names
}

/// Appends text from a packet as UTF-8: an invalid byte becomes the code point of its value.
pub(crate) fn utf8(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        out.extend(chunk.valid().as_bytes());
        for byte in chunk.invalid() {
            out.extend(char::from(*byte).encode_utf8(&mut [0; 2]).as_bytes());
        }
    }
}

/// Appends a hash in hexadecimal.
pub(crate) fn hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Appends a MAC address in the usual notation.
pub(crate) fn mac(mac: [u8; 6], out: &mut Vec<u8>) {
    for (at, byte) in mac.into_iter().enumerate() {
        if at != 0 {
            out.push(b':');
        }
        hex(&[byte], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_contain_the_classification_engine() {
        assert_eq!(application_id(By::Content(Protocol::Tls)), [13, 0, 0, 1]);
        assert_eq!(application_id(By::Port(443, "tls")), [3, 0, 1, 0xbb]);
        assert_eq!(application_id(By::Nothing(47)), [1, 0, 0, 47]);
        let names = application_names();
        let name = |id| {
            names
                .iter()
                .find(|(of, _)| *of == id)
                .map(|(_, n)| n.as_str())
        };
        assert_eq!(name([13, 0, 0, 1]), Some("tls"));
        assert_eq!(name([13, 0, 0, 0]), Some("ndpi"));
        assert_eq!(name([3, 0, 1, 0xbb]), Some("tls/quic"));
        assert_eq!(name([3, 0, 0, 53]), Some("dns"));
        let mut ids: Vec<_> = names.iter().map(|(id, _)| *id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), names.len());
    }

    #[test]
    fn any_bytes_become_utf8() {
        let mut out = Vec::new();
        utf8(b"a\xff\xc3\xa9\x80", &mut out);
        assert_eq!(std::str::from_utf8(&out), Ok("a\u{ff}é\u{80}"));
    }
}
