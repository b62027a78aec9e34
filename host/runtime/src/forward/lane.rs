//! A lane: a transmit queue, the receive queues that feed it, and a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use port::{Packet, RxBatch, RxQueue, TxQueue};
use sys::{Error, ErrorKind, Result};

use super::{Budget, Counters, Failing, Intake, Side, Way};
use crate::Stop;
use crate::worker::{self, Ended, Engine, Pacing, Verdict};

/// How long packets of a live port wait for room before they are dropped: long enough for a busy
/// device, short enough that the receive ring does not overflow meanwhile.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long packets of other ports wait before the device counts as stuck.
const STUCK: Duration = Duration::from_secs(5);
/// Interval of checks in such a wait.
const WAIT: Duration = Duration::from_millis(50);

/// Creates the lanes of one direction: as many as both sides have queues for. Additional receive
/// queues are distributed over them; additional transmit queues stay with their port.
pub(super) fn lanes(
    way: &mut Way,
    from: &mut Side,
    to: &mut Side,
    budget: &Arc<Budget>,
) -> Vec<Lane> {
    let count = from.port.rx.len().min(to.port.tx.len());
    let lane = |tx| {
        let counters = Arc::new(Counters::default());
        way.counters.push(counters.clone());
        Lane {
            rx: Vec::new(),
            out: Out {
                tx,
                budget: budget.clone(),
                counters,
                packet_len_max: way.packet_len_max.clone(),
                intake: from.intake,
                is_stuck: false,
                is_draining: false,
                failing: way.failing.clone(),
                is_failing: false,
            },
        }
    };
    let mut lanes: Vec<Lane> = to.port.tx.drain(..count).map(lane).collect();
    for (index, rx) in from.port.rx.drain(..).enumerate() {
        if count != 0 {
            lanes[index % count].rx.push(rx);
        }
    }
    lanes
}

/// A lane.
pub(super) struct Lane {
    rx: Vec<RxQueue>,
    out: Out,
}

impl Lane {
    /// Forwards until the stop flag, the end of all its inputs, or the budget's end.
    pub(super) fn run(&mut self, stop: &Stop, pacing: Pacing) -> Result<Ended> {
        worker::run_all(&mut self.rx, &mut self.out, stop, pacing.prompt())
    }

    /// Forwards what is still in the rings and waits until everything is sent, at most `limit`.
    pub(super) fn finish(&mut self, limit: Duration) -> Result<()> {
        let mut result = Ok(());
        // The rest of a file can be read another time.
        if self.out.intake != Intake::File {
            self.out.is_draining = true;
            for rx in &mut self.rx {
                result = result.and(worker::drain(rx, &mut self.out));
            }
        }
        // An interface that is down keeps its packets; the port's account shows them.
        let left = self.out.tx.wait(true, limit).map(drop);
        result.and(self.out.tolerate(left))
    }
}

/// The transmit side of a lane.
struct Out {
    tx: TxQueue,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
    packet_len_max: Arc<AtomicUsize>,
    intake: Intake,
    /// The last wait for room timed out.
    is_stuck: bool,
    /// Everything left is forwarded, whether the budget is used up or not.
    is_draining: bool,
    /// Why sending fails, for the control side; accessed when an outage begins and ends.
    failing: Arc<Failing>,
    is_failing: bool,
}

impl Engine for Out {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        let bytes: u64 = batch.iter().map(|packet| u64::from(packet.cap_len())).sum();
        self.counters.received.add(batch.len() as u64);
        self.counters.received_bytes.add(bytes);
        let mut left = self.budget.take(batch.len() as u64);
        let before = left;
        let result = self.all(batch, &mut left);
        self.budget.settle(before - left, left);
        // After an error, the remaining packets are not forwarded by any lane.
        self.counters.abandoned.add(batch.len() as u64);
        result?;
        self.flush()?;
        Ok(self.verdict())
    }

    fn idle(&mut self) -> Result<Verdict> {
        // What the device did not accept at the last flush.
        self.flush()?;
        Ok(self.verdict())
    }
}

/// Why a packet is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    Outgoing,
    Cut,
    TooLong,
}

impl Unfit {
    #[inline]
    fn find(packet: &Packet<'_>, len_max: u32) -> Option<Self> {
        match () {
            () if packet.is_outgoing() => Some(Self::Outgoing),
            () if packet.cap_len() < packet.wire_len() => Some(Self::Cut),
            () if len_of(packet) > len_max => Some(Self::TooLong),
            () => None,
        }
    }
}

/// A packet's length including the VLAN tag in its metadata.
#[inline]
fn len_of(packet: &Packet<'_>) -> u32 {
    packet.cap_len() + if packet.vlan().is_some() { 4 } else { 0 }
}

