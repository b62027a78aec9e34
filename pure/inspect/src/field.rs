//! Fields: the findings of decoders, as typed values of bounded length.

use core::net::IpAddr;

macro_rules! protocols {
    ($first:ident $first_name:literal $first_doc:literal;
        $($protocol:ident $name:literal $doc:literal;)*) => {
        /// Protocol of a flow, identified by its contents.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Protocol {
            #[doc = $first_doc]
            #[default]
            $first,
            $(#[doc = $doc] $protocol,)*
        }

        impl Protocol {
            /// All protocols, in the order of their values.
            pub const ALL: [Protocol; Protocol::COUNT] =
                [Protocol::$first, $(Protocol::$protocol,)*];

            /// Number of protocols.
            pub const COUNT: usize = [$first_name, $($name,)*].len();

            /// A stable name for JSON and users.
            pub const fn name(self) -> &'static str {
                match self {
                    Protocol::$first => $first_name,
                    $(Protocol::$protocol => $name,)*
                }
            }
        }
    };
}

protocols! {
    Unknown "unknown" "Nothing was recognised.";
    Tls "tls" "TLS over TCP (RFC 8446, RFC 5246).";
    Quic "quic" "QUIC (RFC 9000, RFC 9369, drafts and Google's own).";
    Http "http" "HTTP/1 (RFC 9112).";
    Http2 "http2" "HTTP/2 without TLS (RFC 9113).";
    Dns "dns" "DNS (RFC 1035).";
    Mdns "mdns" "Multicast DNS (RFC 6762).";
    Llmnr "llmnr" "Link-local multicast name resolution (RFC 4795).";
    Ssh "ssh" "SSH (RFC 4253).";
    Smtp "smtp" "SMTP (RFC 5321).";
    Imap "imap" "IMAP (RFC 9051).";
    Pop3 "pop3" "POP3 (RFC 1939).";
    Ftp "ftp" "FTP control connection (RFC 959).";
    Mqtt "mqtt" "MQTT (OASIS MQTT 3.1.1 and 5.0).";
    Ntp "ntp" "NTP (RFC 5905).";
    Dhcp "dhcp" "DHCP (RFC 2131).";
    Sip "sip" "SIP (RFC 3261).";
    Ssdp "ssdp" "SSDP (UPnP Device Architecture 2.0 §1).";
    WireGuard "wireguard" "WireGuard.";
    Socks4 "socks4" "SOCKS 4 and 4a.";
    Socks5 "socks5" "SOCKS 5 (RFC 1928).";
    Ldap "ldap" "LDAP (RFC 4511).";
    Cldap "cldap" "LDAP over UDP (MS-ADTS §3.1.1.3.1.13).";
    Rdp "rdp" "RDP (MS-RDPBCGR).";
    Smb "smb" "SMB 1 to 3 (MS-CIFS, MS-SMB2).";
    Rtp "rtp" "RTP (RFC 3550 §5).";
    Rtcp "rtcp" "RTCP (RFC 3550 §6).";
    Rtsp "rtsp" "RTSP (RFC 2326, RFC 7826).";
    Nbns "nbns" "NetBIOS name service (RFC 1002 §4.2).";
    Nbdgm "nbdgm" "NetBIOS datagram service (RFC 1002 §4.4).";
    Dtls "dtls" "DTLS (RFC 6347, RFC 9147).";
    Mysql "mysql" "MySQL and MariaDB.";
    Postgresql "postgresql" "PostgreSQL.";
    Redis "redis" "Redis (RESP 2 and 3).";
    Snmp "snmp" "SNMP 1, 2c and 3 (RFC 1157, RFC 3416, RFC 3412).";
    Memcached "memcached" "memcached's text protocol.";
    Vnc "vnc" "VNC (RFB, RFC 6143).";
    Telnet "telnet" "Telnet (RFC 854).";
}

/// The value of a field, borrowed from the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// Bytes of a packet that the protocol defines as text. They may be arbitrary: escape them for
    /// printing.
    Text {
        /// The bytes.
        bytes: &'a [u8],
        /// Whether it was truncated.
        is_cut: bool,
    },
    /// An MD5 hash, printed in hexadecimal.
    Digest([u8; 16]),
    /// An address.
    Address(IpAddr),
}

impl<'a> Value<'a> {
    /// Creates a complete text.
    pub const fn text(bytes: &'a [u8]) -> Value<'a> {
        Value::Text {
            bytes,
            is_cut: false,
        }
    }
}

/// Kind of a field's value. A text field may hold an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Value::Number`].
    Number,
    /// A number that is a TLS version.
    Version,
    /// A number to be printed in hexadecimal.
    Hex,
    /// [`Value::Text`].
    Text,
    /// [`Value::Digest`].
    Digest,
    /// A number that is a time in seconds since the Unix epoch; two's complement before it.
    Time,
}

