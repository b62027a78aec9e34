//! All fields reported about every sample, and those reported at limits: lengths of more than one
//! byte, one less and one more than a limit.

use super::*;
use Direction::{Forward, Reverse};
use barewire_inspect::Decoders;
use barewire_inspect::identify::{Found, Identifier, StreamStart};

/// One line of JSON per sample: `tests/laws/reported.txt`, which `BAREWIRE_BLESS=1` rewrites.
#[test]
fn all_fields_of_each_sample() {
    let mut reported = Vec::new();
    for sample in samples::all() {
        let application = found(&sample);
        let mut json = Vec::new();
        let is_named = barewire_inspect::json(&application, None, &mut json);
        let json = String::from_utf8(json).unwrap();
        let line = if is_named { &json } else { "nothing" };
        let protocol = application.protocol().name();
        reported.push(format!("{}: {protocol} {line}\n", sample.name));
    }
    reported.sort_unstable();
    let reported = reported.concat();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/laws/reported.txt");
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        fs::write(&path, &reported).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    for (found, expected) in reported.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(reported.lines().count(), expected.lines().count());
}

fn tcp(port: u16, pieces: &[(Direction, &[u8])]) -> Application {
    let mut tried = Laws::default();
    let ports = [40_000, port];
    let whole = tried.whole(pieces, ports);
    // And byte by byte.
    assert_eq!(tried.cut(pieces, ports, 1), whole);
    laws::whole(pieces, ports)
}

