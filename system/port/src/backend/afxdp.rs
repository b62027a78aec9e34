//! `afxdp:` kernel bypass: an XDP program redirects the packets of a queue to an AF_XDP socket
//! (`Documentation/networking/af_xdp.rst`).
//!
//! ```text
//!            +-- socket of the queue: RX ring --> Rx, which returns frames by the fill ring
//!  program --+
//!            +-- no socket, or not selected: on to the host
//! ```
//!
//! Each queue is one socket with its four rings; all use one pool, registered once if the kernel
//! shares it, so that a frame received on one queue can be sent on any other without a copy.
//! Descriptors in the kernel's rings are checked: an address must be in a frame that this queue
//! gave to the kernel.
//!
//! # Since Linux
//! 5.9 (attachment through a bpf_link); all features need 6.17.

mod attach;
mod bind;
mod borrowed;
mod control;
mod describe;
mod plan;
mod probe;
mod rx;
mod socket;
mod tx;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use ring::{Pool, PoolConfig};
use sys::Result;
use sys::link::{LinkMonitor, Promiscuous};
use sys::netlink;
use sys::privileges::Capability;
use xdp::MetadataSpec;

use self::attach::{Attachment, Device};
use self::control::{Control, Growth, QueueView};
use self::plan::Plan;
use self::rx::{Rx, RxSettings, Times};
use self::socket::{Queue, RxParts, Shared, TxParts};
use self::tx::Tx;
use super::clock::Clock;
use crate::account::{RxCounters, TxCounters};
use crate::control::Capabilities;
use crate::options::{FilterTarget, PortOptions, TimestampSource};
use crate::port::Port;
use crate::registry::{Backend, PortName, Target};
use crate::rx::RxQueue;
use crate::tx::TxQueue;

/// Row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    summary: "kernel bypass on all queues of an interface or on one",
    example: "afxdp:eth0/3",
    needs: "Linux 5.9; root, or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF while opening",
    queues: true,
    target: Target::Interface,
    filter_takes: true,
    to_receive: &[
        Capability::NetRaw,
        Capability::NetAdmin,
        Capability::Bpf,
        Capability::Perfmon,
        // For frames beyond the limit of locked memory.
        Capability::IpcLock,
    ],
    // The counters are in a map of its program.
    to_count: sys::privileges::to_read_maps,
    calls_bpf: true,
    faster: "xdplive: sends faster if the driver accepts XDP frames",
    frames,
    ..Backend::new("afxdp", open)
};

/// Frames of a port without a given pool.
fn frames(name: &PortName, options: &PortOptions) -> Result<Option<PoolConfig>> {
    let options = &PortOptions {
        pool: None,
        ..options.clone()
    };
    let device = Device::find(&name.target, options)?;
    let queues = plan::choose_queues(name, options, &device)?;
    Plan::new(options, queues).map(|plan| Some(plan.frames(&device)))
}

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    let ethernet = FilterTarget {
        link_type: 1,
        tap: None,
    };
    let options = &options.for_packets(ethernet)?;
    let device = Device::find(&name.target, options)?;
    let queues = plan::choose_queues(name, options, &device)?;
    let plan = Plan::new(options, queues)?;
    // Before anything is taken from the host, so that a failure here changes nothing.
    let pool = plan.pool(options, &device)?;
    let monitor = LinkMonitor::open()?;
    let route = netlink::Socket::route()?;

    let mut opening = Opening {
        attachment: plan.attach(&device, options)?.map(Arc::new),
        queues: Vec::new(),
    };
    let attachment = opening.attachment.clone();
    bind::bind_all(
        &device,
        options,
        &plan,
        &pool,
        attachment.as_deref(),
        &mut opening.queues,
    )?;
    let promiscuous = match plan.has_rx && options.promiscuous {
        true => Promiscuous::hold(device.link.index).ok(),
        false => None,
    };
    let own = attachment.as_deref().map(|a| a.redirect.sockets());
    if let (true, Some(sockets)) = (plan.has_rx, own.or(options.sockets.as_deref())) {
        for queue in &opening.queues {
            let socket = queue.shared.socket.as_fd();
            sockets.set(queue.shared.spec.queue_index, socket)?;
        }
    }
    // Complete: the guard has nothing left to undo.
    opening.attachment = None;
    Ok(assemble(Parts {
        name,
        options,
        device,
        pool,
        attachment,
        opened: std::mem::take(&mut opening.queues),
        monitor,
        route,
        promiscuous,
    }))
}

/// State of a partly opened port. If dropped, the program leaves the interface before the first
/// socket closes; otherwise it would continue to redirect packets to closed sockets.
struct Opening {
    attachment: Option<Arc<Attachment>>,
    queues: Vec<Queue>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(attachment) = &self.attachment {
            attachment.detach();
        }
    }
}

