//! The record of a biflow: 128 bytes, two cache lines.

use crate::expire::Class;
use crate::key::{FlowKey, Side};
use crate::table::Observed;

/// TCP flags (RFC 9293 §3.1).
pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const ACK: u16 = 0x10;

/// What is counted of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets; fragments count one each.
    pub packets: u64,
    /// Bytes: IP headers and all behind them, or whole packets, as the meter was told.
    pub bytes: u64,
    /// Bytes of payload, behind the transport header.
    pub payload_bytes: u64,
    /// Time of the earliest packet, in nanoseconds since the Unix epoch; 0 without packets.
    pub first_ns: u64,
    /// Time of the latest packet.
    pub last_ns: u64,
    /// Union of the TCP flags: the lower 12 bits of bytes 12 and 13 of the header.
    pub tcp_flags: u16,
    /// Least TTL or hop limit; 0 without packets.
    pub ttl_min: u8,
}

/// A biflow. Directions are kept by [`Side`]; [`Record::initiator`] says which side began.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Record {
    key: FlowKey,
    /// The table's clock at the last packet, in ticks. In a free record: the next free one.
    seen: u32,
    /// `u64::MAX` without packets.
    first_ns: [u64; 2],
    last_ns: [u64; 2],
    bytes: [u64; 2],
    payload_bytes: [u64; 2],
    packets: [u32; 2],
    tcp_flags: [u16; 2],
    /// 255 without packets.
    ttl_min: [u8; 2],
    class: Class,
    state: u8,
}

const _: () = assert!(size_of::<Record>() == 128);

/// B began.
const INITIATOR_B: u8 = 1 << 0;
/// A SYN has told who began.
const SYN_SEEN: u8 = 1 << 1;

/// What packets add to one direction of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) tcp_flags: u16,
    pub(crate) ttl_min: u8,
}

impl Record {
    /// A flow without packets yet, begun by `initiator` as far as known.
    #[inline]
    pub(crate) fn new(key: FlowKey, initiator: Side) -> Record {
        Record {
            key,
            seen: 0,
            first_ns: [u64::MAX; 2],
            last_ns: [0; 2],
            bytes: [0; 2],
            payload_bytes: [0; 2],
            packets: [0; 2],
            tcp_flags: [0; 2],
            ttl_min: [u8::MAX; 2],
            class: Class::of(key.protocol()),
            state: if initiator == Side::B { INITIATOR_B } else { 0 },
        }
    }

    /// Adds packets that `side` sent. `seen` is the table's clock in ticks.
    #[inline]
    pub(crate) fn add(&mut self, side: Side, amount: &Amount, seen: u32) {
        let at = side as usize;
        self.seen = seen;
        self.first_ns[at] = self.first_ns[at].min(amount.first_ns);
        self.last_ns[at] = self.last_ns[at].max(amount.last_ns);
        self.bytes[at] = self.bytes[at].saturating_add(amount.bytes);
        self.payload_bytes[at] = self.payload_bytes[at].saturating_add(amount.payload_bytes);
        self.packets[at] += amount.packets;
        self.ttl_min[at] = self.ttl_min[at].min(amount.ttl_min);
        self.tcp_flags[at] |= amount.tcp_flags;
        if amount.tcp_flags & (FIN | SYN | RST) != 0 {
            self.turn(side, amount.tcp_flags);
        }
    }

    /// Adds one packet. The same as [`Record::add`] with an amount of one packet, without making
    /// one.
    #[inline]
    pub(crate) fn add_one(&mut self, packet: &Observed, seen: u32) {
        let at = packet.side as usize;
        self.seen = seen;
        self.first_ns[at] = self.first_ns[at].min(packet.time_ns);
        self.last_ns[at] = self.last_ns[at].max(packet.time_ns);
        // 2^32 packets of 2^32 bytes fit.
        self.bytes[at] += u64::from(packet.bytes);
        self.payload_bytes[at] += u64::from(packet.payload_bytes);
        self.packets[at] += 1;
        self.ttl_min[at] = self.ttl_min[at].min(packet.ttl);
        self.tcp_flags[at] |= packet.tcp_flags;
        if packet.tcp_flags & (FIN | SYN | RST) != 0 {
            self.turn(packet.side, packet.tcp_flags);
        }
    }

    /// A packet that begins or ends a connection.
    #[inline(never)]
    fn turn(&mut self, side: Side, flags: u16) {
        if flags & SYN != 0 && self.state & SYN_SEEN == 0 {
            let initiator = if flags & ACK == 0 { side } else { side.other() };
            self.state &= !INITIATOR_B;
            self.state |= SYN_SEEN;
            if initiator == Side::B {
                self.state |= INITIATOR_B;
            }
        }
        let [a, b] = self.tcp_flags;
        if a & b & FIN != 0 || (a | b) & RST != 0 {
            self.class = Class::Closed;
        }
    }

