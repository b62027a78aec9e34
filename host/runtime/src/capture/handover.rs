//! Passes packets from the thread of a queue to the writer thread, in bundles, of which each queue
//! has a bounded number, and merges several queues in order.
//!
//! A packet is copied into a bundle, so that its frame is returned to the device at once; for a
//! file it is written from there. The queue's thread formats the file's records, so that a bundle
//! of a single queue is written unchanged ([`Contents::Records`]). In all other bundles each packet
//! is preceded by a head, and the writer takes packets one by one ([`Contents::Packets`]).
//!
//! The order within a queue is kept. Packets of different queues are merged by time: the writer
//! waits for an empty queue, because an older packet may still arrive there, but at most
//! [`WINDOW_MS`], and not once half of a queue's bundles are waiting.

mod bell;
mod bundle;
mod copied;
mod given;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use port::file::{Encoder, Record};
use port::{Packet, Vlan};
use wire::file::MAX_PACKET_LEN;

pub(super) use bell::Bell;
pub(super) use bundle::{Bundle, is_beyond_pcap};
use bundle::{HEAD_LEN, Head};
pub(super) use given::Given;

/// How long a packet waits for older ones of other queues. Longer than a queue's thread sleeps
/// while packets accumulate, and than the kernel holds a block that is not full.
pub(super) const WINDOW_MS: u32 = 100;

/// How long packets accumulate in a bundle while more keep arriving.
const GATHER_MS: u32 = 10;

/// Number of bundles per queue.
const BUNDLE_COUNT: u32 = 32;

/// Size of a bundle in bytes: a packet of any length fits, and small ones are written in chunks of
/// 256 KiB.
const BUNDLE_LEN: usize = MAX_PACKET_LEN as usize + 4096;

/// Maximum number of bytes in a packet's record in addition to the packet.
const EXTRA_MAX: usize = HEAD_LEN + Encoder::EXTRA_MAX;

/// A packet that the writer is handling.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// Timestamp in nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes that the port delivered; more than in `bytes` if the file format cannot hold them.
    pub cap_len: u32,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Index of its interface in the port.
    pub interface: u16,
    /// Whether the host sent it, if known.
    pub outgoing: Option<bool>,
    /// A VLAN tag that was removed.
    pub vlan: Option<Vlan>,
    /// The bytes, contiguous.
    pub bytes: &'a [u8],
}

/// The time of a packet of which a file has none. In files that are written it becomes 0.
pub const NO_TIME_NS: u64 = u64::MAX;

/// Contents of the bundles of a capture.
#[derive(Clone, Copy, Debug)]
pub(super) enum Contents {
    /// Packets as received, each after its head.
    Packets,
    /// Records of the file, each after the head of its packet.
    Headed(Encoder),
    /// Records of the file only.
    Records(Encoder),
}

/// How bundles are filled and handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub(super) contents: Contents,
    /// The direction of each packet is known.
    pub(super) knows_way: bool,
    /// How long packets may wait for others in a bundle that is written unchanged.
    pub(super) linger: Duration,
    /// Packets do not wait for others.
    pub(super) unbuffered: bool,
}

impl Filling {
    /// Whether the host sent a packet, if the port or the file knows.
    #[inline(always)]
    fn way_of(&self, packet: &Packet<'_>) -> Option<bool> {
        match self.knows_way {
            true => Some(packet.is_outgoing()),
            false => packet.recorded_outgoing(),
        }
    }

    /// The metadata written for a packet.
    #[inline(always)]
    fn record(&self, meta: &Record) -> Record {
        Record {
            time_ns: written_ns(meta.time_ns),
            ..*meta
        }
    }

    /// How long packets wait in a bundle, in milliseconds: while more keep arriving, and while none
    /// do.
    fn waits_ms(&self) -> (u32, u32) {
        let linger_ms = u32::try_from(self.linger.as_millis()).unwrap_or(u32::MAX);
        match self.contents {
            _ if self.unbuffered => (0, 0),
            Contents::Records(_) => (linger_ms.max(GATHER_MS), linger_ms),
            Contents::Packets | Contents::Headed(_) => (GATHER_MS, 0),
        }
    }
}

