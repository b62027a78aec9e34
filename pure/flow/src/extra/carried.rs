//! What is known of flows that were told at their active timeout, for the records in which they go
//! on: a table of fixed size, where what is put into a place that is taken replaces what was there.

use crate::extra::Inspected;
use crate::key::{FlowKey, KeyExtra};
use crate::table::{Observed, OutOfMemory};

/// Flows that are remembered.
const COUNT_MAX: usize = 4096;
/// A pause after which it is another flow: its application is looked at anew.
const PAUSE_MAX_NS: u64 = 300_000_000_000;

const SYN: u16 = 0x02;
const ACK: u16 = 0x10;

/// A flow that may go on.
pub(super) struct Carry {
    pub key: FlowKey,
    /// None where nothing more of the key is recorded.
    pub key_extra: Option<KeyExtra>,
    pub inspected: Inspected,
    /// When its last packet came.
    pub end_ns: u64,
}

/// All of them.
pub(super) struct Carried {
    places: Vec<Option<Carry>>,
    count: usize,
}

/// What is known of a flow that begins.
pub(super) enum Known {
    /// Nothing.
    Nothing,
    /// It goes on.
    Same(Inspected),
    /// It has the key of one that is over by now.
    Other(Inspected),
}

impl Carried {
    /// Bytes for so many flows in the table.
    pub(super) const fn memory_len(flow_count: usize) -> usize {
        Carried::places(flow_count) * size_of::<Option<Carry>>()
    }

    const fn places(flow_count: usize) -> usize {
        let count = flow_count.next_power_of_two();
        if count < COUNT_MAX { count } else { COUNT_MAX }
    }

    pub(super) fn new(flow_count: usize) -> Result<Carried, OutOfMemory> {
        let count = Carried::places(flow_count);
        let mut places = Vec::new();
        let len = Carried::memory_len(flow_count);
        places
            .try_reserve_exact(count)
            .map_err(|_| OutOfMemory { len })?;
        places.resize_with(count, || None);
        Ok(Carried { places, count: 0 })
    }

    /// None.
    pub(super) const EMPTY: Carried = Carried {
        places: Vec::new(),
        count: 0,
    };

    fn place(&mut self, key: &FlowKey) -> Option<&mut Option<Carry>> {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(ODD).rotate_left(29);
        let sum = key.words().iter().fold(ODD, mix);
        let mask = self.places.len().checked_sub(1)?;
        self.places.get_mut((sum >> 20) as usize & mask)
    }

    /// Remembers a flow. What gives way for it is given back.
    pub(super) fn put(&mut self, carry: Carry) -> Option<Inspected> {
        let Some(place) = self.place(&carry.key) else {
            return Some(carry.inspected);
        };
        let before = place.replace(carry);
        self.count += usize::from(before.is_none());
        before.map(|before| before.inspected)
    }

    /// What is known of a flow of which this is the first packet of a record.
    #[inline]
    pub(super) fn take(&mut self, packet: &Observed) -> Known {
        if self.count == 0 {
            return Known::Nothing;
        }
        self.find(packet)
    }

    fn find(&mut self, packet: &Observed) -> Known {
        let Some(place) = self.place(&packet.key) else {
            return Known::Nothing;
        };
        let is_same = |carry: &mut Carry| {
            let is_keyed = carry
                .key_extra
                .is_none_or(|extra| extra == packet.key_extra);
            carry.key == packet.key && is_keyed
        };
        let Some(carry) = place.take_if(is_same) else {
            return Known::Nothing;
        };
        self.count -= 1;
        let begins = packet.level.is_tcp && packet.level.tcp_flags & (SYN | ACK) == SYN;
        let pause_ns = packet.time_ns.saturating_sub(carry.end_ns);
        match begins || pause_ns > PAUSE_MAX_NS {
            true => Known::Other(carry.inspected),
            false => Known::Same(carry.inspected),
        }
    }

    /// All that is left.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Inspected> {
        self.count = 0;
        let places = self.places.iter_mut().filter_map(Option::take);
        places.map(|carry| carry.inspected)
    }
}
