//! The control side: the account, and the end of the intake.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sys::Result;

use super::{BACKEND, Ends};
use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters};
use crate::control::{Intake, PortControl, PortDescription, PortEvent};

pub(super) struct Control {
    pub(super) name: String,
    pub(super) memory_len: usize,
    pub(super) rx_counters: Arc<RxCounters>,
    pub(super) tx_counters: Arc<TxCounters>,
    pub(super) ends: Arc<Ends>,
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        self.ends.sweep();
        // The receiver's counters first: packets in transit appear as missing for a moment or as in
        // flight, never as counted twice.
        let (rx, tx) = (&self.rx_counters, &self.tx_counters);
        let mut queue = QueueAccount {
            delivered: rx.delivered.get(),
            delivered_bytes: rx.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        queue.dropped[DropReason::Filter as usize] = rx.filtered.get();
        queue.dropped[DropReason::Invalid as usize] = rx.invalid.get();
        let closed = self.ends.closed.load(Ordering::Relaxed);
        queue.dropped[DropReason::Closed as usize] = closed;
        // Packets that entered the ring and did not leave it, by counters at the ring; what
        // happened to them afterwards is counted elsewhere.
        let out = self.ends.taken.0.get() + closed;
        queue.seen = tx.sent.get();
        queue.in_flight = queue.seen.saturating_sub(out);
        let sending = TxAccount {
            sent: tx.sent.get(),
            sent_bytes: tx.sent_bytes.get(),
            failed: tx.failed.get(),
            copied: tx.copied.get(),
            queue_index: 0,
        };
        Ok(PortAccount {
            rx: vec![queue],
            tx: vec![sending],
            interface_seen: None,
            interface_sent: None,
            rx_names: Vec::new(),
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        PortDescription {
            scheme: BACKEND.scheme,
            intake: Intake::Waiting,
            target: self.name.clone(),
            link_type: 1,
            facts: Vec::new(),
            memory_len: self.memory_len,
            interfaces: Vec::new(),
        }
    }

    fn stop(&mut self) -> Result<()> {
        self.ends.stopped.store(true, Ordering::Release);
        Ok(())
    }
}
