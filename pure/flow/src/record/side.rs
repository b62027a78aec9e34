//! One direction of a record: 52 bytes.

use super::{Amount, Counters, SYN};
use crate::table::Observed;

/// Mark of a packet: it is a fragment.
pub(crate) const FRAGMENT: u8 = 1 << 3;
/// Mark: its first fragment did not arrive.
pub(crate) const ORPHAN: u8 = 1 << 4;
/// Mark: it is not the first fragment.
pub(crate) const LATER: u8 = 1 << 5;
/// Mark: it has no time.
pub(crate) const UNTIMED: u8 = 1 << 6;
/// Mark: it was in fragments, and its bytes are not those of the input.
pub(crate) const REASSEMBLED: u8 = 1 << 7;

/// Maximum distance of a side's last packet from its first: 39 hours.
pub(super) const REACH_NS: u64 = 1 << 47;

/// Upper bit of `flags`: `next_seq` is known. The lower 12 bits are those of the header.
const SEQ_KNOWN: u16 = 1 << 15;
const FLAGS: u16 = 0x0fff;
/// The count in `fragments`; the IP flags are above it.
const COUNT: u16 = 0x1fff;
pub(crate) const IP_FLAGS_SHIFT: u32 = 13;

/// If the round-trip time is unknown: a segment that arrives this soon after a later one was
/// reordered, not retransmitted.
const OVERTAKEN_NS: u64 = 3_000_000;

/// A length capped to 16 bits.
pub(crate) fn capped(len: u32) -> u16 {
    len.min(u32::from(u16::MAX)) as u16
}

/// Three sums each share a word with a 16-bit number, so that adding to one is a single addition;
/// room is ensured before, so it never reaches the upper bits.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(super) struct Direction {
    /// Bytes; above them the announced segment size.
    bytes_mss: u64,
    /// Payload bytes; above them the window of the first packet.
    payload_window: u64,
    /// Distance of the last packet from the first, in nanoseconds; above it the handshake's
    /// response time in microseconds: 12 bits shifted by the upper four.
    last_handshake: u64,
    packets: u32,
    /// The next TCP sequence number.
    next_seq: u32,
    /// Bit n for kind n below 31; bit 31 for kind 34.
    tcp_options: u32,
    flags: u16,
    /// 65535 without packets.
    len_min: u16,
    len_max: u16,
    fragments: u16,
    retransmissions: u16,
    out_of_order: u16,
    flags_first: u8,
    flags_last: u8,
    /// 255 without packets.
    ttl_min: u8,
    ttl_max: u8,
}

const _: () = assert!(size_of::<Direction>() == 52);

/// Mask of a sum.
const SUM: u64 = (1 << 48) - 1;
const UPPER_SHIFT: u32 = 48;
/// The highest bit of a sum: nothing is added after it is set.
const FULL: u64 = 1 << 47;

#[inline(always)]
fn upper(word: u64) -> u16 {
    (word >> UPPER_SHIFT) as u16
}

fn set_upper(word: u64, value: u16) -> u64 {
    word & SUM | u64::from(value) << UPPER_SHIFT
}

impl Direction {
    pub(super) const EMPTY: Direction = Direction {
        bytes_mss: 0,
        payload_window: 0,
        last_handshake: 0,
        packets: 0,
        next_seq: 0,
        tcp_options: 0,
        flags: 0,
        len_min: u16::MAX,
        len_max: 0,
        fragments: 0,
        retransmissions: 0,
        out_of_order: 0,
        flags_first: 0,
        flags_last: 0,
        ttl_min: u8::MAX,
        ttl_max: 0,
    };

