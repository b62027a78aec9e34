//! The traits of a driver, as the backend uses them.
//!
//! A driver supports one family of cards: the order of their initialization and the layout of their
//! descriptors. Everything else (frames, batches, accounts, sleeping, names) is the backend's and
//! the same for all. The parts:
//!
//! - [`Function`]: the PCI function as the driver finds it, by VFIO or as a model;
//! - [`Driver`]: the control side, one a card;
//! - [`DriverRx`], [`DriverTx`]: a queue's descriptors, owned by the queue's thread.
//!
//! The backend is generic over them: one dynamic call a batch (that of `RxBackend`), static inside.
//!
//! # Ring discipline
//! A descriptor belongs to the card from the doorbell until the card sets its flag. Positions are
//! `u32` that only grow; entry is position modulo ring length. `head` is where the card's next
//! answer is looked for, `tail` where we write next; `tail - head` never exceeds the ring's length
//! less one if the card detects an empty ring by equality.

use std::sync::Arc;

use ring::slot::{Filled, Slot};
use sys::Result;
use sys::eventfd::EventFd;

use super::dma::{DmaSpace, PoolDma};
use super::registers::Registers;

/// A PCI function in our hands.
pub trait Function: Send + 'static {
    /// How its registers are reached.
    type Registers: Registers;

    /// Vendor and device id (PCI configuration space, offsets 0 and 2).
    #[allow(dead_code, reason = "a driver may want it")]
    fn id(&self) -> (u16, u16);

    /// The registers of BAR `index`.
    fn bar(&self, index: u8) -> Result<Self::Registers>;

    /// Reads the configuration space from `offset` on (256 or 4096 bytes); what does not exist
    /// reads as all ones.
    #[allow(dead_code, reason = "a driver may want it")]
    fn read_config(&self, offset: u16, bytes: &mut [u8]);

    /// Lets the card read and write memory by itself, or stops that.
    fn set_bus_master(&self, on: bool) -> Result<()>;

    /// Resets the function where the bus can (FLR and the like). False where it cannot: then the
    /// driver's own reset must do.
    #[allow(dead_code, reason = "a driver may want it")]
    fn reset(&self) -> Result<bool>;

    /// Its device addresses.
    fn dma(&self) -> &Arc<DmaSpace>;

    /// Enables up to `count` interrupts, vector 0 first; fewer return where the card has fewer
    /// (one, for a card with only a pin). Called once, before the queues start.
    fn interrupts(&self, count: u32) -> Result<Vec<Interrupt>>;

    /// Signalled when the function is requested back, to be unplugged or bound to another driver;
    /// the requester waits until it is closed. `None` if that cannot happen. Called once.
    fn request(&self) -> Option<Arc<EventFd>>;
}

/// One interrupt as a file descriptor that counts.
pub struct Interrupt {
    /// Signalled when the interrupt came.
    pub event: Arc<EventFd>,
    /// The interrupt is a pin that VFIO masked when it came: unmask it before waiting again.
    pub unmask: Option<Box<dyn Fn() -> Result<()> + Send + Sync>>,
}

/// A port's settings for a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of the first queue of either kind, the others follow it; `Unsupported` if the driver
    /// cannot leave out those before it.
    pub first: u32,
    /// Receiving queues; 0 is none.
    pub rx_count: u32,
    /// Sending queues; 0 is none.
    pub tx_count: u32,
    /// Entries of each ring: a power of two within the driver's [`Limits`].
    pub ring_len: u32,
    /// Bytes of a frame: 2048 or 4096.
    pub frame_len: u32,
    /// Take packets for other stations too.
    pub promiscuous: bool,
    /// Take all multicast packets.
    pub multicast: bool,
    /// Largest packet to be received, in bytes from the Ethernet header to the end of the data
    /// (without the frame check sequence).
    pub packet_len_max: u32,
}

/// What a card can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of receiving and sending queues.
    pub rx_count: u32,
    /// See above.
    pub tx_count: u32,
    /// Minimum and maximum number of entries of a ring.
    pub ring_len_min: u32,
    /// See above.
    pub ring_len_max: u32,
    /// Shortest packet that can be sent, and largest that can be sent and received, in bytes.
    pub packet_len_min: u32,
    /// See above.
    pub packet_len_max: u32,
    /// Maximum number of descriptors of a sent packet.
    pub segments_max: u32,
    /// Packets carry the card's hash.
    pub rss_hash: bool,
    /// VLAN tags are taken out of packets and reported alongside them, where frames have room in
    /// front of a packet to put one back (see [`DriverRx::headroom`]).
    pub vlan: bool,
}

