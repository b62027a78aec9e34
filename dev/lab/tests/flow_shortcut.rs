//! The meter's shortcut for plain packets against its full dissection: equal records, to the last
//! field, for all available captures.

use flow::{EndReason, HashKey, Input, Level, Meter, MeterConfig, Record};
use lab::corpus::{self, Packet};
use wire::LinkType;

#[path = "flow_shortcut/snap_length.rs"]
mod snap_length;

/// Every record of a run as sorted text, with times and end reason.
fn records(config: &MeterConfig, link: LinkType, packets: &[Packet], short: bool) -> Vec<String> {
    let mut meter = Meter::new(config).unwrap();
    if !short {
        meter.without_shortcut();
    }
    let mut reported: Vec<String> = Vec::new();
    let mut sink = |record: &Record, end: EndReason| {
        let (start, last) = (record.start_ns(), record.end_ns());
        reported.push(format!("{record:?} {start} {last} {end:?}"));
    };
    for (bytes, wire_len, time_ns) in packets {
        let input = Input {
            link,
            bytes,
            wire_len: *wire_len,
            time_ns: *time_ns,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut sink);
    }
    meter.finish(&mut sink);
    assert_eq!(meter.stats().imbalance(), 0);
    reported.sort_unstable();
    reported
}

#[test]
fn the_fast_path_agrees_with_the_dissection() {
    let corpus = corpus::captures();
    let (mut files, mut count) = (0, 0);
    for path in &corpus.files {
        let Some((link, packets)) = corpus::read(path, usize::MAX) else {
            continue;
        };
        for (level, uniflow) in [
            (Level::Outer, false),
            (Level::Inner, false),
            (Level::Inner, true),
            (Level::Both, false),
        ] {
            let mut config = MeterConfig::new(HashKey::from_seed(3));
            config.level = level;
            config.table.uniflow = uniflow;
            config.table.flow_count_max = 1 << 14;
            let short = records(&config, link, &packets, true);
            let whole = records(&config, link, &packets, false);
            let name = path.display();
            for (one, other) in short.iter().zip(&whole) {
                assert_eq!(one, other, "{name}: {level:?}, uniflow {uniflow}");
            }
            assert_eq!(short.len(), whole.len(), "{name}: {level:?}");
            count += short.len();
        }
        files += 1;
    }
    assert!(files >= corpus.at_least(697, 4), "{files} captures");
    assert!(count >= corpus.at_least(10_000, 50), "{count} records");
    eprintln!("{files} captures, {count} records");
}
