//! The cards of the guest, `igb0` to `igb2`: their drivers, and the configuration of the kernel's.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nic::bind::{self, Owner, Place};
use sys::pci::{PciAddress, PciFunction};

use super::{CPU, LINK_LIMIT};

/// Names of the interfaces with the kernel's driver.
pub const NAMES: [&str; 3] = ["igb0", "igb1", "igb2"];
/// Descriptors per ring: as many as in the user-mode driver and AF_XDP.
const RING_LEN: &str = "1024";

/// All three cards.
pub struct Cards([PciAddress; 3]);

impl Cards {
    /// Finds them by their interfaces, and moves interrupts to the measured processor from now on.
    pub fn find() -> Result<Self> {
        let find = |name: &str| {
            let function = PciFunction::of_interface(name);
            let function = function.with_context(|| format!("there is no {name} here"))?;
            anyhow::Ok(function.address())
        };
        let cards = [find(NAMES[0])?, find(NAMES[1])?, find(NAMES[2])?];
        let mask = format!("{:x}", 1_u32 << CPU);
        std::fs::write("/proc/irq/default_smp_affinity", mask)?;
        Ok(Self(cards))
    }

    /// The port name of a card in user mode.
    pub fn vfio(&self, index: usize) -> String {
        format!("vfio:{}", self.0[index])
    }

    /// Takes a card from the kernel.
    pub fn to_vfio(&self, index: usize) -> Result<()> {
        Ok(bind::plan(&Place::default(), self.0[index], Owner::Vfio, true)?.carry_out()?)
    }

    /// Returns a card to the kernel, under its old name.
    pub fn to_kernel(&self, index: usize) -> Result<()> {
        bind::plan(&Place::default(), self.0[index], Owner::Kernel, true)?.carry_out()?;
        let function = PciFunction::find(self.0[index])?;
        let since = Instant::now();
        loop {
            match function.interfaces().as_slice() {
                [name] if name == NAMES[index] => return Ok(()),
                [name] => return ip(&format!("link set {name} name {}", NAMES[index])),
                _ => ensure!(since.elapsed() < LINK_LIMIT, "no interface came back"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Resets the second and third card as after boot: the kernel's, down, without address and
    /// bridge.
    pub fn reset(&self) -> Result<()> {
        for index in [1, 2] {
            self.to_kernel(index)?;
            ip(&format!("link set {} down nomaster", NAMES[index]))?;
            ip(&format!("address flush dev {}", NAMES[index]))?;
        }
        Ok(())
    }

    /// Configures the kernel's interface of a card: up, one queue, long rings, no unsolicited
    /// packets.
    pub fn up(&self, index: usize) -> Result<&'static str> {
        let name = NAMES[index];
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1")?;
        run("ethtool", &["-L", name, "combined", "1"])?;
        run("ethtool", &["-G", name, "rx", RING_LEN, "tx", RING_LEN])?;
        ip(&format!("link set {name} up"))?;
        wait_for_carrier(name)?;
        Ok(name)
    }
}

/// Waits until an interface has a link.
pub fn wait_for_carrier(name: &str) -> Result<()> {
    let file = Path::new("/sys/class/net").join(name).join("carrier");
    let since = Instant::now();
    while std::fs::read_to_string(&file).map_or(true, |text| text.trim() != "1") {
        ensure!(since.elapsed() < LINK_LIMIT, "{name} has no link");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The MAC address of an interface.
pub fn mac(name: &str) -> Result<[u8; 6]> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/address"))?;
    let mac: wire::Mac = text
        .trim()
        .parse()
        .ok()
        .context("not an Ethernet address")?;
    Ok(mac.0)
}

/// Runs `ip` with these words.
pub fn ip(words: &str) -> Result<()> {
    run("ip", &words.split_whitespace().collect::<Vec<_>>())
}

/// Runs a program that must succeed. Settings that already have the value are not a failure.
pub fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("run {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_same = program == "ethtool" && errors.contains("unmodified");
    ensure!(
        output.status.success() || is_same,
        "{program} {args:?}: {}",
        errors.trim()
    );
    Ok(())
}