/// State of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Packets can pass.
    pub up: bool,
    /// Megabits a second; 0 if it is not known.
    pub speed_mbps: u32,
    /// Both directions at a time.
    pub full_duplex: bool,
}

/// A hint for a card that does not behave as in its datasheet.
pub const REVIVE: &str = "bind it to the kernel's driver and back (barewire nic bind kernel \
                                 and vfio), or restart the machine";

/// Whether a card still is what we made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It runs.
    Running,
    /// It was reset: our rings are no longer set up.
    Reset,
    /// It does not answer (all ones).
    Gone,
}

/// The card's own counters, since `start`. The driver adds up those that clear when read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardCounters {
    /// Good packets that passed the card's address filter and were given to some queue; `None` for
    /// a card that does not count.
    pub received: Option<u64>,
    /// Good packets lost because the card's own memory was full.
    pub missed: u64,
    /// Packets with errors (checksum of the frame, too short, too long), by the datasheet's name.
    pub errors: Vec<(&'static str, u64)>,
    /// Good packets sent, where it counts them.
    pub sent: Option<u64>,
    /// By receiving queue.
    pub rx: Vec<QueueCounters>,
    /// The counter of packets without descriptor was saturated: more were lost than it shows, and
    /// `received` includes the rest.
    pub lost_more: bool,
}

/// What a card counts for one receiving queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets received on it; `None` where the card does not count by queue.
    pub received: Option<u64>,
    /// Packets lost because it had no descriptor with a frame. Not part of `received`.
    pub no_descriptor: u64,
}

/// A started card's queues.
pub struct Queues<R, T> {
    /// Receiving, by number.
    pub rx: Vec<R>,
    /// Sending, by number.
    pub tx: Vec<T>,
}

/// The control side of a driver.
pub trait Driver: Send + Sized + 'static {
    /// How it finds its card.
    type Function: Function;
    /// A receiving queue.
    type Rx: DriverRx;
    /// A sending queue.
    type Tx: DriverTx;

    /// Takes the card: maps what it needs and reads what does not change. It does not start: no
    /// queue of its is on, and it cannot reach memory. (A virtio device is reset for that, and its
    /// features are agreed upon: before, it does not report its features.)
    fn open(function: Self::Function) -> Result<Self>;

    /// The card.
    fn function(&self) -> &Self::Function;

    /// What the card can do; known before it is started.
    fn limits(&self) -> Limits;

    /// The card's name for users and its Ethernet address.
    fn name(&self) -> &'static str;

    /// See above.
    fn mac(&self) -> [u8; 6];

    /// Resets the card and starts it, with empty receive rings. Called once. Interrupt `n` belongs
    /// to the `n`th receiving queue as far as there are as many. Bus mastering continues in here,
    /// after the reset: what ran before us must not write our memory.
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

    /// Checks whether the card is as it was started.
    fn health(&mut self) -> Health;

    /// Ends the intake: no new packet enters the rings; those in them can be harvested, and sending
    /// continues. Bounded in time.
    fn stop_intake(&mut self) -> Result<()>;

    /// Ends all DMA and interrupts; true if the card touches no memory of ours after this, for its
    /// own word or the bus's. Bounded in time, also when the card does not answer; called again
    /// without effect but for the answer.
    fn shut_down(&mut self) -> bool;

    /// Names and values for `describe`, in addition to the backend's.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The same for what has come up since the start.
    fn warnings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// What harvesting could not make packets of; packets each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The card marked them as damaged (checksum, alignment, carrier).
    pub errors: u64,
    /// The descriptor is impossible: longer than the frame that was offered, or without an end.
    pub invalid: u64,
    /// Longer than the port takes.
    pub too_long: u64,
}

