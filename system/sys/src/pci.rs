//! PCI functions in sysfs (`Documentation/ABI/testing/sysfs-bus-pci` of the kernel): their
//! identity, driver and IOMMU group, and how to bind them to another driver.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::{Error, ErrorKind, Result};

/// Address of a function: `0000:00:01.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Segment group; 0 on most machines.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus, 0 to 31.
    pub device: u8,
    /// Function of the device, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    /// Parses an address with or without the domain: `0000:00:01.0` or `00:01.0`.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            let hex = |digits: &str| {
                let sound = (1..=8).contains(&digits.len())
                    && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                sound.then(|| u32::from_str_radix(digits, 16).ok())?
            };
            let device = hex(device).filter(|&device| device < 32)?;
            let function = hex(function).filter(|&function| function < 8)?;
            Some(Self {
                domain: hex(domain)?,
                bus: u8::try_from(hex(bus)?).ok()?,
                device: device as u8,
                function: function as u8,
            })
        };
        parse().ok_or_else(|| {
            let why = "a PCI address looks like 0000:00:01.0";
            Error::new(
                ErrorKind::InvalidInput,
                format!("read {text:?} as a PCI address"),
                why,
            )
            .with_hint("lspci -D lists them")
        })
    }
}

/// One address range of a function (BAR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarRange {
    /// Number of the BAR, 0 to 5.
    pub index: u8,
    /// First bus address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Whether it is memory, not IO ports.
    pub is_memory: bool,
}

/// A PCI function in sysfs.
#[derive(Clone, Debug)]
pub struct PciFunction {
    address: PciAddress,
    /// `/sys/bus/pci`, or a copy of it in tests.
    bus: PathBuf,
}

/// The directory of PCI in sysfs.
const BUS: &str = "/sys/bus/pci";

/// `IORESOURCE_MEM` in the flags of a resource (`include/linux/ioport.h`).
const RESOURCE_MEMORY: u64 = 0x200;

