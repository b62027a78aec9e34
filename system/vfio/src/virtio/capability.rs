//! The BAR and offset of each structure of the device: the vendor capabilities in PCI configuration
//! space (VIRTIO 1.2 §4.1.4).

use sys::{Error, ErrorKind, Result};

use super::super::driver::REVIVE;

/// Offset of the first capability's offset (PCI 3.0 §6.1).
const CAPABILITIES_POINTER: usize = 0x34;
/// Status register, and its bit for a capability list.
const STATUS: usize = 0x06;
const STATUS_HAS_LIST: u8 = 1 << 4;
/// Type of a vendor capability.
const VENDOR_SPECIFIC: u8 = 0x09;
/// Type of MSI-X (PCI 3.0 §6.8.2).
const MSIX: u8 = 0x11;
/// Maximum number of capabilities in configuration space: a longer list is a loop.
const CAPABILITIES_MAX: usize = 48;

/// Types of structures (§4.1.4, `cfg_type`).
const COMMON_CFG: u8 = 1;
const NOTIFY_CFG: u8 = 2;
const ISR_CFG: u8 = 3;
const DEVICE_CFG: u8 = 4;

/// Length of the part of the common configuration that this driver uses (§4.1.4.3, up to
/// `queue_device`).
pub(super) const COMMON_LEN: u32 = 56;

/// A structure of the device: a range of a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Index of the BAR.
    pub bar: u8,
    /// Offset in the BAR.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// All structures of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Common configuration (§4.1.4.3).
    pub common: Place,
    /// Notifications (§4.1.4.4).
    pub notify: Place,
    /// Distance between two queues' notification addresses, to be multiplied by `queue_notify_off`.
    pub notify_multiplier: u32,
    /// Interrupt status (§4.1.4.5).
    pub isr: Place,
    /// Device configuration (§4.1.4.6).
    pub device: Place,
}

/// Offsets of the capabilities in the list. It terminates on any input.
fn capabilities(config: &[u8]) -> impl Iterator<Item = usize> {
    let byte = |at: usize| config.get(at).copied().unwrap_or(0);
    let first = match byte(STATUS) & STATUS_HAS_LIST {
        0 => 0,
        _ => usize::from(byte(CAPABILITIES_POINTER) & !3),
    };
    // The first 64 bytes are the header.
    let inside = |at: usize| (at >= 0x40).then_some(at);
    let next = move |at: &usize| inside(usize::from(byte(at + 1) & !3));
    std::iter::successors(inside(first), next).take(CAPABILITIES_MAX)
}

/// Whether the device has MSI-X; otherwise it has at most a pin.
pub(super) fn has_msix(config: &[u8]) -> bool {
    capabilities(config).any(|at| config.get(at) == Some(&MSIX))
}

impl Layout {
    /// Reads the capabilities in a copy of configuration space. `bar_len` returns the length of a
    /// BAR that can be mapped, otherwise 0.
    ///
    /// §4.1.4.1: of several structures of a type the first usable one counts; one with an unknown
    /// type or a reserved BAR is skipped.
    ///
    /// # Errors
    /// `Unsupported` if a structure is missing, as on a legacy device.
    pub(super) fn find(config: &[u8], bar_len: impl Fn(u8) -> u64) -> Result<Self> {
        let (mut common, mut notify, mut isr, mut device) = (None, None, None, None);
        let byte = |at: usize| config.get(at).copied().unwrap_or(0);
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| byte(at + i)));
        for at in capabilities(config) {
            let (len, kind, bar) = (byte(at + 2), byte(at + 3), byte(at + 4));
            if byte(at) == VENDOR_SPECIFIC && len >= 16 && bar <= 5 {
                let place = Place {
                    bar,
                    offset: word(at + 8),
                    len: word(at + 12),
                };
                let end = u64::from(place.offset) + u64::from(place.len);
                let usable = end <= bar_len(bar) && place.offset.is_multiple_of(4);
                match kind {
                    COMMON_CFG if usable && place.len >= COMMON_LEN => {
                        common.get_or_insert(place);
                    }
                    NOTIFY_CFG if usable && len >= 20 && place.len >= 2 => {
                        notify.get_or_insert((place, word(at + 16)));
                    }
                    ISR_CFG if end <= bar_len(bar) && place.len >= 1 => {
                        isr.get_or_insert(place);
                    }
                    DEVICE_CFG if usable && place.len >= 8 => {
                        device.get_or_insert(place);
                    }
                    _ => {}
                }
            }
        }
        let missing = |what: &str| {
            let why = format!("it has no {what} structure in a BAR that can be mapped");
            Error::new(ErrorKind::Unsupported, "start a virtio-net device", why).with_hint(
                "only the modern PCI interface is driven; with QEMU: -device \
                 virtio-net-pci,disable-legacy=on",
            )
        };
        let (notify, notify_multiplier) = notify.ok_or_else(|| missing("notification"))?;
        // §4.1.4.4: even, or 0 for one address for all queues.
        if notify_multiplier % 2 != 0 {
            let why = format!("its notification multiplier is {notify_multiplier}, which is odd");
            return Err(
                Error::new(ErrorKind::Damaged, "start a virtio-net device", why).with_hint(REVIVE),
            );
        }
        Ok(Self {
            common: common.ok_or_else(|| missing("common configuration"))?,
            notify,
            notify_multiplier,
            isr: isr.ok_or_else(|| missing("interrupt status"))?,
            device: device.ok_or_else(|| missing("device configuration"))?,
        })
    }

    /// Offset of a queue's address in the notification BAR (§4.1.4.4); `None` if the device puts it
    /// outside of its structure.
    pub(super) fn notify_offset(&self, queue_notify_off: u16) -> Option<u32> {
        let offset = u64::from(queue_notify_off) * u64::from(self.notify_multiplier);
        // Two bytes are written there.
        (offset + 2 <= u64::from(self.notify.len)).then(|| self.notify.offset + offset as u32)
    }
}

