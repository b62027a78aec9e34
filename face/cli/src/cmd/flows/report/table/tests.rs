//! Tests of the widest flows in terminals of several widths.

use super::*;
use flow::{Extra, HashKey, Input, Meter, MeterConfig, Record};

/// Flows of raw IP packets, the first with decoded fields.
fn flows() -> (Vec<Total>, KnownFlows) {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 64;
    let mut meter = Meter::new(&config).unwrap();
    let mut records = Vec::new();
    let mut sink = |record: &Record, _| records.push(*record);
    let mut v4 = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    v4.extend([255; 8]);
    v4.extend([255, 255, 255, 254, 0, 8, 0, 0]);
    let mut v6 = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
    v6.extend([0xfd; 16]);
    v6.extend([0xfe; 16]);
    v6.extend([0xc0, 0, 0x13, 0xc4, 0, 8, 0, 0]);
    for bytes in [&v4, &v6] {
        let input = Input {
            link: wire::LinkType::RAW,
            bytes,
            wire_len: bytes.len() as u32,
            time_ns: 1_700_000_000_123_456_789,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut sink);
    }
    meter.finish(&mut sink);
    let mut known = KnownFlows::default();
    let mut text = Vec::new();
    let mut found = inspect::Application::EMPTY;
    found.clear();
    flow::put_application(&found, &mut text);
    // Without decoders nothing is known.
    let extra = Extra {
        application: &text,
        ..Extra::default()
    };
    known.add(&records[0], &extra);
    assert!(known.is_empty());
    let mut totals: Vec<Total> = records.iter().map(Total::of).collect();
    for total in &mut totals {
        total.packets = [1_234_567_890_123, 98_765_432];
        total.bytes = [9_876_543_210_123, 123_456_789];
    }
    (totals, known)
}

#[test]
fn without_a_width_limit_nothing_is_omitted() {
    let (totals, known) = flows();
    let text = lines(&totals, &known, None).join("\n");
    for word in [
        "start",
        "2023-11-14T22:13:20.123456Z",
        "255.255.255.255:65535",
        "[fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd]:49152",
        "1234567890123",
    ] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
}

#[test]
fn the_widest_flows_fit_80_columns() {
    let (totals, known) = flows();
    for width in [80, 100, 120, 200] {
        let lines = lines(&totals, &known, Some(width));
        let text = lines.join("\n");
        assert!(
            lines.iter().all(|line| line.chars().count() <= width),
            "{width}:\n{text}"
        );
        assert!(text.contains("255.255.255.255:65535"), "{text}");
        assert!(text.contains("255.255.255.255:65534"), "{text}");
        assert!(text.contains(":49152") && text.contains("[fdfd:"), "{text}");
        let whole = text.contains("1234567890123") || text.contains("1.23T");
        assert!(whole, "{text}");
    }
}
