//! A model of the 82576, as far as the driver uses it; written from the datasheet, not from the
//! driver.

mod steer;

use std::collections::VecDeque;

use self::steer::{checksums, hash_input, toeplitz};
use super::registers as reg;
use crate::model::{Fault, Model, ModelEvents, ModelMemory, ring_event};

/// Number of words in BAR 0.
const WORDS: usize = 0x2_0000 / 4;
/// Size of the card's own memory for received packets (RXPBS after a reset).
const PACKET_BUFFER_LEN: usize = 64 << 10;
/// Maximum number of sent packets not fetched yet; beyond that the sender stops.
const SENT_MAX: usize = 4096;
/// Maximum number of logged writes.
const LOG_MAX: usize = 10_000;
/// Length of the frame check sequence.
const CRC_LEN: u32 = 4;

/// Represents the bus mastering bit of the configuration space in the log.
pub const BUS_MASTER: u32 = u32::MAX;

/// The card.
pub struct IgbModel {
    memory: ModelMemory,
    events: ModelEvents,
    registers: Vec<u32>,
    /// All writes in order: offset and value.
    pub log: Vec<(u32, u32)>,
    /// Faults to inject, in order.
    pub faults: VecDeque<Fault>,
    link: bool,
    /// Whether the PHY was set to negotiate since the reset.
    negotiated: bool,
    bus_master: bool,
    /// Whether it is removed or dead.
    gone: bool,
    stopped: bool,
    /// Whether it ignores all commands, bus mastering included.
    pub is_deaf: bool,
    /// A receiving queue that cannot be enabled.
    pub broken_queue: Option<u32>,
    /// Packets in the card's own memory, waiting for a descriptor.
    waiting: VecDeque<Vec<u8>>,
    waiting_len: usize,
    sent: VecDeque<Vec<u8>>,
    /// Parts of the packet being gathered, by sending queue.
    gathered: [Vec<u8>; 16],
    mac: [u8; 6],
}

impl IgbModel {
    /// Creates a card with this address, after power-on.
    pub fn new(memory: ModelMemory, events: ModelEvents, mac: [u8; 6]) -> Self {
        let mut model = Self {
            memory,
            events,
            registers: vec![0; WORDS],
            log: Vec::with_capacity(LOG_MAX),
            faults: VecDeque::new(),
            link: true,
            negotiated: false,
            bus_master: false,
            gone: false,
            stopped: false,
            is_deaf: false,
            broken_queue: None,
            waiting: VecDeque::new(),
            waiting_len: 0,
            sent: VecDeque::new(),
            gathered: Default::default(),
            mac,
        };
        model.power_on();
        model
    }

    fn power_on(&mut self) {
        self.registers.fill(0);
        self.negotiated = false;
        // Reset values as in the registers' sections. The first queues are enabled (§8.10.9,
        // §8.12.15), one descriptor is written back at a time, and the queues after the first drop
        // packets without a descriptor (§8.10.2); headers have 256 bytes.
        for queue in 0..16 {
            self.set(reg::rx(queue, reg::RXDCTL), 1 << 16);
            self.set(
                reg::rx(queue, reg::SRRCTL),
                1 << 10 | u32::from(queue != 0) << 31,
            );
        }
        self.set(reg::rx(0, reg::RXDCTL), reg::QUEUE_ENABLE | 1 << 16);
        self.set(reg::tx(0, reg::TXDCTL), reg::QUEUE_ENABLE);
        // §8.2.1: full duplex, 1000 Mbit/s, wakes from D3. §8.12.1: the recommended padding and
        // collision fields. §8.10.15, §8.10.16: checksums are checked, the maximum is 9.5 KiB.
        self.set(reg::CTRL, 1 << 0 | 2 << 8 | 1 << 20);
        self.set(
            reg::TCTL,
            reg::TCTL_PAD | reg::TCTL_COLLISIONS | 1 << 26 | 0xa << 28,
        );
        self.set(reg::RXCSUM, reg::RXCSUM_IP | reg::RXCSUM_TRANSPORT);
        self.set(reg::RLPML, 0x2600);
        self.waiting.clear();
        self.waiting_len = 0;
        self.gathered = Default::default();
        let [a, b, c, d, e, f] = self.mac;
        self.set(reg::RAL, u32::from_le_bytes([a, b, c, d]));
        self.set(reg::RAH, u32::from_le_bytes([e, f, 0, 0]) | reg::RAH_VALID);
    }

