//! What is recorded of a flow beyond its record, only where it was asked for.
//!
//! Each kind is a slab of its own beside the table's records, reserved at the start, with a place
//! for every flow:
//!
//! | kind | bytes a flow |
//! | --- | --- |
//! | key: MAC addresses, MPLS label, tunnel, traffic class | 24 |
//! | packets: length, time, direction and flags of the first N | 1 + 8 N |
//! | timing: sums and histograms of gaps and lengths | 208 |
//! | bytes: how often each value of a byte was in the payload | 2048 |
//! | application: a number that an [`Inspect`] keeps | 8 |
//!
//! Fragments that came before the first one of their datagram count in the record alone.

use inspect::{Application, Protocol};

use crate::expire::EndReason;
use crate::key::{KeyExtra, Side};
use crate::meter::Input;
use crate::origin::Origins;
use crate::record::{LATER, Record};
use crate::table::{Observed, OutOfMemory, Sink, Watch};

mod carried;
mod owned;
mod timing;

use carried::{Carried, Carry, Known};
pub use owned::OwnedExtra;
pub use timing::{BIN_COUNT, Timing, gap_bin, len_bin};

/// What is wanted beyond the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraConfig {
    /// Remember so many packets from the start of a flow; 0 none.
    pub packet_count: u8,
    /// Sums and histograms of gaps and lengths.
    pub timing: bool,
    /// How often each value of a byte was in the payload.
    pub bytes: bool,
    /// Packets with payload from the start of a flow that an [`Inspect`] is given; 0 none, 255
    /// until it wants no more.
    pub inspect_count: u8,
    /// Say of each packet whether it is among the first of its record ([`crate::Meter::chosen`]).
    pub shunt: Option<Shunt>,
}

/// The beginning of a record: what goes on to who looks deeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shunt {
    /// Packets of both directions.
    pub packets: u64,
    /// Bytes of them; the packet that reaches them is the last.
    pub bytes: u64,
}

impl ExtraConfig {
    /// Bytes that this costs a flow; `with_key` if parts of the key are kept here.
    pub fn flow_len(&self, with_key: bool) -> usize {
        let mut len = if with_key { size_of::<KeyExtra>() } else { 0 };
        if self.packet_count != 0 {
            len += 1 + usize::from(self.packet_count) * size_of::<PacketNote>();
        }
        len += if self.timing {
            size_of::<[Timing; 2]>()
        } else {
            0
        };
        len += if self.bytes {
            size_of::<ByteCounts>()
        } else {
            0
        };
        len += if self.inspect_count != 0 {
            size_of::<Inspected>()
        } else {
            0
        };
        len
    }
}

impl ExtraConfig {
    /// Bytes that it costs beside, with a table of so many flows.
    pub(crate) fn fixed_len(&self, flow_count: usize) -> usize {
        match self.inspect_count {
            0 => 0,
            _ => Carried::memory_len(flow_count),
        }
    }
}

/// A packet, in a list of the first ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PacketNote {
    /// Microseconds since the start of the flow's record.
    pub time_us: u32,
    /// Bytes of payload; 65535 is that or more.
    pub payload_len: u16,
    /// The lower eight TCP flags.
    pub tcp_flags: u8,
    /// 0 from A, 1 from B.
    pub side: u8,
}

impl PacketNote {
    /// Who sent it.
    pub fn side(&self) -> Side {
        if self.side == 0 { Side::A } else { Side::B }
    }
}

/// How often each value of a byte was in the payload that A, and that B sent, as far as captured.
pub type ByteCounts = [[u32; 256]; 2];

/// Entropy of bytes that occur so often, in bits a byte: 0 to 8; 0 of none.
pub fn entropy(counts: &[u32; 256]) -> f64 {
    let total: f64 = counts.iter().map(|count| f64::from(*count)).sum();
    let bits = |count: &u32| {
        let share = f64::from(*count) / total;
        -share * share.log2()
    };
    counts.iter().filter(|count| **count != 0).map(bits).sum()
}

const _: () = assert!(size_of::<KeyExtra>() == 24);
const _: () = assert!(size_of::<PacketNote>() == 8);
const _: () = assert!(size_of::<[Timing; 2]>() == 208);
const _: () = assert!(size_of::<ByteCounts>() == 2048);
const _: () = assert!(size_of::<Inspected>() == 8);

