//! The certificates that a TLS server sends, whole: up to TLS 1.2 (RFC 5246 §7.4.2) in its stream,
//! in 1.3 (RFC 8446 §4.4.2) in the decrypted messages. They are not verified.

use std::collections::HashSet;

use sha2::{Digest as _, Sha256};

/// Maximum length of a certificate, more than what is read of a server; and number of certificates
/// kept of a chain.
pub const CERTIFICATE_MAX: usize = 64 << 10;
pub const CHAIN_MAX: u8 = 8;

/// Content type of a handshake record, and the first byte of its version.
const HANDSHAKE: u8 = 22;
const MAJOR: u8 = 3;
/// Types of handshake messages.
const CERTIFICATE: u8 = 11;
const SERVER_HELLO_DONE: u8 = 14;
const FINISHED: u8 = 20;

/// A certificate, as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// SHA-256 of its bytes.
    pub sha256: [u8; 32],
    /// Its bytes (DER).
    pub der: Box<[u8]>,
}

/// Number of certificates remembered, so that each is reported once. Further ones are reported as
/// often as they are sent.
const REPORTED_MAX: usize = 1 << 20;

/// The certificates that were reported: SHA-256 of each.
#[derive(Debug, Default)]
pub(super) struct Reported(HashSet<[u8; 32]>);

impl Reported {
    /// Whether a certificate is to be reported, and remembers it.
    pub(super) fn is_new(&mut self, sha256: &[u8; 32]) -> bool {
        match self.0.len() {
            ..REPORTED_MAX => self.0.insert(*sha256),
            _ => !self.0.contains(sha256),
        }
    }
}

/// What the next byte of the handshake belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Type and length of a message.
    Message,
    /// A message that is skipped: bytes left.
    Skipped(u32),
    /// TLS 1.3: length of the context, and the context: bytes left.
    ContextLength,
    Context(u32),
    /// Length of the list of certificates.
    List,
    /// Length of a certificate; bytes left of the list.
    Length(u32),
    /// TLS 1.3: length of a certificate's extensions, and the extensions: bytes left of them, and
    /// of the list.
    ExtensionsLength(u32),
    Extensions(u32, u32),
    /// A certificate: bytes left of it, and of the list.
    Certificate(u32, u32),
    Over,
}

/// Collects the certificates of a stream that arrives in pieces of any length.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// Head of the current record, and bytes left of the record.
    record: Vec<u8>,
    record_left: u16,
    /// Whether the messages are those of TLS 1.3.
    is_encrypted: bool,
    at: At,
    /// Numbers that are not complete yet.
    number: Vec<u8>,
    certificate: Vec<u8>,
    count_max: u8,
    /// The certificates that were complete.
    pub found: Vec<Certificate>,
}

impl Certificates {
    /// None yet of a whole chain.
    #[cfg(test)]
    const NEW: Self = Self::new(CHAIN_MAX);

    /// None yet, and at most this many.
    pub const fn new(count_max: u8) -> Self {
        Self {
            record: Vec::new(),
            record_left: 0,
            is_encrypted: false,
            at: At::Message,
            number: Vec::new(),
            certificate: Vec::new(),
            count_max,
            found: Vec::new(),
        }
    }

    /// The first certificate, or as much of it as there is.
    pub fn first(&self) -> &[u8] {
        let found = self.found.first();
        found.map_or(&self.certificate, |certificate| &certificate.der)
    }

    /// Whether no more certificates follow.
    pub fn is_over(&self) -> bool {
        self.at == At::Over
    }

    /// Reads the next decrypted bytes of a server's messages of TLS 1.3. Its stream need not be
    /// read any more.
    pub fn messages(&mut self, bytes: &[u8]) {
        if !self.is_encrypted {
            *self = Self {
                is_encrypted: true,
                ..Self::new(self.count_max)
            };
        }
        self.handshake(bytes);
    }

    /// Reads the next bytes from the server.
    pub fn read(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while self.at != At::Over && !rest.is_empty() {
            if self.record_left == 0 {
                self.record.push(rest[0]);
                rest = &rest[1..];
                self.head();
                continue;
            }
            let (part, behind) = rest.split_at(rest.len().min(self.record_left.into()));
            self.record_left -= part.len() as u16;
            rest = behind;
            self.handshake(part);
        }
    }

    /// Checks the head of a record, as far as it is present.
    fn head(&mut self) {
        match self.record[..] {
            [HANDSHAKE, MAJOR, _, high, low] => {
                self.record_left = u16::from_be_bytes([high, low]);
                self.record.clear();
            }
            [HANDSHAKE] | [HANDSHAKE, MAJOR] | [HANDSHAKE, MAJOR, ..] => {}
            // Anything else: another protocol, an alert, or what follows the handshake.
            _ => self.at = At::Over,
        }
    }

