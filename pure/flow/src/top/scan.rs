//! The largest active flows of a table, with their rates, found step by step so that no packet is
//! delayed for long.
//!
//! Rates cost nothing per packet: a round through the table remembers the bytes of each flow, and
//! the next round subtracts them.

use crate::record::Record;
use crate::top::Order;

/// State of a place in the previous round.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// Start of the record, to detect another flow in the same place.
    start_ns: u64,
    /// Bytes from the initiator, and from the responder.
    bytes: [u64; 2],
}

/// A flow found.
struct Kept {
    size: (u64, u64),
    place: u32,
    record: Record,
    rate: Option<[u64; 2]>,
}

/// The largest active flows of a table.
pub struct TopScan {
    /// Heap with the lowest on top.
    kept: Vec<Kept>,
    count: usize,
    at: usize,
    /// State by place; places never used are missing.
    before: Vec<Before>,
    /// Time from the previous round to this one; 0 in the first.
    interval_ns: u64,
}

impl TopScan {
    /// Memory for a table of this many flows in bytes.
    pub const fn memory_len(flow_count_max: u32) -> usize {
        flow_count_max as usize * size_of::<Before>()
    }

    /// Creates a scan for the `count` largest flows in a table of this many.
    pub fn new(count: usize, flow_count_max: u32) -> TopScan {
        TopScan {
            kept: Vec::with_capacity(count + 1),
            count: count.max(1),
            at: 0,
            // Reserved now, and touched as the table fills.
            before: Vec::with_capacity(flow_count_max as usize),
            interval_ns: 0,
        }
    }

    /// Begins a round, this long after the previous one began.
    pub fn begin(&mut self, interval_ns: u64) {
        self.interval_ns = interval_ns;
    }

    /// Scans about `place_count` more places of the table. Returns true when all have been scanned:
    /// [`TopScan::take`] then returns the result.
    pub fn step(&mut self, table: &crate::Table, place_count: usize, order: Order) -> bool {
        let to = self.at.saturating_add(place_count);
        for (place, record) in table.live_places(self.at, to) {
            let rate = self.rate(place, record);
            let moved = rate.map_or(0, |rate| rate[0] + rate[1]);
            let size = match order {
                Order::Rate => (moved, record.bytes()),
                order => (order.of_record(record), moved),
            };
            let least = self.kept.first().map_or((0, 0), |least| least.size);
            if self.kept.len() == self.count {
                if size <= least {
                    continue;
                }
                self.kept.remove(0);
            }
            let at = self.kept.partition_point(|other| other.size < size);
            let kept = Kept {
                size,
                place,
                record: *record,
                rate,
            };
            self.kept.insert(at, kept);
        }
        self.at = to;
        to >= table.place_count()
    }

    /// Bytes per second since the previous round, from the initiator and from the responder; `None`
    /// in the first round.
    fn rate(&mut self, place: u32, record: &Record) -> Option<[u64; 2]> {
        let place = place as usize;
        if self.before.len() <= place {
            self.before.resize(place + 1, Before::default());
        }
        let now = Before {
            start_ns: record.start_ns(),
            bytes: [record.forward().bytes, record.reverse().bytes],
        };
        let before = std::mem::replace(&mut self.before[place], now);
        if self.interval_ns == 0 {
            return None;
        }
        let is_same = before.start_ns == now.start_ns;
        let a_second = |at: usize| {
            let since = if is_same { before.bytes[at] } else { 0 };
            let moved = u128::from(now.bytes[at].saturating_sub(since));
            (moved * 1_000_000_000 / u128::from(self.interval_ns)) as u64
        };
        Some([a_second(0), a_second(1)])
    }

