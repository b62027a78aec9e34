//! Optional data recorded in addition to the flow record.
//!
//! Each kind has its own slab alongside the table's records, reserved at startup, with room for
//! every flow:
//!
//! | kind | bytes per flow |
//! | --- | --- |
//! | key: MAC addresses, MPLS label, tunnel, traffic class | 24 |
//! | packets: length, time, direction and flags of the first N | 1 + 8 N |
//! | timing: sums and histograms of gaps and lengths | 208 |
//! | bytes: histogram of the payload's byte values | 2048 |
//! | application: a number assigned by an [`Inspect`] | 8 |
//!
//! Fragments that arrived before the first one of their datagram are counted in the record alone.

use crate::assembly::SLOT_LEN;
use crate::expire::EndReason;
use crate::hash::HashKey;
use crate::key::{KeyExtra, Side};
use crate::record::{ACK, Record, SYN};
use crate::table::{Observed, OutOfMemory};

mod carried;
mod config;
mod decoders;
mod inspector;
mod owned;
mod reported;
mod timing;
mod watching;

use carried::{Carried, Carry, Known};
pub use config::{ExtraConfig, Shunt};
pub use inspector::Inspect;
pub use owned::OwnedExtra;
pub use reported::{
    ByteCounts, Extra, PacketNote, entropy, put_application, take_application, take_transactions,
};
pub use timing::{BIN_COUNT, Timing, gap_bin, len_bin};
pub(crate) use watching::Watching;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Inspected {
    handle: u32,
    count: u8,
    is_done: bool,
    /// The initiator of the flow, if an earlier record identified it.
    initiator: Option<Side>,
}

const _: () = assert!(size_of::<Inspected>() == 8);

/// The slabs. Disabled ones stay empty.
pub(crate) struct Extras {
    config: ExtraConfig,
    with_key: bool,
    /// Whether anything is recorded per packet.
    notes_packets: bool,
    keys: Vec<KeyExtra>,
    notes: Vec<PacketNote>,
    note_counts: Vec<u8>,
    timing: Vec<[Timing; 2]>,
    bytes: Vec<ByteCounts>,
    inspected: Vec<Inspected>,
    inspector: Option<Box<dyn Inspect>>,
    /// Flows that were reported although they may continue: the next record takes over their state.
    carried: Carried,
    found: Vec<u8>,
    /// The bytes of a packet that was in fragments.
    reassembled: Vec<u8>,
    /// Bit set of the packets in the batch that were chosen.
    chosen: u32,
}

const _: () = assert!(crate::table::BATCH_MAX <= u32::BITS as usize);

/// Maximum length of an inspector's result for a flow, in bytes; reserved once.
const FOUND_LEN: usize = 4096;

impl Extras {
    /// Creates the slabs with room for this many flows.
    pub(crate) fn new(
        config: &ExtraConfig,
        with_key: bool,
        flow_count: usize,
        hash_key: &HashKey,
    ) -> Result<Extras, OutOfMemory> {
        fn slab<T>(wanted: bool, count: usize) -> Result<Vec<T>, OutOfMemory> {
            let mut slab = Vec::new();
            if wanted {
                let failed = |_| OutOfMemory {
                    len: count * size_of::<T>(),
                };
                slab.try_reserve_exact(count).map_err(failed)?;
            }
            Ok(slab)
        }
        let note_count = usize::from(config.packet_count);
        Ok(Extras {
            config: *config,
            with_key,
            notes_packets: note_count != 0 || config.timing || config.bytes,
            keys: slab(with_key, flow_count)?,
            notes: slab(note_count != 0, flow_count * note_count)?,
            note_counts: slab(note_count != 0, flow_count)?,
            timing: slab(config.timing, flow_count)?,
            bytes: slab(config.bytes, flow_count)?,
            inspected: slab(config.inspect_count != 0, flow_count)?,
            inspector: None,
            carried: match config.inspect_count {
                0 => Carried::new(0, hash_key)?,
                _ => Carried::new(flow_count, hash_key)?,
            },
            found: Vec::with_capacity(FOUND_LEN),
            reassembled: Vec::with_capacity(SLOT_LEN),
            chosen: 0,
        })
    }

