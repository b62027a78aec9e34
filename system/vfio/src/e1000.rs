//! e1000: Intel's 82540EM and its relatives (82540EP, 82545, 82546 with copper), the card of the
//! zero-copy paper: one queue of legacy descriptors in each direction, one interrupt pin.
//!
//! Sections are those of Intel's "PCI/PCI-X Family of Gigabit Ethernet Controllers Software
//! Developer's Manual" (317453). Read [`E1000::start`] alongside chapter 14, then [`rx`] and [`tx`]
//! alongside chapter 3.

#[cfg(any(test, feature = "testing"))]
mod model;
mod registers;
mod rx;
mod statistic;
#[cfg(test)]
mod tests;
mod tx;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sys::{Error, ErrorKind, Result};

#[cfg(any(test, feature = "testing"))]
pub use self::model::E1000Model;
use self::registers as reg;
use self::rx::E1000Rx;
use self::statistic::Statistic;
use self::tx::E1000Tx;
use super::dma::PoolDma;
use super::driver::{
    CardCounters, Driver, Function, Health, Limits, LinkState, QueueCounters, Queues, REVIVE,
    Settings,
};
use super::intel::RxParts;
use super::registers::Registers;

/// Minimum packet length that the card pads (13.4.33, PSP).
const PACKET_LEN_MIN: u32 = 17;
/// Maximum packet length: jumbo frames of 9216 bytes with a tagged header. The card supports 16
/// KiB, but its memory would then have to be divided differently between the directions.
const PACKET_LEN_MAX: u32 = 9216 + 18;
/// Maximum packet length without RCTL.LPE, less the frame check sequence (13.4.22).
const PACKET_LEN_USUAL: u32 = 1518;

/// Number of polls of a register for a change that takes milliseconds, 10 µs apart.
const LOOKS: u32 = 5_000;
/// Number of polls for the PHY's response, 10 µs apart: an access takes 64 µs.
const PHY_LOOKS: u32 = 100;
/// 14.3: after a reset the card reads its EEPROM, and responds to nothing else meanwhile.
const AFTER_RESET: Duration = Duration::from_millis(5);
/// Time for operations in progress in the card when a direction is disabled.
const AFTER_STOP: Duration = Duration::from_millis(1);

/// The card.
pub struct E1000<F: Function> {
    function: F,
    registers: F::Registers,
    mac: [u8; 6],
    counters: CardCounters,
    missed: Statistic,
    /// Error counters, in the order of [`reg::ERRORS`].
    errors: Vec<Statistic>,
    running: bool,
    /// A ring's length register and the length written to it, to detect a reset.
    mark: (u32, u32),
}

/// Whether a ring still has the length written to it: a reset makes it 0 (13.4.27).
fn health(registers: &impl Registers, length: u32, ring_len: u32) -> Health {
    match registers.read32(length) {
        u32::MAX => Health::Gone,
        len if len == 16 * ring_len => Health::Running,
        _ => Health::Reset,
    }
}

/// The station address: the first receive address (13.5.2), which the card loads from its EEPROM
/// after a reset, or the EEPROM itself (5.6.1: the first three words).
fn read_mac(registers: &impl Registers) -> Result<[u8; 6]> {
    let (low, high) = (registers.read32(reg::RAL), registers.read32(reg::RAH));
    if high & reg::RAH_AV != 0 && high != u32::MAX {
        let [a, b, c, d] = low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        return Ok([a, b, c, d, e, f]);
    }
    let mut mac = [0; 6];
    for (word, place) in mac.chunks_exact_mut(2).enumerate() {
        let ask = (word as u32) << reg::EERD_ADDRESS_SHIFT | reg::EERD_START;
        registers.write32(reg::EERD, ask);
        let done = |value| value & reg::EERD_DONE != 0;
        if !registers.wait32(reg::EERD, LOOKS, done) {
            let why = "its EEPROM does not respond";
            let what = "read the address of an e1000";
            return Err(Error::new(ErrorKind::Io, what, why).with_hint(REVIVE));
        }
        let value = registers.read32(reg::EERD) >> reg::EERD_DATA_SHIFT;
        place.copy_from_slice(&(value as u16).to_le_bytes());
    }
    Ok(mac)
}

