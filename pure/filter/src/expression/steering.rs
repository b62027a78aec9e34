//! Converts an expression to rules for the steering table of a network card (`ethtool -N`), where
//! such rules can express it.
//!
//! The parsed condition is expanded to a union of conjunctions of masked comparisons of bytes
//! (`cube`). Each conjunction must consist of fields that the kernel's rule format has
//! (`struct ethtool_rx_flow_spec` of Linux `include/uapi/linux/ethtool.h`).
//!
//! A rule states less than a filter about packets that a card does not parse to the end. Tests that
//! only say where the transport header is (no later fragment) are omitted, and so is the
//! alternative of libpcap's for a protocol after an IPv6 fragment header.

mod cube;
#[cfg(test)]
mod tests;

use super::lower::{IP, IPV6};
use super::{Options, TEXT_LEN_MAX, Tag, parse};
use crate::{Error, Result};
use cube::{Cube, Place};

/// Maximum number of rules for one expression. Cards hold some hundreds or thousands.
pub const RULE_COUNT_MAX: usize = 256;

const TPIDS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const FRAGMENT: u8 = 44;
const ARP: u32 = 0x806;

/// What rules can test, for error messages.
const POSSIBLE: &str = "rules of a card test MAC addresses, EtherTypes, VLAN numbers, IP addresses \
                        with masks, the type of service, protocols, and ports of TCP, UDP and \
                        SCTP, joined by \"and\" and \"or\"";

/// A comparison of the bits of a field that are set in a mask; the mask 0 means any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Masked<T> {
    /// The value, 0 outside the mask.
    pub value: T,
    /// The compared bits.
    pub mask: T,
}

/// Fields of an IP packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ip {
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
    /// The source port, tested only if the protocol is TCP, UDP or SCTP.
    pub source_port: Masked<u16>,
    /// The destination port, likewise.
    pub destination_port: Masked<u16>,
}

/// What a rule tests besides the destination MAC address and the VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// The Ethernet header only.
    Ethernet {
        /// The source MAC address, in the low 48 bits.
        source: Masked<u64>,
        /// The EtherType, after a VLAN tag if there is one.
        ether_type: Option<u16>,
    },
    /// Fields of an IP packet.
    Ip(Ip),
}

/// A rule: the packets for which all comparisons are true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The destination MAC address, in the low 48 bits.
    pub destination: Masked<u64>,
    /// The TPID of the VLAN tag; `None` for any.
    pub vlan_type: Option<u16>,
    /// The tag control information of the VLAN tag; a mask of 0 if the tag is not tested.
    pub vlan_tci: Masked<u16>,
    /// The other fields.
    pub layer: Layer,
}

/// The rules of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Each packet of the expression matches at least one of these.
    pub list: Vec<Rule>,
    /// Whether the expression also matches fragments of IPv6, which the rules do not.
    pub omits_fragments: bool,
}

/// Converts an expression for Ethernet to rules.
///
/// # Errors
/// As [`compile`](super::compile); and [`Error::is_unsupported`] if rules cannot express it, it
/// matches every packet, or it would need more than [`RULE_COUNT_MAX`] rules.
pub fn rules(text: &str, options: &Options) -> Result<Rules> {
    if text.len() > TEXT_LEN_MAX {
        let what = "the expression is too long";
        return Err(Error::new(TEXT_LEN_MAX..text.len(), what));
    }
    let options = Options {
        link_type: 1,
        tap: None,
        ..*options
    };
    let refused = |what: String| Error::unsupported(0..text.len(), what).expected(POSSIBLE);
    let parsed = parse::parse(text, &options, Tag::InPacket)?;
    let cubes = cube::union(&parsed.cond).map_err(refused)?;
    let mut rules = Rules::default();
    for cube in cubes {
        match rule(cube).map_err(refused)? {
            Some(rule) if !rules.list.contains(&rule) => rules.list.push(rule),
            Some(_) => {}
            None => rules.omits_fragments = true,
        }
    }
    rules.list = any_tpid(&rules.list);
    if rules.list.is_empty() {
        return Err(refused("no rule of a card selects a packet of it".into()));
    }
    if rules.list.len() > RULE_COUNT_MAX {
        let what = format!("it would need {} rules of the card", rules.list.len());
        let most = format!("at most {RULE_COUNT_MAX}; select prefixes and fewer ports");
        return Err(Error::unsupported(0..text.len(), what).expected(most));
    }
    Ok(rules)
}

