//! `vfio:` drivers in user space: the card's registers mapped, descriptors and packets in memory
//! that it shares with us, no system call and no interrupt on the path.
//!
//! ```text
//!   RxQueue -> Rx<R: DriverRx> -> descriptors <-DMA- card -DMA-> frames of the pool
//!   TxQueue -> Tx<T: DriverTx> -> descriptors -DMA-> card -DMA-> frames of the pool
//!   control -> Control<D: Driver> -> registers -> card
//! ```
//!
//! A driver (one folder here, one row in `cards.rs`) knows one family of cards and nothing of
//! ports; what it must do is in `driver.rs`. It reaches registers through `registers.rs` and memory
//! through `dma.rs`, so that it runs on a device model in the same way (`model.rs`).
//!
//! Descriptors and the whole frame pool are mapped through the IOMMU when the port is opened, at
//! addresses of our choosing. A wrong address, ours or the card's, hits nothing. When the port is
//! closed the card is stopped before the memory goes; when the process dies the kernel does so.
//!
//! # Since Linux
//! 4.0 (type 1 version 2); iommufd 6.6.

mod cards;
mod control;
mod core;
mod dma;
mod driver;
mod e1000;
mod function;
mod igb;
mod intel;
#[cfg(test)]
mod laws;
mod model;
mod registers;
mod rx;
mod tx;
mod virtio;
pub(crate) mod wire;

use std::sync::Arc;

use ring::{Pool, PoolConfig};
use sys::memfd::HugePages;
use sys::pci::{PciAddress, PciFunction};
use sys::{Error, ErrorKind, Result};

use self::control::{Control, QueueView};
use self::core::{Core, Lent};
use self::driver::{Driver, DriverRx, Function, Interrupt, Limits, Settings};
use self::function::VfioFunction;
use self::rx::{Rx, RxSettings};
use self::tx::Tx;
use crate::account::{RxCounters, TxCounters};
use crate::control::{Capabilities, PortDescription};
use crate::open::{Backend, Port, PortName};
use crate::options::{FilterTarget, IommuBy, PortOptions, TimestampSource};
use crate::rx::RxQueue;
use crate::slot::Vlan;
use crate::tx::TxQueue;

/// The row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    scheme: "vfio",
    summary: "a card driven in user space, by its PCI address",
    example: "vfio:0000:00:01.0",
    needs: "an IOMMU; the card bound to vfio-pci; root, or the nodes below /dev/vfio and \
            locked memory",
    queues: true,
    frames: |_, options| Ok(Some(frames(options, QUEUES_MAX, 1 << 16))),
    open,
};

/// Only for a test of the IOMMU, see `wire.rs`: bytes to add to the address of every frame.
const WRONG_ADDRESSES: &str = "wrong addresses";

/// Entries of each ring, unless told otherwise.
const RING_LEN: u32 = 1024;
/// Queues are not more than this, whatever is asked for: each wants a ring full of frames.
const QUEUES_MAX: u32 = 64;

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    let address: PciAddress = name.target.parse()?;
    let pci = PciFunction::find(address)?;
    let id = pci.id()?;
    let card = cards::find(id).ok_or_else(|| cards::unknown(&pci, id))?;
    let through = match options.iommu {
        IommuBy::Auto => sys::vfio::Through::Auto,
        IommuBy::Type1 => sys::vfio::Through::Type1,
        IommuBy::Iommufd => sys::vfio::Through::Iommufd,
    };
    let lent = match options.lend {
        true => nic::bind::lend(address)?,
        false => None,
    };
    let lent: Lent = lent.map(|guard| Box::new(guard) as _);
    let device = sys::vfio::open(&pci, through)?;
    (card.open)(lent, VfioFunction::new(device, id), name, options)
}

/// What a port wants of a card with these limits.
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
                "{} queues are more than the card's {most}",
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

/// Frames that fill all rings and leave as many again for those who hold packets.
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

/// The pool to be used: the one given, or one of its own.
fn pool(options: &PortOptions, limits: &Limits) -> Result<Pool> {
    match &options.pool {
        Some(pool) => Ok(pool.clone()),
        None => Pool::new(frames(options, limits.rx_count, limits.ring_len_max)),
    }
}

/// The name of a card that there is a driver for here, by its vendor and device id.
pub fn card_name(id: (u16, u16)) -> Option<&'static str> {
    cards::find(id).map(|card| card.name)
}

/// Makes a port of a driver: maps the pool, starts the card, hands its queues to their owners.
/// `via` says in a word how the card is reached; `lent` goes when nobody has the card open any
/// more.
fn assemble<D: Driver>(
    lent: Lent,
    driver: D,
    name: &PortName,
    options: &PortOptions,
    via: &'static str,
) -> Result<Port> {
    let ethernet = FilterTarget {
        link_type: 1,
        tap: None,
    };
    let options = &options.for_packets(ethernet)?;
    if options.timestamp == TimestampSource::Device {
        let what = format!("open {}:{}", BACKEND.scheme, name.target);
        let why = "the card's clock is not read by this driver";
        return Err(Error::new(ErrorKind::Unsupported, what, why)
            .with_hint("timestamp=batch takes the time once a batch"));
    }
    let limits = driver.limits();
    let pool = pool(options, &limits)?;
    let settings = settings(name, options, &limits, pool.frame_len())?;
    let off = name.options.iter().find(|(key, _)| key == WRONG_ADDRESSES);
    let off = off.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let frames = driver.function().dma().map_pool(&pool, off)?;
    let (core, rx_queues, tx_queues, interrupts) = Core::start(lent, driver, &settings, frames)?;
    let core = Arc::new(core);
    let stamp = options.timestamp != TimestampSource::None;
    let tags_fit = rx_queues
        .iter()
        .all(|queue| queue.headroom() as usize >= Vlan::LEN);

    let (mut rx, mut tx, mut views) = (Vec::new(), Vec::new(), Vec::new());
    let mut interrupts = interrupts.into_iter();
    for at in 0..settings.rx_count.max(settings.tx_count) {
        views.push(QueueView::new(settings.first + at));
    }
    for (at, queue) in rx_queues.into_iter().enumerate() {
        let counters = Arc::new(RxCounters::default());
        let rx_settings = RxSettings {
            snaplen: options.snaplen,
            stamp,
        };
        let interrupt: Option<Interrupt> = interrupts.next();
        views[at].watch_rx(counters.clone(), queue.watch());
        let closed = views[at].closed.clone();
        let backend = Rx::new(
            queue,
            core.clone(),
            interrupt,
            rx_settings,
            counters.clone(),
            closed,
        );
        let number = settings.first + at as u32;
        rx.push(RxQueue::new(
            Box::new(backend),
            number,
            options.batch_max,
            options.filter.clone(),
            counters,
        ));
    }
    for (at, queue) in tx_queues.into_iter().enumerate() {
        let counters = Arc::new(TxCounters::default());
        views[at].watch_tx(counters.clone());
        let backend = Tx::new(queue, core.clone(), &limits, counters.clone());
        tx.push(TxQueue::new(
            Box::new(backend),
            settings.first + at as u32,
            counters,
        ));
    }
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
                // Each 4 KiB page is an entry of its own in the IOMMU's and the processor's tables.
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
        facts,
        memory_len: pool.memory_len(),
        interfaces: Vec::new(),
    }
}
