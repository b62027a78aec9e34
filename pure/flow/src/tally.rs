//! Packets and bytes by application, of ended flows and of those that are still active.
//!
//! A round through the table counts what each flow has sent since the round before; when a flow
//! ends, the rest is counted. So the sums only grow, and nothing is counted twice. Like the
//! [search for the largest flows](crate::top::TopScan) it costs nothing per packet.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::encode::extra_fields::Known;
use crate::extra::Extra;
use crate::meter::Meter;
use crate::record::Record;

/// Maximum number of applications with their own sum. Later ones are summed up as `other`: libndpi
/// has several hundred names, and hostile traffic can produce all of them.
pub const NAME_COUNT_MAX: usize = 64;

/// Maximum length of a name in bytes; names come from tables, so none is longer today.
pub const NAME_LEN_MAX: usize = 64;

/// A sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Amount {
    fn of(record: &Record) -> Amount {
        Amount {
            packets: record.packets(),
            bytes: record.bytes(),
        }
    }

    /// Adds another one.
    pub fn add(&mut self, other: Amount) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Sums by application.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// By how the application was determined ([`By::name`](crate::encode::extra_fields::By::name)),
    /// and its name.
    pub named: BTreeMap<&'static str, BTreeMap<Cow<'static, str>, Amount>>,
    /// Of further applications, beyond [`NAME_COUNT_MAX`].
    pub other: Amount,
    /// Without a known application.
    pub unknown: Amount,
}

impl Sums {
    fn add(&mut self, known: &Known, amount: Amount) {
        let Some(name) = known.name() else {
            return self.unknown.add(amount);
        };
        let name = &name[..name.floor_char_boundary(NAME_LEN_MAX)];
        let names: usize = self.named.values().map(BTreeMap::len).sum();
        let sums = self.named.entry(known.by.name()).or_default();
        match sums.get_mut(name) {
            Some(sum) => sum.add(amount),
            None if names < NAME_COUNT_MAX => {
                sums.insert(Cow::Owned(name.to_owned()), amount);
            }
            None => self.other.add(amount),
        }
    }
}

/// The sums of a table.
pub struct Tally {
    sums: Sums,
    /// By place: what is counted of the flow in it. Places never visited are missing.
    counted: Vec<Amount>,
    at: usize,
    /// A flow that decoders have not identified yet is counted once it has more packets than this.
    undecided_max: u64,
    found: Vec<u8>,
}

impl Tally {
    /// Memory for a table of this many flows in bytes.
    pub const fn memory_len(flow_count_max: u32) -> usize {
        flow_count_max as usize * size_of::<Amount>()
    }

    /// Creates sums for a table of this many flows, in which decoders look at the first
    /// `inspect_count` packets with payload of a flow.
    pub fn new(flow_count_max: u32, inspect_count: u8) -> Tally {
        Tally {
            sums: Sums::default(),
            // Reserved now, and touched as the table fills.
            counted: Vec::with_capacity(flow_count_max as usize),
            at: 0,
            // Packets without payload come in between.
            undecided_max: 2 * u64::from(inspect_count),
            found: Vec::new(),
        }
    }

    /// The sums so far.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Visits about `place_count` more places of the table; returns true when all have been.
    pub fn step(&mut self, meter: &Meter, place_count: usize) -> bool {
        let table = meter.table();
        let to = self.at.saturating_add(place_count);
        for (place, record) in table.live_places(self.at, to) {
            let at = place as usize;
            if self.counted.len() <= at {
                self.counted.resize(at + 1, Amount::default());
            }
            let total = Amount::of(record);
            if total == self.counted[at] {
                continue;
            }
            meter.application(place, record, &mut self.found);
            let extra = Extra {
                application: &self.found,
                ..Extra::default()
            };
            let known = Known::of(record, &extra);
            if known.is_guess() && total.packets <= self.undecided_max {
                continue;
            }
            let before = std::mem::replace(&mut self.counted[at], total);
            self.sums.add(&known, since(total, before));
        }
        self.at = to;
        let is_over = to >= table.place_count();
        if is_over {
            self.at = 0;
        }
        is_over
    }

    /// Counts the rest of a flow that has ended in this place.
    pub fn ended(&mut self, place: u32, record: &Record, extra: &Extra<'_>) {
        let counted = self.counted.get_mut(place as usize);
        let before = counted.map(std::mem::take).unwrap_or_default();
        let known = Known::of(record, extra);
        self.sums.add(&known, since(Amount::of(record), before));
    }
}

fn since(now: Amount, before: Amount) -> Amount {
    Amount {
        packets: now.packets.saturating_sub(before.packets),
        bytes: now.bytes.saturating_sub(before.bytes),
    }
}

#[cfg(test)]
mod tests;