    fn handshake(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() && self.at != At::Over {
            match self.at {
                At::Message
                | At::ContextLength
                | At::List
                | At::Length(_)
                | At::ExtensionsLength(_) => {
                    self.number.push(rest[0]);
                    rest = &rest[1..];
                    self.number();
                }
                At::Skipped(left) | At::Context(left) | At::Extensions(left, _) => {
                    let len = rest.len().min(left as usize);
                    rest = &rest[len..];
                    self.at = match (self.at, left - len as u32) {
                        (At::Extensions(_, list), 0) => self.behind(list),
                        (At::Context(_), 0) => At::List,
                        (_, 0) => At::Message,
                        (At::Extensions(_, list), left) => At::Extensions(left, list),
                        (At::Context(_), left) => At::Context(left),
                        (_, left) => At::Skipped(left),
                    };
                }
                At::Certificate(left, list) => {
                    let (part, behind) = rest.split_at(rest.len().min(left as usize));
                    rest = behind;
                    // One byte more, to tell longer ones apart.
                    let room = (CERTIFICATE_MAX + 1).saturating_sub(self.certificate.len());
                    self.certificate.extend(&part[..part.len().min(room)]);
                    self.certificate(left - part.len() as u32, list - part.len() as u32);
                }
                At::Over => {}
            }
        }
    }

    /// Continues after a number, once it is complete.
    fn number(&mut self) {
        let next = match (self.at, &self.number[..]) {
            (At::Message, &[CERTIFICATE, _, _, _]) if self.is_encrypted => At::ContextLength,
            (At::Message, &[CERTIFICATE, _, _, _]) => At::List,
            (At::Message, &[SERVER_HELLO_DONE | FINISHED, _, _, _]) => At::Over,
            (At::Message, &[_, a, b, c]) => match u32::from_be_bytes([0, a, b, c]) {
                0 => At::Message,
                len => At::Skipped(len),
            },
            (At::ContextLength, &[0]) => At::List,
            (At::ContextLength, &[len]) => At::Context(len.into()),
            (At::ExtensionsLength(list), &[a, b]) => {
                let len = u16::from_be_bytes([a, b]).into();
                match list.checked_sub(2).and_then(|list| list.checked_sub(len)) {
                    Some(list) if len == 0 => self.behind(list),
                    Some(list) => At::Extensions(len, list),
                    None => At::Over,
                }
            }
            (At::List, &[a, b, c]) => match u32::from_be_bytes([0, a, b, c]) {
                0 => At::Over,
                len => At::Length(len),
            },
            (At::Length(list), &[a, b, c]) => {
                let len = u32::from_be_bytes([0, a, b, c]);
                match list.checked_sub(3).and_then(|list| list.checked_sub(len)) {
                    // Its length fits in the list.
                    Some(rest) if len != 0 => At::Certificate(len, rest + len),
                    _ => At::Over,
                }
            }
            _ => return,
        };
        self.number.clear();
        self.at = next;
    }

    /// Continues after bytes of a certificate.
    fn certificate(&mut self, left: u32, list: u32) {
        if left != 0 {
            self.at = At::Certificate(left, list);
            return;
        }
        let der = std::mem::take(&mut self.certificate);
        // A longer one is cut off, and worthless.
        if der.len() <= CERTIFICATE_MAX {
            self.found.push(Certificate {
                sha256: Sha256::digest(&der).into(),
                der: der.into(),
            });
        }
        self.at = match self.is_encrypted {
            true => At::ExtensionsLength(list),
            false => self.behind(list),
        };
    }

