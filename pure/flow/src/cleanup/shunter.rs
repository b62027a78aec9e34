//! Shunting: of each flow only the start is handed on. An inspector finds what it looks for there,
//! and the rest, usually most of the bytes, costs it nothing.
//!
//! What a reader needs to follow a TCP connection passes in any case: segments with SYN, FIN or
//! RST, and after the limit those acknowledgements without data up to the first one that covers
//! everything handed on. (Suricata inspects bytes once they are acknowledged.) ICMP passes, and so
//! do fragments, which cannot be assigned to a flow one by one.
//!
//! A SYN begins a new connection: its flow starts from zero.
//!
//! A limit holds for both directions together, or for each of them: then a long download does not
//! hide what the client sends after it. Segments without data are acknowledgements, which count for
//! neither direction then, and pass like the data that they acknowledge.
//!
//! Connections become encrypted once both sides have sent application data of TLS, or `NEWKEYS` of
//! SSH, or an Initial packet of QUIC. Of QUIC, datagrams that begin with a long header pass then,
//! too: these are handshakes.

use inspect::encryption;
use wire::tcp::flag;
use wire::{Dissection, Fragment};

use crate::key::{FlowKey, Ports, Side};
use crate::{HashKey, Shunt};

/// Number of flows that are remembered: 16 MiB.
const FLOW_COUNT: usize = 1 << 18;

/// Places in which a flow may be remembered.
const WAYS: usize = 4;

/// Time without a packet after which the place of a flow may be used again, in seconds. Flows that
/// have not reached a limit lose little then.
const IDLE_S: u32 = 120;
const IDLE_SHORT_S: u32 = 10;

const IP_TCP: u8 = 6;
const IP_UDP: u8 = 17;
const IP_ICMP: u8 = 1;
const IP_ICMPV6: u8 = 58;

/// Behind a limit of each direction.
const DIRECTION: &str = "/direction";

/// How much of a flow is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShuntLimits {
    /// The start of the flow, by the lengths of packets on the wire. At most 2^32 - 1 bytes and
    /// 65535 packets count; more is no limit.
    pub start: Shunt,
    /// Whether the start is that of each direction, and not of both together.
    pub per_direction: bool,
    /// Nothing more after both sides of a connection have become encrypted: TLS, SSH, QUIC.
    pub encrypted: bool,
}

impl ShuntLimits {
    /// Parses a list of limits: `64k` or `1M` (bytes), `20` (packets), `encrypted`. With
    /// `/direction` behind it (`64k/direction`), bytes and packets are those of each direction.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut limits = Self {
            start: Shunt {
                packets: u64::MAX,
                bytes: u64::MAX,
            },
            per_direction: false,
            encrypted: false,
        };
        let mut are_together = false;
        for whole in text.split(',') {
            let part = whole.strip_suffix(DIRECTION);
            let (part, is_of_one) = part.map_or((whole, false), |part| (part, true));
            let (digits, unit) = match part.as_bytes() {
                b"encrypted" if !is_of_one => {
                    limits.encrypted = true;
                    continue;
                }
                [.., b'k' | b'K'] => (&part[..part.len() - 1], 10),
                [.., b'M'] => (&part[..part.len() - 1], 20),
                _ => (part, 0),
            };
            let max = if unit == 0 {
                u16::MAX.into()
            } else {
                u64::from(u32::MAX)
            };
            let number = digits.parse::<u64>().ok();
            let number = number.and_then(|it| it.checked_mul(1 << unit));
            let Some(number) = number.filter(|it| (1..=max).contains(it)) else {
                return Err(format!(
                    "expected bytes (64k, 1M), packets (20, at most 65535) or encrypted, not \
                     {whole:?}; behind bytes and packets, /direction is possible"
                ));
            };
            limits.per_direction |= is_of_one;
            are_together |= !is_of_one;
            match unit {
                0 => limits.start.packets = number,
                _ => limits.start.bytes = number,
            }
        }
        if limits.per_direction && are_together {
            return Err(format!(
                "{text:?}: put {DIRECTION} behind both limits, or behind none"
            ));
        }
        Ok(limits)
    }
}

