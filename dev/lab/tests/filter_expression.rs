//! barewire's compiler of pcap expressions against the installed libpcap: the same verdict for
//! every packet, and the same expressions refused.

use bpf::cbpf::{Insn, Program};
use bpf::vm_cbpf::{self, PacketInfo};
use filter::expression::{Options, REJECTS_ALL, compile};
use sys::libpcap::PacketSource;

const EXPRESSIONS: &str = include_str!("../../../testdata/filter/expressions.txt");

/// Expressions that only one of the two compilers accepts, and why.
const KNOWN: &[&str] = &[];

fn libpcap(text: &str, link_type: u16, optimize: bool) -> Option<Program> {
    let swapped = false;
    libpcap_for(PacketSource::File { link_type, swapped }, text, optimize)
}

fn libpcap_for(source: PacketSource, text: &str, optimize: bool) -> Option<Program> {
    let insns = sys::libpcap::compile(text, source, 262_144, optimize).ok()?;
    let insns = insns.iter().map(|i| Insn::new(i.code, i.jt, i.jf, i.k));
    Program::new(insns.collect()).ok()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Network-layer packets: ARP, IPv4 and IPv6 with each transport, options, fragments and extension
/// headers.
fn networks() -> Vec<(u16, Vec<u8>)> {
    let mut list = Vec::new();
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1];
    arp.extend([0, 0, 0, 0, 0, 0, 192, 0, 2, 2]);
    list.push((0x806, arp.clone()));
    list.push((0x8035, arp));
    for (protocol, options, fragment) in [
        (6, 0, 0),
        (6, 4, 0x2000),
        (6, 0, 0x4000),
        (17, 0, 0),
        (17, 4, 185),
        (132, 0, 0),
        (1, 0, 0),
        (2, 4, 0),
        (103, 0, 0),
        (112, 0, 0),
    ] {
        for (src, dst) in [(80u16, 443u16), (40_000, 53), (85, 22)] {
            let mut payload = vec![0; 40];
            payload[..2].copy_from_slice(&src.to_be_bytes());
            payload[2..4].copy_from_slice(&dst.to_be_bytes());
            if protocol == 1 {
                payload[0] = 8;
            }
            (payload[12], payload[13]) = (0x50, 2);
            payload[20..24].copy_from_slice(b"GET ");
            let mut ip = vec![0x45 + options / 4, 0, 0, 60 + options, 0, 1];
            ip.extend(u16::to_be_bytes(fragment));
            ip.extend([64, protocol, 0, 0, 192, 0, 2, 1]);
            ip.extend(if src == 80 {
                [192, 0, 2, 2]
            } else {
                [224, 0, 0, 1]
            });
            ip.extend(vec![1; options.into()]);
            ip.extend(&payload);
            list.push((0x800, ip));
            let mut six = vec![0x60, 0, 0, 0, 0, 40, protocol, 64];
            six.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            six.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            if protocol == 1 {
                (six[6], payload[0]) = (58, 128);
            }
            if fragment != 0 {
                six[6] = 44;
                six.extend([protocol, 0, 0, 1, 0, 0, 0, 1]);
            }
            six.extend(payload);
            list.push((0x86dd, six));
        }
    }
    list.extend(chains());
    list.extend(decnet());
    list
}

/// Chains of extension and authentication headers, and Geneve over both versions of IP.
fn chains() -> Vec<(u16, Vec<u8>)> {
    let mut random = Random(0x5eed_c4a1);
    let mut list = Vec::new();
    for round in 0..24 {
        let is_v6 = round % 3 > 0;
        let mut numbers: Vec<u8> = (0..random.below(5))
            .map(|_| [0, 60, 43, 44, 51][random.below(5)])
            .collect();
        if !is_v6 {
            numbers.fill(51);
        }
        numbers.push([6, 17, 58, 59, 99][random.below(5)]);
        let mut packet = match is_v6 {
            true => {
                let mut ip = vec![0x60, 0, 0, 0, 0, 40, numbers[0], 64];
                ip.extend([2; 32]);
                ip
            }
            false => {
                let mut ip = vec![0x45, 0, 0, 60, 0, 1, 0, 0, 64, numbers[0], 0, 0];
                ip.extend([192, 0, 2, 1, 192, 0, 2, 2]);
                ip
            }
        };
        for pair in numbers.windows(2) {
            let words = random.below(2) as u8;
            packet.extend([pair[1], words]);
            let len = match pair[0] {
                51 => (usize::from(words) + 2) * 4,
                _ => (usize::from(words) + 1) * 8,
            };
            packet.extend(vec![0; len - 2]);
        }
        packet.extend([0; 12]);
        list.push((if is_v6 { 0x86dd } else { 0x800 }, packet));
    }
    for (version, network, port) in [(0, 5, 6081u16), (0, 6, 6081), (0x40, 5, 6081), (0, 5, 53)] {
        let mut udp = vec![0x9c, 0x40];
        udp.extend(port.to_be_bytes());
        udp.extend([0, 32, 0, 0, version, 0, 0x65, 0x58, 0, 0, network, 0]);
        udp.extend([0; 20]);
        let mut ip = vec![0x46, 0, 0, 64, 0, 1, 0, 0, 64, 17, 0, 0];
        ip.extend([192, 0, 2, 1, 192, 0, 2, 2, 1, 1, 1, 1]);
        let mut six = vec![0x60, 0, 0, 0, 0, 40, 17, 64];
        six.extend([2; 32]);
        list.push((0x800, [&ip[..], &udp].concat()));
        list.push((0x86dd, [&six[..], &udp].concat()));
    }
    list
}