/// The time written for a packet.
#[inline(always)]
pub(super) fn written_ns(time_ns: u64) -> u64 {
    if time_ns == NO_TIME_NS { 0 } else { time_ns }
}

/// The queue's end of the handover. Dropping it signals the writer that nothing follows.
pub(super) struct Inlet {
    /// The bundle being filled; without memory if the writer has all of them.
    bundle: Bundle,
    filling: Filling,
    /// While packets keep arriving, and while none do.
    waits_ms: (u32, u32),
    full: Option<SyncSender<Bundle>>,
    empty: Receiver<Bundle>,
    /// Empty bundles; the one returned last is used next.
    spare: Vec<Bundle>,
    /// Number of bundles that may still be allocated.
    unmade: u32,
    /// Number of groups of blocks to copy that come before the next packet.
    group: u64,
    bundle_len: usize,
    /// Number of bundles that the writer has.
    given: Arc<AtomicU32>,
    bell: Arc<Bell>,
}

impl Inlet {
    /// Copies a packet into a bundle; false if there is no room for it. The writer sees it when the
    /// bundle is handed over: when full, or after a while ([`Inlet::batch_ended`],
    /// [`Inlet::idle`]).
    #[inline(always)]
    pub(super) fn put(&mut self, packet: &Packet<'_>, time_ns: u64, stamp_ms: u32) -> bool {
        if !packet.is_whole() || packet.vlan().is_some() {
            return self.put_unusual(packet, time_ns, stamp_ms);
        }
        if let Some((block, offset)) = packet.block() {
            return self.put_block(packet, (block, offset), time_ns, stamp_ms);
        }
        let bytes = packet.bytes();
        let meta = Record {
            time_ns,
            wire_len: packet.wire_len(),
            interface: packet.interface_index().into(),
            outgoing: self.filling.way_of(packet),
            vlan: None,
        };
        self.put_bytes(meta, bytes.len(), stamp_ms, std::iter::once(bytes))
    }

    /// As [`Inlet::put`], for a packet in several pieces or with a VLAN tag in its metadata. A
    /// separate function, which keeps the common path short.
    #[cold]
    fn put_unusual(&mut self, packet: &Packet<'_>, time_ns: u64, stamp_ms: u32) -> bool {
        let meta = Record {
            time_ns,
            wire_len: packet.wire_len(),
            interface: packet.interface_index().into(),
            outgoing: self.filling.way_of(packet),
            vlan: packet.vlan(),
        };
        self.put_bytes(meta, packet.cap_len() as usize, stamp_ms, packet.segments())
    }

