//! The registers of a modern virtio PCI device (VIRTIO 1.2 §4.1.4): common configuration,
//! notifications, device configuration, each at the position given by the device's capabilities.

use std::time::Duration;

use sys::{Error, ErrorKind, Result};

use super::super::driver::{Function, REVIVE};
use super::super::registers::Registers;
use super::capability::{self, Layout};
use super::feature::Features;
use super::ring::Ring;

/// Common configuration (§4.1.4.3).
mod common {
    pub const DEVICE_FEATURE_SELECT: u32 = 0;
    pub const DEVICE_FEATURE: u32 = 4;
    pub const DRIVER_FEATURE_SELECT: u32 = 8;
    pub const DRIVER_FEATURE: u32 = 12;
    pub const CONFIG_MSIX_VECTOR: u32 = 16;
    pub const NUM_QUEUES: u32 = 18;
    pub const DEVICE_STATUS: u32 = 20;
    pub const CONFIG_GENERATION: u32 = 21;
    pub const QUEUE_SELECT: u32 = 22;
    pub const QUEUE_SIZE: u32 = 24;
    pub const QUEUE_MSIX_VECTOR: u32 = 26;
    pub const QUEUE_ENABLE: u32 = 28;
    pub const QUEUE_NOTIFY_OFF: u32 = 30;
    /// 64-bit addresses of descriptor area, driver area and device area.
    pub const QUEUE_AREAS: [u32; 3] = [32, 40, 48];
}

/// Device status (§2.1).
pub(super) mod status {
    /// Writing 0 resets the device.
    pub const RESET: u8 = 0;
    /// The driver has found the device.
    pub const ACKNOWLEDGE: u8 = 1;
    /// The driver supports the device.
    pub const DRIVER: u8 = 2;
    /// The driver is ready.
    pub const DRIVER_OK: u8 = 4;
    /// The features are negotiated.
    pub const FEATURES_OK: u8 = 8;
    /// The device cannot continue.
    pub const NEEDS_RESET: u8 = 64;
    /// The driver gave up.
    pub const FAILED: u8 = 128;
    /// Value read from a removed device.
    pub const GONE: u8 = 0xff;
}

/// No vector (§4.1.4.3).
const NO_VECTOR: u16 = 0xffff;

/// Number of polls of the status for a reset to complete, 10 µs apart (a second: §2.4.1 sets no
/// limit, and a device that drains its queues first takes its time).
const RESET_LOOKS: u32 = 100_000;

/// Number of attempts to read a configuration that does not change meanwhile.
const CONFIG_TRIES: u32 = 16;

/// Notifies the device of new buffers in a queue (§4.1.4.4).
#[derive(Clone)]
pub(super) struct Doorbell<G> {
    registers: G,
    offset: u32,
    queue: u16,
}

impl<G: Registers> Doorbell<G> {
    /// Notifies the device. On a virtual machine this is the expensive part: the processor leaves
    /// the guest.
    #[inline]
    pub(super) fn ring(&self) {
        self.registers.write16(self.offset, self.queue);
    }
}

/// Registers of a device; see the module documentation.
#[derive(Clone)]
pub(super) struct Transport<G> {
    layout: Layout,
    common: G,
    notify: G,
    device: G,
    /// The interrupt status, for a device that has only a pin.
    pin: Option<G>,
}

impl<G: Registers> Transport<G> {
    /// Finds the structures of a function.
    ///
    /// # Errors
    /// As [`Layout::find`].
    pub(super) fn open<F: Function<Registers = G>>(function: &F) -> Result<Self> {
        let mut config = [0; 256];
        function.read_config(0, &mut config);
        let bars: Vec<Option<G>> = (0..6).map(|bar| function.bar(bar).ok()).collect();
        let there = |bar: u8| bars.get(usize::from(bar)).and_then(Option::as_ref);
        // A doorbell past the end of a BAR would be lost.
        let layout = Layout::find(&config, |bar| there(bar).map_or(0, |bar| bar.len().into()))?;
        let take = |bar: u8| {
            let why = "a BAR is not there";
            let missing = Error::new(ErrorKind::Unsupported, "start a virtio-net device", why)
                .with_hint(REVIVE);
            there(bar).cloned().ok_or(missing)
        };
        Ok(Self {
            layout,
            common: take(layout.common.bar)?,
            notify: take(layout.notify.bar)?,
            device: take(layout.device.bar)?,
            pin: match capability::has_msix(&config) {
                true => None,
                false => Some(take(layout.isr.bar)?),
            },
        })
    }

    /// Deasserts the interrupt pin by reading the status (§4.1.4.5). Nothing to do with MSI-X.
    pub(super) fn quiet_pin(&self) {
        if let Some(isr) = &self.pin {
            isr.read8(self.layout.isr.offset);
        }
    }

    /// Offset of a field of the common configuration in its BAR.
    #[inline(always)]
    fn at(&self, field: u32) -> u32 {
        self.layout.common.offset + field
    }

    /// The device status (§2.1).
    pub(super) fn status(&self) -> u8 {
        self.common.read8(self.at(common::DEVICE_STATUS))
    }

    /// Sets bits of the device status, which are only cleared by a reset (§2.1.1).
    pub(super) fn add_status(&self, bits: u8) {
        let status = self.status() | bits;
        self.common.write8(self.at(common::DEVICE_STATUS), status);
    }

