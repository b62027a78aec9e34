//! A key exchange with an SSH server, as far as its host key: nobody logs in.

use super::{Identity, To};
use crate::grab::tls::group::Group;

const KEXINIT: u8 = 20;
/// KEXDH_INIT (RFC 4253 §8) and KEX_ECDH_INIT (RFC 5656 §4).
const KEY_INIT: u8 = 30;
/// Length of a packet up to its payload, whose first byte is the type of the message.
const HEAD_LEN: usize = 5;
/// Bytes of a KEXINIT before its first list: type and cookie (RFC 4253 §7.1).
const COOKIE_END: usize = 17;

/// What a key exchange needs of the client.
#[derive(Clone, Copy)]
enum Key {
    /// The generator of the group with this number (IANA, TLS Supported Groups).
    Curve(u16),
    /// A number between 1 and the group's prime.
    Number,
}

/// Key exchanges, the preferred one first (RFC 8731, RFC 5656 §6.3, RFC 8268 §3, RFC 4253 §8.1).
/// The last ones are those of old devices.
const EXCHANGES: [(&str, Key); 9] = [
    ("curve25519-sha256", Key::Curve(29)),
    ("curve25519-sha256@libssh.org", Key::Curve(29)),
    ("ecdh-sha2-nistp256", Key::Curve(23)),
    ("ecdh-sha2-nistp384", Key::Curve(24)),
    ("ecdh-sha2-nistp521", Key::Curve(25)),
    ("diffie-hellman-group14-sha256", Key::Number),
    ("diffie-hellman-group16-sha512", Key::Number),
    ("diffie-hellman-group14-sha1", Key::Number),
    ("diffie-hellman-group1-sha1", Key::Number),
];
/// The client's number in the groups of integers. Servers refuse numbers with few bits set.
const NUMBER: [u8; 4] = [0x5a, 0x5a, 0x5a, 0x5a];

/// Algorithms (RFC 4253 §7.1) after those of the key exchange, chosen for what servers have in
/// common: host key, encryption, MAC and compression in both directions, languages.
const LISTS: [&str; 9] = [
    "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,\
     rsa-sha2-256,ssh-rsa",
    ENCRYPTION,
    ENCRYPTION,
    MAC,
    MAC,
    "none",
    "none",
    "",
    "",
];
/// Those that need no MAC come first: servers may offer few of them.
const ENCRYPTION: &str = "chacha20-poly1305@openssh.com,aes128-gcm@openssh.com,\
     aes256-gcm@openssh.com,aes128-ctr,aes256-ctr";
const MAC: &str = "hmac-sha2-256-etm@openssh.com,hmac-sha2-512-etm@openssh.com,hmac-sha2-256,\
     hmac-sha2-512,umac-128-etm@openssh.com,hmac-sha1";

/// An identification, with the contact as its comment (RFC 4253 §4.2: 255 bytes at most), and the
/// algorithms.
pub fn hello(_: &To<'_>, who: &Identity) -> Vec<u8> {
    begin(who)
}

fn begin(who: &Identity) -> Vec<u8> {
    let comment = who.contact.as_ref();
    let comment = comment.map_or_else(String::new, |contact| format!(" {contact}"));
    let mut payload = vec![KEXINIT];
    payload.extend(&who.random[..16]);
    let exchanges = EXCHANGES.map(|(name, _)| name).join(",");
    for list in [exchanges.as_str()].into_iter().chain(LISTS) {
        string(list.as_bytes(), &mut payload);
    }
    // No guessed packet follows; reserved.
    payload.extend([0; 5]);
    let line = format!("SSH-2.0-barewire{comment}\r\n");
    [line.as_bytes(), &packet(&payload)].concat()
}

/// The key of the exchange that the server's list and ours have in common, once its list has
/// arrived (RFC 4253 §7.1). The reply to it has the server's host key. The shared secret is of no
/// use: nothing is encrypted.
pub fn reply(start: &[u8], _: &Identity) -> Vec<u8> {
    if !is_version_2(start) {
        return Vec::new();
    }
    let line = start.iter().position(|byte| *byte == b'\n');
    let first = line.and_then(|end| start.get(end + 1..));
    let Some(key) = first.and_then(chosen) else {
        return Vec::new();
    };
    let mut payload = vec![KEY_INIT];
    match key {
        Key::Curve(id) => string(
            Group::of(id).map_or(&[][..], |group| group.share),
            &mut payload,
        ),
        Key::Number => string(&NUMBER, &mut payload),
    }
    packet(&payload)
}

/// All that a client says to a server that has identified itself first.
pub fn greeted(start: &[u8], who: &Identity) -> Vec<u8> {
    match is_version_2(start) {
        true => [begin(who), reply(start, who)].concat(),
        false => Vec::new(),
    }
}

/// What a server has sent from its identification on: lines of text may precede it (RFC 4253 §4.2).
/// All of it if there is no such line.
pub fn identification(start: &[u8]) -> &[u8] {
    let mut rest = start;
    loop {
        if rest.starts_with(b"SSH-") {
            return rest;
        }
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(end) => rest = &rest[end + 1..],
            None => return start,
        }
    }
}

fn is_version_2(start: &[u8]) -> bool {
    start.starts_with(b"SSH-2.0-") || start.starts_with(b"SSH-1.99-")
}

/// The key of the exchange that is chosen, if the server's algorithms are whole so far as they
/// decide it: the first of ours that it has.
fn chosen(packet: &[u8]) -> Option<Key> {
    let payload = packet.get(HEAD_LEN..)?;
    let (len, names) = payload.get(COOKIE_END..)?.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(*len) as usize;
    let is_whole = names.len() >= len;
    // A name at the end of what has arrived may go on.
    let known = match is_whole {
        true => &names[..len],
        false => &names[..names.iter().rposition(|byte| *byte == b',')?],
    };
    let has = |name: &str| {
        known
            .split(|byte| *byte == b',')
            .any(|one| one == name.as_bytes())
    };
    let at = EXCHANGES.iter().position(|(name, _)| has(name))?;
    (payload[0] == KEXINIT && (is_whole || at == 0)).then_some(EXCHANGES[at].1)
}

fn string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as u32).to_be_bytes());
    out.extend(bytes);
}

/// A packet before encryption: length, padding to a multiple of 8 by at least 4 bytes (RFC 4253
/// §6).
fn packet(payload: &[u8]) -> Vec<u8> {
    let mut padding = 8 - (5 + payload.len()) % 8;
    if padding < 4 {
        padding += 8;
    }
    let len = (1 + payload.len() + padding) as u32;
    let mut packet = len.to_be_bytes().to_vec();
    packet.push(padding as u8);
    packet.extend(payload);
    packet.resize(packet.len() + padding, 0);
    packet
}
