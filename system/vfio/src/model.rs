//! Device models: cards simulated in the test process, for tests and benchmarks without hardware.
//!
//! A model is a [`Model`] behind a lock. The driver uses it as a [`Function`]; the test controls it
//! (`ModelCard::with`) and lets it work (`Model::step`): read descriptors, write packets into the
//! pool, set flags. Memory is accessed like a real card does, by device address through a table of
//! mappings, as with an IOMMU: an address outside is refused and counted.
//!
//! Models misbehave on request ([`Fault`]): they are the hostile device in tests.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::eventfd::EventFd;
use sys::{Error, ErrorKind, Result};

use super::dma::{DmaSpace, Mapper};
use super::driver::{Function, Interrupt};
use super::registers::Registers;

/// A card: its registers and its behaviour.
pub trait Model: Send + 'static {
    /// Vendor and device id.
    #[allow(dead_code, reason = "a driver may want it")]
    const ID: (u16, u16);
    /// Lengths of its BARs, by index; 0 for none.
    const BARS: [u32; 6];

    /// Reads `width` bytes; may have side effects (counters that are cleared).
    fn read(&mut self, bar: u8, offset: u32, width: u8) -> u64;

    /// Writes `width` bytes.
    fn write(&mut self, bar: u8, offset: u32, width: u8, value: u64);

    /// The configuration space; empty if there is none.
    #[allow(dead_code, reason = "a driver may want it")]
    fn config(&self) -> Vec<u8> {
        vec![0xff; 256]
    }

    /// Resets the function through the bus: everything as after power-on.
    #[allow(dead_code, reason = "a driver may want it")]
    fn reset(&mut self);

    /// Enables or disables DMA. Returns false if the bus cannot report it.
    fn set_bus_master(&mut self, on: bool) -> bool;

    /// Does all pending work: fetches descriptors, sends, receives. Returns false if there was
    /// none.
    fn step(&mut self) -> bool;

    /// Delivers a packet from the wire. Returns false if it was lost.
    fn receive(&mut self, packet: &[u8]) -> bool;

    /// The next packet that it has sent.
    fn sent(&mut self) -> Option<Vec<u8>>;

    /// Connects or disconnects the cable.
    fn set_link(&mut self, up: bool);
}

/// Faults to inject into a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next received descriptor has this length.
    Length(u32),
    /// The next received descriptor has this error.
    Error(u32),
    /// The next received packet never ends: no descriptor has the end-of-packet flag.
    NoEnd,
    /// The next received packet is written to this device address instead of its descriptor's.
    Address(u64),
    /// Descriptors are no longer processed.
    Stop,
    /// The card is removed: everything reads as all ones.
    Gone,
}

/// Mappings of a card: first device address, with process address and length.
type Mapped = Arc<Mutex<BTreeMap<u64, (usize, usize)>>>;

/// A model's access to memory: an IOMMU's table.
#[derive(Clone, Default)]
pub struct ModelMemory {
    mapped: Mapped,
    /// Number of refused accesses, which the IOMMU would report as faults.
    faults: Arc<AtomicU64>,
}