    /// An enabled queue may fetch descriptors up to its reset.
    fn prefetch(&self) {
        for queue in 0..16 {
            let at = |register| self.get(reg::rx(queue, register));
            if at(reg::RXDCTL) & reg::QUEUE_ENABLE != 0 && at(reg::RDLEN) != 0 {
                let base = u64::from(at(reg::RDBAH)) << 32 | u64::from(at(reg::RDBAL));
                self.memory.load64(base);
            }
        }
    }

    /// A register without side effects.
    pub fn get(&self, offset: u32) -> u32 {
        self.registers[offset as usize / 4]
    }

    fn set(&mut self, offset: u32, value: u32) {
        self.registers[offset as usize / 4] = value;
    }

    /// Logs a write; the doorbells of a long run would fill the memory.
    fn note(&mut self, offset: u32, value: u32) {
        if self.log.len() < LOG_MAX {
            self.log.push((offset, value));
        }
    }

    /// Increments a counter. Counters saturate (§8.18); a queue's drop counter has 12 bits.
    fn count(&mut self, offset: u32) {
        let most = match is_drop_count(offset) {
            true => 0xfff,
            false => u32::MAX,
        };
        self.set(offset, self.get(offset).saturating_add(1).min(most));
    }

    fn status(&self) -> u32 {
        let up = self.link && self.negotiated && self.get(reg::CTRL) & reg::CTRL_SLU != 0;
        let master = self.get(reg::CTRL) & reg::CTRL_MASTER_DISABLE == 0;
        reg::STATUS_FULL_DUPLEX
            | (u32::from(up) * reg::STATUS_LINK_UP)
            | 2 << reg::STATUS_SPEED_SHIFT
            | (u32::from(master) * reg::STATUS_MASTER_ENABLED)
    }

    fn may_master(&self) -> bool {
        self.bus_master && self.get(reg::CTRL) & reg::CTRL_MASTER_DISABLE == 0 && !self.stopped
    }

    fn read_register(&mut self, offset: u32) -> u32 {
        let value = self.get(offset);
        match offset {
            reg::STATUS => self.status(),
            reg::SWSM => {
                self.set(reg::SWSM, value | reg::SWSM_DRIVERS);
                value
            }
            _ if offset == reg::ICR
                || is_drop_count(offset)
                || reg::STATISTICS.contains(&offset) =>
            {
                self.set(offset, 0);
                value
            }
            _ => value,
        }
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        if self.is_deaf {
            return;
        }
        self.note(offset, value);
        let broken = self.broken_queue.map(|queue| reg::rx(queue, reg::RXDCTL));
        match offset {
            _ if broken == Some(offset) => self.set(offset, value & !reg::QUEUE_ENABLE),
            reg::CTRL if value & reg::CTRL_RST != 0 => {
                self.prefetch();
                self.power_on();
            }
            reg::STATUS | reg::RDH => {}
            reg::MDIC => {
                // Requires the semaphore.
                let taken = self.get(reg::SW_FW_SYNC) & reg::SYNC_PHY != 0;
                let is_write = value & reg::MDIC_WRITE != 0;
                let control = value >> reg::MDIC_REGISTER_SHIFT & 0x1f == reg::PHY_CONTROL;
                if taken && is_write && control {
                    self.negotiated |= value & reg::PHY_RESTART != 0;
                }
                let failed = if taken { 0 } else { reg::MDIC_ERROR };
                self.set(reg::MDIC, value | reg::MDIC_READY | failed);
            }
            reg::EIMS => {
                let masks = self.get(reg::EIMS) | value;
                self.set(reg::EIMS, masks);
                // A pending cause interrupts when it is unmasked.
                self.interrupt(0);
            }
            reg::EIMC => self.set(reg::EIMS, self.get(reg::EIMS) & !value),
            reg::EICR => self.set(reg::EICR, self.get(reg::EICR) & !value),
            _ => self.set(offset, value),
        }
    }