/// What was recorded of a flow beyond its record. What was not asked for is none or empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// More of its key.
    pub key: Option<&'a KeyExtra>,
    /// Its first packets.
    pub packets: &'a [PacketNote],
    /// Gaps and lengths, by [`Side`].
    pub timing: Option<&'a [Timing; 2]>,
    /// Values of bytes, by [`Side`].
    pub bytes: Option<&'a ByteCounts>,
    /// What an [`Inspect`] had to say, in the form of [`put_application`].
    pub application: &'a [u8],
    /// Who stands behind the ends, by [`Side`].
    pub origins: Option<&'a Origins>,
}

impl Extra<'_> {
    /// Whether there is nothing beyond the record.
    pub fn is_empty(&self) -> bool {
        self.key.is_none()
            && self.packets.is_empty()
            && self.timing.is_none()
            && self.bytes.is_none()
            && self.application.is_empty()
            && self.origins.is_none()
    }

    /// What decoders found, if there is anything.
    pub fn application(&self) -> Option<Application> {
        take_application(self.application)
    }
}

/// An application as an [`Inspect`] tells it: one byte for the protocol, then the fields.
pub fn put_application(application: &Application, found: &mut Vec<u8>) {
    let (protocol, bytes) = application.bytes();
    found.push(protocol as u8);
    found.extend_from_slice(bytes);
}

/// What [`put_application`] wrote.
pub fn take_application(found: &[u8]) -> Option<Application> {
    let (protocol, bytes) = found.split_first()?;
    let protocol = Protocol::ALL.get(usize::from(*protocol)).copied()?;
    Some(Application::from_bytes(protocol, bytes))
}

/// Looks at the first packets of flows that carry payload.
pub trait Inspect: Send {
    /// A packet, the nth of its flow with payload (from 0; 255 is that or more), before it is
    /// counted in the record.
    /// `handle` is the inspector's own number for the flow, 0 at the beginning. `payload` is what
    /// was captured. False if no more of the flow are wanted.
    fn packet(
        &mut self,
        handle: &mut u32,
        nth: u8,
        record: &Record,
        packet: &Observed,
        payload: &[u8],
    ) -> bool;

    /// What was found so far goes to the end of `found`. A flow that is told in several records is
    /// asked for it with each of them.
    fn known(&self, handle: u32, found: &mut Vec<u8>);

    /// No more packets of the flow will be given, although it may go on: what only reading needs
    /// may be given up. What is known stays until it has ended.
    fn rest(&mut self, handle: &mut u32) {
        let _ = handle;
    }

    /// Whether the flow is wanted ([`ExtraConfig::shunt`]); none: that is not known, or nobody
    /// asks.
    fn wants(&self, handle: u32) -> Option<bool> {
        let _ = handle;
        None
    }

    /// The flow has ended: what was found goes to the end of `found`. The handle is free again.
    fn ended(&mut self, handle: u32, found: &mut Vec<u8>);

