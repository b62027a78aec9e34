//! Requirements for every port.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bpf::cbpf::{Insn, Program};
use port::{DropReason, Ready};

use super::line::{LIMIT, Line, reported, whole};
use super::{Joint, Rig};
use crate::packet::number_of;

/// Long enough for packets in flight, short enough for a suite.
fn quiet(rig: &Rig) -> Duration {
    Duration::from_millis(if rig.joint.is_slow() { 3000 } else { 300 })
}

/// Waits until what was sent has arrived.
fn settle(line: &mut Line) -> Result<()> {
    if let Joint::File(_) = line.rig.joint {
        return Ok(());
    }
    // The first has arrived; those after it take the same path.
    line.rx()?.wait(LIMIT).map_err(reported)?;
    let rest_ms = if line.rig.joint.is_slow() { 1000 } else { 50 };
    std::thread::sleep(Duration::from_millis(rest_ms));
    Ok(())
}

/// Packets of every length arrive unchanged.
pub(super) fn delivery(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    let packets: Vec<_> = (60..=1514)
        .enumerate()
        .map(|(number, len)| line.plan.build(number as u64, len))
        .collect();
    let count = packets.len() as u64;
    // No more at a time than the rig holds.
    let mut sent = 0;
    for part in packets.chunks(rig.holds.min(500) as usize) {
        line.send(part)?;
        sent += part.len() as u64;
        if !matches!(rig.joint, Joint::File(_)) {
            line.expect_numbers(sent - part.len() as u64..sent)?;
        }
    }
    if matches!(rig.joint, Joint::File(_)) {
        line.expect_numbers(0..count)?;
    }
    line.expect_account(count, count)?;
    line.close()
}

/// Packets of up to 9014 bytes arrive unchanged, in any number of pieces.
pub(super) fn jumbo(rig: &'static Rig) -> Result<()> {
    // A packet may have more pieces than a batch may have packets.
    for batch_max in [64, 1, 2] {
        jumbo_in_batches(rig, batch_max).with_context(|| format!("in batches of {batch_max}"))?;
    }
    Ok(())
}

fn jumbo_in_batches(rig: &'static Rig, batch_max: usize) -> Result<()> {
    let mut line = Line::open_mtu(rig, 9000, |options| options.batch_max = batch_max)?;
    let lens = [
        60, 1514, 1515, 2048, 3000, 3500, 3839, 3840, 3841, 4096, 5000, 7679, 7680, 9014,
    ];
    let packets: Vec<_> = (0..)
        .zip(lens)
        .map(|(number, len)| line.plan.build(number, len))
        .collect();
    line.send(&packets)?;
    line.expect_numbers(0..lens.len() as u64)?;
    line.expect_account(lens.len() as u64, lens.len() as u64)?;
    line.close()
}

/// A flow stays in order over many batches and many wraps of every ring.
pub(super) fn order(rig: &'static Rig) -> Result<()> {
    const COUNT: u64 = 20_000;
    let mut line = Line::open(rig, |_| ())?;
    if let Joint::File(_) = rig.joint {
        line.send_numbers(0, COUNT, 64)?;
        return line.expect_numbers(0..COUNT);
    }
    let window = u64::from(rig.holds / 2);
    let mut from = 0;
    while from < COUNT {
        let to = (from + window).min(COUNT);
        line.send_numbers(from, to, 64)?;
        match to {
            COUNT => line.expect_numbers(from..to)?,
            _ => line.take_numbers(from..to)?,
        }
        from = to;
    }
    line.expect_account(COUNT, COUNT)?;
    line.close()
}