/// Adds a capability to a configuration space, before the others.
#[cfg(any(test, feature = "testing"))]
fn add(config: &mut [u8; 256], at: u8, kind: u8, place: Place, more: u32) {
    let index = usize::from(at);
    config[index] = VENDOR_SPECIFIC;
    config[index + 1] = config[CAPABILITIES_POINTER];
    config[index + 2] = if kind == NOTIFY_CFG { 20 } else { 16 };
    config[index + 3] = kind;
    config[index + 4] = place.bar;
    config[index + 8..index + 12].copy_from_slice(&place.offset.to_le_bytes());
    config[index + 12..index + 16].copy_from_slice(&place.len.to_le_bytes());
    if kind == NOTIFY_CFG {
        config[index + 16..index + 20].copy_from_slice(&more.to_le_bytes());
    }
    config[CAPABILITIES_POINTER] = at;
    config[STATUS] |= STATUS_HAS_LIST;
}

#[cfg(any(test, feature = "testing"))]
fn place(offset: u32, len: u32) -> Place {
    let bar = 4;
    Place { bar, offset, len }
}

/// A configuration space with capabilities as in QEMU, for models.
#[cfg(any(test, feature = "testing"))]
pub(super) fn example() -> [u8; 256] {
    notified_at(0x3000, 0x1000)
}

/// The same with the notification structure elsewhere.
#[cfg(any(test, feature = "testing"))]
pub(super) fn notified_at(offset: u32, len: u32) -> [u8; 256] {
    let mut config = [0; 256];
    add(&mut config, 0x40, COMMON_CFG, place(0, 0x1000), 0);
    add(&mut config, 0x50, ISR_CFG, place(0x1000, 0x1000), 0);
    add(&mut config, 0x60, DEVICE_CFG, place(0x2000, 0x1000), 0);
    add(&mut config, 0x70, NOTIFY_CFG, place(offset, len), 4);
    config[0xe0] = MSIX;
    config[0xe1] = config[CAPABILITIES_POINTER];
    config[CAPABILITIES_POINTER] = 0xe0;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(bar: u8) -> u64 {
        if bar == 4 { 0x4000 } else { 0 }
    }

    #[test]
    fn the_capabilities_of_a_modern_device_are_found() {
        let layout = Layout::find(&example(), bars).unwrap();
        assert_eq!(layout.common, place(0, 0x1000));
        assert_eq!(layout.device, place(0x2000, 0x1000));
        assert_eq!(layout.notify_multiplier, 4);
        assert_eq!(layout.notify_offset(3), Some(0x300c));
        assert_eq!(layout.notify_offset(1023), Some(0x3ffc));
        assert_eq!(layout.notify_offset(1024), None);
    }

    #[test]
    fn unusable_capabilities_are_skipped() {
        // Before the valid ones: a reserved BAR, a missing one, and an offset past its end.
        let mut config = example();
        let bar = |bar, offset| Place {
            bar,
            offset,
            len: 0x1000,
        };
        add(&mut config, 0x90, COMMON_CFG, bar(6, 0), 0);
        add(&mut config, 0xa0, COMMON_CFG, bar(1, 0), 0);
        add(&mut config, 0xb0, COMMON_CFG, bar(4, 0x3001), 0);
        add(&mut config, 0xc0, DEVICE_CFG, bar(4, u32::MAX - 3), 0);
        assert_eq!(
            Layout::find(&config, bars).unwrap(),
            Layout::find(&example(), bars).unwrap()
        );
    }

    #[test]
    fn a_looping_or_corrupt_list_ends() {
        let mut config = example();
        config[0x41] = 0x70;
        assert!(Layout::find(&config, bars).is_ok());
        // A list that leads into the header, out of the space, or nowhere.
        for next in [0x04, 0xff, 0] {
            let mut config = [0; 256];
            config[STATUS] = STATUS_HAS_LIST;
            config[CAPABILITIES_POINTER] = next;
            assert!(Layout::find(&config, bars).is_err(), "{next:#x}");
        }
        assert!(Layout::find(&[], bars).is_err());
        let error = Layout::find(&[0; 256], bars).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let mut random = 0x2545_f491_4f6c_dd1du64;
        for _ in 0..20_000 {
            let mut config = example();
            for _ in 0..4 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                config[(random >> 40) as usize % 256] = (random >> 20) as u8;
            }
            if let Ok(layout) = Layout::find(&config, bars) {
                for place in [layout.common, layout.notify, layout.isr, layout.device] {
                    assert!(u64::from(place.offset) + u64::from(place.len) <= bars(place.bar));
                }
            }
        }
    }
}
