//! The control side: the account, events and the description.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ring::Pool;
use sys::Result;
use vhost::{Event, Server};

use super::BACKEND;
use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters};
use crate::control::{Intake, PortControl, PortDescription, PortEvent};
use crate::options::PortOptions;

/// The counters of one queue pair.
pub(super) struct Part {
    pub rx: Arc<RxCounters>,
    pub tx: Arc<TxCounters>,
    /// Packets that may still be received; [`NOT_STOPPED`] until the intake is stopped.
    pub left: Arc<AtomicU32>,
}

/// No limit to what is received.
pub(super) const NOT_STOPPED: u32 = u32::MAX;

impl Default for Part {
    fn default() -> Self {
        Self {
            rx: Arc::default(),
            tx: Arc::default(),
            left: Arc::new(AtomicU32::new(NOT_STOPPED)),
        }
    }
}

pub(super) struct Control {
    target: String,
    server: Arc<Server>,
    parts: Vec<Part>,
    memory_len: usize,
    has: [bool; 2],
    /// Whether the event that nobody is connected yet was returned.
    is_awaited: bool,
}

impl Control {
    pub fn new(
        target: &str,
        server: Arc<Server>,
        parts: Vec<Part>,
        pool: &Pool,
        options: &PortOptions,
    ) -> Self {
        Self {
            target: target.to_owned(),
            server,
            parts,
            memory_len: pool.memory_len(),
            has: [options.direction.has_rx(), options.direction.has_tx()],
            is_awaited: false,
        }
    }

    fn rx(&self, pair: u32, part: &Part) -> QueueAccount {
        // The reader's counters first: packets in transit appear as missing for a moment, never as
        // counted twice.
        let mut queue = QueueAccount {
            queue_index: pair,
            delivered: part.rx.delivered.get(),
            delivered_bytes: part.rx.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        for (reason, counter) in [
            (DropReason::Filter, &part.rx.filtered),
            (DropReason::Invalid, &part.rx.invalid),
            (DropReason::TooLong, &part.rx.too_long),
        ] {
            queue.dropped[reason as usize] = counter.get();
        }
        let counts = self.server.queues().from_guest(pair).lock().counts();
        queue.dropped[DropReason::Closed as usize] = counts.discarded;
        queue.seen = counts.taken;
        queue
    }

    fn waiting(&self) -> PortEvent {
        PortEvent::Waiting(self.server.path().display().to_string())
    }
}

fn sent(pair: u32, part: &Part) -> TxAccount {
    TxAccount {
        queue_index: pair,
        sent: part.tx.sent.get(),
        sent_bytes: part.tx.sent_bytes.get(),
        failed: part.tx.failed.get(),
        copied: part.tx.copied.get(),
    }
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        let parts = || (0..).zip(&self.parts);
        let [has_rx, has_tx] = self.has;
        Ok(PortAccount {
            rx: match has_rx {
                true => parts().map(|(pair, part)| self.rx(pair, part)).collect(),
                false => Vec::new(),
            },
            tx: match has_tx {
                true => parts().map(|(pair, part)| sent(pair, part)).collect(),
                false => Vec::new(),
            },
            ..PortAccount::default()
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        let Some(event) = self.server.queues().event() else {
            return (!std::mem::replace(&mut self.is_awaited, true)).then(|| self.waiting());
        };
        self.is_awaited = true;
        Some(match event {
            Event::Connected => PortEvent::Connected,
            Event::Disconnected => self.waiting(),
            Event::Refused(why) => {
                PortEvent::Misbehaved(format!("the front-end was disconnected: {why}"))
            }
            Event::Started => PortEvent::LinkUp,
            Event::Stopped => PortEvent::LinkDown,
            Event::Broken(vring, why) => {
                PortEvent::Misbehaved(format!("vring {vring} is no longer used: {why}"))
            }
            Event::Mtu(mtu) => PortEvent::MtuChanged(mtu),
        })
    }

    fn describe(&self) -> PortDescription {
        let mut facts = vec![
            ("socket", self.server.path().display().to_string()),
            ("queue pairs", self.parts.len().to_string()),
            (
                "packets",
                "copied between the guest's memory and frames".into(),
            ),
        ];
        if self.has[0] {
            facts.push(("filter", "in user space".into()));
        }
        PortDescription {
            scheme: BACKEND.scheme,
            target: self.target.clone(),
            link_type: 1,
            intake: Intake::Live,
            facts,
            memory_len: self.memory_len,
            interfaces: Vec::new(),
        }
    }

    fn stop(&mut self) -> Result<()> {
        for (pair, part) in (0..).zip(&self.parts) {
            // The guest continues to send: what it has sent by now is still received. The lock
            // keeps the queue from being read meanwhile.
            let mut guard = self.server.queues().from_guest(pair).lock();
            let waiting = match guard.running() {
                Some((vring, _)) => vring.waiting().unwrap_or(0),
                None => 0,
            };
            if part.left.load(Ordering::Relaxed) == NOT_STOPPED {
                part.left.store(waiting, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
