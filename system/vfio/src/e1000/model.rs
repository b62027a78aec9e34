//! A model of the 82540EM in the test process, written from the same manual as the driver, from the
//! card's side. Violations of the manual by the driver are recorded in `violations`.

use std::collections::VecDeque;

use super::registers as reg;
use crate::model::{Fault, Model, ModelEvents, ModelMemory, ring_event};

/// Length of BAR 0.
const LEN: u32 = 0x2_0000;
/// Maximum number of sent packets not fetched yet; beyond that the sender stops.
const SENT_MAX: usize = 4096;

/// Bits of descriptors, from the manual and not from the driver.
const RX_DD: u64 = 1 << 32;
const RX_EOP: u64 = 1 << 33;
pub(super) const RX_IXSM: u64 = 1 << 34;
const RX_VP: u64 = 1 << 35;
#[cfg(test)]
pub(super) const RX_TCPCS: u64 = 1 << 37;
#[cfg(test)]
pub(super) const RX_IPCS: u64 = 1 << 38;
#[cfg(test)]
pub(super) const RX_TCPE: u64 = 1 << 45;
#[cfg(test)]
pub(super) const RX_IPE: u64 = 1 << 46;
const TX_EOP: u64 = 1 << 24;
const TX_IFCS: u64 = 1 << 25;
const TX_RS: u64 = 1 << 27;
const TX_DD: u64 = 1 << 32;

/// The card.
#[cfg_attr(not(test), allow(dead_code, reason = "tests look and tell"))]
pub struct E1000Model {
    memory: ModelMemory,
    events: ModelEvents,
    registers: Vec<u32>,
    /// The packet being read for sending.
    partial: Vec<u8>,
    sent: VecDeque<Vec<u8>>,
    mac: [u8; 6],
    fault: Option<Fault>,
    link_up: bool,
    /// The PHY's control register, which a reset of the card does not change.
    pub phy_control: u16,
    bus_master: bool,
    gone: bool,
    /// Checksum result of the next received packets: status and error bits (3.2.3).
    pub checksum: u64,
    /// Number of writes to the tail registers.
    pub doorbells: u32,
    /// Violations of the manual by the driver.
    pub violations: Vec<String>,
}

impl E1000Model {
    /// Creates a card with this address, after power-on.
    pub fn new(memory: ModelMemory, events: ModelEvents, mac: [u8; 6]) -> Self {
        let mut model = Self {
            memory,
            events,
            registers: vec![0; LEN as usize / 4],
            partial: Vec::new(),
            sent: VecDeque::new(),
            mac,
            fault: None,
            link_up: true,
            phy_control: 1 << 12,
            bus_master: false,
            gone: false,
            checksum: RX_IXSM,
            doorbells: 0,
            violations: Vec::new(),
        };
        model.power_on();
        model
    }

    fn power_on(&mut self) {
        self.registers.fill(0);
        let [a, b, c, d, e, f] = self.mac;
        *self.at(reg::RAL) = u32::from_le_bytes([a, b, c, d]);
        *self.at(reg::RAH) = u32::from_le_bytes([e, f, 0, 0]) | reg::RAH_AV;
        self.partial.clear();
    }

    fn at(&mut self, offset: u32) -> &mut u32 {
        &mut self.registers[offset as usize / 4]
    }

    fn get(&self, offset: u32) -> u32 {
        self.registers[offset as usize / 4]
    }

    fn base(&self, low: u32) -> u64 {
        u64::from(self.get(low)) | u64::from(self.get(low + 4)) << 32
    }

    /// Whether the card's filter accepts a packet (13.4.22, 13.5.2).
    fn is_ours(&self, packet: &[u8]) -> bool {
        let mode = self.get(reg::RCTL);
        match packet.get(..6) {
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => mode & reg::RCTL_BAM != 0,
            Some([first, ..]) if first & 1 != 0 => mode & reg::RCTL_MPE != 0,
            Some(to) => mode & reg::RCTL_UPE != 0 || to == self.mac,
            None => false,
        }
    }

    /// Whether packets can pass: the cable is connected and the PHY awake (IEEE 802.3 §22.2.4.1.5).
    fn is_up(&self) -> bool {
        self.link_up && self.phy_control & 1 << 11 == 0
    }

    /// Handles an access to the PHY (13.4.3), which has only its control register.
    fn reach_phy(&mut self, value: u32) {
        let is_control = value >> 16 & 0x1f == 0;
        let answer = match (value >> 26 & 3, value >> 21 & 0x1f) {
            (2, 1) if is_control => self.phy_control.into(),
            (1, 1) if is_control => {
                self.phy_control = value as u16;
                value & 0xffff
            }
            (1 | 2, 1) => 0,
            // No response.
            _ => 1 << 30,
        };
        *self.at(reg::MDIC) = value & 0x0fff_0000 | 1 << 28 | answer;
    }

