//! The generator: a card driven in user space that sends the same packet repeatedly.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::packet::{Addresses, Udp};
use port::{Direction, Port, PortOptions};

use super::cards::Cards;
use super::{LEN, LINK_LIMIT};

/// Destination address.
pub const DESTINATION: [u8; 4] = [10, 77, 0, 2];
/// Destination port.
pub const PORT: u16 = 9;

/// Packets sent at a time when there is no pause.
const BATCH: usize = 64;

/// A load.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// None, for a period of time.
    Nothing,
    /// Bursts of this many packets, at this rate.
    Bursts {
        /// Packets per burst.
        packets: usize,
        /// Packets per second.
        pps: u32,
    },
    /// As many as possible.
    Most,
}

impl Load {
    /// Increasing rates for finding the maximum. Results between two of them are reported as the
    /// lower one, so the steps are small.
    pub const RATES: [Self; 27] = [
        Self::at(24_000),
        Self::at(28_000),
        Self::at(32_000),
        Self::at(36_000),
        Self::at(40_000),
        Self::at(44_000),
        Self::at(48_000),
        Self::at(52_000),
        Self::at(56_000),
        Self::at(60_000),
        Self::at(64_000),
        Self::at(72_000),
        Self::at(80_000),
        Self::at(88_000),
        Self::at(96_000),
        Self::at(112_000),
        Self::at(128_000),
        Self::at(144_000),
        Self::at(160_000),
        Self::at(176_000),
        Self::at(192_000),
        Self::at(208_000),
        Self::at(224_000),
        Self::at(240_000),
        Self::at(256_000),
        Self::at(288_000),
        Self::Most,
    ];

    const fn at(pps: u32) -> Self {
        Self::Bursts { packets: 32, pps }
    }
}

/// The first card, and the packet it sends.
pub struct Generator {
    port: Port,
    packet: Vec<u8>,
}

impl Generator {
    /// Opens the first card, which is bound to vfio-pci.
    pub fn open(cards: &Cards) -> Result<Self> {
        let options = PortOptions {
            direction: Direction::Tx,
            ..PortOptions::default()
        };
        let mut port = port::open(&cards.vfio(0), &options)?;
        let since = Instant::now();
        while port.control.link_is_up() == Some(false) {
            ensure!(since.elapsed() < LINK_LIMIT, "the generator has no link");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self {
            port,
            packet: Vec::new(),
        })
    }

    /// Sets the destination of its packets.
    pub fn address(&mut self, destination_mac: [u8; 6]) {
        let plan = Udp {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac,
            addresses: Addresses::V4([10, 77, 0, 1].into(), DESTINATION.into()),
            source_port: 4000,
            destination_port: PORT,
            flow_count: 1,
            vlan: None,
        };
        self.packet = plan.build(0, LEN);
    }

    /// Sends this many packets.
    pub fn put(&mut self, count: usize) -> Result<()> {
        let queue = self.port.tx.first_mut().context("no queue to send on")?;
        let (mut left, since) = (count, Instant::now());
        while left > 0 {
            let mut batch = queue.reserve(left.min(BATCH))?;
            let before = left;
            while left > 0 && batch.write(&self.packet) {
                left -= 1;
            }
            batch.submit()?;
            queue.flush()?;
            if left == before {
                queue.wait(false, Duration::from_millis(1))?;
                ensure!(
                    since.elapsed() < LINK_LIMIT,
                    "the generator's card is stuck"
                );
            }
        }
        Ok(())
    }

    /// Sends a load for this long; returns the number of packets.
    pub fn run(&mut self, load: Load, duration: Duration) -> Result<u64> {
        let start = Instant::now();
        let mut sent = 0;
        match load {
            Load::Nothing => std::thread::sleep(duration),
            Load::Bursts { packets, pps } => {
                let tick = Duration::from_secs_f64(packets as f64 / f64::from(pps));
                let mut due = Duration::ZERO;
                while due < duration && start.elapsed() < duration {
                    self.put(packets)?;
                    sent += packets as u64;
                    due += tick;
                    std::thread::sleep(due.saturating_sub(start.elapsed()));
                }
            }
            Load::Most => {
                while start.elapsed() < duration {
                    self.put(BATCH)?;
                    sent += BATCH as u64;
                }
            }
        }
        Ok(sent)
    }
}
