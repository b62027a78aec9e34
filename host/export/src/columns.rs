//! The columns of Parquet files, which are also the fields of Avro: one row each. Names and types
//! never change; columns may be added.
//!
//! Values that a flow does not have are null: ports of ICMP, TCP's values in other protocols,
//! packet properties of a direction without packets.

use std::net::{IpAddr, Ipv4Addr};

use flow::element::Way;
use flow::encode::directed::{DIRECTED, Directed, Of};
use flow::encode::extra_fields::{ExtraFields, community_id};
use flow::encode::json;
use flow::encode::measured::{self, Measure, MeasuredColumn};
use flow::{EndReason, Extra, Origin, OwnedExtra, Record};

use crate::worker::Records;

/// A record to be written.
pub(crate) struct Row<'a> {
    pub record: &'a Record,
    pub reason: EndReason,
    pub extra: Extra<'a>,
    /// Fields added to the standard record.
    pub extra_fields: ExtraFields,
}

/// Records to be written as a row group.
pub(crate) struct Rows<'a> {
    pub waiting: &'a Records,
    /// Indices of the records, in order.
    pub order: &'a [u32],
    /// Fields added to the standard record.
    pub extra_fields: ExtraFields,
}

impl<'a> Rows<'a> {
    /// Iterates over them in order.
    pub fn iter(&self) -> impl Iterator<Item = Row<'a>> + '_ {
        self.order.iter().map(|at| {
            let at = *at as usize;
            let (record, reason) = &self.waiting.records[at];
            let extra = self.waiting.extras.get(at).map(OwnedExtra::get);
            Row {
                record,
                reason: *reason,
                extra: extra.unwrap_or_default(),
                extra_fields: self.extra_fields,
            }
        })
    }
}

