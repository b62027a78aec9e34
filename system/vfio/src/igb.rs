//! The Intel 82576 and similar cards (datasheet 82576EB, revision 2.87): 16 queues in each
//! direction, hashing over them, checksums and VLAN tags reported with the packet.
//!
//! Read `registers.rs` alongside the datasheet, then `start` here (§4.5), `rx.rs` (§7.1), `tx.rs`
//! (§7.2).

#[cfg(any(test, feature = "testing"))]
pub mod model;
mod phy;
#[allow(missing_docs, reason = "they are named as in the datasheet")]
pub mod registers;
mod rx;
mod tx;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sys::{Error, ErrorKind, Result};

#[cfg(any(test, feature = "testing"))]
pub use self::model::IgbModel;
use self::registers as reg;
use self::rx::IgbRx;
use self::tx::IgbTx;
use super::dma::PoolDma;
use super::driver::{
    CardCounters, Driver, Function, Health, Limits, LinkState, QueueCounters, Queues, REVIVE,
    Settings,
};
use super::registers::Registers;

/// Number of queues of either kind.
const QUEUES: u32 = 16;
/// Number of vectors for queues: 24 of the card's 25 (§7.3.3).
const VECTORS_MAX: u32 = 24;
/// Maximum packet length without the check sequence: §8.10.16 gives 9.5 KiB (0x2600) with it.
pub const PACKET_LEN_MAX: u32 = 0x2600 - 4;
/// Number of polls of a changing register, 10 µs apart: 20 ms.
const LOOKS: u32 = 2000;

/// A card of this family.
pub struct Igb<F: Function> {
    regs: F::Registers,
    function: F,
    mac: [u8; 6],
    /// Numbers of the receiving queues in use; the sending ones follow.
    rx_queues: std::ops::Range<u32>,
    tx_queues: std::ops::Range<u32>,
    /// Sums of the counters so far: reading clears them.
    counters: CardCounters,
    /// The same for GPRC.
    good: u64,
    /// Number of times that a queue's drop counter was found saturated.
    drop_counts_full: u64,
    /// Whether it is running, and must be shut down.
    started: bool,
}

/// The queues of a started card.
type Started<F> = Queues<IgbRx<<F as Function>::Registers>, IgbTx<<F as Function>::Registers>>;

impl<F: Function> Igb<F> {
    /// §4.5.3, §4.5.4: interrupts off, reset, interrupts off again.
    fn reset(&self) -> Result<()> {
        let regs = &self.regs;
        regs.write32(reg::IMC, u32::MAX);
        regs.write32(reg::EIMC, u32::MAX);
        regs.change32(reg::CTRL, 0, reg::CTRL_RST);
        // §4.2.1.6.1: the card must not be accessed for 1 ms.
        thread::sleep(Duration::from_millis(2));
        if !regs.wait32(reg::CTRL, LOOKS, |ctrl| ctrl & reg::CTRL_RST == 0) {
            let why = "it does not complete its reset";
            return Err(Error::new(ErrorKind::Gone, "start the card", why).with_hint(REVIVE));
        }
        regs.write32(reg::IMC, u32::MAX);
        regs.write32(reg::EIMC, u32::MAX);
        regs.read32(reg::ICR);
        Ok(())
    }

