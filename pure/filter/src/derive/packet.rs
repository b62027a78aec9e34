//! Classes of packets, and the fields that tests can use, each with its pcap-filter(7) syntax.

use super::Packet;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP6: u8 = 58;

/// Encapsulation of a packet.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Class {
    pub(super) tags: u8,
    pub(super) is_v6: bool,
    pub(super) protocol: u8,
    /// Whether it is an IPv4 fragment other than the first.
    pub(super) is_fragment: bool,
}

impl Class {
    /// The class of a packet; `None` if it is not IP, or truncated before its protocol.
    pub(super) fn of(packet: &Packet<'_>) -> Option<Class> {
        let bytes = packet.bytes;
        let (is_v6, protocol, is_fragment) = match bytes.first()? >> 4 {
            6 if bytes.len() >= 7 => (true, bytes[6], false),
            // Filters test the EtherType, even if the IP version is wrong.
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

    /// Whether the packet contains all headers that have fields.
    pub(super) fn is_whole(self, packet: &Packet<'_>) -> bool {
        let least = if self.is_v6 { 40 } else { 20 };
        let len = match self.transport() {
            Some(_) => self.transport_at(packet.bytes) + self.fixed_len(),
            None => 0,
        };
        packet.bytes.len() >= len.max(least)
    }

    /// Name of the header after IP, if its bytes can be tested.
    pub(super) fn transport(self) -> Option<&'static str> {
        match (self.protocol, self.is_v6) {
            _ if self.is_fragment => None,
            (TCP, _) => Some("tcp"),
            (UDP, _) => Some("udp"),
            (ICMP, false) => Some("icmp"),
            (ICMP6, true) => Some("icmp6"),
            _ => None,
        }
    }

    /// Primitives for packets of the class, without VLAN tags. An expression that tests transport
    /// header bytes excludes fragments by itself.
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

    /// Offset of the transport header.
    pub(super) fn transport_at(self, bytes: &[u8]) -> usize {
        match self.is_v6 {
            true => 40,
            false => usize::from(bytes[0] & 0xf) * 4,
        }
    }

    /// Length of the part of the transport header that has fields of its own.
    pub(super) fn fixed_len(self) -> usize {
        match self.protocol {
            TCP => 20,
            _ => 8,
        }
    }

    /// Length from the transport header to the end of the IP packet, by the IP header: link padding
    /// does not count.
    pub(super) fn transport_len(self, bytes: &[u8]) -> usize {
        let number = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let end = match self.is_v6 {
            true => 40 + number(4),
            // Packets to be segmented by a card have no length here.
            false if number(2) == 0 => bytes.len(),
            false => number(2),
        };
        end.min(bytes.len())
            .saturating_sub(self.transport_at(bytes))
    }
}

/// Use of a field.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    /// A property of the sender: matched by its values, excluded by values of good packets.
    Stable,
    /// As `Stable`, but its values in good packets prove nothing.
    Chosen,
    /// Length or TTL: a range is also a property.
    Size,
    /// An address: a prefix is also a property.
    Address,
    /// A counter or random number: only a constant is a property.
    Volatile,
}

/// Syntax of a test.
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
    /// Whether it is in the header after IP.
    pub(super) in_transport: bool,
    pub(super) at: usize,
    /// Length: 1, 2, 4 or 16 bytes.
    pub(super) len: usize,
    pub(super) mask: u128,
    pub(super) class: Class,
}

impl Field {
    /// The value; `None` if the packet is too short.
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

    /// The syntax for its value, without the mask: `tcp[14:2]`.
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

    /// A mask of all its bits.
    pub(super) fn full(&self) -> u128 {
        match self.len {
            16 => u128::MAX,
            len => (1 << (8 * len)) - 1,
        }
    }
}

/// Name, role, offset, length and mask of a header field.
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

/// The header fields of a class.
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