    /// Resets the device and waits for completion (§2.4, §4.1.4.3.2: the status reads 0). It
    /// accesses no memory then. Returns false if it does not complete.
    pub(super) fn reset(&self) -> bool {
        let place = self.at(common::DEVICE_STATUS);
        self.common.write8(place, status::RESET);
        for _ in 0..RESET_LOOKS {
            match self.common.read8(place) {
                status::RESET => return true,
                status::GONE => return false,
                _ => std::thread::sleep(Duration::from_micros(10)),
            }
        }
        false
    }

    /// The features that the device offers (§2.2).
    pub(super) fn offered(&self) -> Features {
        let half = |select: u32| {
            self.common
                .write32(self.at(common::DEVICE_FEATURE_SELECT), select);
            u64::from(self.common.read32(self.at(common::DEVICE_FEATURE)))
        };
        half(0) | half(1) << 32
    }

    /// Negotiates the features: writes them, sets FEATURES_OK, and checks whether the device
    /// accepts them (§3.1.1, steps 4 to 6).
    ///
    /// # Errors
    /// `Unsupported` if it does not.
    pub(super) fn settle(&self, features: Features) -> Result<()> {
        for select in 0..2 {
            self.common
                .write32(self.at(common::DRIVER_FEATURE_SELECT), select);
            let half = (features >> (32 * select)) as u32;
            self.common.write32(self.at(common::DRIVER_FEATURE), half);
        }
        self.add_status(status::FEATURES_OK);
        if self.status() & status::FEATURES_OK == 0 {
            let why = format!(
                "it does not agree to the features {}",
                super::feature::names(features)
            );
            return Err(
                Error::new(ErrorKind::Unsupported, "start a virtio-net device", why)
                    .with_hint(REVIVE),
            );
        }
        Ok(())
    }

    /// Number of queues of the device.
    pub(super) fn queue_count(&self) -> u16 {
        self.common.read16(self.at(common::NUM_QUEUES))
    }

    /// Selects a queue; returns its maximum length, 0 if it does not exist (§4.1.4.3.1).
    pub(super) fn queue_size_max(&self, queue: u16) -> u16 {
        self.common.write16(self.at(common::QUEUE_SELECT), queue);
        match self.common.read16(self.at(common::QUEUE_SIZE)) {
            u16::MAX => 0,
            size => size,
        }
    }

    /// Sets up a queue and enables it (§4.1.5.1.3); returns its doorbell.
    ///
    /// # Errors
    /// If the device refuses the length or the vector, or has a notification address outside of its
    /// structure.
    pub(super) fn enable<R: Ring>(
        &self,
        queue: u16,
        size: u16,
        ring: &R,
        vector: Option<u16>,
    ) -> Result<Doorbell<G>> {
        let refuse = |why: String| {
            Error::new(
                ErrorKind::Unsupported,
                format!("set up queue {queue} of a virtio-net device"),
                why,
            )
            .with_hint("fewer queues=, a shorter ring=; with QEMU, more vectors=")
        };
        let most = self.queue_size_max(queue);
        if size > most {
            return Err(refuse(format!(
                "it takes {most} entries and {size} are wanted"
            )));
        }
        self.common.write16(self.at(common::QUEUE_SIZE), size);
        for (field, address) in common::QUEUE_AREAS.into_iter().zip(ring.areas()) {
            self.common.write64(self.at(field), address);
        }
        // Without MSI-X there is no such field.
        let vector = vector.filter(|_| self.pin.is_none());
        let field = self.at(common::QUEUE_MSIX_VECTOR);
        if self.pin.is_none() {
            self.common.write16(field, vector.unwrap_or(NO_VECTOR));
        }
        // §4.1.5.1.2.1: a device without room for a vector reports it here.
        if vector.is_some() && self.common.read16(field) == NO_VECTOR {
            return Err(refuse("it has no interrupt vector left".into()));
        }
        let notify_off = self.common.read16(self.at(common::QUEUE_NOTIFY_OFF));
        let offset = self.layout.notify_offset(notify_off).ok_or_else(|| {
            refuse("its notification address lies outside of its structure".into())
        })?;
        self.common.write16(self.at(common::QUEUE_ENABLE), 1);
        Ok(Doorbell {
            registers: self.notify.clone(),
            offset,
            queue,
        })
    }

    /// Disables interrupts for configuration changes: the control side polls.
    pub(super) fn no_config_interrupts(&self) {
        if self.pin.is_none() {
            self.common
                .write16(self.at(common::CONFIG_MSIX_VECTOR), NO_VECTOR);
        }
    }

    /// Reads the device configuration consistently (§2.5.1: the generation is the same before and
    /// after).
    pub(super) fn config<T>(&self, read: impl Fn(&Self) -> T) -> T {
        let generation = || self.common.read8(self.at(common::CONFIG_GENERATION));
        for _ in 0..CONFIG_TRIES {
            let before = generation();
            let value = read(self);
            if generation() == before {
                return value;
            }
        }
        read(self)
    }

    /// Reads a byte of the device configuration (§5.1.4); used in [`Transport::config`].
    pub(super) fn config8(&self, field: u32) -> u8 {
        match field < self.layout.device.len {
            true => self.device.read8(self.layout.device.offset + field),
            false => 0,
        }
    }

    /// Reads two bytes of the device configuration.
    pub(super) fn config16(&self, field: u32) -> u16 {
        match field + 2 <= self.layout.device.len {
            true => self.device.read16(self.layout.device.offset + field),
            false => 0,
        }
    }
}
