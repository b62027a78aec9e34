//! The laws of `inspect::laws` over conversations made here: as they are, cut at every byte, out of
//! order, with gaps, damaged; and over the fuzz corpora, which are made here.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-inspect --test laws` writes the corpora anew.

mod samples;

use std::fs;
use std::path::{Path, PathBuf};

use barewire_inspect::{
    Application, DONE, Direction, Field, Inspector, InspectorConfig, NONE, Protocol, Reason,
    Segment, Transactions, Transport, Value, laws,
};
use laws::Laws;
use samples::Sample;

/// xorshift64*: enough to choose and to damage.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}

fn datagrams(sample: &Sample) -> Application {
    let mut inspector = Inspector::new(&InspectorConfig {
        flow_count_max: 1,
        page_count: 1,
        ..InspectorConfig::default()
    });
    let mut number = NONE;
    for (at, (from, bytes)) in sample.pieces().into_iter().enumerate() {
        let segment = Segment {
            transport: Transport::Udp,
            from,
            time_ns: 1000 + 250 * at as u64,
            ports: sample.ports,
            sequence: 0,
            is_syn: false,
            begins: None,
            payload: bytes,
            payload_len: bytes.len() as u32,
        };
        inspector.packet(&mut number, &segment);
    }
    inspector
        .end(&mut number, Application::clone)
        .unwrap_or(Application::EMPTY)
}

fn found(sample: &Sample) -> Application {
    match sample.transport {
        Transport::Tcp => laws::whole(&sample.pieces(), sample.ports),
        Transport::Udp => datagrams(sample),
    }
}

fn shown(application: &Application) -> String {
    format!("{application:?}").replace("\\\\", "\\")
}

fn by_name(name: &str) -> Application {
    let all = samples::all();
    let sample = all.iter().find(|sample| sample.name == name);
    found(sample.unwrap_or_else(|| panic!("no sample {name}")))
}

fn text(application: &Application, field: Field) -> String {
    match application.get(field) {
        Some(Value::Text { bytes, is_cut }) => {
            let end = if is_cut { "..." } else { "" };
            format!("{}{end}", bytes.escape_ascii())
        }
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Address(addr)) => addr.to_string(),
        Some(Value::Digest(sum)) => sum.iter().map(|byte| format!("{byte:02x}")).collect(),
        None => "-".into(),
    }
}

/// A sample, its protocol, and what is told of it.
type Case = (&'static str, &'static str, &'static [(Field, &'static str)]);