impl std::fmt::Display for ShuntLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        let Shunt { packets, bytes } = self.start;
        let of = if self.per_direction { DIRECTION } else { "" };
        if packets != u64::MAX {
            write!(f, "{packets}{of}")?;
            separator = ",";
        }
        if bytes != u64::MAX {
            match bytes.is_multiple_of(1 << 20) {
                true => write!(f, "{separator}{}M{of}", bytes >> 20)?,
                false => write!(f, "{separator}{}k{of}", bytes >> 10)?,
            }
            separator = ",";
        }
        match self.encrypted {
            true => write!(f, "{separator}encrypted"),
            false => Ok(()),
        }
    }
}

/// What is known of one side of a flow, as bits of [`Flow::marks`] for side A; those of side B
/// follow.
const DATA: u16 = 1;
const ACKNOWLEDGED: u16 = 1 << 1;
/// A handshake record of TLS.
const HELLO: u16 = 1 << 2;
/// The identification of SSH.
const SSH: u16 = 1 << 3;
const ENCRYPTED: u16 = 1 << 4;
/// It has reached a limit of its own.
const PAST: u16 = 1 << 5;

#[inline]
fn of(side: Side, mark: u16) -> u16 {
    mark << (8 * side as u16)
}

#[inline]
fn of_both(mark: u16) -> u16 {
    of(Side::A, mark) | of(Side::B, mark)
}

/// A flow: one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Flow {
    key: FlowKey,
    /// Time of its last packet, in seconds.
    last_s: u32,
    /// End of the bytes handed on from A and B: a sequence number.
    ends: [u32; 2],
    bytes: u32,
    packets: u16,
    marks: u16,
}

const _: () = assert!(size_of::<Flow>() == 64);

impl Flow {
    const NONE: Flow = Flow {
        key: FlowKey::NONE,
        last_s: 0,
        ends: [0; 2],
        bytes: 0,
        packets: 0,
        marks: 0,
    };

    /// Whether it is as long as is handed on: both directions together, or one of them.
    fn is_past(&self, limits: &ShuntLimits) -> bool {
        match limits.per_direction {
            true => self.marks & of_both(PAST) != 0,
            false => has_reached(self.bytes, self.packets, limits),
        }
    }

    fn is_encrypted(&self, limits: &ShuntLimits) -> bool {
        let both = of_both(ENCRYPTED);
        limits.encrypted && self.marks & both == both
    }

    fn is_over(&self, limits: &ShuntLimits) -> bool {
        self.is_past(limits) || self.is_encrypted(limits)
    }

    /// Whether the flow's place may be used for another one.
    fn is_idle(&self, limits: &ShuntLimits, now_s: u32) -> bool {
        let max = if self.is_over(limits) {
            IDLE_S
        } else {
            IDLE_SHORT_S
        };
        self.packets == 0 || now_s.saturating_sub(self.last_s) > max
    }
}

fn has_reached(bytes: u32, packets: u16, limits: &ShuntLimits) -> bool {
    u64::from(bytes) >= limits.start.bytes || u64::from(packets) >= limits.start.packets
}

/// What was counted of each side of a flow.
#[derive(Clone, Copy, Default)]
struct Sides {
    bytes: [u32; 2],
    packets: [u16; 2],
}

impl Sides {
    fn is_past(&self, side: Side, limits: &ShuntLimits) -> bool {
        let at = side as usize;
        has_reached(self.bytes[at], self.packets[at], limits)
    }

    fn add(&mut self, side: Side, wire_len: u32) {
        let at = side as usize;
        self.bytes[at] = self.bytes[at].saturating_add(wire_len);
        self.packets[at] = self.packets[at].saturating_add(1);
    }
}

/// Decides which packets of flows are handed on.
pub struct Shunter {
    secret: HashKey,
    limits: ShuntLimits,
    flows: Box<[[Flow; WAYS]]>,
    /// The sides of the flows in the same places, if limits are those of each direction; otherwise
    /// empty.
    sides: Box<[[Sides; WAYS]]>,
    untracked: u64,
}

