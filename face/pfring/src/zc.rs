//! PF_RING ZC (`pfring_zc.h`): clusters, their buffers, and queues.
//!
//! A buffer has one owner: the program, a queue, or the cluster's list of free ones. Sending to a
//! queue of the cluster passes the buffer on, and the program gets a free one for it; receiving
//! exchanges them the other way. No byte is copied between queues. A packet of a device is copied
//! once, into the program's buffer. Other processes attach to queues by number ([`ipc`]): what
//! passes between processes is copied into shared memory, and out of it.

pub mod attached;
pub mod buffer;
pub mod hash;
mod ipc;
mod local;
pub mod queue;
mod remote;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ring::Outcome;
use crate::status::{self, INVALID_ARGUMENT, NO_MEMORY};

use buffer::{BUFFER_COUNT_MAX, BUFFER_LEN_MAX, Buffers, METADATA_LEN_MAX};
use ipc::{Ipc, Queues};
use queue::{DeviceTerms, Mode, Queue};

/// Maximum number of queues, devices included, and of pools of a cluster.
const PART_COUNT_MAX: usize = 1024;

/// A `pfring_zc_cluster`.
pub struct Cluster {
    /// The number that the program chose.
    pub id: u32,
    metadata_len: u32,
    /// Dropped first: its thread uses the queues.
    ipc: Option<Ipc>,
    buffers: Arc<Buffers>,
    queues: Queues,
    pools: Mutex<Vec<Arc<Buffers>>>,
    /// Held while parts are created: their numbers follow from how many there are.
    creating: Mutex<()>,
    /// The process that created it.
    process: u32,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Errors if there are too many parts.
fn check_count<T>(parts: &Mutex<Vec<T>>) -> Outcome<()> {
    match lock(parts).len() < PART_COUNT_MAX {
        true => Ok(()),
        false => Err(NO_MEMORY),
    }
}

fn keep<T>(parts: &Mutex<Vec<Arc<T>>>, part: T) -> Outcome<*const T> {
    check_count(parts)?;
    let part = Arc::new(part);
    let place = Arc::as_ptr(&part);
    lock(parts).push(part);
    Ok(place)
}

impl Cluster {
    /// Creates a cluster of at most `count` buffers for packets of up to `buffer_len` bytes.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for lengths and counts that are not possible.
    pub fn new(id: u32, buffer_len: u32, metadata_len: u32, count: u32) -> Outcome<Self> {
        let is_possible = (1..=BUFFER_LEN_MAX).contains(&buffer_len)
            && metadata_len <= METADATA_LEN_MAX
            && (1..=BUFFER_COUNT_MAX).contains(&count);
        match is_possible {
            true => Ok(Self {
                id,
                metadata_len,
                ipc: None,
                buffers: Arc::new(Buffers::new(buffer_len, count)),
                queues: Queues::default(),
                pools: Mutex::default(),
                creating: Mutex::default(),
                process: std::process::id(),
            }),
            false => Err(INVALID_ARGUMENT),
        }
    }

    /// Offers its queues to other processes, if this process can.
    ///
    /// # Errors
    /// `WRONG_CONFIGURATION` if another process offers a cluster of this number.
    pub fn offer(mut self) -> Outcome<Self> {
        let started = Ipc::start(self.id, self.buffers.len(), self.queues.clone());
        self.ipc = started.map_err(|error| status::of(&error))?;
        Ok(self)
    }

    /// Whether this process created it, rather than its parent: thread and queues are the
    /// parent's.
    pub fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// The buffers that are in no pool.
    pub fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// Lengths of packets and of metadata.
    pub fn lens(&self) -> (u32, u32) {
        (self.buffers.len(), self.metadata_len)
    }

    /// Sets `count` buffers apart; the pool is valid as long as the cluster.
    ///
    /// # Errors
    /// `NO_MEMORY` if the cluster has fewer left.
    pub fn pool(&self, count: u32) -> Outcome<*const Buffers> {
        let _creating = lock(&self.creating);
        let id = lock(&self.pools).len() as u32;
        self.pool_of(id, count)
    }

    fn pool_of(&self, id: u32, count: u32) -> Outcome<*const Buffers> {
        // Before buffers are set apart.
        check_count(&self.pools)?;
        let pool = self.buffers.split(id, count).ok_or(NO_MEMORY)?;
        keep(&self.pools, pool)
    }

    /// Creates a queue, and a pool with its number.
    ///
    /// # Errors
    /// As [`queue`](Self::queue) and [`pool`](Self::pool).
    pub fn pair(&self, len: u32, count: u32) -> Outcome<(*const Queue, *const Buffers)> {
        let _creating = lock(&self.creating);
        self.check_queue(len)?;
        let id = self.queue_count();
        let pool = self.pool_of(id, count)?;
        Ok((self.queue_of(id, len)?, pool))
    }

    /// Number of its queues, without devices.
    fn queue_count(&self) -> u32 {
        lock(&self.queues).iter().filter(|it| it.is_local()).count() as u32
    }

    /// Creates a queue of `len` packets, which is valid as long as the cluster.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a length that is not possible, `NO_MEMORY` for too many queues.
    pub fn queue(&self, len: u32) -> Outcome<*const Queue> {
        let _creating = lock(&self.creating);
        self.check_queue(len)?;
        self.queue_of(self.queue_count(), len)
    }

    /// Errors if there cannot be another queue of `len` packets.
    fn check_queue(&self, len: u32) -> Outcome<()> {
        match (1..=BUFFER_COUNT_MAX).contains(&len) {
            true => check_count(&self.queues),
            false => Err(INVALID_ARGUMENT),
        }
    }

    fn queue_of(&self, id: u32, len: u32) -> Outcome<*const Queue> {
        let queue = Queue::local(id, len, self.lens(), self.buffers.clone());
        keep(&self.queues, queue)
    }

    /// Opens a device as a queue, which is valid as long as the cluster.
    ///
    /// # Errors
    /// Those of opening.
    pub fn device(&self, name: &str, mode: Mode, terms: DeviceTerms) -> Outcome<*const Queue> {
        let queue = Queue::device(name, mode, terms, self.lens())?;
        let _creating = lock(&self.creating);
        keep(&self.queues, queue)
    }
}
