//! Tests of packets in tunnels, compared with the dissector's inner packet and with tshark.

use bpf::vm_cbpf;
use filter::expression::{Options, REJECTS_ALL, compile};
use lab::oracle::{TempFile, tshark};
use lab::random::Random;
use lab::{require, skip};
use wire::{Dissection, LayerKind, LinkType, Reason};

use super::bpf_filter::InKernel;
use super::filter_links::{network, of};

fn verdict(text: &str, link_type: u16, packet: &[u8]) -> bool {
    let options = Options {
        link_type,
        extended: true,
        ..Options::default()
    };
    match compile(text, &options) {
        Ok(program) => vm_cbpf::run(&program, packet, packet.len() as u32) != 0,
        Err(error) if error.what == REJECTS_ALL => false,
        Err(error) => panic!("{text}: {error}"),
    }
}

/// Expressions for Ethernet and for raw IP, without lengths.
const EXPRESSIONS: [&str; 14] = [
    "ip",
    "ip6",
    "tcp",
    "udp",
    "not tcp",
    "icmp or icmp6",
    "udp port 53",
    "tcp port 80 or port 443",
    "net 10.0.0.0/8",
    "ip[8] > 63 or ip6[7] > 63",
    "ttl 32-64 and not udp",
    "tcp[tcpflags] & tcp-syn != 0",
    "ip[6:2] & 0x1fff = 0",
    "ip proto 17 or ip6 proto 17",
];

/// Whether the tunnel's header is one that `inner` finds without further words: tags, labels and
/// PPPoE in front of it have their own, and packets of LLC are not entered.
fn is_plain(level: &Dissection) -> bool {
    let link = [
        LayerKind::Ethernet,
        LayerKind::Pbb,
        LayerKind::FabricPath,
        LayerKind::Nsh,
    ];
    let ip = [
        LayerKind::Ipv4,
        LayerKind::Ipv6,
        LayerKind::Ah,
        LayerKind::Udp,
        LayerKind::Pim,
    ];
    let extensions = [
        LayerKind::HopByHop,
        LayerKind::Routing,
        LayerKind::DestinationOptions,
        LayerKind::Fragment,
    ];
    let tunnels = [
        LayerKind::Gre,
        LayerKind::Erspan,
        LayerKind::Etherip,
        LayerKind::Vxlan,
        LayerKind::VxlanGpe,
        LayerKind::Geneve,
        LayerKind::Gtpu,
        LayerKind::Gtp0,
        LayerKind::Teredo,
        LayerKind::L2tp,
    ];
    let known = |kind| {
        link.contains(&kind)
            || ip.contains(&kind)
            || extensions.contains(&kind)
            || tunnels.contains(&kind)
    };
    let mut count = 0;
    let are_known = level.layers().all(|(kind, _)| {
        count += usize::from(extensions.contains(&kind) || kind == LayerKind::Ah);
        known(kind)
    });
    // In IPv4 one authentication header is skipped, in IPv6 four headers.
    are_known && count <= if level.has(LayerKind::Ipv4) { 1 } else { 4 }
}

/// Compares the expressions on the packet that the dissector finds in a tunnel; returns how many
/// verdicts were compared.
fn compare(packet: &[u8], name: &str) -> usize {
    let (mut outer, mut inner) = (Dissection::EMPTY, Dissection::EMPTY);
    wire::dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut outer);
    if outer.inner_is_quote || outer.inner == LayerKind::None || !is_plain(&outer) {
        return 0;
    }
    wire::dissect_inner(packet, &outer, &mut inner);
    let link_type = match outer.inner {
        LayerKind::Ethernet => 1,
        LayerKind::Ipv4 | LayerKind::Ipv6 => 101,
        _ => return 0,
    };
    // Its version is not that of the number in front of it, or it is cut off.
    if matches!(
        inner.reason,
        Reason::BadVersion | Reason::Truncated | Reason::Short
    ) {
        return 0;
    }
    let alone = &packet[outer.inner_offset as usize..];
    for text in EXPRESSIONS {
        let expected = verdict(text, link_type, alone);
        let found = verdict(&format!("inner ({text})"), 1, packet);
        assert_eq!(found, expected, "{name}: {text}: {packet:02x?}");
    }
    EXPRESSIONS.len()
}

