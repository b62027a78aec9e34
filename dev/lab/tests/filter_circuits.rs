//! Expressions on link types without Ethernet or 802.11 of their own: logs of pf(4), ATM of
//! Solaris, SS7, frame relay, PPI and others, compared with the installed libpcap on random
//! packets, at every length.

use bpf::vm_cbpf;
use filter::expression::{Options, compile};
use lab::random::Random;

use super::filter_expression::compare;
use super::filter_links::{EXPRESSIONS, llc, mac, network, of, wlan};

/// pf(4), SunATM, MTP2, MTP2 with a pseudo-header, ERF, frame relay, PPI, Symantec, IEEE 1394,
/// classical IP over ATM, PPP of BSD/OS, ENC, ipnet, netANALYZER; and 802.15.4
/// with and without FCS, USB and Bluetooth, of which only bytes are tested.
const LINK_TYPES: [u16; 20] = [
    117, 123, 140, 139, 197, 107, 192, 99, 138, 106, 103, 109, 226, 240, 241, 195, 230, 215, 189,
    201,
];

fn ip(random: &mut Random) -> ([u8; 2], Vec<u8>) {
    let kind = of(random, &[[8, 0], [8, 0], [0x86, 0xdd], [8, 6]]);
    (kind, network(random, kind))
}

/// Ethernet with all that can follow it.
fn ethernet(random: &mut Random) -> Vec<u8> {
    let mut out = [mac(random), mac(random)].concat();
    let kinds = [[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0x47], [0x88, 0x64]];
    match random.below(4) {
        0 => {
            out.extend([0, 60]);
            out.extend(llc(random));
        }
        _ => {
            let kind = of(random, &kinds);
            out.extend(kind);
            out.extend(network(random, kind));
        }
    }
    out
}

fn pf(random: &mut Random) -> Vec<u8> {
    let len = of(random, &[61, 64, 100]);
    let mut out = vec![len, of(random, &[2, 2, 10])];
    out.extend([of(random, &[0, 1, 8, 3]), of(random, &[0, 1, 2])]);
    out.extend(of(random, &[b"em0\0", b"em1\0", b"on\0\0"]));
    out.resize(20, 0);
    out.extend(of(random, &[b"foo\0\0\0", b"foobar", b"bar\0\0\0"]));
    out.resize(36, 0);
    out.extend([
        0,
        0,
        0,
        of(random, &[2, 3, 4]),
        0,
        0,
        0,
        of(random, &[3, 4]),
    ]);
    out.resize(60, 0);
    out.push(of(random, &[1, 2]));
    out.resize(usize::from(len).next_multiple_of(4), 0);
    let kind = if out[1] == 2 { [8, 0] } else { [0x86, 0xdd] };
    out.extend(network(random, kind));
    out
}

fn sun_atm(random: &mut Random) -> Vec<u8> {
    let protocol = of(random, &[0x01, 0x81, 0x82, 0x02, 0x06]);
    let mut out = vec![protocol, of(random, &[0, 0, 3]), 0, 0];
    out[3] = of(random, &[1, 2, 3, 4, 5, 5, 16]);
    match protocol & 0x0f {
        1 => {
            out.extend(of(random, &[[0, 1], [0, 1], [0xff, 0]]));
            out.extend(ethernet(random));
        }
        2 => out.extend(llc(random)),
        _ => {
            let message = of(random, &[5, 2, 7, 15, 0x4d, 0x5a, 9]);
            out.extend([9, 3, 0, 0, 1, message, 0, 0, 0]);
        }
    }
    out
}

fn ss7(random: &mut Random, before: usize) -> Vec<u8> {
    let mut out = vec![0; before];
    out.extend([
        of(random, &[0, 1, 2, 3, 0x3f, 0xc0]),
        of(random, &[3, 0x83]),
    ]);
    for _ in 0..10 {
        out.push(of(random, &[0, 1, 3, 4, 5, 0x40, 0x41, 0x4b, 0xc0, 0xa0]));
    }
    out
}

fn packet(random: &mut Random, link_type: u16) -> Vec<u8> {
    let (kind, rest) = ip(random);
    let padded = |mut header: Vec<u8>, len| {
        header.resize(len, 0);
        header
    };
    let header = match link_type {
        117 => return pf(random),
        123 => return sun_atm(random),
        140 => return ss7(random, 2),
        139 => return ss7(random, 6),
        197 => return ss7(random, 22),
        106 => return llc(random),
        192 => {
            let link = of(random, &[105, 105, 105, 1]);
            let len = of(random, &[8, 20]);
            let header = padded(vec![0, 0, len, 0, link], len.into());
            return [header, wlan(random)].concat();
        }
        240 => return [vec![0; 4], ethernet(random)].concat(),
        241 => return [vec![0; 12], ethernet(random)].concat(),
        107 => vec![
            0x18,
            0x41,
            3,
            of(random, &[0xcc, 0x8e, 0x81, 0x83, 0x82, 8]),
        ],
        99 => padded([&[0; 6][..], &kind].concat(), 44),
        138 => padded([&[1; 16][..], &kind].concat(), 18),
        103 => {
            let protocol = of(random, &[0x21, 0x2d, 0x2f, 0x57, 0x23]);
            padded(vec![0, 0, 0, 0, 0, 0, protocol], 24)
        }
        109 => padded(vec![of(random, &[2, 24, 28, 30, 10])], 12),
        226 => padded(vec![1, of(random, &[2, 26]), 0, of(random, &[1, 2])], 24),
        _ => vec![of(random, &[0, 1, 2, 3]); 8],
    };
    [header, rest].concat()
}

