//! A PCI function through VFIO.

use std::ptr::NonNull;
use std::sync::Arc;

use sys::Result;
use sys::eventfd::EventFd;
use sys::pci::PciFunction;
use sys::vfio::{Device, InterruptKind, Space, VfioInterface};

use super::dma::{DmaSpace, Mapper};
use super::driver::{Function, Interrupt};
use super::registers::Bar;

/// Maximum number of vectors: as many as one system call sets here.
const VECTORS_MAX: u32 = 32;

/// A function owned by this process for the lifetime of this value.
pub struct VfioFunction {
    // First: the card is closed before its addresses are freed.
    device: Arc<Device>,
    space: Arc<DmaSpace>,
    #[allow(dead_code, reason = "a driver may want it")]
    id: (u16, u16),
}

struct VfioMapper {
    space: Arc<Space>,
    ranges: Vec<(u64, u64)>,
}

impl Mapper for VfioMapper {
    fn map(&self, base: NonNull<u8>, len: usize, iova: u64) -> Result<()> {
        // SAFETY: `DmaSpace::map` covers the lifetime and the readers of the memory.
        unsafe { self.space.map(base, len, iova) }
    }

    fn unmap(&self, iova: u64, len: usize) {
        // It was mapped as a whole; if the kernel refuses, nothing can be done.
        let _ = self.space.unmap(iova, len);
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        self.ranges.clone()
    }
}

impl VfioFunction {
    /// Opens a function that is bound to `vfio-pci`.
    ///
    /// # Errors
    /// `NotFound`, `Permission`, `Busy` or another error of the kernel, with a hint.
    pub fn open(pci: &PciFunction, through: VfioInterface) -> Result<Self> {
        let id = pci.id()?;
        let device = sys::vfio::open(pci, through)?;
        let space = device.space().clone();
        let ranges = space.ranges().unwrap_or_else(|_| vec![(0, u64::MAX)]);
        Ok(Self {
            device: Arc::new(device),
            space: DmaSpace::new(Box::new(VfioMapper { space, ranges })),
            id,
        })
    }

    /// The kernel interface it was opened through.
    pub fn via(&self) -> &'static str {
        match self.device.space().kind() {
            "iommufd" => "VFIO (iommufd)",
            _ => "VFIO (type 1)",
        }
    }
}

impl Function for VfioFunction {
    type Registers = Bar;

    fn id(&self) -> (u16, u16) {
        self.id
    }

    fn bar(&self, index: u8) -> Result<Bar> {
        Ok(Bar::new(Arc::new(self.device.map_bar(index)?)))
    }

    fn read_config(&self, offset: u16, bytes: &mut [u8]) {
        self.device.read_config(offset, bytes);
    }

    fn set_bus_master(&self, on: bool) -> Result<()> {
        self.device.set_bus_master(on)
    }

    fn reset(&self) -> Result<bool> {
        self.device.reset()
    }

    fn dma(&self) -> &Arc<DmaSpace> {
        &self.space
    }

    fn interrupts(&self, count: u32) -> Result<Vec<Interrupt>> {
        let Some((kind, there)) = self.device.interrupts() else {
            return Ok(Vec::new());
        };
        let count = count.min(there).min(VECTORS_MAX);
        let events: Result<Vec<_>> = (0..count).map(|_| EventFd::new().map(Arc::new)).collect();
        let events = events?;
        self.device.set_interrupts(kind, &events)?;
        let interrupts = events.into_iter().map(|event| {
            let device = self.device.clone();
            Interrupt {
                event,
                unmask: (kind == InterruptKind::Pin)
                    .then(|| Box::new(move || device.unmask_pin()) as Box<_>),
            }
        });
        Ok(interrupts.collect())
    }

    fn request(&self) -> Option<Arc<EventFd>> {
        let event = Arc::new(EventFd::new().ok()?);
        // A kernel without support for this (before 4.0) takes the card back in its own way.
        self.device.set_request(&event).ok()?;
        Some(event)
    }
}
