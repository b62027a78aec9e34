//! Elements for decoded fields. IANA's number is used if it has an element; all others have
//! barewire's own numbers, which never change.
//!
//! Numbers of fixed length have a value for *not seen*: 0 if that is not a valid value, otherwise
//! all bits set, and the lowest number for signed ones. Texts that were not seen are empty.

use inspect::{Application, FIELDS, Field, Kind, Value};

use super::{DataType, Element, OWN_ENTERPRISE, Semantics, Units, VARIABLE_LEN};
use crate::encode::extra_fields::{hex, utf8};

/// A decoded field, and the element that exports it.
#[derive(Debug)]
pub struct ApplicationElement {
    /// The field.
    pub field: Field,
    /// The element.
    pub element: Element,
    /// Value for *not seen*.
    pub absent: u64,
}

macro_rules! elements {
    ($($field:ident = $name:literal $id:literal $owner:ident $type:ident [$len:expr] $absent:expr,
        $about:literal;)*) => {
        /// All decoded fields, in the order of [`FIELDS`].
        pub static APPLICATION: &[ApplicationElement] = &[
            $(ApplicationElement {
                field: Field::$field,
                element: Element {
                    name: $name,
                    id: $id,
                    enterprise: elements!(@$owner),
                    len: $len,
                    data_type: DataType::$type,
                    semantics: elements!(@semantics $type),
                    units: Units::None,
                    about: $about,
                },
                absent: $absent,
            },)*
        ];
    };
    (@own) => { OWN_ENTERPRISE };
    (@iana) => { 0 };
    (@semantics String) => { Semantics::Default };
    (@semantics $other:ident) => { Semantics::Identifier };
}

const TEXT: u16 = VARIABLE_LEN;

