//! Decoder results of flows whose record ended by a timeout, for their later records: a table of
//! fixed size, in sets of four entries hashed with the table's secret. A full set evicts a flow
//! that needs no further look, otherwise the one that ended first.

use crate::extra::Inspected;
use crate::hash::HashKey;
use crate::key::{FlowKey, KeyExtra, Side};
use crate::record::{ACK, Record, SYN};
use crate::table::{Observed, OutOfMemory};

/// Maximum number of flows remembered.
const COUNT_MAX: usize = 4096;
/// Number of entries in a set.
const WAYS: usize = 4;
/// Number of entries checked per sweep.
const SWEEP_COUNT: usize = 4;
/// Idle time after which packets belong to a new flow, unless its sequence numbers continue. The
/// flow then keeps its results but is not read further: by the clock of the table, independent of
/// the sweep.
const PAUSE_MAX_NS: u64 = 300_000_000_000;
/// Maximum distance of a sequence number that continues the connection.
const NEAR: u32 = 1 << 20;

/// A flow that may continue.
pub(super) struct Carry {
    key: FlowKey,
    /// `None` if no extra parts of the key are recorded.
    key_extra: Option<KeyExtra>,
    inspected: Inspected,
    /// Time of its last packet.
    end_ns: u64,
    /// TCP: the next sequence number of each side, if known.
    next_seq: [Option<u32>; 2],
    is_closed: bool,
}

impl Carry {
    pub(super) fn of(record: &Record, key_extra: Option<KeyExtra>, inspected: Inspected) -> Carry {
        Carry {
            key: *record.key(),
            key_extra,
            inspected,
            end_ns: record.end_ns(),
            next_seq: [Side::A, Side::B].map(|side| record.next_seq(side)),
            is_closed: record.is_closed(),
        }
    }

    /// Whether its last packet is so old that it is not read further.
    fn is_silent(&self, clock_ns: u64) -> bool {
        clock_ns.saturating_sub(self.end_ns) > PAUSE_MAX_NS
    }

    fn is_of(&self, packet: &Observed) -> bool {
        let is_keyed = self.key_extra.is_none_or(|extra| extra == packet.key_extra);
        self.key == packet.key && is_keyed
    }

    /// Whether a packet with its key continues it.
    fn goes_on_with(&self, packet: &Observed) -> bool {
        let level = &packet.level;
        let next_seq = self.next_seq[packet.side as usize].filter(|_| level.is_tcp);
        let ahead = next_seq.map(|next| level.tcp_seq.wrapping_sub(next));
        if level.is_tcp && level.tcp_flags & (SYN | ACK) == SYN {
            // A retransmitted SYN precedes the sequence numbers seen since; a new one does not.
            let is_again = ahead.is_some_and(|ahead| ahead.wrapping_neg().wrapping_sub(1) < NEAR);
            return is_again && !self.is_closed;
        }
        let is_near = ahead.is_some_and(|ahead| ahead.wrapping_add(NEAR) < 2 * NEAR);
        is_near || packet.time_ns.saturating_sub(self.end_ns) <= PAUSE_MAX_NS
    }
}

/// All remembered flows.
pub(super) struct Carried {
    places: Vec<Option<Carry>>,
    count: usize,
    /// Next entry to sweep.
    hand: usize,
    hash_key: HashKey,
}

/// Earlier state of a new flow.
pub(super) enum Known {
    /// Nothing is known.
    Nothing,
    /// The flow continues.
    Same(Inspected),
    /// The flow continues after an idle time of more than [`PAUSE_MAX_NS`].
    Silent(Inspected),
    /// An ended flow had the same key.
    Other(Inspected),
}

impl Carried {
    /// Memory for a table of this many flows in bytes.
    pub(super) const fn memory_len(flow_count: usize) -> usize {
        Carried::places(flow_count) * size_of::<Option<Carry>>()
    }

    const fn places(flow_count: usize) -> usize {
        let count = flow_count.next_multiple_of(WAYS).next_power_of_two();
        match flow_count {
            0 => 0,
            _ if count < COUNT_MAX => count,
            _ => COUNT_MAX,
        }
    }

    /// Creates the table for a flow table of this size; with size 0 it remembers nothing.
    pub(super) fn new(flow_count: usize, hash_key: &HashKey) -> Result<Carried, OutOfMemory> {
        let count = Carried::places(flow_count);
        let mut places = Vec::new();
        let len = Carried::memory_len(flow_count);
        places
            .try_reserve_exact(count)
            .map_err(|_| OutOfMemory { len })?;
        places.resize_with(count, || None);
        Ok(Carried {
            places,
            count: 0,
            hand: 0,
            hash_key: hash_key.clone(),
        })
    }

