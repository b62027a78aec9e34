//! Sanitizes text from services for output.

use std::fmt::Write as _;

use inspect::{DateTime, Kind, Value};

use super::entity::decoded;
use crate::grab::Banner;

/// Maximum number of characters to print of a line from a server.
const LINE_MAX: usize = 100;

/// Returns the first line, if it is text.
pub fn first_line(start: &[u8]) -> Option<String> {
    let line = start.split(|byte| matches!(byte, b'\r' | b'\n')).next()?;
    let text = std::str::from_utf8(line).ok()?.trim();
    let is_text = !text.is_empty() && !text.chars().any(char::is_control);
    is_text.then(|| safe(text))
}

/// Returns the title of a service's page, character references decoded.
pub fn title(banner: &Banner) -> Option<String> {
    let text = decoded(&latin(banner.title.as_deref()?));
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| safe(&words.join(" ")))
}

/// UTF-8 as text; bytes that are none are taken for Latin 1.
fn latin(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|byte| char::from(*byte)));
    }
    out
}

/// The fields of a service's certificate as text: `tls_subject=CN=a, tls_issuer=…`; empty without
/// one. It is safe to print, and has them in full.
pub fn certificate(banner: &Banner) -> String {
    let mut out = String::new();
    let values = banner.certificate.values();
    let rows = inspect::FIELDS.iter();
    for row in rows.filter(|row| values.iter().any(|(field, _)| *field == row.field)) {
        let gap = if out.is_empty() { "" } else { " " };
        let _ = write!(out, "{gap}{}=", row.name);
        let found = values.iter().filter(|(field, _)| *field == row.field);
        for (at, (_, value)) in found.enumerate() {
            out.push_str(if at == 0 { "" } else { "," });
            let _ = match *value {
                Value::Number(at) if row.kind == Kind::Time => {
                    write!(out, "{}Z", DateTime(at as i64))
                }
                Value::Number(number) => write!(out, "{number}"),
                Value::Address(addr) => write!(out, "{addr}"),
                Value::Text { bytes, .. } => write!(out, "{}", printable(&latin(bytes))),
                Value::Digest(_) => Ok(()),
            };
        }
    }
    out
}

fn printable(text: &str) -> String {
    let shown = |letter| match inspect::is_unprintable(letter) {
        true => '.',
        false => letter,
    };
    text.chars().map(shown).collect()
}

/// Makes text from the network safe for a terminal, and truncates it.
pub fn safe(text: &str) -> String {
    let start: String = text.chars().take(LINE_MAX).collect();
    let mut out = printable(&start);
    if text.chars().count() > LINE_MAX {
        out.push_str("...");
    }
    out
}

/// Calls `plain` for printable characters, and escapes all other bytes as nmap does: `\x00`.
/// Backslashes are doubled, so that the original bytes can be restored.
pub(super) fn escaped(bytes: &[u8], out: &mut Vec<u8>, plain: impl Fn(char, &mut Vec<u8>)) {
    let hex = |byte: u8, out: &mut Vec<u8>| {
        let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble & 15)];
        out.extend([b'\\', b'x', digit(byte >> 4), digit(byte)]);
    };
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => out.extend(b"\\\\"),
                // Not characters of XML 1.0 (section 2.2).
                '\u{fffe}' | '\u{ffff}' => out.extend(b"\\?"),
                _ if inspect::is_unprintable(letter) => {
                    let mut utf8 = [0; 4];
                    let utf8 = letter.encode_utf8(&mut utf8).as_bytes();
                    utf8.iter().for_each(|byte| hex(*byte, out));
                }
                _ => plain(letter, out),
            }
        }
        chunk.invalid().iter().for_each(|byte| hex(*byte, out));
    }
}

/// Appends a character unchanged.
pub(super) fn as_is(letter: char, out: &mut Vec<u8>) {
    out.extend(letter.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Returns the name of a service's protocol; empty if it is unknown.
pub fn service(banner: &crate::grab::Banner) -> String {
    let name = banner.application.name();
    name.map_or_else(String::new, |name| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_and_lines_are_safe_to_print() {
        let target = crate::cookie::ProbeTarget {
            addr: [192, 0, 2, 1].into(),
            probe: crate::probe::Probe::Syn,
            port: 80,
        };
        let titled = |text: &[u8]| {
            let mut banner = Banner::new(target, b"", crate::grab::Ending::Closed);
            banner.title = Some(text.to_vec());
            title(&banner)
        };
        assert_eq!(titled(b"a\n  b\x1b[2J").unwrap(), "a b.[2J");
        assert_eq!(
            titled(b"caf\xe9 &amp; bar&nbsp;&nbsp;x").unwrap(),
            "caf\u{e9} & bar x"
        );
        assert_eq!(titled(b"&nbsp;"), None);
        assert_eq!(
            first_line(b"HTTP/1.0 200 OK\r\n").unwrap(),
            "HTTP/1.0 200 OK"
        );
        assert_eq!(first_line(b"\x16\x03\x01"), None);
        assert_eq!(safe(&"x".repeat(101)).len(), 103);
    }

    #[test]
    fn bytes_that_cannot_be_printed_are_numbers() {
        let mut out = Vec::new();
        escaped(b"a\\\r\n\xff\xc3\xa9\xc2\x85\x00", &mut out, as_is);
        let expected = "a\\\\\\x0d\\x0a\\xff\u{e9}\\xc2\\x85\\x00";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
