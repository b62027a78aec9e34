//! Primitives without an identifier, and access to the bytes of a protocol.

use std::ops::Range;

use bpf::cbpf::{ANCILLARY_BASE, Insn};

use super::Tag;
use super::arith::{Guarded, OR, Value};
use super::block::{Cond, JEQ, JGE, JGT, JSET, Test};
use super::lex::{Token, is_keyword};
use super::lower::{ARP, DECNET, From, IP, IPV6, Kind, RARP, SAP_IPX, SAP_ISO, Size, Way};
use super::parse::{Parsed, Parser};
use super::wlan::Radio;
use super::{atm, pf, ss7};
use crate::{Error, Result};

/// Absolute loads of a byte, a half word and a word. (The kernel checks the offset only.)
const LDB: u16 = 0x30;
const LDH: u16 = 0x28;
const LDW: u16 = 0x20;
const AND: u16 = 0x54;
/// `SKF_AD_PKTTYPE`, `SKF_AD_IFINDEX`, `SKF_AD_VLAN_TAG` and `SKF_AD_VLAN_TAG_PRESENT`
/// (linux/filter.h).
const PACKET_TYPE: u32 = 4;
const INTERFACE: u32 = 8;
const VLAN_TCI: u32 = 44;
const VLAN_PRESENT: u32 = 48;
/// `PACKET_OUTGOING` (linux/if_packet.h).
const PACKET_OUTGOING: u32 = 4;

/// What is expected after `inner`.
const INNER_EXPECTED: &str =
    "expected an expression after it, as in \"inner tcp\" or \"inner (udp and port 53)\"";

/// LLC PDUs (IEEE 802.2, 5.4) by their control field: information, supervisory and unnumbered ones,
/// then those of each class.
#[rustfmt::skip]
const LLC_PDUS: &[(&str, u32, u32)] = &[
    ("i", 0, 1), ("s", 1, 3), ("u", 3, 3),
    ("rr", 0x01, 0x0f), ("rnr", 0x05, 0x0f), ("rej", 0x09, 0x0f),
    ("ui", 0x03, 0xef), ("ua", 0x63, 0xef), ("disc", 0x43, 0xef), ("dm", 0x0f, 0xef),
    ("sabme", 0x6f, 0xef), ("test", 0xe3, 0xef), ("xid", 0xaf, 0xef), ("frmr", 0x87, 0xef),
];

