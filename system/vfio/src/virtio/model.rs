//! A model of a virtio-net device in the test process: the device's side of VIRTIO 1.2 §3.1, §4.1
//! and §5.1. Violations of the specification by the driver are recorded in `violations`.

mod queue;

use std::collections::VecDeque;

use self::queue::{Chain, DeviceQueue};
use super::capability;
use super::feature::{self, Features};
use super::transport::status;
use crate::model::{Fault, Model, ModelEvents, ModelMemory, ring_event};

/// False reports that a device can be given, besides [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "tests tell"))]
pub enum Misbehaviour {
    /// The next used buffer has this id.
    Id(u32),
    /// The next used buffer is returned twice.
    Twice,
    /// The next packet's first buffer is reported with this length.
    FirstLength(u32),
    /// The next packet's header has this number of buffers.
    NumBuffers(u16),
    /// The index of the used ring jumps this far.
    Jump(u16),
    /// The control queue answers with this.
    Answer(u8),
    /// The control queue does not answer.
    Silence,
}

/// Number of queue pairs of the device.
pub(super) const PAIRS: u16 = 4;
/// Maximum queue length.
pub(super) const QUEUE_LEN: u16 = 1024;
/// Its MTU.
pub(super) const MTU: u16 = 9000;
/// Maximum number of sent packets not fetched yet; beyond that the sender stops.
const SENT_MAX: usize = 4096;

/// The device.
#[cfg_attr(not(test), allow(dead_code, reason = "tests look and tell"))]
pub struct VirtioModel {
    memory: ModelMemory,
    events: ModelEvents,
    /// Feature bits that it offers.
    pub offered: Features,
    /// Feature bits that the driver has accepted.
    pub accepted: Features,
    status: u8,
    feature_select: u32,
    queue_select: u16,
    queues: Vec<DeviceQueue>,
    /// Maximum length of its queues.
    pub queue_len: u16,
    /// Number of queue pairs in use.
    pub pairs: u16,
    /// Receive modes: PROMISC, ALLMULTI and NOMULTI, NOUNI, NOBCAST.
    pub modes: [bool; 6],
    link_up: bool,
    gone: bool,
    fault: Option<Fault>,
    /// What it reports falsely next.
    pub misbehaviour: Option<Misbehaviour>,
    /// `flags` of the next received headers.
    pub flags: u8,
    /// `csum_start` and `csum_offset` of the next received headers.
    pub checksum: (u16, u16),
    sent: VecDeque<Vec<u8>>,
    /// Queues with a pending notification.
    notified: Vec<bool>,
    mac: [u8; 6],
    bus_master: bool,
    /// Number of notifications so far.
    pub doorbells: u32,
    /// Number of changes between two reads of the configuration.
    pub unsteady: u8,
    generation: u8,
    /// Violations of the specification by the driver.
    pub violations: Vec<String>,
    /// Writes to the status, in order.
    pub history: Vec<u8>,
    /// Its configuration space.
    pub config: [u8; 256],
}

impl VirtioModel {
    /// All feature bits: those that the driver accepts, and many that it must not.
    pub const EVERYTHING: Features = Features::MAX;

    /// Creates a device that offers these features, with this address, after power-on.
    pub fn new(memory: ModelMemory, events: ModelEvents, offered: Features, mac: [u8; 6]) -> Self {
        let count = 2 * usize::from(PAIRS) + 1;
        let mut model = Self {
            memory,
            events,
            offered,
            accepted: 0,
            status: 0,
            feature_select: 0,
            queue_select: 0,
            queues: vec![DeviceQueue::default(); count],
            queue_len: QUEUE_LEN,
            pairs: 1,
            modes: [false; 6],
            link_up: true,
            gone: false,
            fault: None,
            misbehaviour: None,
            flags: 0,
            checksum: (0, 0),
            sent: VecDeque::new(),
            notified: vec![false; count],
            mac,
            bus_master: false,
            doorbells: 0,
            unsteady: 0,
            generation: 0,
            violations: Vec::new(),
            history: Vec::new(),
            config: capability::example(),
        };
        model.power_on();
        model
    }