/// Flows stay in order, each on one queue; if there are several queues, all are used.
pub(super) fn flows(rig: &'static Rig) -> Result<()> {
    const FLOWS: u64 = 64;
    let mut line = Line::open(rig, |_| ())?;
    line.plan.flow_count = FLOWS as u16;
    let count = u64::from(rig.holds.min(640)) / FLOWS * FLOWS;
    line.send_numbers(0, count, 100)?;
    let mut queue_of = BTreeMap::new();
    // The next number of each flow.
    let mut next: Vec<u64> = (0..FLOWS).collect();
    line.receive_on_all(count as usize, LIMIT, |queue, packet| {
        let number = number_of(packet.bytes()).map_err(|alien| anyhow::anyhow!("{alien:?}"))?;
        let flow = number % FLOWS;
        let expected = std::mem::replace(&mut next[flow as usize], number + FLOWS);
        ensure!(
            number == expected,
            "packet {number} came instead of {expected}"
        );
        let before = *queue_of.entry(flow).or_insert(queue);
        ensure!(
            queue == before,
            "flow {flow} moved from queue {before} to {queue}"
        );
        Ok(())
    })?;
    let missing: Vec<_> = next.iter().filter(|next| **next < count).collect();
    ensure!(missing.is_empty(), "these never came: {missing:?}");
    let used: BTreeSet<_> = queue_of.values().copied().collect();
    ensure!(
        used.len() == rig.queues as usize,
        "{} queues, and used were {used:?}",
        rig.queues
    );
    line.expect_account(count, count)?;
    line.close()
}

/// The rig holds the number of packets that it claims to until the reader resumes.
pub(super) fn no_loss_below_capacity(rig: &'static Rig) -> Result<()> {
    let count = u64::from(rig.holds);
    let mut line = Line::open(rig, |_| ())?;
    line.send_numbers(0, count, 128)?;
    std::thread::sleep(Duration::from_millis(50));
    line.expect_numbers(0..count)?;
    line.expect_account(count, count)?;
    let account = line.rx_account()?;
    ensure!(account.dropped_total() == 0, "{account:?}");
    line.close()
}

/// Far more than fits: what was accepted is seen, and each packet seen is delivered or counted as
/// lost.
pub(super) fn overload(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, rig.shrink)?;
    let count = 4 * u64::from(rig.holds);
    let packets: Vec<_> = (0..count)
        .map(|number| line.plan.build(number, 128))
        .collect();
    let before = match &line.pair {
        Some(pair) => Some(pair.left.counters()?),
        None => None,
    };
    // A loop without a reader stalls: only accepted packets count.
    let accepted = line.send_some(&packets, Duration::from_millis(200))? as u64;
    std::thread::sleep(Duration::from_millis(100));
    let tx = line.tx_account()?;
    ensure!(
        tx.sent + tx.failed == accepted,
        "accepted {accepted}: {tx:?}"
    );
    let carried = match (&line.pair, before) {
        (Some(pair), Some(before)) => pair.left.counters()?.since(&before).tx_packets,
        _ => tx.sent,
    };
    // Nothing has been received yet: everything seen is waiting or already lost.
    let account = line.rx_account()?;
    ensure!(account.imbalance() == 0, "before reading: {account:?}");
    ensure!(
        account.seen == carried,
        "{carried} packets crossed: {account:?}"
    );
    let mut last = None;
    let received = line.receive(usize::MAX, quiet(rig), |packet| {
        let number = number_of(packet.bytes()).map_err(|alien| anyhow::anyhow!("{alien:?}"))?;
        ensure!(Some(number) > last, "packet {number} came after {last:?}");
        last = Some(number);
        Ok(())
    })?;
    let account = line.rx_account()?;
    ensure!(account.imbalance() == 0, "after reading: {account:?}");
    ensure!(account.in_flight == 0, "all was read: {account:?}");
    ensure!(
        account.delivered == received as u64,
        "{received} were received: {account:?}"
    );
    if line.is_wire() {
        ensure!(
            account.lost() > 0,
            "this was to be an overload: {account:?}"
        );
    } else {
        ensure!(accepted < count, "this was to be an overload");
    }
    // The ring works again after an overload.
    line.send_numbers(count, count + 20, 128)?;
    line.expect_numbers(count..count + 20)?;
    line.close()
}

