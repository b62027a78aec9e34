//! Sending: a TPACKET_V2 ring of frames with one packet each; one system call starts a batch.
//!
//! A frame is free while its status is `AVAILABLE`, waits with `SEND_REQUEST`, belongs to the
//! kernel while `SENDING`, and returns `AVAILABLE`. The kernel processes frames strictly in order
//! and stops at the first that does not wait, so the waiting ones are always a run from `tail` on.
//!
//! On devices without a link header the call carries the EtherType. Filled frames behind the first
//! run of one EtherType keep `AVAILABLE` until that has been sent.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ring::slot::{Slot, Vlan};
use ring::{Frame, FrameCache, Pool};
use sys::link::Link;
use sys::mmap::Mapping;
use sys::packet::{PacketSocket, TxRing};
use sys::{Error, ErrorKind, Result};

use crate::account::TxCounters;
use crate::options::PortOptions;
use crate::tx::TxBackend;

/// Default number of frames.
const FRAME_COUNT: u32 = 1024;
/// Bounds for `ring=`.
const FRAME_COUNT_MIN: u32 = 64;
const FRAME_COUNT_MAX: u32 = 1 << 16;
/// Minimum frame length: holds a standard Ethernet packet with the header.
const FRAME_LEN_MIN: u32 = 2048;
/// Interfaces with huge packets (loopback) get fewer frames instead of more memory.
const RING_BYTES_MAX: u32 = 32 << 20;
/// Limit of the bytes queued in the kernel: a socket buffer of the shortest packet counts as 768
/// bytes.
const SEND_BUFFER: u32 = 16 << 20;
/// Number of waiting frames at which `submit` starts the device, without an explicit flush.
const KICK_AT: u32 = 32;
/// Pause before the next attempt when the interface's queue was full.
const RETRY_PAUSE: Duration = Duration::from_micros(50);

/// EtherTypes (`ETH_P_IP`, `ETH_P_IPV6`).
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Offsets in `struct tpacket2_hdr`, and its length; the packet follows immediately.
const STATUS: usize = 0;
const LEN: usize = 4;
const HEADER_LEN: usize = 32;

/// `TP_STATUS_` of sending rings; the bits above are for time stamps.
const AVAILABLE: u32 = 0;
const SEND_REQUEST: u32 = 1;
const WRONG_FORMAT: u32 = 4;
const STATUS_MASK: u32 = 7;

/// A sending queue.
pub(super) struct Tx {
    // Before the socket: a socket lives as long as its ring is mapped.
    memory: Mapping,
    socket: PacketSocket,
    interface_name: String,
    interface_index: u32,
    link_header_len: usize,
    mtu: usize,
    /// The EtherType of the requested frames, on devices without a link header.
    ethertype: u16,
    frame_len: usize,
    frame_count: u32,
    /// First frame that waits for the kernel.
    tail: u32,
    /// Number of waiting frames from there on.
    waiting: u32,
    /// How many of them, from the first on, the kernel is asked to send.
    requested: u32,
    /// The kernel's error for packets already accepted, returned by the next call.
    failed: Option<Error>,
    bypass: bool,
    pool: Arc<OnceLock<Pool>>,
    cache: Option<FrameCache>,
    counters: Arc<TxCounters>,
}

impl Tx {
    pub(super) fn open(
        link: &Link,
        link_header_len: usize,
        options: &PortOptions,
        pool: Arc<OnceLock<Pool>>,
        counters: Arc<TxCounters>,
    ) -> Result<Self> {
        let socket = PacketSocket::new()?;
        let longest = link.mtu as usize + link_header_len + Vlan::LEN + HEADER_LEN;
        let frame_len = (longest as u32).next_power_of_two().max(FRAME_LEN_MIN);
        let frame_count = if options.ring_len == 0 {
            FRAME_COUNT
        } else {
            let count = options.ring_len.min(FRAME_COUNT_MAX);
            count.next_power_of_two().max(FRAME_COUNT_MIN)
        };
        let frame_count = frame_count.min(RING_BYTES_MAX / frame_len).max(1);
        socket.send_buffer(SEND_BUFFER)?;
        if options.qdisc_bypass {
            socket.bypass_qdisc()?;
        }
        let memory = socket.tx_ring(&TxRing {
            frame_len,
            frame_count,
        })?;
        socket.bind(link.index, false)?;
        Ok(Self {
            memory,
            socket,
            interface_name: link.name.clone(),
            interface_index: link.index,
            link_header_len,
            mtu: link.mtu as usize,
            ethertype: 0,
            frame_len: frame_len as usize,
            frame_count,
            tail: 0,
            waiting: 0,
            requested: 0,
            failed: None,
            bypass: options.qdisc_bypass,
            pool,
            cache: None,
            counters,
        })
    }

