//! However packets are batched, the records and their order are the same: also for flows that are
//! idle for long after a timeout split them, in a full table, and after a clock was set back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use barewire_flow::{
    EndReason, Extra, HashKey, Input, Inspect, Meter, MeterConfig, Observed, Record, RecordSink,
    Side,
};
use inspect::{Inspector, InspectorConfig};
use wire::LinkType;

const S: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * S;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// xorshift64*: sufficient for generating traffic.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound
    }
}

/// A TCP segment of connection number `flow`: sender (0 the client), sequence number, flags,
/// payload.
fn tcp(flow: u16, from: usize, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let ends = [[192, 0, 2, 1], [192, 0, 2, 2]];
    let ports = [40_000 + flow, 50_000];
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

/// Everything reported, in order.
#[derive(Default)]
struct Reported(Vec<String>);

impl RecordSink for Reported {
    fn ended(&mut self, record: &Record, reason: EndReason) {
        self.ended_with(record, &Extra::default(), reason);
    }

    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        let (start_ns, end_ns) = (record.start_ns(), record.end_ns());
        let application = extra.application();
        self.0.push(format!(
            "{record:?} {start_ns} {end_ns} {reason:?} {application:?}"
        ));
    }
}

type Packet = (u64, Vec<u8>);

fn reported(config: &MeterConfig, packets: &[Packet], batch_len: usize) -> Vec<String> {
    let mut meter = Meter::new(config).unwrap();
    if config.extra.inspect_count != 0 {
        meter.set_inspector(Box::new(Inspector::new(&InspectorConfig {
            flow_count_max: config.table.flow_count_max,
            page_count: 64,
            held_count_max: 64,
            ..InspectorConfig::default()
        })));
    }
    let mut reported = Reported::default();
    let inputs: Vec<_> = packets
        .iter()
        .map(|(time_ns, bytes)| Input {
            link: LinkType::RAW,
            bytes,
            wire_len: bytes.len() as u32,
            time_ns: *time_ns,
            vlan: None,
            interface: 0,
        })
        .collect();
    for batch in inputs.chunks(batch_len) {
        meter.observe_all(batch, &mut reported);
    }
    meter.finish(&mut reported);
    assert_eq!(meter.stats().imbalance(), 0);
    reported.0
}

/// Checks that the reports are equal at every batch length, and not empty.
fn assert_same(config: &MeterConfig, packets: &[Packet], lens: impl Iterator<Item = usize>) {
    let expected = reported(config, packets, 256);
    for len in lens {
        let found = reported(config, packets, len);
        let different = expected.iter().zip(&found).find(|(one, two)| one != two);
        assert!(
            found == expected,
            "batches of {len}: {} and {} records, {different:#?}",
            found.len(),
            expected.len()
        );
    }
}

/// Lengths that do and do not coincide with the table's own batches.
const LENS: [usize; 10] = [1, 2, 3, 7, 31, 32, 33, 64, 65, 200];

/// Connections that send requests, reach the active timeout, pause and continue.
fn silences(seed: u64, flow_count: u16) -> Vec<Packet> {
    const REQUEST: &[u8] = b"GET /path HTTP/1.1\r\nHost: www.example.org\r\n\r\n";
    let mut random = Random(seed);
    let mut packets = Vec::new();
    for flow in 0..flow_count {
        let mut at_ns = START + random.below(600 * S);
        let cut = random.below(REQUEST.len() as u64) as usize;
        let cut = if random.below(3) == 0 { 0 } else { cut };
        packets.push((at_ns, tcp(flow, 0, 1000, SYN, b"")));
        packets.push((at_ns + 1, tcp(flow, 1, 5000, SYN | ACK, b"")));
        packets.push((at_ns + 2, tcp(flow, 0, 1001, ACK, &REQUEST[..cut])));
        at_ns += 5 * S + random.below(5 * S);
        packets.push((at_ns, tcp(flow, 1, 5001, ACK, b"")));
        // Near what is too long: before it, after it, or much later.
        at_ns += 290 * S + random.below(20 * S) + random.below(2) * random.below(300 * S);
        let sequence = 1001 + cut as u32;
        packets.push((at_ns, tcp(flow, 0, sequence, ACK, &REQUEST[cut..])));
        packets.push((
            at_ns + 1,
            tcp(flow, 1, 5001, ACK, b"HTTP/1.1 204 No\r\n\r\n"),
        ));
    }
    packets.sort();
    packets
}

#[test]
fn idle_flows_continue_or_end_equally_at_every_batch_length() {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 4096;
    config.table.timeouts.active_ns = 20 * S;
    config.table.timeouts.set_idle_ns(3600 * S);
    config.extra.inspect_count = u8::MAX;
    let packets = silences(7, 400);
    let names = |name: &str| {
        let reported = reported(&config, &packets, 256);
        reported.iter().filter(|text| text.contains(name)).count()
    };
    assert!(names("www.example.org") > 100 && names("Active") > 400);
    assert_same(&config, &packets, 1..256);
}