impl Shunter {
    /// Creates a shunter without flows.
    pub fn new(secret: HashKey, limits: ShuntLimits) -> Self {
        let sides = match limits.per_direction {
            true => FLOW_COUNT / WAYS,
            false => 0,
        };
        Self {
            secret,
            limits,
            flows: vec![[Flow::NONE; WAYS]; FLOW_COUNT / WAYS].into(),
            sides: vec![[Sides::default(); WAYS]; sides].into(),
            untracked: 0,
        }
    }

    /// Packets that passed because the table had no place for their flow.
    pub fn untracked(&self) -> u64 {
        self.untracked
    }

    /// Whether the packet is not to be handed on. `level` is the innermost one of the packet, with
    /// this length on the wire.
    #[inline]
    pub fn is_shunted(
        &mut self,
        packet: &[u8],
        level: &Dissection,
        wire_len: u32,
        time_ns: u64,
    ) -> bool {
        let protocol = level.ip_protocol;
        let is_whole = level.ip_version != 0 && level.fragment == Fragment::Whole;
        let is_tcp = protocol == IP_TCP;
        if !is_whole || matches!(protocol, IP_ICMP | IP_ICMPV6) || (is_tcp && !level.has_ports()) {
            return false;
        }
        let ports = Ports {
            src: level.src_port,
            dst: level.dst_port,
            is_answer: false,
        };
        let version = level.ip_version;
        let (key, side) = FlowKey::new(&level.src, &level.dst, ports, protocol, version, false);
        let now_s = (time_ns / 1_000_000_000) as u32;
        let limits = self.limits;
        let Some((flow, mut sides)) = self.flow(&key, now_s) else {
            self.untracked += 1;
            return false;
        };
        flow.last_s = now_s;
        let flags = if is_tcp { level.tcp_flags } else { 0 };
        if flags & (flag::SYN | flag::ACK) == flag::SYN {
            *flow = Flow {
                key,
                last_s: now_s,
                ..Flow::NONE
            };
            if let Some(sides) = &mut sides {
                **sides = Sides::default();
            }
        }
        let is_bare = is_tcp && level.payload_len == 0;
        let is_past = match &sides {
            Some(sides) if is_bare => sides.is_past(side.other(), &limits),
            Some(sides) => sides.is_past(side, &limits),
            None => flow.is_past(&limits),
        };
        let is_over = is_past
            || (flow.is_encrypted(&limits)
                && (is_tcp || encryption::is_quic_short(level.payload(packet))));
        flow.bytes = flow.bytes.saturating_add(wire_len);
        flow.packets = flow.packets.saturating_add(1);
        if let Some(sides) = sides.filter(|_| !is_bare) {
            sides.add(side, wire_len);
            if sides.is_past(side, &limits) {
                flow.marks |= of(side, PAST);
            }
        }
        if !is_over {
            if is_tcp && level.payload_len != 0 {
                flow.pass(packet, level, side, limits.encrypted);
            } else if protocol == IP_UDP && limits.encrypted {
                flow.pass_datagram(level.payload(packet), side);
            }
            return false;
        }
        let always = flag::SYN | flag::FIN | flag::RST;
        !(flags & always != 0 || (is_tcp && flow.is_needed(level, side)))
    }

    /// The flow of a key, with its sides; `None` if the table has no place for it.
    #[inline]
    fn flow(&mut self, key: &FlowKey, now_s: u32) -> Option<(&mut Flow, Option<&mut Sides>)> {
        let limits = self.limits;
        let hash = key.hash_with(&self.secret);
        let at = (hash >> 32) as usize % self.flows.len();
        let places = self.flows.get_mut(at)?;
        let mut sides = self.sides.get_mut(at);
        let is_it = |flow: &Flow| flow.key == *key;
        // A flow that has been forgotten begins again, also in its old place.
        let is_idle = |flow: &Flow| flow.is_idle(&limits, now_s);
        let place = match places.iter().position(is_it) {
            Some(place) if now_s.saturating_sub(places[place].last_s) <= IDLE_S => place,
            old => {
                let place = old.or_else(|| places.iter().position(is_idle))?;
                places[place] = Flow {
                    key: *key,
                    ..Flow::NONE
                };
                if let Some(sides) = &mut sides {
                    sides[place] = Sides::default();
                }
                place
            }
        };
        let sides = sides.and_then(|sides| sides.get_mut(place));
        places.get_mut(place).map(|flow| (flow, sides))
    }
}

