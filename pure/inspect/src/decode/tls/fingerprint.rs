//! JA3, JA3S, JA4 and JA4S fingerprints of hellos.
//!
//! JA3 is an MD5 hash of decimal numbers in the order sent, without GREASE: version, ciphers,
//! extensions, groups, point formats. JA4 has a readable first part, then SHA-256 hashes, truncated
//! to twelve digits, of the sorted ciphers, and of the sorted extensions and the signature
//! algorithms. Both are de facto standards of their authors; the values agree with tshark's and
//! nDPI's.

use md5::digest::Output;
use md5::{Digest, Md5};
use sha2::Sha256;

use super::hello::{ALPN, Hello, SERVER_NAME, is_grease};
use crate::text::hex;

/// Transport of the handshake, as encoded in JA4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    Dtls,
    Quic,
}

impl Carrier {
    fn letter(self) -> u8 {
        match self {
            Carrier::Tcp => b't',
            Carrier::Dtls => b'd',
            Carrier::Quic => b'q',
        }
    }
}

/// Number of bytes gathered before hashing. A digest processes blocks of 64 bytes; with two or five
/// at a time, buffering costs more than hashing.
const GATHERED_LEN: usize = 512;
/// Maximum length of a single write: a number in decimal digits.
const WRITTEN_MAX: usize = 5;

/// Gathers the input of a hash.
struct Gathered<D> {
    sum: D,
    bytes: [u8; GATHERED_LEN],
    len: usize,
}

impl<D: Digest> Gathered<D> {
    fn new() -> Gathered<D> {
        Gathered {
            sum: D::new(),
            bytes: [0; GATHERED_LEN],
            len: 0,
        }
    }

    /// Makes room for the longest single write.
    #[inline]
    fn room(&mut self) -> &mut [u8] {
        if self.len > GATHERED_LEN - WRITTEN_MAX {
            self.sum.update(&self.bytes[..self.len]);
            self.len = 0;
        }
        &mut self.bytes[self.len..self.len + WRITTEN_MAX]
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        self.room()[0] = byte;
        self.len += 1;
    }

    #[inline]
    fn decimal(&mut self, number: u16) {
        let digits = match number {
            0..10 => 1,
            10..100 => 2,
            100..1000 => 3,
            1000..10_000 => 4,
            _ => 5,
        };
        let mut rest = number;
        for place in self.room()[..digits].iter_mut().rev() {
            *place = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        self.len += digits;
    }

    #[inline]
    fn hex(&mut self, number: u16) {
        let [high, low] = number.to_be_bytes();
        let room = self.room();
        room[..2].copy_from_slice(&hex(high));
        room[2..4].copy_from_slice(&hex(low));
        self.len += 4;
    }

    fn digest(mut self) -> Output<D> {
        self.sum.update(&self.bytes[..self.len]);
        self.sum.finalize()
    }
}

/// Writes numbers separated by dashes.
fn dashes(sum: &mut Gathered<Md5>, numbers: impl Iterator<Item = u16>) {
    let mut is_first = true;
    for number in numbers {
        if !is_first {
            sum.push(b'-');
        }
        is_first = false;
        sum.decimal(number);
    }
}

pub(super) fn ja3(hello: &Hello) -> [u8; 16] {
    fn real(items: &[u16]) -> impl Iterator<Item = u16> {
        items.iter().copied().filter(|item| !is_grease(*item))
    }
    let mut sum = Gathered::new();
    sum.decimal(hello.version);
    sum.push(b',');
    dashes(&mut sum, real(hello.ciphers.items()));
    sum.push(b',');
    dashes(&mut sum, real(hello.extensions.items()));
    sum.push(b',');
    dashes(&mut sum, real(hello.groups.items()));
    sum.push(b',');
    dashes(
        &mut sum,
        hello.formats.items().iter().map(|f| u16::from(*f)),
    );
    sum.digest().into()
}

pub(super) fn ja3s(hello: &Hello) -> [u8; 16] {
    let mut sum = Gathered::new();
    sum.decimal(hello.version);
    sum.push(b',');
    let ciphers = hello.ciphers.items().iter().copied();
    dashes(&mut sum, ciphers.filter(|item| !is_grease(*item)));
    sum.push(b',');
    // Servers do not use GREASE; everything they send counts.
    dashes(&mut sum, hello.extensions.items().iter().copied());
    sum.digest().into()
}

/// Two characters for the version.
fn version(hello: &Hello) -> [u8; 2] {
    match hello.effective_version() {
        0x0304 => *b"13",
        0x0303 => *b"12",
        0x0302 => *b"11",
        0x0301 => *b"10",
        0x0300 => *b"s3",
        0x0002 => *b"s2",
        0xfeff => *b"d1",
        0xfefd => *b"d2",
        0xfefc => *b"d3",
        _ => *b"00",
    }
}

/// Two digits, at most 99.
fn count(count: usize) -> [u8; 2] {
    let count = count.min(99) as u8;
    [b'0' + count / 10, b'0' + count % 10]
}

/// First and last character of the first protocol, or hexadecimal digits of its ends if one of
/// these is not alphanumeric.
fn alpn(hello: &Hello) -> [u8; 2] {
    let [first, last] = hello.alpn_ends;
    if hello.alpn_count == 0 || (first == 0 && last == 0) {
        return *b"00";
    }
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [first, last];
    }
    [hex(first)[0], hex(last)[1]]
}

