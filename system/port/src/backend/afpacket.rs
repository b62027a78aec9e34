//! `afpacket:` taps an interface through packet(7): it sees traffic without taking it from the
//! host.
//!
//! Receiving uses a TPACKET_V3 ring: the kernel copies packets one after another into blocks that
//! both sides map, with one wake-up per block. Readers that want each packet at once use a
//! TPACKET_V2 ring, as sending does. Several queues are a fan-out group. Kernel side:
//! `net/packet/af_packet.c`.

mod any;
mod blocks;
mod control;
mod filter;
mod frames;
mod listen;
mod program;
mod records;
mod rx;
mod spread;
mod tap;
mod tx;

use std::sync::{Arc, OnceLock};

use bpf::cbpf::Program;
use ring::Pool;
use sys::link::Link;
use sys::packet::PacketSocket;
use sys::privileges::Capability;
use sys::{Error, ErrorKind, Result};

use crate::account::TxCounters;
use crate::control::Capabilities;
use crate::options::{FilterTarget, PortOptions, TimestampSource};
use crate::port::Port;
use crate::registry::{Backend, Plain, PortName, Target};
use crate::rx::RxQueue;
use crate::tx::TxQueue;

use any::Cook;
use control::Control;
use filter::{SocketFilter, runs_in_kernel};
use listen::{Listening, Source};

/// Row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    summary: "tap on an interface, or on all (any): sees both directions, takes no packets",
    example: "afpacket:eth0",
    needs: "CAP_NET_RAW and Linux 3.2; with CAP_BPF and Linux 5.12 the cheaper ring",
    target: Target::Interface,
    plain: Plain::Interfaces,
    to_receive: &[Capability::NetRaw],
    faster: "xdplive: and afxdp: send faster than afpacket:",
    ..Backend::new("afpacket", open)
};

/// Default ring memory per queue in bytes.
const RING_BYTES: usize = 32 << 20;
/// Minimum ring memory: room for a few blocks of one page.
const RING_BYTES_MIN: usize = 16 << 10;
/// Maximum ring memory: limited by the kernel's 32-bit frame counts at every block size.
const RING_BYTES_MAX: usize = 4 << 30;
/// Bytes per packet assumed by `ring=N`.
const FRAME_LEN: usize = 2048;
/// `ARPHRD_LOOPBACK`.
const HARDWARE_LOOPBACK: u16 = 772;
/// Maximum number of members in a fan-out group that every kernel allows.
const QUEUE_COUNT_MAX: u32 = 256;

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    let what = format!("open afpacket:{}", name.target);
    let refuse = |why: String| Error::new(ErrorKind::InvalidInput, what.clone(), why);
    let queue_count = options.queue_count.max(1);
    check(options, queue_count).map_err(&refuse)?;
    let first = PacketSocket::new()?;
    let link = any::find(&name.target)?;
    let is_any = link.index == 0;
    let is_cooked = is_any || options.cooked;
    if is_any && options.direction.has_tx() {
        return Err(refuse("packets are sent on one interface".into()));
    }
    let control = Control::new(link.clone())?;
    let unsupported = |why| refuse(why).with_kind(ErrorKind::Unsupported);
    let link_type = link_type(&link, is_cooked).map_err(unsupported)?;
    let tap = (!is_cooked).then_some(link.index);
    let target = FilterTarget { link_type, tap };
    let mut options = options.for_packets(target)?;
    // Filters that the kernel cannot run are run by the queues; of cooked packets all of them, as
    // the kernel sees no cooked header.
    let in_user = |program: &mut Program| is_cooked || !runs_in_kernel(program);
    let user_filter = options.filter.take_if(in_user);
    let options = &options;
    let time = time_source(&first, &name.target, options, &what)?;
    // Created at the first `detach` if none is given; shared by the queues of a port.
    let pool = Arc::new(OnceLock::new());
    if let Some(given) = &options.pool {
        pool.get_or_init(|| given.clone());
    }
    let mut ends = Ends {
        name,
        link: &link,
        link_type,
        options,
        user_filter,
        time,
        pool,
        facts: Vec::new(),
        memory_len: 0,
        packet_len_max: 0,
    };
    let (mut rx, mut sources, mut filter) = (Vec::new(), Vec::new(), None);
    if options.direction.has_rx() {
        let (queues, listening) = ends.receiving(first, queue_count)?;
        (rx, sources, filter) = (queues, listening.sources, Some(listening.filter));
    }
    let (mut tx, mut tx_counters) = (Vec::new(), Vec::new());
    if options.direction.has_tx() {
        (tx, tx_counters) = ends.sending(queue_count)?;
    }
    let capabilities = Capabilities {
        timestamps: time != TimestampSource::None,
        rss_hash: options.rss_hash,
        vlan: true,
        kernel_filter: true,
        packet_len_max: ends.packet_len_max,
        ..Capabilities::default()
    };
    let filters_in_user = ends.user_filter.is_some();
    let (facts, memory_len) = (ends.facts, ends.memory_len);
    let mut control = control.of(sources, filter, tx_counters, link_type, facts, memory_len);
    control.filters_in_user = filters_in_user;
    Ok(Port {
        name: format!("afpacket:{}", name.target),
        rx,
        tx,
        control: Box::new(control),
        capabilities,
    })
}

