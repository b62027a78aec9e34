//! A TLS ClientHello (RFC 5246 §7.4.1.2) for version 1.2 and older, in which the server's
//! certificates are not encrypted.

use super::Identity;
use crate::cookie::ProbeTarget;

/// Cipher suites from ECDHE with AES-GCM to RSA with 3DES, so that old servers answer, too.
const SUITES: &[u16] = &[
    0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc009, 0xc013, 0xc00a, 0xc014, 0x009c, 0x009d,
    0x002f, 0x0035, 0x000a,
];
/// x25519, secp256r1, secp384r1, secp521r1 (RFC 8422 §5.1.1).
const GROUPS: &[u16] = &[29, 23, 24, 25];
/// Signature algorithms (RFC 8446 §4.2.3).
const SIGNATURES: &[u16] = &[
    0x0403, 0x0503, 0x0603, 0x0804, 0x0805, 0x0806, 0x0401, 0x0501, 0x0601, 0x0203, 0x0201,
];

fn list(values: &[u16]) -> Vec<u8> {
    let bytes = values.iter().flat_map(|value| value.to_be_bytes());
    let mut out = (values.len() as u16 * 2).to_be_bytes().to_vec();
    out.extend(bytes);
    out
}

fn extension(out: &mut Vec<u8>, kind: u16, body: &[u8]) {
    out.extend(kind.to_be_bytes());
    out.extend((body.len() as u16).to_be_bytes());
    out.extend(body);
}

/// Builds the record. No server name is sent: an address is not valid there (RFC 6066 §3).
pub fn hello(_: &ProbeTarget, who: &Identity) -> Vec<u8> {
    let mut extensions = Vec::new();
    extension(&mut extensions, 10, &list(GROUPS));
    extension(&mut extensions, 11, &[1, 0]);
    extension(&mut extensions, 13, &list(SIGNATURES));
    // ALPN: http/1.1. Extended master secret, and an empty renegotiation extension.
    extension(&mut extensions, 16, b"\x00\x09\x08http/1.1");
    extension(&mut extensions, 23, &[]);
    extension(&mut extensions, 0xff01, &[0]);
    let mut body = vec![3, 3];
    body.extend(who.random);
    // No session.
    body.push(0);
    body.extend(list(SUITES));
    body.extend([1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let len = body.len() as u16;
    let mut record = vec![22, 3, 1];
    record.extend((len + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend(len.to_be_bytes());
    record.extend(body);
    record
}
