//! Lists and numbers are exported as measured, and what does not fit is omitted in order.

use std::collections::BTreeMap;

use super::*;
use crate::decode::ipfix::{DataRecord, Decoder};
use crate::element::OWN_ENTERPRISE;
use crate::encode::ipfix::{Config, Encoder};
use crate::encode::measured::MEASURED;
use crate::encode::{Encode, Refusal};
use crate::expire::EndReason;
use crate::extra::{OwnedExtra, PacketNote, Timing};
use crate::sample::record;

const NOW_NS: u64 = 1_700_000_100_000_000_000;

fn all() -> ExtraFields {
    ExtraFields {
        packets: true,
        timing: true,
        bytes: true,
        ..ExtraFields::default()
    }
}

/// Measured values whose payload bytes occur at most `most` times.
fn extra(most: u32) -> OwnedExtra {
    extra_of(most, 3)
}

/// The same with `packet_count` first packets.
fn extra_of(most: u32, packet_count: usize) -> OwnedExtra {
    let times = [0, 300, 70_000].into_iter().cycle().take(packet_count);
    let notes = times.map(|time_us| PacketNote {
        time_us,
        payload_len: (time_us / 10) as u16,
        tcp_flags: 0x12,
        side: u8::from(time_us == 300),
    });
    let notes: Vec<PacketNote> = notes.collect();
    let mut timing = [Timing::EMPTY; 2];
    timing[0].gap_bins[3] = 2;
    (timing[0].gap_min_ns, timing[0].gap_max_ns) = (1500, 4500);
    (timing[0].gap_sum_ns, timing[0].gap_square_sum) = (6000, 22.5e6);
    timing[0].len_bins[1] = 3;
    timing[1].len_bins[2] = 1;
    let mut bytes = Box::new([[0; 256]; 2]);
    bytes[0][255] = most;
    bytes[1][0] = 1;
    let mut owned = OwnedExtra::default();
    owned.set(&Extra {
        packets: &notes,
        timing: Some(&timing),
        bytes: Some(&bytes),
        ..Extra::default()
    });
    owned
}

/// The measured values of a record, by the number of their elements.
#[derive(Default, Debug)]
struct Read {
    lists: BTreeMap<u16, Vec<i64>>,
    numbers: BTreeMap<u16, f64>,
}

fn read(record: &DataRecord<'_>) -> Read {
    let mut of = Read::default();
    for (field, value) in record.values() {
        if field.id == BASIC_LIST {
            let (head, items) = value.split_at(9);
            assert_eq!(
                (head[0], &head[5..]),
                (4, &OWN_ENTERPRISE.to_be_bytes()[..])
            );
            let [id, len] = [1, 3].map(|at| u16::from_be_bytes([head[at], head[at + 1]]));
            assert_eq!(items.len() % usize::from(len), 0);
            let items = items.chunks(len.into()).map(|item| match item {
                [0xff] if id & 0x8000 != 0 && id & 0x7fff == 27 => -1,
                item => item.iter().fold(0, |sum, byte| sum << 8 | i64::from(*byte)),
            });
            of.lists.insert(id & 0x7fff, items.collect());
        } else if field.enterprise == OWN_ENTERPRISE {
            let value = f64::from_be_bytes(value.try_into().unwrap());
            of.numbers.insert(field.id, value);
        }
    }
    of
}

/// Encodes a record and reads it back; returns the number of shortened records as well.
fn through(config: Config, record: Record, extra: &OwnedExtra) -> (Vec<Read>, u64) {
    let mut encoder = Encoder::new(config);
    let mut messages = encoder.begin_session(NOW_NS);
    let taken = encoder.take_with(&[(record, EndReason::Idle)], std::slice::from_ref(extra));
    assert_eq!(taken, 1);
    messages.push(encoder.message(NOW_NS).to_vec());
    let (mut decoder, mut reads) = (Decoder::new(), Vec::new());
    for message in messages.iter().filter(|message| !message.is_empty()) {
        let mut sink = |record: &DataRecord<'_>| {
            if record.scope_count == 0 {
                reads.push(read(record));
            }
        };
        decoder.message(message, &mut sink).unwrap();
    }
    assert_eq!((decoder.missed, decoder.unknown_sets), (0, 0));
    assert_eq!(encoder.refused()[Refusal::TooLarge as usize].flows, 0);
    (reads, encoder.shortened())
}

