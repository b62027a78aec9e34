//! Filter, dissector and line agree on each link type: whatever the filter compiler accepts for a
//! link type is dissected, and the lines are tcpdump's.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use bpf::vm_cbpf;
use filter::expression::{Options, compile};
use lab::require;
use lab::skip;
use runtime::capture::{Context, Held, Printer, Style, TimeStyle};
use wire::{Dissection, LinkType, dissect};

const ETHERNET: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
const LLC: [u8; 8] = [0xaa, 0xaa, 3, 0, 0, 0, 8, 0];

/// An IPv4 packet with UDP from port 40000 to 40001, or an IPv6 packet.
fn ip(version: u8) -> Vec<u8> {
    let udp = [0x9c, 0x40, 0x9c, 0x41, 0, 12, 0, 0, 1, 2, 3, 4];
    let head: &[u8] = match version {
        4 => &[
            0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ],
        _ => &[
            0x60, 0, 0, 0, 0, 12, 17, 64, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
            0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
        ],
    };
    [head, &udp].concat()
}

fn zeros(len: usize) -> Vec<u8> {
    vec![0; len]
}

fn with(len: usize, bytes: &[(usize, u8)]) -> Vec<u8> {
    let mut head = zeros(len);
    bytes.iter().for_each(|(at, byte)| head[*at] = *byte);
    head
}

fn juniper(rest: &[u8]) -> Vec<u8> {
    [b"MGC\x01", rest].concat()
}

/// Headers in front of IPv4, by link type.
#[rustfmt::skip]
fn headers() -> Vec<(u16, Vec<u8>)> {
    let fibre = [&[0, 0], &ADDRESSES[..6], &[0, 0], &ADDRESSES[6..], &LLC].concat();
    let wlan = [&[8, 0, 0, 0], &ADDRESSES[..], &ADDRESSES[..6], &[0, 0], &LLC].concat();
    let tagged = |tag: &[u8]| [&ADDRESSES[..], tag, &[8, 0]].concat();
    vec![
        (0, vec![2, 0, 0, 0]), (1, ETHERNET.to_vec()),
        (6, [&[0x10, 0x40], &ADDRESSES[..], &LLC].concat()), (7, vec![1, 2, 212, 0, 0, 0]),
        (8, with(16, &[(1, 0x45)])), (9, vec![0xff, 3, 0, 0x21]),
        (10, [&[0x50], &ADDRESSES[..], &LLC].concat()), (50, vec![0xff, 3, 0, 0x21]),
        (51, vec![0x11, 0, 0, 1, 0, 34, 0, 0x21]), (99, with(44, &[(6, 8)])), (100, LLC.to_vec()),
        (101, vec![]), (102, with(24, &[(0, 0x40)])),
        (103, with(24, &[(3, 0xff), (4, 3), (6, 0x21)])),
        (104, vec![0x0f, 0, 8, 0]), (105, wlan.clone()), (106, LLC.to_vec()),
        (107, vec![0x18, 0x41, 3, 0xcc]), (108, vec![0, 0, 0, 2]),
        (109, with(12, &[(0, 2), (6, 0x12)])), (113, with(16, &[(14, 8)])),
        (117, with(64, &[(0, 61), (1, 2), (60, 1)])),
        (119, [with(144, &[(0, 0x44)]), wlan.clone()].concat()), (122, fibre),
        (123, [&[2, 0, 0, 32], &LLC[..]].concat()),
        (127, [&[0, 0, 8, 0, 0, 0, 0, 0], &wlan[..]].concat()),
        (129, vec![1, 2, 0, 0, 212, 0, 0, 0]), (138, with(18, &[(16, 8)])),
        (163, [&[0x80, 0x21, 0x10, 1, 0, 0, 0, 8], &wlan[..]].concat()),
        (166, vec![1, 3, 0, 0x21]), (192, [&[0, 0, 8, 0, 1, 0, 0, 0], &ETHERNET[..]].concat()),
        (226, with(24, &[(0, 1), (1, 2), (3, 2)])), (228, vec![]),
        (240, [&[0; 4], &ETHERNET[..]].concat()),
        (241, [&[0; 4][..], &[0x55; 8], &ETHERNET].concat()),
        (276, with(20, &[(0, 8)])),
        (281, tagged(&[0, 9, 4, 0x25])), (282, [&[0x20, 5, 0, 3], &ETHERNET[..]].concat()),
        (284, tagged(&[0xc0, 0x28, 0x20, 5])), (285, tagged(&[0xda, 0xda, 0, 0, 0x41, 0x18, 0, 1])),
        (130, juniper(&[0, 1, 0, 0x21])), (131, juniper(&[0, 1, 3, 0xcc])),
        (133, juniper(&[1, 0, 2, 0, 0, 5, 0, 0])), (134, juniper(&[1, 2, 3, 4, 3, 0xcc])),
        (135, juniper(&[&zeros(8)[..], &LLC].concat())), (136, juniper(&zeros(8))),
        (137, juniper(&[&zeros(4)[..], &LLC].concat())), (164, juniper(&zeros(8))),
        (167, juniper(&ETHERNET)), (168, juniper(&[8, 0])), (178, juniper(&ETHERNET)),
        (179, juniper(&[0, 0x21])), (180, juniper(&[0x18, 0x41, 3, 0xcc])),
        (181, juniper(&[0x0f, 0, 8, 0])),
    ]
}

