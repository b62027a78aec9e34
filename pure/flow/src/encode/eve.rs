//! Formats a record as a line of JSON with the fields of Suricata's EVE flow events, for programs
//! that read those.
//!
//! Differences from Suricata: bytes are those of the IP datagram unless configured otherwise
//! (Suricata includes the link header); the TCP state is derived from flags only; data that
//! Suricata writes as separate events (`tls`, `http`, `dns`) are in the flow event, under the same
//! names.

use super::extra_fields::{ExtraFields, community_id, mac};
use super::json::{address, icmp, number, padded};
use crate::expire::EndReason;
use crate::extra::Extra;
use crate::key::{FlowKey, KeyExtra, Side};
use crate::origin;
use crate::record::{Counters, Record};
use wire::Timestamp;

mod application;

/// Appends a line, with its line feed.
pub fn line(record: &Record, reason: EndReason, out: &mut Vec<u8>) {
    line_with_extra(
        record,
        &Extra::default(),
        &ExtraFields::default(),
        &[],
        reason,
        out,
    );
}

/// Appends a line with extra fields. `interfaces` are the numbers and names of interfaces: the
/// record's own if they are part of its key (which then count from 1), otherwise the only one.
pub fn line_with_extra(
    record: &Record,
    extra: &Extra<'_>,
    extra_fields: &ExtraFields,
    interfaces: &[(u32, String)],
    reason: EndReason,
    out: &mut Vec<u8>,
) {
    let key = record.key();
    let initiator = record.initiator();
    let (forward, reverse) = (record.forward(), record.reverse());
    out.extend(b"{\"timestamp\":");
    time(record.end_ns(), out);
    out.extend(b",\"flow_id\":");
    number(flow_id(key), out);
    if let Some(name) = interface(key, interfaces) {
        out.extend(b",\"in_iface\":");
        inspect::json_string(name.as_bytes(), out);
    }
    out.extend(b",\"event_type\":\"flow\"");
    ends(key, initiator, out);
    if let Some(seed) = extra_fields.community_seed {
        out.extend(b",\"community_id\":\"");
        out.extend(community_id(record, seed).as_str().as_bytes());
        out.push(b'"');
    }
    if let Some(origins) = extra.origins {
        origin::json(origins, initiator, out);
    }
    let found = extra.application().filter(|_| extra_fields.application);
    if let Some(name) = found.as_ref().and_then(application::protocol) {
        out.extend(b",\"app_proto\":\"");
        out.extend(name.as_bytes());
        out.push(b'"');
    }
    flow(record, reason, &forward, &reverse, out);
    if let Some(parts) = extra.key {
        key_parts(parts, extra_fields, initiator, out);
    }
    if let Some(found) = &found {
        application::objects(found, out);
    }
    if key.protocol() == 6 {
        tcp(record, &forward, &reverse, out);
    }
    out.extend(b"}\n");
}

/// Appends VLANs, addresses, ports and protocol.
#[inline]
fn ends(key: &FlowKey, initiator: Side, out: &mut Vec<u8>) {
    let [outer, inner] = key.vlan();
    if outer != 0 {
        out.extend(b",\"vlan\":[");
        number(outer.into(), out);
        if inner != 0 {
            out.push(b',');
            number(inner.into(), out);
        }
        out.push(b']');
    }
    out.extend(b",\"src_ip\":\"");
    address(key.addr(initiator), out);
    out.push(b'"');
    let has_ports = matches!(key.protocol(), 6 | 17 | 132 | 136);
    if has_ports {
        out.extend(b",\"src_port\":");
        number(key.port(initiator).into(), out);
    }
    out.extend(b",\"dest_ip\":\"");
    address(key.addr(initiator.other()), out);
    out.push(b'"');
    if has_ports {
        out.extend(b",\"dest_port\":");
        number(key.port(initiator.other()).into(), out);
    }
    out.extend(b",\"ip_v\":");
    number(key.ip_version().into(), out);
    out.extend(b",\"proto\":\"");
    protocol(key.protocol(), out);
    out.push(b'"');
    icmp(key, initiator, out);
}

