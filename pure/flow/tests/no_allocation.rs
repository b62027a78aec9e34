//! Metering allocates nothing once a meter is created: not for packets, flows, their end, a full
//! table, or fragments.

use barewire_flow::{HashKey, Input, Level, Meter, MeterConfig, Record};
use wire::LinkType;

/// Ethernet, IPv4 and the start of UDP between two of 64 Ki hosts.
fn packet(number: u32, fragment: u16) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0, 0, 32]);
    bytes.extend((number as u16).to_be_bytes());
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, 17, 0, 0, 10, 0]);
    bytes.extend((number as u16).to_be_bytes());
    bytes.extend([10, 1, 0, 1]);
    bytes.extend([0x10, 0, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]);
    bytes
}

#[test]
fn nothing_is_allocated() {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 1000;
    config.datagram_count_max = 64;
    let mut meter = Meter::new(&config).unwrap();
    let packets: Vec<Vec<u8>> = (0..5000)
        .flat_map(|number| {
            // Whole; the last piece before the first; one whose first never comes.
            [(0, 0), (1, 2), (1, 0x2000), (2, 1)].map(|(id, piece)| packet(number * 3 + id, piece))
        })
        .collect();
    // The table of fragments is touched first by the first fragment, all at once.
    let mut ended = 0;
    let mut sink = |record: &Record, _| ended += record.packets();
    let counted = allocation_counter::measure(|| {
        for (at, bytes) in packets.iter().enumerate() {
            let input = Input {
                link: LinkType::ETHERNET,
                bytes,
                wire_len: bytes.len() as u32,
                time_ns: 1 + at as u64 * 10_000_000,
                vlan: None,
                interface: 0,
            };
            meter.observe(&input, &mut sink);
            if at % 100 == 0 {
                meter.tick(input.time_ns, &mut sink);
            }
        }
        meter.finish(&mut sink);
    });
    assert_eq!(counted.count_total, 0, "{} bytes", counted.bytes_total);
    assert_eq!(ended, packets.len() as u64);
    let stats = meter.stats();
    assert!(
        stats.fragments.joined > 0 && stats.fragments.orphans > 0,
        "{stats:?}"
    );
    assert!(
        stats
            .table
            .ended
            .iter()
            .filter(|count| **count != 0)
            .count()
            >= 2,
        "{stats:?}"
    );
}

/// IP in IP of which the inner UDP packet is in two fragments.
fn tunnelled(number: u16) -> [Vec<u8>; 2] {
    let inner = {
        let mut bytes = vec![0x45, 0, 0, 128, 0, 0, 0, 0, 64, 17, 0, 0, 10, 2];
        bytes.extend(number.to_be_bytes());
        bytes.extend([10, 3, 0, 1, 0x10, 0, 0, 53, 0, 108, 0, 0]);
        bytes.resize(128, 7);
        bytes
    };
    [(&inner[..64], 0x2000_u16), (&inner[64..], 8)].map(|(part, fragment)| {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 84];
        bytes.extend(number.to_be_bytes());
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([64, 4, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(part);
        bytes
    })
}

#[test]
fn putting_fragments_together_allocates_nothing() {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.level = Level::Inner;
    config.extra.bytes = true;
    config.table.flow_count_max = 1000;
    config.datagram_count_max = 64;
    let mut meter = Meter::new(&config).unwrap();
    // Of every fifth the rest is missing.
    let packets: Vec<Vec<u8>> = (0..2000_u16)
        .flat_map(|number| {
            let parts = tunnelled(number);
            let count = if number % 5 == 0 { 1 } else { 2 };
            parts.into_iter().take(count)
        })
        .collect();
    let mut ended = 0;
    let mut sink = |record: &Record, _| ended += record.packets();
    let counted = allocation_counter::measure(|| {
        for (at, bytes) in packets.iter().enumerate() {
            let input = Input {
                link: LinkType::ETHERNET,
                bytes,
                wire_len: bytes.len() as u32,
                time_ns: 1 + at as u64 * 10_000_000,
                vlan: None,
                interface: 0,
            };
            meter.observe(&input, &mut sink);
        }
        meter.finish(&mut sink);
    });
    assert_eq!(counted.count_total, 0, "{} bytes", counted.bytes_total);
    assert_eq!(ended, packets.len() as u64);
    assert_eq!(meter.stats().fragments.reassembled, 1600);
}