/// Builds the queues of a port and its description.
struct Ends<'a> {
    name: &'a PortName,
    link: &'a Link,
    link_type: u16,
    options: &'a PortOptions,
    /// Filter that the queues run themselves.
    user_filter: Option<Program>,
    time: TimestampSource,
    pool: Arc<OnceLock<Pool>>,
    facts: Vec<(&'static str, String)>,
    memory_len: usize,
    /// 0 if unknown.
    packet_len_max: u32,
}

impl Ends<'_> {
    /// Creates the receiving queues: `first` is the socket of the first one.
    fn receiving(
        &mut self,
        first: PacketSocket,
        queue_count: u32,
    ) -> Result<(Vec<RxQueue>, Listening)> {
        let options = self.options;
        let what = format!("open afpacket:{}", self.name.target);
        let bytes =
            ring_bytes(options).map_err(|why| Error::new(ErrorKind::InvalidInput, what, why))?;
        let is_loopback = self.link.hardware == HARDWARE_LOOPBACK;
        let wanted = SocketFilter::new(options, is_loopback);
        let mut sockets = vec![first];
        while sockets.len() < queue_count as usize {
            sockets.push(PacketSocket::new()?);
        }
        let mut listening = listen::listen(sockets, self.link, bytes, wanted, self.time, options)?;
        let sources = &listening.sources;
        self.facts.append(&mut listening.facts);
        if self.user_filter.is_some() {
            let fact = match self.link_type == any::LINK_TYPE {
                true => "in user space, rejected packets are counted",
                false => {
                    "in user space, because the kernel allows no loops; rejected packets are \
                     counted"
                }
            };
            self.facts.retain(|(name, _)| *name != "filter");
            self.facts.push(("filter", fact.into()));
        }
        self.memory_len += sources.iter().map(Source::memory_len).sum::<usize>();
        self.packet_len_max = sources[0].packet_len_max();
        let mut rx = Vec::new();
        for (queue_index, source) in (0..).zip(sources) {
            let is_cooked = self.link_type == any::LINK_TYPE;
            let cook = is_cooked.then(|| Cook::new(options.snaplen, self.link.index));
            rx.push(RxQueue::new(
                source.reader(self.time, self.pool.clone(), options, cook),
                queue_index,
                options.batch_max,
                self.user_filter.clone(),
                source.counters().clone(),
            ));
        }
        let facts = &mut self.facts;
        facts.push(("time", time_fact(self.time).into()));
        let promiscuous = options.promiscuous && self.link.index != 0;
        facts.push(("promiscuous", yes_no(promiscuous).into()));
        let outgoing = options.outgoing && !is_loopback;
        facts.push(("outgoing", yes_no(outgoing).into()));
        if queue_count > 1 {
            facts.push(("fanout", options.fanout.word().into()));
        }
        Ok((rx, listening))
    }

    /// Creates the sending queues and their counters.
    fn sending(&mut self, queue_count: u32) -> Result<(Vec<TxQueue>, Vec<Arc<TxCounters>>)> {
        let (mut tx, mut tx_counters) = (Vec::new(), Vec::new());
        for queue_index in 0..queue_count {
            let counters = Arc::new(TxCounters::default());
            let backend = tx::Tx::open(
                self.link,
                if self.link_type == 1 { 14 } else { 0 },
                self.options,
                self.pool.clone(),
                counters.clone(),
            )?;
            self.memory_len += backend.memory_len();
            if queue_index == 0 {
                self.facts.extend(backend.facts());
                if !self.options.direction.has_rx() {
                    self.packet_len_max = backend.room();
                }
            }
            tx.push(TxQueue::new(
                Box::new(backend),
                queue_index,
                counters.clone(),
            ));
            tx_counters.push(counters);
        }
        Ok((tx, tx_counters))
    }
}

