//! Options for opening a port.

mod words;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bpf::cbpf::Program;
use ring::Pool;
use sys::Result;
use xdp::XskMap;

pub(crate) use words::{OPTION_NAMES, apply};

/// Direction of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Receive only.
    #[default]
    Rx,
    /// Send only.
    Tx,
    /// Receive and send.
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
    /// In the driver if supported, otherwise generic.
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
    /// Zero-copy if the driver supports it, otherwise copy.
    #[default]
    Auto,
    /// Zero-copy, or fail: the card writes into the pool's frames.
    ZeroCopy,
    /// The kernel copies.
    Copy,
}

/// Timestamp source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimestampSource {
    /// The card or driver if supported, otherwise the earliest program or kernel hook.
    #[default]
    Auto,
    /// The card or driver; fails if neither supports it. The kernel for packets without a device
    /// timestamp.
    Device,
    /// The kernel: the XDP program, or the socket buffer's time.
    Kernel,
    /// The reader's clock, once per batch: cheapest.
    Batch,
    /// No timestamps.
    None,
}

/// How a tap copies packets out of the kernel (AF_PACKET).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TapMethod {
    /// The cheaper one that privileges and kernel allow.
    #[default]
    Auto,
    /// The packet socket's own ring: TPACKET_V3, or TPACKET_V2 for
    /// [`immediate`](PortOptions::immediate).
    Tpacket,
    /// A socket filter program that writes into its own memory, or fail (since Linux 5.12,
    /// CAP_BPF).
    Bpf,
}

/// How packets are distributed to the queues of a tap (AF_PACKET's fan-out groups).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fanout {
    /// By flow: a hash over addresses and ports, the same for both directions of a flow.
    #[default]
    Hash,
    /// Like `Hash`, with fragments of IPv4 packets reassembled first, so that they belong to their
    /// flow as well. The received packets then differ from those on the wire.
    HashDefrag,
    /// By the IP addresses, in either order: all packets between two hosts go to one queue, and
    /// fragments with them. Packets without an IP header go to the first queue.
    Addresses,
    /// The same by the innermost addresses of packets in tunnels (IP in IP, GRE, GTP-U). Fragments
    /// of a tunnel are distributed by the outer addresses.
    InnerAddresses,
    /// Round robin.
    RoundRobin,
    /// By the processor that received the packet from the card.
    Cpu,
    /// By the card's receive queue.
    Queue,
    /// To the first queue that has room.
    Rollover,
}

/// The kernel interface used to drive a card in user space (VFIO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IommuInterface {
    /// iommufd if the kernel has it, otherwise type 1.
    #[default]
    Auto,
    /// A container and the group of the card.
    Type1,
    /// iommufd, or fail (since Linux 6.6).
    Iommufd,
}

/// The packets that a filter is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilterTarget {
    /// Their link type, as numbered in capture files.
    pub link_type: u16,
    /// Index of the interface, for a tap: the kernel that runs the filter has metadata besides the
    /// bytes, and keeps the VLAN tag separately.
    pub tap: Option<u32>,
}

type Compile = dyn Fn(FilterTarget) -> Result<Option<Program>> + Send + Sync;

/// Compiles the filter once the link type is known: before the first packet is accepted, and for a
/// file again for each link type in it.
#[derive(Clone)]
pub struct FilterSource(Arc<Compile>);

impl FilterSource {
    /// Creates a source from a function that compiles. It returns `None` for no filter.
    pub fn new(
        compile: impl Fn(FilterTarget) -> Result<Option<Program>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(compile))
    }

    /// Compiles the filter for packets of a kind.
    ///
    /// # Errors
    /// Those of the function, usually `InvalidInput`.
    pub fn compile(&self, target: FilterTarget) -> Result<Option<Program>> {
        (self.0)(target)
    }
}

impl fmt::Debug for FilterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FilterSource")
    }
}

