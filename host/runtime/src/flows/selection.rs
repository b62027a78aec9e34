//! The selection of packets and records (filter and sampling), which may change while a probe runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bpf::cbpf::Program;
use flow::Sampling;
use port::{Matcher, Packet};

use super::lock;

/// A selection of packets and records.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Filter run on each packet in the worker; `None` selects all. Packets rejected by the port's
    /// own filter do not get here.
    pub filter: Option<Arc<Program>>,
    /// Sampling of the packets metered.
    pub sampling: Sampling,
    /// Sampling of the records passed to the outlet.
    pub record_sampling: Sampling,
}

/// A selection that can change. Readers compare a number once per batch, and lock only if it
/// differs.
pub(super) struct Changing {
    number: AtomicU32,
    selection: Mutex<Selection>,
}

impl Changing {
    pub(super) fn new(selection: Selection) -> Changing {
        Changing {
            number: AtomicU32::new(0),
            selection: Mutex::new(selection),
        }
    }

    pub(super) fn set(&self, selection: Selection) {
        *lock(&self.selection) = selection;
        self.number.fetch_add(1, Ordering::Release);
    }

    /// The selection, if it has changed since this number.
    #[inline]
    pub(super) fn changed(&self, number: &mut u32) -> Option<Selection> {
        let now = self.number.load(Ordering::Acquire);
        if now == *number {
            return None;
        }
        *number = now;
        Some(lock(&self.selection).clone())
    }
}

/// A filter that runs in a worker.
pub(super) struct Filter {
    matcher: Matcher,
    /// A packet with its VLAN tag inserted again.
    tagged: Vec<u8>,
}

impl Filter {
    pub(super) fn new(program: Arc<Program>) -> Filter {
        Filter {
            matcher: Matcher::new(program),
            tagged: Vec::new(),
        }
    }

    /// Whether it selects a packet. Programs are compiled for packets as in files: a VLAN tag that
    /// was removed is inserted again.
    pub(super) fn takes(&mut self, packet: &Packet<'_>) -> bool {
        let (bytes, wire_len) = (packet.bytes(), packet.wire_len());
        let Some(vlan) = packet.vlan() else {
            return self.matcher.selects(bytes, wire_len);
        };
        let (macs, rest) = bytes.split_at(bytes.len().min(12));
        self.tagged.clear();
        self.tagged.extend_from_slice(macs);
        self.tagged.extend(vlan.tpid.to_be_bytes());
        self.tagged.extend(vlan.tci.to_be_bytes());
        self.tagged.extend_from_slice(rest);
        self.matcher
            .selects(&self.tagged, wire_len.saturating_add(4))
    }
}