impl<F: Function> E1000<F> {
    /// Flushes posted writes: a read waits until they are done (14.3).
    fn flush(&self) -> u32 {
        self.registers.read32(reg::STATUS)
    }

    /// Disables interrupts and packets (14.3), as required before a reset.
    fn quiet(&self) {
        let registers = &self.registers;
        registers.write32(reg::IMC, u32::MAX);
        registers.write32(reg::RCTL, 0);
        registers.write32(reg::TCTL, reg::TCTL_PSP);
        self.flush();
        thread::sleep(AFTER_STOP);
    }

    /// Resets the card (13.4.1, RST). Every relevant register is written afterwards anyway: on some
    /// models of this card a reset does nothing. (The kernel's driver writes the bit through the
    /// I/O BAR, for those of the family that cannot respond to a 64-bit write; this is a 32-bit
    /// one.)
    fn reset(&self) -> Result<()> {
        self.quiet();
        self.registers.change32(reg::CTRL, 0, reg::CTRL_RST);
        thread::sleep(AFTER_RESET);
        let done = |value| value & reg::CTRL_RST == 0;
        if !self.registers.wait32(reg::CTRL, LOOKS, done) {
            let why = "it does not complete its reset";
            return Err(Error::new(ErrorKind::Io, "reset an e1000", why).with_hint(REVIVE));
        }
        self.registers.write32(reg::IMC, u32::MAX);
        self.registers.read32(reg::ICR);
        Ok(())
    }

    /// Wakes the PHY: a reset does not affect it, and the kernel's driver powers it down when its
    /// interface goes down. It then negotiates by itself. If it does not respond, the link appears
    /// as down, which is no reason not to open the card.
    fn wake_phy(&self) {
        let register = reg::PHY_CONTROL << reg::MDIC_REGISTER_SHIFT;
        if let Some(control) = self.phy(reg::MDIC_READ | register)
            && control & reg::PHY_POWER_DOWN != 0
        {
            let awake = u32::from(control & !reg::PHY_POWER_DOWN);
            self.phy(reg::MDIC_WRITE | register | awake);
        }
    }

    /// One access to the PHY (13.4.3); returns its value.
    fn phy(&self, what: u32) -> Option<u16> {
        let registers = &self.registers;
        registers.write32(reg::MDIC, reg::MDIC_PHY | what);
        let done = |mdic| mdic & reg::MDIC_READY != 0;
        if !registers.wait32(reg::MDIC, PHY_LOOKS, done) {
            return None;
        }
        let mdic = registers.read32(reg::MDIC);
        (mdic & reg::MDIC_ERROR == 0).then_some(mdic as u16)
    }

    /// Sets up the link as negotiated by the PHY, without flow control, with VLAN tags removed from
    /// packets (14.3, chapter 9). A card that sent pause frames would hold up others when this host
    /// is slow. Tags are left in place if there is no room before a packet to restore one.
    fn set_up_link(&self, settings: &Settings) {
        let mut clear = reg::CTRL_FRCSPD | reg::CTRL_FRCDPX | reg::CTRL_RFCE | reg::CTRL_TFCE;
        let mut set = reg::CTRL_SLU | reg::CTRL_ASDE | reg::CTRL_FD;
        match rx::headroom(settings.frame_len) {
            0..4 => clear |= reg::CTRL_VME,
            _ => set |= reg::CTRL_VME,
        }
        self.registers.change32(reg::CTRL, clear, set);
        self.registers.write32(reg::VET, 0x8100);
        self.wake_phy();
    }

    /// Sets up the receive filter (14.4): one address, no multicast table, the modes.
    fn set_up_filter(&self) {
        let [a, b, c, d, e, f] = self.mac;
        let registers = &self.registers;
        registers.write32(reg::RAL, u32::from_le_bytes([a, b, c, d]));
        registers.write32(reg::RAH, u32::from_le_bytes([e, f, 0, 0]) | reg::RAH_AV);
        for index in 1..reg::RA_COUNT {
            registers.write32(reg::RAL + 8 * index, 0);
            registers.write32(reg::RAH + 8 * index, 0);
        }
        for index in 0..reg::MTA_COUNT {
            registers.write32(reg::MTA + 4 * index, 0);
        }
    }