    fn power_on(&mut self) {
        (self.status, self.accepted, self.pairs) = (0, 0, 1);
        self.notified.fill(false);
        for queue in &mut self.queues {
            *queue = DeviceQueue::default();
            (queue.size, queue.vector) = (self.queue_len, 0xffff);
        }
        // Everything is received until the driver changes it.
        self.modes = [true, false, false, false, false, false];
    }

    /// Number of queues: more than one pair only once several are negotiated.
    fn queue_count(&self) -> usize {
        match self.has(feature::MQ) {
            true => self.queues.len(),
            false => 3,
        }
    }

    fn complain(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// Whether the device is running.
    fn runs(&self) -> bool {
        let stopped = self.status & (status::NEEDS_RESET | status::FAILED) != 0;
        self.status & status::DRIVER_OK != 0 && !stopped && !self.gone && self.bus_master
    }

    fn has(&self, feature: Features) -> bool {
        self.accepted & feature != 0
    }

    fn is_ours(&self, packet: &[u8]) -> bool {
        let [promisc, allmulti, _, nomulti, nouni, nobcast] = self.modes;
        match packet.get(..6) {
            _ if promisc => true,
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => !nobcast,
            Some([first, ..]) if first & 1 != 0 => allmulti && !nomulti,
            Some(to) => to == self.mac && !nouni,
            None => false,
        }
    }

    /// Delivers a packet to a queue pair; false if it was lost.
    pub(super) fn receive_on(&mut self, pair: u32, packet: &[u8]) -> bool {
        let number = 2 * pair as usize;
        let there = pair < self.pairs.into() && self.queues[number].enabled;
        let on = self.runs() && self.link_up && self.fault != Some(Fault::Stop);
        if !there || !on || !self.is_ours(packet) {
            return false;
        }
        if packet.len() > usize::from(MTU) + 18 {
            return false;
        }
        // Header and packet over as many buffers as needed.
        let before = self.queues[number].clone();
        let (mut buffers, mut room) = (Vec::new(), 0);
        while room < packet.len() + 12 {
            let chain = match self.queues[number].pop(&self.memory) {
                Some(chain) if buffers.is_empty() || self.has(feature::MRG_RXBUF) => chain,
                _ => {
                    self.queues[number] = before;
                    return false;
                }
            };
            if chain.elements.iter().any(|element| !element.2) {
                self.complain("a receive buffer that the device must not write");
            }
            room += chain
                .elements
                .iter()
                .map(|element| element.1 as usize)
                .sum::<usize>();
            buffers.push(chain);
        }
        let count = match self.misbehaviour {
            Some(Misbehaviour::NumBuffers(count)) => count,
            _ => buffers.len() as u16,
        };
        let mut bytes = vec![self.flags, 0, 0, 0, 0, 0];
        bytes.extend(self.checksum.0.to_le_bytes());
        bytes.extend(self.checksum.1.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend_from_slice(packet);
        let mut used = self.scatter(&buffers, &bytes);
        self.tell_lies(number, &mut used);
        let memory = self.memory.clone();
        let queue = &mut self.queues[number];
        queue.push(&memory, &used);
        queue.want_notification(&memory, false);
        if queue.wants_interrupt(&memory, &before) && queue.vector != 0xffff {
            ring_event(&self.events, queue.vector.into());
        }
        true
    }

    /// Writes bytes into buffers, and returns the used length of each.
    fn scatter(&mut self, buffers: &[Chain], mut bytes: &[u8]) -> Vec<(u32, u32, u16)> {
        let mut used = Vec::new();
        for chain in buffers {
            let mut written = 0;
            for &(address, len, _) in &chain.elements {
                let (now, later) = bytes.split_at(bytes.len().min(len as usize));
                let address = match self.fault {
                    Some(Fault::Address(elsewhere)) => elsewhere,
                    _ => address,
                };
                self.memory.write(address, now);
                written += now.len() as u32;
                bytes = later;
            }
            used.push((chain.id.into(), written, chain.elements.len() as u16));
        }
        used
    }

    fn tell_lies(&mut self, number: usize, used: &mut Vec<(u32, u32, u16)>) {
        match self.fault.take() {
            Some(Fault::Length(len)) => used.last_mut().unwrap().1 = len,
            Some(Fault::Address(_)) => {}
            other => self.fault = other,
        }
        match self.misbehaviour.take() {
            Some(Misbehaviour::Id(id)) => used[0].0 = id,
            Some(Misbehaviour::Twice) => used.push(used[0]),
            Some(Misbehaviour::FirstLength(len)) => used[0].1 = len,
            Some(Misbehaviour::Jump(by)) => self.queues[number].jump(&self.memory, by),
            Some(Misbehaviour::NumBuffers(_)) | None => {}
            other => self.misbehaviour = other,
        }
    }

    /// Sends the buffers that a queue offers.
    fn transmit(&mut self, number: usize) {
        let memory = self.memory.clone();
        while self.sent.len() < SENT_MAX
            && let Some(chain) = self.queues[number].pop(&memory)
        {
            let bytes = self.gather(&chain.elements, false);
            match bytes.split_at_checked(12) {
                Some((header, packet)) if header == [0; 12] => {
                    if packet.len() > usize::from(MTU) + 18 {
                        self.complain("a packet longer than the MTU");
                    }
                    self.sent.push_back(packet.to_vec());
                }
                // §5.1.6.2.1: flags, gso_type and num_buffers are 0.
                _ => self.complain(format!("a header of {:x?}", bytes.get(..12))),
            }
            let mut used = vec![(chain.id.into(), 0, chain.elements.len() as u16)];
            match self.misbehaviour.take() {
                Some(Misbehaviour::Id(id)) => used[0].0 = id,
                Some(Misbehaviour::Twice) => used.push((used[0].0, 0, 1)),
                other => self.misbehaviour = other,
            }
            self.queues[number].push(&memory, &used);
        }
        if self.sent.len() < SENT_MAX {
            self.notified[number] = false;
            self.queues[number].want_notification(&memory, true);
            // Buffers offered between the last check and the request are not reported.
            self.notified[number] |= self.queues[number].clone().pop(&memory).is_some();
        }
    }

    fn gather(&mut self, elements: &[(u64, u32, bool)], answer: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let readable = elements.len() - usize::from(answer);
        for (at, &(address, len, written)) in elements.iter().enumerate() {
            if written != (at >= readable) {
                self.complain("what is written comes before what is read (§2.7.4.2)");
            }
            if at < readable {
                let mut part = vec![0; len as usize];
                self.memory.read(address, &mut part);
                bytes.append(&mut part);
            }
        }
        bytes
    }

    /// Executes a command of the control queue.
    fn control(&mut self, number: usize) {
        let memory = self.memory.clone();
        while let Some(chain) = self.queues[number].pop(&memory) {
            let command = self.gather(&chain.elements, true);
            let mut answer = match command[..] {
                [0, mode @ 0..=5, value] if self.has(feature::CTRL_RX) => {
                    self.modes[usize::from(mode)] = value != 0;
                    0
                }
                [4, 0, low, high] if self.has(feature::MQ) => {
                    self.pairs = u16::from_le_bytes([low, high]);
                    u8::from(!(1..=PAIRS).contains(&self.pairs))
                }
                _ => 1,
            };
            match self.misbehaviour {
                Some(Misbehaviour::Answer(false_answer)) => answer = false_answer,
                Some(Misbehaviour::Silence) => return,
                _ => {}
            }
            let last = chain.elements.last().unwrap();
            memory.write(last.0, &[answer]);
            let used = [(chain.id.into(), 1, chain.elements.len() as u16)];
            self.queues[number].push(&memory, &used);
        }
        self.queues[number].want_notification(&memory, true);
    }

    fn notify(&mut self, number: usize) {
        self.doorbells += 1;
        if self.status & status::DRIVER_OK == 0 {
            self.complain("a notification before DRIVER_OK (§3.1.1)");
            return;
        }
        let control = match self.has(feature::MQ) {
            true => 2 * usize::from(PAIRS),
            false => 2,
        };
        match number {
            _ if !self.runs() => {}
            _ if number == control && self.has(feature::CTRL_VQ) => self.control(number),
            _ if number % 2 == 1 && number < self.notified.len() => self.notified[number] = true,
            _ => {}
        }
    }

    /// The driver writes the status (§2.1, §3.1.1): bits are set one after another.
    fn set_status(&mut self, value: u8) {
        self.history.push(value);
        if value == status::RESET {
            return self.power_on();
        }
        let added = value & !self.status;
        if self.status & !value & !status::NEEDS_RESET != 0 {
            self.complain(format!("status {:#x} became {value:#x}", self.status));
        }
        let needs = |bit: u8, first: u8| added & bit != 0 && self.status & first != first;
        let ready = status::ACKNOWLEDGE | status::DRIVER;
        if needs(status::DRIVER, status::ACKNOWLEDGE)
            || needs(status::FEATURES_OK, ready)
            || needs(status::DRIVER_OK, ready | status::FEATURES_OK)
        {
            self.complain(format!("status {value:#x} after {:#x}", self.status));
        }
        self.status = value;
        if added & status::FEATURES_OK != 0 {
            if self.accepted & !self.offered != 0 {
                self.complain("a feature that was not offered");
            }
            // A device behind an IOMMU insists on it (§6.1).
            let must = self.offered & (feature::VERSION_1 | feature::ACCESS_PLATFORM);
            if self.accepted & must != must {
                self.status &= !status::FEATURES_OK;
            }
        }
    }

    /// The driver writes to the common configuration (§4.1.4.3).
    fn write_common(&mut self, offset: u32, width: u8, value: u64) {
        let settled = self.status & status::FEATURES_OK != 0;
        let number = usize::from(self.queue_select);
        match (offset, width) {
            (0 | 8, 4) => self.feature_select = value as u32,
            (12, 4) => {
                if settled {
                    self.complain("features after FEATURES_OK");
                }
                let shift = 32 * (self.feature_select & 1);
                self.accepted &= !(0xffff_ffff << shift);
                self.accepted |= value << shift;
            }
            (16, 2) => {}
            (20, 1) => self.set_status(value as u8),
            (22, 2) => self.queue_select = value as u16,
            (24..56, 2 | 4) => {
                if !settled || self.status & status::DRIVER_OK != 0 {
                    self.complain(format!("a queue's {offset:#x} at the wrong time"));
                }
                let (packed, event) =
                    (self.has(feature::RING_PACKED), self.has(feature::EVENT_IDX));
                let Some(queue) = self.queues.get_mut(number) else {
                    return self.complain("a queue that is not there");
                };
                match offset {
                    24 => queue.size = value as u16,
                    26 => queue.vector = value as u16,
                    28 => {
                        queue.enable(packed, event);
                        let aligned = match packed {
                            true => [16, 4, 4],
                            false => [16, 2, 4],
                        };
                        let areas = queue.areas;
                        if (0..3).any(|at| areas[at] == 0 || areas[at] % aligned[at] != 0) {
                            self.complain(format!("areas at {areas:x?} (§2.7, §2.8.10.1)"));
                        }
                    }
                    32..56 => {
                        let area = &mut queue.areas[(offset as usize - 32) / 8];
                        let shift = 8 * (offset % 8);
                        *area = *area & !(0xffff_ffff << shift) | value << shift;
                    }
                    _ => {}
                }
            }
            _ => self.complain(format!(
                "{width} bytes at {offset:#x} of the common configuration"
            )),
        }
    }

    fn read_common(&mut self, offset: u32, width: u8) -> u64 {
        let there = usize::from(self.queue_select) < self.queue_count();
        let queue = self
            .queues
            .get(usize::from(self.queue_select))
            .filter(|_| there);
        match (offset, width) {
            (4, 4) => self.offered >> (32 * (self.feature_select & 1)) & 0xffff_ffff,
            (18, 2) => self.queue_count() as u64,
            (20, 1) => self.status.into(),
            (21, 1) => {
                if self.unsteady != 0 {
                    self.unsteady -= 1;
                    self.generation = self.generation.wrapping_add(1);
                }
                self.generation.into()
            }
            (24, 2) => queue.map_or(0, |queue| queue.size.into()),
            (26, 2) => queue.map_or(0xffff, |queue| queue.vector.into()),
            (30, 2) => self.queue_select.into(),
            _ => {
                self.complain(format!("{width} bytes at {offset:#x} read"));
                0
            }
        }
    }

    /// Device configuration (§5.1.4).
    fn read_config_space(&self, offset: u32, width: u8) -> u64 {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&self.mac);
        // Values are inconsistent between two generations.
        let up = if self.unsteady != 0 {
            0
        } else {
            u16::from(self.link_up)
        };
        bytes[6..8].copy_from_slice(&up.to_le_bytes());
        bytes[8..10].copy_from_slice(&PAIRS.to_le_bytes());
        bytes[10..12].copy_from_slice(&MTU.to_le_bytes());
        let at = offset as usize;
        let mut value = [0; 8];
        value[..usize::from(width)].copy_from_slice(&bytes[at..at + usize::from(width)]);
        u64::from_le_bytes(value)
    }
}

impl Model for VirtioModel {
    const ID: (u16, u16) = (0x1af4, 0x1041);
    const BARS: [u32; 6] = [0, 0, 0, 0, 0x4000, 0];

