//! `memory:` an in-process ring: what is sent on its TX queue is received on its RX queue.
//!
//! For tests and benches, and the model of the rings between processes. Packets do not move: the
//! ring carries descriptors of frames of one pool.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::{Consumer, Frame, FrameCache, Pool, PoolConfig, Producer};
use sys::{Error, ErrorKind, Result};

use super::handover::lend_buffers;
use crate::account::{
    Counter, DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters,
};
use crate::control::{Capabilities, PortControl, PortDescription, PortEvent};
use crate::open::{Backend, Port, PortName};
use crate::options::{FilterTarget, PortOptions};
use crate::rx::{Filled, Ready, RxBackend, RxQueue};
use crate::slot::{Room, Slot, segment_count, whole_packets};
use crate::tx::{TxBackend, TxQueue};

/// The row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    scheme: "memory",
    summary: "in-process ring: what is sent on it is received from it",
    example: "memory:",
    needs: "nothing",
    queues: false,
    frames,
    open,
};

/// What travels: which frame, and where in it the packet lies.
#[derive(Clone, Copy, Debug, Default)]
struct Descriptor {
    index: u32,
    offset: u16,
    continues: bool,
    len: u32,
    wire_len: u32,
    time_ns: u64,
}

/// Room before a packet, as AF_XDP leaves it (XDP_PACKET_HEADROOM), so that headers can be put in
/// front.
const HEADROOM: u32 = 256;

/// Pieces of one packet at the most, and never more than the ring holds: 64 KiB in frames of 2048
/// bytes with their headroom take 37. A longer packet is refused by the sender, and by the receiver
/// too: it would wait for the end of one that never fits.
const SEGMENT_COUNT_MAX: u32 = 64;

/// Frames sent one by one that share a reading of the clock, unless they are flushed before.
const FRAMES_A_CLOCK: u32 = 64;

fn ring_len(options: &PortOptions) -> Result<u32> {
    let ring_len = if options.ring_len == 0 {
        1024
    } else {
        options.ring_len
    };
    if ring_len > 1 << 20 {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "open memory:",
            "ring longer than 2^20",
        ));
    }
    Ok(ring_len.next_power_of_two())
}

fn frames(_: &PortName, options: &PortOptions) -> Result<Option<PoolConfig>> {
    Ok(Some(PoolConfig {
        frame_count: 2 * ring_len(options)? + 2 * FrameCache::LEN_MAX as u32,
        ..PoolConfig::default()
    }))
}

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    let ring_len = ring_len(options)?;
    let pool = match (&options.pool, frames(name, options)?) {
        (Some(pool), _) => pool.clone(),
        (None, config) => Pool::new(config.unwrap_or_default())?,
    };
    let (producer, consumer) = ring::spsc(ring_len);
    let rx_counters = Arc::new(RxCounters::default());
    let tx_counters = Arc::new(TxCounters::default());
    let segment_max = ring_len.min(SEGMENT_COUNT_MAX);
    let packet_len_max = segment_max.saturating_mul(pool.frame_len() - HEADROOM);
    let ends = Arc::new(Ends {
        pool: pool.clone(),
        taken: Taken::default(),
        closed: AtomicU64::new(0),
        rest: Mutex::new(None),
        tx_closed: AtomicBool::new(false),
        rx_closed: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
    });
    let snaplen = if options.snaplen == 0 {
        u32::MAX
    } else {
        options.snaplen
    };
    let rx = Rx {
        snaplen,
        segment_max: segment_max as usize,
        skipping: false,
        consumer: ManuallyDrop::new(consumer),
        pool: pool.clone(),
        cache: FrameCache::new(pool.clone()),
        ends: ends.clone(),
        counters: rx_counters.clone(),
    };
    let stamp = options.timestamp != crate::TimestampSource::None;
    let tx = Tx {
        producer,
        cache: FrameCache::new(pool.clone()),
        ends: ends.clone(),
        stamp,
        time_ns: 0,
        frames_stamped: 0,
        segment_max: segment_max as usize,
        counters: tx_counters.clone(),
    };
    let control = Control {
        name: name.target.clone(),
        memory_len: pool.memory_len(),
        rx_counters: rx_counters.clone(),
        tx_counters: tx_counters.clone(),
        ends,
    };
    let ethernet = FilterTarget {
        link_type: 1,
        tap: None,
    };
    let filter = options.for_packets(ethernet)?.filter;
    Ok(Port {
        name: format!("memory:{}", name.target),
        rx: vec![RxQueue::new(
            Box::new(rx),
            0,
            options.batch_max,
            filter,
            rx_counters,
        )],
        tx: vec![TxQueue::new(Box::new(tx), 0, tx_counters)],
        control: Box::new(control),
        capabilities: Capabilities {
            detach_moves: true,
            timestamps: stamp,
            multi_buffer: true,
            packet_len_max,
            ..Capabilities::default()
        },
    })
}

