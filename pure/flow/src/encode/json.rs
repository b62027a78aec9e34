//! A record as one line of JSON. The fields are described in `docs/flows.md`; names do not change,
//! new ones may come.
//!
//! Written by hand, digit by digit, because it is the whole cost of a probe that prints every flow:
//! about a tenth of what `core::fmt` takes.

use std::net::IpAddr;

use wire::Timestamp;

use crate::expire::EndReason;
use crate::key::FlowKey;
use crate::record::{Counters, Record};

/// Appends a line, with its line feed.
pub fn line(record: &Record, reason: EndReason, out: &mut Vec<u8>) {
    let key = record.key();
    let initiator = record.initiator();
    let (forward, reverse) = (record.forward(), record.reverse());
    out.extend(b"{\"type\":\"flow\",\"start\":");
    time(record.start_ns(), out);
    out.extend(b",\"end\":");
    time(record.end_ns(), out);
    out.extend(b",\"duration_ns\":");
    number(record.duration_ns(), out);
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
        out.extend(b",\"icmp_type\":");
        number(first.into(), out);
        out.extend(b",\"icmp_code\":");
        number(key.icmp_code(initiator).into(), out);
    } else {
        out.extend(b",\"src_port\":");
        number(first.into(), out);
        out.extend(b",\"dst_port\":");
        number(second.into(), out);
    }
    extra_key(key, out);
    counters(&forward, key, out);
    out.extend(b",\"reverse\":{\"packets\":");
    number(reverse.packets, out);
    out.extend(b",\"bytes\":");
    number(reverse.bytes, out);
    if reverse.packets != 0 {
        rest(&reverse, key, out);
        out.extend(b",\"start\":");
        time(reverse.first_ns, out);
        out.extend(b",\"end\":");
        time(reverse.last_ns, out);
    }
    out.extend(b"},\"end_reason\":\"");
    out.extend(reason.name().as_bytes());
    out.extend(b"\"}\n");
}

fn extra_key(key: &FlowKey, out: &mut Vec<u8>) {
    let [outer, inner] = key.vlan();
    if outer != 0 {
        out.extend(b",\"vlan\":");
        number(outer.into(), out);
    }
    if inner != 0 {
        out.extend(b",\"vlan_inner\":");
        number(inner.into(), out);
    }
    if key.interface() != 0 {
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
    out.extend(b",\"payload_bytes\":");
    number(counters.payload_bytes, out);
    if key.protocol() == 6 {
        out.extend(b",\"tcp_flags\":");
        number(counters.tcp_flags.into(), out);
    }
    out.extend(b",\"ttl_min\":");
    number(counters.ttl_min.into(), out);
}

/// A decimal number.
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

/// A number in so many digits, with zeros before it.
pub(super) fn padded(mut value: u64, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

/// A time as a string: RFC 3339 in UTC with nanoseconds, in quotes.
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

/// An address as people write it (RFC 5952 for IPv6).
pub(super) fn address(address: IpAddr, out: &mut Vec<u8>) {
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
    use crate::record::Amount;

    fn text(key: FlowKey, sent: [u32; 2]) -> String {
        let mut record = Record::new(key, crate::Side::A);
        for (side, packets) in [crate::Side::A, crate::Side::B].into_iter().zip(sent) {
            let amount = Amount {
                packets,
                bytes: u64::from(packets) * 100,
                payload_bytes: 7,
                first_ns: 1_700_000_000_000_000_001,
                last_ns: 1_700_000_061_500_000_000,
                tcp_flags: 0x19,
                ttl_min: 63,
            };
            if packets != 0 {
                record.add(side, &amount, 0);
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
        let (mut key, _) = FlowKey::new(&a, &b, ports(5000, 80), 6, 6);
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
                r#""reverse":{"packets":2,"bytes":200,"payload_bytes":7,"#,
                r#""tcp_flags":25,"ttl_min":63,"start":"2023-11-14T22:13:20.000000001Z","#,
                r#""end":"2023-11-14T22:14:21.500000000Z"},"#,
                r#""end_reason":"idle"}"#,
                "\n"
            )
        );
        let mut v4 = [[0; 16]; 2];
        v4[0][..4].copy_from_slice(&[10, 0, 0, 1]);
        v4[1][..4].copy_from_slice(&[10, 0, 255, 2]);
        let (key, side) = FlowKey::new(&v4[0], &v4[1], ports(8, 0), 1, 4);
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
