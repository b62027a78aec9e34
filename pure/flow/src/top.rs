//! The largest flows, for display: sums over all records of a flow, in bounded memory.

mod scan;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::hash::HashKey;
use crate::key::{FlowKey, Side};
use crate::record::Record;

pub use scan::TopScan;

/// Sort criterion of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    /// Bytes of both directions.
    #[default]
    Bytes = 0,
    /// Packets of both directions.
    Packets = 1,
    /// Time from the first to the latest packet.
    Duration = 2,
    /// Current bytes per second of both directions ([`TopScan`]); for records and sums, which have
    /// no current rate, bytes.
    Rate = 3,
}

impl Order {
    /// All orders, by their values.
    pub const ALL: [Order; 4] = [Order::Bytes, Order::Packets, Order::Duration, Order::Rate];

    /// The value of a record.
    #[inline]
    pub fn of_record(self, record: &Record) -> u64 {
        match self {
            Order::Bytes | Order::Rate => record.bytes(),
            Order::Packets => record.packets(),
            Order::Duration => record.duration_ns(),
        }
    }

    /// The value of a sum.
    pub fn of_total(self, total: &Total) -> u64 {
        match self {
            Order::Bytes | Order::Rate => total.bytes.iter().sum(),
            Order::Packets => total.packets.iter().sum(),
            Order::Duration => total.end_ns.saturating_sub(total.start_ns),
        }
    }
}

/// Sum over all records of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Total {
    /// Key of the flow.
    pub key: FlowKey,
    /// The initiator, from its first record.
    pub initiator: Side,
    /// Packets from the initiator, and from the responder.
    pub packets: [u64; 2],
    /// Bytes from the initiator, and from the responder.
    pub bytes: [u64; 2],
    /// Time of the first packet, in nanoseconds since the Unix epoch; the maximum if none has a
    /// time.
    pub start_ns: u64,
    /// Time of the last packet.
    pub end_ns: u64,
}

impl Total {
    /// Whether packets have a time.
    pub fn is_timed(&self) -> bool {
        self.start_ns != u64::MAX
    }

    /// The sum of one record.
    pub fn of(record: &Record) -> Total {
        let (forward, reverse) = (record.forward(), record.reverse());
        Total {
            key: *record.key(),
            initiator: record.initiator(),
            packets: [forward.packets, reverse.packets],
            bytes: [forward.bytes, reverse.bytes],
            start_ns: match record.is_untimed() {
                true => u64::MAX,
                false => record.start_ns(),
            },
            end_ns: record.end_ns(),
        }
    }

    /// Adds another sum of the same flow.
    pub fn add(&mut self, other: &Total) {
        let turned = self.initiator != other.initiator;
        for at in 0..2 {
            let from = if turned { 1 - at } else { at };
            self.packets[at] += other.packets[from];
            self.bytes[at] += other.bytes[from];
        }
        self.start_ns = self.start_ns.min(other.start_ns);
        self.end_ns = self.end_ns.max(other.end_ns);
    }
}

/// The flow table's keyed hash, for a map by flow keys: a fifth of the cost of the standard
/// library's, for every record that ends.
#[derive(Clone)]
struct Keyed(HashKey);

impl Keyed {
    /// Uses a secret from the standard library's hasher, which the system provided.
    fn new() -> Keyed {
        let random = RandomState::new();
        let mut bytes = [0; 64];
        for (at, chunk) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *chunk = random.hash_one(at).to_le_bytes();
        }
        Keyed(HashKey::from_bytes(&bytes))
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher {
            words: [0; 6],
            count: 0,
            key: self.0.clone(),
        }
    }
}

/// Hashes the six words of a flow key.
struct KeyedHasher {
    words: [u64; 6],
    count: usize,
    key: HashKey,
}

impl Hasher for KeyedHasher {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        // Words after the sixth are mixed in.
        self.words[self.count % 6] ^= word;
        self.count += 1;
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.key.hash(&self.words)
    }
}

/// Sums records by flow and keeps the largest flows.
///
/// Twice as many flows as requested, plus a thousand, are kept; beyond that the smaller ones are
/// evicted. A flow whose records are each small, and far between, may thus have a sum that is too
/// low; it is never too high, and [`Top::is_exact`] returns whether no flow was ever evicted.
pub struct Top {
    totals: HashMap<FlowKey, Total, Keyed>,
    count_max: usize,
    order: Order,
    is_exact: bool,
    /// Flows up to this value get no entry.
    floor: u64,
    /// The flows that may be in `totals`: most records belong to none of them.
    marks: Box<Marks>,
}

/// A set of flow keys that may report false positives. An attacker who finds them only causes map
/// look-ups.
struct Marks([u64; Marks::WORDS]);

impl Marks {
    const BITS: u32 = 15;
    const WORDS: usize = (1 << Marks::BITS) / 64;

    #[inline(always)]
    fn place(key: &FlowKey) -> (usize, u64) {
        let [a, b, c, d, e, f] = key.words();
        let sum = a ^ b.rotate_left(17) ^ c.rotate_left(31) ^ d.rotate_left(47) ^ e ^ f;
        let bit = (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Marks::BITS)) as usize;
        (bit / 64, 1 << (bit % 64))
    }

    #[inline(always)]
    fn has(&self, key: &FlowKey) -> bool {
        let (word, bit) = Marks::place(key);
        self.0[word % Marks::WORDS] & bit != 0
    }

    fn put(&mut self, key: &FlowKey) {
        let (word, bit) = Marks::place(key);
        self.0[word % Marks::WORDS] |= bit;
    }
}

