//! Queues between processes, apart from any device: the subject of `cluster`. Packets are free
//! frames of a pool, handed over and returned in batches.

use std::hint::black_box;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ring::shared::{Interface, Offer, OwnerEnd, PeerEnd, Ready, Request, Terms, connect};
use ring::slot::Slot;
use ring::{Descriptor, Frame, FrameCache, Pool, PoolConfig, spsc};
use sys::affinity::pin_current_thread;
use sys::memfd::Access;

/// Packets per batch.
pub const BATCH: usize = 32;
/// Packets that a queue holds.
const ENTRIES: u32 = 512;
/// Bytes per packet.
const LEN: u32 = 60;
/// Packets before the clock starts.
const WARM_UP: u64 = 1 << 16;

fn pool() -> Result<Pool> {
    Ok(Pool::new(PoolConfig {
        frame_count: 8 * ENTRIES,
        frame_len: 2048,
        ..PoolConfig::default()
    })?)
}

/// Both ends of some queues over one pool, in this process; the readers' ends map the pool a second
/// time, as those of other processes do.
pub struct Hop {
    cache: FrameCache,
    ends: Vec<OwnerEnd>,
    peers: Vec<PeerEnd>,
    frames: Vec<Frame>,
    slots: Vec<Slot>,
}

impl Hop {
    /// Queues to this many consumers, each of which receives every packet.
    pub fn new(consumers: usize) -> Result<Self> {
        let pool = pool()?;
        let mut hop = Self {
            cache: FrameCache::new(pool.clone()),
            ends: Vec::new(),
            peers: Vec::new(),
            frames: Vec::with_capacity(BATCH),
            slots: Vec::with_capacity(2 * BATCH),
        };
        for _ in 0..consumers {
            let (ours, theirs) = UnixStream::pair()?;
            let end = OwnerEnd::new(&pool, ENTRIES, ours)?;
            let attached = Pool::attach(pool.share(Access::Read)?, Access::Read)?;
            hop.peers
                .push(PeerEnd::attach(attached, end.queue()?, theirs)?);
            hop.ends.push(end);
        }
        Ok(hop)
    }

    /// Passes one batch to all consumers and back.
    pub fn round(&mut self) {
        take_frames(&mut self.cache, &mut self.frames);
        hand_batch(&mut self.ends, &mut self.cache, &mut self.frames);
        for peer in &mut self.peers {
            black_box(read_batch(peer, &mut self.slots));
        }
        collect_batch(&mut self.ends, &mut self.cache);
    }

    /// Passes this many batches.
    ///
    /// # Errors
    /// If a packet was lost.
    pub fn rounds(&mut self, rounds: usize) -> Result<()> {
        (0..rounds).for_each(|_| self.round());
        for end in &self.ends {
            let counts = end.counts();
            ensure!(counts.dropped == 0 && counts.waiting() == 0, "{counts:?}");
        }
        Ok(())
    }

    /// Nanoseconds per packet over all consumers.
    ///
    /// # Errors
    /// As [`rounds`](Self::rounds).
    pub fn time(&mut self, rounds: usize) -> Result<f64> {
        self.rounds(WARM_UP as usize / BATCH)?;
        let start = Instant::now();
        self.rounds(rounds)?;
        Ok(start.elapsed().as_nanos() as f64 / (rounds * BATCH) as f64)
    }
}

#[inline(never)]
fn take_frames(cache: &mut FrameCache, frames: &mut Vec<Frame>) {
    cache.take_frames(BATCH - frames.len(), frames);
    let pool = cache.pool();
    frames
        .iter_mut()
        .for_each(|frame| pool.set_range(frame, 0, LEN));
}

#[inline(never)]
fn hand_batch(ends: &mut [OwnerEnd], cache: &mut FrameCache, frames: &mut Vec<Frame>) {
    let all = u64::MAX >> (u64::BITS - ends.len() as u32);
    let mut run = frames.drain(..);
    if let Some((frame, _)) = OwnerEnd::hand_run(ends, cache, &mut run, |_| black_box(all)) {
        // There is room; otherwise the account shows it.
        let _ = black_box(frame);
    }
    ends.iter_mut().for_each(OwnerEnd::flush);
}

#[inline(never)]
fn read_batch(peer: &mut PeerEnd, slots: &mut Vec<Slot>) -> u64 {
    let batch = peer.fill(slots, BATCH, u32::MAX);
    peer.give_back(slots);
    batch.filled.packets as u64
}

#[inline(never)]
fn collect_batch(ends: &mut [OwnerEnd], cache: &mut FrameCache) {
    OwnerEnd::collect_all(ends, cache);
}