    /// Bytes of memory that it takes and will ever take.
    fn memory_len(&self) -> usize {
        0
    }
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Inspected {
    handle: u32,
    count: u8,
    is_done: bool,
}

/// The slabs. Those that were not asked for stay empty.
pub(crate) struct Extras {
    config: ExtraConfig,
    with_key: bool,
    keys: Vec<KeyExtra>,
    notes: Vec<PacketNote>,
    note_counts: Vec<u8>,
    timing: Vec<[Timing; 2]>,
    bytes: Vec<ByteCounts>,
    inspected: Vec<Inspected>,
    inspector: Option<Box<dyn Inspect>>,
    /// Flows that were told although they may go on: the next record takes over what is known.
    carried: Carried,
    found: Vec<u8>,
    /// Packets of the batch that are chosen, bit by bit.
    chosen: u32,
}

const _: () = assert!(crate::table::BATCH_MAX <= u32::BITS as usize);

/// What an inspector may say of a flow, in bytes; it is reserved once.
const FOUND_LEN: usize = 4096;

impl Extras {
    /// With room for so many flows.
    pub(crate) fn new(
        config: &ExtraConfig,
        with_key: bool,
        flow_count: usize,
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
            keys: slab(with_key, flow_count)?,
            notes: slab(note_count != 0, flow_count * note_count)?,
            note_counts: slab(note_count != 0, flow_count)?,
            timing: slab(config.timing, flow_count)?,
            bytes: slab(config.bytes, flow_count)?,
            inspected: slab(config.inspect_count != 0, flow_count)?,
            inspector: None,
            carried: match config.inspect_count {
                0 => Carried::EMPTY,
                _ => Carried::new(flow_count)?,
            },
            found: Vec::with_capacity(FOUND_LEN),
            chosen: 0,
        })
    }

    pub(crate) fn set_inspector(&mut self, inspector: Box<dyn Inspect>) {
        self.inspector = Some(inspector);
    }

    /// The packets chosen since the last time.
    pub(crate) fn take_chosen(&mut self) -> u32 {
        std::mem::take(&mut self.chosen)
    }

    /// Whether a packet goes on: as its application says, or by its place in the record.
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

    /// What the inspector knows of the flow in this place.
    pub(crate) fn known(&self, place: u32, found: &mut Vec<u8>) {
        let inspected = self.inspected.get(place as usize);
        if let (Some(inspector), Some(inspected)) = (&self.inspector, inspected) {
            inspector.known(inspected.handle, found);
        }
    }

    /// What a new record begins with: where it goes on with a flow, what was known of it.
    fn take_over(&mut self, packet: &Observed) -> Inspected {
        match self.carried.take(packet) {
            Known::Nothing => Inspected::default(),
            // Which side the new record calls the initiator is another question: no further look.
            Known::Same(inspected) => Inspected {
                is_done: true,
                ..inspected
            },
            Known::Other(inspected) => {
                self.forget(inspected);
                Inspected::default()
            }
        }
    }

    /// Nobody goes on with this flow.
    fn forget(&mut self, inspected: Inspected) {
        if let Some(inspector) = &mut self.inspector {
            self.found.clear();
            inspector.ended(inspected.handle, &mut self.found);
        }
    }

    /// The end of input.
    pub(crate) fn finish(&mut self) {
        for inspected in self.carried.drain() {
            if let Some(inspector) = &mut self.inspector {
                self.found.clear();
                inspector.ended(inspected.handle, &mut self.found);
            }
        }
    }

    /// Tells what was found of a flow whose record ends.
    fn tell(&mut self, at: usize, record: &Record, reason: EndReason) {
        let Some(mut inspected) = self.inspected.get(at).copied() else {
            return self.found.clear();
        };
        self.found.clear();
        let Some(inspector) = &mut self.inspector else {
            return;
        };
        if reason == EndReason::Active {
            inspector.rest(&mut inspected.handle);
            inspector.known(inspected.handle, &mut self.found);
            let before = self.carried.put(Carry {
                key: *record.key(),
                key_extra: self.keys.get(at).copied(),
                inspected,
                end_ns: record.end_ns(),
            });
            if let Some(before) = before {
                let told = self.found.len();
                inspector.ended(before.handle, &mut self.found);
                self.found.truncate(told);
            }
        } else {
            inspector.ended(inspected.handle, &mut self.found);
        }
    }

    fn notes_of(&self, at: usize) -> &[PacketNote] {
        let count = self.note_counts.get(at).copied().unwrap_or(0);
        let first = at * usize::from(self.config.packet_count);
        self.notes
            .get(first..first + usize::from(count))
            .unwrap_or(&[])
    }

    fn inspect(&mut self, at: usize, record: &Record, packet: &Observed, payload: &[u8]) {
        let Some(inspected) = self.inspected.get_mut(at) else {
            return;
        };
        if inspected.is_done || packet.level.payload_len == 0 || packet.marks & LATER != 0 {
            return;
        }
        let Some(inspector) = &mut self.inspector else {
            return;
        };
        let nth = inspected.count;
        inspected.count = nth.saturating_add(1);
        let goes_on = inspector.packet(&mut inspected.handle, nth, record, packet, payload);
        let most = self.config.inspect_count;
        inspected.is_done = !goes_on || most != u8::MAX && inspected.count >= most;
    }
}

