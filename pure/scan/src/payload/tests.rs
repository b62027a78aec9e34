//! Requests are valid in their protocols, and answers are recognized by the identification they
//! echo.

use super::*;

const KEY: u32 = 0x1234_abcd;

fn named(name: &str) -> Payload {
    let mut all = Payloads::built_in().0.into_iter();
    all.find(|payload| payload.name == name).unwrap()
}

/// The request as sent.
fn sent(name: &str) -> Vec<u8> {
    let payload = named(name);
    let mut bytes = payload.bytes.to_vec();
    let (at, id, len) = payload.id.bytes(KEY);
    bytes[at..at + len].copy_from_slice(&id[..len]);
    bytes
}

#[test]
fn identifications_replace_zeros_within_their_requests() {
    for payload in Payloads::built_in().as_slice() {
        let (at, _, len) = payload.id.bytes(KEY);
        let place = &payload.bytes[at..at + len];
        let is_free = place.iter().all(|byte| *byte == 0);
        assert!(is_free, "{}: {place:?}", payload.name);
        assert!(payload.bytes.len() <= 1_200, "{}", payload.name);
    }
    let sip = String::from_utf8(sent("sip")).unwrap();
    assert!(sip.contains("branch=z9hG4bK1234abcd;rport"), "{sip}");
}

#[test]
fn every_port_has_a_request_and_some_have_two() {
    let payloads = Payloads::built_in();
    let names = |port| {
        let numbers = payloads.numbers_of(port);
        let names = numbers.map(|number| payloads.as_slice()[usize::from(number)].name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(53), ["dns"]);
    assert_eq!(names(161), ["snmp", "snmp3"]);
    assert_eq!(names(9), ["empty"]);
}

#[test]
fn given_payloads_replace_the_built_in_ones_of_their_ports() {
    let given = |ports: &[u16], bytes: &[u8]| Given {
        ports: ports.to_vec(),
        bytes: bytes.to_vec(),
    };
    let all = vec![given(&[53, 161, 9999], b"one"), given(&[53], b"two")];
    let payloads = Payloads::built_in().with(all).unwrap();
    let bytes = |port| {
        let numbers = payloads.numbers_of(port);
        let payload = |number| payloads.as_slice()[usize::from(number)].bytes.to_vec();
        numbers.map(payload).collect::<Vec<_>>()
    };
    assert_eq!(bytes(53), [b"one", b"two"]);
    assert_eq!(bytes(161), [b"one"]);
    assert_eq!(bytes(9999), [b"one"]);
    assert_eq!(bytes(9), [b""]);
    assert_eq!(bytes(123).len(), 1, "NTP is as before");
    assert!(
        Payloads::built_in()
            .with(vec![given(&[1], &[0; 1453])])
            .is_err()
    );
    assert!(
        Payloads::built_in()
            .with(vec![given(&[1], b"a"); 257])
            .is_err()
    );
}

/// The answer of a service that echoes the identification, made from the request.
fn answer(name: &str) -> Vec<u8> {
    let mut bytes = sent(name);
    match name {
        "dns" | "netbios" => bytes[2] |= 0x80,
        "ntp" => {
            bytes[0] = 0x24;
            bytes.copy_within(40..48, 24);
            bytes[40..48].fill(7);
        }
        "rpc" => bytes[7] = 1,
        "snmp" => bytes[13] = 0xa2,
        "quic" => {
            bytes.copy_within(14..23, 5);
            bytes[1..5].fill(0);
        }
        "openvpn" => {
            let session: Vec<u8> = bytes[1..9].to_vec();
            bytes[0] = 0x40;
            bytes[1..9].fill(9);
            bytes[9] = 1;
            bytes.extend(session);
        }
        "stun" => bytes[0] = 1,
        "sip" => bytes.splice(..0, *b"SIP/2.0 200 OK\r\n").for_each(drop),
        _ => {}
    }
    bytes
}

#[test]
fn answers_with_the_key_are_accepted_and_others_refused() {
    for payload in Payloads::built_in().as_slice() {
        let name = payload.name.as_ref();
        let answer = answer(name);
        if payload.id == Id::None {
            continue;
        }
        assert_eq!(payload.is_answer(&answer, KEY), Some(true), "{name}");
        // A bit that all of them have of the key.
        let other = payload.is_answer(&answer, KEY ^ 4);
        assert_eq!(other, Some(false), "{name}");
        for len in 0..answer.len() {
            let part = payload.is_answer(&answer[..len], KEY ^ 4);
            assert_ne!(part, Some(true), "{name} cut to {len}");
        }
        assert_eq!(payload.is_answer(b"hello, world", KEY), None, "{name}");
        assert_eq!(payload.is_answer(b"", KEY), None, "{name}");
    }
}

#[test]
fn services_that_answer_from_another_port_are_recognized_by_form() {
    let tftp = named("tftp");
    assert_eq!(
        tftp.is_answer(b"\0\x05\0\x01File not found\0", KEY),
        Some(true)
    );
    assert_eq!(tftp.is_answer(b"\0\x01x\0octet\0", KEY), None);
    let ssdp = named("ssdp");
    assert_eq!(ssdp.is_answer(b"HTTP/1.1 200 OK\r\n\r\n", KEY), Some(true));
    assert_eq!(ssdp.is_answer(b"NOTIFY * HTTP/1.1\r\n", KEY), None);
}

#[test]
fn hostile_answers_never_panic() {
    let mut state = 3u64;
    let payloads = Payloads::built_in();
    for payload in payloads.as_slice() {
        let seed = answer(&payload.name);
        for _ in 0..2_000 {
            let mut data = seed.clone();
            for _ in 0..3 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let at = (state >> 33) as usize % data.len().max(1);
                if let Some(byte) = data.get_mut(at) {
                    *byte = (state >> 20) as u8;
                }
                data.truncate((state >> 40) as usize % (seed.len() + 1));
            }
            let _ = payload.is_answer(&data, KEY);
        }
    }
}