fn udp(port: u16, pieces: &[(Direction, &[u8])]) -> Application {
    let pieces = pieces.iter().map(|(from, bytes)| (*from, bytes.to_vec()));
    datagrams(&Sample {
        name: "",
        transport: Transport::Udp,
        ports: [40_000, port],
        pieces: pieces.collect(),
    })
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

#[test]
fn dns_over_tcp_has_room_for_its_header() {
    let query = samples::dns_query();
    let named = |len: u16, bytes: &[u8]| {
        let bytes = [&len.to_be_bytes()[..], bytes].concat();
        tcp(53, &[(Forward, &bytes)]).has(Field::DnsName)
    };
    assert!(named(query.len() as u16, &query));
    for len in [0, 1, 11] {
        assert!(!named(len, &query), "{len}");
    }
    // By its first bytes it is not DNS at all.
    let identifier = Identifier::new(Decoders::ALL);
    for (len, is_dns) in [
        (0, false),
        (11, false),
        (12, true),
        (query.len() as u16, true),
    ] {
        let bytes = [&len.to_be_bytes()[..], &query].concat();
        let (found, _) = identifier.stream(&mut { StreamStart::NEW }, &bytes, [40_000, 53]);
        let name = match found {
            Found::Known(row) => row.row().name,
            _ => "",
        };
        assert_eq!(name == "dns", is_dns, "{len}: {found:?}");
    }
}

/// HASSH of lists longer than 255 bytes, and the limits of lists and packets.
#[test]
fn key_exchange_packets_of_ssh() {
    let long = format!("curve,{}", ["group-exchange"; 30].join(","));
    let lists = [&long, "rsa", "aes", "aes2", "mac", "mac2", "none", "zlib"];
    let kexinit = |lists: &[&str], packet_len: Option<u32>| {
        let mut body = vec![20];
        body.extend([9; 16]);
        for list in lists {
            body.extend((list.len() as u32).to_be_bytes());
            body.extend(list.as_bytes());
        }
        body.extend([0; 13]);
        let len = packet_len.unwrap_or(body.len() as u32 + 5);
        [
            b"SSH-2.0-x\r\n",
            &len.to_be_bytes()[..],
            &[4],
            &body,
            &[0; 4],
        ]
        .concat()
    };
    let hassh = |bytes: &[u8]| {
        let found = tcp(22, &[(Forward, bytes), (Reverse, bytes)]);
        assert_eq!(text(&found, Field::SshClient), "SSH-2.0-x");
        [text(&found, Field::Hassh), text(&found, Field::HasshServer)]
    };
    // By `md5sum` of the lists 0, 2, 4, 6 and 0, 3, 5, 7, joined by semicolons.
    let expected = [
        "59423684e6139eab08999912494244bb",
        "3bcb9f1ad69ee0a988d9cbb52933a361",
    ];
    assert_eq!(hassh(&kexinit(&lists, None)), expected);
    let sum_len: usize = lists.iter().map(|list| 4 + list.len()).sum();
    let least = (2 + 16 + sum_len) as u32;
    assert_eq!(hassh(&kexinit(&lists, Some(least))), expected);
    let none = ["-", "-"];
    // A list that exceeds its packet; an invalid packet.
    assert_eq!(hassh(&kexinit(&lists, Some(least - 1))), none);
    assert_eq!(hassh(&kexinit(&lists, Some(17))), none);
    assert_eq!(hassh(&kexinit(&lists, Some(35_001))), none);
    assert_eq!(hassh(&kexinit(&lists, Some(35_000))), expected);
    let mut other = kexinit(&lists, None);
    other[16] = 21;
    assert_eq!(hassh(&other), none);
}

/// The host key is in the reply to the key exchange, in the clear, and at most eight packets after
/// the algorithms.
#[test]
fn host_keys_of_ssh() {
    fn string(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
    }
    fn packet(payload: &[u8]) -> Vec<u8> {
        let len = payload.len() as u32 + 5;
        [&len.to_be_bytes()[..], &[4], payload, &[0; 4]].concat()
    }
    let kexinit = packet(&[&[20][..], &[9; 16], &[0; 45]].concat());
    let key = [string(b"ssh-ed25519"), string(&[7; 32])].concat();
    let reply = |kind: u8, key: &[u8]| {
        packet(
            &[
                &[kind][..],
                &string(key),
                &string(&[5; 32]),
                &string(b"signature"),
            ]
            .concat(),
        )
    };
    let keys = |packets: &[Vec<u8>]| {
        let server = [b"SSH-2.0-y\r\n".as_slice(), &kexinit, &packets.concat()].concat();
        let client = [b"SSH-2.0-x\r\n".as_slice(), &kexinit].concat();
        let found = tcp(22, &[(Forward, &client), (Reverse, &server)]);
        assert_eq!(text(&found, Field::HasshServer).len(), 32);
        [
            text(&found, Field::SshHostKey),
            text(&found, Field::SshHostKeySha256),
        ]
    };
    // By sha256sum and base64.
    let expected = ["ssh-ed25519", "gNSIRW+2Iyiuvsdp/bgjy38bvWHw6wQm3tuoXrl3WjQ"];
    let none = ["-", "-"];
    let ignore = packet(&[&[2][..], &string(b"x")].concat());
    assert_eq!(keys(&[reply(31, &key)]), expected);
    assert_eq!(keys(&[ignore.clone(), reply(33, &key)]), expected);
    // The group of a group exchange has the number of other replies.
    let group = packet(&[&[31][..], &string(&[0xff; 256]), &string(&[2])].concat());
    assert_eq!(keys(&[group, reply(33, &key)]), expected);
    let ignored = |count| [vec![ignore.clone(); count], vec![reply(31, &key)]].concat();
    assert_eq!(keys(&ignored(7)), expected);
    assert_eq!(keys(&ignored(8)), none);
    // Everything after NEWKEYS is encrypted.
    assert_eq!(keys(&[packet(&[21]), reply(31, &key)]), none);
    assert_eq!(keys(&[vec![0; 4], reply(31, &key)]), none);
    for bad in [
        &b""[..],
        b"\0\0\0",
        &string(b""),
        &string(&[b'a'; 65]),
        &string(b"a b"),
    ] {
        assert_eq!(keys(&[reply(31, bad)]), none, "{bad:?}");
        assert_eq!(
            keys(&[reply(31, bad), reply(31, &key)]),
            expected,
            "{bad:?}"
        );
    }
    // A key beyond its packet.
    let mut long = reply(31, &key);
    let len = long.len() as u32;
    long[6..10].copy_from_slice(&len.to_be_bytes());
    assert_eq!(keys(&[long]), none);
}

/// A server may send up to sixteen lines before its identification.
#[test]
fn lines_before_the_identification_of_ssh() {
    for (count, expected) in [
        (0, "SSH-2.0-x"),
        (15, "SSH-2.0-x"),
        (16, "SSH-2.0-x"),
        (17, "-"),
    ] {
        let banner = format!("{}SSH-2.0-x\r\n", "hello\r\n".repeat(count));
        let client = b"SSH-2.0-y\r\n".as_slice();
        let found = tcp(22, &[(Forward, client), (Reverse, banner.as_bytes())]);
        assert_eq!(text(&found, Field::SshServer), expected, "{count}");
    }
}

/// Which versions identify a datagram as QUIC by its first bytes.
#[test]
fn versions_of_quic() {
    let named = |version: u32| {
        let mut bytes = vec![0xc3];
        bytes.extend(version.to_be_bytes());
        bytes.extend(b"\x08first id\0\0\x44\xb0");
        bytes.resize(1250, 0x5a);
        udp(9999, &[(Forward, &bytes)]).protocol().name() == "quic"
    };
    for version in [
        1,
        0x6b33_43cf,
        0xff00_001d,
        0xff00_0020,
        0xface_b001,
        0xface_b00f,
        0x5130_3530,
        0x5430_3531,
        0x1a2a_3a4a,
    ] {
        assert!(named(version), "{version:#x}");
    }
    for version in [
        2,
        0x1234_5678,
        0xff01_0020,
        0xfe00_0020,
        0xfacf_b001,
        0xfbce_b001,
        0xface_b101,
        0x5131_3530,
        0x5130_2f30,
        0x5130_353a,
        0x5230_3530,
    ] {
        assert!(!named(version), "{version:#x}");
    }
}

/// Up to eight provisional responses may precede the final one; headers may have some
/// thousand lines.
#[test]
fn bounds_of_http() {
    for (count, status) in [(0, "204"), (7, "204"), (8, "204"), (9, "-")] {
        let answer = format!(
            "{}HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n".repeat(count)
        );
        let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".as_slice();
        let found = tcp(80, &[(Forward, request), (Reverse, answer.as_bytes())]);
        assert_eq!(text(&found, Field::HttpStatus), status, "{count}");
    }
    for (count, host) in [(0, "h"), (126, "h"), (127, "h"), (1_500, "h")] {
        let request = format!(
            "GET / HTTP/1.1\r\n{}Host: h\r\n\r\n",
            "A: b\r\n".repeat(count)
        );
        let found = tcp(80, &[(Forward, request.as_bytes())]);
        assert_eq!(text(&found, Field::HttpHost), host, "{count}");
    }
    for (line, status) in [
        ("HTTP/1.1 101 Switching", "101"),
        ("HTTP/1.0 599 x", "599"),
        ("HTTP/1.1 20 x", "-"),
        ("HTTP/1.1  200 x", "-"),
        ("HTTP/1.1 2000 x", "200"),
        ("HTTP/1.1 2x0 x", "-"),
    ] {
        let found = tcp(80, &[(Reverse, format!("{line}\r\n\r\n").as_bytes())]);
        assert_eq!(text(&found, Field::HttpStatus), status, "{line}");
    }
}

/// A gap within a body is skipped, one after it stops decoding.
#[test]
fn gaps_in_bodies_of_http() {
    let head = "POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 20\r\n\r\n".as_bytes();
    let next = b"GET /2 HTTP/1.1\r\nHost: h\r\n\r\n".as_slice();
    let bytes = [head, &[b'x'; 20], next].concat();
    let answer = b"HTTP/1.1 201 A\r\nContent-Length: 0\r\n\r\nHTTP/1.1 202 B\r\n\r\n".as_slice();
    let mut tried = Laws::default();
    for (at, len) in [
        (0, 20),
        (0, 1),
        (19, 1),
        (5, 10),
        (0, 21),
        (19, 2),
        (10, 11),
    ] {
        let pieces = [(Forward, &bytes[..]), (Reverse, answer)];
        let reported = tried.with_gap(&pieces, [40_000, 80], head.len() + at, len);
        assert_eq!(text(&reported, Field::HttpPath), "/1", "{at} {len}");
        assert_eq!(text(&reported, Field::HttpStatus), "201", "{at} {len}");
    }
}

/// CONNECT longer than the part that is kept, and lengths of more than one byte.
#[test]
fn long_packets_of_mqtt() {
    for len in [1, 63, 64, 65, 115, 146, 147, 300] {
        let name = vec![b'n'; len];
        let body = [&b"\0\x04MQTT\x04\x02\x01\x2c"[..], &sized(&name)].concat();
        let rest = match body.len() {
            len @ 0..128 => vec![len as u8],
            len => vec![len as u8 | 0x80, (len >> 7) as u8],
        };
        let packet = [&[0x10][..], &rest, &body].concat();
        let answer = b"\x20\x02\0\x04".as_slice();
        let found = tcp(1883, &[(Forward, &packet), (Reverse, answer)]);
        assert_eq!(text(&found, Field::MqttKeepAliveS), "300");
        assert_eq!(text(&found, Field::MqttReturnCode), "4");
        // 160 bytes of a packet are kept, and 64 of a name.
        let kept = len.min(64);
        let end = if kept < len { "..." } else { "" };
        let expected = format!("{}{end}", "n".repeat(kept));
        assert_eq!(text(&found, Field::MqttClientId), expected, "{len}");
    }
}

/// A sender report with blocks about others, followed by its description, identifies the flow at
/// once.
#[test]
fn compound_packets_of_rtcp() {
    let sender = |blocks: u8| {
        let len = 6 + 6 * u16::from(blocks);
        let mut bytes = vec![0x80 | blocks, 200];
        bytes.extend(len.to_be_bytes());
        bytes.extend([1, 2, 3, 4]);
        bytes.resize(4 * (usize::from(len) + 1), 7);
        bytes
    };
    let described = |source: u8| {
        let mut bytes = vec![0x81, 202, 0, 3, 1, 2, 3, source, 1, 2, b'a', b'b'];
        bytes.extend([0; 4]);
        bytes
    };
    for blocks in [0, 1, 2, 30] {
        let bytes = [sender(blocks), described(4)].concat();
        let found = udp(9999, &[(Forward, &bytes)]);
        assert_eq!(found.protocol().name(), "rtcp", "{blocks}");
        // Described is another; a block is missing; there is more.
        let other = [sender(blocks), described(5)].concat();
        assert_ne!(udp(9999, &[(Forward, &other)]).protocol().name(), "rtcp");
        let mut short = [sender(blocks), described(4)].concat();
        short[0] += 1;
        assert_ne!(udp(9999, &[(Forward, &short)]).protocol().name(), "rtcp");
        let more = [&bytes[..], &[1]].concat();
        assert_ne!(udp(9999, &[(Forward, &more)]).protocol().name(), "rtcp");
    }
}

#[test]
fn community_ids_are_printed() {
    let end = |addr: &str, port| (addr.parse().unwrap(), port);
    let id = barewire_inspect::community_id(0, 6, end("192.0.2.1", 1), end("198.51.100.7", 2));
    assert!(id.as_str().starts_with("1:") && id.as_str().len() == 30);
    assert_eq!(id.to_string(), id.as_str());
    assert_eq!(format!("{id:?}"), id.as_str());
}

/// A gap in a list that is not part of the hash, or in the cookie, is skipped; one in another list
/// is not.
#[test]
fn gaps_in_key_exchange_packets() {
    let lists = [
        "kex",
        "rsa,dss,ecdsa,ed25519",
        "aes",
        "aes2",
        "mac",
        "mac2",
        "none",
        "zlib",
    ];
    let mut bytes = b"SSH-2.0-x\r\n".to_vec();
    let body_len: usize = lists.iter().map(|list| 4 + list.len()).sum();
    bytes.extend((1 + 1 + 16 + body_len as u32 + 13).to_be_bytes());
    bytes.extend([0, 20]);
    let cookie_at = bytes.len();
    bytes.extend([9; 16]);
    let list_at = |nth: usize| {
        let before: usize = lists[..nth].iter().map(|list| 4 + list.len()).sum();
        cookie_at + 16 + before + 4
    };
    for list in lists {
        bytes.extend((list.len() as u32).to_be_bytes());
        bytes.extend(list.as_bytes());
    }
    bytes.extend([0; 13]);
    let pieces = [
        (Forward, &bytes[..]),
        (Reverse, b"SSH-2.0-y\r\n".as_slice()),
    ];
    let mut tried = Laws::default();
    let whole = text(
        &tried.whole(&pieces, [40_000, 22]).application,
        Field::Hassh,
    );
    assert_eq!(whole.len(), 32);
    let mut with_gap = |at, len| {
        let reported = tried.with_gap(&pieces, [40_000, 22], at, len);
        text(&reported, Field::Hassh)
    };
    for (at, len) in [(cookie_at + 1, 5), (list_at(1) + 2, 3), (list_at(3) + 1, 2)] {
        assert_eq!(with_gap(at, len), whole, "{at} {len}");
    }
    for (at, len) in [
        (list_at(0) + 1, 1),
        (list_at(2) + 1, 1),
        (list_at(1) + 2, 30),
    ] {
        assert_eq!(with_gap(at, len), "-", "{at} {len}");
    }
}

/// Unidentified datagrams do not hide the next one, up to a limit, and while they go in one
/// direction.
#[test]
fn unknown_datagrams_before_a_known_one() {
    let query = samples::dns_query();
    let noise = [9_u8; 40].as_slice();
    let named = |pieces: &[(Direction, &[u8])]| udp(9999, pieces).protocol().name();
    assert_eq!(named(&[(Forward, &query)]), "dns");
    assert_eq!(named(&[(Forward, noise), (Forward, &query)]), "dns");
    assert_eq!(
        named(&[(Forward, noise), (Reverse, noise), (Forward, &query)]),
        "unknown"
    );
}

/// An HTTP response in a datagram is SSDP only with its port.
#[test]
fn answers_of_ssdp() {
    let answer = b"HTTP/1.1 200 OK\r\nST: upnp:rootdevice\r\nSERVER: box\r\n\r\n".as_slice();
    assert_eq!(udp(1900, &[(Reverse, answer)]).protocol().name(), "ssdp");
    assert_ne!(udp(9999, &[(Reverse, answer)]).protocol().name(), "ssdp");
}

/// After DATA everything is message text.
#[test]
fn commands_of_smtp_end_with_data() {
    for (last, from) in [("NOOP", "x@y"), ("DATA", "-"), ("BDAT 20 LAST", "-")] {
        let client = format!("EHLO me\r\n{last}\r\nMAIL FROM:<x@y>\r\n");
        let server = b"220 mail.example ESMTP\r\n".as_slice();
        let found = tcp(25, &[(Reverse, server), (Forward, client.as_bytes())]);
        assert_eq!(text(&found, Field::MailFrom), from, "{last}");
    }
}

#[test]
fn counts_of_inspectors_add_up() {
    use barewire_inspect::InspectorStats;
    let of = |from: u64| {
        let mut stats = InspectorStats {
            packets: from + 1,
            flows: from + 2,
            done: from + 3,
            unfinished: from + 4,
            no_room_flow: from + 5,
            no_room_state: from + 6,
            no_room_segment: from + 7,
            no_room_follow: from + 8,
            live: from + 9,
            ..InspectorStats::default()
        };
        for (at, count) in stats.rejected.iter_mut().enumerate() {
            *count = from + 10 + at as u64;
        }
        stats
    };
    let mut sum = of(100);
    sum.add(&of(1000));
    let counts = [
        sum.packets,
        sum.flows,
        sum.done,
        sum.unfinished,
        sum.no_room_flow,
        sum.no_room_state,
        sum.no_room_segment,
        sum.no_room_follow,
        sum.live,
    ];
    assert_eq!(counts, std::array::from_fn(|at| 1102 + 2 * at as u64));
    for (at, count) in sum.rejected.iter().enumerate() {
        assert_eq!(*count, 1120 + 2 * at as u64);
    }
    let mut stats = InspectorStats::default();
    (stats.done, stats.unfinished, stats.rejected[0]) = (1, 2, 4);
    (stats.no_room_flow, stats.no_room_state, stats.flows) = (8, 16, 31);
    assert_eq!(stats.imbalance(), 0);
    stats.flows = 33;
    assert_eq!(stats.imbalance(), 2);
    stats.flows = 30;
    assert_eq!(stats.imbalance(), -1);
}
