//! Golden screens: `BAREWIRE_GOLDEN=write cargo test -p barewire-cli golden` rewrites them.

use std::path::PathBuf;

use super::*;
use port::{DropReason, QueueAccount};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

fn screen(picture: &Picture, width: u16, height: u16) -> ratatui::buffer::Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| picture.draw(frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(picture: &Picture, width: u16, height: u16) -> String {
    let buffer = screen(picture, width, height);
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn key(number: u16, protocol: u8) -> FlowKey {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(number.to_be_bytes());
    packet.extend([0, 9, 0, 8, 0, 0]);
    let mut config = flow::MeterConfig::new(flow::HashKey::from_seed(1));
    config.table.flow_count_max = 16;
    let mut meter = flow::Meter::new(&config).unwrap();
    let input = flow::Input {
        link: wire::LinkType::RAW,
        bytes: &packet,
        wire_len: packet.len() as u32,
        time_ns: 1,
        vlan: None,
        interface: 0,
    };
    let mut key = None;
    let mut sink = |record: &flow::Record, _| key = Some(*record.key());
    meter.observe(&input, &mut sink);
    meter.finish(&mut sink);
    key.expect("a flow")
}

fn end(addr: &str, port: Option<u16>) -> End {
    End {
        addr: addr.parse().unwrap(),
        port,
    }
}

/// A flow of each kind: widest addresses, IPv6, ICMP, decoded, ended.
fn rows() -> Vec<Row> {
    let row = |number: u16, protocol: &str, source: End, destination: End| Row {
        key: key(number, 17),
        protocol: protocol.into(),
        name: String::new(),
        source,
        destination,
        remark: String::new(),
        packets: [12_345_678, 7_654_321],
        bytes: [1 << 40, 1 << 30],
        rate_bps: Some([1_500_000_000, 999_949]),
        duration_ns: 3_723_000_000_000,
        is_ended: false,
    };
    let widest = |last: u16| end("255.255.255.255", Some(last));
    let mut rows = vec![
        row(1, "tcp", widest(65535), widest(65534)),
        row(
            2,
            "tls",
            end("2001:db8:1234:5678:9abc:def0:1234:5678", Some(54321)),
            end("2001:db8::1", Some(443)),
        ),
        row(
            3,
            "dns",
            end("10.0.0.1", Some(53124)),
            end("192.0.2.53", Some(53)),
        ),
        row(4, "icmp", end("10.0.0.1", None), end("198.51.100.7", None)),
        row(
            5,
            "wireguard",
            end("10.0.0.9", Some(51820)),
            end("203.0.113.5", Some(51820)),
        ),
    ];
    rows[1].name = "www.example.org".into();
    rows[1].rate_bps = Some([12_300, 987_654_321]);
    rows[2].name = "a-rather-long-name-of-a-question.example.net".into();
    rows[2].rate_bps = Some([640, 1_280]);
    rows[2].packets = [1, 1];
    rows[2].bytes = [80, 160];
    rows[2].duration_ns = 12_000_000;
    rows[3].remark = "type 8".into();
    rows[3].rate_bps = None;
    rows[4].is_ended = true;
    rows[4].rate_bps = None;
    rows
}

fn picture(queues: usize) -> Picture {
    let queue = |index: usize| QueueAccount {
        queue_index: index as u32,
        seen: 1_000_000,
        delivered: 1_000_000,
        ..QueueAccount::default()
    };
    let mut account = PortAccount {
        rx: (0..queues).map(queue).collect(),
        ..PortAccount::default()
    };
    account.rx[0].delivered -= 10;
    account.rx[0].dropped[DropReason::RingFull as usize] = 10;
    Picture {
        name: "eth0".into(),
        order: Order::Rate,
        facts: "native, zero-copy".into(),
        memory_len: 361_000_000,
        elapsed: Duration::from_secs(3723),
        pps: 1_234_567.0,
        bps: 987_654_321.0,
        new_per_s: 964.0,
        packets: 12_345_678,
        wire_bytes: 3 << 30,
        live: 500,
        capacity: 1000,
        history: (0..100).map(|n| (n * 7919 % 100) * 9_876_543).collect(),
        rows: rows(),
        account,
        ..Picture::default()
    }
}

/// Compares with a file in the directory of this one.
fn golden(name: &str, picture: &Picture, width: u16, height: u16) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/live/picture/golden")
        .join(format!("{name}-{width}x{height}.txt"));
    let now = text(picture, width, height);
    if std::env::var_os("BAREWIRE_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        return std::fs::write(path, now).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(wanted, now, "{}:\n{now}", path.display());
}

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (40, 20)];

#[test]
fn golden_flows() {
    for (width, height) in SIZES {
        golden("flows", &picture(16), width, height);
    }
}

#[test]
fn golden_help_and_queues() {
    let mut picture = picture(16);
    picture.by_queue = true;
    picture.order = Order::Bytes;
    for (width, height) in SIZES {
        golden("queues", &picture, width, height);
    }
    picture.has_help = true;
    for (width, height) in SIZES {
        golden("help", &picture, width, height);
    }
}

#[test]
fn golden_opened_flow() {
    let mut picture = picture(1);
    picture.opened = Some(Opened {
        title: "tls [2001:db8::2]:54321 → [2001:db8::1]:443".into(),
        fields: [
            ("start", "2026-11-23T12:00:00.123456789Z"),
            ("duration ns", "3723000000000"),
            ("packets", "12345678"),
            ("application server name", "www.example.org"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        history: vec![1_000_000; 5],
        ..Opened::default()
    });
    for (width, height) in SIZES {
        golden("opened", &picture, width, height);
    }
}

#[test]
fn golden_lists() {
    let mut picture = picture(1);
    picture.applications = vec![Entry {
        name: "tls".into(),
        remark: "recognised".into(),
        records: 12,
        packets: 3_000_000,
        bytes: [1 << 30, 0],
        ..Entry::default()
    }];
    let addr: IpAddr = "2001:db8:1234:5678:9abc:def0:1234:5678".parse().unwrap();
    picture.talkers = vec![Entry {
        name: addr.to_string(),
        addr: Some(addr),
        bytes: [1 << 20, 1 << 30],
        ..Entry::default()
    }];
    picture.refused[Reason::Complete as usize] = 7;
    picture.evicted = 3;
    for (shown, name) in Shown::ALL {
        picture.show(shown);
        for (width, height) in SIZES {
            if shown != Shown::Flows {
                golden(name, &picture, width, height);
            }
        }
    }
    assert_eq!(Shown::Networks.next(), Shown::Flows);
    // With enrichment files, entries replace the help.
    picture.has_origins = true;
    picture.networks = vec![Entry {
        name: "AS64500 Example".into(),
        remark: "network".into(),
        bytes: [1 << 30, 0],
        ..Entry::default()
    }];
    let text = text(&picture, 80, 24);
    assert!(text.contains("AS64500 Example") && text.contains("100.0 %"));
}

/// At any width from 34 columns up, numbers and IPv4 addresses are not cut.
#[test]
fn numbers_and_ipv4_addresses_are_whole_at_any_width() {
    let picture = picture(16);
    for width in 34..200 {
        let text = text(&picture, width, 60);
        for whole in ["255.255.255.255:65535", "255.255.255.255:65534"] {
            assert!(text.contains(whole), "{whole} at {width}:\n{text}");
        }
        for line in text.lines().take(3).skip(1) {
            for word in line.split_whitespace() {
                let is_number = word.starts_with(|c: char| c.is_ascii_digit());
                let known = [
                    "1.23", "987.65", "10", "12.3M", "3.0", "500", "964", "50", "344.3",
                ];
                assert!(
                    !is_number || known.contains(&word),
                    "{word} at {width}: {line}"
                );
            }
        }
        // Both rates of the first flow, complete.
        for rate in ["1.50G", "1.00M"] {
            assert!(text.contains(rate), "{rate} at {width}:\n{text}");
        }
    }
}

#[test]
fn rows_are_filtered_selected_and_named() {
    let mut picture = picture(1);
    let shows = |picture: &Picture, words: &str| text(picture, 80, 24).contains(words);
    assert!(shows(&picture, "255.255.255.255:65535") && shows(&picture, "192.0.2.53:53"));
    picture.filter = "192.0.2".into();
    assert!(!shows(&picture, "255.255.255.255") && shows(&picture, "192.0.2.53:53"));
    picture.filter = "EXAMPLE.org".into();
    assert!(shows(&picture, "tls") && shows(&picture, "filter: EXAMPLE.org"));
    picture.go(1);
    assert_eq!(picture.selected, Some(picture.rows[1].key));
    picture.filter.clear();
    picture.go(1);
    assert_eq!(picture.selected, Some(picture.rows[2].key));
    picture.go(-9);
    assert_eq!(picture.selected, Some(picture.rows[0].key));
    picture.has_names = true;
    assert!(shows(&picture, "www.example.org") && !shows(&picture, "2001:db8::1"));
    (picture.is_typing, picture.filter) = (true, "te".into());
    assert!(shows(&picture, "filter: te▏"));
}

#[test]
fn the_selected_flow_is_visible() {
    let mut picture = picture(1);
    let row = picture.rows[0].clone();
    picture.rows = (0..100)
        .map(|n| Row {
            key: key(n, 17),
            source: end("10.0.0.1", Some(10_000 + n)),
            ..row.clone()
        })
        .collect();
    for size in SIZES {
        picture.selected = None;
        for n in [0, 10, 60, 99] {
            picture.selected = Some(key(n, 17));
            let wanted = format!("10.0.0.1:{}", 10_000 + n);
            let text = text(&picture, size.0, size.1);
            assert!(text.contains(&wanted), "{wanted} at {size:?}\n{text}");
        }
    }
}

#[test]
fn colours_have_a_meaning_and_no_color_disables_them() {
    let mut picture = picture(1);
    let colours = |picture: &Picture| {
        let buffer = screen(picture, 80, 24);
        let cells = buffer.content.iter();
        let mut colours: Vec<Color> = cells.map(|cell| cell.fg).collect();
        colours.retain(|colour| *colour != Color::Reset);
        colours.sort_by_key(|colour| format!("{colour:?}"));
        colours.dedup();
        colours
    };
    assert_eq!(colours(&picture), []);
    picture.theme = Theme::colours();
    assert_eq!(
        colours(&picture),
        [
            Color::Blue,
            Color::Cyan,
            Color::DarkGray,
            Color::Green,
            Color::Red
        ]
    );
}

#[test]
fn any_screen_size_is_drawn() {
    for width in [1, 5, 20, 22, 28, 34, 79, 80, 81, 200] {
        for height in [1, 2, 5, 10, 24, 100] {
            for queues in [1, 3, 20] {
                let mut picture = picture(queues);
                picture.talkers = vec![Entry::default(); 40];
                picture.by_queue = queues == 3;
                for (shown, _) in Shown::ALL {
                    picture.show(shown);
                    text(&picture, width, height);
                }
                picture.opened = Some(Opened::default());
                text(&picture, width, height);
                picture.has_help = true;
                text(&picture, width, height);
            }
        }
    }
    text(&Picture::default(), 80, 24);
}