/// Joins rules that differ only in the TPID if there is one for each: cards compare the tag alone.
fn any_tpid(rules: &[Rule]) -> Vec<Rule> {
    let mut joined = Vec::new();
    for rule in rules {
        let other = |tpid| Rule {
            vlan_type: Some(tpid),
            ..*rule
        };
        let is_any = rule.vlan_type.is_some() && TPIDS.iter().all(|&t| rules.contains(&other(t)));
        let rule = Rule {
            vlan_type: rule.vlan_type.filter(|_| !is_any),
            ..*rule
        };
        if !joined.contains(&rule) {
            joined.push(rule);
        }
    }
    joined
}

/// The rule of a conjunction; `None` for the alternative about IPv6 fragments.
fn rule(mut cube: Cube) -> std::result::Result<Option<Rule>, String> {
    if cube.is_empty() {
        return Err("it matches every packet".into());
    }
    let ether_type = cube.take_whole(12, "the EtherType")?;
    let tpid = ether_type.filter(|tpid| TPIDS.contains(tpid));
    let mut vlan_tci = Masked::default();
    let (mut ether_type, mut network) = (ether_type, 14);
    if tpid.is_some() {
        vlan_tci = cube.take_short(Place::Packet(14));
        if vlan_tci.mask == 0 {
            return Err("rules of a card test a VLAN tag by its number: write \"vlan 5\"".into());
        }
        (ether_type, network) = (cube.take_whole(16, "the EtherType")?, 18);
    }
    let destination = cube.take_mac(0);
    let source = cube.take_mac(6);
    let is_ip = matches!(ether_type.map(u32::from), Some(IP | IPV6));
    let layer = match is_ip && !cube.is_empty() {
        false => Layer::Ethernet { source, ether_type },
        true if source.mask != 0 => {
            let what = "rules of a card do not test a source MAC address together with IP fields";
            return Err(what.into());
        }
        true => match ip(&mut cube, ether_type.map(u32::from) == Some(IPV6), network)? {
            Some(ip) => Layer::Ip(ip),
            None => return Ok(None),
        },
    };
    if let Some(place) = cube.first() {
        return Err(match ether_type.map(u32::from) {
            Some(ARP | 0x8035) => {
                "rules of a card do not test addresses in ARP packets: write \"ip host\" instead \
                 of \"host\""
                    .into()
            }
            _ => format!("rules of a card do not test {place}"),
        });
    }
    Ok(Some(Rule {
        destination,
        vlan_type: tpid,
        vlan_tci,
        layer,
    }))
}

/// The fields of an IP header at an offset, and of the transport header after it.
fn ip(cube: &mut Cube, is_v6: bool, network: u32) -> std::result::Result<Option<Ip>, String> {
    let at = |offset| Place::Packet(network + offset);
    // The version follows from the EtherType.
    let version = cube.take_bits(at(0), 0xf0);
    if version.value & 0xf0 != (if is_v6 { 0x60 } else { 0x40 }) & version.mask {
        return Err("its version of IP contradicts the EtherType".into());
    }
    let protocol = cube.take_byte(at(if is_v6 { 6 } else { 9 }));
    if !matches!(protocol.mask, 0 | 0xff) {
        return Err("rules of a card test a whole protocol number, not parts of it".into());
    }
    let protocol = (protocol.mask != 0).then_some(protocol.value);
    let has_ports = matches!(protocol, Some(TCP | UDP | SCTP));
    let mut ip = Ip {
        is_v6,
        protocol,
        ..Ip::default()
    };
    let mut ports = None;
    if is_v6 {
        let (high, low) = (cube.take_bits(at(0), 0x0f), cube.take_bits(at(1), 0xf0));
        ip.tos = Masked {
            value: high.value << 4 | low.value >> 4,
            mask: high.mask << 4 | low.mask >> 4,
        };
        if protocol == Some(FRAGMENT) && cube.take_byte(at(40)).mask != 0 {
            return Ok(None);
        }
        ip.source = cube.take_long(at(8), 16);
        ip.destination = cube.take_long(at(24), 16);
        ports = has_ports.then_some(at(40));
    } else {
        ip.tos = cube.take_byte(at(1));
        ip.source = cube.take_long(at(12), 4);
        ip.destination = cube.take_long(at(16), 4);
        if has_ports {
            // Where there are ports, this is no later fragment.
            cube.take_zero(at(6), 0x1f);
            cube.take_zero(at(7), 0xff);
            ports = Some(Place::Transport { network, offset: 0 });
        }
    }
    if let Some(place) = ports {
        ip.source_port = cube.take_short(place);
        ip.destination_port = cube.take_short(place.plus(2));
    }
    Ok(Some(ip))
}
