//! The driver traits, as used by the backend.
//!
//! A driver supports one family of cards: the order of their initialization and the layout of their
//! descriptors. Everything else (frames, batches, accounts, sleeping, names) is common to all and
//! in the backend. The parts:
//!
//! - [`Function`]: the PCI function as used by the driver, through VFIO or as a model;
//! - [`Driver`]: the control side, one per card;
//! - [`DriverRx`], [`DriverTx`]: a queue's descriptors, owned by the queue's thread.
//!
//! The backend is generic over them: one dynamic call per batch (that of `RxBackend`), static
//! inside.
//!
//! # Ring discipline
//! A descriptor belongs to the card from the doorbell until the card sets its flag. Positions are
//! `u32` that only grow; the entry is the position modulo the ring length. The card's next answer
//! is expected at `head`, the driver writes next at `tail`; `tail - head` never exceeds the ring's
//! length less one if the card detects an empty ring by equality.

use std::sync::Arc;

use ring::slot::{Filled, Slot};
use sys::Result;
use sys::eventfd::EventFd;

use super::dma::{DmaSpace, PoolDma};
use super::registers::Registers;

/// A PCI function owned by this process.
pub trait Function: Send + 'static {
    /// Access to its registers.
    type Registers: Registers;

    /// Vendor and device id (PCI configuration space, offsets 0 and 2).
    #[allow(dead_code, reason = "a driver may want it")]
    fn id(&self) -> (u16, u16);

    /// The registers of BAR `index`.
    fn bar(&self, index: u8) -> Result<Self::Registers>;

    /// Reads the configuration space from `offset` on (256 or 4096 bytes); missing parts read as
    /// all ones.
    #[allow(dead_code, reason = "a driver may want it")]
    fn read_config(&self, offset: u16, bytes: &mut [u8]);

    /// Enables or disables DMA by the card.
    fn set_bus_master(&self, on: bool) -> Result<()>;

    /// Resets the function through the bus if possible (FLR and the like). Returns false if not:
    /// the driver's own reset must then be enough.
    #[allow(dead_code, reason = "a driver may want it")]
    fn reset(&self) -> Result<bool>;

    /// Its device addresses.
    fn dma(&self) -> &Arc<DmaSpace>;

    /// Enables up to `count` interrupts, vector 0 first; returns fewer if the card has fewer (one
    /// for a card with only a pin). Called once, before the queues start.
    fn interrupts(&self, count: u32) -> Result<Vec<Interrupt>>;

    /// An event signalled when the function is requested back, to be unplugged or bound to another
    /// driver; the requester waits until it is closed. `None` if that cannot happen. Called once.
    fn request(&self) -> Option<Arc<EventFd>>;
}

/// An interrupt as a counting file descriptor.
pub struct Interrupt {
    /// Signalled when the interrupt occurred.
    pub event: Arc<EventFd>,
    /// For a pin, which VFIO masks when it occurred: unmasks it; call this before waiting again.
    pub unmask: Option<Box<dyn Fn() -> Result<()> + Send + Sync>>,
}

/// A port's settings for a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of the first queue of either kind, which the others follow; `Unsupported` if the
    /// driver cannot skip the queues before it.
    pub first: u32,
    /// Number of receiving queues.
    pub rx_count: u32,
    /// Number of sending queues.
    pub tx_count: u32,
    /// Length of each ring: a power of two within the driver's [`Limits`].
    pub ring_len: u32,
    /// Length of a frame: 2048 or 4096.
    pub frame_len: u32,
    /// Whether to receive packets for other stations, too.
    pub promiscuous: bool,
    /// Whether to receive all multicast packets.
    pub multicast: bool,
    /// Maximum length of a received packet, from the Ethernet header to the end of the data
    /// (without the frame check sequence).
    pub packet_len_max: u32,
}

/// Limits and capabilities of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of receiving queues.
    pub rx_count: u32,
    /// Maximum number of sending queues.
    pub tx_count: u32,
    /// Minimum length of a ring.
    pub ring_len_min: u32,
    /// Maximum length of a ring.
    pub ring_len_max: u32,
    /// Minimum length of a sent packet in bytes.
    pub packet_len_min: u32,
    /// Maximum length of a sent or received packet in bytes.
    pub packet_len_max: u32,
    /// Maximum number of descriptors of a sent packet.
    pub segments_max: u32,
    /// Whether packets have the card's hash.
    pub rss_hash: bool,
    /// Whether VLAN tags are removed from packets and reported separately, if frames have room
    /// before a packet to restore one (see [`DriverRx::headroom`]).
    pub vlan: bool,
}

/// State of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Whether the link is up.
    pub up: bool,
    /// Speed in Mbit/s; 0 if unknown.
    pub speed_mbps: u32,
    /// Whether it is full duplex.
    pub full_duplex: bool,
}