    /// What follows a certificate, with this many bytes left of the list.
    fn behind(&self, list: u32) -> At {
        match list {
            0 => At::Over,
            _ if self.found.len() >= self.count_max.into() => At::Over,
            list => At::Length(list),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_be_bytes()[1..], bytes].concat()
    }

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &sized(body)].concat()
    }

    /// A server's first flight in records of this length.
    fn flight(chain: &[Vec<u8>], record_len: usize) -> Vec<u8> {
        let list = chain.iter().flat_map(|der| sized(der)).collect::<Vec<_>>();
        let parts = [
            message(2, &[7; 70]),
            message(CERTIFICATE, &sized(&list)),
            message(12, &[8; 300]),
            message(SERVER_HELLO_DONE, &[]),
        ];
        let record = |part: &[u8]| {
            let len = (part.len() as u16).to_be_bytes();
            [&[HANDSHAKE, MAJOR, 3][..], &len, part].concat()
        };
        parts.concat().chunks(record_len).flat_map(record).collect()
    }

    fn read(bytes: &[u8], step: usize) -> Vec<Vec<u8>> {
        let mut certificates = Certificates::NEW;
        bytes.chunks(step).for_each(|part| certificates.read(part));
        assert!(certificates.record.len() <= 5 && certificates.number.len() <= 4);
        assert!(certificates.certificate.len() <= CERTIFICATE_MAX + 1);
        let found = certificates.found.into_iter();
        found.map(|certificate| certificate.der.to_vec()).collect()
    }

    #[test]
    fn each_of_1_048_576_certificates_is_reported_once() {
        let sha256 = |number: u32| {
            let mut sum = [0; 32];
            sum[..4].copy_from_slice(&number.to_be_bytes());
            sum
        };
        let mut reported = Reported::default();
        for number in 0..1_048_576 {
            assert!(reported.is_new(&sha256(number)), "{number}");
            let before = sha256(number / 2);
            assert!(!reported.is_new(&before), "{number}");
        }
        // One more is not remembered, and forgets none.
        for _ in 0..2 {
            assert!(reported.is_new(&sha256(1_048_576)));
            assert!(!reported.is_new(&sha256(0)) && !reported.is_new(&sha256(1_048_575)));
        }
    }

    #[test]
    fn chains_do_not_depend_on_records_or_segments() {
        let chain = [vec![0x30; 900], vec![0x31; 1], vec![0x32; 333]];
        for record_len in [1, 100, 16_384] {
            let bytes = flight(&chain, record_len);
            for step in [1, 2, 7, 536, 100_000] {
                assert_eq!(read(&bytes, step), chain, "{record_len} {step}");
            }
        }
    }

    /// The messages of a TLS 1.3 server.
    fn messages(chain: &[Vec<u8>], context: &[u8], extensions: &[u8]) -> Vec<u8> {
        let len = (extensions.len() as u16).to_be_bytes();
        let entry = |der: &Vec<u8>| [&sized(der), &len[..], extensions].concat();
        let list: Vec<u8> = chain.iter().flat_map(entry).collect();
        let body = [&[context.len() as u8], context, &sized(&list)].concat();
        [
            message(8, &[0; 9]),
            message(CERTIFICATE, &body),
            message(15, &[8; 300]),
            message(FINISHED, &[9; 32]),
        ]
        .concat()
    }

    #[test]
    fn chains_of_tls_1_3_do_not_depend_on_cuts() {
        let chain = [vec![0x30; 900], vec![0x31; 1], vec![0x32; 333]];
        for (context, extensions) in [(&[][..], &[][..]), (&[1; 3], &[2; 700]), (&[], &[3])] {
            let bytes = messages(&chain, context, extensions);
            for step in [1, 2, 7, 536, 100_000] {
                let mut certificates = Certificates::NEW;
                // The server's hello came first.
                certificates.read(&[HANDSHAKE, MAJOR, 3, 0, 100, 2, 0, 0]);
                let parts = bytes.chunks(step);
                parts.for_each(|part| certificates.messages(part));
                let found = certificates.found.iter().map(|one| &*one.der);
                assert!(found.eq(chain.iter().map(|der| &**der)), "{step}");
                assert!(certificates.is_over());
            }
        }
        // No certificate, and extensions that are longer than the list.
        for bytes in [
            messages(&[], &[], &[]),
            message(FINISHED, &[9; 32]),
            message(CERTIFICATE, &[0, 0, 0, 6, 0, 0, 1, 5, 0, 9]),
        ] {
            let mut certificates = Certificates::NEW;
            certificates.messages(&bytes);
            assert!(certificates.is_over(), "{bytes:?}");
        }
    }

    #[test]
    fn long_and_malformed_chains_are_bounded() {
        let long = [
            vec![0x30; CERTIFICATE_MAX + 1],
            vec![0x31; 9],
            vec![0x32; CERTIFICATE_MAX],
        ];
        assert_eq!(read(&flight(&long, 16_384), 1000), long[1..]);
        let many = vec![vec![0x30; 5]; 20];
        assert_eq!(read(&flight(&many, 16_384), 1000).len(), CHAIN_MAX.into());
        // 16 MiB announced, and a certificate that is longer than its list.
        for list in [
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..],
            &[0, 0, 4, 0, 0, 2],
        ] {
            let mut bytes = vec![HANDSHAKE, MAJOR, 3, 0x40, 0];
            bytes.extend(message(CERTIFICATE, list));
            bytes.extend([5; 300]);
            assert_eq!(read(&bytes, 10).len(), 0);
        }
        assert_eq!(read(b"HTTP/1.1 400 Bad Request", 3).len(), 0);
        assert_eq!(read(&[21, 3, 3, 0, 2, 2, 40], 3).len(), 0);
        let mut seed = 7_u64;
        for _ in 0..2_000 {
            let mut bytes = flight(&[vec![0x30; 40]], 50);
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 8) as u8;
            }
            assert_eq!(read(&bytes, 1), read(&bytes, 64));
        }
    }
}
