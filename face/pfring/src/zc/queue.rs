//! Queues: those of a cluster, devices, and queues of other processes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::attached::Sending;
use super::buffer::{Buffer, Buffers};
use super::local::Local;
use super::lock;
use crate::ring::{Outcome, Ring};
use crate::settings;
use crate::status::{GENERIC, INVALID_ARGUMENT, NOT_SUPPORTED};

/// Longest sleep before a request to stop is looked for.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Direction of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Packets are received.
    Receive,
    /// Packets are sent.
    Send,
    /// The device is only looked at.
    Manage,
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceTerms {
    /// Whether packets for other stations are received.
    pub is_promiscuous: bool,
    /// Whether packets that the host sends are received.
    pub has_sent: bool,
}

/// `pfring_zc_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Statistics {
    /// Packets received from the queue.
    pub received: u64,
    /// Packets sent to the queue.
    pub sent: u64,
    /// Packets lost for lack of room.
    pub dropped: u64,
}

/// A `pfring_zc_queue`.
pub struct Queue {
    id: u32,
    lens: (u32, u32),
    kind: Kind,
    is_stopped: AtomicBool,
    received: AtomicU64,
    sent: AtomicU64,
    dropped: AtomicU64,
    /// Multi-queues whose first queue it is.
    multi: Mutex<Vec<Arc<MultiQueue>>>,
}

enum Kind {
    /// A device, or a queue of another process to receive from.
    Device(Box<Ring>),
    Local(Box<Local>),
    /// A queue of another process to send to.
    Remote(Box<Sending>),
}

impl Queue {
    fn new(id: u32, lens: (u32, u32), kind: Kind) -> Self {
        Self {
            id,
            lens,
            kind,
            is_stopped: AtomicBool::new(false),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            multi: Mutex::default(),
        }
    }

    pub(super) fn local(id: u32, len: u32, lens: (u32, u32), buffers: Arc<Buffers>) -> Self {
        let local = Local::new(id, len, buffers);
        Self::new(id, lens, Kind::Local(Box::new(local)))
    }

    /// Opens a device; names are those of `pfring_open`. `lens` are those of its packets and of
    /// metadata.
    ///
    /// # Errors
    /// Those of opening.
    pub fn device(name: &str, mode: Mode, terms: DeviceTerms, lens: (u32, u32)) -> Outcome<Self> {
        let flags = if terms.is_promiscuous {
            settings::PROMISCUOUS
        } else {
            0
        };
        let wanted = match terms.has_sent {
            true => settings::Wanted::Both,
            false => settings::Wanted::Received,
        };
        let ring = Ring::new(name, lens.0, flags)?;
        ring.set(|settings| {
            settings.mode = match mode {
                Mode::Receive => settings::Mode::Receive,
                Mode::Send => settings::Mode::Send,
                Mode::Manage => settings::Mode::Manage,
            };
            settings.wanted = wanted;
            // Packets are copied into buffers.
            settings.only_reads = true;
        })?;
        ring.set_wanted(wanted)?;
        ring.set_poll_duration(LOOK_EVERY.as_millis() as u32);
        ring.enable()?;
        // As `QUEUEID_TO_IFINDEX` reads it.
        let index = ring.device().link().map_or(0, |link| link.index);
        Ok(Self::new(index << 16, lens, Kind::Device(Box::new(ring))))
    }

    /// Attaches to queue `number` of a cluster of another process, to receive or to send.
    ///
    /// # Errors
    /// Those of attaching.
    pub fn attach(cluster: u32, number: u32, mode: Mode, lens: (u32, u32)) -> Outcome<Self> {
        let kind = match mode {
            Mode::Receive => {
                let ring = Ring::new(&format!("zc:{cluster}@{number}"), lens.0, 0)?;
                ring.set(|settings| {
                    settings.mode = settings::Mode::Receive;
                    // If this process is killed, no other packet is lost.
                    settings.batch_max = Some(1);
                    settings.only_reads = true;
                })?;
                ring.set_poll_duration(LOOK_EVERY.as_millis() as u32);
                ring.enable()?;
                Kind::Device(Box::new(ring))
            }
            Mode::Send => Kind::Remote(Box::new(Sending::attach(cluster, number)?)),
            Mode::Manage => return Err(INVALID_ARGUMENT),
        };
        Ok(Self::new(number, lens, kind))
    }

