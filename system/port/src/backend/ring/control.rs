//! The control side: the account and the description.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring::shared::{Interface, QueueCounts};
use sys::Result;

use super::BACKEND;
use super::rx::Taken;
use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters};
use crate::control::{Intake, PortControl, PortDescription, PortEvent};

/// The counters of one queue.
pub(super) struct Part {
    pub queue: u32,
    pub rx: Arc<RxCounters>,
    pub taken: Arc<Taken>,
    pub owner: QueueCounts,
}

pub(super) struct Control {
    pub target: String,
    pub link_type: u16,
    pub interfaces: Vec<Interface>,
    pub parts: Vec<Part>,
    /// The counters of the sending queues.
    pub tx: Vec<Arc<TxCounters>>,
    pub memory_len: usize,
}

impl Part {
    fn account(&self) -> QueueAccount {
        // The reader's counters first: packets in transit appear as in flight.
        let mut queue = QueueAccount {
            queue_index: self.queue,
            delivered: self.rx.delivered.get(),
            delivered_bytes: self.rx.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        queue.dropped[DropReason::Filter as usize] = self.rx.filtered.get();
        queue.dropped[DropReason::Invalid as usize] = self.taken.refused.get();
        let taken = self.taken.packets.get();
        // The owner publishes its counts before the packets become visible.
        let (handed, dropped) = (self.owner.handed(), self.owner.dropped());
        queue.dropped[DropReason::RingFull as usize] = dropped;
        queue.seen = handed.saturating_add(dropped);
        queue.in_flight = handed.saturating_sub(taken);
        queue
    }
}

fn sending((queue_index, counters): (u32, &Arc<TxCounters>)) -> TxAccount {
    TxAccount {
        queue_index,
        sent: counters.sent.get(),
        sent_bytes: counters.sent_bytes.get(),
        failed: counters.failed.get(),
        copied: counters.copied.get(),
    }
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        Ok(PortAccount {
            rx: self.parts.iter().map(Part::account).collect(),
            tx: (0..).zip(&self.tx).map(sending).collect(),
            ..PortAccount::default()
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        let queues: Vec<String> = self
            .parts
            .iter()
            .map(|part| part.queue.to_string())
            .collect();
        let interfaces = match self.interfaces.as_slice() {
            [_] => Vec::new(),
            several => several
                .iter()
                .map(|interface| (interface.link_type, interface.name.clone()))
                .collect(),
        };
        PortDescription {
            scheme: BACKEND.scheme,
            target: self.target.clone(),
            link_type: self.link_type,
            intake: Intake::Live,
            facts: vec![
                ("queue", queues.join(", ")),
                ("packets", "zero-copy, read-only".into()),
                ("filter", "in user space".into()),
            ],
            memory_len: self.memory_len,
            interfaces,
        }
    }

    fn stop(&mut self) -> Result<()> {
        for part in &self.parts {
            part.taken.stopped.store(true, Ordering::Release);
        }
        Ok(())
    }
}
