//! Receiving: walks the frames that the kernel has filled, and returns them once all packets are
//! released.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ring::slot::{Slot, Vlan, prefetch};
use ring::{Frame, Pool};
use sys::Result;

use super::super::any::{Cook, Cooked, Headers};
use super::super::tap::{
    KIND_OFFSET, LOOKS_PER_CHECK, OUTGOING, TPID_DEFAULT, Tap, VLAN_TPID_VALID, VLAN_VALID, gone,
};
use super::{DATA_OFFSET_MIN, Frames, HEADER_LEN, KERNELS, OURS, Place};
use crate::backend::clock::now_ns;
use crate::backend::keep::Keep;
use crate::options::{PortOptions, TimestampSource};
use crate::rx::{Filled, Ready, RxBackend};

/// Number of packets after which the kernel's 32-bit counters are read.
const PACKETS_PER_FOLD: usize = 1 << 24;

/// `struct tpacket2_hdr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct FrameHeader {
    status: u32,
    wire_len: u32,
    cap_len: u32,
    mac_offset: u16,
    net_offset: u16,
    sec: u32,
    nsec: u32,
    vlan_tci: u16,
    vlan_tpid: u16,
    padding: [u8; 4],
}

const _: () = assert!(size_of::<FrameHeader>() == HEADER_LEN);

/// The reading side of a tap.
pub(in super::super) struct FrameRx {
    tap: Arc<Tap<Frames>>,
    /// Frame to be read next.
    next: Place,
    /// First frame that was read and not returned.
    first_held: Place,
    /// Number of frames read and not returned, all before `next`.
    held: usize,
    /// Number of slots held by the program.
    borrowed: usize,
    snaplen: u32,
    time: TimestampSource,
    looks: u32,
    /// Number of frames returned since the kernel's counters were read.
    returned: usize,
    is_down: bool,
    keep: Keep,
    /// Builds cooked headers, for `any` and on request.
    cook: Option<Cook>,
}

impl FrameRx {
    pub(in super::super) fn new(
        tap: Arc<Tap<Frames>>,
        time: TimestampSource,
        pool: Arc<OnceLock<Pool>>,
        options: &PortOptions,
        cook: Option<Cook>,
    ) -> Self {
        Self {
            next: Place::default(),
            first_held: Place::default(),
            held: 0,
            borrowed: 0,
            snaplen: match options.snaplen {
                0 => u32::MAX,
                snaplen => snaplen,
            },
            time,
            looks: 0,
            returned: 0,
            is_down: false,
            keep: Keep::new(pool, tap.counters.clone()),
            tap,
            cook,
        }
    }

    /// Whether the next frame is ready.
    #[inline]
    fn is_ready(&self) -> bool {
        // All frames are read and held: the status of the next one is stale.
        if self.held == self.tap.ring.frame_count {
            return false;
        }
        // Acquire: the kernel wrote the frame's contents before its status.
        self.tap.ring.status(self.next).load(Ordering::Acquire) & OURS != 0
    }

    /// Reads the next frame, which is ready. `None` if its packet is not delivered.
    #[inline(always)]
    fn read<const COOKED: bool>(&mut self, now_ns: u64) -> Option<Slot> {
        let frame = self.tap.ring.frame(self.next);
        self.next = self.tap.ring.after(self.next);
        self.held += 1;
        // Another processor writes it.
        prefetch(self.tap.ring.frame(self.next).as_ptr());
        // SAFETY: frames are longer than header and address; any bits are a header; the kernel does
        // not write a frame that is ours.
        let (header, kind) = unsafe {
            let header = frame.cast::<FrameHeader>().read();
            (header, frame.add(HEADER_LEN + KIND_OFFSET).read())
        };
        let start = usize::from(header.mac_offset);
        let end = start + header.cap_len as usize;
        if start < DATA_OFFSET_MIN || end > self.tap.ring.frame_len {
            self.tap.counters.invalid.add(1);
            return None;
        }
        let cap_len = header.cap_len.min(self.snaplen);
        // SAFETY: the packet lies within its frame, which stays ours until `release`.
        let mut slot = unsafe { Slot::over(frame.add(start), cap_len, header.wire_len, 0) };
        self.describe(&mut slot, &header, kind, now_ns);
        if !COOKED {
            return Some(slot);
        }
        let headers = Headers {
            header_len: HEADER_LEN,
            mac_offset: header.mac_offset,
            net_offset: header.net_offset,
            cap_len: header.cap_len,
            wire_len: header.wire_len,
        };
        // SAFETY: `frame` is the packet's header; the packet ends within the frame, which is longer
        // than header and address.
        match unsafe { self.cook.as_ref()?.cook(frame, headers, &slot) } {
            Cooked::Packet(slot) => return Some(slot),
            Cooked::Twice => self.tap.counters.filtered.add(1),
            Cooked::Invalid => self.tap.counters.invalid.add(1),
        }
        None
    }

