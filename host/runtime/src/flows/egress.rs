//! Egress: forwards the first packets of each flow, or those of selected applications, to another
//! port, for example to an IDS (shunting). Flows are metered completely in any case.
//!
//! Each worker has its own transmit queue, so nothing is shared. If both ports use one pool, a
//! packet's frame changes hands; otherwise it is copied and counted. Packets without room are
//! dropped and counted: an egress never costs metered packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use inspect::Protocol;
use port::{
    FilterTarget, Intake, Matcher, Packet, Port, PortAccount, PortOptions, RxBatch, TxQueue,
};
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use crate::filter::Expression;
use crate::forward::{End, Setup, open_sending, refuse_circle};

/// The link type of forwarded packets.
const ETHERNET: FilterTarget = FilterTarget {
    link_type: LinkType::ETHERNET.0,
    tap: None,
};
/// How long packets of a live port wait for room: as long as the receive rings can absorb.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long packets of a file wait before the device counts as stuck.
const STUCK: Duration = Duration::from_secs(5);
/// Interval of checks in such a wait.
const WAIT: Duration = Duration::from_millis(50);
/// How long the last packets may take to be sent.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Which packets are forwarded, in addition to [`flow::ExtraConfig::shunt`].
#[derive(Clone, Debug)]
pub struct Choice {
    /// Forward all packets of flows with one of these applications once it is identified, and
    /// nothing more of others. Empty: all flows alike.
    pub only: Vec<Protocol>,
    /// Forward only the selected packets that this expression matches.
    pub filter: Expression,
}

/// An egress to be opened before the input port.
pub struct Plan {
    ends: [End; 2],
    options: PortOptions,
    choice: Choice,
}

/// An open egress.
pub struct Egress {
    pub(super) port: Port,
    choice: Choice,
    packet_len_max: usize,
    filter: Option<Matcher>,
    pub(super) counters: Vec<Arc<Counters>>,
    can_wait: bool,
}

/// Counts of an egress: `chosen = forwarded + Σ dropped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressStatus {
    /// Packets selected.
    pub chosen: u64,
    /// Packets handed to the sending port. What its device refuses is counted there, as failed.
    pub forwarded: u64,
    /// Their bytes.
    pub forwarded_bytes: u64,
    /// Packets of these that were copied because the ports share no pool.
    pub copied: u64,
    /// Dropped: the sending port had no room.
    pub tx_full: u64,
    /// Dropped: longer than the sending interface allows.
    pub too_long: u64,
    /// Dropped: no Ethernet header, or truncated by the capture.
    pub unsendable: u64,
    /// Not selected: the egress filter did not match.
    pub filtered: u64,
}

impl EgressStatus {
    /// Packets missing from the account (positive) or counted twice (negative).
    pub fn imbalance(&self) -> i64 {
        let known = self.forwarded + self.tx_full + self.too_long + self.unsendable;
        self.chosen.wrapping_sub(known + self.filtered) as i64
    }
}

/// A worker's counters, updated once per batch.
#[derive(Debug, Default)]
pub(super) struct Counters([AtomicU64; 8]);

impl Counters {
    fn add(&self, status: &EgressStatus) {
        let values = [
            status.chosen,
            status.forwarded,
            status.forwarded_bytes,
            status.copied,
            status.tx_full,
            status.too_long,
            status.unsendable,
            status.filtered,
        ];
        for (sum, value) in self.0.iter().zip(values) {
            // One writer: no atomic exchange is needed.
            sum.store(sum.load(Ordering::Relaxed) + value, Ordering::Relaxed);
        }
    }

    fn read(&self) -> EgressStatus {
        let [
            chosen,
            forwarded,
            forwarded_bytes,
            copied,
            tx_full,
            too_long,
            unsendable,
            filtered,
        ] = std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed));
        EgressStatus {
            chosen,
            forwarded,
            forwarded_bytes,
            copied,
            tx_full,
            too_long,
            unsendable,
            filtered,
        }
    }
}