/// Puts a value into a place of a slab that grows by one place at most.
fn put<T>(slab: &mut Vec<T>, at: usize, value: T) {
    match slab.get_mut(at) {
        Some(place) => *place = value,
        // Records are taken one behind the other, within the capacity reserved.
        None => slab.push(value),
    }
}

/// The slabs at work, with the packets that are given together.
pub(crate) struct Watching<'a, 'p> {
    pub(crate) extras: &'a mut Extras,
    pub(crate) inputs: &'a [Input<'p>],
}

impl<'p> Watching<'_, 'p> {
    /// The payload of a packet as far as it was captured.
    fn payload_in(inputs: &[Input<'p>], packet: &Observed) -> &'p [u8] {
        let Some(input) = inputs.get(usize::from(packet.input_index)) else {
            return &[];
        };
        let from = packet.level.payload_offset as usize;
        let rest = input.bytes.get(from..).unwrap_or(&[]);
        rest.get(..packet.level.payload_len as usize)
            .unwrap_or(rest)
    }
}

impl Watch for Watching<'_, '_> {
    const DETAIL: bool = true;
    const HAS_EXTRAS: bool = true;

    fn is_same(&self, record: u32, packet: &Observed) -> bool {
        let extras = &self.extras;
        !extras.with_key || extras.keys.get(record as usize) == Some(&packet.key_extra)
    }

    fn began(&mut self, record: u32, packet: &Observed) {
        let (at, extras) = (record as usize, &mut *self.extras);
        if extras.with_key {
            put(&mut extras.keys, at, packet.key_extra);
        }
        let note_count = usize::from(extras.config.packet_count);
        if note_count != 0 {
            put(&mut extras.note_counts, at, 0);
            if extras.notes.len() < (at + 1) * note_count {
                extras
                    .notes
                    .resize((at + 1) * note_count, PacketNote::default());
            }
        }
        if extras.config.timing {
            put(&mut extras.timing, at, [Timing::EMPTY; 2]);
        }
        if extras.config.bytes {
            put(&mut extras.bytes, at, [[0; 256]; 2]);
        }
        if extras.config.inspect_count != 0 {
            let inspected = extras.take_over(packet);
            put(&mut extras.inspected, at, inspected);
        }
    }

    fn packet(&mut self, index: u32, record: &Record, packet: &Observed) {
        let at = index as usize;
        let inputs = self.inputs;
        let payload = Watching::payload_in(inputs, packet);
        let side = packet.side as usize;
        if let Some(count) = self.extras.note_counts.get_mut(at)
            && *count < self.extras.config.packet_count
        {
            let place = at * usize::from(self.extras.config.packet_count) + usize::from(*count);
            *count += 1;
            let start_ns = record.start_ns().min(packet.time_ns);
            let passed_us = (packet.time_ns - start_ns) / 1000;
            self.extras.notes[place] = PacketNote {
                time_us: passed_us.min(u64::from(u32::MAX)) as u32,
                payload_len: packet.level.payload_len.min(u32::from(u16::MAX)) as u16,
                tcp_flags: packet.level.tcp_flags as u8,
                side: side as u8,
            };
        }
        if let Some(timing) = self.extras.timing.get_mut(at) {
            timing[side].add(&record.sent_by(packet.side), packet);
        }
        if let Some(counts) = self.extras.bytes.get_mut(at) {
            for byte in payload {
                let count = &mut counts[side][usize::from(*byte)];
                *count = count.saturating_add(1);
            }
        }
        self.extras.inspect(at, record, packet, payload);
        self.extras.choose(at, record, packet);
    }

    fn ended(&mut self, index: u32, record: &Record, reason: EndReason, sink: &mut dyn Sink) {
        let at = index as usize;
        let extras = &mut *self.extras;
        extras.tell(at, record, reason);
        let extra = Extra {
            key: extras.keys.get(at),
            packets: extras.notes_of(at),
            timing: extras.timing.get(at),
            bytes: extras.bytes.get(at),
            application: &extras.found,
            origins: None,
        };
        sink.ended_with(record, &extra, reason);
    }
}
