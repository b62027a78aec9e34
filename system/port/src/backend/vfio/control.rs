//! The control side: the account, link events, the end of the intake.
//!
//! If the card counts, `seen` comes from its statistics registers, `delivered` from the program's
//! thread, `in flight` from a walk over the descriptors: three independent sources. If it counts
//! less, the account proves less:
//!
//! - a card that counts over all its queues (the 82576, whose per-queue counters belong to virtual
//!   functions) provides the port's sum. `seen` of each queue but the first is then derived from
//!   the other terms, and a difference appears in the first;
//! - a device that counts nothing (virtio) provides nothing. `seen` is then what the driver found
//!   in the ring, counted there, and what is still in it: a packet lost in the driver appears, one
//!   lost by the device does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sys::Result;
use vfio::{CardCounters, Core, Driver};

use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters};
use crate::control::{PortControl, PortDescription, PortEvent};

/// The link is polled at most this often: reading a register takes a microsecond.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The control side's view of a queue.
pub(super) struct QueueView {
    number: u32,
    rx: Option<RxView>,
    tx: Option<Arc<TxCounters>>,
    /// Whether the receiving end is closed: the ring is no longer read, but the card continues.
    pub closed: Arc<AtomicBool>,
}

struct RxView {
    counters: Arc<RxCounters>,
    waiting: Box<dyn Fn() -> u32 + Send + Sync>,
}

impl QueueView {
    /// Creates the view of queue `number`, without either end.
    pub(super) fn new(number: u32) -> Self {
        Self {
            number,
            rx: None,
            tx: None,
            closed: Arc::default(),
        }
    }

    pub(super) fn watch_rx(
        &mut self,
        counters: Arc<RxCounters>,
        waiting: Box<dyn Fn() -> u32 + Send + Sync>,
    ) {
        self.rx = Some(RxView { counters, waiting });
    }

    pub(super) fn watch_tx(&mut self, counters: Arc<TxCounters>) {
        self.tx = Some(counters);
    }