    /// The queue of the cluster, if it is one.
    pub(super) fn as_local(&self) -> Option<&Local> {
        match &self.kind {
            Kind::Local(local) => Some(local),
            _ => None,
        }
    }

    /// Whether it is a queue of the cluster, not a device.
    pub fn is_local(&self) -> bool {
        matches!(self.kind, Kind::Local(_))
    }

    /// Its number, or that of the interface, shifted by 16 bits.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Lengths of packets and of metadata.
    pub fn lens(&self) -> (u32, u32) {
        self.lens
    }

    /// Receives a packet into the buffer, or in exchange for it. False if there is none, or if a
    /// call that waits was asked to stop.
    ///
    /// # Errors
    /// Those of the device; `NOT_SUPPORTED` if it only sends.
    pub fn receive(&self, place: &mut Box<Buffer>, may_wait: bool) -> Outcome<bool> {
        loop {
            if let Some(is_found) = self.receive_part(place, may_wait)? {
                return Ok(is_found);
            }
        }
    }

    /// What [`receive`](Self::receive) does in a part of a wait: `None` if that is not over.
    ///
    /// # Errors
    /// As there.
    pub fn receive_part(&self, place: &mut Box<Buffer>, may_wait: bool) -> Outcome<Option<bool>> {
        let is_found = match &self.kind {
            Kind::Device(ring) => {
                let found = ring.receive(may_wait, |header, bytes| place.store(&header, bytes))?;
                found.is_some()
            }
            Kind::Local(local) => local.receive(place, may_wait),
            Kind::Remote(_) => return Err(NOT_SUPPORTED),
        };
        if is_found {
            self.received.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(true));
        }
        if may_wait && !self.is_stopped.swap(false, Ordering::AcqRel) {
            return Ok(None);
        }
        if let Kind::Device(ring) = &self.kind {
            ring.take_stop();
        }
        Ok(Some(false))
    }

    /// Ends a call that waits.
    pub fn stop(&self) {
        // In this order: whoever sees the flag also takes the device's.
        if let Kind::Device(ring) = &self.kind {
            ring.stop();
        }
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Sends the buffer's packet; returns its length. A queue of the cluster keeps the buffer, and
    /// `place` is a free one then. If the packet was copied, the buffer is like a free one: its
    /// start is back where it was before the program moved it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an empty packet, or one that the device cannot send; `GENERIC` if
    /// there is no room.
    pub fn send(&self, place: &mut Box<Buffer>, flush: bool) -> Outcome<i32> {
        let sent = self.pass(place, flush);
        if sent.is_ok() {
            place.reset();
        }
        sent
    }

    /// What [`send`](Self::send) does, except that a packet that was copied is still in the buffer.
    fn pass(&self, place: &mut Box<Buffer>, flush: bool) -> Outcome<i32> {
        let len = place.packet().len() as i32;
        if len == 0 {
            return Err(INVALID_ARGUMENT);
        }
        let sent = match &self.kind {
            Kind::Device(ring) => {
                let sent = ring.send(place.packet(), flush);
                sent.map_err(|status| match status {
                    INVALID_ARGUMENT => INVALID_ARGUMENT,
                    _ => GENERIC,
                })
            }
            Kind::Local(local) => local.send(place),
            Kind::Remote(sending) => sending.send(place),
        };
        let count = if sent.is_ok() {
            &self.sent
        } else {
            &self.dropped
        };
        count.fetch_add(1, Ordering::Relaxed);
        sent.map(|()| len)
    }

    /// Closes a device: calls fail from now on. A queue of the cluster stays. In a child of the
    /// process that opened the device, which continues with it, this does nothing.
    pub fn close(&self) {
        if let Kind::Device(ring) = &self.kind
            && ring.is_own()
        {
            ring.disable();
        }
    }

    /// Starts the device on packets sent without `flush`.
    pub fn flush(&self) {
        if let Kind::Device(ring) = &self.kind {
            // Its errors are reported by the next packet.
            let _ = ring.flush();
        }
    }

    /// The speed of a device in Mbit/s, if it is known.
    pub fn speed_mbps(&self) -> Option<u32> {
        match &self.kind {
            Kind::Device(ring) => ring.device().speed_mbps(),
            _ => None,
        }
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::Device(ring) => ring.poll(Duration::ZERO) != Ok(true),
            Kind::Local(local) => local.depth() == 0,
            Kind::Remote(sending) => sending.is_empty(),
        }
    }

    /// Whether there is no room; of a device this is not known.
    pub fn is_full(&self) -> bool {
        match &self.kind {
            Kind::Device(_) => false,
            Kind::Local(local) => local.is_full(),
            Kind::Remote(sending) => sending.is_full(),
        }
    }

    /// Sets or removes the filter of a device.
    ///
    /// # Errors
    /// As [`Ring::set_filter`]; `NOT_SUPPORTED` for a queue of the cluster.
    pub fn set_filter(&self, text: Option<&str>) -> Outcome<()> {
        match &self.kind {
            Kind::Device(ring) => ring.set_filter(text),
            Kind::Local(_) | Kind::Remote(_) => Err(NOT_SUPPORTED),
        }
    }

    /// The counters. What other processes have sent to the queue or received from it counts, too.
    /// Packets that an owner that has exited did not take count as dropped.
    ///
    /// # Errors
    /// The device's.
    pub fn statistics(&self) -> Outcome<Statistics> {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let others = match &self.kind {
            Kind::Device(ring) => Statistics {
                dropped: ring.statistics()?.dropped,
                ..Statistics::default()
            },
            Kind::Local(local) => local.of_others(),
            Kind::Remote(sending) => Statistics {
                dropped: sending.lost(),
                ..Statistics::default()
            },
        };
        let lost = match &self.kind {
            Kind::Remote(_) => others.dropped,
            _ => 0,
        };
        Ok(Statistics {
            received: get(&self.received) + others.received,
            sent: (get(&self.sent) + others.sent).saturating_sub(lost),
            dropped: get(&self.dropped) + others.dropped,
        })
    }
}

