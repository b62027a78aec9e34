//! virtio-net: the network card of virtual machines (VIRTIO 1.2 §5.1), through its modern PCI
//! interface (§4.1), with split or packed queues.
//!
//! There is no hardware to count packets, and little to set up: a device is a set of negotiated
//! features, and queues in shared memory. Notifying the device of new buffers is expensive (a VM
//! exit), so this is only done when the device requests it (§2.7.10, §2.8.10), and interrupts are
//! disabled while polling.
//!
//! Read [`feature`] for the negotiated features, then [`VirtioNet::start`] alongside §3.1.1 and
//! §5.1.5, then [`split`] or [`packed`], then [`rx`] and [`tx`].

mod capability;
mod command;
mod feature;
mod header;
#[cfg(any(test, feature = "testing"))]
mod model;
mod packed;
mod ring;
mod rx;
mod split;
#[cfg(test)]
mod tests;
mod transport;
mod tx;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sys::{Error, ErrorKind, Result};

use self::command::Control;
use self::feature::Features;
#[cfg(any(test, feature = "testing"))]
pub use self::model::VirtioModel;
pub use self::packed::Packed;
pub use self::ring::Ring;
use self::ring::SIZE_MAX;
pub use self::rx::VirtioRx;
use self::rx::{RxParts, RxView, START};
pub use self::split::Split;
use self::transport::{Doorbell, Transport, status};
use self::tx::TxParts;
pub use self::tx::VirtioTx;
use super::dma::{DmaArray, PoolDma};
use super::driver::{
    CardCounters, Driver, Function, Health, Limits, LinkState, QueueCounters, Queues, REVIVE,
    Settings,
};
use super::registers::Registers;

/// Offset of a received packet in a frame: the headers of the receiving and of a sending device fit
/// before it.
const HEADROOM: u32 = 256;

/// Minimum useful queue length: a sent packet with the maximum number of parts must fit.
const SIZE_MIN: u16 = 32;
/// Maximum number of parts of a sent packet.
const SEGMENTS_MAX: u32 = 17;
/// Minimum packet length: an Ethernet header.
const PACKET_LEN_MIN: u32 = 14;
/// Ethernet header with a VLAN tag, which an MTU does not include (§5.1.4.1).
const LINK_HEADER_LEN: u32 = 18;
/// What fits into a frame of any length after the headroom.
const FRAME_ROOM: u32 = 2048 - HEADROOM;
/// Maximum packet length if the device reports no MTU.
const PACKET_LEN_MAX: u32 = 9216 + LINK_HEADER_LEN;

/// First byte of an address: group bit, and locally administered bit (IEEE 802 §8.2).
const MAC_GROUP: u8 = 1;
const MAC_LOCAL: u8 = 2;

/// Device configuration (§5.1.4).
mod config {
    pub const MAC: u32 = 0;
    pub const STATUS: u32 = 6;
    pub const MAX_VIRTQUEUE_PAIRS: u32 = 8;
    pub const MTU: u32 = 10;
    /// In `STATUS`.
    pub const LINK_UP: u16 = 1;
}

impl<G: Registers> Transport<G> {
    /// Whether the device is still in the state in which it was started (§2.1.2).
    fn health(&self) -> Health {
        match self.status() {
            status::GONE => Health::Gone,
            now if now & status::NEEDS_RESET != 0 => Health::Reset,
            now if now & status::DRIVER_OK == 0 => Health::Reset,
            _ => Health::Running,
        }
    }
}

/// Properties that a device reports before it is started.
#[derive(Clone, Copy, Debug)]
struct Identity {
    features: Features,
    mac: [u8; 6],
    /// Number of its queue pairs.
    pairs_max: u16,
    /// Number of its control queue (§5.1.2): after all reported pairs.
    control_queue: u16,
    /// Its MTU, if reported.
    mtu: Option<u16>,
    /// Maximum length that all its queues support.
    ring_len_max: u16,
}

