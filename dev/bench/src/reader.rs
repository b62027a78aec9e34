//! A reader that only touches each packet: the cost of the port itself.

use anyhow::Result;
use port::{PortOptions, RxBatch};
use runtime::{Engine, Pacing, Stop, Verdict, worker};

/// Counts packets and reads a byte of each.
#[derive(Debug, Default)]
pub struct Touch {
    packets: u64,
    sum: u64,
}

impl Engine for Touch {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> sys::Result<Verdict> {
        for packet in batch.iter() {
            self.sum += u64::from(packet.bytes()[12]);
        }
        self.packets += batch.len() as u64;
        Ok(Verdict::Continue)
    }
}

/// Reads until SIGTERM; prints packets received and lost.
pub fn run(name: &str) -> Result<()> {
    let stop = Stop::on_signals()?;
    let mut port = port::open(
        name,
        &PortOptions {
            queue_count: 1,
            ..PortOptions::default()
        },
    )?;
    let mut touch = Touch::default();
    eprintln!("reading {name}: {:?}", port.control.describe().facts);
    worker::run(&mut port.rx[0], &mut touch, &stop, Pacing::Gather)?;
    port.control.stop()?;
    worker::drain(&mut port.rx[0], &mut touch)?;
    let total = port.control.account()?.rx_total();
    println!(
        "{} packets captured, sum {}; {total:?}",
        touch.packets, touch.sum
    );
    Ok(())
}