    /// Puts a packet of the given length, passed in pieces.
    #[inline(always)]
    fn put_bytes<'p>(
        &mut self,
        meta: Record,
        cap_len: usize,
        stamp_ms: u32,
        segments: impl Iterator<Item = &'p [u8]>,
    ) -> bool {
        let present = cap_len.min(MAX_PACKET_LEN as usize);
        if let Contents::Records(encoder) = self.filling.contents
            && meta.interface <= self.bundle.interface
            && let Some(room) = self.bundle.room_for(present + EXTRA_MAX)
        {
            let encoded = encoder.encode(room, &self.filling.record(&meta), present, segments);
            self.bundle.advance(meta.time_ns, cap_len, encoded.len);
            self.bundle.kept_bytes += u64::from(encoded.kept_len);
            return true;
        }
        self.put_anyhow(&{ meta }, cap_len, stamp_ms, segments)
    }

    /// Puts a packet into any kind of bundle, and takes the next bundle if needed.
    #[inline(never)]
    fn put_anyhow<'p>(
        &mut self,
        meta: &Record,
        cap_len: usize,
        stamp_ms: u32,
        segments: impl Iterator<Item = &'p [u8]>,
    ) -> bool {
        let present = cap_len.min(MAX_PACKET_LEN as usize);
        let need = present + EXTRA_MAX;
        let has_room = self.bundle.room_for(need).is_some();
        if (!has_room || meta.interface > self.bundle.interface)
            && !self.next_bundle(meta, need, stamp_ms)
        {
            return false;
        }
        let record = self.filling.record(meta);
        let bundle = &mut self.bundle;
        let Some(room) = bundle.room_for(need) else {
            return false;
        };
        let (head, rest) = room.split_at_mut(HEAD_LEN);
        let len = match self.filling.contents {
            Contents::Packets => bundle::copy(rest, present, segments),
            Contents::Headed(encoder) => encoder.encode(rest, &record, present, segments).len,
            Contents::Records(encoder) => {
                let encoded = encoder.encode(room, &record, present, segments);
                bundle.advance(meta.time_ns, cap_len, encoded.len);
                bundle.kept_bytes += u64::from(encoded.kept_len);
                return true;
            }
        };
        Head::new(meta, cap_len, len, stamp_ms).encode(head);
        bundle.advance(meta.time_ns, cap_len, HEAD_LEN + len);
        true
    }

    /// Takes an empty bundle with `need` bytes of room, of which `first` is the first packet: a
    /// bundle ends before the first packet of an interface that the file does not know yet.
    #[cold]
    fn next_bundle(&mut self, first: &Record, need: usize, stamp_ms: u32) -> bool {
        let interface = first.interface.max(self.bundle.interface);
        self.hand_over();
        if !self.bundle.has_memory() {
            self.spare.extend(self.empty.try_iter());
            match self.spare.pop() {
                Some(bundle) => self.bundle = bundle,
                None if self.unmade != 0 => {
                    self.unmade -= 1;
                    self.bundle = Bundle::new(self.bundle_len);
                }
                None => {}
            }
        }
        let is_long = need > self.bundle_len && self.bundle.memory_len() < need;
        if is_long && self.bundle.has_memory() {
            // One at a time, so that memory stays bounded.
            if self.given.load(Ordering::Relaxed) != 0 {
                return false;
            }
            self.bundle = Bundle::new(need);
        }
        self.bundle.group = self.group;
        self.bundle.interface = interface;
        self.bundle.first_ns = first.time_ns;
        self.bundle.stamp_ms = stamp_ms;
        self.bundle.has_memory()
    }

    /// Hands the bundle to the writer, unless it is empty.
    fn hand_over(&mut self) {
        if self.bundle.packets == 0 {
            return;
        }
        let interface = self.bundle.interface;
        let bundle = std::mem::replace(&mut self.bundle, Bundle::none(interface));
        let given = self.given.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(full) = &self.full {
            // The channel has room for all bundles; a writer that has ended takes none.
            let _ = full.try_send(bundle);
        }
        self.bell.ring(given >= BUNDLE_COUNT / 4);
    }

    /// Packets and bytes that the writer has not seen.
    pub(super) fn waiting(&self) -> [u64; 2] {
        [self.bundle.packets, self.bundle.cap_bytes]
    }

    /// Hands over packets that have waited long enough although more keep arriving; called once per
    /// batch.
    #[inline]
    pub(super) fn batch_ended(&mut self, now_ms: u32) {
        self.hand_over_old(now_ms, self.waits_ms.0);
    }

    /// Hands over packets that have waited long enough while none arrive.
    pub(super) fn idle(&mut self, now_ms: u32) {
        self.hand_over_old(now_ms, self.waits_ms.1);
    }

    #[inline]
    fn hand_over_old(&mut self, now_ms: u32, wait_ms: u32) {
        if self.bundle.packets == 0 || now_ms.wrapping_sub(self.bundle.stamp_ms) < wait_ms {
            return;
        }
        // A writer that lags gets full bundles only: they hold the most.
        if self.given.load(Ordering::Relaxed) < BUNDLE_COUNT / 4 {
            self.hand_over();
        }
    }

    /// Wakes the writer: all bundles are full.
    pub(super) fn is_full(&mut self) {
        self.bell.ring(true);
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.hand_over();
        self.full = None;
        self.bell.ring(true);
    }
}