/// Appends the requested parts of the key.
fn key_parts(parts: &KeyExtra, extra_fields: &ExtraFields, initiator: Side, out: &mut Vec<u8>) {
    if extra_fields.key.mac && parts.mac != [[0; 6]; 2] {
        out.extend(b",\"ether\":{\"dest_macs\":[\"");
        mac(parts.mac[initiator.other() as usize], out);
        out.extend(b"\"],\"src_macs\":[\"");
        mac(parts.mac[initiator as usize], out);
        out.extend(b"\"]}");
    }
    for (is_selected, name, value) in [
        (extra_fields.key.mpls, "mpls_label", parts.mpls_label),
        (extra_fields.key.tunnel, "tunnel_id", parts.tunnel_id),
        (
            extra_fields.key.traffic_class,
            "tos",
            parts.traffic_class.into(),
        ),
    ] {
        if is_selected && value != 0 {
            out.extend(format!(",\"{name}\":{value}").as_bytes());
        }
    }
}

/// The name of the interface where the packets were seen.
fn interface<'a>(key: &FlowKey, interfaces: &'a [(u32, String)]) -> Option<&'a str> {
    let number = u32::from(key.interface()) + 1;
    let found = match interfaces {
        [only] if key.interface() == 0 => Some(only),
        several => several.iter().find(|(of, _)| *of == number),
    };
    found.map(|(_, name)| name.as_str())
}

fn flow(
    record: &Record,
    reason: EndReason,
    forward: &Counters,
    reverse: &Counters,
    out: &mut Vec<u8>,
) {
    out.extend(b",\"flow\":{\"pkts_toserver\":");
    number(forward.packets, out);
    out.extend(b",\"pkts_toclient\":");
    number(reverse.packets, out);
    out.extend(b",\"bytes_toserver\":");
    number(forward.bytes, out);
    out.extend(b",\"bytes_toclient\":");
    number(reverse.bytes, out);
    out.extend(b",\"start\":");
    time(record.start_ns(), out);
    out.extend(b",\"end\":");
    time(record.end_ns(), out);
    out.extend(b",\"age\":");
    number(record.duration_ns() / 1_000_000_000, out);
    let state = if record.is_closed() {
        "closed"
    } else if record.is_one_way() {
        "new"
    } else {
        "established"
    };
    let reason = match reason {
        EndReason::Idle | EndReason::Active | EndReason::EndOfFlow => "timeout",
        EndReason::Forced => "shutdown",
        EndReason::Resources => "forced",
    };
    out.extend(b",\"state\":\"");
    out.extend(state.as_bytes());
    out.extend(b"\",\"reason\":\"");
    out.extend(reason.as_bytes());
    out.extend(b"\",\"alerted\":false}");
}

/// Flags that have their own field, with their bits.
const FLAGS: [(&str, u16); 8] = [
    ("fin", 1),
    ("syn", 2),
    ("rst", 4),
    ("psh", 8),
    ("ack", 16),
    ("urg", 32),
    ("ecn", 64),
    ("cwr", 128),
];

fn tcp(record: &Record, forward: &Counters, reverse: &Counters, out: &mut Vec<u8>) {
    let both = forward.tcp_flags | reverse.tcp_flags;
    for (name, flags) in [
        (",\"tcp\":{\"tcp_flags\":\"", both),
        (",\"tcp_flags_ts\":\"", forward.tcp_flags),
        (",\"tcp_flags_tc\":\"", reverse.tcp_flags),
    ] {
        out.extend(name.as_bytes());
        for digit in [flags >> 4 & 15, flags & 15] {
            out.push(b"0123456789abcdef"[usize::from(digit)]);
        }
        out.push(b'"');
    }
    for (name, bit) in FLAGS {
        if both & bit != 0 {
            out.extend(b",\"");
            out.extend(name.as_bytes());
            out.extend(b"\":true");
        }
    }
    let state = if record.is_closed() {
        "closed"
    } else if record.is_one_way() && both & 16 == 0 {
        "syn_sent"
    } else {
        "established"
    };
    out.extend(b",\"state\":\"");
    out.extend(state.as_bytes());
    out.extend(b"\"}");
}

fn protocol(number_of: u8, out: &mut Vec<u8>) {
    let name: &[u8] = match number_of {
        1 => b"ICMP",
        2 => b"IGMP",
        6 => b"TCP",
        17 => b"UDP",
        47 => b"GRE",
        50 => b"ESP",
        51 => b"AH",
        58 => b"IPv6-ICMP",
        132 => b"SCTP",
        other => {
            out.extend(b"proto:");
            return number(other.into(), out);
        }
    };
    out.extend(name);
}

/// A number for the key, equal for all records of a flow and for both directions; 53 bits, so that
/// readers with floating-point numbers can distinguish flows.
fn flow_id(key: &FlowKey) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(ODD).rotate_left(29);
    key.words().iter().fold(ODD, mix) >> 11
}

