//! Opens the receiving side: selects the ring, and sets socket options and the fan-out group in the
//! right order.

use std::sync::{Arc, OnceLock};

use ring::Pool;
use sys::link::Link;
use sys::packet::{PacketSocket, RxRing};
use sys::{Error, ErrorKind, KernelVersion, Result};

use super::HARDWARE_LOOPBACK;
use super::any::Cook;
use super::blocks::{self, Blocks};
use super::filter::{self, SocketFilter};
use super::frames::{self, FrameRx, Frames};
use super::records::{RING_LEN_MAX, RecordRx, RecordTap};
use super::rx::Rx;
use super::spread;
use super::tap::Tap;
use crate::account::{QueueAccount, RxCounters};
use crate::options::{Fanout, PortOptions, TapMethod, TimestampSource};
use crate::rx::RxBackend;

/// Block length: holds a merged packet (GRO, GSO) of 64 KiB in full, or some thousand short ones.
const BLOCK_LEN: usize = 256 << 10;
/// First kernel whose fan-out groups can exclude outgoing packets.
const FANOUT_DIRECTION: KernelVersion = KernelVersion::new(6, 2);

/// A queue's socket with its receive ring.
pub(super) enum Source {
    /// The packet socket's own ring, TPACKET_V3.
    Blocks(Arc<Tap<Blocks>>),
    /// The packet socket's own ring, TPACKET_V2: each packet at once.
    Frames(Arc<Tap<Frames>>),
    /// The ring of a BPF program.
    Records(Arc<RecordTap>),
}

impl Source {
    fn socket(&self) -> &PacketSocket {
        match self {
            Self::Blocks(tap) => &tap.socket,
            Self::Frames(tap) => &tap.socket,
            Self::Records(tap) => &tap.socket,
        }
    }

    /// Accepts packets that the filter selects.
    fn start(&self, filter: &SocketFilter) -> Result<()> {
        match self {
            Self::Blocks(tap) => tap.filter(filter),
            Self::Frames(tap) => tap.filter(filter),
            Self::Records(tap) => tap.start(),
        }
    }

    /// Replaces the filter.
    pub(super) fn replace(&self, filter: &SocketFilter) -> Result<()> {
        match self {
            Self::Blocks(tap) => tap.filter(filter),
            Self::Frames(tap) => tap.filter(filter),
            Self::Records(tap) => tap.replace(filter),
        }
    }

    pub(super) fn counters(&self) -> &Arc<RxCounters> {
        match self {
            Self::Blocks(tap) => &tap.counters,
            Self::Frames(tap) => &tap.counters,
            Self::Records(tap) => &tap.counters,
        }
    }

    /// Packet memory in bytes.
    pub(super) fn memory_len(&self) -> usize {
        match self {
            Self::Blocks(tap) => tap.ring.block_len * tap.ring.block_count,
            Self::Frames(tap) => tap.ring.len(),
            Self::Records(tap) => tap.memory_len(),
        }
    }

    /// Maximum length of a packet that is received in full.
    pub(super) fn packet_len_max(&self) -> u32 {
        match self {
            Self::Blocks(tap) => blocks::packet_len_max(tap.ring.block_len as u32),
            Self::Frames(tap) => tap.ring.packet_len_max(),
            Self::Records(tap) => tap.cap_max,
        }
    }

    /// Creates the reading side.
    pub(super) fn reader(
        &self,
        time: TimestampSource,
        pool: Arc<OnceLock<Pool>>,
        options: &PortOptions,
        cook: Option<Cook>,
    ) -> Box<dyn RxBackend> {
        match self {
            Self::Blocks(tap) => Box::new(Rx::new(tap.clone(), time, pool, options, cook)),
            Self::Frames(tap) => Box::new(FrameRx::new(tap.clone(), time, pool, options, cook)),
            Self::Records(tap) => Box::new(RecordRx::new(tap.clone(), time, pool, options)),
        }
    }

    pub(super) fn account(&self, queue_index: u32) -> Result<QueueAccount> {
        match self {
            Self::Blocks(tap) => tap.account(queue_index),
            Self::Frames(tap) => tap.account(queue_index),
            Self::Records(tap) => Ok(tap.account(queue_index)),
        }
    }

    /// Stops the intake.
    pub(super) fn stop(&self) -> Result<()> {
        match self {
            Self::Blocks(tap) => tap.stop(),
            Self::Frames(tap) => tap.stop(),
            Self::Records(tap) => tap.stop(),
        }
    }

    /// Number of times the ring stood still, if known.
    pub(super) fn freezes(&self) -> Option<u64> {
        match self {
            Self::Blocks(tap) => Some(tap.freezes()),
            Self::Frames(_) | Self::Records(_) => None,
        }
    }

    fn counts_filtered(&self) -> bool {
        match self {
            Self::Blocks(tap) => tap.counts_filtered(),
            Self::Frames(tap) => tap.counts_filtered(),
            Self::Records(_) => true,
        }
    }
}

