//! Extra fields are exported and read back.

use std::collections::BTreeMap;

use inspect::{FieldSink, Protocol, Value};

use super::*;
use crate::decode::ipfix::{DataRecord, Decoder};
use crate::element::STANDARD;
use crate::encode::ipfix::Config;
use crate::encode::{Encode, Statistics};
use crate::extra::put_application;
use crate::key::KeyExtra;
use crate::meter::KeyParts;
use crate::origin::Origin;
use crate::sample::record;
use crate::sampling::Sampling;

const NOW_NS: u64 = 1_700_000_100_000_000_000;

type Values = BTreeMap<(u32, u16), Vec<u8>>;

fn all() -> ExtraFields {
    ExtraFields {
        key: KeyParts {
            mac: true,
            mpls: true,
            tunnel: true,
            traffic_class: true,
        },
        application: true,
        community_seed: Some(0),
        origin: OriginParts {
            network: true,
            place: true,
            vendor: true,
        },
        ..ExtraFields::default()
    }
}

fn extra(write: impl FnOnce(&mut Application)) -> OwnedExtra {
    let (mut application, mut found) = (Application::EMPTY, Vec::new());
    write(&mut application);
    put_application(&application, &mut found);
    let mut key = KeyExtra::NONE;
    (key.mac, key.mpls_label, key.tunnel_id) = ([[1; 6], [2; 6]], 0xabcde, 77);
    let mut owned = OwnedExtra::default();
    let end = |asn: u32, name: &str| Origin {
        asn,
        country: *b"DE",
        network: Some(name.into()),
        city: Some("Köln".into()),
        vendor: None,
    };
    owned.set(&Extra {
        key: Some(&key),
        application: &found,
        origins: Some(&[end(64500, "one"), end(4_200_000_000, "two")]),
        ..Extra::default()
    });
    owned
}

/// Encodes and reads back flow records and options records; returns what is missing as well.
fn through(
    config: Config,
    records: &[(Record, EndReason)],
    extras: &[OwnedExtra],
) -> (Vec<Values>, Vec<Values>, Encoder) {
    let limit = config.message_len_max.max(256);
    let mut encoder = Encoder::new(config);
    let mut messages = encoder.begin_session(NOW_NS);
    let (mut at, mut data_records) = (0, 0);
    while at < records.len() {
        at += encoder.take_with(&records[at..], extras.get(at..).unwrap_or_default());
        data_records += encoder.record_count();
        let message = encoder.message(NOW_NS);
        if !message.is_empty() {
            messages.push(message.to_vec());
        }
        encoder.next();
    }
    messages.extend(encoder.refresh(NOW_NS, &Statistics::default()));
    let (mut decoder, mut flows, mut options) = (Decoder::new(), Vec::new(), Vec::new());
    for message in &messages {
        assert!(message.len() <= limit);
        let mut sink = |record: &DataRecord<'_>| {
            let values = record.values();
            let map = values.map(|(field, value)| ((field.enterprise, field.id), value.to_vec()));
            let list = match record.scope_count {
                0 => &mut flows,
                _ => &mut options,
            };
            list.push(map.collect());
        };
        decoder.message(message, &mut sink).unwrap();
    }
    assert_eq!((decoder.missed, decoder.unknown_sets), (0, 0));
    assert_eq!(flows.len() as u64, data_records);
    (flows, options, encoder)
}

fn config(is_biflow: bool, message_len_max: usize) -> Config {
    Config {
        is_biflow,
        message_len_max,
        extra_fields: all(),
        ..Config::default()
    }
}

const OWN: u32 = OWN_ENTERPRISE;

#[test]
fn there_are_as_many_shapes_as_standard_templates() {
    assert_eq!(STANDARD.len(), SHAPES);
    let ids = INDEX_MIN + GROUPS.len() * SHAPES;
    assert!(ids + usize::from(TEMPLATE_ID_MIN) < 1000);
}

fn text(values: &Values, key: (u32, u16)) -> String {
    String::from_utf8(values[&key].clone()).unwrap()
}

