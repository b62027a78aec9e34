//! `vfio:` a card driven in user space by the drivers of the crate `vfio`: its descriptors become
//! slots of a batch, its counters an account.
//!
//! ```text
//!   RxQueue -> Rx<D> -> D::Rx \
//!   TxQueue -> Tx<D> -> D::Tx  > Core<D> -> card
//!   control -> Control<D>     /
//! ```

mod control;
#[cfg(feature = "testing")]
pub(crate) mod models;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

use std::sync::Arc;

use ring::slot::Vlan;
use ring::{Pool, PoolConfig};
use sys::memfd::HugePages;
use sys::pci::{PciAddress, PciFunction};
use sys::vfio::VfioInterface;
use sys::{Error, ErrorKind, Result};

use vfio::{
    Borrowed, Card, Core, Driver, DriverRx, Function, Interrupt, Limits, Settings, VfioFunction,
    Visitor,
};

use self::control::{Control, QueueView};
use self::rx::{Rx, RxSettings};
use self::tx::Tx;
use crate::account::{RxCounters, TxCounters};
use crate::control::{Capabilities, Intake, PortDescription};
use crate::options::{FilterTarget, IommuInterface, PortOptions, TimestampSource};
use crate::port::Port;
use crate::registry::{Backend, PortName};
use crate::rx::RxQueue;
use crate::tx::TxQueue;

/// Row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    summary: "a card driven in user space, by its PCI address",
    example: "vfio:0000:00:01.0",
    needs: "an IOMMU; the card bound to vfio-pci; root, or the nodes below /dev/vfio and \
            locked memory",
    queues: true,
    frames: |_, options| Ok(Some(frames(options, QUEUES_MAX, 1 << 16))),
    renamed: &[("bind", "bind_card")],
    ..Backend::new("vfio", open)
};

/// Default length of each ring.
const RING_LEN: u32 = 1024;
/// Maximum number of queues: each needs a ring full of frames.
const QUEUES_MAX: u32 = 64;

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    Taken::by(name, options)?.open()
}

/// A card taken from the kernel that no driver has touched yet.
struct Taken<'a> {
    card: &'static Card,
    // Before what it was borrowed by, so that it is dropped first.
    function: VfioFunction,
    assembly: Assembly<'a>,
}

impl<'a> Taken<'a> {
    /// Takes the card at the address in the name.
    fn by(name: &'a PortName, options: &'a PortOptions) -> Result<Self> {
        let address: PciAddress = name.target.parse()?;
        let pci = PciFunction::find(address)?;
        let id = pci.id()?;
        let card = vfio::find(id).ok_or_else(|| unknown(&pci, id))?;
        let through = match options.iommu {
            IommuInterface::Auto => VfioInterface::Auto,
            IommuInterface::Type1 => VfioInterface::Type1,
            IommuInterface::Iommufd => VfioInterface::Iommufd,
        };
        let borrowed = match options.bind_card {
            true => nic::bind::borrow(address)?,
            false => None,
        };
        let borrowed: Borrowed = borrowed.map(|guard| Box::new(guard) as _);
        let function = VfioFunction::open(&pci, through)?;
        let via = function.via();
        let assembly = Assembly {
            borrowed,
            name,
            options,
            via,
        };
        Ok(Self {
            card,
            function,
            assembly,
        })
    }

    /// Opens a port with the card's driver.
    fn open(self) -> Result<Port> {
        self.card.drive(self.assembly, self.function)
    }
}

/// The error for a function without a driver here.
fn unknown(pci: &PciFunction, (vendor, device): (u16, u16)) -> Error {
    let what = format!("open {}:{}", BACKEND.scheme, pci.address());
    let why = match pci.class() {
        Ok(class) if class >> 16 != 0x02 => {
            format!("{vendor:04x}:{device:04x} is not a network card (class {class:06x})")
        }
        _ => format!("barewire has no driver for {vendor:04x}:{device:04x}"),
    };
    Error::new(ErrorKind::Unsupported, what, why).with_hint(format!(
        "drivers: {}; with the kernel's driver the card works as afxdp:INTERFACE",
        vfio::names().join(", ")
    ))
}

