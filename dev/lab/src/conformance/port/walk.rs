//! A random walk over all operations on a pair of ports, compared with a simple model.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ring::{Frame, FrameCache};

use super::line::{LIMIT, Line, POOL_FRAMES, reported};
use super::{Joint, Rig};
use crate::packet::number_of;
use crate::random::Random;

/// Numbers sent and not yet received, in order, and the frames kept.
struct Model {
    next: u64,
    on_line: VecDeque<u64>,
    kept: Vec<(u64, Frame)>,
    cache: FrameCache,
    /// Maximum number of packets in flight: what the rig holds.
    window: usize,
}

/// Packets and frames are kept, forwarded, forgotten, returned and dropped in any order; none is
/// lost, duplicated or reordered, and at the end every frame is free.
pub(super) fn random_walk(rig: &'static Rig) -> Result<()> {
    let mut random = Random::seeded("walk");
    let seed = random.seed();
    walk(rig, &mut random).with_context(|| format!("BAREWIRE_SEED={seed}"))
}

fn walk(rig: &'static Rig, random: &mut Random) -> Result<()> {
    let batch_max = 1 + random.below(256) as usize;
    let mut line = Line::open(rig, |options| options.batch_max = batch_max)?;
    let mut model = Model {
        next: 0,
        on_line: VecDeque::new(),
        kept: Vec::new(),
        cache: FrameCache::new(line.pool.clone()),
        window: (rig.holds as usize / 2).min(1000),
    };
    let is_file = matches!(rig.joint, Joint::File(_));
    if is_file {
        // All packets of the walk.
        let packets: Vec<_> = (0..3000).map(|n| line.plan.build(n, len_of(n))).collect();
        line.send(&packets)?;
        model.on_line.extend(0..3000);
    }
    for _ in 0..1500 {
        match random.below(10) {
            0..=2 if !is_file => send(&mut line, &mut model, random)?,
            3 if !is_file => forward(&mut line, &mut model, random)?,
            4 => give_back(&mut model, random)?,
            5 => {
                line.rx()?
                    .wait(Duration::from_millis(random.below(2)))
                    .map_err(reported)?;
            }
            _ => receive(&mut line, &mut model, random)?,
        }
    }
    let end = Instant::now() + LIMIT;
    while !model.on_line.is_empty() {
        ensure!(
            Instant::now() < end,
            "{} packets never came",
            model.on_line.len()
        );
        receive(&mut line, &mut model, random)?;
    }
    check_kept(&line, &model)?;
    let account = line.rx_account()?;
    ensure!(
        account.imbalance() == 0 && account.lost() == 0,
        "{account:?}"
    );
    let Model {
        kept, mut cache, ..
    } = model;
    for (_, frame) in kept {
        ensure!(cache.give(frame).is_ok(), "a frame of another pool");
    }
    drop(cache);
    line.close()
}

fn len_of(number: u64) -> usize {
    60 + (number as usize * 131) % 1400
}

/// Sends some packets in buffers, some of which stay unused.
fn send(line: &mut Line, model: &mut Model, random: &mut Random) -> Result<()> {
    let room = model.window.saturating_sub(model.on_line.len());
    let count = (random.below(100) as usize).min(room);
    let plan = line.plan.clone();
    let tx = line.tx()?;
    let mut batch = tx
        .reserve(count + random.below(20) as usize)
        .map_err(reported)?;
    let mut sent = 0;
    while sent < count && batch.write(&plan.build(model.next, len_of(model.next))) {
        model.on_line.push_back(model.next);
        model.next += 1;
        sent += 1;
    }
    batch.submit().map_err(reported)?;
    if random.below(3) == 0 || sent == 0 {
        tx.flush().map_err(reported)?;
    }
    Ok(())
}

/// Sends kept frames.
fn forward(line: &mut Line, model: &mut Model, random: &mut Random) -> Result<()> {
    for _ in 0..random.below(20) {
        if model.kept.is_empty() || model.on_line.len() >= model.window {
            break;
        }
        let at = random.below(model.kept.len() as u64) as usize;
        let (number, frame) = model.kept.swap_remove(at);
        match line.tx()?.send(frame).map_err(reported)? {
            None => model.on_line.push_back(number),
            Some(frame) => {
                model.kept.push((number, frame));
                break;
            }
        }
    }
    line.tx()?.flush().map_err(reported)
}

/// Returns some kept frames, after checking that they are unchanged.
fn give_back(model: &mut Model, random: &mut Random) -> Result<()> {
    for _ in 0..random.below(30).min(model.kept.len() as u64) {
        let at = random.below(model.kept.len() as u64) as usize;
        let (number, frame) = model.kept.swap_remove(at);
        let bytes = model.cache.pool().bytes(&frame);
        ensure!(
            number_of(bytes) == Ok(number),
            "kept packet {number} has changed"
        );
        ensure!(model.cache.give(frame).is_ok(), "a frame of another pool");
    }
    Ok(())
}

/// Receives a batch; keeps some of it; drops or forgets it.
fn receive(line: &mut Line, model: &mut Model, random: &mut Random) -> Result<()> {
    if !matches!(line.rig.joint, Joint::File(_)) {
        line.tx()?.flush().map_err(reported)?;
    }
    let rx = line.rx()?;
    let mut batch = rx.receive().map_err(reported)?;
    let mut numbers = Vec::new();
    for packet in batch.iter() {
        let number = number_of(packet.bytes()).map_err(|alien| anyhow::anyhow!("{alien:?}"))?;
        let expected = model.on_line.pop_front();
        ensure!(
            Some(number) == expected,
            "packet {number} came instead of {expected:?}"
        );
        numbers.push(number);
    }
    // At most a quarter of the pool is kept: the rest is for the rings.
    for (index, number) in numbers.into_iter().enumerate() {
        if random.below(8) == 0 && model.kept.len() < POOL_FRAMES as usize / 4 {
            let frame = batch.detach(index).map_err(reported)?.frame;
            model.kept.push((number, frame));
        }
    }
    if random.below(10) == 0 {
        std::mem::forget(batch);
    }
    Ok(())
}

fn check_kept(line: &Line, model: &Model) -> Result<()> {
    for (number, frame) in &model.kept {
        let bytes = line.pool.bytes(frame);
        ensure!(
            number_of(bytes) == Ok(*number),
            "kept packet {number} has changed"
        );
    }
    let counts = line.pool.counts();
    ensure!(
        counts.user as usize >= model.kept.len(),
        "{counts:?}, {} kept",
        model.kept.len()
    );
    ensure!(counts.peer == 0, "{counts:?}");
    Ok(())
}
