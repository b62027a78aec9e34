//! Banners of UDP services: their answers, decoded.

use std::collections::HashSet;

use inspect::{Application, Conversation, Decoders, Direction, FieldSet, Origin, Protocol, Tools};

use super::connection::START_LEN;
use super::fields::OfServer;
use super::{Banner, Ending};
use crate::answer::{Answer, Evidence};
use crate::cookie::ProbeTarget;

/// Maximum number of banners remembered, so that each is reported once. Further ones are reported
/// as often as they arrive.
const KNOWN_MAX: usize = 1 << 20;

/// Kind of an answer: the protocol, and the set of fields found.
type Kind = (Protocol, FieldSet);

/// Decodes the answers of UDP services. Each is read on its own; nothing is kept of it but its
/// kind.
pub struct DatagramReader {
    tools: Tools,
    known: HashSet<(ProbeTarget, Kind)>,
    known_max: usize,
}

impl std::fmt::Debug for DatagramReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut reader = f.debug_struct("DatagramReader");
        reader
            .field("known", &self.known.len())
            .finish_non_exhaustive()
    }
}

impl Default for DatagramReader {
    fn default() -> Self {
        Self {
            tools: Tools::new(Decoders::ALL, 1),
            known: HashSet::new(),
            known_max: KNOWN_MAX,
        }
    }
}

impl DatagramReader {
    /// Reads the data of an answer. Returns its banner, unless the same kind of answer was read
    /// from this port before: several requests to a port may have different answers, and some
    /// services repeat theirs.
    pub fn read(&mut self, answer: &Answer, data: &[u8], time_ns: u64) -> Option<Banner> {
        if answer.evidence != Evidence::Udp || data.is_empty() {
            return None;
        }
        let target = answer.target;
        let origin = Origin {
            from: Direction::Reverse,
            time_ns,
            ports: [0, target.port],
        };
        let mut application = Application::EMPTY;
        let mut conversation = Conversation::NEW;
        let mut sink = OfServer {
            application: &mut application,
            keeps_certificate: true,
        };
        conversation.datagram(&origin, data, &mut self.tools, &mut sink);
        conversation.finish(&mut self.tools, &mut sink);
        let key = (target, (application.protocol(), application.field_set()));
        if self.known.contains(&key) {
            return None;
        }
        if self.known.len() < self.known_max {
            self.known.insert(key);
        }
        Some(Banner {
            application,
            byte_count: data.len() as u64,
            ..Banner::new(target, &data[..data.len().min(START_LEN)], Ending::Datagram)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::State;
    use crate::probe::Probe;

    fn answer(port: u16) -> Answer {
        let addr = [192, 0, 2, 1].into();
        let probe = Probe::Udp;
        Answer {
            target: ProbeTarget { addr, probe, port },
            state: State::Open,
            evidence: Evidence::Udp,
            ttl: 64,
            from: addr,
            payload: (0, 0),
            sent_us: None,
        }
    }

    #[test]
    fn each_kind_of_answer_of_a_port_is_a_banner_once() {
        let mut reader = DatagramReader::default();
        let mut read = |port, data: &[u8]| {
            let banner = reader.read(&answer(port), data, 0)?;
            let mut out = Vec::new();
            inspect::json(&banner.application, None, &mut out);
            Some(String::from_utf8(out).unwrap())
        };
        let memcached = b"\0\x01\0\0\0\x01\0\0VERSION 1.6.18\r\n";
        assert!(read(11_211, memcached).unwrap().contains("1.6.18"));
        assert_eq!(read(11_211, memcached), None);
        assert!(read(11_212, memcached).is_some());
        // The answer of BIND: a text of class CHAOS.
        let dns = b"\x12\x34\x84\0\0\x01\0\x01\0\0\0\0\x07version\x04bind\0\0\x10\0\x03\
            \xc0\x0c\0\x10\0\x03\0\0\0\0\0\x07\x069.18.1";
        let text = read(53, dns).unwrap();
        assert!(text.contains("\"dns_answer\":[\"9.18.1\"]"), "{text}");
        assert_eq!(read(9, b"?"), Some(String::new()));
        assert_eq!(read(9, b"!"), None);
        assert_eq!(read(10, b""), None);
    }

    #[test]
    fn banners_are_reported_also_when_no_more_are_remembered() {
        let mut reader = DatagramReader {
            known_max: 2,
            ..DatagramReader::default()
        };
        let mut read = |port| reader.read(&answer(port), b"?", 0).is_some();
        assert_eq!([1, 2, 1, 2].map(&mut read), [true, true, false, false]);
        assert_eq!([3, 4, 3, 1].map(&mut read), [true, true, true, false]);
        assert_eq!(reader.known.len(), 2);
        assert_eq!(DatagramReader::default().known_max, 1_048_576);
    }
}
