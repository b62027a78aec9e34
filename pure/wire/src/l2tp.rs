//! L2TP, version 2 (RFC 2661 section 3.1): PPP in UDP, port 1701.
//!
//! ```text
//!  0                   1                   2                   3
//! +-+-+---+-+-+-+-+-------+-------+-------------------------------+
//! |T|L|   |S| |O|P|       | ver   | L: length                     |
//! +-+-+---+-+-+-+-+-------+-------+-------------------------------+
//! | tunnel id                     | session id                    |
//! +-------------------------------+-------------------------------+
//! | S: Ns                         | S: Nr                         |
//! +-------------------------------+-------------------------------+
//! | O: offset                     | padding of that many bytes …  |
//! ```
//!
//! Version 3 (RFC 3931) encodes neither the length of its cookie nor the payload type, so it is not
//! followed.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16};
use core::fmt;

/// The UDP port of L2TP.
pub const PORT: u16 = 1701;

/// An L2TP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2tp<'a> {
    /// Whether it is a control message; otherwise it carries PPP.
    pub is_control: bool,
    /// Tunnel id.
    pub tunnel: u16,
    /// Session id.
    pub session: u16,
    /// The payload.
    pub payload: &'a [u8],
}

/// Control flag, offset of the ids, length of the header; `None` if it is incomplete.
fn layout(bytes: &[u8]) -> Result<Option<(bool, usize, usize)>, Reason> {
    let Some(&[flags, version]) = bytes.first_chunk::<2>() else {
        return Ok(None);
    };
    if version & 15 != 2 {
        return Err(Reason::BadVersion);
    }
    let has = |bit: u8| usize::from(flags & bit != 0);
    let ids = 2 + 2 * has(0x40);
    let mut len = ids + 4 + 4 * has(0x08);
    if flags & 0x02 != 0 {
        let Some(offset) = bytes.get(len..).and_then(|rest| rest.first_chunk::<2>()) else {
            return Ok(None);
        };
        len += 2 + usize::from(be16(offset[0], offset[1]));
    }
    Ok(Some((flags & 0x80 != 0, ids, len)))
}

impl<'a> L2tp<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (is_control, ids, len) = layout(bytes)?.ok_or(Reason::Truncated)?;
        let payload = bytes.get(len..).ok_or(Reason::Truncated)?;
        let [a, b, c, d] = bytes
            .get(ids..)
            .and_then(|r| r.first_chunk())
            .copied()
            .unwrap_or([0; 4]);
        Ok(L2tp {
            is_control,
            tunnel: be16(a, b),
            session: be16(c, d),
            payload,
        })
    }
}

impl fmt::Display for L2tp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_control { "control" } else { "data" };
        write!(
            f,
            "L2TP {kind}, tunnel {}, session {}",
            self.tunnel, self.session
        )
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let Some((is_control, ids, len)) = layout(walk.rest)? else {
        return Err(walk.missing(walk.rest.len() + 1));
    };
    if let Some(ids) = walk
        .rest
        .get(ids..)
        .and_then(|rest| rest.first_chunk::<4>())
    {
        walk.out.tunnel_id = u32::from_be_bytes(*ids);
    }
    walk.advance(len)?;
    if is_control || walk.wire_rest == 0 {
        return Ok(LayerKind::None);
    }
    walk.inner(LayerKind::Ppp)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "l2tp",
    spec: "RFC 2661",
    udp_ports: &[PORT],
    udp_replies: &[PORT],
    // All optional fields, two bytes of offset, LCP as the payload.
    sample: &[
        0x4a, 2, 0, 22, 0, 5, 0, 7, 0, 1, 0, 2, 0, 2, 0, 0, 0xff, 3, 0xc0, 0x21, 1, 2,
    ],
    step,
    show: |bytes, f| table::show(L2tp::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = L2tp::parse(PROTOCOL.sample).unwrap();
        assert_eq!(view.payload, [0xff, 3, 0xc0, 0x21, 1, 2]);
        assert_eq!(format!("{view}"), "L2TP data, tunnel 5, session 7");
        assert_eq!(L2tp::parse(&[0, 3, 0, 0, 0, 0]), Err(Reason::BadVersion));
        assert_eq!(L2tp::parse(&[0, 2, 0, 5]), Err(Reason::Truncated));
    }
}