    fn interrupt(&mut self) {
        if self.get(reg::ICR) & self.get(reg::IMS) != 0 {
            ring_event(&self.events, 0);
        }
    }

    /// Whether the card is enabled and may access memory.
    fn works(&self) -> bool {
        self.bus_master && !self.gone && self.fault != Some(Fault::Stop)
    }

    /// Sends up to the tail; false if there was nothing.
    fn transmit(&mut self) -> bool {
        let count = self.get(reg::TDLEN) / 16;
        let on = self.get(reg::TCTL) & reg::TCTL_EN != 0 && count != 0 && self.is_up();
        if !on || !self.works() || self.get(reg::TDH) == self.get(reg::TDT) {
            return false;
        }
        while self.get(reg::TDH) != self.get(reg::TDT) && self.sent.len() < SENT_MAX {
            let head = self.get(reg::TDH);
            let place = self.base(reg::TDBAL) + 16 * u64::from(head);
            let (address, word) = (self.memory.load64(place), self.memory.load64(place + 8));
            let mut part = vec![0; (word & 0xffff) as usize];
            self.memory.read(address, &mut part);
            self.partial.append(&mut part);
            if word & TX_EOP != 0 {
                if word & TX_IFCS == 0 {
                    self.violations
                        .push("a packet without its check sequence".into());
                }
                if self.partial.len() < 17 {
                    self.violations
                        .push("a packet too short to be padded".into());
                }
                let mut packet = std::mem::take(&mut self.partial);
                if self.get(reg::TCTL) & reg::TCTL_PSP != 0 && packet.len() < 60 {
                    packet.resize(60, 0);
                }
                self.sent.push_back(packet);
                *self.at(reg::GPTC) += 1;
            }
            if word & TX_RS != 0 {
                self.memory.store64(place + 8, word | TX_DD);
            }
            *self.at(reg::TDH) = (head + 1) % count;
        }
        if !self.partial.is_empty() && self.sent.len() < SENT_MAX {
            self.violations.push("half a packet was handed over".into());
        }
        true
    }

    /// Records a violation if a register changes that must not while its direction is enabled.
    fn guard(&mut self, offset: u32, value: u32) {
        let rx_on = self.get(reg::RCTL) & reg::RCTL_EN != 0;
        let tx_on = self.get(reg::TCTL) & reg::TCTL_EN != 0;
        let rx = (reg::RDBAL..=reg::RDH).contains(&offset) || offset == reg::RXCSUM;
        if rx && rx_on || (reg::TDBAL..=reg::TDH).contains(&offset) && tx_on {
            self.violations
                .push(format!("register {offset:#x} while it is on"));
        }
        if (offset == reg::RDLEN || offset == reg::TDLEN) && !value.is_multiple_of(128) {
            self.violations
                .push(format!("a ring of {value} bytes (13.4.27)"));
        }
        if offset == reg::RCTL && value & reg::RCTL_EN != 0 && !rx_on {
            if self.get(reg::RDLEN) == 0 {
                self.violations
                    .push("received without a ring (14.4)".into());
            }
            if self.get(reg::CTRL) & reg::CTRL_SLU == 0 {
                self.violations
                    .push("received without a link (14.3)".into());
            }
        }
    }
}

impl Model for E1000Model {
    const ID: (u16, u16) = (0x8086, 0x100e);
    const BARS: [u32; 6] = [LEN, 0, 0, 0, 0, 0];

    fn read(&mut self, _bar: u8, offset: u32, width: u8) -> u64 {
        if self.gone {
            return u64::MAX;
        }
        if width != 4 {
            self.violations
                .push(format!("{width} bytes of {offset:#x} read"));
        }
        let value = match offset {
            reg::STATUS => {
                let up = if self.is_up() { reg::STATUS_LU } else { 0 };
                reg::STATUS_FD | up | 2 << reg::STATUS_SPEED_SHIFT
            }
            // 13.4.17, 13.7: registers cleared by reading.
            reg::ICR | 0x4000..=0x4124 => std::mem::take(self.at(offset)),
            _ => self.get(offset),
        };
        value.into()
    }