/// Flows of one application each, with their extra fields.
fn applications() -> ([(Record, EndReason); 5], [OwnedExtra; 5]) {
    let records = [
        (record(4, 6, [3, 2]), EndReason::Idle),
        (record(6, 17, [1, 0]), EndReason::Active),
        (record(4, 6, [1, 1]), EndReason::Idle),
        (record(4, 1, [1, 1]), EndReason::Idle),
        (record(6, 6, [2, 1]), EndReason::Idle),
    ];
    let host = [b'h'; 120];
    let extras = [
        extra(|a| {
            a.named(Protocol::Tls);
            a.field(Field::TlsSni, Value::text(b"www.example.org\xff"));
            a.field(Field::Ja3, Value::Digest([0x1f; 16]));
            a.field(Field::TlsVersion, Value::Number(0x0304));
        }),
        extra(|a| {
            a.named(Protocol::Dns);
            a.field(Field::DnsName, Value::text(b"example.org"));
        }),
        extra(|a| {
            a.named(Protocol::Http);
            a.field(Field::HttpHost, Value::text(&host));
            a.field(Field::HttpStatus, Value::Number(404));
        }),
        extra(|_| {}),
        // A mixture that no group of its own serves.
        extra(|a| {
            a.named(Protocol::Sip);
            a.field(Field::SipUri, Value::text(b"sip:a@b"));
            a.field(Field::HttpHost, Value::text(b"b"));
        }),
    ];
    (records, extras)
}

#[test]
fn applications_are_read_back() {
    let (records, extras) = applications();
    for is_biflow in [true, false] {
        for len_max in [700, 1400, 65535] {
            let (flows, options, _) = through(config(is_biflow, len_max), &records, &extras);
            assert_eq!(flows.len(), if is_biflow { 5 } else { 9 });
            assert_tls(&flows[0]);
            // With 700 bytes the template of everything does not fit: then only the name is
            // reported.
            assert_others(&flows, len_max > 700);
            // The other side of a flow says the same, with its ends exchanged.
            if !is_biflow {
                assert_eq!(flows[1][&(OWN, 100)], flows[0][&(OWN, 100)]);
                assert_eq!(flows[1][&(0, 56)], flows[0][&(0, 80)]);
                assert_eq!(flows[1][&(0, 16)], flows[0][&(0, 17)]);
            }
            assert_names(&options);
        }
    }
}

/// Checks the TLS flow, with the enrichment of its endpoints.
fn assert_tls(tls: &Values) {
    assert_eq!(text(tls, (OWN, 100)), "www.example.org\u{ff}");
    assert_eq!(text(tls, (OWN, 107)), "1f".repeat(16));
    assert_eq!(tls[&(OWN, 104)], [3, 4]);
    assert_eq!(text(tls, (OWN, 109)), "");
    assert_eq!(
        (&tls[&(0, 95)][..], text(tls, (0, 96))),
        (&[13, 0, 0, 1][..], "tls".into())
    );
    assert!(text(tls, (OWN, 11)).starts_with("1:"));
    assert_eq!(tls[&(0, 70)], [0xab, 0xcd, 0xe0]);
    assert_eq!(tls[&(OWN, 10)], [0, 0, 0, 77]);
    let mut ends = [(0, 16, 13), (0, 17, 14)].map(|(iana, asn, name)| {
        let asn = u32::from_be_bytes(tls[&(iana, asn)][..].try_into().unwrap());
        (asn, text(tls, (OWN, name)))
    });
    ends.sort();
    assert_eq!(ends, [(64500, "one".into()), (4_200_000_000, "two".into())]);
    assert_eq!(
        (text(tls, (OWN, 15)), text(tls, (OWN, 18))),
        ("DE".into(), "Köln".into())
    );
    assert_eq!(text(tls, (OWN, 19)), "");
    assert_ne!(tls[&(0, 56)], tls[&(0, 80)]);
}

