//! Primitives without an identifier, and the bytes of a protocol.

use std::ops::Range;

use bpf::cbpf::ANCILLARY_BASE;

use super::arith::{Guarded, Value};
use super::block::{Cond, JEQ, JGE, JGT, JSET, Test};
use super::lex::Token;
use super::lower::{ARP, From, IP, IPV6, Kind, RARP, SAP_IPX, SAP_ISO, Size, Way};
use super::parse::{Parsed, Parser};
use crate::{Error, Result};

impl Parser<'_> {
    pub(super) fn primitive(&mut self) -> Result<Parsed> {
        let Token::Key(key) = *self.peek() else {
            return Err(self.unexpected("expected a qualifier such as \"host\" or \"port\""));
        };
        let place = self.place();
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
                let test = Cond::Test(Test { load, jump, k });
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
            "src" | "dst" | "host" | "net" | "port" | "portrange" | "proto" => {
                return self.qualified(None);
            }
            _ => return Err(self.unsupported(key, place)),
        };
        Ok((cond, None))
    }

    fn protocol_first(&mut self, key: &'static str) -> Result<Parsed> {
        let place = self.place();
        self.next();
        match *self.peek() {
            Token::Key(cast @ ("broadcast" | "multicast")) => {
                self.next();
                Ok((self.cast(Some(key), cast, place)?, None))
            }
            Token::Key("src" | "dst" | "host" | "net" | "port" | "portrange" | "proto") => {
                self.qualified(Some(key))
            }
            Token::Key(other @ ("protochain" | "gateway" | "type" | "subtype" | "direction")) => {
                Err(self.unsupported(other, self.place()))
            }
            _ => Ok((self.abbreviation(key, place)?, None)),
        }
    }

    fn unsupported(&self, key: &str, place: Range<usize>) -> Error {
        match key {
            "protochain" | "gateway" | "geneve" | "decnet" | "radio" | "llc" | "byte" | "type"
            | "subtype" | "direction" => Error::new(
                place,
                format!("\"{key}\" is not supported by this compiler"),
            )
            .expected("libpcap's compiler may know it"),
            _ => self.unexpected("expected a primitive such as \"tcp\" or \"host 192.0.2.1\""),
        }
    }

    /// A protocol by its name alone.
    pub(super) fn abbreviation(&self, key: &str, place: Range<usize>) -> Result<Cond> {
        let link = &self.link;
        let either = |protocol| link.ip4(protocol).or(link.ip6(protocol));
        let iso = |pdu| {
            let is = link.eq(From::NetworkNoSnap, 0, Size::B, pdu);
            link.protocol(SAP_ISO).and(is)
        };
        if link.labels > 0 && !over_mpls(key) {
            return Err(
                Error::new(place, format!("\"{key}\" is not tested behind MPLS"))
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
            "moprc" => link.protocol(0x6002),
            "mopdl" => link.protocol(0x6001),
            "stp" => link.protocol(0x42),
            "ipx" => link.protocol(SAP_IPX),
            "netbeui" => link.protocol(0xf0),
            "iso" => link.protocol(SAP_ISO),
            "clnp" => iso(0x81),
            "esis" => iso(0x82),
            "isis" => iso(0x83),
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
                    .expected("expected \"host\", \"proto\" or another qualifier behind it"));
            }
        })
    }

    fn cast(&self, proto: Option<&str>, kind: &str, place: Range<usize>) -> Result<Cond> {
        let link = &self.link;
        let destination = |value, mask| link.masked(From::Network, 16, Size::W, value, mask);
        Ok(match (proto, kind) {
            (None | Some("ether"), _) if link.kind != Kind::Ethernet => {
                return Err(Error::new(place, format!("the link type has no {kind}"))
                    .expected("\"ip multicast\" and \"ip6 multicast\" test the IP header"));
            }
            (None | Some("ether"), "broadcast") => link.mac([0xff; 6], Way::Dst),
            (None | Some("ether"), _) => link.test(From::Header, 0, Size::B, JSET, 1),
            (Some("ip"), "broadcast") => {
                let any = destination(0, u32::MAX).or(destination(u32::MAX, u32::MAX));
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
        let sent = match (self.link.kind, self.options.tap) {
            (Kind::Sll, _) => self.link.eq(From::Header, 0, Size::H, 4),
            (Kind::Sll2, _) => self.link.eq(From::Header, 10, Size::B, 4),
            (_, Some(_)) => ancillary(0x28, 4, 4),
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
            (_, Some(_)) => Ok(ancillary(0x20, 8, index)),
            _ => Err(Error::new(place, "these packets carry no interface index")
                .expected("a live interface or a file of Linux cooked v2 packets does")),
        }
    }

    fn layer(&mut self, key: &str, place: Range<usize>) -> Result<Cond> {
        let number = match *self.peek() {
            Token::Number(n) if key != "pppoed" => {
                self.next();
                Some(n)
            }
            _ => None,
        };
        let most = match key {
            "vlan" => 0xfff,
            "mpls" => 0xf_ffff,
            _ => 0xffff,
        };
        if number.is_some_and(|n| n > most) {
            return Err(
                Error::new(place, format!("the number of \"{key}\" is too large"))
                    .expected(format!("at most {most}")),
            );
        }
        let is_ethernet = self.link.kind == Kind::Ethernet;
        let fits = match key {
            "vlan" => is_ethernet && self.link.labels == 0,
            "mpls" => is_ethernet || self.link.kind == Kind::Ppp || self.link.labels > 0,
            _ => self.link.labels == 0,
        };
        if !fits {
            return Err(
                Error::new(place, format!("\"{key}\" cannot follow this header"))
                    .expected("it is known behind Ethernet"),
            );
        }
        if key == "vlan" && self.options.tap.is_some() {
            return Err(self.unsupported_live(place));
        }
        let link = self.link.clone();
        let with = |first: Cond, value: u32, size, mask| match number {
            Some(_) => first.and(link.masked(From::Network, 0, size, value, mask)),
            None => first,
        };
        let n = number.unwrap_or(0);
        Ok(match key {
            "vlan" => {
                let tags = [0x8100, 0x88a8, 0x9100];
                let tag = Cond::Any(tags.map(|tag| link.protocol(tag)).into());
                self.link.push_vlan();
                with(tag, n, Size::H, 0xfff)
            }
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

    fn unsupported_live(&self, place: Range<usize>) -> Error {
        Error::new(
            place,
            "\"vlan\" on a live interface is not supported by this compiler",
        )
        .expected("libpcap's compiler knows it")
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

    /// Bytes of a protocol's header, with the tests that it is there.
    pub(super) fn load(
        &self,
        protocol: &str,
        place: Range<usize>,
        index: Guarded,
        size: u16,
    ) -> Result<Guarded> {
        let link = &self.link;
        let mut guard = index.guard;
        let mut header = None;
        let from = match protocol {
            "ether" => From::Header,
            "ip" | "ip6" | "arp" | "rarp" | "atalk" | "lat" | "sca" | "moprc" | "mopdl" => {
                guard.push(self.abbreviation(protocol, place)?);
                From::Network
            }
            "tcp" | "udp" | "sctp" | "icmp" | "igmp" | "igrp" | "pim" | "vrrp" | "carp" => {
                guard.insert(0, link.protocol(IP));
                guard.push(self.abbreviation(protocol, place)?);
                guard.push(link.first_fragment());
                header = Some(link.header_length());
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
        let value = Value::Load(header, size, link.offset(from), Box::new(index.value));
        Ok(Guarded { value, guard })
    }
}

fn ancillary(code: u16, offset: u32, k: u32) -> Cond {
    let load = vec![bpf::cbpf::Insn::new(code, 0, 0, ANCILLARY_BASE + offset)];
    Cond::Test(Test { load, jump: JEQ, k })
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
                | "moprc"
                | "mopdl"
                | "stp"
                | "ipx"
                | "netbeui"
                | "iso"
                | "clnp"
                | "esis"
                | "isis"
        )
}