/// Whether a filter accepts a packet; `None` if it does not compile.
fn accepts(text: &str, link_type: u16, packet: &[u8]) -> Option<bool> {
    let options = Options {
        link_type,
        ..Options::default()
    };
    let program = compile(text, &options).ok()?;
    Some(vm_cbpf::run(&program, packet, packet.len() as u32) != 0)
}

fn dissected(link_type: u16, packet: &[u8]) -> Dissection {
    let mut found = Dissection::EMPTY;
    dissect(LinkType(link_type), packet, packet.len() as u32, &mut found);
    found
}

/// Whether the filters of a link type find what the dissector found.
fn agree(link: u16, packet: &[u8]) {
    for text in [
        "ip",
        "udp",
        "udp src port 40000",
        "src host 10.0.0.1",
        "not ip6",
    ] {
        let found = accepts(text, link, packet);
        assert!(found.is_none_or(|it| it), "{link} {text}: {packet:02x?}");
    }
    for text in ["ip6", "tcp", "port 53", "dst host 10.0.0.1", "not udp"] {
        let found = accepts(text, link, packet);
        assert!(found.is_none_or(|it| !it), "{link} {text}: {packet:02x?}");
    }
}

#[test]
fn whatever_a_filter_accepts_is_dissected() {
    let headers = headers();
    let known: BTreeSet<u16> = headers.iter().map(|(link, _)| *link).collect();
    assert_eq!(known.len(), headers.len(), "one header for each link type");
    for (link, header) in &headers {
        let packet = [&header[..], &ip(4)].concat();
        let found = dissected(*link, &packet);
        let ends = (found.src_port, found.dst_port, found.ip_version);
        assert_eq!(ends, (40000, 40001, 4), "{link}: {}", found.reason);
        // PPI may contain packets of any link type, and filters support those of 802.11.
        if *link != 192 {
            agree(*link, &packet);
        }
        if packet.starts_with(b"MGC") {
            // With an extension, and as it was sent.
            let rest = &packet[4..];
            let extended = [b"MGC\x80\0\x04\x03\x02\x21\0", rest].concat();
            let found = dissected(*link, &extended);
            assert_eq!((found.src_port, found.ip_version), (40000, 4), "{link}");
            agree(*link, &extended);
            assert_eq!(accepts("inbound", *link, &packet), Some(true));
            assert_eq!(accepts("inbound", *link, &extended), Some(false));
        }
    }
    // A filter on IP is refused for all other link types that are not dissected.
    for link in 0..=u16::from(u8::MAX) + 200 {
        let is_supported = LinkType::SUPPORTED.contains(&LinkType(link));
        let compiles = ["ip", "ip6", "udp", "host 10.0.0.1", "port 53"]
            .map(|text| accepts(text, link, &[]).is_some());
        assert!(
            is_supported || compiles == [false; 5],
            "{link}: {compiles:?}"
        );
        assert!(
            !is_supported || known.contains(&link) || !compiles[0] || link == 229,
            "{link}"
        );
    }
}

