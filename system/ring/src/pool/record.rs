//! Metadata of the packet in a frame: a record for each frame, so that a frame that is kept and
//! sent later does not lose it.

use super::header::FRAME_LEN_MAX;
use super::{Owner, Pool};
use crate::descriptor::Descriptor;
use crate::frame::Frame;
use crate::slot::Slot;

/// The record of one frame, read and written by the frame's holder only.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Record {
    time_ns: u64,
    hash: u64,
    info: u64,
    /// Number of bytes of the packet that are not in the frame.
    cut: u32,
    /// Of a packet that was handed to other processes: its position in the frame, and its length
    /// there.
    offset: u16,
    len: u16,
}

const _: () = assert!(size_of::<Record>() == 32, "two in a cache line");
const _: () = assert!(FRAME_LEN_MAX <= u16::MAX as u32, "as a record has them");

impl Record {
    /// Of a packet that has `len` bytes in its frame.
    #[inline(always)]
    fn of_slot(slot: &Slot, len: u32) -> Self {
        Self {
            time_ns: slot.time_ns,
            hash: slot.hash,
            info: slot.info() & !u64::from(Slot::CONTINUES),
            cut: slot.wire_len.saturating_sub(len),
            ..Self::default()
        }
    }

    fn of(packet: &Descriptor) -> Self {
        Self {
            time_ns: packet.time_ns,
            hash: packet.hash,
            info: packet.info,
            cut: packet.wire_len.saturating_sub(packet.cap_len),
            offset: packet.offset as u16,
            len: packet.cap_len as u16,
        }
    }
}

/// Frames of a pool that are about to be written, and their records.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    base: *mut u8,
    records: *mut Record,
    frame_len_log2: u32,
}

impl Target {
    /// Length of a frame in bytes.
    #[inline(always)]
    pub(crate) fn frame_len(self) -> u32 {
        1 << self.frame_len_log2
    }

    /// Address of a byte in a frame.
    ///
    /// # Safety
    /// There is such a frame, and the offset is at most its length.
    #[inline(always)]
    pub(crate) unsafe fn bytes(self, index: u32, offset: u32) -> *mut u8 {
        let place = ((index as usize) << self.frame_len_log2) + offset as usize;
        // SAFETY: the caller's word.
        unsafe { self.base.add(place) }
    }

    /// Fetches the first and the last cache line of a packet of at most two, and the record, before
    /// they are written.
    ///
    /// # Safety
    /// As for [`bytes`](Self::bytes).
    #[inline(always)]
    pub(crate) unsafe fn prefetch(self, index: u32, offset: u32, len: u32) {
        // SAFETY: the caller's word.
        let (address, record) = unsafe {
            let record = self.records.add(index as usize);
            (self.bytes(index, offset).addr(), record.addr())
        };
        let last = len.saturating_sub(1).min(127);
        sys::advice::prefetch_for_write(address);
        sys::advice::prefetch_for_write(address + last as usize);
        sys::advice::prefetch_for_write(record);
    }

    /// Stores the metadata of a slot, whose bytes are in this frame.
    ///
    /// # Safety
    /// The caller holds the frame.
    #[inline(always)]
    pub(crate) unsafe fn keep(self, index: u32, slot: &Slot) {
        let record = Record::of_slot(slot, slot.cap_len());
        // SAFETY: the caller's word.
        unsafe { self.records.add(index as usize).write(record) };
    }
}

impl Pool {
    /// Its frames, for writing.
    ///
    /// # Panics
    /// If this process may only read the pool.
    #[inline]
    pub(crate) fn target(&self) -> Target {
        assert!(self.0.is_writable, "the pool is read-only in this process");
        Target {
            base: self.base().as_ptr(),
            records: self.0.tables.records().as_ptr(),
            frame_len_log2: self.0.frame_len_log2,
        }
    }

    /// Returns the address of a frame's record.
    #[inline]
    fn record(&self, frame: &Frame) -> *mut Record {
        assert_eq!(frame.tag, self.0.tag, "a frame of another pool");
        // SAFETY: the index was checked when the frame was issued.
        unsafe { self.0.tables.records().as_ptr().add(frame.index as usize) }
    }

    /// Stores the metadata of a slot, whose packet is in this frame.
    ///
    /// # Panics
    /// If the frame belongs to another pool.
    #[inline]
    pub fn keep_metadata(&self, frame: &mut Frame, slot: &Slot) {
        let record = Record::of_slot(slot, frame.len);
        // SAFETY: within the table; the frame is held by the caller, so nothing else uses it.
        unsafe { self.record(frame).write(record) };
        frame.has_record = true;
    }

    /// Stores the metadata of a descriptor, of a packet in this frame with this length on the wire.
    ///
    /// # Panics
    /// If the frame belongs to another pool.
    pub fn set_metadata(&self, frame: &mut Frame, metadata: &Descriptor) {
        let record = Record {
            time_ns: metadata.time_ns,
            hash: metadata.hash,
            info: metadata.info,
            cut: metadata.wire_len.saturating_sub(frame.len),
            ..Record::default()
        };
        // SAFETY: as above.
        unsafe { self.record(frame).write(record) };
        frame.has_record = true;
    }

