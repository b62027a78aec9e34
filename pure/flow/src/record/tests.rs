//! Records: compact fields, and what is derived from TCP. Also builds records for other tests.

use super::*;
use crate::key::Ports;
use crate::table::Headers;

/// Packets sent by one side, for tests of consumers of records.
pub(crate) struct Sent {
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) tcp_flags: u16,
    pub(crate) ttl: u8,
}

/// Adds them to a record, as packets of equal size.
pub(crate) fn add(record: &mut Record, side: Side, sent: &Sent) {
    let mut tcp_seq = 0;
    for nth in 0..sent.packets {
        let share = |sum: u64| {
            let count = u64::from(sent.packets);
            (sum / count + if nth == 0 { sum % count } else { 0 }) as u32
        };
        let packet = Observed {
            side,
            time_ns: if nth + 1 == sent.packets {
                sent.last_ns
            } else {
                sent.first_ns
            },
            bytes: share(sent.bytes),
            level: Headers {
                payload_len: share(sent.payload_bytes),
                tcp_flags: sent.tcp_flags,
                tcp_seq,
                is_tcp: true,
                ttl: sent.ttl,
                ..Headers::EMPTY
            },
            ..Observed::NONE
        };
        let moves = packet.level.payload_len + u32::from(sent.tcp_flags & FIN);
        tcp_seq += moves + u32::from(sent.tcp_flags >> 1 & 1);
        if nth == 0 {
            // The first one marks the start, even if it is the only one.
            record.add_any::<true>(&packet, 0);
            record.open(side, sent.first_ns);
        } else {
            record.add_any::<true>(&packet, 0);
        }
    }
}

const MS: u64 = 1_000_000;

fn key() -> (FlowKey, Side) {
    let ports = Ports {
        src: 5000,
        dst: 80,
        is_answer: false,
    };
    FlowKey::new(&[1; 16], &[2; 16], ports, 6, 6, false)
}

/// A connection from (side sends, flags, seq, payload, time in ms).
fn connection(segments: &[(bool, u16, u32, u32, u64)]) -> Record {
    let (key, client) = key();
    let mut record = Record::new(key, client, false, false);
    for &(is_client, flags, seq, len, ms) in segments {
        let packet = Observed {
            key,
            side: if is_client { client } else { client.other() },
            bytes: 60 + len,
            time_ns: 1_700_000_000_000 * MS + ms * MS,
            level: Headers {
                tcp_flags: flags,
                tcp_seq: seq,
                tcp_window: ms as u16 + 1,
                payload_len: len,
                is_tcp: true,
                ttl: 60,
                ..Headers::EMPTY
            },
            ..Observed::NONE
        };
        record.add_any::<true>(&packet, 0);
    }
    record
}

#[test]
fn the_handshake_and_duplicate_segments() {
    let (c, s) = (true, false);
    let record = connection(&[
        (c, SYN, 100, 0, 0),
        (s, SYN | ACK, 900, 0, 30),
        (c, ACK, 101, 0, 40),
        (c, ACK | PSH, 101, 10, 50),
        // Sent again, much later.
        (c, ACK | PSH, 101, 10, 300),
        // A hole, then what belongs there at once after it.
        (s, ACK, 1001, 100, 310),
        (s, ACK, 901, 100, 311),
        (s, ACK, 1101, 100, 312),
        // A keep-alive.
        (c, ACK, 110, 1, 2000),
        (c, FIN | ACK, 111, 0, 2100),
    ]);
    let (forward, reverse) = (record.forward(), record.reverse());
    assert_eq!(record.handshake_us(), Some(40_000));
    assert_eq!(
        (reverse.handshake_us, forward.handshake_us),
        (30_000, 10_000)
    );
    assert_eq!((forward.retransmissions, forward.out_of_order), (1, 0));
    assert_eq!((reverse.retransmissions, reverse.out_of_order), (0, 1));
    assert_eq!(forward.tcp_flags_first, SYN as u8);
    assert_eq!(forward.tcp_flags_last, (FIN | ACK) as u8);
    assert_eq!((forward.tcp_window, reverse.tcp_window), (1, 31));
    assert_eq!((reverse.len_min, reverse.len_max), (60, 160));
    assert!(!record.is_closed() && record.is_initiator_known());
}

#[test]
fn a_handshake_sent_twice_is_measured_from_the_last_one() {
    let record = connection(&[
        (true, SYN, 100, 0, 0),
        (true, SYN, 100, 0, 1000),
        (false, SYN | ACK, 900, 0, 1020),
        (true, ACK, 101, 0, 1025),
    ]);
    assert_eq!(record.handshake_us(), Some(25_000));
    assert_eq!(record.forward().retransmissions, 1);
    // In the middle of a connection there is none.
    let record = connection(&[(true, ACK, 1, 5, 0), (false, ACK, 9, 5, 3)]);
    assert_eq!(record.handshake_us(), None);
}