impl ModelMemory {
    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        let mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.is_empty()
    }

    /// Number of accesses to unmapped addresses so far.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Runs `access` on the bytes if all of them are mapped in one range. The table stays locked,
    /// so that nothing is unmapped meanwhile.
    fn reach<T>(&self, iova: u64, len: usize, access: impl FnOnce(*mut u8) -> T) -> Option<T> {
        let mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let found = mapped.range(..=iova).next_back();
        let place = found.and_then(|(&first, &(base, mapped_len))| {
            let offset = usize::try_from(iova - first).ok()?;
            let end = offset.checked_add(len)?;
            (end <= mapped_len).then(|| base + offset)
        });
        if place.is_none() {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        place.map(|place| access(place as *mut u8))
    }

    /// Reads memory; false, counted and zeroes if it is not completely mapped.
    pub fn read(&self, iova: u64, bytes: &mut [u8]) -> bool {
        bytes.fill(0);
        self.reach(iova, bytes.len(), |place| {
            // SAFETY: mapped by the driver for its card, and still (the table is locked). Frames
            // that the card holds have no other owner.
            unsafe { std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), bytes.len()) };
        })
        .is_some()
    }

    /// Writes memory; false, counted and without effect if it is not completely mapped.
    pub fn write(&self, iova: u64, bytes: &[u8]) -> bool {
        self.reach(iova, bytes.len(), |place| {
            // SAFETY: as for `read`.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        })
        .is_some()
    }

    /// Reads an aligned word of a descriptor, and everything written before it.
    pub fn load64(&self, iova: u64) -> u64 {
        let load = |place: *mut u8| {
            // SAFETY: mapped, and aligned because ranges begin on pages and `iova` is aligned.
            unsafe { &*place.cast::<AtomicU64>() }.load(Ordering::Acquire)
        };
        if !iova.is_multiple_of(8) {
            self.faults.fetch_add(1, Ordering::Relaxed);
            return 0;
        }
        self.reach(iova, 8, load).unwrap_or(0)
    }

    /// Writes an aligned word of a descriptor, after everything written before it.
    pub fn store64(&self, iova: u64, value: u64) -> bool {
        let store = |place: *mut u8| {
            // SAFETY: as for `load64`.
            unsafe { &*place.cast::<AtomicU64>() }.store(value, Ordering::Release);
        };
        if !iova.is_multiple_of(8) {
            self.faults.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.reach(iova, 8, store).is_some()
    }
}

impl Mapper for ModelMemory {
    fn map(&self, base: NonNull<u8>, len: usize, iova: u64) -> Result<()> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.insert(iova, (base.as_ptr() as usize, len));
        Ok(())
    }

    fn unmap(&self, iova: u64, _len: usize) {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.remove(&iova);
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        vec![(0, (1 << 48) - 1)]
    }
}

/// A shared model; clones are the same card.
pub struct ModelCard<M> {
    model: Arc<Mutex<M>>,
    memory: ModelMemory,
    space: Arc<DmaSpace>,
    events: ModelEvents,
    request: Option<Arc<EventFd>>,
}

impl<M> Clone for ModelCard<M> {
    fn clone(&self) -> Self {
        Self {
            model: self.model.clone(),
            memory: self.memory.clone(),
            space: self.space.clone(),
            events: self.events.clone(),
            request: self.request.clone(),
        }
    }
}

/// The eventfds of a model's interrupt vectors, for the model to signal.
pub type ModelEvents = Arc<Mutex<Vec<Arc<EventFd>>>>;

/// Signals a vector, if the driver enabled it.
pub fn ring_event(events: &ModelEvents, vector: usize) {
    let events = events.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(event) = events.get(vector) {
        event.signal();
    }
}

impl<M: Model> ModelCard<M> {
    /// Creates a card with `make`, which is passed the accessible memory and its interrupts.
    pub fn new(make: impl FnOnce(ModelMemory, ModelEvents) -> M) -> Self {
        let memory = ModelMemory::default();
        let events = ModelEvents::default();
        Self {
            model: Arc::new(Mutex::new(make(memory.clone(), events.clone()))),
            space: DmaSpace::new(Box::new(memory.clone())),
            memory,
            events,
            request: EventFd::new().ok().map(Arc::new),
        }
    }

    /// Whether the card is not open elsewhere.
    pub fn is_only_ours(&self) -> bool {
        Arc::strong_count(&self.model) == 1 && Arc::strong_count(&self.space) == 1
    }

    /// Requests the card back.
    pub fn want_back(&self) {
        self.request.as_ref().expect("an eventfd").signal();
    }

    /// The memory that it can access.
    pub fn memory(&self) -> &ModelMemory {
        &self.memory
    }

    /// The model, for the test that controls it.
    pub fn with<T>(&self, act: impl FnOnce(&mut M) -> T) -> T {
        act(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, M> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Model> Function for ModelCard<M> {
    type Registers = ModelRegisters<M>;

    fn id(&self) -> (u16, u16) {
        M::ID
    }

    fn bar(&self, index: u8) -> Result<ModelRegisters<M>> {
        Ok(ModelRegisters {
            card: self.clone(),
            bar: index,
        })
    }

    fn read_config(&self, offset: u16, bytes: &mut [u8]) {
        let config = self.lock().config();
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = config
                .get(usize::from(offset) + at)
                .copied()
                .unwrap_or(0xff);
        }
    }

    fn set_bus_master(&self, on: bool) -> Result<()> {
        match self.lock().set_bus_master(on) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Io,
                "write the command register",
                "the model does not listen",
            )),
        }
    }

    fn reset(&self) -> Result<bool> {
        self.lock().reset();
        Ok(true)
    }

    fn dma(&self) -> &Arc<DmaSpace> {
        &self.space
    }

    fn interrupts(&self, count: u32) -> Result<Vec<Interrupt>> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut interrupts = Vec::new();
        // Opened again, it gets new ones.
        events.clear();
        for _ in 0..count {
            let event = Arc::new(EventFd::new()?);
            events.push(event.clone());
            interrupts.push(Interrupt {
                event,
                unmask: None,
            });
        }
        Ok(interrupts)
    }

    fn request(&self) -> Option<Arc<EventFd>> {
        self.request.clone()
    }
}

/// A model's BAR.
pub struct ModelRegisters<M> {
    card: ModelCard<M>,
    bar: u8,
}

impl<M> Clone for ModelRegisters<M> {
    fn clone(&self) -> Self {
        Self {
            card: self.card.clone(),
            bar: self.bar,
        }
    }
}

impl<M: Model> ModelRegisters<M> {
    fn read(&self, offset: u32, width: u8) -> u64 {
        let inside = u64::from(offset) + u64::from(width) <= u64::from(self.len());
        if !inside || !offset.is_multiple_of(width.into()) {
            return u64::MAX;
        }
        self.card.lock().read(self.bar, offset, width)
    }

    fn write(&self, offset: u32, width: u8, value: u64) {
        let inside = u64::from(offset) + u64::from(width) <= u64::from(self.len());
        if inside && offset.is_multiple_of(width.into()) {
            self.card.lock().write(self.bar, offset, width, value);
        }
    }
}

impl<M: Model> Registers for ModelRegisters<M> {
    fn len(&self) -> u32 {
        M::BARS.get(usize::from(self.bar)).copied().unwrap_or(0)
    }

    fn read8(&self, offset: u32) -> u8 {
        self.read(offset, 1) as u8
    }

    fn read16(&self, offset: u32) -> u16 {
        self.read(offset, 2) as u16
    }

    fn read32(&self, offset: u32) -> u32 {
        self.read(offset, 4) as u32
    }

    fn write8(&self, offset: u32, value: u8) {
        self.write(offset, 1, value.into());
    }

    fn write16(&self, offset: u32, value: u16) {
        self.write(offset, 2, value.into());
    }

    fn write32(&self, offset: u32, value: u32) {
        self.write(offset, 4, value.into());
    }
}
