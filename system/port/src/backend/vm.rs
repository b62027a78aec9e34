//! `vm:` a virtual machine's network device: the port is a vhost-user back-end, to which QEMU
//! connects.
//!
//! Packets from the guest are copied out of its memory once, into frames of the pool, before
//! anything reads them: the guest could change them at any time. Packets to the guest are copied
//! into its buffers, directly from where they are if they are forwarded.
//!
//! The port is there before the virtual machine, and stays when that ends: front-ends connect one
//! after the other. Without one there is nothing to receive, and no room to send.

mod control;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::{FrameCache, Pool, PoolConfig};
use sys::descriptors::Credentials;
use sys::{Error, ErrorKind, Result};
use vhost::{Queues, Server};

use self::control::{Control, Part};
use self::rx::Rx;
use self::tx::Tx;
use crate::control::Capabilities;
use crate::options::{FilterTarget, PortOptions, TimestampSource};
use crate::port::Port;
use crate::registry::{Backend, PortName};
use crate::rx::RxQueue;
use crate::tx::TxQueue;

/// Row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    summary: "virtual machine: QEMU connects its virtio-net by vhost-user",
    example: "vm:web, vm:/run/web/vm.sock",
    needs: "a directory to create the socket in; QEMU with shared memory (memory-backend-memfd)",
    frames,
    deletes: |name| path(name).ok(),
    ..Backend::new("vm", open)
};

/// Room before a packet, so that headers can be prepended.
const HEADROOM: u32 = 256;

/// Maximum length of a packet: 64 KiB with an Ethernet header and a VLAN tag.
const PACKET_LEN_MAX: u32 = 65535 + 18;

/// Frames of each queue besides those in caches: for batches that the program holds.
const FRAMES_A_QUEUE: u32 = 2048;

/// Maximum number of queue pairs.
const PAIR_COUNT_MAX: u32 = 64;

/// Maximum length of a socket's path in bytes (unix(7)).
const PATH_LEN_MAX: usize = 107;

fn pair_count(name: &PortName, options: &PortOptions) -> Result<u32> {
    let count = options.queue_count.max(1);
    if count > PAIR_COUNT_MAX {
        let what = format!("open vm:{}", name.target);
        let why = format!("{count} queue pairs; at most {PAIR_COUNT_MAX}");
        return Err(Error::new(ErrorKind::InvalidInput, what, why));
    }
    Ok(count)
}

fn frames(name: &PortName, options: &PortOptions) -> Result<Option<PoolConfig>> {
    let count = pair_count(name, options)?;
    Ok(Some(PoolConfig {
        frame_count: count * (FRAMES_A_QUEUE + 2 * FrameCache::LEN_MAX as u32),
        ..PoolConfig::default()
    }))
}

/// Directory of root's sockets. Not below that of clusters, where any user may create names.
const SYSTEM: &str = "/run/barewire-vm";

/// Permission bits that let other users write.
const WRITABLE: u32 = 0o022;

/// The directory of this user's sockets, after creating it.
fn directory() -> Result<PathBuf> {
    let (folder, permissions) = match Credentials::own().uid {
        0 => (PathBuf::from(SYSTEM), 0o755),
        _ => (ring::shared::directory()?.join("vm"), 0o700),
    };
    private(&folder, permissions)?;
    Ok(folder)
}

/// Creates a directory, or checks one: whoever can write in it can replace a socket.
fn private(folder: &Path, permissions: u32) -> Result<()> {
    let what = || format!("create {}", folder.display());
    match DirBuilder::new().mode(permissions).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::from_io(what(), error));
        }
        _ => {}
    }
    let data = folder.symlink_metadata();
    let data = data.map_err(|error| Error::from_io(what(), error))?;
    let why = if !data.is_dir() {
        "it is there, and is no directory"
    } else if data.uid() != Credentials::own().uid {
        "it belongs to another user"
    } else if data.mode() & WRITABLE != 0 {
        "other users can write in it"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Permission, what(), why))
}

/// The path of the socket: that in the name, or one in the directory of this user's sockets.
fn path(name: &PortName) -> Result<PathBuf> {
    let target = &name.target;
    let path = match target.contains('/') {
        true => PathBuf::from(target),
        false => {
            ring::shared::check_name(target)?;
            directory()?.join(target)
        }
    };
    match path.as_os_str().as_bytes().len() {
        0..=PATH_LEN_MAX => Ok(path),
        len => {
            let what = format!("open vm:{target}");
            let why = format!("the path has {len} bytes; at most {PATH_LEN_MAX}");
            Err(Error::new(ErrorKind::InvalidInput, what, why))
        }
    }
}

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    let count = pair_count(name, options)?;
    let path = path(name)?;
    if options.timestamp == TimestampSource::Device {
        let what = format!("open vm:{}", name.target);
        let why = "a guest's packets have no timestamps of a device";
        return Err(Error::new(ErrorKind::Unsupported, what, why));
    }
    let pool = match (&options.pool, frames(name, options)?) {
        (Some(pool), _) => pool.clone(),
        (None, config) => Pool::new(config.unwrap_or_default())?,
    };
    let ethernet = FilterTarget {
        link_type: 1,
        tap: None,
    };
    let filter = options.for_packets(ethernet)?.filter;
    let queues = Arc::new(Queues::new(count)?);
    let discards = !options.direction.has_rx();
    let server = Arc::new(Server::listen(&path, queues, discards)?);
    let (mut rx, mut tx, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..count {
        let part = Part::default();
        if options.direction.has_rx() {
            let backend = Rx::new(server.clone(), pair, &pool, options, &part);
            let (counters, filter) = (part.rx.clone(), filter.clone());
            let batch_max = options.batch_max;
            rx.push(RxQueue::new(
                Box::new(backend),
                pair,
                batch_max,
                filter,
                counters,
            ));
        }
        if options.direction.has_tx() {
            let backend = Tx::new(server.clone(), pair, &pool, part.tx.clone());
            tx.push(TxQueue::new(Box::new(backend), pair, part.tx.clone()));
        }
        parts.push(part);
    }
    let is_stamped = options.timestamp != TimestampSource::None;
    Ok(Port {
        name: format!("vm:{}", name.target),
        control: Box::new(Control::new(&name.target, server, parts, &pool, options)),
        capabilities: Capabilities {
            detach_moves: true,
            timestamps: is_stamped && options.direction.has_rx(),
            multi_buffer: true,
            packet_len_max: PACKET_LEN_MAX,
            ..Capabilities::default()
        },
        rx,
        tx,
    })
}
