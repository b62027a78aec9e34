//! Filtering rules in software, as those of PF_RING's kernel module: hash rules match one flow in
//! both directions, wildcard rules ranges of addresses and ports. They are evaluated before a
//! packet is returned: hash rules first, then wildcard rules in the order of their numbers, then
//! the default policy.

pub mod layout;
mod numbers;
mod table;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use wire::{Dissection, LinkType};

use crate::ring::Outcome;
use crate::status::NOT_SUPPORTED;
pub use numbers::Numbers;
pub use table::{Counts, Link, Table};

/// `hardware_only` of `filtering_mode`.
const HARDWARE_ONLY: u8 = 1;

/// What a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet is returned.
    Pass,
    /// The packet is dropped.
    Drop,
}

/// An address with a port; IPv4 in the first four bytes, then zeros.
pub type End = ([u8; 16], u16);

/// A flow, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    vlan: u16,
    version: u8,
    protocol: u8,
    ends: [End; 2],
}

impl Flow {
    /// The flow between two ends; `version` is 4 or 6, `vlan` 0 without a tag.
    pub fn between(one: End, other: End, (vlan, version, protocol): (u16, u8, u8)) -> Self {
        let mut ends = [one, other];
        ends.sort_unstable();
        Self {
            vlan,
            version,
            protocol,
            ends,
        }
    }
}

/// What rules know of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its headers.
    pub headers: Dissection,
    /// Identifiers of the outer and the inner VLAN, 0 without a tag.
    pub vlans: [u16; 2],
}

impl Seen {
    /// Dissects a packet; `tag` is the identifier of a VLAN whose tag is not in its bytes.
    pub fn new(link_type: u16, bytes: &[u8], wire_len: u32, tag: Option<u16>) -> Self {
        let mut headers = Dissection::EMPTY;
        wire::dissect(LinkType(link_type), bytes, wire_len, &mut headers);
        let (outer, inner) = (headers.vlan_outer, headers.vlan_inner);
        Self {
            headers,
            vlans: match tag {
                Some(tag) => [tag, outer],
                None => [outer, inner],
            },
        }
    }

    /// The flow; `None` if it is not IP.
    pub fn flow(&self) -> Option<Flow> {
        let it = &self.headers;
        (it.ip_version != 0).then(|| {
            let (one, other) = ((it.src, it.src_port), (it.dst, it.dst_port));
            Flow::between(one, other, (self.vlans[0], it.ip_version, it.ip_protocol))
        })
    }
}

/// The rules of a ring. Without any, packets are not looked at.
#[derive(Debug)]
pub struct Rules {
    is_active: AtomicBool,
    mode: AtomicU8,
    table: Mutex<Table>,
    dropped: AtomicU64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            is_active: AtomicBool::new(false),
            mode: AtomicU8::new(0),
            table: Mutex::new(Table::new()),
            dropped: AtomicU64::new(0),
        }
    }
}

impl Rules {
    /// Sets where rules are evaluated (`filtering_mode`).
    pub fn set_mode(&self, mode: u8) {
        self.mode.store(mode, Ordering::Relaxed);
    }

    /// Changes the table.
    ///
    /// # Errors
    /// Those of `change`; `NOT_SUPPORTED` if rules are for the card only.
    pub fn change<T>(&self, change: impl FnOnce(&mut Table) -> Outcome<T>) -> Outcome<T> {
        if self.mode.load(Ordering::Relaxed) == HARDWARE_ONLY {
            return Err(NOT_SUPPORTED);
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut table);
        self.is_active.store(!table.is_idle(), Ordering::Relaxed);
        changed
    }

    /// The table for the packets of one call, if it selects any.
    pub fn active(&self) -> Option<MutexGuard<'_, Table>> {
        let is_active = self.is_active.load(Ordering::Relaxed);
        is_active.then(|| self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a packet that was dropped.
    pub fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Packets that rules have dropped since [`take_dropped`](Self::take_dropped).
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Packets that rules have dropped; counts from 0 again.
    pub fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

/// The time by which rules are idle, in nanoseconds since the first call: not that of packets,
/// which may be of a capture, nor the system's, which may be set.
pub fn rule_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