    /// Everything except the card's counters.
    fn rx_account(&self) -> Option<QueueAccount> {
        let view = self.rx.as_ref()?;
        let mut queue = QueueAccount {
            queue_index: self.number,
            delivered: view.counters.delivered.get(),
            delivered_bytes: view.counters.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        let mut drop = |reason: DropReason, count| queue.dropped[reason as usize] += count;
        drop(DropReason::Filter, view.counters.filtered.get());
        drop(DropReason::Invalid, view.counters.invalid.get());
        drop(DropReason::TooLong, view.counters.too_long.get());
        // The ring of a closed queue fills up, until the card has no descriptor left; it stays as
        // long as the port.
        let is_closed = self.closed.load(Ordering::Acquire);
        let waiting = u64::from((view.waiting)());
        match is_closed {
            true => drop(DropReason::Closed, waiting),
            false => queue.in_flight = waiting,
        }
        Some(queue)
    }

    fn tx_account(&self) -> Option<TxAccount> {
        let counters = self.tx.as_ref()?;
        Some(TxAccount {
            queue_index: self.number,
            sent: counters.sent.get(),
            sent_bytes: counters.sent_bytes.get(),
            failed: counters.failed.get(),
            copied: counters.copied.get(),
        })
    }
}

pub(super) struct Control<D: Driver> {
    // First: it keeps memory of the rings, and the core is the last part of a port to be dropped.
    queues: Vec<QueueView>,
    core: Arc<Core<D>>,
    description: PortDescription,
    link_up: bool,
    gone_reported: bool,
    looked: Instant,
}

impl<D: Driver> Control<D> {
    pub(super) fn new(
        core: Arc<Core<D>>,
        queues: Vec<QueueView>,
        description: PortDescription,
    ) -> Self {
        let link_up = core.driver().link().up;
        Self {
            core,
            queues,
            description,
            link_up,
            gone_reported: false,
            looked: Instant::now(),
        }
    }
}

/// Adds the card's counters to those of the queues.
fn add_card(queues: &mut [QueueAccount], card: &CardCounters) {
    // Without a card counter, a packet is seen when it is in the ring.
    let known = |queue: &QueueAccount| {
        queue.delivered + queue.dropped_total() + queue.in_flight + queue.passed
    };
    for (at, queue) in queues.iter_mut().enumerate() {
        let by_card = card.rx.get(at).and_then(|counted| counted.received);
        queue.seen = by_card.unwrap_or_else(|| known(queue));
    }
    let by_queue = card.rx.iter().any(|queue| queue.received.is_some());
    if let (false, Some(received)) = (by_queue, card.received) {
        // The card counts over all queues, so only the sum is known. The first queue gets the rest,
        // so that a difference appears there.
        if let Some((first, others)) = queues.split_first_mut() {
            let of_others: u64 = others.iter().map(|queue| queue.seen).sum();
            first.seen = received.saturating_sub(of_others);
        }
    }
    for (queue, counted) in queues.iter_mut().zip(&card.rx) {
        queue.seen += counted.no_descriptor;
        queue.dropped[DropReason::FillEmpty as usize] += counted.no_descriptor;
    }
    if let Some(first) = queues.first_mut() {
        // Before a queue was selected.
        let errors: u64 = card.errors.iter().map(|(_, count)| count).sum();
        first.seen += card.missed + errors;
        first.dropped[DropReason::RingFull as usize] += card.missed;
        first.dropped[DropReason::Interface as usize] += errors;
        // Packets that the card counted as good and that no queue has seen were lost after the
        // counter.
        if card.lost_more {
            let missing = first.imbalance().max(0);
            first.dropped[DropReason::FillEmpty as usize] += missing.unsigned_abs();
        }
    }
}

impl<D: Driver> PortControl for Control<D> {
    fn account(&mut self) -> Result<PortAccount> {
        // The reader's counters first and the card's last: packets in transit appear as missing for
        // a moment, never as counted twice.
        let mut rx: Vec<_> = self
            .queues
            .iter()
            .filter_map(QueueView::rx_account)
            .collect();
        let card = self.core.driver().counters();
        add_card(&mut rx, &card);
        let without: u64 = card.rx.iter().map(|queue| queue.no_descriptor).sum();
        let interface_seen = card
            .received
            .map(|received| received + without + card.missed);
        Ok(PortAccount {
            rx,
            tx: self
                .queues
                .iter()
                .filter_map(QueueView::tx_account)
                .collect(),
            interface_seen,
            interface_sent: card.sent,
            rx_names: Vec::new(),
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        if self.looked.elapsed() < LOOK_EVERY || self.gone_reported {
            return None;
        }
        self.looked = Instant::now();
        // Some counters saturate early, so they are read here as well.
        self.core.driver().counters();
        let health = self.core.driver().health();
        if self.core.notice(health) {
            self.gone_reported = true;
            return Some(PortEvent::DeviceGone);
        }
        let up = self.core.driver().link().up;
        if up == self.link_up {
            return None;
        }
        self.link_up = up;
        Some(match up {
            true => PortEvent::LinkUp,
            false => PortEvent::LinkDown,
        })
    }

    fn link_is_up(&mut self) -> Option<bool> {
        Some(self.core.driver().link().up)
    }

    fn mac(&self) -> Option<[u8; 6]> {
        Some(self.core.driver().mac())
    }

    fn describe(&self) -> PortDescription {
        let mut description = self.description.clone();
        description.facts.extend(self.core.driver().warnings());
        description
    }

    fn stop(&mut self) -> Result<()> {
        self.core.driver().stop_intake()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfio::QueueCounters;

    #[test]
    fn seen_comes_from_the_card() {
        let queue = |queue_index, delivered, in_flight| QueueAccount {
            queue_index,
            delivered,
            in_flight,
            ..QueueAccount::default()
        };
        let mut card = CardCounters {
            received: Some(100),
            missed: 7,
            errors: vec![("CRCERRS", 2), ("RLEC", 1)],
            ..CardCounters::default()
        };
        card.rx = vec![
            QueueCounters {
                received: None,
                no_descriptor: 4,
            },
            QueueCounters::default(),
        ];
        let mut queues = [queue(0, 60, 0), queue(1, 30, 10)];
        add_card(&mut queues, &card);
        assert_eq!(queues.map(|queue| queue.imbalance()), [0, 0]);
        assert_eq!(queues[0].seen, 60 + 4 + 7 + 3);
        assert_eq!(queues[0].dropped[DropReason::RingFull as usize], 7);
        // A packet that the card counts and no queue has is missing.
        let mut queues = [queue(0, 59, 0), queue(1, 30, 10)];
        add_card(&mut queues, &card);
        assert_eq!(queues.map(|queue| queue.imbalance()), [1, 0]);
        // Unless its counter of lost packets is saturated.
        card.lost_more = true;
        let mut queues = [queue(0, 50, 0), queue(1, 30, 10)];
        add_card(&mut queues, &card);
        assert_eq!(queues.map(|queue| queue.imbalance()), [0, 0]);
        assert_eq!(queues[0].dropped[DropReason::FillEmpty as usize], 4 + 10);
        card.lost_more = false;
        // By queue, where the card does.
        card.rx[0].received = Some(61);
        card.rx[1].received = Some(40);
        let mut queues = [queue(0, 60, 0), queue(1, 30, 10)];
        add_card(&mut queues, &card);
        assert_eq!(queues.map(|queue| queue.imbalance()), [1, 0]);
        // Not at all.
        let mut queues = [queue(0, 60, 1)];
        add_card(&mut queues, &CardCounters::default());
        assert_eq!((queues[0].seen, queues[0].imbalance()), (61, 0));
    }
}
