//! Service banners as a line of text.

use std::fmt::Write as _;

use ::scan::grab::Banner;
use ::scan::report::{first_line, safe, title};
use inspect::Field;
use serde_json::{Map, Value};

/// Fields printed after the first line.
const SHOWN: &[Field] = &[
    Field::TlsVersion,
    Field::TlsSubject,
    Field::TlsIssuer,
    Field::TlsNotBefore,
    Field::TlsNotAfter,
    Field::TlsSan,
    Field::TlsSanCount,
    Field::TlsSerial,
    Field::TlsSignature,
    Field::TlsKeyType,
    Field::TlsKeyBits,
    Field::TlsCertificateSha256,
    Field::HttpServer,
    Field::RdpSelected,
    Field::MqttReturnCode,
    Field::NtpStratum,
    Field::DnsAnswer,
    Field::SmbDialect,
    Field::RedisVersion,
    Field::SnmpEngine,
    Field::SnmpSysDescr,
    Field::MemcachedVersion,
    Field::VncSecurity,
    Field::TelnetText,
];

/// The decoded fields as a JSON object.
fn application(banner: &Banner) -> Map<String, Value> {
    let mut out = Vec::new();
    banner.json(&mut out);
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
    if let Some(name) = &banner.name {
        let _ = write!(text, "  {}", safe(name));
    }
    if let Some(line) = first_line(&banner.start) {
        let _ = write!(text, "  {line}");
    }
    let rows = inspect::FIELDS.iter();
    for row in rows.filter(|row| SHOWN.contains(&row.field)) {
        match found.get(row.name) {
            Some(Value::String(value)) => {
                let _ = write!(text, "  {}={}", row.name, safe(value));
            }
            Some(Value::Array(values)) => {
                let values = values
                    .iter()
                    .map(|value| value.as_str().unwrap_or_default());
                let values: Vec<&str> = values.collect();
                let _ = write!(text, "  {}={}", row.name, safe(&values.join(",")));
            }
            Some(value) => {
                let _ = write!(text, "  {}={value}", row.name);
            }
            None => {}
        }
    }
    if let Some(title) = title(banner) {
        let _ = write!(text, "  title={title}");
    }
    text
}