/// Batches of every size up to the requested one.
pub(super) fn batch_sizes(rig: &'static Rig) -> Result<()> {
    let count = u64::from(rig.holds.min(600));
    let sizes: &[usize] = match rig.joint.is_slow() {
        // Each is a separate line, which takes seconds there.
        true => &[1, 3, 64, 255],
        false => &[1, 2, 3, 7, 64, 255, 256],
    };
    for &batch_max in sizes.iter().filter(|&&size| size as u64 <= count) {
        let mut line = Line::open(rig, |options| options.batch_max = batch_max)?;
        line.send_numbers(0, count, 90)?;
        // Everything has arrived before the first call, so that batches are full.
        settle(&mut line)?;
        let (rx, mut got, mut fullest) = (line.rx()?, 0, 0);
        let end = Instant::now() + LIMIT;
        while got < count && Instant::now() < end {
            let batch = rx.receive().map_err(reported)?;
            ensure!(
                batch.len() <= batch_max,
                "{} packets in a batch of {batch_max}",
                batch.len()
            );
            ensure!(
                batch.len() == batch.iter().count(),
                "len and iterator differ"
            );
            for packet in batch.iter() {
                ensure!(
                    number_of(packet.bytes()) == Ok(got),
                    "packet {got} at batch {batch_max}"
                );
                got += 1;
            }
            fullest = fullest.max(batch.len());
        }
        ensure!(
            got == count,
            "{got} of {count} packets came in batches of {batch_max}"
        );
        ensure!(
            fullest == batch_max,
            "batches of {batch_max} were never fuller than {fullest}"
        );
        line.close()?;
    }
    Ok(())
}

/// Without packets `receive` returns an empty batch at once, and `wait` takes its timeout but not
/// longer.
pub(super) fn idle(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.send_numbers(0, 1, 60)?;
    line.expect_numbers(0..1)?;
    let is_file = matches!(rig.joint, Joint::File(_));
    let rx = line.rx()?;
    for _ in 0..100 {
        ensure!(
            rx.receive().map_err(reported)?.is_empty(),
            "a packet out of nothing"
        );
    }
    let started = Instant::now();
    let ready = rx.wait(Duration::from_millis(30)).map_err(reported)?;
    let expected = if is_file { Ready::End } else { Ready::Timeout };
    ensure!(
        ready == expected,
        "waiting for nothing ended with {ready:?}"
    );
    // Not before its timeout (a file's end needs none). How much later depends on the scheduler.
    ensure!(
        is_file || started.elapsed() >= Duration::from_millis(25),
        "wait came back early"
    );
    line.close()
}

/// Once the sender is closed and everything is read, the receiver reports the end, and not before.
pub(super) fn end(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.send_numbers(0, 10, 60)?;
    line.close_tx();
    let ready = line.rx()?.wait(LIMIT).map_err(reported)?;
    ensure!(ready == Ready::Packets, "{ready:?} with packets unread");
    line.expect_numbers(0..10)?;
    let ready = line.rx()?.wait(LIMIT).map_err(reported)?;
    ensure!(ready == Ready::End, "{ready:?} after the end");
    line.close()
}

/// Selects even numbers, by their last byte. (`ldb [53]; jset #1, reject, keep`)
fn even_numbers() -> Program {
    let insns = vec![
        Insn::new(0x30, 0, 0, 53),
        Insn::new(0x45, 0, 1, 1),
        Insn::new(0x06, 0, 0, 0),
        Insn::new(0x06, 0, 0, u32::MAX),
    ];
    Program::new(insns).expect("a program by hand")
}

/// A filter passes what it selects, in order, and counts what it rejects.
pub(super) fn filter(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |options| options.filter = Some(even_numbers()))?;
    let count = u64::from(rig.holds.min(600) / 2 * 2);
    line.send_numbers(0, count, 100)?;
    line.expect_numbers((0..count).step_by(2))?;
    let account = line.rx_account()?;
    let takes_traffic = line.rx_port()?.capabilities.takes_traffic;
    // What a bypass does not select continues to the host.
    let left_out = account.dropped[DropReason::Filter as usize] + account.passed;
    ensure!(left_out == count / 2, "half were left out: {account:?}");
    ensure!(
        takes_traffic || account.passed == 0,
        "a tap passes nothing on: {account:?}"
    );
    line.expect_account(count, count / 2)?;
    line.close()
}

