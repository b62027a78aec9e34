//! Lengths at which a packet is just long enough, and states in which a decoder ends: RTP and RTCP,
//! RTSP, mail and file transfer, the names of a hello.

use super::*;
use Direction::{Forward, Reverse};

fn tcp(port: u16, pieces: &[(Direction, &[u8])]) -> Application {
    let mut tried = Laws::default();
    let ports = [40_000, port];
    let whole = tried.whole(pieces, ports);
    assert_eq!(tried.cut(pieces, ports, 1), whole);
    whole.application
}

fn udp(pieces: &[(Direction, Vec<u8>)]) -> Application {
    datagrams(&Sample {
        name: "",
        transport: Transport::Udp,
        ports: [40_000, 9999],
        pieces: pieces.to_vec(),
    })
}

/// An RTP packet (RFC 3550 section 5.1): the first byte, payload type, number, time and source, and
/// what follows the header.
#[derive(Clone)]
struct Rtp {
    first: u8,
    payload_type: u8,
    number: u16,
    clock: u32,
    source: u32,
    rest: Vec<u8>,
}

impl Rtp {
    fn new(number: u16) -> Rtp {
        Rtp {
            first: 0x80,
            payload_type: 8,
            number,
            clock: u32::from(number) * 160,
            source: 0x0102_0304,
            rest: vec![0xd5; 20],
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let head = [self.first, self.payload_type];
        let number = self.number.to_be_bytes();
        let [clock, source] = [self.clock, self.source].map(u32::to_be_bytes);
        [&head[..], &number, &clock, &source, &self.rest].concat()
    }
}

/// Whether four packets, each changed by this function, are RTP.
fn is_rtp(change: impl Fn(&mut Rtp, u16)) -> bool {
    let packet = |nth: u16| {
        let mut packet = Rtp::new(100 + nth);
        change(&mut packet, nth);
        (Forward, packet.bytes())
    };
    udp(&(0..4).map(packet).collect::<Vec<_>>()).protocol() == Protocol::Rtp
}

#[test]
fn an_rtp_packet_has_one_byte_of_payload_at_least() {
    for sources in 0..16_u8 {
        for words in [None, Some(0), Some(1), Some(7), Some(300)] {
            for padding in [None, Some(0), Some(1), Some(2), Some(9)] {
                let head = |packet: &mut Rtp| {
                    packet.first |= sources;
                    packet.rest = vec![5; 4 * usize::from(sources)];
                    if let Some(words) = words {
                        packet.first |= 0x10;
                        // The profile's part of an extension header is no length.
                        packet.rest.extend([0xbe, 0xde]);
                        packet.rest.extend(u16::to_be_bytes(words));
                        packet.rest.extend(vec![6; 4 * usize::from(words)]);
                    }
                };
                for payload_len in 0..3 {
                    let is_found = is_rtp(|packet, _| {
                        head(packet);
                        packet.rest.extend(vec![7; payload_len]);
                        if let Some(len) = padding {
                            packet.first |= 0x20;
                            packet
                                .rest
                                .extend(vec![0; usize::from(len).saturating_sub(1)]);
                            packet.rest.push(len);
                        }
                    });
                    // A packet with padding has at least the byte of its length.
                    let what = format!("{sources} {words:?} {padding:?} {payload_len}");
                    assert_eq!(is_found, payload_len != 0, "{what}");
                }
            }
        }
    }
    // Padding that is longer than the packet, and an extension that ends behind it.
    assert!(!is_rtp(|packet, _| {
        packet.first |= 0x20;
        packet.rest = vec![200; 20];
    }));
    assert!(!is_rtp(|packet, _| {
        packet.first |= 0x10;
        packet.rest = vec![0, 0, 0, 9, 1, 1, 1, 1];
    }));
}

#[test]
fn four_packets_of_one_stream_are_rtp() {
    assert!(is_rtp(|_, _| {}));
    for payload_type in 0..128_u8 {
        // Assigned by RFC 3551, or dynamic.
        let is_assigned = matches!(payload_type, 0 | 3..=18 | 25 | 26 | 28 | 31..=34 | 96..=127);
        let is_found = is_rtp(|packet, _| packet.payload_type = payload_type);
        assert_eq!(is_found, is_assigned, "{payload_type}");
        // The marker belongs to the packet, not to the stream. With it, 64 to 95 are RTCP.
        let is_found = is_rtp(|packet, nth| {
            packet.payload_type = payload_type | if nth == 2 { 0x80 } else { 0 };
        });
        assert_eq!(is_found, is_assigned, "{payload_type} with a marker");
    }
    for version in [0, 0x40, 0xc0] {
        assert!(!is_rtp(|packet, _| packet.first = version), "{version:#x}");
    }
    assert!(!is_rtp(|packet, _| packet.source = 0));
    assert!(!is_rtp(|packet, nth| packet.source += u32::from(nth == 3)));
    assert!(!is_rtp(
        |packet, nth| packet.payload_type = [8, 8, 8, 9][usize::from(nth)]
    ));
    for (step, is_near) in [
        (0, false),
        (1, true),
        (16, true),
        (17, false),
        (65_535, false),
    ] {
        // The last one has this distance.
        let is_found = is_rtp(|packet, nth| {
            if nth == 3 {
                packet.number = 102_u16.wrapping_add(step);
                packet.clock += 1;
            }
        });
        assert_eq!(is_found, is_near, "{step}");
    }
    for (ahead, is_near) in [(900_000, true), (900_001, false), (0, true)] {
        for is_back in [false, true] {
            let is_found = is_rtp(|packet, nth| {
                packet.clock = match (nth, is_back) {
                    (3, false) => 5_u32.wrapping_add(ahead),
                    (3, true) => 5_u32.wrapping_sub(ahead),
                    _ => 5,
                };
            });
            assert_eq!(is_found, is_near, "{ahead} {is_back}");
        }
    }
}

/// A flow is read for 24 datagrams; what may share it with RTP does not end it before.
#[test]
fn candidates_for_rtp_end() {
    let stun = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[3; 12]].concat();
    let zrtp = [&[0x10, 0, 0, 1][..], b"ZRTP", &[3; 12]].concat();
    let dtls = [&[22, 0xfe, 0xfd][..], &[3; 30]].concat();
    let rtcp = [&[0x81, 201, 0, 7][..], &[3; 28]].concat();
    let keepalive = vec![0; 4];
    let other = vec![7; 30];
    let cookie_of_none = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x43][..], &[3; 12]].concat();
    let dtls_of_none = [&[22, 0xfe, 0xfc][..], &[3; 30]].concat();
    for (between, belongs) in [
        (&stun, true),
        (&zrtp, true),
        (&dtls, true),
        (&rtcp, true),
        (&keepalive, true),
        (&other, false),
        (&cookie_of_none, false),
        (&dtls_of_none, false),
    ] {
        let mut pieces = vec![(Forward, Rtp::new(1).bytes()), (Forward, between.clone())];
        pieces.extend((2..5).map(|number| (Forward, Rtp::new(number).bytes())));
        let found = udp(&pieces).protocol() == Protocol::Rtp;
        assert_eq!(found, belongs, "{between:02x?}");
        // Once two packets agree, anything may come between.
        let (one, two) = (Rtp::new(0).bytes(), Rtp::new(1).bytes());
        pieces.splice(..1, [(Forward, one), (Forward, two)]);
        assert_eq!(udp(&pieces).protocol(), Protocol::Rtp, "{between:02x?}");
    }
    for count in [19, 20, 21] {
        let mut pieces = vec![(Forward, Rtp::new(1).bytes())];
        pieces.extend(vec![(Forward, keepalive.clone()); count]);
        pieces.extend((2..5).map(|number| (Forward, Rtp::new(number).bytes())));
        let found = udp(&pieces).protocol() == Protocol::Rtp;
        assert_eq!(found, count + 4 <= 24, "{count}");
    }
}

