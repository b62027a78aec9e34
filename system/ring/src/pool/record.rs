//! Metadata of the packet in a frame: a record for each frame, so that a frame that is kept and
//! sent later does not lose it.

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
    cut: u64,
}

const _: () = assert!(size_of::<Record>() == 32, "two in a cache line");

impl Pool {
    /// Returns the address of a frame's record.
    #[inline]
    fn record(&self, frame: &Frame) -> *mut Record {
        assert_eq!(frame.tag, self.0.tag, "a frame of another pool");
        // SAFETY: the index was checked when the frame was issued.
        unsafe { self.0.tables.records().as_ptr().add(frame.index as usize) }
    }

    #[inline(always)]
    pub(super) fn record_address(&self, frame: &Frame) -> usize {
        self.record(frame).addr()
    }

    /// Stores the metadata of a slot, whose packet is in this frame.
    ///
    /// # Panics
    /// If the frame belongs to another pool.
    #[inline]
    pub fn keep_metadata(&self, frame: &mut Frame, slot: &Slot) {
        let record = Record {
            time_ns: slot.time_ns,
            hash: slot.hash,
            info: slot.info() & !u64::from(Slot::CONTINUES),
            cut: slot.wire_len.saturating_sub(frame.len).into(),
        };
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
            cut: metadata.wire_len.saturating_sub(frame.len).into(),
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
        let record = Record {
            time_ns: packet.time_ns,
            hash: packet.hash,
            info: packet.info,
            cut: packet.wire_len.saturating_sub(packet.cap_len).into(),
        };
        // SAFETY: within the table; the frame has just become this caller's.
        unsafe { self.record(&frame).write(record) };
        frame.has_record = true;
        Some(frame)
    }

    /// Issues frame `index`, which this process owns, with the packet that a peer described: the
    /// caller has checked that it is within the frame.
    pub(crate) fn with_record(&self, index: u32, packet: Descriptor) -> Frame {
        let mut frame = self.issue(index);
        (frame.offset, frame.len) = (packet.offset, packet.cap_len);
        let record = Record {
            time_ns: packet.time_ns,
            hash: packet.hash,
            // Only flags that slots use.
            info: packet.info & !(0xffff & !u64::from(Slot::FLAGS)),
            cut: packet.wire_len.saturating_sub(packet.cap_len).into(),
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
            wire_len: frame.len.saturating_add(record.cut as u32),
            time_ns: record.time_ns,
            hash: record.hash,
            info: record.info,
        }
    }
}
