//! Primitives with an identifier: `src host 192.0.2.1`, `tcp port 80`, `ip proto 47`.

use std::net::IpAddr;
use std::ops::Range;

use super::block::Cond;
use super::lex::Token;
use super::lower::{ARP, From, IP, IPV6, Kind, RARP, SAP_ISO, Size, Way};
use super::parse::{Parsed, Parser, Qualifier};
use crate::{Error, Result};

const SCTP: u32 = 132;
const TCP: u32 = 6;
const UDP: u32 = 17;

impl Parser<'_> {
    /// Parses direction, type and identifier after a protocol.
    pub(super) fn qualified(&mut self, proto: Option<&'static str>) -> Result<Parsed> {
        let way = self.way();
        let kind = match *self.peek() {
            Token::Key(kind @ ("host" | "net" | "port" | "portrange")) => Some(kind),
            Token::Key(kind @ ("proto" | "protochain" | "gateway")) if way == Way::Default => {
                Some(kind)
            }
            _ => None,
        };
        if kind.is_some() {
            self.next();
        }
        if kind == Some("net") && self.is_phrase("file") {
            return Ok((self.net_file(proto, way)?, None));
        }
        let qualifier = Some(Qualifier { proto, way, kind });
        Ok((self.identifier(qualifier)?, qualifier))
    }

    fn way(&mut self) -> Way {
        let (first, other) = match *self.peek() {
            Token::Key("src") => (Way::Src, "dst"),
            Token::Key("dst") => (Way::Dst, "src"),
            Token::Key(key @ ("addr1" | "addr2" | "addr3" | "addr4" | "ra" | "ta")) => {
                self.next();
                return match key {
                    "ra" => Way::Receiver,
                    "ta" => Way::Transmitter,
                    _ => Way::Address(key.as_bytes()[4] - b'1'),
                };
            }
            _ => return Way::Default,
        };
        self.next();
        let joined = match *self.peek() {
            Token::Key("or") => Way::Either,
            Token::Key("and") => Way::Both,
            _ => return first,
        };
        // `src or dst`, but not `src 192.0.2.1 or dst …`, which has an identifier before the `or`.
        if self.tokens[self.at + 1].0 != Token::Key(other) {
            return first;
        }
        self.next();
        self.next();
        joined
    }

    pub(super) fn named(&mut self, qualifier: Option<Qualifier>) -> Result<Cond> {
        let place = self.place();
        let Some(q) = qualifier else {
            return Err(self.unexpected("expected a qualifier such as \"host\" before it"));
        };
        let is_mac = q.proto == Some("ether") && matches!(q.kind, None | Some("host"));
        let is_of_frame = matches!(q.way, Way::Address(_) | Way::Receiver | Way::Transmitter);
        if is_of_frame && !(is_mac && self.link.is_wlan()) {
            let what = "only 802.11 frames have these addresses";
            return Err(wrong(place, what).expected("expected \"wlan\" and a MAC address"));
        }
        match self.peek().clone() {
            Token::Number(n) => {
                self.next();
                if *self.peek() == Token::Key(":") {
                    return Err(wrong(place.start..self.place().end, "not an address")
                        .expected("expected six bytes of a MAC address, or an IPv6 address"));
                }
                self.by_number(n, q, place)
            }
            Token::Dotted(text) => {
                self.next();
                self.dotted(&text, q, place)
            }
            Token::Ipv6(address) => {
                self.next();
                self.ipv6(address.to_bits(), q, place)
            }
            Token::Mac(address) => {
                self.next();
                if !is_mac {
                    return Err(wrong(place, "a MAC address is not valid here")
                        .expected("expected \"ether host\" before it"));
                }
                if self.link.mac_offsets().is_none() {
                    return Err(wrong(place, "the link type has no MAC addresses")
                        .expected("Ethernet and 802.11 have them"));
                }
                Ok(self.link.mac(address, q.way))
            }
            Token::Aid(address) => {
                self.next();
                if !is_mac || self.link.kind != Kind::Arcnet {
                    return Err(wrong(place, "an ARCNET address is not valid here")
                        .expected("expected \"link host\" before it, on ARCNET"));
                }
                let end = |is_src: bool| {
                    self.link
                        .eq(From::Header, u32::from(!is_src), Size::B, address.into())
                };
                Ok(q.way.both(end))
            }
            Token::Name(name) => {
                self.next();
                self.by_name(&name, q, place)
            }
            Token::Key(key) if key.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                let expected = "expected an address, a number or a name";
                Err(self.unexpected(format!("{expected}; as a name, it is \\{key}")))
            }
            _ => Err(self.unexpected("expected an address, a number or a name")),
        }
    }

    fn by_number(&mut self, n: u32, q: Qualifier, place: Range<usize>) -> Result<Cond> {
        match q.kind {
            None | Some("host" | "net") if q.proto == Some("decnet") => self.decnet(n, q, place),
            Some("protochain") => self.protocol_chain(q.proto, n, place),
            None | Some("host") => self.host((n, u32::MAX), q, place),
            Some("net") => {
                let (mut value, mut mask) = (n, u32::MAX);
                while value != 0 && value & 0xff00_0000 == 0 {
                    (value, mask) = (value << 8, mask << 8);
                }
                self.host((value, mask), q, place)
            }
            Some("gateway") => Err(wrong(place, "\"gateway\" needs a name")
                .expected("expected a name with a MAC and an IPv4 address")),
            Some("port" | "portrange") => {
                let transports = transports(q.proto, &place)?;
                let n = port(n, &place)?;
                Ok(self.link.ports(n, n, transports, q.way))
            }
            _ => self.protocol_number(n, q, place),
        }
    }

    fn decnet(&self, address: u32, q: Qualifier, place: Range<usize>) -> Result<Cond> {
        if self.link.labels > 0 {
            return Err(wrong(place, "\"decnet\" cannot be tested after MPLS")
                .expected("IPv4 and IPv6 are"));
        }
        Ok(self.link.decnet(address, q.way))
    }

    fn dotted(&mut self, text: &str, q: Qualifier, place: Range<usize>) -> Result<Cond> {
        if q.proto == Some("decnet") && matches!(q.kind, None | Some("host" | "net")) {
            // An area of 6 bits and a node of 10 bits; libpcap ignores higher bits and further
            // parts.
            let mut parts = text.split('.').map_while(|part| part.parse::<u32>().ok());
            let (area, node) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
            return self.decnet((area & 0x3f) << 10 | node & 0x3ff, q, place);
        }
        let (value, mask) = address(text, &place)?;
        let masked = self.mask4(mask)?;
        if !matches!(q.kind, None | Some("host" | "net")) {
            return Err(wrong(place, "an IPv4 address is not valid here")
                .expected("expected \"host\" or \"net\" before it"));
        }
        let Some(mask) = masked else {
            return self.host((value, mask), q, place);
        };
        if q.kind != Some("net") {
            return Err(wrong(place, "only a network can have a mask").expected("expected \"net\""));
        }
        if value & !mask != 0 {
            return Err(
                wrong(place, format!("\"{text}\" has bits outside its mask"))
                    .expected("the bits outside the mask must be 0"),
            );
        }
        self.host((value, mask), q, place)
    }

    /// Parses the mask after a network, if there is one.
    fn mask4(&mut self, _default: u32) -> Result<Option<u32>> {
        if self.take("/") {
            let place = self.place();
            let len = self.number()?;
            if len > 32 {
                return Err(wrong(place, "the mask is longer than 32 bits").expected("at most 32"));
            }
            return Ok(Some(u32::MAX.checked_shl(32 - len).unwrap_or(0)));
        }
        if !self.take("mask") {
            return Ok(None);
        }
        let place = self.place();
        match self.next() {
            Token::Dotted(text) => address(&text, &place).map(|(mask, _)| Some(mask)),
            _ => Err(wrong(place, "not a mask").expected("expected one such as 255.255.0.0")),
        }
    }

    fn ipv6(&mut self, value: u128, q: Qualifier, place: Range<usize>) -> Result<Cond> {
        let mut len = 128;
        let mut len_place = place.clone();
        if self.take("/") {
            len_place = self.place();
            len = self.number()?;
        }
        if len > 128 {
            return Err(
                wrong(len_place, "the mask is longer than 128 bits").expected("at most 128")
            );
        }
        let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
        match q.kind {
            None | Some("host") if len != 128 => {
                return Err(
                    wrong(place, "only a network can have a mask").expected("expected \"net\"")
                );
            }
            None | Some("host" | "net") => {}
            _ => {
                return Err(wrong(place, "an IPv6 address is not valid here")
                    .expected("expected \"host\" or \"net\" before it"));
            }
        }
        if value & !mask != 0 {
            return Err(wrong(place, "the network has bits outside its mask")
                .expected("the bits outside the mask must be 0"));
        }
        if let Some(proto) = q.proto.filter(|proto| *proto != "ip6") {
            return Err(wrong(place, format!("\"{proto}\" has no IPv6 address"))
                .expected("expected \"ip6\" or no protocol"));
        }
        Ok(self.link.host6(value, mask, q.way))
    }

    fn host(&self, address: (u32, u32), q: Qualifier, place: Range<usize>) -> Result<Cond> {
        let link = &self.link;
        let at = |protocol| link.host4(address, protocol, q.way);
        Ok(match q.proto {
            None if link.labels > 0 => at(IP),
            None => at(IP).or(at(ARP)).or(at(RARP)),
            Some("ip") => at(IP),
            Some("arp") if link.labels == 0 => at(ARP),
            Some("rarp") if link.labels == 0 => at(RARP),
            Some(proto) => {
                return Err(wrong(place, format!("\"{proto}\" has no IPv4 address"))
                    .expected("expected \"ip\", \"arp\", \"rarp\" or no protocol"));
            }
        })
    }

    fn protocol_number(&self, n: u32, q: Qualifier, place: Range<usize>) -> Result<Cond> {
        let link = &self.link;
        let only_ip = link.labels > 0 && !matches!(q.proto, None | Some("ip" | "ip6"));
        Ok(match q.proto {
            None => link.ip4(n).or(link.ip6(n)),
            Some("ip") => link.ip4(n),
            Some("ip6") => link.ip6(n),
            Some("ether") if !only_ip || matches!(n, IP | IPV6) => link.protocol(n),
            Some("iso") if !only_ip => link.iso(n),
            Some(proto) => {
                return Err(
                    wrong(place, format!("\"{proto}\" carries no other protocol"))
                        .expected("expected \"ip proto\", \"ip6 proto\" or \"ether proto\""),
                );
            }
        })
    }

    fn by_name(&mut self, name: &str, q: Qualifier, place: Range<usize>) -> Result<Cond> {
        let names = self.options.names;
        let unknown = |what: &str| {
            wrong(place.clone(), format!("unknown {what} \"{name}\""))
                .expected("expected a name that this host knows, or a number")
        };
        match q.kind {
            None | Some("host") if q.proto == Some("ether") => {
                let address = names.ether(name).ok_or_else(|| unknown("MAC address"))?;
                Ok(self.link.mac(address, q.way))
            }
            None | Some("host") => self.host_name(name, q, place.clone()),
            Some("gateway") => self.gateway(name, q, place.clone()),
            Some("net") => {
                let network = names.network(name).ok_or_else(|| unknown("network"))?;
                self.host(network, q, place)
            }
            Some("port") => {
                let service = names.service(name).ok_or_else(|| unknown("port"))?;
                let asked = transports(q.proto, &place)?;
                let known: &[u32] = match (service.tcp, service.udp) {
                    (true, false) => &[TCP],
                    (false, true) => &[UDP],
                    _ => asked,
                };
                if !known.iter().all(|transport| asked.contains(transport)) {
                    let of = if service.tcp { "tcp" } else { "udp" };
                    return Err(wrong(place.clone(), format!("port \"{name}\" is {of}"))
                        .expected("expected a name of this protocol, or a number"));
                }
                let n = service.port.into();
                Ok(self.link.ports(n, n, known, q.way))
            }
            Some("portrange") => {
                let asked = transports(q.proto, &place)?;
                let end = |text: &str| {
                    let number = text.parse::<u16>().ok();
                    number.or_else(|| names.service(text).map(|service| service.port))
                };
                let range = name.split_once('-');
                let (low, high) = range
                    .and_then(|(low, high)| Some((end(low)?, end(high)?)))
                    .ok_or_else(|| unknown("range of ports"))?;
                Ok(self.link.ports(low.into(), high.into(), asked, q.way))
            }
            _ => {
                let number = match q.proto {
                    Some("ether") => ethertype(name),
                    Some("iso") => iso(name),
                    _ => names.protocol(name).map(u32::from),
                };
                let number = number.ok_or_else(|| {
                    unknown(match q.proto {
                        Some("ether") => "EtherType",
                        Some("iso") => "OSI protocol",
                        _ => "protocol",
                    })
                })?;
                match q.kind {
                    Some("protochain") => self.protocol_chain(q.proto, number, place),
                    _ => self.protocol_number(number, q, place),
                }
            }
        }
    }

    /// Matches packets that pass a gateway: to or from its MAC address, but not its IPv4 address.
    fn gateway(&self, name: &str, q: Qualifier, place: Range<usize>) -> Result<Cond> {
        if self.link.mac_offsets().is_none()
            || !matches!(q.proto, None | Some("ip" | "arp" | "rarp"))
        {
            return Err(wrong(place, "\"gateway\" is not valid here")
                .expected("expected \"gateway\" or \"ip gateway\", on Ethernet"));
        }
        let address = self.options.names.ether(name).ok_or_else(|| {
            wrong(place.clone(), format!("unknown MAC address of \"{name}\""))
                .expected("expected a name that /etc/ethers knows")
        })?;
        let known = self.options.names.hosts(name).into_iter();
        let ipv4 = known.filter_map(|address| match address {
            IpAddr::V4(v4) => Some(self.host((v4.to_bits(), u32::MAX), q, place.clone())),
            IpAddr::V6(_) => None,
        });
        let hosts: Vec<Cond> = ipv4.collect::<Result<_>>()?;
        if hosts.is_empty() {
            return Err(wrong(place, format!("unknown host \"{name}\""))
                .expected("expected a name with an IPv4 address"));
        }
        let mac = self.link.mac(address, Way::Either);
        Ok(mac.and(Cond::Any(hosts).negate()))
    }

    fn host_name(&self, name: &str, q: Qualifier, place: Range<usize>) -> Result<Cond> {
        let mut list = Vec::new();
        let known = self.options.names.hosts(name);
        let of_other_family = match known.is_empty() {
            true => "",
            false => "of this protocol ",
        };
        for address in known {
            match address {
                IpAddr::V4(v4) if q.proto != Some("ip6") => {
                    list.push(self.host((v4.to_bits(), u32::MAX), q, place.clone())?);
                }
                IpAddr::V6(v6) if matches!(q.proto, None | Some("ip6")) => {
                    list.push(self.link.host6(v6.to_bits(), u128::MAX, q.way));
                }
                _ => {}
            }
        }
        if list.is_empty() {
            return Err(
                wrong(place, format!("unknown host {of_other_family}\"{name}\""))
                    .expected("expected a name that resolves, or an address"),
            );
        }
        Ok(Cond::Any(list))
    }
}

