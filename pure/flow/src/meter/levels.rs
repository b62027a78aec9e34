//! The levels of a packet: which one defines its flow, and what the others add to the key.

use wire::tcp::{self, TcpOption};
use wire::{Dissection, Fragment, LayerKind, Reason, dissect_inner, vlan};

use super::{Input, KeyParts, Level, Meter};
use crate::key::{FlowKey, KeyExtra, Side};

/// Number of levels of a packet kept at once.
pub(super) const LEVEL_COUNT: usize = 5;

/// The levels of a packet that define flows.
#[derive(Clone, Copy)]
pub(super) struct Named {
    /// Index of the outermost level with an IP header.
    pub(super) outer: usize,
    /// Index of the innermost level.
    pub(super) inner: usize,
    /// Number of the tunnel around it, if it is in one.
    pub(super) tunnel_id: Option<u32>,
}

impl Named {
    /// The packet's first level only.
    pub(super) fn first() -> Named {
        Named {
            outer: 0,
            inner: 0,
            tunnel_id: None,
        }
    }
}

impl Meter {
    /// Finds the levels that define flows, from the one at an index in `levels` on; `levels[0]`
    /// stays the packet's first. It ends at a fragment: what is inside is known once it has been
    /// put together. Without an IP header it returns why the last level ended.
    #[inline(never)]
    pub(super) fn descend(
        &mut self,
        packet: &[u8],
        mut at: usize,
        mut found: Option<Named>,
    ) -> Result<Named, Reason> {
        loop {
            if let Some(named) = found
                && (self.level == Level::Outer
                    || self.levels[named.inner].fragment != Fragment::Whole)
            {
                return Ok(named);
            }
            let around = self.levels[at];
            let kept = found.unwrap_or(Named::first());
            // There are two slots more than can be in use.
            let is_free = |slot: &usize| ![0, at, kept.outer, kept.inner].contains(slot);
            let next = (1..LEVEL_COUNT).find(is_free).unwrap_or(at);
            if around.inner_is_quote || !dissect_inner(packet, &around, &mut self.levels[next]) {
                return found.ok_or(around.reason);
            }
            at = next;
            if self.levels[at].ip_version != 0 {
                found = Some(Named {
                    outer: found.map_or(at, |named| named.outer),
                    inner: at,
                    tunnel_id: Some(around.tunnel_id),
                });
            }
        }
    }

    #[inline(never)]
    pub(super) fn extend_key(&self, key: &mut FlowKey, input: &Input<'_>) {
        if self.key_vlan {
            let ([outer, inner], _) = vlan::tags(input.bytes, &self.levels[0]);
            match input.vlan {
                Some(id) => key.set_vlan(id & 0xfff, outer),
                None => key.set_vlan(outer, inner),
            }
        }
        if self.key_interface {
            key.set_interface(input.interface);
        }
    }

    /// Fills in the rarely used parts of the key.
    #[inline(never)]
    pub(super) fn extra_key(
        &self,
        parts: KeyParts,
        (at, tunnel_id): (usize, Option<u32>),
        input: &Input<'_>,
        side: Side,
    ) -> KeyExtra {
        let (outermost, level) = (&self.levels[0], &self.levels[at]);
        let mut extra = KeyExtra::NONE;
        if parts.mac
            && outermost.layer_kinds[0] == LayerKind::Ethernet
            && let Some([to, from]) = input.bytes.as_chunks::<6>().0.first_chunk::<2>()
        {
            extra.mac[side as usize] = *from;
            extra.mac[side.other() as usize] = *to;
        }
        if parts.mpls {
            extra.mpls_label = outermost.mpls_label;
        }
        if parts.tunnel {
            extra.tunnel_id = tunnel_id.unwrap_or(level.tunnel_id);
        }
        if parts.traffic_class {
            extra.traffic_class = level.traffic_class;
        }
        extra
    }
}

/// The maximum segment size announced by a SYN; 0 without one.
#[inline(never)]
pub(super) fn announced_mss(level: &Dissection, packet: &[u8]) -> u16 {
    let segment = packet.get(usize::from(level.transport_offset)..);
    let mut options = tcp::captured_options(segment.unwrap_or(&[]));
    let found = options.find_map(|option| match option {
        TcpOption::MaxSegmentSize(size) => Some(size),
        _ => None,
    });
    found.unwrap_or(0)
}
