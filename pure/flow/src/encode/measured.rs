//! The fields of `--fields` as columns: first packets, gaps and lengths, byte values. A column is a
//! row of [`MEASURED`]; CSV, Parquet, Avro and IPFIX iterate over the rows. JSON has the same
//! values in its own objects and lists ([`super::json`]).

use super::extra_fields::ExtraFields;
use crate::element::{DataType, Element, OWN_ENTERPRISE, Semantics, Units};
use crate::extra::{Extra, PacketNote, Timing, entropy};
use crate::key::Side;
use crate::record::Record;

/// Passes on the integers of a list.
pub type ReadList = fn(&Record, &Extra<'_>, Side, &mut dyn FnMut(i64));

/// Source of a value. The side is that of the source, or the other one for a reverse column.
#[derive(Clone, Copy, Debug)]
pub enum Measure {
    /// Integers of the given width, signed or not, passed on one by one; none if there is no value.
    List {
        /// Width: 8, 16 or 32 bits.
        bits: i8,
        /// Whether they may be negative.
        is_signed: bool,
        /// Passes them on.
        read: ReadList,
    },
    /// A nonnegative number.
    Fraction(fn(&Record, &Extra<'_>, Side) -> Option<f64>),
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Name; the other direction has the prefix `reverse_`.
    pub name: &'static str,
    /// Whether each direction has its own.
    pub is_directed: bool,
    /// Whether it was requested.
    pub is_selected: fn(&ExtraFields) -> bool,
    /// Its type and value.
    pub measure: Measure,
    /// IPFIX element of the number, or of each number in the list.
    pub element: Element,
}

/// A column of [`MEASURED`] and its direction.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredColumn {
    /// The row.
    pub row: &'static Measured,
    /// Whether it describes what the destination sent.
    pub is_reverse: bool,
}

impl MeasuredColumn {
    /// The name, with the prefix `reverse_` for a reverse column.
    pub fn name(&self) -> String {
        match self.is_reverse {
            true => format!("reverse_{}", self.row.name),
            false => self.row.name.to_owned(),
        }
    }

    /// The side that it describes, if `source` is the source.
    pub fn side(&self, source: Side) -> Side {
        match self.is_reverse {
            true => source.other(),
            false => source,
        }
    }
}

/// The requested columns in order: those of each kind for one direction, then for the other.
pub fn columns(extra_fields: &ExtraFields) -> impl Iterator<Item = MeasuredColumn> + use<> {
    let extra_fields = *extra_fields;
    let ways = MEASURED
        .iter()
        .flat_map(|rows| [(*rows, false), (*rows, true)]);
    ways.flat_map(move |(rows, is_reverse)| {
        let rows = rows
            .iter()
            .filter(move |row| row.is_directed || !is_reverse);
        let rows = rows.filter(move |row| (row.is_selected)(&extra_fields));
        rows.map(move |row| MeasuredColumn { row, is_reverse })
    })
}

/// All rows, grouped by the option that selects them. Names and types never change; new ones may be
/// added.
pub static MEASURED: [&[Measured]; 3] = [PACKETS, TIMING, BYTES];

/// One of barewire's own elements; its type is that of the measure.
const fn element(
    name: &'static str,
    id: u16,
    units: Units,
    measure: &Measure,
    about: &'static str,
) -> Element {
    let (data_type, len) = match measure {
        Measure::Fraction(_) => (DataType::Float64, 8),
        Measure::List {
            bits: 8, is_signed, ..
        } if *is_signed => (DataType::Signed8, 1),
        Measure::List { bits: 8, .. } => (DataType::Unsigned8, 1),
        Measure::List { bits: 16, .. } => (DataType::Unsigned16, 2),
        Measure::List { .. } => (DataType::Unsigned32, 4),
    };
    Element {
        name,
        id,
        enterprise: OWN_ENTERPRISE,
        len,
        data_type,
        semantics: Semantics::Quantity,
        units,
        about,
    }
}

/// The first values of a row: its names, the number of its element, units.
type Name = (&'static str, &'static str, u16, Units, &'static str);

const fn of_packets(name: Name, bits: i8, is_signed: bool, read: ReadList) -> Measured {
    let (name, of_element, id, units, about) = name;
    let measure = Measure::List {
        bits,
        is_signed,
        read,
    };
    Measured {
        name,
        is_directed: false,
        is_selected: |extra_fields| extra_fields.packets,
        element: element(of_element, id, units, &measure, about),
        measure,
    }
}

/// As in PSTATS: payload bytes, microseconds since the start, flags, directions.
const PACKETS: &[Measured] = &[
    of_packets(
        (
            "packet_lengths",
            "packetPayloadOctets",
            24,
            Units::Octets,
            "Payload bytes of each of the first packets",
        ),
        16,
        false,
        |_, extra, _, out| notes(extra, out, |note| note.payload_len.into()),
    ),
    of_packets(
        (
            "packet_times_us",
            "packetTimeMicroseconds",
            25,
            Units::Microseconds,
            "Time of each of the first packets since the flow began",
        ),
        32,
        false,
        |_, extra, _, out| notes(extra, out, |note| note.time_us.into()),
    ),
    of_packets(
        (
            "packet_flags",
            "packetTcpControlBits",
            26,
            Units::None,
            "TCP flags of each of the first packets",
        ),
        8,
        false,
        |_, extra, _, out| notes(extra, out, |note| note.tcp_flags.into()),
    ),
    of_packets(
        (
            "packet_directions",
            "packetDirection",
            27,
            Units::None,
            "Direction of each of the first packets: 1 from the source, -1 to it",
        ),
        8,
        true,
        |_, extra, source, out| {
            notes(
                extra,
                out,
                |note| {
                    if note.side() == source { 1 } else { -1 }
                },
            );
        },
    ),
];

fn notes(extra: &Extra<'_>, out: &mut dyn FnMut(i64), read: impl Fn(&PacketNote) -> i64) {
    extra.packets.iter().map(read).for_each(out);
}

const fn of_timing(name: Name, measure: Measure) -> Measured {
    let (name, of_element, id, units, about) = name;
    Measured {
        name,
        is_directed: true,
        is_selected: |extra_fields| extra_fields.timing,
        element: element(of_element, id, units, &measure, about),
        measure,
    }
}

const fn counts(read: ReadList) -> Measure {
    let (bits, is_signed) = (32, false);
    Measure::List {
        bits,
        is_signed,
        read,
    }
}

const TIMING: &[Measured] = &[
    of_timing(
        (
            "len_mean",
            "packetLengthMean",
            28,
            Units::Octets,
            "Mean length of packets",
        ),
        Measure::Fraction(|record, extra, side| {
            let (mean, _) = sent(record, extra, side)?.len_mean_deviation(&record.sent_by(side));
            Some(mean)
        }),
    ),
    of_timing(
        (
            "len_deviation",
            "packetLengthDeviation",
            29,
            Units::Octets,
            "Standard deviation of the length of packets",
        ),
        Measure::Fraction(|record, extra, side| {
            let timing = sent(record, extra, side)?;
            let (_, deviation) = timing.len_mean_deviation(&record.sent_by(side));
            Some(deviation)
        }),
    ),
    of_timing(
        (
            "len_histogram",
            "packetLengthHistogram",
            30,
            Units::Packets,
            "Packets by length, in bins of docs/flows.md",
        ),
        counts(|record, extra, side, out| {
            let timing = sent(record, extra, side);
            bins(timing.map(|timing| &timing.len_bins[..]), out);
        }),
    ),
    of_timing(
        (
            "gap_min_us",
            "packetGapMinimum",
            31,
            Units::Microseconds,
            "Shortest time between two packets",
        ),
        Measure::Fraction(|_, extra, side| Some(us(gaps(extra, side)?.gap_min_ns as f64))),
    ),
    of_timing(
        (
            "gap_max_us",
            "packetGapMaximum",
            32,
            Units::Microseconds,
            "Longest time between two packets",
        ),
        Measure::Fraction(|_, extra, side| Some(us(gaps(extra, side)?.gap_max_ns as f64))),
    ),
    of_timing(
        (
            "gap_mean_us",
            "packetGapMean",
            33,
            Units::Microseconds,
            "Mean time between packets",
        ),
        Measure::Fraction(|_, extra, side| {
            let (mean, _) = gaps(extra, side)?.gap_mean_deviation_ns();
            Some(us(mean))
        }),
    ),
    of_timing(
        (
            "gap_deviation_us",
            "packetGapDeviation",
            34,
            Units::Microseconds,
            "Standard deviation of the time between packets",
        ),
        Measure::Fraction(|_, extra, side| {
            let (_, deviation) = gaps(extra, side)?.gap_mean_deviation_ns();
            Some(us(deviation))
        }),
    ),
    of_timing(
        (
            "gap_histogram",
            "packetGapHistogram",
            35,
            Units::Packets,
            "Packets by time since the one before, in bins of docs/flows.md",
        ),
        counts(|_, extra, side, out| {
            let timing = gaps(extra, side);
            bins(timing.map(|timing| &timing.gap_bins[..]), out);
        }),
    ),
];

const fn of_bytes(name: Name, measure: Measure) -> Measured {
    Measured {
        is_selected: |extra_fields| extra_fields.bytes,
        ..of_timing(name, measure)
    }
}

const BYTES: &[Measured] = &[
    of_bytes(
        (
            "byte_histogram",
            "payloadByteHistogram",
            36,
            Units::Octets,
            "Bytes of the payload by value, 0 to 255",
        ),
        counts(|_, extra, side, out| {
            bins(payload(extra, side).map(|counts| &counts[..]), out);
        }),
    ),
    of_bytes(
        (
            "entropy",
            "payloadEntropy",
            37,
            Units::None,
            "Entropy of the payload's bytes in bits",
        ),
        Measure::Fraction(|_, extra, side| payload(extra, side).map(entropy)),
    ),
];

fn bins(bins: Option<&[u32]>, out: &mut dyn FnMut(i64)) {
    let bins = bins.unwrap_or_default().iter();
    bins.map(|count| i64::from(*count)).for_each(out);
}

fn us(ns: f64) -> f64 {
    ns / 1000.0
}

/// Timing of a side that sent packets.
fn sent<'a>(record: &Record, extra: &Extra<'a>, side: Side) -> Option<&'a Timing> {
    let timing = extra.timing.map(|timing| &timing[side as usize]);
    timing.filter(|_| record.packets_of(side) != 0)
}

/// Timing of a side that has gaps: two packets or more.
fn gaps<'a>(extra: &Extra<'a>, side: Side) -> Option<&'a Timing> {
    let timing = extra.timing.map(|timing| &timing[side as usize]);
    timing.filter(|timing| timing.gap_count() != 0)
}