/// Assembles a port for a driver.
struct Assembly<'a> {
    /// Dropped when nothing has the card open any more.
    borrowed: Borrowed,
    name: &'a PortName,
    options: &'a PortOptions,
    /// How the card is accessed, in one word.
    via: &'static str,
}

impl Visitor for Assembly<'_> {
    type Output = Port;

    fn visit<D: Driver>(self, driver: D) -> Result<Port> {
        assemble(self, driver)
    }
}

/// A port's settings, given the limits of a card.
fn settings(
    name: &PortName,
    options: &PortOptions,
    limits: &Limits,
    frame_len: u32,
) -> Result<Settings> {
    let refuse = |why: String| {
        let what = format!("open {}:{}", BACKEND.scheme, name.target);
        Error::new(ErrorKind::InvalidInput, what, why).with_hint("/N or queues=N, within that")
    };
    let direction = options.direction;
    let most = match (direction.has_rx(), direction.has_tx()) {
        (true, true) => limits.rx_count.min(limits.tx_count),
        (true, false) => limits.rx_count,
        (false, _) => limits.tx_count,
    }
    .min(QUEUES_MAX);
    let (first, count) = match name.queue {
        Some(queue) if queue >= most => {
            return Err(refuse(format!("the card has queues 0 to {}", most - 1)));
        }
        Some(queue) => (queue, 1),
        None if options.queue_count == 0 => (0, 1),
        None if options.queue_count > most => {
            let why = format!(
                "{} queues were requested, but the card has {most}",
                options.queue_count
            );
            return Err(refuse(why));
        }
        None => (0, options.queue_count),
    };
    let ring_len = match options.ring_len {
        0 => RING_LEN,
        len => len.min(1 << 16),
    }
    .next_power_of_two()
    .clamp(limits.ring_len_min, limits.ring_len_max);
    Ok(Settings {
        first,
        rx_count: if direction.has_rx() { count } else { 0 },
        tx_count: if direction.has_tx() { count } else { 0 },
        ring_len,
        frame_len,
        promiscuous: options.promiscuous,
        multicast: true,
        packet_len_max: limits.packet_len_max,
    })
}

/// Number of frames that fills all rings, and as many again for packets in use.
fn frames(options: &PortOptions, queues_max: u32, ring_len_max: u32) -> PoolConfig {
    let ring_len = match options.ring_len {
        0 => RING_LEN,
        len => len.min(1 << 16),
    };
    let queues = match (options.direction.has_rx(), options.direction.has_tx()) {
        (true, true) => 2,
        _ => 1,
    } * options.queue_count.clamp(1, queues_max.max(1));
    let rings = ring_len.next_power_of_two().min(ring_len_max) * queues;
    PoolConfig {
        frame_count: (2 * rings).clamp(512, 1 << 20),
        huge_pages: HugePages::Try,
        ..PoolConfig::default()
    }
}

/// The pool to use: the given one, or a new one.
fn pool(options: &PortOptions, limits: &Limits) -> Result<Pool> {
    match &options.pool {
        Some(pool) => Ok(pool.clone()),
        None => Pool::new(frames(options, limits.rx_count, limits.ring_len_max)),
    }
}

/// The name of a supported card, by its vendor and device id.
pub fn card_name(id: (u16, u16)) -> Option<&'static str> {
    vfio::find(id).map(vfio::Card::name)
}

