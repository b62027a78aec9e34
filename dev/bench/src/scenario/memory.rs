//! `memory`: the cost of a packet through the memory ring and the pool, in batches of 64.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use port::{Direction, Port, PortOptions};

use super::{Plan, Scenario};
use crate::rounds::{Outcome, Table};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "memory",
    summary: "memory ring and pool: receive, touch, release in batches of 64",
    run,
};

/// Packets per batch.
const BATCH: usize = 64;
/// Bytes per packet.
const LEN: usize = 60;

fn run(plan: &Plan) -> Result<Outcome> {
    let mut table = Table {
        measure: "time a packet",
        unit: "ns",
        axis: "",
        more_is_better: false,
        reference: "copy into a Vec".into(),
        series: Vec::new(),
    };
    let options = PortOptions {
        direction: Direction::Both,
        batch_max: BATCH,
        ..PortOptions::default()
    };
    let mut memory = port::open("memory:", &options)?;
    let count = (plan.seconds * 2e6) as u64;
    for _ in 0..plan.rounds {
        table.add("copy into a Vec", 0, copy(count));
        table.add("receive, touch, release", 0, receive(&mut memory, count)?);
        table.add("send and receive", 0, both(&mut memory, count)?);
    }
    let notes =
        vec!["a copy into a Vec a packet is the yardstick: an allocation and 60 bytes".into()];
    Ok(Outcome {
        tables: vec![table],
        notes,
    })
}

/// As in many programs: each packet is copied to its own memory.
fn copy(count: u64) -> f64 {
    let packet = black_box([0x5au8; LEN]);
    let start = Instant::now();
    for _ in 0..count {
        black_box(packet.to_vec());
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

fn send(memory: &mut Port, packet: &[u8]) -> Result<()> {
    let mut batch = memory.tx[0].reserve(BATCH)?;
    while batch.write(packet) {}
    Ok(batch.submit()?)
}

fn take(memory: &mut Port) -> Result<(u64, u64)> {
    let batch = memory.rx[0].receive()?;
    let mut sum = 0;
    for packet in batch.iter() {
        sum += u64::from(packet.bytes()[12]);
    }
    Ok((batch.len() as u64, sum))
}

/// Only the receiving side is timed.
fn receive(memory: &mut Port, count: u64) -> Result<f64> {
    let packet = [0x5au8; LEN];
    let (mut done, mut nanos) = (0, 0);
    // Eight batches are sent before the clock starts, so that reading it costs little per packet.
    while done < count {
        for _ in 0..8 {
            send(memory, &packet)?;
        }
        let start = Instant::now();
        loop {
            let (taken, sum) = take(memory)?;
            black_box(sum);
            done += taken;
            if taken == 0 {
                break;
            }
        }
        nanos += start.elapsed().as_nanos();
    }
    Ok(nanos as f64 / done as f64)
}

/// Both sides in one thread.
fn both(memory: &mut Port, count: u64) -> Result<f64> {
    let packet = [0x5au8; LEN];
    let start = Instant::now();
    let mut done = 0;
    while done < count {
        send(memory, &packet)?;
        let (taken, sum) = take(memory)?;
        black_box(sum);
        done += taken;
    }
    Ok(start.elapsed().as_nanos() as f64 / done as f64)
}
