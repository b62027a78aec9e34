//! The client is the same however directions are recorded: a uniflow meter records for each
//! direction what a biflow contains of it.

use barewire_flow::{EndReason, Extra, HashKey, Input, Meter, MeterConfig, Record, RecordSink};
use inspect::{Application, Field, Inspector, InspectorConfig, Protocol};
use wire::LinkType;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A TCP segment: sender (0 the client), the server's port, sequence number, flags, payload.
fn tcp(from: usize, port: u16, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let ends = [[192, 0, 2, 1], [192, 0, 2, 2]];
    let ports = [40_000_u16, port];
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

/// An identification and a key exchange packet (RFC 4253 §4.2, §7.1) with one name in each list.
fn ssh(who: &str) -> Vec<u8> {
    let mut packet = vec![4, 20];
    packet.extend([7; 16]);
    for list in 0..10 {
        let name = format!("{who}{list}");
        packet.extend((name.len() as u32).to_be_bytes());
        packet.extend(name.bytes());
    }
    packet.extend([0; 5 + 4]);
    let mut bytes = format!("SSH-2.0-{who}\r\n").into_bytes();
    bytes.extend((packet.len() as u32).to_be_bytes());
    bytes.extend(packet);
    bytes
}

#[derive(Default)]
struct Reported(Vec<(u16, Application)>);

impl RecordSink for Reported {
    fn ended(&mut self, record: &Record, reason: EndReason) {
        self.ended_with(record, &Extra::default(), reason);
    }

    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, _: EndReason) {
        let application = extra.application().unwrap_or(Application::EMPTY);
        let from = record.key().port(record.initiator());
        self.0.push((from, application));
    }
}

/// The applications of records, by the port of the initiator.
fn reported(packets: &[Vec<u8>], uniflow: bool, active_ns: u64) -> Vec<(u16, Application)> {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 64;
    config.table.uniflow = uniflow;
    config.table.timeouts.active_ns = active_ns;
    config.extra.inspect_count = u8::MAX;
    let mut meter = Meter::new(&config).unwrap();
    let decoders = InspectorConfig {
        flow_count_max: 64,
        held_count_max: 8,
        ..InspectorConfig::default()
    };
    meter.set_inspector(Box::new(Inspector::new(&decoders)));
    let mut reported = Reported::default();
    for (at, bytes) in packets.iter().enumerate() {
        let input = Input {
            link: LinkType::RAW,
            bytes,
            wire_len: bytes.len() as u32,
            time_ns: 1_700_000_000_000_000_000 + at as u64,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut reported);
    }
    meter.finish(&mut reported);
    reported.0
}

#[test]
fn an_ssh_server_is_identified_in_a_uniflow_too() {
    let (client, server) = (ssh("client"), ssh("server"));
    let sides = [
        [Field::SshClient, Field::Hassh],
        [Field::SshServer, Field::HasshServer],
    ];
    // With the handshake on any port; without it on the port of SSH.
    for (port, has_handshake, active_ns) in [
        (22, true, 1_000_000),
        (2222, true, 1_000_000),
        (2222, true, 1),
        (22, false, 1_000_000),
    ] {
        let mut packets = vec![
            tcp(0, port, 999, SYN, b""),
            tcp(1, port, 4999, SYN | ACK, b""),
        ];
        if !has_handshake {
            packets.clear();
        }
        packets.push(tcp(1, port, 5000, ACK, &server));
        packets.push(tcp(0, port, 1000, ACK, &client));
        let both = reported(&packets, false, 1_000_000);
        assert_eq!(both.len(), 1);
        let each = reported(&packets, true, active_ns);
        for (sender, fields) in [40_000, port].into_iter().zip(sides) {
            let of_sender = each.iter().rfind(|(from, _)| *from == sender);
            let (_, application) = of_sender.expect("a record");
            assert_eq!(application.protocol(), Protocol::Ssh);
            for field in fields {
                assert!(application.has(field), "{sender}: {application:?}");
                assert_eq!(application.get(field), both[0].1.get(field));
            }
            assert_eq!(
                application.fields().count(),
                fields.len(),
                "{application:?}"
            );
        }
    }
}