#[test]
fn parts_of_rtcp_have_their_least_lengths() {
    let part = |kind: u8, blocks: u8, words: u16, source: u8| {
        let mut bytes = vec![0x80 | blocks, kind];
        bytes.extend(words.to_be_bytes());
        bytes.extend([1, 2, 3, source]);
        bytes.resize(4 * (usize::from(words) + 1), 9);
        bytes
    };
    let is_rtcp = |parts: &[Vec<u8>]| {
        let found = udp(&[(Forward, parts.concat())]);
        assert!(!found.has(Field::RtpSsrc) || text(&found, Field::RtpSsrc) == "16909060");
        found.protocol() == Protocol::Rtcp
    };
    let description = part(202, 1, 3, 4);
    for blocks in [0, 1, 5, 31] {
        for (kind, least) in [(200, 6), (201, 1)] {
            let least = least + 6 * u16::from(blocks);
            let report = |words| part(kind, blocks, words, 4);
            assert!(
                is_rtcp(&[report(least), description.clone()]),
                "{kind} {blocks}"
            );
            assert!(is_rtcp(&[report(least + 1), description.clone()]));
            if least > 1 {
                assert!(!is_rtcp(&[report(least - 1), description.clone()]));
            }
        }
    }
    let report = part(201, 0, 1, 4);
    for kind in 195..=215 {
        // Description to extended report, and reports, may stand between.
        let between = vec![report.clone(), part(kind, 0, 8, 9), description.clone()];
        assert_eq!(is_rtcp(&between), (200..=207).contains(&kind), "{kind}");
    }
    // First a report, of version 2, from a source that describes itself.
    assert!(!is_rtcp(&[description.clone(), report.clone()]));
    assert!(!is_rtcp(std::slice::from_ref(&report)));
    assert!(!is_rtcp(&[report.clone(), part(202, 0, 3, 4)]));
    assert!(!is_rtcp(&[report.clone(), part(202, 1, 3, 5)]));
    let mut other = description.clone();
    other[0] = 0x41;
    assert!(!is_rtcp(&[report.clone(), other]));
    let mut cut = [report, description].concat();
    cut.pop();
    assert!(!is_rtcp(&[cut]));
}