/// Checks the other flows; those of several protocols have their fields if they fit.
fn assert_others(flows: &[Values], is_whole: bool) {
    let of = |id: u8| flows.iter().filter(move |m| m[&(0, 95)] == [13, 0, 0, id]);
    let dns = of(Protocol::Dns as u8).next().unwrap();
    assert_eq!(text(dns, (OWN, 119)), "example.org");
    assert_eq!(dns[&(OWN, 121)], [0xff, 0xff], "no answer is not NOERROR");
    let http = of(Protocol::Http as u8).next().unwrap();
    assert_eq!(
        (http[&(0, 460)].len(), &http[&(0, 457)][..]),
        (120, &[1, 0x94][..])
    );
    let icmp = flows.iter().find(|m| m.contains_key(&(0, 32))).unwrap();
    assert_eq!(
        (&icmp[&(0, 95)][..], text(icmp, (0, 96))),
        (&[1, 0, 0, 1][..], "".into())
    );
    let mixed = of(Protocol::Sip as u8).next().unwrap();
    assert_eq!(mixed.contains_key(&(OWN, 150)), is_whole);
    assert_eq!(mixed.contains_key(&(0, 460)), is_whole);
}

/// Checks that options describe the elements and the applications.
fn assert_names(options: &[Values]) {
    let named = |name: &str| {
        let mut names = options.iter().filter_map(|m| m.get(&(0, 341)));
        names.any(|of| of == name.as_bytes())
    };
    assert!(named("tlsServerName") && named("tunnelIdentifier") && named("ja4"));
    assert!(named("sourceAsName") && named("destinationMacVendor"));
    assert!(!named("httpRequestHost"), "IANA names that one");
    let is_name = |m: &&Values| m.get(&(0, 95)).is_some_and(|id| *id == [3, 0, 1, 0xbb]);
    assert_eq!(
        text(options.iter().find(is_name).unwrap(), (0, 96)).trim_end_matches('\0'),
        "tls/quic"
    );
}

#[test]
fn oversized_records_lose_fields_but_are_exported() {
    let records = [(record(4, 6, [1, 1]), EndReason::Idle); 3];
    let extras = [0; 3].map(|_| {
        extra(|a| {
            a.named(Protocol::Http);
            a.field(Field::HttpPath, Value::text(&[b'p'; 256]));
            a.field(Field::HttpHost, Value::text(&[b'h'; 200]));
        })
    });
    for is_biflow in [true, false] {
        let (flows, _, encoder) = through(config(is_biflow, 512), &records, &extras);
        assert_eq!(flows.len(), if is_biflow { 3 } else { 6 });
        assert!(flows.iter().all(|m| m[&(0, 96)] == b"http"));
        assert_eq!(encoder.refused()[Refusal::TooLarge as usize].flows, 0);
    }
}

#[test]
fn records_without_extras_are_encoded_too() {
    let records = [(record(4, 6, [1, 1]), EndReason::Idle); 3];
    let (flows, _, _) = through(config(true, 1400), &records, &[]);
    assert_eq!(flows.len(), 3);
    // By its port.
    assert!(flows.iter().all(|m| m[&(0, 95)] == [3, 0, 0, 80]));
}

#[test]
fn selectors_are_reported_with_their_actual_method() {
    for (sampling, algorithm, field) in [
        (Sampling::Count(100), 1, (310, 100)),
        (Sampling::Hash(7), 6, (310, 7)),
        (
            Sampling::Time {
                every_ns: 1_000_000_000,
                open_ns: 10_000_000,
            },
            2,
            (307, 10_000),
        ),
    ] {
        let config = Config {
            sampling: 100,
            selectors: [sampling, Sampling::Random(5)],
            ..Config::default()
        };
        let (_, options, _) = through(config, &[], &[]);
        let packets = options.iter().filter(|m| m.contains_key(&(0, 302)));
        let packets: Vec<_> = packets.collect();
        // At the start, and refreshed.
        assert_eq!(packets.len(), 4);
        assert_eq!(packets[0][&(0, 304)], [0, algorithm]);
        let value = &packets[0][&(0, field.0)];
        assert_eq!(
            value.iter().fold(0, |sum, b| sum << 8 | u32::from(*b)),
            field.1
        );
        assert_eq!(packets[1][&(0, 390)], [0, 4]);
        assert_eq!(packets[1][&(0, 311)], 0.2_f64.to_be_bytes());
        // And so that everybody reads the rate.
        let rate = options.iter().find(|m| m.contains_key(&(0, 34))).unwrap();
        assert_eq!(
            (&rate[&(0, 304)][..], &rate[&(0, 34)][..]),
            (&[0, 3][..], &[0, 0, 0, 100][..])
        );
    }
    let (_, options, _) = through(Config::default(), &[], &[]);
    assert!(
        !options.iter().any(|m| m.contains_key(&(0, 302))),
        "nothing is left out"
    );
}

