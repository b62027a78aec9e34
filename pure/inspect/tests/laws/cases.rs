//! The samples, their protocols, and the fields reported about them.

use super::Field::{self, *};

mod services;

pub use services::SERVICES;

/// A sample, its protocol, and the fields reported about it.
pub type Case = (&'static str, &'static str, &'static [(Field, &'static str)]);

/// Subject of the samples' certificate.
pub const SUBJECT: &str = "C=XX, O=Some Organisation, CN=www.example.org, CN=a second one";

pub const CASES: &[Case] = &[
    (
        "tls",
        "tls",
        &[
            (TlsSni, "example.org"),
            (TlsAlpn, "h2,http/1.1"),
            (TlsVersionOffered, "772"),
            (TlsVersion, "772"),
            (TlsCipher, "4865"),
            (TlsAlpnChosen, "h2"),
            // The example of the description of JA4.
            (Ja4, "t13d1516h2_8daaf6152771_e5627efa2ab1"),
        ],
    ),
    (
        "tls-records",
        "tls",
        &[(TlsSni, "a.example"), (TlsAlpn, "x"), (TlsCipher, "4865")],
    ),
    (
        "tls-bare",
        "tls",
        &[
            (TlsVersionOffered, "771"),
            (TlsVersion, "-"),
            (Ja4, "t12i010000_1ed8eb363bcd_000000000000"),
        ],
    ),
    ("tls-encrypted", "tls", &[(TlsVersionOffered, "-")]),
    (
        "tls-certificate",
        "tls",
        &[
            (TlsSni, "a.example"),
            (TlsVersion, "771"),
            (TlsAlpnChosen, "x"),
            (TlsSubject, SUBJECT),
            (
                TlsIssuer,
                "C=XX, O=Some Organisation, CN=Some Issuer, CN=a second one",
            ),
            (TlsNotBefore, "1709251199"),
            (TlsNotAfter, "4102358400"),
            (TlsSan, "www.example.org"),
            (TlsSanCount, "7"),
            (TlsSerial, "01010101010101010101010101010101"),
            (TlsSignature, "ecdsa-with-SHA256"),
        ],
    ),
    (
        "tls-certificate-bare",
        "tls",
        &[(TlsSubject, SUBJECT), (TlsSan, "-"), (TlsSanCount, "-")],
    ),
    ("tls-certificate-none", "tls", &[(TlsSubject, "-")]),
    (
        "dtls",
        "dtls",
        &[
            (TlsSni, "a.example"),
            (TlsAlpn, "webrtc"),
            (TlsVersionOffered, "65277"),
            (TlsVersion, "65277"),
            (TlsCipher, "49195"),
            (TlsAlpnChosen, "webrtc"),
            (TlsSubject, SUBJECT),
            (TlsSan, "a.example"),
        ],
    ),
    (
        "dtls-fragments",
        "dtls",
        &[
            (TlsSni, "a.example"),
            (TlsAlpn, "webrtc"),
            (TlsAlpnChosen, "webrtc"),
            (TlsSanCount, "1"),
        ],
    ),
    (
        "dtls-lost",
        "dtls",
        &[(TlsSni, "-"), (TlsVersion, "65277"), (TlsSubject, "-")],
    ),
    (
        "dtls-1.3",
        "dtls",
        &[
            (TlsVersionOffered, "65276"),
            (TlsVersion, "65276"),
            (TlsSni, "a.example"),
            (TlsSubject, "-"),
        ],
    ),
    ("dtls-encrypted", "dtls", &[(TlsVersion, "-")]),
    ("dtls-short", "unknown", &[]),
    (
        "socks-5",
        "socks5",
        &[
            (SocksCommand, "1"),
            (SocksTarget, "a.example"),
            (SocksPort, "443"),
            (SocksResult, "0"),
            (InnerProtocol, "tls"),
            (TlsSni, "a.example"),
            (TlsSubject, SUBJECT),
        ],
    ),
    (
        "socks-5-early",
        "socks5",
        &[
            (SocksTarget, "a.example"),
            (InnerProtocol, "tls"),
            (TlsSni, "a.example"),
            (TlsSubject, SUBJECT),
        ],
    ),
    (
        "socks-5-refused",
        "socks5",
        &[
            (SocksTarget, "2001:db8::1"),
            (SocksPort, "80"),
            (SocksResult, "4"),
            (InnerProtocol, "-"),
        ],
    ),
    ("socks-5-none", "socks5", &[(SocksCommand, "-")]),
    (
        "socks-5-udp",
        "socks5",
        &[(SocksCommand, "3"), (SocksTarget, "0.0.0.0")],
    ),
    ("socks-5-kerberos", "socks5", &[(SocksCommand, "-")]),
    ("socks-not", "unknown", &[(SocksCommand, "-")]),
    (
        "socks-4",
        "socks4",
        &[
            (SocksTarget, "192.0.2.1"),
            (SocksResult, "90"),
            (InnerProtocol, "http"),
            (HttpPath, "/inside"),
            (HttpStatus, "200"),
        ],
    ),
    (
        "socks-4a",
        "socks4",
        &[
            (SocksTarget, "a.example"),
            (SocksPort, "80"),
            (SocksResult, "91"),
        ],
    ),
    (
        "socks-4-bind",
        "socks4",
        &[
            (SocksCommand, "2"),
            (SocksResult, "90"),
            (InnerProtocol, "ssh"),
            (SshServer, "SSH-2.0-peer"),
        ],
    ),
    (
        "socks-alone",
        "socks5",
        &[(SocksTarget, "a.example"), (SocksResult, "-")],
    ),
    (
        "http-connect-early",
        "http",
        &[
            (HttpMethod, "CONNECT"),
            (InnerProtocol, "tls"),
            (TlsSni, "a.example"),
            (TlsSubject, SUBJECT),
        ],
    ),
    (
        "http-connect-pipelined",
        "http",
        &[
            (HttpPath, "/first"),
            (InnerProtocol, "tls"),
            (TlsSni, "a.example"),
            (TlsSubject, SUBJECT),
        ],
    ),
    (
        "http-connect-refused",
        "http",
        &[(HttpStatus, "407"), (InnerProtocol, "-")],
    ),
    (
        "tls-certificate-short",
        "tls",
        &[(TlsVersion, "771"), (TlsSubject, "-")],
    ),
    (
        "tls-resumed",
        "tls",
        &[(TlsVersion, "771"), (TlsSubject, "-")],
    ),
    (
        "quic-v1",
        "quic",
        &[
            (QuicVersion, "1"),
            (TlsSni, "example.org"),
            (Ja4, "q13d1516h2_8daaf6152771_e5627efa2ab1"),
            (TlsCipher, "4865"),
        ],
    ),
    (
        "quic-v2",
        "quic",
        &[
            (QuicVersion, "1798521807"),
            (TlsSni, "example.org"),
            (TlsVersion, "772"),
        ],
    ),
    (
        "quic-mvfst",
        "quic",
        &[
            (QuicVersion, "4207849474"),
            (TlsSni, "example.org"),
            (TlsCipher, "-"),
        ],
    ),
    ("quic-forced", "quic", &[(TlsSni, "example.org")]),
    (
        "quic-t051",
        "quic",
        &[(TlsSni, "example.org"), (TlsCipher, "4865")],
    ),
    (
        "http-spaces",
        "http",
        &[(HttpMethod, "GET"), (HttpPath, "/a"), (HttpHost, "h")],
    ),
    (
        "http",
        "http",
        &[
            (HttpMethod, "POST"),
            (HttpPath, "/a/path?x=1"),
            (HttpHost, "www.example.org:8080"),
            (HttpAgent, "Program/1.0 (x)"),
            (HttpStatus, "404"),
            (HttpServer, "thing"),
            (HttpType, "text/html"),
        ],
    ),
    ("http2", "http2", &[]),
    (
        "sip",
        "sip",
        &[
            (SipMethod, "INVITE"),
            (SipUri, "sip:bob@example.org"),
            (SipFrom, "<sip:alice@a>;tag=1"),
            (SipCallId, "1@a"),
            (SipAgent, "phone"),
            (SipStatus, "180"),
        ],
    ),
    (
        "sip-tcp",
        "sip",
        &[(SipTo, "<sip:bob@example.org>"), (SipStatus, "180")],
    ),
    (
        "smtp",
        "smtp",
        &[
            (MailGreeting, "220-one"),
            (MailHelo, "me.example"),
            (MailFrom, "a@b.example"),
            (MailTo, "c@d"),
        ],
    ),
    (
        "smtp-starttls",
        "smtp",
        &[
            (MailStartTls, "1"),
            (TlsSni, "example.org"),
            (TlsCipher, "4865"),
        ],
    ),
    ("ftp", "ftp", &[(MailGreeting, "220 welcome")]),
    (
        "ftp-tls",
        "ftp",
        &[(TlsSni, "example.org"), (TlsCipher, "4865")],
    ),
    (
        "imap",
        "imap",
        &[(MailGreeting, "* OK [CAPABILITY IMAP4rev1] ready")],
    ),
    (
        "pop3",
        "pop3",
        &[(MailGreeting, "+OK <1.2@host>"), (MailStartTls, "1")],
    ),
    (
        "ssh",
        "ssh",
        &[
            (SshClient, "SSH-2.0-Client_1.0 hello"),
            (SshServer, "SSH-2.0-Server"),
        ],
    ),
    ("ssh-1", "ssh", &[(SshClient, "SSH-1.5-x"), (Hassh, "-")]),
    (
        "mqtt",
        "mqtt",
        &[
            (MqttVersion, "4"),
            (MqttClientId, "client"),
            (MqttKeepAliveS, "60"),
            (MqttReturnCode, "5"),
        ],
    ),
    (
        "mqtt-5",
        "mqtt",
        &[
            (MqttVersion, "5"),
            (MqttClientId, "id"),
            (MqttReturnCode, "0"),
        ],
    ),
    ("unknown", "unknown", &[]),
    ("noise", "unknown", &[]),
    (
        "ssdp",
        "ssdp",
        &[
            (SsdpMethod, "M-SEARCH"),
            (SsdpTarget, "ssdp:all"),
            (SsdpAgent, "seeker"),
            (SsdpServer, "box/1"),
            (SsdpLocation, "http://192.0.2.1/d.xml"),
        ],
    ),
    (
        "ssdp-notify",
        "ssdp",
        // The last line has no end.
        &[
            (SsdpMethod, "NOTIFY"),
            (SsdpTarget, "upnp:rootdevice"),
            (SsdpServer, "box"),
            (SsdpLocation, "-"),
        ],
    ),
    (
        "wireguard",
        "wireguard",
        &[(WireGuardInitiator, "7"), (WireGuardResponder, "9")],
    ),
    ("wireguard-long", "unknown", &[]),
    (
        "dns",
        "dns",
        &[
            (DnsName, "www.example.org"),
            (DnsType, "28"),
            (DnsRcode, "0"),
            (DnsAnswers, "3"),
            (DnsAnswer, "a.example.org"),
            (DnsLatencyNs, "250"),
        ],
    ),
    (
        "dns-elsewhere",
        "dns",
        &[(DnsName, "www.example.org"), (DnsAnswers, "3")],
    ),
    (
        "dns-tcp",
        "dns",
        &[(DnsName, "www.example.org"), (DnsAnswers, "3")],
    ),
    (
        "mdns",
        "mdns",
        &[(DnsName, "www.example.org"), (DnsLatencyNs, "-")],
    ),
    (
        "mdns-announced",
        "mdns",
        &[
            (DnsAnswers, "1"),
            (DnsAnswer, "192.0.2.7"),
            (DnsName, "www.example.org"),
        ],
    ),
    (
        "ntp",
        "ntp",
        &[
            (NtpVersion, "4"),
            (NtpMode, "3"),
            (NtpStratum, "1"),
            (NtpReference, "GPS"),
        ],
    ),
    (
        "dhcp",
        "dhcp",
        &[
            (DhcpType, "3"),
            (DhcpMac, "02:00:00:00:00:af"),
            (DhcpHostName, "host"),
            (DhcpRequested, "192.0.2.9"),
            (DhcpParameters, "1,3,6"),
            (DhcpVendor, "MS"),
        ],
    ),
    (
        "ldap",
        "ldap",
        &[
            (LdapBindDn, "cn=admin,dc=example,dc=org"),
            (LdapMechanism, "simple"),
            (LdapBase, "dc=example,dc=org"),
            (LdapResult, "49"),
        ],
    ),
    (
        "ldap-sasl",
        "ldap",
        &[
            (LdapMechanism, "GSS-SPNEGO"),
            (LdapResult, "0"),
            (LdapBase, "-"),
        ],
    ),
    (
        "ldap-starttls",
        "ldap",
        &[
            (LdapStartTls, "1"),
            (LdapResult, "2"),
            (TlsSni, "example.org"),
            (TlsCipher, "4865"),
        ],
    ),
    ("cldap", "cldap", &[(LdapBase, "-"), (LdapResult, "0")]),
    (
        "rdp",
        "rdp",
        &[
            (RdpUser, "alice"),
            (RdpRequested, "11"),
            (RdpSelected, "2"),
            (TlsSni, "example.org"),
            (TlsCipher, "4865"),
        ],
    ),
    (
        "rdp-refused",
        "rdp",
        &[
            (RdpToken, "msts=3640205228.15629.0000"),
            (RdpFailure, "5"),
            (RdpSelected, "-"),
        ],
    ),
    (
        "rdp-plain",
        "rdp",
        &[(RdpRequested, "0"), (RdpSelected, "0")],
    ),
    ("x224", "unknown", &[]),
    (
        "smb",
        "smb",
        &[
            (SmbDialect, "3.1.1"),
            (SmbDomain, "EXAMPLE"),
            (SmbUser, "\\xc3\\xa1lice"),
            (SmbWorkstation, "DESK"),
            (SmbTree, "\\\\\\\\server\\\\IPC$"),
        ],
    ),
    ("smb-encrypted", "smb", &[(SmbDialect, "3.0.2")]),
    (
        "smb-1",
        "smb",
        &[
            (SmbDialect, "NT LM 0.12"),
            (SmbUser, "bob"),
            (SmbDomain, "EXAMPLE"),
            (SmbTree, "\\\\\\\\SERVER\\\\FILES"),
        ],
    ),
    (
        "rtsp",
        "rtsp",
        &[
            (RtspMethod, "OPTIONS"),
            (RtspUrl, "rtsp://192.0.2.1/live"),
            (RtspAgent, "player/2"),
            (RtspStatus, "200"),
            (RtspServer, "camera/1"),
        ],
    ),
    ("rtsp-star", "rtsp", &[(RtspUrl, "*"), (RtspStatus, "-")]),
    (
        "rtp",
        "rtp",
        &[(RtpPayloadType, "8"), (RtpSsrc, "16909064")],
    ),
    ("rtp-alike", "unknown", &[]),
    ("rtcp", "rtcp", &[(RtpSsrc, "16909060")]),
    (
        "nbns",
        "nbns",
        &[
            (NetbiosName, "HOST<20>"),
            (NetbiosOpcode, "0"),
            (NetbiosRcode, "3"),
        ],
    ),
    (
        "nbns-scope",
        "nbns",
        &[(NetbiosName, "A<1d>"), (NetbiosOpcode, "5")],
    ),
    (
        "nbdgm",
        "nbdgm",
        &[
            (NetbiosSource, "DESK<00>"),
            (NetbiosDestination, "WORKGROUP<1d>"),
        ],
    ),
];
