//! Buffers, and lists of free ones.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use ring::Descriptor;

use super::lock;
use crate::header::Header;

/// Longest packet. Its length has 16 bits in a buffer.
pub const BUFFER_LEN_MAX: u32 = 65_535;

/// Maximum number of buffers of a cluster.
pub const BUFFER_COUNT_MAX: u32 = 1 << 22;

/// Longest metadata of the program's own in each buffer.
pub const METADATA_LEN_MAX: u32 = 240;

/// Bytes before a received packet, for headers that a program adds (`PF_RING_ZC_BUFFER_HEAD_ROOM`).
const HEAD_ROOM: usize = 64;

/// A `pfring_zc_pkt_buff`, and behind its end the packet, which programs reach by a call only.
#[repr(C, align(64))]
pub struct Buffer {
    /// Length of the packet; written by the program as well.
    pub len: u16,
    /// Bits for tested checksums: none is set.
    pub flags: u16,
    /// The card's or kernel's hash of the flow, 0 if unknown.
    pub hash: u32,
    /// Arrival, in seconds since 1970, and the nanoseconds.
    pub seconds: u32,
    /// As above.
    pub nanoseconds: u32,
    metadata: [u8; METADATA_LEN_MAX as usize],
    /// Where the packet starts in `data`.
    start: usize,
    data: Box<[u8]>,
}

impl Buffer {
    fn new(len: u32) -> Box<Self> {
        Box::new(Self {
            len: 0,
            flags: 0,
            hash: 0,
            seconds: 0,
            nanoseconds: 0,
            metadata: [0; METADATA_LEN_MAX as usize],
            start: HEAD_ROOM,
            data: vec![0; HEAD_ROOM + len as usize].into(),
        })
    }

    /// Room for a packet, from its start on.
    pub fn data(&mut self) -> &mut [u8] {
        &mut self.data[self.start..]
    }

    /// The packet: as much as its length says and there is room for.
    pub fn packet(&self) -> &[u8] {
        let data = &self.data[self.start..];
        data.get(..self.len.into()).unwrap_or(data)
    }

    /// Removes bytes from the start of the packet; returns its new start, or `None` if it has
    /// fewer.
    pub fn pull(&mut self, len: u16) -> Option<&mut [u8]> {
        self.len = self.len.checked_sub(len)?;
        self.start = (self.start + usize::from(len)).min(self.data.len());
        Some(self.data())
    }

    /// Adds bytes at the start of the packet; returns its new start, or `None` without room.
    pub fn push(&mut self, len: u16) -> Option<&mut [u8]> {
        let start = self.start.checked_sub(len.into())?;
        self.len = self.len.checked_add(len)?;
        self.start = start;
        Some(self.data())
    }

    /// Moves the start back, so that there is room for the longest packet, and the head room before
    /// it.
    pub(super) fn reset(&mut self) {
        self.start = HEAD_ROOM;
    }

    /// Stores bytes as the packet, truncated to the buffer.
    fn put(&mut self, bytes: &[u8]) {
        self.reset();
        let room = self.data();
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        self.len = len as u16;
    }

    /// Stores a received packet, truncated to the buffer.
    pub fn store(&mut self, header: &Header, bytes: &[u8]) {
        self.put(bytes);
        (self.flags, self.hash) = (0, header.hash);
        self.seconds = (header.time_ns / 1_000_000_000) as u32;
        self.nanoseconds = (header.time_ns % 1_000_000_000) as u32;
    }

    /// Its metadata, for another process.
    pub(super) fn metadata(&self) -> Descriptor {
        let time_ns = u64::from(self.seconds) * 1_000_000_000 + u64::from(self.nanoseconds);
        Descriptor::with_hash(self.packet().len() as u32, self.hash).or_time(time_ns)
    }

    /// Copies a packet with its metadata.
    pub fn copy(&mut self, other: &Self) {
        self.put(other.packet());
        (self.flags, self.hash) = (other.flags, other.hash);
        (self.seconds, self.nanoseconds) = (other.seconds, other.nanoseconds);
        self.metadata = other.metadata;
    }
}

/// A bounded number of buffers, made when they are first needed.
pub struct Buffers {
    /// The number of the pool.
    pub id: u32,
    len: u32,
    /// How many more may be made.
    left: AtomicU32,
    #[allow(clippy::vec_box, reason = "programs hold the addresses of buffers")]
    free: Mutex<Vec<Box<Buffer>>>,
    /// Where the packets of all buffers of the cluster are.
    places: Arc<Places>,
}

/// Buffers by the address at which the memory of their packets starts: its length, and the address
/// of the buffer. They stay until the cluster is destroyed.
type Places = Mutex<BTreeMap<usize, (usize, usize)>>;

impl Buffers {
    /// At most `count` buffers for packets of up to `len` bytes.
    pub fn new(len: u32, count: u32) -> Self {
        Self {
            id: 0,
            len,
            left: AtomicU32::new(count),
            free: Mutex::default(),
            places: Arc::default(),
        }
    }

    /// The longest packet.
    pub fn len(&self) -> u32 {
        self.len
    }

    fn spend(&self, count: u32) -> bool {
        let spent = |left: u32| left.checked_sub(count);
        let order = Ordering::Relaxed;
        self.left.fetch_update(order, order, spent).is_ok()
    }

    /// Takes a buffer; `None` if all are in use.
    pub fn take(&self) -> Option<Box<Buffer>> {
        if let Some(mut buffer) = lock(&self.free).pop() {
            buffer.reset();
            return Some(buffer);
        }
        self.spend(1).then(|| {
            let buffer = Buffer::new(self.len);
            let memory = buffer.data.as_ptr_range();
            let (start, address) = (
                memory.start.addr(),
                (&raw const *buffer).expose_provenance(),
            );
            lock(&self.places).insert(start, (memory.end.addr() - start, address));
            buffer
        })
    }

    /// The address of the buffer in whose memory for packets this address is, if it is a buffer of
    /// the cluster.
    pub fn of_data(&self, address: usize) -> Option<usize> {
        let places = lock(&self.places);
        let (start, (len, buffer)) = places.range(..=address).next_back()?;
        (address - start < *len).then_some(*buffer)
    }

    /// Returns a buffer.
    pub fn give(&self, buffer: Box<Buffer>) {
        lock(&self.free).push(buffer);
    }

    /// Sets `count` of the buffers apart, as pool `id`; `None` if fewer are left.
    pub fn split(&self, id: u32, count: u32) -> Option<Self> {
        let pool = || Self {
            id,
            places: Arc::clone(&self.places),
            ..Self::new(self.len, count)
        };
        (count != 0 && self.spend(count)).then(pool)
    }
}