    /// Adds causes and sends the messages of unmasked ones.
    fn interrupt(&mut self, causes: u32) {
        let all = self.get(reg::EICR) | causes;
        let out = all & self.get(reg::EIMS);
        self.set(reg::EICR, all & !(out & self.get(reg::EIAC)));
        for vector in (0..25).filter(|vector| out >> vector & 1 != 0) {
            ring_event(&self.events, vector);
        }
    }

    /// §7.1.2: the queue of a packet, its hash and the hash's type.
    fn steer(&self, packet: &[u8]) -> (u32, u32, u64) {
        if self.get(reg::MRQC) & 7 != reg::MRQC_RSS {
            return (0, 0, 0);
        }
        let Some((input, kind)) = hash_input(packet) else {
            return (self.get(reg::RETA) & 0xf, 0, 0);
        };
        let key: Vec<u8> = (0..reg::RSSRK_COUNT)
            .flat_map(|word| self.get(reg::RSSRK + 4 * word).to_le_bytes())
            .collect();
        let hash = toeplitz(&key, &input);
        let entry = self.get(reg::RETA + (hash & 0x7c));
        (entry >> (8 * (hash & 3)) & 0xf, hash, kind)
    }

    /// §7.1.1: whether the address filter accepts a packet.
    fn accepts(&self, packet: &[u8]) -> bool {
        let rctl = self.get(reg::RCTL);
        let is_multicast = packet[0] & 1 != 0;
        let is_broadcast = packet[..6] == [0xff; 6];
        packet[..6] == self.mac
            || !is_multicast && rctl & reg::RCTL_UNICAST_PROMISCUOUS != 0
            || is_multicast && rctl & reg::RCTL_MULTICAST_PROMISCUOUS != 0
            || is_broadcast && rctl & reg::RCTL_ACCEPT_BROADCAST != 0
    }

    /// Writes the oldest packet of the card's memory into the descriptors of its queue.
    fn deliver(&mut self) -> bool {
        let Some(packet) = self.waiting.pop_front() else {
            return false;
        };
        match self.write_packet(packet) {
            Ok(()) => true,
            Err(packet) => {
                self.waiting.push_front(packet);
                false
            }
        }
    }

    /// The VLAN tag to report in the descriptor and remove from the packet.
    fn tag_to_strip(&self, packet: &[u8]) -> Option<u16> {
        let strips = self.get(reg::CTRL) & reg::CTRL_VME != 0;
        let has_tag = packet.get(12..14) == Some(&[0x81, 0]);
        let tci = packet.get(14..16).filter(|_| strips && has_tag)?;
        Some(u16::from_be_bytes([tci[0], tci[1]]))
    }

