//! Ethernet in Ethernet: provider backbone bridging (IEEE 802.1ah, type 0x88e7) and FabricPath
//! (Cisco, type 0x8903).
//!
//! ```text
//! 802.1ah:    flags u8, service id (I-SID) 24 bits, then an Ethernet packet
//! FabricPath: tree (FTAG) 10 bits, time to live 6 bits, then an Ethernet packet
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16};
use core::fmt;

/// A backbone service tag.
#[derive(Clone, Copy)]
pub struct Pbb<'a> {
    head: &'a [u8; 4],
    /// The inner Ethernet packet.
    pub payload: &'a [u8],
}

impl<'a> Pbb<'a> {
    /// Splits off the tag; `bytes` start after the tag type.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Pbb { head, payload })
    }

    /// Backbone service instance identifier, 24 bits.
    pub fn service_id(&self) -> u32 {
        u32::from_be_bytes(*self.head) & 0x00ff_ffff
    }
}

impl fmt::Display for Pbb<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PBB, I-SID {}", self.service_id())
    }
}

/// A FabricPath header.
#[derive(Clone, Copy)]
pub struct FabricPath<'a> {
    head: &'a [u8; 2],
    /// The inner Ethernet packet.
    pub payload: &'a [u8],
}

impl<'a> FabricPath<'a> {
    /// Splits off the header; `bytes` start after the Ethernet type.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(FabricPath { head, payload })
    }

    /// Forwarding tree, 10 bits.
    pub fn tree(&self) -> u16 {
        be16(self.head[0], self.head[1]) >> 6
    }

    /// Time to live, 6 bits.
    pub fn ttl(&self) -> u8 {
        self.head[1] & 63
    }
}

impl fmt::Display for FabricPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FabricPath, tree {}, ttl {}", self.tree(), self.ttl())
    }
}

fn step_pbb(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<4>()?;
    walk.out.tunnel_id = u32::from_be_bytes(*head) & 0x00ff_ffff;
    walk.advance(4)?;
    walk.inner(LayerKind::Ethernet)
}

fn step_fabric_path(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<2>()?;
    walk.out.tunnel_id = u32::from(be16(head[0], head[1]) >> 6);
    walk.advance(2)?;
    walk.inner(LayerKind::Ethernet)
}

pub(crate) const PBB: Protocol = Protocol {
    name: "pbb",
    spec: "IEEE 802.1ah",
    ether_types: &[0x88e7],
    sample: &[
        0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 1, 2,
    ],
    step: step_pbb,
    show: |bytes, f| table::show(Pbb::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const FABRIC_PATH: Protocol = Protocol {
    name: "cfp",
    spec: "Cisco FabricPath",
    ether_types: &[0x8903],
    sample: &[
        0, 0x60, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 1, 2,
    ],
    step: step_fabric_path,
    show: |bytes, f| table::show(FabricPath::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample() {
        let view = Pbb::parse(PBB.sample).unwrap();
        assert_eq!((view.service_id(), view.payload.len()), (9, 16));
        let view = FabricPath::parse(FABRIC_PATH.sample).unwrap();
        assert_eq!((view.tree(), view.ttl(), view.payload.len()), (1, 32, 16));
    }
}
