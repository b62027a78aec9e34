//! Reassembly of the fragmented packets of tunnels (RFC 791 §3.2, RFC 8200 §4.5), so that the
//! packet inside is counted once, with its own length and headers.
//!
//! Of each datagram the first [`KEPT_LEN`] bytes are kept, which is more than a packet of 1,500
//! bytes and the headers around it; of the rest only the lengths. A datagram is whole once all of
//! its bytes have been on the wire. One whose fragments contradict each other (RFC 5722) or are too
//! many never is. All memory is bounded, and reserved when the first fragment arrives.

use wire::{Dissection, Fragment, LayerKind};

use crate::fragment::{Piece, Pieces};

/// Space for a datagram: its IP header, and the bytes kept.
pub(crate) const SLOT_LEN: usize = 2048;
/// Space for the header: the longer one, of IPv6.
const HEAD_LEN: usize = 40;
/// Bytes kept after the header.
const KEPT_LEN: usize = SLOT_LEN - HEAD_LEN;
/// Maximum number of separate ranges of a datagram while it is incomplete.
const RANGE_COUNT: usize = 32;
/// Maximum length of a datagram.
const DATAGRAM_LEN_MAX: usize = u16::MAX as usize;

/// What a fragment contains.
pub(crate) struct Part<'a> {
    /// Its offset in the datagram.
    from: usize,
    /// Its length on the wire.
    len: usize,
    /// The captured bytes.
    bytes: &'a [u8],
    kind: Fragment,
    /// The IP header without options and extension headers.
    head: &'a [u8],
    /// Protocol of the datagram.
    protocol: u8,
    /// Length of what precedes the datagram's bytes in the packet, except for a fragment header.
    before: usize,
    depth: u8,
}

impl<'a> Part<'a> {
    /// The part in a fragment. `packet` are the bytes that the offsets in `level` refer to, of
    /// which `wire_len` were on the wire.
    pub(crate) fn of(level: &Dissection, packet: &'a [u8], wire_len: u32) -> Option<Part<'a>> {
        let at = usize::from(level.ip_offset);
        let first = *packet.get(at)?;
        let (head_len, start, protocol, extra) = if level.ip_version == 4 {
            let len = usize::from(first & 15) * 4;
            (20, at + len, *packet.get(at + 9)?, 0)
        } else {
            let fragment = level.offset_of(LayerKind::Fragment)?;
            (40, fragment + 8, *packet.get(fragment)?, 8)
        };
        // A length field is trusted up to the length on the wire.
        let end = (at + level.ip_total_len as usize).min(wire_len as usize);
        let len = end.checked_sub(start)?;
        let rest = packet.get(start..).unwrap_or(&[]);
        Some(Part {
            from: level.fragment_offset.into(),
            len,
            bytes: rest.get(..len).unwrap_or(rest),
            kind: level.fragment,
            head: packet.get(at..at + head_len)?,
            protocol,
            before: start - extra,
            depth: level.tunnel_depth,
        })
    }

    /// In units of eight bytes.
    fn piece(&self) -> Piece {
        Piece {
            from: (self.from / 8) as u16,
            to: (self.from + self.len).div_ceil(8) as u16,
        }
    }

    fn end(&self) -> usize {
        self.from + self.len
    }
}

/// What a fragment did to its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// More is missing.
    Incomplete,
    /// It is whole.
    Whole,
    /// It contradicts what was there before: the datagram will never be whole.
    Damaged,
}

/// A datagram put together, in a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    /// Offset of its IP header in the slot.
    pub(crate) from: usize,
    /// End of the bytes that are known.
    pub(crate) to: usize,
    /// Length on the wire, with the IP header.
    pub(crate) wire_len: u32,
    /// Length of the packet if it had not been fragmented, with all headers.
    pub(crate) packet_len: u32,
    /// Number of tunnels around it.
    pub(crate) depth: u8,
    pub(crate) ip_version: u8,
}

/// A datagram.
#[derive(Clone, Copy)]
struct Assembly {
    pieces: Pieces<RANGE_COUNT>,
    /// Its length; 0 while the last fragment is missing.
    end: usize,
    /// Where the capture truncated the bytes that are kept.
    cut: usize,
    /// Length of the IP header that is kept; 0 while the first fragment is missing.
    head_len: usize,
    before: usize,
    depth: u8,
    is_damaged: bool,
}

impl Assembly {
    const EMPTY: Assembly = Assembly {
        pieces: Pieces::EMPTY,
        end: 0,
        cut: KEPT_LEN,
        head_len: 0,
        before: 0,
        depth: 0,
        is_damaged: false,
    };

    fn is_whole(&self) -> bool {
        let all = Piece {
            from: 0,
            to: self.end.div_ceil(8) as u16,
        };
        self.head_len != 0 && self.end != 0 && self.pieces.is_only(all)
    }
}