    fn write(&mut self, _bar: u8, offset: u32, width: u8, value: u64) {
        if self.gone {
            return;
        }
        let value = value as u32;
        if width != 4 {
            self.violations
                .push(format!("{width} bytes of {offset:#x} written"));
        }
        self.guard(offset, value);
        match offset {
            reg::CTRL if value & reg::CTRL_RST != 0 => {
                // 14.3: a reset while the card reads or writes memory may hang the bus.
                if (self.get(reg::RCTL) | self.get(reg::TCTL)) & reg::RCTL_EN != 0 {
                    self.violations.push("a reset while the card is on".into());
                }
                self.power_on();
            }
            reg::MDIC => self.reach_phy(value),
            reg::EERD => {
                let word = (value >> reg::EERD_ADDRESS_SHIFT & 0xff) as usize;
                let byte = |at: usize| self.mac.get(at).copied().unwrap_or(0);
                let pair = [byte(2 * word), byte(2 * word + 1)];
                let data = u32::from(u16::from_le_bytes(pair));
                *self.at(offset) = reg::EERD_DONE | data << reg::EERD_DATA_SHIFT;
            }
            reg::IMS => {
                *self.at(reg::IMS) |= value;
                self.interrupt();
            }
            reg::IMC => *self.at(reg::IMS) &= !value,
            reg::RDT | reg::TDT => {
                self.doorbells += 1;
                *self.at(offset) = value;
            }
            _ => *self.at(offset) = value,
        }
    }

    fn reset(&mut self) {
        self.power_on();
        self.bus_master = false;
    }

    fn set_bus_master(&mut self, on: bool) -> bool {
        if on && self.get(reg::RCTL) & reg::RCTL_EN != 0 {
            self.violations
                .push("memory was given to a card that was on".into());
        }
        self.bus_master = on;
        true
    }

    fn step(&mut self) -> bool {
        self.transmit()
    }

    fn receive(&mut self, packet: &[u8]) -> bool {
        let mode = self.get(reg::RCTL);
        let on = mode & reg::RCTL_EN != 0 && self.is_up() && self.works();
        if !on || packet.len() < 14 || !self.is_ours(packet) {
            return false;
        }
        if packet.len() + 4 > 1522 && mode & reg::RCTL_LPE == 0 {
            *self.at(0x40ac) += 1;
            return false;
        }
        let mut bytes = packet.to_vec();
        let mut said = RX_DD;
        let vlan = self.get(reg::VET).to_be_bytes();
        if self.get(reg::CTRL) & reg::CTRL_VME != 0 && bytes.get(12..14) == Some(&vlan[2..]) {
            said |= RX_VP | u64::from(u16::from_be_bytes([bytes[14], bytes[15]])) << 48;
            bytes.drain(12..16);
        }
        said |= self.checksum;
        let count = self.get(reg::RDLEN) / 16;
        let (head, tail) = (self.get(reg::RDH), self.get(reg::RDT));
        let offered = tail.wrapping_add(count).wrapping_sub(head) % count.max(1);
        let parts = bytes.chunks(2048);
        if (parts.len() as u32) > offered {
            *self.at(reg::MPC) += 1;
            return false;
        }
        let last = parts.len() - 1;
        for (at, part) in parts.enumerate() {
            let head = self.get(reg::RDH);
            let place = self.base(reg::RDBAL) + 16 * u64::from(head);
            let mut address = self.memory.load64(place);
            let mut word = said | part.len() as u64;
            if at == last {
                word |= RX_EOP;
                match self.fault.take() {
                    Some(Fault::Length(len)) => word = word & !0xffff | u64::from(len & 0xffff),
                    Some(Fault::Error(bits)) => word |= u64::from(bits & 0xff) << 40,
                    Some(Fault::NoEnd) => word &= !RX_EOP,
                    Some(Fault::Address(elsewhere)) => address = elsewhere,
                    other => self.fault = other,
                }
            }
            self.memory.write(address, part);
            self.memory.store64(place + 8, word);
            *self.at(reg::RDH) = (head + 1) % count;
        }
        *self.at(reg::GPRC) += 1;
        *self.at(reg::ICR) |= reg::INT_RXT0;
        self.interrupt();
        true
    }

    fn sent(&mut self) -> Option<Vec<u8>> {
        self.sent.pop_front()
    }

    fn set_link(&mut self, up: bool) {
        self.link_up = up;
    }
}

#[cfg(test)]
impl E1000Model {
    /// Clears the address register, as without an EEPROM read.
    pub(super) fn forget_address(&mut self) {
        *self.at(reg::RAH) = 0;
    }

    /// Marks a descriptor of the sending ring as done (3.3.3.2), whether it is or not.
    pub(super) fn mark_sent(&self, entry: u32) {
        let place = self.base(reg::TDBAL) + 16 * u64::from(entry) + 8;
        let word = self.memory.load64(place) | TX_DD;
        assert!(self.memory.store64(place, word));
    }

    pub(super) fn vanish(&mut self) {
        self.gone = true;
    }

    pub(super) fn set_fault(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }
}