    pub(crate) fn set_inspector(&mut self, inspector: Box<dyn Inspect>) {
        self.inspector = Some(inspector);
    }

    /// Returns the packets chosen since the last call.
    pub(crate) fn take_chosen(&mut self) -> u32 {
        std::mem::take(&mut self.chosen)
    }

    /// Decides whether a packet is passed on: by its application, or by its position in the record.
    fn choose(&mut self, at: usize, record: &Record, packet: &Observed) {
        let Some(shunt) = self.config.shunt else {
            return;
        };
        let wanted = match (&self.inspector, self.inspected.get(at)) {
            (Some(inspector), Some(inspected)) => inspector.wants(inspected.handle),
            _ => None,
        };
        let is_first = || record.packets() < shunt.packets && record.bytes() < shunt.bytes;
        if wanted.unwrap_or_else(is_first) {
            self.chosen |= 1_u32 << (packet.input_index & 31);
        }
    }

    /// The inspector's result for the flow in this slot.
    pub(crate) fn known(&self, place: u32, found: &mut Vec<u8>) {
        let inspected = self.inspected.get(place as usize);
        if let (Some(inspector), Some(inspected)) = (&self.inspector, inspected) {
            inspector.known(inspected.handle, found);
        }
    }

    /// Initial state of a new record: that of its flow, if it continues one.
    fn take_over(&mut self, packet: &Observed, clock_ns: u64) -> Inspected {
        match self.carried.take(packet, clock_ns) {
            Known::Nothing => Inspected::default(),
            Known::Same(inspected) => inspected,
            Known::Silent(inspected) => self.take_over_silent(inspected),
            Known::Other(inspected) => {
                self.forget(inspected);
                Inspected::default()
            }
        }
    }

    /// A flow that continues after a long idle time keeps its results, but is not read further.
    /// Without results it is read like a new one. This does not depend on when the sweep runs.
    fn take_over_silent(&mut self, mut inspected: Inspected) -> Inspected {
        let Some(inspector) = &mut self.inspector else {
            return inspected;
        };
        self.found.clear();
        inspector.known(inspected.handle, &mut self.found);
        if self.found.is_empty() {
            self.forget(inspected);
            return Inspected {
                initiator: inspected.initiator,
                ..Inspected::default()
            };
        }
        inspector.rest(&mut inspected.handle);
        inspected.is_done = true;
        inspected
    }

    /// Run once per this many packets: frees the reading state of flows that have long been idle.
    fn sweep(&mut self, clock_ns: u64) {
        if let Some(inspector) = &mut self.inspector {
            self.carried.sweep(clock_ns, |inspected| {
                inspector.rest(&mut inspected.handle);
                inspected.is_done = true;
            });
        }
    }

    /// Releases an inspector state that no flow continues.
    fn forget(&mut self, inspected: Inspected) {
        if let Some(inspector) = &mut self.inspector {
            self.found.clear();
            inspector.ended(inspected.handle, &mut self.found);
        }
    }

    /// Handles the end of input.
    pub(crate) fn finish(&mut self) {
        for inspected in self.carried.drain() {
            if let Some(inspector) = &mut self.inspector {
                self.found.clear();
                inspector.ended(inspected.handle, &mut self.found);
            }
        }
        if let Some(inspector) = &mut self.inspector {
            inspector.finished();
        }
    }