/// A count of its own, on lines that the sender does not read.
#[derive(Default)]
#[repr(align(128))]
struct Taken(Counter);

/// What the two ends tell each other beside the ring.
struct Ends {
    pool: Pool,
    /// Packets that were read out of the ring by the receiver, whatever became of them there.
    taken: Taken,
    /// Packets taken out when nobody was there to read them any more.
    closed: AtomicU64,
    /// The reading end, once its queue is dropped: what a sender puts in at that very moment is
    /// taken out by whoever goes last.
    rest: Mutex<Option<Consumer<Descriptor>>>,
    /// No more will be sent.
    tx_closed: AtomicBool,
    /// Nobody reads any more.
    rx_closed: AtomicBool,
    /// The port takes nothing in any more.
    stopped: AtomicBool,
}

impl Ends {
    fn rest(&self) -> MutexGuard<'_, Option<Consumer<Descriptor>>> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back what was put into the ring when the receiver had gone.
    fn sweep(&self) {
        if let Some(consumer) = self.rest().as_mut()
            && consumer.peek(1) != 0
        {
            let packets = drain(consumer, &mut FrameCache::new(self.pool.clone()));
            self.closed.fetch_add(packets, Ordering::Relaxed);
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.sweep();
    }
}

/// Takes back what lies in the ring unread; how many packets it was.
fn drain(consumer: &mut Consumer<Descriptor>, cache: &mut FrameCache) -> u64 {
    let count = consumer.peek(u32::MAX);
    let mut packets = 0;
    for at in 0..count {
        let descriptor = consumer.read(at);
        // SAFETY: the sender submitted the frame and no longer touches it; nobody else reads the
        // ring.
        unsafe { cache.reclaim(descriptor.index) };
        packets += u64::from(!descriptor.continues);
    }
    consumer.release(count);
    packets
}

struct Rx {
    snaplen: u32,
    segment_max: usize,
    /// The start of the packet that is next in the ring was refused.
    skipping: bool,
    consumer: ManuallyDrop<Consumer<Descriptor>>,
    pool: Pool,
    cache: FrameCache,
    ends: Arc<Ends>,
    counters: Arc<RxCounters>,
}

/// Gives the frames of a packet back of which a segment was refused: those read so far, and the one
/// that the descriptor names.
#[cold]
fn refuse(cache: &mut FrameCache, read: std::vec::Drain<'_, Slot>, descriptor: Descriptor) {
    for slot in read {
        // SAFETY: the slot's frame is held by this batch, and the slot ends here.
        unsafe { cache.give_index(slot.token as u32) };
    }
    // SAFETY: the sender submitted the frame and no longer touches it; a frame that it does not
    // hold stays whose it is.
    unsafe { cache.reclaim(descriptor.index) };
}

impl Rx {
    /// Packets of one piece that lie as they should, until there is another or `count` are taken.
    #[inline]
    fn fill_plain(&self, slots: &mut Vec<Slot>, count: u32) -> Filled {
        let mut room = Room::new(slots, count as usize);
        let pool = &self.pool;
        let owners = pool.owners();
        let (first, frame_len) = (pool.base().as_ptr(), pool.frame_len());
        let (shift, snaplen) = (frame_len.trailing_zeros(), self.snaplen);
        let mut bytes = 0;
        for at in 0..count {
            let d = self.consumer.read(at);
            let offset = u32::from(d.offset);
            let is_plain = !d.continues
                && offset <= frame_len
                && d.len <= (frame_len - offset).min(snaplen)
                && d.wire_len == d.len;
            // SAFETY: the sender submitted the frame and no longer touches it.
            if !is_plain || !unsafe { owners.claim(d.index) } {
                break;
            }
            let place = ((d.index as usize) << shift) + offset as usize;
            let info = u64::from(d.time_ns != 0) * u64::from(Slot::TIME);
            // SAFETY: room was made for `count`. The index is one of the pool's (claimed), offset
            // and length stay within its frame.
            unsafe {
                room.push(
                    first.wrapping_add(place),
                    d.len,
                    d.index,
                    d.time_ns,
                    0,
                    info,
                )
            };
            bytes += u64::from(d.len);
        }
        Filled {
            packets: room.finish(),
            bytes,
        }
    }
}

impl RxBackend for Rx {
    #[inline]
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        let count = self.consumer.peek(max.saturating_add(SEGMENT_COUNT_MAX));
        let start = slots.len();
        let mut filled = match self.skipping {
            true => Filled::default(),
            false => self.fill_plain(slots, count.min(max)),
        };
        let plain = filled.packets as u32;
        let (mut whole, mut keep) = (plain, slots.len());
        let (mut taken, mut refused) = (u64::from(plain), 0);
        // Bytes of the packet whose segments are being read, and what snaplen leaves of it.
        let mut bytes = 0;
        let mut rest = self.snaplen;
        let pool = &self.pool;
        let owners = pool.owners();
        for at in plain..count {
            // Beyond the batch's size only as long as not one packet is whole.
            if at >= max && keep > start {
                break;
            }
            let d = self.consumer.read(at);
            // The index came out of shared memory: the owner table has the last word.
            let offset = u32::from(d.offset);
            if self.skipping
                || offset > pool.frame_len()
                || d.continues && slots.len() - keep + 1 >= self.segment_max
                // SAFETY: the sender submitted the frame and no longer touches it.
                || !unsafe { owners.claim(d.index) }
            {
                // None of it is delivered: the next packet must not look like its end.
                refuse(&mut self.cache, slots.drain(keep..), d);
                self.skipping = d.continues;
                bytes = 0;
                taken += u64::from(!d.continues);
                refused += u64::from(!d.continues);
                rest = self.snaplen;
                whole = at + 1;
                continue;
            }
            let len = d.len.min(pool.frame_len() - offset).min(rest);
            rest = if d.continues {
                rest - len
            } else {
                self.snaplen
            };
            let place = pool.addr_of(d.index) + u64::from(offset);
            // SAFETY: the index is one of the pool's (claimed), offset and length stay within its
            // frame.
            let data = unsafe { pool.base().add(place as usize) };
            let mut slot = Slot::new(data, len, d.wire_len, d.index.into());
            slot.time_ns = d.time_ns;
            slot.flags =
                u16::from(d.time_ns != 0) * Slot::TIME + u16::from(d.continues) * Slot::CONTINUES;
            slots.push(slot);
            bytes += u64::from(len);
            if !d.continues {
                (whole, keep) = (at + 1, slots.len());
                taken += 1;
                filled.packets += 1;
                filled.bytes += std::mem::take(&mut bytes);
            }
        }
        // A packet whose last segment is not there yet waits for the next batch.
        for unfinished in slots.drain(keep..) {
            // SAFETY: the slot's frame is held by this batch, and the slot ends here.
            unsafe { pool.lend_index(unfinished.token as u32) };
        }
        self.consumer.release(whole);
        if taken != 0 {
            self.ends.taken.0.add(taken);
        }
        if refused != 0 {
            self.counters.invalid.add(refused);
        }
        Ok(filled)
    }

