//! Timeouts split flows into records, but do not affect the decoders.

use barewire_flow::{EndReason, Extra, HashKey, Input, Meter, MeterConfig, Record, RecordSink};
use inspect::{Application, Field, Inspector, InspectorConfig, Protocol, Value};
use wire::LinkType;

const S: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * S;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

const REQUEST: &[u8] = b"GET /path HTTP/1.1\r\nHost: www.example.org\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

/// A TCP segment between two hosts: sender (0 the client), sequence number, flags, payload.
fn tcp(from: usize, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let ends = [[192, 0, 2, 1], [192, 0, 2, 2]];
    // Neither of these ports identifies the server.
    let ports = [40_000_u16, 50_000];
    let mut packet = vec![0x45, 0];
    packet.extend((40 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend([ends[from], ends[1 - from]].concat());
    packet.extend(ports[from].to_be_bytes());
    packet.extend(ports[1 - from].to_be_bytes());
    packet.extend(sequence.to_be_bytes());
    packet.extend([0, 0, 0, 1, 0x50, flags, 0x40, 0, 0, 0, 0, 0]);
    packet.extend(payload);
    packet
}

#[derive(Default)]
struct Reported(Vec<(u64, EndReason, Application)>);

impl RecordSink for Reported {
    fn ended(&mut self, record: &Record, reason: EndReason) {
        self.ended_with(record, &Extra::default(), reason);
    }

    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        let application = extra.application().unwrap_or(Application::EMPTY);
        self.0.push((record.packets(), reason, application));
    }
}

/// The records of packets, in the order in which they end.
fn reported(packets: &[(u64, Vec<u8>)], active_ns: u64) -> Reported {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 64;
    config.table.timeouts.active_ns = active_ns;
    config.extra.inspect_count = u8::MAX;
    let mut meter = Meter::new(&config).unwrap();
    let decoders = InspectorConfig {
        flow_count_max: 64,
        page_count: 8,
        held_count_max: 8,
        ..InspectorConfig::default()
    };
    meter.set_inspector(Box::new(Inspector::new(&decoders)));
    let mut reported = Reported::default();
    for (time_ns, bytes) in packets {
        let input = Input {
            link: LinkType::RAW,
            bytes,
            wire_len: bytes.len() as u32,
            time_ns: *time_ns,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut reported);
    }
    meter.finish(&mut reported);
    let counted: u64 = reported.0.iter().map(|(packets, ..)| packets).sum();
    assert_eq!(counted, packets.len() as u64);
    reported
}

fn handshake() -> Vec<(u64, Vec<u8>)> {
    vec![
        (START, tcp(0, 1000, SYN, b"")),
        (START + 1, tcp(1, 5000, SYN | ACK, b"")),
        (START + 2, tcp(0, 1001, ACK, b"")),
    ]
}

fn exchange(at_ns: u64) -> [(u64, Vec<u8>); 2] {
    [
        (at_ns, tcp(0, 1001, ACK, REQUEST)),
        (at_ns + 1, tcp(1, 5001, ACK, ANSWER)),
    ]
}

fn assert_http(application: &Application) {
    assert_eq!(application.protocol(), Protocol::Http, "{application:?}");
    let host = application.get(Field::HttpHost);
    assert_eq!(host, Some(Value::text(b"www.example.org")));
    let status = application.get(Field::HttpStatus);
    assert_eq!(status, Some(Value::Number(204)), "{application:?}");
}

#[test]
fn a_flow_is_decoded_when_data_arrive_after_the_active_timeout() {
    for probe in [&b""[..], b"\0"] {
        let mut packets = handshake();
        for second in (5..=310).step_by(5) {
            let at_ns = START + second * S;
            packets.push((at_ns, tcp(0, 1000, ACK, probe)));
            packets.push((at_ns + 1, tcp(1, 5001, ACK, b"")));
        }
        packets.extend(exchange(START + 315 * S));
        let reported = reported(&packets, 300 * S);
        assert_eq!(reported.0.len(), 2);
        assert_eq!(reported.0[0].1, EndReason::Active);
        assert_http(&reported.0[1].2);
    }
}

#[test]
fn a_packet_from_the_future_does_not_end_decoding() {
    let future_ns = 2_934_748_800 * S;
    for at in 1..5 {
        let mut packets = handshake();
        packets.extend(exchange(START + S));
        packets[at].0 = future_ns;
        let reported = reported(&packets, 300 * S);
        assert!(reported.0.len() > 1);
        // What is reported last is all that is known; the answer is not read where the whole table
        // was idle by that time.
        let last = &reported.0.last().unwrap().2;
        if at < 4 {
            assert_http(last);
        }
        let host = last.get(Field::HttpHost);
        assert_eq!(host, Some(Value::text(b"www.example.org")), "{last:?}");
    }
}

#[test]
fn a_timeout_within_a_request_loses_nothing() {
    for timeout_ns in [1, S, 2 * S, 10 * S, 100 * S] {
        let mut packets = handshake();
        for (at, byte) in REQUEST.iter().enumerate() {
            let sequence = 1001 + at as u32;
            packets.push((START + at as u64 * S, tcp(0, sequence, ACK, &[*byte])));
            if at == 20 {
                // Both came early: they wait for what is before them.
                packets.swap(at + 2, at + 3);
            }
        }
        packets.push((START + 100 * S, tcp(1, 5001, ACK, ANSWER)));
        // Of packets with payload 40 are looked at.
        let reported = reported(&packets, timeout_ns);
        let last = &reported.0.last().unwrap().2;
        assert_eq!(last.get(Field::HttpPath), Some(Value::text(b"/path")));
    }
}
