//! The maps of our programs, typed.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use sys::bpf::{Map, MapSpec, MapType, UpdateMode};
use sys::{Error, ErrorKind, Result};

/// Which AF_XDP socket takes a queue's packets.
///
/// An entry goes away by itself when its socket closes.
#[derive(Debug)]
pub struct XskMap {
    map: Map,
}

impl XskMap {
    /// A map without sockets for this many queues.
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

    /// Gives a queue's packets to a socket, from now on. The socket must be bound to that queue
    /// of that device, else the kernel drops what is redirected to it (only the driver counts it).
    pub fn set(&self, queue_index: u32, socket: BorrowedFd<'_>) -> Result<()> {
        let fd = socket.as_raw_fd();
        self.map
            .update(
                &queue_index.to_ne_bytes(),
                &fd.to_ne_bytes(),
                UpdateMode::Any,
            )
            .map_err(|e| match e.os_code() {
                // E2BIG is how arrays refuse an index.
                Some(7) => Error::new(
                    ErrorKind::InvalidInput,
                    format!("give queue {queue_index} to a socket"),
                    format!("the program was made for {} queues", self.map.max_entries()),
                ),
                _ => e,
            })
    }

    /// Gives a queue's packets back to the host; `false` if it had no socket.
    pub fn clear(&self, queue_index: u32) -> Result<bool> {
        self.map.delete(&queue_index.to_ne_bytes())
    }
}

impl AsFd for XskMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// What a program counts for each queue: `N` numbers, kept for each processor so that the program
/// needs no atomic operation, and added up here.
#[derive(Debug)]
pub struct QueueCounters<T> {
    map: Map,
    kind: PhantomData<T>,
}

/// A struct of counters that is an array of `u64` in the map.
pub trait CounterBlock: Default {
    /// How many counters.
    const COUNT: usize;
    /// From one processor's numbers, added to `self`.
    fn add(&mut self, counters: &[u64]);
}

impl<T: CounterBlock> QueueCounters<T> {
    /// All zero, for this many queues.
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

    /// How many queues have counters.
    pub fn queue_count(&self) -> u32 {
        self.map.max_entries()
    }

    /// A queue's counters since the map was made. While packets pass, the numbers of one reading
    /// can be apart by the packets that are between two of the program's counts.
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
