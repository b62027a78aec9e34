//! The record of a biflow: 176 bytes; with its share of the index a flow takes 192.
//!
//! Fields common to both directions come first, then 52 bytes for each direction, so a packet
//! accesses the head and one side. Sums have 48 bits, times of the last packet are relative to the
//! first, and rare counters have 16 bits and saturate; a record whose sums would overflow ends, and
//! the next one continues.

use crate::expire::Class;
use crate::key::{FlowKey, Side};
use crate::table::Observed;

mod places;
mod side;

use side::Direction;
pub(crate) use side::{FRAGMENT, IP_FLAGS_SHIFT, LATER, ORPHAN, REASSEMBLED, UNTIMED, capped};

/// TCP flags (RFC 9293 §3.1).
pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const ACK: u16 = 0x10;

/// Counters of one direction. The names in parentheses are those of the IPFIX information elements
/// for the value. Fields that are not recorded are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets; each fragment counts as one (packetDeltaCount).
    pub packets: u64,
    /// Bytes: IP headers and everything after them, or whole packets, as configured in the meter
    /// (octetDeltaCount, layer2OctetDeltaCount).
    pub bytes: u64,
    /// Bytes of payload, after the transport header.
    pub payload_bytes: u64,
    /// Time of the earliest packet, in nanoseconds since the Unix epoch; 0 without packets
    /// (flowStartNanoseconds).
    pub first_ns: u64,
    /// Time of the latest packet (flowEndNanoseconds).
    pub last_ns: u64,
    /// Union of the TCP flags: the low 12 bits of bytes 12 and 13 of the header (tcpControlBits).
    pub tcp_flags: u16,
    /// The low eight flags of the side's first packet (initialTCPFlags).
    pub tcp_flags_first: u8,
    /// The low eight flags of the side's last packet.
    pub tcp_flags_last: u8,
    /// Minimum TTL or hop limit; 0 without packets (minimumTTL).
    pub ttl_min: u8,
    /// Maximum TTL or hop limit (maximumTTL).
    pub ttl_max: u8,
    /// Type of service or traffic class of the side's first packet (ipClassOfService).
    pub traffic_class: u8,
    /// Union of the IPv4 header flags: 4 reserved, 2 don't fragment, 1 more fragments
    /// (fragmentFlags, there shifted left by five).
    pub ip_flags: u8,
    /// Length of the smallest packet, counted as `bytes` are; 65535 means that or more
    /// (minimumIpTotalLength).
    pub len_min: u16,
    /// Length of the largest packet; 65535 means that or more (maximumIpTotalLength).
    pub len_max: u16,
    /// Number of fragments; 8191 means that or more.
    pub fragments: u16,
    /// Set of TCP options: bit n for kind n (tcpOptions). Kinds 0 to 30 and 34: all below 64 that
    /// are assigned.
    pub tcp_options: u64,
    /// Window of the side's first packet, unscaled (tcpWindowSize).
    pub tcp_window: u16,
    /// Maximum segment size that the side announced; 0 if it did not.
    pub tcp_mss: u16,
    /// Segments that repeat earlier bytes; 65535 means that or more.
    pub retransmissions: u16,
    /// Segments that arrived after later ones; 65535 means that or more.
    pub out_of_order: u16,
    /// Response time of the side in the TCP handshake, as observed here, in microseconds, to one
    /// part in 2048; 0 if not seen: the responder's SYN+ACK after SYN, the initiator's ACK after
    /// SYN+ACK.
    pub handshake_us: u32,
}

/// A biflow. Directions are indexed by [`Side`]; [`Record::initiator`] is the side that started the
/// flow.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Record {
    key: FlowKey,
    /// The table's clock at the last packet, in ticks. In a free record: the next free one.
    seen: u32,
    /// Times of the first packets; `u64::MAX` without packets.
    first_ns: [u64; 2],
    /// IPv4 options of both sides.
    ip_options: u32,
    class: Class,
    state: u8,
    /// Traffic classes of each side's first packet.
    traffic_class: [u8; 2],
    sides: [Direction; 2],
}

