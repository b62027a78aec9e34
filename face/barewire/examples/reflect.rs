//! Sends every packet back to its sender, with the Ethernet addresses swapped.
//!
//! `reflect afxdp:eth0`; stop with Ctrl-C. Frames are not copied if the port can send what it
//! received.

use barewire::{
    Direction, Ended, Engine, Pacing, PortOptions, Result, RxBatch, Stop, TxQueue, Verdict, run,
};

struct Reflector {
    tx: TxQueue,
    reflected: u64,
    /// Packets for which the sending ring had no room.
    dropped: u64,
}

impl Engine for Reflector {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        for mut packet in batch.iter_mut() {
            if let Some((destination, rest)) = packet.bytes_mut().split_first_chunk_mut::<6>()
                && let Some(source) = rest.first_chunk_mut::<6>()
            {
                std::mem::swap(destination, source);
            }
        }
        let count = batch.len();
        let forwarded = batch.forward(&mut self.tx, count)?;
        self.tx.flush()?;
        self.reflected += forwarded.packets as u64;
        // Packets left in the batch are returned to the device when the batch is dropped.
        self.dropped += (count - forwarded.packets) as u64;
        Ok(Verdict::Continue)
    }
}

fn main() -> Result<()> {
    let name = std::env::args().nth(1).expect("usage: reflect PORT");
    let stop = Stop::on_signals()?;
    let options = PortOptions {
        queue_count: 1,
        direction: Direction::Both,
        ..PortOptions::default()
    };
    let mut port = barewire::open(&name, &options)?;
    let (mut rx, tx) = (port.rx.remove(0), port.tx.remove(0));
    let mut engine = Reflector {
        tx,
        reflected: 0,
        dropped: 0,
    };
    eprintln!("reflecting");
    let ended = run(&mut rx, &mut engine, &stop, Pacing::default())?;
    let is_end = ended == Ended::Input;
    println!("{} reflected, {} dropped", engine.reflected, engine.dropped);
    if is_end {
        eprintln!("the input has ended");
    }
    Ok(())
}
