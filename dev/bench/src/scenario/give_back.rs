//! `give-back`: what it costs to return packets to the host's network stack, as workers of `guard
//! --steer` do: live frames and a TAP interface, beside an AF_PACKET socket that sends into a veth.
//!
//! Every packet arrives in the raw table, whose rule counts and drops it. Processor time is that of
//! the whole machine, because the kernel does the work in several threads.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::packet::Udp;
use lab::veth::{Pair, Veth};
use port::{Direction, PortOptions};
use sys::tun::Tap;
use xdp::LiveTransmitter;

use super::{Plan, Scenario};
use crate::cpu::Reading;
use crate::rounds::{Outcome, Table};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "give-back",
    summary: "returning packets to the host: live frames, TAP, AF_PACKET; packets a CPU second",
    run,
};

/// Bytes of a packet without FCS.
const LEN: usize = 60;
/// Packets per live run, as `guard` has at most.
const BATCH: usize = 512;
const COUNT: usize = 4_000 * BATCH;

/// A way to return packets.
type Way = fn(&Pair, &[Vec<u8>], usize) -> Result<()>;

const WAYS: [(&str, Way); 3] = [
    ("AF_PACKET into a veth", afpacket),
    ("TAP", tap),
    ("live frames", live),
];

fn run(plan: &Plan) -> Result<Outcome> {
    let mut table = Table {
        measure: "packets returned a CPU second",
        unit: "Mpps",
        axis: "",
        more_is_better: true,
        reference: "AF_PACKET into a veth".into(),
        series: Vec::new(),
    };
    let count = if plan.quick { 20 * BATCH } else { COUNT };
    for _ in 0..plan.rounds {
        for (name, way) in WAYS {
            let pair = Veth::new().create()?;
            let drop = "-A PREROUTING -p udp --dport 9 -j DROP";
            let args = ["-t", "raw"].into_iter().chain(drop.split(' '));
            pair.right.ns.exec("iptables", args)?;
            let udp = Udp::between(&pair.left, &pair.right).flows(16);
            let packets: Vec<Vec<u8>> = (0..BATCH as u64).map(|n| udp.build(n, LEN)).collect();
            let before = Reading::take()?;
            way(&pair, &packets, count)?;
            let busy = Reading::take()?.busy_since(&before);
            let arrived = arrived(&pair)?;
            ensure!(arrived == count as u64, "{name}: {arrived} of {count}");
            table.add(name, 0, count as f64 / busy.max(1e-3) / 1e6);
        }
    }
    let notes = vec![format!(
        "packets of {LEN} bytes, {count} a run, all of which arrived"
    )];
    Ok(Outcome {
        tables: vec![table],
        notes,
    })
}

/// Packets that the rule has counted.
fn arrived(pair: &Pair) -> Result<u64> {
    let args = ["-t", "raw", "-vnxL", "PREROUTING"];
    let text = pair.right.ns.exec("iptables", args)?;
    let line = text.lines().nth(2).context("no rule")?;
    let packets = line.split_whitespace().next().context("no count")?;
    packets.parse().with_context(|| text.clone())
}

fn live(pair: &Pair, packets: &[Vec<u8>], count: usize) -> Result<()> {
    let index = pair.right.ifindex;
    let body = || -> Result<()> {
        let mut transmitter = LiveTransmitter::to_host(index, 0, BATCH as u32, None)?;
        for run in packets.chunks(BATCH).cycle().take(count.div_ceil(BATCH)) {
            for (slot, packet) in run.iter().enumerate() {
                transmitter.write(slot, packet)?;
            }
            transmitter.run(run.len() as u32)?;
        }
        Ok(())
    };
    pair.right.ns.run(body)?
}

fn tap(pair: &Pair, packets: &[Vec<u8>], count: usize) -> Result<()> {
    let body = || -> Result<()> {
        let tap = Tap::create("bw-bench", pair.right.mac, 1500, &pair.right.ifname)?;
        for packet in packets.iter().cycle().take(count) {
            tap.write(packet)?;
        }
        Ok(())
    };
    pair.right.ns.run(body)?
}

fn afpacket(pair: &Pair, packets: &[Vec<u8>], count: usize) -> Result<()> {
    let body = || -> Result<()> {
        let options = PortOptions {
            direction: Direction::Tx,
            ..PortOptions::default()
        };
        let mut port = port::open(&format!("afpacket:{}", pair.left.ifname), &options)?;
        let queue = port.tx.first_mut().context("no queue")?;
        let mut packets = packets.iter().cycle();
        let mut left = count;
        while left != 0 {
            // veth queues 256 packets until the other end has received them.
            let mut batch = queue.reserve(left.min(64))?;
            let mut written = 0;
            while written < left.min(64) && batch.write(packets.next().context("no packet")?) {
                written += 1;
            }
            batch.submit()?;
            queue.flush()?;
            queue.wait(true, Duration::from_secs(10))?;
            left -= written;
        }
        Ok(())
    };
    pair.left.ns.run(body)?
}
