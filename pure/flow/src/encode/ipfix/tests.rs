//! IPFIX encoded and decoded: records are read back, loss is detected, sessions restart.

use std::collections::BTreeMap;

use super::*;
use crate::decode::ipfix::{DataRecord, Decoder, Header};
use crate::element::{REVERSE_ENTERPRISE, Way};
use crate::sample::record;

const NOW_NS: u64 = 1_700_000_100_000_000_000;

/// Values of a record by enterprise and number.
type Values = BTreeMap<(u32, u16), Vec<u8>>;

/// Messages as delivered by a transport.
struct Wire {
    messages: Vec<Vec<u8>>,
    len_max: usize,
}

impl Wire {
    fn new(len_max: usize) -> Wire {
        Wire {
            messages: Vec::new(),
            len_max,
        }
    }

    fn send(&mut self, messages: Vec<Vec<u8>>) {
        self.messages.extend(messages);
    }

    fn send_all(&mut self, encoder: &mut Encoder, records: &[(Record, EndReason)]) {
        let mut rest = records;
        loop {
            let taken = encoder.take(rest);
            rest = &rest[taken..];
            let message = encoder.message(NOW_NS).to_vec();
            assert!(message.len() <= self.len_max, "{}", message.len());
            if !message.is_empty() {
                self.messages.push(message);
            }
            encoder.next();
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Reads all messages except those that `lose` selects; returns data records and what is
    /// missing.
    fn read(&self, lose: impl Fn(usize) -> bool) -> (Vec<Values>, Decoder) {
        let (mut decoder, mut found) = (Decoder::new(), Vec::new());
        for (at, message) in self.messages.iter().enumerate() {
            if lose(at) {
                continue;
            }
            let header = decoder
                .message(message, &mut |record: &DataRecord<'_>| {
                    let values = record.values();
                    let mut map: Values = values
                        .map(|(field, value)| ((field.enterprise, field.id), value.to_vec()))
                        .collect();
                    map.insert((u32::MAX, 0), record.template_id.to_be_bytes().to_vec());
                    map.insert((u32::MAX, 1), vec![record.scope_count as u8]);
                    found.push(map);
                })
                .unwrap();
            assert_eq!(header.len, message.len());
        }
        (found, decoder)
    }
}

fn number(map: &Values, enterprise: u32, id: u16) -> u64 {
    let value = map.get(&(enterprise, id));
    value.map_or(0, |v| {
        v.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    })
}

fn mixture(count: u32) -> Vec<(Record, EndReason)> {
    (0..count)
        .map(|n| {
            let version = if n % 3 == 0 { 6 } else { 4 };
            let protocol = [6, 17, if version == 4 { 1 } else { 58 }][n as usize % 7 % 3];
            let record = record(version, protocol, [n % 5 + 1, n % 4]);
            (record, EndReason::ALL[n as usize % 5])
        })
        .collect()
}

#[test]
fn encoded_records_are_read_back() {
    for is_biflow in [true, false] {
        for len_max in [MESSAGE_LEN_MIN, 512, 1400, 65535] {
            for has_extra in [true, false] {
                comes_out(is_biflow, len_max, has_extra);
            }
        }
    }
}

/// The same for one kind of message; records without extra fields have a separate path.
fn comes_out(is_biflow: bool, len_max: usize, has_extra: bool) {
    let mut extra = vec![
        Column::find("payloadOctetDeltaCount").unwrap(),
        Column::find("reversePayloadOctetDeltaCount").unwrap(),
    ];
    if !has_extra {
        extra.clear();
    }
    let mut encoder = Encoder::new(Config {
        is_biflow,
        message_len_max: len_max,
        domain: 77,
        interface: 3,
        extra,
        ..Config::default()
    });
    let mut wire = Wire::new(len_max);
    wire.send(encoder.begin_session(NOW_NS));
    let records = mixture(1000);
    wire.send_all(&mut encoder, &records);
    let statistics = Statistics {
        exported_records: 1000,
        ..Statistics::default()
    };
    wire.send(encoder.refresh(NOW_NS, &statistics));
    let (found, decoder) = wire.read(|_| false);
    assert_eq!((decoder.missed, decoder.unknown_sets), (0, 0));
    let flows: Vec<_> = found.iter().filter(|m| m[&(u32::MAX, 1)] == [0]).collect();
    let sum = |enterprise, id| flows.iter().map(|m| number(m, enterprise, id)).sum::<u64>();
    let packets: u64 = records.iter().map(|(r, _)| r.packets()).sum();
    let bytes: u64 = records.iter().map(|(r, _)| r.bytes()).sum();
    assert_eq!(sum(0, 2) + sum(REVERSE_ENTERPRISE, 2), packets);
    assert_eq!(sum(0, 1) + sum(REVERSE_ENTERPRISE, 1), bytes);
    if has_extra {
        let payload = sum(OWN_ENTERPRISE, 1) + sum(OWN_ENTERPRISE, 0x4001);
        let truth = records
            .iter()
            .map(|(r, _)| r.forward().payload_bytes + r.reverse().payload_bytes);
        assert_eq!(payload, truth.sum::<u64>());
    }
    let both = records.iter().filter(|(r, _)| !r.is_one_way()).count();
    assert_eq!(flows.len(), if is_biflow { 1000 } else { 1000 + both });
    if !is_biflow {
        assert_eq!(sum(REVERSE_ENTERPRISE, 2), 0);
    }
    // The first TCP flow of IPv4, word for word.
    let is_first =
        |m: &&&Values| m.contains_key(&(0, 8)) && number(m, 0, 4) == 6 && number(m, 0, 2) > 1;
    let map = flows.iter().find(is_first).unwrap();
    assert_eq!(map[&(0, 8)], [1, 1, 1, 1]);
    assert_eq!(map[&(0, 12)], [2, 2, 2, 2]);
    assert_eq!((number(map, 0, 7), number(map, 0, 11)), (5000, 80));
    assert_eq!(number(map, 0, 152), 1_700_000_000_123);
    assert_eq!(number(map, 0, 153), 1_700_000_061_500);
    assert_eq!((number(map, 0, 52), number(map, 0, 10)), (63, 3));
    let flags = if is_biflow { (0x118, 2) } else { (0x18, 1) };
    assert_eq!((number(map, 0, 6), map[&(0, 6)].len()), flags);
    // Options: what is own is named, the rate is reported, and so is the account.
    let options: Vec<_> = found.iter().filter(|m| m[&(u32::MAX, 1)] != [0]).collect();
    let rate = options.iter().find(|m| m.contains_key(&(0, 304))).unwrap();
    assert_eq!((number(rate, 0, 304), number(rate, 0, 310)), (3, 1));
    let named: Vec<_> = options.iter().filter_map(|m| m.get(&(0, 341))).collect();
    let is_named = |name: &[u8]| named.iter().any(|other| *other == name);
    assert_eq!(is_named(b"payloadOctetDeltaCount"), has_extra);
    let is_reverse_named = is_named(b"reversePayloadOctetDeltaCount");
    assert_eq!(is_reverse_named, has_extra && is_biflow);
    let account = options.iter().find(|m| m.contains_key(&(0, 42))).unwrap();
    assert_eq!(
        (number(account, 0, 42), number(account, 0, 149)),
        (1000, 77)
    );
}

/// The loss computed by a collector equals the number of records in the lost messages.
#[test]
fn loss_is_detected_by_the_sequence_number() {
    let mut encoder = Encoder::new(Config::default());
    let mut wire = Wire::new(1400);
    wire.send(encoder.begin_session(NOW_NS));
    let before = wire.messages.len();
    for records in mixture(2000).chunks(300) {
        wire.send_all(&mut encoder, records);
        wire.send(encoder.refresh(NOW_NS, &Statistics::default()));
    }
    let (all, decoder) = wire.read(|_| false);
    assert_eq!(decoder.missed, 0);
    let last = wire.messages.len() - 1;
    let (some, decoder) = wire.read(|at| at > before && at < last && at % 7 == 0);
    assert!(some.len() < all.len());
    assert_eq!(decoder.missed, (all.len() - some.len()) as u64);
}

/// A broken session: the message that was not sent becomes part of the next one, whose sequence
/// numbers begin at 0 again.
#[test]
fn a_new_session_starts_anew() {
    let config = Config {
        is_reliable: true,
        withdraws: true,
        ..Config::default()
    };
    let mut encoder = Encoder::new(config);
    let mut wire = Wire::new(1400);
    wire.send(encoder.begin_session(NOW_NS));
    let records = mixture(40);
    let taken = encoder.take(&records);
    assert!(taken > 0 && taken < 40);
    let held = encoder.held();
    assert_eq!(held.flows as usize, taken);
    assert!(!encoder.message(NOW_NS).is_empty());
    wire.messages.clear();
    wire.send(encoder.begin_session(NOW_NS));
    assert_eq!(Header::parse(&wire.messages[0]).unwrap().sequence, 0);
    wire.messages.push(encoder.message(NOW_NS).to_vec());
    encoder.next();
    wire.send_all(&mut encoder, &records[taken..]);
    let (found, decoder) = wire.read(|_| false);
    let flows = found.iter().filter(|m| m[&(u32::MAX, 1)] == [0]).count();
    assert_eq!((flows, decoder.missed, decoder.unknown_sets), (40, 0, 0));
    assert!(decoder.template_count() > 8);
    // The end: everything is withdrawn; statistics alone are sent again, not templates.
    assert_eq!(encoder.refresh(NOW_NS, &Statistics::default()).len(), 1);
    wire.send(encoder.end_session(NOW_NS, &Statistics::default()));
    let (_, decoder) = wire.read(|_| false);
    assert_eq!(decoder.template_count(), 0);
}

#[test]
fn a_record_too_large_is_refused_and_counted() {
    let column = Column::find("sourceIPv6Address").unwrap();
    let mut encoder = Encoder::new(Config {
        message_len_max: 512,
        extra: vec![column; EXTRA_MAX + 9],
        ..Config::default()
    });
    let records = mixture(10);
    assert_eq!(encoder.take(&records), 10);
    assert!(encoder.message(NOW_NS).is_empty());
    let refused = encoder.refused()[Refusal::TooLarge as usize];
    assert_eq!(refused.flows, 10);
    assert_eq!(encoder.held(), Sum::default());
    assert!(
        Column {
            way: Way::Reverse,
            ..column
        }
        .wire_id(0)
        .1 == REVERSE_ENTERPRISE
    );
}

/// Bytes that include the link header have a different element.
#[test]
fn layer_2_bytes_have_their_own_element() {
    let mut encoder = Encoder::new(Config {
        is_layer2: true,
        ..Config::default()
    });
    let mut wire = Wire::new(1400);
    wire.send(encoder.begin_session(NOW_NS));
    wire.send_all(&mut encoder, &[(record(4, 6, [3, 2]), EndReason::Idle)]);
    let (found, _) = wire.read(|_| false);
    let flow = found.iter().find(|m| m.contains_key(&(0, 2))).unwrap();
    assert!(!flow.contains_key(&(0, 1)) && !flow.contains_key(&(REVERSE_ENTERPRISE, 1)));
    assert_eq!(number(flow, 0, 352), 300);
    assert_eq!(number(flow, REVERSE_ENTERPRISE, 352), 200);
}

thread_local! {
    /// Length of the text that [`TEXT`] writes.
    static TEXT_LEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A field of variable length.
static TEXT: crate::element::Field = crate::element::Field {
    element: Element {
        name: "text",
        id: 96,
        enterprise: 0,
        len: VARIABLE_LEN,
        data_type: crate::element::DataType::String,
        semantics: crate::element::Semantics::Default,
        units: crate::element::Units::None,
        about: "As long as the test wants it",
    },
    is_directed: false,
    put: |_, _, out| {
        let len = TEXT_LEN.get();
        out.get_mut(..len)?.fill(b'x');
        Some(len)
    },
};

/// Encodes one flow with a text of this length; returns the number of refused ones as well.
fn with_text(len: usize) -> (Wire, u64) {
    TEXT_LEN.set(len);
    let mut encoder = Encoder::new(Config {
        extra: vec![Column {
            field: &TEXT,
            way: Way::Forward,
        }],
        ..Config::default()
    });
    let mut wire = Wire::new(1400);
    wire.send(encoder.begin_session(NOW_NS));
    wire.send_all(&mut encoder, &mixture(1));
    (wire, encoder.refused()[Refusal::TooLarge as usize].flows)
}

#[test]
fn a_value_of_variable_length_is_read_back_at_every_length() {
    for len in [0, 1, 253, 254, 255, 256, 300] {
        let (wire, refused) = with_text(len);
        assert_eq!(refused, 0);
        let (found, _) = wire.read(|_| false);
        let text = found.iter().find_map(|values| values.get(&(0, 96)));
        assert_eq!(text, Some(&vec![b'x'; len]), "{len}");
        let message = wire.messages.last().unwrap();
        // One byte of length below 255, else 255 and two (RFC 7011 §7).
        let head = match u8::try_from(len) {
            Ok(short) if short < 255 => vec![short],
            _ => vec![255, (len >> 8) as u8, len as u8],
        };
        let value = message.len() - len;
        assert_eq!(message[value - head.len()..value], head);
    }
}

#[test]
fn a_record_that_fills_the_message_is_sent_and_one_byte_more_is_refused() {
    let longest = (300..1400).rfind(|len| with_text(*len).1 == 0).unwrap();
    let (wire, _) = with_text(longest);
    assert_eq!(wire.messages.last().unwrap().len(), 1400);
    assert_eq!(with_text(longest + 1).1, 1);

    // The same of records of options.
    let mut writer = Writer::new(100, 1, 2, 0);
    writer.record(300, &[7; 80], true);
    writer.record(300, &[8; 81], true);
    writer.record(300, &[9; 80], true);
    let (messages, sequence) = writer.finish();
    assert_eq!(sequence, 2);
    let lens: Vec<usize> = messages.iter().map(Vec::len).collect();
    assert_eq!(lens, [100, 100]);
    assert_eq!((messages[0][20], messages[1][20]), (7, 9));
}
