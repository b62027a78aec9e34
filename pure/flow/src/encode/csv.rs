//! Formats a record as a line of comma-separated values (RFC 4180). A column is a row of `COLUMNS`,
//! whose values need no quotes; the requested extra columns follow, in which text from packets is
//! quoted if necessary. A cell is empty if the flow has no value.
//!
//! The sender of packets controls the text in them: a spreadsheet would evaluate text that begins
//! with `=` as a formula, and a terminal interprets control characters. [`Texts`] selects the
//! protection.

use inspect::{FIELDS, Field, is_unprintable};

use super::extra_fields::{By, ExtraFields, Known, community_id, mac};
use super::json::{address, number, time};
use crate::element::{View, Way, application_raw, application_text};
use crate::expire::EndReason;
use crate::extra::Extra;
use crate::key::Side;
use crate::origin::{Origins, TEXTS, ends};
use crate::record::{Counters, Record};

mod wide;

/// Representation of text from packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Texts {
    /// As UTF-8, without anything that a spreadsheet or a terminal would interpret. An apostrophe
    /// precedes text that begins with `=`, `+`, `-`, `@` or an apostrophe; an [`is_unprintable`]
    /// character is written as `\x0a` or `\u{202e}`, a backslash as two.
    #[default]
    Safe,
    /// Unchanged bytes, in quotes where RFC 4180 requires them.
    Raw,
}

/// A column: its name, and the function that writes its value.
type Column = (&'static str, fn(&View<'_>, &mut Vec<u8>));

macro_rules! columns {
    ($($name:literal |$view:ident, $out:ident| $write:expr;)*) => {
        const COLUMNS: &[Column] = &[$(($name, |$view, $out| $write)),*];
        /// The header line, with its line feed.
        pub const HEAD: &str = columns!(@head $($name)*);
    };
    (@head $first:literal $($name:literal)*) => { concat!($first, $(",", $name),*, "\n") };
}

#[inline(always)]
fn forward(view: &View<'_>) -> Counters {
    view.counters(Way::Forward)
}