impl Parser<'_> {
    pub(super) fn primitive(&mut self) -> Result<Parsed> {
        if self.is_extended(self.at) {
            return self.extended();
        }
        let Token::Key(key) = *self.peek() else {
            return Err(self.no_keyword());
        };
        let place = self.place();
        self.need_headers(key, &place)?;
        if is_protocol(key) {
            return self.protocol_first(key);
        }
        let cond = match key {
            "broadcast" | "multicast" => {
                self.next();
                self.cast(None, key, place)?
            }
            "less" | "greater" => {
                self.next();
                let k = self.number()?;
                let load = vec![bpf::cbpf::Insn::new(0x80, 0, 0, 0)];
                let jump = if key == "less" { JGT } else { JGE };
                let test = Cond::Test(Test::new(load, jump, k));
                if key == "less" { test.negate() } else { test }
            }
            "inbound" | "outbound" => {
                self.next();
                self.direction(key == "outbound", place)?
            }
            "ifindex" => {
                self.next();
                self.interface(place)?
            }
            "vlan" | "mpls" | "pppoed" | "pppoes" => {
                self.next();
                self.layer(key, place)?
            }
            "geneve" => {
                self.next();
                self.geneve(place)?
            }
            "llc" => {
                self.next();
                self.llc(place)?
            }
            "src" | "dst" | "host" | "net" | "port" | "portrange" | "proto" | "protochain"
            | "gateway" | "addr1" | "addr2" | "addr3" | "addr4" | "ra" | "ta" => {
                return self.qualified(None);
            }
            "type" | "subtype" | "direction" => self.frame_control(key)?,
            "byte" => {
                self.next();
                self.byte()?
            }
            "ifname" | "rset" | "rnr" | "srnr" | "reason" | "action" => self.pf(key)?,
            _ if atm::is_keyword(key) => self.atm(key)?,
            _ if ss7::is_keyword(key) => self.ss7(key)?,
            _ => {
                return Err(
                    self.unexpected("expected a primitive such as \"tcp\" or \"host 192.0.2.1\"")
                );
            }
        };
        Ok((cond, None))
    }

    fn protocol_first(&mut self, key: &'static str) -> Result<Parsed> {
        let place = self.place();
        self.next();
        if key == "tcp" && self.is_phrase("option") {
            return Ok((self.tcp_option()?, None));
        }
        match *self.peek() {
            Token::Key(cast @ ("broadcast" | "multicast")) => {
                self.next();
                Ok((self.cast(Some(key), cast, place)?, None))
            }
            Token::Key(
                "src" | "dst" | "host" | "net" | "port" | "portrange" | "proto" | "protochain"
                | "gateway" | "addr1" | "addr2" | "addr3" | "addr4" | "ra" | "ta",
            ) => self.qualified(Some(key)),
            Token::Key(other @ ("type" | "subtype" | "direction")) => {
                Ok((self.frame_control(other)?, None))
            }
            _ => Ok((self.abbreviation(key, place)?, None)),
        }
    }

    fn no_keyword(&self) -> Error {
        self.unexpected(match self.peek() {
            Token::Name(name) if is_keyword(&name.to_lowercase()) => "keywords are in lower case",
            Token::Name(name) if name == "inner" && self.options.extended => INNER_EXPECTED,
            _ => "expected a qualifier such as \"host\" or \"port\"",
        })
    }

    /// Refuses tests of headers on link types whose headers are unknown.
    fn need_headers(&self, key: &str, place: &Range<usize>) -> Result<()> {
        let is_other = match self.link.kind {
            Kind::Other => true,
            Kind::Mtp2 => !ss7::is_keyword(key),
            _ => false,
        };
        let is_general = matches!(
            key,
            "less" | "greater" | "byte" | "inbound" | "outbound" | "ifindex"
        );
        if !is_other || is_general || pf::is_keyword(key) || atm::is_keyword(key) {
            return Ok(());
        }
        let what = format!("\"{key}\" is not supported on this link type");
        let expected = "expected bytes such as \"link[0]\", \"len\" or \"less\"";
        Err(Error::unsupported(place.clone(), what).expected(expected))
    }

    /// Compiles a test of one byte of the link header: `byte 2 = 5`.
    fn byte(&mut self) -> Result<Cond> {
        let at = self.number()?;
        let place = self.place();
        let operator = self.next();
        let Token::Key(operator @ ("=" | "<" | ">" | "&" | "|")) = operator else {
            return Err(Error::new(place, "not a test of a byte")
                .expected("expected one of =, <, >, & and |"));
        };
        let k = self.number()?;
        let test = |jump| self.link.test(From::Header, at, Size::B, jump, k);
        Ok(match operator {
            "=" => test(JEQ),
            ">" => test(JGT),
            "<" => test(JGE).negate(),
            "&" => test(JSET),
            _ => {
                let mut load = self.link.load(From::Header, at, Size::B);
                load.push(Insn::new(OR, 0, 0, k));
                Cond::Test(Test::new(load, JEQ, 0)).negate()
            }
        })
    }

    /// Compiles a protocol given by its name alone.
    pub(super) fn abbreviation(&self, key: &str, place: Range<usize>) -> Result<Cond> {
        let link = &self.link;
        let either = |protocol| link.ip4(protocol).or(link.ip6(protocol));
        if link.labels > 0 && !over_mpls(key) {
            return Err(
                Error::new(place, format!("\"{key}\" cannot be tested after MPLS"))
                    .expected("IPv4 and IPv6 are"),
            );
        }
        Ok(match key {
            "ip" => link.protocol(IP),
            "ip6" => link.protocol(IPV6),
            "arp" => link.protocol(ARP),
            "rarp" => link.protocol(RARP),
            "atalk" => link.protocol(0x809b),
            "aarp" => link.protocol(0x80f3),
            "sca" => link.protocol(0x6007),
            "lat" => link.protocol(0x6004),
            "decnet" => link.protocol(DECNET),
            "moprc" => link.protocol(0x6002),
            "mopdl" => link.protocol(0x6001),
            "stp" => link.protocol(0x42),
            "ipx" => link.protocol(SAP_IPX),
            "netbeui" => link.protocol(0xf0),
            "iso" => link.protocol(SAP_ISO),
            "clnp" => link.iso(0x81),
            "esis" => link.iso(0x82),
            "isis" => link.iso(0x83),
            "l1" => link.isis(&[0x1a, 0x18, 0x12, 0x0f, 0x11]),
            "l2" => link.isis(&[0x1b, 0x19, 0x14, 0x10, 0x11]),
            "iih" => link.isis(&[0x11, 0x0f, 0x10]),
            "lsp" => link.isis(&[0x12, 0x14]),
            "snp" => link.isis(&[0x1b, 0x1a, 0x18, 0x19]),
            "csnp" => link.isis(&[0x18, 0x19]),
            "psnp" => link.isis(&[0x1a, 0x1b]),
            "icmp" => link.ip4(1),
            "igmp" => link.ip4(2),
            "igrp" => link.ip4(9),
            "vrrp" | "carp" => link.ip4(112),
            "icmp6" => link.ip6(58),
            "tcp" => either(6),
            "udp" => either(17),
            "sctp" => either(132),
            "pim" => either(103),
            "ah" => either(51),
            "esp" => either(50),
            _ => {
                return Err(Error::new(place, format!("\"{key}\" alone tests nothing"))
                    .expected("expected \"host\", \"proto\" or another qualifier after it"));
            }
        })
    }

    fn cast(&self, proto: Option<&str>, kind: &str, place: Range<usize>) -> Result<Cond> {
        let link = &self.link;
        let destination = |value, mask| link.masked(From::Network, 16, Size::W, value, mask);
        Ok(match (proto, kind) {
            // The broadcast address of ARCNET, of one byte.
            (None | Some("ether"), _) if link.kind == Kind::Arcnet => {
                link.eq(From::Header, 1, Size::B, 0)
            }
            (None | Some("ether"), _) if link.mac_offsets().is_none() => {
                return Err(Error::new(place, format!("the link type has no {kind}"))
                    .expected("\"ip multicast\" and \"ip6 multicast\" test the IP header"));
            }
            (None | Some("ether"), "broadcast") => link.mac([0xff; 6], Way::Dst),
            (None | Some("ether"), _) => link.multicast(),
            (Some("ip"), "broadcast") => {
                let hosts = !self.options.netmask;
                let any = destination(0, hosts).or(destination(hosts, hosts));
                link.protocol(IP).and(any)
            }
            (Some("ip"), _) => {
                let group = link.test(From::Network, 16, Size::B, JGE, 224);
                link.protocol(IP).and(group)
            }
            (Some("ip6"), "multicast") => {
                let group = link.eq(From::Network, 24, Size::B, 255);
                link.protocol(IPV6).and(group)
            }
            (Some(proto), _) => {
                return Err(
                    Error::new(place, format!("\"{proto} {kind}\" tests nothing"))
                        .expected(format!("expected \"ether {kind}\" or \"ip {kind}\"")),
                );
            }
        })
    }

    fn direction(&self, is_outbound: bool, place: Range<usize>) -> Result<Cond> {
        let header = |at, size, jump, k| self.link.test(From::Header, at, size, jump, k);
        let sent = match (self.link.kind, self.options.tap) {
            (Kind::PfLog, _) => return Ok(header(60, Size::B, JEQ, 1 + u32::from(is_outbound))),
            (Kind::IpNet, _) => return Ok(header(2, Size::H, JEQ, 2 - u32::from(is_outbound))),
            _ if self.link.is_juniper => self.link.test(From::Start, 3, Size::B, JSET, 1).negate(),
            (Kind::PppSerial, _) if self.options.link_type == 166 => {
                return Ok(header(0, Size::B, JEQ, u32::from(is_outbound)));
            }
            (Kind::Sll, _) => self.link.eq(From::Header, 0, Size::H, 4),
            (Kind::Sll2, _) => self.link.eq(From::Header, 10, Size::B, 4),
            (Kind::Slip, _) if self.options.link_type == 8 => {
                self.link.eq(From::Header, 0, Size::B, 0).negate()
            }
            (_, Some(_)) => ancillary(LDH, PACKET_TYPE, JEQ, PACKET_OUTGOING, None),
            _ => {
                return Err(Error::new(place, "these packets carry no direction")
                    .expected("a live interface or a file of Linux cooked packets does"));
            }
        };
        Ok(if is_outbound { sent } else { sent.negate() })
    }

    fn interface(&mut self, place: Range<usize>) -> Result<Cond> {
        let index = self.number()?;
        match (self.link.kind, self.options.tap) {
            (Kind::Sll2, _) => Ok(self.link.eq(From::Header, 4, Size::W, index)),
            (_, Some(_)) => Ok(ancillary(LDW, INTERFACE, JEQ, index, None)),
            _ => Err(Error::new(place, "these packets carry no interface index")
                .expected("a live interface or a file of Linux cooked v2 packets does")),
        }
    }

    /// Compiles a test for an LLC header, and for the type of its PDU given by name.
    fn llc(&mut self, place: Range<usize>) -> Result<Cond> {
        let has_llc = matches!(
            self.link.kind,
            Kind::Wlan(_) | Kind::Fddi | Kind::TokenRing | Kind::Atm | Kind::SunAtm
        ) || self.link.is_plain_ethernet();
        if !has_llc {
            return Err(Error::new(place, "the link type has no LLC header here")
                .expected("\"llc\" is known on Ethernet, 802.11, FDDI, Token Ring and ATM"));
        }
        let name = match self.peek().clone() {
            Token::Name(name) => name,
            Token::Key("rnr") => "rnr".to_owned(),
            _ => return Ok(self.link.llc()),
        };
        let place = self.place();
        self.next();
        let row = LLC_PDUS.iter().find(|row| row.0 == name);
        let &(_, value, mask) = row.ok_or_else(|| {
            let names: Vec<&str> = LLC_PDUS.iter().map(|row| row.0).collect();
            Error::new(place, format!("unknown LLC type \"{name}\""))
                .expected(format!("expected one of {}", names.join(", ")))
        })?;
        Ok(self.link.llc_control(value, mask))
    }

    fn layer(&mut self, key: &str, place: Range<usize>) -> Result<Cond> {
        let number_place = self.place();
        let number = match key {
            "pppoed" => None,
            _ => self.optional_number(),
        };
        let most = match key {
            "vlan" => 0xfff,
            "mpls" => 0xf_ffff,
            _ => 0xffff,
        };
        if number.is_some_and(|n| n > most) {
            return Err(Error::new(
                number_place,
                format!("the number of \"{key}\" is too large"),
            )
            .expected(format!("at most {most}")));
        }
        let is_ethernet = self.link.kind == Kind::Ethernet;
        let fits = match key {
            "vlan" => (is_ethernet || self.link.is_wlan()) && self.link.labels == 0,
            "mpls" => {
                is_ethernet
                    || matches!(self.link.kind, Kind::Ppp | Kind::Hdlc)
                    || self.link.labels > 0
            }
            _ => self.link.labels == 0,
        };
        if !fits {
            return Err(
                Error::new(place, format!("\"{key}\" cannot follow this header"))
                    .expected("it can follow Ethernet"),
            );
        }
        let link = self.link.clone();
        let with = |first: Cond, value: u32, size, mask| match number {
            Some(_) => first.and(link.masked(From::Network, 0, size, value, mask)),
            None => first,
        };
        let n = number.unwrap_or(0);
        Ok(match key {
            "vlan" => self.vlan(number),
            "mpls" => {
                let labels = match (link.labels, link.kind) {
                    (1.., _) => link.masked(From::LastLabel, 2, Size::B, 0, 1),
                    (_, Kind::Ppp) => link.protocol(0x281),
                    _ => link.protocol(0x8847),
                };
                self.link.push_label();
                with(labels, n << 12, Size::W, 0xffff_f000)
            }
            "pppoed" => link.protocol(0x8863),
            _ => {
                self.link.push_pppoe();
                with(link.protocol(0x8864), n, Size::W, 0xffff)
            }
        })
    }

    /// Compiles a test for a VLAN tag, and its number. The first tag on a live socket is outside
    /// the packet or in it; only a tag in the packet shifts what follows.
    fn vlan(&mut self, number: Option<u32>) -> Cond {
        let link = self.link.clone();
        let is_outer = !self.link.is_variable();
        let is_first_live = self.options.tap.is_some() && !self.has_live_vlan && is_outer;
        self.has_live_vlan |= is_first_live;
        let tags = [0x8100, 0x88a8, 0x9100];
        let in_packet = Cond::Any(tags.map(|tag| link.protocol(tag)).into());
        let id = match (is_first_live, self.tag) {
            (true, Tag::Outside) => ancillary(LDB, VLAN_TCI, JEQ, number.unwrap_or(0), Some(0xfff)),
            _ => {
                self.link.push_vlan();
                link.masked(From::Network, 0, Size::H, number.unwrap_or(0), 0xfff)
            }
        };
        let tag = match is_first_live {
            true => Cond::Tag(
                Box::new(ancillary(LDB, VLAN_PRESENT, JEQ, 1, None)),
                Box::new(in_packet),
            ),
            false => in_packet,
        };
        match number {
            Some(_) => tag.and(id),
            None => tag,
        }
    }

    pub(super) fn optional_number(&mut self) -> Option<u32> {
        let Token::Number(n) = *self.peek() else {
            return None;
        };
        self.next();
        Some(n)
    }

    pub(super) fn number(&mut self) -> Result<u32> {
        match *self.peek() {
            Token::Number(n) => {
                self.next();
                Ok(n)
            }
            _ => Err(self.unexpected("expected a number")),
        }
    }

    /// Compiles access to the bytes of a protocol's header, with the tests that it is present.
    pub(super) fn load(
        &self,
        protocol: &str,
        place: Range<usize>,
        index: Guarded,
        size: u16,
    ) -> Result<Guarded> {
        let link = &self.link;
        let (mut guard, steps) = (index.guard, index.steps);
        let from = match protocol {
            "ether" => From::Header,
            "radio"
                if matches!(
                    link.kind,
                    Kind::Wlan(Radio::Radiotap | Radio::Avs | Radio::Prism)
                ) =>
            {
                From::Start
            }
            _ if matches!(link.kind, Kind::Other | Kind::Mtp2) => {
                let what = format!("\"{protocol}\" is not supported on this link type");
                return Err(Error::unsupported(place, what).expected("expected \"link\""));
            }
            "ip" | "ip6" | "arp" | "rarp" | "atalk" | "decnet" | "lat" | "sca" | "moprc"
            | "mopdl" => {
                guard.push(self.abbreviation(protocol, place)?);
                From::Network
            }
            "tcp" | "udp" | "sctp" | "icmp" | "igmp" | "igrp" | "pim" | "vrrp" | "carp" => {
                guard.insert(0, link.protocol(IP));
                guard.push(self.abbreviation(protocol, place)?);
                guard.push(link.first_fragment());
                From::Transport4
            }
            "icmp6" => {
                guard.push(link.protocol(IPV6));
                guard.push(link.eq(From::Network, 6, Size::B, 58));
                From::Transport6
            }
            _ => {
                return Err(
                    Error::new(place, format!("\"{protocol}\" has no bytes to load"))
                        .expected("expected a protocol such as ether, ip, tcp or icmp6"),
                );
            }
        };
        let prefix = link.prefix(from);
        let value = Value::Load(prefix, size, link.offset(from), Box::new(index.value));
        Ok(Guarded {
            value,
            guard,
            steps,
        })
    }
}

