//! A server's hello (RFC 8446 §4.1.3, §4.1.4): what the key exchange needs of it.

use super::group::Group;
use super::keys::Suite;

/// Type of the message.
pub const SERVER_HELLO: u8 = 2;
const TLS_1_3: u16 = 0x0304;
/// The random of a HelloRetryRequest: the SHA-256 of its name.
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

// Extensions (IANA, TLS ExtensionType Values).
pub const SUPPORTED_VERSIONS: u16 = 43;
pub const COOKIE: u16 = 44;
pub const KEY_SHARE: u16 = 51;

/// A hello of TLS 1.3.
#[derive(Debug)]
pub struct ServerHello<'a> {
    pub suite: Suite,
    pub kind: Kind<'a>,
}

/// What the server wants.
#[derive(Debug)]
pub enum Kind<'a> {
    /// Its key, and the group of it.
    Key(&'static Group, &'a [u8]),
    /// Another hello, with a share of this group, and with this cookie.
    Retry(Option<&'static Group>, &'a [u8]),
}

/// Splits off a number of bytes.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (part, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(part)
}

fn number(bytes: &mut &[u8]) -> Option<u16> {
    let (part, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u16::from_be_bytes(*part))
}

impl<'a> ServerHello<'a> {
    /// Parses a whole message. `None` for other versions, and for what was not offered.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let mut rest = message.get(4..)?;
        take(&mut rest, 2)?;
        let is_retry = take(&mut rest, 32)? == RETRY;
        let [session_len] = *take(&mut rest, 1)?.first_chunk()?;
        take(&mut rest, session_len.into())?;
        let suite = Suite::of(number(&mut rest)?)?;
        take(&mut rest, 1)?;
        let len = number(&mut rest)?;
        let mut extensions = take(&mut rest, len.into())?;
        let (mut version, mut group, mut key, mut cookie) = (None, None, None, &[][..]);
        while !extensions.is_empty() {
            let kind = number(&mut extensions)?;
            let len = number(&mut extensions)?;
            let mut body = take(&mut extensions, len.into())?;
            match kind {
                SUPPORTED_VERSIONS => version = number(&mut body),
                COOKIE => {
                    let len = number(&mut body)?;
                    cookie = take(&mut body, len.into())?;
                }
                KEY_SHARE => {
                    group = Some(Group::of(number(&mut body)?)?);
                    if !is_retry {
                        let len = number(&mut body)?;
                        key = Some(take(&mut body, len.into())?);
                    }
                }
                _ => {}
            }
        }
        if version != Some(TLS_1_3) {
            return None;
        }
        let kind = match is_retry {
            true => Kind::Retry(group, cookie),
            false => Kind::Key(group?, key?),
        };
        Some(Self { suite, kind })
    }
}
