//! `memory:` an in-process ring: packets sent on its TX queue are received on its RX queue.
//!
//! For tests and benchmarks, and as the model of rings between processes. Packets do not move: the
//! ring carries descriptors of frames in a single pool.

mod control;
mod rx;
mod tx;

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::{Consumer, Descriptor, FrameCache, Pool, PoolConfig, sleep};
use sys::eventfd::EventFd;
use sys::{Error, ErrorKind, Result};

use self::control::Control;
use self::rx::Rx;
use self::tx::Tx;
use crate::account::{Counter, RxCounters, TxCounters};
use crate::control::Capabilities;
use crate::options::{FilterTarget, PortOptions};
use crate::port::Port;
use crate::registry::{Backend, PortName, Target};
use crate::rx::RxQueue;
use crate::tx::TxQueue;

/// Row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    summary: "in-process ring: what is sent on it is received from it",
    example: "memory:",
    target: Target::New,
    frames,
    ..Backend::new("memory", open)
};

/// Room before a packet, as in AF_XDP (XDP_PACKET_HEADROOM), so that headers can be prepended.
const HEADROOM: u32 = 256;

/// Maximum number of segments of a packet, and never more than fit into the ring: 64 KiB in frames
/// of 2048 bytes with their headroom take 37. The sender refuses a longer packet, and so does the
/// receiver, which would otherwise wait for an end that never fits.
const SEGMENT_COUNT_MAX: u32 = 64;

/// Maximum time that a sender sleeps while it waits for room.
const ROOM_NAP: Duration = Duration::from_millis(1);

/// Interval at which a waiting receiver checks the ring even without a wake-up: a sender may have
/// submitted without a flush.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Number of frames sent one by one that share a clock reading, unless they are flushed before.
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
    let ends = Arc::new(Ends::new(pool.clone())?);
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

/// A separate counter, on cache lines that the sender does not read.
#[derive(Default)]
#[repr(align(128))]
struct Taken(Counter);

/// State shared by the two ends in addition to the ring.
struct Ends {
    pool: Pool,
    /// Packets that the receiver read from the ring, whatever happened to them afterwards.
    taken: Taken,
    /// Packets removed after the receiver had closed.
    closed: AtomicU64,
    /// The receiving end, once its queue is dropped: packets that a sender adds at that moment are
    /// removed by the end that closes last.
    rest: Mutex<Option<Consumer<Descriptor>>>,
    /// Whether the sender has closed.
    tx_closed: AtomicBool,
    /// Whether the receiver has closed.
    rx_closed: AtomicBool,
    /// Whether the intake was stopped.
    stopped: AtomicBool,
    /// Signalled by a flush when the receiver requested it.
    bell: EventFd,
    is_sleeping: AtomicU32,
    /// The same in the other direction: signalled when the ring has room for a sender that waits.
    room: EventFd,
    wants_room: WantsRoom,
}

/// A flag on a separate cache line, which the receiver reads once a batch.
#[derive(Default)]
#[repr(align(128))]
struct WantsRoom(AtomicBool);

impl Ends {
    fn new(pool: Pool) -> Result<Self> {
        Ok(Self {
            pool,
            taken: Taken::default(),
            closed: AtomicU64::new(0),
            rest: Mutex::new(None),
            tx_closed: AtomicBool::new(false),
            rx_closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            bell: EventFd::new()?,
            is_sleeping: AtomicU32::new(0),
            room: EventFd::new()?,
            wants_room: WantsRoom::default(),
        })
    }

    /// Wakes a sender that waits for room. A sender that starts to wait at the same moment may be
    /// missed; it checks again after [`ROOM_NAP`]. A fence that prevents this would slow down every
    /// batch.
    #[inline]
    fn released(&self) {
        if self.wants_room.0.load(Ordering::Relaxed) {
            self.wants_room.0.store(false, Ordering::Relaxed);
            self.room.signal();
        }
    }

    fn rest(&self) -> MutexGuard<'_, Option<Consumer<Descriptor>>> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a receiver that sleeps on the bell: earlier packets are in the ring, or the end is
    /// signalled.
    fn ring(&self) {
        if sleep::is_needed(&self.is_sleeping) {
            self.bell.signal();
        }
    }

    /// Reclaims packets that were added to the ring after the receiver had closed.
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

/// Reclaims unread packets from the ring; returns their number.
fn drain(consumer: &mut Consumer<Descriptor>, cache: &mut FrameCache) -> u64 {
    let count = consumer.peek(u32::MAX);
    let mut packets = 0;
    for at in 0..count {
        let descriptor = consumer.read(at);
        // SAFETY: the sender submitted the frame and no longer touches it; nothing else reads the
        // ring.
        unsafe { cache.reclaim(descriptor.index) };
        packets += u64::from(!descriptor.continues());
    }
    consumer.release(count);
    packets
}
#[cfg(test)]
mod tests;
