//! A queue between processes whose consumer dies between any two steps, under every interleaving
//! with its owner (loom): at most the packet in its hands is lost, no packet is delivered twice, no
//! frame is leaked, and none is written while it may still be read.
//!
//! The rings, the holdings of frames and the rule by which packets are kept for the next consumer
//! are the crate's own modules, compiled with loom's atomics; the pool is modelled. The kernel
//! closes a dead process's socket after everything that the process has written: that is a store
//! with Release order here.
#![allow(dead_code, reason = "the modules have more than the models use")]

/// Replaces the crate's module of this name.
mod sync {
    #[allow(
        clippy::unsafe_removed_from_name,
        reason = "the crate's own cell has this name"
    )]
    pub(crate) use loom::cell::UnsafeCell as Cell;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    /// # Safety
    /// As for the crate's own.
    pub(crate) unsafe fn write_cells<T: Copy>(first: *const Cell<T>, values: &[T]) {
        for (at, value) in values.iter().enumerate() {
            // SAFETY: the caller's word.
            unsafe { (*first.add(at)).with_mut(|place| place.write(*value)) };
        }
    }
}

#[path = "../src/cursor.rs"]
mod cursor;
#[path = "../src/holding.rs"]
mod holding;
#[path = "../src/shared/owner/rest.rs"]
mod rest;

use std::sync::Arc;

use cursor::{Consumer, Producer, spsc_from};
use loom::thread;
use sync::{AtomicU32, AtomicU64, Cell, Ordering};

/// Length of the ring of packets.
const ENTRIES: u32 = 2;

/// A packet of one frame: the frame's index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Packet(u32);

impl rest::Entry for Packet {
    fn frame(&self) -> usize {
        self.0 as usize
    }

    fn follows(&self) -> bool {
        false
    }
}

/// A frame's bytes: the number of the packet in it.
struct Bytes(Cell<u32>);

// SAFETY: loom reports accesses from two threads at the same time.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

/// What all processes share: the frames, and the entries of their holders.
struct Pool {
    frames: Vec<Bytes>,
    holdings: Vec<AtomicU64>,
}