/// Compiles a test of metadata that the kernel keeps outside the packet.
fn ancillary(code: u16, offset: u32, jump: u16, k: u32, mask: Option<u32>) -> Cond {
    let mut load = vec![Insn::new(code, 0, 0, ANCILLARY_BASE + offset)];
    load.extend(mask.map(|mask| Insn::new(AND, 0, 0, mask)));
    Cond::Test(Test::new(load, jump, k))
}

fn over_mpls(key: &str) -> bool {
    matches!(
        key,
        "ip" | "ip6"
            | "icmp"
            | "igmp"
            | "igrp"
            | "vrrp"
            | "carp"
            | "icmp6"
            | "tcp"
            | "udp"
            | "sctp"
            | "pim"
            | "ah"
            | "esp"
    )
}

fn is_protocol(key: &str) -> bool {
    over_mpls(key)
        || matches!(
            key,
            "ether"
                | "arp"
                | "rarp"
                | "atalk"
                | "aarp"
                | "sca"
                | "lat"
                | "decnet"
                | "moprc"
                | "mopdl"
                | "stp"
                | "ipx"
                | "netbeui"
                | "iso"
                | "clnp"
                | "esis"
                | "isis"
                | "l1"
                | "l2"
                | "iih"
                | "lsp"
                | "snp"
                | "csnp"
                | "psnp"
        )
}