    fn read(&mut self, _bar: u8, offset: u32, width: u8) -> u64 {
        match offset {
            _ if self.gone => u64::MAX,
            0..0x1000 => self.read_common(offset, width),
            0x2000..0x3000 => self.read_config_space(offset - 0x2000, width),
            _ => 0,
        }
    }

    fn write(&mut self, _bar: u8, offset: u32, width: u8, value: u64) {
        match offset {
            _ if self.gone => {}
            0..0x1000 => self.write_common(offset, width, value),
            0x3000..0x4000 => {
                if width != 2 || u64::from((offset - 0x3000) / 4) != value {
                    self.complain(format!("{value:#x} at notification {offset:#x}"));
                }
                self.notify(value as usize);
            }
            _ => self.complain(format!("a write to {offset:#x}")),
        }
    }

    fn config(&self) -> Vec<u8> {
        self.config.to_vec()
    }

    fn reset(&mut self) {
        self.power_on();
        self.bus_master = false;
    }

    fn set_bus_master(&mut self, on: bool) -> bool {
        if on && self.status & status::DRIVER_OK != 0 {
            self.complain("memory was given to a device that was on");
        }
        self.bus_master = on;
        true
    }

    fn step(&mut self) -> bool {
        let mut worked = false;
        for number in (1..2 * usize::from(PAIRS)).step_by(2) {
            let ready = self.notified[number] && self.queues[number].enabled;
            if ready && self.runs() && self.link_up && self.fault != Some(Fault::Stop) {
                self.transmit(number);
                worked = true;
            }
        }
        worked
    }

