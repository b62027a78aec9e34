//! Tests of packets in tunnels: the packet inside gives the same verdict as the packet alone.

use super::tests_extended::Random;
use super::*;
use bpf::vm_cbpf;

fn extended(link_type: u16) -> Options<'static> {
    Options {
        link_type,
        extended: true,
        ..Options::default()
    }
}

/// The verdict on a packet; an expression that no packet of the link type can match is false.
fn verdict(text: &str, link_type: u16, packet: &[u8]) -> Option<bool> {
    match compile(text, &extended(link_type)) {
        Ok(program) => Some(vm_cbpf::run(&program, packet, packet.len() as u32) != 0),
        Err(error) if error.what == REJECTS_ALL => Some(false),
        Err(_) => None,
    }
}

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&MACS[..], &kind.to_be_bytes(), payload].concat()
}

fn ipv4(protocol: u8, options: usize, payload: &[u8]) -> Vec<u8> {
    let len = (20 + options + payload.len()) as u16;
    let mut ip = vec![0x45 + (options / 4) as u8, 0];
    ip.extend(len.to_be_bytes());
    ip.extend([
        0, 7, 0, 0, 64, protocol, 0, 0, 198, 51, 100, 1, 198, 51, 100, 2,
    ]);
    ip.extend(vec![1; options]);
    [&ip, payload].concat()
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend((payload.len() as u16).to_be_bytes());
    ip.extend([next, 64]);
    ip.extend([0x20; 16]);
    ip.extend([0x30; 16]);
    [&ip, payload].concat()
}

fn udp(source: u16, port: u16, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let numbers = [source, port, len, 0].map(u16::to_be_bytes);
    [numbers.as_flattened(), payload].concat()
}

/// The IP version of the packet inside.
fn is_v6(ip: &[u8]) -> bool {
    ip[0] >> 4 == 6
}

type Wrap = fn(&[u8]) -> (u8, Vec<u8>);

