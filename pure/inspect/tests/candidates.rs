//! Flows that begin like RTP: which of them are inspected further.

use barewire_inspect::{
    DONE, Direction, Field, Inspector, InspectorConfig, NONE, Segment, Transport, Value,
};

/// Passes the datagrams of one side of a flow to an inspector; returns the flow's name, the
/// reported payload type, and the number of datagrams until it was done.
fn read(datagrams: &[Vec<u8>]) -> (&'static str, Option<u64>, usize) {
    let mut inspector = Inspector::new(&InspectorConfig {
        flow_count_max: 4,
        page_count: 4,
        ..InspectorConfig::default()
    });
    let mut flow = NONE;
    let mut count = 0;
    for payload in datagrams {
        if flow & DONE != 0 {
            break;
        }
        let segment = Segment {
            transport: Transport::Udp,
            from: Direction::Forward,
            time_ns: 1,
            ports: [50_000, 9999],
            sequence: 0,
            is_syn: false,
            begins: None,
            payload,
            payload_len: payload.len() as u32,
        };
        inspector.packet(&mut flow, &segment);
        count += 1;
    }
    let reported = inspector.end(&mut flow, |application| {
        let kind = match application.get(Field::RtpPayloadType) {
            Some(Value::Number(kind)) => Some(kind),
            _ => None,
        };
        (application.protocol().name(), kind)
    });
    let (name, kind) = reported.unwrap_or(("unknown", None));
    (name, kind, count)
}

/// A packet of a G.711 call.
fn packet(sequence: u8) -> Vec<u8> {
    let head = [0x80, 8, 0, sequence, 0, 0, sequence, 0, 1, 2, 3, 4];
    [&head[..], &[0xd5; 160]].concat()
}

#[test]
fn a_candidate_ends_at_the_first_unrelated_datagram() {
    let mut datagrams = vec![packet(1)];
    datagrams.extend(vec![vec![0xff; 100]; 30]);
    assert_eq!(read(&datagrams), ("unknown", None, 2));
}

#[test]
fn datagrams_that_share_a_flow_with_rtp_do_not_end_a_candidate() {
    let stun = [&b"\0\x01\0\0\x21\x12\xa4\x42"[..], &[7; 12]].concat();
    let zrtp = [&b"\x10\0\0\x01ZRTP\x09\x09\x09\x09"[..], &[7; 40]].concat();
    let feedback = b"\x81\xcd\0\x02\x01\x02\x03\x04\x05\x06\x07\x08".to_vec();
    let dtls = [&b"\x16\xfe\xfd\0\0"[..], &[0; 40]].concat();
    // Comfort noise of a type that RFC 3551 only reserves, and what keeps a NAT open.
    let mut noise = packet(2);
    noise[1] = 19;
    let alive = b"\r\n\r\n".to_vec();
    for other in [stun, zrtp, feedback, dtls, noise, alive] {
        let mut datagrams = vec![packet(1), other.clone(), other.clone()];
        datagrams.extend((3..=5).map(packet));
        let shown = other.escape_ascii();
        assert_eq!(read(&datagrams), ("rtp", Some(8), 6), "{shown}");
    }
}

/// Two matching packets are enough evidence to continue whatever follows.
#[test]
fn matching_packets_are_followed() {
    let mut datagrams = vec![packet(1), packet(2)];
    datagrams.extend(vec![vec![0xff; 100]; 3]);
    datagrams.extend([packet(3), packet(4)]);
    assert_eq!(read(&datagrams), ("rtp", Some(8), 7));
}
