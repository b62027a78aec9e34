//! The automaton compared with checking every row for every beginning.

use super::*;
use std::vec::Vec;

/// The result of a row by its patterns and its check, byte by byte and without the automaton.
fn says(row: &DecoderRow, first: &First<'_>) -> Match {
    let bytes = first.bytes;
    let mut best = Match::No;
    for pattern in row.starts {
        let len = pattern.len().min(bytes.len());
        if (0..len).all(|at| pattern.at(at).is_some_and(|byte| byte.fits(bytes[at]))) {
            best = best.max(match bytes.len() >= pattern.len() {
                true => Match::Yes,
                false => Match::Maybe,
            });
        }
    }
    match (best, row.check) {
        (Match::Yes, Some(check)) => check(first),
        (best, _) => best,
    }
}

/// The result of all rows: the first match.
fn expected(first: &First<'_>) -> Found {
    let mut found = Found::Unknown;
    for (at, row) in DECODERS.iter().enumerate() {
        if !row.transports.contains(&first.transport) {
            continue;
        }
        match says(row, first) {
            Match::Yes => return Found::Known(Row(at as u16)),
            Match::Maybe => found = Found::Undecided,
            Match::No => {}
        }
    }
    found
}

fn random() -> impl FnMut() -> usize {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    }
}

/// Random beginnings of all protocols, continued with arbitrary bytes.
fn beginning(random: &mut impl FnMut() -> usize) -> Vec<u8> {
    let more: &[&[u8]] = &[
        b"\x16\x03\x01\x02\x00\x01",
        b"\x17\x03\x03\0\0",
        b"\x10\x0e\0\x04MQTT",
        b"\0\x1d\xab\xcd\x01\0\0\x01\0\0\0\0\0\0",
        b"INVITE sip:",
        b"GET /",
        b"OPTIONS rtsp://",
        b"OPTIONS * RTSP/1.0",
        b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04",
        b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00",
        b"\x03\0\0\x13\x0e\xe0\0\0\0\0\0\x01\0\x08\0",
        b"\x03\0\0\x2a\x25\xe0\0\0\0\0\0Cookie: mstshash",
        b"\0\0\x01\0\xfeSMB\x40\0",
        b"\0\0\0\x23\0\x03\0\0user",
        b"*2\r\n$4\r\nAUTH\r\n",
        b"VERSION 1.6.18\r\n",
        b"*12\r\n$10\r\nFT.",
        b"\x4a\0\0\0\x0a8.0.36\0",
        b"\x45\0\0\0\xff\x6a\x04Host 'a' is not all",
        b"",
    ];
    let patterns: Vec<&Pattern> = DECODERS.iter().flat_map(|row| row.starts).collect();
    let mut one = || -> Vec<u8> {
        let which = random() % (patterns.len() + more.len());
        let Some(pattern) = patterns.get(which) else {
            return more[which - patterns.len()].to_vec();
        };
        let fitting = |at| {
            let fits: Vec<u8> = (0..=255)
                .filter(|byte| pattern.at(at).is_none_or(|wanted: Byte| wanted.fits(*byte)))
                .collect();
            fits[random() % fits.len()]
        };
        (0..pattern.len()).map(fitting).collect()
    };
    let (one, other) = (one(), one());
    let mut bytes = one[..random() % (one.len() + 1)].to_vec();
    bytes.extend(&other[random() % (other.len() + 1)..]);
    bytes.resize_with(FIRST_MAX, || random() as u8);
    bytes
}