    #[inline]
    fn release(&mut self, slots: &mut Vec<Slot>) {
        // One that was detached names no frame, and is left alone.
        // SAFETY: the slots' frames are held by this batch, and the slots end here.
        unsafe {
            self.cache
                .give_each(slots.iter().map(|slot| slot.token as u32))
        };
        slots.clear();
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        let pool = self.cache.pool();
        let gone = || {
            Error::new(
                ErrorKind::InvalidInput,
                "detach a packet",
                "detached before",
            )
        };
        let index = u32::try_from(slot.token).map_err(|_| gone())?;
        // SAFETY: `fill` claimed the index for this slot, which forgets it below.
        let mut frame = unsafe { pool.adopt(index) };
        let offset = slot.data.as_ptr() as usize - pool.base().as_ptr() as usize;
        let offset = offset as u64 - pool.addr_of(index);
        pool.set_range(&mut frame, offset as u32, slot.cap_len);
        slot.token = Slot::DETACHED;
        slot.cap_len = 0;
        Ok(frame)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        let end = Instant::now() + timeout;
        loop {
            // Read before the ring: what was sent before the end is received before it is told.
            let closed = self.ends.tx_closed.load(Ordering::Acquire);
            if self.consumer.peek(1) != 0 {
                return Ok(Ready::Packets);
            }
            if closed {
                return Ok(Ready::End);
            }
            if Instant::now() >= end {
                return Ok(Ready::Timeout);
            }
            std::thread::yield_now();
        }
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }

