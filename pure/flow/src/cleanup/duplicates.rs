//! Finds packets that were captured twice: mirror ports copy a packet where it enters and where it
//! leaves a switch or router.
//!
//! Two packets are the same if their bytes are equal from the IP header to the end of the datagram.
//! A router changes three things on the way from one port to the other, which are not compared: the
//! link header, the time to live or hop limit, and the checksum of the IPv4 header. Packets without
//! an IP header are the same if all of their bytes are equal, except VLAN tags and padding.
//!
//! A retransmission is another packet: with IPv4 it has another identification, unless its sender
//! sets 0 in all of them (RFC 6864 section 4.1), with TCP timestamps another time. What remains
//! is distinguished by the window alone: identical datagrams of such senders and identical IPv6
//! packets that follow within the window are taken for copies, as are the rounds of a packet in a
//! routing loop.

use std::iter;

use wire::{Dissection, LayerKind};

use crate::HashKey;

/// Longest window, in nanoseconds.
pub const WINDOW_MAX_NS: u64 = 1_000_000_000;

/// Number of packets that are remembered: 1 MiB.
const PACKET_COUNT: usize = 1 << 16;

/// Places in which a packet may be remembered: a cache line.
const WAYS: usize = 4;

/// A packet that was seen: its hash, 0 for none, and its time.
#[derive(Clone, Copy, Default)]
struct Seen {
    hash: u64,
    time_ns: u64,
}

/// The packets of the last moments.
pub struct Duplicates {
    secret: HashKey,
    window_ns: u64,
    seen: Box<[[Seen; WAYS]]>,
}

impl Duplicates {
    /// Creates an empty table. Packets at most `window_ns` apart may be copies.
    pub fn new(secret: HashKey, window_ns: u64) -> Self {
        Self {
            secret,
            window_ns,
            seen: vec![[Seen::default(); WAYS]; PACKET_COUNT / WAYS].into(),
        }
    }

    /// Whether the packet is a copy of one before: that begins with `first`, and continues with the
    /// pieces in `rest`. `level` is that of the IP header to compare from.
    ///
    /// Packets that the capture truncated are none: what is missing may differ.
    #[inline]
    pub fn is_copy<'p>(
        &mut self,
        first: &'p [u8],
        rest: impl Iterator<Item = &'p [u8]> + Clone,
        level: &Dissection,
        time_ns: u64,
    ) -> bool {
        let hash = match level.ip_version {
            0 => self.whole(first, rest, level),
            version => self.datagram(first, rest, level, version),
        };
        hash.is_some_and(|hash| self.was_seen(hash.max(1), time_ns))
    }

    /// The hash of an IP datagram, if all of it was captured.
    #[inline]
    fn datagram<'p>(
        &self,
        first: &'p [u8],
        rest: impl Iterator<Item = &'p [u8]>,
        level: &Dissection,
        version: u8,
    ) -> Option<u64> {
        let start = first.get(usize::from(level.ip_offset)..)?;
        let len = level.ip_total_len as usize;
        match start.get(..len) {
            Some(datagram) => Some(hash(&self.secret, datagram, version)),
            None => hash_pieces(&self.secret, iter::once(start).chain(rest), len, version),
        }
    }

    /// The hash of a packet without an IP header, if all of it was captured: without VLAN tags, and
    /// without zeros at its end, which may be padding.
    #[cold]
    fn whole<'p>(
        &self,
        first: &'p [u8],
        rest: impl Iterator<Item = &'p [u8]> + Clone,
        level: &Dissection,
    ) -> Option<u64> {
        let (head, behind) = without_tags(first, level);
        let pieces = [head, behind].into_iter().chain(rest);
        let (mut len, mut used) = (0, 0);
        for piece in pieces.clone() {
            if let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
                used = len + last + 1;
            }
            len += piece.len();
        }
        let is_complete = len + TAG_LEN * tag_count(level) == level.wire_len as usize;
        // A hash needs a head.
        let used = used.max(16);
        match is_complete && used <= len {
            true => hash_pieces(&self.secret, pieces, used, 0),
            false => None,
        }
    }

    /// Whether a packet of this hash was seen within the window. Remembers it.
    #[inline]
    fn was_seen(&mut self, hash: u64, time_ns: u64) -> bool {
        let at = (hash >> 32) as usize % self.seen.len();
        let Some(places) = self.seen.get_mut(at) else {
            return false;
        };
        if let Some(seen) = places.iter_mut().find(|seen| seen.hash == hash) {
            // A copy keeps the time of the first one, so that something repeated for ever is seen
            // once in each window.
            let is_copy = seen.time_ns.abs_diff(time_ns) <= self.window_ns;
            if !is_copy {
                seen.time_ns = time_ns;
            }
            return is_copy;
        }
        if let Some(oldest) = places.iter_mut().min_by_key(|seen| seen.time_ns) {
            *oldest = Seen { hash, time_ns };
        }
        false
    }
}

