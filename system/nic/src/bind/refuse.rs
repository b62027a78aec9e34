//! Reasons not to change a card's driver.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use sys::link::Link;
use sys::pci::PciFunction;
use sys::{Error, ErrorKind, Result};

use super::{Place, VFIO};
use crate::card::{Card, is_network_card};
use crate::host_dependency::host_dependency;

const FORCE: &str = "--force overrides this";

fn refused(card: &Card, kind: ErrorKind, why: String) -> Error {
    Error::new(kind, format!("give {} away", card.address), why)
}

/// Only network cards are bound to another driver here.
pub(super) fn other_devices(function: &PciFunction) -> Result<()> {
    if is_network_card(function) {
        return Ok(());
    }
    let address = function.address();
    let why = match function.class() {
        Ok(class) => format!("it is not a network card (class {class:06x})"),
        Err(error) => error.to_string(),
    };
    let what = format!("change the driver of {address}");
    Err(Error::new(ErrorKind::InvalidInput, what, why)
        .with_hint("`barewire nic list` shows the network cards"))
}

/// Without an IOMMU a card could write anywhere in memory.
pub(super) fn no_iommu(card: &Card) -> Result<()> {
    if card.group.is_some() {
        return Ok(());
    }
    let why = "it has no IOMMU group: this machine has no IOMMU, or it is disabled";
    Err(refused(card, ErrorKind::Unsupported, why.into()).with_hint(
        "enable VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on (Intel); `barewire \
         doctor` shows the IOMMU's state",
    ))
}

/// The members of a group can access each other's memory, so all of them must be given away
/// together.
pub(super) fn shared_group(card: &Card) -> Result<()> {
    let driven = |driver: &Option<String>| driver.as_deref().is_some_and(sys::vfio::keeps_dma);
    let Some((other, driver)) = card.companions.iter().find(|(_, driver)| driven(driver)) else {
        return Ok(());
    };
    let why = format!(
        "its IOMMU group {} also contains {other}, bound to {}: the kernel assigns a group to a \
         process only as a whole",
        card.group.unwrap_or_default(),
        driver.as_deref().unwrap_or_default(),
    );
    let hint = format!(
        "unbind {other} from its driver first, or move the card to another slot; {FORCE}, but the \
         port opens only when {other} is free too"
    );
    Err(refused(card, ErrorKind::Busy, why).with_hint(hint))
}

/// The interface is needed to reach this machine or another host.
pub(super) fn in_use_by_kernel(place: &Place, function: &PciFunction, card: &Card) -> Result<()> {
    let virtual_functions = fs::read_to_string(function.dir().join("sriov_numvfs"));
    let count: u32 = virtual_functions.map_or(0, |text| text.trim().parse().unwrap_or(0));
    if count != 0 {
        let why = format!("{count} of its virtual functions are in use and would disappear");
        let file = function.dir().join("sriov_numvfs");
        return Err(refused(card, ErrorKind::Busy, why)
            .with_hint(format!("echo 0 > {}; {FORCE}", file.display())));
    }
    let driver = card.driver.as_ref().filter(|driver| *driver != VFIO);
    if let (true, Some(driver)) = (card.interfaces.is_empty(), driver) {
        let why = format!(
            "it is bound to {driver}, but its interface is not visible: it may be in use in \
             another network namespace"
        );
        let hint = format!("run `ip netns exec NAME barewire nic bind …` there; {FORCE}");
        return Err(refused(card, ErrorKind::Busy, why).with_hint(hint));
    }
    for name in &card.interfaces {
        let why = match part_of(place, name) {
            None if place.is_live => interface_in_use(name).unwrap_or_else(|error| {
                Some(format!(
                    "barewire cannot determine whether {name} is in use: {error}"
                ))
            }),
            why => why,
        };
        if let Some(why) = why {
            return Err(refused(card, ErrorKind::Busy, why).with_hint(FORCE));
        }
    }
    Ok(())
}

/// The interface of which this one is a part (`upper_NAME` in its directory, net/core/dev.c).
fn part_of(place: &Place, name: &str) -> Option<String> {
    let folder = place.sys.join("class/net").join(name);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let entry = entry.file_name().to_string_lossy().into_owned();
        if let Some(upper) = entry.strip_prefix("upper_") {
            return Some(format!("its interface {name} is part of {upper}"));
        }
    }
    None
}

fn interface_in_use(name: &str) -> Result<Option<String>> {
    if let Some(why) = host_dependency(name) {
        return Ok(Some(why));
    }
    let link = Link::by_name(name)?;
    if let Some(xdp) = link.xdp.first() {
        let id = xdp.program_id;
        return Ok(Some(format!(
            "XDP program {id} is attached to its interface {name}"
        )));
    }
    let mut addresses = sys::address::of(link.index)?
        .into_iter()
        .map(|own| own.addr);
    let address = addresses.find(|address| !is_link_local(address));
    Ok(address.map(|address| format!("its interface {name} has the address {address}")))
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// A process uses it: unbinding would block in the kernel until that process ends.
pub(super) fn in_use_by_process(place: &Place, function: &PciFunction, card: &Card) -> Result<()> {
    let Some((pid, name)) = user(place, function, card) else {
        return Ok(());
    };
    let why = format!("process {pid} ({name}) uses it");
    Err(refused(card, ErrorKind::Busy, why).with_hint(format!("end process {pid} first")))
}

/// The process that has the card's VFIO device, or that of its group, open.
pub(super) fn user(place: &Place, function: &PciFunction, card: &Card) -> Option<(u32, String)> {
    if card.driver.as_deref() != Some(VFIO) {
        return None;
    }
    let mut devices = Vec::new();
    devices.extend(card.group.map(|group| format!("/dev/vfio/{group}")));
    devices.extend(
        function
            .vfio_device()
            .map(|name| format!("/dev/vfio/devices/{name}")),
    );
    for entry in fs::read_dir(&place.proc).into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        if has_open(&entry.path(), &devices) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim().to_owned()));
        }
    }
    None
}

fn has_open(process: &Path, devices: &[String]) -> bool {
    let files = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    files
        .filter_map(|file| fs::read_link(file.path()).ok())
        .any(|target| devices.iter().any(|device| Path::new(device) == target))
}