const URL: &str = "rtsp://a/";

fn rtsp(client: &str, server: &str) -> Application {
    tcp(
        554,
        &[(Forward, client.as_bytes()), (Reverse, server.as_bytes())],
    )
}

#[test]
fn messages_of_rtsp_have_64_lines_and_bodies_of_their_length() {
    let request = |lines: usize| {
        let more = "A: b\r\n".repeat(lines.saturating_sub(2));
        format!("OPTIONS {URL} RTSP/1.0\r\n{more}User-Agent: me\r\n\r\n")
    };
    for (lines, agent) in [(2, "me"), (63, "me"), (64, "me"), (65, "-"), (200, "-")] {
        let found = rtsp(&request(lines), "");
        assert_eq!(text(&found, Field::RtspAgent), agent, "{lines}");
        // The other side is read all the same.
        let found = rtsp(&request(lines), "RTSP/1.0 200 OK\r\nServer: it\r\n\r\n");
        assert_eq!(text(&found, Field::RtspServer), "it", "{lines}");
    }
    // A body that contains what looks like a message; its length is in the header, or wrong.
    let fake = "RTSP/1.0 404 x\r\n\r\n";
    let real = "RTSP/1.0 201 x\r\n\r\n";
    for (len, status) in [(fake.len(), "201"), (0, "404"), (fake.len() - 5, "-")] {
        let head = format!("RTSP/1.0 100 x\r\nContent-Length: {len}\r\n\r\n");
        let found = rtsp("", &format!("{head}{fake}{real}"));
        assert_eq!(text(&found, Field::RtspStatus), status, "{len}");
    }
    // Media between messages: no bytes, one, and more than 255.
    for len in [0_u16, 1, 255, 256, 1000] {
        let [high, low] = len.to_be_bytes();
        let media = [&[b'$', 1, high, low][..], &vec![b'R'; len.into()]].concat();
        let server = [&media[..], &media, real.as_bytes()].concat();
        let found = tcp(554, &[(Reverse, fake.as_bytes()), (Reverse, &server)]);
        assert_eq!(text(&found, Field::RtspStatus), "404", "{len}");
        let request = format!("OPTIONS {URL} RTSP/1.0\r\nCSeq: 1\r\n\r\n");
        let answer = [&media[..], b"RTSP/1.0 203 x\r\nCSeq: 1\r\n\r\n"].concat();
        let pieces = [(Forward, request.as_bytes()), (Reverse, &answer)];
        assert_eq!(text(&tcp(554, &pieces), Field::RtspStatus), "203", "{len}");
    }
}

