//! The decoded fields at the end of a packet's line: the protocol, and the most informative fields,
//! in packet order.

use std::fmt::{self, Write};

use inspect::{Application, Field, Kind, Protocol, Value, dns_rcode, dns_type, tls_version};

/// Fields whose values need no label after the protocol's name.
const BARE: &[Field] = &[
    Field::HttpMethod,
    Field::HttpPath,
    Field::HttpStatus,
    Field::DnsName,
    Field::DnsAnswer,
    Field::SshClient,
    Field::SshServer,
    Field::SipMethod,
    Field::SipUri,
    Field::SipStatus,
    Field::MailGreeting,
];

/// Fields that only `-v` prints.
const VERBOSE: &[Field] = &[
    Field::Ja3,
    Field::Ja3s,
    Field::Ja4,
    Field::Ja4s,
    Field::Hassh,
    Field::HasshServer,
    Field::TlsVersionOffered,
    Field::TlsRetry,
    Field::TlsNotBefore,
    Field::TlsNotAfter,
    Field::TlsSan,
    Field::TlsSanCount,
    Field::DnsLatencyNs,
    Field::DnsAnswers,
    Field::DhcpParameters,
    Field::DhcpVendor,
    Field::Transactions,
    Field::TransactionsLost,
];

/// Prints `: DNS example.org type A`, or nothing if nothing was decoded.
pub(super) fn show(out: &mut impl Write, found: &Application, is_verbose: bool) -> fmt::Result {
    if found.is_empty() {
        return Ok(());
    }
    out.write_str(": ")?;
    for letter in found.protocol().name().chars() {
        out.write_char(letter.to_ascii_uppercase())?;
    }
    let mut space = " ";
    for (field, value) in found.fields() {
        if VERBOSE.contains(&field) && !is_verbose {
            continue;
        }
        out.write_str(space)?;
        space = ", ";
        if BARE.contains(&field) {
            space = " ";
        } else {
            write!(out, "{} ", Label(field, found.protocol()))?;
        }
        show_value(out, field, value)?;
    }
    Ok(())
}

/// The name of a field without its protocol: `sni` of `tls_sni`.
struct Label(Field, Protocol);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.name();
        let short = name.strip_prefix(self.1.name()).unwrap_or(name);
        // TLS within QUIC or after StartTLS.
        let short = short.strip_prefix("tls_").unwrap_or(short);
        for letter in short.trim_start_matches('_').chars() {
            f.write_char(if letter == '_' { ' ' } else { letter })?;
        }
        Ok(())
    }
}

/// Prints a value in readable form.
fn show_value(out: &mut impl Write, field: Field, value: Value<'_>) -> fmt::Result {
    let word = match (field, value) {
        (Field::DnsType, Value::Number(number)) => dns_type(number),
        (Field::DnsRcode, Value::Number(number)) => dns_rcode(number),
        (Field::DhcpType, Value::Number(number)) => dhcp_type(number),
        (Field::NtpMode, Value::Number(number)) => ntp_mode(number),
        _ => None,
    };
    match word {
        Some(word) => out.write_str(word),
        None => write_value(out, field, value),
    }
}

/// Prints a value unchanged; in text, escapes what could break the line or reorder its characters.
pub(super) fn write_value(out: &mut impl Write, field: Field, value: Value<'_>) -> fmt::Result {
    match (value, field.row().kind) {
        (Value::Number(number), Kind::Version) => match tls_version(number) {
            Some(name) => out.write_str(name),
            None => write!(out, "0x{number:04x}"),
        },
        (Value::Number(number), Kind::Hex) => write!(out, "0x{number:04x}"),
        (Value::Number(number), _) => write!(out, "{number}"),
        (Value::Digest(sum), _) => sum.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        (Value::Address(address), _) => write!(out, "{address}"),
        (Value::Text { bytes, is_cut }, _) => {
            write_text(out, bytes)?;
            out.write_str(if is_cut { "…" } else { "" })
        }
    }
}

/// Prints text from the wire. Control characters, those that change the direction of text, and
/// bytes that are not UTF-8 are escaped.
fn write_text(out: &mut impl Write, bytes: &[u8]) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    write!(out, "{}", letter.escape_unicode())?;
                }
                letter if letter.is_control() => write!(out, "{}", letter.escape_default())?,
                letter => out.write_char(letter)?,
            }
        }
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// DHCP message types (RFC 2132 §9.6).
fn dhcp_type(number: u64) -> Option<&'static str> {
    const NAMES: [&str; 8] = [
        "Discover", "Offer", "Request", "Decline", "ACK", "NACK", "Release", "Inform",
    ];
    NAMES
        .get(usize::try_from(number.checked_sub(1)?).ok()?)
        .copied()
}

/// NTP modes (RFC 5905 figure 10).
fn ntp_mode(number: u64) -> Option<&'static str> {
    const NAMES: [&str; 5] = [
        "symmetric active",
        "symmetric passive",
        "client",
        "server",
        "broadcast",
    ];
    NAMES
        .get(usize::try_from(number.checked_sub(1)?).ok()?)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::FieldSink;

    fn shown(found: &Application, is_verbose: bool) -> String {
        let mut text = String::new();
        show(&mut text, found, is_verbose).unwrap();
        text
    }

    #[test]
    fn lines_end_in_words() {
        let mut found = Application::EMPTY;
        assert_eq!(shown(&found, true), "");
        found.named(Protocol::Dns);
        found.field(Field::DnsName, Value::text(b"example.org"));
        found.field(Field::DnsType, Value::Number(1));
        found.field(Field::DnsRcode, Value::Number(3));
        found.field(Field::DnsLatencyNs, Value::Number(9));
        assert_eq!(
            shown(&found, false),
            ": DNS example.org type A, rcode NXDOMAIN"
        );
        assert!(shown(&found, true).ends_with(", latency ns 9"));
        found.clear();
        found.named(Protocol::Quic);
        found.field(Field::QuicVersion, Value::Number(1));
        found.field(Field::TlsSni, Value::text(b"a\n\xff\xe2\x80\xae"));
        let expected = ": QUIC version 0x0001, sni a\\n\\xff\\u{202e}";
        assert_eq!(shown(&found, false), expected);
        found.clear();
        found.named(Protocol::Http);
        found.field(Field::HttpMethod, Value::text(b"GET"));
        found.field(Field::HttpPath, Value::text(b"/"));
        found.field(Field::HttpHost, Value::text(b"example.org"));
        assert_eq!(shown(&found, false), ": HTTP GET / host example.org");
    }
}
