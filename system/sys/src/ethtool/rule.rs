//! Rules of a card's steering table: `struct ethtool_rx_flow_spec` of Linux
//! `include/uapi/linux/ethtool.h`, and their form on the command line of ethtool(8).

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

const TCP_V4: u32 = 1;
const UDP_V4: u32 = 2;
const SCTP_V4: u32 = 3;
/// Added to a flow type with ports for IPv6.
const TO_V6: u32 = 4;
const IPV4_USER: u32 = 0x0d;
const IPV6_USER: u32 = 0x0e;
const ETHER: u32 = 0x12;
const FLOW_EXT: u32 = 1 << 31;
const FLOW_MAC_EXT: u32 = 1 << 30;
const FLOW_RSS: u32 = 1 << 29;

/// `ETH_RX_NFC_IP4`.
const VERSION_4: u8 = 1;

/// Offsets in a specification of its parts: values, further values, and the masks of both.
const VALUES: usize = 4;
const MORE_VALUES: usize = 56;
/// Distance from values to their masks.
const TO_MASK: usize = 72;
/// Length of the type, the values and the masks.
const SPEC_LEN: usize = 148;

/// A comparison of the bits of a field that are set in a mask; the mask 0 means any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked<T> {
    /// The value, 0 outside the mask.
    pub value: T,
    /// The compared bits.
    pub mask: T,
}

/// Fields of an IP packet that a rule compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFields {
    /// IPv6 instead of IPv4.
    pub is_v6: bool,
    /// The source address; an IPv4 address is in the low 32 bits.
    pub source: Masked<u128>,
    /// The destination address.
    pub destination: Masked<u128>,
    /// Type of service or traffic class.
    pub tos: Masked<u8>,
    /// The protocol after the header.
    pub protocol: Option<u8>,
    /// The source port; only compared if the protocol is TCP, UDP or SCTP.
    pub source_port: Masked<u16>,
    /// The destination port, likewise.
    pub destination_port: Masked<u16>,
}

/// What a rule compares besides the destination MAC address and the VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    /// The Ethernet header only.
    Ethernet {
        /// The source MAC address, in the low 48 bits.
        source: Masked<u64>,
        /// The EtherType.
        ether_type: Option<u16>,
    },
    /// Fields of an IP packet.
    Ip(IpFields),
}

/// The packets that a rule selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The destination MAC address, in the low 48 bits.
    pub destination: Masked<u64>,
    /// The TPID of the VLAN tag.
    pub vlan_type: Option<u16>,
    /// The tag control information of the VLAN tag.
    pub vlan_tci: Masked<u16>,
    /// The other fields.
    pub fields: Fields,
}

/// The type, values and masks of a rule as the kernel has them, without queue and location.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RuleSpec([u8; SPEC_LEN]);

impl fmt::Debug for RuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl RuleSpec {
    pub(super) const LEN: usize = SPEC_LEN;

    pub(super) fn of_bytes(bytes: &[u8; SPEC_LEN]) -> RuleSpec {
        RuleSpec(*bytes)
    }

    pub(super) fn bytes(&self) -> &[u8; SPEC_LEN] {
        &self.0
    }

    fn flow_type(&self) -> u32 {
        self.0[..4].try_into().map_or(0, u32::from_ne_bytes)
    }

    /// Whether it spreads packets by an RSS context instead of one queue.
    pub fn has_context(&self) -> bool {
        self.flow_type() & FLOW_RSS != 0
    }

    /// Whether both select the same packets; drivers may report values outside the masks.
    pub fn is_same(&self, other: &RuleSpec) -> bool {
        let len = TO_MASK;
        let compared = |spec: &RuleSpec| -> Vec<u8> {
            let values = &spec.0[VALUES..VALUES + len];
            let masks = &spec.0[VALUES + len..];
            values.iter().zip(masks).map(|(v, m)| v & m).collect()
        };
        self.flow_type() == other.flow_type()
            && self.0[VALUES + len..] == other.0[VALUES + len..]
            && compared(self) == compared(other)
    }