    /// Whether so many packets more can be counted.
    #[inline]
    pub(crate) fn has_room(&self, side: Side, packets: u32) -> bool {
        self.packets[side as usize] <= u32::MAX - packets
    }

    #[inline]
    pub(crate) fn seen(&self) -> u32 {
        self.seen
    }

    #[inline]
    pub(crate) fn class(&self) -> Class {
        self.class
    }

    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.key.is_some()
    }

    /// Makes this a free record.
    #[inline]
    pub(crate) fn free(&mut self, next: u32) {
        self.key = FlowKey::NONE;
        self.seen = next;
    }

    /// Takes in another record of the same flow: counters add up, times widen, flags join. Who
    /// began is kept from the one that saw a SYN, else from the earlier one. Used where the two
    /// directions of a flow went through different tables.
    pub fn merge(&mut self, other: &Record) {
        let other_knows = other.state & SYN_SEEN != 0;
        let other_is_earlier = other.start_ns() < self.start_ns();
        if self.state & SYN_SEEN == 0 && (other_knows || other_is_earlier) {
            self.state = (self.state & !INITIATOR_B) | (other.state & (INITIATOR_B | SYN_SEEN));
        }
        if other.is_closed() {
            self.class = Class::Closed;
        }
        for at in 0..2 {
            self.first_ns[at] = self.first_ns[at].min(other.first_ns[at]);
            self.last_ns[at] = self.last_ns[at].max(other.last_ns[at]);
            self.bytes[at] = self.bytes[at].saturating_add(other.bytes[at]);
            self.payload_bytes[at] = self.payload_bytes[at].saturating_add(other.payload_bytes[at]);
            self.packets[at] = self.packets[at].saturating_add(other.packets[at]);
            self.tcp_flags[at] |= other.tcp_flags[at];
            self.ttl_min[at] = self.ttl_min[at].min(other.ttl_min[at]);
        }
        let [a, b] = self.tcp_flags;
        if a & b & FIN != 0 {
            self.class = Class::Closed;
        }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// The side that began: of a TCP connection the one that sent SYN (or did not send SYN+ACK), of
    /// an ICMP exchange the one that asked, else the sender of the first packet seen.
    #[inline]
    pub fn initiator(&self) -> Side {
        if self.state & INITIATOR_B == 0 {
            Side::A
        } else {
            Side::B
        }
    }

    /// Whether TCP has ended it: a reset, or FIN from both sides.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.class == Class::Closed
    }

    /// Whether only one side has sent.
    #[inline]
    pub fn is_one_way(&self) -> bool {
        self.packets[0] == 0 || self.packets[1] == 0
    }

    /// The side that sent, if only one did; else A.
    #[inline]
    pub(crate) fn sender(&self) -> Side {
        if self.packets[0] == 0 {
            Side::B
        } else {
            Side::A
        }
    }

    /// What a side sent.
    #[inline]
    pub fn sent_by(&self, side: Side) -> Counters {
        let at = side as usize;
        if self.packets[at] == 0 {
            return Counters::default();
        }
        Counters {
            packets: self.packets[at].into(),
            bytes: self.bytes[at],
            payload_bytes: self.payload_bytes[at],
            first_ns: self.first_ns[at],
            last_ns: self.last_ns[at],
            tcp_flags: self.tcp_flags[at],
            ttl_min: self.ttl_min[at],
        }
    }

    /// What the initiator sent.
    pub fn forward(&self) -> Counters {
        self.sent_by(self.initiator())
    }

    /// What the other side sent.
    pub fn reverse(&self) -> Counters {
        self.sent_by(self.initiator().other())
    }

    /// Packets of both directions.
    #[inline]
    pub fn packets(&self) -> u64 {
        u64::from(self.packets[0]) + u64::from(self.packets[1])
    }

    /// Bytes of both directions.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes[0].saturating_add(self.bytes[1])
    }

    /// Time of the earliest packet, in nanoseconds since the Unix epoch.
    #[inline]
    pub fn start_ns(&self) -> u64 {
        self.first_ns[0].min(self.first_ns[1])
    }

    /// Time of the latest packet.
    #[inline]
    pub fn end_ns(&self) -> u64 {
        self.last_ns[0].max(self.last_ns[1])
    }

    /// From the earliest to the latest packet.
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

impl Record {
    /// Loads both cache lines.
    #[inline(always)]
    pub(crate) fn touch(&self) -> u64 {
        u64::from(self.seen) | self.payload_bytes[0]
    }
}
