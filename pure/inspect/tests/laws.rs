//! The laws of `inspect::laws` over conversations made here: as they are, cut at every byte, out of
//! order, with gaps, damaged; and over the fuzz corpora, which are made here.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-inspect --test laws` writes the corpora anew.

mod samples;

use std::fs;
use std::path::{Path, PathBuf};

use inspect::{
    Application, DONE, Direction, Field, Inspector, InspectorConfig, NONE, Segment, Transport,
    Value, laws,
};
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
        state_count_max: 1,
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

#[test]
fn it_makes_no_difference_where_a_stream_is_cut() {
    for sample in samples::all() {
        if sample.transport != Transport::Tcp {
            continue;
        }
        let (pieces, ports) = (sample.pieces(), sample.ports);
        let expected = laws::whole(&pieces, ports);
        let longest = pieces
            .iter()
            .map(|(_, bytes)| bytes.len())
            .max()
            .unwrap_or(0);
        for step in 1..=longest {
            let cut = laws::cut(&pieces, ports, step);
            assert_eq!(
                cut.bytes(),
                expected.bytes(),
                "{} every {step}",
                sample.name
            );
            // In two, of which the second comes first. Only what is short is kept.
            if longest <= 1500 || step > 500 {
                let turned = laws::turned(&pieces, ports, step);
                assert_eq!(
                    turned.bytes(),
                    expected.bytes(),
                    "{} turned {step}",
                    sample.name
                );
            }
        }
    }
}

#[test]
fn with_gaps_nothing_else_is_told() {
    let mut absorbed = 0;
    for sample in samples::all() {
        if sample.transport != Transport::Tcp {
            continue;
        }
        let (pieces, ports) = (sample.pieces(), sample.ports);
        let expected = laws::whole(&pieces, ports);
        let total: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        for at in 1..total {
            for len in [1, 7, 100] {
                let found = laws::with_gap(&pieces, ports, at, len);
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
                Transport::Tcp => laws::stream(&damaged),
                Transport::Udp => laws::datagrams(&damaged),
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
        laws::quic(&damaged);
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
    let begin = |flow_count_max, state_count_max| {
        let mut inspector = Inspector::new(&InspectorConfig {
            flow_count_max,
            state_count_max,
            held_count_max: 1,
            ..InspectorConfig::default()
        });
        let mut numbers = [NONE; 3];
        for number in &mut numbers {
            give(
                &mut inspector,
                number,
                Direction::Forward,
                1,
                b"GET /x HTTP/1.1\r\n",
            );
        }
        (inspector, numbers)
    };
    let (inspector, numbers) = begin(1, 3);
    let stats = inspector.stats();
    assert_eq!(
        (stats.flows, stats.no_room_flow, stats.no_room_state),
        (3, 2, 0)
    );
    assert_eq!(numbers[1..], [DONE; 2]);

    let (mut inspector, mut numbers) = begin(3, 1);
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
    let path = inspector.end(&mut numbers[0], |a| text(a, Field::HttpPath));
    assert_eq!(path.as_deref(), Some("/x"));
    for number in &mut numbers[1..] {
        assert!(inspector.end(number, |_| ()).is_none());
    }
    assert!(inspector.is_idle());
    assert_eq!(
        (inspector.stats().imbalance(), inspector.stats().live),
        (0, 0)
    );
}

/// One slot for flows and one for decoders: who comes next finds what the one before left behind.
#[test]
fn what_a_slot_held_before_is_not_told() {
    let all = samples::all();
    let alone: Vec<_> = all.iter().map(|sample| shown(&found(sample))).collect();
    let mut inspector = Inspector::new(&InspectorConfig {
        flow_count_max: 1,
        state_count_max: 1,
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

#[test]
fn the_answer_to_a_long_upload_is_read() {
    let mut inspector = Inspector::new(&InspectorConfig::default());
    let mut number = NONE;
    let request = b"PUT /a HTTP/1.1\r\nHost: h\r\n\r\n";
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
    assert_eq!((inspector.stats().done, inspector.stats().packets), (1, 2));
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
    const { assert!(inspect::decode::STREAM_STATE_LEN <= 5120) };
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
            (Some("quic"), _) => continue,
            (_, Transport::Udp) => "dns",
            _ => "stream",
        };
        seeds.push((target, sample.name.to_owned(), input));
    }
    let frames = samples::quic_frames();
    let pieces: Vec<_> = frames
        .iter()
        .map(|(from, bytes)| (*from, &bytes[..]))
        .collect();
    seeds.push(("quic", "frames".into(), laws::input_of(&pieces)));
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
        let mut count = 0;
        for entry in fs::read_dir(corpus(target)).unwrap() {
            law(&fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0, "no corpus of {target}");
    }
}