    /// `Err` returns the packet: there is no descriptor, and it may wait.
    fn write_packet(&mut self, packet: Vec<u8>) -> Result<(), Vec<u8>> {
        let (queue, hash, kind) = self.steer(&packet);
        let at = |register| reg::rx(queue, register);
        if self.get(at(reg::RXDCTL)) & reg::QUEUE_ENABLE == 0 || !self.may_master() {
            self.waiting_len -= packet.len();
            return Ok(());
        }
        let srrctl = self.get(at(reg::SRRCTL));
        let room = (srrctl & 0x7f) as usize * 1024;
        let tag = self.tag_to_strip(&packet);
        let mut bytes = packet.clone();
        if tag.is_some() {
            bytes.drain(12..16);
        }
        let ring_len = self.get(at(reg::RDLEN)) / 16;
        let (head, tail) = (self.get(at(reg::RDH)), self.get(at(reg::RDT)));
        let free = (tail + ring_len - head) % ring_len.max(1);
        let pieces = bytes.len().div_ceil(room.max(1)).max(1);
        if pieces > free as usize {
            if srrctl & reg::SRRCTL_DROP == 0 {
                return Err(packet);
            }
            self.waiting_len -= packet.len();
            // The counter of good packets is before the queues.
            self.count(reg::GPRC);
            self.count(at(reg::RQDPC));
            return Ok(());
        }
        self.waiting_len -= packet.len();
        self.count(reg::GPRC);
        let fault = self.faults.pop_front();
        let endless = fault == Some(Fault::NoEnd);
        let pieces = if endless { free as usize } else { pieces };
        let status = reg::RX_DONE | checksums(&bytes);
        for piece in 0..pieces {
            let is_last = piece + 1 == pieces && !endless;
            let from = (piece * room).min(bytes.len());
            let part = &bytes[from..bytes.len().min(from + room)];
            let mut high = if is_last { status } else { reg::RX_DONE };
            let mut low = 0;
            if is_last {
                low = kind | u64::from(hash) << 32;
                high |= reg::RX_END;
                if let Some(tci) = tag {
                    high |= reg::RX_VLAN | u64::from(tci) << 48;
                }
            }
            let mut len = part.len() as u64;
            let mut address = None;
            match fault {
                Some(Fault::Length(wrong)) => len = u64::from(wrong) & 0xffff,
                Some(Fault::Error(bits)) => high |= u64::from(bits),
                Some(Fault::Address(wrong)) => address = Some(wrong),
                _ => {}
            }
            self.write_descriptor(queue, part, (low, high | len << 32), address);
        }
        let shift = if queue < 8 { 0 } else { 16 };
        let vector = self.get(reg::ivar(queue % 8)) >> shift & 0xff;
        if vector & reg::IVAR_VALID != 0 {
            self.interrupt(1 << (vector & 0x1f));
        }
        Ok(())
    }

    fn write_descriptor(
        &mut self,
        queue: u32,
        part: &[u8],
        (low, high): (u64, u64),
        false_address: Option<u64>,
    ) {
        let at = |register| reg::rx(queue, register);
        let base = u64::from(self.get(at(reg::RDBAH))) << 32 | u64::from(self.get(at(reg::RDBAL)));
        let head = self.get(at(reg::RDH));
        let descriptor = base + 16 * u64::from(head);
        let address = false_address.unwrap_or_else(|| self.memory.load64(descriptor));
        self.memory.write(address, part);
        self.memory.store64(descriptor, low);
        self.memory.store64(descriptor + 8, high);
        self.set(at(reg::RDH), (head + 1) % (self.get(at(reg::RDLEN)) / 16));
    }

    /// Sends one descriptor of a queue.
    fn transmit(&mut self, queue: u32) -> bool {
        let at = |register| reg::tx(queue, register);
        let enabled = self.get(at(reg::TXDCTL)) & reg::QUEUE_ENABLE != 0
            && self.get(reg::TCTL) & reg::TCTL_ENABLE != 0
            && self.status() & reg::STATUS_LINK_UP != 0
            && self.may_master();
        let (head, tail) = (self.get(at(reg::TDH)), self.get(at(reg::TDT)));
        let ring_len = self.get(at(reg::TDLEN)) / 16;
        if !enabled || head == tail || ring_len == 0 || self.sent.len() >= SENT_MAX {
            return false;
        }
        let base = u64::from(self.get(at(reg::TDBAH))) << 32 | u64::from(self.get(at(reg::TDBAL)));
        let descriptor = base + 16 * u64::from(head);
        let high = self.memory.load64(descriptor + 8);
        let mut part = vec![0; (high & 0xffff) as usize];
        self.memory.read(self.memory.load64(descriptor), &mut part);
        let packet = &mut self.gathered[queue as usize];
        packet.extend(part);
        if high & reg::TX_END != 0 {
            let mut packet = std::mem::take(packet);
            if packet.len() as u64 == high >> reg::TX_PAYLOAD_SHIFT {
                if self.get(reg::TCTL) & reg::TCTL_PAD != 0 && packet.len() < 60 {
                    packet.resize(60, 0);
                }
                self.sent.push_back(packet);
                self.count(reg::GPTC);
            }
        }
        if high & reg::TX_REPORT != 0 {
            self.memory.store64(descriptor + 8, reg::TX_DONE);
        }
        self.set(at(reg::TDH), (head + 1) % ring_len);
        true
    }
}

