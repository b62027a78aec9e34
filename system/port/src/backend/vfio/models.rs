//! Ports on device models, for tests and benchmarks: the part of this backend that `port::testing`
//! exposes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sys::{Error, ErrorKind, Result};
use vfio::testing::{
    E1000, E1000Model, Igb, IgbModel, Model, ModelCard, Packed, Ring, Split, VirtioModel, VirtioNet,
};
use vfio::{Driver, Function};

use super::{Assembly, BACKEND, Taken, assemble};
use crate::options::PortOptions;
use crate::port::Port;
use crate::registry::PortName;

/// A simulated card: a device model, with a port to be opened on it by its driver.
#[derive(Clone)]
pub struct ModelEnd(Arc<dyn Player>);

/// A model of any kind.
trait Player: Send + Sync {
    fn open(&self, name: &PortName, options: &PortOptions) -> Result<Port>;
    fn step(&self) -> bool;
    fn receive(&self, packet: &[u8]) -> bool;
    fn sent(&self) -> Option<Vec<u8>>;
    fn set_link(&self, up: bool);
    fn memory_faults(&self) -> u64;
}

/// A model with its driver.
struct Played<M: Model, D> {
    card: ModelCard<M>,
    driver: std::marker::PhantomData<fn() -> D>,
}

impl<M: Model, D: Driver<Function = ModelCard<M>>> Player for Played<M, D> {
    fn open(&self, name: &PortName, options: &PortOptions) -> Result<Port> {
        let assembly = Assembly {
            borrowed: None,
            name,
            options,
            via: "a device model",
        };
        assemble(assembly, D::open(self.card.clone())?)
    }

    fn step(&self) -> bool {
        self.card.with(Model::step)
    }

    fn receive(&self, packet: &[u8]) -> bool {
        self.card.with(|model| model.receive(packet))
    }

    fn sent(&self) -> Option<Vec<u8>> {
        self.card.with(Model::sent)
    }

    fn set_link(&self, up: bool) {
        self.card.with(|model| model.set_link(up));
    }

    fn memory_faults(&self) -> u64 {
        self.card.memory().faults()
    }
}

/// Opens the real card at `address` like `vfio:`, but passes it addresses that are `off` bytes too
/// high. Nothing is mapped there: this demonstrates the effect of an IOMMU.
///
/// # Errors
/// As for `vfio:`.
pub fn open_with_wrong_addresses(
    address: sys::pci::PciAddress,
    off: u64,
    options: &PortOptions,
) -> Result<Port> {
    let name = PortName {
        scheme: BACKEND.scheme,
        target: address.to_string(),
        queue: None,
        options: Vec::new(),
    };
    let taken = Taken::by(&name, options)?;
    taken.function.dma().set_wrong_by(off);
    taken.open()
}

/// A row in the table of models.
struct Kind {
    name: &'static str,
    make: fn(mac: [u8; 6]) -> Arc<dyn Player>,
}

/// Creates a card with this model and this driver.
fn played<M: Model, D: Driver<Function = ModelCard<M>>>(card: ModelCard<M>) -> Arc<dyn Player> {
    Arc::new(Played {
        card,
        driver: std::marker::PhantomData::<fn() -> D>,
    })
}

/// All models.
const KINDS: &[Kind] = &[
    Kind {
        name: "igb",
        make: |mac| {
            let card = ModelCard::new(|memory, events| IgbModel::new(memory, events, mac));
            played::<IgbModel, Igb<ModelCard<IgbModel>>>(card)
        },
    },
    Kind {
        name: "e1000",
        make: |mac| {
            let card = ModelCard::new(|memory, events| E1000Model::new(memory, events, mac));
            played::<E1000Model, E1000<ModelCard<E1000Model>>>(card)
        },
    },
    Kind {
        name: "virtio_split",
        make: virtio::<Split>,
    },
    Kind {
        name: "virtio_packed",
        make: virtio::<Packed>,
    },
];

/// A device that offers all features, driven with these rings.
fn virtio<R: Ring>(mac: [u8; 6]) -> Arc<dyn Player> {
    let card = ModelCard::new(|memory, events| {
        VirtioModel::new(memory, events, VirtioModel::EVERYTHING, mac)
    });
    played::<VirtioModel, VirtioNet<ModelCard<VirtioModel>, R>>(card)
}

impl ModelEnd {
    /// Creates a card of this kind (`igb`, …) with this address.
    ///
    /// # Errors
    /// `NotFound` for a kind without a model; lists those available.
    pub fn new(kind: &str, mac: [u8; 6]) -> Result<Self> {
        let found = KINDS.iter().find(|row| row.name == kind);
        let Some(found) = found else {
            let names: Vec<&str> = KINDS.iter().map(|row| row.name).collect();
            let why = format!("there are models of {}", names.join(", "));
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("play {kind:?}"),
                why,
            ));
        };
        Ok(Self((found.make)(mac)))
    }

    /// Opens a port on it, as `vfio:` does on a card.
    ///
    /// # Errors
    /// The driver's.
    pub fn open(&self, options: &PortOptions) -> Result<Port> {
        let name = PortName {
            scheme: BACKEND.scheme,
            target: "model".into(),
            queue: None,
            options: Vec::new(),
        };
        self.0.open(&name, options)
    }

    /// Lets the card work; false if there was nothing to do.
    pub fn step(&self) -> bool {
        self.0.step()
    }

    /// Delivers a packet to the card; false if it was lost.
    pub fn receive(&self, packet: &[u8]) -> bool {
        self.0.receive(packet)
    }

    /// The next packet sent by the card.
    pub fn sent(&self) -> Option<Vec<u8>> {
        self.0.sent()
    }

    /// Connects or disconnects the cable.
    pub fn set_link(&self, up: bool) {
        self.0.set_link(up);
    }

    /// Number of the card's accesses to memory that it was not given: those that an IOMMU would
    /// report.
    pub fn memory_faults(&self) -> u64 {
        self.0.memory_faults()
    }
}

/// Two cards, and a thread that acts as the wire between them.
pub struct ModelWire {
    ends: [ModelEnd; 2],
    pulled: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ModelWire {
    /// Creates two cards of a kind.
    ///
    /// # Errors
    /// As [`ModelEnd::new`].
    pub fn new(kind: &str) -> Result<Self> {
        let ends = [1, 2].map(|last| ModelEnd::new(kind, [2, 0, 0, 0, 0, last]));
        let [left, right] = ends;
        let ends = [left?, right?];
        let pulled = Arc::new(AtomicBool::new(false));
        let (both, stop) = (ends.clone(), pulled.clone());
        let thread = thread::Builder::new()
            .name("model-wire".into())
            .spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if !carry(&both) {
                        thread::sleep(Duration::from_micros(20));
                    }
                }
            })
            .map_err(|error| Error::from_io("start a thread", error))?;
        Ok(Self {
            ends,
            pulled,
            thread: Some(thread),
        })
    }

    /// The cards.
    pub fn ends(&self) -> &[ModelEnd; 2] {
        &self.ends
    }
}

impl Drop for ModelWire {
    fn drop(&mut self) {
        self.pulled.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Lets both cards work and transfers what they send; false if there was nothing.
fn carry([left, right]: &[ModelEnd; 2]) -> bool {
    let mut worked = false;
    for (from, to) in [(left, right), (right, left)] {
        worked |= from.step();
        while let Some(packet) = from.sent() {
            to.receive(&packet);
            worked = true;
        }
    }
    worked
}
