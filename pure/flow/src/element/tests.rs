//! Values of elements: fused and individual; names, numbers, and times.

use std::collections::BTreeSet;

use super::*;
use crate::encode::Sum;
use crate::sample::record;

/// The fused functions write the same bytes as the individual rows.
#[test]
fn fused_templates_equal_their_rows() {
    for version in [4, 6] {
        for protocol in [6, 17, if version == 4 { 1 } else { 58 }] {
            for (is_both, sent) in [(false, [3, 0]), (true, [3, 2])] {
                let record = record(version, protocol, sent);
                let index = standard_index(&record, is_both);
                let standards = [&STANDARD[index], &UNIFLOW[index / 2]];
                for standard in standards.into_iter().take(if is_both { 1 } else { 2 }) {
                    let mut fused = vec![0xa5; standard.len];
                    let source = record.initiator();
                    assert!((standard.put)(
                        &record,
                        EndReason::Idle,
                        source,
                        7,
                        &mut fused
                    ));
                    let view = View::new(&record, EndReason::Idle, source, 7);
                    let mut rows = vec![0x5a; standard.len];
                    let mut at = 0;
                    for column in standard.columns {
                        at += (column.field.put)(&view, column.way, &mut rows[at..]).unwrap();
                    }
                    assert_eq!((at, &fused), (standard.len, &rows));
                    let mut short = vec![0; standard.len - 1];
                    assert!(!(standard.put)(
                        &record,
                        EndReason::Idle,
                        source,
                        7,
                        &mut short
                    ));
                    assert!(short.iter().all(|byte| *byte == 0));
                    let is_six = standard.columns.iter().any(|c| c.field.element.id == 27);
                    assert_eq!(is_six, version == 6);
                    let has_reverse = standard.columns.iter().any(|c| c.way == Way::Reverse);
                    assert_eq!(has_reverse, is_both);
                    // A reader that ignores the enterprise of reverse elements gets the forward
                    // values: they are last.
                    assert!(standard.columns.is_sorted_by_key(|c| c.way == Way::Forward));
                }
            }
        }
    }
}

/// A run gives the same bytes as its records alone. It stops at a record of another template, at
/// one without packets, and when there is no room.
#[test]
fn runs_equal_their_records() {
    let mut records = Vec::new();
    for version in [4, 6] {
        for protocol in [6, 17, if version == 4 { 1 } else { 58 }] {
            for (sent, began) in [
                ([3, 0], Side::A),
                ([0, 3], Side::B),
                ([3, 2], Side::A),
                ([3, 2], Side::B),
            ] {
                let sent = record(version, protocol, sent);
                let mut record = Record::new(*sent.key(), began, true, false);
                record.merge(&sent);
                assert_eq!(record.initiator(), began);
                records.push((record, EndReason::Idle));
            }
        }
    }
    let nobody = Record::new(*records[0].0.key(), Side::A, true, false);
    for (record, reason) in &records {
        let is_both = !record.is_one_way();
        let index = standard_index(record, is_both);
        let mut tables = vec![&STANDARD[index]];
        tables.extend((!is_both).then(|| &UNIFLOW[index / 2]));
        for standard in tables {
            let source = match is_both {
                true => record.initiator(),
                false => record.sender(),
            };
            let mut alone = vec![0; standard.len];
            assert!((standard.put)(record, *reason, source, 7, &mut alone));
            let mut want = Sum::default();
            (0..3).for_each(|_| want.count(record));

            for last in records.iter().chain([&(nobody, EndReason::Idle)]) {
                let is_other = standard_index(&last.0, !last.0.is_one_way()) != index;
                if !is_other && last.0.packets() != 0 {
                    continue;
                }
                let run = [(*record, *reason); 3].into_iter().chain([*last]);
                let run: Vec<(Record, EndReason)> = run.collect();
                let mut sum = Sum::default();
                let mut out = vec![0; 5 * standard.len];
                assert_eq!((standard.put_run)(&run, 7, &mut out, &mut sum), 3);
                assert_eq!(out[..3 * standard.len], alone.repeat(3));
                assert!(out[3 * standard.len..].iter().all(|byte| *byte == 0));
                assert_eq!(sum, want);
                let short = &mut out[..3 * standard.len - 1];
                assert_eq!((standard.put_run)(&run, 7, short, &mut sum), 2);
            }
        }
    }
}

#[test]
fn numbers_and_names_are_unique() {
    let mut seen = BTreeSet::new();
    for field in FIELDS {
        let element = &field.element;
        assert!(element.id < OWN_REVERSE && element.id != 0, "{element:?}");
        assert!(element.about.len() > 3 && !element.about.ends_with('.'));
        // The short form of the flags is the same element.
        assert!(
            seen.insert((element.enterprise, element.id, element.len)),
            "{element:?}"
        );
        let found = Column::find(element.name).unwrap();
        assert_eq!(found.field.element.name, element.name);
        assert_eq!(found.name(), element.name);
        let reverse = Column {
            field,
            way: Way::Reverse,
        };
        assert_eq!(Column::find(&reverse.name()).is_some(), field.is_directed);
    }
    assert!(Column::find("colour").is_none());
    let ttl = Column::find("reverseMinimumTTL").unwrap();
    assert_eq!(ttl.wire_id(1), (52, REVERSE_ENTERPRISE));
    let payload = Column::find("reversePayloadOctetDeltaCount").unwrap();
    assert_eq!(payload.wire_id(99), (1 | OWN_REVERSE, 99));
}

/// RFC 7011 §6.1.9 and §6.1.10: a reader computes the original time.
#[test]
fn ntp_times_are_read_back_exactly() {
    for time_ns in [
        0,
        1,
        999_999_999,
        1_700_000_000_123_456_789,
        4_000_000_000_000_000_000,
    ] {
        let back = |bytes: [u8; 8]| {
            let value = u64::from_be_bytes(bytes);
            let seconds = (value >> 32).wrapping_sub(NTP_OFFSET_S) & 0xffff_ffff;
            let fraction = ((value & 0xffff_ffff) * 1_000_000_000) >> 32;
            (seconds, fraction)
        };
        let expected = (time_ns / 1_000_000_000) & 0xffff_ffff;
        assert_eq!(back(ntp(time_ns)), (expected, time_ns % 1_000_000_000));
        let (seconds, fraction) = back(ntp_micro(time_ns));
        assert_eq!(
            (seconds, fraction / 1000),
            (expected, time_ns % 1_000_000_000 / 1000)
        );
        assert_eq!(ntp_micro(time_ns)[7], 0);
    }
}

/// If selected for all flows, ICMP type and code are 0 for other protocols, not a port.
#[test]
fn only_icmp_has_a_type() {
    for (name, version, protocol) in [("icmpTypeCodeIPv4", 4, 1), ("icmpTypeCodeIPv6", 6, 58)] {
        let field = Column::find(name).unwrap().field;
        for (of, over) in [(4, 1), (6, 58), (4, 17), (6, 6)] {
            let record = record(of, over, [3, 2]);
            let source = record.initiator();
            let view = View::new(&record, EndReason::Idle, source, 7);
            let mut out = [0xff; 2];
            (field.put)(&view, Way::Forward, &mut out).unwrap();
            let key = record.key();
            let expected = match (of, over) == (version, protocol) {
                true => key.icmp_type_code(source).unwrap(),
                false => [0, 0],
            };
            assert_eq!(out, expected, "{name} of IPv{of}, protocol {over}");
            assert_ne!(key.port(source), 0);
        }
    }
}