/// Maps the pool, starts the card, and passes its queues to their owners.
fn assemble<D: Driver>(assembly: Assembly<'_>, driver: D) -> Result<Port> {
    let Assembly {
        borrowed,
        name,
        options,
        via,
    } = assembly;
    let ethernet = FilterTarget {
        link_type: 1,
        tap: None,
    };
    let options = &options.for_packets(ethernet)?;
    if options.timestamp == TimestampSource::Device {
        let what = format!("open {}:{}", BACKEND.scheme, name.target);
        let why = "this driver does not read the card's clock";
        return Err(Error::new(ErrorKind::Unsupported, what, why)
            .with_hint("timestamp=batch reads the clock once per batch"));
    }
    let limits = driver.limits();
    let pool = pool(options, &limits)?;
    let settings = settings(name, options, &limits, pool.frame_len())?;
    let frames = driver.function().dma().map_pool(&pool)?;
    let (core, rx_queues, tx_queues, interrupts) =
        Core::start(borrowed, driver, &settings, frames)?;
    let core = Arc::new(core);
    let stamp = options.timestamp != TimestampSource::None;
    let tags_fit = rx_queues
        .iter()
        .all(|queue| queue.headroom() as usize >= Vlan::LEN);

    let numbers = settings.first..settings.first + settings.rx_count.max(settings.tx_count);
    let mut views: Vec<QueueView> = numbers.map(QueueView::new).collect();
    let rx = receiving(rx_queues, interrupts, &core, &mut views, &settings, options);
    let tx = sending(tx_queues, &core, &mut views, &settings, &limits);
    let description = describe(name, &settings, &pool, &core, via);
    Ok(Port {
        name: format!("{}:{}", BACKEND.scheme, name.target),
        rx,
        tx,
        control: Box::new(Control::new(core, views, description)),
        capabilities: Capabilities {
            detach_moves: true,
            timestamps: stamp,
            rss_hash: limits.rss_hash,
            vlan: limits.vlan && tags_fit,
            takes_traffic: true,
            multi_buffer: true,
            packet_len_max: limits.packet_len_max,
            ..Capabilities::default()
        },
    })
}

/// Creates the receiving queues, each registered in the view of its number.
fn receiving<D: Driver>(
    queues: Vec<D::Rx>,
    interrupts: Vec<Interrupt>,
    core: &Arc<Core<D>>,
    views: &mut [QueueView],
    settings: &Settings,
    options: &PortOptions,
) -> Vec<RxQueue> {
    let mut interrupts = interrupts.into_iter();
    let ends = queues.into_iter().zip(views).enumerate();
    let open = |(at, (queue, view)): (usize, (D::Rx, &mut QueueView))| {
        let counters = Arc::new(RxCounters::default());
        let rx_settings = RxSettings {
            snaplen: options.snaplen,
            stamp: options.timestamp != TimestampSource::None,
        };
        view.watch_rx(counters.clone(), queue.watch());
        let backend = Rx::new(
            queue,
            core.clone(),
            interrupts.next(),
            rx_settings,
            counters.clone(),
            view.closed.clone(),
        );
        RxQueue::new(
            Box::new(backend),
            settings.first + at as u32,
            options.batch_max,
            options.filter.clone(),
            counters,
        )
    };
    ends.map(open).collect()
}

/// Creates the sending queues in the same way.
fn sending<D: Driver>(
    queues: Vec<D::Tx>,
    core: &Arc<Core<D>>,
    views: &mut [QueueView],
    settings: &Settings,
    limits: &Limits,
) -> Vec<TxQueue> {
    let ends = queues.into_iter().zip(views).enumerate();
    let open = |(at, (queue, view)): (usize, (D::Tx, &mut QueueView))| {
        let counters = Arc::new(TxCounters::default());
        view.watch_tx(counters.clone());
        let backend = Tx::new(queue, core.clone(), limits, counters.clone());
        TxQueue::new(Box::new(backend), settings.first + at as u32, counters)
    };
    ends.map(open).collect()
}

fn describe<D: Driver>(
    name: &PortName,
    settings: &Settings,
    pool: &Pool,
    core: &Core<D>,
    via: &'static str,
) -> PortDescription {
    let link = core.link_text();
    let driver = core.driver();
    let mac = driver.mac().map(|byte| format!("{byte:02x}")).join(":");
    let mut facts = vec![
        ("card", driver.name().to_owned()),
        ("address", mac),
        ("reached by", via.to_owned()),
        ("link", link),
        ("ring", format!("{} entries", settings.ring_len)),
        (
            "frames",
            match pool.is_huge() {
                true => format!("{} on huge pages", pool.frame_count()),
                // Each 4 KiB page takes its own entry in the IOMMU's and the processor's tables.
                false => format!(
                    "{} on small pages (huge ones cost less: sysctl vm.nr_hugepages)",
                    pool.frame_count()
                ),
            },
        ),
    ];
    facts.extend(driver.facts());
    PortDescription {
        scheme: BACKEND.scheme,
        target: name.target.clone(),
        link_type: 1,
        intake: Intake::Live,
        facts,
        memory_len: pool.memory_len(),
        interfaces: Vec::new(),
    }
}
