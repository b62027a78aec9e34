//! Forwards packets from one port to another, except those that its own rule drops: here, TCP to or
//! from port 23 (telnet).
//!
//! `forwarder afxdp:eth0 afxdp:eth1`; stop with Ctrl-C. If both ports share a pool, no packet is
//! copied.

use barewire::packet::{Dissection, LinkType, dissect};
use barewire::{
    Direction, Engine, Pacing, PortOptions, Result, RxBatch, Stop, TxQueue, Verdict, run,
    shared_pool,
};

const TCP: u8 = 6;
const TELNET: u16 = 23;

struct Forwarder {
    tx: TxQueue,
    link: LinkType,
    forwarded: u64,
    denied: u64,
    /// Packets for which the sending ring had no room.
    dropped: u64,
}

impl Forwarder {
    fn is_denied(&self, packet: &[u8], wire_len: u32) -> bool {
        let mut d = Dissection::EMPTY;
        dissect(self.link, packet, wire_len, &mut d);
        d.ip_protocol == TCP && (d.src_port == TELNET || d.dst_port == TELNET)
    }

    /// Sends the first `count` packets of the batch and removes them from it.
    fn send(&mut self, batch: &mut RxBatch<'_>, count: usize) -> Result<()> {
        let forwarded = batch.forward(&mut self.tx, count)?.packets;
        self.forwarded += forwarded as u64;
        self.dropped += (count - forwarded) as u64;
        batch.skip(count - forwarded);
        Ok(())
    }
}

impl Engine for Forwarder {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        // Decide on all packets, then act on runs of them: a run is handed over at once.
        let denied: Vec<bool> = batch
            .iter()
            .map(|packet| self.is_denied(packet.bytes(), packet.wire_len()))
            .collect();
        for run in denied.chunk_by(|a, b| a == b) {
            if run[0] {
                self.denied += run.len() as u64;
                batch.skip(run.len());
            } else {
                self.send(batch, run.len())?;
            }
        }
        self.tx.flush()?;
        Ok(Verdict::Continue)
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = &args[..] else {
        panic!("usage: forwarder FROM TO");
    };
    let receive = PortOptions {
        queue_count: 1,
        ..PortOptions::default()
    };
    let send = PortOptions {
        direction: Direction::Tx,
        ..receive.clone()
    };
    let pool = shared_pool(&[(from, &receive), (to, &send)])?;
    let with_pool = |options: &PortOptions| PortOptions {
        pool: pool.clone(),
        ..options.clone()
    };
    let stop = Stop::on_signals()?;
    let mut source = barewire::open(from, &with_pool(&receive))?;
    let mut target = barewire::open(to, &with_pool(&send))?;
    let mut engine = Forwarder {
        tx: target.tx.remove(0),
        link: LinkType(source.control.describe().link_type),
        forwarded: 0,
        denied: 0,
        dropped: 0,
    };
    eprintln!("forwarding");
    run(&mut source.rx[0], &mut engine, &stop, Pacing::default())?;
    println!(
        "{} forwarded, {} denied, {} dropped",
        engine.forwarded, engine.denied, engine.dropped
    );
    Ok(())
}
