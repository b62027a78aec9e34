//! Fragments: each counts in the flow of its datagram, and if the datagram is a tunnel's packet,
//! the packet inside counts once all of it has arrived.

use wire::{Dissection, Fragment, LayerKind, LinkType, Reason, dissect};

use super::levels::Named;
use super::{Input, Level, Meter};
use crate::assembly::{Added, Part, SLOT_LEN, Whole};
use crate::fragment::{Datagram, Later, Piece};
use crate::record::{FRAGMENT, LATER, REASSEMBLED};
use crate::table::{Observed, RecordSink, Watch};

/// Number of datagrams inside each other that are put together.
pub(super) const NESTED_MAX: usize = 2;

/// The packet being counted.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) input_index: u8,
    /// The bytes that offsets refer to: those of the input, or of a datagram put together.
    pub(super) bytes: &'a [u8],
    /// Their length on the wire.
    pub(super) wire_len: u32,
    /// Length of the packet with its link header.
    pub(super) packet_len: u32,
}

impl<'a> Source<'a> {
    pub(super) fn of(input: &'a Input<'a>, input_index: u8, wire_len: u32) -> Source<'a> {
        Source {
            input,
            input_index,
            bytes: input.bytes,
            wire_len,
            packet_len: wire_len,
        }
    }

    /// Number of bytes to count: of the whole packet, or of the datagram of a level.
    pub(super) fn counted_len(&self, level: &Dissection, is_layer2: bool) -> u32 {
        if is_layer2 {
            return self.packet_len;
        }
        let rest = self.wire_len.saturating_sub(level.ip_offset.into());
        level.ip_total_len.min(rest)
    }
}

/// The level of a packet that defines its flow.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Index in `levels`.
    pub(super) at: usize,
    /// Number of the tunnel around it, if it is in one.
    pub(super) tunnel_id: Option<u32>,
    /// Whether it is the outermost one with an IP header.
    pub(super) is_outermost: bool,
}

/// A fragment, described as a packet of its datagram's flow.
pub(super) struct Counted<'a> {
    pub(super) observed: Observed,
    pub(super) source: &'a Source<'a>,
    pub(super) place: Place,
    /// Whether sampling selects the flow.
    pub(super) is_selected: bool,
}

impl Counted<'_> {
    fn is_first(&self) -> bool {
        self.observed.marks & LATER == 0
    }
}

/// Whether a first fragment may be that of a tunnel's packet: if its headers end before it is
/// certain, all of the datagram has to be seen.
fn may_be_tunnel(level: &Dissection) -> bool {
    const TRANSPORT: u64 = LayerKind::Tcp.bit()
        | LayerKind::Sctp.bit()
        | LayerKind::Dccp.bit()
        | LayerKind::UdpLite.bit()
        | LayerKind::Icmpv4.bit()
        | LayerKind::Icmpv6.bit();
    let is_cut =
        matches!(level.reason, Reason::Short | Reason::Truncated) || level.payload_len == 0;
    let is_plain = level.layer_mask & TRANSPORT != 0 || level.is_last_layer(LayerKind::Udp);
    level.inner != LayerKind::None && !level.inner_is_quote || is_cut && !is_plain
}

impl Meter {
    /// Counts a fragment, or holds it back.
    #[inline(never)]
    pub(super) fn fragment<W: Watch>(
        &mut self,
        mut counted: Counted<'_>,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let level = &self.levels[counted.place.at];
        let parts = (&Datagram::of(level), Piece::of(level));
        let is_later = level.fragment.is_later();
        counted.observed.marks |= FRAGMENT | if is_later { LATER } else { 0 };
        let (fragments, key) = (&mut self.fragments, &self.hash_key);
        let (follows, released) = if !counted.is_selected {
            self.unsampled += 1;
            (None, fragments.visit(parts.0, &counted.observed, key))
        } else if is_later {
            match fragments.later(parts, &counted.observed, key) {
                Later::Follow(like) => (Some(like), None),
                Later::Held(released) => (None, released),
            }
        } else {
            (None, fragments.first(parts, &counted.observed, key))
        };
        if let Some((like, held)) = released {
            // Earlier packets must be in the table first.
            self.empty_batch(watch, sink);
            self.table.observe_held((&like, &held), watch, sink);
        }
        if let Some(like) = follows {
            self.push(&like, watch, sink);
        }
        if self.level == Level::Outer {
            if !is_later && counted.is_selected {
                self.push(&counted.observed, watch, sink);
            }
            return;
        }
        self.assemble(&counted, watch, sink);
    }