#[test]
fn status_lines_of_rtsp_have_three_digits() {
    for (line, status) in [
        ("RTSP/1.0 200 OK", "200"),
        ("RTSP/1.0 200", "200"),
        ("RTSP/2.0 551 x", "551"),
        ("RTSP/1.0 199 x", "-"),
        ("RTSP/1.0 100 x", "-"),
        ("RTSP/1.0 20 x", "-"),
        ("RTSP/1.0 2000 x", "-"),
        ("RTSP/1.0 2x0 x", "-"),
        ("RTSP/1.0", "-"),
    ] {
        let found = rtsp("", &format!("{line}\r\n\r\n"));
        assert_eq!(text(&found, Field::RtspStatus), status, "{line}");
    }
    // The final response follows a provisional one.
    let request = format!("PLAY {URL} RTSP/1.0\r\nCSeq: 8\r\n\r\n");
    let answers = "RTSP/1.0 100 x\r\nCSeq: 8\r\n\r\nRTSP/1.0 455 x\r\nCSeq: 8\r\n\r\n";
    assert_eq!(text(&rtsp(&request, answers), Field::RtspStatus), "455");
    // One of another request is not the first one's.
    let other = "RTSP/1.0 455 x\r\nCSeq: 9\r\n\r\n";
    assert_eq!(text(&rtsp(&request, other), Field::RtspStatus), "-");
}

/// A client's hello, by which a switch to TLS is seen.
fn hello() -> Vec<u8> {
    let samples = samples::all();
    let sample = samples.iter().find(|sample| sample.name == "tls").unwrap();
    sample.pieces[0].1.clone()
}

/// Whether a hello of the client is read as TLS after these lines, and the address of a mail that
/// comes in its place.
fn after(port: u16, lines: &[(Direction, &str)]) -> (bool, String) {
    let lines = lines.iter();
    let lines: Vec<(Direction, &[u8])> = lines.map(|(from, l)| (*from, l.as_bytes())).collect();
    let with = |last: &[u8]| {
        let pieces = [&lines[..], &[(Forward, last)]].concat();
        tcp(port, &pieces)
    };
    let has_name = with(&hello()).has(Field::TlsSni);
    (
        has_name,
        text(&with(b"MAIL FROM:<x@y>\r\n"), Field::MailFrom),
    )
}

#[test]
fn the_answer_to_starttls_decides_what_follows() {
    let smtp = |answer: &str| {
        let lines = [
            (Reverse, "220 a ESMTP\r\n"),
            (Forward, "EHLO me\r\nSTARTTLS\r\n"),
            (Reverse, answer),
        ];
        after(25, &lines)
    };
    let none = || "-".to_owned();
    // Replies to EHLO come before; those that refuse it end it.
    assert_eq!(smtp("250-a\r\n250 b\r\n220 go\r\n"), (true, none()));
    assert_eq!(smtp("250-a\r\n250 b\r\n"), (false, "x@y".into()));
    assert_eq!(smtp("454 not now\r\n"), (false, none()));
    assert_eq!(smtp("501 what\r\n"), (false, none()));
    // Neither is a reply.
    for line in ["22\r\n", "2x0 go\r\n", "\r\n", "go\r\n"] {
        assert_eq!(smtp(line), (false, "x@y".into()), "{line:?}");
    }
    // Without the command, the same reply means nothing.
    let greeting = [(Reverse, "220 a ESMTP\r\n"), (Reverse, "220 again\r\n")];
    assert_eq!(after(25, &greeting), (false, "x@y".into()));
}

