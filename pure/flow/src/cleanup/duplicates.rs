//! Finds packets that were captured twice: mirror ports copy a packet where it enters and where it
//! leaves a switch or router.
//!
//! Two packets are the same if their bytes are equal from the IP header to the end of the datagram.
//! A router changes three things on the way from one port to the other, which are not compared: the
//! link header, the time to live or hop limit, and the checksum of the IPv4 header.
//!
//! A retransmission is another packet: with IPv4 it has another identification, unless its sender
//! sets 0 in all of them (RFC 6864 section 4.1), with TCP timestamps another time. What remains
//! is distinguished by the window alone: identical datagrams of such senders and identical IPv6
//! packets that follow within the window are taken for copies, as are the rounds of a packet in a
//! routing loop.

use wire::Dissection;

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

    /// Whether the packet, whose IP header is the one of this level, is a copy of one before.
    ///
    /// Packets that the capture truncated are none: what is missing may differ. Nor are those
    /// without an IP header.
    #[inline]
    pub fn is_copy(&mut self, packet: &[u8], level: &Dissection, time_ns: u64) -> bool {
        let Some(datagram) = datagram(packet, level) else {
            return false;
        };
        let hash = hash(&self.secret, datagram, level.ip_version).max(1);
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

/// The bytes of the datagram, if all of them were captured.
#[inline]
fn datagram<'a>(packet: &'a [u8], level: &Dissection) -> Option<&'a [u8]> {
    if level.ip_version == 0 {
        return None;
    }
    let rest = packet.get(usize::from(level.ip_offset)..)?;
    rest.get(..level.ip_total_len as usize)
}

/// Hashes a datagram without the fields that routers change.
///
/// Each step multiplies two words, to which secret ones were added, and folds the product. Two
/// chains run at the same time, because each waits for its last product.
#[inline]
fn hash(secret: &HashKey, datagram: &[u8], version: u8) -> u64 {
    let Some((head, rest)) = datagram.split_first_chunk::<16>() else {
        return 0;
    };
    let mut head = *head;
    match version {
        4 => (head[8], head[10], head[11]) = (0, 0, 0),
        _ => head[7] = 0,
    }
    let key = secret.words();
    let word = |bytes: &[u8; 16], at: usize| {
        let (words, _) = bytes.as_chunks::<8>();
        u64::from_le_bytes(words[at])
    };
    let step = |state: u64, bytes: &[u8; 16], at: usize| {
        let left = word(bytes, 0).wrapping_add(key[at]) ^ state;
        fold(left, word(bytes, 1).wrapping_add(key[at + 1]))
    };
    let (mut one, mut two) = (step(datagram.len() as u64, &head, 0), key[6]);
    let (blocks, tail) = rest.as_chunks::<32>();
    for block in blocks {
        let (halves, _) = block.as_chunks::<16>();
        one = step(one, &halves[0], 0).wrapping_add(one);
        two = step(two, &halves[1], 2).wrapping_add(two);
    }
    for part in tail.chunks(16) {
        let mut bytes = [0; 16];
        bytes[..part.len()].copy_from_slice(part);
        one = step(one, &bytes, 4).wrapping_add(one.rotate_left(32));
    }
    fold(one ^ key[7], two.wrapping_add(key[5]))
}

#[inline(always)]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests;