    /// Reports the result for a flow whose record ends.
    fn report(&mut self, at: usize, (record, reason): (&Record, EndReason), clock_ns: u64) {
        let Some(mut inspected) = self.inspected.get(at).copied() else {
            return self.found.clear();
        };
        self.found.clear();
        let Some(inspector) = &mut self.inspector else {
            return;
        };
        if inspected.handle == 0 && reason != EndReason::Active {
            return;
        }
        // A connection that is idle for longer than the timeout also keeps its name, but its
        // reading state is freed.
        let is_quiet = reason == EndReason::Idle && record.key().protocol() == 6;
        if is_quiet {
            inspector.rest(&mut inspected.handle);
            inspected.is_done = true;
        }
        let goes_on = is_quiet || reason == EndReason::Active;
        if goes_on {
            inspector.known(inspected.handle, &mut self.found);
        }
        if goes_on && !(is_quiet && self.found.is_empty()) {
            self.carry(at, record, inspected, clock_ns);
        } else {
            inspector.ended(inspected.handle, &mut self.found);
        }
    }

    /// Keeps the state of a flow for its next record.
    fn carry(&mut self, at: usize, record: &Record, mut inspected: Inspected, clock_ns: u64) {
        let Some(inspector) = &mut self.inspector else {
            return;
        };
        let initiator = *inspected.initiator.get_or_insert_with(|| began(record, 0));
        for side in [Side::A, Side::B] {
            if let Some(begin) = record.stream_begin(side).filter(|_| !inspected.is_done) {
                inspector.begins(&mut inspected.handle, side == initiator, begin);
            }
        }
        let carry = Carry::of(record, self.keys.get(at).copied(), inspected);
        if let Some(before) = self.carried.put(carry, clock_ns) {
            let reported = self.found.len();
            inspector.ended(before.handle, &mut self.found);
            self.found.truncate(reported);
        }
    }

    fn notes_of(&self, at: usize) -> &[PacketNote] {
        let count = self.note_counts.get(at).copied().unwrap_or(0);
        let first = at * usize::from(self.config.packet_count);
        self.notes
            .get(first..first + usize::from(count))
            .unwrap_or(&[])
    }

    /// Passes a packet to the inspector if it may need it.
    #[inline(never)]
    fn inspect(&mut self, at: usize, record: &mut Record, packet: &Observed, payload: &[u8]) {
        let Some(inspected) = self.inspected.get_mut(at) else {
            return;
        };
        let Some(inspector) = self.inspector.as_mut().filter(|_| !inspected.is_done) else {
            return record.set_inspected();
        };
        let nth = inspected.count;
        inspected.count = nth.saturating_add(1);
        let initiator = inspected
            .initiator
            .unwrap_or_else(|| began(record, packet.level.tcp_flags));
        let flow = (&*record, initiator);
        let goes_on = inspector.packet(&mut inspected.handle, nth, flow, packet, payload);
        let most = self.config.inspect_count;
        inspected.is_done = !goes_on || most != u8::MAX && inspected.count >= most;
        if inspected.is_done {
            record.set_inspected();
        }
    }
}

/// The initiator of a record's connection, given a packet with these TCP flags. The initiator of a
/// one-way record is its sender, so the handshake decides whether that is the client, otherwise the
/// ports.
fn began(record: &Record, tcp_flags: u16) -> Side {
    if !record.is_uniflow() {
        return record.initiator();
    }
    let (sender, key) = (record.initiator(), record.key());
    let flags = record.tcp_flags(sender) | tcp_flags;
    let (from, to) = (key.port(sender), key.port(sender.other()));
    let is_server = match flags & SYN {
        0 => (1..1024).contains(&from) && to >= 1024,
        _ => record.has_begun_with(sender, SYN | ACK) || tcp_flags & (SYN | ACK) == SYN | ACK,
    };
    match is_server {
        true => sender.other(),
        false => sender,
    }
}

/// Stores a value in a slab, which grows by at most one entry.
fn put<T>(slab: &mut Vec<T>, at: usize, value: T) {
    match slab.get_mut(at) {
        Some(place) => *place = value,
        // Records are used in sequence, within the reserved capacity.
        None => slab.push(value),
    }
}