#[test]
fn the_answers_of_pop3_imap_and_ftp_decide_likewise() {
    for (port, greeting, command, accepted, refused, other) in [
        (
            110,
            "+OK\r\n",
            "STLS\r\n",
            "+OK go\r\n",
            "-ERR no\r\n",
            "+O\r\n",
        ),
        (
            143,
            "* OK\r\n",
            "a STARTTLS\r\n",
            "a OK go\r\n",
            "a NO\r\n",
            "* OK b\r\n",
        ),
        (
            143,
            "* OK\r\n",
            "a starttls\r\n",
            "a ok\r\n",
            "a BAD x\r\n",
            "* BAD b\r\n",
        ),
        (
            21,
            "220 FTP\r\n",
            "AUTH TLS\r\n",
            "234 go\r\n",
            "534 no\r\n",
            "23\r\n",
        ),
        (
            21,
            "220 FTP\r\n",
            "AUTH TLS-C\r\n",
            "234\r\n",
            "431 no\r\n",
            "x34 go\r\n",
        ),
    ] {
        let answered = |answer: &str| {
            let lines = [(Reverse, greeting), (Forward, command), (Reverse, answer)];
            after(port, &lines).0
        };
        assert!(answered(accepted), "{command:?}");
        assert!(!answered(refused) && !answered(other), "{command:?}");
        // What was answered otherwise is still waited for.
        assert!(answered(&[other, accepted].concat()), "{command:?}");
    }
    // After a refusal FTP may ask again; GSSAPI is no TLS.
    let again = [
        (Reverse, "220 FTP\r\n"),
        (Forward, "AUTH TLS\r\n"),
        (Reverse, "500 no\r\n234 late\r\n"),
    ];
    assert!(!after(21, &again).0);
    let gss = [
        (Reverse, "220 FTP\r\n"),
        (Forward, "AUTH GSSAPI\r\n"),
        (Reverse, "234 go\r\n"),
    ];
    assert!(!after(21, &gss).0);
}

#[test]
fn the_lines_read_of_mail_and_file_transfer_are_64_for_each_side() {
    for (count, from) in [(61, "x@y"), (62, "x@y"), (63, "-"), (100, "-")] {
        let client = format!("EHLO me\r\n{}MAIL FROM:<x@y>\r\n", "NOOP\r\n".repeat(count));
        let server = b"220 a ESMTP\r\n".as_slice();
        let found = tcp(25, &[(Reverse, server), (Forward, client.as_bytes())]);
        assert_eq!(text(&found, Field::MailFrom), from, "{count}");
        assert_eq!(found.protocol(), Protocol::Smtp, "{count}");
    }
    // A server that greets like both is one of them once a command says so.
    for (command, protocol) in [
        ("USER x", Protocol::Ftp),
        ("FEAT", Protocol::Ftp),
        ("SYST", Protocol::Ftp),
        ("auth tls", Protocol::Ftp),
        ("USERS x", Protocol::Unknown),
        ("EHLO x", Protocol::Smtp),
        ("helo", Protocol::Smtp),
    ] {
        let server = b"220 welcome\r\n".as_slice();
        let line = format!("{command}\r\n");
        let found = tcp(9999, &[(Reverse, server), (Forward, line.as_bytes())]);
        assert_eq!(found.protocol(), protocol, "{command}");
    }
    // Paths are in angle brackets, if these are in order.
    for (line, address) in [
        ("MAIL FROM:<a@b> SIZE=1", "a@b"),
        ("mail from: <a@b>", "a@b"),
        ("MAIL FROM:<>", ""),
        ("MAIL FROM: a@b ", "a@b"),
        ("MAIL FROM:>a<", ">a<"),
        ("MAIL FROM", "-"),
    ] {
        let client = format!("EHLO me\r\n{line}\r\n");
        let server = b"220 a ESMTP\r\n".as_slice();
        let found = tcp(25, &[(Reverse, server), (Forward, client.as_bytes())]);
        let shown = match found.get(Field::MailFrom) {
            None => "-".to_owned(),
            Some(_) => text(&found, Field::MailFrom),
        };
        assert_eq!(shown, address, "{line}");
    }
}

