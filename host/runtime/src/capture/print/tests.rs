//! Tests of a packet's text in each style; the lab compares it with tcpdump's.

use super::*;

/// A UDP packet from port 40000 to 53 with seven bytes of payload.
fn packet() -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    bytes.extend([
        0x45, 0xb8, 0, 35, 0, 9, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    bytes.extend([0x9c, 0x40, 0, 53, 0, 15, 0, 0]);
    bytes.extend(b"a\n\x01 \xffz.");
    bytes
}

fn held(bytes: &[u8], time_ns: u64) -> Held<'_> {
    Held {
        time_ns,
        cap_len: bytes.len() as u32,
        wire_len: bytes.len() as u32 + 100,
        interface: 0,
        outgoing: Some(true),
        vlan: None,
        bytes,
    }
}

const CONTEXT: Context<'_> = Context {
    link_type: 1,
    interface: "e\"th\\0\n",
    has_way: true,
};

const TIME_NS: u64 = 1_700_000_000_123_456_789;

fn text(style: Style, packets: &[Held<'_>]) -> String {
    let mut printer = Printer::new(style);
    for packet in packets {
        printer.packet(packet, &CONTEXT);
    }
    let (mut out, waiting) = (Vec::new(), printer.waiting());
    printer.flush(&mut out).unwrap();
    assert_eq!((out.len(), printer.waiting()), (waiting, 0));
    assert_eq!(printer.handed().packets(), packets.len() as u64);
    let bytes: u64 = packets.iter().map(|packet| u64::from(packet.cap_len)).sum();
    assert_eq!(printer.handed().captured_bytes(), bytes);
    assert_eq!(printer.handed().written_bytes(), waiting as u64);
    String::from_utf8(out).unwrap()
}

const LINE: &str = "IP 10.0.0.1.40000 > 10.0.0.2.53: UDP, length 7\n";

#[test]
fn timestamps_are_printed_in_each_style() {
    let bytes = packet();
    let later = TIME_NS + 61_000_000_500;
    let packets = [
        held(&bytes, TIME_NS),
        held(&bytes, later),
        held(&bytes, later + 7),
    ];
    let of = |time, nanoseconds| {
        let style = Style {
            time,
            nanoseconds,
            ..Style::default()
        };
        let text = text(style, &packets);
        let times = text.lines().map(|line| {
            let at = line.find("IP ").unwrap();
            line[..at].to_owned()
        });
        times.collect::<Vec<_>>()
    };
    assert_eq!(of(TimeStyle::None, true), ["", "", ""]);
    assert_eq!(
        of(TimeStyle::Epoch, false),
        [
            "1700000000.123456 ",
            "1700000061.123457 ",
            "1700000061.123457 "
        ]
    );
    assert_eq!(
        of(TimeStyle::Epoch, true),
        [
            "1700000000.123456789 ",
            "1700000061.123457289 ",
            "1700000061.123457296 "
        ]
    );
    assert_eq!(
        of(TimeStyle::Delta, true),
        [
            "00:00:00.000000000 ",
            "00:01:01.000000500 ",
            "00:00:00.000000007 "
        ]
    );
    assert_eq!(
        of(TimeStyle::SinceFirst, true),
        [
            "00:00:00.000000000 ",
            "00:01:01.000000500 ",
            "00:01:01.000000507 "
        ]
    );
    assert_eq!(
        of(TimeStyle::SinceFirst, false),
        ["00:00:00.000000 ", "00:01:01.000000 ", "00:01:01.000000 "]
    );
    // In the local time zone, by the system's own function.
    let local = |time_ns: u64| {
        let zone_s = sys::local_time::utc_offset_s(time_ns / 1_000_000_000);
        let time = Timestamp(time_ns.saturating_add_signed(i64::from(zone_s) * 1_000_000_000));
        let text = time.to_string();
        (text[..10].to_owned(), text[11..26].to_owned())
    };
    for (at, packet) in packets.iter().enumerate() {
        let (date, clock) = local(packet.time_ns);
        assert_eq!(of(TimeStyle::Clock, false)[at], format!("{clock} "));
        assert_eq!(of(TimeStyle::Date, false)[at], format!("{date} {clock} "));
    }
}

#[test]
fn line_numbers_and_lengths_are_printed() {
    let bytes = packet();
    let packets = [held(&bytes, TIME_NS)];
    let none = Style {
        time: TimeStyle::None,
        ..Style::default()
    };
    for (style, expected) in [
        (none, LINE.to_owned()),
        (
            Style {
                number: true,
                ..none
            },
            format!("    1  {LINE}"),
        ),
        (
            Style {
                lengths: true,
                ..none
            },
            format!("caplen 49, len 149, {LINE}"),
        ),
        (
            Style {
                verbose: true,
                ..none
            },
            "IP (tos 0xb8, ttl 64, id 9, offset 0, flags [none], proto UDP (17), length 35) \
             10.0.0.1.40000 > 10.0.0.2.53: UDP, length 7\n"
                .to_owned(),
        ),
        (
            Style { link: true, ..none },
            "02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype IPv4 (0x0800), length 149: \
             10.0.0.1.40000 > 10.0.0.2.53: UDP, length 7\n"
                .to_owned(),
        ),
        (
            Style {
                quick: true,
                ..none
            },
            LINE.to_owned(),
        ),
    ] {
        assert_eq!(text(style, &packets), expected, "{style:?}");
    }
    // TCP is printed shorter, and another transport by its number.
    for (protocol, expected) in [
        (6, "IP 10.0.0.1.40000 > 10.0.0.2.53: tcp 15\n"),
        (
            136,
            "IP 10.0.0.1.40000 > 10.0.0.2.53: ip-proto-136, length 7\n",
        ),
    ] {
        let mut bytes = packet();
        bytes[23] = protocol;
        if protocol == 6 {
            (bytes[16], bytes[17], bytes[46]) = (0, 55, 0x50);
            bytes.resize(14 + 55, 0);
        }
        let quick = Style {
            quick: true,
            ..none
        };
        assert_eq!(text(quick, &[held(&bytes, 0)]), expected);
    }
}

#[test]
fn bytes_are_dumped_below_a_line() {
    let bytes = packet();
    let packets = [held(&bytes, TIME_NS)];
    let of = |dump, dump_link| {
        let style = Style {
            time: TimeStyle::None,
            dump,
            dump_link,
            ..Style::default()
        };
        text(style, &packets)
    };
    assert_eq!(
        of(Dump::Hex, false),
        format!(
            "{LINE}\t0x0000:  45b8 0023 0009 0000 4011 0000 0a00 0001\n\
             \t0x0010:  0a00 0002 9c40 0035 000f 0000 610a 0120\n\t0x0020:  ff7a 2e\n"
        )
    );
    assert_eq!(
        of(Dump::HexText, true),
        format!(
            "{LINE}\t0x0000:  0200 0000 0002 0200 0000 0001 0800 45b8  ..............E.\n\
             \t0x0010:  0023 0009 0000 4011 0000 0a00 0001 0a00  .#....@.........\n\
             \t0x0020:  0002 9c40 0035 000f 0000 610a 0120 ff7a  ...@.5....a....z\n\
             \t0x0030:  2e                                       .\n"
        )
    );
    assert!(
        of(Dump::Text, false).ends_with("...@.5....a\n. .z.\n"),
        "{}",
        of(Dump::Text, false)
    );
}

#[test]
fn a_packet_is_printed_as_a_json_object() {
    let bytes = packet();
    let mut tagged = held(&bytes, TIME_NS);
    tagged.vlan = Some(Vlan {
        tpid: 0x8100,
        tci: 0x6005,
    });
    let style = Style {
        json: true,
        ..Style::default()
    };
    let text = text(style, &[held(&bytes, TIME_NS), tagged]);
    let lines: Vec<_> = text.lines().collect();
    let head = |number, lens: &str| {
        format!(
            r#"{{"type":"packet","number":{number},"time":"2023-11-14T22:13:20.123456789Z",{}{}"#,
            r#""time_ns":1700000000123456789,"interface":"e\"th\\0\u000a","#,
            format_args!(r#"{lens},"outgoing":true"#),
        )
    };
    let ends = concat!(
        r#","src":"10.0.0.1","dst":"10.0.0.2","ip_protocol":17"#,
        r#","src_port":40000,"dst_port":53,"summary":""#
    );
    let line = LINE.trim_end();
    let first = head(1, r#""cap_len":49,"wire_len":149"#);
    assert_eq!(lines[0], format!(r#"{first}{ends}{line}"}}"#));
    // The VLAN tag is inserted again.
    let second = head(2, r#""cap_len":53,"wire_len":153"#);
    assert!(
        lines[1].starts_with(&format!(r#"{second},"vlan":5{ends}"#)),
        "{}",
        lines[1]
    );
}

/// Many packets are written in chunks that a pipe accepts atomically, each of whole packets.
#[test]
fn output_is_written_in_whole_packets() {
    #[derive(Default)]
    struct Pieces(Vec<Vec<u8>>, usize);

    impl io::Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() == self.1 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let bytes = packet();
    let style = Style {
        time: TimeStyle::None,
        ..Style::default()
    };
    let mut printer = Printer::new(style);
    let handed = printer.handed();
    for at in 0..300 {
        printer.packet(&held(&bytes, at), &CONTEXT);
    }
    let mut pieces = Pieces(Vec::new(), 2);
    assert!(printer.flush(&mut pieces).is_err());
    let fit = WRITE_LEN / LINE.len();
    assert_eq!(pieces.0.len(), 2);
    for piece in &pieces.0 {
        assert_eq!(piece.len(), fit * LINE.len());
    }
    assert_eq!(
        handed.packets(),
        2 * fit as u64,
        "what was taken, and no more"
    );
    assert_eq!(printer.waiting(), 0);
    let mut pieces = Pieces(Vec::new(), 9);
    printer.packet(&held(&bytes, 0), &CONTEXT);
    printer.flush(&mut pieces).unwrap();
    assert_eq!(pieces.0.concat(), LINE.as_bytes());
}

#[test]
fn link_headers_are_printed_as_tcpdump_does() {
    let long = |head: &[u8]| [head, &[0x45; 40]].concat();
    let of = |link: u16, bytes: &[u8]| {
        let mut out = String::new();
        link_header(&mut out, LinkType(link), bytes, 60).unwrap();
        out
    };
    let mac = "02:00:00:00:00:07";
    let cooked = [0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0, 0x86, 0xdd];
    for (link, head, expected) in [
        (
            113,
            &cooked[..],
            format!("Out {mac} ethertype IPv6 (0x86dd), length 60: "),
        ),
        (0, &[0, 0, 0, 2], "AF IPv4 (2), length 60: ".into()),
        (108, &[30, 0, 0, 0], "AF IPv6 (30), length 60: ".into()),
        (0, &[0, 0, 0, 7], "AF ISO (7), length 60: ".into()),
        (0, &[0, 0, 0, 16], "AF AppleTalk (16), length 60: ".into()),
        (0, &[0, 0, 0, 23], "AF IPX (23), length 60: ".into()),
        (0, &[0, 0, 0, 99], "AF Unknown (99), length 60: ".into()),
        (
            104,
            &[0x0f, 0, 8, 0],
            "unicast, ethertype IPv4 (0x0800), length 60: ".into(),
        ),
        (
            104,
            &[0x8f, 0, 8, 6],
            "bcast, ethertype ARP (0x0806), length 60: ".into(),
        ),
        (50, &[0x77, 0], "length 60: ".into()),
        (50, &[0xff, 3, 0xc0, 0x21], "ff 03 60 LCP: ".into()),
        (
            50,
            &[0x0f, 0, 0x88, 0xcc],
            "unicast, ethertype LLDP (0x88cc), length 60: ".into(),
        ),
        (9, &[0, 0x57], "IP6 (0x0057), length 60: ".into()),
        (101, &[], "ip: ".into()),
        (228, &[], "ip: ".into()),
        (127, &[], "length 60: ".into()),
    ] {
        assert_eq!(of(link, &long(head)), expected, "{link} {head:x?}");
    }
    // The directions of a cooked capture, by packet type.
    for (kind, name) in ["In", "B", "M", "P", "Out", "?"].iter().enumerate() {
        let mut head = cooked;
        head[1] = kind as u8;
        assert!(of(113, &head).starts_with(&format!("{name:>3} {mac} ")));
        let two = [
            0x86, 0xdd, 0, 0, 0, 0, 0, 9, 0, 1, kind as u8, 6, 2, 0, 0, 0, 0, 7, 0, 0,
        ];
        let expected = format!("ifindex 9 {mac} ethertype IPv6 (0x86dd), length 60: ");
        assert_eq!(of(276, &two), expected);
    }
    for link in [0, 1, 9, 50, 104, 113, 276] {
        assert_eq!(of(link, &[]), "length 60: ", "cut short: {link}");
    }
}