/// Receives the findings of decoders.
pub trait FieldSink {
    /// Sets the flow's protocol. May be called again when more is known.
    fn named(&mut self, protocol: Protocol);

    /// Adds a field.
    fn field(&mut self, field: Field, value: Value<'_>);

    /// Ends a transaction: a question and its answer, a request and its response, or one of both
    /// without the other. The fields of the first one were passed to [`FieldSink::field`] as well.
    fn transaction(&mut self, is_first: bool, fields: &[(Field, Value<'_>)]) {
        let _ = (is_first, fields);
    }
}

/// A row in [`FIELDS`].
#[derive(Clone, Copy, Debug)]
pub struct FieldRow {
    /// The field.
    pub field: Field,
    /// Name in JSON.
    pub name: &'static str,
    /// Kind of its value.
    pub kind: Kind,
    /// Maximum length of its text in bytes; longer text is truncated and marked.
    pub len_max: u16,
    /// Whether a flow may have several.
    pub repeats: bool,
}

macro_rules! fields {
    ($($field:ident $name:literal $kind:ident $len_max:literal $repeats:literal $doc:literal;)*)
    => {
        /// A field that decoders report.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
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
    Transactions "transactions" Number 8 false
        "Questions or requests of the flow, where there is more than one.";
    TransactionsLost "transactions_lost" Number 8 false "Those of them that were not kept.";
    InnerProtocol "inner_protocol" Text 16 false
        "What is within a proxy's connection (HTTP CONNECT, SOCKS).";
    SsdpMethod "ssdp_method" Text 16 false "Method of the first message: M-SEARCH or NOTIFY.";
    SsdpTarget "ssdp_target" Text 128 false "What is searched for or announced (ST, NT).";
    SsdpAgent "ssdp_agent" Text 128 false "User-Agent header of a search.";
    SsdpServer "ssdp_server" Text 128 false "Server header of an answer or announcement.";
    SsdpLocation "ssdp_location" Text 128 false "Where the device's description is.";
    WireGuardInitiator "wireguard_initiator" Hex 8 false "Index that the initiator chose.";
    WireGuardResponder "wireguard_responder" Hex 8 false "Index that the responder chose.";
    TlsSubject "tls_subject" Text 255 false
        "Subject of the server's certificate (RFC 5280 §4.1.2.6), as `O=Example, CN=a.example`.";
    TlsIssuer "tls_issuer" Text 255 false "Its issuer, in the same form.";
    TlsNotBefore "tls_not_before" Time 8 false "When it becomes valid.";
    TlsNotAfter "tls_not_after" Time 8 false "When it expires.";
    TlsSan "tls_san" Text 255 true
        "A name, an address, a URI or the like that it is for (subjectAltName), 64 at the most.";
    TlsSanCount "tls_san_count" Number 8 false "How many of them it has.";
    SocksCommand "socks_command" Number 8 false
        "What the client asks for: 1 connect, 2 bind, 3 associate UDP.";
    SocksTarget "socks_target" Text 255 false "Name or address that it asks for.";
    SocksPort "socks_port" Number 8 false "Port that it asks for.";
    SocksResult "socks_result" Number 8 false
        "Answer of the proxy: 0 in version 5, 90 in version 4 is granted.";
    LdapBindDn "ldap_bind_dn" Text 128 false "Name of the first bind that has one.";
    LdapMechanism "ldap_mechanism" Text 32 false
        "How the first bind authenticates: simple, or the name of a SASL mechanism.";
    LdapBase "ldap_base" Text 128 false "Base of the first search that has one.";
    LdapResult "ldap_result" Number 8 false "Code of the first final result (RFC 4511 §4.1.9).";
    LdapStartTls "ldap_starttls" Number 8 false "1: the client asked for TLS.";
    RdpUser "rdp_user" Text 64 false "Name in the cookie of the connection request.";
    RdpToken "rdp_token" Text 64 false "Routing token of the connection request.";
    RdpRequested "rdp_requested" Hex 8 false
        "Security protocols that the client has (MS-RDPBCGR §2.2.1.1.1).";
    RdpSelected "rdp_selected" Hex 8 false "Security protocol that the server chose.";
    RdpFailure "rdp_failure" Number 8 false "Why the server refuses (MS-RDPBCGR §2.2.1.2.2).";
    SmbDialect "smb_dialect" Text 32 false "Dialect that the server chose.";
    SmbUser "smb_user" Text 64 false "User who signs on by NTLM.";
    SmbDomain "smb_domain" Text 64 false "Domain of that user.";
    SmbWorkstation "smb_workstation" Text 64 false "Name of the client.";
    SmbTree "smb_tree" Text 128 true "A tree that the client connects to.";
    RtpPayloadType "rtp_payload_type" Number 8 false
        "Payload type of the first stream (RFC 3551 §6).";
    RtpSsrc "rtp_ssrc" Hex 8 false "Source of the first stream, or of the first report.";
    RtspMethod "rtsp_method" Text 16 false "Method of the first request.";
    RtspUrl "rtsp_url" Text 128 false "Its target.";
    RtspAgent "rtsp_agent" Text 64 false "User-Agent header of the first request that has one.";
    RtspStatus "rtsp_status" Number 8 false "Status of its final response.";
    RtspServer "rtsp_server" Text 64 false "Server header of the first response that has one.";
    NetbiosName "netbios_name" Text 20 false
        "First name of the name service, its last byte in hexadecimal: `HOST<20>`.";
    NetbiosOpcode "netbios_opcode" Number 8 false
        "What is done with it: 0 query, 5 registration (RFC 1002 §4.2.1.1).";
    NetbiosRcode "netbios_rcode" Number 8 false "Response code of the first answer.";
    NetbiosSource "netbios_source" Text 20 false "Sender's name of the first datagram.";
    NetbiosDestination "netbios_destination" Text 20 false "Name that it is sent to.";
    MysqlProtocol "mysql_protocol" Number 8 false "Protocol of the server's greeting: 10.";
    MysqlVersion "mysql_version" Text 64 false "Version of the server, as sent.";
    MysqlCapabilities "mysql_capabilities" Hex 8 false "Capabilities of the server.";
    MysqlAuth "mysql_auth" Text 32 false "Authentication plugin that the server proposes.";
    MysqlUser "mysql_user" Text 64 false "User who logs in.";
    MysqlDatabase "mysql_database" Text 64 false "Database that the login asks for.";
    MysqlResult "mysql_result" Number 8 false
        "Result of the login: 0 is success, else the number of the error.";
    PostgresqlUser "postgresql_user" Text 64 false "User of the startup message.";
    PostgresqlDatabase "postgresql_database" Text 64 false "Its database.";
    PostgresqlAuth "postgresql_auth" Text 32 false
        "How the server authenticates: none, password, md5, or the name of a SASL mechanism.";
    PostgresqlVersion "postgresql_version" Text 64 false "Version of the server.";
    PostgresqlError "postgresql_error" Text 8 false "Code of the first error (SQLSTATE).";
    RedisCommand "redis_command" Text 32 false "Name of the first command.";
    RedisError "redis_error" Text 32 false "Code of the error that answers it.";
    RedisVersion "redis_version" Text 32 false "Version of the server, of INFO or HELLO.";
    SnmpVersion "snmp_version" Number 8 false "Version of the first message: 1, 2 (2c) or 3.";
    SnmpEngine "snmp_engine" Text 64 false
        "Identifier of the authoritative engine, in hexadecimal (RFC 3411 §5).";
    SnmpSysDescr "snmp_sys_descr" Text 255 false
        "Description of the system in the first response (sysDescr.0).";
    MemcachedVersion "memcached_version" Text 64 false "Version of the server.";
    VncVersion "vnc_version" Text 8 false "Version of the server: `003.008`.";
    VncSecurity "vnc_security" Text 48 false
        "Security types that the server offers, joined by commas (RFC 6143 §7.1.2); 0: it refuses.";
    TelnetOption "telnet_option" Text 8 true
        "What the server requests or offers: `do 24`, `will 1` (RFC 855); 16 at the most.";
    TelnetText "telnet_text" Text 128 false
        "First line of the server's text, or its prompt for a name.";
    SshHostKey "ssh_host_key" Text 64 false
        "Algorithm of the server's host key: `ssh-ed25519` (RFC 4253 §6.6).";
    SshHostKeySha256 "ssh_host_key_sha256" Text 43 false
        "SHA-256 of the host key in Base64, as ssh-keygen -l prints it behind `SHA256:`.";
    TlsSerial "tls_serial" Text 64 false
        "Serial number of the server's certificate, in hexadecimal, as OpenSSL prints it.";
    TlsSignature "tls_signature" Text 64 false
        "Algorithm of its signature: `sha256WithRSAEncryption`, or the number of an unknown one.";
    TlsKeyType "tls_key_type" Text 64 false
        "Type of its key: `rsa`, `ec`, `ed25519`, or the number of an unknown one.";
    TlsKeyBits "tls_key_bits" Number 8 false "Size of its key in bits.";
    TlsCertificateSha256 "tls_certificate_sha256" Text 64 false
        "SHA-256 of the whole certificate, its fingerprint, in hexadecimal.";
}

impl Field {
    /// The field's row.
    #[inline]
    pub fn row(self) -> &'static FieldRow {
        &FIELDS[self as usize]
    }

    /// Name in JSON.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

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
