//! What packets are grouped by, and the fields that tests can be made of, each with the words of
//! pcap-filter(7) for it.

use super::Packet;

/// Bytes of options and payload that are compared.
const BYTES_MAX: usize = 64;
/// Bytes after the fixed header of TCP that may be options.
const OPTIONS_MAX: usize = 40;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP6: u8 = 58;

/// What carries a packet.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Class {
    pub(super) tags: u8,
    pub(super) is_v6: bool,
    pub(super) protocol: u8,
    /// Not the first fragment of an IPv4 packet.
    pub(super) is_fragment: bool,
}

impl Class {
    /// `None` for what is no IP packet, or cut before its protocol.
    pub(super) fn of(packet: &Packet<'_>) -> Option<Class> {
        let bytes = packet.bytes;
        let (is_v6, protocol, is_fragment) = match bytes.first()? >> 4 {
            6 if bytes.len() >= 7 => (true, bytes[6], false),
            // Filters go by the EtherType, also where the version is wrong.
            0..=5 | 7.. if bytes.len() >= 10 => {
                let offset = u16::from_be_bytes([bytes[6], bytes[7]]) & 0x1fff;
                (false, bytes[9], offset != 0)
            }
            _ => return None,
        };
        Some(Class {
            tags: packet.tags,
            is_v6,
            protocol,
            is_fragment,
        })
    }

    /// Whether the packet has all of the headers that have fields.
    pub(super) fn is_whole(self, packet: &Packet<'_>) -> bool {
        let least = if self.is_v6 { 40 } else { 20 };
        let len = match self.transport() {
            Some(_) => self.transport_at(packet.bytes) + self.fixed_len(),
            None => 0,
        };
        packet.bytes.len() >= len.max(least)
    }

    /// The name of the header after that of IP, if bytes of it can be tested.
    fn transport(self) -> Option<&'static str> {
        match (self.protocol, self.is_v6) {
            _ if self.is_fragment => None,
            (TCP, _) => Some("tcp"),
            (UDP, _) => Some("udp"),
            (ICMP, false) => Some("icmp"),
            (ICMP6, true) => Some("icmp6"),
            _ => None,
        }
    }

    /// The primitives for packets of the class, without their tags. An expression that tests
    /// bytes of the transport header excludes fragments by that.
    pub(super) fn words(self, has_transport_test: bool) -> String {
        let mut text = match (self.is_v6, self.transport()) {
            (false, Some("tcp")) => "ip and tcp".to_owned(),
            (false, Some("udp")) => "ip and udp".to_owned(),
            (false, Some(name)) => name.to_owned(),
            (false, None) => format!("ip proto {}", self.protocol),
            (true, _) => format!("ip6 and ip6[6] = {}", self.protocol),
        };
        if self.is_fragment {
            text += " and ip[6:2] & 0x1fff != 0";
        } else if !self.is_v6 && !has_transport_test {
            text += " and ip[6:2] & 0x1fff = 0";
        }
        text
    }

    /// Bytes before the transport header.
    fn transport_at(self, bytes: &[u8]) -> usize {
        match self.is_v6 {
            true => 40,
            false => usize::from(bytes[0] & 0xf) * 4,
        }
    }

    /// Bytes of the transport header that have fields of their own.
    fn fixed_len(self) -> usize {
        match self.protocol {
            TCP => 20,
            _ => 8,
        }
    }

    /// The end of what the IP header says is in the packet, from its transport header: link
    /// padding is no part of it.
    fn transport_len(self, bytes: &[u8]) -> usize {
        let number = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let end = match self.is_v6 {
            true => 40 + number(4),
            // Packets that a card will segment have no length here.
            false if number(2) == 0 => bytes.len(),
            false => number(2),
        };
        end.min(bytes.len())
            .saturating_sub(self.transport_at(bytes))
    }
}