fn wrong(place: Range<usize>, what: impl Into<String>) -> Error {
    Error::new(place, what)
}

fn port(n: u32, place: &Range<usize>) -> Result<u32> {
    if n <= 65_535 {
        return Ok(n);
    }
    Err(wrong(place.clone(), format!("port {n} is too large")).expected("at most 65535"))
}

fn transports(proto: Option<&str>, place: &Range<usize>) -> Result<&'static [u32]> {
    match proto {
        None => Ok(&[SCTP, TCP, UDP]),
        Some("tcp") => Ok(&[TCP]),
        Some("udp") => Ok(&[UDP]),
        Some("sctp") => Ok(&[SCTP]),
        Some(proto) => Err(wrong(place.clone(), format!("\"{proto}\" has no ports"))
            .expected("expected \"tcp\", \"udp\", \"sctp\" or no protocol")),
    }
}

/// Parses an IPv4 address of one to four parts; returns it with the mask of the given parts.
fn address(text: &str, place: &Range<usize>) -> Result<(u32, u32)> {
    let (mut value, mut bits) = (0, 0);
    for part in text.split('.') {
        let part: u8 = part.parse().map_err(|_| {
            wrong(
                place.clone(),
                format!("{part} is no part of an IPv4 address"),
            )
            .expected("expected numbers up to 255")
        })?;
        (value, bits) = (value << 8 | u32::from(part), bits + 8);
    }
    let shift = 32 - bits;
    Ok((value << shift, u32::MAX << shift))
}

fn ethertype(name: &str) -> Option<u32> {
    Some(match name {
        "ip" => IP,
        "ip6" => IPV6,
        "arp" => ARP,
        "rarp" => RARP,
        "aarp" => 0x80f3,
        "atalk" => 0x809b,
        "loopback" => 0x9000,
        "moprc" => 0x6002,
        "mopdl" => 0x6001,
        "sca" => 0x6007,
        "lat" => 0x6004,
        "iso" => SAP_ISO,
        "stp" => 0x42,
        "ipx" => 0xe0,
        "netbeui" => 0xf0,
        _ => return None,
    })
}

fn iso(name: &str) -> Option<u32> {
    Some(match name {
        "clnp" => 0x81,
        "esis" => 0x82,
        "isis" => 0x83,
        _ => return None,
    })
}
