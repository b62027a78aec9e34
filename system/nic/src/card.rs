//! Network cards on PCI: the driver of each, and the devices in its IOMMU group.

use std::fs;

use sys::Result;
use sys::pci::{PciAddress, PciFunction};

use crate::bind::Place;

/// Class of network controllers in the upper byte of a function's class (PCI Code and ID Assignment
/// Specification §1.3).
const CLASS_NETWORK: u32 = 0x02;
/// Class and subclass of bridges between PCI buses (§1.7): they forward packets for the devices
/// behind them and are never given to a process.
const CLASS_PCI_BRIDGE: u32 = 0x0604;

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its address.
    pub address: PciAddress,
    /// Vendor and device id.
    pub id: (u16, u16),
    /// The driver that is bound, if any.
    pub driver: Option<String>,
    /// Its IOMMU group; none if there is no IOMMU.
    pub group: Option<u32>,
    /// Other functions of the group that are not bridges, with their drivers.
    pub companions: Vec<(PciAddress, Option<String>)>,
    /// Names of the kernel's interfaces on it.
    pub interfaces: Vec<String>,
}

impl Card {
    /// Reads the properties of a function.
    ///
    /// # Errors
    /// If sysfs does not have it.
    pub(crate) fn of(function: &PciFunction) -> Result<Self> {
        let address = function.address();
        let companions = function
            .group_members()
            .iter()
            .filter(|member| member.address() != address && !is_bridge(member))
            .map(|member| (member.address(), member.driver()))
            .collect();
        Ok(Self {
            address,
            id: function.id()?,
            driver: function.driver(),
            group: function.iommu_group(),
            companions,
            interfaces: function.interfaces(),
        })
    }
}

/// All network cards, by address.
///
/// # Errors
/// When sysfs cannot be read.
pub fn cards() -> Result<Vec<Card>> {
    cards_in(&Place::default())
}

/// Like [`cards`], for the directories of `place`.
///
/// # Errors
/// When sysfs cannot be read.
pub fn cards_in(place: &Place) -> Result<Vec<Card>> {
    let bus = place.bus();
    // A machine without PCI has no cards.
    let entries = fs::read_dir(bus.join("devices")).into_iter().flatten();
    let mut addresses: Vec<PciAddress> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    addresses.sort();
    let functions = addresses
        .into_iter()
        .filter_map(|address| PciFunction::find_under(&bus, address).ok());
    functions
        .filter(is_network_card)
        .map(|function| Card::of(&function))
        .collect()
}

pub(crate) fn is_network_card(function: &PciFunction) -> bool {
    function
        .class()
        .is_ok_and(|class| class >> 16 == CLASS_NETWORK)
}

pub(crate) fn is_bridge(function: &PciFunction) -> bool {
    function
        .class()
        .is_ok_and(|class| class >> 8 == CLASS_PCI_BRIDGE)
}
