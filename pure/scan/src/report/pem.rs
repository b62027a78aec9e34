//! Certificates of TLS servers as PEM (RFC 7468), each once, with the service that sent it first.

use wire::Timestamp;

use super::{Ending, Format, Found, Run, put};
use crate::grab::Banner;

/// The line after a certificate.
const END: &[u8] = b"-----END CERTIFICATE-----\n";
/// Bytes in a line of base64.
const LINE_LEN: usize = 48;

pub(super) static FORMAT: Format = Format {
    word: "pem",
    letter: 'P',
    extension: "pem",
    about: "the certificates of TLS servers, each once (with --banners)",
    begin: |_: &Run, _| {},
    answer: |_: &Found, _| {},
    banner,
    rate: None,
    between: b"",
    end: |_: &Run, _: u64, _: &Ending<'_>, _| {},
    closing,
    cut: None,
};

/// New certificates follow the last whole one. Files without any are empty.
fn closing(end: &[u8]) -> Option<(usize, bool)> {
    let is_blank = end.trim_ascii().is_empty();
    match super::last(end, END) {
        Some(at) => Some((at + END.len(), true)),
        None => is_blank.then_some((end.len(), false)),
    }
}

/// Text outside of the blocks is a comment (RFC 7468 section 2).
fn banner(banner: &Banner, time: Timestamp, out: &mut Vec<u8>) {
    let target = &banner.target;
    for certificate in &banner.certificates {
        put!(out, "# {} {} {time:.6} sha256:", target.addr, target.port);
        certificate
            .sha256
            .iter()
            .for_each(|byte| put!(out, "{byte:02x}"));
        out.extend(b"\n-----BEGIN CERTIFICATE-----\n");
        for line in certificate.der.chunks(LINE_LEN) {
            base64(line, out);
            out.push(b'\n');
        }
        out.extend(END);
    }
}

/// Appends bytes in base64 (RFC 4648 section 4).
fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for three in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=three.len()].copy_from_slice(three);
        let word = u32::from_be_bytes(word);
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at)) as usize & 63];
            out.push(if at <= three.len() { digit } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_was_cut_off_is_overwritten() {
        let whole = [b"# 192.0.2.1 443\n-----BEGIN CERTIFICATE-----\nMA==\n", END].concat();
        for len in 0..whole.len() {
            let cut = [&whole[..], &whole[..len]].concat();
            assert_eq!(closing(&cut), Some((whole.len(), true)));
        }
        assert_eq!(closing(b""), Some((0, false)));
        assert_eq!(closing(b"text\n"), None);
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, expected) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
            (b"\xff\xfe\xfd", "//79"),
        ] {
            let mut out = Vec::new();
            super::base64(bytes, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
