//! ESP and IKE in UDP (RFC 3948 section 2): a packet to port 4500 is classified by its first bytes.
//!
//! ```text
//! 0xff alone:       keepalive
//! four zero bytes:  an IKE message follows
//! anything else:    an ESP header starts here
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason};
use core::fmt;

/// The UDP port.
pub const PORT: u16 = 4500;

/// Contents of a datagram to port 4500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpEncap<'a> {
    /// A NAT keepalive.
    Keepalive,
    /// An IKE message.
    Ike(&'a [u8]),
    /// An ESP packet, header included.
    Esp(&'a [u8]),
}

impl<'a> UdpEncap<'a> {
    /// Distinguishes the three.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        match bytes {
            [0xff] => Ok(UdpEncap::Keepalive),
            [0, 0, 0, 0, message @ ..] => Ok(UdpEncap::Ike(message)),
            [_, _, _, _, ..] => Ok(UdpEncap::Esp(bytes)),
            _ => Err(Reason::Truncated),
        }
    }
}

impl fmt::Display for UdpEncap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UdpEncap::Keepalive => f.write_str("NAT keepalive"),
            UdpEncap::Ike(message) => write!(f, "NONESP-encap: isakmp, length {}", message.len()),
            UdpEncap::Esp(_) => f.write_str("UDP-encap"),
        }
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    if walk.wire_rest == 1 {
        return Ok(LayerKind::None);
    }
    match walk.peek::<4>()? {
        [0, 0, 0, 0] => {
            walk.advance(4)?;
            Ok(LayerKind::None)
        }
        _ => Ok(LayerKind::Esp),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "udpencap",
    spec: "RFC 3948",
    udp_ports: &[PORT],
    udp_replies: &[PORT],
    sample: &[0, 0, 0, 0, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(UdpEncap::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three() {
        assert_eq!(UdpEncap::parse(&[0xff]), Ok(UdpEncap::Keepalive));
        assert_eq!(UdpEncap::parse(&[0, 0, 0, 0, 9]), Ok(UdpEncap::Ike(&[9])));
        assert_eq!(
            UdpEncap::parse(&[0, 0, 1, 0]),
            Ok(UdpEncap::Esp(&[0, 0, 1, 0]))
        );
        assert_eq!(UdpEncap::parse(&[0, 0]), Err(Reason::Truncated));
    }
}