/// A hint for a card that does not behave as in its datasheet.
pub const REVIVE: &str = "bind it to the kernel's driver and back (barewire nic bind kernel \
                                 and vfio), or restart the machine";

/// Whether a card is still in the state that the driver set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It is running.
    Running,
    /// It was reset: the rings are no longer set up.
    Reset,
    /// It does not respond (all ones).
    Gone,
}

/// The card's own counters since `start`. The driver sums those that are cleared by reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardCounters {
    /// Good packets that passed the card's address filter and were assigned to a queue; `None` for
    /// a card that does not count.
    pub received: Option<u64>,
    /// Good packets lost because the card's own memory was full.
    pub missed: u64,
    /// Packets with errors (frame checksum, too short, too long), by the datasheet's name.
    pub errors: Vec<(&'static str, u64)>,
    /// Good packets sent, if counted.
    pub sent: Option<u64>,
    /// Counters by receiving queue.
    pub rx: Vec<QueueCounters>,
    /// Whether the counter of packets without a descriptor was saturated: more were lost than it
    /// shows, and `received` includes the rest.
    pub lost_more: bool,
}

/// Counters of a receiving queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets received on it; `None` if the card does not count by queue.
    pub received: Option<u64>,
    /// Packets lost because it had no descriptor with a frame. Not included in `received`.
    pub no_descriptor: u64,
}

/// The queues of a started card.
pub struct Queues<R, T> {
    /// Receiving queues by number.
    pub rx: Vec<R>,
    /// Sending queues by number.
    pub tx: Vec<T>,
}

/// The control side of a driver.
pub trait Driver: Send + Sized + 'static {
    /// The type of its function.
    type Function: Function;
    /// A receiving queue.
    type Rx: DriverRx;
    /// A sending queue.
    type Tx: DriverTx;

    /// Takes the card: maps its registers and reads what does not change. Does not start it: no
    /// queue is enabled, and it cannot access memory. (A virtio device is reset here, and its
    /// features are negotiated, because it does not report them before.)
    fn open(function: Self::Function) -> Result<Self>;

    /// The card.
    fn function(&self) -> &Self::Function;

    /// Limits of the card; known before it is started.
    fn limits(&self) -> Limits;

    /// The card's name for users.
    fn name(&self) -> &'static str;

    /// The card's Ethernet address.
    fn mac(&self) -> [u8; 6];

    /// Resets the card and starts it with empty receive rings. Called once. Interrupt `n` belongs
    /// to the `n`th receiving queue, if there are as many. Bus mastering is enabled in here, after
    /// the reset: what ran before must not write to this process's memory.
    fn start(
        &mut self,
        settings: &Settings,
        frames: &Arc<PoolDma>,
        interrupt_count: u32,
    ) -> Result<Queues<Self::Rx, Self::Tx>>;

    /// Reads the link state.
    fn link(&mut self) -> LinkState;

    /// Reads the card's counters.
    fn counters(&mut self) -> CardCounters;

    /// Checks whether the card is still in the state in which it was started.
    fn health(&mut self) -> Health;

    /// Stops the intake: no new packet enters the rings; those in them can be harvested, and
    /// sending continues. Bounded in time.
    fn stop_intake(&mut self) -> Result<()>;

    /// Stops all DMA and interrupts; returns true if, according to the card or the bus, the card
    /// accesses no memory after this. Bounded in time, even if the card does not respond; repeated
    /// calls only return the result.
    fn shut_down(&mut self) -> bool;

    /// Names and values for `describe`, in addition to the backend's.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The same for warnings since the start.
    fn warnings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// Numbers of packets refused by harvesting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Marked as damaged by the card (checksum, alignment, carrier).
    pub errors: u64,
    /// With an impossible descriptor: longer than the frame that was offered, or without an end.
    pub invalid: u64,
    /// Longer than the port's maximum.
    pub too_long: u64,
}