/// The description of the port: names and values.
type Facts = Vec<(&'static str, String)>;

/// Result of opening the receiving side.
pub(super) struct Listening {
    pub(super) sources: Vec<Source>,
    /// The filter on the sockets.
    pub(super) filter: SocketFilter,
    pub(super) facts: Facts,
}

/// Binds the sockets: ring and filter are in place before the first packet can arrive, so that none
/// is missed.
pub(super) fn listen(
    sockets: Vec<PacketSocket>,
    link: &Link,
    ring_bytes: usize,
    mut filter: SocketFilter,
    time: TimestampSource,
    options: &PortOptions,
) -> Result<Listening> {
    let in_group = sockets.len() > 1 || options.fanout_group.is_some();
    if filter.ignore_outgoing && in_group {
        // The kernel cannot be queried for the group's option.
        filter.kernel_ignores_outgoing = KernelVersion::running() >= Some(FANOUT_DIRECTION);
    }
    for socket in &sockets {
        if filter.ignore_outgoing && !in_group {
            filter.kernel_ignores_outgoing = socket.ignore_outgoing()?;
        }
        if options.promiscuous && link.hardware != HARDWARE_LOOPBACK && link.index != 0 {
            socket.promiscuous(link.index)?;
        }
    }
    let (sources, mut facts) = rings(sockets, link, ring_bytes, &filter, time, options)?;
    for source in &sources {
        // Between its own bind and joining the group, a socket receives everything: nothing may
        // pass then.
        if in_group {
            source.socket().attach_filter(filter::REJECT_ALL)?;
        } else {
            source.start(&filter)?;
        }
        match options.protocol {
            0 => source.socket().bind(link.index, true)?,
            ethertype => source.socket().bind_protocol(link.index, ethertype)?,
        }
    }
    if in_group {
        join(&sources, &filter, options)?;
    }
    let counts = sources.iter().all(Source::counts_filtered);
    facts.push(("filter", filter::fact(options, counts).into()));
    Ok(Listening {
        sources,
        filter,
        facts,
    })
}

/// Creates each socket's ring: that of a program if requested and possible, otherwise its own.
fn rings(
    sockets: Vec<PacketSocket>,
    link: &Link,
    ring_bytes: usize,
    filter: &SocketFilter,
    time: TimestampSource,
    options: &PortOptions,
) -> Result<(Vec<Source>, Facts)> {
    let unfit = match options.tap {
        _ if link.index == 0 || options.cooked => {
            Some("a filter program cannot read the interface")
        }
        TapMethod::Tpacket => Some("requested"),
        _ => unfit_for_records(ring_bytes, time, options),
    };
    if let (TapMethod::Bpf, Some(why)) = (options.tap, unfit) {
        return Err(Error::new(ErrorKind::InvalidInput, "tap by a program", why)
            .with_hint("tap=auto takes the packet socket's own ring then"));
    }
    let mut why = unfit.map(str::to_owned);
    let mut sources = Vec::new();
    let mut left = Vec::new();
    let takes_time = matches!(time, TimestampSource::Kernel);
    for socket in sockets {
        if why.is_some() {
            left.push(socket);
            continue;
        }
        match RecordTap::load(socket, filter, ring_bytes, takes_time) {
            Ok(tap) => sources.push(Source::Records(Arc::new(tap))),
            Err((_, error)) if options.tap == TapMethod::Bpf => return Err(error),
            Err((socket, error)) => {
                why = Some(match error.kind() {
                    ErrorKind::Permission => "loading a program is not permitted".to_owned(),
                    _ => error.why().to_owned(),
                });
                // All queues use the same kind.
                left.extend(sources.drain(..).filter_map(take_socket));
                left.push(socket);
            }
        }
    }
    let Some(why) = why else {
        let memory_len = sources[0].memory_len();
        let facts = vec![(
            "ring",
            format!("of a BPF program, {memory_len} bytes per queue"),
        )];
        return Ok((sources, facts));
    };
    let (mut own, facts) = if options.immediate {
        frame_rings(left, link, ring_bytes, filter, &why, options)?
    } else {
        block_rings(left, ring_bytes, &why, options)?
    };
    sources.append(&mut own);
    Ok((sources, facts))
}

/// Creates the sockets' own rings, whose blocks the kernel hands over when they are full or their
/// time is up.
fn block_rings(
    sockets: Vec<PacketSocket>,
    ring_bytes: usize,
    why: &str,
    options: &PortOptions,
) -> Result<(Vec<Source>, Facts)> {
    let shape = ring_shape(ring_bytes, options);
    let mut sources = Vec::new();
    for socket in sockets {
        if options.timestamp == TimestampSource::Device {
            socket.hardware_time()?;
        }
        let ring = Blocks::new(socket.rx_ring(&shape)?, &shape);
        sources.push(Source::Blocks(Arc::new(Tap::new(socket, ring))));
    }
    let ring_len = u64::from(shape.block_len) * u64::from(shape.block_count);
    let facts = vec![
        (
            "ring",
            format!("TPACKET_V3 ({why}), {ring_len} bytes per queue"),
        ),
        ("block", format!("{} bytes", shape.block_len)),
        ("block_timeout", format!("{} ms", shape.block_timeout_ms)),
    ];
    Ok((sources, facts))
}

/// Creates the sockets' own rings, whose packets the kernel hands over one by one.
fn frame_rings(
    sockets: Vec<PacketSocket>,
    link: &Link,
    ring_bytes: usize,
    filter: &SocketFilter,
    why: &str,
    options: &PortOptions,
) -> Result<(Vec<Source>, Facts)> {
    let packet_len = frames::longest(link).min(filter.snaplen());
    let shape = frames::ring_shape(ring_bytes, packet_len);
    let mut sources = Vec::new();
    for socket in sockets {
        if options.timestamp == TimestampSource::Device {
            socket.hardware_time()?;
        }
        let ring = Frames::new(socket.frame_ring(&shape)?, &shape);
        sources.push(Source::Frames(Arc::new(Tap::new(socket, ring))));
    }
    let ring_len = u64::from(shape.block_len) * u64::from(shape.block_count);
    let (count, len) = (shape.frame_count(), shape.frame_len);
    let facts = vec![
        (
            "ring",
            format!("TPACKET_V2 ({why}), {ring_len} bytes per queue"),
        ),
        ("frames", format!("{count} of {len} bytes")),
    ];
    Ok((sources, facts))
}

/// Reasons why a program's ring cannot be used.
fn unfit_for_records(
    ring_bytes: usize,
    time: TimestampSource,
    options: &PortOptions,
) -> Option<&'static str> {
    if time == TimestampSource::Device {
        Some("a filter program cannot read the card's timestamp")
    } else if options.rss_hash {
        Some("a filter program cannot compute hashes")
    } else if options.fanout == Fanout::Rollover && options.queue_count > 1 {
        Some("the kernel does not know how full a program's ring is")
    } else if ring_bytes > RING_LEN_MAX {
        Some("a program's ring has at most 256 MiB")
    } else {
        None
    }
}