#[test]
fn the_packet_in_a_tunnel_is_the_one_that_the_dissector_finds() {
    let mut compared = 0;
    let corpus = lab::corpus::captures();
    for file in &corpus.files {
        let Some((LinkType::ETHERNET, packets)) = lab::corpus::read(file, 2_000) else {
            continue;
        };
        // Of each file some, so that none decides alone.
        let mut left = 60;
        for (packet, ..) in packets {
            let count = compare(&packet, &file.display().to_string());
            compared += count;
            left -= usize::from(count > 0);
            if left == 0 {
                break;
            }
        }
    }
    println!("{compared} verdicts on captures");
    assert!(compared >= corpus.at_least(10_000, 0), "{compared}");
    let mut random = Random::seeded("packets in tunnels");
    let mut generated = 0;
    for _ in 0..400 {
        let (packet, name) = tunnelled(&mut random);
        generated += compare(&packet, name);
    }
    assert!(generated > 3_000, "{generated}");
}

/// A packet in a tunnel, with the name of the tunnel.
fn tunnelled(random: &mut Random) -> (Vec<u8>, &'static str) {
    let kind = of(random, &[[8, 0], [0x86, 0xdd]]);
    let mut ip = network(random, kind);
    // The family that belongs to the type.
    while (ip[0] >> 4 == 6) != (kind[0] == 0x86) {
        ip = network(random, kind);
    }
    let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, &ip].concat();
    let udp = |port: u16, header: &[u8], payload: &[u8]| {
        let len = (8 + header.len() + payload.len()) as u16;
        let numbers = [40_000, port, len, 0].map(u16::to_be_bytes);
        (17, [numbers.as_flattened(), header, payload].concat())
    };
    let gtp = (ip.len() as u16).to_be_bytes();
    let (name, (protocol, payload)) = match random.below(9) {
        0 => ("vxlan", udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], &frame)),
        1 => ("geneve", udp(6081, &[0, 0, 0x65, 0x58, 0, 0, 7, 0], &frame)),
        2 => (
            "gtp",
            udp(2152, &[0x30, 255, gtp[0], gtp[1], 0, 0, 0, 9], &ip),
        ),
        3 => ("gre", (47, [&[0, 0][..], &kind, &ip].concat())),
        4 => (
            "gre",
            (
                47,
                [&[0x20, 0, 0x65, 0x58, 0, 0, 0, 1][..], &frame].concat(),
            ),
        ),
        5 => ("etherip", (97, [&[0x30, 0][..], &frame].concat())),
        6 => ("ip in ip", (if kind[0] == 8 { 4 } else { 41 }, ip)),
        7 => {
            let number = if kind[0] == 8 { 0x21 } else { 0x57 };
            let header = [0, 2, 0, 5, 0, 7, 0xff, 3, 0, number];
            ("l2tp", udp(1701, &header, &ip))
        }
        _ => ("vxlan", udp(4789, &[8, 0, 0, 0, 0, 0, 8, 0], &frame)),
    };
    let len = payload.len() as u16;
    let mut packet = vec![2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 4];
    match random.below(2) {
        0 => {
            let total = (len + 20).to_be_bytes();
            packet.extend([
                8, 0, 0x45, 0, total[0], total[1], 0, 1, 0, 0, 64, protocol, 0, 0,
            ]);
            packet.extend([198, 51, 100, 1, 198, 51, 100, 2]);
        }
        _ => {
            let len = len.to_be_bytes();
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, len[0], len[1], protocol, 64]);
            packet.extend(
                [[0xfd; 15], [0xfe; 15]]
                    .map(|half| [&half[..], &[1]].concat())
                    .concat(),
            );
        }
    }
    packet.extend(payload);
    (packet, name)
}

