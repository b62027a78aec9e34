//! The control sides of a file that is read and of one that is written.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use sys::Result;

use super::input::Compression;
use super::{BACKEND, Shared};
use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters};
use crate::control::{Intake, PortControl, PortDescription, PortEvent};

pub(super) struct Control {
    pub(super) path: String,
    pub(super) counters: Arc<RxCounters>,
    pub(super) mapped: bool,
    pub(super) format: &'static str,
    pub(super) compression: Compression,
    pub(super) memory_len: usize,
    pub(super) shared: Arc<Shared>,
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        // What was delivered first, what was seen last: the difference is never negative. There is
        // no ring in which packets could wait: what was read from the file and not yet handed over
        // is missing for a moment, and what is missing at the end was lost by a fault of ours.
        let mut queue = QueueAccount {
            delivered: self.counters.delivered.get(),
            delivered_bytes: self.counters.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        queue.dropped[DropReason::Filter as usize] = self.counters.filtered.get();
        queue.seen = self.shared.seen.get();
        queue.wire_len_damaged = self.shared.wire_len_damaged.get();
        Ok(PortAccount {
            rx: vec![queue],
            tx: Vec::new(),
            interface_seen: None,
            interface_sent: None,
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        let interfaces = self
            .shared
            .interfaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let access = if self.mapped { "mapped" } else { "buffered" };
        let snaplen = self.shared.snaplen.load(Ordering::Relaxed);
        PortDescription {
            scheme: BACKEND.scheme,
            intake: Intake::File,
            target: self.path.clone(),
            // A file without interfaces has no packets either, so that any will do.
            link_type: interfaces.first().map_or(1, |(link, _)| *link),
            facts: vec![
                ("format", self.format.to_owned()),
                ("compression", self.compression.name().to_owned()),
                ("access", access.to_owned()),
                ("snapshot length", snaplen.to_string()),
            ],
            memory_len: self.memory_len,
            interfaces,
        }
    }

    fn interfaces(&self, known: usize) -> Vec<(u16, String)> {
        let all = self
            .shared
            .interfaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.get(known..).unwrap_or_default().to_vec()
    }

    fn stop(&mut self) -> Result<()> {
        self.shared.stopped.store(true, Ordering::Relaxed);
        Ok(())
    }
}

pub(super) struct TxControl {
    pub(super) path: String,
    pub(super) counters: Arc<TxCounters>,
    pub(super) memory_len: usize,
}

impl PortControl for TxControl {
    fn account(&mut self) -> Result<PortAccount> {
        let tx = TxAccount {
            queue_index: 0,
            sent: self.counters.sent.get(),
            sent_bytes: self.counters.sent_bytes.get(),
            failed: self.counters.failed.get(),
            copied: self.counters.copied.get(),
        };
        Ok(PortAccount {
            tx: vec![tx],
            ..PortAccount::default()
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        PortDescription {
            scheme: BACKEND.scheme,
            intake: Intake::File,
            target: self.path.clone(),
            link_type: 1,
            memory_len: self.memory_len,
            ..PortDescription::default()
        }
    }

    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}