/// The writer's end of a queue.
struct Outlet {
    bundle_len: usize,
    full: Receiver<Bundle>,
    empty: SyncSender<Bundle>,
    given: Arc<AtomicU32>,
    /// The bundle being read, and the position in it.
    bundle: Option<(Bundle, usize)>,
    /// The head of the next packet, once read.
    head: Option<Head>,
    is_over: bool,
}

impl Outlet {
    /// Looks for a bundle with packets left.
    #[inline]
    fn look(&mut self) -> bool {
        if let Some((bundle, at)) = &self.bundle {
            if *at < bundle.bytes().len() {
                return true;
            }
            self.give_back();
        }
        if self.is_over {
            return false;
        }
        match self.full.try_recv() {
            Ok(bundle) => self.bundle = Some((bundle, 0)),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => self.is_over = true,
        }
        self.bundle.is_some()
    }

    /// Returns a finished bundle to the queue.
    #[cold]
    fn give_back(&mut self) {
        if let Some((mut bundle, _)) = self.bundle.take() {
            bundle.clear(self.bundle_len);
            self.given.fetch_sub(1, Ordering::Relaxed);
            // The channel has room for all bundles; a queue that has ended takes none.
            let _ = self.empty.try_send(bundle);
        }
    }

    /// Reads the head of the next packet.
    #[inline]
    fn look_for_packet(&mut self) {
        if self.head.is_none()
            && self.look()
            && let Some((bundle, at)) = &self.bundle
        {
            self.head = Head::decode(&bundle.bytes()[*at..]);
        }
    }

    /// Takes the next packet.
    #[inline]
    fn take(&mut self, head: Head) -> Option<Given<'_>> {
        self.head = None;
        let (bundle, at) = self.bundle.as_mut()?;
        let start = *at + HEAD_LEN;
        *at = start + head.len as usize;
        let bytes = bundle.bytes().get(start..*at)?;
        Some(Given {
            head,
            bytes,
            group: bundle.group,
        })
    }

    /// Whether the next packet has waited long enough.
    fn is_ripe(&self, now_ms: u32) -> bool {
        let Some(head) = self.head else { return false };
        // The batch may have arrived after the clock was read.
        let age_ms = now_ms.wrapping_sub(head.stamp_ms) as i32;
        age_ms >= WINDOW_MS as i32 || self.given.load(Ordering::Relaxed) >= BUNDLE_COUNT / 2
    }
}