/// A hello whose extension with the server's names has this content.
fn hello_with(names: &[u8]) -> Vec<u8> {
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let alpn = [&[0, 16][..], &sized(&sized(b"\x02h2"))].concat();
    let extensions = [&[0, 0][..], &sized(names), &alpn].concat();
    let body = [
        &[3, 3][..],
        &[9; 32],
        &[0, 0, 2, 0x13, 1, 1, 0],
        &sized(&extensions),
    ]
    .concat();
    let len = (body.len() as u32).to_be_bytes();
    let message = [&[1][..], &len[1..], &body].concat();
    [&[22, 3, 1][..], &sized(&message)].concat()
}

#[test]
fn names_of_servers_are_read_as_far_as_their_lengths_agree() {
    let entry = |kind: u8, len: u16, name: &[u8]| [&[kind][..], &len.to_be_bytes(), name].concat();
    let list = |entries: &[u8]| [&(entries.len() as u16).to_be_bytes()[..], entries].concat();
    let name = |bytes: &[u8]| entry(0, bytes.len() as u16, bytes);
    let long = vec![b'x'; 300];
    let most = String::from_utf8(vec![b'x'; 255]).unwrap();
    for (what, content, expected) in [
        ("a name", list(&name(b"a.example")), "a.example"),
        ("one letter", list(&name(b"a")), "a"),
        ("no letter", list(&name(b"")), "-"),
        ("no names", list(&[]), "-"),
        ("nothing", vec![], "-"),
        ("half a length", vec![0], "-"),
        ("another type", list(&entry(1, 1, b"a")), "-"),
        (
            "the first of two",
            list(&[name(b"a"), name(b"b")].concat()),
            "a",
        ),
        ("255 letters", list(&name(most.as_bytes())), most.as_str()),
        (
            "more than its extension",
            list(&entry(0, 200, b"abc")),
            "abc",
        ),
        ("less than its extension", list(&entry(0, 2, b"abc")), "ab"),
    ] {
        let hello = hello_with(&content);
        let found = tcp(443, &[(Forward, &hello)]);
        assert_eq!(text(&found, Field::TlsSni), expected, "{what}");
        // The next extension begins where this one ends.
        assert_eq!(text(&found, Field::TlsAlpn), "h2", "{what}");
    }
    let found = tcp(443, &[(Forward, &hello_with(&list(&name(&long))))]);
    assert_eq!(text(&found, Field::TlsSni), format!("{most}..."));
}

/// A gap in a body, up to all of it, is skipped; one byte more ends the side.
#[test]
fn gaps_in_bodies_of_rtsp() {
    let head = "RTSP/1.0 100 x\r\nContent-Length: 20\r\n\r\n";
    let server = format!("{head}{}RTSP/1.0 204 x\r\n\r\n", "x".repeat(20));
    for (at, len, status) in [
        (0, 20, "204"),
        (0, 1, "204"),
        (19, 1, "204"),
        (5, 10, "204"),
        (0, 21, "-"),
        (19, 2, "-"),
    ] {
        let pieces = [(Reverse, server.as_bytes())];
        let found = Laws::default().with_gap(&pieces, [40_000, 554], head.len() + at, len);
        assert_eq!(text(&found, Field::RtspStatus), status, "{len} from {at}");
    }
}