/// A socket that is removed with its owner, and the process that reads the queue behind it.
struct Reader {
    child: Child,
    path: PathBuf,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Nanoseconds per packet from this process to another one, each on a processor of its own; the
/// packets are those of a pool's cache, so that the owner takes, hands over and collects each.
///
/// # Errors
/// If the other process cannot be started, or packets were lost.
pub fn between_processes(count: u64) -> Result<f64> {
    let run = || -> Result<f64> {
        pin_current_thread(0)?;
        let pool = pool()?;
        let path = std::env::temp_dir().join(format!("bw-hop-{}", std::process::id()));
        let offer = Offer::new(&pool, &path, Access::Read, false)?;
        let mut end = [OwnerEnd::new(&pool, ENTRIES, None)?];
        let child = Command::new(std::env::current_exe()?)
            .arg("--hop-reader")
            .arg(&path)
            .args(["1", "spin"])
            .spawn()?;
        let mut reader = Reader { child, path };
        let caller = loop {
            match offer.next(|_| true)? {
                Some(caller) => break caller,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let terms = Terms {
            queue: 0,
            interfaces: vec![Interface {
                link_type: 1,
                name: "bench".into(),
            }],
        };
        offer.admit(caller, &mut end[0], &terms)?;
        let mut cache = FrameCache::new(pool);
        let mut frames = Vec::with_capacity(BATCH);
        pass(&mut end, &mut cache, &mut frames, WARM_UP)?;
        let start = Instant::now();
        pass(&mut end, &mut cache, &mut frames, WARM_UP + count)?;
        let elapsed = start.elapsed();
        end[0].close();
        ensure!(reader.child.wait()?.success(), "the reader failed");
        Ok(elapsed.as_nanos() as f64 / count as f64)
    };
    // In a thread, so that only this one is pinned.
    std::thread::scope(|scope| scope.spawn(run).join())
        .ok()
        .context("the owner panicked")?
}

/// Hands over until `count` packets have returned.
fn pass(
    ends: &mut [OwnerEnd; 1],
    cache: &mut FrameCache,
    frames: &mut Vec<Frame>,
    count: u64,
) -> Result<()> {
    while ends[0].counts().returned < count {
        if ends[0].counts().handed < count && ends[0].has_room(BATCH as u32) {
            take_frames(cache, frames);
            hand_batch(ends, cache, frames);
        }
        collect_batch(ends, cache);
    }
    ensure!(ends[0].counts().dropped == 0, "{:?}", ends[0].counts());
    Ok(())
}

/// Reads a queue to its end, on this processor: the other process of [`between_processes`]. With
/// `idle` `yield`, other readers use the processor while the queue is empty.
///
/// # Errors
/// If there is no such queue, or its owner was killed.
pub fn read(path: &Path, cpu: usize, idle: &str) -> Result<()> {
    pin_current_thread(cpu)?;
    let (mut peer, _) = connect(path, Access::Read, &Request::Any)?;
    let mut slots = Vec::with_capacity(2 * BATCH);
    let mut empty = 0;
    loop {
        if read_batch(&mut peer, &mut slots) != 0 {
            empty = 0;
            continue;
        }
        empty += 1;
        if empty < 10_000 {
            match idle {
                "yield" => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
            continue;
        }
        match peer.wait(Duration::from_millis(100))? {
            Ready::End => return Ok(()),
            Ready::Gone | Ready::Lost => anyhow::bail!("the owner was killed"),
            Ready::Packets | Ready::Timeout => {}
        }
    }
}

/// Nanoseconds per packet of a ring of the same descriptors between two threads, without a pool,
/// owners, and a way back.
///
/// # Errors
/// If the threads cannot be pinned.
pub fn plain_ring(count: u64) -> Result<f64> {
    let (mut producer, mut consumer) = spsc::<Descriptor>(ENTRIES);
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<()> {
            pin_current_thread(0)?;
            let mut sent = 0;
            while sent < count {
                if producer.reserve(BATCH as u32) < BATCH as u32 {
                    std::hint::spin_loop();
                    continue;
                }
                for at in 0..BATCH as u32 {
                    let index = at & 1;
                    producer.write(
                        at,
                        Descriptor {
                            index,
                            cap_len: LEN,
                            ..Descriptor::default()
                        },
                    );
                }
                producer.submit(BATCH as u32);
                sent += BATCH as u64;
            }
            Ok(())
        });
        let receiver = scope.spawn(move || -> Result<f64> {
            pin_current_thread(1)?;
            let (mut seen, mut sum) = (0, 0);
            let start = Instant::now();
            while seen < count {
                let ready = consumer.peek(BATCH as u32);
                for at in 0..ready {
                    sum += consumer.read(at).cap_len;
                }
                consumer.release(ready);
                seen += u64::from(ready);
            }
            black_box(sum);
            Ok(start.elapsed().as_nanos() as f64 / seen as f64)
        });
        sender.join().ok().context("the sender panicked")??;
        receiver.join().ok().context("the receiver panicked")?
    })
}
