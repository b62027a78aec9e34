//! Formats an application as a JSON object.

use alloc::vec::Vec;
use core::fmt::Write;

use crate::application::Application;
use crate::date::DateTime;
use crate::field::{FIELDS, Field, Kind, Protocol, Value};
use crate::text::hex;
use crate::transaction::{self, Transactions};

/// Writes `{"protocol":…,"by":"content",…}`: the protocol found by content; or nDPI's name, and
/// `"by":"ndpi"`; or with `guess` the protocol of the port, and `"by":"port"`. In text that is not
/// UTF-8, each invalid byte becomes a code point below 256. Repeated fields are lists. `"cut"`
/// names truncated fields, `"lost"` counts those that did not fit. Writes nothing and returns false
/// if nothing is known at all.
pub fn json(application: &Application, guess: Option<&str>, out: &mut Vec<u8>) -> bool {
    json_with(application, guess, &[], out)
}

/// The same, with fields that are not in the application.
pub fn json_with(
    application: &Application,
    guess: Option<&str>,
    more: &[(Field, Value<'_>)],
    out: &mut Vec<u8>,
) -> bool {
    let (name, by) = match (application.protocol(), application.ndpi_name(), guess) {
        (Protocol::Unknown, None, None) => return false,
        (Protocol::Unknown, None, Some(guess)) => (guess, "port"),
        (Protocol::Unknown, Some(name), _) => (name, "ndpi"),
        (protocol, _, _) => (protocol.name(), "content"),
    };
    out.extend(b"{\"protocol\":");
    string(name.as_bytes(), out);
    out.extend(b",\"by\":");
    string(by.as_bytes(), out);
    for row in FIELDS {
        if !application.has(row.field) && !more.iter().any(|(field, _)| *field == row.field) {
            continue;
        }
        out.push(b',');
        string(row.name.as_bytes(), out);
        out.push(b':');
        let values = application.fields().chain(more.iter().copied());
        let values = values.filter(|(field, _)| *field == row.field);
        if row.repeats {
            out.push(b'[');
        }
        for (at, (_, found)) in values.enumerate() {
            if at != 0 {
                out.push(b',');
            }
            value(row.kind, found, out);
        }
        if row.repeats {
            out.push(b']');
        }
    }
    let mut is_first = true;
    for (field, value) in application.fields().chain(more.iter().copied()) {
        if let Value::Text { is_cut: true, .. } = value {
            out.extend(if is_first { &b",\"cut\":["[..] } else { b"," });
            string(field.name().as_bytes(), out);
            is_first = false;
        }
    }
    if !is_first {
        out.push(b']');
    }
    if application.lost() != 0 {
        let _ = write!(Out(out), ",\"lost\":{}", application.lost());
    }
    out.push(b'}');
    true
}

/// Writes a list of transactions, one object each, into the object written by [`json`]: the first
/// one, and those that were kept.
pub fn transactions(application: &Application, all: &Transactions<'_>, out: &mut Vec<u8>) {
    if out.pop_if(|byte| *byte == b'}').is_none() {
        return;
    }
    out.extend(b",\"transaction\":[");
    object(transaction::first(application), out);
    for fields in all.kept() {
        out.push(b',');
        object(fields, out);
    }
    out.extend(b"]}");
}

fn object<'a>(fields: impl Iterator<Item = (Field, Value<'a>)>, out: &mut Vec<u8>) {
    for (at, (field, found)) in fields.enumerate() {
        out.push(if at == 0 { b'{' } else { b',' });
        string(field.name().as_bytes(), out);
        out.push(b':');
        value(field.row().kind, found, out);
    }
    if out.last() == Some(&b'[') || out.last() == Some(&b',') {
        out.push(b'{');
    }
    out.push(b'}');
}

struct Out<'a>(&'a mut Vec<u8>);

impl Write for Out<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0.extend(text.as_bytes());
        Ok(())
    }
}