    pub(super) fn memory_len(&self) -> usize {
        self.frame_len * self.frame_count as usize
    }

    pub(super) fn facts(&self) -> [(&'static str, String); 2] {
        let ring = format!("TPACKET_V2, {} bytes per queue", self.memory_len());
        let bypass = if self.bypass { "bypassed" } else { "in use" };
        [("tx_ring", ring), ("tx_qdisc", bypass.into())]
    }

    /// Number of packet bytes that fit into a frame.
    pub(super) fn room(&self) -> u32 {
        (self.frame_len - HEADER_LEN) as u32
    }

    /// Address of the frame `offset` frames after the first waiting one.
    #[inline]
    fn frame(&self, offset: u32) -> NonNull<u8> {
        let index = (self.tail + offset) & (self.frame_count - 1);
        // SAFETY: the mapping is frame_count times frame_len bytes long, and the mask keeps the
        // index below.
        unsafe { self.memory.base().add(index as usize * self.frame_len) }
    }

    #[inline]
    fn word(&self, offset: u32, at: usize) -> &AtomicU32 {
        debug_assert!(at < HEADER_LEN && at.is_multiple_of(4));
        // SAFETY: within the frame's header, aligned since frames are powers of two, only accessed
        // atomically.
        unsafe { self.frame(offset).add(at).cast().as_ref() }
    }

    #[inline]
    fn status(&self, offset: u32) -> u32 {
        // Acquire: the kernel has finished with the packet's bytes before it sets the status.
        self.word(offset, STATUS).load(Ordering::Acquire) & STATUS_MASK
    }

    #[inline]
    fn data(&self, offset: u32) -> NonNull<u8> {
        // SAFETY: frames are longer than their header.
        unsafe { self.frame(offset).add(HEADER_LEN) }
    }

    /// Adds the next frame to those that wait, with `len` packet bytes (1 at least) in it.
    #[inline]
    fn add(&mut self, len: u32) {
        self.word(self.waiting, LEN).store(len, Ordering::Relaxed);
        self.waiting += 1;
        self.request();
    }

    /// Requests the waiting frames that one call of the kernel can send.
    #[inline]
    fn request(&mut self) {
        while self.requested < self.waiting {
            let ethertype = self.ethertype_of(self.requested);
            if self.requested == 0 {
                self.ethertype = ethertype;
            } else if ethertype != self.ethertype {
                return;
            }
            // Release: packet and length are present before the kernel sees the request.
            let status = self.word(self.requested, STATUS);
            status.store(SEND_REQUEST, Ordering::Release);
            self.requested += 1;
        }
    }

    /// The EtherType of the packet in a filled frame, if the kernel needs it.
    #[inline]
    fn ethertype_of(&self, offset: u32) -> u16 {
        if self.link_header_len != 0 {
            return 0;
        }
        // SAFETY: the frame is filled, with a byte at least, and not requested yet.
        match unsafe { self.data(offset).read() } >> 4 {
            4 => ETHERTYPE_IPV4,
            6 => ETHERTYPE_IPV6,
            _ => 0,
        }
    }

    /// Whether the interface accepts such a packet. If it looks too long, the current MTU is
    /// queried.
    fn fits(&mut self, packet: &[u8]) -> bool {
        if packet.len() < self.link_header_len.max(1) {
            return false;
        }
        let is_tagged = self.link_header_len == 14 && packet.get(12..14) == Some(&[0x81, 0]);
        // A packet with a tag may exceed the MTU by it.
        let allowance = self.link_header_len + if is_tagged { Vlan::LEN } else { 0 };
        if packet.len() > self.mtu + allowance
            && let Ok(mtu) = self.socket.mtu(&self.interface_name)
        {
            self.mtu = mtu as usize;
        }
        packet.len() <= self.mtu + allowance
    }

    /// Removes the waiting frames that the kernel has sent, and counts them.
    fn advance(&mut self) {
        let (mut packets, mut bytes) = (0u32, 0u64);
        while packets < self.requested {
            if matches!(self.status(packets), SEND_REQUEST | WRONG_FORMAT) {
                break;
            }
            bytes += u64::from(self.word(packets, LEN).load(Ordering::Relaxed));
            packets += 1;
        }
        self.tail = (self.tail + packets) & (self.frame_count - 1);
        self.waiting -= packets;
        self.requested -= packets;
        self.counters.sent.add(packets.into());
        self.counters.sent_bytes.add(bytes);
    }

    /// Removes the first waiting frame, which the kernel refused and would stop at forever.
    #[cold]
    fn refuse_first(&mut self) {
        for offset in 1..self.waiting {
            let len = self.word(offset, LEN).load(Ordering::Relaxed);
            // SAFETY: both frames wait, so both are ours to write as long as no kick runs; `len`
            // was checked against the room when the frame was filled.
            unsafe {
                let (from, to) = (self.data(offset), self.data(offset - 1));
                to.copy_from_nonoverlapping(from, (len as usize).min(self.room() as usize));
            }
            self.word(offset - 1, LEN).store(len, Ordering::Relaxed);
        }
        self.waiting -= 1;
        self.requested -= 1;
        let first = self.word(0, STATUS);
        first.store(SEND_REQUEST, Ordering::Release);
        let last = self.word(self.requested, STATUS);
        last.store(AVAILABLE, Ordering::Release);
        self.counters.failed.add(1);
    }

    /// Withdraws all waiting frames unsent.
    #[cold]
    fn refuse_all(&mut self) {
        for offset in 0..self.waiting {
            let status = self.word(offset, STATUS);
            status.store(AVAILABLE, Ordering::Release);
        }
        self.counters.failed.add(self.waiting.into());
        (self.waiting, self.requested) = (0, 0);
    }

    /// Starts the kernel if many frames wait. Their packets were accepted in any case, and the
    /// caller must count them, so the next call returns the error.
    fn kick_many(&mut self) {
        if self.waiting >= KICK_AT
            && let Err(error) = self.kick()
        {
            self.failed = Some(error);
        }
    }

    /// Returns the error of packets that had been accepted.
    fn look_back(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Makes the kernel send what waits. Packets for which it has no room continue to wait.
    fn kick(&mut self) -> Result<()> {
        while self.waiting != 0 {
            self.request();
            let result = match self.ethertype {
                0 => self.socket.kick(),
                ethertype => self.socket.kick_as(self.interface_index, ethertype),
            };
            self.counters.kicks.add(1);
            self.advance();
            let Err(error) = result else {
                if self.requested == 0 {
                    continue;
                }
                // Sent as many as the send buffer holds.
                return Ok(());
            };
            match error.raw_os_error() {
                _ if self.requested != 0 && self.status(0) == WRONG_FORMAT => self.refuse_first(),
                Some(libc::EINTR) => {}
                Some(libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM) => return Ok(()),
                Some(libc::ENETDOWN) => {
                    self.refuse_all();
                    return Ok(());
                }
                Some(libc::ENXIO | libc::ENODEV) => {
                    self.refuse_all();
                    let why = "the interface has been deleted";
                    return Err(Error::new(ErrorKind::Gone, "send packets", why));
                }
                _ => {
                    self.refuse_all();
                    return Err(Error::from_io("send packets", error));
                }
            }
        }
        Ok(())
    }

    /// Moves one filled slot (or the segments of one packet) into the run of waiting frames;
    /// returns the number of slots.
    fn take(&mut self, slots: &[Slot]) -> usize {
        let mut count = 1;
        while count < slots.len() && slots[count - 1].has(Slot::CONTINUES) {
            count += 1;
        }
        let slot = &slots[0];
        // SAFETY: the slot was borrowed over a frame of ours with that much room, and its batch is
        // over.
        let packet =
            unsafe { std::slice::from_raw_parts(slot.data().as_ptr(), slot.cap_len() as usize) };
        // A packet in several segments is longer than a frame, hence than the MTU.
        if count > 1 || !self.fits(packet) {
            self.counters.failed.add(1);
            return count;
        }
        let to = self.data(self.waiting);
        if to != slot.data() {
            // An earlier slot was refused: close the gap. SAFETY: the target is an earlier frame
            // that was borrowed with the same batch; frames do not overlap.
            unsafe { to.copy_from_nonoverlapping(slot.data(), packet.len()) };
        }
        self.add(slot.cap_len());
        count
    }

    /// Whether frames with this tag belong to this queue's pool, for which there is then a cache.
    fn knows(&mut self, tag: u32) -> bool {
        if self.cache.is_none() {
            self.cache = self.pool.get().cloned().map(FrameCache::new);
        }
        let cache = self.cache.as_ref();
        cache.is_some_and(|cache| cache.pool().tag() == tag)
    }

    /// Whether everything has left the ring.
    fn is_idle(&self) -> bool {
        (0..self.frame_count).all(|offset| self.status(offset) == AVAILABLE)
    }
}

impl TxBackend for Tx {
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        let room = (self.frame_count - self.waiting).min(max);
        for offset in self.waiting..self.waiting + room {
            if self.status(offset) != AVAILABLE {
                break;
            }
            let room = self.room();
            // SAFETY: a frame of the mapped ring that the kernel is done with has so much room.
            slots.push(unsafe { Slot::over(self.data(offset), room, room, 0) });
        }
        if slots.is_empty() && max != 0 {
            // After reclaiming, at least make the kernel continue.
            self.kick()?;
        }
        Ok(())
    }

    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        self.look_back()?;
        let mut at = 0;
        while at < filled {
            at += self.take(&slots[at..filled]);
        }
        slots.clear();
        self.kick_many();
        Ok(())
    }

    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        if !self.knows(frame.pool_tag()) {
            let why = "the frame belongs to another pool";
            return Err(Error::new(ErrorKind::InvalidInput, "send a frame", why)
                .with_hint("open both ports with the same pool"));
        }
        if self.waiting == self.frame_count || self.status(self.waiting) != AVAILABLE {
            self.kick()?;
            return Ok(Some(frame));
        }
        // Moved out of `self` while its packet is borrowed.
        let Some(mut cache) = self.cache.take() else {
            return Ok(Some(frame));
        };
        let packet = cache.pool().bytes(&frame);
        if packet.len() <= self.room() as usize && self.fits(packet) {
            let from = NonNull::from(packet).cast::<u8>();
            // SAFETY: the frame after the waiting ones is available, so ours, and has the room.
            unsafe {
                self.data(self.waiting)
                    .copy_from_nonoverlapping(from, packet.len())
            };
            self.add(frame.len());
            self.counters.copied.add(1);
        } else {
            self.counters.failed.add(1);
        }
        // It belongs to this pool, so it is accepted.
        let _ = cache.give(frame);
        self.cache = Some(cache);
        self.kick_many();
        Ok(None)
    }

    fn flush(&mut self) -> Result<()> {
        self.look_back()?;
        self.kick()
    }

    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        let end = Instant::now() + timeout;
        loop {
            self.kick()?;
            let done = if all {
                self.waiting == 0 && self.is_idle()
            } else {
                self.waiting < self.frame_count && self.status(self.waiting) == AVAILABLE
            };
            if done {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if self.waiting != 0 || all {
                // The interface's queue is full (there is no notification when it has room again),
                // or frames are in flight.
                std::thread::sleep(RETRY_PAUSE.min(left));
            } else {
                self.socket.poll(true, left)?;
            }
        }
    }

    fn pool(&self) -> Option<&Pool> {
        self.pool.get()
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Submitted packets are sent as far as the interface accepts them; there is no caller left
        // to report a failure to.
        let _ = self.kick();
        self.counters.failed.add(self.waiting.into());
    }
}
