//! `driver`: what a packet costs in a user-mode driver, on a model of its card, in batches of 64.
//! Only our side is counted, never the model's work.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use port::model::ModelEnd;
use port::{Direction, Port, PortOptions};

use super::{Plan, Scenario};
use crate::program;
use crate::rounds::{Outcome, Table};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "driver",
    summary: "user-mode drivers on a device model: instructions and nanoseconds a packet",
    run,
};

/// Drivers that are measured.
const KINDS: &[&str] = &["igb"];
/// Packets a batch.
const BATCH: usize = 64;
/// Bytes a packet.
const LEN: usize = 60;
/// What is to be reached: the seed's 40 cycles, or this where cycles cannot be read.
const TARGET: f64 = 60.0;

/// What is measured: label, and the function whose instructions count.
const SUBJECTS: &[(&str, &str)] = &[
    ("receive, touch, release", "receive_batch"),
    ("transmit", "send_batch"),
];

fn table(measure: &'static str, unit: &'static str, reference: &str) -> Table {
    Table {
        measure,
        unit,
        axis: "",
        more_is_better: false,
        reference: reference.into(),
        series: Vec::new(),
    }
}

fn run(plan: &Plan) -> Result<Outcome> {
    let mut instructions = table("instructions a packet", "instructions", "to be reached");
    let first = format!("{}: {}", KINDS[0], SUBJECTS[0].0);
    let mut time = table("time a packet", "ns", &first);
    instructions.add("to be reached", 0, TARGET);
    let ours = std::env::current_exe()?;
    for kind in KINDS {
        for (label, function) in SUBJECTS {
            let run = |rounds: &str| {
                let args = ["--drive", kind, rounds];
                program::instructions_in(&ours, &args, function)
            };
            let (few, many) = (run("1")?, run("41")?);
            let each = (many - few) as f64 / (40 * BATCH) as f64;
            instructions.add(&format!("{kind}: {label}"), 0, each);
        }
    }
    let rounds = (plan.seconds * 10_000.0) as usize;
    for _ in 0..plan.rounds {
        for kind in KINDS {
            let spent = drive(kind, rounds)?;
            for ((label, _), ns) in SUBJECTS.iter().zip(spent) {
                time.add(&format!("{kind}: {label}"), 0, ns);
            }
        }
    }
    Ok(Outcome {
        tables: vec![instructions, time],
        notes: vec![
            "instructions by callgrind within the two calls that a program makes, the difference \
             of 41 and 1 rounds; the model of the card works outside of them"
                .into(),
            "time includes reading the clock twice in 64 packets, and finds the packet's line in \
             the cache where the model has just written it"
                .into(),
        ],
    })
}

/// One batch as a program takes it.
#[inline(never)]
fn receive_batch(port: &mut Port) -> Result<(usize, u64)> {
    let batch = port.rx[0].receive()?;
    let mut sum = 0;
    for packet in batch.iter() {
        sum += u64::from(packet.bytes()[12]);
    }
    Ok((batch.len(), sum))
}

/// One batch as a program sends it: buffers are lent, filled (by what is not counted as the
/// driver's: eight bytes), sent, and those of earlier batches come back.
#[inline(never)]
fn send_batch(port: &mut Port) -> Result<usize> {
    let mut batch = port.tx[0].reserve(BATCH)?;
    let mut count = 0;
    while let Some(buffer) = batch.buffer() {
        buffer[0] = 2;
        batch.advance(LEN);
        count += 1;
    }
    batch.submit()?;
    port.tx[0].flush()?;
    Ok(count)
}

/// Receives and sends so many batches; nanoseconds a packet of each.
pub fn drive(kind: &str, rounds: usize) -> Result<[f64; 2]> {
    let card = ModelEnd::new(kind, [2, 0, 0, 0, 0, 1])?;
    let options = PortOptions {
        direction: Direction::Both,
        batch_max: BATCH,
        timestamp: port::TimestampSource::None,
        ..PortOptions::default()
    };
    let mut port = card.open(&options)?;
    let mut packet = [0x5a_u8; LEN];
    packet[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    let mut nanos = [0, 0];
    // Rings are filled, caches and counters are warm when it counts: the first round is no measure.
    for round in 0..=rounds {
        for _ in 0..BATCH {
            ensure!(card.receive(&packet), "the model lost a packet");
        }
        let start = Instant::now();
        let (taken, sum) = receive_batch(&mut port)?;
        let received = start.elapsed();
        black_box(sum);
        ensure!(taken == BATCH, "{taken} packets in a batch");
        let start = Instant::now();
        let count = send_batch(&mut port)?;
        let sent = start.elapsed();
        ensure!(count == BATCH, "{count} buffers in round {round}");
        card.step();
        while card.sent().is_some() {}
        if round != 0 {
            nanos[0] += received.as_nanos();
            nanos[1] += sent.as_nanos();
        }
    }
    Ok(nanos.map(|nanos| nanos as f64 / (rounds.max(1) * BATCH) as f64))
}
