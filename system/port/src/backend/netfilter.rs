//! `nflog:` and `nfqueue:` packets of netfilter's rules: copies of those that a rule logs to a
//! group, and those that a rule queues, which are accepted.
//!
//! A rule selects the packets, for example `iptables -j NFLOG --nflog-group 5`, `nft … log group 5`
//! and `iptables -j NFQUEUE --queue-num 3`. They have no link header: a logged packet is a message
//! with the packet among its attributes, as libpcap writes it (LINKTYPE_NFLOG); a queued one begins
//! with its IP header (LINKTYPE_RAW).
//!
//! A queued packet waits until this port has copied it, and then continues on its way: the port
//! receives, and never decides. If the port is too slow, the kernel lets packets pass without it.
//! The kernel numbers packets, so those that were left out are counted exactly.

mod control;
mod messages;
mod rx;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use sys::netfilter::Netfilter;
use sys::privileges::Capability;
use sys::{Error, ErrorKind, Result};

use self::control::Control;
use self::messages::Kind;
use self::rx::Rx;
use crate::account::{Counter, RxCounters};
use crate::backend::keep::Keep;
use crate::control::Capabilities;
use crate::options::{FilterTarget, PortOptions, TimestampSource};
use crate::port::Port;
use crate::registry::{Backend, PortName};
use crate::rx::RxQueue;

/// Rows in the table of backends.
pub(crate) const LOG: Backend = Backend {
    summary: "packets that netfilter rules log to a group (NFLOG)",
    example: "nflog:5, nflog:5,7",
    needs: "CAP_NET_ADMIN, and rules that log to the group",
    to_receive: &[Capability::NetAdmin],
    ..Backend::new("nflog", open_log)
};

pub(crate) const QUEUE: Backend = Backend {
    summary: "packets that netfilter rules queue (NFQUEUE); they are accepted",
    example: "nfqueue:3",
    needs: "CAP_NET_ADMIN, and rules that send packets to the queue",
    to_receive: &[Capability::NetAdmin],
    // Each verdict needs it.
    to_count: || Some(Capability::NetAdmin),
    filter_takes: false,
    ..Backend::new("nfqueue", open_queue)
};

/// Bytes that wait in the socket, unless the options set them.
const BUFFER_LEN: usize = 8 << 20;

/// Bytes of a packet that a ring of a number of packets assumes.
const PACKET_LEN: usize = 2048;

/// Maximum number of groups.
const GROUP_COUNT_MAX: usize = 32;

/// What the receiving thread and the control side share.
#[derive(Default)]
struct Shared {
    /// Packets, by the kernel's numbers.
    seen: Counter,
    /// Of these, packets that the kernel left out because the socket's buffer was full.
    lost: Counter,
    /// Packets that were received and not delivered yet.
    waiting: AtomicU64,
    is_stopped: AtomicBool,
}

/// The numbers in a name.
fn numbers(name: &PortName) -> Result<Vec<u16>> {
    let parsed: std::result::Result<Vec<u16>, _> = name.target.split(',').map(str::parse).collect();
    let is_valid = |numbers: &Vec<u16>| numbers.len() <= GROUP_COUNT_MAX;
    parsed.ok().filter(is_valid).ok_or_else(|| {
        let what = format!("open {}:{}", name.scheme, name.target);
        let why = "expected a number, 0 to 65535, as in the rule";
        Error::new(ErrorKind::InvalidInput, what, why)
            .with_hint("nflog:5 for `log group 5`, nflog:5,7 for two groups; nfqueue:3")
    })
}

fn buffer_len(options: &PortOptions) -> usize {
    match (options.ring_bytes, options.ring_len) {
        (0, 0) => BUFFER_LEN,
        (0, count) => count as usize * PACKET_LEN,
        (bytes, _) => bytes,
    }
}

fn open_log(name: &PortName, options: &PortOptions) -> Result<Port> {
    let mut groups = numbers(name)?;
    groups.sort_unstable();
    groups.dedup();
    let timeout_ms = u32::try_from(options.block_timeout.as_millis()).unwrap_or(u32::MAX);
    let open = || {
        let gathered = if options.immediate { 1 } else { GATHERED };
        Netfilter::log(&groups, timeout_ms, gathered, buffer_len(options))
    };
    open_kind(name, options, Kind::Log, open)
}

/// Packets that the kernel gathers before it wakes a reader.
const GATHERED: u32 = 64;

fn open_queue(name: &PortName, options: &PortOptions) -> Result<Port> {
    let &[number] = numbers(name)?.as_slice() else {
        let what = format!("open nfqueue:{}", name.target);
        return Err(Error::new(ErrorKind::InvalidInput, what, "it is one queue"));
    };
    let open = || Netfilter::queue(number, buffer_len(options));
    open_kind(name, options, Kind::Queue, open)
}

fn open_kind(
    name: &PortName,
    options: &PortOptions,
    kind: Kind,
    open: impl FnOnce() -> Result<Netfilter>,
) -> Result<Port> {
    let title = format!("{}:{}", name.scheme, name.target);
    let refuse = |why: &str| {
        let what = format!("open {title}");
        Err(Error::new(ErrorKind::Unsupported, what, why))
    };
    if options.direction.has_tx() {
        return refuse("it only receives");
    }
    if options.queue_count > 1 {
        return refuse("it has one queue");
    }
    if options.timestamp == TimestampSource::Device {
        return refuse("netfilter has no timestamps of a card");
    }
    let link_type = kind.link_type();
    let target = FilterTarget {
        link_type,
        tap: None,
    };
    let options = &options.for_packets(target)?;
    let counters = Arc::new(RxCounters::default());
    let shared = Arc::new(Shared::default());
    let pool = Arc::new(OnceLock::new());
    if let Some(given) = &options.pool {
        pool.get_or_init(|| given.clone());
    }
    let netfilter = open()?;
    let control = Control {
        scheme: name.scheme,
        target: name.target.clone(),
        kind,
        buffer_len: buffer_len(options),
        shared: shared.clone(),
        counters: counters.clone(),
    };
    let keep = Keep::new(pool, counters.clone());
    let rx = Rx::new(netfilter, kind, options, keep, shared);
    let filter = options.filter.clone();
    Ok(Port {
        name: title,
        rx: vec![RxQueue::new(
            Box::new(rx),
            0,
            options.batch_max,
            filter,
            counters,
        )],
        tx: Vec::new(),
        control: Box::new(control),
        capabilities: Capabilities {
            timestamps: options.timestamp != TimestampSource::None,
            packet_len_max: messages::PACKET_LEN_MAX,
            ..Capabilities::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers() {
        let numbers = |name: &str| numbers(&PortName::parse(name).unwrap()).ok();
        assert_eq!(numbers("nflog:5"), Some(vec![5]));
        assert_eq!(numbers("nflog:65535,0"), Some(vec![65535, 0]));
        for name in ["nflog:", "nflog:x", "nflog:65536", "nflog:1,", "nfqueue:-1"] {
            assert_eq!(numbers(name), None, "{name}");
        }
        let many = vec!["1"; GROUP_COUNT_MAX + 1].join(",");
        assert_eq!(numbers(&format!("nflog:{many}")), None);
        for (name, more) in [("nfqueue:1,2", ""), ("nflog:1", "?queues=2")] {
            let open = crate::open(&format!("{name}{more}"), &PortOptions::default());
            assert!(open.is_err(), "{name}");
        }
    }
}
