//! NetFlow 9 encoded and decoded.

use std::collections::HashMap;

use super::*;
use crate::sample::record;

const NOW_NS: u64 = 1_700_000_100_000_000_000;

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

/// Packets, bytes, records.
type Sums = (u64, u64, u64);

/// Sums of packets and bytes by IP version, and the sequence numbers.
fn read(messages: &[Vec<u8>]) -> (HashMap<u16, Sums>, Vec<u32>) {
    let mut templates: HashMap<u16, Vec<(u16, u16)>> = HashMap::new();
    let (mut sums, mut sequence) = (HashMap::new(), Vec::new());
    for message in messages {
        assert_eq!(short(message, 0), 9);
        sequence.push(u32::from_be_bytes(message[12..16].try_into().unwrap()));
        let (mut rest, mut count) = (&message[20..], 0);
        while !rest.is_empty() {
            let (id, len) = (short(rest, 0), usize::from(short(rest, 2)));
            assert_eq!(len % 4, 0);
            let mut set = &rest[4..len];
            rest = &rest[len..];
            if id == 0 {
                while set.len() >= 4 {
                    let fields = usize::from(short(set, 2));
                    let list = (0..fields).map(|n| (short(set, 4 + 4 * n), short(set, 6 + 4 * n)));
                    templates.insert(short(set, 0), list.collect());
                    set = &set[4 + 4 * fields..];
                    count += 1;
                }
            } else if let Some(fields) = templates.get(&id) {
                let width: usize = fields.iter().map(|(_, len)| usize::from(*len)).sum();
                for record in set.chunks_exact(width) {
                    let entry: &mut Sums = sums.entry(id).or_default();
                    let (mut at, mut port) = (0, 0);
                    for (field, len) in fields {
                        let value = &record[at..at + usize::from(*len)];
                        let value = value.iter().fold(0_u64, |n, b| n << 8 | u64::from(*b));
                        match field {
                            // Of ICMP only, and 139 of ICMPv6 only: as in the port.
                            32 => assert!(value == port && matches!(id, 257 | 259)),
                            139 => assert!(value == port && id == 259),
                            11 => port = value,
                            1 => entry.1 += value,
                            2 => entry.0 += value,
                            4 => assert!([6, 17, 50, 1, 58].contains(&value)),
                            136 => assert_eq!(value, EndReason::Idle as u64),
                            _ => {}
                        }
                        at += usize::from(*len);
                    }
                    entry.2 += 1;
                    count += 1;
                }
            } else if id == 1 {
                assert_eq!(short(set, 2), 4);
                count += 1;
            } else {
                count += 1;
            }
        }
        assert_eq!(short(message, 2), count);
    }
    (sums, sequence)
}

#[test]
fn encoded_records_are_read_back() {
    for len_max in [0, 512, 1400] {
        let mut encoder = Encoder::new(Config {
            domain: 9,
            message_len_max: len_max,
            extra: [
                "vlanId",
                "flowEndReason",
                "ingressInterface",
                "flowEndReason",
            ]
            .map(|name| Column::find(name).unwrap())
            .into(),
            extra_fields: ExtraFields::default(),
            sampling: 1,
            interface: 2,
            interfaces: Vec::new(),
        });
        let records: Vec<(Record, EndReason)> = (0..500)
            .map(|n| {
                let version = if n % 3 == 0 { 6 } else { 4 };
                let record = record(
                    version,
                    [6, 17, 50, if version == 4 { 1 } else { 58 }][n % 4],
                    [n as u32 % 5 + 1, n as u32 % 3],
                );
                (record, EndReason::Idle)
            })
            .collect();
        let mut messages = encoder.begin_session(NOW_NS);
        let mut rest = &records[..];
        while !rest.is_empty() {
            rest = &rest[encoder.take(rest)..];
            let message = encoder.message(NOW_NS).to_vec();
            assert!(message.len() <= len_max.max(MESSAGE_LEN_MIN));
            messages.push(message);
            encoder.next();
        }
        messages.extend(encoder.refresh(NOW_NS, &Statistics::default()));
        let (sums, sequence) = read(&messages);
        assert_eq!(sequence, (0..messages.len() as u32).collect::<Vec<_>>());
        for index in 0..NETFLOW9.len() {
            let of = records
                .iter()
                .filter(|(r, _)| netflow9_index(r.key()) == index);
            let (mut packets, mut bytes, mut sides) = (0, 0, 0);
            for (record, _) in of {
                packets += record.packets();
                bytes += record.bytes();
                sides += if record.is_one_way() { 1 } else { 2 };
            }
            assert_eq!(sums[&(FLOWS + index as u16)], (packets, bytes, sides));
        }
    }
}

/// The header has whole seconds, flows have milliseconds.
#[test]
fn times_are_exact() {
    let mut encoder = Encoder::new(Config {
        domain: 0,
        message_len_max: 1400,
        extra: Vec::new(),
        extra_fields: ExtraFields::default(),
        sampling: 1,
        interface: 0,
        interfaces: Vec::new(),
    });
    encoder.take(&[(record(4, 17, [3, 0]), EndReason::Idle)]);
    let message = encoder.message(NOW_NS + 777_000_000);
    let long = |at: usize| u64::from(u32::from_be_bytes(message[at..at + 4].try_into().unwrap()));
    let boot_ms = long(8) * 1000 - long(4);
    assert_eq!(boot_ms + long(24), 1_700_000_000_123);
    assert_eq!(boot_ms + long(28), 1_700_000_061_500);
}

/// Names are truncated to their field, and terminated.
#[test]
fn texts_have_a_fixed_length() {
    assert_eq!(text::<6>(""), [0; 6]);
    assert_eq!(&text::<6>("eth0"), b"eth0\0\0");
    assert_eq!(&text::<6>("eth10"), b"eth10\0");
    assert_eq!(&text::<6>("eth100"), b"eth10\0");
    assert!(pairs(&[(1, 2), (3, 4)]).eq([1, 2, 3, 4]));
    assert_eq!(numbers([0x102, 0x304].into_iter()), [1, 2, 3, 4]);
}