struct Parts<'a> {
    name: &'a PortName,
    options: &'a PortOptions,
    device: Device,
    pool: Pool,
    attachment: Option<Arc<Attachment>>,
    opened: Vec<Queue>,
    monitor: LinkMonitor,
    route: netlink::Socket,
    promiscuous: Option<Promiscuous>,
}

/// Passes the parts to their owners.
fn assemble(parts: Parts<'_>) -> Port {
    let description = describe::describe(&parts);
    let Parts {
        name,
        options,
        device,
        pool,
        attachment,
        opened,
        monitor,
        route,
        promiscuous,
    } = parts;
    let metadata = attachment.as_ref().map(|a| a.metadata).unwrap_or_default();
    let multi_buffer = opened.iter().all(|queue| queue.shared.spec.multi_buffer);
    let capabilities = Capabilities {
        detach_moves: true,
        timestamps: options.timestamp != TimestampSource::None,
        rss_hash: metadata.hash,
        vlan: metadata.vlan,
        takes_traffic: true,
        kernel_filter: true,
        multi_buffer,
        packet_len_max: match multi_buffer {
            true => 0,
            false => pool.frame_len() - sys::xsk::PACKET_HEADROOM,
        },
        ..Capabilities::default()
    };
    let makings = QueueParts {
        options,
        metadata,
        pool: &pool,
        attachment: attachment.as_ref(),
    };
    let (rx, tx, queues) = makings.queues(opened);
    let mut control = Control {
        queues,
        attachment,
        description,
        route,
        monitor,
        interface_seen: Growth::since(device.link.stats.rx_packets),
        interface_sent: Growth::since(device.link.stats.tx_packets),
        link: device.link,
        waiting: VecDeque::new(),
        is_detached: false,
        promiscuous,
    };
    control.look_at_interface();
    Port {
        name: format!("afxdp:{}", name.target),
        rx,
        tx,
        control: Box::new(control),
        capabilities,
    }
}

/// Inputs for the ends of all queues.
struct QueueParts<'a> {
    options: &'a PortOptions,
    metadata: MetadataSpec,
    pool: &'a Pool,
    attachment: Option<&'a Arc<Attachment>>,
}

impl QueueParts<'_> {
    /// Builds the ends of each queue, and the control side's view of it.
    fn queues(&self, opened: Vec<Queue>) -> (Vec<RxQueue>, Vec<TxQueue>, Vec<QueueView>) {
        let (mut rx, mut tx, mut queues) = (Vec::new(), Vec::new(), Vec::new());
        for queue in opened {
            let (shared, rx_parts, tx_parts) = queue.into_ends();
            let mut view = QueueView {
                shared: shared.clone(),
                rx: None,
                tx: None,
            };
            if let Some(parts) = rx_parts {
                let (queue, counters) = self.receiving(&shared, parts);
                view.rx = Some(counters);
                rx.push(queue);
            }
            if let Some(parts) = tx_parts {
                let (queue, counters) = self.sending(&shared, parts);
                view.tx = Some(counters);
                tx.push(queue);
            }
            queues.push(view);
        }
        (rx, tx, queues)
    }

    fn receiving(&self, shared: &Arc<Shared>, parts: RxParts) -> (RxQueue, Arc<RxCounters>) {
        let options = self.options;
        let counters = Arc::new(RxCounters::default());
        let settings = RxSettings {
            snaplen: options.snaplen,
            times: match options.timestamp {
                TimestampSource::None => Times::None,
                TimestampSource::Batch => Times::Batch,
                _ => Times::Program(Clock::new()),
            },
            metadata: self.metadata.is_wanted(),
            busy_poll: options.busy_poll_budget.is_some(),
            sockets: options.sockets.clone(),
        };
        let backend = Rx::new(
            parts,
            shared.clone(),
            self.attachment.cloned(),
            self.pool.clone(),
            settings,
            counters.clone(),
        );
        let queue = RxQueue::new(
            Box::new(backend),
            shared.spec.queue_index,
            options.batch_max,
            // The program filters: packets that it does not select go to the host and are not
            // counted as dropped.
            None,
            counters.clone(),
        );
        (queue, counters)
    }

    fn sending(&self, shared: &Arc<Shared>, parts: TxParts) -> (TxQueue, Arc<TxCounters>) {
        let counters = Arc::new(TxCounters::default());
        let backend = Tx::new(
            parts,
            shared.clone(),
            self.pool.clone(),
            self.options.busy_poll_budget.is_some(),
            counters.clone(),
        );
        let queue = TxQueue::new(Box::new(backend), shared.spec.queue_index, counters.clone());
        (queue, counters)
    }
}