#[test]
fn long_texts_have_three_bytes_of_length() {
    for (len, head) in [
        (254, &[254][..]),
        (255, &[255, 0, 255]),
        (300, &[255, 1, 44]),
    ] {
        let mut out = vec![9];
        variable(&mut out, |out| out.extend(vec![b'x'; len]));
        assert_eq!(&out[1..1 + head.len()], head);
        assert_eq!(out.len(), 1 + head.len() + len);
        assert!(out[1 + head.len()..].iter().all(|byte| *byte == b'x'));
    }
}

/// A group that does not fit loses the fields of applications with several protocols.
#[test]
fn every_group_of_fields_fits_a_datagram() {
    for is_biflow in [true, false] {
        let encoder = Encoder::new(config(is_biflow, 1400));
        let rich = encoder.rich.expect("columns beyond the standard ones");
        assert_eq!(rich.groups.len(), GROUPS.len());
    }
}

/// They have their own templates, and their elements are described as in RFC 5610.
#[test]
fn transactions_and_inner_protocols_use_short_templates() {
    let records = [(record(4, 6, [3, 2]), EndReason::Idle); 4];
    let extras = [
        extra(|a| {
            a.named(Protocol::Http);
            a.field(Field::HttpMethod, Value::text(b"GET"));
            a.field(Field::Transactions, Value::Number(3));
            a.field(Field::TransactionsLost, Value::Number(1));
        }),
        extra(|a| {
            a.named(Protocol::Dns);
            a.field(Field::DnsName, Value::text(b"a"));
            a.field(Field::Transactions, Value::Number(70_000));
        }),
        extra(|a| {
            a.named(Protocol::Http);
            a.field(Field::HttpMethod, Value::text(b"CONNECT"));
            a.field(Field::InnerProtocol, Value::text(b"tls"));
            a.field(Field::TlsNotAfter, Value::Number(1 << 33));
        }),
        extra(|a| {
            a.named(Protocol::Socks5);
            a.field(Field::SocksTarget, Value::text(b"b"));
            a.field(Field::SocksResult, Value::Number(0));
            a.field(Field::InnerProtocol, Value::text(b"tls"));
            a.field(Field::TlsSni, Value::text(b"b"));
        }),
    ];
    // In messages that the template of all fields does not fit into.
    let (flows, options, _) = through(config(true, 900), &records, &extras);
    let own = |flow: &Values, field: Field| {
        let element = &APPLICATION[field as usize].element;
        flow.get(&(OWN, element.id)).cloned()
    };
    let number = |number: u32| Some(number.to_be_bytes().to_vec());
    let text = |text: &str| Some(text.as_bytes().to_vec());
    assert_eq!(own(&flows[0], Field::Transactions), number(3));
    assert_eq!(own(&flows[0], Field::TransactionsLost), number(1));
    assert_eq!(own(&flows[1], Field::Transactions), number(70_000));
    assert_eq!(own(&flows[2], Field::InnerProtocol), text("tls"));
    let after = own(&flows[2], Field::TlsNotAfter);
    assert_eq!(after, Some((1_u64 << 33).to_be_bytes().to_vec()));
    assert_eq!(own(&flows[3], Field::InnerProtocol), text("tls"));
    assert_eq!(own(&flows[3], Field::SocksResult), Some(vec![0]));
    assert_eq!(own(&flows[3], Field::TlsSni), text("b"));
    for flow in &flows {
        assert_eq!(own(flow, Field::DhcpType), None);
    }
    for name in [
        "transactionCount",
        "transactionsNotKept",
        "innerProtocolName",
    ] {
        let is_named = options.iter().any(|of| {
            let mut values = of.values();
            values.any(|value| value == name.as_bytes())
        });
        assert!(is_named, "{name}");
    }
}
