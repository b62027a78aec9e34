//! Starts of flows, compared with a map of sums.

use std::collections::HashMap;

use wire::LinkType;

use super::*;

mod wrap;

const S: u64 = 1_000_000_000;

/// A segment or datagram between flow `flow`'s ends, from the client if `is_client`.
fn packet(protocol: u8, flow: u16, is_client: bool, transport: &[u8]) -> Vec<u8> {
    let mut addresses = [[192, 0, 2, 1], [192, 0, 2, 2]];
    let mut ports = [0x2000 + flow, 443];
    if !is_client {
        addresses.reverse();
        ports.reverse();
    }
    let len = 24 + transport.len() as u16;
    let mut out = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    out.extend(len.to_be_bytes());
    out.extend([0, 7, 0, 0, 64, protocol, 0, 0]);
    out.extend(addresses.concat());
    out.extend(ports.map(u16::to_be_bytes).concat());
    out.extend(transport);
    out
}

fn tcp(flow: u16, is_client: bool, flags: u16, [seq, ack]: [u32; 2], payload: &[u8]) -> Vec<u8> {
    let mut rest = [seq.to_be_bytes(), ack.to_be_bytes()].concat();
    rest.extend((0x5000 | flags).to_be_bytes());
    rest.extend([0xff, 0xff, 0, 0, 0, 0]);
    rest.extend(payload);
    packet(6, flow, is_client, &rest)
}

fn udp(flow: u16, is_client: bool, len: u16) -> Vec<u8> {
    let mut rest = (8 + len).to_be_bytes().to_vec();
    rest.extend([0, 0]);
    rest.extend(vec![0; len.into()]);
    packet(17, flow, is_client, &rest)
}

fn shunter(limits: &str) -> Shunter {
    Shunter::new(HashKey::from_seed(3), ShuntLimits::parse(limits).unwrap())
}

fn passes(shunter: &mut Shunter, packet: &[u8], time_ns: u64) -> bool {
    let (mut level, len) = (Dissection::EMPTY, packet.len() as u32);
    wire::dissect(LinkType::ETHERNET, packet, len, &mut level);
    !shunter.is_shunted(packet, &level, len, time_ns)
}

#[test]
fn limits_are_printed_as_parsed() {
    for text in [
        "20",
        "64k",
        "1M",
        "20,64k",
        "64k,encrypted",
        "encrypted",
        "65535,4095M",
        "64k/direction",
        "20/direction,1M/direction,encrypted",
    ] {
        assert_eq!(ShuntLimits::parse(text).unwrap().to_string(), text);
    }
    assert_eq!(ShuntLimits::parse("1024k").unwrap().to_string(), "1M");
    for text in [
        "",
        "0",
        "0k",
        "k",
        "-1",
        "65536",
        "4096M",
        "64kb",
        "64k,",
        "tls",
        "encrypted/direction",
        "20,64k/direction",
        "64k/flow",
        "/direction",
        "99999999999M",
    ] {
        assert!(ShuntLimits::parse(text).is_err(), "{text}");
    }
}

const SYN: u16 = flag::SYN;
const ACK: u16 = flag::ACK;

#[test]
fn a_connection_passes_up_to_its_limit_with_what_opens_acknowledges_and_closes_it() {
    let mut shunter = shunter("1k");
    let mut passes = |packet: &[u8]| passes(&mut shunter, packet, S);
    assert!(passes(&tcp(1, true, SYN, [99, 0], &[])));
    assert!(passes(&tcp(1, false, SYN | ACK, [999, 100], &[])));
    // Data up to 2000: the last packet begins before the limit.
    assert!(passes(&tcp(1, false, ACK, [1000, 100], &[1; 500])));
    assert!(passes(&tcp(1, false, ACK, [1500, 100], &[1; 500])));
    assert!(!passes(&tcp(1, false, ACK, [2000, 100], &[1; 500])));
    // Acknowledgements up to the one that covers 2000.
    assert!(passes(&tcp(1, true, ACK, [100, 1500], &[])));
    assert!(passes(&tcp(1, true, ACK, [100, 2500], &[])));
    assert!(!passes(&tcp(1, true, ACK, [100, 3000], &[])));
    // Nothing of the client's waits for one.
    assert!(!passes(&tcp(1, false, ACK, [3000, 100], &[])));
    assert!(passes(&tcp(1, false, ACK | flag::FIN, [3000, 100], &[])));
    assert!(passes(&tcp(1, true, flag::RST, [100, 0], &[])));
    // Another flow, and a new connection of the same ports.
    assert!(passes(&tcp(2, false, ACK, [2500, 100], &[1; 500])));
    assert!(passes(&tcp(1, true, SYN, [77, 0], &[])));
    assert!(passes(&tcp(1, false, ACK, [7000, 78], &[1; 500])));
}

