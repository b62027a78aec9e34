//! Teredo (RFC 4380 section 5.1.1): IPv6 in UDP, port 3544, after optional indications.
//!
//! ```text
//! authentication: 0x0001, id length u8, value length u8, id, value, nonce 8 bytes, flag u8
//! origin:         0x0000, port u16, address u32
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason};
use core::fmt;

/// The UDP port of Teredo servers.
pub const PORT: u16 = 3544;

/// A Teredo packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Teredo<'a> {
    /// The indications before the IPv6 packet.
    pub indications: &'a [u8],
    /// The IPv6 packet.
    pub payload: &'a [u8],
}

/// Length of the indications; `None` if they are incomplete.
fn indications_len(bytes: &[u8]) -> Option<usize> {
    let mut len = 0;
    // At most one of each, the authentication first.
    if let [0, 1, ..] = bytes {
        let [_, _, id_len, value_len, ..] = bytes else {
            return None;
        };
        len = 13 + usize::from(*id_len) + usize::from(*value_len);
    }
    match bytes.get(len..)? {
        [0, 0, ..] => Some(len + 8),
        // A lone zero byte may be the start of an indication.
        [0] | [] => None,
        _ => Some(len),
    }
}

impl<'a> Teredo<'a> {
    /// Splits off the indications.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let len = indications_len(bytes).ok_or(Reason::Truncated)?;
        let (indications, payload) = bytes.split_at_checked(len).ok_or(Reason::Truncated)?;
        Ok(Teredo {
            indications,
            payload,
        })
    }
}

impl fmt::Display for Teredo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Teredo, indications {} bytes", self.indications.len())
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let Some(len) = indications_len(walk.rest) else {
        return Err(walk.missing(walk.rest.len() + 1));
    };
    walk.advance(len)?;
    match walk.peek::<1>()?[0] >> 4 {
        6 => walk.inner(LayerKind::Ipv6),
        _ => Err(Reason::UnsupportedTunnel),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "teredo",
    spec: "RFC 4380",
    udp_ports: &[PORT],
    udp_replies: &[PORT],
    // Both indications; the payload is not IP.
    sample: &[
        0, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0xf3, 0xa8, 1, 2, 3, 4, 0x70, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Teredo::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indications() {
        let view = Teredo::parse(PROTOCOL.sample).unwrap();
        assert_eq!(
            (view.indications.len(), view.payload),
            (21, &[0x70, 2, 3, 4][..])
        );
        assert_eq!(Teredo::parse(&[0x60, 0]).unwrap().indications.len(), 0);
        assert!(Teredo::parse(&[0, 1, 0]).is_err());
    }
}