/// The writer's next step.
pub(super) enum Next<'a> {
    /// Write this packet.
    Packet(Given<'a>),
    /// Write this whole bundle.
    Bundle(&'a Bundle),
    /// Wait: there is no packet, or it must wait for older ones.
    Wait,
    /// End: no packets will follow.
    End,
}

/// The next step before the packet is taken.
enum Choice {
    Take(usize, Head),
    Wait,
    End,
}

/// Merges the packets of all queues in order.
pub(super) struct Merge {
    outlets: Vec<Outlet>,
    /// The bundles of the only queue are taken whole.
    is_whole: bool,
    last_ns: u64,
    /// Packets that arrived after the window, and were written after newer ones.
    pub(super) late: u64,
}

/// Creates both ends for `count` queues; only a single queue may have [`Contents::Records`].
pub(super) fn ends(count: usize, bell: &Arc<Bell>, filling: Filling) -> (Vec<Inlet>, Merge) {
    ends_of(count, bell, filling, BUNDLE_LEN)
}

fn ends_of(
    count: usize,
    bell: &Arc<Bell>,
    filling: Filling,
    bundle_len: usize,
) -> (Vec<Inlet>, Merge) {
    let is_whole = matches!(filling.contents, Contents::Records(_));
    debug_assert!(
        !is_whole || count == 1,
        "records have no order between queues"
    );
    let ends = (0..count).map(|_| {
        let (full, taken) = sync_channel(BUNDLE_COUNT as usize);
        let (given_back, empty) = sync_channel(BUNDLE_COUNT as usize);
        let given = Arc::new(AtomicU32::new(0));
        let inlet = Inlet {
            bundle: Bundle::none(0),
            filling,
            waits_ms: filling.waits_ms(),
            full: Some(full),
            empty,
            spare: Vec::with_capacity(BUNDLE_COUNT as usize),
            unmade: BUNDLE_COUNT,
            group: 0,
            bundle_len,
            given: given.clone(),
            bell: bell.clone(),
        };
        let outlet = Outlet {
            bundle_len,
            full: taken,
            empty: given_back,
            given,
            bundle: None,
            head: None,
            is_over: false,
        };
        (inlet, outlet)
    });
    let (inlets, outlets) = ends.unzip();
    let merge = Merge {
        outlets,
        is_whole,
        last_ns: 0,
        late: 0,
    };
    (inlets, merge)
}

impl Merge {
    /// Whether a packet was read that is not taken yet.
    pub(super) fn has_packet(&self) -> bool {
        self.outlets.iter().any(|outlet| outlet.head.is_some())
    }

    /// Whether [`Merge::next`] would return a packet, a bundle or the end.
    pub(super) fn is_ready(&mut self, now_ms: u32) -> bool {
        match self.outlets.as_mut_slice() {
            [only] if self.is_whole => only.look() || only.is_over,
            _ => matches!(self.choose(now_ms), Choice::Take(..) | Choice::End),
        }
    }

    /// The next packet by time, once no older one can follow or it has waited long enough.
    #[inline]
    pub(super) fn next(&mut self, now_ms: u32) -> Next<'_> {
        if self.is_whole {
            return self.next_bundle();
        }
        let (index, head) = match self.choose(now_ms) {
            Choice::Take(index, head) => (index, head),
            Choice::Wait => return Next::Wait,
            Choice::End => return Next::End,
        };
        let time_ns = head.meta.time_ns;
        if self.outlets.len() > 1 {
            self.late += u64::from(time_ns < self.last_ns);
            self.last_ns = self.last_ns.max(written_ns(time_ns));
        }
        self.outlets[index]
            .take(head)
            .map_or(Next::Wait, Next::Packet)
    }

    /// The next bundle of the only queue.
    fn next_bundle(&mut self) -> Next<'_> {
        let Some(only) = self.outlets.first_mut() else {
            return Next::End;
        };
        if !only.look() && only.is_over {
            return Next::End;
        }
        match &mut only.bundle {
            Some((bundle, at)) => {
                *at = bundle.bytes().len();
                Next::Bundle(bundle)
            }
            None => Next::Wait,
        }
    }

    #[inline]
    fn choose(&mut self, now_ms: u32) -> Choice {
        let mut first: Option<(usize, Head)> = None;
        let (mut is_missing, mut is_over) = (false, true);
        for (index, outlet) in self.outlets.iter_mut().enumerate() {
            outlet.look_for_packet();
            is_over &= outlet.is_over;
            match outlet.head {
                Some(head)
                    if first.is_none_or(|(_, first)| head.meta.time_ns < first.meta.time_ns) =>
                {
                    first = Some((index, head));
                }
                Some(_) => {}
                None => is_missing |= !outlet.is_over,
            }
        }
        let Some((index, head)) = first else {
            return if is_over { Choice::End } else { Choice::Wait };
        };
        if is_missing && !self.outlets.iter().any(|outlet| outlet.is_ripe(now_ms)) {
            return Choice::Wait;
        }
        Choice::Take(index, head)
    }
}

#[cfg(test)]
mod tests;
