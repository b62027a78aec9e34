//! Decodes receive descriptors, and recognizes plain packets.

use std::hint::black_box;

use crate::driver::Health;
use crate::registers::Registers;

/// Layout of the second word of a card's receive descriptors, and its per-queue registers.
pub trait RxFormat: Send + 'static {
    /// The descriptor is done.
    const DONE: u64;
    /// The packet ends in it.
    const END: u64;
    /// Error flags: any of these marks the packet as damaged.
    const ERRORS: u64;
    /// Rare flags with which [`info`](Self::info) is invalid, and [`odd_info`](Self::odd_info) must
    /// be used.
    const ODD: u64;
    /// Position of the 16-bit length; none of the flags above overlaps it.
    const LEN_SHIFT: u32;
    /// Bits of the word that [`info`](Self::info) copies unchanged.
    const INFO: u64;
    /// Added to `info` for any packet: the tag protocol, unused without a tag.
    const ALWAYS: u64;

    /// Length of the data in the buffer.
    #[inline(always)]
    fn len(word: u64) -> u32 {
        (word >> Self::LEN_SHIFT) as u32 & LEN_MASK as u32
    }

    /// The hash in the form of a `Slot`, from the first word.
    fn hash(first: u64) -> u64;

    /// Flags and tag in the form of [`Slot::set_info`](ring::slot::Slot::set_info). `mask` is
    /// [`INFO`](Self::INFO).
    fn info(word: u64, mask: u64) -> u64;

    /// The same for any word.
    fn odd_info(word: u64) -> u64;

    /// The tail register.
    fn tail(&self) -> u32;

    /// Whether the queue is still in the state in which it was started: one register read.
    fn health<G: Registers>(&self, registers: &G, ring_len: u32) -> Health;

    /// Unmasks the queue's interrupt.
    fn arm<G: Registers>(&self, registers: &G);

    /// Masks it.
    fn disarm<G: Registers>(&self, registers: &G);
}

/// Mask of the length after shifting.
pub(super) const LEN_MASK: u64 = 0xffff;

/// Recognizes plain packets: those that end where they began, without odd flags, and with a length
/// that is neither 0 nor more than fits.
///
/// One comparison checks everything. With the length in the lowest bits and the flags above it,
/// subtracting the required flags and 1 gives a value below the maximum length only if nothing but
/// a valid length is left.
pub(super) struct Plain {
    looked_at: u64,
    taken_away: u64,
    /// Below 2^16.
    longest: u64,
}

impl Plain {
    #[inline(always)]
    pub(super) fn new<F: RxFormat>(longest: u32) -> Self {
        // Constants hidden from the compiler are memory operands of the instructions that use them.
        // Visible ones would take another instruction per packet.
        let wanted = (F::DONE | F::END).rotate_right(F::LEN_SHIFT);
        let flags = wanted | (F::ERRORS | F::ODD).rotate_right(F::LEN_SHIFT);
        assert!(flags & LEN_MASK == 0 && u64::from(longest) <= LEN_MASK);
        Self {
            looked_at: black_box(flags | LEN_MASK),
            taken_away: black_box(wanted + 1),
            longest: longest.into(),
        }
    }

    /// The length of the packet, if it is plain.
    #[inline(always)]
    pub(super) fn len<F: RxFormat>(&self, word: u64) -> Option<u32> {
        let turned = word.rotate_right(F::LEN_SHIFT) & self.looked_at;
        let left = turned.wrapping_sub(self.taken_away);
        (left < self.longest).then(|| left as u32 + 1)
    }
}

/// Checks the single comparison against individual checks of each flag and the length.
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
