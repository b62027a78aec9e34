//! Length-prefixed messages of a stream: the first bytes of each are kept, the rest is counted.

use super::Reason;

/// One direction: the current message, of which at most `N` bytes are kept.
pub(super) struct Frame<const N: usize> {
    bytes: [u8; N],
    len: u16,
    /// Bytes of the message still missing, once its length is known.
    left: Option<u32>,
}

impl<const N: usize> Frame<N> {
    pub(super) const EMPTY: Frame<N> = Frame {
        bytes: [0; N],
        len: 0,
        left: None,
    };

    /// Prepares for the next message.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.left = None;
    }

    /// The kept bytes of the message.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(N)]
    }

    /// Reads from `input` up to the end of the message. Returns true when the message is complete;
    /// call [`Frame::clear`] before the next one.
    ///
    /// `length` computes the total length of the message from its first bytes, and returns `None`
    /// while there are too few of them. The length is never known without a byte.
    pub(super) fn take(
        &mut self,
        input: &mut &[u8],
        length: impl Fn(&[u8]) -> Result<Option<u32>, Reason>,
    ) -> Result<bool, Reason> {
        loop {
            let Some(left) = self.left else {
                if let Some(total) = length(self.bytes())? {
                    self.left = Some(total.saturating_sub(self.len.into()));
                    continue;
                }
                let Some((byte, rest)) = input.split_first() else {
                    return Ok(false);
                };
                let place = self.bytes.get_mut(usize::from(self.len));
                *place.ok_or(Reason::BadLength)? = *byte;
                self.len += 1;
                *input = rest;
                continue;
            };
            if left == 0 {
                return Ok(true);
            }
            let (part, rest) = input.split_at(input.len().min(left as usize));
            if part.is_empty() {
                return Ok(false);
            }
            let at = usize::from(self.len).min(N);
            let kept = part.len().min(N - at);
            self.bytes[at..at + kept].copy_from_slice(&part[..kept]);
            self.len = (at + kept) as u16;
            self.left = Some(left - part.len() as u32);
            *input = rest;
        }
    }

    /// Number of next bytes that are not kept. The last byte of a message is never one of them, so
    /// that the message is processed when it ends.
    pub(super) fn skips(&self) -> u32 {
        match self.left {
            Some(left) if usize::from(self.len) >= N => left.saturating_sub(1),
            _ => 0,
        }
    }

    /// Skips this many bytes, at most [`Frame::skips`]. Returns false if they are needed.
    pub(super) fn skip(&mut self, len: u32) -> bool {
        let fits = len <= self.skips();
        if let Some(left) = &mut self.left
            && fits
        {
            *left -= len;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// A length byte, then this many bytes.
    fn length(bytes: &[u8]) -> Result<Option<u32>, Reason> {
        match bytes {
            [] => Ok(None),
            [0xff, ..] => Err(Reason::TooLong),
            [len, ..] => Ok(Some(u32::from(*len) + 1)),
        }
    }

    #[test]
    fn messages_do_not_depend_on_segmentation() {
        let stream = b"\x03abc\0\x06defghi\x01j\xff";
        for step in 1..=stream.len() {
            let (mut frame, mut found) = (Frame::<5>::EMPTY, Vec::new());
            let mut error = None;
            for mut part in stream.chunks(step) {
                loop {
                    match frame.take(&mut part, length) {
                        Ok(true) => found.push(frame.bytes().to_vec()),
                        Ok(false) => break,
                        Err(reason) => {
                            error = Some(reason);
                            break;
                        }
                    }
                    frame.clear();
                }
            }
            let expected: [&[u8]; 4] = [b"\x03abc", b"\0", b"\x06defg", b"\x01j"];
            assert_eq!(
                (&found[..], error),
                (&expected.map(Vec::from)[..], Some(Reason::TooLong))
            );
        }
    }

    #[test]
    fn unneeded_bytes_can_be_skipped_except_the_last() {
        let mut frame = Frame::<2>::EMPTY;
        assert_eq!(frame.take(&mut &b"\x06a"[..], length), Ok(false));
        assert_eq!(frame.skips(), 4);
        assert!(!frame.skip(5) && frame.skip(4));
        assert_eq!((frame.skips(), frame.skip(1)), (0, false));
        assert_eq!(frame.take(&mut &b"f"[..], length), Ok(true));
        assert_eq!(frame.bytes(), b"\x06a");
    }
}
