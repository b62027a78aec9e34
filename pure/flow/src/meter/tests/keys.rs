//! Packets of the same flow: parts of the key, levels, directions, sampling.

use super::*;

#[test]
fn vlans_split_flows_only_on_request() {
    let plain = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2));
    let mut tagged = plain[..12].to_vec();
    tagged.extend([0x81, 0, 0, 5]);
    tagged.extend(&plain[12..]);
    let packets = [plain, tagged.clone()];
    assert_eq!(records(&config(), &packets).0.len(), 1);
    let mut by_vlan = config();
    by_vlan.key_vlan = true;
    let (records, _) = records(&by_vlan, &packets);
    assert_eq!(records.len(), 2);
    assert_eq!(records[1].key().vlan(), [5, 0]);
    // A tag that the kernel took out is the outer one.
    let mut meter = Meter::new(&by_vlan).unwrap();
    let mut outside = input(&tagged, S);
    outside.vlan = Some(0x2009);
    meter.observe(&outside, &mut |_: &Record, _| panic!());
    meter.finish(&mut |r: &Record, _| assert_eq!(r.key().vlan(), [9, 5]));
}

#[test]
fn directions_are_separate_on_request() {
    let packets = [
        ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x12, 0)),
        ipv4(1, 2, 6, 2, 0, &tcp(5000, 80, 0x10, 100)),
        ipv4(2, 1, 6, 2, 0, &tcp(80, 5000, 0x11, 0)),
    ];
    let mut uniflow = config();
    uniflow.table.uniflow = true;
    let (records, _) = records(&uniflow, &packets);
    assert_eq!(records.len(), 2);
    let source = |record: &Record| record.key().port(record.initiator());
    // The sender is the source, not the initiator; its own FIN ends its flow.
    assert_eq!((source(&records[0]), source(&records[1])), (80, 5000));
    assert!(records[0].is_closed() && !records[1].is_closed());
    assert!(
        records
            .iter()
            .all(|r| r.is_uniflow() && r.reverse().packets == 0)
    );
}

#[test]
fn the_initiator_is_found_in_the_middle_of_a_connection() {
    let source = |packets: &[Vec<u8>]| {
        let (records, _) = records(&config(), packets);
        let record = records[0];
        (
            record.key().port(record.initiator()),
            record.is_initiator_known(),
        )
    };
    let data = ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x18, 5));
    let syn = ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x02, 0));
    let both = ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x12, 0));
    let high = ipv4(2, 1, 6, 1, 0, &tcp(8080, 5000, 0x18, 5));
    assert_eq!(source(std::slice::from_ref(&data)), (5000, false));
    assert_eq!(source(&[high]), (8080, false));
    assert_eq!(source(std::slice::from_ref(&syn)), (80, true));
    assert_eq!(source(&[both]), (5000, true));
    assert_eq!(source(&[data, syn]), (80, true));
}

/// IPv4 in GRE with a key, in IPv4.
fn tunnelled(key: u8, inner: &[u8]) -> Vec<u8> {
    let ip = &inner[14..];
    let gre = [&[0x20, 0, 8, 0, 0, 0, 0, key], ip].concat();
    ipv4(100, 101, 47, 1, 0, &gre)
}

#[test]
fn a_packet_in_a_tunnel_counts_at_the_requested_levels() {
    let inner = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2));
    let packets = [
        tunnelled(7, &inner),
        inner,
        tunnelled(8, &ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2))),
    ];
    let flows = |level: Level, by_tunnel: bool| {
        let mut config = config();
        config.level = level;
        config.key_extra.tunnel = by_tunnel;
        let mut meter = Meter::new(&config).unwrap();
        let mut flows = Vec::new();
        let mut sink = |r: &Record, _| flows.push((r.key().protocol(), r.packets(), r.bytes()));
        for bytes in &packets {
            meter.observe(&input(bytes, S), &mut sink);
        }
        meter.finish(&mut sink);
        let stats = meter.stats();
        assert_eq!(stats.imbalance(), 0);
        flows.sort_unstable();
        (flows, stats.twice)
    };
    assert_eq!(
        flows(Level::Outer, false),
        (vec![(17, 1, 30), (47, 2, 116)], 0)
    );
    assert_eq!(flows(Level::Inner, false), (vec![(17, 3, 90)], 0));
    assert_eq!(
        flows(Level::Both, false),
        (vec![(17, 3, 90), (47, 2, 116)], 2)
    );
    let by_tunnel = (vec![(17, 1, 30), (17, 1, 30), (17, 1, 30)], 0);
    assert_eq!(flows(Level::Inner, true), by_tunnel);
}

