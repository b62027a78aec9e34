//! A meter by itself: packets in memory, one thread or several.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
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

/// Packets in a capture.
///
/// # Errors
/// When it cannot be read.
pub fn count(path: &Path) -> Result<u64> {
    Ok(Packets::read(path)?.packets.len() as u64)
}

impl Packets {
    /// Reads a capture of Ethernet.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
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

    /// The packets by a hash of both addresses that does not know directions, as a card's symmetric
    /// hash would spread them.
    fn split(&self, count: u32) -> Vec<Vec<u32>> {
        let mut parts = vec![Vec::new(); count as usize];
        for (index, packet) in self.packets.iter().enumerate() {
            let bytes = &self.file[packet.bytes.clone()];
            let ends = match bytes.get(12..14) {
                Some([0x86, 0xdd]) => bytes.get(22..54),
                _ => bytes.get(26..34),
            };
            let sum = ends.unwrap_or(&[]).iter().map(|byte| u32::from(*byte));
            let part = sum.sum::<u32>().wrapping_mul(0x9e37_79b9) >> 16;
            parts[(part % count) as usize].push(index as u32);
        }
        parts
    }

    fn input(&self, index: u32) -> Input<'_> {
        let packet = &self.packets[index as usize];
        Input {
            link: LinkType::ETHERNET,
            bytes: &self.file[packet.bytes.clone()],
            wire_len: packet.wire_len,
            time_ns: packet.time_ns,
            vlan: None,
            interface: 0,
        }
    }
}

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

/// Millions of packets a second that go through a meter in each of so many threads.
///
/// # Errors
/// For want of memory.
pub fn rate(packets: &Packets, threads: u32, is_counters: bool) -> Result<f64> {
    let parts = packets.split(threads);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = parts
            .iter()
            .map(|part| {
                scope.spawn(move || {
                    let mut meter = Meter::new(&config(4_000_000, is_counters))?;
                    let mut bytes = 0;
                    let mut sink = |record: &Record, _| bytes += record.bytes();
                    for index in part {
                        meter.observe(&packets.input(*index), &mut sink);
                    }
                    meter.finish(&mut sink);
                    std::hint::black_box(bytes);
                    Ok::<(), flow::OutOfMemory>(())
                })
            })
            .collect();
        for worker in workers {
            if let Ok(done) = worker.join() {
                done?;
            }
        }
        Ok::<(), flow::OutOfMemory>(())
    })?;
    Ok(packets.packets.len() as f64 / start.elapsed().as_secs_f64() / 1e6)
}

/// Nanoseconds a packet where all flows are known, each as likely as any other.
///
/// # Errors
/// For want of memory.
pub fn known_flows_ns(flow_count: u32) -> Result<f64> {
    const PACKETS: u32 = 2_000_000;
    let mut meter = Meter::new(&config(flow_count, false))?;
    let mut packet = Vec::new();
    let mut sink = |_: &Record, _| ();
    let input = |bytes: &[u8], meter: &mut Meter, sink: &mut dyn flow::Sink| {
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
    // A few thousand packets after each other lie in the cache, as they do in a ring.
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