/// Whether barewire follows libpcap in this expression on this link type.
fn is_same(link_type: u16, text: &str) -> bool {
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let is_of_header = [
        "ip", "ip6", "iso", "clnp", "esis", "len", "link", "byte", "arp",
    ]
    .iter()
    .any(|word| words[0] == *word);
    match link_type {
        // libpcap looks for the IP header at the beginning of a frame relay packet.
        107 => is_of_header && words.len() < 2,
        // There, libpcap refuses "llc" without a reason.
        106 => words[0] != "llc",
        // libpcap does not take PPI for a header of 802.11 there; "pppoes" as on others.
        192 => !["vlan", "type", "subtype", "dir", "direction", "pppoes"]
            .iter()
            .any(|word| words.contains(word)),
        _ => true,
    }
}

#[test]
fn verdicts_on_logs_of_pf_atm_and_ss7_equal_those_of_libpcap() {
    if sys::libpcap::version().is_err() {
        skip::skip!("libpcap is not installed");
    }
    let mut random = Random::seeded("filter, pf, ATM and SS7");
    let mut found = Vec::new();
    for link_type in LINK_TYPES {
        let packets: Vec<_> = (0..150).map(|_| packet(&mut random, link_type)).collect();
        for text in EXPRESSIONS.lines().filter(|text| is_same(link_type, text)) {
            found.extend(compare(text, link_type, &packets, &mut (0, 0)));
        }
    }
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}

fn selects(link_type: u16, text: &str, packet: &[u8]) -> bool {
    let options = Options {
        link_type,
        ..Options::default()
    };
    let program = compile(text, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
    vm_cbpf::run(&program, packet, packet.len() as u32) != 0
}

/// Where libpcap 1.10 contradicts its manual or the format, barewire follows these.
#[test]
fn documented_differences_from_libpcap_are_those_of_the_formats() {
    let tcp = {
        let mut ip = vec![
            0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        ip.extend([
            0, 80, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0,
        ]);
        ip
    };
    let frame_relay = [&[0x18, 0x41, 3, 0xcc][..], &tcp].concat();
    assert!(selects(107, "tcp port 80 and ip[8] = 64", &frame_relay));
    assert!(!selects(107, "tcp port 81", &frame_relay));
    // AF_INET6 of each BSD, in a log of pf.
    for family in [24, 28, 30] {
        let mut log = vec![61, family];
        log.resize(64, 0);
        log.extend([0x60, 0, 0, 0, 0, 0, 6, 64]);
        log.extend([0; 60]);
        assert!(selects(117, "ip6 and tcp", &log));
    }
    // The ATM header is at the beginning, also after "lane".
    let lane = [&[1, 3, 0, 5, 0, 1][..], &[9; 12], &[8, 0], &tcp].concat();
    assert!(selects(
        123,
        "lane and vpi 3 and vci 5 and tcp port 80",
        &lane
    ));
    assert!(selects(123, "lane and lane", &lane));
    for (text, is) in [("vpi != 3", false), ("vpi != 4", true), ("vci != 3", true)] {
        assert_eq!(selects(123, text, &lane), is, "{text}");
    }
    assert!(!selects(140, "sio != 3", &[0, 0, 3, 3, 0, 0, 0, 0]));
    assert!(selects(1, "byte 0 & 8", &[8]) && !selects(1, "byte 0 & 7", &[8]));
    assert!(selects(1, "byte 0 | 7", &[0]) && !selects(1, "byte 0 | 0", &[0]));
    let arcnet = [[0x0a, 0x1b, 212, 0, 0, 0].as_slice(), &tcp].concat();
    for (text, is) in [
        ("link host $a", true),
        ("link src $0a", true),
        ("ether dst $1B and tcp port 80", true),
        ("ether src $1b", false),
        ("ether src and dst $a", false),
        ("not ether host $1 or $1b", true),
    ] {
        assert_eq!(selects(7, text, &arcnet), is, "{text}");
    }
    let (link_type, options) = (1, Options::default());
    let refused = compile(
        "ether host $1",
        &Options {
            link_type,
            ..options
        },
    );
    assert_eq!(refused.unwrap_err().at, 11..13);
}
