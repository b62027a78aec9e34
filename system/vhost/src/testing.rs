//! The front-end's half, and a driver for the rings: what QEMU and the guest do, for tests and
//! benches.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::time::Duration;

use sys::descriptors;
use sys::eventfd::EventFd;
use sys::memfd::{HugePages, MemoryFile};
use sys::{Error, ErrorKind, Result};

use crate::message::{self, HEADER_LEN, code};
use crate::split::HEADER_LEN as PACKET_HEADER_LEN;
use crate::{feature, protocol_feature};

/// First address of the memory in the guest, and in the front-end.
pub const GUEST_ADDR: u64 = 0x10_0000;
/// As above, in the front-end.
pub const USER_ADDR: u64 = 0x7f00_0000_0000;
/// Bytes of each buffer.
pub const BUFFER_LEN: usize = 2048;

/// What the front-end sets up.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Queue pairs.
    pub pair_count: u32,
    /// Descriptors of each vring.
    pub size: u16,
    /// Feature bits to select.
    pub features: u64,
    /// Number of regions to divide the memory into, at most 8.
    pub region_count: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pair_count: 1,
            size: 256,
            features: feature::OFFERED & !feature::MTU,
            region_count: 1,
        }
    }
}

/// The driver's side of a vring. Offsets are into the memory file.
#[derive(Debug)]
pub struct Driver {
    /// Offset of the descriptor table.
    pub descriptors: usize,
    /// Offset of the available ring.
    pub available: usize,
    /// Offset of the used ring.
    pub used: usize,
    /// Offset of the first buffer.
    pub buffers: usize,
    /// Number of descriptors.
    pub size: u16,
    features: u64,
    /// Position in the available ring, and up to where the used ring was read.
    next: u16,
    seen: u16,
    /// Position at the last kick.
    kicked: u16,
    free: Vec<u16>,
    kick: EventFd,
    call: EventFd,
}

/// Bytes that a vring of this size takes with its buffers.
fn ring_len(size: u16) -> usize {
    let size = usize::from(size);
    (16 * size + 6 + 2 * size).next_multiple_of(4096)
        + (6 + 8 * size).next_multiple_of(4096)
        + BUFFER_LEN * size
}

/// Guest memory.
#[derive(Debug)]
pub struct GuestMemory(MemoryFile);

impl GuestMemory {
    /// Zeroed memory.
    ///
    /// # Errors
    /// If memory is short.
    pub fn new(len: usize) -> Result<Self> {
        MemoryFile::new(c"barewire-test-guest", len, HugePages::Never).map(Self)
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.mapping().len()
    }

    /// Whether it is empty: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd().as_fd()
    }

    /// Writes bytes.
    ///
    /// # Panics
    /// Beyond the end.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len());
        // SAFETY: within the mapping (checked); it is accessed by copies only.
        unsafe {
            let at = self.0.mapping().base().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
        }
    }

    /// Reads bytes.
    ///
    /// # Panics
    /// Beyond the end.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset + bytes.len() <= self.len());
        // SAFETY: as in `write`.
        unsafe {
            let at = self.0.mapping().base().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn word(&self, offset: usize) -> &AtomicU16 {
        assert!(offset + 2 <= self.len() && offset.is_multiple_of(2));
        // SAFETY: within the mapping and aligned (checked).
        unsafe { AtomicU16::from_ptr(self.0.mapping().base().as_ptr().add(offset).cast()) }
    }

    fn load(&self, offset: usize) -> u16 {
        u16::from_le(self.word(offset).load(Ordering::Acquire))
    }

    fn store(&self, offset: usize, value: u16) {
        self.word(offset).store(value.to_le(), Ordering::Release);
    }

    /// The memory table's regions: all of it, in `count` parts of whole pages.
    pub fn regions(&self, count: usize) -> Vec<message::Region> {
        let part = (self.len() / count).next_multiple_of(4096);
        (0..count)
            .map(|number| {
                let start = (number * part) as u64;
                let len = part.min(self.len() - number * part) as u64;
                message::Region {
                    guest_addr: GUEST_ADDR + start,
                    len,
                    user_addr: USER_ADDR + start,
                    file_offset: start,
                }
            })
            .collect()
    }
}