fn config(is_biflow: bool, message_len_max: usize) -> Config {
    Config {
        is_biflow,
        message_len_max,
        extra_fields: all(),
        ..Config::default()
    }
}

fn expected(record: &Record, extra: &OwnedExtra, source: Side, is_both: bool) -> Read {
    let mut of = Read::default();
    for column in columns(&all(), is_both) {
        let (extra, side) = (extra.get(), column.side(source));
        match column.row.measure {
            Measure::List { read, .. } => {
                let list = of.lists.entry(id(&column)).or_default();
                read(record, &extra, side, &mut |number| list.push(number));
            }
            Measure::Fraction(read) => {
                let value = read(record, &extra, side).unwrap_or(f64::NAN);
                of.numbers.insert(id(&column), value);
            }
        }
    }
    of
}

fn assert_same(read: &Read, expected: &Read) {
    assert_eq!(read.lists, expected.lists);
    assert!(read.numbers.keys().eq(expected.numbers.keys()));
    for (id, value) in &read.numbers {
        let other = expected.numbers[id];
        assert!(*value == other || value.is_nan() && other.is_nan(), "{id}");
    }
}

#[test]
fn values_are_read_back_as_measured() {
    for most in [1, 255, 256, 65_535, 65_536, u32::MAX] {
        let (record, extra) = (record(4, 6, [3, 1]), extra(most));
        for is_biflow in [true, false] {
            let (reads, shortened) = through(config(is_biflow, 65_535), record, &extra);
            assert_eq!(shortened, 0);
            let initiator = record.initiator();
            let sides = [initiator, initiator.other()];
            let sources = if is_biflow { &sides[..1] } else { &sides };
            assert_eq!(reads.len(), sources.len());
            for (read, source) in reads.iter().zip(sources) {
                assert_same(read, &expected(&record, &extra, *source, is_biflow));
            }
        }
    }
}

#[test]
fn byte_histograms_are_omitted_first_and_counted() {
    let record = record(6, 6, [3, 1]);
    let is_whole = |read: &Read| !read.lists[&36].is_empty();
    for (most, len_max, whole, shortened) in [
        (255, 1400, true, 0),
        (65_535, 1400, true, 0),
        (65_536, 1400, false, 1),
        (65_536, 9000, true, 0),
        (255, 700, false, 1),
    ] {
        let (reads, count) = through(config(true, len_max), record, &extra(most));
        assert_eq!(
            (is_whole(&reads[0]), count),
            (whole, shortened),
            "{most}, {len_max}"
        );
        // Everything else is there, the entropy of these bytes too.
        let mut expected = expected(&record, &extra(most), record.initiator(), true);
        if !whole {
            expected.lists.insert(36, Vec::new());
            expected.lists.insert(36 | OWN_REVERSE, Vec::new());
        }
        assert_same(&reads[0], &expected);
    }
    // A message with room for the numbers alone.
    let (reads, count) = through(config(true, 420), record, &extra_of(1, 60));
    assert_eq!(count, 1);
    assert!(reads[0].lists.values().all(Vec::is_empty));
    assert_eq!(reads[0].numbers[&31], 1.5);
}

#[test]
fn elements_have_numbers_of_their_own() {
    let rows = MEASURED.iter().copied().flatten();
    let mut ids: Vec<u16> = rows.map(|row| row.element.id).collect();
    let expected: Vec<u16> = (24..24 + ids.len() as u16).collect();
    ids.sort_unstable();
    assert_eq!(ids, expected);
    let names: Vec<String> = own_elements(&all(), true)
        .map(|(_, name, _)| name)
        .collect();
    assert!(names.contains(&"reversePayloadEntropy".to_owned()));
    assert_eq!(own_elements(&all(), false).count(), ids.len());
}