/// Options for opening a port; the default suits a capture on one queue.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Direction of packets.
    pub direction: Direction,
    /// Whether a port that is opened for both directions may have no sending queue: a queue of a
    /// cluster that has no return path.
    pub tx_optional: bool,
    /// Number of queues: threads that will read. 0 for as many as the interface has (AF_XDP) or one
    /// (others).
    pub queue_count: u32,
    /// Number of bytes kept of each packet; 0 for all.
    pub snaplen: u32,
    /// Only packets that this program selects (a nonzero result). Runs in the kernel if the backend
    /// supports it.
    pub filter: Option<Program>,
    /// Whether the filter can be replaced in the kernel after the process has dropped its
    /// privileges (AF_XDP): a helper process of its own keeps the right to load the program.
    pub filter_helper: bool,
    /// Source of the filter if it is not known before the port's link type is.
    pub filter_source: Option<FilterSource>,
    /// Pool to use; `None` for a pool of the port's own.
    pub pool: Option<Pool>,
    /// Length of each ring (AF_XDP), or block memory in units of frames (AF_PACKET); 0 for the
    /// backend's default.
    pub ring_len: u32,
    /// Length that the RX ring need not exceed (AF_XDP) where `ring_len` is 0; 0 for no limit.
    pub rx_len_max: u32,
    /// The same for the TX ring: a sender that flushes often needs few frames, which then stay in
    /// the processor's cache.
    pub tx_len_max: u32,
    /// Ring memory in bytes (AF_PACKET) for each queue; 0 for the backend's default.
    pub ring_bytes: usize,
    /// Maximum number of packets per batch.
    pub batch_max: usize,
    /// Where to attach the XDP program.
    pub attach: AttachMode,
    /// The map of an attached XDP program of the caller (AF_XDP): it redirects the packets, and the
    /// port attaches none. Its sockets are entered in the map, and removed when their queue is
    /// dropped. The port then counts as seen what reached the sockets.
    pub sockets: Option<Arc<XskMap>>,
    /// How to bind the socket.
    pub bind: BindMode,
    /// The timestamp source.
    pub timestamp: TimestampSource,
    /// Whether to receive packets for other stations, too.
    pub promiscuous: bool,
    /// Whether to receive packets that the host itself sends (taps only).
    pub outgoing: bool,
    /// EtherType of the packets received (AF_PACKET); 0 for all. Packets that the host sends are
    /// received with 0 only.
    pub protocol: u16,
    /// Whether packets have Linux cooked headers (LINKTYPE_LINUX_SLL2) in the place of the
    /// interface's own (AF_PACKET), for interfaces whose headers are unknown or missing. Those of
    /// `any` always have them.
    pub cooked: bool,
    /// Busy polling: maximum number of packets the kernel handles in one call; `None` for
    /// interrupts.
    pub busy_poll_budget: Option<u16>,
    /// Whether to set XDP_USE_NEED_WAKEUP (since Linux 5.4).
    pub need_wakeup: bool,
    /// How a tap copies packets (AF_PACKET).
    pub tap: TapMethod,
    /// How a tap's packets are distributed to several queues.
    pub fanout: Fanout,
    /// Number of the fan-out group (AF_PACKET), which other processes may join, too: each packet
    /// then goes to one queue of the group. `None` for a group of the port's own.
    pub fanout_group: Option<u16>,
    /// Whether the kernel computes a flow hash for packets whose card provided none (AF_PACKET), at
    /// some cost.
    pub rss_hash: bool,
    /// Whether to bypass the interface's queueing discipline when sending (AF_PACKET): lower cost,
    /// no traffic shaping.
    pub qdisc_bypass: bool,
    /// The kernel interface used to drive a card (VFIO).
    pub iommu: IommuInterface,
    /// Whether to take the card from its kernel driver while the port is open (VFIO).
    pub bind_card: bool,
    /// Maximum time that the kernel may hold back packets to fill a block (AF_PACKET).
    pub block_timeout: Duration,
    /// Whether each packet is delivered as soon as it arrives (AF_PACKET): no `block_timeout`, at a
    /// higher cost per packet.
    pub immediate: bool,
    /// Whether uncompressed capture files are mapped rather than read. A file that becomes shorter
    /// then raises SIGBUS, for which the whole process gets a handler.
    pub map_files: bool,
    /// Whether the blocks of one pcapng file are passed on, so that they can be copied
    /// ([`PortControl::blocks`](crate::PortControl::blocks), [`Packet`](crate::Packet::block)).
    pub copies_blocks: bool,
    /// Name of the port's interface in capture files.
    pub label: Option<String>,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            direction: Direction::Rx,
            tx_optional: false,
            queue_count: 0,
            snaplen: 0,
            filter: None,
            filter_helper: false,
            filter_source: None,
            pool: None,
            ring_len: 0,
            rx_len_max: 0,
            tx_len_max: 0,
            ring_bytes: 0,
            batch_max: 64,
            attach: AttachMode::Auto,
            sockets: None,
            bind: BindMode::Auto,
            timestamp: TimestampSource::Auto,
            promiscuous: true,
            outgoing: true,
            protocol: 0,
            cooked: false,
            busy_poll_budget: None,
            need_wakeup: true,
            tap: TapMethod::Auto,
            fanout: Fanout::Hash,
            fanout_group: None,
            rss_hash: false,
            qdisc_bypass: true,
            iommu: IommuInterface::Auto,
            bind_card: false,
            block_timeout: Duration::from_millis(10),
            immediate: false,
            map_files: true,
            copies_blocks: false,
            label: None,
        }
    }
}

impl PortOptions {
    /// The options with the filter compiled for the link type: called by a backend once it is
    /// known.
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
