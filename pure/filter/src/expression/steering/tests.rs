//! Rules of given expressions, refusals, and the law: a packet matches an expression exactly if a
//! card that parses it would find one of the rules true.

use bpf::vm_cbpf;

use super::super::compile;
use super::*;

fn rules_of(text: &str) -> Vec<Rule> {
    let found = rules(text, &Options::default());
    found
        .unwrap_or_else(|e| panic!("{text}: {e}\n{}", e.mark(text)))
        .list
}

fn whole<T: Copy>(value: T, mask: T) -> Masked<T> {
    Masked { value, mask }
}

fn plain(layer: Layer) -> Rule {
    Rule {
        destination: Masked::default(),
        vlan_type: None,
        vlan_tci: Masked::default(),
        layer,
    }
}

#[test]
fn a_port_is_a_rule_for_each_version_of_ip() {
    let found = rules_of("udp dst port 53");
    let ip = |is_v6| Ip {
        is_v6,
        protocol: Some(UDP),
        destination_port: whole(53, 0xffff),
        ..Ip::default()
    };
    let expected = [true, false].map(|is_v6| plain(Layer::Ip(ip(is_v6))));
    assert_eq!(found, expected);
    // Three protocols, two versions, two ends.
    assert_eq!(rules_of("port 53").len(), 12);
    // However it is written.
    for text in ["udp[2:2] = 53", "ip[9] = 17 and udp dst port 0x35"] {
        assert_eq!(rules_of(text), expected[1..], "{text}");
    }
}

#[test]
fn addresses_have_masks() {
    let found = rules_of("ip and src net 192.0.2.0/24 and tcp dst port 443");
    let ip = Ip {
        source: whole(0xc000_0200, 0xffff_ff00),
        protocol: Some(TCP),
        destination_port: whole(443, 0xffff),
        ..Ip::default()
    };
    assert_eq!(found, [plain(Layer::Ip(ip))]);
    let found = rules_of("dst net 2001:db8::/32");
    let ip = Ip {
        is_v6: true,
        destination: whole(0x2001_0db8 << 96, 0xffff_ffff << 96),
        ..Ip::default()
    };
    assert_eq!(found, [plain(Layer::Ip(ip))]);
    let found = rules_of("ip and ip[1] & 0xfc = 0xb8");
    let ip = Ip {
        tos: whole(0xb8, 0xfc),
        ..Ip::default()
    };
    assert_eq!(found, [plain(Layer::Ip(ip))]);
}

#[test]
fn a_vlan_number_is_one_rule_for_all_tpids() {
    let found = rules_of("vlan 5 and ip and sctp");
    let ip = Ip {
        protocol: Some(SCTP),
        ..Ip::default()
    };
    let rule = Rule {
        vlan_tci: whole(5, 0xfff),
        ..plain(Layer::Ip(ip))
    };
    assert_eq!(found, [rule]);
    let found = rules_of("ether[12:2] = 0x88a8 and ether[14:2] & 0xfff = 5");
    assert_eq!(found[0].vlan_type, Some(0x88a8));
}

#[test]
fn ethernet_headers_are_rules() {
    let found = rules_of("ether dst 02:00:00:00:00:01 and arp");
    let rule = Rule {
        destination: whole(0x0200_0000_0001, 0xffff_ffff_ffff),
        ..plain(Layer::Ethernet {
            source: Masked::default(),
            ether_type: Some(0x806),
        })
    };
    assert_eq!(found, [rule]);
    // With IP fields too.
    let found = rules_of("ether dst 02:00:00:00:00:01 and ip dst host 192.0.2.1");
    assert_eq!(found[0].destination, rule.destination);
    assert!(matches!(found[0].layer, Layer::Ip(_)));
}

#[test]
fn what_libpcap_matches_of_ipv6_fragments_is_omitted() {
    let found = rules("udp", &Options::default()).unwrap();
    assert_eq!((found.list.len(), found.omits_fragments), (2, true));
    let found = rules("udp port 53", &Options::default()).unwrap();
    assert!(!found.omits_fragments);
}