/// Bytes of a VLAN tag, and of the addresses in front of it.
const TAG_LEN: usize = 4;
const ADDRESSES_LEN: usize = 12;

/// Number of VLAN tags between an Ethernet header's addresses and its type.
fn tag_count(level: &Dissection) -> usize {
    let mut layers = level.layers();
    match layers.next() {
        Some((LayerKind::Ethernet, 0)) => layers
            .take_while(|(kind, _)| *kind == LayerKind::Vlan)
            .count(),
        _ => 0,
    }
}

/// The parts of a packet's start in front of its VLAN tags and behind them.
fn without_tags<'p>(first: &'p [u8], level: &Dissection) -> (&'p [u8], &'p [u8]) {
    let tags = TAG_LEN * tag_count(level);
    let (head, rest) = first.split_at(first.len().min(ADDRESSES_LEN));
    (head, rest.get(tags..).unwrap_or(&[]))
}

/// The hash of a run of bytes, which may be in several pieces: where they are divided makes no
/// difference.
///
/// Each step multiplies two words, to which secret ones were added, and folds the product. Two
/// chains run at the same time, because each waits for its last product.
struct State<'k> {
    key: &'k [u64; 8],
    one: u64,
    two: u64,
}

#[inline(always)]
fn word(bytes: &[u8; 16], at: usize) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    u64::from_le_bytes(words[at])
}

impl<'k> State<'k> {
    #[inline(always)]
    fn new(key: &'k [u64; 8], len: usize, head: &[u8; 16]) -> Self {
        let mut state = Self {
            key,
            one: 0,
            two: key[6],
        };
        state.one = state.step(len as u64, head, 0);
        state
    }

    #[inline(always)]
    fn step(&self, state: u64, bytes: &[u8; 16], at: usize) -> u64 {
        let left = word(bytes, 0).wrapping_add(self.key[at]) ^ state;
        fold(left, word(bytes, 1).wrapping_add(self.key[at + 1]))
    }

    #[inline(always)]
    fn block(&mut self, block: &[u8; 32]) {
        let (halves, _) = block.as_chunks::<16>();
        self.one = self.step(self.one, &halves[0], 0).wrapping_add(self.one);
        self.two = self.step(self.two, &halves[1], 2).wrapping_add(self.two);
    }

    /// The hash, after the rest of less than a block.
    #[inline(always)]
    fn end(mut self, tail: &[u8]) -> u64 {
        for part in tail.chunks(16) {
            let mut bytes = [0; 16];
            bytes[..part.len()].copy_from_slice(part);
            let before = self.one.rotate_left(32);
            self.one = self.step(self.one, &bytes, 4).wrapping_add(before);
        }
        fold(self.one ^ self.key[7], self.two.wrapping_add(self.key[5]))
    }
}

/// Sets the fields that routers change to 0, in the first bytes of an IP header.
#[inline(always)]
fn blank(head: &mut [u8; 16], version: u8) {
    match version {
        4 => (head[8], head[10], head[11]) = (0, 0, 0),
        6 => head[7] = 0,
        _ => {}
    }
}

/// Hashes bytes, those of an IP datagram (version 4 or 6) without the fields that routers change.
#[inline]
fn hash(secret: &HashKey, bytes: &[u8], version: u8) -> u64 {
    let Some((head, rest)) = bytes.split_first_chunk::<16>() else {
        return 0;
    };
    let mut head = *head;
    blank(&mut head, version);
    let key = secret.words();
    let mut state = State::new(key, bytes.len(), &head);
    let (blocks, tail) = rest.as_chunks::<32>();
    for block in blocks {
        state.block(block);
    }
    state.end(tail)
}

/// As [`hash`], for `len` bytes in several pieces; `None` if there are fewer.
fn hash_pieces<'p>(
    secret: &HashKey,
    pieces: impl Iterator<Item = &'p [u8]>,
    len: usize,
    version: u8,
) -> Option<u64> {
    let key = secret.words();
    let mut state: Option<State<'_>> = None;
    // What does not fill the head or a block yet.
    let (mut waiting, mut filled) = ([0_u8; 32], 0);
    let mut left = len;
    for piece in pieces {
        let mut piece = &piece[..piece.len().min(left)];
        left -= piece.len();
        while !piece.is_empty() {
            let wanted = if state.is_none() { 16 } else { 32 };
            let (now, later) = piece.split_at(piece.len().min(wanted - filled));
            waiting[filled..filled + now.len()].copy_from_slice(now);
            (filled, piece) = (filled + now.len(), later);
            if filled < wanted {
                continue;
            }
            filled = 0;
            match &mut state {
                Some(state) => state.block(&waiting),
                None => {
                    let mut head: [u8; 16] = *waiting.first_chunk()?;
                    blank(&mut head, version);
                    state = Some(State::new(key, len, &head));
                }
            }
        }
    }
    let state = state.filter(|_| left == 0)?;
    Some(state.end(&waiting[..filled]))
}

#[inline(always)]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests;
