//! A law: what is found in a server's stream does not depend on how it is cut, whatever the server
//! encrypts. For tests and fuzz targets only.

use inspect::{Field, FieldSink, Protocol, Value};

use super::group::GROUPS;
use super::keys::{SUITES, Transcript};
use super::record::Record;
use super::server_hello::{KEY_SHARE, SERVER_HELLO, SUPPORTED_VERSIONS};
use super::{APPLICATION_DATA, HANDSHAKE, HELLO_MAX, Handshake, Out};
use crate::grab::certificates::{CHAIN_MAX, Certificates};
use crate::grab::hello::tls;

/// Maximum length of an input.
const INPUT_LEN_MAX: usize = 8192;
/// In the first byte of an input: the rest is the stream itself.
const IS_RAW: u8 = 0x80;
/// The last record is of another type; the last tag is wrong.
const HAS_OTHER_TYPE: u8 = 0x40;
const HAS_WRONG_TAG: u8 = 0x20;

/// What was found in a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) fields: Vec<String>,
    pub(super) chain: Vec<Vec<u8>>,
    /// The second hello.
    pub(super) second: Vec<u8>,
    pub(super) is_over: bool,
}

#[derive(Default)]
struct Seen(Vec<String>);

impl FieldSink for Seen {
    fn named(&mut self, _: Protocol) {}

    fn field(&mut self, field: Field, value: Value<'_>) {
        self.0.push(format!("{field:?} {value:?}"));
    }
}

/// The record of the first hello.
pub(super) fn said() -> Vec<u8> {
    tls::record(tls::FIRST, &tls::message(&[7; 32], (None, true), None))
}

/// Reads a server's stream in these parts.
pub(super) fn read_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Found {
    let mut handshake = Handshake::new(None, true);
    let mut certificates = Certificates::new(CHAIN_MAX);
    let (mut seen, mut second, said) = (Seen::default(), Vec::new(), said());
    for part in parts {
        let mut out = Out {
            fields: &mut seen,
            certificates: Some(&mut certificates),
        };
        second.extend(handshake.read(part, &said, &mut out).unwrap_or_default());
        assert!(handshake.message.len() <= HELLO_MAX);
    }
    let found = certificates.found.into_iter().map(|one| one.der.to_vec());
    Found {
        fields: seen.0,
        chain: found.collect(),
        second,
        is_over: handshake.is_over(),
    }
}

/// Checks a stream: a number for the suite and the group, the length of records, that of padding,
/// and what the server encrypts. Returns whether anything was found.
pub fn tls_input(input: &[u8]) -> bool {
    let input = &input[..input.len().min(INPUT_LEN_MAX)];
    let stream = match input {
        [mode, rest @ ..] if mode & IS_RAW != 0 => rest.to_vec(),
        [mode, len, padding, text @ ..] => stream(*mode, (*len, *padding), text),
        _ => return false,
    };
    let whole = read_parts(std::iter::once(&stream[..]));
    let step = 2 + input.len() % 61;
    for step in [1, step] {
        assert_eq!(read_parts(stream.chunks(step)), whole, "{step}");
    }
    !whole.fields.is_empty() || !whole.chain.is_empty() || !whole.second.is_empty()
}

/// An input for [`tls_input`].
pub fn tls_input_of(mode: u8, len: u8, padding: u8, text: &[u8]) -> Vec<u8> {
    [&[mode, len, padding], text].concat()
}

/// A server's stream: its hello, and records that are encrypted with its keys.
fn stream(mode: u8, (len, padding): (u8, u8), text: &[u8]) -> Vec<u8> {
    let (number, suite) = SUITES[usize::from(mode) % SUITES.len()];
    let group = &GROUPS[usize::from(mode >> 2) % GROUPS.len()];
    // Any key of the right form is one: nothing is computed with it.
    let key: Vec<u8> = std::iter::once(4)
        .chain(1..group.share.len() as u8)
        .collect();
    let share_len = (key.len() as u16).to_be_bytes();
    let share = [&group.id.to_be_bytes()[..], &share_len, &key].concat();
    let mut extensions = Vec::new();
    tls::extension(&mut extensions, SUPPORTED_VERSIONS, &[3, 4]);
    tls::extension(&mut extensions, KEY_SHARE, &share);
    let mut body = [&[3, 3][..], &[5; 32], &[0], &number.to_be_bytes(), &[0]].concat();
    body.extend(tls::sized(&extensions));
    let hello = [&[SERVER_HELLO, 0][..], &tls::sized(&body)].concat();
    let mut transcript = Transcript::new(suite, &said()[5..]);
    transcript.add(&hello);
    let Some(shared) = group.shared(&key) else {
        unreachable!("the key has the length of a share");
    };
    let keys = transcript.keys(suite, shared);
    let mut stream = tls::record(tls::SECOND, &hello);
    let len = match len {
        0 => 16_000,
        len => usize::from(len),
    };
    let count = text.chunks(len).count();
    for (at, part) in text.chunks(len).enumerate() {
        let is_last = at + 1 == count;
        let kind = match is_last && mode & HAS_OTHER_TYPE != 0 {
            true => APPLICATION_DATA,
            false => HANDSHAKE,
        };
        let mut inner = [part, &[kind]].concat();
        inner.resize(inner.len() + usize::from(padding), 0);
        let sealed_len = (inner.len() as u16 + 16).to_be_bytes();
        let head = [&[APPLICATION_DATA, 3, 3][..], &sealed_len].concat();
        let mut record = Record::new(&keys, at as u64, &head);
        record.seal(&mut inner);
        let mut tag = record.tag();
        tag[0] ^= u8::from(is_last && mode & HAS_WRONG_TAG != 0);
        stream.extend([&head[..], &inner, &tag].concat());
    }
    stream
}