const _: () = assert!(size_of::<Record>() == 176);

/// B is the initiator.
const INITIATOR_B: u8 = 1 << 0;
/// The initiator was identified by packets: a SYN, or the reply to a request.
const KNOWN: u8 = 1 << 1;
/// Contains one direction only: the meter separates directions.
const UNIFLOW: u8 = 1 << 2;
/// Contains fragments whose first one did not arrive.
const ORPHANS: u8 = 1 << 3;
/// The inspector needs no more packets of this flow. Not part of the exported record.
const INSPECTED: u8 = 1 << 4;
/// Contains packets without a time.
const HAS_UNTIMED: u8 = 1 << 5;

/// Counters of packets that were held back, to be added together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) ttl_min: u8,
    pub(crate) ttl_max: u8,
    pub(crate) ip_flags: u16,
    pub(crate) len_min: u16,
    pub(crate) len_max: u16,
    pub(crate) ip_options: u32,
}

impl Record {
    /// Creates a flow without packets, started by `initiator` as far as known.
    #[inline]
    pub(crate) fn new(key: FlowKey, initiator: Side, known: bool, uniflow: bool) -> Record {
        let mut state = if initiator == Side::B { INITIATOR_B } else { 0 };
        state |= if known { KNOWN } else { 0 };
        state |= if uniflow { UNIFLOW } else { 0 };
        Record {
            key,
            seen: 0,
            first_ns: [u64::MAX; 2],
            ip_options: 0,
            class: Class::of(key.protocol()),
            state,
            traffic_class: [0; 2],
            sides: [Direction::EMPTY; 2],
        }
    }

    /// Whether a packet of this side and time needs only [`Record::add_one`]: it is not the side's
    /// first or earliest, and no sum overflows.
    #[inline(always)]
    pub(crate) fn is_plain(&self, packet: &Observed) -> bool {
        let at = packet.side as usize;
        packet.time_ns.wrapping_sub(self.first_ns[at]) < side::REACH_NS && self.sides[at].goes_on()
    }

    /// Adds a packet for which [`Record::is_plain`] is true.
    #[inline(always)]
    pub(crate) fn add_one<const DETAIL: bool>(&mut self, packet: &Observed, seen: u32) {
        let at = packet.side as usize;
        self.seen = seen;
        let flags = packet.level.tcp_flags;
        let known = self.sides[at].tcp_flags();
        // A flag new to the union, or one that begins or ends a connection.
        if (flags & !known) | (flags & (FIN | SYN | RST)) != 0 {
            self.turn::<DETAIL>(packet);
        }
        let passed_ns = packet.time_ns.wrapping_sub(self.first_ns[at]);
        let side = &mut self.sides[at];
        if DETAIL {
            side.detail(packet, passed_ns);
            self.ip_options |= packet.level.ip_options;
        }
        side.count::<DETAIL>(packet, passed_ns);
    }

    /// Adds any packet; [`Record::has_room`] must be true.
    pub(crate) fn add_any<const DETAIL: bool>(&mut self, packet: &Observed, seen: u32) {
        self.open(packet.side, packet.time_ns);
        let at = packet.side as usize;
        self.mark(packet);
        if DETAIL && self.sides[at].packets() == 0 {
            self.traffic_class[at] = packet.level.traffic_class;
            self.sides[at].begin(packet);
        }
        self.add_one::<DETAIL>(packet, seen);
    }

    /// Adds packets that were held back. They are fragments, like `packet`.
    pub(crate) fn add_held<const DETAIL: bool>(
        &mut self,
        packet: &Observed,
        held: &Amount,
        seen: u32,
    ) {
        let at = packet.side as usize;
        self.seen = seen;
        self.open(packet.side, held.first_ns);
        let last_ns = held.last_ns - self.first_ns[at];
        if DETAIL {
            if self.sides[at].packets() == 0 {
                self.traffic_class[at] = packet.level.traffic_class;
            }
            self.sides[at].held_detail(held);
            self.ip_options |= held.ip_options;
        }
        self.sides[at].add_held(held, last_ns);
        self.mark(packet);
    }