#[test]
fn what_rules_cannot_express_is_refused() {
    for (text, why) in [
        ("", "every packet"),
        ("host 192.0.2.1", "\"ip host\""),
        ("not udp port 53", "exclude none"),
        ("udp and not port 53", "exclude none"),
        ("tcp[tcpflags] & tcp-syn != 0", "byte 13 of the transport"),
        ("ip[8] = 64", "byte 22 of the packet"),
        ("greater 100", "compute nothing"),
        ("ip[0:2] + 1 = 2", "compute nothing"),
        ("vlan", "by its number"),
        ("ether src 02:00:00:00:00:01 and udp", "source MAC"),
        ("ip and ip6", "no rule of a card"),
        ("portrange 1-65534 and net 10.0.0.0/8", "rules of the card"),
        ("ether[12] = 8", "the whole of the EtherType"),
    ] {
        let error = rules(text, &Options::default()).expect_err(text);
        assert!(error.to_string().contains(why), "{text}: {error}");
        assert!(error.is_unsupported, "{text}: {error}");
    }
    let error = rules("udp porz 53", &Options::default()).unwrap_err();
    assert!(!error.is_unsupported && error.at == (4..8), "{error}");
}

#[test]
fn expansion_is_bounded() {
    let many: Vec<_> = (0..9).map(|i| format!("ip[{i}] > 254")).collect();
    assert!(rules(&many.join(" or "), &Options::default()).is_err());
    let factor = "(ip[20] = 1 or ip[21] = 1 or ip[22] = 1 or ip[23] = 1)";
    let text = [factor; 12].join(" and ");
    let error = rules(&text, &Options::default()).unwrap_err();
    assert!(
        error.to_string().contains("too many alternatives"),
        "{error}"
    );
}

/// A sequence of pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

const PRIMITIVES: &[&str] = &[
    "udp",
    "tcp dst port 53",
    "port 80",
    "udp portrange 52-80",
    "src port 53",
    "ip src host 192.0.2.1",
    "ip dst net 192.0.2.0/25",
    "ip6 net 2001:db8::/33",
    "dst host 2001:db8::1",
    "ip proto 132",
    "ip6 proto 17",
    "ip",
    "ip6",
    "arp",
    "ether dst 02:00:00:00:00:01",
    "ether src 02:00:00:00:00:02",
    "ip[1] = 4",
    "ip[1] & 4 != 0",
    "ip6[0:2] & 0xff0 = 0x40",
    "tcp[0:2] = 53",
    "not ip6",
    "not arp",
];

fn expression(random: &mut Random, depth: usize) -> String {
    if depth == 0 || random.below(3) == 0 {
        return random.one_of(PRIMITIVES).to_owned();
    }
    let (a, b) = (expression(random, depth - 1), expression(random, depth - 1));
    let word = random.one_of(&["and", "and", "or"]);
    format!("({a}) {word} ({b})")
}

/// A packet of few distinct values, without fragments and IPv6 extension headers, and whether it
/// has a VLAN tag.
fn packet(random: &mut Random, tag: Option<u16>) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, random.one_of(&[1, 2])];
    bytes.extend([2, 0, 0, 0, 0, random.one_of(&[1, 2])]);
    if let Some(tag) = tag {
        bytes.extend(random.one_of(&TPIDS).to_be_bytes());
        bytes.extend((tag | random.one_of(&[0, 0x2000])).to_be_bytes());
    }
    let kind = random.one_of(&[0x800, 0x800, 0x86dd, 0x86dd, 0x806]);
    bytes.extend((kind as u16).to_be_bytes());
    let protocol = random.one_of(&[TCP, UDP, SCTP, 1]);
    let tos = random.one_of(&[0, 4]);
    match kind {
        0x800 => {
            let options = random.one_of(&[0, 1]);
            bytes.extend([
                0x45 + options,
                tos,
                0,
                40,
                0,
                1,
                0x40,
                0,
                64,
                protocol,
                0,
                0,
            ]);
            for _ in 0..2 {
                bytes.extend([192, 0, 2, random.one_of(&[1, 129])]);
            }
            bytes.resize(bytes.len() + 4 * usize::from(options), 1);
        }
        0x86dd => {
            bytes.extend([0x60 | tos >> 4, tos << 4, 0, 0, 0, 20, protocol, 64]);
            for _ in 0..2 {
                let high = random.one_of(&[0, 0x80]);
                bytes.extend([0x20, 1, 0xd, 0xb8, high, 0, 0, 0]);
                bytes.extend([0, 0, 0, 0, 0, 0, 0, random.one_of(&[1, 2])]);
            }
        }
        _ => bytes.extend([0; 28]),
    }
    for _ in 0..2 {
        bytes.extend(random.one_of(&[53u16, 80, 60, 1000]).to_be_bytes());
    }
    bytes.resize(bytes.len() + 16, 0);
    bytes
}

