//! Every sample is identified, and the reported fields are those of the sample.

use super::cases::{CASES, SERVICES, SUBJECT};
use super::*;

#[test]
fn every_sample_is_identified_and_reported() {
    for (name, protocol, fields) in CASES.iter().chain(SERVICES) {
        let application = by_name(name);
        assert_eq!(
            application.protocol().name(),
            *protocol,
            "{name}: {application:?}"
        );
        for (field, expected) in *fields {
            assert_eq!(
                text(&application, *field),
                *expected,
                "{name}: {}",
                field.name()
            );
        }
    }
    let path = text(&by_name("http-long"), Field::HttpPath);
    assert!(path.starts_with("/xxx") && path.ends_with("x...") && path.len() == 259);
    assert_eq!(text(&by_name("http-long"), Field::HttpHost), "h");
}

/// A bounded part of what a client sends before the proxy's reply is kept. The rest is a gap, and
/// the other direction is still read.
#[test]
fn early_data_is_bounded() {
    let sample = samples::secured::impatient();
    let mut tried = Laws::default();
    for step in [1, 100, 5000] {
        let reported = tried.cut(&sample.pieces(), sample.ports, step).application;
        assert_eq!(text(&reported, Field::InnerProtocol), "tls");
        assert_eq!(text(&reported, Field::TlsSni), "-");
        assert_eq!(text(&reported, Field::TlsSubject), SUBJECT);
    }
}

#[test]
fn the_names_of_a_certificate_are_listed() {
    let application = by_name("tls-certificate");
    let names = application
        .fields()
        .filter(|(field, _)| *field == Field::TlsSan);
    let names: Vec<_> = names.map(|(_, value)| value).collect();
    let address = |text: &str| Value::Address(text.parse().expect("an address"));
    let expected = [
        Value::text(b"www.example.org"),
        Value::text(b"mail@example.org"),
        address("192.0.2.1"),
        Value::text(b"*.example.org"),
        address("2001:db8::1"),
        Value::text(b"fifth.example.org"),
        Value::text(b"sixth.example.org"),
    ];
    assert_eq!(names, expected);
    let mut json = Vec::new();
    assert!(barewire_inspect::json(&application, None, &mut json));
    let json = String::from_utf8(json).expect("UTF-8");
    let expected =
        r#""tls_not_before":"2024-02-29T23:59:59Z","tls_not_after":"2099-12-31T00:00:00Z""#;
    assert!(json.contains(expected), "{json}");
}

/// Protocol identified for one datagram between two unassigned ports.
fn elsewhere(message: &[u8], port: u16) -> Protocol {
    let sample = Sample {
        name: "elsewhere",
        transport: Transport::Udp,
        ports: [40_000, port],
        pieces: vec![(Direction::Forward, message.to_vec())],
    };
    found(&sample).protocol()
}

/// On other ports, DNS has to be valid to its last byte.
#[test]
fn messages_that_are_strictly_invalid_are_not_dns() {
    type Damage = (&'static str, fn(&mut Vec<u8>));
    let both: [Damage; 11] = [
        ("an opcode", |m| m[2] |= 0x08),
        ("the greatest opcode", |m| m[2] |= 0x78),
        ("the reserved bit", |m| m[3] |= 0x40),
        ("no question", |m| m[5] = 0),
        ("two questions", |m| m[5] = 2),
        ("type 0", |m| m[30] = 0),
        ("type 66", |m| m[30] = 66),
        ("class 2", |m| m[32] = 2),
        ("a label of 64 bytes", |m| m[12] = 64),
        ("a byte behind its end", |m| m.push(0)),
        ("its last byte missing", |m| m.truncate(m.len() - 1)),
    ];
    let query: [Damage; 6] = [
        ("an authoritative question", |m| m[2] |= 0x04),
        ("a truncated question", |m| m[2] |= 0x02),
        ("a question with recursion available", |m| m[3] |= 0x80),
        ("a question with an answer", |m| m[7] = 1),
        ("a question with an authority", |m| m[9] = 1),
        ("a question with three additional records", |m| m[11] = 3),
    ];
    let response: [Damage; 4] = [
        ("an answer more than there are", |m| m[7] += 1),
        ("an answer less than there are", |m| m[7] -= 1),
        ("65 answers", |m| m[7] = 65),
        ("a name that points to itself", |m| m[34] = 33),
    ];
    let of_query = both.iter().chain(&query);
    let of_query = of_query.map(|(what, damage)| (samples::dns_query(), what, damage));
    let of_response = both.iter().chain(&response);
    let of_response = of_response.map(|(what, damage)| (samples::dns_response(), what, damage));
    for (mut message, what, damage) in of_query.chain(of_response) {
        assert_eq!(elsewhere(&message, 9999), Protocol::Dns);
        assert_eq!(elsewhere(&message, 137), Protocol::Unknown, "NetBIOS");
        damage(&mut message);
        assert_eq!(elsewhere(&message, 9999), Protocol::Unknown, "{what}");
    }
}
