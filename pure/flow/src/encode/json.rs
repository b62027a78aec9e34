//! Formats a record as one line of JSON. The fields are described in `docs/flows.md`; names never
//! change, new ones may be added.
//!
//! Numbers are formatted by hand, digit by digit, because this dominates the cost of a probe that
//! prints every flow: about a tenth of what `core::fmt` takes.

use std::net::IpAddr;

use wire::Timestamp;

mod extra;

pub(super) use extra::fraction;

use crate::encode::extra_fields::{ExtraFields, Known, community_id, transport};
use crate::expire::EndReason;
use crate::extra::Extra;
use crate::key::{FlowKey, Side};
use crate::origin;
use crate::record::{Counters, Record};

/// Appends a line, with its line feed.
pub fn line(record: &Record, reason: EndReason, out: &mut Vec<u8>) {
    line_with(record, &Extra::default(), reason, out);
}

/// Appends a line with extra data.
pub fn line_with(record: &Record, extra: &Extra<'_>, reason: EndReason, out: &mut Vec<u8>) {
    open_line(record, extra, false, reason, out);
    out.extend(b"}\n");
}

/// The same with the Community ID and the application, if requested. The application is omitted if
/// neither the packets nor the ports indicate one.
pub fn line_with_extra(
    record: &Record,
    extra: &Extra<'_>,
    extra_fields: &ExtraFields,
    reason: EndReason,
    out: &mut Vec<u8>,
) {
    open_line(record, extra, extra_fields.interface, reason, out);
    if let Some(seed) = extra_fields.community_seed {
        out.extend(b",\"community_id\":\"");
        out.extend(community_id(record, seed).as_str().as_bytes());
        out.push(b'"');
    }
    if extra_fields.application {
        let end = out.len();
        out.extend(b",\"application\":");
        if !application(record, extra, out) {
            out.truncate(end);
        }
    }
    out.extend(b"}\n");
}

/// Appends the application of a record as an object; returns false if neither the packets nor the
/// ports indicate one.
pub fn application(record: &Record, extra: &Extra<'_>, out: &mut Vec<u8>) -> bool {
    let known = Known::of(record, extra);
    let is_selected =
        transport(record).is_some() && inspect::json(&known.found, known.guess(), out);
    if let (true, Some(transactions)) = (is_selected, extra.transactions()) {
        inspect::json_transactions(&known.found, &transactions, out);
    }
    is_selected
}

/// Appends a line without its end; with the interface if that is part of the key, including number
/// 0.
fn open_line(
    record: &Record,
    extra: &Extra<'_>,
    has_interface: bool,
    reason: EndReason,
    out: &mut Vec<u8>,
) {
    let key = record.key();
    let initiator = record.initiator();
    let (forward, reverse) = (record.forward(), record.reverse());
    out.extend(b"{\"type\":\"flow\"");
    if !record.is_untimed() {
        out.extend(b",\"start\":");
        time(record.start_ns(), out);
        out.extend(b",\"end\":");
        time(record.end_ns(), out);
        out.extend(b",\"duration_ns\":");
        number(record.duration_ns(), out);
    }
    out.extend(b",\"ip_version\":");
    number(key.ip_version().into(), out);
    out.extend(b",\"protocol\":");
    number(key.protocol().into(), out);
    out.extend(b",\"src\":\"");
    address(key.addr(initiator), out);
    out.extend(b"\",\"dst\":\"");
    address(key.addr(initiator.other()), out);
    out.push(b'"');
    let (first, second) = (key.port(initiator), key.port(initiator.other()));
    if key.is_icmp() {
        icmp(key, initiator, out);
    } else {
        out.extend(b",\"src_port\":");
        number(first.into(), out);
        out.extend(b",\"dst_port\":");
        number(second.into(), out);
    }
    extra_key(key, has_interface, out);
    if let Some(key) = extra.key {
        extra::key(key, initiator, out);
    }
    if let Some(origins) = extra.origins {
        origin::json(origins, initiator, out);
    }
    counters(&forward, key, out);
    out.extend(b",\"reverse\":{\"packets\":");
    number(reverse.packets, out);
    out.extend(b",\"bytes\":");
    number(reverse.bytes, out);
    if reverse.packets != 0 {
        rest(&reverse, key, out);
    }
    if reverse.packets != 0 && !record.is_untimed() {
        out.extend(b",\"start\":");
        time(reverse.first_ns, out);
        out.extend(b",\"end\":");
        time(reverse.last_ns, out);
    }
    out.extend(b"},\"end_reason\":\"");
    out.extend(reason.name().as_bytes());
    out.push(b'"');
    shared(record, out);
    extra::rest(extra, record, out);
}