impl Top {
    /// Creates a list of the `count` largest flows.
    pub fn new(count: usize, order: Order) -> Top {
        let count_max = count.max(1).saturating_mul(2) + 1024;
        Top {
            totals: HashMap::with_capacity_and_hasher(count_max + 1, Keyed::new()),
            count_max,
            order,
            is_exact: true,
            floor: 0,
            marks: Box::new(Marks([0; Marks::WORDS])),
        }
    }

    /// Adds a record.
    #[inline]
    pub fn add(&mut self, record: &Record) {
        let is_small = !self.is_exact && self.order.of_record(record) <= self.floor;
        if is_small && !(self.marks.has(record.key()) && self.totals.contains_key(record.key())) {
            return;
        }
        self.add_large(record);
    }

    #[inline(never)]
    fn add_large(&mut self, record: &Record) {
        let total = Total::of(record);
        self.marks.put(&total.key);
        self.totals
            .entry(total.key)
            .and_modify(|sum| sum.add(&total))
            .or_insert(total);
        if self.totals.len() > self.count_max {
            self.prune();
        }
    }

    /// Evicts the smaller half.
    #[inline(never)]
    fn prune(&mut self) {
        let mut sizes: Vec<u64> = self
            .totals
            .values()
            .map(|total| self.order.of_total(total))
            .collect();
        let middle = sizes.len() / 2;
        let (_, floor, _) = sizes.select_nth_unstable(middle);
        let floor = *floor;
        let greater = sizes.iter().filter(|&&size| size > floor).count();
        // As many flows equal to the floor as there is room for.
        let mut room = (self.count_max / 2).saturating_sub(greater);
        let order = self.order;
        self.totals.retain(|_, total| {
            let size = order.of_total(total);
            let fits = size == floor && room > 0;
            room -= usize::from(fits);
            size > floor || fits
        });
        self.floor = floor;
        self.is_exact = false;
        self.marks.0.fill(0);
        for key in self.totals.keys() {
            self.marks.put(key);
        }
    }

    /// Whether no flow was ever evicted.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// The sum of a flow, if it is among those kept.
    pub fn get(&self, key: &FlowKey) -> Option<&Total> {
        self.totals.get(key)
    }

    /// The `count` largest, sorted.
    pub fn largest(&self, count: usize) -> Vec<Total> {
        let mut all: Vec<Total> = self.totals.values().copied().collect();
        sort(&mut all, self.order);
        all.truncate(count);
        all
    }
}

/// Sorts by decreasing value; equal flows by their start, then their ports, so that the order is
/// stable.
pub fn sort(totals: &mut [Total], order: Order) {
    totals.sort_by_key(|total| {
        (
            std::cmp::Reverse(order.of_total(total)),
            total.start_ns,
            total.key.port(total.initiator),
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Ports;
    use crate::record::tests::{Sent, add};

    fn record(flow: u16, bytes: u64) -> Record {
        let ports = Ports {
            src: flow,
            dst: 80,
            is_answer: false,
        };
        let (key, side) = FlowKey::new(&[1; 16], &[2; 16], ports, 17, 6, false);
        let mut record = Record::new(key, side, false, false);
        let sent = Sent {
            packets: 1,
            bytes,
            payload_bytes: 1,
            first_ns: 5,
            last_ns: 5,
            tcp_flags: 0,
            ttl: 1,
        };
        add(&mut record, side, &sent);
        record
    }

    #[test]
    fn records_of_a_flow_are_summed() {
        let mut top = Top::new(2, Order::Bytes);
        for (flow, bytes) in [(1, 10), (2, 25), (3, 5), (1, 20)] {
            top.add(&record(flow, bytes));
        }
        let sums: Vec<u64> = top.largest(2).iter().map(|t| t.bytes[0]).collect();
        assert_eq!(sums, [30, 25]);
        assert!(top.is_exact());
    }

    #[test]
    fn large_flows_stay_when_there_are_too_many() {
        let mut top = Top::new(10, Order::Bytes);
        for round in 0..3 {
            for flow in 0..30_000 {
                let bytes = if flow % 3000 == 7 {
                    1000 + u64::from(flow)
                } else {
                    u64::from(flow % 100)
                };
                top.add(&record(flow, bytes + round));
            }
        }
        assert!(!top.is_exact());
        let largest = top.largest(10);
        assert_eq!(largest.len(), 10);
        for (at, total) in largest.iter().enumerate() {
            let flow = 27_007 - 3000 * at as u64;
            assert_eq!(total.bytes[0], 3 * (1000 + flow) + 3);
        }
        assert!(top.totals.capacity() < 20_000);
    }

    /// Most keys that are not members are recognized as such, otherwise the marks would be useless.
    #[test]
    fn marks_distinguish_keys() {
        let mut marks = Marks([0; Marks::WORDS]);
        let key = |flow| *record(flow, 1).key();
        (0..1000).for_each(|flow| marks.put(&key(flow)));
        assert!((0..1000).all(|flow| marks.has(&key(flow))));
        let alike = (1000..11_000).filter(|&flow| marks.has(&key(flow))).count();
        // 1000 of 32,768 places are taken.
        assert!(alike < 1000, "{alike}");
    }

    #[test]
    fn a_total_of_turned_records_keeps_directions() {
        let mut sum = Total::of(&record(1, 10));
        let mut turned = sum;
        turned.initiator = turned.initiator.other();
        turned.bytes = [1, 2];
        sum.add(&turned);
        assert_eq!(sum.bytes, [12, 1]);
    }
}
