//! What is not in a packet is not 0: ICMP types, and times.

use super::*;
use crate::encode::{csv, json};

fn icmp(kind: u8, code: u8) -> Vec<u8> {
    ipv4(
        1,
        2,
        1,
        1,
        0,
        &[&[kind, code, 0, 0, 0, 1, 0, 2][..], &[7; 20]].concat(),
    )
}

fn lines(records: &[Record]) -> Vec<String> {
    let line = |record: &Record| {
        let mut out = Vec::new();
        json::line(record, EndReason::Forced, &mut out);
        String::from_utf8(out).unwrap()
    };
    records.iter().map(line).collect()
}

#[test]
fn an_icmp_type_that_was_not_captured_is_unknown() {
    let reply = icmp(0, 0);
    let request = ipv4(2, 1, 1, 1, 0, &[8, 0, 0, 0, 0, 1, 0, 2]);
    let cut = |packet: &[u8], len: usize| packet[..len].to_vec();
    let packets = [
        cut(&icmp(8, 0), 34),
        reply.clone(),
        cut(&icmp(3, 1), 34),
        cut(&icmp(3, 3), 35),
        cut(&request, 35),
        icmp(3, 0),
    ];
    let mut meter = Meter::new(&config()).unwrap();
    let mut found = Vec::new();
    let mut sink = |record: &Record, _| found.push(*record);
    for (at, bytes) in packets.iter().enumerate() {
        let mut packet = input(bytes, S + at as u64);
        packet.wire_len = reply.len() as u32;
        meter.observe(&packet, &mut sink);
    }
    meter.finish(&mut sink);
    found.sort_by_key(Record::start_ns);
    let kinds: Vec<_> = found
        .iter()
        .map(|record| {
            let (key, from) = (record.key(), record.initiator());
            (record.packets(), key.icmp_type(from), key.icmp_code(from))
        })
        .collect();
    // The type of the request is enough to know that the reply answers it.
    let expected = [
        (2, None, None),
        (2, Some(8), Some(0)),
        (1, Some(3), None),
        (1, Some(3), Some(0)),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(meter.stats().without_ports[Reason::Truncated as usize], 2);
    let texts = lines(&found);
    assert!(!texts[0].contains("icmp_") && !texts[0].contains("_port"));
    assert!(texts[1].contains("\"icmp_type\":8,\"icmp_code\":0,"));
    assert!(texts[2].contains("\"icmp_type\":3,") && !texts[2].contains("icmp_code"));
    let mut line = Vec::new();
    csv::line(&found[0], EndReason::Forced, &mut line);
    let line = String::from_utf8(line).unwrap();
    assert!(line.contains(",1,10.0.0.1,10.0.0.2,,,,,0,"), "{line}");
    for (at, is_known) in [false, true, false, true].into_iter().enumerate() {
        let index = crate::element::standard_index(&found[at], false);
        let columns = crate::element::STANDARD[index].columns.iter();
        let mut names = columns.map(|column| column.field.element.name);
        assert_eq!(names.any(|name| name == "icmpTypeCodeIPv4"), is_known);
    }
}

#[test]
fn fragments_of_icmp_without_a_first_have_no_type() {
    let orphan = ipv4(1, 2, 1, 9, 3, &[0; 16]);
    let (found, _) = records(&config(), &[icmp(0, 0), orphan]);
    let kinds: Vec<_> = found
        .iter()
        .map(|record| record.key().icmp_type(record.initiator()))
        .collect();
    assert_eq!(kinds, [Some(8), None]);
    assert!(found[1].has_orphans());
}

#[test]
fn icmpv6_truncated_before_its_type_is_unknown() {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    packet.extend([0x60, 0, 0, 0, 0, 40, 58, 64]);
    packet.extend([0xfd; 32]);
    let mut meter = Meter::new(&config()).unwrap();
    let mut found = Vec::new();
    let mut sink = |record: &Record, _| found.push(*record);
    let mut short = input(&packet, S);
    short.wire_len = 94;
    meter.observe(&short, &mut sink);
    meter.finish(&mut sink);
    assert_eq!(found[0].key().ip_version(), 6);
    assert!(found[0].key().is_icmp());
    assert_eq!(found[0].key().icmp_type(found[0].initiator()), None);
    assert_eq!(found[0].key().addr(Side::A).to_string().len(), 39);
}

#[test]
fn packets_without_a_time_have_none_and_end_with_those_before_them() {
    let sent = |port: u16| ipv4(1, 2, 17, 1, 0, &udp(port, 53, 9));
    let mut config = config();
    config.extra.packet_count = 4;
    config.extra.timing = true;
    let mut meter = Meter::new(&config).unwrap();
    let mut found: Vec<(Record, EndReason, String)> = Vec::new();
    struct Lines<'a>(&'a mut Vec<(Record, EndReason, String)>);
    impl RecordSink for Lines<'_> {
        fn ended(&mut self, _: &Record, _: EndReason) {}

        fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
            let mut out = Vec::new();
            json::line_with(record, extra, reason, &mut out);
            self.0
                .push((*record, reason, String::from_utf8(out).unwrap()));
        }
    }
    let mut sink = Lines(&mut found);
    for (port, time_ns) in [
        (1, crate::NO_TIME_NS),
        (2, 1000 * S),
        (3, crate::NO_TIME_NS),
        (2, 1001 * S),
        (3, crate::NO_TIME_NS),
        // The second flow without times is as old as the packet before it.
        (4, 1020 * S),
        (3, crate::NO_TIME_NS),
        (5, 1100 * S),
    ] {
        let bytes = sent(port);
        let mut packet = input(&bytes, time_ns);
        packet.wire_len += 4;
        meter.observe(&packet, &mut sink);
        assert_eq!(meter.stats().imbalance(), 0);
    }
    meter.finish(&mut sink);
    found.sort_by_key(|(record, ..)| record.key().port(record.initiator()));
    let packets: Vec<_> = found
        .iter()
        .map(|(r, ..)| (r.packets(), r.is_untimed()))
        .collect();
    let expected = [(1, true), (2, false), (3, true), (1, false), (1, false)];
    assert_eq!(packets, expected);
    for (record, reason, text) in &found {
        let is_timed = !record.is_untimed();
        for name in ["start", "end", "duration_ns", "packet_times_us"] {
            assert_eq!(text.contains(&format!("\"{name}\":")), is_timed, "{text}");
        }
        assert!(!record.is_untimed() || !text.contains("gap_"), "{text}");
        if record.is_untimed() {
            assert_eq!((record.start_ns(), record.end_ns()), (0, 0));
            assert_eq!(*reason, EndReason::Idle);
        }
    }
}