/// A column's type, and how to get its value.
#[derive(Clone, Copy)]
pub(crate) enum Read {
    /// An unsigned number of 8, 16 or 32 bits.
    Short(i8, fn(&Row<'_>) -> Option<u32>),
    /// An unsigned 64-bit number.
    Long(fn(&Row<'_>) -> Option<u64>),
    /// A timestamp in nanoseconds since the Unix epoch.
    Time(fn(&Row<'_>) -> Option<u64>),
    /// A Boolean.
    Flag(fn(&Row<'_>) -> bool),
    /// UTF-8, appended to the buffer; false is null.
    Text(fn(&Row<'_>, &mut Vec<u8>) -> bool),
    /// An address; IPv4 as `::ffff:a.b.c.d`.
    Address(fn(&Row<'_>) -> [u8; 16]),
    /// A value of one direction, with as many bits as `Short` has, or 64.
    Sent(Way, &'static Directed),
    /// A measured value in addition to the record.
    Measured(MeasuredColumn),
}

/// A column.
pub(crate) struct Column {
    pub name: String,
    pub read: Read,
    pub is_optional: bool,
}

type Shared = (&'static str, bool, Read);

/// Columns before the counters: key and time of the flow.
const HEAD: &[Shared] = &[
    (
        "start_time",
        false,
        Read::Time(|r| Some(r.record.start_ns())),
    ),
    ("end_time", false, Read::Time(|r| Some(r.record.end_ns()))),
    (
        "duration_ns",
        false,
        Read::Long(|r| Some(r.record.duration_ns())),
    ),
    (
        "ip_version",
        false,
        Read::Short(8, |r| Some(r.record.key().ip_version().into())),
    ),
    (
        "protocol",
        false,
        Read::Short(8, |r| Some(r.record.key().protocol().into())),
    ),
    ("src", false, Read::Text(|r, out| text(addr(r, true), out))),
    ("dst", false, Read::Text(|r, out| text(addr(r, false), out))),
    (
        "src_address",
        false,
        Read::Address(|r| bytes(addr(r, true))),
    ),
    (
        "dst_address",
        false,
        Read::Address(|r| bytes(addr(r, false))),
    ),
    ("src_port", true, Read::Short(16, |r| port(r, true))),
    ("dst_port", true, Read::Short(16, |r| port(r, false))),
    (
        "icmp_type",
        true,
        Read::Short(8, |r| {
            let kind = r.record.key().icmp_type(r.record.initiator());
            kind.map(u32::from)
        }),
    ),
    (
        "icmp_code",
        true,
        Read::Short(8, |r| {
            let code = r.record.key().icmp_code(r.record.initiator());
            code.map(u32::from)
        }),
    ),
    (
        "vlan",
        false,
        Read::Short(16, |r| Some(r.record.key().vlan()[0].into())),
    ),
    (
        "vlan_inner",
        false,
        Read::Short(16, |r| Some(r.record.key().vlan()[1].into())),
    ),
    (
        "interface",
        false,
        Read::Short(32, |r| Some(r.record.key().interface().into())),
    ),
];

/// Columns after the counters: values of both directions, and extra fields.
const TAIL: &[Shared] = &[
    (
        "end_reason",
        false,
        Read::Text(|r, out| {
            out.extend_from_slice(r.reason.name().as_bytes());
            true
        }),
    ),
    (
        "ipv4_options",
        false,
        Read::Short(32, |r| Some(r.record.ipv4_options())),
    ),
    (
        "ipv6_extension_headers",
        false,
        Read::Short(32, |r| Some(r.record.ipv6_extension_headers())),
    ),
    ("rtt_us", true, Read::Short(32, |r| r.record.handshake_us())),
    ("orphans", false, Read::Flag(|r| r.record.has_orphans())),
    ("uniflow", false, Read::Flag(|r| r.record.is_uniflow())),
    ("src_mac", true, Read::Text(|r, out| mac(r, true, out))),
    ("dst_mac", true, Read::Text(|r, out| mac(r, false, out))),
    (
        "mpls_label",
        true,
        Read::Short(32, |r| r.extra.key.map(|key| key.mpls_label)),
    ),
    (
        "tunnel_id",
        true,
        Read::Long(|r| r.extra.key.map(|key| key.tunnel_id.into())),
    ),
    (
        "key_tos",
        true,
        Read::Short(8, |r| r.extra.key.map(|key| key.traffic_class.into())),
    ),
    (
        "community_id",
        true,
        Read::Text(|r, out| {
            let id = r
                .extra_fields
                .community_seed
                .map(|seed| community_id(r.record, seed));
            id.is_some_and(|id| {
                out.extend_from_slice(id.as_str().as_bytes());
                true
            })
        }),
    ),
    (
        "application",
        true,
        Read::Text(|r, out| {
            r.extra_fields.application && json::application(r.record, &r.extra, out)
        }),
    ),
    ("src_asn", true, Read::Short(32, |r| asn(r, true))),
    (
        "src_as_name",
        true,
        Read::Text(|r, out| origin(r, true, out, |e| e.network.as_deref().unwrap_or_default())),
    ),
    (
        "src_country",
        true,
        Read::Text(|r, out| origin(r, true, out, |e| e.country())),
    ),
    (
        "src_city",
        true,
        Read::Text(|r, out| origin(r, true, out, |e| e.city.as_deref().unwrap_or_default())),
    ),
    (
        "src_mac_vendor",
        true,
        Read::Text(|r, out| origin(r, true, out, |e| e.vendor.as_deref().unwrap_or_default())),
    ),
    ("dst_asn", true, Read::Short(32, |r| asn(r, false))),
    (
        "dst_as_name",
        true,
        Read::Text(|r, out| origin(r, false, out, |e| e.network.as_deref().unwrap_or_default())),
    ),
    (
        "dst_country",
        true,
        Read::Text(|r, out| origin(r, false, out, |e| e.country())),
    ),
    (
        "dst_city",
        true,
        Read::Text(|r, out| origin(r, false, out, |e| e.city.as_deref().unwrap_or_default())),
    ),
    (
        "dst_mac_vendor",
        true,
        Read::Text(|r, out| origin(r, false, out, |e| e.vendor.as_deref().unwrap_or_default())),
    ),
];

/// All columns in order, including measured ones if requested.
pub(crate) fn columns(extra_fields: &ExtraFields) -> Vec<Column> {
    let shared = |rows: &'static [Shared]| {
        rows.iter().map(|(name, is_optional, read)| Column {
            name: (*name).to_owned(),
            read: *read,
            is_optional: *is_optional,
        })
    };
    let directed = |prefix: &'static str, way: Way| {
        DIRECTED.iter().map(move |row| Column {
            name: format!("{prefix}{}", row.name),
            read: Read::Sent(way, row),
            is_optional: row.of != Of::All,
        })
    };
    let mut all: Vec<Column> = shared(HEAD).collect();
    all.extend(directed("", Way::Forward));
    all.extend(directed("reverse_", Way::Reverse));
    all.extend(shared(TAIL));
    all.extend(measured::columns(extra_fields).map(|column| Column {
        name: column.name(),
        read: Read::Measured(column),
        is_optional: true,
    }));
    all
}

/// Appends the integers of a measured list; none if there is no value.
pub(crate) fn list(row: &Row<'_>, column: &MeasuredColumn, out: &mut Vec<i64>) {
    if let Measure::List { read, .. } = column.row.measure {
        let side = column.side(row.record.initiator());
        read(row.record, &row.extra, side, &mut |value| out.push(value));
    }
}

/// A measured number.
pub(crate) fn fraction(row: &Row<'_>, column: &MeasuredColumn) -> Option<f64> {
    match column.row.measure {
        Measure::Fraction(read) => {
            let side = column.side(row.record.initiator());
            read(row.record, &row.extra, side)
        }
        Measure::List { .. } => None,
    }
}

/// The value of a direction, if it has one.
pub(crate) fn sent(row: &Row<'_>, way: Way, of: &Directed) -> Option<u64> {
    let sent = match way {
        Way::Forward => row.record.forward(),
        Way::Reverse => row.record.reverse(),
    };
    of.value(row.record, &sent)
}

fn addr(row: &Row<'_>, is_source: bool) -> IpAddr {
    let initiator = row.record.initiator();
    let side = if is_source {
        initiator
    } else {
        initiator.other()
    };
    row.record.key().addr(side)
}

fn port(row: &Row<'_>, is_source: bool) -> Option<u32> {
    let initiator = row.record.initiator();
    let side = if is_source {
        initiator
    } else {
        initiator.other()
    };
    let key = row.record.key();
    (!key.is_icmp()).then(|| key.port(side).into())
}

fn text(address: IpAddr, out: &mut Vec<u8>) -> bool {
    json::address(address, out);
    true
}

fn bytes(address: IpAddr) -> [u8; 16] {
    let mapped = |v4: Ipv4Addr| v4.to_ipv6_mapped().octets();
    match address {
        IpAddr::V4(v4) => mapped(v4),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Enrichment of an endpoint.
fn end<'a>(row: &Row<'a>, is_source: bool) -> Option<&'a Origin> {
    let initiator = row.record.initiator();
    let side = if is_source {
        initiator
    } else {
        initiator.other()
    };
    row.extra.origins.map(|ends| &ends[side as usize])
}

fn asn(row: &Row<'_>, is_source: bool) -> Option<u32> {
    end(row, is_source)
        .map(|end| end.asn)
        .filter(|asn| *asn != 0)
}

fn origin(row: &Row<'_>, is_source: bool, out: &mut Vec<u8>, text: fn(&Origin) -> &str) -> bool {
    let text = end(row, is_source).map(text).unwrap_or_default();
    out.extend_from_slice(text.as_bytes());
    !text.is_empty()
}

fn mac(row: &Row<'_>, is_source: bool, out: &mut Vec<u8>) -> bool {
    use std::io::Write;
    let Some(key) = row.extra.key else {
        return false;
    };
    let initiator = row.record.initiator();
    let side = if is_source {
        initiator
    } else {
        initiator.other()
    };
    let [a, b, c, d, e, f] = key.mac[side as usize];
    if [a, b, c, d, e, f] == [0; 6] {
        return false;
    }
    // Writing to a vector cannot fail.
    let _ = write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_names_are_unique_and_need_no_quotes() {
        let all = columns(&ExtraFields::default());
        for (at, column) in all.iter().enumerate() {
            assert!(!all[..at].iter().any(|other| other.name == column.name));
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(column.name.chars().all(plain), "{}", column.name);
            // SQL keywords that must not be column names.
            assert!(!["end", "start", "order", "group"].contains(&column.name.as_str()));
        }
        assert_eq!(all.len(), HEAD.len() + TAIL.len() + 2 * DIRECTED.len());
    }

    /// Each column of a row as text, null if it has no value.
    fn texts(row: &Row<'_>) -> Vec<(String, String)> {
        let show = |column: Column| {
            let number = |value: Option<u64>| value.map(|value| value.to_string());
            let text = match column.read {
                Read::Short(_, read) => number(read(row).map(u64::from)),
                Read::Long(read) | Read::Time(read) => number(read(row)),
                Read::Flag(read) => Some(read(row).to_string()),
                Read::Text(read) => {
                    let mut out = Vec::new();
                    let has = read(row, &mut out);
                    has.then(|| String::from_utf8(out).unwrap())
                }
                Read::Address(read) => Some(std::net::Ipv6Addr::from(read(row)).to_string()),
                Read::Sent(way, of) => number(sent(row, way, of)),
                Read::Measured(column) => fraction(row, &column).map(|value| value.to_string()),
            };
            assert!(text.is_some() || column.is_optional, "{}", column.name);
            (column.name, text.unwrap_or_else(|| "null".into()))
        };
        columns(&row.extra_fields).into_iter().map(show).collect()
    }

    fn origin(n: u32) -> Origin {
        Origin {
            asn: 64_500 + n,
            country: [b'A', b'A' + n as u8],
            network: Some(format!("network {n}").into()),
            city: Some(format!("city {n}").into()),
            vendor: Some(format!("vendor {n}").into()),
        }
    }

    const OF_TCP: [&str; 5] = [
        "tcp_flags",
        "tcp_window",
        "reverse_tcp_flags",
        "tcp_mss",
        "handshake_us",
    ];

    /// The names of endpoints and directions depend on the initiator, not on the order in the
    /// table.
    #[test]
    fn endpoints_and_directions_follow_the_initiator() {
        let records = crate::exporters::tests::records(4);
        let mut key = flow::KeyExtra::NONE;
        (key.mpls_label, key.tunnel_id, key.traffic_class) = (77, 88, 99);
        for (n, (record, reason)) in records.iter().enumerate() {
            let source = record.initiator();
            let (a, b) = (source as usize, source.other() as usize);
            assert_ne!(
                record.key().addr(flow::Side::A),
                record.key().addr(flow::Side::B)
            );
            key.mac[a] = [2, 0, 0, 0, 0, 0xaa];
            key.mac[b] = [2, 0, 0, 0, 0, 0xbb];
            let mut ends = [origin(0), origin(0)];
            (ends[a], ends[b]) = (origin(1), origin(2));
            let row = Row {
                record,
                reason: *reason,
                extra: Extra {
                    key: Some(&key),
                    origins: Some(&ends),
                    ..Extra::default()
                },
                extra_fields: ExtraFields::default(),
            };
            let found = texts(&row);
            let is = |name: &str, expected: &str| {
                let (_, value) = found.iter().find(|column| column.0 == name).unwrap();
                assert_eq!(value, expected, "{name} of {n}");
            };
            is("src", "10.0.0.1");
            is("dst", "10.0.0.2");
            is("src_address", "::ffff:10.0.0.1");
            is("dst_address", "::ffff:10.0.0.2");
            is("src_port", &n.to_string());
            is("dst_port", "53");
            is("start_time", "1700000000000000000");
            is("protocol", "17");
            is("ip_version", "4");
            is("src_mac", "02:00:00:00:00:aa");
            is("dst_mac", "02:00:00:00:00:bb");
            for (end, n) in [("src", 1), ("dst", 2)] {
                is(&format!("{end}_asn"), &(64_500 + n).to_string());
                is(&format!("{end}_as_name"), &format!("network {n}"));
                is(&format!("{end}_country"), ["AB", "AC"][n - 1]);
                is(&format!("{end}_city"), &format!("city {n}"));
                is(&format!("{end}_mac_vendor"), &format!("vendor {n}"));
            }
            is("mpls_label", "77");
            is("tunnel_id", "88");
            is("key_tos", "99");
            is("community_id", "null");
            is("icmp_type", "null");
            // Every third flow has a response; there are no TCP values.
            let answered = n % 3 == 0;
            is("packets", "1");
            is("bytes", "28");
            is("reverse_packets", if answered { "1" } else { "0" });
            is("reverse_bytes", if answered { "28" } else { "0" });
            is("ttl_min", "64");
            is("reverse_ttl_min", if answered { "64" } else { "null" });
            is("reverse_len_max", if answered { "28" } else { "null" });
            OF_TCP.iter().for_each(|name| is(name, "null"));
            unknown_is_null(record, *reason);
        }
    }

    fn unknown_is_null(record: &Record, reason: EndReason) {
        let nameless = flow::KeyExtra::NONE;
        let unknown = [Origin::default(), Origin::default()];
        let mut row = Row {
            record,
            reason,
            extra: Extra {
                key: Some(&nameless),
                origins: Some(&unknown),
                ..Extra::default()
            },
            extra_fields: ExtraFields::default(),
        };
        row.extra_fields.community_seed = Some(0);
        let found = texts(&row);
        let of = |name: &str| &found.iter().find(|column| column.0 == name).unwrap().1;
        for name in ["src_mac", "dst_mac", "src_asn", "dst_country", "src_city"] {
            assert_eq!(of(name), "null", "{name}");
        }
        assert!(of("community_id").starts_with("1:"));
        (row.extra.key, row.extra.origins) = (None, None);
        let found = texts(&row);
        let of = |name: &str| &found.iter().find(|column| column.0 == name).unwrap().1;
        for name in ["src_mac", "mpls_label", "tunnel_id", "key_tos", "dst_asn"] {
            assert_eq!(of(name), "null", "{name}");
        }
    }
}