#[test]
fn every_sample_is_named_and_told() {
    use Field::*;
    let cases: &[Case] = &[
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
                (TlsSubject, "www.example.org"),
                (TlsIssuer, "Some Issuer"),
                (TlsNotBefore, "1709251199"),
                (TlsNotAfter, "4102358400"),
                (TlsSan, "www.example.org"),
                (TlsSanCount, "6"),
            ],
        ),
        (
            "tls-certificate-bare",
            "tls",
            &[
                (TlsSubject, "www.example.org"),
                (TlsSan, "-"),
                (TlsSanCount, "-"),
            ],
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
                (TlsSubject, "www.example.org"),
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
                (TlsSubject, "www.example.org"),
            ],
        ),
        (
            "socks-5-early",
            "socks5",
            &[
                (SocksTarget, "a.example"),
                (InnerProtocol, "tls"),
                (TlsSni, "a.example"),
                (TlsSubject, "www.example.org"),
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
                (TlsSubject, "www.example.org"),
            ],
        ),
        (
            "http-connect-pipelined",
            "http",
            &[
                (HttpPath, "/first"),
                (InnerProtocol, "tls"),
                (TlsSni, "a.example"),
                (TlsSubject, "www.example.org"),
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
    for (name, protocol, fields) in cases {
        let application = by_name(name);
        assert_eq!(
            application.protocol().name(),
            *protocol,
            "{name}: {application:?}"
        );
        for (field, expected) in *fields {
            assert_eq!(
                text(&application, *field),
                *expected,
                "{name}: {}",
                field.name()
            );
        }
    }
    let path = text(&by_name("http-long"), Field::HttpPath);
    assert!(path.starts_with("/xxx") && path.ends_with("x...") && path.len() == 259);
    assert_eq!(text(&by_name("http-long"), Field::HttpHost), "h");
}

/// Of what a client sends before the proxy's answer a bounded part is kept. What is behind it is a
/// gap, and the other direction is read all the same.
#[test]
fn what_is_sent_too_early_is_bounded() {
    let sample = samples::secured::impatient();
    let mut tried = Laws::default();
    for step in [1, 100, 5000] {
        let told = tried.cut(&sample.pieces(), sample.ports, step).application;
        assert_eq!(text(&told, Field::InnerProtocol), "tls");
        assert_eq!(text(&told, Field::TlsSni), "-");
        assert_eq!(text(&told, Field::TlsSubject), "www.example.org");
    }
}

/// Of six names four are told, in their order, and all are counted.
#[test]
fn the_first_names_of_a_certificate_are_listed() {
    let application = by_name("tls-certificate");
    let names = application
        .fields()
        .filter(|(field, _)| *field == Field::TlsSan);
    let names: Vec<_> = names.map(|(_, value)| value).collect();
    let address = |text: &str| Value::Address(text.parse().expect("an address"));
    let expected = [
        Value::text(b"www.example.org"),
        address("192.0.2.1"),
        Value::text(b"*.example.org"),
        address("2001:db8::1"),
    ];
    assert_eq!(names, expected);
    let mut json = Vec::new();
    assert!(barewire_inspect::json(&application, None, &mut json));
    let json = String::from_utf8(json).expect("UTF-8");
    let expected =
        r#""tls_not_before":"2024-02-29T23:59:59Z","tls_not_after":"2099-12-31T00:00:00Z""#;
    assert!(json.contains(expected), "{json}");
}

/// What one datagram between two ports of no service is taken for.
fn elsewhere(message: &[u8], port: u16) -> Protocol {
    let sample = Sample {
        name: "elsewhere",
        transport: Transport::Udp,
        ports: [40_000, port],
        pieces: vec![(Direction::Forward, message.to_vec())],
    };
    found(&sample).protocol()
}

/// Without a port that says so, DNS has to be valid to its last byte.
#[test]
fn messages_that_are_strictly_invalid_are_not_dns() {
    type Damage = (&'static str, fn(&mut Vec<u8>));
    let both: [Damage; 11] = [
        ("an opcode", |m| m[2] |= 0x08),
        ("the greatest opcode", |m| m[2] |= 0x78),
        ("the reserved bit", |m| m[3] |= 0x40),
        ("no question", |m| m[5] = 0),
        ("two questions", |m| m[5] = 2),
        ("type 0", |m| m[30] = 0),
        ("type 66", |m| m[30] = 66),
        ("class 2", |m| m[32] = 2),
        ("a label of 64 bytes", |m| m[12] = 64),
        ("a byte behind its end", |m| m.push(0)),
        ("its last byte missing", |m| m.truncate(m.len() - 1)),
    ];
    let query: [Damage; 6] = [
        ("an authoritative question", |m| m[2] |= 0x04),
        ("a truncated question", |m| m[2] |= 0x02),
        ("a question with recursion available", |m| m[3] |= 0x80),
        ("a question with an answer", |m| m[7] = 1),
        ("a question with an authority", |m| m[9] = 1),
        ("a question with three additional records", |m| m[11] = 3),
    ];
    let response: [Damage; 4] = [
        ("an answer more than there are", |m| m[7] += 1),
        ("an answer less than there are", |m| m[7] -= 1),
        ("65 answers", |m| m[7] = 65),
        ("a name that points to itself", |m| m[34] = 33),
    ];
    let of_query = both.iter().chain(&query);
    let of_query = of_query.map(|(what, damage)| (samples::dns_query(), what, damage));
    let of_response = both.iter().chain(&response);
    let of_response = of_response.map(|(what, damage)| (samples::dns_response(), what, damage));
    for (mut message, what, damage) in of_query.chain(of_response) {
        assert_eq!(elsewhere(&message, 9999), Protocol::Dns);
        assert_eq!(elsewhere(&message, 137), Protocol::Unknown, "NetBIOS");
        damage(&mut message);
        assert_eq!(elsewhere(&message, 9999), Protocol::Unknown, "{what}");
    }
}

/// All transactions of a sample, cut after `step` bytes, as JSON.
fn transactions(name: &str, step: usize) -> String {
    let all = samples::all();
    let sample = all
        .iter()
        .find(|sample| sample.name == name)
        .expect("the sample");
    let mut inspector = Inspector::new(&InspectorConfig {
        packet_count_max: u16::MAX,
        ..InspectorConfig::default()
    });
    let (mut number, mut next) = (NONE, [1_u32; 2]);
    for (at, (from, bytes)) in sample.pieces().into_iter().enumerate() {
        let step = match sample.transport {
            Transport::Tcp => step,
            Transport::Udp => bytes.len(),
        };
        for part in bytes.chunks(step) {
            let segment = Segment {
                transport: sample.transport,
                from,
                time_ns: 1000 + 250 * at as u64,
                ports: sample.ports,
                sequence: next[from as usize],
                is_syn: false,
                begins: None,
                payload: part,
                payload_len: part.len() as u32,
            };
            next[from as usize] += part.len() as u32;
            inspector.packet(&mut number, &segment);
        }
    }
    inspector.rest(&mut number);
    let (mut found, mut out) = (Vec::new(), Vec::new());
    let application = inspector.application(number).expect("a protocol");
    found.extend_from_slice(application.bytes().1);
    inspector
        .transactions(number)
        .unwrap_or_else(|| panic!("{name} {step} {application:?} {:?}", inspector.stats()))
        .put(&mut found);
    let whole = Application::from_bytes(application.protocol(), &found);
    let list = Transactions::of(&found).expect("what was put");
    assert!(barewire_inspect::json(&whole, None, &mut out));
    barewire_inspect::json_transactions(&whole, &list, &mut out);
    inspector.end(&mut number, |_| ());
    assert!(inspector.is_idle());
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn every_transaction_is_told() {
    let http = [
        r#"{"http_method":"GET","http_host":"h","http_path":"/one","http_status":200},"#,
        r#"{"http_method":"POST","http_host":"other","http_path":"/two","http_status":201},"#,
        r#"{"http_method":"HEAD","http_host":"h","http_path":"/three","http_status":404},"#,
        r#"{"http_method":"GET","http_path":"/four"}]}"#,
    ];
    for step in [1, 2, 3, 7, 40, 1000] {
        let told = transactions("http-many", step);
        // Of the first message alone: it has no agent.
        assert!(
            !told.contains("late") && told.contains(r#""transactions":4,"#),
            "{told}"
        );
        let (_, list) = told.split_once(r#""transaction":["#).expect("a list");
        assert_eq!(list, http.concat(), "every {step}");
    }
    let dns = [
        r#"{"dns_name":"www.example.org","dns_type":28,"dns_rcode":0,"dns_answers":3,"#,
        r#""dns_latency_ns":1250},"#,
        r#"{"dns_name":"two","dns_type":28,"dns_rcode":3,"dns_answers":0,"dns_latency_ns":750},"#,
        r#"{"dns_name":"unused","dns_type":16,"dns_rcode":3,"dns_answers":0},"#,
        r#"{"dns_name":"never","dns_type":1}]}"#,
    ];
    let told = transactions("dns-many", 1);
    let (_, list) = told.split_once(r#""transaction":["#).expect("a list");
    assert_eq!(list, dns.concat());
    let refused = transactions("http-connect-refused", 3);
    let expected =
        r#"{"http_method":"GET","http_host":"h","http_path":"/first","http_status":200}]}"#;
    assert!(refused.ends_with(expected), "{refused}");
    let rtsp = [
        r#"{"rtsp_method":"OPTIONS","rtsp_url":"rtsp://192.0.2.1/live","rtsp_status":200},"#,
        r#"{"rtsp_method":"SETUP","rtsp_url":"rtsp://192.0.2.1/live/1","rtsp_status":461},"#,
        r#"{"rtsp_method":"DESCRIBE","rtsp_url":"rtsp://192.0.2.1/live","rtsp_status":200},"#,
        r#"{"rtsp_method":"ANNOUNCE","rtsp_url":"rtsp://c/","rtsp_status":501},"#,
        r#"{"rtsp_method":"TEARDOWN","rtsp_url":"rtsp://192.0.2.1/live"}]}"#,
    ];
    for step in [1, 2, 3, 7, 40, 1000] {
        let told = transactions("rtsp", step);
        assert!(told.contains(r#""transactions":5,"#), "{told}");
        let (_, list) = told.split_once(r#""transaction":["#).expect("a list");
        assert_eq!(list, rtsp.concat(), "every {step}");
    }
    let proxied = transactions("http-connect", 5);
    assert!(proxied.contains(r#""inner_protocol":"tls""#), "{proxied}");
    assert!(proxied.contains(r#""tls_sni":"example.org""#), "{proxied}");
    assert!(proxied.starts_with(r#"{"protocol":"http","#), "{proxied}");
}

/// Of six requests at once four wait for their responses; those of the first two are known by
/// their order.
#[test]
fn pipelined_requests_have_their_own_responses() {
    let expected = [
        r#"{"http_method":"HEAD","http_path":"/1","http_status":201},"#,
        r#"{"http_method":"GET","http_path":"/2"},"#,
        r#"{"http_method":"GET","http_path":"/3","http_status":203},"#,
        r#"{"http_method":"GET","http_path":"/4","http_status":404},"#,
        r#"{"http_method":"GET","http_path":"/5","http_status":405},"#,
        r#"{"http_method":"GET","http_path":"/6","http_status":406}]}"#,
    ];
    for step in [1, 5, 1000] {
        let told = transactions("http-pipelined", step);
        assert!(told.contains(r#""transactions":6,"#), "{told}");
        let (_, list) = told.split_once(r#""transaction":["#).expect("a list");
        assert_eq!(list, expected.concat(), "every {step}");
    }
}

/// Of six questions at once four wait for their answers; the other two are told without.
#[test]
fn a_question_is_counted_once_however_late_its_answer_comes() {
    let told = transactions("dns-forwarder", 1);
    assert!(told.contains(r#""transactions":6,"#), "{told}");
    for name in ["a", "b", "c", "d", "e", "f"] {
        let name = format!(r#"{{"dns_name":"{name}","#);
        assert_eq!(told.matches(&name).count(), 1, "{name} of {told}");
    }
}

#[test]
fn it_makes_no_difference_where_a_stream_is_cut() {
    let mut tried = Laws::default();
    for sample in samples::all() {
        if sample.transport != Transport::Tcp {
            continue;
        }
        let (pieces, ports) = (sample.pieces(), sample.ports);
        let expected = tried.whole(&pieces, ports);
        let longest = pieces
            .iter()
            .map(|(_, bytes)| bytes.len())
            .max()
            .unwrap_or(0);
        for step in 1..=longest {
            let cut = tried.cut(&pieces, ports, step);
            assert_eq!(cut, expected, "{} every {step}", sample.name);
            // In two, of which the second comes first. Only what is short is kept.
            if longest <= 1500 || step > 500 {
                let turned = tried.turned(&pieces, ports, step);
                assert_eq!(turned, expected, "{} turned {step}", sample.name);
            }
        }
    }
}

#[test]
fn with_gaps_nothing_else_is_told() {
    let mut tried = Laws::default();
    let mut absorbed = 0;
    for sample in samples::all() {
        if sample.transport != Transport::Tcp {
            continue;
        }
        let (pieces, ports) = (sample.pieces(), sample.ports);
        let expected = tried.whole(&pieces, ports).application;
        let total: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        for at in 1..total {
            for len in [1, 7, 100] {
                let found = tried.with_gap(&pieces, ports, at, len);
                for (field, value) in found.fields() {
                    let is_known = expected.fields().any(|other| other == (field, value));
                    let name = sample.name;
                    assert!(is_known, "{name} without {len} at {at}: {}", shown(&found));
                }
                absorbed += usize::from(found.has(Field::Ja4) && sample.name == "tls");
            }
        }
    }
    // The random, the session and the key shares of a hello may be missing.
    assert!(absorbed > 1000, "{absorbed}");
}

#[test]
fn damaged_input_obeys_the_laws() {
    let mut tried = Laws::default();
    let mut rng = Rng(0x5eed);
    for sample in samples::all() {
        let pieces = sample.pieces();
        let input = [&[3][..], &laws::input_of(&pieces)].concat();
        for round in 0..150 {
            let mut damaged = input.clone();
            for _ in 0..1 + round % 4 {
                let at = rng.below(damaged.len());
                damaged[at] = match rng.below(3) {
                    0 => rng.next() as u8,
                    1 => damaged[at] ^ 1 << rng.below(8),
                    _ => [0, 0xff, 0x7f, 0x80][rng.below(4)],
                };
            }
            damaged.truncate(damaged.len() - rng.below(damaged.len() / 4));
            match sample.transport {
                Transport::Tcp => tried.stream(&damaged),
                Transport::Udp => tried.datagrams(&damaged),
            }
        }
    }
    let frames = samples::quic_frames();
    let pieces: Vec<_> = frames
        .iter()
        .map(|(from, bytes)| (*from, &bytes[..]))
        .collect();
    let input = laws::input_of(&pieces);
    for _ in 0..300 {
        let mut damaged = input.clone();
        for _ in 0..3 {
            let at = rng.below(damaged.len());
            damaged[at] = rng.next() as u8;
        }
        tried.quic(&damaged);
    }
}

/// Feeds one connection, in segments.
fn give(inspector: &mut Inspector, number: &mut u32, from: Direction, sequence: u32, bytes: &[u8]) {
    let segment = Segment {
        transport: Transport::Tcp,
        from,
        time_ns: 1,
        ports: [40_000, 80],
        sequence,
        is_syn: false,
        begins: None,
        payload: bytes,
        payload_len: bytes.len() as u32,
    };
    inspector.packet(number, &segment);
}

#[test]
fn slots_that_are_taken_are_counted() {
    let begin = |flow_count_max, page_count, beginning: &[u8]| {
        let mut inspector = Inspector::new(&InspectorConfig {
            flow_count_max,
            page_count,
            held_count_max: 1,
            ..InspectorConfig::default()
        });
        let mut numbers = [NONE; 3];
        for number in &mut numbers {
            give(&mut inspector, number, Direction::Forward, 1, beginning);
        }
        (inspector, numbers)
    };
    let (inspector, numbers) = begin(1, 3, b"GET /x HTTP/1.1\r\n");
    let stats = inspector.stats();
    assert_eq!(
        (stats.flows, stats.no_room_flow, stats.no_room_state),
        (3, 2, 0)
    );
    assert_eq!(numbers[1..], [DONE; 2]);

    // A page has room for several states of HTTP, and for one of TLS.
    let (inspector, _) = begin(3, 1, b"GET /x HTTP/1.1\r\n");
    assert_eq!(inspector.stats().no_room_state, 0);
    let (mut inspector, mut numbers) = begin(3, 1, b"\x16\x03\x01\x02\x00\x01");
    let stats = inspector.stats();
    assert_eq!(
        (stats.flows, stats.no_room_flow, stats.no_room_state),
        (3, 0, 2)
    );
    // A segment that comes too early is kept; of two the second has no room.
    give(
        &mut inspector,
        &mut numbers[0],
        Direction::Forward,
        100,
        b"late",
    );
    assert_eq!(inspector.stats().no_room_segment, 0);
    give(
        &mut inspector,
        &mut numbers[0],
        Direction::Forward,
        200,
        b"later",
    );
    assert_eq!(inspector.stats().no_room_segment, 1);
    let name = inspector.end(&mut numbers[0], |a| a.protocol().name());
    assert_eq!(name, Some("tls"));
    for number in &mut numbers[1..] {
        assert_eq!(inspector.end(number, |a| a.protocol().name()), Some("tls"));
    }
    assert!(inspector.is_idle());
    assert_eq!(
        (inspector.stats().imbalance(), inspector.stats().live),
        (0, 0)
    );
}

/// One slot for flows and two pages for decoders: each flow finds what the one before left behind.
#[test]
fn what_a_slot_held_before_is_not_told() {
    let all = samples::all();
    let alone: Vec<_> = all.iter().map(|sample| shown(&found(sample))).collect();
    let mut inspector = Inspector::new(&InspectorConfig {
        flow_count_max: 1,
        page_count: 2,
        ..InspectorConfig::default()
    });
    let mut random = Rng(0x5107);
    let mut told = 0;
    for _ in 0..4000 {
        let at = random.below(all.len());
        let sample = &all[at];
        let mut pieces = sample.pieces();
        // Some go away in the middle: their slots are left as they were.
        let is_whole = random.below(3) != 0;
        if !is_whole {
            pieces.truncate(1 + random.below(pieces.len()));
        }
        let (mut number, mut sequence) = (NONE, [1_u32; 2]);
        for (nth, (from, bytes)) in pieces.into_iter().enumerate() {
            let segment = Segment {
                transport: sample.transport,
                from,
                time_ns: 1000 + 250 * nth as u64,
                ports: sample.ports,
                sequence: sequence[from as usize],
                is_syn: false,
                begins: None,
                payload: bytes,
                payload_len: bytes.len() as u32,
            };
            sequence[from as usize] += bytes.len() as u32;
            inspector.packet(&mut number, &segment);
        }
        let application = inspector.end(&mut number, Application::clone);
        if is_whole && sample.transport == Transport::Tcp {
            let application = application.unwrap_or(Application::EMPTY);
            // Times differ by how the pieces are given; everything else is the same.
            let same = found(sample);
            assert_eq!(application.protocol(), same.protocol(), "{}", sample.name);
            let fields = |a: &Application| {
                let fields = a
                    .fields()
                    .filter(|(field, _)| *field != Field::DnsLatencyNs);
                fields
                    .map(|(f, v)| format!("{f:?} {v:?}"))
                    .collect::<Vec<_>>()
            };
            assert_eq!(fields(&application), fields(&same), "{}", sample.name);
            told += 1;
        } else if is_whole {
            let application = application.unwrap_or(Application::EMPTY);
            assert_eq!(shown(&application), alone[at], "{}", sample.name);
            told += 1;
        }
    }
    assert!(told > 1000);
    assert_eq!(inspector.stats().imbalance(), 0);
}

#[test]
fn budgets_hold() {
    let mut inspector = Inspector::new(&InspectorConfig::default());
    let mut number = NONE;
    for sequence in 1..1000 {
        let line = b"?ET /a HTTP/1.1\r\n";
        give(
            &mut inspector,
            &mut number,
            Direction::Forward,
            sequence,
            &line[..1],
        );
    }
    let stats = inspector.stats();
    assert_eq!(
        stats.packets,
        InspectorConfig::default().unknown_count_max.into()
    );
    assert_eq!((stats.live, stats.imbalance()), (0, 0));
}

/// Flows one after the other of which the answers are seen, but not the first question: what they
/// tell gives none of them a right to keep its state.
fn answers_alone(transport: Transport, port: u16, answer: impl Fn(u16) -> Vec<u8>) {
    let config = InspectorConfig {
        page_count: 4,
        ..InspectorConfig::default()
    };
    let mut inspector = Inspector::new(&config);
    let mut numbers = [NONE; 64];
    for number in &mut numbers {
        let mut sequence = 1;
        for nth in 0..config.packet_count_max + 5 {
            let payload = answer(nth);
            let is_question = transport == Transport::Udp && nth == 0;
            let segment = Segment {
                transport,
                from: match is_question {
                    true => Direction::Forward,
                    false => Direction::Reverse,
                },
                time_ns: 1,
                ports: [40_000, port],
                sequence,
                is_syn: false,
                begins: None,
                payload: &payload,
                payload_len: payload.len() as u32,
            };
            inspector.packet(number, &segment);
            sequence += payload.len() as u32;
        }
    }
    let stats = inspector.stats();
    let limit = stats.rejected[Reason::Limit as usize];
    assert_eq!(limit, stats.no_room_follow, "{stats:?}");
    let count = |number| inspector.transactions(number).map_or(0, |all| all.count);
    let most = u32::from(config.packet_count_max);
    let followed = numbers.iter().filter(|number| count(**number) > most);
    assert_eq!(followed.count() as u64 + limit, 64, "{stats:?}");
    // Others find a page.
    assert!(0 < limit && limit < 64, "{stats:?}");
    assert_eq!(stats.no_room_state, 0, "{stats:?}");
}

#[test]
fn flows_with_answers_alone_leave_half_of_the_pages_free() {
    answers_alone(Transport::Tcp, 80, |_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    answers_alone(Transport::Udp, 53, |nth| {
        let mut message = match nth {
            0 => samples::dns_query(),
            _ => samples::dns_response(),
        };
        message[..2].copy_from_slice(&nth.to_be_bytes());
        message
    });
}

#[test]
fn the_answer_to_a_long_upload_is_read() {
    let mut inspector = Inspector::new(&InspectorConfig::default());
    let mut number = NONE;
    let request = b"PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 7000000\r\n\r\n";
    give(&mut inspector, &mut number, Direction::Forward, 1, request);
    for piece in 0..1000 {
        let sequence = 1 + request.len() as u32 + piece * 1400;
        give(
            &mut inspector,
            &mut number,
            Direction::Forward,
            sequence,
            &[0; 1400],
        );
    }
    let answer = b"HTTP/1.1 201 Created\r\n\r\n";
    give(&mut inspector, &mut number, Direction::Reverse, 1, answer);
    let told = inspector.application(number).unwrap();
    assert_eq!(text(told, Field::HttpStatus), "201");
    assert_eq!(
        (inspector.stats().rejected, inspector.stats().packets),
        ([0; 8], 2)
    );
    // It is bounded all the same.
    let mut number = NONE;
    give(&mut inspector, &mut number, Direction::Forward, 1, request);
    for piece in 0..5000 {
        let sequence = 1 + request.len() as u32 + piece * 1400;
        give(
            &mut inspector,
            &mut number,
            Direction::Forward,
            sequence,
            &[0; 1400],
        );
    }
    assert!(number & DONE != 0);
}

#[test]
fn states_have_the_sizes_that_are_promised() {
    const { assert!(barewire_inspect::decode::PAGE_LEN <= 5120) };
    const { assert!(barewire_inspect::FLOW_LEN <= 704) };
    let config = InspectorConfig::default();
    assert!(config.memory_len() < 64 << 20, "{}", config.memory_len());
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target)
}

/// What each fuzz target starts from.
fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for sample in samples::all() {
        let ports = match sample.transport {
            Transport::Tcp => [443, 53, 25, 21, 5060, 9999].to_vec(),
            Transport::Udp => [443, 53, 123, 67, 5060, 5353, 9999, 137].to_vec(),
        };
        let choice = ports.iter().position(|port| *port == sample.ports[1]);
        let choice = choice.unwrap_or(5) as u8;
        let input = [&[choice | 3 << 3][..], &laws::input_of(&sample.pieces())].concat();
        let target = match (sample.name.split('-').next(), sample.transport) {
            (Some("tls"), _) => "tls",
            (Some("http" | "http2"), _) => "http",
            (Some("dns" | "mdns"), Transport::Udp) => "dns",
            (Some("quic"), _) => "quic",
            (_, Transport::Udp) => "dns",
            _ => "stream",
        };
        seeds.push((target, sample.name.to_owned(), input));
    }
    for (name, frames) in samples::quic_frame_orders() {
        let pieces: Vec<_> = frames
            .iter()
            .map(|(from, bytes)| (*from, &bytes[..]))
            .collect();
        seeds.push(("quic", name.into(), laws::input_of(&pieces)));
    }
    seeds
}

#[test]
fn the_fuzz_corpora_obey_the_laws() {
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        for (target, name, bytes) in seeds() {
            fs::create_dir_all(corpus(target)).unwrap();
            fs::write(corpus(target).join(name), bytes).unwrap();
        }
    }
    for (target, law) in [
        ("tls", laws::stream as fn(&[u8])),
        ("http", laws::stream),
        ("stream", laws::stream),
        ("dns", laws::datagrams),
        ("quic", laws::quic),
    ] {
        for entry in fs::read_dir(corpus(target)).unwrap() {
            law(&fs::read(entry.unwrap().path()).unwrap());
        }
        for (_, name, bytes) in seeds().iter().filter(|(of, ..)| *of == target) {
            let there = fs::read(corpus(target).join(name)).unwrap_or_default();
            assert!(
                there == *bytes,
                "{target}/{name} is not what is made here: BAREWIRE_BLESS=1 writes it anew"
            );
        }
    }
}