impl Driver {
    fn new(start: usize, size: u16, features: u64) -> Result<Self> {
        let count = usize::from(size);
        let available = start + 16 * count;
        let used = (available + 6 + 2 * count).next_multiple_of(4096);
        Ok(Self {
            descriptors: start,
            available,
            used,
            buffers: (used + 6 + 8 * count).next_multiple_of(4096),
            size,
            features,
            next: 0,
            seen: 0,
            kicked: 0,
            free: (0..size).rev().collect(),
            kick: EventFd::new()?,
            call: EventFd::new()?,
        })
    }

    /// The device's calls.
    pub fn call(&self) -> &EventFd {
        &self.call
    }

    /// Writes a descriptor.
    pub fn set_descriptor(
        &self,
        memory: &GuestMemory,
        index: u16,
        (addr, len, flags, next): (u64, u32, u16, u16),
    ) {
        let word = u128::from(addr)
            | u128::from(len) << 64
            | u128::from(flags) << 96
            | u128::from(next) << 112;
        let at = self.descriptors + 16 * usize::from(index);
        memory.write(at, &word.to_le_bytes());
    }

    /// Makes the chain with this head available.
    pub fn make_available(&mut self, memory: &GuestMemory, head: u16) {
        let at = usize::from(self.next % self.size);
        memory.store(self.available + 4 + 2 * at, head);
        self.next = self.next.wrapping_add(1);
        memory.store(self.available + 2, self.next);
    }

    /// Kicks, whether the device wants that or not.
    pub fn kick(&mut self) {
        self.kicked = self.next;
        self.kick.signal();
    }

    /// Kicks if the device wants it.
    pub fn kick_if_wanted(&mut self, memory: &GuestMemory) {
        fence(Ordering::SeqCst);
        let is_wanted = if self.features & feature::EVENT_IDX != 0 {
            let event = memory.load(self.used + 4 + 8 * usize::from(self.size));
            let since = self.next.wrapping_sub(self.kicked);
            self.next.wrapping_sub(event).wrapping_sub(1) < since
        } else {
            memory.load(self.used) & 1 == 0
        };
        if is_wanted {
            self.kick();
        }
        self.kicked = self.next;
    }

    fn buffer_at(&self, index: u16) -> usize {
        self.buffers + BUFFER_LEN * usize::from(index)
    }

    /// Places a packet behind a zero header; false if there are too few free descriptors.
    pub fn place(&mut self, memory: &GuestMemory, packet: &[u8]) -> bool {
        self.collect(memory);
        let bytes = [&[0; PACKET_HEADER_LEN][..], packet].concat();
        let count = bytes.len().div_ceil(BUFFER_LEN);
        if count > self.free.len() {
            return false;
        }
        let indices = self.free.split_off(self.free.len() - count);
        for (at, part) in bytes.chunks(BUFFER_LEN).enumerate() {
            let index = indices[at];
            let buffer = self.buffer_at(index);
            memory.write(buffer, part);
            let (flags, next) = match indices.get(at + 1) {
                Some(next) => (1, *next),
                None => (0, 0),
            };
            let addr = GUEST_ADDR + buffer as u64;
            self.set_descriptor(memory, index, (addr, part.len() as u32, flags, next));
        }
        self.make_available(memory, indices[0]);
        true
    }

    /// Frees the chains that the device has returned.
    pub fn collect(&mut self, memory: &GuestMemory) {
        while let Some((mut head, _)) = self.used(memory) {
            loop {
                self.free.push(head);
                let mut bytes = [0; 16];
                memory.read(self.descriptors + 16 * usize::from(head), &mut bytes);
                let word = u128::from_le_bytes(bytes);
                if word >> 96 & 1 == 0 || self.free.len() > usize::from(self.size) {
                    break;
                }
                head = (word >> 112) as u16;
            }
        }
    }

    /// The next element of the used ring: head and length.
    pub fn used(&mut self, memory: &GuestMemory) -> Option<(u16, u32)> {
        if memory.load(self.used + 2) == self.seen {
            return None;
        }
        let mut bytes = [0; 8];
        let at = self.used + 4 + 8 * usize::from(self.seen % self.size);
        memory.read(at, &mut bytes);
        self.seen = self.seen.wrapping_add(1);
        let word = u64::from_le_bytes(bytes);
        Some((word as u16, (word >> 32) as u32))
    }

    /// Requests a call with the next element.
    pub fn request_call(&self, memory: &GuestMemory) {
        let at = self.available + 4 + 2 * usize::from(self.size);
        memory.store(at, self.seen);
        fence(Ordering::SeqCst);
    }

