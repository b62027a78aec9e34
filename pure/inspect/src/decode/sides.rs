//! Connections with length-prefixed messages: reads each side's messages up to a limit, until one
//! of them is invalid.

use super::frame::Frame;
use super::{Direction, Reason};

/// Maximum number of messages read per direction.
const MESSAGES_MAX: u16 = 64;

/// One direction; at most `N` bytes of each message are kept.
struct Side<const N: usize> {
    frame: Frame<N>,
    messages: u16,
    is_over: bool,
}

/// Both directions.
pub(super) struct Sides<const N: usize>([Side<N>; 2]);

impl<const N: usize> Sides<N> {
    pub(super) const NEW: Sides<N> = Sides(
        [const {
            Side {
                frame: Frame::EMPTY,
                messages: 0,
                is_over: false,
            }
        }; 2],
    );

    /// Resets it.
    pub(super) fn clear(&mut self) {
        for side in &mut self.0 {
            let Side {
                frame,
                messages,
                is_over,
            } = side;
            frame.clear();
            (*messages, *is_over) = (0, false);
        }
    }

    /// Reads from `input` up to the end of a message and passes the kept part to `read`, which
    /// returns whether the side can be read further. Returns false if no message is complete, or no
    /// more are read. `length` is as in [`Frame::take`].
    pub(super) fn message(
        &mut self,
        from: Direction,
        input: &mut &[u8],
        length: impl Fn(&[u8]) -> Result<Option<u32>, Reason>,
        read: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        let side = &mut self.0[from as usize];
        if side.is_over {
            return false;
        }
        match side.frame.take(input, length) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(_) => {
                side.is_over = true;
                return false;
            }
        }
        let goes_on = read(side.frame.bytes());
        side.frame.clear();
        side.messages += 1;
        side.is_over = !goes_on || side.messages == MESSAGES_MAX;
        true
    }

    /// Whether neither side is read any more.
    pub(super) fn are_over(&self) -> bool {
        self.0.iter().all(|side| side.is_over)
    }

    /// As `Decode::wants`.
    pub(super) fn wants(&self, from: Direction) -> bool {
        !self.0[from as usize].is_over
    }

    /// As `Decode::skips`.
    pub(super) fn skips(&self, from: Direction) -> u32 {
        self.0[from as usize].frame.skips()
    }

    /// As `Decode::skip`.
    pub(super) fn skip(&mut self, from: Direction, len: u32) {
        self.0[from as usize].frame.skip(len);
    }

    /// As `Decode::gap`: the side ends, unless the bytes would have been skipped.
    pub(super) fn gap(&mut self, from: Direction, len: u32) {
        let side = &mut self.0[from as usize];
        side.is_over |= !side.frame.skip(len);
    }
}