/// Whether a flow is read further depends on its own idle time, not on other flows.
#[test]
fn an_idle_flow_is_reported_alone_as_among_others() {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 2048;
    config.table.timeouts.active_ns = 20 * S;
    config.table.timeouts.set_idle_ns(3600 * S);
    config.extra.inspect_count = u8::MAX;
    let packets = silences(11, 200);
    // This many others that the sweep of silent flows comes by nearly all, which it never does for
    // one that is alone.
    const OTHER: u16 = 999;
    let others = (0..16_000).map(|n| (START + n * S / 10, tcp(OTHER, 0, 1, ACK, b"")));
    let mut all: Vec<Packet> = others.chain(packets.iter().cloned()).collect();
    all.sort();
    let mut among = reported(&config, &all, 32);
    let other = format!(" {} ", 40_000 + OTHER);
    among.retain(|text| !text.contains(&other));
    let mut alone = Vec::new();
    for flow in 0..200_u16 {
        let port = (40_000 + flow).to_be_bytes();
        let is_of = |bytes: &[u8]| bytes[20..22] == port || bytes[22..24] == port;
        let own = packets.iter().filter(|(_, bytes)| is_of(bytes));
        let own: Vec<_> = own.cloned().collect();
        alone.extend(reported(&config, &own, 32));
    }
    // Why the last record ends is reported by the last packet of all, which may be another flow's.
    let without_end = |text: String| text.replace("Forced", "Active");
    for texts in [&mut among, &mut alone] {
        *texts = texts.drain(..).map(without_end).collect();
        texts.sort();
    }
    let different = among.iter().zip(&alone).find(|(one, two)| one != two);
    assert!(among == alone, "{different:#?}");
}

/// Has a result for every flow, and counts those that need no further packets.
struct Rests(Arc<AtomicU32>);

impl Inspect for Rests {
    fn packet(
        &mut self,
        handle: &mut u32,
        _: u8,
        _: (&Record, Side),
        _: &Observed,
        _: &[u8],
    ) -> bool {
        *handle = 1;
        true
    }

    fn known(&self, _: u32, found: &mut Vec<u8>) {
        found.push(1);
    }

    fn rest(&mut self, _: &mut u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn ended(&mut self, _: u32, _: &mut Vec<u8>) {}
}

#[test]
fn inspector_state_is_freed_after_a_long_silence() {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 64;
    config.table.timeouts.active_ns = 20 * S;
    config.table.timeouts.set_idle_ns(3600 * S);
    config.extra.inspect_count = u8::MAX;
    let mut meter = Meter::new(&config).unwrap();
    let count = Arc::new(AtomicU32::new(0));
    meter.set_inspector(Box::new(Rests(count.clone())));
    let mut reported = Reported::default();
    let mut send = |flow, time_ns, payload: &[u8]| {
        let bytes = tcp(flow, 0, 1000, ACK, payload);
        let input = Input {
            link: LinkType::RAW,
            bytes: &bytes,
            wire_len: bytes.len() as u32,
            time_ns,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut reported);
        count.load(Ordering::Relaxed)
    };
    send(1, START, b"GET");
    // Others without payload: the record is cut, and for a while the flow may continue.
    for second in 1..300 {
        assert_eq!(send(2, START + second * S, b""), 0);
    }
    let rests = (300..2000).map(|second| send(2, START + second * S, b""));
    assert_eq!(rests.last(), Some(1));
}

/// Random segments of more connections than fit.
fn crowd(seed: u64, packet_count: u64) -> Vec<Packet> {
    let mut random = Random(seed);
    let mut at_ns = START;
    let mut one = || {
        at_ns += match random.below(100) {
            0 => random.below(40 * S),
            _ => random.below(S / 5),
        };
        let flags = [ACK, ACK, ACK, SYN, RST][random.below(5) as usize];
        let (flow, from) = (random.below(200) as u16, random.below(2) as usize);
        (
            at_ns,
            tcp(flow, from, random.below(9000) as u32, flags, b""),
        )
    };
    (0..packet_count).map(|_| one()).collect()
}

#[test]
fn a_full_table_gives_the_same_records_at_every_batch_length() {
    for (seed, flow_count_max) in [(1, 16), (2, 100), (3, 150)] {
        let mut config = MeterConfig::new(HashKey::from_seed(seed));
        config.table.flow_count_max = flow_count_max;
        let packets = crowd(seed, 6000);
        let reported = reported(&config, &packets, 256);
        assert!(reported.iter().any(|text| text.contains("Resources")));
        assert_same(&config, &packets, LENS.into_iter());
    }
}

#[test]
fn a_clock_set_back_gives_the_same_records_at_every_batch_length() {
    for (seed, ahead_s) in [(1, 100), (2, 4000), (3, 1_000_000_000)] {
        let mut config = MeterConfig::new(HashKey::from_seed(seed));
        // Expiry does not get round before the clock is set back.
        config.table.flow_count_max = 1 << 15;
        config.extra.inspect_count = u8::MAX;
        let mut packets = crowd(seed, 6000);
        packets[3000].0 += ahead_s * S;
        assert_same(&config, &packets, LENS.into_iter());
    }
}
