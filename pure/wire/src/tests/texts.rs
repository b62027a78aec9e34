//! Names, lines and times as text, row by row.

use crate::summary::Summary;
use crate::*;
use std::string::{String, ToString};
use std::vec::Vec;

fn line(link: LinkType, bytes: &[u8], wire_len: u32) -> String {
    let mut d = Dissection::EMPTY;
    dissect(link, bytes, wire_len, &mut d);
    let dissection = &d;
    Summary { dissection, bytes }.to_string()
}

/// Prints a segment with these options at several capture lengths.
fn segment(options: &[u8], captured: usize) -> String {
    let len = options.len().next_multiple_of(4);
    let mut packet = std::vec![0x45, 0, 0, (40 + len) as u8, 0, 0, 0, 0, 64, 6, 0, 0];
    packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([
        0,
        1,
        0,
        2,
        0,
        0,
        0,
        3,
        0,
        0,
        0,
        4,
        0x50 + 4 * len as u8,
        0x10,
        0,
        9,
        0,
        0,
    ]);
    packet.extend([0, 0]);
    packet.extend(options);
    packet.resize(40 + len, 0);
    let text = line(
        LinkType::IPV4,
        &packet[..40 + captured],
        packet.len() as u32,
    );
    match text.split_once("win 9") {
        Some((_, rest)) => rest.to_string(),
        None => text,
    }
}

#[test]
fn options_of_tcp() {
    for (options, captured, expected) in [
        (&[2, 4, 5, 0xb4][..], 4, ", options [mss 1460], length 0"),
        (&[1, 3, 3, 7], 4, ", options [nop,wscale 7], length 0"),
        (&[4, 2, 0, 0], 4, ", options [sackOK,eol], length 0"),
        (
            &[34, 4, 0xab, 0xcd],
            4,
            ", options [tfo  cookie abcd], length 0",
        ),
        (
            &[34, 2, 1, 1],
            4,
            ", options [tfo  cookiereq,nop,nop], length 0",
        ),
        (
            &[254, 4, 0xf9, 0x89],
            4,
            ", options [exp-tfo cookiereq], length 0",
        ),
        (
            &[254, 6, 0xf9, 0x89, 1, 2, 1, 1],
            8,
            ", options [exp-tfo cookie 0102,nop,nop], length 0",
        ),
        (
            &[254, 4, 0xf9, 0x88],
            4,
            ", options [unknown-254 0xf988], length 0",
        ),
        (&[30, 4, 0x10, 0], 4, ", options [mptcp 4 join], length 0"),
        (&[30, 2, 1, 1], 4, ", options [mptcp 2 ,nop,nop], length 0"),
        (&[19, 4, 1, 2], 4, ", options [md5], length 0"),
        (&[77, 4, 1, 2], 4, ", options [unknown-77 0x0102], length 0"),
        (
            &[77, 2, 1, 1],
            4,
            ", options [unknown-77,nop,nop], length 0",
        ),
        (&[77, 1, 1, 1], 4, ", options [ [bad options]], length 0"),
        (
            &[1, 1, 1, 77],
            4,
            ", options [nop,nop,nop [bad options]], length 0",
        ),
        (&[77, 5, 1, 1], 4, ", options [ [bad options]], length 0"),
    ] {
        assert_eq!(
            segment(options, captured),
            expected,
            "{options:?} {captured}"
        );
    }
}

#[test]
fn options_cut_by_the_snapshot_length() {
    for (options, captured, expected) in [
        (&[1, 1, 1, 1][..], 2, ", options [nop,nop, [|tcp]"),
        (&[1, 1, 77, 2], 3, ", options [nop,nop, [|tcp]"),
        (&[2, 4, 5, 0xb4], 2, ", options [mss [|tcp]"),
        (&[3, 3, 7, 1], 2, ", options [wscale [|tcp]"),
        (&[4, 3, 7, 1], 2, ", options [sackOK [|tcp]"),
        (&[8, 4, 7, 1], 2, ", options [TS [|tcp]"),
        (&[19, 4, 7, 1], 2, ", options [md5 [|tcp]"),
        (&[30, 4, 7, 1], 2, ", options [mptcp [|tcp]"),
        (&[34, 4, 7, 1], 3, ", options [tfo [|tcp]"),
        (&[254, 4, 7, 1], 3, ", options [exp [|tcp]"),
        (&[77, 4, 7, 1], 3, ", options [unknown-77 0x07 [|tcp]"),
        (&[77, 5, 7, 1], 3, ", options [ [bad options]], length 0"),
        (
            &[5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1],
            6,
            ", options [sack 1  [|tcp]",
        ),
    ] {
        assert_eq!(
            segment(options, captured),
            expected,
            "{options:?} {captured}"
        );
    }
}

