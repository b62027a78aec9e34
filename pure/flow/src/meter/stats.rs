//! Counters of a meter, and the check that they add up.

use wire::Reason;

use crate::fragment::FragmentStats;
use crate::table::TableStats;

/// Counters of a meter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterStats {
    /// Packets passed to the meter.
    pub packets: u64,
    /// Packets without an IP header, by [`Reason`]. [`Reason::Complete`]: the packet is valid but
    /// not IP (ARP, for example).
    pub refused: [u64; Reason::COUNT],
    /// Packets with an IP header whose transport header could not be parsed; they are in flows with
    /// ports 0.
    pub without_ports: [u64; Reason::COUNT],
    /// Packets skipped by sampling.
    pub unsampled: u64,
    /// Packets counted in two flows, that of a tunnel and the one inside.
    pub twice: u64,
    /// Packets waiting for their batch to fill.
    pub waiting: u64,
    /// Counters of fragments.
    pub fragments: FragmentStats,
    /// Counters of the table.
    pub table: TableStats,
}

impl MeterStats {
    /// All packets refused.
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Packets in active flows.
    pub fn packets_live(&self) -> u64 {
        self.table.packets - self.table.packets_ended
    }

    /// Number of packets missing (positive) or counted twice (negative) in the account; 0 if it
    /// adds up.
    pub fn imbalance(&self) -> i64 {
        let known = self.refused_total()
            + self.unsampled
            + self.waiting
            + self.fragments.held
            + self.table.packets;
        (self.packets + self.twice).wrapping_sub(known) as i64
    }

    /// Adds the counters of another meter.
    pub fn add(&mut self, other: &MeterStats) {
        self.packets += other.packets;
        for (sum, count) in self.refused.iter_mut().zip(other.refused) {
            *sum += count;
        }
        for (sum, count) in self.without_ports.iter_mut().zip(other.without_ports) {
            *sum += count;
        }
        self.unsampled += other.unsampled;
        self.twice += other.twice;
        self.waiting += other.waiting;
        self.fragments.add(&other.fragments);
        self.table.add(&other.table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All counters, each with a different value.
    fn counted(first: u64) -> MeterStats {
        let mut next = first;
        let mut count = || {
            next += next / 3 + 1;
            next
        };
        MeterStats {
            packets: count(),
            refused: std::array::from_fn(|_| count()),
            without_ports: std::array::from_fn(|_| count()),
            unsampled: count(),
            twice: count(),
            waiting: count(),
            fragments: FragmentStats {
                first: count(),
                followed: count(),
                joined: count(),
                orphans: count(),
                held: count(),
                evicted: count(),
                overlaps: count(),
                reassembled: count(),
            },
            table: TableStats {
                packets: count(),
                packets_ended: count(),
                flows: count(),
                ended: std::array::from_fn(|_| count()),
                crowded: count(),
                late: count(),
                set_back: count(),
                live: count(),
            },
        }
    }

    /// All counters in the order of the fields.
    fn numbers(stats: &MeterStats) -> Vec<u64> {
        let text = format!("{stats:?}");
        let parts = text.split(|c: char| !c.is_ascii_digit());
        parts.filter_map(|part| part.parse().ok()).collect()
    }

    #[test]
    fn every_counter_is_added() {
        let (a, b) = (counted(1), counted(1000));
        let mut sum = a;
        sum.add(&b);
        let expected: Vec<u64> = (numbers(&a).iter().zip(numbers(&b)))
            .map(|(a, b)| a + b)
            .collect();
        assert_eq!(numbers(&sum), expected);
        assert!(expected.len() > 2 * Reason::COUNT);
    }
}