impl Model for IgbModel {
    const ID: (u16, u16) = (0x8086, 0x10c9);
    const BARS: [u32; 6] = [0x2_0000, 0, 0, 0, 0, 0];

    fn read(&mut self, _bar: u8, offset: u32, _width: u8) -> u64 {
        match self.gone {
            true => u64::MAX,
            false => self.read_register(offset & !3).into(),
        }
    }

    fn write(&mut self, _bar: u8, offset: u32, _width: u8, value: u64) {
        if !self.gone {
            self.write_register(offset & !3, value as u32);
        }
    }

    fn reset(&mut self) {
        self.power_on();
        self.bus_master = false;
    }

    fn set_bus_master(&mut self, on: bool) -> bool {
        if !self.is_deaf {
            self.note(BUS_MASTER, on.into());
            self.bus_master = on;
        }
        !self.is_deaf
    }

    fn step(&mut self) -> bool {
        match self.faults.front() {
            Some(Fault::Stop) => self.stopped = true,
            Some(Fault::Gone) => (self.gone, self.stopped) = (true, true),
            _ => {}
        }
        if self.stopped {
            self.faults.clear();
            return false;
        }
        let mut worked = false;
        for queue in 0..16 {
            while self.transmit(queue) {
                worked = true;
            }
        }
        while self.deliver() {
            worked = true;
        }
        worked
    }

    fn receive(&mut self, packet: &[u8]) -> bool {
        let rctl = self.get(reg::RCTL);
        let up = self.status() & reg::STATUS_LINK_UP != 0;
        if rctl & reg::RCTL_ENABLE == 0 || !up || self.stopped || packet.len() < 14 {
            return false;
        }
        let limit = match rctl & reg::RCTL_LONG_PACKETS {
            0 => 1522,
            _ => self.get(reg::RLPML),
        };
        if packet.len() as u32 + CRC_LEN > limit {
            self.count(reg::ROC);
            return false;
        }
        if packet.len() < 60 {
            self.count(reg::RUC);
            return false;
        }
        if !self.accepts(packet) {
            return false;
        }
        if self.waiting_len + packet.len() > PACKET_BUFFER_LEN {
            self.count(reg::MPC);
            return false;
        }
        self.waiting_len += packet.len();
        self.waiting.push_back(packet.to_vec());
        while self.deliver() {}
        true
    }

    fn sent(&mut self) -> Option<Vec<u8>> {
        self.sent.pop_front()
    }

    fn set_link(&mut self, up: bool) {
        self.link = up;
    }
}

/// Whether this is a queue's drop counter.
fn is_drop_count(offset: u32) -> bool {
    (0xc000..0xc400).contains(&offset) && offset & 0x3f == reg::RQDPC
}

impl IgbModel {
    /// Injects a fault once, or until it is changed ([`Fault::Stop`]).
    pub fn set_fault(&mut self, fault: Option<Fault>) {
        match fault {
            Some(Fault::Stop) => self.stopped = true,
            Some(fault) => self.faults.push_back(fault),
            None => {
                self.stopped = false;
                self.faults.clear();
            }
        }
    }

    /// Number of writes to tail registers so far.
    pub fn doorbells(&self) -> u32 {
        let is_tail = |offset: u32| match offset {
            0xc000..0xc400 | 0xe000..0xe400 => offset & 0x3f == reg::RDT,
            _ => false,
        };
        self.log
            .iter()
            .filter(|(offset, _)| is_tail(*offset))
            .count() as u32
    }

    /// Writes a word of a descriptor.
    pub fn store(&self, place: u64, word: u64) {
        assert!(self.memory.store64(place, word));
    }

    /// Marks a descriptor of the first sending queue as done (§7.2.2.4), whether it is or not.
    pub fn mark_sent(&self, entry: u32) {
        let at = |register| u64::from(self.get(reg::tx(0, register)));
        let base = at(reg::TDBAH) << 32 | at(reg::TDBAL);
        self.store(base + 16 * u64::from(entry) + 8, 1 << 32);
    }

    /// Number of packets for which a queue had no descriptor.
    pub fn without_descriptor(&self, queue: u32) -> u32 {
        self.get(reg::rx(queue, reg::RQDPC))
    }
}