    /// Claims the frame in another process's descriptor, with its metadata. Returns `None` and
    /// changes nothing if there is no such frame, this process already holds it, or the packet
    /// exceeds it.
    #[inline]
    pub(crate) fn receive(&self, packet: Descriptor) -> Option<Frame> {
        let end = packet.offset.checked_add(packet.cap_len)?;
        if end > self.frame_len() || !self.pass(packet.index, Owner::Peer, Owner::User) {
            return None;
        }
        let mut frame = self.issue(packet.index);
        (frame.offset, frame.len) = (packet.offset, packet.cap_len);
        // SAFETY: within the table; the frame has just become this caller's.
        unsafe { self.record(&frame).write(Record::of(&packet)) };
        frame.has_record = true;
        Some(frame)
    }

    /// Issues frame `index`, which this process owns, with the packet that a peer described: the
    /// caller has checked that it is within the frame.
    pub(crate) fn with_record(&self, index: u32, packet: Descriptor) -> Frame {
        let mut frame = self.issue(index);
        (frame.offset, frame.len) = (packet.offset, packet.cap_len);
        let record = Record {
            // Only flags that slots use.
            info: packet.info & !(0xffff & !u64::from(Slot::FLAGS)),
            ..Record::of(&packet)
        };
        // SAFETY: within the table; the frame is the caller's.
        unsafe { self.record(&frame).write(record) };
        frame.has_record = true;
        frame
    }

    /// Marks the frame's packet as continued in the next frame.
    ///
    /// # Panics
    /// If the frame belongs to another pool.
    pub fn set_continues(&self, frame: &mut Frame) {
        let mut record = match frame.has_record {
            // SAFETY: as above.
            true => unsafe { self.record(frame).read() },
            false => Record::default(),
        };
        record.info |= u64::from(Slot::CONTINUES);
        // SAFETY: as above.
        unsafe { self.record(frame).write(record) };
        frame.has_record = true;
    }

    /// Whether the frame's packet continues in the next frame.
    ///
    /// # Panics
    /// If the frame belongs to another pool.
    #[inline]
    pub fn continues(&self, frame: &Frame) -> bool {
        // SAFETY: as above.
        frame.has_record && unsafe { &*self.record(frame) }.info & u64::from(Slot::CONTINUES) != 0
    }

    /// Removes the VLAN tag from the metadata, after it was inserted into the packet's bytes.
    ///
    /// # Panics
    /// If the frame belongs to another pool.
    pub fn forget_tag(&self, frame: &mut Frame) {
        if frame.has_record {
            // SAFETY: as above.
            let record = unsafe { &mut *self.record(frame) };
            record.info &= u64::from(!u32::from(Slot::VLAN));
        }
    }

    /// Returns the descriptor of the frame's packet, with the stored metadata unless the frame has
    /// been returned to the pool since.
    ///
    /// # Panics
    /// If the frame belongs to another pool.
    #[inline]
    pub fn descriptor(&self, frame: &Frame) -> Descriptor {
        let record = match frame.has_record {
            // SAFETY: as above; `keep_metadata` wrote it.
            true => unsafe { self.record(frame).read() },
            false => Record::default(),
        };
        Descriptor {
            index: frame.index,
            offset: frame.offset,
            cap_len: frame.len,
            wire_len: frame.len.saturating_add(record.cut),
            time_ns: record.time_ns,
            hash: record.hash,
            info: record.info,
        }
    }

    /// Like [`descriptor`](Self::descriptor), of a packet that is handed to other processes:
    /// [`handed`](Self::handed) returns the same for as long as one of them holds the frame.
    #[inline(always)]
    pub(crate) fn descriptor_to_hand(&self, frame: &Frame) -> Descriptor {
        let descriptor = self.descriptor(frame);
        let record = self.record(frame);
        match frame.has_record {
            // SAFETY: as above.
            true => unsafe {
                (*record).offset = frame.offset as u16;
                (*record).len = frame.len as u16;
            },
            // SAFETY: as above.
            false => unsafe { record.write(Record::of(&descriptor)) },
        }
        descriptor
    }

    /// Stores the descriptor of a packet that is handed to other processes, for
    /// [`handed`](Self::handed).
    ///
    /// # Safety
    /// The caller holds the frame.
    pub(crate) unsafe fn keep_handed(&self, packet: &Descriptor) {
        if packet.index < self.frame_count() {
            let frame = self.issue(packet.index);
            // SAFETY: within the table, and the frame is the caller's.
            unsafe { self.record(&frame).write(Record::of(packet)) };
        }
    }

    /// The descriptor of a packet that was handed to other processes, of which one still holds the
    /// frame.
    pub(crate) fn handed(&self, index: u32) -> Descriptor {
        let frame = self.issue(index);
        // SAFETY: within the table (any index that was handed over is); written before the frame
        // was handed over by the thread that calls this, and by nothing since.
        let record = unsafe { self.record(&frame).read() };
        Descriptor {
            index,
            offset: record.offset.into(),
            cap_len: record.len.into(),
            wire_len: u32::from(record.len).saturating_add(record.cut),
            time_ns: record.time_ns,
            hash: record.hash,
            info: record.info,
        }
    }
}