/// Identifies a device and negotiates its features (§3.1.1, steps 1 to 6). `without` are supported
/// features to refuse.
///
/// The features are negotiated before the queues are examined: which queues exist depends on them,
/// and some devices create theirs only then.
fn meet<G: Registers>(transport: &Transport<G>, without: Features) -> Result<Identity> {
    or_give_up(transport, || try_to_meet(transport, without))
}

/// Reports a failed step to the device, which then has no driver (§3.1.1).
fn or_give_up<G: Registers, T>(
    transport: &Transport<G>,
    step: impl FnOnce() -> Result<T>,
) -> Result<T> {
    step().inspect_err(|_| transport.add_status(status::FAILED))
}

fn try_to_meet<G: Registers>(transport: &Transport<G>, without: Features) -> Result<Identity> {
    greet(transport)?;
    let mut features = feature::choose(transport.offered())? & !without;
    let identity = transport.config(|device| {
        let mac = [0, 1, 2, 3, 4, 5].map(|at| device.config8(config::MAC + at));
        let pairs = match features & feature::MQ {
            0 => 1,
            _ => device.config16(config::MAX_VIRTQUEUE_PAIRS),
        };
        let mtu = (features & feature::MTU != 0).then(|| device.config16(config::MTU));
        (mac, pairs, mtu)
    });
    let (mac, pairs, mut mtu) = identity;
    let mac = match features & feature::MAC {
        0 => random_mac(),
        _ => mac,
    };
    // §5.1.4.1: 1 to 0x8000 pairs, an MTU of at least 68.
    let pairs = pairs.clamp(1, 0x7fff);
    // Without mergeable buffers a packet must fit into one frame, and §5.1.4.2 forbids accepting an
    // MTU that does not.
    let whole = features & feature::MRG_RXBUF != 0;
    let fits = |mtu: u16| whole || u32::from(mtu) + LINK_HEADER_LEN <= FRAME_ROOM;
    if mtu.is_some_and(|mtu| mtu < 68 || !fits(mtu)) {
        features &= !feature::MTU;
        mtu = None;
    }
    transport.settle(features)?;
    // Nonexistent queues do not count.
    let control = u16::from(features & feature::CTRL_VQ != 0);
    let pairs_max = match transport.queue_count() {
        u16::MAX => 0,
        count => pairs.min(count.saturating_sub(control) / 2),
    };
    let ring_len_max = (0..2 * pairs_max)
        .map(|queue| transport.queue_size_max(queue).min(SIZE_MAX))
        .min()
        .unwrap_or(0);
    let ring_len_max = match ring_len_max {
        0 => 0,
        len => 1 << len.ilog2(),
    };
    if ring_len_max < SIZE_MIN {
        let why = format!("it has {pairs_max} queue pairs of at most {ring_len_max} entries");
        let hint = format!("at least one pair of {SIZE_MIN} entries is needed");
        return Err(
            Error::new(ErrorKind::Unsupported, "start a virtio-net device", why).with_hint(hint),
        );
    }
    Ok(Identity {
        features,
        mac,
        pairs_max,
        control_queue: 2 * pairs,
        mtu,
        ring_len_max,
    })
}

/// Generates an address for a device that has none (§5.1.4.2: the driver does so, locally
/// administered): two devices in a network must not have the same.
fn random_mac() -> [u8; 6] {
    // The standard library seeds its hash tables with random numbers from the kernel.
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ());
    let [a, b, c, d, e, f, ..] = random.to_le_bytes();
    [a & !MAC_GROUP | MAC_LOCAL, b, c, d, e, f]
}

/// Resets a device and announces a driver (§3.1.1, steps 1 to 3).
fn greet<G: Registers>(transport: &Transport<G>) -> Result<()> {
    if !transport.reset() {
        let why = match transport.status() {
            status::GONE => "it does not answer",
            _ => "it does not complete its reset",
        };
        return Err(Error::new(ErrorKind::Io, "reset a virtio-net device", why).with_hint(REVIVE));
    }
    transport.add_status(status::ACKNOWLEDGE);
    transport.add_status(status::DRIVER);
    Ok(())
}

