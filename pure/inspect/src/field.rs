//! Fields: what decoders find, as typed values of bounded length.

use core::net::IpAddr;

/// What a flow carries, as seen in its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// Nothing was recognised.
    #[default]
    Unknown = 0,
    /// TLS over TCP (RFC 8446, RFC 5246).
    Tls,
    /// QUIC (RFC 9000, RFC 9369, drafts and Google's own).
    Quic,
    /// HTTP/1 (RFC 9112).
    Http,
    /// HTTP/2 without TLS (RFC 9113).
    Http2,
    /// DNS (RFC 1035).
    Dns,
    /// Multicast DNS (RFC 6762).
    Mdns,
    /// Link-local multicast name resolution (RFC 4795).
    Llmnr,
    /// SSH (RFC 4253).
    Ssh,
    /// SMTP (RFC 5321).
    Smtp,
    /// IMAP (RFC 9051).
    Imap,
    /// POP3 (RFC 1939).
    Pop3,
    /// FTP control connection (RFC 959).
    Ftp,
    /// MQTT (OASIS MQTT 3.1.1 and 5.0).
    Mqtt,
    /// NTP (RFC 5905).
    Ntp,
    /// DHCP (RFC 2131).
    Dhcp,
    /// SIP (RFC 3261).
    Sip,
}

impl Protocol {
    /// How many there are.
    pub const COUNT: usize = 17;

    /// All, in the order of their values.
    pub const ALL: [Protocol; Protocol::COUNT] = [
        Protocol::Unknown,
        Protocol::Tls,
        Protocol::Quic,
        Protocol::Http,
        Protocol::Http2,
        Protocol::Dns,
        Protocol::Mdns,
        Protocol::Llmnr,
        Protocol::Ssh,
        Protocol::Smtp,
        Protocol::Imap,
        Protocol::Pop3,
        Protocol::Ftp,
        Protocol::Mqtt,
        Protocol::Ntp,
        Protocol::Dhcp,
        Protocol::Sip,
    ];

    /// A stable name for JSON and people.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Unknown => "unknown",
            Protocol::Tls => "tls",
            Protocol::Quic => "quic",
            Protocol::Http => "http",
            Protocol::Http2 => "http2",
            Protocol::Dns => "dns",
            Protocol::Mdns => "mdns",
            Protocol::Llmnr => "llmnr",
            Protocol::Ssh => "ssh",
            Protocol::Smtp => "smtp",
            Protocol::Imap => "imap",
            Protocol::Pop3 => "pop3",
            Protocol::Ftp => "ftp",
            Protocol::Mqtt => "mqtt",
            Protocol::Ntp => "ntp",
            Protocol::Dhcp => "dhcp",
            Protocol::Sip => "sip",
        }
    }
}

/// The value of a field, borrowed from where it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// Bytes from the packet that are text by their protocol. They may be anything: whoever prints
    /// them escapes them.
    Text {
        /// The bytes.
        bytes: &'a [u8],
        /// There were more.
        is_cut: bool,
    },
    /// An MD5 sum, printed in hexadecimal.
    Digest([u8; 16]),
    /// An address.
    Address(IpAddr),
}

impl<'a> Value<'a> {
    /// Text of which nothing is missing.
    pub const fn text(bytes: &'a [u8]) -> Value<'a> {
        Value::Text {
            bytes,
            is_cut: false,
        }
    }
}

/// What kind of value a field has. An address may stand where text is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Value::Number`].
    Number,
    /// A number that is the version of TLS.
    Version,
    /// A number that people read in hexadecimal.
    Hex,
    /// [`Value::Text`].
    Text,
    /// [`Value::Digest`].
    Digest,
}

/// Where decoders tell what they find.
pub trait Sink {
    /// What the flow carries. May be told again when more is known.
    fn named(&mut self, protocol: Protocol);

