//! What is known of the packet in a frame besides its bytes: a record beside each frame, so that a
//! frame which is kept and sent later loses nothing.

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
    /// Bytes of the packet that are not in the frame.
    cut: u64,
}

const _: () = assert!(size_of::<Record>() == 32, "two in a cache line");

impl Pool {
    /// Where the record of a frame is.
    #[inline]
    fn record(&self, frame: &Frame) -> *mut Record {
        assert_eq!(frame.tag, self.0.tag, "a frame of another pool");
        // SAFETY: the index was checked when the frame was issued.
        unsafe { self.0.tables.records().as_ptr().add(frame.index as usize) }
    }

    /// Keeps what a slot has besides the bytes: the frame is that of the slot's packet.
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

    /// The frame that another process's descriptor names, with its metadata. `None`, and no change,
    /// if there is no such frame, this process has it already, or the packet exceeds it.
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

    /// Forgets the VLAN tag beside a packet, for one that was put back into the bytes.
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

    /// The frame's packet as a ring carries it: with what was kept of it, as long as the frame has
    /// not been back in the pool.
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