/// DECnet data with short and long headers, with and without padding, from 1.2 to 63.1023.
fn decnet() -> Vec<(u16, Vec<u8>)> {
    let (from, to) = ([0x02, 0x04], [0xff, 0xff]);
    let short = [&[0x02][..], &to, &from, &[0, 0]].concat();
    let long = [
        &[0x06, 0, 0, 0xaa, 0, 4, 0][..],
        &to,
        &[0, 0, 0xaa, 0, 4, 0],
        &from,
        &[0; 4],
    ]
    .concat();
    let mut list = Vec::new();
    for header in [short, long] {
        list.push((0x6003, [&[40, 0][..], &header].concat()));
        list.push((0x6003, [&[41, 0, 0x81][..], &header].concat()));
    }
    list
}

/// Geneve (RFC 8926) over IPv4 and IPv6, with options of several lengths, around Ethernet and IP.
fn tunnels() -> Vec<(u16, Vec<u8>)> {
    let mut inner = Vec::new();
    for (ethertype, network) in [0x806, 0x800, 0x86dd].into_iter().flat_map(|kind| {
        let known = networks().into_iter();
        known.filter(move |row| row.0 == kind).step_by(5)
    }) {
        let addresses = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1];
        for header in headers(ethertype).iter().step_by(2) {
            inner.push((0x6558_u16, [&addresses[..], header, &network].concat()));
        }
        inner.push((ethertype, network));
    }
    let mut list = Vec::new();
    for (at, (kind, packet)) in inner.into_iter().enumerate() {
        let words = [0, 1, 3, 63][at % 4];
        let geneve = geneve(words, 7 + at as u8 % 2, kind);
        let udp = [0x30, 0x39, 0x17, 0xc1, 0, 99, 0, 0];
        let tunnel = [&udp[..], &geneve, &packet].concat();
        let mut header = vec![0x45 + at as u8 % 2, 0, 0, 200, 0, 1, 0, 0, 64, 17, 0, 0];
        header.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        header.extend(vec![1; at % 2 * 4]);
        list.push((0x800, [&header[..], &tunnel].concat()));
        let mut header = vec![0x60, 0, 0, 0, 0, 200, 17, 64];
        header.extend([0x20; 32]);
        list.push((0x86dd, [&header[..], &tunnel].concat()));
    }
    // Another version, and Geneve in Geneve.
    let mut list: Vec<_> = list.into_iter().step_by(3).collect();
    let mut header = vec![
        0x45, 0, 0, 200, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
    ];
    header.extend([0x30, 0x39, 0x17, 0xc1, 0, 99, 0, 0]);
    let nested = [&header[..], &geneve(1, 7, 0x800), &list[0].1].concat();
    list.push((0x800, nested));
    header.extend([0x40, 0, 8, 0, 0, 0, 7, 0, 0x45, 0, 0, 20]);
    list.push((0x800, header));
    list
}

fn geneve(words: u8, vni: u8, kind: u16) -> Vec<u8> {
    let mut header = vec![words, 0];
    header.extend(kind.to_be_bytes());
    header.extend([0, 0, vni, 0]);
    header.extend(vec![3; usize::from(words) * 4]);
    header
}