/// Takes the socket out of a source that is not shared yet.
fn take_socket(source: Source) -> Option<PacketSocket> {
    match source {
        Source::Records(tap) => Arc::into_inner(tap).map(|tap| tap.socket),
        Source::Blocks(_) | Source::Frames(_) => None,
    }
}

/// Joins the sockets into one group, and only then accepts packets.
fn join(sources: &[Source], filter: &SocketFilter, options: &PortOptions) -> Result<()> {
    let fanout = sys::packet::Fanout {
        mode: fanout_mode(options.fanout),
        defragment: options.fanout == Fanout::HashDefrag,
        rollover: false,
        ignore_outgoing: filter.ignore_outgoing,
        socket_count_max: match options.fanout {
            // The kernel does not compare the programs of the members, but their maximum.
            Fanout::Addresses => 256,
            Fanout::InnerAddresses => 257,
            _ => 0,
        },
    };
    let mut group = options.fanout_group;
    let program = spread::program(options.fanout);
    for source in sources {
        group = Some(source.socket().join_fanout(&fanout, group)?);
        if let Some(program) = &program {
            // The last one set holds for the whole group.
            source.socket().set_fanout_program(program)?;
        }
    }
    // The kernel may still be delivering a packet from before the sockets joined: such a packet
    // reaches a socket directly, and again through its group.
    sys::packet::wait_for_readers();
    sources.iter().try_for_each(|source| source.start(filter))
}

fn fanout_mode(fanout: Fanout) -> sys::packet::FanoutMode {
    use sys::packet::FanoutMode;
    match fanout {
        Fanout::Hash | Fanout::HashDefrag => FanoutMode::Hash,
        Fanout::Addresses | Fanout::InnerAddresses => FanoutMode::Program,
        Fanout::RoundRobin => FanoutMode::RoundRobin,
        Fanout::Cpu => FanoutMode::Cpu,
        Fanout::Queue => FanoutMode::Queue,
        Fanout::Rollover => FanoutMode::Rollover,
    }
}

/// Layout of the socket's own ring: the requested memory, in blocks of equal size, at least four.
fn ring_shape(ring_bytes: usize, options: &PortOptions) -> RxRing {
    let block_len = BLOCK_LEN.min(1 << (ring_bytes / 4).ilog2());
    let block_timeout_ms = u32::try_from(options.block_timeout.as_millis()).unwrap_or(u32::MAX);
    RxRing {
        block_len: block_len as u32,
        block_count: (ring_bytes / block_len) as u32,
        // The kernel stores it in 16 bits of milliseconds and treats 0 as "choose".
        block_timeout_ms: block_timeout_ms.clamp(1, 10_000),
        hash: options.rss_hash,
    }
}