/// Appends type and code of an ICMP message, as far as they are known.
pub(super) fn icmp(key: &FlowKey, sender: Side, out: &mut Vec<u8>) {
    let numbers = [key.icmp_type(sender), key.icmp_code(sender)];
    for (name, value) in [",\"icmp_type\":", ",\"icmp_code\":"].iter().zip(numbers) {
        if let Some(value) = value {
            out.extend(name.as_bytes());
            number(value.into(), out);
        }
    }
}

/// Appends fields common to both directions.
fn shared(record: &Record, out: &mut Vec<u8>) {
    member("ipv4_options", record.ipv4_options().into(), out);
    member(
        "ipv6_extension_headers",
        record.ipv6_extension_headers().into(),
        out,
    );
    member("rtt_us", record.handshake_us().unwrap_or(0).into(), out);
    if record.has_orphans() {
        out.extend(b",\"orphans\":true");
    }
    if record.is_uniflow() {
        out.extend(b",\"uniflow\":true");
    }
}

/// Appends a member with a number, unless it is 0.
fn member(name: &str, value: u64, out: &mut Vec<u8>) {
    if value != 0 {
        out.extend(b",\"");
        out.extend(name.as_bytes());
        out.extend(b"\":");
        number(value, out);
    }
}

fn extra_key(key: &FlowKey, has_interface: bool, out: &mut Vec<u8>) {
    let [outer, inner] = key.vlan();
    if outer != 0 {
        out.extend(b",\"vlan\":");
        number(outer.into(), out);
    }
    if inner != 0 {
        out.extend(b",\"vlan_inner\":");
        number(inner.into(), out);
    }
    if has_interface || key.interface() != 0 {
        out.extend(b",\"interface\":");
        number(key.interface().into(), out);
    }
}

fn counters(counters: &Counters, key: &FlowKey, out: &mut Vec<u8>) {
    out.extend(b",\"packets\":");
    number(counters.packets, out);
    out.extend(b",\"bytes\":");
    number(counters.bytes, out);
    if counters.packets != 0 {
        rest(counters, key, out);
    }
}

fn rest(counters: &Counters, key: &FlowKey, out: &mut Vec<u8>) {
    // Without details there are only packets, bytes, times, and TCP flags.
    let has_details = counters.len_max != 0;
    if has_details {
        out.extend(b",\"payload_bytes\":");
        number(counters.payload_bytes, out);
    }
    if key.protocol() == 6 {
        out.extend(b",\"tcp_flags\":");
        number(counters.tcp_flags.into(), out);
    }
    if !has_details {
        return;
    }
    out.extend(b",\"ttl_min\":");
    number(counters.ttl_min.into(), out);
    out.extend(b",\"ttl_max\":");
    number(counters.ttl_max.into(), out);
    out.extend(b",\"len_min\":");
    number(counters.len_min.into(), out);
    out.extend(b",\"len_max\":");
    number(counters.len_max.into(), out);
    member("tos", counters.traffic_class.into(), out);
    member("ip_flags", counters.ip_flags.into(), out);
    member("fragments", counters.fragments.into(), out);
    if key.protocol() == 6 {
        member("tcp_flags_first", counters.tcp_flags_first.into(), out);
        member("tcp_flags_last", counters.tcp_flags_last.into(), out);
        member("tcp_options", counters.tcp_options, out);
        member("tcp_window", counters.tcp_window.into(), out);
        member("tcp_mss", counters.tcp_mss.into(), out);
        member("retransmissions", counters.retransmissions.into(), out);
        member("out_of_order", counters.out_of_order.into(), out);
        member("handshake_us", counters.handshake_us.into(), out);
    }
}

/// Appends a decimal number.
pub fn number(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend(&digits[at..]);
}

