//! Benchmarks a meter alone: packets in memory, one thread or several.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use flow::{HashKey, Input, Meter, MeterConfig, Profile, Record};
use wire::LinkType;
use wire::file::{Event, Reader};

use crate::workload::{self, Random};

/// A packet of a capture in memory.
struct Packet {
    bytes: Range<usize>,
    wire_len: u32,
    time_ns: u64,
}

/// A capture in memory.
pub struct Packets {
    file: Vec<u8>,
    packets: Vec<Packet>,
}

/// Number of packets in a capture.
///
/// # Errors
/// If it cannot be read.
pub fn count(path: &Path) -> Result<u64> {
    Ok(Packets::read(path)?.packets.len() as u64)
}

impl Packets {
    /// Reads an Ethernet capture.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn read(path: &Path) -> Result<Self> {
        let file = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let (mut reader, mut at, mut packets) = (Reader::new(), 0, Vec::new());
        loop {
            let event = reader.next(&file[at..])?;
            match &event {
                Event::Need(_) => return Ok(Self { file, packets }),
                Event::Packet(packet) => packets.push(Packet {
                    bytes: at + packet.data.start..at + packet.data.end,
                    wire_len: packet.wire_len,
                    time_ns: packet.time.ns(),
                }),
                _ => {}
            }
            at += event.used();
        }
    }

    /// Distributes the packets as a card with this many queues does: each queue has its own memory,
    /// both directions of a flow are in one queue, and the card's indirection table is filled so
    /// that all have about as many packets.
    fn split(&self, count: u32) -> Vec<Packets> {
        let buckets: Vec<usize> = self
            .packets
            .iter()
            .map(|packet| bucket(&self.file[packet.bytes.clone()]))
            .collect();
        let mut sizes = [0_usize; BUCKETS];
        buckets.iter().for_each(|bucket| sizes[*bucket] += 1);
        let mut order: Vec<usize> = (0..BUCKETS).collect();
        order.sort_by_key(|bucket| std::cmp::Reverse(sizes[*bucket]));
        let (mut queue_of, mut loads) = ([0; BUCKETS], vec![0; count as usize]);
        for bucket in order {
            let least = (0..loads.len()).min_by_key(|queue| loads[*queue]);
            queue_of[bucket] = least.unwrap_or(0);
            loads[queue_of[bucket]] += sizes[bucket];
        }
        let new = |load| Packets {
            file: Vec::with_capacity(self.file.len() / count as usize),
            packets: Vec::with_capacity(load),
        };
        let mut queues: Vec<Packets> = loads.into_iter().map(new).collect();
        for (packet, bucket) in self.packets.iter().zip(buckets) {
            let queue = &mut queues[queue_of[bucket]];
            let start = queue.file.len();
            queue
                .file
                .extend_from_slice(&self.file[packet.bytes.clone()]);
            queue.packets.push(Packet {
                bytes: start..queue.file.len(),
                ..*packet
            });
        }
        queues
    }

    fn inputs(&self) -> impl Iterator<Item = Input<'_>> {
        self.packets.iter().map(|packet| Input {
            link: LinkType::ETHERNET,
            bytes: &self.file[packet.bytes.clone()],
            wire_len: packet.wire_len,
            time_ns: packet.time_ns,
            vlan: None,
            interface: 0,
        })
    }
}

/// Entries of a card's indirection table.
const BUCKETS: usize = 128;

/// The entry of a packet: by addresses and ports, the same for both directions.
fn bucket(packet: &[u8]) -> usize {
    let (len, at) = match packet.get(12..14) {
        Some([0x86, 0xdd]) => (16, 22),
        _ => (4, 26),
    };
    let end = |nth: usize| {
        let (address, port) = (at + nth * len, at + 2 * len + nth * 2);
        let parts = [
            packet.get(address..address + len),
            packet.get(port..port + 2),
        ];
        let bytes = parts.into_iter().flatten().flatten();
        bytes.fold(0, |sum: u64, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(MIX)
        })
    };
    let both = end(0).wrapping_add(end(1)).wrapping_mul(MIX);
    (both >> 32) as usize % BUCKETS
}

/// An odd number without a pattern.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

fn config(flow_count_max: u32, is_counters: bool) -> MeterConfig {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = flow_count_max;
    config.table.reserved = sys::advice::large_pages;
    config.table.prefetch = Some(sys::advice::prefetch);
    if is_counters {
        config.table.profile = Profile::Counters;
    }
    config
}