    fn receive(&mut self, packet: &[u8]) -> bool {
        // Steering like a device that has not seen a packet of the flow sent: by addresses and
        // ports.
        let hash = packet
            .iter()
            .skip(26)
            .take(12)
            .fold(0, |sum, byte| sum + u32::from(*byte));
        self.receive_on(hash % u32::from(self.pairs.max(1)), packet)
    }

    fn sent(&mut self) -> Option<Vec<u8>> {
        self.sent.pop_front()
    }

    fn set_link(&mut self, up: bool) {
        self.link_up = up;
    }
}

#[cfg(test)]
impl VirtioModel {
    pub(super) fn set_fault(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }

    /// Writes arbitrary values where the device returns buffers: position, id and length of a used
    /// one, with the index of a split queue, or the flags of a packed one.
    pub(super) fn scribble(&self, number: usize, used: (u16, u16, u32), more: u16) {
        let (queue, (place, id, len)) = (&self.queues[number], used);
        let at = u64::from(place % queue.size);
        let (id, len, more) = (u64::from(id), u64::from(len), u64::from(more));
        let memory = &self.memory;
        match queue.packed {
            true => {
                let word = len | id << 32 | more << 48;
                assert!(memory.store64(queue.areas[0] + 16 * at + 8, word));
            }
            false => {
                let ring = queue.areas[2];
                assert!(memory.write(ring + 4 + 8 * at, &(id | len << 32).to_le_bytes()));
                assert!(memory.write(ring + 2, &(more as u16).to_le_bytes()));
            }
        }
    }

    pub(super) fn vanish(&mut self) {
        self.gone = true;
    }

    /// §2.1.2: the device has an error that only a reset clears.
    pub(super) fn need_reset(&mut self) {
        self.status |= status::NEEDS_RESET;
    }
}