/// Sums the counters over workers.
pub(super) fn total(counters: &[Arc<Counters>]) -> EgressStatus {
    let mut total = EgressStatus::default();
    for one in counters.iter().map(|counters| counters.read()) {
        total.chosen += one.chosen;
        total.forwarded += one.forwarded;
        total.forwarded_bytes += one.forwarded_bytes;
        total.copied += one.copied;
        total.tx_full += one.tx_full;
        total.too_long += one.too_long;
        total.unsendable += one.unsendable;
        total.filtered += one.filtered;
    }
    total
}

/// The result of an egress.
#[derive(Clone, Debug)]
pub struct EgressReport {
    /// The final counts.
    pub status: EgressStatus,
    /// The sending port's final account.
    pub account: PortAccount,
}

impl Plan {
    /// Plans an egress from one port to another. Refuses loops and interfaces that this host
    /// depends on. `input` gets the pool that both ports share, if they can.
    ///
    /// # Errors
    /// A loop, an interface that the host depends on, and errors of the names and the filter.
    pub fn new(
        names: [&str; 2],
        input: &mut PortOptions,
        options: PortOptions,
        choice: Choice,
    ) -> Result<Plan> {
        let ends = [End::find(names[0])?, End::find(names[1])?];
        let setup = Setup {
            names: names.map(str::to_owned),
            ..Setup::default()
        };
        refuse_circle(&setup, &ends)?;
        ends[1].refuse_lifeline()?;
        // Errors in the filter are reported before anything is opened.
        choice.filter.compile(ETHERNET)?;
        let mut options = options;
        options.direction = port::Direction::Tx;
        options.filter_source = None;
        let pool = port::shared_pool(&[(names[0], input), (names[1], &options)])?;
        (input.pool, options.pool) = (pool.clone(), pool);
        Ok(Plan {
            ends,
            options,
            choice,
        })
    }

    /// Opens the egress, with a queue for each of the input's.
    ///
    /// # Errors
    /// If it cannot be opened, or has fewer queues.
    pub fn open(self, input: &Port) -> Result<Egress> {
        let [_, end] = self.ends;
        let mut options = self.options;
        let wanted = input.rx.len();
        let name = end.text.clone();
        let port = open_sending(&name, &mut options, wanted as u32)?;
        if port.tx.len() < wanted {
            let why = format!(
                "{name} has {} transmit queues, but packets arrive on {wanted} receive queues",
                port.tx.len()
            );
            let error = Error::new(ErrorKind::InvalidInput, "forward selected packets", why);
            return Err(error.with_hint(format!("use --queues {}", port.tx.len())));
        }
        let program = self.choice.filter.compile(ETHERNET)?;
        let side = end.side(port);
        Ok(Egress {
            packet_len_max: side.packet_len_max,
            port: side.port,
            filter: program.map(Matcher::new),
            counters: Vec::new(),
            can_wait: input.control.describe().intake == Intake::File,
            choice: self.choice,
        })
    }
}

impl Egress {
    /// The next worker's egress.
    pub(super) fn out(&mut self) -> Option<Out> {
        if self.port.tx.is_empty() {
            return None;
        }
        let counters = Arc::new(Counters::default());
        self.counters.push(counters.clone());
        Some(Out {
            tx: self.port.tx.remove(0),
            counters,
            packet_len_max: match self.packet_len_max {
                0 => u32::MAX,
                len => len as u32,
            },
            filter: self.filter.clone(),
            only: self.choice.only.clone(),
            can_wait: self.can_wait,
            is_stuck: false,
            chosen: Vec::new(),
        })
    }
}

/// A worker's egress.
pub(super) struct Out {
    tx: TxQueue,
    counters: Arc<Counters>,
    packet_len_max: u32,
    filter: Option<Matcher>,
    only: Vec<Protocol>,
    can_wait: bool,
    /// The last wait for room timed out.
    is_stuck: bool,
    /// A mark for each packet of the batch.
    chosen: Vec<bool>,
}

impl Out {
    /// Applications whose packets are forwarded.
    pub(super) fn wanted(&self) -> Vec<Protocol> {
        self.only.clone()
    }

