//! A sender whose own cost is known to the nanosecond: a burst each millisecond, asleep in between.
//!
//! A sender that spins until the next packet is due hides the cost of receiving on its processor:
//! time that the kernel takes in its context is time that it spins less. This one sleeps, and reads
//! its thread's processor time, which includes what the kernel did on its behalf (veth delivers in
//! the context of the sender).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::packet::Udp;
use lab::veth::Pair;
use port::{Direction, PortOptions, TxQueue};

/// Interval of bursts.
const TICK: Duration = Duration::from_millis(1);
/// Time before counting starts.
const WARM_UP: Duration = Duration::from_millis(200);
/// Processor of the sender; readers use the other.
const CPU: usize = 0;

/// The load to send.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Backend to send with.
    pub scheme: &'static str,
    /// Bytes of a packet, without FCS.
    pub len: usize,
    /// Number of flows, by source port; at least 1.
    pub flows: usize,
    /// Packets per second.
    pub pps: u32,
    /// Seconds counted.
    pub seconds: f64,
}

/// What was sent, and its cost.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// All packets, including the warm-up.
    pub all: u64,
    /// Packets while counting.
    pub packets: u64,
    /// Processor time of sender, kernel packet threads and reader, in nanoseconds.
    pub busy_ns: u64,
    /// Processor time of the reader alone: its processes with all their threads.
    pub reader_ns: u64,
    /// How long was counted.
    pub elapsed: Duration,
}

impl Sent {
    /// Processor time per packet, in microseconds.
    pub fn busy_us(&self) -> f64 {
        self.busy_ns as f64 / self.packets as f64 / 1e3
    }

    /// The reader's own processor time per packet, in microseconds.
    pub fn reader_us(&self) -> f64 {
        self.reader_ns as f64 / self.packets as f64 / 1e3
    }

    /// Packets per second sent while counting.
    pub fn pps(&self) -> f64 {
        self.packets as f64 / self.elapsed.as_secs_f64()
    }
}

/// Sends from the left end of a pair while `reader` (a process) reads at the right.
pub fn send(pair: &Pair, load: Load, reader: Option<u32>) -> Result<Sent> {
    let mut plan = Udp::between(&pair.left, &pair.right);
    // Another station's address: the stack at the right end drops it.
    plan.destination_mac = [2, 0, 0, 0, 0, 9];
    let flows = load.flows.max(1);
    let plan = plan.flows(u16::try_from(flows)?);
    let packets: Vec<_> = (0..flows as u64)
        .map(|number| plan.build(number, load.len))
        .collect();
    let name = format!("{}:{}", load.scheme, pair.left.ifname);
    pair.left.ns.run(|| run(&name, &packets, load, reader))?
}

fn run(name: &str, packets: &[Vec<u8>], load: Load, reader: Option<u32>) -> Result<Sent> {
    sys::affinity::pin_current_thread(CPU)?;
    let options = PortOptions {
        direction: Direction::Tx,
        ..PortOptions::default()
    };
    let mut port = port::open(name, &options)?;
    let queue = port.tx.first_mut().context("no queue to send on")?;
    let meters = Meters::new(reader)?;
    let burst = load.pps as usize / 1000;
    let start = Instant::now();
    let mut all = 0;
    let mut counted: Option<(Instant, u64, [u64; 2])> = None;
    let mut endless = packets.iter().map(Vec::as_slice).cycle();
    for tick in 1_u32.. {
        put(queue, &mut endless, burst)?;
        all += burst as u64;
        std::thread::sleep((TICK * tick).saturating_sub(start.elapsed()));
        match counted {
            None if start.elapsed() >= WARM_UP => {
                counted = Some((Instant::now(), all, meters.read_ns()?));
            }
            Some((since, ..)) if since.elapsed().as_secs_f64() >= load.seconds => break,
            _ => {}
        }
    }
    let (since, before, from_ns) = counted.context("too short")?;
    // What the reader has not handled is from the last millisecond.
    let elapsed = since.elapsed();
    let [others_ns, reader_ns] = meters.read_ns()?;
    let reader_ns = reader_ns.saturating_sub(from_ns[1]);
    let busy_ns = others_ns.saturating_sub(from_ns[0]) + reader_ns;
    queue.wait(true, Duration::from_secs(2))?;
    Ok(Sent {
        all,
        packets: all - before,
        busy_ns,
        reader_ns,
        elapsed,
    })
}

/// Passes the next `count` packets to the device.
fn put<'a>(
    queue: &mut TxQueue,
    packets: &mut impl Iterator<Item = &'a [u8]>,
    count: usize,
) -> Result<()> {
    let mut left = count;
    let mut next = None;
    let since = Instant::now();
    while left > 0 {
        let mut batch = queue.reserve(left.min(256))?;
        while left > 0 {
            let Some(packet) = next.take().or_else(|| packets.next()) else {
                break;
            };
            if !batch.write(packet) {
                // There was no room: it is sent with the next batch.
                next = Some(packet);
                break;
            }
            left -= 1;
        }
        batch.submit()?;
        queue.flush()?;
        if left > 0 {
            queue.wait(false, Duration::from_millis(10))?;
            ensure!(
                since.elapsed() < Duration::from_secs(5),
                "the device is stuck"
            );
        }
    }
    Ok(())
}

/// Where the processor time of all threads is read.
pub struct Meters {
    /// This thread and the kernel's packet threads.
    others: Vec<PathBuf>,
    /// The threads of the reader and of the processes it started.
    reader: Vec<PathBuf>,
}

impl Meters {
    /// Meters of the calling thread, the kernel's packet threads, and a process.
    pub fn new(reader: Option<u32>) -> Result<Self> {
        let mut others = packet_threads()?;
        others.push(PathBuf::from("/proc/thread-self/schedstat"));
        let mut threads = Vec::new();
        let mut processes: Vec<u32> = reader.into_iter().collect();
        while let Some(pid) = processes.pop() {
            for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
                let task = task?.path();
                // Processes that this thread has started (proc(5), `/proc/PID/task/TID/children`).
                let children = std::fs::read_to_string(task.join("children")).unwrap_or_default();
                processes.extend(children.split_whitespace().flat_map(str::parse::<u32>));
                threads.push(task.join("schedstat"));
            }
        }
        Ok(Self {
            others,
            reader: threads,
        })
    }

    /// Nanoseconds on a processor (Documentation/scheduler/sched-stats.rst): of the sender with the
    /// kernel's threads, and of the reader.
    pub fn read_ns(&self) -> Result<[u64; 2]> {
        Ok([sum_ns(&self.others)?, sum_ns(&self.reader)?])
    }
}

/// Where the processor time of the kernel's packet threads is read.
pub fn packet_threads() -> Result<Vec<PathBuf>> {
    let mut threads = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let comm = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if comm.starts_with("ksoftirqd/") {
            threads.push(path.join("schedstat"));
        }
    }
    Ok(threads)
}

/// Nanoseconds on a processor, summed over threads.
pub fn sum_ns(paths: &[PathBuf]) -> Result<u64> {
    let mut sum = 0;
    for path in paths {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let first = text
            .split_whitespace()
            .next()
            .context("schedstat is empty")?;
        sum += first.parse::<u64>()?;
    }
    Ok(sum)
}