    /// Hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses the output of [`to_hex`](Self::to_hex).
    pub fn from_hex(text: &str) -> Option<RuleSpec> {
        let text = text.as_bytes();
        if text.len() != 2 * SPEC_LEN {
            return None;
        }
        let mut bytes = [0; SPEC_LEN];
        for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).ok()?;
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(RuleSpec(bytes))
    }

    /// Sets bytes and their mask, at an offset in the specification.
    fn set(&mut self, at: usize, value: &[u8], mask: &[u8]) {
        self.0[at..at + value.len()].copy_from_slice(value);
        self.0[at + TO_MASK..at + TO_MASK + mask.len()].copy_from_slice(mask);
    }

    fn set_short(&mut self, at: usize, field: Masked<u16>) {
        let Masked { value, mask } = field;
        self.set(at, &value.to_be_bytes(), &mask.to_be_bytes());
    }

    fn set_mac(&mut self, at: usize, field: Masked<u64>) {
        let (value, mask) = (field.value.to_be_bytes(), field.mask.to_be_bytes());
        self.set(at, &value[2..], &mask[2..]);
    }
}

impl Rule {
    /// The rule as the kernel has it.
    pub fn spec(&self) -> RuleSpec {
        let mut spec = RuleSpec([0; SPEC_LEN]);
        let is_ip = matches!(self.fields, Fields::Ip(_));
        let mut flow_type = match &self.fields {
            Fields::Ethernet { source, ether_type } => {
                spec.set_mac(VALUES, self.destination);
                spec.set_mac(VALUES + 6, *source);
                if let Some(value) = *ether_type {
                    let mask = u16::MAX;
                    spec.set_short(VALUES + 12, Masked { value, mask });
                }
                ETHER
            }
            Fields::Ip(ip) if ip.is_v6 => v6(ip, &mut spec),
            Fields::Ip(ip) => v4(ip, &mut spec),
        };
        if is_ip && self.destination.mask != 0 {
            spec.set_mac(MORE_VALUES + 2, self.destination);
            flow_type |= FLOW_MAC_EXT;
        }
        if let Some(value) = self.vlan_type {
            let mask = u16::MAX;
            spec.set_short(MORE_VALUES + 8, Masked { value, mask });
        }
        if self.vlan_tci.mask != 0 {
            spec.set_short(MORE_VALUES + 10, self.vlan_tci);
        }
        if self.vlan_type.is_some() || self.vlan_tci.mask != 0 {
            flow_type |= FLOW_EXT;
        }
        spec.0[..4].copy_from_slice(&flow_type.to_ne_bytes());
        spec
    }
}

/// The flow type of a protocol with ports over IPv4.
fn with_ports(protocol: Option<u8>) -> Option<u32> {
    match protocol? {
        6 => Some(TCP_V4),
        17 => Some(UDP_V4),
        132 => Some(SCTP_V4),
        _ => None,
    }
}

fn v4(ip: &IpFields, spec: &mut RuleSpec) -> u32 {
    for (at, field) in [(0, ip.source), (4, ip.destination)] {
        let [value, mask] = [field.value, field.mask].map(|n| (n as u32).to_be_bytes());
        spec.set(VALUES + at, &value, &mask);
    }
    spec.set(VALUES + 12, &[ip.tos.value], &[ip.tos.mask]);
    if let Some(flow_type) = with_ports(ip.protocol) {
        spec.set_short(VALUES + 8, ip.source_port);
        spec.set_short(VALUES + 10, ip.destination_port);
        return flow_type;
    }
    spec.set(VALUES + 13, &[VERSION_4], &[0]);
    if let Some(protocol) = ip.protocol {
        spec.set(VALUES + 14, &[protocol], &[0xff]);
    }
    IPV4_USER
}