    /// Makes all free descriptors available as buffers for packets.
    pub fn refill(&mut self, memory: &GuestMemory) {
        while let Some(index) = self.free.pop() {
            let addr = GUEST_ADDR + self.buffer_at(index) as u64;
            self.set_descriptor(memory, index, (addr, BUFFER_LEN as u32, 2, 0));
            self.make_available(memory, index);
        }
    }

    /// The next packet in the buffers, if any; its buffers are free again.
    pub fn take(&mut self, memory: &GuestMemory) -> Option<Vec<u8>> {
        let (first, len) = self.used(memory)?;
        let mut header = [0; PACKET_HEADER_LEN];
        memory.read(self.buffer_at(first), &mut header);
        let count = u16::from_le_bytes([header[10], header[11]]);
        let mut packet = vec![0; len as usize];
        memory.read(self.buffer_at(first), &mut packet);
        packet.drain(..PACKET_HEADER_LEN);
        self.free.push(first);
        for _ in 1..count {
            // They become visible together.
            let (index, len) = self.used(memory).expect("a buffer of the same packet");
            let start = packet.len();
            packet.resize(start + len as usize, 0);
            memory.read(self.buffer_at(index), &mut packet[start..]);
            self.free.push(index);
        }
        Some(packet)
    }
}

/// A front-end with a guest that exchanges packets.
#[derive(Debug)]
pub struct FrontEnd {
    socket: UnixStream,
    /// The guest's memory.
    pub memory: GuestMemory,
    /// The vrings, as numbered by the device.
    pub drivers: Vec<Driver>,
}

fn refuse(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Damaged, "use a vhost-user back-end", why)
}

/// A connection without anything set up.
///
/// # Errors
/// As [`descriptors::connect`].
pub fn connect(path: &Path) -> Result<UnixStream> {
    let socket = descriptors::connect(path, Duration::from_secs(60))?;
    let limit = Some(Duration::from_secs(60));
    socket
        .set_read_timeout(limit)
        .map_err(|error| Error::from_io("set a time limit", error))?;
    Ok(socket)
}

