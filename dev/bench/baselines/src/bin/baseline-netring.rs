//! Captures with netring until SIGTERM or SIGINT; prints packets received and dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let interface = std::env::args()
        .nth(1)
        .ok_or("usage: baseline-netring INTERFACE")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut capture = netring::Capture::builder()
        .interface(&interface)
        .promiscuous(true)
        .ignore_outgoing(true)
        .build()?;
    let (mut packets, mut sum) = (0u64, 0u64);
    while !stop.load(Ordering::Relaxed) {
        if let Some(batch) = capture.next_batch_blocking(Duration::from_millis(100))? {
            for packet in &batch {
                packets += 1;
                sum += u64::from(packet.data()[12]);
            }
        }
    }
    let stats = capture.stats()?;
    println!("{packets} packets captured, sum {sum}; {stats}");
    Ok(())
}