    /// Marks the next packets, bit by bit, in the order of the batch.
    pub(super) fn mark(&mut self, count: usize, bits: u32) {
        let marks = (0..count).map(|at| bits >> at & 1 != 0);
        self.chosen.extend(marks);
    }

    /// Sends the marked packets of a batch, and skips the rest.
    pub(super) fn take(
        &mut self,
        batch: &mut RxBatch<'_>,
        link: impl Fn(u16) -> LinkType,
    ) -> Result<()> {
        let mut status = EgressStatus::default();
        for (mark, packet) in self.chosen.iter_mut().zip(batch.iter()) {
            if !*mark {
                continue;
            }
            status.chosen += 1;
            let counter = if link(packet.interface_index()) != LinkType::ETHERNET
                || packet.cap_len() < packet.wire_len()
            {
                &mut status.unsendable
            } else if len_of(&packet) > self.packet_len_max {
                &mut status.too_long
            } else if is_refused(self.filter.as_ref(), &packet) {
                &mut status.filtered
            } else {
                continue;
            };
            *counter += 1;
            *mark = false;
        }
        let chosen = std::mem::take(&mut self.chosen);
        let mut rest = &chosen[..];
        let mut result = Ok(());
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|mark| *mark == first).count();
            match first {
                true if result.is_ok() => {
                    let before = batch.len();
                    result = self.hand_over(batch, run, &mut status);
                    // Packets left over by an error.
                    let left = run.saturating_sub(before - batch.len());
                    status.tx_full += left as u64;
                    batch.skip(left);
                }
                true => {
                    status.tx_full += run as u64;
                    batch.skip(run);
                }
                false => batch.skip(run),
            }
            rest = &rest[run..];
        }
        self.chosen = chosen;
        self.chosen.clear();
        self.counters.add(&status);
        result.and(self.flush())
    }

    /// Forwards so many packets, or drops those for which there is no room in time.
    fn hand_over(
        &mut self,
        batch: &mut RxBatch<'_>,
        count: usize,
        status: &mut EgressStatus,
    ) -> Result<()> {
        let mut rest = count;
        let mut since: Option<Instant> = None;
        loop {
            let forwarded = batch.forward(&mut self.tx, rest)?;
            rest -= forwarded.packets;
            status.forwarded += forwarded.packets as u64;
            status.forwarded_bytes += forwarded.bytes;
            status.copied += forwarded.copied as u64;
            if rest == 0 {
                self.is_stuck = false;
                return Ok(());
            }
            if forwarded.packets != 0 {
                since = None;
            }
            self.flush()?;
            let Some(began) = since else {
                since = Some(Instant::now());
                continue;
            };
            let patience = match (self.can_wait, self.is_stuck) {
                (true, false) => STUCK,
                (false, false) => PATIENCE,
                (_, true) => Duration::ZERO,
            };
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                self.is_stuck = true;
                status.tx_full += rest as u64;
                batch.skip(rest);
                return Ok(());
            }
            self.tolerate(|tx| tx.wait(false, left.min(WAIT)).map(drop))?;
        }
    }

    /// Starts sending the queued packets.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.tolerate(TxQueue::flush)
    }

    /// Waits until everything is sent, up to a limit.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.tolerate(|tx| tx.wait(true, LEAVE_MAX).map(drop))
    }

    /// A device that temporarily refuses loses the packets that it refuses, which are counted; a
    /// removed device ends the probe.
    fn tolerate(&mut self, act: impl FnOnce(&mut TxQueue) -> Result<()>) -> Result<()> {
        match act(&mut self.tx) {
            Err(error) if error.kind() == ErrorKind::Gone => Err(error),
            _ => Ok(()),
        }
    }
}

/// A packet's length including the VLAN tag in its metadata.
fn len_of(packet: &Packet<'_>) -> u32 {
    packet.cap_len() + if packet.vlan().is_some() { 4 } else { 0 }
}

fn is_refused(filter: Option<&Matcher>, packet: &Packet<'_>) -> bool {
    filter.is_some_and(|filter| !filter.selects(packet.bytes(), packet.wire_len()))
}

#[cfg(test)]
mod tests;
