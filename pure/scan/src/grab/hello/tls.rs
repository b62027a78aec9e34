//! A TLS ClientHello (RFC 8446 §4.1.2) for versions 1.0 to 1.3, and the second one that a server
//! may ask for.

use super::{Identity, To, plain};
use crate::grab::tls::group::{GROUPS, Group, SHARED_COUNT};
use crate::grab::tls::{COOKIE, KEY_SHARE, SUITES, SUPPORTED_VERSIONS};

/// Cipher suites up to TLS 1.2, from ECDHE with AES-GCM to RSA with 3DES, so that old servers
/// answer, too.
const OLD_SUITES: [u16; 15] = [
    0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc009, 0xc013, 0xc00a, 0xc014, 0x009c, 0x009d,
    0x002f, 0x0035, 0x000a,
];
/// Signature algorithms (RFC 8446 §4.2.3).
const SIGNATURES: &[u16] = &[
    0x0403, 0x0503, 0x0603, 0x0807, 0x0808, 0x0809, 0x080a, 0x080b, 0x0804, 0x0805, 0x0806, 0x0401,
    0x0501, 0x0601, 0x0203, 0x0201,
];
/// Versions, as numbers: 1.3 to 1.0.
const VERSIONS: [u8; 9] = [8, 3, 4, 3, 3, 3, 2, 3, 1];
/// Versions of the records with the first hello and with the second (RFC 8446 §5.1).
pub const FIRST: u8 = 1;
pub const SECOND: u8 = 3;

/// What a HelloRetryRequest asks for (RFC 8446 §4.1.4).
pub struct Retry<'a> {
    /// The group of the key share, if it is another one.
    pub group: Option<&'static Group>,
    /// The cookie; empty if there is none.
    pub cookie: &'a [u8],
}

/// Bytes with their length in front.
pub fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn list(values: impl Iterator<Item = u16>) -> Vec<u8> {
    let bytes: Vec<u8> = values.flat_map(u16::to_be_bytes).collect();
    sized(&bytes)
}

pub fn extension(out: &mut Vec<u8>, kind: u16, body: &[u8]) {
    out.extend(kind.to_be_bytes());
    out.extend(sized(body));
}

/// The key shares of these groups.
fn shares<'a>(groups: impl Iterator<Item = &'a Group>) -> Vec<u8> {
    let share = |group: &Group| [&group.id.to_be_bytes()[..], &sized(group.share)].concat();
    let shares: Vec<u8> = groups.flat_map(share).collect();
    sized(&shares)
}

/// Builds the message, for the server with this name: an address is not valid there (RFC 6066 §3).
/// The second hello is the first with what the server has asked for.
pub fn message(
    random: &[u8; 32],
    (name, has_alpn): (Option<&str>, bool),
    retry: Option<&Retry<'_>>,
) -> Vec<u8> {
    let group = retry.and_then(|retry| retry.group);
    let mut extensions = Vec::new();
    let out = &mut extensions;
    if let Some(name) = name {
        let entry = [&[0][..], &sized(plain(name).as_bytes())].concat();
        extension(out, 0, &sized(&entry));
    }
    extension(out, 10, &list(GROUPS.iter().map(|group| group.id)));
    extension(out, 11, &[1, 0]);
    extension(out, 13, &list(SIGNATURES.iter().copied()));
    if has_alpn {
        extension(out, 16, b"\x00\x09\x08http/1.1");
    }
    // Extended master secret, and an empty renegotiation extension.
    extension(out, 23, &[]);
    extension(out, 0xff01, &[0]);
    extension(out, SUPPORTED_VERSIONS, &VERSIONS);
    let shared = match group {
        Some(group) => shares(std::iter::once(group)),
        None => shares(GROUPS[..SHARED_COUNT].iter()),
    };
    extension(out, KEY_SHARE, &shared);
    if let Some(retry) = retry.filter(|retry| !retry.cookie.is_empty()) {
        extension(out, COOKIE, &sized(retry.cookie));
    }
    let mut body = vec![3, 3];
    body.extend(random);
    // A session that does not exist, so that the handshake looks like one of TLS 1.2 to what is
    // between us and the server (RFC 8446 §D.4).
    body.push(32);
    body.extend(random.map(|byte| !byte));
    let suites = SUITES.iter().map(|(number, _)| *number);
    body.extend(list(suites.chain(OLD_SUITES)));
    body.extend([1, 0]);
    body.extend(sized(&extensions));
    let len = (body.len() as u32).to_be_bytes();
    [&[1][..], &len[1..], &body].concat()
}

pub fn record(minor: u8, message: &[u8]) -> Vec<u8> {
    [&[22, 3, minor][..], &sized(message)].concat()
}

/// Ports of TLS on which HTTP is not spoken.
const OTHERS: [u16; 13] = [
    465, 563, 636, 853, 989, 990, 992, 993, 994, 995, 3269, 5061, 8883,
];

/// Whether a server is offered HTTP (ALPN). Others end the handshake then (RFC 7301 §3.2), also
/// where TLS follows a connection without it.
pub fn has_alpn(port: u16, is_later: bool) -> bool {
    !is_later && !OTHERS.contains(&port)
}

/// The record of the first hello.
pub fn hello(to: &To<'_>, who: &Identity) -> Vec<u8> {
    first(to, who, false)
}

/// The same, on a connection that began without TLS if `is_later`.
pub fn first(to: &To<'_>, who: &Identity, is_later: bool) -> Vec<u8> {
    let has_alpn = has_alpn(to.target.port, is_later);
    record(FIRST, &message(&who.random, (to.name, has_alpn), None))
}

/// A change of cipher, which means nothing (RFC 8446 §D.4), and the record of the second hello.
pub fn second_flight(message: &[u8]) -> Vec<u8> {
    [&[20, 3, 3, 0, 1, 1][..], &record(SECOND, message)].concat()
}
