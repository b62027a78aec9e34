//! The control side: the account and the description.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sys::Result;

use super::Shared;
use super::messages::Kind;
use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters};
use crate::control::{Intake, PortControl, PortDescription, PortEvent};

pub(super) struct Control {
    pub scheme: &'static str,
    pub target: String,
    pub kind: Kind,
    pub buffer_len: usize,
    pub shared: Arc<Shared>,
    pub counters: Arc<RxCounters>,
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        // The reader's counters first: packets in transit appear as missing for a moment.
        let mut queue = QueueAccount {
            delivered: self.counters.delivered.get(),
            delivered_bytes: self.counters.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        for (reason, count) in [
            (DropReason::Filter, self.counters.filtered.get()),
            (DropReason::Invalid, self.counters.invalid.get()),
            (DropReason::RingFull, self.shared.lost.get()),
        ] {
            queue.dropped[reason as usize] = count;
        }
        queue.in_flight = self.shared.waiting.load(Ordering::Relaxed);
        queue.seen = self.shared.seen.get();
        Ok(PortAccount {
            rx: vec![queue],
            ..PortAccount::default()
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        let packets = match self.kind {
            Kind::Log => "copies, with netfilter's attributes",
            Kind::Queue => "accepted once they are received; those without room pass",
        };
        PortDescription {
            scheme: self.scheme,
            target: self.target.clone(),
            link_type: self.kind.link_type(),
            intake: Intake::Live,
            facts: vec![
                ("packets", packets.into()),
                ("buffer", format!("{} bytes", self.buffer_len)),
                ("filter", "in user space".into()),
            ],
            memory_len: self.buffer_len,
            interfaces: Vec::new(),
        }
    }

    fn stop(&mut self) -> Result<()> {
        // The rules remain: what is in the socket by now is still received.
        self.shared.is_stopped.store(true, Ordering::Release);
        Ok(())
    }
}