/// The descriptors of a receiving queue. Frames are indices in the pool passed to `start`.
///
/// The caller maintains the owner table: a frame is marked as the device's before `offer`, and
/// becomes the caller's by `harvest` (which claims it) or `drain`.
pub trait DriverRx: Send + 'static {
    /// Length of the ring.
    fn ring_len(&self) -> u32;

    /// Number of entries without a frame.
    fn vacant(&self) -> u32;

    /// Offset in a frame at which the card starts to write.
    fn headroom(&self) -> u32;

    /// Writes the descriptors of the next vacant entries: the card owns the frames with these
    /// indices, already marked as the device's, from the next `publish` on. Accesses no register.
    ///
    /// # Panics
    /// In debug builds, if there are fewer vacant entries.
    fn offer_run(&mut self, indices: &[u32]);

    /// Offers the frames of a finished batch, from its first slot on: as far as there are vacant
    /// entries, and up to a slot whose frame this process no longer owns. Marks each as the
    /// device's; returns the number of slots handled. Accesses no register.
    ///
    /// # Safety
    /// The slots' tokens are indices of this pool's frames.
    unsafe fn offer_slots(&mut self, slots: &[Slot]) -> usize;

    /// Rings the doorbell if anything was offered: one fence, one register write.
    fn publish(&mut self);

    /// Harvests finished packets, up to `max` slots and never a part of a packet: claims the frames
    /// (`Pool::claim_index`) and appends a slot for each, with the frame's index as `token`, data,
    /// lengths, `CONTINUES`, hash and VLAN. A packet in more slots than `max` is returned alone.
    /// Frames of refused packets are claimed, moved to `back`, and counted; a packet without an end
    /// is refused once it is longer than the ring or the maximum. Returns what was appended.
    ///
    /// Each slot gets `time_ns`, and is marked as having a time if that is not 0; the caller
    /// applies the snaplen. Accesses no register.
    fn harvest(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        time_ns: u64,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) -> Filled;

    /// Whether `harvest` has something to process: the next descriptor is done.
    fn is_ready(&self) -> bool;

    /// Counts the packets that are done and not harvested, by a walk over the ring, from any
    /// thread: for the account, whose terms must be independent. The queue publishes its position
    /// once per batch, through an atomic.
    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync>;

    /// Whether the queue is still in the state in which it was started. One register read: for idle
    /// times.
    fn health(&mut self) -> Health;

    /// Enables an interrupt for the next packet. The caller must check `is_ready` once more before
    /// it sleeps: a packet in between is not reported.
    fn arm(&mut self);

    /// Disables interrupts.
    fn disarm(&mut self);

    /// Returns the frames that the card still held, still marked as the device's. Only after
    /// `Driver::shut_down`, or when the card is gone.
    fn drain(&mut self, frame: &mut dyn FnMut(u32));
}

/// A part of a packet to send: one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxPart {
    /// Index of the frame in the pool.
    pub index: u32,
    /// Offset of the first byte in the frame.
    pub offset: u32,
    /// Length; not 0, and within the frame (ensured by the caller).
    pub len: u32,
    /// Length of the packet, over all parts.
    pub packet_len: u32,
    /// Whether it is the first part of a packet.
    pub is_first: bool,
    /// Whether it is the last part.
    pub is_last: bool,
}

/// Allowed lengths of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    min: u32,
    /// Difference between the maximum and the minimum.
    span: u32,
}

impl Lengths {
    /// Allows `min` to `max` bytes.
    pub fn new(min: u32, max: u32) -> Self {
        let span = max.saturating_sub(min);
        Self { min, span }
    }

    /// Whether this length is allowed.
    #[inline(always)]
    pub fn hold(self, len: u32) -> bool {
        len.wrapping_sub(self.min) <= self.span
    }
}

/// Packets posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// Number of packets.
    pub packets: usize,
    /// Number of bytes.
    pub bytes: u64,
}

/// The descriptors of a sending queue.
pub trait DriverTx: Send + 'static {
    /// Length of the ring.
    #[allow(dead_code, reason = "a driver may want it")]
    fn ring_len(&self) -> u32;

    /// Number of parts that can be posted now.
    fn room(&self) -> u32;

    /// Number of parts posted (or published) and not yet reclaimed.
    fn pending(&self) -> u32;

    /// Writes the next descriptor. The frame is already marked as the device's. Accesses no
    /// register; the parts of a packet are posted consecutively before the next `publish`.
    ///
    /// # Panics
    /// In debug builds, without room.
    fn post(&mut self, part: TxPart);

    /// Posts single-part packets from the slots of a finished batch, each `offset` bytes into its
    /// frame: as many as fit, and up to a slot that belongs to a packet in several, has a length
    /// outside `lengths`, or whose frame this process does not own. Marks each frame as the
    /// device's. Accesses no register.
    ///
    /// # Safety
    /// The slots' tokens are indices of this pool's frames, and their data are `offset` bytes into
    /// these.
    unsafe fn post_slots(&mut self, slots: &[Slot], offset: u32, lengths: Lengths) -> Posted;

    /// Requests one completion for all posted packets (RS on the last descriptor, or the like) and
    /// starts the card: one fence, one register write. No effect if nothing was posted.
    fn publish(&mut self);

    /// Returns the frames of sent packets, several at a time, still marked as the device's.
    fn reclaim(&mut self, frames: impl FnMut(&[u32]));

    /// Packets posted and not reclaimed, and their bytes: for the account of a closed queue. A walk
    /// over the ring.
    fn left(&self) -> Posted;

    /// Whether the queue is still in the state in which it was started. One register read.
    fn health(&mut self) -> Health;

    /// As [`DriverRx::drain`].
    fn drain(&mut self, frame: &mut dyn FnMut(u32));
}
