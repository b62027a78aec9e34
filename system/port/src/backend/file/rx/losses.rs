//! Packets that a file says its capture lost: in the counters of interfaces, and between packets.

use wire::file::Statistics;

/// Losses of the interfaces of a section.
#[derive(Default)]
pub(super) struct Losses {
    /// Lost between packets, and lost by the last counters, by the interface's index.
    by_interface: Vec<[u64; 2]>,
}

impl Losses {
    /// Forgets the interfaces, for those of another section.
    pub(super) fn begin_section(&mut self) {
        self.by_interface.clear();
    }

    /// Adds packets lost before one of this interface; returns by how much the total grows.
    #[cold]
    pub(super) fn before_packet(&mut self, interface: u32, dropped: u64) -> u64 {
        self.change(interface, |[between, _]| {
            *between = between.saturating_add(dropped)
        })
    }

    /// Takes the counters of an interface, which are totals; returns by how much the total grows.
    pub(super) fn counters(&mut self, found: &Statistics) -> u64 {
        let lost = found
            .dropped
            .unwrap_or(0)
            .saturating_add(found.os_dropped.unwrap_or(0));
        self.change(found.interface, |[_, counters]| {
            *counters = lost.max(*counters)
        })
    }

    /// Both state the same losses, so the larger number counts.
    fn change(&mut self, interface: u32, change: impl FnOnce(&mut [u64; 2])) -> u64 {
        let index = interface as usize;
        if index >= self.by_interface.len() {
            // The reader knows the interface, so its index is bounded.
            self.by_interface.resize(index + 1, [0; 2]);
        }
        let entry = &mut self.by_interface[index];
        let before = entry[0].max(entry[1]);
        change(entry);
        entry[0].max(entry[1]) - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stated_twice_counts_once() {
        let mut losses = Losses::default();
        assert_eq!(losses.before_packet(1, 3), 3);
        let counters = |dropped, os_dropped| Statistics {
            interface: 1,
            dropped,
            os_dropped,
            ..Statistics::default()
        };
        assert_eq!(losses.counters(&counters(Some(2), None)), 0);
        assert_eq!(losses.counters(&counters(Some(2), Some(3))), 2);
        assert_eq!(losses.before_packet(1, 1), 0);
        assert_eq!(losses.before_packet(1, u64::MAX), u64::MAX - 5);
        assert_eq!(losses.before_packet(0, 1), 1);
        losses.begin_section();
        assert_eq!(losses.counters(&counters(Some(7), None)), 7);
    }
}