fn headers(ethertype: u16) -> Vec<Vec<u8>> {
    let kind = ethertype.to_be_bytes();
    let ppp = if ethertype == 0x800 {
        [0, 0x21]
    } else {
        [0, 0x57]
    };
    vec![
        kind.to_vec(),
        [&[0x81, 0, 0, 5][..], &kind].concat(),
        [&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7][..], &kind].concat(),
        vec![0x88, 0x47, 0, 1, 1, 64],
        vec![0x88, 0x47, 0, 1, 0, 64, 0, 1, 0x11, 64],
        [&[0x88, 0x64, 0x11, 0, 0, 5, 0, 99][..], &ppp].concat(),
        [&[0x88, 0x63, 0x11, 9, 0, 0, 0, 0][..], &ppp].concat(),
        vec![0, 60, 0xfe, 0xfe, 3, 0x83],
        vec![0, 60, 0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b],
        vec![0, 60, 0x42, 0x42, 3],
        vec![0, 60, 0x42, 0x42, 0xaf],
        vec![0, 60, 0x42, 0x42, 0x05],
        vec![0, 60, 0x42, 0x42, 0x02],
        vec![0, 60, 0xff, 0xff, 3],
    ]
}

fn packets(link_type: u16) -> Vec<Vec<u8>> {
    let mut list = Vec::new();
    for (ethertype, network) in networks() {
        let kind = ethertype.to_be_bytes();
        match link_type {
            1 => {
                for header in headers(ethertype) {
                    let addresses = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
                    list.push([&addresses[..], &header, &network].concat());
                }
                list.push([&[0xff; 12][..], &kind, &network].concat());
            }
            113 => {
                let start = [0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
                list.push([&start[..], &kind, &network].concat());
            }
            276 => {
                let rest = [0, 0, 0, 0, 0, 1, 0, 1, 4, 6, 2, 0, 0, 0, 0, 1, 0, 0];
                list.push([&kind[..], &rest, &network].concat());
            }
            0 | 108 => {
                let families: &[u32] = match ethertype {
                    0x800 => &[2, 24],
                    _ => &[24, 28, 30, 2],
                };
                for family in families {
                    let bytes = match link_type {
                        0 => family.to_ne_bytes(),
                        _ => family.to_be_bytes(),
                    };
                    list.push([&bytes[..], &network].concat());
                }
            }
            9 | 50 | 51 => {
                let protocol = if ethertype == 0x800 { 0x21 } else { 0x57 };
                let start: &[u8] = match link_type {
                    51 => &[0x11, 0, 0, 5, 0, 99],
                    _ => &[0xff, 3],
                };
                list.push([start, &[0, protocol], &network].concat());
            }
            104 => list.push([&[0x0f, 0][..], &kind, &network].concat()),
            _ => list.push(network),
        }
    }
    for (ethertype, network) in tunnels() {
        let kind = ethertype.to_be_bytes();
        match link_type {
            1 => {
                let addresses = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
                list.push([&addresses[..], &kind, &network].concat());
                let tag = [0x81, 0, 0, 5];
                list.push([&addresses[..], &tag, &kind, &network].concat());
            }
            113 => {
                let start = [0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
                list.push([&start[..], &kind, &network].concat());
            }
            101 => list.push(network),
            _ => {}
        }
    }
    list
}

/// Compares both compilers on one expression; returns the differences.
pub fn compare(
    text: &str,
    link_type: u16,
    packets: &[Vec<u8>],
    sizes: &mut (usize, usize),
) -> Vec<String> {
    let mut found = Vec::new();
    let theirs = libpcap(text, link_type, true);
    for optimize in [true, false] {
        let options = Options {
            link_type,
            optimize,
            ..Options::default()
        };
        let ours = compile(text, &options);
        let (ours, theirs) = match (ours, &theirs) {
            (Ok(ours), Some(theirs)) => (ours, theirs),
            (Err(_), None) => continue,
            // Only an optimized program shows a contradiction. BSD loopback has IP in two orders of
            // bytes here, and what follows both is known of neither.
            (Ok(_), None) if optimize && link_type != 0 => {
                found.push(format!("{link_type} {text:?}: libpcap refuses it"));
                continue;
            }
            (Ok(ours), None) => {
                let takes = |packet: &Vec<u8>| vm_cbpf::run(&ours, packet, packet.len() as u32);
                if packets.iter().any(|packet| takes(packet) != 0) {
                    found.push(format!("{link_type} {text:?}: libpcap refuses it"));
                }
                continue;
            }
            // libpcap finds fewer contradictions, and none if there is a `protochain`.
            (Err(error), Some(theirs)) if error.what == REJECTS_ALL => {
                let takes = |packet: &Vec<u8>| vm_cbpf::run(theirs, packet, packet.len() as u32);
                if packets.iter().any(|packet| takes(packet) != 0) {
                    found.push(format!("{link_type} {text:?}: libpcap compiles it"));
                }
                continue;
            }
            (Err(error), Some(_)) => {
                found.push(format!("{link_type} {text:?}: {error}"));
                continue;
            }
        };
        if optimize {
            sizes.0 += ours.insns().len();
            sizes.1 += theirs.insns().len();
        }
        let plain = libpcap(text, link_type, false);
        for packet in packets {
            for len in 0..=packet.len() {
                let wire_len = packet.len() as u32;
                let run = |program: &Program| vm_cbpf::run(program, &packet[..len], wire_len);
                let mine = run(&ours);
                // libpcap's own optimizer may remove a load that fails on a short packet.
                if mine != run(theirs) && plain.as_ref().is_none_or(|plain| mine != run(plain)) {
                    found.push(format!(
                        "{link_type} {text:?}: {mine} for {:02x?}",
                        &packet[..len]
                    ));
                    break;
                }
            }
            if found.len() > 2 {
                break;
            }
        }
    }
    found
}

#[test]
fn verdicts_equal_those_of_libpcap() {
    if sys::libpcap::version().is_err() {
        skip::skip!("libpcap is not installed");
    }
    let mut found = Vec::new();
    let mut sizes = (0, 0);
    for link_type in [0, 1, 9, 50, 51, 101, 104, 108, 113, 228, 229, 276] {
        let mut packets = packets(link_type);
        if link_type == 1 {
            // All Ethernet headers, with every third network packet.
            packets = packets.into_iter().step_by(3).collect();
        }
        for text in EXPRESSIONS.lines().filter(|text| !KNOWN.contains(text)) {
            found.extend(compare(text, link_type, &packets, &mut sizes));
        }
    }
    println!("{} instructions, libpcap {}", sizes.0, sizes.1);
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// Expressions that no packet can match, as libpcap says.
const CONTRADICTIONS: &[&str] = &[
    "tcp and udp",
    "ip and ip6",
    "arp and rarp",
    "tcp and icmp6",
    "icmp and ip6",
    "tcp port 80 and udp",
    "tcp port 80 and udp port 80",
    "ip and not ip",
    "src port 80 and src port 81",
    "tcp src port 80 and tcp src port 81",
    "src host 10.0.0.1 and src host 10.0.0.2",
    "src net 10 and src net 11",
    "ether src 2:0:0:0:0:1 and ether src 2:0:0:0:0:2",
    "ether proto 0x800 and arp",
    "ip[9] = 6 and ip[9] = 17",
    "ip[9] == 6 and udp",
    "ip proto 50 and ip proto 51",
    "ip6 proto 50 and ip6 proto 51",
    "tcp[tcpflags] = tcp-syn and tcp[tcpflags] = tcp-ack",
    "vlan 5 and vlan 6 and tcp and udp",
    "host 10.0.0.1 and arp and ip",
    "not (ip or not ip)",
    "1 = 2",
    "tcp and 1 > 2",
    "(tcp and udp) or (arp and ip)",
    "(tcp or arp) and (udp or rarp)",
    "udp and dst host 10.0.0.1 and tcp and dst port 80",
];

#[test]
fn what_libpcap_refuses_because_it_rejects_all_packets_is_refused() {
    if sys::libpcap::version().is_err() {
        skip::skip!("libpcap is not installed");
    }
    let (link_type, swapped) = (1, false);
    let mut refused = 0;
    for text in CONTRADICTIONS {
        let ours = compile(text, &Options::default()).map(|program| program.insns().len());
        assert_eq!(ours.expect_err(text).what, REJECTS_ALL, "{text}");
        let source = PacketSource::File { link_type, swapped };
        let theirs = sys::libpcap::compile(text, source, 262_144, true);
        refused += usize::from(theirs.is_err_and(|e| e.to_string().contains(REJECTS_ALL)));
    }
    println!("libpcap refuses {refused} of {}", CONTRADICTIONS.len());
    assert!(refused >= 20, "{refused}");
}

#[test]
fn verdicts_of_random_expressions_equal_those_of_libpcap() {
    if sys::libpcap::version().is_err() {
        skip::skip!("libpcap is not installed");
    }
    let parts: Vec<&str> = EXPRESSIONS
        .lines()
        .filter(|text| !KNOWN.contains(text) && compile(text, &Options::default()).is_ok())
        .filter(|text| {
            !["vlan", "mpls", "pppoe", "geneve"]
                .iter()
                .any(|word| text.contains(word))
        })
        .collect();
    let packets: Vec<Vec<u8>> = packets(1).into_iter().step_by(17).collect();
    let mut random = Random(0x5eed_0012);
    let mut found = Vec::new();
    let mut sizes = (0, 0);
    for _ in 0..1000 {
        let mut text = String::new();
        for i in 0..2 + random.below(4) {
            if i > 0 {
                text += [" and ", " or ", " and not ", " or not "][random.below(4)];
            }
            text += &format!("({})", parts[random.below(parts.len())]);
        }
        // libpcap does not optimize programs with `protochain`, and such an offset overflows then.
        if text.contains("[-1]") && text.contains("protochain") {
            continue;
        }
        found.extend(compare(&text, 1, &packets, &mut sizes));
    }
    println!("{} instructions, libpcap {}", sizes.0, sizes.1);
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// Where the VLAN tag is on a live socket, and the direction of the packet.
fn infos() -> Vec<PacketInfo> {
    let mut list = Vec::new();
    for vlan in [None, Some((0x8100, 5)), Some((0x88a8, 0x2007))] {
        for (packet_type, ifindex) in [(0, 1), (4, 2)] {
            list.push(PacketInfo {
                vlan,
                packet_type,
                ifindex,
                ..PacketInfo::default()
            });
        }
    }
    list
}

/// Expressions about metadata that the kernel keeps outside the packet.
const LIVE: &[&str] = &[
    "vlan",
    "not vlan",
    "vlan 5",
    "vlan 7",
    "vlan 5 or vlan 7",
    "vlan and vlan",
    "vlan 5 and vlan 7 and ip",
    "vlan and ip",
    "vlan or ip",
    "ip or vlan",
    "vlan and tcp port 80",
    "vlan 5 and host 192.0.2.1 and not udp",
    "(tcp port 80 and vlan) or ip6",
    "(udp and vlan 5) or tcp",
    "not (vlan and ip) and ip6",
    "vlan 5 and ether[0] = 2 and ip[0] = 0x45",
    "vlan and mpls",
    "tcp and (vlan or ip)",
    "inbound",
    "outbound",
    "inbound and vlan 5",
    "ifindex 2",
    "ifindex 1 and not vlan",
    "ip broadcast",
    "ip broadcast or vlan and ip broadcast",
];

#[test]
fn verdicts_on_a_live_socket_equal_those_of_libpcap() {
    // libpcap opens the interface to find out what its kernel supports.
    lab::require!(lab::skip::lab());
    if sys::libpcap::version().is_err() {
        skip::skip!("libpcap is not installed");
    }
    let namespace = lab::Netns::new().unwrap();
    let packets: Vec<Vec<u8>> = packets(1).into_iter().step_by(3).collect();
    let found = namespace
        .run(|| {
            let ifindex = sys::link::Link::by_name("lo").unwrap().index;
            let mut found = Vec::new();
            for text in LIVE {
                found.extend(compare_live(text, ifindex, &packets));
            }
            found
        })
        .unwrap();
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}

fn compare_live(text: &str, ifindex: u32, packets: &[Vec<u8>]) -> Vec<String> {
    let mut found = Vec::new();
    let link_type = 1;
    let source = PacketSource::Tap { link_type, ifindex };
    let theirs = [true, false].map(|optimize| libpcap_for(source, text, optimize).unwrap());
    for optimize in [true, false] {
        let options = Options {
            tap: Some(ifindex),
            optimize,
            ..Options::default()
        };
        let ours = compile(text, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
        for (packet, info) in packets
            .iter()
            .flat_map(|p| infos().into_iter().map(move |i| (p, i)))
        {
            for len in 0..=packet.len() {
                let wire_len = packet.len() as u32;
                let run =
                    |program: &Program| vm_cbpf::run_with(program, &packet[..len], wire_len, &info);
                let mine = run(&ours);
                if theirs.iter().all(|program| run(program) != mine) {
                    let bytes = &packet[..len];
                    found.push(format!("{text:?}: {mine} for {info:?} {bytes:02x?}"));
                    break;
                }
            }
            if found.len() > 2 {
                return found;
            }
        }
    }
    found
}