/// Whether a device has packed queues, which selects the driver to open it with.
///
/// # Errors
/// If it is not a modern device.
pub fn is_packed<F: Function>(function: &F) -> Result<bool> {
    let transport = Transport::open(function)?;
    Ok(meet(&transport, 0)?.features & feature::RING_PACKED != 0)
}

/// A device with queues of one kind.
pub struct VirtioNet<F: Function, R: Ring> {
    function: F,
    transport: Transport<F::Registers>,
    identity: Identity,
    control: Option<Control<F::Registers, R>>,
    /// Unused queues of a pair.
    spare: Vec<R>,
    /// Per receiving queue: its state, and the number of packets that wait in its ring.
    views: Vec<(RxView, RingWatch)>,
}

/// The queues of a started device.
type Started<F, R> =
    Queues<VirtioRx<<F as Function>::Registers, R>, VirtioTx<<F as Function>::Registers, R>>;

/// Counts what waits in a ring.
type RingWatch = Box<dyn Fn() -> u32 + Send + Sync>;

impl<F: Function, R: Ring> VirtioNet<F, R> {
    fn has(&self, features: Features) -> bool {
        self.identity.features & features == features
    }

    /// Creates the ring of the device's queue `queue`, sets it up and enables it.
    fn queue(
        &self,
        queue: u16,
        size: u16,
        writable: bool,
        vector: Option<u16>,
    ) -> Result<(R, Doorbell<F::Registers>)> {
        let event_idx = self.has(feature::EVENT_IDX);
        let ring = R::new(self.function.dma(), size, writable, event_idx)?;
        let bell = self.transport.enable(queue, size, &ring, vector)?;
        Ok((ring, bell))
    }

    /// Sets up the control queue.
    fn control_queue(&self) -> Result<Option<Control<F::Registers, R>>> {
        if !self.has(feature::CTRL_VQ) {
            return Ok(None);
        }
        let number = self.identity.control_queue;
        let most = self.transport.queue_size_max(number).min(64);
        if most < 2 {
            let why = "it has no control queue";
            let what = "start a virtio-net device";
            return Err(Error::new(ErrorKind::Unsupported, what, why)
                .with_hint("with QEMU: -device virtio-net-pci,ctrl_vq=off"));
        }
        let (ring, bell) = self.queue(number, 1 << most.ilog2(), false, None)?;
        Control::new(self.function.dma(), ring, bell).map(Some)
    }

    /// Sets the packets to receive and the number of pairs in use.
    fn configure(&mut self, settings: &Settings, pairs: u16) -> Result<()> {
        let (modes, several) = (self.has(feature::CTRL_RX), self.has(feature::MQ));
        let Some(control) = &mut self.control else {
            return Ok(());
        };
        if modes {
            control.run(command::PROMISC, &[settings.promiscuous.into()])?;
            control.run(command::ALLMULTI, &[settings.multicast.into()])?;
        }
        if several {
            control.run(command::VQ_PAIRS_SET, &pairs.to_le_bytes())?;
        }
        Ok(())
    }

