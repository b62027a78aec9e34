//! The application's fields under Suricata's names.

use std::fmt::Write;

use inspect::{
    Application, DateTime, Field, Kind, Protocol, Value, json_string as string, tls_version,
};

use crate::element::application_text;

/// Format of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    /// A number, or text in quotes.
    Plain,
    /// A list of a single text.
    List,
    /// A list of texts, split at commas.
    Parts,
    /// A list of `{"rdata": …}`, one for each value of a repeated field.
    Answers,
    /// A list with all values of a repeated field.
    Values,
}

use As::{Answers, List, Parts, Plain, Values};

/// An object of EVE: its name, and the paths of its members with their fields. A dot begins a
/// nested object; its members are adjacent.
type Object = (&'static str, &'static [(&'static str, Field, As)]);

const OBJECTS: &[Object] = &[
    (
        "tls",
        &[
            ("sni", Field::TlsSni, Plain),
            ("version", Field::TlsVersion, Plain),
            ("client_alpns", Field::TlsAlpn, Parts),
            ("server_alpn", Field::TlsAlpnChosen, Plain),
            ("cipher_suite", Field::TlsCipher, Plain),
            ("ja3.hash", Field::Ja3, Plain),
            ("ja3s.hash", Field::Ja3s, Plain),
            ("ja4", Field::Ja4, Plain),
            ("ja4s", Field::Ja4s, Plain),
            ("subject", Field::TlsSubject, Plain),
            ("issuerdn", Field::TlsIssuer, Plain),
            ("notbefore", Field::TlsNotBefore, Plain),
            ("notafter", Field::TlsNotAfter, Plain),
            ("serial", Field::TlsSerial, Plain),
            ("subjectaltname", Field::TlsSan, Values),
        ],
    ),
    (
        "quic",
        &[
            ("version", Field::QuicVersion, Plain),
            ("sni", Field::TlsSni, Plain),
            ("client_alpns", Field::TlsAlpn, Parts),
            ("server_alpn", Field::TlsAlpnChosen, Plain),
            ("ja3.hash", Field::Ja3, Plain),
            ("ja3s.hash", Field::Ja3s, Plain),
            ("ja4", Field::Ja4, Plain),
            ("ja4s", Field::Ja4s, Plain),
        ],
    ),
    (
        "http",
        &[
            ("hostname", Field::HttpHost, Plain),
            ("url", Field::HttpPath, Plain),
            ("http_user_agent", Field::HttpAgent, Plain),
            ("http_content_type", Field::HttpType, Plain),
            ("http_method", Field::HttpMethod, Plain),
            ("status", Field::HttpStatus, Plain),
            ("server", Field::HttpServer, Plain),
        ],
    ),
    (
        "dns",
        &[
            ("rrname", Field::DnsName, Plain),
            ("rrtype", Field::DnsType, Plain),
            ("rcode", Field::DnsRcode, Plain),
            ("answers", Field::DnsAnswer, Answers),
        ],
    ),
    (
        "ssh",
        &[
            ("client.software_version", Field::SshClient, Plain),
            ("client.hassh.hash", Field::Hassh, Plain),
            ("server.software_version", Field::SshServer, Plain),
            ("server.hassh.hash", Field::HasshServer, Plain),
        ],
    ),
    (
        "smtp",
        &[
            ("helo", Field::MailHelo, Plain),
            ("mail_from", Field::MailFrom, Plain),
            ("rcpt_to", Field::MailTo, List),
        ],
    ),
    (
        "mqtt",
        &[
            ("connect.protocol_version", Field::MqttVersion, Plain),
            ("connect.client_id", Field::MqttClientId, Plain),
            ("connack.return_code", Field::MqttReturnCode, Plain),
        ],
    ),
    (
        "dhcp",
        &[
            ("client_mac", Field::DhcpMac, Plain),
            ("hostname", Field::DhcpHostName, Plain),
            ("vendor_class_identifier", Field::DhcpVendor, Plain),
            ("requested_ip", Field::DhcpRequested, Plain),
            ("assigned_ip", Field::DhcpOffered, Plain),
        ],
    ),
    (
        "sip",
        &[
            ("method", Field::SipMethod, Plain),
            ("uri", Field::SipUri, Plain),
            ("code", Field::SipStatus, Plain),
        ],
    ),
    (
        "ldap",
        &[
            ("request.bind_request.name", Field::LdapBindDn, Plain),
            (
                "request.bind_request.sasl.mechanism",
                Field::LdapMechanism,
                Plain,
            ),
            ("request.search_request.base_object", Field::LdapBase, Plain),
        ],
    ),
    ("rdp", &[("cookie", Field::RdpUser, Plain)]),
    (
        "smb",
        &[
            ("dialect", Field::SmbDialect, Plain),
            ("ntlmssp.domain", Field::SmbDomain, Plain),
            ("ntlmssp.user", Field::SmbUser, Plain),
            ("ntlmssp.host", Field::SmbWorkstation, Plain),
            ("share", Field::SmbTree, Plain),
        ],
    ),
];

/// Suricata's name of the protocol; `None` if none was identified.
pub(super) fn protocol(application: &Application) -> Option<&'static str> {
    match application.protocol() {
        Protocol::Unknown => None,
        known => Some(known.name()),
    }
}

/// Appends the objects that have members.
pub(super) fn objects(application: &Application, out: &mut Vec<u8>) {
    let is_quic = application.protocol() == Protocol::Quic;
    for (name, members) in OBJECTS {
        // The same fields, in one object or the other.
        if matches!(*name, "tls" | "quic") && (*name == "quic") != is_quic {
            continue;
        }
        let present = members
            .iter()
            .filter(|(_, field, _)| application.has(*field));
        let mut open: Vec<&str> = Vec::new();
        for (path, field, how) in present {
            let mut steps: Vec<&str> = std::iter::once(*name).chain(path.split('.')).collect();
            let last = steps.pop().unwrap_or_default();
            let same = open.iter().zip(&steps).take_while(|(a, b)| a == b).count();
            out.extend(std::iter::repeat_n(b'}', open.len() - same));
            for step in &steps[same..] {
                begin(step, out);
                out.push(b'{');
            }
            begin(last, out);
            value(application, *field, *how, out);
            open = steps;
        }
        out.extend(std::iter::repeat_n(b'}', open.len()));
    }
}

/// Appends a comma if needed, and the name of a member.
fn begin(name: &str, out: &mut Vec<u8>) {
    if !matches!(out.last(), Some(b'{')) {
        out.push(b',');
    }
    out.push(b'"');
    out.extend(name.as_bytes());
    out.extend(b"\":");
}

fn value(application: &Application, field: Field, how: As, out: &mut Vec<u8>) {
    let mut text = Vec::new();
    match how {
        Plain => {}
        List => {
            application_text(application, field, &mut text);
            out.push(b'[');
            string(&text, out);
            return out.push(b']');
        }
        Parts => {
            application_text(application, field, &mut text);
            for (at, part) in text.split(|byte| *byte == b',').enumerate() {
                out.push(if at == 0 { b'[' } else { b',' });
                string(part, out);
            }
            return out.push(b']');
        }
        Answers | Values => {
            let (before, behind): (&[u8], &[u8]) = match how {
                Answers => (b"{\"rdata\":", b"}"),
                _ => (b"", b""),
            };
            let all = application.fields().filter(|(of, _)| *of == field);
            for (at, (_, value)) in all.enumerate() {
                out.push(if at == 0 { b'[' } else { b',' });
                out.extend(before);
                match value {
                    Value::Text { bytes, .. } => string(bytes, out),
                    Value::Address(addr) => string(addr.to_string().as_bytes(), out),
                    _ => out.extend(b"\"\""),
                }
                out.extend(behind);
            }
            return out.push(b']');
        }
    }
    let number = match application.get(field) {
        Some(Value::Number(number)) => number,
        _ => {
            application_text(application, field, &mut text);
            return string(&text, out);
        }
    };
    let mut words = String::new();
    // Writing into a text cannot fail.
    let _ = match (field.row().kind, field) {
        (Kind::Version, _) => match tls_version(number) {
            Some(name) if name.starts_with(|c: char| c.is_ascii_digit()) => {
                write!(words, "\"TLS {name}\"")
            }
            Some(name) => write!(words, "\"{name}\""),
            None => write!(words, "\"0x{number:04x}\""),
        },
        (Kind::Hex, _) => write!(words, "\"0x{number:04x}\""),
        (Kind::Time, _) => write!(words, "\"{}\"", DateTime(number as i64)),
        (_, Field::DnsType) => match inspect::dns_type(number) {
            Some(name) => write!(words, "\"{name}\""),
            // RFC 3597 §5.
            None => write!(words, "\"TYPE{number}\""),
        },
        (_, Field::DnsRcode) => dns_rcode(number, &mut words),
        _ => write!(words, "{number}"),
    };
    out.extend(words.as_bytes());
}

fn dns_rcode(number: u64, words: &mut impl Write) -> std::fmt::Result {
    match inspect::dns_rcode(number) {
        Some(name) => write!(words, "\"{name}\""),
        None => write!(words, "\"{number}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::FieldSink;

    fn shown(application: &Application) -> String {
        let mut out = b"{\"x\":1".to_vec();
        objects(application, &mut out);
        out.push(b'}');
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn objects_are_those_of_suricata() {
        let mut a = Application::EMPTY;
        assert_eq!((shown(&a).as_str(), protocol(&a)), (r#"{"x":1}"#, None));
        a.named(Protocol::Ssh);
        a.field(Field::SshClient, Value::text(b"a\"\n"));
        a.field(Field::Hassh, Value::Digest([0xab; 16]));
        a.field(Field::SshServer, Value::text(b"b"));
        let expected = format!(
            concat!(
                r#"{{"x":1,"ssh":{{"client":{{"software_version":"a\"\u000a","#,
                r#""hassh":{{"hash":"{}"}}}},"server":{{"software_version":"b"}}}}}}"#
            ),
            "ab".repeat(16)
        );
        assert_eq!(shown(&a), expected);
        let mut a = Application::EMPTY;
        a.named(Protocol::Dns);
        a.field(Field::DnsName, Value::text(b"example.org"));
        a.field(Field::DnsType, Value::Number(28));
        a.field(Field::DnsRcode, Value::Number(3));
        a.field(Field::DnsAnswer, Value::Address([192, 0, 2, 1].into()));
        a.field(Field::DnsAnswer, Value::text(b"b"));
        assert_eq!(
            shown(&a),
            concat!(
                r#"{"x":1,"dns":{"rrname":"example.org","rrtype":"AAAA","rcode":"NXDOMAIN","#,
                r#""answers":[{"rdata":"192.0.2.1"},{"rdata":"b"}]}}"#
            )
        );
        let mut a = Application::EMPTY;
        a.named(Protocol::Quic);
        a.field(Field::TlsSni, Value::text(b"h"));
        a.field(Field::TlsAlpn, Value::text(b"h3,h2"));
        a.field(Field::TlsVersion, Value::Number(0x0304));
        assert_eq!(
            shown(&a),
            r#"{"x":1,"quic":{"sni":"h","client_alpns":["h3","h2"]}}"#
        );
        a.named(Protocol::Tls);
        assert!(shown(&a).contains(r#""tls":{"sni":"h","version":"TLS 1.3","client_alpns""#));
        let mut a = Application::EMPTY;
        a.named(Protocol::Tls);
        a.field(Field::TlsSubject, Value::text(b"CN=h"));
        a.field(Field::TlsNotAfter, Value::Number(0));
        a.field(Field::TlsSan, Value::text(b"h"));
        a.field(Field::TlsSan, Value::Address([192, 0, 2, 1].into()));
        assert_eq!(
            shown(&a),
            concat!(
                r#"{"x":1,"tls":{"subject":"CN=h","notafter":"1970-01-01T00:00:00","#,
                r#""subjectaltname":["h","192.0.2.1"]}}"#
            )
        );
    }
}
