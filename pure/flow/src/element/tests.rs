//! What elements say: fused and one by one, names and numbers, times.

use std::collections::BTreeSet;

use super::*;
use crate::sample::record;

/// The fused functions write what the rows write one by one.
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
                    let is_six = standard.columns[0].field.element.id == 27;
                    assert_eq!(is_six, version == 6);
                    let has_reverse = standard.columns.iter().any(|c| c.way == Way::Reverse);
                    assert_eq!(has_reverse, is_both);
                }
            }
        }
    }
}

#[test]
fn numbers_and_names_are_one_to_one() {
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

/// RFC 7011 §6.1.9 and §6.1.10: what a reader computes from it is what went in.
#[test]
fn ntp_times_come_back() {
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