    /// Resets the device and sets it up with `pairs` of queues of `size` entries.
    fn bring_up(
        &mut self,
        settings: &Settings,
        frames: &Arc<PoolDma>,
        interrupt_count: u32,
        (pairs, size): (u16, u16),
    ) -> Result<Started<F, R>> {
        greet(&self.transport)?;
        self.function.set_bus_master(true)?;
        if self.identity.features & !self.transport.offered() != 0 {
            let why = "it no longer offers its features";
            return Err(
                Error::new(ErrorKind::Io, "start a virtio-net device", why).with_hint(REVIVE)
            );
        }
        self.transport.settle(self.identity.features)?;
        self.transport.no_config_interrupts();
        let header_area = Arc::new(self.function.dma().allocate(64)?);
        let header: Arc<DmaArray<_>> = Arc::new(header_area.array(0, header::HEADER_LEN as usize));
        let mut queues = Queues {
            rx: Vec::new(),
            tx: Vec::new(),
        };
        // §5.1.2: receiving queue n is 2n, sending queue n is 2n + 1.
        for pair in 0..pairs {
            let vector = (u32::from(pair) < interrupt_count).then_some(pair);
            let wanted = u32::from(pair) < settings.rx_count;
            let (ring, bell) = self.queue(2 * pair, size, true, vector.filter(|_| wanted))?;
            if wanted {
                let view = RxView::default();
                let queue = VirtioRx::new(RxParts {
                    ring,
                    bell,
                    transport: self.transport.clone(),
                    frames: frames.clone(),
                    ring_len: size.into(),
                    packet_len_max: settings.packet_len_max,
                    mergeable: self.has(feature::MRG_RXBUF),
                    checksums: self.has(feature::GUEST_CSUM),
                    view: view.clone(),
                });
                self.views.push((view, queue.watch_ring()));
                queues.rx.push(queue);
            } else {
                self.spare.push(ring);
            }
            let (ring, bell) = self.queue(2 * pair + 1, size, false, None)?;
            if u32::from(pair) < settings.tx_count {
                queues.tx.push(VirtioTx::new(TxParts {
                    ring,
                    bell,
                    transport: self.transport.clone(),
                    frames: frames.clone(),
                    ring_len: size.into(),
                    header: header.clone(),
                }));
            } else {
                self.spare.push(ring);
            }
        }
        self.control = self.control_queue()?;
        // §3.1.1, step 8. A device may use its queues from here on.
        self.transport.add_status(status::DRIVER_OK);
        if let Err(error) = self.configure(settings, pairs) {
            // Before the queues are freed.
            self.shut_down();
            return Err(error);
        }
        Ok(queues)
    }
}

impl<F: Function, R: Ring> Driver for VirtioNet<F, R> {
    type Function = F;
    type Rx = VirtioRx<F::Registers, R>;
    type Tx = VirtioTx<F::Registers, R>;

    fn open(function: F) -> Result<Self> {
        let transport = Transport::open(&function)?;
        let split = R::NAME == Split::NAME;
        let without = if split { feature::RING_PACKED } else { 0 };
        let identity = meet(&transport, without)?;
        if !split && identity.features & feature::RING_PACKED == 0 {
            let why = "it does not offer VIRTIO_F_RING_PACKED";
            let what = "start a virtio-net device";
            return Err(Error::new(ErrorKind::Unsupported, what, why).with_hint(REVIVE));
        }
        Ok(Self {
            function,
            transport,
            identity,
            control: None,
            spare: Vec::new(),
            views: Vec::new(),
        })
    }

    fn function(&self) -> &F {
        &self.function
    }

    fn limits(&self) -> Limits {
        let pairs = u32::from(self.identity.pairs_max);
        let longest = match self.has(feature::MRG_RXBUF) {
            true => PACKET_LEN_MAX,
            false => FRAME_ROOM,
        };
        let of_mtu = |mtu: u16| u32::from(mtu) + LINK_HEADER_LEN;
        Limits {
            rx_count: pairs,
            tx_count: pairs,
            ring_len_min: SIZE_MIN.into(),
            ring_len_max: self.identity.ring_len_max.into(),
            packet_len_min: PACKET_LEN_MIN,
            packet_len_max: self.identity.mtu.map_or(longest, of_mtu),
            segments_max: SEGMENTS_MAX,
            rss_hash: false,
            vlan: false,
        }
    }