impl Pool {
    fn new(count: u32) -> Arc<Pool> {
        Arc::new(Pool {
            frames: (0..count).map(|_| Bytes(Cell::new(0))).collect(),
            holdings: (0..count).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn read(&self, frame: u32) -> u32 {
        // SAFETY: loom reports a write at the same time.
        self.frames[frame as usize].0.with(|at| unsafe { *at })
    }

    fn write(&self, frame: u32, number: u32) {
        // SAFETY: loom reports an access at the same time.
        self.frames[frame as usize]
            .0
            .with_mut(|at| unsafe { *at = number });
    }
}

/// The end of the owner, as `shared::OwnerEnd` with its holder.
struct Owner {
    pool: Arc<Pool>,
    /// The bit of its holder.
    bit: u64,
    delivered: Producer<Packet>,
    returned: Consumer<u32>,
    ring: [Packet; ENTRIES as usize],
    head: u32,
    /// Frames whose last holder has returned them.
    free: Vec<u32>,
    lost: u32,
    collected: u32,
}

/// The end of a consumer.
struct Peer {
    pool: Arc<Pool>,
    delivered: Consumer<Packet>,
    returned: Producer<u32>,
}

fn queue(pool: &Arc<Pool>, number: u32) -> (Owner, Peer) {
    let (producer, consumer) = spsc_from(ENTRIES, 0);
    let (giver, taker) = spsc_from(2 * ENTRIES, 0);
    let owner = Owner {
        pool: pool.clone(),
        bit: holding::bit(number),
        delivered: producer,
        returned: taker,
        ring: [Packet(0); ENTRIES as usize],
        head: 0,
        free: Vec::new(),
        lost: 0,
        collected: 0,
    };
    let peer = Peer {
        pool: pool.clone(),
        delivered: consumer,
        returned: giver,
    };
    (owner, peer)
}

impl Owner {
    /// Hands over frames; their entries have been written.
    fn hand(&mut self, frames: &[u32]) {
        assert_eq!(
            self.delivered.reserve(frames.len() as u32),
            frames.len() as u32
        );
        for (at, &frame) in frames.iter().enumerate() {
            self.delivered.write(at as u32, Packet(frame));
            self.ring[(self.head as usize + at) % ENTRIES as usize] = Packet(frame);
        }
        self.delivered.submit(frames.len() as u32);
        self.head += frames.len() as u32;
    }

    fn take_back(&mut self, frame: u32) -> bool {
        let entry = &self.pool.holdings[frame as usize];
        let is_last = holding::end(entry, self.bit);
        if is_last == Some(true) {
            self.free.push(frame);
        }
        is_last.is_some()
    }

    fn collect(&mut self) {
        let count = self.returned.peek(2 * ENTRIES);
        for at in 0..count {
            let frame = self.returned.read(at);
            assert!(self.take_back(frame), "{frame} was returned twice");
            self.collected += 1;
        }
        self.returned.release(count);
    }

    /// As `OwnerEnd::recover`; returns the frames of the packets that the consumer had not taken.
    fn recover(&mut self) -> Vec<u32> {
        self.collect();
        let holdings = &self.pool.holdings;
        let mut is_kept = vec![false; holdings.len()];
        let count = self.delivered.pending();
        let holds = |at: usize| holdings[at].load(Ordering::Relaxed) & self.bit != 0;
        let kept = rest::rest(&self.ring, self.head, count, &mut is_kept, holds);
        for (frame, is_kept) in is_kept.into_iter().enumerate() {
            if !is_kept && self.take_back(frame as u32) {
                self.lost += 1;
            }
        }
        kept.iter().map(|packet| packet.0).collect()
    }
}

impl Peer {
    /// Takes, reads and returns packets one at a time, as `PeerEnd::take` and `give`, and dies
    /// after `steps` of them. Returns the numbers of the packets that it has read.
    fn run(&mut self, mut steps: u32, packets: u32) -> Vec<u32> {
        let mut step = || {
            let lives = steps != 0;
            steps = steps.saturating_sub(1);
            lives
        };
        let mut seen = Vec::new();
        for _ in 0..packets {
            if !step() || self.delivered.peek(1) == 0 {
                break;
            }
            let packet = self.delivered.read(0);
            if !step() {
                break;
            }
            self.delivered.release(1);
            if !step() {
                break;
            }
            seen.push(self.pool.read(packet.0));
            if !step() || self.returned.reserve(1) == 0 {
                break;
            }
            self.returned.write(0, packet.0);
            if !step() {
                break;
            }
            self.returned.submit(1);
        }
        seen
    }
}

/// Steps of a consumer per packet.
const STEPS: u32 = 5;

/// Two packets, a consumer that dies at any point, and a second one that gets the rest.
#[test]
fn a_consumer_that_dies_loses_at_most_the_packet_in_its_hands() {
    for steps in 0..=2 * STEPS {
        loom::model(move || {
            let pool = Pool::new(2);
            let (mut owner, mut peer) = queue(&pool, 1);
            for frame in 0..2 {
                pool.write(frame, frame + 1);
                holding::begin(&pool.holdings[frame as usize], holding::bit(1));
            }
            let closed = Arc::new(AtomicU32::new(0));
            let socket = closed.clone();
            let consumer = thread::spawn(move || {
                let seen = peer.run(steps, 2);
                // The kernel closes the socket of a process that has died.
                socket.store(1, Ordering::Release);
                seen
            });
            owner.hand(&[0, 1]);
            owner.collect();
            reuse(&mut owner);
            // It notices the death now, or later.
            let is_closed = closed.load(Ordering::Acquire) != 0;
            let kept = is_closed.then(|| owner.recover());
            reuse(&mut owner);
            let first = consumer.join().unwrap();
            let kept = kept.unwrap_or_else(|| owner.recover());
            check(&mut owner, first, &kept);
        });
    }
}

/// Writes into the frames that are free, as their next owner: loom finds a consumer that still
/// reads one.
fn reuse(owner: &mut Owner) {
    for frame in &owner.free {
        owner.pool.write(*frame, 99);
    }
}

/// Passes the kept packets to the next consumer, and adds up.
fn check(owner: &mut Owner, first: Vec<u32>, kept: &[u32]) {
    assert!(owner.lost <= 1, "{} were lost", owner.lost);
    assert_eq!(owner.collected + owner.lost + kept.len() as u32, 2);
    let mut seen = first;
    for &frame in kept {
        seen.push(owner.pool.read(frame));
        assert!(owner.take_back(frame));
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "a packet was delivered twice");
    assert!(
        count as u32 + owner.lost >= 2,
        "{count} of 2 packets, {} lost",
        owner.lost
    );
    owner.free.sort_unstable();
    assert_eq!(owner.free, [0, 1], "a frame is leaked or free twice");
    for entry in &owner.pool.holdings {
        assert_eq!(holding::end(entry, 1), None);
    }
}

/// One frame held by two applications, each with a thread of its own that collects for it: one of
/// the consumers dies at any point, the other returns the frame.
#[test]
fn a_frame_of_two_consumers_is_free_once_when_one_of_them_dies() {
    for steps in 0..=STEPS {
        loom::model(move || {
            let pool = Pool::new(1);
            let (mut first, mut dying) = queue(&pool, 1);
            let (mut second, mut living) = queue(&pool, 2);
            pool.write(0, 1);
            holding::begin(&pool.holdings[0], holding::bit(1) | holding::bit(2));
            let other = thread::spawn(move || {
                second.hand(&[0]);
                let seen = living.run(u32::MAX, 1);
                assert_eq!(seen, [1]);
                second.collect();
                reuse(&mut second);
                second
            });
            first.hand(&[0]);
            let seen = dying.run(steps, 1);
            // Its death has been noticed.
            let kept = first.recover();
            assert!(first.lost as usize + kept.len() <= 1);
            assert!(seen.is_empty() || kept.is_empty(), "delivered twice");
            for frame in kept {
                assert_eq!(pool.read(frame), 1);
                assert!(first.take_back(frame));
            }
            reuse(&mut first);
            let second = other.join().unwrap();
            assert_eq!(first.free.len() + second.free.len(), 1);
        });
    }
}
