//! The slow path: flows that begin, end, or are not in their home line.

use super::{AWAY_SHIFT, Place, REACH, RecordSink, Table, WAYS, Watch, tag_of};
use crate::expire::{self, EndReason};
use crate::record::{self, Amount};

use super::Observed;

/// Result of a search.
enum Search {
    /// Found at this place.
    Found(Place, u32),
    /// Not found; it would go here, `away` lines from home.
    Free(Place, u16),
    /// Not found, and there is no room for it.
    Crowded,
}

impl Table {
    /// Handles everything but the common case: new flows, ended flows, flows away from home.
    #[inline(never)]
    pub(super) fn slow<W: Watch>(
        &mut self,
        packet: &Observed,
        held: Option<&Amount>,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let (packets, first_ns, last_ns) = match held {
            Some(held) => (held.packets, held.first_ns, held.last_ns),
            None => (1, packet.time_ns, packet.time_ns),
        };
        let Some((place, record)) = self.place_for(packet, watch, sink) else {
            return;
        };
        let old = &self.records[record as usize];
        let ended = if old.packets() == 0 {
            None
        } else if let Some(reason) = self.timeouts.ended_before(old, first_ns, self.clock_ns) {
            Some(reason)
        } else if old.is_closed() && held.is_none() && is_opening(packet.level.tcp_flags) {
            Some(EndReason::EndOfFlow)
        } else if !old.has_room(packet.side, packets, first_ns, last_ns) {
            Some(EndReason::Active)
        } else {
            None
        };
        if let Some(reason) = ended {
            // The next record takes the same place.
            self.report(record, reason, watch, sink);
            self.begin(record, packet, watch);
        }
        let index = record;
        let record = &mut self.records[index as usize];
        let tick = expire::tick(self.clock_ns);
        match held {
            Some(held) if W::DETAIL => record.add_held::<true>(packet, held, tick),
            Some(held) => record.add_held::<false>(packet, held, tick),
            None => {
                watch.packet(index, record, packet);
                if W::DETAIL {
                    record.add_any::<true>(packet, tick);
                } else {
                    record.add_any::<false>(packet, tick);
                }
            }
        }
        let (left_ns, _) = self.timeouts.left(record);
        self.lines[place.line].deadlines[place.way] = expire::deadline(self.clock_ns, left_ns);
    }

    /// The place and record of a packet's flow, which may be new; `None` if there is no room for
    /// it.
    #[inline]
    fn place_for<W: Watch>(
        &mut self,
        packet: &Observed,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) -> Option<(Place, u32)> {
        let hash = packet.hash;
        loop {
            match self.search(packet, watch) {
                Search::Found(place, record) => return Some((place, record)),
                Search::Free(place, away) => {
                    if let Some(record) = self.take_record() {
                        let line = &mut self.lines[place.line];
                        line.tags[place.way] = tag_of(hash) | away << AWAY_SHIFT;
                        line.records[place.way] = record;
                        self.begin(record, packet, watch);
                        return Some((place, record));
                    }
                    let victim = self.victim(hash, 2)?;
                    if victim.line == self.home(hash) {
                        // The new flow takes its place and its record.
                        let reason = self.reason_to_go(victim);
                        let line = &mut self.lines[victim.line];
                        line.tags[victim.way] = tag_of(hash);
                        let record = line.records[victim.way];
                        self.report(record, reason, watch, sink);
                        self.begin(record, packet, watch);
                        return Some((victim, record));
                    }
                    self.evict(victim, watch, sink);
                }
                Search::Crowded => {
                    // Search again if the freed place goes to a flow that was displaced past these
                    // lines.
                    self.stats.crowded += u64::from(self.len() < self.record_count_max);
                    match self.victim(hash, REACH) {
                        Some(victim) => self.evict(victim, watch, sink),
                        None => return None,
                    }
                }
            }
        }
    }

    fn search<W: Watch>(&self, packet: &Observed, watch: &W) -> Search {
        let home = self.home(packet.hash);
        let tag = tag_of(packet.hash);
        for away in 0..REACH {
            let at = self.behind(home, away);
            let line = &self.lines[at];
            let mut ways = line.find(tag | (away as u16) << AWAY_SHIFT);
            while let Some(way) = ways.first() {
                let record = line.records[way % WAYS];
                let found = self.records.get(record as usize);
                if found.is_some_and(|found| found.key() == &packet.key)
                    && watch.is_same(record, packet)
                {
                    return Search::Found(Place { line: at, way }, record);
                }
                ways = ways.rest();
            }
            if let Some(way) = line.find(0).first() {
                return Search::Free(Place { line: at, way }, away as u16);
            }
        }
        Search::Crowded
    }
}

/// Whether these flags open a connection.
#[inline]
fn is_opening(tcp_flags: u16) -> bool {
    tcp_flags & (record::SYN | record::ACK) == record::SYN
}