    /// Sets a packet's time, direction and tag.
    #[inline(always)]
    fn describe(&self, slot: &mut Slot, header: &FrameHeader, kind: u8, now_ns: u64) {
        slot.time_ns = match self.time {
            TimestampSource::Batch => now_ns,
            _ => u64::from(header.sec) * 1_000_000_000 + u64::from(header.nsec),
        };
        if self.time != TimestampSource::None {
            slot.flags = Slot::TIME;
        }
        if kind == OUTGOING {
            slot.flags |= Slot::OUTGOING;
        }
        if header.status & VLAN_VALID != 0 {
            let has_tpid = header.status & VLAN_TPID_VALID != 0;
            slot.vlan = Vlan {
                tpid: if has_tpid {
                    header.vlan_tpid
                } else {
                    TPID_DEFAULT
                },
                tci: header.vlan_tci,
            };
            slot.flags |= Slot::VLAN;
        }
    }

    /// Appends slots for up to `max` packets.
    fn walk<const COOKED: bool>(&mut self, slots: &mut Vec<Slot>, max: usize, now_ns: u64) {
        let end = slots.len() + max;
        // Not all frames hold a packet to deliver.
        let held_max = self.held + max;
        while slots.len() < end && self.held < held_max && self.is_ready() {
            slots.extend(self.read::<COOKED>(now_ns));
        }
    }

    /// Returns all frames that were read to the kernel.
    fn return_frames(&mut self) {
        while self.held != 0 {
            // Release: reads of the frame complete before the kernel writes it again.
            let status = self.tap.ring.status(self.first_held);
            status.store(KERNELS, Ordering::Release);
            self.first_held = self.tap.ring.after(self.first_held);
            self.returned += 1;
            self.held -= 1;
        }
        self.tap.ring.publish(self.next, 0);
        if self.returned >= PACKETS_PER_FOLD {
            self.returned = 0;
            self.tap.fold_totals();
        }
    }

    /// Checks whether the interface still exists.
    ///
    /// # Errors
    /// `Gone`, once all earlier packets have been read.
    fn check_gone(&self) -> Result<()> {
        let is_any = self.cook.as_ref().is_some_and(Cook::is_any);
        if self.tap.is_gone(is_any) && !self.is_ready() {
            return Err(gone());
        }
        Ok(())
    }
}

impl RxBackend for FrameRx {
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        let start = slots.len();
        // Checked before the clock is read: a packet that arrives between two checks would have
        // time 0. Those that arrive during the walk have the batch's time.
        if self.is_ready() {
            let now_ns = match self.time {
                TimestampSource::Batch => now_ns(libc::CLOCK_REALTIME),
                _ => 0,
            };
            match self.cook {
                None => self.walk::<false>(slots, max, now_ns),
                Some(_) => self.walk::<true>(slots, max, now_ns),
            }
        }
        self.borrowed += slots.len() - start;
        if slots.len() > start {
            self.is_down = false;
            self.tap.ring.publish(self.next, self.held);
            return Ok(Filled::of(&slots[start..]));
        }
        if self.held != 0 && self.borrowed == 0 {
            // Frames without a packet to deliver.
            self.return_frames();
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_CHECK) || self.tap.gone.load(Ordering::Relaxed) {
            self.check_gone()?;
        }
        Ok(Filled::default())
    }

    #[inline]
    fn release(&mut self, slots: &mut Vec<Slot>) {
        self.borrowed -= slots.len();
        slots.clear();
        if self.borrowed == 0 && self.held != 0 {
            self.return_frames();
        }
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        // SAFETY: the slot's frame is ours until release.
        unsafe { self.keep.copy(slot) }
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        let mut is_down = self.is_down;
        let ready = self.tap.wait(
            timeout,
            &mut is_down,
            || self.is_ready(),
            || self.check_gone(),
        );
        self.is_down = is_down;
        ready
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.tap.socket.as_fd())
    }

    fn pool(&self) -> Option<&Pool> {
        self.keep.pool()
    }

    /// Packets are not gathered, neither here nor by a reader that sleeps on the clock.
    fn gathers(&self) -> bool {
        true
    }

    fn ring_len(&self) -> Option<u32> {
        Some(self.tap.ring.frame_count as u32)
    }
}

impl Drop for FrameRx {
    fn drop(&mut self) {
        self.tap.close();
    }
}
