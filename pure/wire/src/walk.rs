//! Walks a packet in one pass: a cursor, and the loop that steps from header to header.

use crate::dissection::{Dissection, MAX_LAYERS, MAX_TUNNEL_DEPTH};
use crate::table::{self, LayerKind};
use crate::{LinkType, Reason, fast};

/// Result of a step: the next layer ([`LayerKind::None`] at the end), or the reason to stop.
pub(crate) type Next = Result<LayerKind, Reason>;

/// The cursor that the steps advance.
pub struct Walk<'a, 'd> {
    /// Captured bytes from the cursor to the end of the enclosing header's payload.
    pub(crate) rest: &'a [u8],
    /// Offset of the cursor from the start of the packet.
    pub(crate) at: usize,
    /// Length on the wire from the cursor to the end of the enclosing header's payload: never less
    /// than `rest.len()`, more if the capture is truncated.
    pub(crate) wire_rest: usize,
    /// Whether the 802.11 header that follows is padded to a multiple of four bytes.
    pub(crate) is_padded: bool,
    /// The dissection being filled.
    pub(crate) out: &'d mut Dissection,
}

impl<'a> Walk<'a, '_> {
    /// The next `N` bytes, without advancing.
    #[inline(always)]
    pub(crate) fn peek<const N: usize>(&self) -> Result<&'a [u8; N], Reason> {
        self.rest.first_chunk::<N>().ok_or_else(|| self.missing(N))
    }

    /// Why `need` bytes are not present: truncated by the capture, or never sent.
    #[cold]
    pub(crate) fn missing(&self, need: usize) -> Reason {
        if self.wire_rest >= need {
            Reason::Truncated
        } else {
            Reason::Short
        }
    }

    /// Advances by `len` bytes.
    #[inline(always)]
    pub(crate) fn advance(&mut self, len: usize) -> Result<(), Reason> {
        match self.rest.get(len..) {
            Some(rest) => {
                self.rest = rest;
                self.at += len;
                self.wire_rest -= len;
                Ok(())
            }
            None => Err(self.cut(len)),
        }
    }

    /// Why a header of `len` bytes is incomplete. If the capture truncated it, the cursor still
    /// moves past it: its end on the wire is known.
    #[cold]
    fn cut(&mut self, len: usize) -> Reason {
        let reason = self.missing(len);
        if reason == Reason::Truncated {
            self.rest = &[];
            self.at += len;
            self.wire_rest -= len;
        }
        reason
    }

    /// Limits the payload to `len` bytes from the cursor on, as in the enclosing header; the rest
    /// is padding or a trailer.
    #[inline(always)]
    pub(crate) fn limit(&mut self, len: usize) {
        if len < self.wire_rest {
            self.wire_rest = len;
            if let Some(rest) = self.rest.get(..len) {
                self.rest = rest;
            }
        }
    }

    /// Ends this level with an inner packet of the given kind at the cursor.
    #[inline]
    pub(crate) fn inner(&mut self, kind: LayerKind) -> Next {
        self.out.inner = kind;
        self.out.inner_offset = self.at as u32;
        self.out.inner_len = self.wire_rest as u32;
        Ok(LayerKind::None)
    }

    /// The first layer of a packet with this link type (a DLT_ number) at the cursor.
    pub(crate) fn link(&mut self, dlt: u32) -> Next {
        if self.rest.is_empty() {
            return Err(self.missing(1));
        }
        let link = u16::try_from(dlt).map(LinkType::from_dlt);
        match link.map(|link| table::of_link(link, self.rest)) {
            Ok(LayerKind::None) | Err(_) => {
                self.out.flow_label = dlt;
                Err(Reason::UnsupportedLink)
            }
            Ok(kind) => Ok(kind),
        }
    }

    /// Steps from `kind` on until something stops it.
    fn run(&mut self, mut kind: LayerKind) {
        let reason = loop {
            let index = usize::from(self.out.layer_count);
            if index >= MAX_LAYERS || self.at > usize::from(u16::MAX) {
                break Reason::TooDeep;
            }
            self.out.layer_kinds[index] = kind;
            self.out.layer_offsets[index] = self.at as u16;
            self.out.layer_count = index as u8 + 1;
            self.out.layer_mask |= kind.bit();
            match table::step(kind, self) {
                Ok(LayerKind::None) => break Reason::Complete,
                Ok(next) => {
                    // A header after the transport header: that of a tunnel.
                    if self.out.transport_offset == self.out.layer_offsets[index]
                        && self.out.transport_offset != 0
                    {
                        self.out.tunnel_payload_len = self.wire_rest as u32;
                    }
                    kind = next;
                }
                Err(reason) => break reason,
            }
        };
        self.out.reason = reason;
        self.out.payload_offset = self.at as u32;
        self.out.payload_len = self.wire_rest as u32;
    }
}

