//! Laws of metering over a sample of all captures: records do not depend on batches, and timeouts
//! do not change sums. Laws about modified packets are in `flow_tunnels` and `flow_reshaped`.

use std::collections::BTreeMap;

use flow::{EndReason, HashKey, Input, Meter, MeterConfig, Record, Side, Timeouts};
use lab::corpus::{self, Packet};
use wire::LinkType;

/// Longer captures are skipped, so that the test takes seconds.
const PACKETS_MAX: usize = 4000;
/// One in this many captures of the large corpus.
const ONE_OF: usize = 4;

/// The sample: all captures of the repository, and some of the large corpus, selected by a hash of
/// their names.
pub fn sample() -> Vec<(String, LinkType, Vec<Packet>)> {
    let corpus = corpus::captures();
    let is_chosen = |name: &str| {
        let sum = name.bytes().fold(7_usize, |sum, byte| {
            sum.wrapping_mul(31) + usize::from(byte)
        });
        name.starts_with("lab-") || sum % ONE_OF == 0
    };
    let named = corpus.files.iter().map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (name.into_owned(), path)
    });
    let chosen = named.filter(|(name, _)| is_chosen(name));
    let sample: Vec<_> = chosen
        .filter_map(|(name, path)| {
            corpus::read(path, PACKETS_MAX).map(|(link, packets)| (name, link, packets))
        })
        .collect();
    assert!(sample.len() >= corpus.at_least(20, 2));
    sample
}

/// The records of packets, metered in batches of this size.
pub fn records(
    config: &MeterConfig,
    link: LinkType,
    packets: &[Packet],
    batch_len: usize,
) -> Vec<(Record, EndReason)> {
    let mut meter = Meter::new(config).unwrap();
    let mut reported = Vec::new();
    let mut sink = |record: &Record, end: EndReason| reported.push((*record, end));
    for batch in packets.chunks(batch_len) {
        for (bytes, wire_len, time_ns) in batch {
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
        meter.flush(&mut sink);
    }
    meter.finish(&mut sink);
    assert_eq!(meter.stats().imbalance(), 0);
    reported
}

pub fn config(seed: u64) -> MeterConfig {
    let mut config = MeterConfig::new(HashKey::from_seed(seed));
    config.table.flow_count_max = 1 << 14;
    config
}

pub fn as_text(records: &[(Record, EndReason)]) -> Vec<String> {
    let text = |(record, end): &(Record, EndReason)| {
        format!(
            "{record:?} {} {} {end:?}",
            record.start_ns(),
            record.end_ns()
        )
    };
    let mut all: Vec<String> = records.iter().map(text).collect();
    all.sort_unstable();
    all
}

#[test]
fn records_do_not_depend_on_batches_and_the_secret() {
    for (name, link, packets) in sample() {
        let expected = as_text(&records(&config(0), link, &packets, 256));
        for (seed, batch_len) in [(1, 1), (2, 2), (3, 7), (4, 64)] {
            let found = as_text(&records(&config(seed), link, &packets, batch_len));
            assert!(found == expected, "{name}: batches of {batch_len}");
        }
    }
}

/// Packets, bytes and payload by flow and side.
fn sums(records: &[(Record, EndReason)]) -> BTreeMap<String, [u64; 6]> {
    let mut sums = BTreeMap::new();
    for (record, _) in records {
        let sum: &mut [u64; 6] = sums.entry(format!("{:?}", record.key())).or_default();
        for (at, side) in [Side::A, Side::B].into_iter().enumerate() {
            let sent = record.sent_by(side);
            sum[3 * at] += sent.packets;
            sum[3 * at + 1] += sent.bytes;
            sum[3 * at + 2] += sent.payload_bytes;
        }
    }
    sums
}

#[test]
fn timeouts_do_not_change_sums() {
    let mut longest = config(0);
    longest.table.timeouts.active_ns = Timeouts::MAX_NS;
    longest.table.timeouts.set_idle_ns(Timeouts::MAX_NS);
    for (name, link, packets) in sample() {
        let expected = sums(&records(&longest, link, &packets, 256));
        for timeout_ns in [1, 1_000_000, 1_000_000_000, 60_000_000_000] {
            let mut short = config(1);
            short.table.timeouts.active_ns = timeout_ns;
            short.table.timeouts.set_idle_ns(timeout_ns);
            let found = sums(&records(&short, link, &packets, 64));
            assert!(found == expected, "{name}: timeouts of {timeout_ns} ns");
        }
    }
}
