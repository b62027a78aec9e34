//! Loads data ahead of use: by the caller's prefetch, or by reading.

use crate::record::Record;

use super::line::NONE;
use super::{BATCH_MAX, Guess, Observed, Table};

impl Table {
    /// Loads the home lines of some packets.
    #[inline]
    pub(crate) fn load_homes(&self, packets: &[Observed]) {
        let mut addresses = [0; BATCH_MAX];
        // A load whose value is not used would be optimized away.
        let mut touched = 0;
        for (packet, address) in packets.iter().zip(&mut addresses) {
            if let Some(line) = self.lines.get(self.home(packet.hash)) {
                match self.prefetch {
                    Some(_) => *address = std::ptr::from_ref(line).addr(),
                    None => touched |= line.tags[0],
                }
            }
        }
        std::hint::black_box(touched);
        if let Some(prefetch) = self.prefetch {
            prefetch(&addresses[..packets.len().min(BATCH_MAX)]);
        }
    }

    /// Loads the record of a packet.
    #[inline(always)]
    pub(super) fn load_record(&self, packet: &Observed, guess: Guess) {
        let Some(record) = self.records.get(guess.record as usize) else {
            return;
        };
        match self.prefetch {
            Some(prefetch) => prefetch(&record.places(packet.side)),
            None => {
                std::hint::black_box(record.touch(packet.side));
            }
        }
    }

    /// Loads the place where the record of a batch's n-th new flow will be written, if it was never
    /// used before.
    #[inline(always)]
    pub(super) fn load_new(&self, at: usize) {
        if let Some(prefetch) = self.prefetch
            && self.free == NONE
        {
            let place = (self.records.len() + at) * size_of::<Record>();
            let start = self.records.as_ptr().addr() + place;
            prefetch(&[
                start,
                start + 64,
                start + 128,
                start + size_of::<Record>() - 1,
            ]);
        }
    }
}
