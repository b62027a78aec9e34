//! Formats the extra fields of a record, in the same line.

use super::{member, number};
use crate::encode::extra_fields;
use crate::extra::{Extra, PacketNote, Timing, entropy};
use crate::key::{KeyExtra, Side};
use crate::record::Record;

/// Appends the rarer parts of the key that are not 0.
pub(super) fn key(key: &KeyExtra, initiator: Side, out: &mut Vec<u8>) {
    let ends = [("src_mac", initiator), ("dst_mac", initiator.other())];
    for (name, side) in ends {
        let mac = key.mac[side as usize];
        if mac == [0; 6] {
            continue;
        }
        out.extend(b",\"");
        out.extend(name.as_bytes());
        out.extend(b"\":\"");
        extra_fields::mac(mac, out);
        out.push(b'"');
    }
    member("mpls_label", key.mpls_label.into(), out);
    member("tunnel_id", key.tunnel_id.into(), out);
    member("key_tos", key.traffic_class.into(), out);
}

/// Appends everything else, as members of the flow.
pub(super) fn rest(extra: &Extra<'_>, record: &Record, out: &mut Vec<u8>) {
    let initiator = record.initiator();
    if !extra.packets.is_empty() {
        packets(extra.packets, record, out);
    }
    if let Some(timing) = extra.timing {
        for (name, side) in [("timing", initiator), ("reverse_timing", initiator.other())] {
            if record.sent_by(side).packets != 0 {
                gaps_and_lengths(name, &timing[side as usize], record, side, out);
            }
        }
    }
    if let Some(bytes) = extra.bytes {
        let names = [
            ("byte_histogram", "entropy", initiator),
            (
                "reverse_byte_histogram",
                "reverse_entropy",
                initiator.other(),
            ),
        ];
        for (histogram, measure, side) in names {
            let counts = &bytes[side as usize];
            if counts.iter().any(|count| *count != 0) {
                list(histogram, counts.iter().map(|count| u64::from(*count)), out);
                begin(measure, out);
                fraction(entropy(counts), out);
            }
        }
    }
}

fn begin(name: &str, out: &mut Vec<u8>) {
    out.extend(b",\"");
    out.extend(name.as_bytes());
    out.extend(b"\":");
}

fn list(name: &str, values: impl Iterator<Item = u64>, out: &mut Vec<u8>) {
    begin(name, out);
    out.push(b'[');
    for (at, value) in values.enumerate() {
        if at != 0 {
            out.push(b',');
        }
        number(value, out);
    }
    out.push(b']');
}

/// Appends a nonnegative number with three decimals.
pub(in crate::encode) fn fraction(value: f64, out: &mut Vec<u8>) {
    let thousandths = (value * 1000.0).round() as u64;
    number(thousandths / 1000, out);
    out.push(b'.');
    for digit in [100, 10, 1] {
        out.push(b'0' + (thousandths / digit % 10) as u8);
    }
}

/// Appends lists of the first packets, as PSTATS does: payload bytes, microseconds since the start,
/// flags, directions (1 from the initiator, -1 to it).
fn packets(notes: &[PacketNote], record: &Record, out: &mut Vec<u8>) {
    let initiator = record.initiator();
    let each = |f: fn(&PacketNote) -> u64| notes.iter().map(f);
    list("packet_lengths", each(|n| n.payload_len.into()), out);
    if !record.is_untimed() {
        list("packet_times_us", each(|n| n.time_us.into()), out);
    }
    list("packet_flags", each(|n| n.tcp_flags.into()), out);
    begin("packet_directions", out);
    for (at, note) in notes.iter().enumerate() {
        out.push(if at == 0 { b'[' } else { b',' });
        let text: &[u8] = if note.side() == initiator {
            b"1"
        } else {
            b"-1"
        };
        out.extend(text);
    }
    out.push(b']');
}

fn gaps_and_lengths(name: &str, timing: &Timing, record: &Record, side: Side, out: &mut Vec<u8>) {
    let sent = record.sent_by(side);
    let (gap_mean, gap_deviation) = timing.gap_mean_deviation_ns();
    let (len_mean, len_deviation) = timing.len_mean_deviation(&sent);
    begin(name, out);
    out.extend(b"{\"len_mean\":");
    fraction(len_mean, out);
    begin("len_deviation", out);
    fraction(len_deviation, out);
    let bins = timing.len_bins.iter().map(|count| u64::from(*count));
    list("len_histogram", bins, out);
    if timing.gap_count() != 0 && !record.is_untimed() {
        let gaps = [
            ("gap_min_us", timing.gap_min_ns as f64),
            ("gap_max_us", timing.gap_max_ns as f64),
            ("gap_mean_us", gap_mean),
            ("gap_deviation_us", gap_deviation),
        ];
        for (name, ns) in gaps {
            begin(name, out);
            fraction(ns / 1000.0, out);
        }
        let bins = timing.gap_bins.iter().map(|count| u64::from(*count));
        list("gap_histogram", bins, out);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_have_three_digits() {
        for (value, text) in [
            (0.0, "0.000"),
            (0.0004, "0.000"),
            (0.0005, "0.001"),
            (0.05, "0.050"),
            (7.12159, "7.122"),
            (1234.5, "1234.500"),
            (9.9996, "10.000"),
        ] {
            let mut out = Vec::new();
            fraction(value, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn list_items_are_separated_by_commas() {
        let mut out = Vec::new();
        list("none", [].into_iter(), &mut out);
        list("one", [1].into_iter(), &mut out);
        list("three", [1, 20, 300].into_iter(), &mut out);
        let expected = br#","none":[],"one":[1],"three":[1,20,300]"#;
        assert_eq!(out, expected);
    }
}