/// Maximum number of queues of a multi-queue. Masks of programs have 64 bits; with more, packets
/// can be sent to all.
pub const QUEUE_COUNT_MAX: usize = 128;

/// A `pfring_zc_multi_queue`: several queues that receive the same packets.
pub struct MultiQueue {
    queues: Vec<Weak<Queue>>,
}

impl MultiQueue {
    /// Combines queues.
    pub(super) fn of(queues: &[Arc<Queue>]) -> Self {
        Self {
            queues: queues.iter().map(Arc::downgrade).collect(),
        }
    }

    /// Combines queues; the result is valid as long as the first of them.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for none, or more than [`QUEUE_COUNT_MAX`].
    pub fn create(queues: &[Arc<Queue>]) -> Outcome<*const Self> {
        let first = queues.first().filter(|_| queues.len() <= QUEUE_COUNT_MAX);
        let first = first.ok_or(INVALID_ARGUMENT)?;
        let multi = Arc::new(Self::of(queues));
        let place = Arc::as_ptr(&multi);
        lock(&first.multi).push(multi);
        Ok(place)
    }

    /// Sends the packet to those of the queues whose bit is set; returns how many had room.
    pub fn send(&self, place: &mut Box<Buffer>, mask: u128, flush: bool) -> i32 {
        let chosen = self.queues.iter().enumerate();
        let chosen = chosen.filter(|(at, _)| mask >> at & 1 != 0);
        let chosen: Vec<_> = chosen.filter_map(|(_, queue)| queue.upgrade()).collect();
        let Some((last, others)) = chosen.split_last() else {
            return 0;
        };
        let mut count = 0;
        for queue in others {
            let Kind::Local(local) = &queue.kind else {
                // A device copies it, and the next queue needs it, too.
                count += i32::from(queue.pass(place, flush).is_ok());
                continue;
            };
            let Some(mut copy) = local.buffers().take() else {
                queue.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            copy.copy(place);
            count += i32::from(queue.send(&mut copy, flush).is_ok());
            local.buffers().give(copy);
        }
        count += i32::from(last.pass(place, flush).is_ok());
        if count != 0 {
            place.reset();
        }
        count
    }
}