/// Writes four hexadecimal digits per number, separated by commas.
fn commas(sum: &mut Gathered<Sha256>, numbers: impl Iterator<Item = u16>) {
    let mut is_first = true;
    for number in numbers {
        if !is_first {
            sum.push(b',');
        }
        is_first = false;
        sum.hex(number);
    }
}

/// The first twelve digits of a hash.
fn twelve(sum: Gathered<Sha256>, out: &mut [u8; 12]) {
    let sum = sum.digest();
    for (digits, byte) in out.chunks_exact_mut(2).zip(sum) {
        digits.copy_from_slice(&hex(byte));
    }
}

/// Sorts the items without GREASE; returns their number.
fn sorted<const N: usize>(items: impl Iterator<Item = u16>, into: &mut [u16; N]) -> usize {
    let mut len = 0;
    for (place, item) in into.iter_mut().zip(items.filter(|item| !is_grease(*item))) {
        *place = item;
        len += 1;
    }
    into[..len].sort_unstable();
    len
}

pub(super) fn ja4(hello: &Hello, carrier: Carrier) -> [u8; 36] {
    let mut ciphers = [0; 400];
    let cipher_count = sorted(hello.ciphers.items().iter().copied(), &mut ciphers);
    let mut extensions = [0; 64];
    let extension_count = sorted(hello.extensions.items().iter().copied(), &mut extensions);
    let named = |item: &u16| !matches!(*item, SERVER_NAME | ALPN);

    let mut out = [b'0'; 36];
    out[0] = carrier.letter();
    out[1..3].copy_from_slice(&version(hello));
    out[3] = if hello.has_sni { b'd' } else { b'i' };
    out[4..6].copy_from_slice(&count(cipher_count));
    out[6..8].copy_from_slice(&count(extension_count));
    out[8..10].copy_from_slice(&alpn(hello));
    out[10] = b'_';
    out[23] = b'_';
    let (head, tail) = out.split_at_mut(23);
    if cipher_count != 0 {
        let mut sum = Gathered::new();
        commas(&mut sum, ciphers[..cipher_count].iter().copied());
        if let Some(place) = head.last_chunk_mut() {
            twelve(sum, place);
        }
    }
    // Without any others but those two there is nothing to hash.
    if extensions[..extension_count].iter().any(named) {
        let mut sum = Gathered::new();
        let others = extensions[..extension_count].iter().copied();
        commas(&mut sum, others.filter(named));
        let signatures = hello.signatures.items();
        if !signatures.is_empty() {
            sum.push(b'_');
            let real = signatures.iter().copied().filter(|item| !is_grease(*item));
            commas(&mut sum, real);
        }
        if let Some(place) = tail.last_chunk_mut() {
            twelve(sum, place);
        }
    }
    out
}

pub(super) fn ja4s(hello: &Hello, carrier: Carrier) -> [u8; 25] {
    let extensions = hello.extensions.items();
    let mut out = [b'0'; 25];
    out[0] = carrier.letter();
    out[1..3].copy_from_slice(&version(hello));
    out[3..5].copy_from_slice(&count(extensions.len()));
    out[5..7].copy_from_slice(&alpn(hello));
    out[7] = b'_';
    let [high, low] = hello
        .ciphers
        .items()
        .first()
        .copied()
        .unwrap_or(0)
        .to_be_bytes();
    out[8..10].copy_from_slice(&hex(high));
    out[10..12].copy_from_slice(&hex(low));
    out[12] = b'_';
    if !extensions.is_empty() {
        let mut sum = Gathered::new();
        commas(&mut sum, extensions.iter().copied());
        if let Some(place) = out.last_chunk_mut() {
            twelve(sum, place);
        }
    }
    out
}
