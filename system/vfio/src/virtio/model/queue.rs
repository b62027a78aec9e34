//! A virtqueue from the device's side, split (VIRTIO 1.2 §2.7) or packed (§2.8), written from the
//! specification and not from the driver.

use crate::model::ModelMemory;

/// A buffer offered by the driver.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub id: u16,
    /// Address, length, and whether the device writes.
    pub elements: Vec<(u64, u32, bool)>,
}

/// The device's side of a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceQueue {
    pub size: u16,
    pub enabled: bool,
    pub vector: u16,
    /// Addresses of descriptor area, driver area and device area.
    pub areas: [u64; 3],
    pub packed: bool,
    pub event_idx: bool,
    /// Next position to take from and to return to: indices that only grow (split), or positions
    /// with a wrap counter (packed).
    avail: u16,
    avail_wrap: bool,
    used: u16,
    used_wrap: bool,
}

impl DeviceQueue {
    /// Configures it as enabled by the driver.
    pub(super) fn enable(&mut self, packed: bool, event_idx: bool) {
        (self.packed, self.event_idx, self.enabled) = (packed, event_idx, true);
        (self.avail, self.used) = (0, 0);
        (self.avail_wrap, self.used_wrap) = (true, true);
    }

    fn load16(memory: &ModelMemory, at: u64) -> u16 {
        let mut bytes = [0; 2];
        memory.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// Takes the next buffer; `None` if there is none.
    pub(super) fn pop(&mut self, memory: &ModelMemory) -> Option<Chain> {
        match self.packed {
            true => self.pop_packed(memory),
            false => self.pop_split(memory),
        }
    }

    fn pop_split(&mut self, memory: &ModelMemory) -> Option<Chain> {
        let [descriptors, driver, _] = self.areas;
        if Self::load16(memory, driver + 2) == self.avail {
            return None;
        }
        let place = driver + 4 + 2 * u64::from(self.avail % self.size);
        let id = Self::load16(memory, place);
        let (mut at, mut elements) = (id, Vec::new());
        loop {
            assert!(at < self.size, "a descriptor outside of the table");
            let place = descriptors + 16 * u64::from(at);
            let (address, word) = (memory.load64(place), memory.load64(place + 8));
            let flags = word >> 32 & 0xffff;
            elements.push((address, word as u32, flags & 2 != 0));
            assert!(
                elements.len() <= usize::from(self.size),
                "a chain without end"
            );
            if flags & 1 == 0 {
                break;
            }
            at = (word >> 48) as u16;
        }
        self.avail = self.avail.wrapping_add(1);
        Some(Chain { id, elements })
    }

    fn pop_packed(&mut self, memory: &ModelMemory) -> Option<Chain> {
        let mut elements = Vec::new();
        let (mut at, mut wrap) = (self.avail, self.avail_wrap);
        loop {
            let place = self.areas[0] + 16 * u64::from(at);
            // Flags first: they validate the rest.
            let word = memory.load64(place + 8);
            let address = memory.load64(place);
            let flags = word >> 48;
            let available = (flags >> 7 & 1 != 0) == wrap && (flags >> 15 & 1 != 0) != wrap;
            if !available {
                assert!(
                    elements.is_empty(),
                    "a chain that is not all there (§2.8.17)"
                );
                return None;
            }
            elements.push((address, word as u32, flags & 2 != 0));
            at += 1;
            if at == self.size {
                (at, wrap) = (0, !wrap);
            }
            if flags & 1 == 0 {
                (self.avail, self.avail_wrap) = (at, wrap);
                let id = (word >> 32) as u16;
                return Some(Chain { id, elements });
            }
        }
    }

    /// Returns buffers, visible to the driver all at once: id, length, number of descriptors of
    /// each.
    pub(super) fn push(&mut self, memory: &ModelMemory, used: &[(u32, u32, u16)]) {
        match self.packed {
            true => self.push_packed(memory, used),
            false => self.push_split(memory, used),
        }
    }

    fn push_split(&mut self, memory: &ModelMemory, used: &[(u32, u32, u16)]) {
        let device = self.areas[2];
        for &(id, len, _) in used {
            let place = device + 4 + 8 * u64::from(self.used % self.size);
            memory.write(place, &id.to_le_bytes());
            memory.write(place + 4, &len.to_le_bytes());
            self.used = self.used.wrapping_add(1);
        }
        memory.write(device + 2, &self.used.to_le_bytes());
    }

    fn push_packed(&mut self, memory: &ModelMemory, used: &[(u32, u32, u16)]) {
        let mut writes = Vec::new();
        for &(id, len, count) in used {
            let bits = u64::from(self.used_wrap);
            let word = u64::from(len) | u64::from(id as u16) << 32 | (bits << 7 | bits << 15) << 48;
            writes.push((self.areas[0] + 16 * u64::from(self.used) + 8, word));
            self.used += count;
            if self.used >= self.size {
                self.used -= self.size;
                self.used_wrap = !self.used_wrap;
            }
        }
        // §2.8.9: the first of a group is marked last.
        for (place, word) in writes.into_iter().rev() {
            memory.store64(place, word);
        }
    }

    /// Skips ahead without returning anything, which a driver must survive.
    pub(super) fn jump(&mut self, memory: &ModelMemory, by: u16) {
        assert!(!self.packed);
        self.used = self.used.wrapping_add(by);
        memory.write(self.areas[2] + 2, &self.used.to_le_bytes());
    }

    /// Whether the driver requested a notification of what was pushed since `before` (an earlier
    /// clone).
    pub(super) fn wants_interrupt(&self, memory: &ModelMemory, before: &Self) -> bool {
        let driver = self.areas[1];
        if self.packed {
            return match Self::load16(memory, driver + 2) & 3 {
                0 => true,
                1 => false,
                flags => panic!("event flags {flags}"),
            };
        }
        if !self.event_idx {
            return Self::load16(memory, driver) & 1 == 0;
        }
        let event = Self::load16(memory, driver + 4 + 2 * u64::from(self.size));
        // §2.7.7.2: the index that was written when it was equal to the event.
        let mut at = before.used;
        while at != self.used {
            if at == event {
                return true;
            }
            at = at.wrapping_add(1);
        }
        false
    }

    /// Sets whether the driver must notify the device of the next buffer.
    pub(super) fn want_notification(&self, memory: &ModelMemory, wanted: bool) {
        let device = self.areas[2];
        match (self.packed, self.event_idx) {
            (true, true) if wanted => {
                let place = self.avail | u16::from(self.avail_wrap) << 15;
                memory.write(device, &place.to_le_bytes());
                memory.write(device + 2, &2u16.to_le_bytes());
            }
            (true, _) => {
                memory.write(device + 2, &u16::from(!wanted).to_le_bytes());
            }
            (false, true) => {
                let far = if wanted { 0 } else { 0x8000 };
                let event = self.avail.wrapping_add(far);
                let place = device + 4 + 8 * u64::from(self.size);
                memory.write(place, &event.to_le_bytes());
            }
            (false, false) => {
                memory.write(device, &u16::from(!wanted).to_le_bytes());
            }
        }
    }
}