/// Longer packets are truncated, and their real length is reported.
pub(super) fn snaplen(rig: &'static Rig) -> Result<()> {
    for snaplen in [60, 100, 1000] {
        let mut line = Line::open(rig, |options| options.snaplen = snaplen)?;
        let lens = [60, 99, 100, 101, 999, 1000, 1001, 1514];
        let packets: Vec<_> = (0..)
            .zip(lens)
            .map(|(n, len)| line.plan.build(n, len))
            .collect();
        line.send(&packets)?;
        let mut at = 0;
        line.receive(lens.len(), quiet(rig), |packet| {
            let kept = packets[at].len().min(snaplen as usize);
            ensure!(
                packet.wire_len() as usize == packets[at].len(),
                "wire_len of packet {at}"
            );
            ensure!(
                packet.cap_len() as usize == kept,
                "cap_len of packet {at}, snaplen {snaplen}"
            );
            ensure!(whole(packet) == packets[at][..kept], "bytes of packet {at}");
            at += 1;
            Ok(())
        })?;
        ensure!(at == lens.len(), "{at} packets came");
        line.close()?;
    }
    Ok(())
}

/// A batch that is leaked instead of dropped has no lasting effect: its frames return at the next
/// call.
pub(super) fn forgotten_batch(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    let count = u64::from(rig.holds.min(900));
    line.send_numbers(0, count, 64)?;
    let end = Instant::now() + LIMIT;
    let mut got = 0;
    while got < count && Instant::now() < end {
        let rx = line.rx()?;
        let batch = rx.receive().map_err(reported)?;
        for packet in batch.iter() {
            ensure!(number_of(packet.bytes()) == Ok(got), "packet {got}");
            got += 1;
        }
        std::mem::forget(batch);
        if got % 3 == 0 {
            rx.wait(Duration::from_millis(1)).map_err(reported)?;
        }
    }
    ensure!(got == count, "{got} of {count} packets came");
    line.expect_account(count, count)?;
    line.close()
}

/// A detached packet stays unchanged while others arrive.
pub(super) fn detach(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    let pool = line.pool.clone();
    let count = u64::from(rig.holds.min(500) / 5 * 5);
    line.send_numbers(0, count, 300)?;
    let (mut kept, mut got) = (Vec::new(), 0);
    let end = Instant::now() + LIMIT;
    let rx = line.rx()?;
    while got < count && Instant::now() < end {
        let mut batch = rx.receive().map_err(reported)?;
        for index in 0..batch.len() {
            if got % 5 == 0 {
                let frame = batch.detach(index).map_err(reported)?.frame;
                ensure!(frame.pool_tag() == pool.tag(), "a frame of another pool");
                kept.push((got, frame));
            }
            got += 1;
        }
        let len = batch.len();
        ensure!(
            batch.detach(len).is_err(),
            "a packet that is not there was detached"
        );
        drop(batch);
        rx.wait(Duration::from_millis(1)).map_err(reported)?;
    }
    ensure!(kept.len() as u64 == count / 5, "{got} packets came");
    let user = u64::from(pool.counts().user);
    ensure!(
        user >= count / 5,
        "{} frames are ours, the pool says {user}",
        kept.len()
    );
    let mut cache = ring::FrameCache::new(pool.clone());
    for (number, frame) in kept {
        let bytes = pool.bytes(&frame);
        ensure!(
            bytes == line.plan.build(number, 300),
            "packet {number} has changed"
        );
        ensure!(cache.give(frame).is_ok(), "its own pool refuses it");
    }
    drop(cache);
    line.expect_account(count, count)?;
    line.close()
}

