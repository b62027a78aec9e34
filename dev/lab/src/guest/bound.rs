//! Cards of the guest bound to vfio-pci.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sys::pci::{PciAddress, PciFunction};

/// A card bound to vfio-pci; bound back to the kernel's driver, under its old name, on drop.
#[derive(Debug)]
pub struct Bound {
    pci: PciFunction,
    ifname: String,
    mac: String,
}

fn mac_of(ifname: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{ifname}/address")).ok()?;
    Some(text.trim().to_owned())
}

impl Bound {
    /// Takes an interface's card from the kernel.
    ///
    /// # Errors
    /// If there is no such interface, or vfio-pci does not accept the card.
    pub fn to_vfio(ifname: &str) -> Result<Bound> {
        // A previous user may still be returning it.
        let end = Instant::now() + Duration::from_secs(10);
        let mac = loop {
            if let Some(mac) = mac_of(ifname) {
                break mac;
            }
            ensure!(Instant::now() < end, "there is no interface {ifname}");
            std::thread::sleep(Duration::from_millis(20));
        };
        let pci = PciFunction::of_interface(ifname).context("no PCI function")?;
        pci.set_driver_override(Some(sys::vfio::DRIVER))?;
        pci.unbind()?;
        pci.probe()?;
        ensure!(
            pci.driver().as_deref() == Some(sys::vfio::DRIVER),
            "{:?}",
            pci.driver()
        );
        Ok(Bound {
            pci,
            ifname: ifname.into(),
            mac,
        })
    }

    /// Its PCI address.
    pub fn address(&self) -> PciAddress {
        self.pci.address()
    }

    /// Whether it may access memory: bit 2 of the command register.
    ///
    /// # Panics
    /// If its configuration space cannot be read.
    pub fn is_bus_master(&self) -> bool {
        let config = std::fs::read(self.pci.dir().join("config")).expect("PCI configuration");
        config[4] & 4 != 0
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let give_back = || -> Result<()> {
            self.pci.set_driver_override(None)?;
            self.pci.unbind()?;
            self.pci.probe()?;
            // The interface has a new name.
            let end = Instant::now() + Duration::from_secs(10);
            loop {
                let now = std::fs::read_dir("/sys/class/net")?
                    .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                    .find(|name| mac_of(name).as_deref() == Some(&self.mac));
                if let Some(name) = now {
                    if name != self.ifname {
                        let mut rename = std::process::Command::new("ip");
                        rename.args(["link", "set", &name, "name", &self.ifname]);
                        ensure!(rename.status()?.success(), "{name} keeps its name");
                    }
                    return Ok(());
                }
                ensure!(Instant::now() < end, "no interface came back");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        if let Err(error) = give_back() {
            eprintln!("{} does not come back: {error:#}", self.ifname);
        }
    }
}
