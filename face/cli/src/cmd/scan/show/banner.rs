//! Service banners as a line of text or JSON.

use std::fmt::Write as _;
use std::time::SystemTime;

use ::scan::grab::Banner;
use inspect::Field;
use serde_json::{Map, Value, json};

use super::seconds;

/// Maximum number of characters printed of a server's first line.
const LINE_MAX: usize = 100;
/// Fields printed after the first line.
const SHOWN: &[Field] = &[
    Field::TlsVersion,
    Field::TlsSubject,
    Field::TlsIssuer,
    Field::TlsNotAfter,
    Field::HttpServer,
    Field::RdpSelected,
    Field::MqttReturnCode,
];

/// The decoded fields as a JSON object.
fn application(banner: &Banner) -> Map<String, Value> {
    let mut out = Vec::new();
    inspect::json(&banner.application, None, &mut out);
    match serde_json::from_slice(&out) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// `192.0.2.1  22/tcp  banner  ssh  SSH-2.0-OpenSSH_9.2p1`
pub fn text_line(banner: &Banner) -> String {
    let target = &banner.target;
    let port = format!("{}/{}", target.port, target.protocol().word());
    let found = application(banner);
    let name = found.get("protocol").and_then(Value::as_str).unwrap_or("?");
    let addr = target.addr.to_string();
    let mut text = format!("{addr:<15}  {port:<9}  banner    {name}");
    if let Some(line) = first_line(&banner.start) {
        let _ = write!(text, "  {line}");
    }
    let rows = inspect::FIELDS.iter();
    for row in rows.filter(|row| SHOWN.contains(&row.field)) {
        match found.get(row.name) {
            Some(Value::String(value)) => {
                let _ = write!(text, "  {}={}", row.name, safe(value));
            }
            Some(value) => {
                let _ = write!(text, "  {}={value}", row.name);
            }
            None => {}
        }
    }
    if let Some(title) = title(&banner.start) {
        let _ = write!(text, "  title={title}");
    }
    text
}

/// The first line, if it is text.
fn first_line(start: &[u8]) -> Option<String> {
    let line = start.split(|byte| matches!(byte, b'\r' | b'\n')).next()?;
    let text = std::str::from_utf8(line).ok()?.trim();
    let is_text = !text.is_empty() && !text.chars().any(char::is_control);
    is_text.then(|| safe(text))
}

/// The text between `<title>` and `</title>`, as far as it was captured.
fn title(start: &[u8]) -> Option<String> {
    let lower = start.to_ascii_lowercase();
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|part| part == what);
    let open = find(&lower, b"<title")?;
    let begin = open + find(&lower[open..], b">")? + 1;
    let end = begin + find(&lower[begin..], b"<").unwrap_or(lower.len() - begin);
    let text = String::from_utf8_lossy(&start[begin..end]);
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| safe(&words.join(" ")))
}

/// Text from the network with control characters escaped for a terminal.
fn safe(text: &str) -> String {
    let printable = |letter| match inspect::is_unprintable(letter) {
        true => '.',
        false => letter,
    };
    let mut out: String = text.chars().take(LINE_MAX).map(printable).collect();
    if text.chars().count() > LINE_MAX {
        out.push_str("...");
    }
    out
}

/// A JSON object with the decoded fields and the first bytes.
pub fn json_line(banner: &Banner, time: SystemTime) -> Value {
    let target = &banner.target;
    let mut start = Vec::new();
    inspect::json_string(&banner.start, &mut start);
    let start: Value = serde_json::from_slice(&start).unwrap_or_default();
    json!({
        "type": "banner",
        "time": seconds(time),
        "address": target.addr.to_string(),
        "protocol": target.protocol().word(),
        "port": target.port,
        "application": application(banner),
        "title": title(&banner.start),
        "start": start,
        "bytes": banner.byte_count,
        "end": banner.ending.word(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_and_first_lines_are_escaped_for_the_terminal() {
        let page = b"HTTP/1.0 200 OK\r\n\r\n<HTML><Title lang=en>a\n  b\x1b[2J</title>";
        assert_eq!(title(page).unwrap(), "a b.[2J");
        assert_eq!(first_line(page).unwrap(), "HTTP/1.0 200 OK");
        assert_eq!(title(b"<title>cut"), Some("cut".into()));
        assert_eq!(title(b"<title"), None);
        assert_eq!(first_line(b"\x16\x03\x01"), None);
        assert_eq!(safe(&"x".repeat(101)).len(), 103);
    }
}