/// How a field is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    /// A property of who sends: tested by its values, excluded by values of good packets.
    Stable,
    /// As `Stable`, but what good packets have in it proves nothing.
    Chosen,
    /// Length or TTL: a range is a property, too.
    Size,
    /// An address: a prefix is a property, too.
    Address,
    /// Counts or is drawn at random, so only a constant is a property.
    Volatile,
}

/// Which words test a field.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Form {
    /// Bytes of a header: `tcp[14:2]`.
    Bytes,
    /// `src host`, `dst net`.
    Address { is_source: bool },
    /// `src port`, `dst portrange`.
    Port { is_source: bool },
}

/// A field of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) form: Form,
    /// In the header after that of IP.
    pub(super) in_transport: bool,
    pub(super) at: usize,
    /// 1, 2, 4 or 16 bytes.
    pub(super) len: usize,
    pub(super) mask: u128,
    pub(super) class: Class,
}

impl Field {
    /// The value; `None` where the packet is too short.
    pub(super) fn value(&self, packet: &Packet<'_>) -> Option<u128> {
        let start = match self.in_transport {
            true => self.class.transport_at(packet.bytes) + self.at,
            false => self.at,
        };
        let bytes = packet.bytes.get(start..start + self.len)?;
        let number = bytes
            .iter()
            .fold(0u128, |number, byte| number << 8 | u128::from(*byte));
        Some(number & self.mask)
    }

    /// The words for its value, without the mask: `tcp[14:2]`.
    pub(super) fn load(&self) -> String {
        let (base, at) = match (self.in_transport, self.class.is_v6) {
            (false, false) => ("ip", self.at),
            (false, true) => ("ip6", self.at),
            (true, false) => (self.class.transport().unwrap_or("ip"), self.at),
            (true, true) => ("ip6", 40 + self.at),
        };
        match self.len {
            1 => format!("{base}[{at}]"),
            len => format!("{base}[{at}:{len}]"),
        }
    }

    /// All bits of it.
    pub(super) fn full(&self) -> u128 {
        match self.len {
            16 => u128::MAX,
            len => (1 << (8 * len)) - 1,
        }
    }
}