/// Tunnels that carry an Ethernet packet: the protocol after IP, and what follows it.
const OF_ETHERNET: &[(&str, Wrap)] = &[
    ("vxlan", |p| {
        (17, udp(9, 4789, &[&[8, 0, 0, 0, 0, 0, 7, 0], p].concat()))
    }),
    ("vxlan-gpe", |p| {
        (17, udp(9, 4790, &[&[12, 0, 0, 3, 0, 0, 7, 0], p].concat()))
    }),
    ("geneve", |p| {
        (
            17,
            udp(
                9,
                6081,
                &[&[2, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 1, 0, 0, 0, 0], p].concat(),
            ),
        )
    }),
    ("gre", |p| (47, [&[0, 0, 0x65, 0x58], p].concat())),
    ("gre with all fields", |p| {
        (
            47,
            [
                &[0xb0, 0, 0x65, 0x58, 1, 2, 3, 4, 0, 0, 0, 5, 0, 0, 0, 1],
                p,
            ]
            .concat(),
        )
    }),
    ("gre in udp", |p| {
        (
            17,
            udp(9, 4754, &[&[0x20, 0, 0x65, 0x58, 0, 0, 0, 9], p].concat()),
        )
    }),
    ("erspan I", |p| (47, [&[0, 0, 0x88, 0xbe], p].concat())),
    ("erspan II", |p| {
        (
            47,
            [
                &[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 1, 0, 5, 0, 0, 0, 0],
                p,
            ]
            .concat(),
        )
    }),
    ("erspan III", |p| {
        let header = [
            0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        (47, [&header, p].concat())
    }),
    ("erspan III with a subheader", |p| {
        let header = [
            0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1,
        ];
        (47, [&header[..], &[0; 8], p].concat())
    }),
    ("etherip", |p| (97, [&[0x30, 0], p].concat())),
    ("srv6", |p| (143, p.to_vec())),
];

/// Tunnels that carry an IP packet.
const OF_IP: &[(&str, Wrap)] = &[
    ("ip in ip", |p| (if is_v6(p) { 41 } else { 4 }, p.to_vec())),
    ("gre", |p| (47, [&gre_ip(p, 0)[..], p].concat())),
    ("gre with a key", |p| {
        (47, [&gre_ip(p, 0x20)[..], &[0, 0, 0, 1], p].concat())
    }),
    ("geneve", |p| {
        let kind = if is_v6(p) { [0x86, 0xdd] } else { [8, 0] };
        (
            17,
            udp(9, 6081, &[&[0, 0][..], &kind, &[0, 0, 7, 0], p].concat()),
        )
    }),
    ("vxlan-gpe", |p| {
        let next = if is_v6(p) { 2 } else { 1 };
        (
            17,
            udp(9, 4790, &[&[12, 0, 0, next, 0, 0, 7, 0], p].concat()),
        )
    }),
    ("gtp-u", |p| {
        (17, udp(9, 2152, &[&gtpu(0x30, p.len()), p].concat()))
    }),
    ("gtp-u with a sequence number", |p| {
        (
            17,
            udp(
                9,
                2152,
                &[&gtpu(0x32, p.len() + 4)[..], &[0, 1, 0, 0], p].concat(),
            ),
        )
    }),
    ("gtp-u with extensions", |p| {
        let extensions = [0, 1, 0, 0x85, 1, 0, 9, 0xc0, 2, 1, 2, 3, 4, 5, 6, 0];
        (
            17,
            udp(
                9,
                2152,
                &[&gtpu(0x36, p.len() + 16)[..], &extensions, p].concat(),
            ),
        )
    }),
    ("gtp 0", |p| {
        let len = (p.len() as u16).to_be_bytes();
        let header = [&[0x1e, 255][..], &len, &[0; 16]].concat();
        (17, udp(9, 3386, &[&header, p].concat()))
    }),
    ("l2tp", |p| {
        (
            17,
            udp(9, 1701, &[&[0, 2, 0, 5, 0, 7][..], &ppp(p, 4), p].concat()),
        )
    }),
    ("l2tp with all fields", |p| {
        let header = [0x4a, 2, 0, 0, 0, 5, 0, 7, 0, 1, 0, 2, 0, 2, 0, 0];
        (17, udp(1701, 9, &[&header[..], &ppp(p, 2), p].concat()))
    }),
    ("l2tp with a short protocol", |p| {
        (
            17,
            udp(9, 1701, &[&[0, 2, 0, 5, 0, 7][..], &ppp(p, 1), p].concat()),
        )
    }),
    ("pptp", |p| {
        let header = [0x30, 0x81, 0x88, 0x0b, 0, 2, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2];
        (47, [&header[..], &ppp(p, 4), p].concat())
    }),
    ("pim register", |p| {
        (103, [&[0x21, 0, 0, 0, 0, 0, 0, 0], p].concat())
    }),
];

fn gre_ip(packet: &[u8], flags: u8) -> [u8; 4] {
    match is_v6(packet) {
        true => [flags, 0, 0x86, 0xdd],
        false => [flags, 0, 8, 0],
    }
}

fn gtpu(flags: u8, len: usize) -> Vec<u8> {
    let [high, low] = (len as u16).to_be_bytes();
    vec![flags, 255, high, low, 0, 0, 0, 9]
}

/// The last bytes of a PPP header.
fn ppp(packet: &[u8], len: usize) -> Vec<u8> {
    let number = if is_v6(packet) { 0x57 } else { 0x21 };
    let whole = [0xff, 3, 0, number];
    whole[4 - len..].to_vec()
}

/// Everything that may be around the tunnel's own header: IPv4 without and with options and AH,
/// IPv6 without and with extension headers.
fn outers(protocol: u8, payload: &[u8]) -> Vec<Vec<u8>> {
    let mut ah = vec![protocol, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1];
    ah.extend(payload);
    let mut options = vec![60, 0, 0, 0, 0, 0, 0, 0, 44, 1];
    options.extend([0; 14]);
    options.extend([protocol, 0, 0, 0, 0, 0, 0, 9]);
    options.extend(payload);
    vec![
        ethernet(0x800, &ipv4(protocol, 0, payload)),
        ethernet(0x800, &ipv4(protocol, 8, payload)),
        ethernet(0x800, &ipv4(51, 0, &ah)),
        ethernet(0x86dd, &ipv6(protocol, payload)),
        ethernet(0x86dd, &ipv6(0, &options)),
        ethernet(0x86dd, &ipv6(51, &ah)),
    ]
}

impl Random {
    /// An IP packet with values that the expressions test.
    fn ip(&mut self) -> Vec<u8> {
        let protocol = self.pick(&[6, 6, 17, 17, 1, 132]);
        let mut rest = vec![0; 24];
        for at in [0, 2] {
            let port: u16 = self.pick(&[53, 80, 443, 40_000]);
            rest[at..at + 2].copy_from_slice(&port.to_be_bytes());
        }
        (rest[12], rest[13]) = (0x50, self.pick(&[2, 16, 18]));
        let last = self.pick(&[1, 2, 9]);
        let mut ip = match self.below(2) {
            0 => {
                let options = self.pick(&[0, 0, 4]);
                let mut ip = ipv4(protocol, options, &rest);
                ip[6..8].copy_from_slice(&self.pick(&[[0, 0], [0x40, 0], [0x20, 0], [0, 9]]));
                ip[12..16].copy_from_slice(&[192, 0, 2, last]);
                ip
            }
            _ => {
                let mut ip = ipv6(if protocol == 1 { 58 } else { protocol }, &rest);
                ip[23] = last;
                ip
            }
        };
        let at = if is_v6(&ip) { 7 } else { 8 };
        ip[at] = self.pick(&[32, 63, 64]);
        ip
    }

    /// An Ethernet packet.
    fn frame(&mut self) -> Vec<u8> {
        let ip = self.ip();
        let kind = if is_v6(&ip) { 0x86dd } else { 0x800 };
        match self.below(6) {
            0 => ethernet(
                0x8100,
                &[&[0, 5], &u16::to_be_bytes(kind)[..], &ip].concat(),
            ),
            1 => {
                let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1];
                ethernet(0x806, &[&arp[..], &[0; 6], &[192, 0, 2, 2]].concat())
            }
            2 => ethernet(0x8847, &[&[0, 1, 0x11, 64], &ip[..]].concat()),
            3 => ethernet(20, &[&[0x42, 0x42, 3], &[0; 17][..]].concat()),
            _ => ethernet(kind, &ip),
        }
    }

    fn expression(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 2 } else { 5 }) {
            0 | 1 => self.pick(PRIMITIVES).to_owned(),
            2 => format!("not {}", self.expression(0)),
            3 => format!(
                "({} or {})",
                self.expression(depth - 1),
                self.expression(depth - 1)
            ),
            _ => format!(
                "({} and {})",
                self.expression(depth - 1),
                self.expression(depth - 1)
            ),
        }
    }
}

