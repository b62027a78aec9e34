//! All accessors of the views of transports and of control messages.

use super::{counted, text};
use crate::*;
use std::string::ToString;
use std::vec::Vec;

#[test]
fn transports() {
    let bytes: [u8; 28] = counted(&[(12, &[0x6d, 0x5a])]);
    let view = tcp::Tcp::parse(&bytes).unwrap();
    assert_eq!((view.src_port(), view.dst_port()), (0x1011, 0x1213));
    assert_eq!((view.seq(), view.ack()), (0x1415_1617, 0x1819_1a1b));
    assert_eq!((view.header_len(), view.flags()), (24, 0xd5a));
    assert_eq!((view.window(), view.checksum()), (0x1e1f, 0x2021));
    assert_eq!(view.urgent(), 0x2223);
    assert_eq!((view.options, view.payload), (&bytes[20..24], &bytes[24..]));
    for (flags, expected) in [
        (0, "none"),
        (0xe00, "none"),
        (0x1ff, "FSRP.UEWe"),
        (0x015, "FR."),
        (0x0aa, "SPUW"),
        (0x140, "Ee"),
    ] {
        assert_eq!(tcp::Flags(flags).to_string(), expected, "{flags:#x}");
    }

    let bytes: [u8; 16] = counted(&[(4, &[0, 11])]);
    let view = udp::Udp::parse(&bytes).unwrap();
    assert_eq!((view.src_port(), view.dst_port()), (0x1011, 0x1213));
    assert_eq!((view.len(), view.is_empty()), (11, false));
    assert_eq!((view.checksum(), view.payload), (0x1617, &bytes[8..11]));
    assert_eq!(view.to_string(), "4113 > 4627: UDP, length 3");
    let empty: [u8; 16] = counted(&[(4, &[0, 8])]);
    let view = udp::Udp::parse(&empty).unwrap();
    assert!(view.is_empty() && view.payload.is_empty());

    let view = udp_lite::UdpLite::parse(&bytes).unwrap();
    assert_eq!((view.src_port(), view.dst_port()), (0x1011, 0x1213));
    assert_eq!((view.coverage(), view.checksum()), (11, 0x1617));
    assert_eq!(view.to_string(), "4113 > 4627: UDP-Lite, length 8");

    // Three chunks: padded, without a value, and cut.
    let chunks = [1, 2, 0, 6, 7, 8, 0, 0, 99, 3, 0, 4, 14, 5, 0, 9, 1];
    let bytes = [&counted::<12>(&[])[..], &chunks].concat();
    let view = sctp::Sctp::parse(&bytes).unwrap();
    assert_eq!((view.src_port(), view.dst_port()), (0x1011, 0x1213));
    assert_eq!((view.tag(), view.checksum()), (0x1415_1617, 0x1819_1a1b));
    let seen: Vec<_> = view.chunks().map(|c| (c.kind, c.flags, c.value)).collect();
    assert_eq!(seen, [(1, 2, &[7, 8][..]), (99, 3, &[]), (14, 5, &[1])]);
    assert_eq!(
        view.to_string(),
        "4113 > 4627: sctp (1) [INIT] (2) [type 99] (3) [SHUTDOWN COMPLETE]"
    );
    let names: Vec<_> = (0..=15)
        .map(|kind| sctp::chunk_name(kind).unwrap_or(""))
        .collect();
    assert_eq!(
        names,
        [
            "DATA",
            "INIT",
            "INIT ACK",
            "SACK",
            "HB REQ",
            "HB ACK",
            "ABORT",
            "SHUTDOWN",
            "SHUTDOWN ACK",
            "ERROR",
            "COOKIE ECHO",
            "COOKIE ACK",
            "",
            "",
            "SHUTDOWN COMPLETE",
            "",
        ]
    );
}

