//! The control side of merged files.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::Result;

use super::super::control::{Facts, unsuitable};
use super::super::{BACKEND, Shared};
use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters};
use crate::control::{Intake, PortControl, PortDescription, PortEvent};

/// State shared by the reading thread and the control side, in addition to that of each input.
#[derive(Default)]
pub(super) struct Merged {
    /// Packets read ahead: seen by their inputs, but not yet in this port's account.
    pub(super) waiting: AtomicU64,
    /// Whether reading was stopped.
    stopped: AtomicBool,
    /// Link type and name of each interface of the port.
    interfaces: Mutex<Vec<(u16, String)>>,
}

impl Merged {
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Locks the list; done when an interface is read, never for a packet.
    pub(super) fn interfaces(&self) -> MutexGuard<'_, Vec<(u16, String)>> {
        self.interfaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Control {
    /// The names, separated by commas.
    pub(super) target: String,
    pub(super) counters: Arc<RxCounters>,
    pub(super) inputs: Vec<(Facts, Arc<Shared>)>,
    pub(super) shared: Arc<Merged>,
}

impl Control {
    /// A property of the inputs, each distinct value once.
    fn words(&self, word: impl Fn(&Facts) -> &'static str) -> String {
        let mut words: Vec<&str> = Vec::new();
        for word in self.inputs.iter().map(|(facts, _)| word(facts)) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words.join(", ")
    }
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        // Delivered packets first, then waiting ones, seen ones last, as for one file: the
        // difference is never negative. What was read ahead when reading was stopped stays in the
        // file.
        let mut queue = QueueAccount {
            delivered: self.counters.delivered.get(),
            delivered_bytes: self.counters.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        queue.dropped[DropReason::Filter as usize] = self.counters.filtered.get();
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        for (_, input) in &self.inputs {
            input.add_to(&mut queue);
        }
        queue.seen = queue.seen.saturating_sub(waiting);
        Ok(PortAccount {
            rx: vec![queue],
            ..PortAccount::default()
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        let interfaces = self.shared.interfaces().clone();
        let inputs = self.inputs.iter();
        let snaplen = inputs.map(|(_, input)| input.snaplen.load(Ordering::Relaxed));
        let snaplen = snaplen.max().unwrap_or(0);
        PortDescription {
            scheme: BACKEND.scheme,
            intake: Intake::File,
            target: self.target.clone(),
            link_type: interfaces.first().map_or(1, |(link, _)| *link),
            facts: [
                ("inputs", self.inputs.len().to_string()),
                ("format", self.words(|facts| facts.format)),
                ("compression", self.words(|facts| facts.compression)),
                ("access", self.words(|facts| facts.access)),
                ("snapshot length", snaplen.to_string()),
            ]
            .into_iter()
            .chain(unsuitable(self.inputs.iter().map(|(_, input)| input)))
            .collect(),
            memory_len: self.inputs.iter().map(|(facts, _)| facts.memory_len).sum(),
            interfaces,
        }
    }

    fn interfaces(&self, known: usize) -> Vec<(u16, String)> {
        let all = self.shared.interfaces();
        all.get(known..).unwrap_or_default().to_vec()
    }

    fn stop(&mut self) -> Result<()> {
        self.shared.stopped.store(true, Ordering::Relaxed);
        for (_, input) in &self.inputs {
            input.stopped.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
