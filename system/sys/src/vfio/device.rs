//! A function: registers, configuration space, interrupts, reset.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use super::abi::{self, IrqSet};
use super::{Space, call};
use crate::eventfd::EventFd;
use crate::mmap::Mapping;
use crate::pci::PciAddress;
use crate::{Error, ErrorKind, Result};

/// Offset of the command register in the configuration space (PCI Local Bus 3.0, §6.2.2).
const COMMAND: u16 = 4;
/// The function answers memory accesses.
const COMMAND_MEMORY: u16 = 1 << 1;
/// The function may read and write memory by itself.
const COMMAND_MASTER: u16 = 1 << 2;

/// Hint for a function or a kernel that misbehaves.
const AFRESH: &str = "see the kernel log (dmesg | tail); bind the card to the kernel's \
                      driver and back (barewire nic bind kernel and vfio)";

/// The kind of interrupts of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptKind {
    /// One message per vector (PCI Local Bus 3.0, §6.8.2).
    Msix,
    /// A single message.
    Msi,
    /// A pin, which the kernel masks at each interrupt: [`Device::unmask_pin`].
    Pin,
}

impl InterruptKind {
    fn index(self) -> u32 {
        match self {
            Self::Msix => abi::IRQ_MSIX,
            Self::Msi => abi::IRQ_MSI,
            Self::Pin => abi::IRQ_INTX,
        }
    }

    /// Its name in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Msix => "MSI-X",
            Self::Msi => "MSI",
            Self::Pin => "INTx",
        }
    }
}

/// An open function. Closing it ends its DMA.
#[derive(Debug)]
pub struct Device {
    // First, so that the device is closed before the space.
    fd: OwnedFd,
    space: Arc<Space>,
    address: PciAddress,
    can_reset: bool,
    config_offset: u64,
    config_len: u64,
}

impl Device {
    pub(super) fn new(address: PciAddress, fd: OwnedFd, space: Arc<Space>) -> Result<Self> {
        let what = || format!("query PCI function {address}");
        let mut info = abi::DeviceInfo::sized();
        call(&fd, abi::DEVICE_GET_INFO, &mut info)
            .map_err(|error| Error::from_io(what(), error).with_hint(AFRESH))?;
        if info.flags & abi::DEVICE_IS_PCI == 0 {
            let error = Error::new(ErrorKind::Unsupported, what(), "it is not a PCI device");
            return Err(error.with_hint("give the card's PCI address: barewire nic list"));
        }
        let mut device = Self {
            fd,
            space,
            address,
            can_reset: info.flags & abi::DEVICE_CAN_RESET != 0,
            config_offset: 0,
            config_len: 0,
        };
        let config = device.region(abi::CONFIG_REGION)?;
        (device.config_offset, device.config_len) = (config.offset, config.len);
        Ok(device)
    }

