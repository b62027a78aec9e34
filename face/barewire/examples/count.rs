//! Counts the packets and bytes of a port on all its queues, and prints what happened to every
//! packet.
//!
//! `count eth0`, `count afxdp:eth0`, `count trace.pcapng`; stop with Ctrl-C.

use barewire::{Engine, Pacing, PortOptions, Result, RxBatch, Stop, Verdict, run_queues};

/// Counts of one queue.
#[derive(Default)]
struct Counter {
    packets: u64,
    bytes: u64,
}

impl Engine for Counter {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        self.packets += batch.len() as u64;
        self.bytes += batch.iter().map(|p| u64::from(p.wire_len())).sum::<u64>();
        Ok(Verdict::Continue)
    }
}

fn main() -> Result<()> {
    let name = std::env::args().nth(1).expect("usage: count PORT");
    let stop = Stop::on_signals()?;
    let mut port = barewire::open(&name, &PortOptions::default())?;
    eprintln!("counting on {} queues", port.rx.len());
    let queues = run_queues(&mut port, &stop, Pacing::default(), |_| Counter::default())?;
    let packets: u64 = queues.iter().map(|queue| queue.packets).sum();
    let bytes: u64 = queues.iter().map(|queue| queue.bytes).sum();
    let total = port.control.account()?.rx_total();
    println!(
        "{packets} packets, {bytes} bytes; {} seen, {} lost",
        total.seen,
        total.lost()
    );
    Ok(())
}