/// Sends a request.
///
/// # Errors
/// If the back-end has closed the connection.
pub fn tell(
    socket: &UnixStream,
    code: u32,
    needs_reply: bool,
    payload: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<()> {
    let bytes = message::request(code, needs_reply, payload);
    match fds {
        [] => descriptors::send_bytes(socket, &bytes),
        fds => descriptors::send(socket, &bytes, fds),
    }
}

/// Receives a reply and returns its payload.
///
/// # Errors
/// If the back-end has closed the connection, or the reply is to another request.
pub fn reply(socket: &UnixStream, to: u32) -> Result<u64> {
    let mut bytes = [0; HEADER_LEN + 8];
    let mut len = 0;
    while len < bytes.len() {
        match descriptors::receive(socket, &mut bytes[len..])? {
            (0, _) => return Err(refuse("it has closed the connection")),
            (more, _) => len += more,
        }
    }
    match bytes.split_first_chunk() {
        Some((request, rest)) if u32::from_ne_bytes(*request) == to => {
            let number = rest[8..].try_into().map_err(|_| refuse("a short reply"))?;
            Ok(u64::from_ne_bytes(number))
        }
        _ => Err(refuse("a reply to another request")),
    }
}

/// Payload of two numbers.
fn pair(one: u32, other: u32) -> [u8; 8] {
    let word = [one.to_ne_bytes(), other.to_ne_bytes()].concat();
    word.try_into().unwrap_or_default()
}

/// The payload of a memory table.
pub fn table(regions: &[message::Region]) -> Vec<u8> {
    let mut payload = pair(regions.len() as u32, 0).to_vec();
    for region in regions {
        for word in [
            region.guest_addr,
            region.len,
            region.user_addr,
            region.file_offset,
        ] {
            payload.extend_from_slice(&word.to_ne_bytes());
        }
    }
    payload
}

impl FrontEnd {
    /// Connects to a back-end and starts all vrings, as QEMU does once the guest's driver is ready.
    ///
    /// # Errors
    /// If the back-end closes the connection or offers less than is needed.
    pub fn connect(path: &Path, options: Options) -> Result<Self> {
        let len = ring_len(options.size) * 2 * options.pair_count as usize;
        let memory = GuestMemory::new(len)?;
        let mut drivers = Vec::new();
        for index in 0..2 * options.pair_count as usize {
            let start = index * ring_len(options.size);
            drivers.push(Driver::new(start, options.size, options.features)?);
        }
        let mut front_end = Self {
            socket: connect(path)?,
            memory,
            drivers,
        };
        front_end.set_up(options)?;
        Ok(front_end)
    }

    fn ask(&self, code: u32) -> Result<u64> {
        tell(&self.socket, code, false, &[], &[])?;
        reply(&self.socket, code)
    }

    /// Sends a request and awaits that it is handled.
    fn set(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        tell(&self.socket, code, true, payload, fds)?;
        match reply(&self.socket, code)? {
            0 => Ok(()),
            other => Err(refuse(format!("request {code} failed with {other}"))),
        }
    }

    fn set_up(&mut self, options: Options) -> Result<()> {
        let offered = self.ask(code::GET_FEATURES)?;
        if offered & options.features != options.features {
            return Err(refuse(format!("it offers only {offered:#x}")));
        }
        let protocol = self.ask(code::GET_PROTOCOL_FEATURES)?;
        let protocol = protocol & protocol_feature::OFFERED;
        let bytes = protocol.to_ne_bytes();
        tell(
            &self.socket,
            code::SET_PROTOCOL_FEATURES,
            false,
            &bytes,
            &[],
        )?;
        if self.ask(code::GET_QUEUE_NUM)? < options.pair_count.into() {
            return Err(refuse("it has fewer queue pairs"));
        }
        self.set(code::SET_OWNER, &[], &[])?;
        self.set(code::SET_FEATURES, &options.features.to_ne_bytes(), &[])?;
        self.set_memory(options.region_count)?;
        for index in 0..self.drivers.len() as u32 {
            self.start(index)?;
        }
        for driver in self.drivers.iter_mut().step_by(2) {
            driver.refill(&self.memory);
            driver.kick_if_wanted(&self.memory);
        }
        Ok(())
    }

    /// Sends the memory table.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn set_memory(&self, region_count: usize) -> Result<()> {
        let regions = self.memory.regions(region_count);
        let fds = vec![self.memory.fd(); regions.len()];
        self.set(code::SET_MEM_TABLE, &table(&regions), &fds)
    }

    /// Starts a vring at its driver's position, and enables it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn start(&self, index: u32) -> Result<()> {
        let driver = &self.drivers[index as usize];
        self.set(code::SET_VRING_NUM, &pair(index, driver.size.into()), &[])?;
        let base = u32::from(driver.seen);
        self.set(code::SET_VRING_BASE, &pair(index, base), &[])?;
        let mut payload = pair(index, 0).to_vec();
        for offset in [driver.descriptors, driver.used, driver.available] {
            payload.extend_from_slice(&(USER_ADDR + offset as u64).to_ne_bytes());
        }
        payload.extend_from_slice(&[0; 8]);
        self.set(code::SET_VRING_ADDR, &payload, &[])?;
        let number = u64::from(index).to_ne_bytes();
        self.set(code::SET_VRING_CALL, &number, &[driver.call.as_fd()])?;
        self.set(code::SET_VRING_KICK, &number, &[driver.kick.as_fd()])?;
        self.enable(index, true)
    }

    /// Enables or disables a vring.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn enable(&self, index: u32, is_enabled: bool) -> Result<()> {
        self.set(code::SET_VRING_ENABLE, &pair(index, is_enabled.into()), &[])
    }

    /// Stops a vring; returns the available index at which it ended.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn stop(&self, index: u32) -> Result<u32> {
        tell(
            &self.socket,
            code::GET_VRING_BASE,
            false,
            &pair(index, 0),
            &[],
        )?;
        let word = reply(&self.socket, code::GET_VRING_BASE)?;
        Ok((word >> 32) as u32)
    }

    /// The guest sends a packet; false if its ring is full.
    pub fn send(&mut self, pair: usize, packet: &[u8]) -> bool {
        let driver = &mut self.drivers[2 * pair + 1];
        let is_placed = driver.place(&self.memory, packet);
        driver.kick_if_wanted(&self.memory);
        is_placed
    }

    /// The guest receives a packet, if there is one, and makes its buffers available again.
    pub fn receive(&mut self, pair: usize) -> Option<Vec<u8>> {
        let driver = &mut self.drivers[2 * pair];
        let packet = driver.take(&self.memory);
        if packet.is_some() {
            driver.refill(&self.memory);
            driver.kick_if_wanted(&self.memory);
        }
        packet
    }
}