/// What a card finds in a packet and compares.
fn card_matches(rule: &Rule, packet: &[u8]) -> bool {
    let number = |at: usize, len: usize| {
        let bytes = &packet[at..at + len];
        bytes.iter().fold(0u128, |n, b| n << 8 | u128::from(*b))
    };
    let is = |value: u128, mask: u128, found: u128| found & mask == value;
    let short = |m: Masked<u16>, found| is(m.value.into(), m.mask.into(), found);
    let mac = |m: Masked<u64>, at| is(m.value.into(), m.mask.into(), number(at, 6));
    let outer = number(12, 2) as u16;
    let is_tagged = TPIDS.contains(&outer);
    let network = if is_tagged { 18 } else { 14 };
    let kind = number(network - 2, 2) as u16;
    if is_tagged != (rule.vlan_tci.mask != 0)
        || rule.vlan_type.is_some_and(|tpid| tpid != outer)
        || (is_tagged && !short(rule.vlan_tci, number(14, 2)))
        || !mac(rule.destination, 0)
    {
        return false;
    }
    let ip = match rule.layer {
        Layer::Ethernet { source, ether_type } => {
            return mac(source, 6) && ether_type.is_none_or(|wanted| wanted == kind);
        }
        Layer::Ip(ip) => ip,
    };
    let byte = |at: usize| packet[network + at];
    let (wanted, tos, protocol, len, src, transport) = match ip.is_v6 {
        true => (0x86dd, byte(0) << 4 | byte(1) >> 4, 6, 16, 8, 40),
        false => {
            let header = 4 * usize::from(byte(0) & 15);
            (0x800, byte(1), 9, 4, 12, header)
        }
    };
    let address = |m: Masked<u128>, at| is(m.value, m.mask, number(network + at, len));
    let ports = network + transport;
    kind == wanted
        && tos & ip.tos.mask == ip.tos.value
        && ip.protocol.is_none_or(|wanted| wanted == byte(protocol))
        && address(ip.source, src)
        && address(ip.destination, src + len)
        && short(ip.source_port, number(ports, 2))
        && short(ip.destination_port, number(ports + 2, 2))
}

#[test]
fn rules_match_the_packets_of_the_expression() {
    let seed = 0x9e37_79b9_7f4a_7c15;
    let mut random = Random(seed);
    let (mut converted, mut matching, mut refused) = (0, 0, 0);
    for round in 0..600 {
        let tag = (random.below(4) == 0).then_some(5);
        let inner = expression(&mut random, 3);
        let text = match tag {
            Some(tag) => format!("vlan {tag} and ({inner})"),
            None => inner,
        };
        let Ok(program) = compile(&text, &Options::default()) else {
            continue;
        };
        let Ok(found) = rules(&text, &Options::default()) else {
            refused += 1;
            continue;
        };
        converted += 1;
        for _ in 0..60 {
            let tag = (random.below(4) != 0).then_some(random.one_of(&[5, 6]));
            let tag = tag.filter(|_| text.starts_with("vlan"));
            let packet = packet(&mut random, tag);
            let wanted = vm_cbpf::run(&program, &packet, packet.len() as u32) != 0;
            let got = found.list.iter().any(|rule| card_matches(rule, &packet));
            matching += usize::from(wanted);
            assert_eq!(
                got, wanted,
                "seed {seed:#x}, round {round}: {text}\n{found:?}\n{packet:02x?}"
            );
        }
    }
    assert!(converted > 200 && refused > 20, "{converted}, {refused}");
    assert!(matching > 1000, "{matching}");
}
