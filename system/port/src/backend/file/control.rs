//! The control sides of a file that is read and of one that is written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sys::Result;
use wire::LinkType;
use wire::file::Format;

use super::rx::Rx;
use super::{BACKEND, Shared};
use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters};
use crate::control::{Intake, PortControl, PortDescription, PortEvent};

/// Properties of an open file.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    pub(super) format: &'static str,
    pub(super) compression: &'static str,
    pub(super) access: &'static str,
    pub(super) memory_len: usize,
}

impl Facts {
    /// The properties of a file whose format is known.
    pub(super) fn of(rx: &Rx) -> Self {
        Self {
            format: match rx.reader.format() {
                Some(Format::Pcap) => "pcap",
                _ => "pcapng",
            },
            compression: rx.source.compression().name(),
            access: match rx.source.is_mapped() {
                true => "mapped",
                false => "buffered",
            },
            memory_len: rx.source.memory_len(),
        }
    }
}

/// The link types on which the filter cannot be used, as a fact.
pub(super) fn unsuitable<'a>(
    inputs: impl IntoIterator<Item = &'a Arc<Shared>>,
) -> Option<(&'static str, String)> {
    let mut links: Vec<u16> = Vec::new();
    for input in inputs {
        links.extend(input.unsuitable_links().iter());
    }
    links.sort_unstable();
    links.dedup();
    let names: Vec<String> = links
        .iter()
        .map(|link| LinkType(*link).to_string())
        .collect();
    (!names.is_empty()).then(|| ("filter unsuitable for", names.join(", ")))
}

pub(super) struct Control {
    pub(super) path: String,
    pub(super) counters: Arc<RxCounters>,
    pub(super) facts: Facts,
    pub(super) shared: Arc<Shared>,
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        // Delivered packets first, seen ones last: the difference is never negative. There is no
        // ring in which packets could wait: those read from the file and not yet delivered are
        // missing for a moment, and any missing at the end were lost by a bug in barewire.
        let mut queue = QueueAccount {
            delivered: self.counters.delivered.get(),
            delivered_bytes: self.counters.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        queue.dropped[DropReason::Filter as usize] = self.counters.filtered.get();
        self.shared.add_to(&mut queue);
        Ok(PortAccount {
            rx: vec![queue],
            tx: Vec::new(),
            interface_seen: None,
            interface_sent: None,
            rx_names: Vec::new(),
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        let interfaces = self.shared.interfaces_from(0);
        let snaplen = self.shared.snaplen.load(Ordering::Relaxed);
        let mut facts = vec![
            ("format", self.facts.format.to_owned()),
            ("compression", self.facts.compression.to_owned()),
            ("access", self.facts.access.to_owned()),
            ("snapshot length", snaplen.to_string()),
        ];
        facts.extend(unsuitable([&self.shared]));
        PortDescription {
            scheme: BACKEND.scheme,
            intake: Intake::File,
            target: self.path.clone(),
            // A file without interfaces has no packets either, so any link type will do.
            link_type: interfaces.first().map_or(1, |(link, _)| *link),
            facts,
            memory_len: self.facts.memory_len,
            interfaces,
        }
    }

    fn interfaces(&self, known: usize) -> Vec<(u16, String)> {
        self.shared.interfaces_from(known)
    }

    fn blocks(&self, group: u64) -> Vec<Box<[u8]>> {
        self.shared.blocks.take(group)
    }

    fn blocks_left_out(&self) -> u64 {
        self.shared.blocks.left_out()
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