/// Millions of packets per second through this many meters, each in its own thread, until the last
/// has reported its records.
///
/// # Errors
/// If memory runs out.
pub fn rate(packets: &Packets, threads: u32, is_counters: bool) -> Result<f64> {
    let queues = packets.split(threads);
    let meters: Result<Vec<Meter>, _> = queues
        .iter()
        .map(|_| Meter::new(&config(4_000_000, is_counters)))
        .collect();
    let meters = meters?;
    let start = Instant::now();
    let done: Vec<Meter> = std::thread::scope(|scope| {
        let workers: Vec<_> = queues
            .iter()
            .zip(meters)
            .map(|(queue, mut meter)| {
                scope.spawn(move || {
                    let mut bytes = 0;
                    let mut sink = |record: &Record, _| bytes += record.bytes();
                    for input in queue.inputs() {
                        meter.observe(&input, &mut sink);
                    }
                    meter.finish(&mut sink);
                    std::hint::black_box(bytes);
                    meter
                })
            })
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.filter_map(Result::ok).collect()
    });
    // Before their memory is freed.
    let passed = start.elapsed();
    ensure!(done.len() == queues.len(), "a meter panicked");
    Ok(packets.packets.len() as f64 / passed.as_secs_f64() / 1e6)
}

/// Nanoseconds per packet if all flows are known, each equally likely.
///
/// # Errors
/// If memory runs out.
pub fn known_flows_ns(flow_count: u32) -> Result<f64> {
    const PACKETS: u32 = 2_000_000;
    let mut meter = Meter::new(&config(flow_count, false))?;
    let mut packet = Vec::new();
    let mut sink = |_: &Record, _| ();
    let input = |bytes: &[u8], meter: &mut Meter, sink: &mut dyn flow::RecordSink| {
        let input = Input {
            link: LinkType::ETHERNET,
            bytes,
            wire_len: bytes.len() as u32,
            time_ns: 1_700_000_000_000_000_000,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, sink);
    };
    for number in 0..flow_count {
        workload::packet_of(number, true, &mut packet);
        input(&packet, &mut meter, &mut sink);
    }
    // A few thousand consecutive packets are in the cache, as in a ring.
    const BLOCK: usize = 4096;
    let mut random = Random::new(7);
    let mut block: Vec<Vec<u8>> = vec![Vec::new(); BLOCK];
    let (mut passed_ns, mut count) = (0, 0);
    while count < PACKETS {
        for packet in &mut block {
            let number = random.below(flow_count.into()) as u32;
            workload::packet_of(number, false, packet);
        }
        let start = Instant::now();
        for packet in &block {
            input(packet, &mut meter, &mut sink);
        }
        passed_ns += start.elapsed().as_nanos();
        count += BLOCK as u32;
    }
    Ok(passed_ns as f64 / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of a few flows, all in one of the queues, in order.
    #[test]
    fn queues_share_the_packets_by_flow() {
        let mut all = Packets {
            file: Vec::new(),
            packets: Vec::new(),
        };
        let mut random = Random::new(3);
        for at in 0..5000 {
            let mut bytes = Vec::new();
            workload::packet_of(random.below(900) as u32, at % 2 == 0, &mut bytes);
            let start = all.file.len();
            all.file.extend(&bytes);
            all.packets.push(Packet {
                bytes: start..all.file.len(),
                wire_len: bytes.len() as u32,
                time_ns: at,
            });
        }
        for count in [1, 2, 3] {
            let queues = all.split(count);
            let mut times: Vec<u64> = Vec::new();
            for queue in &queues {
                let share = queue.packets.len() * count as usize;
                assert!((4500..5500).contains(&share), "{share}");
                assert!(queue.packets.is_sorted_by_key(|packet| packet.time_ns));
                for (packet, input) in queue.packets.iter().zip(queue.inputs()) {
                    let before = &all.packets[packet.time_ns as usize];
                    assert_eq!(input.bytes, &all.file[before.bytes.clone()]);
                    times.push(packet.time_ns);
                }
            }
            times.sort_unstable();
            assert!(times.into_iter().eq(0..5000));
        }
    }

    #[test]
    fn both_directions_map_to_one_bucket() {
        let mut used = std::collections::BTreeSet::new();
        for number in 0..2000 {
            let mut packet = Vec::new();
            workload::packet_of(number, true, &mut packet);
            let (len, at) = match packet[12..14] {
                [0x86, 0xdd] => (16, 22),
                _ => (4, 26),
            };
            let mut answer = packet.clone();
            answer[at..at + 2 * len].rotate_left(len);
            answer[at + 2 * len..at + 2 * len + 4].rotate_left(2);
            assert_ne!(answer, packet);
            assert_eq!(bucket(&answer), bucket(&packet));
            used.insert(bucket(&packet));
        }
        assert_eq!(used.len(), BUCKETS);
    }
}