fn value(kind: Kind, value: Value<'_>, out: &mut Vec<u8>) {
    // Writing into a vector does not fail.
    let _ = match (value, kind) {
        (Value::Number(number), Kind::Version) => match tls_version(number) {
            Some(name) => write!(Out(out), "\"{name}\""),
            None => write!(Out(out), "\"{number:#06x}\""),
        },
        (Value::Number(number), Kind::Hex) => write!(Out(out), "\"{number:#06x}\""),
        (Value::Number(number), Kind::Time) => write!(Out(out), "\"{}Z\"", DateTime(number as i64)),
        (Value::Number(number), _) => write!(Out(out), "{number}"),
        (Value::Text { bytes, .. }, _) => {
            string(bytes, out);
            Ok(())
        }
        (Value::Digest(sum), _) => {
            out.push(b'"');
            for byte in sum {
                out.extend(hex(byte));
            }
            out.push(b'"');
            Ok(())
        }
        (Value::Address(addr), _) => write!(Out(out), "\"{addr}\""),
    };
}

/// The common name of a TLS version.
pub fn tls_version(number: u64) -> Option<&'static str> {
    Some(match number {
        0x0304 => "1.3",
        0x0303 => "1.2",
        0x0302 => "1.1",
        0x0301 => "1.0",
        0x0300 => "SSL 3.0",
        0xfeff => "DTLS 1.0",
        0xfefd => "DTLS 1.2",
        0xfefc => "DTLS 1.3",
        _ => return None,
    })
}

/// Whether a character is invisible or changes how others are displayed: the controls of ASCII and
/// ISO 6429 (C1, which some terminals interpret), directional marks (Unicode UAX #9, which disguise
/// a name as another one), joiners, line separators, tags. Names do not need them.
pub const fn is_unprintable(letter: char) -> bool {
    matches!(letter as u32,
        0..=0x1f | 0x7f..=0x9f | 0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e
        | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb | 0xe0000..=0xe007f)
}

/// Appends a string (RFC 8259 §7). An invalid UTF-8 byte becomes the code point of its value; an
/// [`is_unprintable`] character is written as an escape, which JSON parsers decode.
pub fn string(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '"' | '\\' => out.extend([b'\\', letter as u8]),
                _ if is_unprintable(letter) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        let [high, low] = unit.to_be_bytes();
                        out.extend(b"\\u");
                        out.extend(hex(high));
                        out.extend(hex(low));
                    }
                }
                _ => out.extend(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        for byte in chunk.invalid() {
            escape(*byte, out);
        }
    }
    out.push(b'"');
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    out.extend(b"\\u00");
    out.extend(hex(byte));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::FieldSink;
    use std::string::String;

    fn shown(application: &Application, guess: Option<&str>) -> String {
        let mut out = Vec::new();
        json(application, guess, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_application_is_written_as_an_object() {
        let mut a = Application::EMPTY;
        assert_eq!(shown(&a, None), "");
        assert_eq!(shown(&a, Some("rdp")), r#"{"protocol":"rdp","by":"port"}"#);
        a.field(Field::Ndpi, Value::text(b"BitTorrent"));
        let expected = r#"{"protocol":"BitTorrent","by":"ndpi","ndpi":"BitTorrent"}"#;
        assert_eq!(shown(&a, Some("rdp")), expected);
        a.clear();
        a.named(Protocol::Dns);
        a.field(Field::DnsName, Value::text(b"a\"\\\n\xff\xc3\xa9"));
        a.field(Field::DnsAnswer, Value::Address([192, 0, 2, 1].into()));
        a.field(Field::DnsAnswer, Value::text(b"b"));
        a.field(Field::TlsVersion, Value::Number(0x0304));
        a.field(Field::TlsCipher, Value::Number(0x1301));
        a.field(Field::Ja3, Value::Digest([0xab; 16]));
        a.field(
            Field::HttpServer,
            Value::Text {
                bytes: b"x",
                is_cut: true,
            },
        );
        let sum = "ab".repeat(16);
        let expected = std::format!(
            "{}{}{}{}",
            r#"{"protocol":"dns","by":"content","tls_version":"1.3","tls_cipher":"0x1301","ja3":""#,
            sum,
            r#"","http_server":"x","dns_name":"a\"\\\u000a\u00ffé","#,
            r#""dns_answer":["192.0.2.1","b"],"cut":["http_server"]}"#,
        );
        assert_eq!(shown(&a, Some("rdp")), expected);
    }
}