/// Appends a time in EVE's format: microseconds, and an offset without a colon.
fn time(time_ns: u64, out: &mut Vec<u8>) {
    let time = Timestamp(time_ns);
    let mut text = *b"\"0000-00-00T00:00:00.000000+0000\"";
    let (year, month, day) = time.date();
    let second = time.seconds() % 86_400;
    padded(year.into(), &mut text[1..5]);
    padded(month.into(), &mut text[6..8]);
    padded(day.into(), &mut text[9..11]);
    padded(second / 3600, &mut text[12..14]);
    padded(second / 60 % 60, &mut text[15..17]);
    padded(second % 60, &mut text[18..20]);
    padded(u64::from(time.subsec_ns()) / 1000, &mut text[21..27]);
    out.extend(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::record;

    #[test]
    fn lines_are_as_documented() {
        let mut out = Vec::new();
        let tcp = record(4, 6, [3, 2]);
        line(&tcp, EndReason::Idle, &mut out);
        let id = flow_id(tcp.key());
        let expected = format!(
            concat!(
                r#"{{"timestamp":"2023-11-14T22:14:21.500000+0000","flow_id":{},"#,
                r#""event_type":"flow","src_ip":"1.1.1.1","src_port":5000,"dest_ip":"2.2.2.2","#,
                r#""dest_port":80,"ip_v":4,"proto":"TCP","flow":{{"pkts_toserver":3,"#,
                r#""pkts_toclient":2,"bytes_toserver":300,"bytes_toclient":200,"#,
                r#""start":"2023-11-14T22:13:20.123456+0000","#,
                r#""end":"2023-11-14T22:14:21.500000+0000","age":61,"state":"established","#,
                r#""reason":"timeout","alerted":false}},"tcp":{{"tcp_flags":"18","#,
                r#""tcp_flags_ts":"18","tcp_flags_tc":"18","psh":true,"ack":true,"#,
                r#""state":"established"}}}}"#,
                "\n"
            ),
            id
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        line(&record(6, 58, [1, 0]), EndReason::Forced, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(r#""proto":"IPv6-ICMP","icmp_type":128,"icmp_code":0,"flow""#));
        assert!(!text.contains("src_port") && text.contains(r#""state":"new""#));
    }

    /// All records of a flow in both directions share a 53-bit number, and no other flow has it.
    #[test]
    fn numbers_of_flows() {
        let mut seen = std::collections::HashSet::new();
        let mut union = 0;
        for port in 1..200 {
            let ports = |src, dst| crate::key::Ports {
                src,
                dst,
                is_answer: false,
            };
            let (a, b) = ([1; 16], [2; 16]);
            let (key, _) = FlowKey::new(&a, &b, ports(port, 80), 6, 6, false);
            let (back, _) = FlowKey::new(&b, &a, ports(80, port), 6, 6, false);
            let number = flow_id(&key);
            assert_eq!(number, flow_id(&back));
            assert!(number < 1 << 53);
            assert!(seen.insert(number), "{port}");
            union |= number;
        }
        assert_eq!(union, (1 << 53) - 1, "every bit is used");
    }

    #[test]
    fn requested_parts_of_the_key() {
        let mut parts = KeyExtra::NONE;
        parts.mac = [[2, 0, 0, 0, 0, 0xaa], [2, 0, 0, 0, 0, 0xbb]];
        (parts.mpls_label, parts.tunnel_id, parts.traffic_class) = (7, 8, 9);
        let text = |parts: &KeyExtra, extra_fields: &ExtraFields, side| {
            let mut out = Vec::new();
            key_parts(parts, extra_fields, side, &mut out);
            String::from_utf8(out).unwrap()
        };
        let mut extra_fields = ExtraFields::default();
        assert_eq!(text(&parts, &extra_fields, Side::A), "");
        extra_fields.key.mac = true;
        let (a, b) = ("02:00:00:00:00:aa", "02:00:00:00:00:bb");
        let ether =
            |to, from| format!(r#","ether":{{"dest_macs":["{to}"],"src_macs":["{from}"]}}"#);
        assert_eq!(text(&parts, &extra_fields, Side::A), ether(b, a));
        assert_eq!(text(&parts, &extra_fields, Side::B), ether(a, b));
        extra_fields.key.mac = false;
        (
            extra_fields.key.mpls,
            extra_fields.key.tunnel,
            extra_fields.key.traffic_class,
        ) = (true, true, true);
        let expected = r#","mpls_label":7,"tunnel_id":8,"tos":9"#;
        assert_eq!(text(&parts, &extra_fields, Side::A), expected);
        assert_eq!(text(&KeyExtra::NONE, &extra_fields, Side::A), "");
    }
}