    /// Receive initialization (14.4); afterwards the ring is empty and the receiver enabled.
    fn set_up_rx(&self, iova: u64, settings: &Settings) {
        let registers = &self.registers;
        registers.write32(reg::RDBAL, iova as u32);
        registers.write32(reg::RDBAH, (iova >> 32) as u32);
        registers.write32(reg::RDLEN, 16 * settings.ring_len);
        registers.write32(reg::RDH, 0);
        registers.write32(reg::RDT, 0);
        // 13.4.30: immediate interrupts; polling has none anyway.
        registers.write32(reg::RDTR, 0);
        registers.write32(reg::RADV, 0);
        registers.write32(reg::RXCSUM, reg::RXCSUM_IPOFL | reg::RXCSUM_TUOFL);
        let mut mode = reg::RCTL_EN | reg::RCTL_BAM | reg::RCTL_SECRC;
        if settings.promiscuous {
            mode |= reg::RCTL_UPE;
        }
        if settings.multicast || settings.promiscuous {
            mode |= reg::RCTL_MPE;
        }
        if settings.packet_len_max > PACKET_LEN_USUAL {
            mode |= reg::RCTL_LPE;
        }
        registers.write32(reg::RCTL, mode);
    }

    /// Transmit initialization (14.5).
    fn set_up_tx(&self, iova: u64, settings: &Settings) {
        let registers = &self.registers;
        registers.write32(reg::TDBAL, iova as u32);
        registers.write32(reg::TDBAH, (iova >> 32) as u32);
        registers.write32(reg::TDLEN, 16 * settings.ring_len);
        registers.write32(reg::TDH, 0);
        registers.write32(reg::TDT, 0);
        registers.write32(reg::TIDV, 0);
        registers.write32(reg::TADV, 0);
        registers.write32(reg::TIPG, reg::TIPG_COPPER);
        let mode = reg::TCTL_EN | reg::TCTL_PSP | reg::TCTL_COLLISIONS | reg::TCTL_RTLC;
        registers.write32(reg::TCTL, mode);
    }

    /// Adds what the statistics registers counted since the last read, which clears them (13.7).
    fn count(&mut self) {
        let read = |offset| match self.registers.read32(offset) {
            u32::MAX => 0,
            count => u64::from(count),
        };
        let counters = &mut self.counters;
        *counters.received.get_or_insert(0) += read(reg::GPRC);
        *counters.sent.get_or_insert(0) += read(reg::GPTC);
        counters.missed += self.missed.more(&self.registers);
        for ((_, sum), register) in counters.errors.iter_mut().zip(&mut self.errors) {
            *sum += register.more(&self.registers);
        }
    }
}

impl<F: Function> Driver for E1000<F> {
    type Function = F;
    type Rx = E1000Rx<F::Registers>;
    type Tx = E1000Tx<F::Registers>;

    fn open(function: F) -> Result<Self> {
        let registers = function.bar(0)?;
        if registers.read32(reg::STATUS) == u32::MAX {
            let why = "it does not answer";
            return Err(Error::new(ErrorKind::Gone, "open an e1000", why).with_hint(REVIVE));
        }
        let mac = read_mac(&registers)?;
        Ok(Self {
            function,
            registers,
            mac,
            counters: CardCounters::default(),
            missed: Statistic::new(reg::MPC),
            errors: reg::ERRORS
                .iter()
                .map(|&(_, at)| Statistic::new(at))
                .collect(),
            running: false,
            mark: (reg::RDLEN, 0),
        })
    }

    fn function(&self) -> &F {
        &self.function
    }

    fn limits(&self) -> Limits {
        Limits {
            rx_count: 1,
            tx_count: 1,
            // 13.4.27: a multiple of 8 entries.
            ring_len_min: 32,
            ring_len_max: 4096,
            packet_len_min: PACKET_LEN_MIN,
            packet_len_max: PACKET_LEN_MAX,
            segments_max: 16,
            rss_hash: false,
            vlan: true,
        }
    }

