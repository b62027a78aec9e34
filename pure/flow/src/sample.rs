//! Builds records for the tests of encoders, by metering packets.

use wire::LinkType;

use crate::{HashKey, Input, Meter, MeterConfig, Octets, Record, Timeouts};

/// Time of the first packet of each side, and of all others.
pub(crate) const FIRST_NS: u64 = 1_700_000_000_123_456_789;
pub(crate) const LAST_NS: u64 = 1_700_000_061_500_000_000;

/// A flow from port 5000 of `1.1.1.1` (or `101:101:…`) to port 80 of `2.2.2.2` (`202:202:…`), or an
/// echo between them: this many packets each way, TTL 63, TCP flags AE, ACK and PSH.
pub(crate) fn record(version: u8, protocol: u8, sent: [u32; 2]) -> Record {
    record_of(version, protocol, sent, [FIRST_NS, LAST_NS], None)
}

/// The same with other times, and with packets of this stated length.
pub(crate) fn record_of(
    version: u8,
    protocol: u8,
    sent: [u32; 2],
    times_ns: [u64; 2],
    wire_len: Option<u32>,
) -> Record {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 64;
    config.table.timeouts.set_idle_ns(Timeouts::MAX_NS);
    config.octets = Octets::Packet;
    let mut meter = Meter::new(&config).unwrap();
    let mut records = Vec::new();
    let mut sink = |record: &Record, _| records.push(*record);
    let most = sent[0].max(sent[1]);
    for n in 0..most {
        for (way, count) in sent.into_iter().enumerate() {
            if n >= count {
                continue;
            }
            let bytes = packet(version, protocol, way == 1);
            let input = Input {
                link: LinkType::RAW,
                bytes: &bytes,
                wire_len: wire_len.unwrap_or(bytes.len() as u32),
                time_ns: times_ns[usize::from(n != 0)],
                vlan: None,
                interface: 0,
            };
            meter.observe(&input, &mut sink);
        }
    }
    meter.finish(&mut sink);
    assert_eq!(records.len(), 1, "one flow is one record");
    records[0]
}

fn packet(version: u8, protocol: u8, is_reverse: bool) -> Vec<u8> {
    let (mut ends, mut ports) = ([1, 2], [5000_u16, 80]);
    if is_reverse {
        ends.reverse();
        ports.reverse();
    }
    let mut transport: Vec<u8> = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
    match protocol {
        6 => transport.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x51, 0x18, 1, 0, 0, 0, 0, 0]),
        17 => transport.extend([0, 68, 0, 0]),
        1 => transport = vec![if is_reverse { 0 } else { 8 }, 0, 0, 0, 0, 1, 0, 1],
        58 => transport = vec![128 + u8::from(is_reverse), 0, 0, 0, 0, 1, 0, 1],
        _ => {}
    }
    transport.extend([0xa5; 60]);
    let len = transport.len() as u16;
    let mut bytes = Vec::new();
    if version == 4 {
        bytes.extend([0x45, 0x2e]);
        bytes.extend((20 + len).to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, 63, protocol, 0, 0]);
        bytes.extend([ends[0]; 4]);
        bytes.extend([ends[1]; 4]);
    } else {
        bytes.extend([0x60, 0, 0, 0]);
        bytes.extend(len.to_be_bytes());
        bytes.extend([protocol, 63]);
        bytes.extend([ends[0]; 16]);
        bytes.extend([ends[1]; 16]);
    }
    bytes.extend(transport);
    bytes
}