impl PciFunction {
    /// The function at this address.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn find(address: PciAddress) -> Result<Self> {
        Self::find_under(Path::new(BUS), address)
    }

    /// The same in a copy of `/sys/bus/pci`.
    pub fn find_under(bus: &Path, address: PciAddress) -> Result<Self> {
        let function = Self {
            address,
            bus: bus.to_owned(),
        };
        if function.dir().is_dir() {
            return Ok(function);
        }
        let what = format!("find PCI function {address}");
        Err(Error::new(
            ErrorKind::NotFound,
            what,
            "there is no device at this address",
        )
        .with_hint("lspci -D lists them"))
    }

    /// Every function, by address.
    pub fn all() -> Result<Vec<Self>> {
        let dir = Path::new(BUS).join("devices");
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            // The machine has no PCI.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::from_io(format!("list {}", dir.display()), error)),
        };
        let mut all: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .map(|address| Self {
                address,
                bus: BUS.into(),
            })
            .collect();
        all.sort_by_key(|function| function.address);
        Ok(all)
    }

    /// The PCI function to which a network interface of the kernel belongs, if any.
    pub fn of_interface(ifname: &str) -> Option<Self> {
        let device = fs::canonicalize(format!("/sys/class/net/{ifname}/device")).ok()?;
        // A virtio card's device is a child of the function.
        device
            .ancestors()
            .find_map(|dir| dir.file_name()?.to_str()?.parse().ok())
            .and_then(|address| Self::find(address).ok())
    }

    /// Its address.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Its directory in sysfs.
    pub fn dir(&self) -> PathBuf {
        self.bus.join("devices").join(self.address.to_string())
    }

    fn read(&self, name: &str) -> Result<String> {
        let file = self.dir().join(name);
        let text = fs::read_to_string(&file)
            .map_err(|error| Error::from_io(format!("read {}", file.display()), error))?;
        Ok(text.trim().to_owned())
    }

    fn read_hex(&self, name: &str) -> Result<u32> {
        let text = self.read(name)?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|_| {
            let what = format!("read {name} of PCI function {}", self.address);
            Error::new(ErrorKind::Io, what, format!("{text:?} is not a number"))
        })
    }

    /// Vendor and device id.
    pub fn id(&self) -> Result<(u16, u16)> {
        Ok((
            self.read_hex("vendor")? as u16,
            self.read_hex("device")? as u16,
        ))
    }

    /// Class, subclass and interface: 0x020000 is an Ethernet card.
    pub fn class(&self) -> Result<u32> {
        self.read_hex("class")
    }

    /// Its non-empty memory and port ranges.
    pub fn bars(&self) -> Result<Vec<BarRange>> {
        let text = self.read("resource")?;
        let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let mut bars = Vec::new();
        // First address, last address, flags: one line per resource, the BARs first.
        for (index, line) in (0..6).zip(text.lines()) {
            let mut words = line.split_whitespace().map(number);
            if let (Some(Some(start)), Some(Some(end)), Some(Some(flags))) =
                (words.next(), words.next(), words.next())
                && end > start
            {
                bars.push(BarRange {
                    index,
                    start,
                    len: end - start + 1,
                    is_memory: flags & RESOURCE_MEMORY != 0,
                });
            }
        }
        Ok(bars)
    }

    /// The last name in the target of a symbolic link in its directory.
    fn linked(&self, name: &str) -> Option<String> {
        let target = fs::read_link(self.dir().join(name)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The driver to which it is bound.
    pub fn driver(&self) -> Option<String> {
        self.linked("driver")
    }

    /// Its IOMMU group; `None` if there is no IOMMU, or it is switched off.
    pub fn iommu_group(&self) -> Option<u32> {
        self.linked("iommu_group")?.parse().ok()
    }

    /// The functions of its IOMMU group, itself included: only all of them together can be given to
    /// a process.
    pub fn group_members(&self) -> Vec<Self> {
        let dir = self.dir().join("iommu_group/devices");
        let mut members: Vec<_> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .map(|address| Self {
                address,
                bus: self.bus.clone(),
            })
            .collect();
        members.sort_by_key(|member| member.address);
        members
    }

    /// Its VFIO character device below `/dev/vfio/devices`, if the kernel provides one (Since Linux
    /// 6.6).
    pub fn vfio_device(&self) -> Option<String> {
        let mut entries = fs::read_dir(self.dir().join("vfio-dev")).ok()?;
        entries.next()?.ok()?.file_name().into_string().ok()
    }

    /// Names of the kernel's network interfaces on it.
    pub fn interfaces(&self) -> Vec<String> {
        // Those of a virtio card are below the virtio device.
        let dir = self.dir();
        let mut places = vec![dir.join("net")];
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("virtio") {
                places.push(entry.path().join("net"));
            }
        }
        let mut names: Vec<_> = places
            .iter()
            .filter_map(|place| fs::read_dir(place).ok())
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    fn write(&self, file: &Path, text: &str) -> Result<()> {
        fs::write(file, text).map_err(|error| {
            let refused = Error::from_io(format!("write {}", file.display()), error);
            match refused.kind() {
                ErrorKind::Permission => refused.with_hint("changing drivers needs root"),
                _ => refused,
            }
        })
    }

    /// The only driver that may bind to it, if set (`driver_override`).
    pub fn driver_override(&self) -> Option<String> {
        // The kernel writes "(null)" if nothing is set.
        let text = self.read("driver_override").ok()?;
        (!text.is_empty() && text != "(null)").then_some(text)
    }

    /// Sets the only driver that may bind to it; `None` allows every driver that matches its id
    /// again.
    pub fn set_driver_override(&self, driver: Option<&str>) -> Result<()> {
        // A line feed alone clears it.
        let text = driver.unwrap_or("").to_owned() + "\n";
        self.write(&self.dir().join("driver_override"), &text)
    }

    /// Unbinds it from its driver, if it has one. The driver releases it; a kernel interface
    /// disappears.
    pub fn unbind(&self) -> Result<()> {
        if self.driver().is_none() {
            return Ok(());
        }
        let file = self.dir().join("driver/unbind");
        self.write(&file, &self.address.to_string())
    }

    /// Makes the kernel look for a driver (`drivers_probe`): the one of the override, if set.
    pub fn probe(&self) -> Result<()> {
        let file = self.bus.join("drivers_probe");
        self.write(&file, &self.address.to_string())
    }

    /// Whether a driver of this name is loaded.
    pub fn has_driver(&self, driver: &str) -> bool {
        self.bus.join("drivers").join(driver).is_dir()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn addresses_are_read_and_written() {
        let address: PciAddress = "0000:3b:00.1".parse().unwrap();
        assert_eq!(
            (address.bus, address.device, address.function),
            (0x3b, 0, 1)
        );
        assert_eq!(address.to_string(), "0000:3b:00.1");
        assert_eq!("3b:00.1".parse::<PciAddress>().unwrap(), address);
        assert_eq!(
            "10000:e1:1f.7".parse::<PciAddress>().unwrap().domain,
            0x1_0000
        );
        for wrong in [
            "",
            "eth0",
            "00:20.0",
            "00:01.8",
            "0000:00:01",
            "0:0:0:0.0",
            "+0:01.0",
            "100:00.0",
            "00:+1.0",
            "é:01.0",
        ] {
            let error = wrong.parse::<PciAddress>().unwrap_err();
            assert!(error.hint().is_some(), "{wrong}");
        }
    }

    /// A copy of sysfs with two functions in one group, one of them with a driver.
    fn bus() -> PathBuf {
        let bus = std::env::temp_dir().join(format!("barewire-pci-{}", std::process::id()));
        let _ = fs::remove_dir_all(&bus);
        let group = bus.join("groups/7/devices");
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(bus.join("drivers/igb")).unwrap();
        for address in ["0000:01:00.0", "0000:01:00.1"] {
            let dir = bus.join("devices").join(address);
            fs::create_dir_all(dir.join("net/eth7")).unwrap();
            fs::create_dir_all(dir.join("vfio-dev/vfio3")).unwrap();
            for (name, text) in [
                ("vendor", "0x8086\n"),
                ("device", "0x10c9\n"),
                ("class", "0x020000\n"),
                ("driver_override", "(null)\n"),
                (
                    "resource",
                    "0x00000000fe800000 0x00000000fe81ffff 0x0000000000040200\n\
                     0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                     0x000000000000c000 0x000000000000c01f 0x0000000000040101\n",
                ),
            ] {
                fs::write(dir.join(name), text).unwrap();
            }
            symlink(bus.join("groups/7"), dir.join("iommu_group")).unwrap();
            symlink(&dir, group.join(address)).unwrap();
        }
        let first = bus.join("devices/0000:01:00.0");
        symlink(bus.join("drivers/igb"), first.join("driver")).unwrap();
        bus
    }

    #[test]
    fn sysfs_is_parsed() {
        let bus = bus();
        let find = |text: &str| PciFunction::find_under(&bus, text.parse().unwrap());
        let (first, second) = (find("01:00.0").unwrap(), find("01:00.1").unwrap());
        assert_eq!(first.id().unwrap(), (0x8086, 0x10c9));
        assert_eq!(first.class().unwrap(), 0x02_0000);
        assert_eq!(first.driver().as_deref(), Some("igb"));
        assert_eq!(second.driver(), None);
        assert_eq!(first.iommu_group(), Some(7));
        let members: Vec<_> = first
            .group_members()
            .iter()
            .map(PciFunction::address)
            .collect();
        assert_eq!(members, [first.address(), second.address()]);
        assert_eq!(first.interfaces(), ["eth7"]);
        assert_eq!(first.vfio_device().as_deref(), Some("vfio3"));
        assert!(first.has_driver("igb") && !first.has_driver("vfio-pci"));
        let bars = first.bars().unwrap();
        assert_eq!(bars.len(), 2);
        assert_eq!(
            (bars[0].index, bars[0].len, bars[0].is_memory),
            (0, 0x2_0000, true)
        );
        assert_eq!(
            (bars[1].index, bars[1].len, bars[1].is_memory),
            (2, 0x20, false)
        );
        assert_eq!(first.driver_override(), None);
        first.set_driver_override(Some("vfio-pci")).unwrap();
        assert_eq!(first.driver_override().as_deref(), Some("vfio-pci"));
        first.set_driver_override(None).unwrap();
        assert_eq!(first.driver_override(), None);
        first.unbind().unwrap();
        let written = fs::read_to_string(bus.join("drivers/igb/unbind")).unwrap();
        assert_eq!(written, "0000:01:00.0");
        second.unbind().unwrap();
        second.probe().unwrap();
        let written = fs::read_to_string(bus.join("drivers_probe")).unwrap();
        assert_eq!(written, "0000:01:00.1");
        let error = find("02:00.0").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        fs::remove_dir_all(&bus).unwrap();
    }
}