    fn name(&self) -> &'static str {
        "virtio-net"
    }

    fn mac(&self) -> [u8; 6] {
        self.identity.mac
    }

    /// §3.1.1, §5.1.5: reset, features, queues, start; then the commands on the control queue.
    fn start(
        &mut self,
        settings: &Settings,
        frames: &Arc<PoolDma>,
        interrupt_count: u32,
    ) -> Result<Queues<Self::Rx, Self::Tx>> {
        let refuse = |why: String| {
            Error::new(ErrorKind::InvalidInput, "start a virtio-net device", why).with_hint(
                "use fewer queues=, a shorter ring=, or as many receive queues as transmit queues",
            )
        };
        if settings.first != 0 {
            let why = "the device spreads packets over its queue pairs from the first on";
            let what = "open one queue of a virtio-net device";
            return Err(Error::new(ErrorKind::Unsupported, what, why)
                .with_hint("omit the queue number, and use queues=N"));
        }
        let pairs = settings.rx_count.max(settings.tx_count).max(1);
        let Some(pairs) = u16::try_from(pairs)
            .ok()
            .filter(|pairs| *pairs <= self.identity.pairs_max)
        else {
            let most = self.identity.pairs_max;
            return Err(refuse(format!("it has {most} queue pairs, not {pairs}")));
        };
        if settings.rx_count != 0 && settings.tx_count > settings.rx_count {
            // The device distributes packets to all pairs in use.
            let why =
                "its queues come in pairs: it cannot have more transmit queues than receive queues";
            return Err(refuse(why.into()));
        }
        let size = u16::try_from(settings.ring_len)
            .ok()
            .filter(|len| len.is_power_of_two() && *len <= self.identity.ring_len_max)
            .ok_or_else(|| refuse(format!("no ring of {} entries", settings.ring_len)))?;
        let whole = !self.has(feature::MRG_RXBUF);
        let buffer_len = settings.frame_len - HEADROOM;
        if whole && settings.packet_len_max > buffer_len {
            let why = format!(
                "packets of {} bytes do not fit into frames of {}, and the device supports only \
                 one frame per packet",
                settings.packet_len_max, settings.frame_len
            );
            return Err(refuse(why).with_hint("use a smaller MTU, or larger frames"));
        }

        let transport = self.transport.clone();
        or_give_up(&transport, || {
            self.bring_up(settings, frames, interrupt_count, (pairs, size))
        })
    }

    fn link(&mut self) -> LinkState {
        // §5.1.4.2: without the field the link is assumed to be up.
        let up = match self.has(feature::STATUS) {
            true => {
                let status = self
                    .transport
                    .config(|device| device.config16(config::STATUS));
                status != u16::MAX && status & config::LINK_UP != 0
            }
            false => true,
        };
        LinkState {
            up,
            speed_mbps: 0,
            full_duplex: true,
        }
    }

    fn counters(&mut self) -> CardCounters {
        // A device counts nothing. The ring provides the count: what was taken out of it, and what
        // is in it.
        let received = |(view, waiting): &(RxView, RingWatch)| {
            view.given.load(Ordering::Relaxed) + u64::from(waiting())
        };
        let queue = |queue| QueueCounters {
            received: Some(received(queue)),
            no_descriptor: 0,
        };
        CardCounters {
            rx: self.views.iter().map(queue).collect(),
            ..CardCounters::default()
        }
    }

    fn health(&mut self) -> Health {
        self.transport.health()
    }

    fn stop_intake(&mut self) -> Result<()> {
        // A device without the modes continues until its buffers are used up: no more are offered.
        for (view, _) in &self.views {
            view.stopped.store(true, Ordering::Relaxed);
        }
        // §5.1.6.5.1.
        if self.has(feature::CTRL_RX | feature::CTRL_RX_EXTRA)
            && let Some(control) = &mut self.control
        {
            for stop in [command::NOMULTI, command::NOUNI, command::NOBCAST] {
                control.run(stop, &[1])?;
            }
            for mode in [command::PROMISC, command::ALLMULTI] {
                control.run(mode, &[0])?;
            }
        }
        Ok(())
    }

    fn shut_down(&mut self) -> bool {
        // §2.4: after a reset the device accesses no memory. If it does not respond, the bus still
        // does.
        let is_reset = self.transport.reset();
        self.function.set_bus_master(false).is_ok() || is_reset
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mtu = match self.identity.mtu {
            Some(mtu) => format!("{mtu} bytes"),
            None => "not named".into(),
        };
        vec![
            ("rings", R::NAME.into()),
            ("features", feature::names(self.identity.features)),
            ("device MTU", mtu),
        ]
    }
}

const _: () = assert!(START >= 64, "room in front of a received packet");