impl Flow {
    /// Notes a segment with data that is handed on.
    #[inline]
    fn pass(&mut self, packet: &[u8], level: &Dissection, side: Side, is_read: bool) {
        let end = level.tcp_seq.wrapping_add(level.payload_len);
        let place = &mut self.ends[side as usize];
        let is_later = end.wrapping_sub(*place).cast_signed() > 0;
        if self.marks & of(side, DATA) == 0 || is_later {
            *place = end;
        }
        self.marks |= of(side, DATA);
        if is_read && self.marks & of(side, ENCRYPTED) == 0 {
            let payload = level.payload(packet);
            self.marks |= self.ssh(payload, side) | self.tls(payload, side);
        }
    }

    /// Notes a datagram that is handed on.
    #[inline]
    fn pass_datagram(&mut self, payload: &[u8], side: Side) {
        if self.marks & of(side, ENCRYPTED) == 0 && encryption::begins_quic(payload) {
            self.marks |= of(side, ENCRYPTED);
        }
    }

    /// Whether a segment after the limit acknowledges data that was handed on, or comes before the
    /// one that does.
    #[inline]
    fn is_needed(&mut self, level: &Dissection, side: Side) -> bool {
        let (peer, flags) = (side.other(), level.tcp_flags);
        let is_open = self.marks & of(peer, DATA | ACKNOWLEDGED) == of(peer, DATA);
        if !is_open || level.payload_len != 0 || flags & flag::ACK == 0 {
            return false;
        }
        let ahead = level.tcp_ack.wrapping_sub(self.ends[peer as usize]);
        if ahead.cast_signed() >= 0 {
            self.marks |= of(peer, ACKNOWLEDGED);
        }
        true
    }

    /// The marks that a segment adds as SSH: `NEWKEYS` counts after both sides have identified
    /// themselves.
    fn ssh(&self, payload: &[u8], side: Side) -> u16 {
        let both = of_both(SSH);
        let mut marks = 0;
        if self.marks & of(side, SSH) == 0 && encryption::begins_ssh(payload) {
            marks = of(side, SSH);
        }
        if (self.marks | marks) & both == both && encryption::has_ssh_newkeys(payload) {
            marks |= of(side, ENCRYPTED);
        }
        marks
    }

    /// The marks that the TLS records at the start of a segment add (RFC 8446 section 5.1):
    /// application data counts after both sides have sent handshake records.
    fn tls(&self, mut payload: &[u8], side: Side) -> u16 {
        const RECORD_COUNT_MAX: usize = 8;
        /// Of TLS 1.2 (RFC 5246 section 6.2.3).
        const RECORD_LEN_MAX: usize = (1 << 14) + 2048;
        const HANDSHAKE: u8 = 22;
        const APPLICATION_DATA: u8 = 23;
        let mut marks = self.marks;
        let hellos = of_both(HELLO);
        for _ in 0..RECORD_COUNT_MAX {
            let &[kind @ 20..=23, 3, 0..=4, high, low, ref rest @ ..] = payload else {
                break;
            };
            let len = usize::from(u16::from_be_bytes([high, low]));
            if len == 0 || len > RECORD_LEN_MAX {
                break;
            }
            match kind {
                HANDSHAKE => marks |= of(side, HELLO),
                APPLICATION_DATA if marks & hellos == hellos => marks |= of(side, ENCRYPTED),
                _ => {}
            }
            payload = rest.get(len..).unwrap_or(&[]);
        }
        marks
    }
}

#[cfg(test)]
mod tests;