#[test]
fn subtypes_of_multipath_tcp() {
    for (subtype, name) in [
        "capable",
        "join",
        "dss",
        "add-addr",
        "rem-addr",
        "prio",
        "fail",
        "fast-close",
        "unknown",
    ]
    .iter()
    .enumerate()
    {
        let shown = segment(&[30, 4, (subtype as u8) << 4, 0], 4);
        assert_eq!(shown, std::format!(", options [mptcp 4 {name}], length 0"));
    }
}

/// An ICMP message about a UDP packet.
fn about(kind: u8, code: u8) -> String {
    let quote = [&[
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ][..]];
    let udp = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
    let message = [&[kind, code, 0, 0, 10, 0, 0x05, 0xdc][..], quote[0], &udp].concat();
    let mut packet = std::vec![
        0x45,
        0,
        0,
        20 + message.len() as u8,
        0,
        0,
        0,
        0,
        64,
        1,
        0,
        0
    ];
    packet.extend([10, 0, 0, 9, 10, 0, 0, 1]);
    packet.extend(message);
    line(LinkType::IPV4, &packet, packet.len() as u32)
}

#[test]
fn messages_about_packets() {
    for (kind, code, expected) in [
        (3, 0, "net 10.0.0.2 unreachable"),
        (3, 1, "host 10.0.0.2 unreachable"),
        (3, 2, "10.0.0.2 protocol 17 unreachable"),
        (3, 3, "10.0.0.2 udp port 53 unreachable"),
        (3, 4, "10.0.0.2 unreachable - need to frag (mtu 1500)"),
        (3, 13, "10.0.0.2 unreachable - code 13"),
        (11, 0, "time exceeded in-transit"),
        (11, 1, "ip reassembly time exceeded"),
        (5, 1, "redirect 10.0.0.2 to 10.0.5.220"),
        (12, 0, "type 12, code 0, about 10.0.0.2"),
    ] {
        let text = about(kind, code);
        let expected = std::format!("ICMP {expected}, length 36");
        assert!(text.ends_with(&expected), "{text}\n{expected}");
    }
}

#[test]
fn messages_of_ipv6() {
    let [src, dst] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
    let packet = |next_header, payload: &[u8]| {
        let mut head = [0; ipv6::HEADER_LEN];
        let header = ipv6::Header {
            src,
            dst,
            next_header,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            payload_len: payload.len(),
        };
        header.emit(&mut head);
        [&head[..], payload].concat()
    };
    let udp = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
    let quote = packet(17, &udp);
    let target = dst.octets();
    for (kind, code, body, expected) in [
        (128, 0, &[][..], "echo request, id 2560, seq 1500, length 8"),
        (129, 0, &[], "echo reply, id 2560, seq 1500, length 8"),
        (133, 0, &[], "router solicitation, length 8"),
        (134, 0, &[], "router advertisement, length 8"),
        (
            135,
            0,
            &target,
            "neighbor solicitation, who has 2001:db8::2, length 24",
        ),
        (
            136,
            0,
            &target,
            "neighbor advertisement, tgt is 2001:db8::2, length 24",
        ),
        (135, 0, &[], "type 135, code 0, length 8"),
        (
            1,
            4,
            &quote,
            "destination unreachable, 2001:db8::2 udp port 53, length 56",
        ),
        (
            1,
            3,
            &quote,
            "destination unreachable, 2001:db8::2, code 3, length 56",
        ),
        (2, 0, &quote, "packet too big, mtu 167773660, length 56"),
        (3, 0, &quote, "time exceeded, length 56"),
        (4, 2, &quote, "parameter problem, code 2, length 56"),
        (143, 0, &[], "multicast listener report v2, length 8"),
        (130, 0, &[], "multicast listener message, length 8"),
        (132, 0, &[], "multicast listener message, length 8"),
        (200, 7, &[], "type 200, code 7, length 8"),
    ] {
        let message = [&[kind, code, 0, 0, 10, 0, 0x05, 0xdc][..], body].concat();
        let bytes = packet(58, &message);
        let text = line(LinkType::IPV6, &bytes, bytes.len() as u32);
        let expected = std::format!("ICMP6, {expected}");
        assert!(text.ends_with(&expected), "{text}\n{expected}");
    }
}