    /// Takes over marks of a packet that concern the whole record.
    #[inline]
    fn mark(&mut self, packet: &Observed) {
        if packet.marks & ORPHAN != 0 {
            self.state |= ORPHANS;
        }
        if packet.marks & UNTIMED != 0 {
            self.state |= HAS_UNTIMED;
        }
    }

    /// Makes the time of a side's first packet no later than this.
    fn open(&mut self, side: Side, time_ns: u64) {
        let at = side as usize;
        let first_ns = self.first_ns[at];
        if time_ns < first_ns {
            if first_ns != u64::MAX {
                self.sides[at].stretch(first_ns - time_ns);
            }
            self.first_ns[at] = time_ns;
        }
    }

    /// Handles a packet with new flags, or flags that begin or end a connection, before it is
    /// counted.
    #[inline(never)]
    fn turn<const DETAIL: bool>(&mut self, packet: &Observed) {
        let (side, flags) = (packet.side, packet.level.tcp_flags);
        let (at, to) = (side as usize, side.other() as usize);
        if flags & SYN != 0 && self.state & (KNOWN | UNIFLOW) == 0 {
            let initiator = if flags & ACK == 0 { side } else { side.other() };
            self.state &= !INITIATOR_B;
            self.state |= KNOWN;
            if initiator == Side::B {
                self.state |= INITIATOR_B;
            }
        }
        let (mine, theirs) = (self.sides[at].tcp_flags(), self.sides[to].tcp_flags());
        if DETAIL {
            // A reply to SYN if there was nothing but SYN; likewise a reply to SYN+ACK.
            let answers_syn = flags & (SYN | ACK) == SYN | ACK
                && mine == 0
                && theirs & (SYN | ACK | FIN | RST) == SYN;
            let answers_both = flags & (SYN | ACK | RST) == ACK
                && mine & (SYN | ACK) == SYN
                && theirs & (SYN | ACK | PSH | FIN | RST) == SYN | ACK;
            let is_timed = packet.marks & UNTIMED == 0;
            if is_timed && (answers_syn || answers_both) {
                let asked_ns = self.last_ns(to);
                if let Some(waited_ns) = packet.time_ns.checked_sub(asked_ns) {
                    self.sides[at].set_handshake(waited_ns);
                }
            }
            if flags & SYN != 0 && packet.tcp_mss != 0 {
                self.sides[at].set_mss(packet.tcp_mss);
            }
        }
        self.sides[at].join_flags(flags);
        self.close_if_over();
    }

    fn close_if_over(&mut self) {
        let [a, b] = [self.sides[0].tcp_flags(), self.sides[1].tcp_flags()];
        let over = if self.state & UNIFLOW == 0 {
            a & b & FIN | (a | b) & RST
        } else {
            (a | b) & (FIN | RST)
        };
        if over != 0 {
            self.class = Class::Closed;
        }
    }

    /// Whether these packets can be counted without overflow.
    #[inline]
    pub(crate) fn has_room(&self, side: Side, packets: u32, first_ns: u64, last_ns: u64) -> bool {
        let at = side as usize;
        let first = self.first_ns[at];
        let spread_ns = if first == u64::MAX {
            last_ns - first_ns
        } else {
            self.last_ns(at).max(last_ns) - first.min(first_ns)
        };
        self.sides[at].has_room_for(packets) && spread_ns < side::REACH_NS
    }

    #[inline(always)]
    fn last_ns(&self, at: usize) -> u64 {
        if self.first_ns[at] == u64::MAX {
            0
        } else {
            self.first_ns[at] + self.sides[at].last_ns()
        }
    }

    #[inline]
    pub(crate) fn seen(&self) -> u32 {
        self.seen
    }

    pub(crate) fn set_seen(&mut self, tick: u32) {
        self.seen = tick;
    }

