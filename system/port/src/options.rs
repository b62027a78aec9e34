//! How a port is to be opened.

mod words;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bpf::cbpf::Program;
use ring::Pool;
use sys::Result;

pub(crate) use words::{OPTION_NAMES, apply};

/// Which way packets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Only receive.
    #[default]
    Rx,
    /// Only send.
    Tx,
    /// Both.
    Both,
}

impl Direction {
    /// Whether packets are received.
    pub fn has_rx(self) -> bool {
        self != Self::Tx
    }

    /// Whether packets are sent.
    pub fn has_tx(self) -> bool {
        self != Self::Rx
    }
}

/// Where an XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver if it can, else generic.
    #[default]
    Auto,
    /// In the driver, or fail.
    Native,
    /// After the driver, on socket buffers.
    Generic,
}

/// How an AF_XDP socket shares memory with the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindMode {
    /// Zero-copy if the driver can, else copy.
    #[default]
    Auto,
    /// The card writes into our frames, or fail.
    ZeroCopy,
    /// The kernel copies.
    Copy,
}

/// Timestamp source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimestampSource {
    /// The card or driver where it can, else the earliest program or kernel hook.
    #[default]
    Auto,
    /// The card or driver; fails where neither can. Of a packet to which it gives no time, the
    /// kernel's.
    Device,
    /// The kernel: the XDP program, or the socket buffer's time.
    Kernel,
    /// The reader's clock, once per batch: cheapest.
    Batch,
    /// None.
    None,
}

/// How a tap copies packets out of the kernel (AF_PACKET).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TapMethod {
    /// The cheaper one where rights and kernel allow it.
    #[default]
    Auto,
    /// The packet socket's own ring, TPACKET_V3.
    Tpacket,
    /// A socket filter program that writes into memory of its own, or fail (Since Linux 5.12,
    /// CAP_BPF).
    Bpf,
}

/// How packets are spread over the queues of a tap (AF_PACKET's fan-out groups).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fanout {
    /// By flow: a hash over addresses and ports, the same for both directions of a flow.
    #[default]
    Hash,
    /// As `Hash`, with the fragments of IPv4 packets joined first, so that they are of their flow
    /// too. What is received is then no longer what was on the wire.
    HashDefrag,
    /// In turn.
    RoundRobin,
    /// By the processor that took the packet from the card.
    Cpu,
    /// By the card's receive queue.
    Queue,
    /// All to the first queue that has room.
    Rollover,
}

/// By which of the kernel's interfaces a card is taken in user space (VFIO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IommuInterface {
    /// iommufd where the kernel has it, else type 1.
    #[default]
    Auto,
    /// A container and the group of the card.
    Type1,
    /// iommufd, or fail (Since Linux 6.6).
    Iommufd,
}

/// The packets that a filter is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilterTarget {
    /// Their link type, as capture files number it.
    pub link_type: u16,
    /// Index of the interface, for a tap: the kernel that runs the filter has more than the bytes,
    /// and keeps the VLAN tag separately.
    pub tap: Option<u32>,
}

type Compile = dyn Fn(FilterTarget) -> Result<Option<Program>> + Send + Sync;

/// Compiles the filter once the link type is known: before the first packet is accepted, and for a
/// file again for each link type in it.
#[derive(Clone)]
pub struct FilterSource(Arc<Compile>);

impl FilterSource {
    /// From a function that compiles. It returns nothing where no filter is wanted.
    pub fn new(
        compile: impl Fn(FilterTarget) -> Result<Option<Program>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(compile))
    }

    /// The filter for packets of a kind.
    ///
    /// # Errors
    /// The function's, as a rule `InvalidInput`.
    pub fn compile(&self, target: FilterTarget) -> Result<Option<Program>> {
        (self.0)(target)
    }
}

impl fmt::Debug for FilterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FilterSource")
    }
}

/// How a port is to be opened; the default suits a capture on one queue.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Which way packets go.
    pub direction: Direction,
    /// Queues wanted: threads that will read. 0 is as many as the interface has (AF_XDP) or one
    /// (others).
    pub queue_count: u32,
    /// Bytes kept of each packet; 0 is all.
    pub snaplen: u32,
    /// Only packets that this program selects (a nonzero result). In the kernel where the backend
    /// can.
    pub filter: Option<Program>,
    /// Where the filter comes from if it is not known before the port's link type is.
    pub filter_source: Option<FilterSource>,
    /// Frames to use; a pool of the port's own when there is none.
    pub pool: Option<Pool>,
    /// Entries of each ring (AF_XDP) or frames' worth of block memory (AF_PACKET); 0 is the
    /// backend's choice.
    pub ring_len: u32,
    /// Bytes of ring memory (AF_PACKET) for each queue; 0 is the backend's choice.
    pub ring_bytes: usize,
    /// Maximum number of packets a batch.
    pub batch_max: usize,
    /// Where the XDP program goes.
    pub attach: AttachMode,
    /// How the socket is bound.
    pub bind: BindMode,
    /// The timestamp source.
    pub timestamp: TimestampSource,
    /// See packets for other stations too.
    pub promiscuous: bool,
    /// See what the host itself sends (taps only).
    pub outgoing: bool,
    /// Busy polling: packets the kernel may handle for us in one call; none is interrupts.
    pub busy_poll_budget: Option<u16>,
    /// Set XDP_USE_NEED_WAKEUP (Since Linux 5.4).
    pub need_wakeup: bool,
    /// How a tap copies packets (AF_PACKET).
    pub tap: TapMethod,
    /// How a tap's packets are spread over several queues.
    pub fanout: Fanout,
    /// Have the kernel compute a flow hash for packets whose card gave none (AF_PACKET): it costs.
    pub rss_hash: bool,
    /// Send past the interface's queueing discipline (AF_PACKET): less cost, no traffic shaping.
    pub qdisc_bypass: bool,
    /// By which of the kernel's interfaces a card is taken (VFIO).
    pub iommu: IommuInterface,
    /// Take the card from its kernel driver while the port is open (VFIO).
    pub bind_card: bool,
    /// How long the kernel may hold back packets to fill a block (AF_PACKET).
    pub block_timeout: Duration,
    /// A name for the port's interface in capture files.
    pub label: Option<String>,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            direction: Direction::Rx,
            queue_count: 0,
            snaplen: 0,
            filter: None,
            filter_source: None,
            pool: None,
            ring_len: 0,
            ring_bytes: 0,
            batch_max: 64,
            attach: AttachMode::Auto,
            bind: BindMode::Auto,
            timestamp: TimestampSource::Auto,
            promiscuous: true,
            outgoing: true,
            busy_poll_budget: None,
            need_wakeup: true,
            tap: TapMethod::Auto,
            fanout: Fanout::Hash,
            rss_hash: false,
            qdisc_bypass: true,
            iommu: IommuInterface::Auto,
            bind_card: false,
            block_timeout: Duration::from_millis(10),
            label: None,
        }
    }
}

impl PortOptions {
    /// The same with the filter compiled for the link type: called by a backend once it is known.
    ///
    /// # Errors
    /// As [`FilterSource::compile`].
    pub fn for_packets(&self, target: FilterTarget) -> Result<Self> {
        let mut options = self.clone();
        if let Some(source) = options.filter_source.take() {
            options.filter = source.compile(target)?;
        }
        Ok(options)
    }
}