#[test]
fn dccp_in_both_lengths() {
    let names = [
        "DCCP DCCP-Request (service=539042339)",
        "DCCP DCCP-Response (service=673786411) (ack=37534325614119)",
        "DCCP DCCP-Data",
        "DCCP DCCP-Ack (ack=37534325614119)",
        "DCCP DCCP-DataAck (ack=37534325614119)",
        "DCCP DCCP-CloseReq (ack=37534325614119)",
        "DCCP DCCP-Close (ack=37534325614119)",
        "DCCP DCCP-Reset (code=reserved) (ack=37534325614119)",
        "DCCP DCCP-Sync (ack=37534325614119)",
        "DCCP DCCP-SyncAck (ack=37534325614119)",
        "DCCP unknown packet type 10",
    ];
    for (kind, expected) in names.iter().enumerate() {
        let bytes: [u8; 30] = counted(&[(4, &[7]), (8, &[(kind as u8) << 1 | 1])]);
        let view = dccp::Dccp::parse(&bytes).unwrap();
        assert_eq!(usize::from(view.packet_type()), kind);
        assert_eq!((view.src_port(), view.dst_port()), (0x1011, 0x1213));
        assert_eq!((view.control(), view.seq()), ((1, 5), 0x1a1b_1c1d_1e1f));
        assert_eq!(view.payload, &bytes[28..]);
        assert_eq!(view.to_string(), *expected);
        // Short numbers: no service, no code.
        let bytes: [u8; 18] = counted(&[(4, &[4]), (8, &[(kind as u8) << 1])]);
        let view = dccp::Dccp::parse(&bytes).unwrap();
        assert_eq!((view.packet_type(), view.seq()), (kind as u8, 0x0019_1a1b));
        assert_eq!((view.service(), view.reset_code()), (None, None));
        let ack = (kind != 0 && kind != 2 && kind < 10).then_some(0x001d_1e1f);
        assert_eq!((view.ack(), view.payload), (ack, &bytes[16..]), "{kind}");
    }
    let codes = [
        "unspecified",
        "closed",
        "aborted",
        "no_connection",
        "packet_error",
        "option_error",
        "mandatory_error",
        "connection_refused",
        "bad_service_code",
        "too_busy",
        "bad_init_cookie",
        "aggression_penalty",
        "reserved",
    ];
    for (code, name) in codes.iter().enumerate() {
        let bytes: [u8; 28] = counted(&[(4, &[7]), (8, &[15]), (24, &[code as u8])]);
        let shown = text(dccp::Dccp::parse(&bytes));
        assert!(shown.contains(&std::format!("(code={name})")), "{shown}");
    }
    // A header has room for its number, and is present.
    for (start, x, len, is_right) in [
        (3, 0, 12, true),
        (2, 0, 12, false),
        (4, 1, 16, true),
        (3, 1, 16, false),
        (4, 0, 15, false),
    ] {
        let bytes: [u8; 16] = counted(&[(4, &[start]), (8, &[4 | x])]);
        assert_eq!(
            dccp::Dccp::parse(&bytes[..len]).is_ok(),
            is_right,
            "{start} {x} {len}"
        );
    }
}

#[test]
fn control_messages() {
    for (is_v6, errors) in [(false, &[3, 4, 5, 11, 12][..]), (true, &[1, 2, 3, 4])] {
        for kind in 0..=255 {
            let bytes: [u8; 11] = counted(&[(0, &[kind])]);
            let one = icmpv4::Icmpv4::parse(&bytes).unwrap();
            let two = icmpv6::Icmpv6::parse(&bytes).unwrap();
            let is_error = if is_v6 {
                two.is_error()
            } else {
                one.is_error()
            };
            assert_eq!(is_error, errors.contains(&kind), "{is_v6} {kind}");
            assert_eq!((one.icmp_type(), one.code()), (kind, 0x11));
            assert_eq!((two.icmp_type(), two.code()), (kind, 0x11));
            let fields = (0x1213, 0x1415, 0x1617);
            assert_eq!((one.checksum(), one.id(), one.seq()), fields);
            assert_eq!((two.checksum(), two.id(), two.seq()), fields);
            assert!(!one.checksum_ok());
        }
    }
    let with = |kind| counted::<11>(&[(0, &[kind])]);
    for (kind, expected) in [
        (0, "ICMP echo reply, id 5141, seq 5655, length 11"),
        (8, "ICMP echo request, id 5141, seq 5655, length 11"),
        (3, "ICMP type 3, code 17, length 11"),
    ] {
        assert_eq!(text(icmpv4::Icmpv4::parse(&with(kind))), expected);
    }
    for (kind, expected) in [
        (128, "ICMP6, echo request, id 5141, seq 5655, length 11"),
        (129, "ICMP6, echo reply, id 5141, seq 5655, length 11"),
        (3, "ICMP6, type 3, code 17, length 11"),
    ] {
        assert_eq!(text(icmpv6::Icmpv6::parse(&with(kind))), expected);
    }
}

#[test]
fn messages_about_groups() {
    let with = |kind| counted::<11>(&[(0, &[kind])]);
    for (kind, expected) in [
        (0x11, "igmp query v2 [max resp time 17] [gaddr 20.21.22.23]"),
        (0x12, "igmp v1 report 20.21.22.23"),
        (0x16, "igmp v2 report 20.21.22.23"),
        (0x17, "igmp leave 20.21.22.23"),
        (0x22, "igmp v3 report, 5655 group record(s)"),
        (0x23, "igmp-35"),
    ] {
        let mut bytes = with(kind);
        let view = igmp::Igmp::parse(&bytes).unwrap();
        assert_eq!((view.igmp_type(), view.checksum()), (kind, 0x1213));
        assert_eq!(view.group().octets(), bytes[4..8]);
        assert_eq!(view.to_string(), expected);
        assert!(!view.checksum_ok());
        bytes[2..4].fill(0);
        let sum = checksum::checksum(&bytes);
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        assert!(igmp::Igmp::parse(&bytes).unwrap().checksum_ok());
    }
    for (kind, name) in [
        (0, "hello"),
        (1, "register"),
        (2, "register-stop"),
        (3, "join/prune"),
        (4, "bootstrap"),
        (5, "assert"),
        (8, "candidate RP"),
        (13, "type 13"),
    ] {
        let bytes: [u8; 6] = counted(&[(0, &[0x20 | kind])]);
        let view = pim::Pim::parse(&bytes).unwrap();
        assert_eq!((view.version(), view.pim_type()), (2, kind));
        assert_eq!((view.checksum(), view.payload), (0x1213, &bytes[4..]));
        assert_eq!(view.to_string(), std::format!("PIMv2, {name}"));
    }
}