    /// §4.5.9: common setup of all receiving queues, still disabled.
    fn prepare_receive(&self, settings: &Settings) {
        let regs = &self.regs;
        for word in 0..reg::MTA_COUNT {
            regs.write32(reg::MTA + 4 * word, 0);
        }
        regs.write32(reg::RLPML, settings.packet_len_max + 4);
        regs.write32(
            reg::RXCSUM,
            reg::RXCSUM_IP | reg::RXCSUM_TRANSPORT | reg::RXCSUM_HASH,
        );
        // §7.1.2.10: the hash first, then its redirection table.
        for word in 0..reg::RSSRK_COUNT {
            regs.write32(reg::RSSRK + 4 * word, reg::SYMMETRIC_KEY);
        }
        for word in 0..reg::RETA_COUNT {
            let entry = |at: u32| settings.first + (4 * word + at) % settings.rx_count.max(1);
            let value = entry(0) | entry(1) << 8 | entry(2) << 16 | entry(3) << 24;
            regs.write32(reg::RETA + 4 * word, value);
        }
        regs.write32(reg::MRQC, reg::MRQC_RSS | reg::MRQC_FIELDS);
        let mut rctl = reg::RCTL_LONG_PACKETS | reg::RCTL_ACCEPT_BROADCAST | reg::RCTL_STRIP_CRC;
        if settings.promiscuous {
            rctl |= reg::RCTL_UNICAST_PROMISCUOUS | reg::RCTL_MULTICAST_PROMISCUOUS;
        }
        if settings.multicast {
            rctl |= reg::RCTL_MULTICAST_PROMISCUOUS;
        }
        regs.write32(reg::RCTL, rctl);
    }

    /// §7.3.3, §8.8.13: a vector for each receiving queue, cleared by its message.
    fn prepare_interrupts(&self, settings: &Settings, interrupt_count: u32) {
        let regs = &self.regs;
        let count = interrupt_count.min(VECTORS_MAX).min(settings.rx_count);
        if count == 0 {
            return;
        }
        regs.write32(reg::GPIE, reg::GPIE_MSIX | reg::GPIE_PBA);
        for vector in 0..count {
            let queue = settings.first + vector;
            let shift = if queue < 8 { 0 } else { 16 };
            regs.change32(
                reg::ivar(queue % 8),
                0xff << shift,
                (vector | reg::IVAR_VALID) << shift,
            );
        }
        regs.write32(reg::EIAC, (1 << count) - 1);
    }

    /// Starts the queues. A queue's ring is added to `queues` before the card is given it.
    fn start_queues(
        &self,
        settings: &Settings,
        frames: &Arc<PoolDma>,
        interrupt_count: u32,
        queues: &mut Started<F>,
    ) -> Result<()> {
        let regs = &self.regs;
        for (queue, at) in self.rx_queues.clone().zip(0..) {
            let vector = (at < interrupt_count.min(VECTORS_MAX)).then_some(at);
            let made = rx::prepare(regs, &self.function, (queue, vector), settings, frames)?;
            queues.rx.push(made);
            // The tail can be moved only when the queue is enabled.
            let control = reg::rx(queue, reg::RXDCTL);
            enable_queue(regs, control, reg::RXDCTL_THRESHOLDS)?;
        }
        // §4.5.10
        for queue in self.tx_queues.clone() {
            let made = tx::prepare(regs, &self.function, queue, settings, frames)?;
            queues.tx.push(made);
            let control = reg::tx(queue, reg::TXDCTL);
            enable_queue(regs, control, reg::TXDCTL_THRESHOLDS)?;
        }
        Ok(())
    }

    /// Reads and thereby clears a counter.
    fn take(&self, register: u32) -> u64 {
        // A removed card has counted nothing.
        match self.regs.read32(register) {
            u32::MAX => 0,
            count => count.into(),
        }
    }
}

impl<F: Function> Driver for Igb<F> {
    type Function = F;
    type Rx = IgbRx<F::Registers>;
    type Tx = IgbTx<F::Registers>;

    fn open(function: F) -> Result<Self> {
        let regs = function.bar(0)?;
        // §4.4: filled from the EEPROM after a reset.
        let (low, high) = (regs.read32(reg::RAL), regs.read32(reg::RAH));
        let [a, b, c, d] = low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        Ok(Self {
            regs,
            function,
            mac: [a, b, c, d, e, f],
            rx_queues: 0..0,
            tx_queues: 0..0,
            counters: CardCounters::default(),
            good: 0,
            drop_counts_full: 0,
            started: false,
        })
    }

    fn function(&self) -> &F {
        &self.function
    }

