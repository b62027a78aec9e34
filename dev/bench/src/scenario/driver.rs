//! `driver`: the cost of a packet in a user-mode driver, on a model of its card, in batches of 64.
//! Only the driver's side is counted, never the model's work.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use port::testing::ModelEnd;
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

/// Drivers on the models of their cards, and the ring without a card.
const KINDS: &[&str] = &["igb", "e1000", "virtio_split", "virtio_packed", MEMORY];
/// The one without a card.
const MEMORY: &str = "memory";
/// Packets per batch.
const BATCH: usize = 64;
/// Bytes per packet.
const LEN: usize = 60;
/// The target: 40 cycles, or this where cycles cannot be read.
const TARGET: f64 = 60.0;

/// Subjects: label, and the function whose instructions count.
const SUBJECTS: &[(&str, &str)] = &[
    ("receive, touch, release", "receive_batch"),
    ("receive, release", "pass_batch"),
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
            "instructions by callgrind within the calls that a program makes, the difference of 41 \
             and 1 rounds; the model of the card works outside of them, but for noting a doorbell \
             a batch"
                .into(),
            "time includes reading the clock twice in 64 packets, and finds the packet's line in \
             the cache where the model has just written it"
                .into(),
        ],
    })
}

/// Receives a batch as a program does.
#[inline(never)]
fn receive_batch(port: &mut Port) -> Result<(usize, u64)> {
    let batch = port.rx[0].receive()?;
    let mut sum = 0;
    for packet in batch.iter() {
        sum += u64::from(packet.bytes()[12]);
    }
    Ok((batch.len(), sum))
}

/// Receives a batch in the driver alone: packets are not touched.
#[inline(never)]
fn pass_batch(port: &mut Port) -> Result<usize> {
    let batch = port.rx[0].receive()?;
    Ok(batch.len())
}

/// Sends a batch as a program does: buffers are borrowed, filled (with eight bytes, which does not
/// count), sent, and those of earlier batches return.
#[inline(never)]
fn send_batch(port: &mut Port) -> Result<usize> {
    send(port)
}

#[inline(always)]
fn send(port: &mut Port) -> Result<usize> {
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

/// Receives and sends this many batches; returns nanoseconds per packet of each subject.
pub fn drive(kind: &str, rounds: usize) -> Result<[f64; 3]> {
    let options = PortOptions {
        direction: Direction::Both,
        batch_max: BATCH,
        timestamp: port::TimestampSource::None,
        ..PortOptions::default()
    };
    match kind {
        MEMORY => drive_memory(&options, rounds),
        _ => drive_card(kind, &options, rounds),
    }
}

/// Sums the time of each subject, except the first round, which fills rings, caches and counters.
struct Clock {
    nanos: [u128; 3],
    is_first: bool,
}

impl Clock {
    fn time<T>(&mut self, subject: usize, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let done = run()?;
        if !self.is_first {
            self.nanos[subject] += start.elapsed().as_nanos();
        }
        Ok(done)
    }
}

fn drive_card(kind: &str, options: &PortOptions, rounds: usize) -> Result<[f64; 3]> {
    let card = ModelEnd::new(kind, [2, 0, 0, 0, 0, 1])?;
    let mut port = card.open(options)?;
    let mut packet = [0x5a_u8; LEN];
    packet[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    let arrive = || -> Result<()> {
        for _ in 0..BATCH {
            ensure!(card.receive(&packet), "the model lost a packet");
        }
        Ok(())
    };
    rounds_of(rounds, |clock| {
        arrive()?;
        let (taken, sum) = clock.time(0, || receive_batch(&mut port))?;
        black_box(sum);
        arrive()?;
        let passed = clock.time(1, || pass_batch(&mut port))?;
        let count = clock.time(2, || send_batch(&mut port))?;
        card.step();
        while card.sent().is_some() {}
        Ok([taken, passed, count])
    })
}

/// As [`drive`] on a memory ring: what is sent is received.
fn drive_memory(options: &PortOptions, rounds: usize) -> Result<[f64; 3]> {
    let mut port = port::open("memory:", options)?;
    rounds_of(rounds, |clock| {
        let count = clock.time(2, || send_batch(&mut port))?;
        let (taken, sum) = clock.time(0, || receive_batch(&mut port))?;
        black_box(sum);
        send(&mut port)?;
        let passed = clock.time(1, || pass_batch(&mut port))?;
        Ok([taken, passed, count])
    })
}

/// Runs this many rounds, and one before; returns nanoseconds per packet of each subject.
fn rounds_of(
    rounds: usize,
    mut round: impl FnMut(&mut Clock) -> Result<[usize; 3]>,
) -> Result<[f64; 3]> {
    let mut clock = Clock {
        nanos: [0; 3],
        is_first: true,
    };
    for _ in 0..=rounds {
        let counts = round(&mut clock)?;
        ensure!(counts == [BATCH; 3], "batches of {counts:?} packets");
        clock.is_first = false;
    }
    let packets = (rounds.max(1) * BATCH) as f64;
    Ok(clock.nanos.map(|nanos| nanos as f64 / packets))
}