const PRIMITIVES: &[&str] = &[
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp",
    "icmp",
    "sctp",
    "tcp port 80",
    "udp port 53",
    "port 443",
    "src port 40000",
    "dst portrange 50-90",
    "host 192.0.2.1",
    "src net 192.0.2.0/30",
    "net 2000::/8",
    "ip proto 17",
    "tcp[tcpflags] & tcp-syn != 0",
    "ip[8] > 32",
    "udp[4:2] = 0",
    "ip[0] & 0xf = 6",
    "ttl 63-64",
    "ether host 2:0:0:0:0:2",
    "ether proto 0x800",
    "vlan",
    "(vlan 5 and tcp)",
    "(mpls 17 and udp)",
    "stp",
    "ether[0] = 2",
    "ip[6:2] & 0x1fff != 0",
    "ip broadcast",
    "ip6[6] = 6",
];

/// Compares `inner E` on a packet in a tunnel with E on the packet alone, truncated.
fn compare(random: &mut Random, whole: &[u8], alone: &[u8], link_type: u16, name: &str) -> bool {
    let text = random.expression(2);
    let Some(expected) = verdict(&text, link_type, alone) else {
        return false;
    };
    let wrapped = format!("inner {text}");
    let found = verdict(&wrapped, 1, whole);
    assert_eq!(found, Some(expected), "{name}: {wrapped}\n{whole:02x?}");
    // Behind more of its type, and in the other way.
    assert_eq!(
        verdict(&format!("not inner {text}"), 1, whole),
        Some(!expected),
        "{text}"
    );
    // The verdict on a part of the packet, down to its link header.
    let least = if link_type == 1 { 14 } else { 1 };
    let len = least + random.below(alone.len() - least);
    let cut = whole.len() - (alone.len() - len);
    let expected = verdict(&text, link_type, &alone[..len]);
    assert_eq!(
        verdict(&wrapped, 1, &whole[..cut]),
        expected,
        "{name}: {wrapped}, {len} bytes"
    );
    true
}