/// Checks what does not depend on the interface.
fn check(options: &PortOptions, queue_count: u32) -> std::result::Result<(), String> {
    if queue_count > QUEUE_COUNT_MAX {
        return Err(format!(
            "{queue_count} queues: a fan-out group has at most {QUEUE_COUNT_MAX}"
        ));
    }
    if options.immediate && options.rss_hash {
        return Err("rss_hash: TPACKET_V2, the ring for immediate, has no hashes".into());
    }
    Ok(())
}

/// Ring memory per queue.
fn ring_bytes(options: &PortOptions) -> std::result::Result<usize, String> {
    let bytes = match (options.ring_bytes, options.ring_len) {
        (0, 0) => RING_BYTES,
        (0, frames) => (frames as usize * FRAME_LEN).max(RING_BYTES_MIN),
        (bytes, _) => bytes,
    };
    if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) {
        return Err(format!(
            "a ring of {bytes} bytes is outside of {RING_BYTES_MIN} to {RING_BYTES_MAX}"
        ));
    }
    Ok(bytes)
}

/// Selects the timestamp source. The card's timestamps are used only on request: its clock may
/// differ from the system's, and packets without a card timestamp would be mixed in with the
/// kernel's time.
fn time_source(
    socket: &PacketSocket,
    interface: &str,
    options: &PortOptions,
    what: &str,
) -> Result<TimestampSource> {
    match options.timestamp {
        TimestampSource::Auto => Ok(TimestampSource::Kernel),
        TimestampSource::Device if !socket.stamps_in_hardware(interface) => {
            let why = "the card does not timestamp every received packet";
            Err(
                Error::new(ErrorKind::Unsupported, what, why).with_hint(format!(
                    "enable it if the card supports it: hwstamp_ctl -i {interface} -r 1; or use \
                 timestamp=kernel"
                )),
            )
        }
        source => Ok(source),
    }
}

fn time_fact(time: TimestampSource) -> &'static str {
    match time {
        TimestampSource::Device => "the card's, else the kernel's",
        TimestampSource::Batch => "the reader's clock, once per batch",
        TimestampSource::None => "none",
        _ => "the kernel's",
    }
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// The link type, for capture files, of packets that such a socket returns for a device
/// (`include/uapi/linux/if_arp.h` on one side, the LINKTYPE_ list of tcpdump.org on the other).
fn link_type(link: &Link, is_cooked: bool) -> std::result::Result<u16, String> {
    Ok(match link.hardware {
        _ if is_cooked => any::LINK_TYPE,
        // Ethernet, Metricom, loopback.
        1 | 23 | 772 => 1,
        // No link header before IP: PPP, raw IP, tunnels (IPIP, IP6IP6, SIT, GRE without keys),
        // none; SLIP in its variants, raw HDLC, frame relay.
        512 | 519 | 768 | 769 | 776 | 778 | 0xfffe => 101,
        15 | 256..=259 | 264 | 518 => 101,
        // Experimental Ethernet, ProNET, Chaosnet.
        2 | 4 | 5 => link.hardware,
        // AX.25, Token Ring, ARCNET, LocalTalk, FDDI.
        3 => 202,
        6 | 800 => 6,
        7 => 129,
        773 => 114,
        774 => 10,
        // Cisco HDLC, frame relay access.
        513 => 104,
        770 => 107,
        // IP over Fibre Channel, Fibre Channel.
        18 => 122,
        784..=787 => 224,
        // 802.11 bare, with Prism and radiotap headers; 802.15.4.
        801 => 105,
        802 => 119,
        803 => 127,
        804 => 230,
        // Monitors of netlink and vsock.
        824 => 253,
        826 => 271,
        other => {
            return Err(format!(
                "packets of hardware type {other} have no known link type"
            ));
        }
    })
}