    /// Adds a fragment to its datagram, if that may be a tunnel's packet, and counts the first one,
    /// unless it counts later.
    fn assemble<W: Watch>(
        &mut self,
        counted: &Counted<'_>,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let level = &self.levels[counted.place.at];
        let part = Part::of(level, counted.source.bytes, counted.source.wire_len);
        let is_first = counted.is_first();
        let added = match part {
            Some(part) if is_first && may_be_tunnel(level) => self.fragments.add_first(&part),
            Some(part) if !is_first => self.fragments.add_later(&part),
            _ if is_first => {
                self.fragments.set_plain();
                None
            }
            _ => None,
        };
        // With both levels the outermost flow has all fragments.
        let is_counted =
            !counted.is_selected || self.level == Level::Both && counted.place.is_outermost;
        let counts_now = match added {
            _ if !is_first || !counted.is_selected => false,
            Some(Added::Whole) => is_counted,
            Some(_) if is_counted => true,
            Some(_) => {
                self.fragments.hold_first(&counted.observed);
                false
            }
            None => true,
        };
        if counts_now {
            self.push(&counted.observed, watch, sink);
        }
        if added == Some(Added::Whole) {
            self.whole(counted, is_counted, watch, sink);
        }
    }

    /// Counts the packet in a datagram that has become whole.
    fn whole<W: Watch>(
        &mut self,
        counted: &Counted<'_>,
        is_counted: bool,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        // Earlier packets must be in the table first.
        self.empty_batch(watch, sink);
        let found = self.scratch.pop().and_then(|mut slot| {
            let whole = self.fragments.take_whole(&mut slot);
            let found = whole.and_then(|whole| Some((whole, self.dissect_whole(&slot, &whole)?)));
            self.scratch.push(slot);
            found
        });
        let held = self.fragments.release_first();
        let Some((whole, named)) = found else {
            // There is no packet inside: it belongs to the flow of its datagram.
            if let Some((like, held)) = held {
                self.table.observe_held((&like, &held), watch, sink);
            } else if counted.is_first() && !is_counted {
                self.push(&counted.observed, watch, sink);
            }
            return;
        };
        self.fragments.count_reassembled();
        self.twice += u64::from(held.is_none() && (is_counted || !counted.is_first()));
        let Some(slot) = self.scratch.pop() else {
            return;
        };
        let bytes = slot.get(whole.from..whole.to).unwrap_or_default();
        watch.hold_bytes(bytes);
        let marks = self.marks;
        self.marks |= REASSEMBLED;
        let source = Source {
            bytes,
            wire_len: whole.wire_len,
            packet_len: whole.packet_len,
            ..*counted.source
        };
        let place = Place {
            at: named.inner,
            tunnel_id: named.tunnel_id,
            is_outermost: false,
        };
        self.count(&source, place, watch, sink);
        self.marks = marks;
        self.scratch.push(slot);
    }

    /// Finds the levels of a datagram put together; `None` if there is no IP header inside.
    fn dissect_whole(&mut self, slot: &[u8; SLOT_LEN], whole: &Whole) -> Option<Named> {
        const AT: usize = 1;
        let bytes = slot.get(whole.from..whole.to)?;
        let link = match whole.ip_version {
            4 => LinkType::IPV4,
            _ => LinkType::IPV6,
        };
        let level = &mut self.levels[AT];
        dissect(link, bytes, whole.wire_len, level);
        level.tunnel_depth = whole.depth;
        if level.fragment != Fragment::Whole {
            return None;
        }
        let around = Named {
            outer: AT,
            inner: AT,
            tunnel_id: None,
        };
        let named = self.descend(bytes, AT, Some(around)).ok()?;
        (named.inner != AT).then_some(named)
    }
}