    /// Moves the largest flows found into `out`, replacing its content. `look` is called with each
    /// flow's place, for [`Meter::application`](crate::Meter::application), and its rate in bytes
    /// per second, from the initiator and from the responder.
    pub fn take(
        &mut self,
        out: &mut Vec<Record>,
        mut look: impl FnMut(u32, &Record, Option<[u64; 2]>),
    ) {
        out.clear();
        for kept in self.kept.drain(..).rev() {
            look(kept.place, &kept.record, kept.rate);
            out.push(kept.record);
        }
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{FlowKey, Ports};
    use crate::{HashKey, Observed, Table, TableConfig};

    struct Flows {
        table: Table,
        time_ns: u64,
    }

    impl Flows {
        fn new() -> Flows {
            let config = TableConfig {
                flow_count_max: 1000,
                ..TableConfig::default()
            };
            Flows {
                table: Table::new(&config).unwrap(),
                time_ns: 0,
            }
        }

        /// Counts a packet of a flow, from its initiator or back.
        fn packet(&mut self, flow: u16, bytes: u32, is_answer: bool) {
            self.time_ns += 1;
            let ends = [[1; 16], [2; 16]];
            let [from, to] = if is_answer { [1, 0] } else { [0, 1] };
            let ports = Ports {
                src: [flow, 80][from],
                dst: [flow, 80][to],
                is_answer: false,
            };
            let (key, side) = FlowKey::new(&ends[from], &ends[to], ports, 17, 6, false);
            let packet = Observed {
                key,
                side,
                hash: HashKey::from_seed(1).hash(&key.words()),
                time_ns: self.time_ns,
                bytes,
                ..Observed::NONE
            };
            self.table
                .observe(&[packet], &mut |_: &Record, _| panic!("a flow has ended"));
        }
    }

    type Found = Vec<(u16, Option<[u64; 2]>)>;

    fn round(scan: &mut TopScan, flows: &Flows, order: Order) -> Found {
        while !scan.step(&flows.table, 64, order) {}
        let (mut records, mut found) = (Vec::new(), Vec::new());
        scan.take(&mut records, |_, record, rate| {
            found.push((record.key().port(record.initiator()), rate));
        });
        found
    }

    #[test]
    fn active_flows_are_found_step_by_step() {
        let mut flows = Flows::new();
        for flow in 0..1000 {
            flows.packet(flow, u32::from(flow) * 7 % 1000, false);
        }
        let mut scan = TopScan::new(5, 1000);
        let mut steps = 1;
        while !scan.step(&flows.table, 64, Order::Bytes) {
            steps += 1;
        }
        assert_eq!(steps, 16);
        let mut found = Vec::new();
        scan.take(&mut found, |_, _, rate| assert_eq!(rate, None));
        let sizes: Vec<u64> = found.iter().map(Record::bytes).collect();
        assert_eq!(sizes, [999, 998, 997, 996, 995]);
    }

    #[test]
    fn rates_cover_the_time_since_the_previous_update() {
        let mut flows = Flows::new();
        for flow in 0..100 {
            flows.packet(flow, 1000, false);
        }
        let mut scan = TopScan::new(3, 1000);
        round(&mut scan, &flows, Order::Rate);
        flows.packet(7, 300, false);
        flows.packet(7, 100, true);
        flows.packet(9, 200, false);
        // A flow that was not there in the previous round.
        flows.packet(500, 250, false);
        scan.begin(500_000_000);
        let found = round(&mut scan, &flows, Order::Rate);
        let wanted = [
            (7, Some([600, 200])),
            (500, Some([500, 0])),
            (9, Some([400, 0])),
        ];
        assert_eq!(found, wanted);
        scan.begin(500_000_000);
        let found = round(&mut scan, &flows, Order::Rate);
        assert!(found.iter().all(|(_, rate)| *rate == Some([0, 0])));
    }

    /// Another flow reuses a place: the bytes of the former one are not subtracted.
    #[test]
    fn a_reused_place_starts_at_zero() {
        let mut scan = TopScan::new(3, 1000);
        let mut flows = Flows::new();
        flows.packet(1, 5000, false);
        round(&mut scan, &flows, Order::Rate);
        let mut others = Flows::new();
        others.time_ns = 77;
        others.packet(2, 300, false);
        scan.begin(1_000_000_000);
        let found = round(&mut scan, &others, Order::Rate);
        assert_eq!(found, [(2, Some([300, 0]))]);
    }
}
