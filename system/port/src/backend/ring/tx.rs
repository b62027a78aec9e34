//! The sending end of a queue: packets go to the process that owns the cluster, which sends them on
//! a port of the topology or hands them to another application.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use ring::shared::Sender;
use ring::slot::{Slot, segment_count, whole_packets};
use ring::{Frame, FrameCache, Pool};
use sys::{Error, ErrorKind, Result};

use crate::account::TxCounters;
use crate::tx::TxBackend;

/// Interval of checks for room: the owner frees it at any time, and wakes nobody.
const NAP: Duration = Duration::from_micros(100);

/// Maximum number of queues that this process remembers for ports `ring:NAME/return`.
const ATTACHED_MAX: usize = 1024;

/// The way back of a queue that this process reads, until a sending port takes it.
#[derive(Clone)]
pub(super) struct WayBack(Arc<Mutex<Option<Sender>>>);

/// One that was not taken, with its cluster.
struct Attached {
    cluster: String,
    way_back: Weak<Mutex<Option<Sender>>>,
}

/// The queues that this process reads, in the order of their opening.
static ATTACHED: Mutex<Vec<Attached>> = Mutex::new(Vec::new());

impl WayBack {
    /// Remembers the way back of a queue for as long as this value, or a clone, lives.
    pub fn keep(cluster: &str, sender: Option<Sender>) -> Self {
        let way_back = Self(Arc::new(Mutex::new(sender)));
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|one| one.way_back.strong_count() != 0);
        if attached.len() < ATTACHED_MAX {
            attached.push(Attached {
                cluster: cluster.to_owned(),
                way_back: Arc::downgrade(&way_back.0),
            });
        }
        way_back
    }

    pub fn take(&self) -> Option<Sender> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes the first one of a cluster that is left; `Err` if this process reads no queue of it.
    pub fn take_of(cluster: &str) -> std::result::Result<Option<Sender>, ()> {
        let attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_its = |one: &&Attached| one.cluster == cluster;
        let found = attached.iter().filter(is_its);
        let mut found: Vec<_> = found.filter_map(|one| one.way_back.upgrade()).collect();
        if found.is_empty() {
            return Err(());
        }
        Ok(found.drain(..).find_map(|one| Self(one).take()))
    }
}

pub(super) struct Tx {
    sender: Sender,
    counters: Arc<TxCounters>,
    /// For returning frames of the pool that was sent from last.
    home: Option<FrameCache>,
}

impl Tx {
    pub fn new(sender: Sender, counters: Arc<TxCounters>) -> Self {
        Self {
            sender,
            counters,
            home: None,
        }
    }

    fn count(&self, packets: u64, bytes: u64, failed: u64) {
        if packets != 0 {
            self.counters.sent.add(packets);
            self.counters.sent_bytes.add(bytes);
        }
        if failed != 0 {
            self.counters.failed.add(failed);
        }
    }

    /// The cache of a frame's pool.
    fn home_of(&mut self, frame: &Frame) -> Option<&mut FrameCache> {
        let tag = frame.pool_tag();
        let is_home = |home: &FrameCache| home.pool().tag() == tag;
        if !self.home.as_ref().is_some_and(is_home) {
            self.home = Some(FrameCache::new(Pool::find(tag)?));
        }
        self.home.as_mut()
    }

    /// Writes one packet: its frame if it is as received, otherwise a copy. There is room for each
    /// of its slots. Returns false for a part that fits into no buffer.
    fn write(&mut self, packet: &mut [Slot]) -> bool {
        let len_max = self.sender.buffer_len();
        if packet.iter().any(|slot| slot.cap_len() > len_max) {
            return false;
        }
        for slot in packet {
            let place = slot.place_in(self.sender.pool());
            let is_as_received = place.is_some_and(|(index, _)| u64::from(index) == slot.token());
            // SAFETY: the receiving queue holds the frame for this slot, which forgets it.
            if is_as_received && unsafe { self.sender.hand(slot) } {
                slot.forget_frame();
                continue;
            }
            // SAFETY: the slot describes memory that its queue owns until release.
            let bytes = unsafe {
                std::slice::from_raw_parts(slot.data().as_ptr(), slot.cap_len() as usize)
            };
            let copied = self.sender.copy(slot, bytes);
            debug_assert!(copied, "there is room");
        }
        true
    }
}

impl TxBackend for Tx {
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        self.sender.reserve(slots, max);
        Ok(())
    }

    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let (mut packets, mut bytes) = (0, 0);
        for slot in &slots[..filled] {
            let written = self.sender.write_reserved(slot);
            debug_assert!(written, "reserved");
            packets += u64::from(!slot.continues());
            bytes += u64::from(slot.cap_len());
        }
        slots.clear();
        // Counted before the owner can take them.
        self.count(packets, bytes, 0);
        self.sender.submit();
        Ok(())
    }

    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        if self.sender.room(1) == 0 {
            return Ok(Some(frame));
        }
        let refuse = |why: &str| Error::new(ErrorKind::InvalidInput, "send a frame", why);
        let Some(home) = self.home_of(&frame) else {
            return Err(refuse("its pool no longer exists"));
        };
        let pool = home.pool().clone();
        let packet = pool.descriptor(&frame);
        let len = frame.len();
        // SAFETY: the frame's bytes, which are this caller's until it is returned below.
        let mut slot = unsafe {
            let data = std::ptr::NonNull::from(pool.bytes(&frame)).cast();
            Slot::over(data, len, packet.wire_len, 0)
        };
        slot.set_info(packet.info);
        (slot.time_ns, slot.hash) = (packet.time_ns, packet.hash);
        let written = self.sender.copy(&slot, pool.bytes(&frame));
        if let Some(home) = self.home_of(&frame) {
            let _ = home.give(frame);
            home.keep_an_eighth();
        }
        if !written {
            self.count(0, 0, 1);
            return Err(refuse("it is longer than a buffer of the cluster"));
        }
        self.count(1, len.into(), 0);
        self.counters.copied.add(1);
        self.sender.submit();
        Ok(None)
    }

    fn transfer(&mut self, slots: &mut [Slot]) -> Result<Option<usize>> {
        let room = self
            .sender
            .room(u32::try_from(slots.len()).unwrap_or(u32::MAX));
        let taken = whole_packets(slots, room as usize);
        let (mut packets, mut bytes, mut failed, mut copied) = (0, 0, 0, 0);
        let mut rest = &mut slots[..taken];
        while !rest.is_empty() {
            let (packet, tail) = rest.split_at_mut(segment_count(rest));
            rest = tail;
            if !self.write(packet) {
                failed += 1;
                continue;
            }
            packets += 1;
            bytes += packet
                .iter()
                .map(|slot| u64::from(slot.cap_len()))
                .sum::<u64>();
            copied += u64::from(packet[0].token() != Slot::DETACHED);
        }
        self.count(packets, bytes, failed);
        self.counters.copied.add(copied);
        self.sender.submit();
        Ok(Some(taken))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        let end = Instant::now() + timeout;
        let is_reached = |sender: &mut Sender| match all {
            true => sender.pending() == 0,
            false => sender.room(1) != 0,
        };
        while !is_reached(&mut self.sender) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            std::thread::sleep(left.min(NAP));
        }
        Ok(true)
    }

    fn carries_metadata(&self) -> bool {
        true
    }

    fn pool(&self) -> Option<&Pool> {
        None
    }

    fn transfer_pool(&self) -> Option<&Pool> {
        Some(self.sender.pool())
    }
}
