//! Tests: samples are uniform and bounded, the filter is checked against packets outside the
//! sample, and IP is found.

use super::*;

/// A UDP packet over IPv4 to port 9, with a TTL.
fn packet(ttl: u8, source_port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 36, 1, 1, 0, 0, ttl, 17, 0, 0];
    packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(source_port.to_be_bytes());
    packet.extend([0, 9, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    packet
}

/// A capture file of packets that start with their IP headers, deleted on drop.
struct Capture(std::path::PathBuf);

impl Capture {
    fn new(name: &str, packets: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
        file.extend([0; 8]);
        file.extend(65_535u32.to_le_bytes());
        file.extend(101u32.to_le_bytes());
        for packet in packets {
            file.extend([0; 8]);
            file.extend([(packet.len() as u32).to_le_bytes(); 2].concat());
            file.extend(packet);
        }
        let name = format!("barewire-derive-{}-{name}.pcap", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, file).unwrap();
        Capture(path)
    }

    fn port(&self) -> String {
        format!("file:{}", self.0.display())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn good_packets_outside_the_sample_are_excluded() {
    let flood = Capture::new("flood", (0..3_000).map(|_| packet(64, 53)));
    // One in a hundred differs from the flood by its source port alone: a sample of 20 rarely
    // contains one.
    let good = (0..3_000).map(|i| packet(if i % 100 == 7 { 64 } else { 128 }, 54));
    let good = Capture::new("good", good);
    let files = [good.port()];
    let files = Files {
        flood: &flood.port(),
        good: &files,
    };
    let found = derive(&files, 20).unwrap();
    assert_eq!(found.flood.packets, 3_000);
    assert_eq!(found.flood.sampled, 20);
    assert_eq!(found.flood.matched, Some(3_000));
    assert_eq!(found.good.packets, 3_000);
    assert_eq!(found.good.matched, Some(0), "{:?}", found.derived);
    assert!(found.good.sampled < 3_000);
    let short = found.derived.short_expression().unwrap();
    assert!(short.contains("src port 53"), "{short}");
}

#[test]
fn a_flood_identical_to_good_packets_is_inseparable() {
    let file = Capture::new("same", (0..100).map(|_| packet(64, 53)));
    let port = file.port();
    let good = [port.clone()];
    let files = Files {
        flood: &port,
        good: &good,
    };
    let found = derive(&files, 1_000).unwrap();
    assert_eq!(found.derived.expression(), None);
    assert_eq!(found.flood.matched, Some(0));
    assert_eq!(found.derived.inseparable[0].good_count, 100);
    let empty = Capture::new("empty", []);
    let flood = &empty.port();
    let error = derive(&Files { flood, good: &[] }, 10).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn samples_are_bounded_and_uniform() {
    let mut sample = Sample::new(100);
    for number in 0..10_000u32 {
        sample.add(0, &number.to_be_bytes());
        assert!(sample.packets().len() <= 100);
    }
    let mut tenths = [0; 10];
    for packet in sample.packets() {
        let number = u32::from_be_bytes(packet.bytes.try_into().unwrap());
        tenths[number as usize / 1_000] += 1;
    }
    assert!(
        tenths.iter().all(|count| (2..=22).contains(count)),
        "{tenths:?}"
    );
    sample.add(1, &[9; 2_000]);
    assert!(
        sample
            .packets()
            .iter()
            .all(|packet| packet.bytes.len() <= 256)
    );
}

#[test]
fn ip_is_found_behind_each_link_header() {
    let ip = packet(64, 1);
    for (link_type, header, tags) in [
        (101, vec![], 0),
        (0, vec![2, 0, 0, 0], 0),
        (104, vec![0x0f, 0, 8, 0], 0),
        (113, [vec![0; 14], vec![8, 0]].concat(), 0),
        (276, [vec![8, 0], vec![0; 18]].concat(), 0),
        (1, [vec![0; 12], vec![8, 0]].concat(), 0),
        (1, [vec![0; 12], vec![0x81, 0, 0, 1, 8, 0]].concat(), 1),
        (
            1,
            [vec![0; 12], vec![0x88, 0xa8, 0, 1, 0x81, 0, 0, 1, 8, 0]].concat(),
            2,
        ),
    ] {
        let bytes = [&header[..], &ip].concat();
        assert_eq!(
            ip_packet(link_type, &bytes),
            Some((tags, &ip[..])),
            "{link_type}"
        );
        for len in 0..bytes.len() {
            let _ = ip_packet(link_type, &bytes[..len]);
        }
    }
    // ARP, and an unsupported link type.
    assert_eq!(ip_packet(113, &[0; 60]), None);
    assert_eq!(
        ip_packet(1, &[[0; 12].to_vec(), vec![8, 6], vec![0; 46]].concat()),
        None
    );
    assert_eq!(ip_packet(105, &[8; 60]), None);
}
