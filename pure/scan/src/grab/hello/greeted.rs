//! Replies to servers that speak first, or have answered the first data.

use super::Identity;

/// Length of a version (RFC 6143 §7.1.1).
const VERSION_LEN: usize = 12;

// Commands of Telnet (RFC 854).
const SE: u8 = 240;
const SB: u8 = 250;
const WILL: u8 = 251;
const WONT: u8 = 252;
const DO: u8 = 253;
const DONT: u8 = 254;
pub const IAC: u8 = 255;
/// Maximum number of options refused.
const REFUSED_MAX: usize = 128;

/// The highest of three versions that the server supports, too; nothing for an invalid version.
pub fn vnc(start: &[u8], _: &Identity) -> Vec<u8> {
    let Some(version) = start.first_chunk::<VERSION_LEN>() else {
        return Vec::new();
    };
    let number = |digits: &[u8]| -> Option<u32> { std::str::from_utf8(digits).ok()?.parse().ok() };
    let (Some(major), Some(minor)) = (number(&version[4..7]), number(&version[8..11])) else {
        return Vec::new();
    };
    let reply: &[u8] = match (major, minor) {
        (..=2, _) | (3, ..=6) => b"RFB 003.003\n",
        (3, 7) => b"RFB 003.007\n",
        _ => b"RFB 003.008\n",
    };
    reply.to_vec()
}

/// Startup message of protocol 3.0 after a refused SSLRequest: the server names its authentication
/// method, or the reason of an error (PostgreSQL manual, "Message Formats").
pub fn postgresql(_: &[u8], _: &Identity) -> Vec<u8> {
    b"\0\0\0\x17\0\x03\0\0user\0barewire\0\0".to_vec()
}

/// Refuses each option that the server requests or offers, once (RFC 1143 §4).
pub fn telnet(start: &[u8], _: &Identity) -> Vec<u8> {
    let mut refused = Vec::new();
    let mut rest = start;
    while let Some(at) = rest.iter().position(|byte| *byte == IAC) {
        rest = match &rest[at + 1..] {
            [verb @ (WILL | DO), option, rest @ ..] => {
                let answer = [IAC, if *verb == DO { WONT } else { DONT }, *option];
                if refused.len() < REFUSED_MAX && !refused.contains(&answer) {
                    refused.push(answer);
                }
                rest
            }
            [WONT | DONT, _, rest @ ..] => rest,
            [SB, rest @ ..] => {
                let end = rest.windows(2).position(|pair| pair == [IAC, SE]);
                end.map_or(&[][..], |end| &rest[end + 2..])
            }
            [WILL..=DONT] | [] => break,
            [_, rest @ ..] => rest,
        };
    }
    refused.concat()
}
