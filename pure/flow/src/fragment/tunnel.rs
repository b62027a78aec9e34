//! Datagrams that may be a tunnel's packet: they are put together.

use super::{Datagram, Fragments, Released};
use crate::assembly::{Added, Part, SLOT_LEN, Whole};
use crate::hash::HashKey;
use crate::table::Observed;

impl Fragments {
    /// Records a fragment of a flow that is not selected: it only matters to the packet inside.
    pub(crate) fn visit(
        &mut self,
        datagram: &Datagram,
        like: &Observed,
        key: &HashKey,
    ) -> Option<Released> {
        let bucket = self.bucket(datagram, key);
        let (at, released) = match self.find(datagram, bucket) {
            Some(at) => (at, None),
            None => self.insert(datagram, bucket, like),
        };
        if self.entries[at].is_far(like.time_ns) {
            self.clear_assembly(at);
        }
        self.touch(at, like.time_ns);
        self.plan();
        released
    }

    pub(super) fn clear_assembly(&mut self, at: usize) {
        self.entries[at].is_plain = false;
        if let Some(assemblies) = &mut self.assemblies {
            assemblies.clear(at);
        }
    }

    /// Adds the first fragment of what may be a tunnel's packet to the datagram touched last. If it
    /// contradicts what is there, that belongs to an earlier datagram.
    pub(crate) fn add_first(&mut self, part: &Part<'_>) -> Option<Added> {
        let at = self.newest as usize;
        let assemblies = self.assemblies.as_mut()?;
        let mut added = assemblies.add(at, part);
        if added == Added::Damaged {
            assemblies.clear(at);
            added = assemblies.add(at, part);
        }
        Some(added)
    }

    /// Adds another fragment to the datagram touched last.
    pub(crate) fn add_later(&mut self, part: &Part<'_>) -> Option<Added> {
        let at = self.newest as usize;
        if self.entries[at].is_plain {
            return None;
        }
        Some(self.assemblies.as_mut()?.add(at, part))
    }

    /// The datagram touched last is not a tunnel's packet.
    pub(crate) fn set_plain(&mut self) {
        let at = self.newest as usize;
        self.clear_assembly(at);
        self.entries[at].is_plain = true;
    }

    /// Holds back the first fragment of the datagram touched last, until that is whole.
    pub(crate) fn hold_first(&mut self, first: &Observed) {
        self.entries[self.newest as usize].held.add(first);
        self.stats.held += 1;
        self.plan();
    }

    /// Takes the datagram touched last, which is whole.
    pub(crate) fn take_whole(&mut self, out: &mut [u8; SLOT_LEN]) -> Option<Whole> {
        let at = self.newest as usize;
        Some(self.assemblies.as_mut()?.take(at, out))
    }

    /// Releases the first fragment held back of the datagram touched last.
    pub(crate) fn release_first(&mut self) -> Option<Released> {
        let released = self.orphan(self.newest as usize);
        self.plan();
        released
    }

    /// Counts a packet of a tunnel that was put together.
    pub(crate) fn count_reassembled(&mut self) {
        self.stats.reassembled += 1;
    }
}