/// Room in the transmit queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Unknown,
    /// For a packet of one buffer.
    Some,
    /// Everything was sent: there will never be more room.
    All,
}

impl Out {
    fn verdict(&self) -> Verdict {
        match self.budget.is_used_up() && !self.is_draining {
            true => Verdict::Finish,
            false => Verdict::Continue,
        }
    }

    /// Handles packets until the batch is empty, or up to an error. `left` is how many may be
    /// forwarded, and is reduced by those that were.
    fn all(&mut self, batch: &mut RxBatch<'_>, left: &mut u64) -> Result<()> {
        let len_max = match self.packet_len_max.load(Ordering::Relaxed) {
            0 => u32::MAX,
            len => len as u32,
        };
        while !batch.is_empty() {
            let first = batch.iter().next();
            let unfit = first.and_then(|first| Unfit::find(&first, len_max));
            if let Some(why) = unfit {
                let counter = match why {
                    Unfit::Outgoing => &self.counters.outgoing,
                    Unfit::Cut => &self.counters.cut,
                    Unfit::TooLong => &self.counters.too_long,
                };
                counter.add(1);
                batch.skip(1);
                continue;
            }
            let fits = |packet: &Packet<'_>| Unfit::find(packet, len_max).is_none();
            let run = batch.iter().take_while(fits).count();
            if *left == 0 {
                self.counters.surplus.add(run as u64);
                batch.skip(run);
            } else {
                let run = run.min(usize::try_from(*left).unwrap_or(usize::MAX));
                self.hand_over(batch, run, left)?;
            }
        }
        Ok(())
    }

    /// Forwards the first `count` packets, or drops those for which there is no room in time;
    /// `left` is reduced by those that were forwarded.
    fn hand_over(&mut self, batch: &mut RxBatch<'_>, count: usize, left: &mut u64) -> Result<()> {
        let mut rest = count;
        let mut since: Option<Instant> = None;
        let mut room = Room::Unknown;
        loop {
            let forwarded = batch.forward(&mut self.tx, rest)?;
            rest -= forwarded.packets;
            *left -= forwarded.packets as u64;
            self.counters.forwarded_bytes.add(forwarded.bytes);
            self.counters.forwarded.add(forwarded.packets as u64);
            self.counters.copied.add(forwarded.copied as u64);
            if rest == 0 {
                self.is_stuck = false;
                return Ok(());
            }
            if forwarded.packets != 0 {
                (since, room) = (None, Room::Unknown);
            } else if room == Room::All {
                // There will never be more room than now.
                self.counters.too_long.add(1);
                batch.skip(1);
                (rest, since, room) = (rest - 1, None, Room::Unknown);
                if rest == 0 {
                    return Ok(());
                }
                continue;
            }
            // There is no room. Starting the device may free some; otherwise time may.
            self.flush()?;
            let Some(began) = since else {
                since = Some(Instant::now());
                continue;
            };
            let patience = match (self.intake, self.is_stuck) {
                (Intake::Live, true) => Duration::ZERO,
                (Intake::Live, false) => PATIENCE,
                _ => STUCK,
            };
            let time_left = patience.saturating_sub(began.elapsed());
            if !time_left.is_zero() {
                room = self.wait_for_room(room, time_left.min(WAIT))?;
                continue;
            }
            // A device that has nothing to send is not late.
            if matches!(self.tx.wait(true, Duration::ZERO), Ok(true)) {
                room = Room::All;
                continue;
            }
            if self.intake != Intake::Live {
                return Err(stuck());
            }
            self.is_stuck = true;
            self.counters.tx_full.add(rest as u64);
            batch.skip(rest);
            return Ok(());
        }
    }

    /// Waits for more room than `before`, and returns how much there is now.
    fn wait_for_room(&mut self, before: Room, limit: Duration) -> Result<Room> {
        let (wait_for_all, then) = match before {
            Room::Unknown => (false, Room::Some),
            Room::Some | Room::All => (true, Room::All),
        };
        match self.tx.wait(wait_for_all, limit) {
            Ok(true) => Ok(then),
            result => self.tolerate(result.map(drop)).map(|()| before),
        }
    }

    fn flush(&mut self) -> Result<()> {
        let result = self.tx.flush();
        self.tolerate(result)
    }

    /// A removed device ends the lane. One that temporarily refuses (its link is down) does not:
    /// packets without room are dropped and counted until it is back.
    fn tolerate(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    self.failing.end();
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Gone || self.intake != Intake::Live => {
                Err(error)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    self.failing.begin(error.to_string());
                }
                Ok(())
            }
        }
    }
}

fn stuck() -> Error {
    let why = "the sending device does not complete transmissions";
    Error::new(ErrorKind::Io, "forward", why)
        .with_hint("check that the link is up at both ends; `barewire devices` shows its state")
}

#[cfg(test)]
mod tests;