    #[inline(always)]
    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes_mss & SUM
    }

    #[inline(always)]
    pub(super) fn last_ns(&self) -> u64 {
        self.last_handshake & SUM
    }

    #[inline(always)]
    pub(super) fn tcp_flags(&self) -> u16 {
        self.flags & FLAGS
    }

    #[inline(always)]
    pub(super) fn touch(&self) -> u64 {
        self.bytes_mss | u64::from(self.ttl_max)
    }

    /// Whether there are packets, and another one can be counted.
    #[inline(always)]
    pub(super) fn goes_on(&self) -> bool {
        self.packets.wrapping_sub(1) < u32::MAX - 1
            && (self.bytes_mss | self.payload_window) & FULL == 0
    }

    /// Whether this many packets can be counted: at most 2^15, with at most 2^32 bytes.
    pub(super) fn has_room_for(&self, packets: u32) -> bool {
        self.packets <= u32::MAX - packets && (self.bytes_mss | self.payload_window) & FULL == 0
    }

    /// Sets values taken from the side's first packet only.
    pub(super) fn begin(&mut self, packet: &Observed) {
        self.flags_first = packet.level.tcp_flags as u8;
        (self.ttl_min, self.ttl_max) = (packet.level.ttl, packet.level.ttl);
        self.payload_window = set_upper(self.payload_window, packet.level.tcp_window);
    }

    /// Counts a packet that arrived this long after the side's first.
    #[inline(always)]
    pub(super) fn count<const DETAIL: bool>(&mut self, packet: &Observed, passed_ns: u64) {
        self.packets += 1;
        self.bytes_mss += u64::from(packet.bytes);
        self.reach(passed_ns);
        if DETAIL {
            self.payload_window += u64::from(packet.level.payload_len);
        }
    }

    /// Extends the time span to a packet this long after the first.
    #[inline(always)]
    fn reach(&mut self, passed_ns: u64) {
        // The upper bits are the same on both sides of the comparison.
        let reached = self.last_handshake & !SUM | passed_ns;
        if reached > self.last_handshake {
            self.last_handshake = reached;
        }
    }

    /// Updates the fields of the standard record other than counters, before the packet is counted.
    #[inline(always)]
    pub(super) fn detail(&mut self, packet: &Observed, passed_ns: u64) {
        let level = &packet.level;
        // Branches that are hardly ever taken cost less than storing extremes each time.
        if level.ttl != self.ttl_min {
            self.ttl_min = self.ttl_min.min(level.ttl);
            self.ttl_max = self.ttl_max.max(level.ttl);
        }
        if packet.bytes < u32::from(self.len_min) {
            self.len_min = packet.bytes as u16;
        }
        if packet.bytes > u32::from(self.len_max) {
            self.len_max = capped(packet.bytes);
        }
        self.fragments |= u16::from(level.ip_flags) << IP_FLAGS_SHIFT;
        if packet.marks & FRAGMENT != 0 {
            self.add_fragments(1);
        }
        // TCP fields are 0 without TCP: this avoids an unpredictable branch. Later fragments have
        // no TCP header, so no flags.
        let kept = self.flags_last & u8::from(level.is_tcp).wrapping_sub(1);
        self.flags_last = level.tcp_flags as u8 | kept;
        self.tcp_options |= level.tcp_options as u32;
        if level.tcp_options >> 31 != 0 {
            self.rare_options(level.tcp_options);
        }
        let flags = u32::from(level.tcp_flags);
        let payload = level.payload_len & 0_u32.wrapping_sub(level.is_tcp.into());
        let moves = payload + (flags & 1) + (flags >> 1 & 1);
        if moves != 0 {
            if level.tcp_seq == self.next_seq && self.flags & SEQ_KNOWN != 0 {
                self.next_seq = level.tcp_seq.wrapping_add(moves);
            } else {
                self.out_of_sequence(packet, moves, passed_ns);
            }
        }
    }

    /// The sequence number after the SYN, if that has been seen, but no payload.
    pub(super) fn stream_begin(&self) -> Option<u32> {
        let has_begun = self.flags & SYN != 0 && self.flags & SEQ_KNOWN != 0;
        (has_begun && self.payload_window & SUM == 0).then_some(self.next_seq)
    }

    pub(super) fn first_flags(&self) -> u16 {
        self.flags_first.into()
    }

    /// The number after all that has come.
    pub(super) fn known_next_seq(&self) -> Option<u32> {
        (self.flags & SEQ_KNOWN != 0).then_some(self.next_seq)
    }

    /// Bit 31 stands for kind 34; the other kinds from 31 on are not assigned.
    #[cold]
    fn rare_options(&mut self, options: u64) {
        self.tcp_options &= 0x7fff_ffff;
        self.tcp_options |= ((options >> 34) as u32) << 31;
    }

    /// Handles a segment that does not begin where the previous ones end. One that begins earlier
    /// is a retransmission, or, if the side's latest packet arrived only just before, was reordered
    /// (Wireshark's rule of thumb: 3 ms, or the round-trip time of the handshake).
    #[inline(never)]
    fn out_of_sequence(&mut self, packet: &Observed, moves: u32, passed_ns: u64) {
        let (seq, flags) = (packet.level.tcp_seq, packet.level.tcp_flags);
        let end = seq.wrapping_add(moves);
        let ahead = seq.wrapping_sub(self.next_seq) as i32;
        if self.flags & SEQ_KNOWN == 0 || ahead > 0 {
            self.flags |= SEQ_KNOWN;
            self.next_seq = end;
            return;
        }
        // A keep-alive repeats the last byte.
        if ahead == -1 && moves == 1 && flags & SYN == 0 {
            return;
        }
        let round_trip_ns = u64::from(self.handshake_us()) * 1000;
        let near_ns = if round_trip_ns == 0 {
            OVERTAKEN_NS
        } else {
            round_trip_ns
        };
        let is_near = passed_ns.saturating_sub(self.last_ns()) < near_ns;
        let repeats_syn = flags & SYN != 0;
        if is_near && !repeats_syn {
            self.out_of_order = self.out_of_order.saturating_add(1);
        } else {
            self.retransmissions = self.retransmissions.saturating_add(1);
        }
        if end.wrapping_sub(self.next_seq) as i32 > 0 {
            self.next_seq = end;
        }
    }

    fn add_fragments(&mut self, count: u32) {
        let sum = (u32::from(self.fragments & COUNT).saturating_add(count)).min(COUNT.into());
        self.fragments = self.fragments & !COUNT | sum as u16;
    }

    /// Sets the time of the last packet to that of the first.
    pub(super) fn clear_last(&mut self) {
        self.last_handshake &= !SUM;
    }

    /// Adjusts the time span if the first packet turns out to be earlier.
    pub(super) fn stretch(&mut self, by_ns: u64) {
        self.last_handshake += by_ns;
    }

    /// Adds fragments that were held back; the last of them arrived this long after the side's
    /// first packet.
    pub(super) fn add_held(&mut self, held: &Amount, last_ns: u64) {
        self.packets += held.packets;
        self.bytes_mss += held.bytes;
        self.reach(last_ns.min(REACH_NS - 1));
    }

    /// Updates the fields of the standard record for them.
    pub(super) fn held_detail(&mut self, held: &Amount) {
        self.payload_window += held.payload_bytes;
        self.ttl_min = self.ttl_min.min(held.ttl_min);
        self.ttl_max = self.ttl_max.max(held.ttl_max);
        self.len_min = self.len_min.min(held.len_min);
        self.len_max = self.len_max.max(held.len_max);
        self.fragments |= held.ip_flags;
        self.add_fragments(held.packets);
    }

    pub(super) fn join_flags(&mut self, flags: u16) {
        self.flags |= flags & FLAGS;
    }

    pub(super) fn set_mss(&mut self, mss: u16) {
        self.bytes_mss = set_upper(self.bytes_mss, mss);
    }

    pub(super) fn set_handshake(&mut self, waited_ns: u64) {
        let us = (waited_ns / 1000).clamp(1, 0xfff << 15);
        let shift = (64 - us.leading_zeros()).saturating_sub(12);
        let kept = (us >> shift) as u16 | (shift as u16) << 12;
        self.last_handshake = set_upper(self.last_handshake, kept);
    }

    #[inline(always)]
    pub(super) fn handshake_us(&self) -> u32 {
        let kept = upper(self.last_handshake);
        u32::from(kept & 0xfff) << (kept >> 12)
    }

    /// Merges the side of another record; the last packet of both arrived this long after the
    /// first.
    pub(super) fn merge(&mut self, other: &Direction, last_ns: u64) {
        let add = |one: u64, two: u64| {
            let sum = ((one & SUM) + (two & SUM)).min(SUM);
            sum | u64::from(upper(one).max(upper(two))) << UPPER_SHIFT
        };
        self.bytes_mss = add(self.bytes_mss, other.bytes_mss);
        self.payload_window = add(self.payload_window, other.payload_window);
        self.last_handshake =
            add(self.last_handshake, other.last_handshake) & !SUM | last_ns.min(SUM);
        self.packets = self.packets.saturating_add(other.packets);
        self.tcp_options |= other.tcp_options;
        self.flags |= other.flags;
        self.len_min = self.len_min.min(other.len_min);
        self.len_max = self.len_max.max(other.len_max);
        self.fragments |= other.fragments & !COUNT;
        self.add_fragments((other.fragments & COUNT).into());
        let add = |one: u16, two: u16| one.saturating_add(two);
        self.retransmissions = add(self.retransmissions, other.retransmissions);
        self.out_of_order = add(self.out_of_order, other.out_of_order);
        self.ttl_min = self.ttl_min.min(other.ttl_min);
        self.ttl_max = self.ttl_max.max(other.ttl_max);
    }

    /// All counters but the times. Without detail the extremes were never updated, and are reported
    /// as 0.
    #[inline(always)]
    pub(super) fn counters(&self) -> Counters {
        let has_detail = self.len_max != 0 || self.len_min != u16::MAX;
        let options = u64::from(self.tcp_options);
        Counters {
            packets: self.packets.into(),
            bytes: self.bytes(),
            payload_bytes: self.payload_window & SUM,
            first_ns: 0,
            last_ns: 0,
            tcp_flags: self.tcp_flags(),
            tcp_flags_first: self.flags_first,
            tcp_flags_last: self.flags_last,
            // Without detail they are reversed: 255 and 0.
            ttl_min: self.ttl_min.min(self.ttl_max),
            ttl_max: self.ttl_max,
            traffic_class: 0,
            ip_flags: (self.fragments >> IP_FLAGS_SHIFT) as u8,
            len_min: if has_detail { self.len_min } else { 0 },
            len_max: self.len_max,
            fragments: self.fragments & COUNT,
            tcp_options: options & 0x7fff_ffff | (options >> 31) << 34,
            tcp_window: upper(self.payload_window),
            tcp_mss: upper(self.bytes_mss),
            retransmissions: self.retransmissions,
            out_of_order: self.out_of_order,
            handshake_us: self.handshake_us(),
        }
    }
}