    fn lends_frames(&self) -> bool {
        true
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.ends.rx_closed.store(true, Ordering::Release);
        let mut rest = self.ends.rest();
        let packets = drain(&mut self.consumer, &mut self.cache);
        self.ends.closed.fetch_add(packets, Ordering::Relaxed);
        // SAFETY: taken only here, and `self` is not used again.
        *rest = Some(unsafe { ManuallyDrop::take(&mut self.consumer) });
    }
}

struct Tx {
    producer: Producer<Descriptor>,
    cache: FrameCache,
    ends: Arc<Ends>,
    stamp: bool,
    /// The time of frames sent one by one.
    time_ns: u64,
    /// How many more of them have it.
    frames_stamped: u32,
    segment_max: usize,
    counters: Arc<TxCounters>,
}

impl Tx {
    /// The time for a whole batch.
    fn now_ns(&self) -> u64 {
        if !self.stamp {
            return 0;
        }
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64)
    }

    /// The time for a frame: that of the first one since the last flush, of so many.
    #[inline]
    fn frame_ns(&mut self) -> u64 {
        if self.frames_stamped == 0 {
            self.time_ns = self.now_ns();
            self.frames_stamped = FRAMES_A_CLOCK;
        }
        self.frames_stamped -= 1;
        self.time_ns
    }

    /// Writes the packets of one piece that come first; how many, and their bytes.
    // By itself it has the registers that it needs.
    #[inline(never)]
    fn post_plain(&mut self, slots: &[Slot], time_ns: u64) -> (u32, u64) {
        let owners = self.cache.pool().owners();
        let (mut count, mut bytes) = (0, 0);
        for slot in slots {
            if slot.goes_on() {
                break;
            }
            let index = slot.index();
            // SAFETY: the slot's frame is held by its batch, and the slot ends here.
            unsafe { owners.lend(index) };
            let descriptor = Descriptor {
                index,
                offset: HEADROOM as u16,
                continues: false,
                len: slot.cap_len,
                wire_len: slot.wire_len,
                time_ns,
            };
            self.producer.write(count, descriptor);
            count += 1;
            bytes += u64::from(slot.cap_len);
        }
        (count, bytes)
    }

    fn is_open(&self) -> bool {
        !self.ends.rx_closed.load(Ordering::Acquire) && !self.ends.stopped.load(Ordering::Acquire)
    }
}