/// After `stop` no new packets arrive, earlier ones can still be received, and the account is
/// final.
pub(super) fn stop(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.send_numbers(0, 200, 64)?;
    settle(&mut line)?;
    line.rx_port()?.control.stop().map_err(reported)?;
    let packets: Vec<_> = (200..300)
        .map(|number| line.plan.build(number, 64))
        .collect();
    // A loop refuses them; on a wire they pass by.
    line.send_some(&packets, Duration::from_millis(50))?;
    line.expect_numbers(0..200)?;
    let account = line.rx_account()?;
    ensure!(
        account.imbalance() == 0 && account.in_flight == 0,
        "{account:?}"
    );
    ensure!(account.delivered == 200, "{account:?}");
    line.close()
}

/// Closing a port with unread and unsent packets returns every frame.
pub(super) fn closing_early(rig: &'static Rig) -> Result<()> {
    for read in [false, true] {
        let mut line = Line::open(rig, |_| ())?;
        line.send_numbers(0, rig.holds.min(300).into(), 64)?;
        let rx = line.rx()?;
        rx.wait(LIMIT).map_err(reported)?;
        if read {
            let batch = rx.receive().map_err(reported)?;
            ensure!(!batch.is_empty(), "packets were announced");
        }
        line.close()?;
    }
    Ok(())
}

/// Buffers that were reserved but not filled are not sent, and can be reserved again.
pub(super) fn unsent_buffers(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    let packets: Vec<_> = (0..200).map(|number| line.plan.build(number, 70)).collect();
    let tx = line.tx()?;
    let mut sent = 0;
    for round in 0..3000 {
        let mut batch = tx.reserve(32).map_err(reported)?;
        ensure!(
            batch.room() > 0,
            "no room in round {round}, though nothing was sent"
        );
        match round % 15 {
            // Two of fifteen rounds send one of all the packets reserved.
            0 | 7 if sent < packets.len() => {
                ensure!(batch.write(&packets[sent]), "no room for one");
                sent += 1;
                batch.submit().map_err(reported)?;
                // A loop without a reader fills up with what is sent, and with nothing else.
                tx.flush().map_err(reported)?;
                tx.wait(false, LIMIT).map_err(reported)?;
            }
            // Filled, but not submitted.
            1 => drop(batch.write(&packets[0])),
            2 => batch.submit().map_err(reported)?,
            3 => std::mem::forget(batch),
            _ => drop(batch),
        }
    }
    ensure!(sent == 200, "{sent} were sent");
    if let Err(error) = line.expect_numbers(0..200) {
        let (tx, rx) = (line.tx_account()?, line.rx_account()?);
        return Err(error.context(format!("{tx:?}, {rx:?}")));
    }
    let account = line.tx_account()?;
    ensure!(account.sent == 200 && account.failed == 0, "{account:?}");
    line.close()
}

/// Received frames are sent on, and arrive unchanged.
pub(super) fn frames_are_sent(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    let pool = line.pool.clone();
    let mut cache = ring::FrameCache::new(pool.clone());
    for number in 0..2000_u64 {
        let mut frame = cache.take().expect("the pool is not that small");
        let len = 60 + (number as usize * 7) % 1400;
        pool.set_range(&mut frame, 256, len as u32);
        pool.bytes_mut(&mut frame)
            .copy_from_slice(&line.plan.build(number, len));
        let mut next = Some(frame);
        let end = Instant::now() + LIMIT;
        let tx = line.tx()?;
        while let Some(frame) = next.take() {
            ensure!(Instant::now() < end, "no room for frame {number}");
            next = tx.send(frame).map_err(reported)?;
            if next.is_some() {
                tx.wait(false, Duration::from_millis(10))
                    .map_err(reported)?;
            }
        }
        if number % 100 == 99 {
            tx.flush().map_err(reported)?;
            line.expect_numbers(number - 99..number + 1)?;
        }
    }
    // A frame of another pool is refused. It is not sent, so none is missing here.
    let other = ring::Pool::new(ring::PoolConfig {
        frame_count: 1,
        ..ring::PoolConfig::default()
    })?;
    let foreign = ring::FrameCache::new(other).take().expect("one frame");
    ensure!(
        line.tx()?.send(foreign).is_err(),
        "a frame of another pool was sent"
    );
    let account = line.tx_account()?;
    ensure!(account.sent == 2000, "{account:?}");
    drop(cache);
    line.close()
}