#[test]
fn encrypted_connections_pass_until_both_sides_send_application_data() {
    let record = |kind: u8, len: u8| [&[kind, 3, 3, 0, len][..], &vec![0; len.into()]].concat();
    let script = [
        (true, record(22, 50), true),
        // Before the other side's handshake it does not count.
        (true, record(23, 9), true),
        (
            false,
            [record(22, 90), record(20, 1), record(23, 30)].concat(),
            true,
        ),
        (false, record(23, 40), true),
        (true, [record(20, 1), record(23, 30)].concat(), true),
        (true, record(23, 30), false),
        (false, record(23, 200), false),
        (false, vec![7; 30], false),
    ];
    for limits in ["encrypted", "1M,encrypted"] {
        let mut shunter = shunter(limits);
        for (number, (is_client, payload, expected)) in script.iter().enumerate() {
            let packet = tcp(1, *is_client, ACK, [number as u32 * 1000, 0], payload);
            assert_eq!(passes(&mut shunter, &packet, S), *expected, "{number}");
        }
    }
    // Without the limit, the same bytes pass.
    let mut shunter = shunter("1M");
    for (_, payload, _) in &script {
        assert!(passes(&mut shunter, &tcp(1, true, ACK, [0, 0], payload), S));
    }
}

#[test]
fn ssh_connections_pass_until_both_sides_have_sent_newkeys() {
    let newkeys = [&[0, 0, 0, 12, 10, 21][..], &[0; 10]].concat();
    let reply = [&[0, 0, 0, 44, 6, 31][..], &[7; 42], &newkeys].concat();
    let script = [
        // Before both have identified themselves, it does not count.
        (true, newkeys.clone(), true),
        (true, b"SSH-2.0-client\r\n".to_vec(), true),
        (true, newkeys.clone(), true),
        (false, b"SSH-2.0-server\r\n".to_vec(), true),
        (false, vec![7; 300], true),
        (false, reply, true),
        (false, vec![1; 40], true),
        (true, newkeys, true),
        (true, vec![2; 40], false),
        (false, vec![3; 40], false),
    ];
    for (limits, is_cut) in [("encrypted", true), ("1M,encrypted", true), ("1M", false)] {
        let mut shunter = shunter(limits);
        for (number, (is_client, payload, expected)) in script.iter().enumerate() {
            let packet = tcp(1, *is_client, ACK, [number as u32 * 1000, 0], payload);
            let expected = *expected || !is_cut;
            assert_eq!(
                passes(&mut shunter, &packet, S),
                expected,
                "{limits}, {number}"
            );
        }
        // A new connection of the same ports begins again.
        assert!(passes(&mut shunter, &tcp(1, true, SYN, [7, 0], &[]), S));
        assert!(passes(
            &mut shunter,
            &tcp(1, true, ACK, [8, 0], &[2; 40]),
            S
        ));
    }
}

#[test]
fn short_headers_of_quic_are_left_out_after_initial_packets_of_both_sides() {
    let datagram = |is_client: bool, payload: &[u8]| {
        let mut rest = (8 + payload.len() as u16).to_be_bytes().to_vec();
        rest.extend([0, 0]);
        rest.extend(payload);
        packet(17, 1, is_client, &rest)
    };
    // Long headers of version 1: type, version, both connection ids.
    let long = |first: u8| [&[first, 0, 0, 0, 1, 2, 8, 8, 2, 9, 9][..], &[5; 40]].concat();
    let (initial, handshake) = (long(0xc3), long(0xe3));
    let mut other = initial.clone();
    other[1] = 7;
    let short = [&[0x41, 8, 8][..], &[6; 40]].concat();
    let script: [(bool, &[u8], bool); 11] = [
        (true, &initial, true),
        (true, &short, true),
        // Neither a handshake packet nor one of an unknown version begins a connection.
        (false, &handshake, true),
        (false, &other, true),
        (true, &short, true),
        (false, &initial, true),
        (false, &short, false),
        (true, &short, false),
        // Handshakes pass, and what is no QUIC, such as STUN.
        (true, &handshake, true),
        (true, &[0, 1, 0, 0], true),
        (true, &[], true),
    ];
    for (limits, is_cut) in [("encrypted", true), ("1M,encrypted", true), ("1M", false)] {
        let mut shunter = shunter(limits);
        for (number, (is_client, payload, expected)) in script.iter().enumerate() {
            let packet = datagram(*is_client, payload);
            let expected = *expected || !is_cut;
            assert_eq!(
                passes(&mut shunter, &packet, S),
                expected,
                "{limits}, {number}"
            );
        }
    }
    // The other limits hold for all its packets.
    let mut shunter = shunter("2,encrypted");
    let found: Vec<bool> = [true, false, true, false]
        .map(|is_client| passes(&mut shunter, &datagram(is_client, &initial), S))
        .into();
    assert_eq!(found, [true, true, false, false]);
}

