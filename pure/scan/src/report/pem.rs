//! Certificates of TLS servers as PEM (RFC 7468), each once per run, with the service that sent it
//! first.

use wire::Timestamp;

use super::{Ending, Format, Found, Run, put};
use crate::grab::Banner;

/// The lines before and after a certificate.
const BEGIN: &str = "-----BEGIN CERTIFICATE-----\n";
const END: &[u8] = b"-----END CERTIFICATE-----\n";
/// Between the time and the digest, in the line before those.
const DIGEST: &str = " sha256:";
/// Bytes in a line of base64.
const LINE_LEN: usize = 48;
/// The digits of base64.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) static FORMAT: Format = Format {
    word: "pem",
    letter: 'P',
    extension: "pem",
    about: "the certificates of TLS servers, each once per run (with --banners)",
    begin: |_: &Run, _| {},
    answer: |_: &Found, _| {},
    banner,
    note: None,
    between: b"",
    end: |_: &Run, _: u64, _: &Ending<'_>, _| {},
    closing,
    cut: None,
};

/// New certificates follow the last whole one. Files without any are empty, or have the start of
/// one.
fn closing(end: &[u8]) -> Option<(usize, bool)> {
    if let Some(at) = super::last(end, END) {
        return Some((at + END.len(), true));
    }
    match end.trim_ascii().is_empty() {
        true => Some((end.len(), false)),
        false => is_cut(end).then_some((0, false)),
    }
}

/// Whether a file is the start of its first certificate, up to its base64 at least: a kill cuts
/// files between pages.
fn is_cut(file: &[u8]) -> bool {
    let read = || {
        let (first, rest) = std::str::from_utf8(file).ok()?.split_once('\n')?;
        let (service, digest) = first.strip_prefix("# ")?.split_once(DIGEST)?;
        let addr = service.split(' ').next()?;
        addr.parse::<std::net::IpAddr>().ok()?;
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_base64 = |byte| DIGITS.contains(&byte) || matches!(byte, b'=' | b'\n');
        // The line of the end may have been begun.
        let certificate = rest.strip_prefix(BEGIN)?.trim_end_matches(|c| c != '\n');
        let last = &rest[BEGIN.len() + certificate.len()..];
        let is_last = END.starts_with(last.as_bytes()) || last.bytes().all(is_base64);
        Some(is_digest && is_last && certificate.bytes().all(is_base64))
    };
    read().unwrap_or(false)
}

/// Text outside of the blocks is a comment (RFC 7468 section 2).
fn banner(banner: &Banner, time: Timestamp, out: &mut Vec<u8>) {
    let target = &banner.target;
    for certificate in &banner.certificates {
        put!(out, "# {} {} {time:.6}{DIGEST}", target.addr, target.port);
        certificate
            .sha256
            .iter()
            .for_each(|byte| put!(out, "{byte:02x}"));
        put!(out, "\n{BEGIN}");
        for line in certificate.der.chunks(LINE_LEN) {
            base64(line, out);
            out.push(b'\n');
        }
        out.extend(END);
    }
}

/// Appends bytes in base64 (RFC 4648 section 4).
fn base64(bytes: &[u8], out: &mut Vec<u8>) {
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
    use crate::cookie::ProbeTarget;
    use crate::grab::Certificate;
    use crate::probe::Probe;

    #[test]
    fn a_certificate_that_was_cut_off_is_overwritten() {
        let target = ProbeTarget {
            addr: [192, 0, 2, 1].into(),
            probe: Probe::Syn,
            port: 443,
        };
        let certificate = Certificate {
            sha256: [0xab; 32],
            der: [0x30; 100].into(),
        };
        let sent = Banner {
            certificates: vec![certificate],
            ..Banner::new(target, b"", crate::grab::Ending::Closed)
        };
        let mut whole = Vec::new();
        banner(&sent, Timestamp(0), &mut whole);
        let begun = crate::report::last(&whole, BEGIN.as_bytes()).unwrap() + BEGIN.len();
        for len in 0..whole.len() {
            let cut = [&whole[..], &whole[..len]].concat();
            assert_eq!(closing(&cut), Some((whole.len(), true)));
            let first = closing(&whole[..len]);
            assert_eq!(first.is_some(), len == 0 || len >= begun, "{len}");
            assert_eq!(first.unwrap_or_default(), (0, false));
        }
        // Text of someone else.
        let other = [&whole[..begun + 20], b"\n# text\n"].concat();
        assert_eq!(closing(&other), None);
        assert_eq!(closing(&whole[2..begun + 20]), None);
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
