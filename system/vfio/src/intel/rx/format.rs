//! Decoding of receive descriptors, and which of them are plain packets.

use std::hint::black_box;

use crate::driver::Health;
use crate::registers::Registers;

/// The second word of a card's receive descriptors, and its registers for a queue.
pub trait RxFormat: Send + 'static {
    /// The descriptor is done.
    const DONE: u64;
    /// The packet ends in it.
    const END: u64;
    /// The card marks the packet as damaged, by any of these.
    const ERRORS: u64;
    /// With one of these, which are rare, [`info`](Self::info) is not true and
    /// [`odd_info`](Self::odd_info) is.
    const ODD: u64;
    /// Where the 16 bits of the length begin; none of the flags above is among them.
    const LEN_SHIFT: u32;
    /// The bits of the word that [`info`](Self::info) takes as they are.
    const INFO: u64;
    /// In addition to `info`, for any packet: the tag protocol, unused without a tag.
    const ALWAYS: u64;

    /// Bytes in the buffer.
    #[inline(always)]
    fn len(word: u64) -> u32 {
        (word >> Self::LEN_SHIFT) as u32 & LEN_MASK as u32
    }

    /// As `Slot` keeps a hash, from the first word.
    fn hash(first: u64) -> u64;

    /// Flags and tag, as [`Slot::set_info`](ring::slot::Slot::set_info) has them. `mask` is
    /// [`INFO`](Self::INFO).
    fn info(word: u64, mask: u64) -> u64;

    /// The same, of any word.
    fn odd_info(word: u64) -> u64;

    /// The tail register.
    fn tail(&self) -> u32;

    /// Whether the queue is as it was started: one register read.
    fn health<G: Registers>(&self, registers: &G, ring_len: u32) -> Health;

    /// Lets the queue's interrupt through.
    fn arm<G: Registers>(&self, registers: &G);

    /// Masks it.
    fn disarm<G: Registers>(&self, registers: &G);
}

/// The bits of a length, once it is shifted down.
pub(super) const LEN_MASK: u64 = 0xffff;

/// Which packets are plain: those that end where they began, have no flag that is odd, and a length
/// that is neither 0 nor more than fits.
///
/// One comparison checks all of it. With the length in the lowest bits and the flags above it, what
/// is left when the flags wanted, and 1, are taken away is less than the longest length only where
/// nothing but a length is left.
pub(super) struct Plain {
    looked_at: u64,
    taken_away: u64,
    /// Below 2^16.
    longest: u64,
}

impl Plain {
    #[inline(always)]
    pub(super) fn new<F: RxFormat>(longest: u32) -> Self {
        // Constants that the compiler does not know are read from memory by the instruction that
        // needs them. Constants that it sees take another instruction per packet.
        let wanted = (F::DONE | F::END).rotate_right(F::LEN_SHIFT);
        let flags = wanted | (F::ERRORS | F::ODD).rotate_right(F::LEN_SHIFT);
        assert!(flags & LEN_MASK == 0 && u64::from(longest) <= LEN_MASK);
        Self {
            looked_at: black_box(flags | LEN_MASK),
            taken_away: black_box(wanted + 1),
            longest: longest.into(),
        }
    }

    /// The length of the packet, if it is one of them.
    #[inline(always)]
    pub(super) fn len<F: RxFormat>(&self, word: u64) -> Option<u32> {
        let turned = word.rotate_right(F::LEN_SHIFT) & self.looked_at;
        let left = turned.wrapping_sub(self.taken_away);
        (left < self.longest).then(|| left as u32 + 1)
    }
}

/// What is plain by one comparison is so by looking at each flag, and at the length.
#[cfg(test)]
pub fn plain_is_plain<F: RxFormat>() {
    let (wanted, unwanted) = (F::DONE | F::END, F::ERRORS | F::ODD);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut plain, mut others) = (0, 0);
    for longest in [1, 60, 1518, 2048, 0xffff] {
        let test = Plain::new::<F>(longest);
        for round in 0..20_000 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let lens = [
                0,
                1,
                longest - 1,
                longest,
                longest + 1,
                0xffff,
                random as u32,
            ];
            let len = u64::from(lens[round % lens.len()]) & LEN_MASK;
            let noise = random.rotate_left(23);
            let flags = match round % 5 {
                0 => noise,
                1 => noise & !unwanted | wanted,
                2 => noise & !unwanted & !wanted | wanted & random.rotate_left(11),
                3 => noise | wanted,
                _ => !unwanted & !(1 << (round / 5 % 64)),
            };
            let word = flags & !(LEN_MASK << F::LEN_SHIFT) | len << F::LEN_SHIFT;
            let is_plain =
                word & (wanted | unwanted) == wanted && (1..=u64::from(longest)).contains(&len);
            let expected = is_plain.then_some(len as u32);
            assert_eq!(test.len::<F>(word), expected, "{word:#x}, {longest}");
            assert_eq!(u64::from(F::len(word)), len);
            plain += u32::from(is_plain);
            others += u32::from(!is_plain);
        }
    }
    assert!(plain > 1000 && others > 1000, "{plain} {others}");
}