/// A receiving queue's descriptors. Frames are indices of the pool that `start` was given.
///
/// The caller answers for the owner table: a frame is marked as the device's before `offer` and
/// becomes the caller's by `harvest` (which claims it) or `drain`.
pub trait DriverRx: Send + 'static {
    /// Entries of the ring.
    fn ring_len(&self) -> u32;

    /// Entries that can be given a frame now.
    fn vacant(&self) -> u32;

    /// Where in a frame the card starts to write, in bytes.
    fn headroom(&self) -> u32;

    /// Writes the descriptors of the next vacant entries: the frames of these indices, marked as
    /// the device's already, are the card's from the next `publish` on. No register is touched.
    ///
    /// # Panics
    /// In debug builds, where there are fewer vacant entries.
    fn offer_run(&mut self, indices: &[u32]);

    /// Offers the frames of a batch that ends here, from its first slot on: as far as there are
    /// vacant entries, and up to a slot whose frame is not this process's any more. Marks each as
    /// the device's; returns how many slots it handled. No register is touched.
    ///
    /// # Safety
    /// The slots' tokens are indices of this pool's frames.
    unsafe fn offer_slots(&mut self, slots: &[Slot]) -> usize;

    /// Rings the doorbell if anything was offered: one fence, one register write.
    fn publish(&mut self);

    /// Takes finished packets, up to `max` slots and never a part of a packet: claims the frames
    /// (`Pool::claim_index`) and appends a slot for each with `token` the frame's index, data,
    /// lengths, `CONTINUES`, hash and VLAN. A packet in more slots than `max` is taken alone.
    /// Frames of refused packets go to `back`, claimed, and are counted; a packet without end is
    /// refused once it is longer than the ring or the longest packet. Returns what was appended.
    ///
    /// Each slot gets `time_ns`, and is marked as having a time if it is not 0; the caller applies
    /// the snaplen. No register is touched.
    fn harvest(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        time_ns: u64,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) -> Filled;

    /// Whether `harvest` would look at something: the next descriptor is done.
    fn is_ready(&self) -> bool;

    /// Counts the packets that are done and not harvested, by a walk over the ring, from any
    /// thread: for the account, whose terms are to be independent. The queue publishes its position
    /// once per batch, by an atomic.
    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync>;

    /// Whether the queue is as it was started. One register read: for idle times.
    fn health(&mut self) -> Health;

    /// Has the card interrupt at the next packet. The caller looks at `is_ready` once more before
    /// it sleeps: a packet between is not reported.
    fn arm(&mut self);

    /// Has the card interrupt no more.
    fn disarm(&mut self);

    /// The frames that the card still held, still marked as the device's. Only after
    /// `Driver::shut_down`, or when the card is gone.
    fn drain(&mut self, frame: &mut dyn FnMut(u32));
}

/// A part of a packet to be sent: one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxPart {
    /// Frame of the pool.
    pub index: u32,
    /// First byte in the frame.
    pub offset: u32,
    /// Bytes; not 0, and within the frame (the caller's word).
    pub len: u32,
    /// Bytes of the packet, over all parts.
    pub packet_len: u32,
    /// The first part of a packet.
    pub is_first: bool,
    /// The last one.
    pub is_last: bool,
}

/// What lengths a packet may have.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    min: u32,
    /// How much longer the longest is.
    span: u32,
}

impl Lengths {
    /// From `min` to `max` bytes.
    pub fn new(min: u32, max: u32) -> Self {
        let span = max.saturating_sub(min);
        Self { min, span }
    }

    /// Whether a packet may have this one.
    #[inline(always)]
    pub fn hold(self, len: u32) -> bool {
        len.wrapping_sub(self.min) <= self.span
    }
}

/// What was posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// Packets.
    pub packets: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A sending queue's descriptors.
pub trait DriverTx: Send + 'static {
    /// Entries of the ring.
    #[allow(dead_code, reason = "a driver may want it")]
    fn ring_len(&self) -> u32;

    /// Parts that can be posted now.
    fn room(&self) -> u32;

    /// Posted (or published) and not yet taken back by `reclaim`.
    fn pending(&self) -> u32;

    /// Writes the next descriptor. The frame is marked as the device's already. No register is
    /// touched; the parts of one packet follow each other before the next `publish`.
    ///
    /// # Panics
    /// In debug builds, without room.
    fn post(&mut self, part: TxPart);

    /// Posts packets of one part each from the slots of a batch that ends here, each `offset` bytes
    /// into its frame: as many as there is room for, and up to a slot that is of a packet in
    /// several, has no length within `lengths`, or whose frame is not this process's. Marks each
    /// frame as the device's. No register is touched.
    ///
    /// # Safety
    /// The slots' tokens are indices of this pool's frames, and their data lies `offset` bytes into
    /// these.
    unsafe fn post_slots(&mut self, slots: &[Slot], offset: u32, lengths: Lengths) -> Posted;

    /// Requests one completion for all posted packets (RS on the last descriptor, or the like) and
    /// starts the card: one fence, one register write. Without effect if nothing was posted.
    fn publish(&mut self);

    /// Returns the frames whose packets have left, some at a time, still marked as the device's.
    fn reclaim(&mut self, frames: impl FnMut(&[u32]));

    /// Packets posted and not taken back by `reclaim`, and their bytes: for the account of a queue
    /// that is closed. A walk over the ring.
    fn left(&self) -> Posted;

    /// Whether the queue is as it was started. One register read.
    fn health(&mut self) -> Health;

    /// As [`DriverRx::drain`].
    fn drain(&mut self, frame: &mut dyn FnMut(u32));
}