#[test]
fn the_automaton_agrees_with_checking_every_row() {
    let identifier = Identifier::new(Decoders::ALL);
    let mut random = random();
    let mut known = std::collections::BTreeSet::new();
    for _ in 0..40_000 {
        let bytes = beginning(&mut random);
        let ports = [50_000, [53, 123, 68, 9][random() % 4]];
        let datagram = First {
            bytes: &bytes,
            transport: Transport::Udp,
            ports,
        };
        let theirs = match expected(&datagram) {
            Found::Undecided => Found::Unknown,
            found => found,
        };
        assert_eq!(
            identifier.datagram(&bytes, ports),
            theirs,
            "{}",
            bytes.escape_ascii()
        );
        let mut beginning = StreamStart::NEW;
        for len in 1..=bytes.len() {
            let first = First {
                bytes: &bytes[..len],
                transport: Transport::Tcp,
                ports,
            };
            let theirs = match expected(&first) {
                Found::Undecided if len == FIRST_MAX => Found::Unknown,
                found => found,
            };
            let (found, used) = identifier.stream(&mut beginning, &bytes[len - 1..len], ports);
            assert_eq!(
                (found, used),
                (theirs, 1),
                "{}",
                bytes[..len].escape_ascii()
            );
            if let Found::Known(row) = found {
                known.insert(row.row().name);
            }
            if found != Found::Undecided {
                break;
            }
        }
    }
    let streams = DECODERS
        .iter()
        .filter(|row| row.transports.contains(&Transport::Tcp));
    assert_eq!(known.len(), streams.count(), "{known:?}");
}

#[test]
fn a_refused_prefix_stays_refused_with_more_bytes() {
    let mut random = random();
    for _ in 0..20_000 {
        let bytes = beginning(&mut random);
        let rows = DECODERS
            .iter()
            .filter(|row| row.transports.contains(&Transport::Tcp));
        for (row, ports) in rows.flat_map(|row| [(row, [50_000, 53]), (row, [1, 2])]) {
            let mut has_refused = false;
            for len in 1..=bytes.len() {
                let first = First {
                    bytes: &bytes[..len],
                    transport: Transport::Tcp,
                    ports,
                };
                let is_refused = says(row, &first) == Match::No;
                let shown = bytes[..len].escape_ascii();
                assert!(is_refused || !has_refused, "{}: {shown}", row.name);
                has_refused |= is_refused;
            }
        }
    }
}

#[test]
fn beginnings_are_distinguished() {
    let tcp: &[(&[u8], Option<&str>)] = &[
        (b"GET / HTTP/1.1\r\n", Some("http")),
        (b"OPTIONS * HTTP/1.1\r\n", Some("http")),
        (b"OPTIONS sip:a@b SIP/2.0\r\n", Some("sip")),
        (b"SSH-2.0-x\r\n", Some("ssh")),
        (b"220 mail\r\n", Some("mail")),
        (b"ehlo me\r\n", Some("mail")),
        (b"\x16\x03\x01\x02\x00\x01", Some("tls")),
        (b"\x16\x03\x01\x02\x00\x03", None),
        (b"\x10\x0e\x00\x04MQTT", Some("mqtt")),
        (b"OPTIONS * RTSP/1.0\r\n", Some("rtsp")),
        (b"OPTIONS rtsp://a/ RTSP/1.0\r\n", Some("rtsp")),
        (b"RTSP/1.0 200 OK\r\n", Some("rtsp")),
        (
            b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\0",
            Some("ldap"),
        ),
        // SNMP, and a number of five bytes.
        (b"\x30\x0c\x02\x01\x01\x04\x06public", None),
        (b"\x30\x0c\x02\x05\0\0\0\0\x01\x60", None),
        (b"\0\0\0\x90\xfeSMB\x40\0", Some("smb")),
        (b"\0\0\0\x90\xfeSMB\x41\0", None),
        // Each byte of the length, and the shortest message.
        (b"\0\0\x01\0\xfeSMB\x40\0", Some("smb")),
        (b"\0\x01\0\0\xfeSMB\x40\0", Some("smb")),
        (b"\0\0\0\x23\xffSMB", Some("smb")),
        (b"\0\0\0\x22\xffSMB", None),
        (b"\x4a\0\0\0\x0a8.0.36\0", Some("mysql")),
        (b"\x4a\0\0\0\x0a5.5.5-10.11.6-Maria", Some("mysql")),
        // No version, a version that is longer than its packet, other sequence numbers.
        (b"\x4a\0\0\0\x0a80\0", None),
        (b"\x16\0\0\0\x0a8.0.36\0", None),
        (b"\x17\0\0\0\x0a8.0.36\0", Some("mysql")),
        (b"\x4a\0\0\x01\x0a8.0.36\0", None),
        (b"\x45\0\0\0\xff\x6a\x04Host 'a' is not all", Some("mysql")),
        (b"\x45\0\0\0\xff\x6b\x04Host 'a' is not all", None),
        (b"\0\0\0\x23\0\x03\0\0user\0", Some("postgresql")),
        (b"\0\0\x01\0\0\x03\0\x02_pq_", Some("postgresql")),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", Some("postgresql")),
        // No name of a parameter, version 2, no request.
        (b"\0\0\0\x23\0\x03\0\0us\0r", None),
        (b"\0\0\0\x23\0\x02\0\0user", None),
        (b"\0\0\0\x08\x04\xd2\x16\x31", None),
        (b"*1\r\n$4\r\nPING\r\n", Some("redis")),
        (b"*12\r\n$10\r\nFT.SEARCH", Some("redis")),
        // No name, one that is too long, three digits.
        (b"*1\r\n$4\r\n1234\r\n", None),
        (b"*1\r\n$33\r\nAAAA", None),
        (b"*1\r\n$100\r\nAAAA", None),
        (b"* 1 EXISTS\r\n", None),
        (b"GETX", None),
        (b"\0\0\0\0\0", None),
    ];
    check_stream(tcp);
    let identifier = Identifier::new(Decoders::ALL);
    let http = identifier.datagram(b"GET / HTTP/1.1", [1, 2]);
    assert_eq!(http, Found::Unknown);
    // Only the requested ones.
    let ssh = Identifier::new(Decoders::NONE.with("ssh").unwrap());
    let (found, used) = ssh.stream(&mut { StreamStart::NEW }, b"GET / HTTP/1.1", [1, 2]);
    assert_eq!((found, used), (Found::Unknown, 1));
}