#[test]
fn round_trips_keep_eleven_bits() {
    for us in [1u64, 4095, 4096, 5_000, 123_456, 9_876_543, 134_000_000] {
        let mut side = Direction::EMPTY;
        side.set_handshake(us * 1000);
        let kept = u64::from(side.handshake_us());
        assert!(kept <= us && us - kept <= us >> 11, "{us}: {kept}");
    }
    let mut side = Direction::EMPTY;
    side.set_handshake(u64::MAX);
    assert!(side.handshake_us() > 134_000_000);
}

#[test]
fn sums_exceed_32_bits_and_saturate() {
    let (key, side) = key();
    let mut record = Record::new(key, side, false, false);
    let packet = Observed {
        key,
        side,
        bytes: u32::MAX,
        level: Headers {
            payload_len: u32::MAX,
            ..Headers::EMPTY
        },
        time_ns: 5,
        ..Observed::NONE
    };
    record.add_any::<true>(&packet, 0);
    let mut count = 1;
    while record.is_plain(&packet) {
        record.add_one::<true>(&packet, 0);
        count += 1;
    }
    assert_eq!(count, 32_769);
    assert_eq!(record.bytes(), count * u64::from(u32::MAX));
    assert!(!record.has_room(side, 1, 5, 5));
    // A time too far from the first.
    let late = Observed {
        time_ns: 6 + (1 << 47),
        ..packet
    };
    let mut record = Record::new(key, side, false, false);
    record.add_any::<true>(&packet, 0);
    assert!(!record.is_plain(&late) && !record.has_room(side, 1, late.time_ns, late.time_ns));
    // One before the first.
    let early = Observed {
        time_ns: 2,
        ..packet
    };
    assert!(!record.is_plain(&early) && record.has_room(side, 1, 2, 2));
    record.add_any::<true>(&early, 0);
    assert_eq!((record.start_ns(), record.end_ns()), (2, 5));
}

/// A later fragment of a segment has no TCP header, and does not clear the last flags.
#[test]
fn a_packet_without_flags_leaves_the_last_ones() {
    let (key, side) = key();
    let mut record = Record::new(key, side, false, false);
    let first = Observed {
        key,
        side,
        time_ns: 5,
        level: Headers {
            tcp_flags: ACK | PSH,
            is_tcp: true,
            ..Headers::EMPTY
        },
        ..Observed::NONE
    };
    record.add_any::<true>(&first, 0);
    let later = Observed {
        marks: FRAGMENT | LATER,
        level: Headers::EMPTY,
        ..first
    };
    record.add_one::<true>(&later, 0);
    assert_eq!(record.forward().tcp_flags_last, (ACK | PSH) as u8);
    record.add_one::<true>(&first, 0);
    assert_eq!(record.forward().tcp_flags_last, (ACK | PSH) as u8);
}

#[test]
fn the_counters_profile_leaves_the_rest_zero() {
    let (key, side) = key();
    let mut record = Record::new(key, side, false, false);
    let packet = Observed {
        key,
        side,
        bytes: 70,
        time_ns: 5,
        level: Headers {
            payload_len: 30,
            tcp_flags: ACK,
            ttl: 9,
            ..Headers::EMPTY
        },
        ..Observed::NONE
    };
    record.add_any::<false>(&packet, 0);
    let expected = Counters {
        packets: 1,
        bytes: 70,
        first_ns: 5,
        last_ns: 5,
        tcp_flags: ACK,
        ..Counters::default()
    };
    assert_eq!(record.forward(), expected);
}

/// The next sequence number is known once a segment has advanced it, whatever its value.
#[test]
fn the_next_sequence_number_is_known_after_the_first_segment() {
    let next = |segments: &[(bool, u16, u32, u32, u64)]| {
        let record = connection(segments);
        let (_, client) = key();
        [client, client.other()].map(|side| record.sides[side as usize].known_next_seq())
    };
    assert_eq!(next(&[(true, ACK, 0, 0, 0)]), [None, None]);
    assert_eq!(next(&[(true, ACK, 0, 10, 0)]), [Some(10), None]);
    assert_eq!(next(&[(true, SYN, 0, 0, 0)]), [Some(1), None]);
    assert_eq!(next(&[(true, FIN | ACK, 7, 3, 0)]), [Some(11), None]);
    let both = [(true, SYN, 99, 0, 0), (false, SYN | ACK, u32::MAX, 0, 1)];
    assert_eq!(next(&both), [Some(100), Some(0)]);
    let again = [
        (true, ACK, 0, 10, 0),
        (true, ACK, 10, 5, 1),
        (true, ACK, 0, 10, 900),
    ];
    assert_eq!(next(&again), [Some(15), None]);
}