#[test]
fn names_of_link_types() {
    for (number, name) in [
        (0, "NULL"),
        (1, "EN10MB"),
        (9, "PPP"),
        (50, "PPP_SERIAL"),
        (51, "PPP_ETHER"),
        (101, "RAW"),
        (104, "C_HDLC"),
        (105, "IEEE802_11"),
        (107, "FRELAY"),
        (108, "LOOP"),
        (113, "LINUX_SLL"),
        (119, "PRISM_HEADER"),
        (127, "IEEE802_11_RADIO"),
        (149, "USER2"),
        (163, "IEEE802_11_RADIO_AVS"),
        (192, "PPI"),
        (228, "IPV4"),
        (229, "IPV6"),
        (239, "NFLOG"),
        (242, "IPOIB"),
        (247, "INFINIBAND"),
        (258, "PKTAP"),
        (276, "LINUX_SLL2"),
    ] {
        assert_eq!(LinkType(number).name(), Some(name));
        assert_eq!(LinkType(number).to_string(), name);
        assert!(LinkType::SUPPORTED.contains(&LinkType(number)));
    }
    assert_eq!(LinkType(2).name(), None);
    assert_eq!([12, 14].map(LinkType::from_dlt), [LinkType::RAW; 2]);
    assert_eq!(LinkType::from_dlt(13), LinkType(13));
}

#[test]
fn reasons_have_names_and_some_are_errors_of_the_packet() {
    let mut names: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    let malformed: Vec<_> = Reason::ALL.iter().filter(|r| r.is_malformed()).collect();
    use Reason::*;
    let expected = [Short, BadVersion, BadHeaderLength, BadLength];
    assert!(malformed.into_iter().eq(&expected));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(names.iter().all(|name| !name.is_empty()));
}

#[test]
fn limits_of_times() {
    let good = [
        ("2000-02-29T00:00:00Z", 951_782_400, 0),
        ("2023-02-28T23:59:60Z", 1_677_628_800, 0),
        ("1970-01-01t00:00:00.5z", 0, 500_000_000),
        ("1970-01-01 00:00:00.000000001Z", 0, 1),
        ("1970-01-01T00:00:00.123456789123Z", 0, 123_456_789),
        ("1970-01-01T23:59:00+23:59", 0, 0),
        ("1970-01-01T00:00:00-23:59", 86_340, 0),
        ("1970-01-02T03:04:05-06:07", 86_400 + 33_065, 0),
        ("1970-01-31T00:00:00Z", 30 * 86_400, 0),
        ("1970-04-30T00:00:00Z", 119 * 86_400, 0),
        ("1970-12-31T00:00:00Z", 364 * 86_400, 0),
    ];
    for (text, seconds, ns) in good {
        let time = Timestamp(seconds * 1_000_000_000 + ns);
        assert_eq!(text.parse(), Ok(time), "{text}");
        assert_eq!((time.seconds(), u64::from(time.subsec_ns())), (seconds, ns));
        assert_eq!(Timestamp::from_parts(seconds, ns), time);
    }
    for bad in [
        "1970-02-29T00:00:00Z",
        "2100-02-29T00:00:00Z",
        "1970-04-31T00:00:00Z",
        "1970-06-31T00:00:00Z",
        "1970-09-31T00:00:00Z",
        "1970-11-31T00:00:00Z",
        "1970-01-32T00:00:00Z",
        "1970-00-01T00:00:00Z",
        "1969-12-31T00:00:00Z",
        "1970-01-01T00:60:00Z",
        "1970-01-01T00:00:61Z",
        "1970-01-01T00:00:00+24:00",
        "1970-01-01T00:00:00-00:60",
        "1970-01-01T00:00:00+0100",
        "1970-01-01T00:00:00",
        "1970-01-01x00:00:00Z",
        "1970-01-01T00:00:0:Z",
        "1970-01-01T00:00:0/Z",
        "2554-07-21T23:34:33.709551616Z",
    ] {
        assert!(bad.parse::<Timestamp>().is_err(), "{bad}");
    }
    let (early, late) = (Timestamp(5), Timestamp(12));
    assert_eq!((late.since_ns(early), early.since_ns(late)), (7, 0));
    assert_eq!(Timestamp(1_709_251_199_000_000_000).date(), (2024, 2, 29));
}
