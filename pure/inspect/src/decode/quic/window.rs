//! Reorders bytes within a window: a CRYPTO stream of QUIC, a message of DTLS.

use crate::Reason;

/// Bytes per word of the bit set.
const WORD: usize = 64;

/// A ring of bytes, with a bit for each one present. 64 times `WORDS` bytes after the first missing
/// one are kept.
pub(crate) struct Window<const WORDS: usize> {
    /// Offset of the first byte not delivered yet.
    next: u64,
    /// Number of bytes present but not delivered.
    held: u16,
    bytes: [[u8; WORD]; WORDS],
    present: [u64; WORDS],
}

impl<const WORDS: usize> Window<WORDS> {
    const LEN: usize = WORDS * WORD;

    pub(crate) const fn new() -> Window<WORDS> {
        Window {
            next: 0,
            held: 0,
            bytes: [[0; WORD]; WORDS],
            present: [0; WORDS],
        }
    }

    /// Resets it without touching the bytes.
    pub(crate) fn clear(&mut self) {
        self.next = 0;
        self.held = 0;
        self.present = [0; WORDS];
    }

    /// Adds bytes at an offset and passes the data now in order to `feed`. Returns true as soon as
    /// `feed` returns true. For bytes that arrive twice the first copy counts.
    pub(crate) fn take(
        &mut self,
        offset: u64,
        data: &[u8],
        feed: &mut dyn FnMut(&[u8]) -> Result<bool, Reason>,
    ) -> Result<bool, Reason> {
        let known = self.next.saturating_sub(offset).min(data.len() as u64) as usize;
        let data = &data[known..];
        if data.is_empty() {
            return Ok(false);
        }
        let ahead = offset.saturating_sub(self.next);
        if ahead == 0 && self.held == 0 {
            self.next += data.len() as u64;
            return feed(data);
        }
        if ahead + data.len() as u64 > Self::LEN as u64 {
            return Err(Reason::TooLong);
        }
        let start = self.next + ahead;
        for (at, byte) in (start..).zip(data) {
            let place = at as usize % Self::LEN;
            let bit = 1 << (place % WORD);
            if self.present[place / WORD] & bit == 0 {
                self.present[place / WORD] |= bit;
                self.bytes[place / WORD][place % WORD] = *byte;
                self.held += 1;
            }
        }
        while self.held != 0 {
            let from = self.next as usize % Self::LEN;
            // At most up to the end of the ring.
            let len = (from..Self::LEN)
                .take_while(|place| self.present[place / WORD] & 1 << (place % WORD) != 0)
                .count();
            if len == 0 {
                break;
            }
            for place in from..from + len {
                self.present[place / WORD] &= !(1 << (place % WORD));
            }
            self.held -= len as u16;
            self.next += len as u64;
            if feed(&self.bytes.as_flattened()[from..from + len])? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const WORDS: usize = 48;
    const LEN: usize = WORDS * WORD;

    #[test]
    fn segments_in_any_order_give_the_stream() {
        let stream: Vec<u8> = (0..1500u32).map(|n| (n * 7 % 251) as u8).collect();
        let mut seed = 1u64;
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) % bound
        };
        for _ in 0..200 {
            let mut window = Window::<WORDS>::new();
            // Advance the ring so that it wraps.
            let lead = below(4000);
            let mut pieces = Vec::new();
            let mut at = 0;
            while at < stream.len() {
                let len = (1 + below(300) as usize).min(stream.len() - at);
                let overlap = (below(40) as usize).min(at);
                pieces.push((at - overlap, at + len));
                at += len;
            }
            for n in (1..pieces.len()).rev() {
                pieces.swap(n, below(n as u64 + 1) as usize);
            }
            let mut out = Vec::new();
            let zeros = std::vec![0; lead as usize];
            let mut feed = |bytes: &[u8]| {
                out.extend_from_slice(bytes);
                Ok(false)
            };
            window.take(0, &zeros, &mut feed).unwrap();
            for (from, to) in pieces {
                let at = lead + from as u64;
                window.take(at, &stream[from..to], &mut feed).unwrap();
            }
            assert_eq!(&out[lead as usize..], &stream[..]);
            assert_eq!(window.held, 0);
        }
    }

    #[test]
    fn data_too_far_ahead_is_refused() {
        let mut window = Window::<WORDS>::new();
        let mut feed = |_: &[u8]| Ok(false);
        assert_eq!(window.take(10, &[1; LEN - 10], &mut feed), Ok(false));
        assert_eq!(
            window.take(10, &[1; LEN - 9], &mut feed),
            Err(Reason::TooLong)
        );
        assert_eq!(
            window.take(u64::MAX - 9, &[1; 9], &mut feed),
            Err(Reason::TooLong)
        );
    }
}