impl TxBackend for Tx {
    #[inline]
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        let room = self
            .producer
            .reserve(u32::try_from(max).unwrap_or(u32::MAX));
        lend_buffers(&mut self.cache, slots, room as usize, HEADROOM);
        Ok(())
    }

    #[inline]
    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let open = self.is_open();
        let time_ns = if filled == 0 { 0 } else { self.now_ns() };
        let (mut written, mut bytes) = match open {
            true => self.post_plain(&slots[..filled], time_ns),
            false => (0, 0),
        };
        let (mut packets, mut failed) = (u64::from(written), 0);
        let mut at = written as usize;
        while at < filled {
            let count = segment_count(&slots[at..filled]);
            let packet = &slots[at..at + count];
            at += count;
            if !open || count > self.segment_max {
                failed += 1;
                for slot in packet {
                    // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                    unsafe { self.cache.give_index(slot.token as u32) };
                }
                continue;
            }
            for (segment, slot) in packet.iter().enumerate() {
                let index = slot.token as u32;
                // SAFETY: as above.
                unsafe { self.cache.pool().lend_index(index) };
                let descriptor = Descriptor {
                    index,
                    offset: HEADROOM as u16,
                    continues: segment + 1 < count,
                    len: slot.cap_len,
                    wire_len: slot.wire_len,
                    time_ns,
                };
                self.producer.write(written, descriptor);
                written += 1;
                bytes += u64::from(slot.cap_len);
            }
            packets += 1;
        }
        // SAFETY: the slots' frames are held by this batch, and the slots end here.
        unsafe {
            self.cache
                .give_each(slots[filled..].iter().map(|slot| slot.token as u32))
        };
        slots.clear();
        // Counted before they can be received: an account in between has them in flight.
        if packets != 0 {
            self.counters.sent.add(packets);
            self.counters.sent_bytes.add(bytes);
        }
        if failed != 0 {
            self.counters.failed.add(failed);
        }
        self.producer.submit(written);
        Ok(())
    }

    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        if frame.pool_tag() != self.cache.pool().tag() {
            let why = "the frame is of another pool";
            return Err(Error::new(ErrorKind::InvalidInput, "send a frame", why));
        }
        if !self.is_open() {
            self.counters.failed.add(1);
            let _ = self.cache.give(frame);
            return Ok(None);
        }
        if self.producer.reserve(1) == 0 {
            return Ok(Some(frame));
        }
        let (offset, len) = (frame.offset() as u16, frame.len());
        let time_ns = self.frame_ns();
        let index = self.cache.pool().lend(frame);
        let descriptor = Descriptor {
            index,
            offset,
            continues: false,
            len,
            wire_len: len,
            time_ns,
        };
        self.producer.write(0, descriptor);
        self.counters.sent.add(1);
        self.counters.sent_bytes.add(len.into());
        self.producer.submit(1);
        Ok(None)
    }

    fn transfer(&mut self, slots: &mut [Slot]) -> Result<Option<usize>> {
        let open = self.is_open();
        let room = match open {
            true => self.producer.reserve(slots.len() as u32) as usize,
            false => slots.len(),
        };
        let taken = whole_packets(slots, room);
        let time_ns = if taken == 0 { 0 } else { self.now_ns() };
        let (mut sent, mut packets, mut bytes, mut failed) = (0, 0, 0, 0);
        let mut rest = &mut slots[..taken];
        while !rest.is_empty() {
            let (packet, tail) = rest.split_at_mut(segment_count(rest));
            rest = tail;
            let pool = self.cache.pool();
            let fits = packet.len() <= self.segment_max
                && packet.iter().all(|slot| slot.place_in(pool).is_some());
            if !open || !fits {
                failed += 1;
                continue;
            }
            for slot in packet {
                let Some((index, offset)) = slot.place_in(pool) else {
                    continue;
                };
                // SAFETY: the receiving queue holds the frame and hands it over: the slot forgets
                // it below.
                unsafe { pool.lend_index(index) };
                slot.token = Slot::DETACHED;
                let descriptor = Descriptor {
                    index,
                    offset: offset as u16,
                    continues: slot.has(Slot::CONTINUES),
                    len: slot.cap_len,
                    wire_len: slot.wire_len,
                    time_ns,
                };
                self.producer.write(sent, descriptor);
                sent += 1;
                bytes += u64::from(slot.cap_len);
            }
            packets += 1;
        }
        // Counted before they can be received: an account in between has them in flight.
        self.counters.sent.add(packets);
        self.counters.sent_bytes.add(bytes);
        self.counters.failed.add(failed);
        self.producer.submit(sent);
        Ok(Some(taken))
    }

    fn flush(&mut self) -> Result<()> {
        self.frames_stamped = 0;
        Ok(())
    }

    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        let end = Instant::now() + timeout;
        let enough = if all { self.producer.entry_count() } else { 1 };
        while self.producer.reserve(enough) < enough {
            if Instant::now() >= end || self.ends.rx_closed.load(Ordering::Acquire) {
                return Ok(false);
            }
            std::thread::yield_now();
        }
        Ok(true)
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Rx::wait`; what was submitted is seen before the end.
        self.ends.tx_closed.store(true, Ordering::Release);
    }
}

struct Control {
    name: String,
    memory_len: usize,
    rx_counters: Arc<RxCounters>,
    tx_counters: Arc<TxCounters>,
    ends: Arc<Ends>,
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        self.ends.sweep();
        // Receiver's counters first: what moves in between shows as missing for a moment or as in
        // flight, never as counted twice.
        let (rx, tx) = (&self.rx_counters, &self.tx_counters);
        let mut queue = QueueAccount {
            delivered: rx.delivered.get(),
            delivered_bytes: rx.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        queue.dropped[DropReason::Filter as usize] = rx.filtered.get();
        queue.dropped[DropReason::Invalid as usize] = rx.invalid.get();
        let closed = self.ends.closed.load(Ordering::Relaxed);
        queue.dropped[DropReason::Closed as usize] = closed;
        // What went into the ring and did not come out, by counts taken at the ring; what became of
        // it afterwards is counted elsewhere.
        let out = self.ends.taken.0.get() + closed;
        queue.seen = tx.sent.get();
        queue.in_flight = queue.seen.saturating_sub(out);
        let sending = TxAccount {
            sent: tx.sent.get(),
            sent_bytes: tx.sent_bytes.get(),
            failed: tx.failed.get(),
            copied: tx.copied.get(),
            queue_index: 0,
        };
        Ok(PortAccount {
            rx: vec![queue],
            tx: vec![sending],
            interface_seen: None,
            interface_sent: None,
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        PortDescription {
            scheme: "memory",
            target: self.name.clone(),
            link_type: 1,
            facts: Vec::new(),
            memory_len: self.memory_len,
            interfaces: Vec::new(),
        }
    }

    fn stop(&mut self) -> Result<()> {
        self.ends.stopped.store(true, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