    fn name(&self) -> &'static str {
        "e1000"
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn start(
        &mut self,
        settings: &Settings,
        frames: &Arc<PoolDma>,
        _interrupt_count: u32,
    ) -> Result<Queues<E1000Rx<F::Registers>, E1000Tx<F::Registers>>> {
        let len = settings.ring_len;
        let fits = settings.first == 0 && settings.rx_count <= 1 && settings.tx_count <= 1;
        if !fits || !len.is_power_of_two() || !(32..=4096).contains(&len) {
            let why = format!(
                "it has one queue in each direction, of 32 to 4096 entries, not {settings:?}"
            );
            return Err(Error::new(ErrorKind::Unsupported, "start an e1000", why)
                .with_hint("omit the queue number and queues=, and use a shorter ring="));
        }
        let count = len as usize;
        let area = Arc::new(self.function.dma().allocate(32 * count)?);
        let (rx_ring, tx_ring) = (area.array(0, count), area.array(16 * count, count));
        self.reset()?;
        self.function.set_bus_master(true)?;
        self.set_up_link(settings);
        self.set_up_filter();
        self.counters.errors = reg::ERRORS.iter().map(|&(name, _)| (name, 0)).collect();
        // Counts from before are discarded.
        self.count();
        self.counters = CardCounters {
            errors: reg::ERRORS.iter().map(|&(name, _)| (name, 0)).collect(),
            ..CardCounters::default()
        };
        let mut queues = Queues {
            rx: Vec::new(),
            tx: Vec::new(),
        };
        if settings.tx_count != 0 {
            self.set_up_tx(tx_ring.iova(), settings);
            let registers = self.registers.clone();
            let queue = E1000Tx::new(registers, tx::TxQueue, tx_ring, frames.clone());
            queues.tx.push(queue);
        }
        if settings.rx_count != 0 {
            self.set_up_rx(rx_ring.iova(), settings);
            queues.rx.push(E1000Rx::new(RxParts {
                registers: self.registers.clone(),
                format: rx::RxQueue,
                ring: rx_ring,
                frames: frames.clone(),
                headroom: rx::headroom(settings.frame_len),
                buffer_len: rx::BUFFER_LEN,
                packet_len_max: settings.packet_len_max,
            }));
        }
        self.running = true;
        self.mark = match settings.rx_count {
            0 => (reg::TDLEN, len),
            _ => (reg::RDLEN, len),
        };
        if self.flush() == u32::MAX {
            self.shut_down();
            let why = "it stopped responding";
            return Err(Error::new(ErrorKind::Gone, "start an e1000", why).with_hint(REVIVE));
        }
        Ok(queues)
    }

    fn link(&mut self) -> LinkState {
        let status = self.flush();
        if status == u32::MAX {
            return LinkState::default();
        }
        LinkState {
            up: status & reg::STATUS_LU != 0,
            speed_mbps: [10, 100, 1000, 1000][(status >> reg::STATUS_SPEED_SHIFT & 3) as usize],
            full_duplex: status & reg::STATUS_FD != 0,
        }
    }

    fn counters(&mut self) -> CardCounters {
        if self.running {
            self.count();
        }
        // There is only one queue, which received everything that the card did.
        let queue = QueueCounters {
            received: self.counters.received,
            no_descriptor: 0,
        };
        CardCounters {
            rx: vec![queue],
            ..self.counters.clone()
        }
    }

    fn health(&mut self) -> Health {
        let (length, ring_len) = self.mark;
        health(&self.registers, length, ring_len)
    }

    fn stop_intake(&mut self) -> Result<()> {
        // 13.4.22: a packet in progress is still received.
        self.registers.change32(reg::RCTL, reg::RCTL_EN, 0);
        self.flush();
        thread::sleep(AFTER_STOP);
        Ok(())
    }

    fn shut_down(&mut self) -> bool {
        let mut is_reset = false;
        if std::mem::take(&mut self.running) {
            self.count();
            // If the card does not respond, the bus still does.
            is_reset = self.reset().is_ok();
        }
        self.function.set_bus_master(false).is_ok() || is_reset
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("descriptors", "legacy".into())]
    }
}