#[test]
fn the_packet_in_a_tunnel_gives_the_verdict_of_the_packet_alone() {
    let mut random = Random(0x5eed_1e17);
    let mut compared = 0;
    for _ in 0..60 {
        for (list, link_type) in [(OF_ETHERNET, 1), (OF_IP, 101)] {
            for (name, wrap) in list {
                let alone = match link_type {
                    1 => random.frame(),
                    _ => random.ip(),
                };
                let (protocol, payload) = wrap(&alone);
                let outers = outers(protocol, &payload);
                let whole = &outers[random.below(outers.len())];
                compared += usize::from(compare(&mut random, whole, &alone, link_type, name));
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn tunnels_without_an_outer_ip_header_are_entered() {
    let mut random = Random(0x5eed_2e17);
    for _ in 0..40 {
        let frame = random.frame();
        for (kind, header) in [
            (0x88e7, &[0, 0, 0, 9][..]),
            (0x8903, &[0, 0x60]),
            (0x894f, &[0x0f, 0xc3, 2, 3, 0, 0, 9, 255, 1, 2, 3, 4]),
        ] {
            let whole = ethernet(kind, &[header, &frame].concat());
            compare(&mut random, &whole, &frame, 1, &format!("{kind:x}"));
        }
        let text = random.expression(1);
        let control_word = [0, 1, 1, 64, 0, 0, 0, 0];
        let whole = ethernet(0x8847, &[&control_word[..], &frame].concat());
        let expected = verdict(&text, 1, &frame);
        assert_eq!(
            verdict(&format!("mpls and inner {text}"), 1, &whole),
            expected,
            "{text}"
        );
    }
}

#[test]
fn it_is_repeated_for_tunnels_in_tunnels_and_behind_tags() {
    let inside = ethernet(0x800, &ipv4(6, 0, &[0, 80, 0, 80, 0, 0, 0, 0]));
    let (protocol, payload) = OF_ETHERNET[0].1(&inside);
    let middle = ipv4(protocol, 0, &payload);
    let outer = ethernet(0x800, &ipv4(4, 0, &middle));
    let tagged = [&outer[..12], &[0x81, 0, 0, 5], &outer[12..]].concat();
    for (text, packet, expected) in [
        ("inner inner tcp port 80", &outer, true),
        ("inner tcp", &outer, false),
        ("inner (udp dst port 4789 and inner tcp)", &outer, true),
        ("inner (vxlan 7 and tcp port 80)", &outer, true),
        ("inner (vxlan 8 and tcp port 80)", &outer, false),
        ("inner inner inner ip", &outer, false),
        ("ip proto 4 and inner udp and ip proto 4", &outer, true),
        ("inner udp or inner tcp", &outer, true),
        (
            "inner tcp or inner icmp or inner inner (arp or tcp)",
            &outer,
            true,
        ),
        ("inner tcp", &tagged, false),
        ("vlan and inner inner tcp", &tagged, true),
        ("vlan 5 and inner (udp and not tcp)", &tagged, true),
    ] {
        assert_eq!(verdict(text, 1, packet), Some(expected), "{text}");
    }
}

#[test]
fn what_follows_vxlan_and_gtpu_applies_to_their_packets() {
    let tcp = ipv4(6, 0, &[0, 80, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0]);
    let frame = ethernet(0x800, &tcp);
    let (_, in_vxlan) = OF_ETHERNET[0].1(&frame);
    let packets = [
        ethernet(0x800, &ipv4(17, 4, &in_vxlan)),
        ethernet(0x86dd, &ipv6(17, &in_vxlan)),
        ethernet(0x800, &ipv4(17, 0, &OF_IP[5].1(&tcp).1)),
        ethernet(0x86dd, &ipv6(17, &OF_IP[7].1(&tcp).1)),
        frame,
    ];
    for (text, expected) in [
        ("vxlan", [true, true, false, false, false]),
        ("vxlan 7 and tcp port 80", [true, true, false, false, false]),
        ("vxlan 8", [false; 5]),
        ("vxlan and udp", [false; 5]),
        (
            "vxlan and ether src 2:0:0:0:0:2",
            [true, true, false, false, false],
        ),
        ("gtpu", [false, false, true, true, false]),
        ("gtpu 9 and tcp", [false, false, true, true, false]),
        ("gtpu 8 and tcp", [false; 5]),
        ("gtpu and ether src 2:0:0:0:0:2", [false; 5]),
        ("udp and gtpu and tcp", [false, false, true, true, false]),
        // The second applies to the packet in the first.
        ("not gtpu and not vxlan", [true, true, false, false, true]),
        ("host 10.0.0.1 or vxlan", [true, true, false, false, false]),
        // As with geneve in libpcap, also where it was not found.
        ("vxlan or tcp", [true, true, false, false, false]),
    ] {
        let found = packets.each_ref().map(|packet| verdict(text, 1, packet));
        assert_eq!(found, expected.map(Some), "{text}");
    }
    // Without the flag the number is not valid; an echo request has no packet.
    let mut plain = packets[1].clone();
    plain[14 + 40 + 8] = 0;
    let mut echo = packets[2].clone();
    echo[14 + 20 + 9] = 1;
    assert_eq!(verdict("vxlan", 1, &plain), Some(false));
    assert_eq!(verdict("inner tcp", 1, &plain), Some(true));
    assert_eq!(verdict("gtpu", 1, &echo), Some(false));
    assert_eq!(verdict("inner tcp", 1, &echo), Some(false));
}

#[test]
fn what_cannot_be_entered_is_refused_or_does_not_match() {
    for (text, at) in [
        ("inner", 0..5),
        ("inner and tcp", 0..5),
        ("tcp and inner", 8..13),
        ("inner (tcp", 10..10),
        ("vxlan 16777216", 6..14),
        ("inner payload[0] = 1", 14..15),
        ("inner tcp option mss", 17..20),
        ("inner inner inner inner inner tcp", 24..29),
    ] {
        let error = compile(text, &extended(1)).unwrap_err();
        assert_eq!(error.at, at, "{text}: {error}");
    }
    let error = compile("inner tcp", &extended(189)).unwrap_err();
    assert!(
        error.is_unsupported && error.what.contains("\"inner\""),
        "{error}"
    );
    // Names of libpcap's language stay names.
    let names = ["inner", "vxlan", "gtpu"].map(|name| format!("host {name}"));
    for text in &names {
        let error = compile(text, &extended(1)).unwrap_err();
        assert!(error.what.contains("unknown host"), "{text}: {error}");
        assert!(compile(&text[5..], &Options::default()).is_err());
    }
    let error = compile("host 192.0.2.1 or inner", &extended(1)).unwrap_err();
    assert!(error.what.contains("unknown host"), "{error}");
    // GRE with source routes, and more extension headers than are skipped.
    let tcp = ipv4(6, 0, &[0; 20]);
    let routed = [&[0x40, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0], &tcp[..]].concat();
    let mut many = [60, 0, 0, 0, 0, 0, 0, 0].repeat(5);
    many[32] = 4;
    many.extend(&tcp);
    for packet in [
        ethernet(0x800, &ipv4(47, 0, &routed)),
        ethernet(0x86dd, &ipv6(60, &many)),
        ethernet(0x86dd, &ipv6(60, &many[8..])),
    ] {
        let is_near = packet[14 + 40..].len() == many.len() - 8;
        assert_eq!(verdict("inner tcp", 1, &packet), Some(is_near));
    }
}

#[test]
fn programs_run_in_the_kernel_and_in_every_translation() {
    let mut random = Random(0x5eed_3e17);
    for (text, most) in [
        ("inner tcp port 80", 800),
        ("inner inner (udp or arp)", 1600),
        ("vxlan and tcp port 80", 80),
        ("gtpu 7 and udp", 210),
        ("not inner host 192.0.2.1 or vxlan 5 or tcp", 900),
    ] {
        for link_type in [1, 101, 113, 276, 0, 127] {
            let program = compile(text, &extended(link_type)).unwrap();
            assert_eq!(program.kernel_refusal(), None, "{text}");
            let count = program.insns().len();
            assert!(count <= most || link_type != 1, "{text}: {count}");
            let frame = random.frame();
            let (protocol, payload) = OF_ETHERNET[random.below(OF_ETHERNET.len())].1(&frame);
            for packet in outers(protocol, &payload) {
                bpf::laws::program_input(&program, &packet);
            }
        }
    }
}