/// Name, role, offset, length and mask of a field of a header.
type Row = (&'static str, Role, usize, usize, u128);

use Role::{Address, Chosen, Size, Stable, Volatile};

#[rustfmt::skip]
const IPV4: &[Row] = &[
    ("length of the IP header", Stable, 0, 1, 0x0f), ("DSCP and ECN", Stable, 1, 1, 0xff),
    ("total length", Size, 2, 2, 0xffff), ("identification", Volatile, 4, 2, 0xffff),
    ("IP flags", Stable, 6, 1, 0xe0), ("TTL", Size, 8, 1, 0xff),
    ("source address", Address, 12, 4, 0xffff_ffff),
    ("destination address", Address, 16, 4, 0xffff_ffff),
];
#[rustfmt::skip]
const IPV6: &[Row] = &[
    ("traffic class", Stable, 0, 2, 0x0ff0), ("flow label", Volatile, 0, 4, 0xf_ffff),
    ("payload length", Size, 4, 2, 0xffff), ("hop limit", Size, 7, 1, 0xff),
    ("source address", Address, 8, 16, u128::MAX),
    ("destination address", Address, 24, 16, u128::MAX),
];
#[rustfmt::skip]
const OF_TCP: &[Row] = &[
    ("source port", Chosen, 0, 2, 0xffff), ("destination port", Stable, 2, 2, 0xffff),
    ("sequence number", Volatile, 4, 4, 0xffff_ffff),
    ("acknowledgment number", Volatile, 8, 4, 0xffff_ffff),
    ("data offset", Stable, 12, 1, 0xff), ("TCP flags", Stable, 13, 1, 0xff),
    ("window", Stable, 14, 2, 0xffff), ("urgent pointer", Stable, 18, 2, 0xffff),
];
#[rustfmt::skip]
const OF_UDP: &[Row] = &[
    ("source port", Chosen, 0, 2, 0xffff), ("destination port", Stable, 2, 2, 0xffff),
    ("UDP length", Size, 4, 2, 0xffff),
];
#[rustfmt::skip]
const OF_ICMP: &[Row] = &[
    ("ICMP type", Stable, 0, 1, 0xff), ("ICMP code", Stable, 1, 1, 0xff),
    ("ICMP rest of header", Volatile, 4, 4, 0xffff_ffff),
];

/// The fields of the headers of a class.
pub(super) fn fields(class: Class) -> Vec<Field> {
    let field = |row: &Row, in_transport: bool| {
        let (name, role, at, len, mask) = *row;
        let is_source = name.starts_with("source");
        let form = match name {
            "source address" | "destination address" => Form::Address { is_source },
            "source port" | "destination port" => Form::Port { is_source },
            _ => Form::Bytes,
        };
        Field {
            name,
            role,
            form,
            in_transport,
            at,
            len,
            mask,
            class,
        }
    };
    let network = if class.is_v6 { IPV6 } else { IPV4 };
    let transport = match class.transport() {
        Some("tcp") => OF_TCP,
        Some("udp") => OF_UDP,
        Some(_) => OF_ICMP,
        None => &[],
    };
    let network = network.iter().map(|row| field(row, false));
    let transport = transport.iter().map(|row| field(row, true));
    network.chain(transport).collect()
}

/// A word of options or payload, with the bytes that all packets have in common as the mask.
pub(super) struct Word {
    pub(super) field: Field,
    pub(super) value: u128,
}

/// Bytes behind the fixed headers that all packets share, by words.
pub(super) fn shared_bytes(class: Class, packets: &[Packet<'_>]) -> Vec<Word> {
    let (Some(first), Some(_)) = (packets.first(), class.transport()) else {
        return Vec::new();
    };
    let start = class.fixed_len();
    let shortest = packets.iter().map(|p| class.transport_len(p.bytes)).min();
    let end = shortest.unwrap_or(0).min(start + BYTES_MAX);
    let byte = |packet: &Packet<'_>, at: usize| packet.bytes[class.transport_at(packet.bytes) + at];
    let mut shared: Vec<Option<u8>> = (start..end)
        .map(|at| {
            let value = byte(first, at);
            let is_shared = packets.iter().all(|packet| byte(packet, at) == value);
            is_shared.then_some(value)
        })
        .collect();
    if class.protocol == TCP {
        for packet in packets {
            forget_timestamps(&mut shared, |at| byte(packet, start + at));
        }
    }
    let words = shared.chunks(4).enumerate();
    words
        .filter_map(|(index, bytes)| {
            // Loads are of 1, 2 or 4 bytes.
            let len = [4, 2, 1].into_iter().find(|len| *len <= bytes.len())?;
            let number = |of: &dyn Fn(&Option<u8>) -> u8| {
                let bytes = bytes[..len].iter();
                bytes.fold(0u128, |number, byte| number << 8 | u128::from(of(byte)))
            };
            let mask = number(&|byte| if byte.is_some() { 0xff } else { 0 });
            let at = start + 4 * index;
            let field = Field {
                name: "options and payload",
                role: Stable,
                form: Form::Bytes,
                in_transport: true,
                at,
                len,
                mask,
                class,
            };
            let value = number(&|byte| byte.unwrap_or(0));
            (mask != 0).then_some(Word { field, value })
        })
        .collect()
}

/// The values of a timestamp option are times: equal bytes of them prove nothing, unless they are
/// 0.
fn forget_timestamps(shared: &mut [Option<u8>], byte: impl Fn(usize) -> u8) {
    let mut at = 0;
    while at + 1 < shared.len().min(OPTIONS_MAX) {
        let len = match byte(at) {
            0 => return,
            1 => 1,
            _ => usize::from(byte(at + 1)).max(2),
        };
        if byte(at) == 8 && len == 10 {
            for value in shared.iter_mut().skip(at + 2).take(8) {
                *value = value.filter(|value| *value == 0);
            }
        }
        at += len;
    }
}
