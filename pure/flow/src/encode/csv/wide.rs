//! Requested columns, after all others: the record's fields that are not among the standard
//! columns, and those of [`measured`]. The integers of a list are separated by semicolons. A cell
//! is empty where Parquet has null.

use super::stamp;
use crate::encode::directed::{DIRECTED, Directed};
use crate::encode::extra_fields::ExtraFields;
use crate::encode::json::{fraction, number};
use crate::encode::measured::{self, Measure};
use crate::extra::Extra;
use crate::record::Record;

/// Fields of [`DIRECTED`] that are among the standard columns.
const STANDARD: [&str; 5] = ["packets", "bytes", "payload_bytes", "tcp_flags", "ttl_min"];

/// The other fields.
fn directed() -> impl Iterator<Item = &'static Directed> {
    DIRECTED.iter().filter(|row| !STANDARD.contains(&row.name))
}

/// A field common to both directions, or of the other one: its name, and the function that writes
/// it.
type Shared = (&'static str, fn(&Record, &mut Vec<u8>));

const SHARED: &[Shared] = &[
    ("reverse_start", |record, out| {
        let sent = record.reverse();
        if sent.packets != 0 && !record.is_untimed() {
            stamp(sent.first_ns, out);
        }
    }),
    ("reverse_end", |record, out| {
        let sent = record.reverse();
        if sent.packets != 0 && !record.is_untimed() {
            stamp(sent.last_ns, out);
        }
    }),
    ("ipv4_options", |record, out| {
        number(record.ipv4_options().into(), out);
    }),
    ("ipv6_extension_headers", |record, out| {
        number(record.ipv6_extension_headers().into(), out);
    }),
    ("rtt_us", |record, out| {
        if let Some(us) = record.handshake_us() {
            number(us.into(), out);
        }
    }),
    ("orphans", |record, out| flag(record.has_orphans(), out)),
    ("uniflow", |record, out| flag(record.is_uniflow(), out)),
];

fn flag(value: bool, out: &mut Vec<u8>) {
    out.extend(if value { &b"true"[..] } else { b"false" });
}

/// Appends the names of the requested columns.
pub(super) fn names(extra_fields: &ExtraFields, names: &mut Vec<String>) {
    if extra_fields.record {
        names.extend(directed().map(|row| row.name.to_owned()));
        names.extend(directed().map(|row| format!("reverse_{}", row.name)));
        names.extend(SHARED.iter().map(|(name, _)| (*name).to_owned()));
    }
    names.extend(measured::columns(extra_fields).map(|column| column.name()));
}

/// Appends their values, each after a comma.
pub(super) fn values(
    record: &Record,
    extra: &Extra<'_>,
    extra_fields: &ExtraFields,
    out: &mut Vec<u8>,
) {
    if extra_fields.record {
        for sent in [record.forward(), record.reverse()] {
            for row in directed() {
                out.push(b',');
                if let Some(value) = row.value(record, &sent) {
                    number(value, out);
                }
            }
        }
        for (_, write) in SHARED {
            out.push(b',');
            write(record, out);
        }
    }
    for column in measured::columns(extra_fields) {
        out.push(b',');
        let side = column.side(record.initiator());
        match column.row.measure {
            Measure::Fraction(read) => {
                if let Some(value) = read(record, extra, side) {
                    fraction(value, out);
                }
            }
            Measure::List { read, .. } => {
                let start = out.len();
                read(record, extra, side, &mut |value| {
                    if out.len() != start {
                        out.push(b';');
                    }
                    if value < 0 {
                        out.push(b'-');
                    }
                    number(value.unsigned_abs(), out);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::encode::csv::{HEAD, Texts, head, line_with_extra};
    use crate::encode::extra_fields::ExtraFields;
    use crate::expire::EndReason;
    use crate::extra::{ByteCounts, Extra, PacketNote, Timing};
    use crate::sample::record;

    fn row(extra: &Extra<'_>, extra_fields: &ExtraFields, sent: [u32; 2]) -> Vec<(String, String)> {
        let mut line = Vec::new();
        let record = record(4, 6, sent);
        line_with_extra(
            &record,
            extra,
            extra_fields,
            Texts::Safe,
            EndReason::Idle,
            &mut line,
        );
        let (head, line) = (head(extra_fields), String::from_utf8(line).unwrap());
        let cells = |text: &str| -> Vec<String> {
            let text = text.strip_suffix('\n').unwrap();
            text.split(',').map(str::to_owned).collect()
        };
        assert_eq!(cells(&head).len(), cells(&line).len(), "{head}{line}");
        cells(&head).into_iter().zip(cells(&line)).collect()
    }

    #[test]
    fn requested_columns_follow_all_others() {
        let mut timing = [Timing::EMPTY; 2];
        (timing[0].gap_min_ns, timing[0].gap_max_ns) = (1_234_567, 2_000_000);
        timing[0].gap_bins = [2, 0, 0, 0, 0, 0, 0, 0];
        timing[0].len_bins = [0, 3, 0, 0, 0, 0, 0, 0];
        let mut bytes: Box<ByteCounts> = Box::new([[0; 256]; 2]);
        (bytes[0][0], bytes[0][255]) = (2, 2);
        let note = |time_us, side| PacketNote {
            time_us,
            payload_len: 60,
            tcp_flags: 0x18,
            side,
        };
        let packets = [note(0, 0), note(7, 1), note(u32::MAX, 0)];
        let extra = Extra {
            packets: &packets,
            timing: Some(&timing),
            bytes: Some(&bytes),
            ..Extra::default()
        };
        let extra_fields = ExtraFields {
            record: true,
            packets: true,
            timing: true,
            bytes: true,
            ..ExtraFields::default()
        };
        let row = row(&extra, &extra_fields, [3, 0]);
        let cell = |name: &str| {
            let mut cells = row.iter().filter(|(of, _)| of == name);
            let (_, value) = cells.next().expect(name);
            assert_eq!(cells.next(), None, "{name} is there twice");
            value.clone()
        };
        let standard = HEAD.split(',').count();
        assert_eq!(row[standard].0, "tcp_flags_first");
        assert_eq!(cell("packet_lengths"), "60;60;60");
        assert_eq!(cell("packet_times_us"), "0;7;4294967295");
        assert_eq!(cell("packet_directions"), "1;-1;1");
        assert_eq!(cell("gap_min_us"), "1234.567");
        assert_eq!(cell("gap_histogram"), "2;0;0;0;0;0;0;0");
        assert_eq!(cell("len_histogram"), "0;3;0;0;0;0;0;0");
        assert_eq!(cell("entropy"), "1.000");
        assert_eq!(cell("byte_histogram").split(';').count(), 256);
        assert_eq!((cell("ttl_max"), cell("tos")), ("63".into(), "46".into()));
        assert_eq!(cell("orphans"), "false");
        // Values of a side that sent nothing.
        for name in [
            "reverse_ttl_max",
            "reverse_start",
            "reverse_len_mean",
            "reverse_entropy",
            "reverse_gap_histogram",
            "rtt_us",
            "tcp_mss",
        ] {
            assert_eq!(cell(name), "", "{name}");
        }
    }

    #[test]
    fn a_single_kind_adds_only_its_columns() {
        let extra_fields = ExtraFields {
            timing: true,
            ..ExtraFields::default()
        };
        let row = row(&Extra::default(), &extra_fields, [1, 1]);
        let standard = HEAD.split(',').count();
        assert_eq!(row.len(), standard + 16);
        // Requested but not recorded.
        assert!(row[standard..].iter().all(|(_, value)| value.is_empty()));
    }
}