    /// Its address.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// The device addresses that it can access.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    fn region(&self, index: u32) -> Result<abi::RegionInfo> {
        let mut info = abi::RegionInfo::sized();
        info.index = index;
        call(&self.fd, abi::DEVICE_GET_REGION_INFO, &mut info).map_err(|error| {
            let what = format!("query region {index} of PCI function {}", self.address);
            Error::from_io(what, error).with_hint(AFRESH)
        })?;
        Ok(info)
    }

    /// Maps BAR `index`, 0 to 5.
    ///
    /// # Errors
    /// `NotFound` if it is empty or no memory.
    pub fn map_bar(&self, index: u8) -> Result<Mapping> {
        let what = || format!("map BAR {index} of PCI function {}", self.address);
        let info = match index {
            0..=5 => self.region(index.into())?,
            _ => {
                let error = Error::new(ErrorKind::InvalidInput, what(), "there are six");
                return Err(error.with_hint("0 to 5"));
            }
        };
        if info.len == 0 || info.flags & abi::REGION_CAN_MAP == 0 {
            let why = "it is empty or cannot be mapped";
            let error = Error::new(ErrorKind::NotFound, what(), why);
            return Err(error.with_hint(
                "the firmware assigned it no address range, or it shares a page with another BAR: \
                 see lspci -vv, or try another slot",
            ));
        }
        let (Ok(len), Ok(offset)) = (usize::try_from(info.len), i64::try_from(info.offset)) else {
            let error = Error::new(ErrorKind::Unsupported, what(), "it is too large");
            return Err(error.with_hint("use a 64-bit processor"));
        };
        Mapping::device(self.fd.as_fd(), len, offset).map_err(|error| error.with_hint(AFRESH))
    }

    /// Reads the configuration space from `offset` on; missing parts are read as all ones.
    pub fn read_config(&self, offset: u16, bytes: &mut [u8]) {
        bytes.fill(0xff);
        let end = u64::from(offset) + bytes.len() as u64;
        if end > self.config_len {
            return;
        }
        let at = (self.config_offset + u64::from(offset)) as i64;
        // SAFETY: reads at most the slice's length into it. A failure leaves all ones or what came.
        unsafe {
            libc::pread(
                self.fd.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                at,
            )
        };
    }

    fn write_config(&self, offset: u16, bytes: &[u8]) -> Result<()> {
        let at = (self.config_offset + u64::from(offset)) as i64;
        // SAFETY: writes from a live slice to a descriptor that we own.
        let written =
            unsafe { libc::pwrite(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), at) };
        if usize::try_from(written) == Ok(bytes.len()) {
            return Ok(());
        }
        let what = format!("write the configuration of PCI function {}", self.address);
        Err(Error::last_os(what).with_hint(AFRESH))
    }

    /// Allows or forbids the function to read and write memory by itself; it answers memory
    /// accesses in either case.
    pub fn set_bus_master(&self, on: bool) -> Result<()> {
        let mut bytes = [0; 2];
        self.read_config(COMMAND, &mut bytes);
        if bytes == [0xff; 2] {
            let what = format!("read the configuration of PCI function {}", self.address);
            return Err(Error::new(ErrorKind::Gone, what, "it does not answer").with_hint(AFRESH));
        }
        let mut command = u16::from_le_bytes(bytes) | COMMAND_MEMORY;
        match on {
            true => command |= COMMAND_MASTER,
            false => command &= !COMMAND_MASTER,
        }
        self.write_config(COMMAND, &command.to_le_bytes())
    }

    /// Resets the function; returns false if the bus has no means of doing so.
    pub fn reset(&self) -> Result<bool> {
        if !self.can_reset {
            return Ok(false);
        }
        // SAFETY: an ioctl without argument on a descriptor that we own.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), abi::DEVICE_RESET) } {
            0.. => Ok(true),
            _ => {
                let what = format!("reset PCI function {}", self.address);
                Err(Error::last_os(what).with_hint(AFRESH))
            }
        }
    }

    /// The best kind of interrupts that the function has, and their number; `None` if it has none.
    pub fn interrupts(&self) -> Option<(InterruptKind, u32)> {
        [InterruptKind::Msix, InterruptKind::Msi, InterruptKind::Pin]
            .into_iter()
            .find_map(|kind| {
                let mut info = abi::IrqInfo::sized();
                info.index = kind.index();
                call(&self.fd, abi::DEVICE_GET_IRQ_INFO, &mut info).ok()?;
                (info.count != 0).then_some((kind, info.count))
            })
    }

    /// Makes the first interrupts of a kind signal these eventfds, at most 32. The kernel keeps its
    /// own reference to each.
    pub fn set_interrupts(&self, kind: InterruptKind, events: &[Arc<EventFd>]) -> Result<()> {
        let mut set = irq_set(
            abi::IRQ_DATA_EVENTFD | abi::IRQ_TRIGGER,
            kind.index(),
            events.len().min(abi::IRQ_SET_MAX) as u32,
        );
        for (slot, event) in set.events.iter_mut().zip(events) {
            *slot = event.as_fd().as_raw_fd();
        }
        self.set_irqs(set, "set")
    }

    /// Disables the interrupts of a kind.
    pub fn clear_interrupts(&self, kind: InterruptKind) -> Result<()> {
        let set = irq_set(abi::IRQ_DATA_NONE | abi::IRQ_TRIGGER, kind.index(), 0);
        self.set_irqs(set, "end")
    }

    /// Makes the kernel signal this eventfd when it requests the function back, because it is to be
    /// unplugged or bound to another driver. The requester waits until the function is closed.
    ///
    /// # Errors
    /// Where the kernel has no such wish.
    ///
    /// # Since Linux
    /// 4.0 (`VFIO_PCI_REQ_IRQ_INDEX`).
    pub fn set_request(&self, event: &EventFd) -> Result<()> {
        let mut set = irq_set(
            abi::IRQ_DATA_EVENTFD | abi::IRQ_TRIGGER,
            abi::IRQ_REQUEST,
            1,
        );
        set.events[0] = event.as_fd().as_raw_fd();
        self.set_irqs(set, "set")
    }

    /// Unmasks the pin's interrupt.
    pub fn unmask_pin(&self) -> Result<()> {
        let set = irq_set(abi::IRQ_DATA_NONE | abi::IRQ_UNMASK, abi::IRQ_INTX, 1);
        self.set_irqs(set, "unmask")
    }

    fn set_irqs(&self, mut set: IrqSet, verb: &str) -> Result<()> {
        let events = match set.flags & abi::IRQ_DATA_EVENTFD {
            0 => 0,
            _ => set.count as usize,
        };
        set.size = (std::mem::offset_of!(IrqSet, events) + events * size_of::<i32>()) as u32;
        call(&self.fd, abi::DEVICE_SET_IRQS, &mut set).map_err(|error: io::Error| {
            let what = format!("{verb} interrupts of PCI function {}", self.address);
            let hint = match events {
                0 | 1 => "see the kernel log: dmesg | tail",
                _ => "fewer queues= need fewer interrupts; see the kernel log: dmesg | tail",
            };
            Error::from_io(what, error).with_hint(hint)
        })
    }
}

/// The first interrupts of a kind, without eventfds so far.
fn irq_set(flags: u32, index: u32, count: u32) -> IrqSet {
    IrqSet {
        size: 0,
        flags,
        index,
        start: 0,
        count,
        events: [-1; abi::IRQ_SET_MAX],
    }
}
