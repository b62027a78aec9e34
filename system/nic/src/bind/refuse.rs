//! Reasons to leave a card where it is.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use sys::link::Link;
use sys::netlink::{Message, NLM_F_DUMP, Socket};
use sys::pci::PciFunction;
use sys::{Error, ErrorKind, Result};

use super::{Place, VFIO};
use crate::card::{Card, is_network_card};
use crate::interface::has_default_route;

const FORCE: &str = "--force does it anyway";

fn refused(card: &Card, kind: ErrorKind, why: String) -> Error {
    Error::new(kind, format!("give {} away", card.address), why)
}

/// Only network cards change hands here.
pub(super) fn other_devices(function: &PciFunction) -> Result<()> {
    if is_network_card(function) {
        return Ok(());
    }
    let address = function.address();
    let why = match function.class() {
        Ok(class) => format!("it is no network card (class {class:06x})"),
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
    let why = "it is in no IOMMU group: this machine has no IOMMU, or it is switched off";
    Err(refused(card, ErrorKind::Unsupported, why.into()).with_hint(
        "switch VT-d or AMD-Vi on in the firmware, and boot with intel_iommu=on (Intel); \
         `barewire doctor` tells what is there",
    ))
}

/// A group's members reach each other's memory, so the kernel hands over all or none.
pub(super) fn shared_group(card: &Card) -> Result<()> {
    let driven = |driver: &Option<String>| driver.as_deref().is_some_and(|name| name != VFIO);
    let Some((other, driver)) = card.companions.iter().find(|(_, driver)| driven(driver)) else {
        return Ok(());
    };
    let why = format!(
        "its IOMMU group {} also has {other}, which {} drives: the kernel gives the group to a \
         process as a whole",
        card.group.unwrap_or_default(),
        driver.as_deref().unwrap_or_default(),
    );
    let hint = format!(
        "take {other} from its driver first, or put the card into a slot of its own; {FORCE}, and \
         the port then opens when {other} is free too"
    );
    Err(refused(card, ErrorKind::Busy, why).with_hint(hint))
}

/// Somebody reaches the machine, or something else, through its interface.
pub(super) fn in_use_by_kernel(place: &Place, function: &PciFunction, card: &Card) -> Result<()> {
    let virtual_functions = fs::read_to_string(function.dir().join("sriov_numvfs"));
    let count: u32 = virtual_functions.map_or(0, |text| text.trim().parse().unwrap_or(0));
    if count != 0 {
        let why = format!("{count} virtual functions of it are in use, and would vanish with it");
        let file = function.dir().join("sriov_numvfs");
        return Err(refused(card, ErrorKind::Busy, why)
            .with_hint(format!("echo 0 > {}; {FORCE}", file.display())));
    }
    for name in &card.interfaces {
        if let Some(why) = interface_in_use(place, name) {
            return Err(refused(card, ErrorKind::Busy, why).with_hint(FORCE));
        }
    }
    Ok(())
}

fn interface_in_use(place: &Place, name: &str) -> Option<String> {
    let folder = place.sys.join("class/net").join(name);
    if let Ok(entries) = fs::read_dir(&folder) {
        for entry in entries.flatten() {
            let entry = entry.file_name().to_string_lossy().into_owned();
            if let Some(upper) = entry.strip_prefix("upper_") {
                return Some(format!("its interface {name} is part of {upper}"));
            }
        }
    }
    if has_default_route(name) {
        return Some(format!(
            "the default route leaves by its interface {name}: the machine would be cut off"
        ));
    }
    let link = Link::by_name(name).ok()?;
    if let Some(xdp) = link.xdp.first() {
        let id = xdp.program_id;
        return Some(format!("XDP program {id} is on its interface {name}"));
    }
    let addresses = addresses(link.index).unwrap_or_default();
    let ours = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let at = ours.split_whitespace().nth(2);
    let at = at.and_then(|text| text.parse::<IpAddr>().ok());
    if at.is_some_and(|at| addresses.contains(&at)) {
        return Some(format!(
            "this very session came through its interface {name}"
        ));
    }
    let address = addresses
        .into_iter()
        .find(|address| !is_link_local(address))?;
    Some(format!("its interface {name} has the address {address}"))
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The addresses of an interface (rtnetlink(7), `struct ifaddrmsg`).
fn addresses(ifindex: u32) -> Result<Vec<IpAddr>> {
    const INFO_LEN: usize = 8;
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    /// `RTM_GETADDR`.
    const GET: u16 = 22;
    let ask = Message::new(GET, NLM_F_DUMP).raw(&[0; INFO_LEN]);
    let replies = Socket::route()?.request("list the addresses", ask)?;
    let mut found = Vec::new();
    for reply in &replies {
        let index = reply.body.get(4..8).and_then(|bytes| bytes.first_chunk());
        if index.map(|bytes| u32::from_ne_bytes(*bytes)) != Some(ifindex) {
            continue;
        }
        let mut address = None;
        for (kind, value) in reply.attributes(INFO_LEN) {
            // On a point-to-point link the second is the other end's unless there is the first.
            if kind == IFA_LOCAL || kind == IFA_ADDRESS && address.is_none() {
                address = parse(value).or(address);
            }
        }
        found.extend(address);
    }
    Ok(found)
}

fn parse(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
        16 => value.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
        _ => None,
    }
}

/// A process drives it: taking it away would wait in the kernel until the process ends.
pub(super) fn in_use_by_process(place: &Place, function: &PciFunction, card: &Card) -> Result<()> {
    let Some((pid, name)) = user(place, function, card) else {
        return Ok(());
    };
    let why = format!("process {pid} ({name}) drives it");
    Err(refused(card, ErrorKind::Busy, why).with_hint(format!("end process {pid} first")))
}

/// The process that has the card's VFIO device open, or the device of its group.
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