/// Checks the decoder that each beginning of a stream is identified as.
fn check_stream(rows: &[(&[u8], Option<&str>)]) {
    let identifier = Identifier::new(Decoders::ALL);
    for (bytes, name) in rows {
        let (found, _) = identifier.stream(&mut { StreamStart::NEW }, bytes, [50_000, 60_000]);
        let expected = name.map_or(Found::Unknown, |name| Found::Known(Row::of(name)));
        assert_eq!(found, expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn beginnings_of_services_that_greet_are_distinguished() {
    check_stream(&[
        (b"VERSION 1.6.18\r\n", Some("memcached")),
        (b"VERSION of the", None),
        (b"STAT pid 12\r\n", Some("memcached")),
        (b"STAT 12\r\n", None),
        (b"stats\r\n", Some("memcached")),
        // Only on its port.
        (b"get key\r\n", None),
        (b"RFB 003.008\n", Some("vnc")),
        (b"RFB 003.008 ", None),
        (b"\xff\xfd\x18\xff\xfb\x01", Some("telnet")),
        (b"\xff\xfd\x18\xff\xfb\x90", None),
        (b"\xff\xfb\x01Welc", Some("telnet")),
        (b"\xff\xfb\x90\x64", None),
    ]);
}

/// A pattern that begins with arbitrary bytes would keep the automaton running on traffic that no
/// decoder reads.
#[test]
fn zeros_are_rejected_early() {
    let identifier = Identifier::new(Decoders::ALL);
    let state = identifier.udp.step(machine::START, 0);
    assert!(identifier.udp.is_settled(state));
    // SMB, with a length that is too small.
    let stream = identifier.stream(&mut { StreamStart::NEW }, &[0; 64], [50_000, 9]);
    assert_eq!(stream, (Found::Unknown, 4));
}

#[test]
fn sets_are_made_of_names() {
    let set = Decoders::NONE.with("tls").unwrap().with("smtp").unwrap();
    assert_eq!(
        set,
        Decoders::NONE.with("mail").unwrap().with("tls").unwrap()
    );
    assert_eq!(set.with("all"), Some(Decoders::ALL));
    assert_eq!(set.with("nothing"), None);
    assert!(Decoders::NONE.is_empty());
}
