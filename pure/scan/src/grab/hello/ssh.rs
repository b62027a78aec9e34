//! A key exchange with an SSH server, as far as its host key: nobody logs in.

use super::{Identity, ProbeTarget};

const KEXINIT: u8 = 20;
const ECDH_INIT: u8 = 30;

/// Algorithms (RFC 4253 §7.1), chosen for what servers have in common: key exchange, host key,
/// encryption, MAC and compression in both directions, languages. One key exchange only, so that
/// its message can be sent without reading the server's lists (RFC 8731).
const LISTS: [&str; 10] = [
    "curve25519-sha256,curve25519-sha256@libssh.org",
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
pub fn hello(_: &ProbeTarget, who: &Identity) -> Vec<u8> {
    let comment = who.contact.as_ref();
    let comment = comment.map_or_else(String::new, |contact| format!(" {contact}"));
    let mut payload = vec![KEXINIT];
    payload.extend(&who.random[..16]);
    for list in LISTS {
        string(list.as_bytes(), &mut payload);
    }
    // No guessed packet follows; reserved.
    payload.extend([0; 5]);
    let line = format!("SSH-2.0-barewire{comment}\r\n");
    [line.as_bytes(), &packet(&payload)].concat()
}

/// A public key of X25519, once the server's algorithms have begun to arrive (RFC 5656 §4). The
/// reply to it has the server's host key. The shared secret is of no use: nothing is encrypted.
pub fn reply(start: &[u8]) -> Vec<u8> {
    let is_version_2 = start.starts_with(b"SSH-2.0-") || start.starts_with(b"SSH-1.99-");
    let line = start.iter().position(|byte| *byte == b'\n');
    let head = line.and_then(|end| start.get(end + 1..end + 7));
    if !is_version_2 || head.is_none_or(|head| head[5] != KEXINIT) {
        return Vec::new();
    }
    let mut key = [0; 32];
    // The base point.
    key[0] = 9;
    let mut payload = vec![ECDH_INIT];
    string(&key, &mut payload);
    packet(&payload)
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