/// Dissects the outermost level of a packet into `out`, replacing its content.
///
/// `bytes` are the captured bytes, `wire_len` is the length on the wire; a `wire_len` less than the
/// captured length is taken as equal. The walk ends at the transport header, at a tunnel
/// ([`Dissection::inner`] then describes the inner packet), or for a [`Reason`].
#[inline]
pub fn dissect(link: LinkType, bytes: &[u8], wire_len: u32, out: &mut Dissection) {
    let wire_rest = bytes.len().max(wire_len as usize);
    let first = match link {
        LinkType::ETHERNET => LayerKind::Ethernet,
        _ => table::of_link(link, bytes),
    };
    if first == LayerKind::None {
        begin(bytes, wire_rest, out);
        out.reason = Reason::UnsupportedLink;
        out.flow_label = link.0.into();
        out.payload_len = wire_rest as u32;
        return;
    }
    level(first, bytes, 0, wire_rest, 0, out);
}

/// Dissects the level inside `outer` into `out`, and returns whether there is one.
///
/// `packet` is the whole packet of `outer`; offsets in `out` are relative to its start. Above
/// [`MAX_TUNNEL_DEPTH`] the result is true, and `out` has [`Reason::TooDeep`] and no layers.
pub fn dissect_inner(packet: &[u8], outer: &Dissection, out: &mut Dissection) -> bool {
    if outer.inner == LayerKind::None {
        *out = Dissection::EMPTY;
        return false;
    }
    let at = outer.inner_offset as usize;
    let wire_rest = outer.inner_len as usize;
    let rest = packet.get(at..).unwrap_or(&[]);
    let rest = rest.get(..wire_rest).unwrap_or(rest);
    let depth = outer.tunnel_depth.saturating_add(1);
    if depth > MAX_TUNNEL_DEPTH {
        begin(rest, wire_rest, out);
        out.tunnel_depth = depth;
        out.reason = Reason::TooDeep;
        out.payload_offset = at as u32;
        out.payload_len = wire_rest as u32;
        return true;
    }
    level(outer.inner, rest, at, wire_rest, depth, out);
    true
}

/// Iterator over the levels of a packet, outermost first; see [`levels`].
#[derive(Clone, Copy, Debug)]
pub struct Levels<'a> {
    packet: &'a [u8],
    next: Option<Dissection>,
}

impl Iterator for Levels<'_> {
    type Item = Dissection;

    fn next(&mut self) -> Option<Dissection> {
        let level = self.next.take()?;
        let mut inner = Dissection::EMPTY;
        if !level.inner_is_quote && dissect_inner(self.packet, &level, &mut inner) {
            self.next = Some(inner);
        }
        Some(level)
    }
}

/// The levels of a packet: the outermost, then the payload of its tunnel, and so on. A packet
/// quoted by an ICMP error is not a level; use [`dissect_inner`] for it.
pub fn levels(link: LinkType, packet: &[u8], wire_len: u32) -> Levels<'_> {
    let mut outer = Dissection::EMPTY;
    dissect(link, packet, wire_len, &mut outer);
    Levels {
        packet,
        next: Some(outer),
    }
}

/// Dissects the innermost level that has an IP header into `out`, or the outermost if none has.
pub fn dissect_innermost(link: LinkType, packet: &[u8], wire_len: u32, out: &mut Dissection) {
    dissect(link, packet, wire_len, out);
    let mut level = *out;
    let mut inner = Dissection::EMPTY;
    while !level.inner_is_quote && dissect_inner(packet, &level, &mut inner) {
        level = inner;
        if level.ip_version != 0 {
            *out = level;
        }
    }
}

#[inline(always)]
fn begin(bytes: &[u8], wire_rest: usize, out: &mut Dissection) {
    *out = Dissection::EMPTY;
    out.cap_len = bytes.len() as u32;
    out.wire_len = wire_rest as u32;
}

/// Dissects one level, by the fast path if it is regular.
#[inline]
fn level(
    first: LayerKind,
    bytes: &[u8],
    at: usize,
    wire_rest: usize,
    depth: u8,
    out: &mut Dissection,
) {
    begin(bytes, wire_rest, out);
    out.tunnel_depth = depth;
    if !fast::dissect(first, bytes, at, wire_rest, out) {
        walk(first, bytes, at, wire_rest, depth, out);
    }
}

/// Dissects one level, header by header.
#[inline(never)]
pub(crate) fn walk(
    first: LayerKind,
    bytes: &[u8],
    at: usize,
    wire_rest: usize,
    depth: u8,
    out: &mut Dissection,
) {
    begin(bytes, wire_rest, out);
    out.tunnel_depth = depth;
    Walk {
        rest: bytes,
        at,
        wire_rest,
        is_padded: false,
        out,
    }
    .run(first);
}
