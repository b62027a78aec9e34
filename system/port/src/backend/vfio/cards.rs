//! The cards that have a driver here, by PCI id.

use sys::pci::PciFunction;
use sys::{Error, ErrorKind, Result};

use super::core::Lent;
use super::e1000::E1000;
use super::function::VfioFunction;
use super::igb::Igb;
use super::virtio::{Packed, Split, VirtioNet, is_packed};
use super::{BACKEND, Driver, assemble};
use crate::open::{Port, PortName};
use crate::options::PortOptions;

/// A row of the table.
pub(super) struct Card {
    vendor: u16,
    device: u16,
    /// Its name for people.
    pub name: &'static str,
    /// Makes a port of it.
    pub open: fn(Lent, VfioFunction, &PortName, &PortOptions) -> Result<Port>,
}

const INTEL: u16 = 0x8086;
const VIRTIO: u16 = 0x1af4;

/// Every card that can be opened. A driver is a folder here and its rows.
///
/// Tried are those that QEMU emulates: 8086:10c9, 8086:100e and 1af4:1041. The others are here by
/// their datasheets, which know no difference that a driver sees. Not here: the 82576 with fiber or
/// SerDes (8086:10e6, 10e7, 1518, 150d), whose link nothing in the driver brings up.
const CARDS: &[Card] = &[
    igb(0x10c9, "Intel 82576"),
    igb(0x10e8, "Intel 82576 quad copper"),
    igb(0x1526, "Intel 82576 quad copper ET2"),
    igb(0x150a, "Intel 82576 NS"),
    e1000(0x100e, "Intel 82540EM"),
    e1000(0x1015, "Intel 82540EM LOM"),
    e1000(0x1016, "Intel 82540EP LOM"),
    e1000(0x1017, "Intel 82540EP"),
    e1000(0x101e, "Intel 82540EP LP"),
    e1000(0x100f, "Intel 82545EM"),
    e1000(0x1026, "Intel 82545GM"),
    e1000(0x1010, "Intel 82546EB"),
    e1000(0x1079, "Intel 82546GB"),
    virtio(0x1041, "virtio-net"),
    virtio(0x1000, "virtio-net, transitional"),
];

/// Makes a port by one driver. What is lent stands first, so that it goes last where this fails.
fn open<D: Driver<Function = VfioFunction>>(
    lent: Lent,
    function: VfioFunction,
    name: &PortName,
    options: &PortOptions,
) -> Result<Port> {
    let via = function.via();
    assemble(lent, D::open(function)?, name, options, via)
}

const fn igb(device: u16, name: &'static str) -> Card {
    Card {
        vendor: INTEL,
        device,
        name,
        open: open::<Igb<VfioFunction>>,
    }
}

const fn e1000(device: u16, name: &'static str) -> Card {
    Card {
        vendor: INTEL,
        device,
        name,
        open: open::<E1000<VfioFunction>>,
    }
}

/// VIRTIO 1.2 §4.1.2: 0x1040 and the device type, or the transitional number. Which rings it has is
/// asked of the device.
const fn virtio(device: u16, name: &'static str) -> Card {
    Card {
        vendor: VIRTIO,
        device,
        name,
        open: |lent, function, name, options| match is_packed(&function)? {
            true => open::<VirtioNet<VfioFunction, Packed>>(lent, function, name, options),
            false => open::<VirtioNet<VfioFunction, Split>>(lent, function, name, options),
        },
    }
}

/// The row of a card.
pub(super) fn find((vendor, device): (u16, u16)) -> Option<&'static Card> {
    CARDS
        .iter()
        .find(|card| (card.vendor, card.device) == (vendor, device))
}

/// The error for a function that no row knows.
pub(super) fn unknown(pci: &PciFunction, (vendor, device): (u16, u16)) -> Error {
    let what = format!("open {}:{}", BACKEND.scheme, pci.address());
    let why = match pci.class() {
        Ok(class) if class >> 16 != 0x02 => {
            format!("{vendor:04x}:{device:04x} is no network card (class {class:06x})")
        }
        _ => format!("there is no driver for {vendor:04x}:{device:04x} here"),
    };
    let mut names: Vec<&str> = CARDS.iter().map(|card| card.name).collect();
    names.dedup();
    Error::new(ErrorKind::Unsupported, what, why).with_hint(format!(
        "drivers: {}; with the kernel's driver the card works as afxdp:INTERFACE",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_card_has_one_row() {
        for (at, card) in CARDS.iter().enumerate() {
            let same = |other: &Card| (other.vendor, other.device) == (card.vendor, card.device);
            assert_eq!(CARDS.iter().position(same), Some(at), "{}", card.name);
        }
        assert_eq!(
            find((0x8086, 0x10c9)).map(|card| card.name),
            Some("Intel 82576")
        );
        assert!(find((0x8086, 0xffff)).is_none());
        // Nobody would bring up its link.
        for device in [0x10e6, 0x10e7, 0x1518, 0x150d] {
            assert!(find((0x8086, device)).is_none(), "{device:x}");
        }
    }
}
