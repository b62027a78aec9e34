//! `memory:` an in-process ring: what is sent on its TX queue is received on its RX queue.
//!
//! For tests and benches, and the model of the rings between processes. Packets do not move: the
//! ring carries descriptors of frames of one pool.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::{Consumer, Frame, FrameCache, Pool, PoolConfig, Producer};
use sys::{Error, ErrorKind, Result};

use crate::account::{DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters};
use crate::control::{Capabilities, PortControl, PortDescription, PortEvent};
use crate::open::{Backend, Port, PortName};
use crate::options::{FilterTarget, PortOptions};
use crate::rx::{Ready, RxBackend, RxQueue};
use crate::slot::Slot;
use crate::tx::{TxBackend, TxQueue};

/// The row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    scheme: "memory",
    summary: "in-process ring: what is sent on it is received from it",
    example: "memory:",
    needs: "nothing",
    queues: false,
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

/// Pieces of one packet: 64 KiB in frames of 2048 bytes with their headroom take 37.
const SEGMENT_COUNT_MAX: u32 = 64;

/// Token of a slot whose frame has been detached.
const DETACHED: u64 = u64::MAX;

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
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
    let ring_len = ring_len.next_power_of_two();
    let pool = match &options.pool {
        Some(pool) => pool.clone(),
        None => Pool::new(PoolConfig {
            frame_count: 2 * ring_len,
            ..PoolConfig::default()
        })?,
    };
    let (producer, consumer) = ring::spsc(ring_len);
    let rx_counters = Arc::new(RxCounters::default());
    let tx_counters = Arc::new(TxCounters::default());
    let ends = Arc::new(Ends {
        pool: pool.clone(),
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
        consumer: ManuallyDrop::new(consumer),
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
            ..Capabilities::default()
        },
    })
}

/// What the two ends tell each other beside the ring.
struct Ends {
    pool: Pool,
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

impl Drop for Ends {
    fn drop(&mut self) {
        let rest = self.rest.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(consumer) = rest {
            drain(consumer, &mut FrameCache::new(self.pool.clone()));
        }
    }
}

/// Takes back what lies in the ring unread.
fn drain(consumer: &mut Consumer<Descriptor>, cache: &mut FrameCache) {
    let count = consumer.peek(u32::MAX);
    for at in 0..count {
        // SAFETY: the sender submitted the frame and no longer touches it; nobody else reads the
        // ring.
        unsafe { cache.reclaim(consumer.read(at).index) };
    }
    consumer.release(count);
}

struct Rx {
    snaplen: u32,
    consumer: ManuallyDrop<Consumer<Descriptor>>,
    cache: FrameCache,
    ends: Arc<Ends>,
    counters: Arc<RxCounters>,
}

impl RxBackend for Rx {
    #[inline]
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        let count = self.consumer.peek(max.saturating_add(SEGMENT_COUNT_MAX));
        let start = slots.len();
        let mut keep = start;
        let mut whole = 0;
        let mut refused = 0u64;
        // What snaplen leaves of the packet whose segments are being read.
        let mut rest = self.snaplen;
        let pool = self.cache.pool();
        for at in 0..count {
            // Beyond the batch's size only as long as not one packet is whole.
            if at >= max && keep > start {
                break;
            }
            let d = self.consumer.read(at);
            // The index came out of shared memory: the owner table has the last word.
            let offset = u32::from(d.offset);
            // SAFETY: the sender submitted the frame and no longer touches it.
            if offset > pool.frame_len() || !unsafe { pool.claim_index(d.index) } {
                refused += 1;
                rest = self.snaplen;
                (whole, keep) = (at + 1, slots.len());
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
            if !d.continues {
                (whole, keep) = (at + 1, slots.len());
            }
        }
        // A packet whose last segment is not there yet waits for the next batch.
        for unfinished in slots.drain(keep..) {
            // SAFETY: the slot's frame is held by this batch, and the slot ends here.
            unsafe { pool.lend_index(unfinished.token as u32) };
        }
        self.consumer.release(whole);
        if refused != 0 {
            self.counters.invalid.add(refused);
        }
        Ok(())
    }

    #[inline]
    fn release(&mut self, slots: &mut Vec<Slot>) {
        for slot in slots.drain(..) {
            if slot.token != DETACHED {
                // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                unsafe { self.cache.give_index(slot.token as u32) };
            }
        }
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
        slot.token = DETACHED;
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
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.ends.rx_closed.store(true, Ordering::Release);
        drain(&mut self.consumer, &mut self.cache);
        // SAFETY: taken only here, and `self` is not used again.
        let consumer = unsafe { ManuallyDrop::take(&mut self.consumer) };
        *self
            .ends
            .rest
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(consumer);
    }
}

struct Tx {
    producer: Producer<Descriptor>,
    cache: FrameCache,
    ends: Arc<Ends>,
    stamp: bool,
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
        for _ in 0..room {
            let Some(index) = self.cache.take_index() else {
                break;
            };
            let pool = self.cache.pool();
            let len = pool.frame_len() - HEADROOM;
            let place = pool.addr_of(index) + u64::from(HEADROOM);
            // SAFETY: the index is one of the pool's, and the headroom is within its frame.
            let data = unsafe { pool.base().add(place as usize) };
            slots.push(Slot::new(data, len, len, index.into()));
        }
        Ok(())
    }

    #[inline]
    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let open = self.is_open();
        let time_ns = if filled == 0 { 0 } else { self.now_ns() };
        let (mut sent, mut packets, mut bytes) = (0, 0, 0);
        for (at, slot) in slots.drain(..).enumerate() {
            let index = slot.token as u32;
            if at >= filled || !open {
                // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                unsafe { self.cache.give_index(index) };
                continue;
            }
            // SAFETY: as above.
            unsafe { self.cache.pool().lend_index(index) };
            let continues = slot.has(Slot::CONTINUES);
            self.producer.write(
                sent,
                Descriptor {
                    index,
                    offset: HEADROOM as u16,
                    continues,
                    len: slot.cap_len,
                    wire_len: slot.wire_len,
                    time_ns,
                },
            );
            sent += 1;
            packets += u64::from(!continues);
            bytes += u64::from(slot.cap_len);
        }
        self.producer.submit(sent);
        if open {
            self.counters.sent.add(packets);
            self.counters.sent_bytes.add(bytes);
        } else {
            self.counters.failed.add(filled as u64);
        }
        Ok(())
    }

    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        let pool = self.cache.pool().clone();
        if frame.pool_tag() != pool.tag() {
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
        let time_ns = self.now_ns();
        let index = pool.lend(frame);
        let descriptor = Descriptor {
            index,
            offset,
            continues: false,
            len,
            wire_len: len,
            time_ns,
        };
        self.producer.write(0, descriptor);
        self.producer.submit(1);
        self.counters.sent.add(1);
        self.counters.sent_bytes.add(len.into());
        Ok(None)
    }

    fn flush(&mut self) -> Result<()> {
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
        // Receiver's counters first: what is sent in between shows as in flight, never as a
        // negative number.
        let (rx, tx) = (&self.rx_counters, &self.tx_counters);
        let mut queue = QueueAccount {
            delivered: rx.delivered.get(),
            delivered_bytes: rx.delivered_bytes.get(),
            ..QueueAccount::default()
        };
        queue.dropped[DropReason::Filter as usize] = rx.filtered.get();
        queue.dropped[DropReason::Invalid as usize] = rx.invalid.get();
        queue.seen = tx.sent.get();
        queue.in_flight = queue
            .seen
            .saturating_sub(queue.delivered + queue.dropped_total());
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