/// The datagrams that are being put together, by the index of their entry in the table of
/// fragments.
pub(crate) struct Assemblies {
    assemblies: Vec<Assembly>,
    slots: Vec<[u8; SLOT_LEN]>,
}

impl Assemblies {
    pub(crate) fn new(entry_count: usize) -> Assemblies {
        Assemblies {
            assemblies: Vec::with_capacity(entry_count),
            slots: Vec::with_capacity(entry_count),
        }
    }

    /// Memory for this many entries in bytes.
    pub(crate) fn memory_len_for(entry_count: usize) -> usize {
        entry_count * (size_of::<Assembly>() + SLOT_LEN)
    }

    /// Forgets the datagram of an entry.
    pub(crate) fn clear(&mut self, at: usize) {
        if let Some(assembly) = self.assemblies.get_mut(at) {
            *assembly = Assembly::EMPTY;
        }
    }

    /// Adds a fragment.
    pub(crate) fn add(&mut self, at: usize, part: &Part<'_>) -> Added {
        while self.assemblies.len() <= at {
            // Within the capacity reserved: entries are used in sequence.
            self.assemblies.push(Assembly::EMPTY);
            self.slots.push([0; SLOT_LEN]);
        }
        let (assembly, slot) = (&mut self.assemblies[at], &mut self.slots[at]);
        let is_last = part.kind == Fragment::Last;
        let is_odd = !is_last && !part.len.is_multiple_of(8);
        let is_beyond = assembly.end != 0 && part.end() > assembly.end
            || is_last && (assembly.pieces.end() > part.piece().to)
            || is_last && assembly.end != 0 && assembly.end != part.end();
        // The payload length of IPv6 does not include the header.
        let is_huge = part.end() + part.head.len() % HEAD_LEN > DATAGRAM_LEN_MAX;
        assembly.is_damaged |= is_odd || is_beyond || is_huge;
        if assembly.is_damaged {
            return Added::Damaged;
        }
        if part.len == 0 {
            return Added::Incomplete;
        }
        let kept = slot.get_mut(HEAD_LEN + part.from..).unwrap_or_default();
        let len = part.bytes.len().min(kept.len());
        if assembly.pieces.overlaps(part.piece()) {
            let known = len.min(assembly.cut.saturating_sub(part.from));
            let is_same = assembly.pieces.contains(part.piece())
                && kept.get(..known) == part.bytes.get(..known);
            assembly.is_damaged |= !is_same;
            return match is_same {
                true => Added::Incomplete,
                false => Added::Damaged,
            };
        }
        if let (Some(to), Some(from)) = (kept.get_mut(..len), part.bytes.get(..len)) {
            to.copy_from_slice(from);
        }
        if part.bytes.len() < part.len {
            assembly.cut = assembly.cut.min(part.from + part.bytes.len());
        }
        assembly.pieces.add(part.piece());
        if is_last {
            assembly.end = part.end();
        }
        if part.kind == Fragment::First {
            let head_len = part.head.len().min(HEAD_LEN);
            slot[HEAD_LEN - head_len..HEAD_LEN].copy_from_slice(&part.head[..head_len]);
            set_protocol(slot, head_len, part.protocol);
            (assembly.head_len, assembly.before) = (head_len, part.before);
            assembly.depth = part.depth;
        }
        match assembly.is_whole() {
            true => Added::Whole,
            false => Added::Incomplete,
        }
    }

    /// Copies a whole datagram to `out`, as if it had not been fragmented, and forgets it.
    pub(crate) fn take(&mut self, at: usize, out: &mut [u8; SLOT_LEN]) -> Whole {
        let assembly = self.assemblies[at];
        *out = self.slots[at];
        self.clear(at);
        let from = HEAD_LEN - assembly.head_len;
        let ip_version = if assembly.head_len == HEAD_LEN { 6 } else { 4 };
        set_length(out, assembly.head_len, assembly.end);
        Whole {
            from,
            to: HEAD_LEN + assembly.end.min(assembly.cut),
            wire_len: (assembly.head_len + assembly.end) as u32,
            packet_len: (assembly.before + assembly.end) as u32,
            depth: assembly.depth,
            ip_version,
        }
    }
}

/// Sets the protocol, which is in another header in IPv6, and makes IPv4 a header without options
/// of a whole datagram.
fn set_protocol(slot: &mut [u8; SLOT_LEN], head_len: usize, protocol: u8) {
    let head = &mut slot[HEAD_LEN - head_len..HEAD_LEN];
    if head_len == HEAD_LEN {
        head[6] = protocol;
    } else {
        head[0] = 0x45;
        head[6..8].fill(0);
    }
}

/// Sets the length. It fits: see [`DATAGRAM_LEN_MAX`].
fn set_length(slot: &mut [u8; SLOT_LEN], head_len: usize, len: usize) {
    let head = &mut slot[HEAD_LEN - head_len..HEAD_LEN];
    if head_len == HEAD_LEN {
        head[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    } else {
        head[2..4].copy_from_slice(&((head_len + len) as u16).to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