/// Expressions, and display filters of tshark with the same meaning where the outer packet has
/// neither these addresses nor TCP.
const FILTERS: [(&str, &str); 10] = [
    ("inner tcp", "tcp"),
    ("inner tcp dst port 80", "tcp.dstport == 80"),
    ("inner src host 10.0.0.1", "ip.src == 10.0.0.1"),
    (
        "inner ip6 dst net 2001:db8::/64",
        "ipv6.dst == 2001:db8::/64",
    ),
    ("inner sctp", "sctp"),
    ("vxlan", "vxlan"),
    ("vxlan 7 and tcp", "vxlan.vni == 7 && tcp"),
    (
        "vxlan 8 and host 10.0.0.2",
        "vxlan.vni == 8 && ip.addr == 10.0.0.2",
    ),
    ("gtpu", "gtp"),
    (
        "gtpu 9 and ip6",
        "gtp.teid == 9 && ipv6.src == 2001:db8::/64",
    ),
];

#[test]
fn verdicts_are_those_of_tsharks_display_filters() {
    require!(skip::program("tshark", "tshark"));
    let mut random = Random::seeded("tunnels for tshark");
    let file = TempFile::new("tunnels.pcap");
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([0, 0, 4, 0, 1, 0, 0, 0]);
    let mut packets = Vec::new();
    while packets.len() < 400 {
        let (packet, _) = tunnelled(&mut random);
        // Fragments are put together by tshark and not by a filter; transport headers of IPv6 are
        // looked for behind extension headers.
        if verdict("inner (ip[6:2] & 0x3fff != 0 or ip6[6] = 44)", 1, &packet) {
            continue;
        }
        bytes.extend([0; 8]);
        bytes.extend((packet.len() as u32).to_le_bytes().repeat(2));
        bytes.extend(&packet);
        packets.push(packet);
    }
    std::fs::write(file.path(), bytes).unwrap();
    for (text, display) in FILTERS {
        let rows = tshark::fields(file.path(), &["frame.number"], &["-Y", display]).unwrap();
        let theirs: Vec<usize> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
        let numbered = packets.iter().enumerate();
        let ours = numbered.filter(|(_, packet)| verdict(text, 1, packet));
        let ours: Vec<usize> = ours.map(|(at, _)| at + 1).collect();
        assert!(!ours.is_empty(), "{text}");
        assert_eq!(ours, theirs, "{text}; {display}");
    }
}

/// The programs in the kernel: XDP with and without several buffers, and sockets.
#[test]
fn the_kernel_has_the_same_verdicts() {
    require!(skip::root());
    let mut random = Random::seeded("tunnels in the kernel");
    let packets: Vec<Vec<u8>> = (0..120).map(|_| tunnelled(&mut random).0).collect();
    let mut matching = 0;
    for text in [
        "inner tcp port 80",
        "inner (udp or ip6) and not inner net 10.0.0.0/8",
        "not inner tcp and vxlan 7 and ip",
        "inner inner tcp or gtpu 9 and udp",
    ] {
        let options = Options {
            extended: true,
            ..Options::default()
        };
        let program = compile(text, &options).unwrap();
        assert_eq!(program.kernel_refusal(), None, "{text}");
        let kernel = InKernel::load(&program, text);
        for packet in &packets {
            for len in [
                packet.len(),
                20 + random.below(packet.len() as u64 - 20) as usize,
            ] {
                assert!(kernel.check(&program, &packet[..len], text) >= 5);
                let found = vm_cbpf::run(&program, &packet[..len], len as u32);
                matching += usize::from(found != 0);
            }
        }
    }
    assert!(matching > 60, "{matching}");
}