fn v6(ip: &IpFields, spec: &mut RuleSpec) -> u32 {
    for (at, field) in [(0, ip.source), (16, ip.destination)] {
        let [value, mask] = [field.value, field.mask].map(u128::to_be_bytes);
        spec.set(VALUES + at, &value, &mask);
    }
    spec.set(VALUES + 36, &[ip.tos.value], &[ip.tos.mask]);
    if let Some(flow_type) = with_ports(ip.protocol) {
        spec.set_short(VALUES + 32, ip.source_port);
        spec.set_short(VALUES + 34, ip.destination_port);
        return flow_type + TO_V6;
    }
    if let Some(protocol) = ip.protocol {
        spec.set(VALUES + 37, &[protocol], &[0xff]);
    }
    IPV6_USER
}

impl fmt::Display for Rule {
    /// Formats it as the arguments of `ethtool -N IFACE flow-type`, where the bits set in a mask
    /// are those that are not compared.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fields {
            Fields::Ethernet { source, ether_type } => {
                f.write_str("ether")?;
                mac(f, "src", *source)?;
                mac(f, "dst", self.destination)?;
                if let Some(number) = ether_type {
                    write!(f, " proto {number:#x}")?;
                }
            }
            Fields::Ip(ip) => {
                write!(f, "{ip}")?;
                mac(f, "dst-mac", self.destination)?;
            }
        }
        if let Some(number) = self.vlan_type {
            write!(f, " vlan-etype {number:#x}")?;
        }
        let Masked { value, mask } = self.vlan_tci;
        match mask {
            0 => Ok(()),
            u16::MAX => write!(f, " vlan {value:#x}"),
            _ => write!(f, " vlan {value:#x} m {:#x}", !mask),
        }
    }
}

fn mac(f: &mut fmt::Formatter<'_>, name: &str, field: Masked<u64>) -> fmt::Result {
    const ALL: u64 = 0xffff_ffff_ffff;
    let text = |number: u64| {
        let bytes = number.to_be_bytes();
        let digits: Vec<_> = bytes[2..].iter().map(|b| format!("{b:02x}")).collect();
        digits.join(":")
    };
    match field.mask {
        0 => Ok(()),
        ALL => write!(f, " {name} {}", text(field.value)),
        mask => write!(f, " {name} {} m {}", text(field.value), text(!mask & ALL)),
    }
}

impl fmt::Display for IpFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.is_v6 { 6 } else { 4 };
        let name = match self.protocol {
            Some(6) => "tcp",
            Some(17) => "udp",
            Some(132) => "sctp",
            _ => "ip",
        };
        write!(f, "{name}{version}")?;
        let address = |number: u128| match self.is_v6 {
            true => Ipv6Addr::from_bits(number).to_string(),
            false => Ipv4Addr::from_bits(number as u32).to_string(),
        };
        let all = if self.is_v6 {
            u128::MAX
        } else {
            u32::MAX.into()
        };
        for (name, field) in [("src-ip", self.source), ("dst-ip", self.destination)] {
            if field.mask != 0 {
                write!(f, " {name} {}", address(field.value))?;
                if field.mask != all {
                    write!(f, " m {}", address(!field.mask & all))?;
                }
            }
        }
        if let Masked { value, mask: 1.. } = self.tos {
            let name = if self.is_v6 { "tclass" } else { "tos" };
            write!(f, " {name} {value:#x}")?;
            if self.tos.mask != u8::MAX {
                write!(f, " m {:#x}", !self.tos.mask)?;
            }
        }
        if name == "ip"
            && let Some(protocol) = self.protocol
        {
            write!(f, " l4proto {protocol}")?;
        }
        for (name, field) in [
            ("src-port", self.source_port),
            ("dst-port", self.destination_port),
        ] {
            if field.mask != 0 {
                write!(f, " {name} {}", field.value)?;
                if field.mask != u16::MAX {
                    write!(f, " m {:#x}", !field.mask)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
