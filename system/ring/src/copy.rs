//! Copies packets into free frames, for queues to other processes.

use crate::cache::FrameCache;
use crate::frame::Frame;
use crate::slot::Slot;

/// Number of packets whose frames are fetched into the processor's cache before they are written.
const AHEAD: usize = 32;

/// Length of a cache line in bytes.
const LINE: u32 = 64;

impl FrameCache {
    /// Copies packets of one slot each into free frames, and appends these with their metadata to
    /// `frames`. Returns how many: fewer than there are slots if no more frames are free, or at the
    /// first one that is longer than a frame or [continues](Slot::continues).
    ///
    /// # Safety
    /// The slots describe memory that can be read, and are not over frames that are free.
    pub unsafe fn copy_in(&mut self, slots: &[Slot], frames: &mut Vec<Frame>) -> usize {
        let target = self.pool().target();
        let tag = self.pool().tag();
        let frame_len = target.frame_len();
        let is_plain = |slot: &&Slot| !slot.continues() && slot.cap_len() <= frame_len;
        let mut count = 0;
        loop {
            let next = slots.get(count..).unwrap_or_default();
            let plain = next.iter().take(AHEAD).take_while(is_plain).count();
            let run = self.take_run(plain);
            if run.is_empty() {
                return count;
            }
            let pairs = || run.iter().zip(next);
            for (&index, slot) in pairs() {
                let len = slot.cap_len();
                // SAFETY: the frame was just taken.
                unsafe { target.prefetch(index, start(index, len, frame_len), len) };
            }
            frames.extend(pairs().map(|(&index, slot)| {
                let len = slot.cap_len();
                let offset = start(index, len, frame_len);
                // SAFETY: the frame was just taken, and `start` keeps the packet within it, as the
                // length is at most the frame's. The caller's word for the slot.
                unsafe {
                    copy(
                        slot.data().as_ptr(),
                        target.bytes(index, offset),
                        len as usize,
                    );
                    target.keep(index, slot);
                }
                Frame {
                    index,
                    tag,
                    offset,
                    len,
                    has_record: true,
                }
            }));
            count += run.len();
        }
    }
}

/// Where a packet starts in its frame. If all started at the same offset, their headers would be in
/// the same few sets of the processor's caches, which then hold some dozen packets instead of
/// thousands.
#[inline(always)]
fn start(index: u32, len: u32, frame_len: u32) -> u32 {
    const STEP: u32 = 2 * LINE;
    let start = index % 16 * STEP;
    if start + len <= frame_len { start } else { 0 }
}

/// Copies the bytes of a packet. Short ones of different lengths take the same instructions:
/// which branch a length leads to would often be predicted wrong.
///
/// # Safety
/// `len` bytes can be read and written; they do not overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    const PART: usize = 32;
    if !(PART..=4 * PART).contains(&len) {
        // SAFETY: the caller's word.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
    // They overlap unless the packet is as long as all four.
    let last = len - PART;
    for start in [0, PART.min(last), last.saturating_sub(PART), last] {
        // SAFETY: no part ends after the last one, which ends with the packet.
        unsafe { std::ptr::copy_nonoverlapping(from.add(start), to.add(start), PART) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_all_lengths_are_copied_whole() {
        let from: Vec<u8> = (0..=255).collect();
        for len in 0..from.len() {
            for start in [0, 1, 17].into_iter().filter(|start| start + len <= 256) {
                let from = &from[start..start + len];
                let mut to = vec![0; len + 2];
                // SAFETY: both have this length.
                unsafe { copy(from.as_ptr(), to[1..].as_mut_ptr(), len) };
                assert_eq!((to[0], to[len + 1]), (0, 0), "{len}");
                assert_eq!(to[1..=len], *from, "{len}");
            }
        }
    }

    #[test]
    fn packets_stay_within_their_frames() {
        for frame_len in [2048, 4096] {
            for index in 0..40 {
                for len in (0..=frame_len).step_by(61).chain([frame_len]) {
                    assert!(start(index, len, frame_len) + len <= frame_len);
                }
            }
        }
    }
}