elements! {
    TlsSni = "tlsServerName" 100 own String [TEXT] 0, "Name that the client asks for";
    TlsAlpn = "tlsProtocolsOffered" 101 own String [TEXT] 0, "ALPN offered, joined by commas";
    TlsAlpnChosen = "tlsProtocolChosen" 102 own String [TEXT] 0, "ALPN that the server chose";
    TlsVersionOffered = "tlsVersionOffered" 103 own Unsigned16 [2] 0, "Highest version offered";
    TlsVersion = "tlsVersion" 104 own Unsigned16 [2] 0, "Version that the server chose";
    TlsCipher = "tlsCipherSuite" 105 own Unsigned16 [2] 0, "Cipher suite that the server chose";
    TlsRetry = "tlsHelloRetry" 106 own Unsigned8 [1] 0, "1: the first answer was HelloRetryRequest";
    Ja3 = "ja3" 107 own String [TEXT] 0, "JA3 of the client hello";
    Ja3s = "ja3s" 108 own String [TEXT] 0, "JA3S of the server hello";
    Ja4 = "ja4" 109 own String [TEXT] 0, "JA4 of the client hello";
    Ja4s = "ja4s" 110 own String [TEXT] 0, "JA4S of the server hello";
    QuicVersion = "quicVersion" 111 own Unsigned32 [4] 0, "Version in the first long header";
    HttpMethod = "httpRequestMethod" 459 iana String [TEXT] 0, "Method of the first request";
    HttpHost = "httpRequestHost" 460 iana String [TEXT] 0, "Host header of the first request";
    HttpPath = "httpRequestTarget" 461 iana String [TEXT] 0, "Target of the first request";
    HttpAgent = "httpUserAgent" 468 iana String [TEXT] 0, "User-Agent of the first request";
    HttpStatus = "httpStatusCode" 457 iana Unsigned16 [2] 0, "Status of the first final response";
    HttpServer = "httpServer" 117 own String [TEXT] 0, "Server header of that response";
    HttpType = "httpContentType" 469 iana String [TEXT] 0, "Content-Type of that response";
    DnsName = "dnsQueryName" 119 own String [TEXT] 0, "Name of the first question";
    DnsType = "dnsQueryType" 120 own Unsigned16 [2] 0, "Type of the first question";
    DnsRcode = "dnsResponseCode" 121 own Unsigned16 [2] 0xffff, "Response code; 65535 without";
    DnsAnswers = "dnsAnswerCount" 122 own Unsigned16 [2] 0xffff, "Answer records; 65535 without";
    DnsAnswer = "dnsAnswers" 123 own String [TEXT] 0, "Answers, joined by commas";
    DnsLatencyNs = "dnsLatencyNanoseconds" 124 own Unsigned64 [8] 0, "From question to answer";
    SshClient = "sshClientIdentification" 125 own String [TEXT] 0, "Identification of the client";
    SshServer = "sshServerIdentification" 126 own String [TEXT] 0, "Identification of the server";
    Hassh = "hassh" 127 own String [TEXT] 0, "HASSH of the client";
    HasshServer = "hasshServer" 128 own String [TEXT] 0, "HASSH of the server";
    MailGreeting = "mailGreeting" 129 own String [TEXT] 0, "First line of the server";
    MailHelo = "mailHelo" 130 own String [TEXT] 0, "Name that an SMTP client gives itself";
    MailFrom = "mailFrom" 131 own String [TEXT] 0, "Envelope sender of the first mail";
    MailTo = "mailTo" 132 own String [TEXT] 0, "First envelope recipient";
    MailStartTls = "mailStartTls" 133 own Unsigned8 [1] 0, "1: the client asked for TLS";
    MqttVersion = "mqttVersion" 134 own Unsigned8 [1] 0, "Protocol level";
    MqttClientId = "mqttClientIdentifier" 135 own String [TEXT] 0, "Client identifier";
    MqttKeepAliveS = "mqttKeepAliveSeconds" 136 own Unsigned32 [4] 0xffff_ffff, "Keep alive";
    MqttReturnCode = "mqttReturnCode" 137 own Unsigned16 [2] 0xffff, "Answer to CONNECT, or 65535";
    NtpVersion = "ntpVersion" 138 own Unsigned8 [1] 0, "Version of the first packet";
    NtpMode = "ntpMode" 139 own Unsigned8 [1] 0xff, "Mode of the first packet; 255 without";
    NtpStratum = "ntpStratum" 140 own Unsigned8 [1] 0xff, "Stratum of the server; 255 without";
    NtpReference = "ntpReference" 141 own String [TEXT] 0, "Reference identifier of the server";
    DhcpType = "dhcpMessageType" 142 own Unsigned8 [1] 0, "Type of the first message";
    DhcpMac = "dhcpClientMacAddress" 143 own String [TEXT] 0, "Hardware address of the client";
    DhcpHostName = "dhcpHostName" 144 own String [TEXT] 0, "Host name of the client";
    DhcpVendor = "dhcpVendorClass" 145 own String [TEXT] 0, "Vendor class identifier";
    DhcpRequested = "dhcpRequestedAddress" 146 own String [TEXT] 0, "Address asked for";
    DhcpOffered = "dhcpOfferedAddress" 147 own String [TEXT] 0, "Address given";
    DhcpParameters = "dhcpParameters" 148 own String [TEXT] 0, "Parameter request list";
    SipMethod = "sipMethod" 149 own String [TEXT] 0, "Method of the first request";
    SipUri = "sipUri" 150 own String [TEXT] 0, "Target of the first request";
    SipFrom = "sipFrom" 151 own String [TEXT] 0, "From header of the first request";
    SipTo = "sipTo" 152 own String [TEXT] 0, "To header of the first request";
    SipCallId = "sipCallIdentifier" 153 own String [TEXT] 0, "Call-ID header";
    SipAgent = "sipUserAgent" 154 own String [TEXT] 0, "User-Agent of the first message";
    SipServer = "sipServer" 155 own String [TEXT] 0, "Server header of the first response";
    SipStatus = "sipStatusCode" 156 own Unsigned16 [2] 0, "Status of the first response";
    Ndpi = "ndpiProtocolName" 157 own String [TEXT] 0, "What nDPI calls the flow";
    Transactions = "transactionCount" 158 own Unsigned32 [4] 0, "Requests, where more than one";
    TransactionsLost = "transactionsNotKept" 159 own Unsigned32 [4] 0, "Those not kept";
    InnerProtocol = "innerProtocolName" 160 own String [TEXT] 0, "What is within a proxy";
    SsdpMethod = "ssdpMethod" 161 own String [TEXT] 0, "Method of the first message";
    SsdpTarget = "ssdpTarget" 162 own String [TEXT] 0, "What is searched for or announced";
    SsdpAgent = "ssdpUserAgent" 163 own String [TEXT] 0, "User-Agent of a search";
    SsdpServer = "ssdpServer" 164 own String [TEXT] 0, "Server of an answer";
    SsdpLocation = "ssdpLocation" 165 own String [TEXT] 0, "Where the description is";
    WireGuardInitiator = "wireGuardInitiatorIndex" 166 own Unsigned32 [4] 0, "Initiator's index";
    WireGuardResponder = "wireGuardResponderIndex" 167 own Unsigned32 [4] 0, "Responder's index";
    TlsSubject = "tlsServerCertificateSubject" 168 own String [TEXT] 0, "Subject, as a name";
    TlsIssuer = "tlsServerCertificateIssuer" 169 own String [TEXT] 0, "Issuer, as a name";
    TlsNotBefore = "tlsServerCertificateNotBefore" 170 own Signed64 [8] 0x8000_0000_0000_0000,
        "Seconds since 1970; the lowest number without";
    TlsNotAfter = "tlsServerCertificateNotAfter" 171 own Signed64 [8] 0x8000_0000_0000_0000,
        "Seconds since 1970; the lowest number without";
    TlsSan = "tlsServerCertificateNames" 172 own String [TEXT] 0, "Names, joined by commas";
    TlsSanCount = "tlsServerCertificateNameCount" 173 own Unsigned32 [4] 0, "How many it has";
    SocksCommand = "socksCommand" 174 own Unsigned8 [1] 0, "What the client asks for";
    SocksTarget = "socksTarget" 175 own String [TEXT] 0, "Name or address asked for";
    SocksPort = "socksTargetPort" 176 own Unsigned16 [2] 0, "Port asked for";
    SocksResult = "socksReply" 177 own Unsigned8 [1] 0xff, "Answer of the proxy; 255 without";
    LdapBindDn = "ldapBindName" 178 own String [TEXT] 0, "Name of the first bind";
    LdapMechanism = "ldapBindMechanism" 179 own String [TEXT] 0, "How the first bind authenticates";
    LdapBase = "ldapSearchBase" 180 own String [TEXT] 0, "Base of the first search";
    LdapResult = "ldapResultCode" 181 own Unsigned16 [2] 0xffff, "First result; 65535 without";
    LdapStartTls = "ldapStartTls" 182 own Unsigned8 [1] 0, "1: the client asked for TLS";
    RdpUser = "rdpUserName" 183 own String [TEXT] 0, "Name in the cookie";
    RdpToken = "rdpRoutingToken" 184 own String [TEXT] 0, "Routing token";
    RdpRequested = "rdpRequestedSecurity" 185 own Unsigned32 [4] 0xffff_ffff, "What the client has";
    RdpSelected = "rdpSelectedSecurity" 186 own Unsigned32 [4] 0xffff_ffff, "What the server chose";
    RdpFailure = "rdpFailureCode" 187 own Unsigned8 [1] 0, "Why the server refuses";
    SmbDialect = "smbDialect" 188 own String [TEXT] 0, "Dialect that the server chose";
    SmbUser = "smbUserName" 189 own String [TEXT] 0, "User who signs on";
    SmbDomain = "smbDomainName" 190 own String [TEXT] 0, "Domain of the user";
    SmbWorkstation = "smbWorkstation" 191 own String [TEXT] 0, "Name of the client";
    SmbTree = "smbTrees" 192 own String [TEXT] 0, "Trees, joined by commas";
    RtpPayloadType = "rtpPayloadType" 193 own Unsigned8 [1] 0xff, "Payload type; 255 without";
    RtpSsrc = "rtpSynchronizationSource" 194 own Unsigned32 [4] 0, "Source of the first stream";
    RtspMethod = "rtspMethod" 195 own String [TEXT] 0, "Method of the first request";
    RtspUrl = "rtspUrl" 196 own String [TEXT] 0, "Target of the first request";
    RtspAgent = "rtspUserAgent" 197 own String [TEXT] 0, "User-Agent of the client";
    RtspStatus = "rtspStatusCode" 198 own Unsigned16 [2] 0, "Status of the first response";
    RtspServer = "rtspServer" 199 own String [TEXT] 0, "Server header of a response";
    NetbiosName = "netbiosName" 200 own String [TEXT] 0, "First name asked for or registered";
    NetbiosOpcode = "netbiosOpcode" 201 own Unsigned8 [1] 0xff, "What is done with it; 255 without";
    NetbiosRcode = "netbiosResponseCode" 202 own Unsigned8 [1] 0xff, "Response code; 255 without";
    NetbiosSource = "netbiosSourceName" 203 own String [TEXT] 0, "Sender's name of a datagram";
    NetbiosDestination = "netbiosDestinationName" 204 own String [TEXT] 0, "Receiver's name";
    MysqlProtocol = "mysqlProtocol" 220 own Unsigned8 [1] 0, "Protocol of the greeting";
    MysqlVersion = "mysqlServerVersion" 221 own String [TEXT] 0, "Version of the server";
    MysqlCapabilities = "mysqlServerCapabilities" 222 own Unsigned32 [4] 0, "What the server has";
    MysqlAuth = "mysqlAuthentication" 223 own String [TEXT] 0, "Plugin that the server proposes";
    MysqlUser = "mysqlUserName" 224 own String [TEXT] 0, "User who logs in";
    MysqlDatabase = "mysqlDatabaseName" 225 own String [TEXT] 0, "Database of the login";
    MysqlResult = "mysqlLoginResult" 226 own Unsigned32 [4] 0xffff_ffff, "0: success; or an error";
    PostgresqlUser = "postgresqlUserName" 227 own String [TEXT] 0, "User of the startup message";
    PostgresqlDatabase = "postgresqlDatabaseName" 228 own String [TEXT] 0, "Its database";
    PostgresqlAuth = "postgresqlAuthentication" 229 own String [TEXT] 0, "How it authenticates";
    PostgresqlVersion = "postgresqlServerVersion" 230 own String [TEXT] 0, "Version of the server";
    PostgresqlError = "postgresqlErrorCode" 231 own String [TEXT] 0, "First error (SQLSTATE)";
    RedisCommand = "redisCommand" 232 own String [TEXT] 0, "Name of the first command";
    RedisError = "redisErrorCode" 233 own String [TEXT] 0, "Code of the error that answers it";
    RedisVersion = "redisServerVersion" 234 own String [TEXT] 0, "Version of the server";
    SnmpVersion = "snmpVersion" 235 own Unsigned8 [1] 0, "Version of the first message";
    SnmpEngine = "snmpEngineIdentifier" 236 own String [TEXT] 0, "Authoritative engine";
    SnmpSysDescr = "snmpSystemDescription" 237 own String [TEXT] 0, "sysDescr.0 of a response";
    MemcachedVersion = "memcachedServerVersion" 238 own String [TEXT] 0, "Version of the server";
    VncVersion = "vncServerVersion" 239 own String [TEXT] 0, "Protocol version of the server";
    VncSecurity = "vncSecurityTypes" 240 own String [TEXT] 0, "Offered, joined by commas";
    TelnetOption = "telnetServerOptions" 241 own String [TEXT] 0, "Requested and offered";
    TelnetText = "telnetServerText" 242 own String [TEXT] 0, "First line, or prompt";
    SshHostKey = "sshHostKeyAlgorithm" 243 own String [TEXT] 0, "Algorithm of the host key";
    SshHostKeySha256 = "sshHostKeySha256" 244 own String [TEXT] 0, "SHA-256 of the key, Base64";
    TlsSerial = "tlsServerCertificateSerial" 245 own String [TEXT] 0, "Serial number, hexadecimal";
    TlsSignature = "tlsServerCertificateSignature" 246 own String [TEXT] 0,
        "Signature algorithm";
    TlsKeyType = "tlsServerCertificateKeyType" 247 own String [TEXT] 0, "Type of its key";
    TlsKeyBits = "tlsServerCertificateKeyBits" 248 own Unsigned32 [4] 0, "Size of its key";
    TlsCertificateSha256 = "tlsServerCertificateSha256" 249 own String [TEXT] 0,
        "SHA-256 of the certificate";
}