    #[inline]
    pub(crate) fn class(&self) -> Class {
        self.class
    }

    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.key.is_some()
    }

    /// Turns this into a free record.
    #[inline]
    pub(crate) fn free(&mut self, next: u32) {
        self.key = FlowKey::NONE;
        self.seen = next;
    }

    /// Merges another record of the same flow: counters are added, the time span is extended, flags
    /// are united. The initiator is taken from the record in which packets identified it, otherwise
    /// from the earlier one. Used if the two directions of a flow were in different tables.
    pub fn merge(&mut self, other: &Record) {
        let other_knows = other.state & KNOWN != 0;
        let other_is_earlier = other.start_ns() < self.start_ns();
        if self.state & KNOWN == 0 && (other_knows || other_is_earlier) {
            let who = INITIATOR_B | KNOWN;
            self.state = (self.state & !who) | (other.state & who);
        }
        self.state |= other.state & (ORPHANS | HAS_UNTIMED);
        if other.is_closed() {
            self.class = Class::Closed;
        }
        self.ip_options |= other.ip_options;
        for at in 0..2 {
            if other.sides[at].packets() == 0 {
                continue;
            }
            if self.sides[at].packets() == 0 {
                self.sides[at] = other.sides[at];
                self.first_ns[at] = other.first_ns[at];
                self.traffic_class[at] = other.traffic_class[at];
                continue;
            }
            let last_ns = self.last_ns(at).max(other.last_ns(at));
            if other.first_ns[at] < self.first_ns[at] {
                self.first_ns[at] = other.first_ns[at];
                self.traffic_class[at] = other.traffic_class[at];
            }
            let spread_ns = last_ns - self.first_ns[at];
            self.sides[at].merge(&other.sides[at], spread_ns);
        }
        self.close_if_over();
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// The initiator: for a TCP connection the sender of SYN (or the receiver of SYN+ACK), for an
    /// ICMP exchange the sender of the request; for a TCP connection whose beginning was not seen,
    /// the side whose port is not below 1024 if the other's is; otherwise the sender of the first
    /// packet seen.
    #[inline]
    pub fn initiator(&self) -> Side {
        if self.state & INITIATOR_B == 0 {
            Side::A
        } else {
            Side::B
        }
    }

    /// Whether packets identified the initiator (SYN, SYN+ACK, an ICMP reply). Otherwise it is a
    /// best guess (biflowDirection).
    #[inline]
    pub fn is_initiator_known(&self) -> bool {
        self.state & KNOWN != 0
    }

    /// Whether it is one direction of a connection, because the meter separates directions
    /// (uniflow).
    #[inline]
    pub fn is_uniflow(&self) -> bool {
        self.state & UNIFLOW != 0
    }

    /// Whether it contains fragments whose first one did not arrive, so that their ports are
    /// unknown.
    #[inline]
    pub fn has_orphans(&self) -> bool {
        self.state & ORPHANS != 0
    }

    /// Whether packets in it have no time: then neither has the record, and [`Record::start_ns`]
    /// and [`Record::end_ns`] are 0 in records that have ended.
    #[inline]
    pub fn is_untimed(&self) -> bool {
        self.state & HAS_UNTIMED != 0
    }

    /// The record without the times that only served its timeouts.
    pub(crate) fn without_times(mut self) -> Record {
        for (first_ns, side) in self.first_ns.iter_mut().zip(&mut self.sides) {
            if *first_ns != u64::MAX {
                *first_ns = 0;
                side.clear_last();
            }
        }
        self
    }

    /// Whether TCP has ended it: by a reset, or FIN from both sides.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.class == Class::Closed
    }

    /// Whether only one side has sent.
    #[inline]
    pub fn is_one_way(&self) -> bool {
        self.sides[0].packets() == 0 || self.sides[1].packets() == 0
    }

    /// The side that sent, if only one did; otherwise A.
    #[inline]
    pub(crate) fn sender(&self) -> Side {
        if self.sides[0].packets() == 0 {
            Side::B
        } else {
            Side::A
        }
    }

    /// Set of IPv4 options of both directions: bit n for option number n (the bits of ipv4Options
    /// in RFC 7012's registry have a different order).
    #[inline]
    pub fn ipv4_options(&self) -> u32 {
        if self.key.ip_version() == 4 {
            self.ip_options
        } else {
            0
        }
    }

    /// Set of IPv6 extension headers of both directions, as in ipv6ExtensionHeaders: the bits are
    /// those of `wire::ipv6_ext::bit`.
    #[inline]
    pub fn ipv6_extension_headers(&self) -> u32 {
        if self.key.ip_version() == 6 {
            self.ip_options
        } else {
            0
        }
    }

    /// Round-trip time of the TCP handshake in microseconds: SYN to SYN+ACK, and SYN+ACK to ACK;
    /// `None` if one of them was not seen.
    pub fn handshake_us(&self) -> Option<u32> {
        let [a, b] = [self.sides[0].handshake_us(), self.sides[1].handshake_us()];
        (a != 0 && b != 0).then(|| a.saturating_add(b))
    }

    /// Counters of the packets sent by a side.
    #[inline]
    pub fn sent_by(&self, side: Side) -> Counters {
        if self.packets_of(side) == 0 {
            return Counters::default();
        }
        self.sent_by_sender(side)
    }

    /// Number of packets sent by a side.
    #[inline(always)]
    pub fn packets_of(&self, side: Side) -> u32 {
        self.sides[side as usize].packets()
    }

    /// TCP: the sequence number of a side's first byte, if its SYN has been seen, but no payload.
    pub fn stream_begin(&self, side: Side) -> Option<u32> {
        self.sides[side as usize].stream_begin()
    }

    /// Whether its packets need no further inspection.
    #[inline(always)]
    pub(crate) fn is_inspected(&self) -> bool {
        self.state & INSPECTED != 0
    }

    pub(crate) fn set_inspected(&mut self) {
        self.state |= INSPECTED;
    }

    /// TCP: union of a side's flags.
    pub(crate) fn tcp_flags(&self, side: Side) -> u16 {
        self.sides[side as usize].tcp_flags()
    }

    /// TCP: whether the first packet of a side had these flags.
    pub(crate) fn has_begun_with(&self, side: Side, flags: u16) -> bool {
        self.sides[side as usize].first_flags() & flags == flags
    }

    /// TCP: the next sequence number of a side, if known.
    pub(crate) fn next_seq(&self, side: Side) -> Option<u32> {
        self.sides[side as usize].known_next_seq()
    }

    /// Counters of a side that has sent packets. Encoders fuse this with the fields they read, so
    /// that nothing else is computed.
    #[inline(always)]
    pub(crate) fn sent_by_sender(&self, side: Side) -> Counters {
        let at = side as usize;
        Counters {
            first_ns: self.first_ns[at],
            last_ns: self.first_ns[at].wrapping_add(self.sides[at].last_ns()),
            traffic_class: self.traffic_class[at],
            ..self.sides[at].counters()
        }
    }

    /// Counters of the packets sent by the initiator.
    pub fn forward(&self) -> Counters {
        self.sent_by(self.initiator())
    }

    /// Counters of the packets sent by the responder.
    pub fn reverse(&self) -> Counters {
        self.sent_by(self.initiator().other())
    }

    /// Packets of both directions.
    #[inline]
    pub fn packets(&self) -> u64 {
        u64::from(self.sides[0].packets()) + u64::from(self.sides[1].packets())
    }

    /// Bytes of both directions.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.sides[0].bytes() + self.sides[1].bytes()
    }

    /// Time of the earliest packet, in nanoseconds since the Unix epoch.
    #[inline]
    pub fn start_ns(&self) -> u64 {
        self.first_ns[0].min(self.first_ns[1])
    }

    /// Time of the latest packet.
    #[inline]
    pub fn end_ns(&self) -> u64 {
        self.last_ns(0).max(self.last_ns(1))
    }

    /// Time from the earliest to the latest packet.
    #[inline]
    pub fn duration_ns(&self) -> u64 {
        self.end_ns().saturating_sub(self.start_ns())
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} begun by {:?}: {:?} / {:?}",
            self.key,
            self.initiator(),
            self.forward(),
            self.reverse()
        )
    }
}

#[cfg(test)]
pub(crate) mod tests;