    /// A field.
    fn field(&mut self, field: Field, value: Value<'_>);
}

/// A row of [`FIELDS`].
#[derive(Clone, Copy, Debug)]
pub struct FieldRow {
    /// Which.
    pub field: Field,
    /// Its name in JSON.
    pub name: &'static str,
    /// What value it has.
    pub kind: Kind,
    /// The most bytes of its text; more is cut, and marked.
    pub len_max: u16,
    /// Whether a flow may have several.
    pub repeats: bool,
}

macro_rules! fields {
    ($($field:ident $name:literal $kind:ident $len_max:literal $repeats:literal $doc:literal;)*)
    => {
        /// What decoders find.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Field {
            $(#[doc = $doc] $field,)*
        }

        /// All fields, in the order of their values.
        pub const FIELDS: &[FieldRow] = &[
            $(FieldRow {
                field: Field::$field,
                name: $name,
                kind: Kind::$kind,
                len_max: $len_max,
                repeats: $repeats,
            },)*
        ];
    };
}

fields! {
    TlsSni "tls_sni" Text 255 false "The name that the client asks for (RFC 6066 §3).";
    TlsAlpn "tls_alpn" Text 64 false
        "What the client offers to speak, joined by commas (RFC 7301).";
    TlsAlpnChosen "tls_alpn_chosen" Text 32 false "What the server chose to speak.";
    TlsVersionOffered "tls_version_offered" Version 8 false
        "The highest version offered, without GREASE.";
    TlsVersion "tls_version" Version 8 false "The version that the server chose.";
    TlsCipher "tls_cipher" Hex 8 false "The cipher suite that the server chose.";
    TlsRetry "tls_retry" Number 8 false "1: the server's first answer was a HelloRetryRequest.";
    Ja3 "ja3" Digest 16 false "JA3 of the client hello.";
    Ja3s "ja3s" Digest 16 false "JA3S of the server hello.";
    Ja4 "ja4" Text 36 false "JA4 of the client hello.";
    Ja4s "ja4s" Text 25 false "JA4S of the server hello.";
    QuicVersion "quic_version" Hex 8 false "Version in the first long header.";
    HttpMethod "http_method" Text 16 false "Method of the first request.";
    HttpHost "http_host" Text 255 false "Host header of the first request.";
    HttpPath "http_path" Text 256 false "Target of the first request, as sent.";
    HttpAgent "http_agent" Text 192 false "User-Agent header of the first request.";
    HttpStatus "http_status" Number 8 false "Status of the first final response.";
    HttpServer "http_server" Text 64 false "Server header of that response.";
    HttpType "http_type" Text 64 false "Content-Type header of that response.";
    DnsName "dns_name" Text 255 false "Name of the first question, dots between labels.";
    DnsType "dns_type" Number 8 false "Type of the first question.";
    DnsRcode "dns_rcode" Number 8 false "Response code of its answer.";
    DnsAnswers "dns_answers" Number 8 false "Records in the answer section.";
    DnsAnswer "dns_answer" Text 255 true
        "An answer: an address, or a name (CNAME, PTR, NS, MX, SRV).";
    DnsLatencyNs "dns_latency_ns" Number 8 false "From the question to its answer, in nanoseconds.";
    SshClient "ssh_client" Text 128 false "Identification of the client (RFC 4253 §4.2).";
    SshServer "ssh_server" Text 128 false "Identification of the server.";
    Hassh "hassh" Digest 16 false "HASSH: what algorithms the client offers.";
    HasshServer "hassh_server" Digest 16 false "HASSH of the server.";
    MailGreeting "mail_greeting" Text 128 false "First line of a mail or file server.";
    MailHelo "mail_helo" Text 128 false "Name that an SMTP client gives itself.";
    MailFrom "mail_from" Text 128 false "Envelope sender of the first mail.";
    MailTo "mail_to" Text 128 false "First envelope recipient.";
    MailStartTls "mail_starttls" Number 8 false "1: the client asked for TLS.";
    MqttVersion "mqtt_version" Number 8 false "Protocol level: 3, 4 (3.1.1) or 5.";
    MqttClientId "mqtt_client_id" Text 64 false "Client identifier.";
    MqttKeepAliveS "mqtt_keep_alive_s" Number 8 false "Keep alive, in seconds.";
    MqttReturnCode "mqtt_return_code" Number 8 false
        "Answer of the server to CONNECT; 0 is accepted.";
    NtpVersion "ntp_version" Number 8 false "Version of the first packet.";
    NtpMode "ntp_mode" Number 8 false "Mode of the first packet: 3 client, 4 server, 5 broadcast.";
    NtpStratum "ntp_stratum" Number 8 false "Stratum that the server gives.";
    NtpReference "ntp_reference" Text 16 false
        "Reference identifier of the server: four letters or an address.";
    DhcpType "dhcp_type" Number 8 false "Type of the first message (RFC 2132 §9.6).";
    DhcpMac "dhcp_mac" Text 17 false "Hardware address of the client.";
    DhcpHostName "dhcp_host_name" Text 64 false "Host name option.";
    DhcpVendor "dhcp_vendor" Text 64 false "Vendor class identifier.";
    DhcpRequested "dhcp_requested" Text 16 false "Address that the client asks for.";
    DhcpOffered "dhcp_offered" Text 16 false "Address that the server gives.";
    DhcpParameters "dhcp_parameters" Text 128 false
        "Parameter request list, decimal, joined by commas.";
    SipMethod "sip_method" Text 16 false "Method of the first request.";
    SipUri "sip_uri" Text 128 false "Its target.";
    SipFrom "sip_from" Text 128 false "Its From header.";
    SipTo "sip_to" Text 128 false "Its To header.";
    SipCallId "sip_call_id" Text 64 false "Its Call-ID header.";
    SipAgent "sip_agent" Text 64 false "User-Agent header of the first message.";
    SipServer "sip_server" Text 64 false "Server header of the first response.";
    SipStatus "sip_status" Number 8 false "Status of the first response.";
    Ndpi "ndpi" Text 64 false
        "What nDPI calls the flow, where it is asked: `TLS.Google` is Google within TLS.";
}

impl Field {
    /// Its row.
    #[inline]
    pub fn row(self) -> &'static FieldRow {
        &FIELDS[self as usize]
    }

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

const _: () = assert!(FIELDS.len() <= 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_names_differ() {
        for (at, row) in FIELDS.iter().enumerate() {
            assert_eq!(row.field as usize, at);
            assert_eq!(row.field.name(), row.name);
            assert!(FIELDS[..at].iter().all(|other| other.name != row.name));
        }
        for (at, protocol) in Protocol::ALL.iter().enumerate() {
            assert_eq!(*protocol as usize, at);
            let others = &Protocol::ALL[..at];
            assert!(others.iter().all(|other| other.name() != protocol.name()));
        }
    }
}