/// Packets with tcpdump's line, and its line with `-e` where ours is the same.
#[rustfmt::skip]
fn printed() -> Vec<(u16, Vec<u8>, bool)> {
    let mut all: Vec<(u16, Vec<u8>, bool)> = Vec::new();
    // tcpdump does not print PPP of BSD/OS, finds BSD/OS' SLIP and MFR at another place, and prints
    // PPP in HDLC and PPPoE with other words in front.
    let supported = |link: u16| ![50, 51, 102, 103, 134].contains(&link);
    for (link, header) in headers() {
        let same = [281, 282, 284, 285, 8, 166, 117, 226, 240, 241].contains(&link);
        if supported(link) {
            all.push((link, [&header[..], &ip(4)].concat(), same));
        }
    }
    let tagged = |tag: &[u8], rest: &[u8]| [&ADDRESSES[..], tag, rest].concat();
    let ip6 = [&[0x86, 0xdd], &ip(6)[..]].concat();
    let ip4 = [&[8, 0], &ip(4)[..]].concat();
    let arp = [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &ADDRESSES[6..], &[10, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        &[10, 0, 0, 2]].concat();
    for tag in [[0x41, 0x18, 0, 1], [0x20, 8, 0x10, 7], [0x80, 0xc, 0xff, 7],
        [0xdf, 0xfd, 0x0f, 255], [0, 6, 0, 0], [0x85, 0, 0x1f, 9]] {
        all.push((284, tagged(&tag, &ip4), true));
        all.push((285, tagged(&[&[0xda, 0xda, 0, 0], &tag[..]].concat(), &ip6), true));
    }
    all.push((284, tagged(&[0xc0, 0x28, 0x20, 5], &arp), true));
    all.push((284, tagged(&[0xc0], &[]), false));
    all.push((281, ADDRESSES[..7].to_vec(), false));
    for tag in [[0x20, 0xff, 1, 0xff], [0, 1, 1, 2], [0, 255, 32, 0xff], [0x40, 7, 3, 0]] {
        all.push((281, tagged(&tag, &ip4), true));
        all.push((282, [&tag[..], &ETHERNET, &ip(4)].concat(), true));
    }
    let vsock = |op: u8, transport: u8, rest: &[u8]| {
        let mut bytes = with(32, &[(0, 2), (8, 3), (16, 0), (17, 4), (20, 1), (21, 4)]);
        (bytes[24], bytes[26]) = (op, transport);
        (271, [&bytes[..], rest].concat(), true)
    };
    for (op, transport) in [(4, 2), (1, 1), (2, 0), (3, 1), (0, 2), (9, 7)] {
        all.push(vsock(op, transport, b"hello"));
    }
    all.push((271, b"abc".to_vec(), true));
    let usb = |len, event, transfer, endpoint| {
        with(len, &[(8, event), (9, transfer), (10, endpoint), (11, 5), (12, 1)])
    };
    for event in [b'S', b'C', b'E', b'?'] {
        for transfer in 0..5 {
            all.push((189, usb(48, event, transfer, 0x81), true));
            all.push((220, usb(68, event, transfer, 2), true));
        }
    }
    all.push((189, usb(47, b'S', 2, 0), true));
    all.push((220, usb(63, b'S', 2, 0), true));
    for direction in [0, 1] {
        let slip = |rest: &[u8]| [with(16, &[(0, direction), (1, 0x45)]), rest.to_vec()].concat();
        all.extend([(8, slip(&ip(6)), true), (8, slip(b"\x20abc"), true)]);
        all.push((166, [&[direction, 3, 0, 0x57], &ip(6)[..]].concat(), true));
        all.push((166, vec![direction, 3, 0xc0, 0x21, 1, 1, 0, 4], true));
        all.push((166, vec![direction, 3, 0x80, 0x21, 9, 7, 0, 8, 1, 2, 3, 4], true));
        all.push((166, [&[direction, 3, 0x21], &ip(4)[..]].concat(), true));
    }
    all.extend(logged());
    all.push((8, zeros(10), false));
    all.push((166, [&[0xff, 3, 0, 0x21], &ip(4)[..]].concat(), true));
    all.push((166, [&[0, 0x21], &ip(4)[..]].concat(), true));
    all.extend(wpan().into_iter().flat_map(|frame| {
        let tap = [&[0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0], &frame[..]].concat();
        [(195, frame.clone(), true), (230, frame, true), (283, tap, true)]
    }));
    all
}

/// Packets logged by pf(4).
#[rustfmt::skip]
fn logged() -> Vec<(u16, Vec<u8>, bool)> {
    let mut all = Vec::new();
    // tcpdump takes the fourth reason for another one.
    for (action, reason, direction, subrule) in [(0, 0, 1, 255), (1, 7, 2, 255), (9, 14, 0, 0),
        (3, 15, 3, 0), (10, 2, 1, 7)] {
        let mut head = with(64, &[(0, 61), (1, 2), (2, action), (3, reason), (39, 5)]);
        head[4..8].copy_from_slice(b"em0\0");
        head[20..26].copy_from_slice(b"anchor");
        head[40..44].copy_from_slice(&[if subrule == 255 { 255 } else { 0 }; 4]);
        (head[43], head[60]) = (subrule, direction);
        all.push((117, [&head[..], &ip(4)].concat(), true));
    }
    all
}

/// Frames of IEEE 802.15.4: types, versions, addresses, commands.
#[rustfmt::skip]
fn wpan() -> Vec<Vec<u8>> {
    let long: Vec<u8> = (0..8).collect();
    let mut all = vec![
        vec![0x41, 0x88, 0x4e, 0x22, 0x18, 0, 0, 0xff, 0xff, 1, 2, 3, 4],
        vec![2, 0, 0xa5],
        vec![3, 8, 1, 0xff, 0xff, 0xff, 0xff, 7],
        vec![0, 0x80, 0x4e, 0x22, 0x18, 1, 0, 0xff, 0xcf, 0, 0],
        [&[0x61, 0xdc, 0x4e, 0x22, 0x18], &long[..], &long, b"zz"].concat(),
        [&[1, 0xcc, 0x4e, 0x22, 0x18], &long[..], &[0x33, 0x18], &long, b"zz"].concat(),
        // Version 2: without a sequence number, with and without compressed PANs.
        [&[0x41, 0x29, 0x22, 0x18], &long[..2]].concat(),
        [&[1, 0xec, 9, 0x22, 0x18], &long[..], &long].concat(),
        [&[0x41, 0xec, 9], &long[..], &long].concat(),
        [&[0x41, 0x20, 9, 0x22, 0x18][..], b"zz"].concat(),
        // Multipurpose, short and long.
        [&[0x25, 7, 1, 2][..], b"zz"].concat(),
        [&[0xad, 0x01, 7, 0x22, 0x18, 1, 2, 3, 4][..], b"zz"].concat(),
        vec![4, 0, 1, 2], vec![6, 0, 1, 2], vec![7, 0, 1, 2],
    ];
    let commands: [&[u8]; 14] = [
        &[1, 0x80], &[1, 0xff], &[1, 0], &[2, 5, 6, 0], &[2, 5, 6, 1], &[2, 5, 6, 2], &[2, 5, 6, 9],
        &[4], &[5], &[6], &[9, 0x33], &[9, 2], &[0x20, 1, 2], &[0x2f, 1],
    ];
    all.extend(commands.map(|command| {
        [&[0x63, 0x88, 1, 0x22, 0x18, 0, 0, 1, 0], command].concat()
    }));
    all
}

/// Our line, with the link header if `link_header`.
fn ours(link_type: u16, packet: &[u8], link: bool) -> String {
    let style = Style {
        time: TimeStyle::None,
        link,
        ..Style::default()
    };
    let mut printer = Printer::new(style);
    let held = Held {
        time_ns: 1,
        cap_len: packet.len() as u32,
        wire_len: packet.len() as u32,
        interface: 0,
        outgoing: None,
        vlan: None,
        bytes: packet,
    };
    let context = Context {
        link_type,
        interface: "",
        has_way: false,
    };
    printer.packet(&held, &context);
    let mut out = Vec::new();
    printer.flush(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// tcpdump's line, without the bytes below it.
fn theirs(path: &Path, link: bool) -> String {
    let mut command = Command::new("tcpdump");
    command.args(["-nn", "-t"]).args(link.then_some("-e"));
    let output = lab::oracle::cache::output(command.arg("-r").arg(path), path).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().next().unwrap_or_default().to_owned()
}

fn differing((link_type, packet): (u16, &[u8]), path: &Path, link: bool) -> Option<String> {
    let (ours, theirs) = (ours(link_type, packet, link), theirs(path, link));
    // An application's data follows on our line or on theirs.
    let same = ours.trim_end() == theirs.trim_end();
    let head = if link { " -e" } else { "" };
    (!same).then(|| format!("{link_type}{head} {packet:02x?}\n  {ours}  {theirs}\n"))
}

#[test]
fn lines_of_other_link_types_are_those_of_tcpdump() {
    require!(skip::program("tcpdump", "tcpdump"));
    let folder = crate::export::Folder::new("links");
    let mut found = Vec::new();
    for (index, (link_type, packet, with_header)) in printed().into_iter().enumerate() {
        let path = folder.0.join(format!("{index}.pcap"));
        let mut bytes = Vec::new();
        let len = packet.len() as u32;
        for word in [
            0xa1b2_c3d4,
            0x0004_0002,
            0,
            0,
            65535,
            u32::from(link_type),
            1,
            0,
            len,
            len,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        std::fs::write(&path, [&bytes[..], &packet].concat()).unwrap();
        found.extend(differing((link_type, &packet), &path, false));
        if with_header {
            found.extend(differing((link_type, &packet), &path, true));
        }
    }
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.concat()
    );
}