const _: () = assert!(APPLICATION_LEN == FIELDS.len());
const APPLICATION_LEN: usize = 135;

impl ApplicationElement {
    /// Appends the exported value; text without its length.
    pub fn put(&self, application: &Application, out: &mut Vec<u8>) {
        if self.element.len == VARIABLE_LEN {
            return text(application, self.field, out);
        }
        let len = usize::from(self.element.len);
        let number = match application.get(self.field) {
            Some(Value::Number(number)) => {
                // The maximum stands for itself and more, unless it means not seen.
                let most = u64::MAX >> (64 - 8 * len);
                number.min(if self.absent == most { most - 1 } else { most })
            }
            _ => self.absent,
        };
        out.extend(&number.to_be_bytes()[8 - len..]);
    }
}

/// Appends a field as text: always valid UTF-8, lists separated by commas; empty if the field is
/// missing.
pub(crate) fn text(application: &Application, field: Field, out: &mut Vec<u8>) {
    text_by(application, field, utf8, out);
}

/// The same, with the bytes of packets unchanged.
pub(crate) fn raw(application: &Application, field: Field, out: &mut Vec<u8>) {
    let put = |bytes: &[u8], out: &mut Vec<u8>| out.extend(bytes);
    text_by(application, field, put, out);
}

fn text_by(
    application: &Application,
    field: Field,
    put: impl Fn(&[u8], &mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    use std::io::Write;
    if !application.has(field) {
        return;
    }
    let mut is_first = true;
    for (_, value) in application.fields().filter(|(of, _)| *of == field) {
        if !is_first {
            out.push(b',');
        }
        is_first = false;
        match value {
            Value::Text { bytes, .. } => put(bytes, out),
            Value::Digest(sum) => hex(&sum, out),
            // Writing into a vector cannot fail.
            Value::Number(number) if field.row().kind == Kind::Time => {
                drop(write!(out, "{}", number as i64));
            }
            Value::Number(number) => drop(write!(out, "{number}")),
            Value::Address(addr) => drop(write!(out, "{addr}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::FieldSink;

    #[test]
    fn every_field_has_an_element_of_its_own() {
        for (row, element) in FIELDS.iter().zip(APPLICATION) {
            assert_eq!(row.field, element.field);
            let is_text = element.element.len == VARIABLE_LEN;
            let wants_text = matches!(row.kind, Kind::Text | Kind::Digest);
            assert_eq!(is_text, wants_text, "{}", row.name);
            let number = |e: &ApplicationElement| (e.element.enterprise, e.element.id);
            let same = APPLICATION.iter().filter(|e| number(e) == number(element));
            assert_eq!(same.count(), 1, "{}", row.name);
            let rows = super::super::FIELDS.iter();
            let mut taken = rows.map(|f| (f.element.enterprise, f.element.id));
            assert!(!taken.any(|of| of == number(element)), "{}", row.name);
        }
        assert_eq!(APPLICATION.len(), FIELDS.len());
    }

    #[test]
    fn values_differ_from_not_seen() {
        let put = |application: &Application, field: Field| {
            let mut out = Vec::new();
            APPLICATION[field as usize].put(application, &mut out);
            out
        };
        let mut a = Application::EMPTY;
        assert_eq!(put(&a, Field::DnsRcode), [0xff, 0xff]);
        assert_eq!(put(&a, Field::DnsName), b"");
        a.field(Field::DnsRcode, Value::Number(0));
        a.field(Field::DnsName, Value::text(b"a\xff"));
        a.field(Field::DnsAnswer, Value::Address([192, 0, 2, 1].into()));
        a.field(Field::DnsAnswer, Value::text(b"b"));
        a.field(Field::Ja3, Value::Digest([0x0a; 16]));
        a.field(Field::DnsAnswers, Value::Number(u64::MAX));
        a.field(Field::DnsLatencyNs, Value::Number(u64::MAX));
        assert_eq!(put(&a, Field::DnsRcode), [0, 0]);
        assert_eq!(put(&a, Field::DnsName), "a\u{ff}".as_bytes());
        assert_eq!(put(&a, Field::DnsAnswer), b"192.0.2.1,b");
        assert_eq!(put(&a, Field::Ja3), "0a".repeat(16).as_bytes());
        assert_eq!(put(&a, Field::DnsAnswers), [0xff, 0xfe]);
        assert_eq!(put(&a, Field::DnsLatencyNs), [0xff; 8]);
    }
}