/// Byte values of a side that sent payload.
fn payload<'a>(extra: &Extra<'a>, side: Side) -> Option<&'a [u32; 256]> {
    let counts = extra.bytes.map(|bytes| &bytes[side as usize]);
    counts.filter(|counts| counts.iter().any(|count| *count != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requested_columns_are_listed() {
        let names = |extra_fields: ExtraFields| -> Vec<String> {
            columns(&extra_fields).map(|column| column.name()).collect()
        };
        assert!(names(ExtraFields::default()).is_empty());
        let only = |write: fn(&mut ExtraFields)| {
            let mut extra_fields = ExtraFields::default();
            write(&mut extra_fields);
            names(extra_fields)
        };
        let bytes = [
            "byte_histogram",
            "entropy",
            "reverse_byte_histogram",
            "reverse_entropy",
        ];
        assert_eq!(only(|of| of.bytes = true), bytes);
        assert_eq!(only(|of| of.packets = true).len(), 4);
        let timing = only(|of| of.timing = true);
        assert_eq!((timing.len(), timing[8].as_str()), (16, "reverse_len_mean"));
    }

    /// Fields that were not recorded have no value, even if requested.
    #[test]
    fn unrecorded_fields_are_not_exported() {
        let record = crate::sample::record(4, 6, [1, 1]);
        for row in MEASURED.iter().copied().flatten() {
            for side in [Side::A, Side::B] {
                match row.measure {
                    Measure::List { read, .. } => {
                        let mut count = 0;
                        read(&record, &Extra::default(), side, &mut |_| count += 1);
                        assert_eq!(count, 0, "{}", row.name);
                    }
                    Measure::Fraction(read) => {
                        assert_eq!(read(&record, &Extra::default(), side), None, "{}", row.name);
                    }
                }
            }
        }
    }
}
