//! A sender whose own cost is known to the nanosecond: a burst each millisecond, asleep in between.
//!
//! A sender that spins until the next packet is due hides what receiving costs its processor: time
//! that the kernel takes in its context is time that it spins less. This one sleeps, and reads its
//! thread's processor time, which has in it what the kernel did on its behalf (veth delivers in the
//! context of the sender).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::packet::Udp;
use lab::veth::Pair;
use port::{Direction, PortOptions, TxQueue};

/// Time between two bursts.
const TICK: Duration = Duration::from_millis(1);
/// Sending before anything is counted.
const WARM_UP: Duration = Duration::from_millis(200);
/// Processor of the sender; readers have the other.
const CPU: usize = 0;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Backend that sends.
    pub scheme: &'static str,
    /// Bytes of a packet, without check sequence.
    pub len: usize,
    /// Packets a second.
    pub pps: u32,
    /// Seconds counted.
    pub seconds: f64,
}

/// What was sent and what it took.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// All packets, those of the warm-up too.
    pub all: u64,
    /// Packets while it counted.
    pub packets: u64,
    /// Processor time of sender, kernel's threads for packets, and reader, in nanoseconds.
    pub busy_ns: u64,
}

impl Sent {
    /// Processor time a packet, in microseconds.
    pub fn busy_us(&self) -> f64 {
        self.busy_ns as f64 / self.packets as f64 / 1e3
    }
}

/// Sends from the left end of a pair while `reader` (a process) reads at the right.
pub fn send(pair: &Pair, load: Load, reader: Option<u32>) -> Result<Sent> {
    let mut plan = Udp::between(&pair.left, &pair.right);
    // Another station's: the stack at the right end drops it.
    plan.destination_mac = [2, 0, 0, 0, 0, 9];
    let packet = plan.build(0, load.len);
    let name = format!("{}:{}", load.scheme, pair.left.ifname);
    pair.left.ns.run(|| run(&name, &packet, load, reader))?
}

fn run(name: &str, packet: &[u8], load: Load, reader: Option<u32>) -> Result<Sent> {
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
    let mut counted: Option<(Instant, u64, u64)> = None;
    for tick in 1_u32.. {
        put(queue, packet, burst)?;
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
    let (_, before, from_ns) = counted.context("too short")?;
    // What is still with the reader is of the last millisecond.
    let busy_ns = meters.read_ns()? - from_ns;
    queue.wait(true, Duration::from_secs(2))?;
    Ok(Sent {
        all,
        packets: all - before,
        busy_ns,
    })
}

/// Hands `count` packets to the device.
fn put(queue: &mut TxQueue, packet: &[u8], count: usize) -> Result<()> {
    let mut left = count;
    let since = Instant::now();
    while left > 0 {
        let mut batch = queue.reserve(left.min(256))?;
        while left > 0 && batch.write(packet) {
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

/// Where the processor time of those concerned can be read.
struct Meters(Vec<PathBuf>);

impl Meters {
    /// This thread, the kernel's packet threads, and the reader's threads.
    fn new(reader: Option<u32>) -> Result<Self> {
        let mut all = vec![PathBuf::from("/proc/thread-self/schedstat")];
        for entry in std::fs::read_dir("/proc")? {
            let path = entry?.path();
            let comm = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            if comm.starts_with("ksoftirqd/") {
                all.push(path.join("schedstat"));
            }
        }
        if let Some(pid) = reader {
            for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
                all.push(task?.path().join("schedstat"));
            }
        }
        Ok(Self(all))
    }

    /// Nanoseconds on a processor, of all together (Documentation/scheduler/sched-stats.rst).
    fn read_ns(&self) -> Result<u64> {
        let mut sum = 0;
        for path in &self.0 {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("read {}", path.display()))?;
            let first = text
                .split_whitespace()
                .next()
                .context("schedstat is empty")?;
            sum += first.parse::<u64>()?;
        }
        Ok(sum)
    }
}
