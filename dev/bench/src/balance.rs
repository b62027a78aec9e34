//! A cluster that balances packets from memory to reading processes: the processor time of the
//! process that owns it, of a capture file and of packets that are in frames of its pool already.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use port::{PortOptions, TxQueue};
use runtime::Stop;
use runtime::cluster::{self, Application, Event, Notice, Setup, WhenFull};
use runtime::filter::Expression;

use crate::workload;

/// Instances that packets are balanced to.
pub const INSTANCES: u32 = 4;
/// Flows of the balanced packets.
pub const FLOWS: u32 = 10_000;
/// Packets of each queue.
const RING_LEN: u32 = 4096;
/// Packets that a sender makes visible at once, when the ones before were received.
pub const BURST: u64 = 1 << 14;
/// How long readers may take to attach, and packets to be received.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the packets are.
#[derive(Clone, Copy)]
pub enum Source<'f> {
    /// In a capture file: they are copied into frames.
    File(&'f Path),
    /// In frames of the pool and in the ring of the port `memory:`, where a thread on the readers'
    /// processor has written them, as a card does. Its processor time does not count.
    Frames,
}

impl Source<'_> {
    fn port(self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Frames => format!("memory:?ring={BURST}"),
        }
    }
}

/// A capture file in memory, deleted on drop.
pub struct Input(pub PathBuf);

impl Input {
    /// Writes this many packets.
    ///
    /// # Errors
    /// If there is no room for them.
    pub fn new(count: u64) -> Result<Self> {
        let input = Self(format!("/dev/shm/bw-cluster-{}.pcap", std::process::id()).into());
        workload::many_flows(&input.0, u32::try_from(count)?, FLOWS)?;
        Ok(input)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Processes that are killed and waited for on drop.
struct Readers(Vec<Child>);

impl Drop for Readers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Processor time of this process or thread in seconds.
fn own_time(who: UsageWho) -> Result<f64> {
    let usage = getrusage(who).context("getrusage")?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Millions of packets per second of the owner's processor time.
///
/// # Errors
/// If the cluster cannot be run, or packets were lost.
pub fn rate(source: Source<'_>, count: u64, balance: &str) -> Result<f64> {
    let application = Application {
        balance: cluster::Balance::parse(balance).map_err(anyhow::Error::msg)?,
        when_full: Some(WhenFull::Block(None)),
        ..Application::new("all", INSTANCES)
    };
    let mut opened = cluster::open(&Setup {
        name: format!("bench-{}", std::process::id()),
        inputs: vec![source.port()],
        applications: vec![application],
        ring_len: RING_LEN,
        filter: Expression::default(),
        merge: None,
        returns: Vec::new(),
        options: PortOptions::default(),
        allow: Vec::new(),
        user: None,
    })?;
    let mut readers = Readers(Vec::new());
    for _ in 0..INSTANCES {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--hop-reader").arg(opened.path());
        command.args(["1", "yield"]);
        readers.0.push(command.spawn()?);
    }
    let options = cluster::Options {
        cpu: Some(0),
        ..cluster::Options::default()
    };
    let (sender, attached) = (opened.take_senders().pop(), AtomicU32::new(0));
    let attached = &attached;
    let before = own_time(UsageWho::RUSAGE_SELF)?;
    let (outcome, before) = std::thread::scope(|scope| -> Result<_> {
        let sender = sender.map(|tx| scope.spawn(move || send(tx, count, attached)));
        let outcome = cluster::run(opened, &options, &Stop::new(), |notice| {
            if let Notice::Reader(Event::Attached { .. }) = notice {
                attached.fetch_add(1, Ordering::Relaxed);
            }
        });
        let before = match sender {
            Some(sender) => sender.join().ok().context("the sender panicked")??,
            None => before,
        };
        Ok((outcome, before))
    })?;
    let seconds = own_time(UsageWho::RUSAGE_SELF)? - before;
    for reader in &mut readers.0 {
        ensure!(reader.wait()?.success(), "a reader failed");
    }
    let queues = outcome.queues.iter();
    let delivered: u64 = queues.map(|queue| queue.counts.returned).sum();
    let is_copied = matches!(source, Source::File(_));
    ensure!(
        delivered == count
            && outcome.imbalance() == 0
            && outcome.totals.copied == u64::from(is_copied) * count,
        "{outcome:?}"
    );
    Ok(count as f64 / seconds / 1e6)
}

/// Sends `count` packets when the readers are there, in bursts. Returns this process's processor
/// time before the first one, with that of sending.
fn send(mut tx: TxQueue, count: u64, attached: &AtomicU32) -> Result<f64> {
    sys::affinity::pin_current_thread(1)?;
    let mut packets = Vec::new();
    for flow in workload::sequence(u32::try_from(BURST)?, FLOWS) {
        let mut packet = Vec::new();
        workload::packet_of(flow, false, &mut packet);
        packets.push(packet);
    }
    let end = Instant::now() + LIMIT;
    while attached.load(Ordering::Relaxed) < INSTANCES {
        ensure!(Instant::now() < end, "the readers do not attach");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = own_time(UsageWho::RUSAGE_SELF)?;
    let own = own_time(UsageWho::RUSAGE_THREAD)?;
    let mut left = usize::try_from(count)?;
    while left != 0 {
        let burst = left.min(packets.len());
        let mut batch = tx.reserve(burst)?;
        for packet in &packets[..burst] {
            ensure!(batch.write(packet), "the ring has no room");
        }
        batch.submit()?;
        tx.flush()?;
        ensure!(tx.wait(true, LIMIT)?, "the packets are not received");
        left -= burst;
    }
    Ok(before + own_time(UsageWho::RUSAGE_THREAD)? - own)
}