    fn limits(&self) -> Limits {
        Limits {
            rx_count: QUEUES,
            tx_count: QUEUES,
            // §8.10.7: a multiple of 128 bytes; §7.1.5: at most 64 Ki of them, of which no more
            // than 4 Ki are useful.
            ring_len_min: 8,
            ring_len_max: 4096,
            packet_len_min: 17,
            packet_len_max: PACKET_LEN_MAX,
            // §7.2.1.1: up to 40 for one packet.
            segments_max: 40,
            rss_hash: true,
            vlan: true,
        }
    }

    fn name(&self) -> &'static str {
        "Intel 82576 (igb)"
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// §4.5, in its order.
    fn start(
        &mut self,
        settings: &Settings,
        frames: &Arc<PoolDma>,
        interrupt_count: u32,
    ) -> Result<Queues<Self::Rx, Self::Tx>> {
        self.started = true;
        self.reset()?;
        // Not earlier: what ran before the reset may have had rings elsewhere.
        self.function.set_bus_master(true)?;
        let regs = &self.regs;
        regs.change32(reg::CTRL_EXT, 0, reg::CTRL_EXT_DRIVER_LOADED);
        // §4.5.7: the PHY determines speed and duplex, and the card uses them. Tags are left in
        // packets if there is no room before a packet to restore one.
        let mut clear = reg::CTRL_MASTER_DISABLE;
        let mut set = reg::CTRL_SLU;
        match rx::headroom(settings.frame_len) {
            0..4 => clear |= reg::CTRL_VME,
            _ => set |= reg::CTRL_VME,
        }
        regs.change32(reg::CTRL, clear, set);
        phy::negotiate(regs);
        // §4.5.8
        for register in reg::STATISTICS.step_by(4) {
            regs.read32(register);
        }
        self.prepare_receive(settings);
        self.prepare_interrupts(settings, interrupt_count);
        self.rx_queues = settings.first..settings.first + settings.rx_count;
        self.tx_queues = settings.first..settings.first + settings.tx_count;
        let mut queues = Queues {
            rx: Vec::new(),
            tx: Vec::new(),
        };
        if let Err(error) = self.start_queues(settings, frames, interrupt_count, &mut queues) {
            // Before the rings are freed.
            self.shut_down();
            return Err(error);
        }
        let regs = &self.regs;
        if settings.tx_count != 0 {
            let tctl = reg::TCTL_ENABLE | reg::TCTL_PAD | reg::TCTL_COLLISIONS;
            regs.write32(reg::TCTL, tctl);
        }
        // §4.5.9: last.
        if settings.rx_count != 0 {
            regs.change32(reg::RCTL, 0, reg::RCTL_ENABLE);
        }
        self.counters = CardCounters {
            received: Some(0),
            sent: Some(0),
            errors: reg::ERRORS.iter().map(|&(name, _)| (name, 0)).collect(),
            rx: vec![QueueCounters::default(); settings.rx_count as usize],
            ..CardCounters::default()
        };
        Ok(queues)
    }

    fn link(&mut self) -> LinkState {
        let status = self.regs.read32(reg::STATUS);
        if status == u32::MAX {
            return LinkState::default();
        }
        LinkState {
            up: status & reg::STATUS_LINK_UP != 0,
            speed_mbps: [10, 100, 1000, 1000][(status >> reg::STATUS_SPEED_SHIFT & 3) as usize],
            full_duplex: status & reg::STATUS_FULL_DUPLEX != 0,
        }
    }

    /// GPRC counts before the queues, RQDPC after: a packet for which a queue had no descriptor is
    /// in both (datasheet of the I210, of the same family, §7.9.5 with its figure; in the 82576's
    /// §8.18 only MPC is excluded from GPRC). QEMU's card counts such a packet nowhere.
    fn counters(&mut self) -> CardCounters {
        // Lost packets first: those lost meanwhile appear as missing for a moment.
        let dropped: Vec<u64> = self
            .rx_queues
            .clone()
            .map(|queue| self.take(reg::rx(queue, reg::RQDPC)) & reg::RQDPC_MAX)
            .collect();
        let (good, sent, missed) = (
            self.take(reg::GPRC),
            self.take(reg::GPTC),
            self.take(reg::MPC),
        );
        let errors: Vec<u64> = reg::ERRORS.iter().map(|&(_, at)| self.take(at)).collect();
        let full = dropped.iter().filter(|&&count| count == reg::RQDPC_MAX);
        self.drop_counts_full += full.count() as u64;
        self.good += good;
        let sum = &mut self.counters;
        sum.sent = Some(sum.sent.unwrap_or(0) + sent);
        sum.missed += missed;
        for ((_, sum), more) in sum.errors.iter_mut().zip(errors) {
            *sum += more;
        }
        for (sum, more) in sum.rx.iter_mut().zip(dropped) {
            sum.no_descriptor += more;
        }
        let lost: u64 = sum.rx.iter().map(|queue| queue.no_descriptor).sum();
        sum.received = Some(self.good.saturating_sub(lost));
        sum.lost_more = self.drop_counts_full != 0;
        sum.clone()
    }

