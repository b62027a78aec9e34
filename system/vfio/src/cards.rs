//! The supported cards, by PCI id.

use sys::Result;

use super::driver::Driver;
use super::e1000::E1000;
use super::function::VfioFunction;
use super::igb::Igb;
use super::virtio::{Packed, Split, VirtioNet, is_packed};

/// An operation on a driver of any type.
pub trait Visitor {
    /// Result of the operation.
    type Output;

    /// Called with the driver of the card.
    ///
    /// # Errors
    /// The visitor's own.
    fn visit<D: Driver>(self, driver: D) -> Result<Self::Output>;
}

/// A row in the table of cards.
pub struct Card {
    vendor: u16,
    device: u16,
    name: &'static str,
    family: Family,
}

/// Driver of a card.
#[derive(Clone, Copy)]
enum Family {
    Igb,
    E1000,
    Virtio,
}

const INTEL: u16 = 0x8086;
const VIRTIO: u16 = 0x1af4;

/// All supported cards. A driver is a directory here and its rows.
///
/// Tested are those that QEMU emulates: 8086:10c9, 8086:100e and 1af4:1041. The others are included
/// by their datasheets, which show no difference relevant to a driver. Not included: the 82576 with
/// fiber or SerDes (8086:10e6, 10e7, 1518, 150d), whose link nothing in the driver brings up.
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

impl Card {
    /// Its name for users.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Opens the function with the card's driver, and passes that to `visitor`.
    ///
    /// # Errors
    /// The driver's, if the card does not respond as expected; the visitor's.
    // The visitor comes first, so that it is dropped after the function if opening fails: it may
    // hold what the card was borrowed by.
    pub fn drive<V: Visitor>(&self, visitor: V, function: VfioFunction) -> Result<V::Output> {
        match self.family {
            Family::Igb => visitor.visit(Igb::open(function)?),
            Family::E1000 => visitor.visit(E1000::open(function)?),
            // The device determines the type of its rings.
            Family::Virtio => match is_packed(&function)? {
                true => visitor.visit(VirtioNet::<_, Packed>::open(function)?),
                false => visitor.visit(VirtioNet::<_, Split>::open(function)?),
            },
        }
    }
}

const fn igb(device: u16, name: &'static str) -> Card {
    Card {
        vendor: INTEL,
        device,
        name,
        family: Family::Igb,
    }
}

const fn e1000(device: u16, name: &'static str) -> Card {
    Card {
        vendor: INTEL,
        device,
        name,
        family: Family::E1000,
    }
}

/// VIRTIO 1.2 §4.1.2: 0x1040 plus the device type, or the transitional number.
const fn virtio(device: u16, name: &'static str) -> Card {
    Card {
        vendor: VIRTIO,
        device,
        name,
        family: Family::Virtio,
    }
}

/// The row of a card, by vendor and device id; `None` without a driver for it.
pub fn find((vendor, device): (u16, u16)) -> Option<&'static Card> {
    CARDS
        .iter()
        .find(|card| (card.vendor, card.device) == (vendor, device))
}

/// The names of all supported cards.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = CARDS.iter().map(|card| card.name).collect();
    names.dedup();
    names
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
        // Nothing would bring up its link.
        for device in [0x10e6, 0x10e7, 0x1518, 0x150d] {
            assert!(find((0x8086, device)).is_none(), "{device:x}");
        }
    }
}
