//! Typed wrappers of the programs' maps.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use sys::bpf::{Map, MapSpec, MapType, UpdateMode};
use sys::{Error, ErrorKind, Result};

/// Maps each queue to the AF_XDP socket that receives its packets.
///
/// The kernel removes an entry when its socket closes.
#[derive(Debug)]
pub struct XskMap {
    map: Map,
}

impl XskMap {
    /// Creates a map for `queue_count` queues, without sockets.
    pub fn create(queue_count: u32) -> Result<Self> {
        let spec = MapSpec {
            kind: MapType::Xskmap,
            name: "bw_sockets",
            key_size: 4,
            value_size: 4,
            max_entries: queue_count,
            mappable: false,
        };
        Ok(Self {
            map: Map::create(&spec)?,
        })
    }

    /// Redirects a queue's packets to a socket from now on. The socket must be bound to that queue
    /// of that device, otherwise the kernel drops the redirected packets (and only the driver
    /// counts them).
    pub fn set(&self, queue_index: u32, socket: BorrowedFd<'_>) -> Result<()> {
        let fd = socket.as_raw_fd();
        self.map
            .update(
                &queue_index.to_ne_bytes(),
                &fd.to_ne_bytes(),
                UpdateMode::Any,
            )
            .map_err(|e| match e.os_code() {
                // Array maps refuse an index with E2BIG.
                Some(7) => Error::new(
                    ErrorKind::InvalidInput,
                    format!("give queue {queue_index} to a socket"),
                    format!("the program was made for {} queues", self.map.max_entries()),
                ),
                _ => e,
            })
    }

    /// Passes a queue's packets to the host again; `false` if it had no socket.
    pub fn clear(&self, queue_index: u32) -> Result<bool> {
        self.map.delete(&queue_index.to_ne_bytes())
    }
}

impl AsFd for XskMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// Per-queue counters of a program: `N` numbers, kept per processor so that the program needs no
/// atomic operations, and summed here.
#[derive(Debug)]
pub struct QueueCounters<T> {
    map: Map,
    kind: PhantomData<T>,
}

/// A struct of counters that is stored as an array of `u64` in the map.
pub trait CounterBlock: Default {
    /// Number of counters.
    const COUNT: usize;
    /// Adds one processor's counters to `self`.
    fn add(&mut self, counters: &[u64]);
}

impl<T: CounterBlock> QueueCounters<T> {
    /// Creates zeroed counters for `queue_count` queues.
    pub fn create(queue_count: u32) -> Result<Self> {
        let spec = MapSpec {
            kind: MapType::PercpuArray,
            name: "bw_counters",
            key_size: 4,
            value_size: T::COUNT as u32 * 8,
            max_entries: queue_count,
            mappable: false,
        };
        Ok(Self {
            map: Map::create(&spec)?,
            kind: PhantomData,
        })
    }

    /// Number of queues.
    pub fn queue_count(&self) -> u32 {
        self.map.max_entries()
    }

    /// Counters of a queue since the map was created. While packets arrive, the counters of one
    /// reading may disagree by the packets that the program is counting.
    pub fn read(&self, queue_index: u32) -> Result<T> {
        let mut bytes = vec![0; self.map.value_len()];
        let mut sum = T::default();
        if !self.map.lookup(&queue_index.to_ne_bytes(), &mut bytes)? {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("read the counters of queue {queue_index}"),
                format!("the program was made for {} queues", self.queue_count()),
            ));
        }
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|c| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| c[i])))
            .collect();
        for cpu in words.chunks_exact(T::COUNT) {
            sum.add(cpu);
        }
        Ok(sum)
    }
}

impl<T> AsFd for QueueCounters<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