#[inline(always)]
fn reverse(view: &View<'_>) -> Counters {
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
    "start" |v, out| if !v.record.is_untimed() {
        stamp(v.record.start_ns(), out);
    };
    "end" |v, out| if !v.record.is_untimed() {
        stamp(v.record.end_ns(), out);
    };
    "duration_ns" |v, out| if !v.record.is_untimed() {
        number(v.record.duration_ns(), out);
    };
    "ip_version" |v, out| number(v.record.key().ip_version().into(), out);
    "protocol" |v, out| number(v.record.key().protocol().into(), out);
    "src" |v, out| address(v.record.key().addr(v.source), out);
    "dst" |v, out| address(v.record.key().addr(v.source.other()), out);
    "src_port" |v, out| port(v, v.source, out);
    "dst_port" |v, out| port(v, v.source.other(), out);
    "icmp_type" |v, out| if let Some(kind) = v.record.key().icmp_type(v.source) {
        number(kind.into(), out);
    };
    "icmp_code" |v, out| if let Some(code) = v.record.key().icmp_code(v.source) {
        number(code.into(), out);
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

/// Names of the extra columns.
fn more(extra_fields: &ExtraFields) -> Vec<String> {
    let key = &extra_fields.key;
    let columns = [
        (key.mac, "src_mac"),
        (key.mac, "dst_mac"),
        (key.mpls, "mpls_label"),
        (key.tunnel, "tunnel_id"),
        (key.traffic_class, "key_tos"),
        (extra_fields.community_seed.is_some(), "community_id"),
        (extra_fields.application, "application"),
        (extra_fields.application, "application_by"),
    ];
    let reported = columns.into_iter().filter(|(is_selected, _)| *is_selected);
    let fields = FIELDS.iter().filter(|_| extra_fields.application);
    let mut names: Vec<String> = reported
        .map(|(_, name)| name)
        .chain(fields.map(|row| row.name))
        .map(str::to_owned)
        .collect();
    for (before, _) in ends(Side::A) {
        if extra_fields.origin.network {
            names.push(format!("{before}asn"));
        }
        let texts = TEXTS
            .iter()
            .filter(|(_, is_selected, _)| is_selected(&extra_fields.origin));
        names.extend(texts.map(|(name, _, _)| format!("{before}{name}")));
    }
    wide::names(extra_fields, &mut names);
    names
}

/// The header line with the extra columns, with its line feed.
pub fn head(extra_fields: &ExtraFields) -> String {
    let mut head = HEAD.trim_end().to_owned();
    for name in more(extra_fields) {
        head.push(',');
        head.push_str(&name);
    }
    head.push('\n');
    head
}

/// Appends a line with the extra columns, with its line feed.
pub fn line_with_extra(
    record: &Record,
    extra: &Extra<'_>,
    extra_fields: &ExtraFields,
    texts: Texts,
    reason: EndReason,
    out: &mut Vec<u8>,
) {
    line(record, reason, out);
    if !extra_fields.any() {
        return;
    }
    out.pop();
    let side = record.initiator();
    let parts = extra.key.copied().unwrap_or_default();
    let key = &extra_fields.key;
    if key.mac {
        for side in [side, side.other()] {
            out.push(b',');
            if parts.mac != [[0; 6]; 2] {
                mac(parts.mac[side as usize], out);
            }
        }
    }
    for (is_selected, value) in [
        (key.mpls, parts.mpls_label),
        (key.tunnel, parts.tunnel_id),
        (key.traffic_class, parts.traffic_class.into()),
    ] {
        if is_selected {
            out.push(b',');
            number(value.into(), out);
        }
    }
    if let Some(seed) = extra_fields.community_seed {
        out.push(b',');
        out.extend(community_id(record, seed).as_str().as_bytes());
    }
    if extra_fields.application {
        application(&Known::of(record, extra), texts, out);
    }
    if extra_fields.origin.any() {
        let nobody = Origins::default();
        origins(
            extra.origins.unwrap_or(&nobody),
            side,
            extra_fields,
            texts,
            out,
        );
    }
    wide::values(record, extra, extra_fields, out);
    out.push(b'\n');
}

/// Appends the application, how it was determined, and its fields.
fn application(known: &Known, texts: Texts, out: &mut Vec<u8>) {
    out.push(b',');
    let start = out.len();
    out.extend(known.name().unwrap_or_default().as_bytes());
    quote(start, texts, out);
    out.extend(match known.by {
        By::Content(_) => &b",content"[..],
        By::Ndpi => b",ndpi",
        By::Port(..) => b",port",
        By::Nothing(_) => b",",
    });
    for row in FIELDS {
        out.push(b',');
        field(&known.found, row.field, texts, out);
    }
}

/// Appends networks and places of both endpoints.
fn origins(
    origins: &Origins,
    side: Side,
    extra_fields: &ExtraFields,
    texts: Texts,
    out: &mut Vec<u8>,
) {
    for (_, side) in ends(side) {
        let end = &origins[side as usize];
        if extra_fields.origin.network {
            out.push(b',');
            if end.asn != 0 {
                number(end.asn.into(), out);
            }
        }
        for (_, is_selected, text) in TEXTS {
            if is_selected(&extra_fields.origin) {
                out.push(b',');
                let start = out.len();
                out.extend(text(end).as_bytes());
                quote(start, texts, out);
            }
        }
    }
}

/// Appends a value from a packet.
fn field(application: &inspect::Application, field: Field, texts: Texts, out: &mut Vec<u8>) {
    if !application.has(field) {
        return;
    }
    let start = out.len();
    match texts {
        Texts::Safe => application_text(application, field, out),
        Texts::Raw => application_raw(application, field, out),
    }
    quote(start, texts, out);
}

/// Whether a spreadsheet evaluates text that begins with this character as a formula (OWASP's CSV
/// Injection list). The apostrophe is included, so that removing the first one restores the text.
/// Tab and carriage return, also in that list, are escaped.
fn begins_formula(letter: char) -> bool {
    matches!(
        letter,
        '=' | '+' | '-' | '@' | '\'' | '＝' | '＋' | '－' | '＠'
    )
}

/// Appends text from outside as a cell of [`Texts::Safe`].
pub fn safe_cell(text: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend(text);
    quote(start, Texts::Safe, out);
}

/// Converts the text after `start` to a cell.
fn quote(start: usize, texts: Texts, out: &mut Vec<u8>) {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b" ._:/*()".contains(byte);
    // Most names need nothing else.
    if out[start..].iter().all(is_plain) {
        return;
    }
    let text = out.split_off(start);
    match texts {
        Texts::Safe => quote_safe(&String::from_utf8_lossy(&text), out),
        Texts::Raw => quote_raw(&text, out),
    }
}

fn quote_safe(text: &str, out: &mut Vec<u8>) {
    use std::io::Write;
    let is_odd = |letter| matches!(letter, '"' | ',' | '\\') || is_unprintable(letter);
    let is_quoted = text.contains(is_odd);
    if is_quoted {
        out.push(b'"');
    }
    if text.starts_with(begins_formula) {
        out.push(b'\'');
    }
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let before_formula = letters.peek().copied().is_some_and(begins_formula);
        // Writing into a vector cannot fail.
        match letter {
            // Where the comma is the decimal separator, spreadsheets end a cell at a semicolon.
            ';' if before_formula => out.extend(b"\\x3b"),
            '"' => out.extend(b"\"\""),
            '\\' => out.extend(b"\\\\"),
            _ if !is_unprintable(letter) => {
                out.extend(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
            '\0'..='\u{ff}' => drop(write!(out, "\\x{:02x}", u32::from(letter))),
            _ => drop(write!(out, "\\u{{{:x}}}", u32::from(letter))),
        }
    }
    if is_quoted {
        out.push(b'"');
    }
}

/// Quotes text (RFC 4180 §2, rules 6 and 7).
fn quote_raw(text: &[u8], out: &mut Vec<u8>) {
    if !text.iter().any(|byte| b"\",\r\n".contains(byte)) {
        return out.extend(text);
    }
    out.push(b'"');
    for &byte in text {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
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
    fn text_from_packets_stays_in_its_column() {
        use inspect::{Application, FieldSink, Protocol, Value};
        let extra_fields = ExtraFields {
            key: crate::meter::KeyParts {
                mac: true,
                mpls: true,
                tunnel: true,
                traffic_class: true,
            },
            application: true,
            community_seed: Some(0),
            ..ExtraFields::default()
        };
        let mut application = Application::EMPTY;
        application.named(Protocol::Http);
        let host = b"=1+\"a\",b\r\nc\\\xff\x7f";
        application.field(Field::HttpHost, Value::text(host));
        application.field(Field::HttpStatus, Value::Number(200));
        let mut found = Vec::new();
        crate::extra::put_application(&application, &mut found);
        let extra = Extra {
            application: &found,
            ..Extra::default()
        };
        let mut out = Vec::new();
        let record = record(4, 6, [1, 0]);
        line_with_extra(
            &record,
            &extra,
            &extra_fields,
            Texts::Safe,
            EndReason::Idle,
            &mut out,
        );
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let expected =
            "http,content,,,,,,,,,,,,,,\"'=1+\"\"a\"\",b\\x0d\\x0ac\\\\\u{ff}\\x7f\",,,200,";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains(",idle,,,0,0,0,1:"), "{text}");
        // No other columns contain quoted commas than these two.
        let commas = text.matches(',').count() - 1;
        assert_eq!(commas, head(&extra_fields).matches(',').count());
        let mut plain = Vec::new();
        line_with_extra(
            &record,
            &extra,
            &ExtraFields::default(),
            Texts::Safe,
            EndReason::Idle,
            &mut plain,
        );
        assert!(String::from_utf8(plain).unwrap().ends_with(",idle\n"));
        assert_eq!(head(&ExtraFields::default()), HEAD);
    }

    #[test]
    fn cells_contain_neither_formulas_nor_controls() {
        for (text, safe, raw) in [
            ("example.org", "example.org", "example.org"),
            ("Zürich", "Zürich", "Zürich"),
            ("a-b", "a-b", "a-b"),
            (
                "=cmd|' /C calc'!A0",
                "'=cmd|' /C calc'!A0",
                "=cmd|' /C calc'!A0",
            ),
            ("+1", "'+1", "+1"),
            ("-1,2", "\"'-1,2\"", "\"-1,2\""),
            ("@SUM(1)", "'@SUM(1)", "@SUM(1)"),
            ("＝1", "'＝1", "＝1"),
            ("a;=1;b; c", "a\\x3b=1;b; c", "a;=1;b; c"),
            ("'a", "''a", "'a"),
            ("\t=1", "\"\\x09=1\"", "\t=1"),
            ("\r=1", "\"\\x0d=1\"", "\"\r=1\""),
            ("\u{9b}31m", "\"\\x9b31m\"", "\u{9b}31m"),
            ("a\u{202e}b", "\"a\\u{202e}b\"", "a\u{202e}b"),
        ] {
            for (texts, expected) in [(Texts::Safe, safe), (Texts::Raw, raw)] {
                let mut out = text.as_bytes().to_vec();
                quote(0, texts, &mut out);
                assert_eq!(String::from_utf8(out).unwrap(), expected, "{texts:?}");
            }
        }
    }

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