/// Writes a number with leading zeros.
pub(super) fn padded(mut value: u64, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

/// Appends a time as a string: RFC 3339 in UTC with nanoseconds, in quotes.
pub(super) fn time(time_ns: u64, out: &mut Vec<u8>) {
    let time = Timestamp(time_ns);
    let mut text = *b"\"0000-00-00T00:00:00.000000000Z\"";
    let (year, month, day) = time.date();
    let second = time.seconds() % 86_400;
    padded(year.into(), &mut text[1..5]);
    padded(month.into(), &mut text[6..8]);
    padded(day.into(), &mut text[9..11]);
    padded(second / 3600, &mut text[12..14]);
    padded(second / 60 % 60, &mut text[15..17]);
    padded(second % 60, &mut text[18..20]);
    padded(time.subsec_ns().into(), &mut text[21..30]);
    out.extend(text);
}

/// Appends an address in the usual notation (RFC 5952 for IPv6).
pub fn address(address: IpAddr, out: &mut Vec<u8>) {
    use std::io::Write;
    match address {
        IpAddr::V4(v4) => {
            for (at, byte) in v4.octets().into_iter().enumerate() {
                if at != 0 {
                    out.push(b'.');
                }
                number(byte.into(), out);
            }
        }
        // Writing into a vector cannot fail.
        IpAddr::V6(v6) => drop(write!(out, "{v6}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Ports;
    use crate::record::tests::{Sent, add};

    fn text(key: FlowKey, counts: [u32; 2]) -> String {
        let mut record = Record::new(key, crate::Side::A, false, false);
        for (side, packets) in [crate::Side::A, crate::Side::B].into_iter().zip(counts) {
            let sent = Sent {
                packets,
                bytes: u64::from(packets) * 100,
                payload_bytes: 7,
                first_ns: 1_700_000_000_000_000_001,
                last_ns: 1_700_000_061_500_000_000,
                tcp_flags: 0x19,
                ttl: 63,
            };
            if packets != 0 {
                add(&mut record, side, &sent);
            }
        }
        let mut out = Vec::new();
        line(&record, EndReason::Idle, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_as_documented() {
        let ports = |src, dst| Ports {
            src,
            dst,
            is_answer: false,
        };
        let (a, b) = ([1; 16], [2; 16]);
        let (mut key, _) = FlowKey::new(&a, &b, ports(5000, 80), 6, 6, false);
        key.set_vlan(5, 6);
        assert_eq!(
            text(key, [3, 2]),
            concat!(
                r#"{"type":"flow","start":"2023-11-14T22:13:20.000000001Z","#,
                r#""end":"2023-11-14T22:14:21.500000000Z","duration_ns":61499999999,"#,
                r#""ip_version":6,"protocol":6,"src":"101:101:101:101:101:101:101:101","#,
                r#""dst":"202:202:202:202:202:202:202:202","src_port":5000,"dst_port":80,"#,
                r#""vlan":5,"vlan_inner":6,"#,
                r#""packets":3,"bytes":300,"payload_bytes":7,"tcp_flags":25,"ttl_min":63,"#,
                r#""ttl_max":63,"len_min":100,"len_max":100,"#,
                r#""tcp_flags_first":25,"tcp_flags_last":25,"#,
                r#""reverse":{"packets":2,"bytes":200,"payload_bytes":7,"#,
                r#""tcp_flags":25,"ttl_min":63,"ttl_max":63,"len_min":100,"len_max":100,"#,
                r#""tcp_flags_first":25,"tcp_flags_last":25,"#,
                r#""start":"2023-11-14T22:13:20.000000001Z","#,
                r#""end":"2023-11-14T22:14:21.500000000Z"},"#,
                r#""end_reason":"idle"}"#,
                "\n"
            )
        );
        let mut v4 = [[0; 16]; 2];
        v4[0][..4].copy_from_slice(&[10, 0, 0, 1]);
        v4[1][..4].copy_from_slice(&[10, 0, 255, 2]);
        let (key, side) = FlowKey::new(&v4[0], &v4[1], ports(8, 0), 1, 4, false);
        let icmp = text(
            key,
            if side == crate::Side::A {
                [1, 0]
            } else {
                [0, 1]
            },
        );
        assert!(
            icmp.contains(r#""src":"10.0.0.1","dst":"10.0.255.2","icmp_type":8,"icmp_code":0,"#)
        );
        assert!(icmp.contains(r#""reverse":{"packets":0,"bytes":0},"#));
        assert!(!icmp.contains("tcp_flags"));
    }
}