    fn warnings(&self) -> Vec<(&'static str, String)> {
        match self.drop_counts_full {
            0 => Vec::new(),
            times => vec![(
                "drops",
                format!(
                    "RQDPC, which saturates at {}, was full {times} times: from then on drops \
                     are the packets that only GPRC counts",
                    reg::RQDPC_MAX
                ),
            )],
        }
    }

    fn health(&mut self) -> Health {
        let queues = self
            .rx_queues
            .clone()
            .map(|queue| reg::rx(queue, reg::RDLEN));
        let queues = queues.chain(
            self.tx_queues
                .clone()
                .map(|queue| reg::tx(queue, reg::TDLEN)),
        );
        for register in queues {
            match queue_health(self.regs.read32(register)) {
                Health::Running => {}
                other => return other,
            }
        }
        Health::Running
    }

    fn stop_intake(&mut self) -> Result<()> {
        self.regs.change32(reg::RCTL, reg::RCTL_ENABLE, 0);
        // §8.10.1: a packet in progress is finished; the longest takes 77 µs at 1 Gbit/s. The read
        // after the pause returns after all writes to memory.
        thread::sleep(Duration::from_millis(1));
        self.regs.read32(reg::STATUS);
        Ok(())
    }

    /// §5.2.3.3: no new requests, wait for the last ones, reset, disable bus mastering.
    fn shut_down(&mut self) -> bool {
        let mut is_quiet = false;
        if std::mem::take(&mut self.started) {
            let regs = &self.regs;
            regs.write32(reg::EIMC, u32::MAX);
            regs.write32(reg::IMC, u32::MAX);
            regs.change32(reg::RCTL, reg::RCTL_ENABLE, 0);
            regs.change32(reg::TCTL, reg::TCTL_ENABLE, 0);
            regs.change32(reg::CTRL, 0, reg::CTRL_MASTER_DISABLE);
            is_quiet = regs.wait32(reg::STATUS, LOOKS, |status| {
                status & reg::STATUS_MASTER_ENABLED == 0
            });
            regs.change32(reg::CTRL_EXT, reg::CTRL_EXT_DRIVER_LOADED, 0);
            regs.change32(reg::CTRL, 0, reg::CTRL_RST);
            thread::sleep(Duration::from_millis(2));
        }
        // Bus mastering is disabled in any case, even if the card ignored the above.
        self.function.set_bus_master(false).is_ok() || is_quiet
    }
}

/// RDLEN or TDLEN of a queue with a ring: a reset clears it. (A reset enables queue 0, so its
/// enable bit cannot be used.)
fn queue_health(len: u32) -> Health {
    match len {
        u32::MAX => Health::Gone,
        0 => Health::Reset,
        _ => Health::Running,
    }
}

/// Enables a queue and waits until it is (§4.5.9, §4.5.10).
fn enable_queue<R: Registers>(regs: &R, register: u32, thresholds: u32) -> Result<()> {
    regs.write32(register, thresholds | reg::QUEUE_ENABLE);
    if regs.wait32(register, LOOKS, |dctl| dctl & reg::QUEUE_ENABLE != 0) {
        return Ok(());
    }
    let why = "a queue does not become enabled";
    Err(Error::new(ErrorKind::Gone, "start the card", why).with_hint(REVIVE))
}