#[test]
fn icmp_and_fragments_pass() {
    let mut shunter = shunter("1");
    let mut fragment = udp(1, true, 100);
    fragment[20] = 0x20;
    let icmp = packet(1, 1, true, &[0; 100]);
    for packet in [fragment, icmp, vec![], vec![0; 60]] {
        for _ in 0..3 {
            assert!(passes(&mut shunter, &packet, S));
        }
    }
    let one = udp(1, true, 10);
    assert!(passes(&mut shunter, &one, S) && !passes(&mut shunter, &one, S));
}

/// Random datagrams of few flows, compared with a map of the sums.
#[test]
fn the_start_of_each_flow_is_that_of_a_simple_model() {
    for seed in 0..20_u64 {
        let mut shunter = Shunter::new(
            HashKey::from_seed(seed),
            ShuntLimits::parse("9,2k").unwrap(),
        );
        let mut sums: HashMap<u16, (u64, u64)> = HashMap::new();
        let mut random = seed;
        for _ in 0..3000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(seed | 1);
            let packet = udp(
                (random >> 40) as u16 % 500,
                random >> 63 != 0,
                (random >> 50) as u16 % 900,
            );
            let (packets, bytes) = sums.entry((random >> 40) as u16 % 500).or_default();
            let expected = *packets < 9 && *bytes < 2048;
            assert_eq!(passes(&mut shunter, &packet, S), expected, "seed {seed}");
            *packets += 1;
            *bytes += packet.len() as u64;
        }
        assert_eq!(shunter.untracked(), 0);
    }
}

#[test]
fn flows_without_a_place_pass_and_places_of_idle_flows_are_used_again() {
    let mut shunter = Shunter {
        flows: vec![[Flow::NONE; WAYS]; 1].into(),
        ..shunter("1")
    };
    let mut twice = |flow: u16, time_ns: u64| {
        let packet = udp(flow, true, 10);
        let mut pass = || passes(&mut shunter, &packet, time_ns);
        [pass(), pass()]
    };
    for flow in 0..4 {
        assert_eq!(twice(flow, S), [true, false]);
    }
    assert_eq!(twice(4, S), [true, true]);
    assert_eq!(twice(0, S), [false, false]);
    assert_eq!(twice(4, 120 * S), [true, true]);
    assert_eq!(twice(4, 122 * S), [true, false]);
    // A flow that continues after it was forgotten, in its own place.
    assert_eq!(twice(4, 242 * S), [false, false]);
    assert_eq!(twice(4, 363 * S), [true, false]);
    assert_eq!(shunter.untracked(), 4);
}

/// What the client sends after a long download is handed on, as far as its own limit.
#[test]
fn a_limit_of_each_direction_is_not_used_up_by_the_other_one() {
    for (limits, requests) in [("1k/direction", 3), ("4/direction", 4)] {
        let mut shunter = shunter(limits);
        let mut passes = |packet: &[u8]| passes(&mut shunter, packet, S);
        assert!(passes(&tcp(1, true, SYN, [99, 0], &[])));
        assert!(passes(&tcp(1, false, SYN | ACK, [999, 100], &[])));
        assert!(passes(&tcp(1, true, ACK, [100, 1000], &[1; 400])));
        // A download, of which the client acknowledges every segment.
        let mut passed = [0; 2];
        for number in 0..1000 {
            let seq = 1000 + 500 * number;
            let data = tcp(1, false, ACK, [seq, 500], &[1; 500]);
            passed[0] += u32::from(passes(&data));
            let answer = tcp(1, true, ACK, [500, seq + 500], &[]);
            passed[1] += u32::from(passes(&answer));
        }
        // The acknowledgement of the last one that was handed on is the last one that is.
        let downloaded = if limits == "4/direction" { 4 } else { 2 };
        assert_eq!(passed, [downloaded; 2], "{limits}");
        // Requests, up to the limit of the client's direction.
        let mut passed = 0;
        for number in 0..10 {
            let data = tcp(1, true, ACK, [500 + 400 * number, 501_000], &[1; 400]);
            passed += u32::from(passes(&data));
        }
        assert_eq!(passed + 1, requests, "{limits}");
        assert!(passes(&tcp(1, true, ACK | flag::FIN, [4500, 501_000], &[])));
        // A new connection begins from zero in both directions.
        assert!(passes(&tcp(1, true, SYN, [77, 0], &[])));
        assert!(passes(&tcp(1, true, ACK, [78, 1], &[1; 400])));
        assert!(passes(&tcp(1, false, ACK, [1, 478], &[1; 500])));
    }
    let mut shunter = shunter("2/direction");
    let mut passes = |is_client| passes(&mut shunter, &udp(1, is_client, 100), S);
    let passed = [true, true, true, false, false, false].map(&mut passes);
    assert_eq!(passed, [true, true, false, true, true, false]);
}