#[test]
fn rarer_parts_of_the_key_separate_flows() {
    let plain = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2));
    let mut mac = plain.clone();
    mac[11] = 9;
    let mut tos = plain.clone();
    tos[15] = 0xb8;
    let mut mpls = plain[..12].to_vec();
    mpls.extend([0x88, 0x47, 0, 0x12, 0x31, 64]);
    mpls.extend(&plain[14..]);
    let packets = [plain, mac, tos, mpls];
    let keys = |parts: KeyParts| -> Vec<KeyExtra> {
        let mut config = config();
        config.key_extra = parts;
        let flows = with_extras(&config, &packets);
        flows
            .iter()
            .map(|(_, extra)| *extra.get().key.unwrap())
            .collect()
    };
    let mac = keys(KeyParts {
        mac: true,
        ..KeyParts::default()
    });
    let (a, b) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let mut macs: Vec<_> = mac.iter().map(|key| key.mac).collect();
    for mac in &mut macs {
        mac.sort_unstable();
    }
    assert_eq!(macs, [[b, a], [b, [2, 0, 0, 0, 0, 9]]]);
    let tos = keys(KeyParts {
        traffic_class: true,
        ..KeyParts::default()
    });
    let classes: Vec<u8> = tos.iter().map(|key| key.traffic_class).collect();
    assert_eq!(classes, [0, 0xb8]);
    let mpls = keys(KeyParts {
        mpls: true,
        ..KeyParts::default()
    });
    let labels: Vec<u32> = mpls.iter().map(|key| key.mpls_label).collect();
    assert_eq!(labels, [0, 0x123]);
}

#[test]
fn packets_skipped_by_sampling_are_counted() {
    let packets: Vec<Vec<u8>> = (0..100)
        .map(|n| ipv4(1, 2, 17, 1, 0, &udp(n, 9, 2)))
        .collect();
    let mut config = config();
    config.sampling = Sampling::Count(10);
    let mut meter = Meter::new(&config).unwrap();
    let mut records = 0;
    for (at, bytes) in packets.iter().enumerate() {
        meter.observe(&input(bytes, S + at as u64), &mut |_: &Record, _| panic!());
    }
    meter.finish(&mut |_: &Record, _| records += 1);
    assert_eq!((records, meter.stats().unsampled), (10, 90));
    assert_eq!(meter.stats().imbalance(), 0);
}

#[test]
fn changing_the_sampling_keeps_parts_of_the_key() {
    let tagged = |id: u8| {
        let mut bytes = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 3));
        bytes.splice(12..12, [0x81, 0, 0, id]);
        bytes
    };
    for (key_vlan, sampling, flows, packets) in [
        (true, Sampling::All, 2, 20),
        (false, Sampling::All, 1, 20),
        (true, Sampling::Count(10), 1, 2),
        (false, Sampling::Count(10), 1, 2),
    ] {
        let mut config = config();
        config.key_vlan = key_vlan;
        let mut meter = Meter::new(&config).unwrap();
        meter.set_sampling(sampling);
        let mut ended = Vec::new();
        let mut sink = |record: &Record, _| ended.push(record.packets());
        for at in 0..20 {
            meter.observe(&input(&tagged(at % 2 + 1), S + u64::from(at)), &mut sink);
        }
        meter.finish(&mut sink);
        assert_eq!(ended.len(), flows, "{key_vlan} {sampling:?}");
        assert_eq!(
            ended.iter().sum::<u64>(),
            packets,
            "{key_vlan} {sampling:?}"
        );
    }
}