    /// The set of entries for a key.
    fn set(&mut self, key: &FlowKey) -> &mut [Option<Carry>] {
        let mask = self.places.len().saturating_sub(1) & !(WAYS - 1);
        let from = (self.hash_key.hash(&key.words()) >> 32) as usize & mask;
        self.places.get_mut(from..from + WAYS).unwrap_or_default()
    }

    /// Remembers a flow. Returns the evicted one.
    pub(super) fn put(&mut self, carry: Carry, clock_ns: u64) -> Option<Inspected> {
        let set = self.set(&carry.key);
        // Free entries first, then flows that are not read further, then the oldest.
        let worth = |place: &&mut Option<Carry>| {
            let carry = place.as_ref();
            carry.map_or((false, 0), |carry| {
                let is_read = !carry.inspected.is_done && !carry.is_silent(clock_ns);
                (is_read, carry.end_ns)
            })
        };
        let Some(place) = set.iter_mut().min_by_key(worth) else {
            return Some(carry.inspected);
        };
        let before = place.replace(carry);
        self.count += usize::from(before.is_none());
        before.map(|before| before.inspected)
    }

    /// Takes the earlier state of a flow, given the first packet of a new record.
    #[inline]
    pub(super) fn take(&mut self, packet: &Observed, clock_ns: u64) -> Known {
        if self.count == 0 {
            return Known::Nothing;
        }
        self.find(packet, clock_ns)
    }

    fn find(&mut self, packet: &Observed, clock_ns: u64) -> Known {
        let set = self.set(&packet.key);
        let found = set
            .iter_mut()
            .find_map(|place| place.take_if(|carry| carry.is_of(packet)));
        let Some(carry) = found else {
            return Known::Nothing;
        };
        self.count -= 1;
        match carry.goes_on_with(packet) {
            true if carry.is_silent(clock_ns) => Known::Silent(carry.inspected),
            true => Known::Same(carry.inspected),
            false => Known::Other(carry.inspected),
        }
    }

    /// Checks the next few entries for flows that have been idle too long, and reports each once.
    #[inline]
    pub(super) fn sweep(&mut self, clock_ns: u64, rest: impl FnMut(&mut Inspected)) {
        if self.count != 0 {
            self.sweep_places(clock_ns, rest);
        }
    }

    #[inline(never)]
    fn sweep_places(&mut self, clock_ns: u64, mut rest: impl FnMut(&mut Inspected)) {
        for _ in 0..SWEEP_COUNT {
            let at = self.hand;
            self.hand = (at + 1) & self.places.len().saturating_sub(1);
            if let Some(Some(carry)) = self.places.get_mut(at)
                && !carry.inspected.is_done
                && carry.is_silent(clock_ns)
            {
                rest(&mut carry.inspected);
            }
        }
    }

    /// Takes all remaining flows.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Inspected> {
        self.count = 0;
        let places = self.places.iter_mut().filter_map(Option::take);
        places.map(|carry| carry.inspected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Ports;

    fn carry(port: u16, end_ns: u64, is_done: bool) -> Carry {
        let ports = Ports {
            src: port,
            dst: 80,
            is_answer: false,
        };
        let (key, _) = FlowKey::new(&[1; 16], &[2; 16], ports, 6, 6, false);
        Carry {
            key,
            key_extra: None,
            inspected: Inspected {
                handle: port.into(),
                is_done,
                ..Inspected::default()
            },
            end_ns,
            next_seq: [None; 2],
            is_closed: false,
        }
    }

    /// Independent of the sweep.
    #[test]
    fn the_longest_idle_of_four_is_evicted() {
        const S: u64 = 1_000_000_000;
        let mut carried = Carried::new(1, &HashKey::from_seed(1)).unwrap();
        let now_ns = 1000 * S;
        let silent = carry(1, 600 * S, false);
        let others = [(2, 900, true), (3, 800, false), (4, 950, true)];
        let others = others.map(|(port, end_s, is_done)| carry(port, end_s * S, is_done));
        for carry in [silent].into_iter().chain(others) {
            assert!(carried.put(carry, 700 * S).is_none());
        }
        let before = carried.put(carry(5, now_ns, false), now_ns);
        assert_eq!(before.map(|inspected| inspected.handle), Some(1));
        let before = carried.put(carry(6, now_ns, false), now_ns);
        assert_eq!(before.map(|inspected| inspected.handle), Some(2));
    }
}
