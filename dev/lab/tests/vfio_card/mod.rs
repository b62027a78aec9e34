//! A card of the guest bound to vfio-pci for a while, and the kernel's card on the other end of its
//! wire.

pub mod segment;
pub mod stand;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::packet::{Addresses, Raw, Udp};

/// Runs ip(8).
pub fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {args:?}: {errors}");
}

fn mac_of(ifname: &str) -> [u8; 6] {
    let text = fs::read_to_string(format!("/sys/class/net/{ifname}/address")).unwrap();
    let mut mac = [0; 6];
    for (byte, digits) in mac.iter_mut().zip(text.trim().split(':')) {
        *byte = u8::from_str_radix(digits, 16).unwrap();
    }
    mac
}

/// Waits for an interface: a returned one may not be back yet.
fn wait_for(ifname: &str) -> PathBuf {
    let path = Path::new("/sys/class/net").join(ifname);
    let until = Instant::now() + Duration::from_secs(20);
    while !path.join("address").exists() {
        assert!(Instant::now() < until, "there is no interface {ifname}");
        std::thread::sleep(Duration::from_millis(20));
    }
    path
}

/// An interface with the kernel's driver, up and without packets of its own.
pub struct Peer {
    pub ifname: String,
    pub mac: [u8; 6],
}

impl Peer {
    /// Brings it up.
    pub fn up(ifname: &str, mtu: u32) -> Peer {
        wait_for(ifname);
        let mac = mac_of(ifname);
        let off = format!("/proc/sys/net/ipv6/conf/{ifname}/disable_ipv6");
        let _ = fs::write(off, "1");
        ip(&["link", "set", ifname, "mtu", &mtu.to_string()]);
        for feature in ["gro", "lro", "tso", "gso", "rxvlan", "txvlan", "rx", "tx"] {
            // One by one: no card has all of these.
            let args = ["-K", ifname, feature, "off"];
            let _ = Command::new("ethtool").args(args).output();
        }
        ip(&["link", "set", ifname, "up"]);
        Peer {
            ifname: ifname.into(),
            mac,
        }
    }

    /// Sets the maximum number of bytes after the Ethernet header.
    pub fn set_mtu(&self, mtu: u32) {
        ip(&["link", "set", &self.ifname, "mtu", &mtu.to_string()]);
    }

    pub fn sender(&self) -> Raw {
        Raw::sender(&self.ifname).unwrap()
    }

    pub fn receiver(&self) -> Raw {
        Raw::open(&self.ifname).unwrap()
    }

    /// Packets from this interface to a card.
    pub fn plan(&self, card: &VfioCard) -> Udp {
        Udp {
            source_mac: self.mac,
            destination_mac: card.mac,
            addresses: Addresses::V4([10, 77, 0, 1].into(), [10, 77, 0, 2].into()),
            source_port: 4000,
            destination_port: 9,
            flow_count: 1,
            vlan: None,
        }
    }

    /// Packets from a card to this interface.
    pub fn plan_from(&self, card: &VfioCard) -> Udp {
        Udp {
            source_mac: card.mac,
            destination_mac: self.mac,
            ..self.plan(card)
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let args = ["link", "set", &self.ifname, "down"];
        let _ = Command::new("ip").args(args).output();
    }
}

/// A card bound to vfio-pci; returned to the kernel's driver on drop.
pub struct VfioCard {
    /// PCI address for `vfio:`.
    pub address: String,
    ifname: String,
    pub mac: [u8; 6],
    bound: bool,
}

impl VfioCard {
    /// Takes the card of an interface from the kernel's driver.
    pub fn bind(ifname: &str) -> VfioCard {
        let device = fs::canonicalize(wait_for(ifname).join("device")).unwrap();
        let mac = mac_of(ifname);
        // A virtio device is below its PCI device.
        let is_address = |name: &str| name.len() == 12 && name.matches(':').count() == 2;
        let address = device
            .ancestors()
            .filter_map(|path| path.file_name()?.to_str())
            .find(|name| is_address(name))
            .unwrap()
            .to_owned();
        let card = VfioCard {
            address,
            ifname: ifname.into(),
            mac,
            bound: true,
        };
        card.write("driver/unbind", &card.address);
        card.write("driver_override", "vfio-pci");
        fs::write("/sys/bus/pci/drivers_probe", &card.address).unwrap();
        let driver = fs::read_link(card.path("driver")).unwrap();
        assert!(driver.ends_with("vfio-pci"), "{driver:?}");
        card
    }

    fn path(&self, file: &str) -> PathBuf {
        Path::new("/sys/bus/pci/devices")
            .join(&self.address)
            .join(file)
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::write(&path, text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }

    /// Returns it to the kernel's driver; returns the interface's original name.
    pub fn give_back(mut self) -> String {
        self.unbind().unwrap();
        self.ifname.clone()
    }

    fn unbind(&mut self) -> std::io::Result<()> {
        if !std::mem::take(&mut self.bound) {
            return Ok(());
        }
        fs::write(self.path("driver/unbind"), &self.address)?;
        fs::write(self.path("driver_override"), "\n")?;
        fs::write("/sys/bus/pci/drivers_probe", &self.address)?;
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            for entry in fs::read_dir("/sys/class/net")? {
                let name = entry?.file_name().into_string().unwrap_or_default();
                let there = Path::new("/sys/class/net")
                    .join(&name)
                    .join("address")
                    .exists();
                if name != "lo" && there && mac_of(&name) == self.mac {
                    if name != self.ifname {
                        ip(&["link", "set", &name, "name", &self.ifname]);
                    }
                    return Ok(());
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let why = format!("the kernel's driver did not take {} back", self.address);
        Err(std::io::Error::other(why))
    }
}

impl Drop for VfioCard {
    fn drop(&mut self) {
        // Also for the tests after one that failed.
        if let Err(error) = self.unbind() {
            eprintln!("{}: {error}", self.address);
        }
    }
}
