//! A record as a line of comma-separated values (RFC 4180). A column is a row of `COLUMNS`; no
//! value needs quotes. Empty is what a flow does not have.

use super::json::{address, number, time};
use crate::element::{View, Way};
use crate::expire::EndReason;
use crate::key::Side;
use crate::record::{Counters, Record};

/// A column: its name and what is written.
type Column = (&'static str, fn(&View<'_>, &mut Vec<u8>));

macro_rules! columns {
    ($($name:literal |$view:ident, $out:ident| $write:expr;)*) => {
        const COLUMNS: &[Column] = &[$(($name, |$view, $out| $write)),*];
        /// The first line, with its line feed.
        pub const HEAD: &str = columns!(@head $($name)*);
    };
    (@head $first:literal $($name:literal)*) => { concat!($first, $(",", $name),*, "\n") };
}

fn forward<'a>(view: &'a View<'_>) -> &'a Counters {
    view.counters(Way::Forward)
}

fn reverse<'a>(view: &'a View<'_>) -> &'a Counters {
    view.counters(Way::Reverse)
}

fn port(view: &View<'_>, side: Side, out: &mut Vec<u8>) {
    if !view.record.key().is_icmp() {
        number(view.record.key().port(side).into(), out);
    }
}

fn stamp(time_ns: u64, out: &mut Vec<u8>) {
    let start = out.len();
    time(time_ns, out);
    // Without the quotes of JSON.
    out.pop();
    out.remove(start);
}

fn flags(view: &View<'_>, flags: u16, out: &mut Vec<u8>) {
    if view.record.key().protocol() == 6 {
        number(flags.into(), out);
    }
}

columns! {
    "start" |v, out| stamp(v.record.start_ns(), out);
    "end" |v, out| stamp(v.record.end_ns(), out);
    "duration_ns" |v, out| number(v.record.duration_ns(), out);
    "ip_version" |v, out| number(v.record.key().ip_version().into(), out);
    "protocol" |v, out| number(v.record.key().protocol().into(), out);
    "src" |v, out| address(v.record.key().addr(v.source), out);
    "dst" |v, out| address(v.record.key().addr(v.source.other()), out);
    "src_port" |v, out| port(v, v.source, out);
    "dst_port" |v, out| port(v, v.source.other(), out);
    "icmp_type" |v, out| if v.record.key().is_icmp() {
        number(v.record.key().port(v.source).into(), out);
    };
    "icmp_code" |v, out| if v.record.key().is_icmp() {
        number(v.record.key().icmp_code(v.source).into(), out);
    };
    "vlan" |v, out| number(v.record.key().vlan()[0].into(), out);
    "vlan_inner" |v, out| number(v.record.key().vlan()[1].into(), out);
    "interface" |v, out| number(v.record.key().interface().into(), out);
    "packets" |v, out| number(forward(v).packets, out);
    "bytes" |v, out| number(forward(v).bytes, out);
    "payload_bytes" |v, out| number(forward(v).payload_bytes, out);
    "tcp_flags" |v, out| flags(v, forward(v).tcp_flags, out);
    "ttl_min" |v, out| number(forward(v).ttl_min.into(), out);
    "reverse_packets" |v, out| number(reverse(v).packets, out);
    "reverse_bytes" |v, out| number(reverse(v).bytes, out);
    "reverse_payload_bytes" |v, out| number(reverse(v).payload_bytes, out);
    "reverse_tcp_flags" |v, out| flags(v, reverse(v).tcp_flags, out);
    "reverse_ttl_min" |v, out| number(reverse(v).ttl_min.into(), out);
    "end_reason" |v, out| out.extend(v.reason.name().as_bytes());
}

/// Appends a line, with its line feed.
pub fn line(record: &Record, reason: EndReason, out: &mut Vec<u8>) {
    let view = View::new(record, reason, record.initiator(), 0);
    for (at, (_, write)) in COLUMNS.iter().enumerate() {
        if at != 0 {
            out.push(b',');
        }
        write(&view, out);
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::record;

    #[test]
    fn lines_are_as_documented() {
        let mut out = Vec::new();
        line(&record(4, 6, [3, 2]), EndReason::Idle, &mut out);
        line(&record(6, 58, [1, 0]), EndReason::Active, &mut out);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "2023-11-14T22:13:20.123456789Z,2023-11-14T22:14:21.500000000Z,61376543211,4,6,\
             1.1.1.1,2.2.2.2,5000,80,,,0,0,0,3,300,180,280,63,2,200,120,280,63,idle"
        );
        assert!(lines[1].contains(",58,101:101:101:101:101:101:101:101,"));
        assert!(
            lines[1].contains(",,,128,0,0,0,0,1,108,") && lines[1].ends_with(",0,0,0,,0,active")
        );
        assert!(HEAD.starts_with("start,end,") && HEAD.ends_with(",end_reason\n"));
        for line in lines {
            assert_eq!(line.split(',').count(), HEAD.split(',').count());
        }
    }
}
