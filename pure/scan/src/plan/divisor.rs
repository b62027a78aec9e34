//! Division by a number that is known at the start, by multiplication (Möller and Granlund,
//! Improved Division by Invariant Integers, IEEE Transactions on Computers 60(2), 2011).

/// A divisor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    /// The divisor, at least 1.
    divisor: u64,
    /// 2^64 / divisor, rounded down, at most 2^64 - 1.
    reciprocal: u64,
    /// Shift that moves the divisor's highest bit to the top.
    shift: u32,
    /// (2^128 - 1) / shifted divisor - 2^64, rounded down.
    reciprocal_shifted: u64,
}

impl Divisor {
    /// Prepares a division; 0 counts as 1.
    pub(super) fn new(divisor: u64) -> Self {
        let divisor = divisor.max(1);
        let shift = divisor.leading_zeros();
        let of_all = u128::MAX / u128::from(divisor << shift);
        let reciprocal = (1u128 << 64) / u128::from(divisor);
        Self {
            divisor,
            reciprocal: reciprocal.min(u64::MAX.into()) as u64,
            shift,
            // The quotient is from 2^64 to 2^65.
            reciprocal_shifted: (of_all - (1 << 64)) as u64,
        }
    }

    /// Quotient and remainder.
    #[inline(always)]
    pub(super) fn div_rem(self, number: u64) -> (u64, u64) {
        if self.divisor == 1 {
            return (number, 0);
        }
        // The estimate is right, or one too low.
        let estimate = ((u128::from(number) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = number - estimate * self.divisor;
        match rest >= self.divisor {
            true => (estimate + 1, rest - self.divisor),
            false => (estimate, rest),
        }
    }

    /// Quotient and remainder of a long number.
    #[inline]
    pub(super) fn div_rem_wide(self, number: u128) -> (u128, u64) {
        if self.divisor == 1 {
            return (number, 0);
        }
        let (low, high) = (number << self.shift, number.unbounded_shr(128 - self.shift));
        let (quotient_high, rest) = self.step(high as u64, (low >> 64) as u64);
        let (quotient_low, rest) = self.step(rest, low as u64);
        let quotient = u128::from(quotient_high) << 64 | u128::from(quotient_low);
        (quotient, rest >> self.shift)
    }

    /// Divides two words, of which the high one is below the shifted divisor, by it.
    #[inline]
    fn step(self, high: u64, low: u64) -> (u64, u64) {
        let divisor = self.divisor << self.shift;
        let estimate = u128::from(self.reciprocal_shifted) * u128::from(high);
        let estimate = estimate.wrapping_add(u128::from(high) << 64 | u128::from(low));
        let mut quotient = ((estimate >> 64) as u64).wrapping_add(1);
        let mut rest = low.wrapping_sub(quotient.wrapping_mul(divisor));
        if rest > estimate as u64 {
            quotient = quotient.wrapping_sub(1);
            rest = rest.wrapping_add(divisor);
        }
        if rest >= divisor {
            quotient += 1;
            rest -= divisor;
        }
        (quotient, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_those_of_the_division() {
        let mut state = 0x5eed_u128;
        let mut random = || {
            state = state
                .wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645)
                .wrapping_add(0x5851_f42d_4c95_7f2d_1405_7b7e_f767_814f);
            state ^ state >> 61
        };
        let few = [1, 2, 3, 5, 7, 641, 1 << 16, 65_537, u64::MAX / 2, u64::MAX];
        let some: Vec<u64> = (0..2_000).map(|n| random() as u64 >> (n % 64)).collect();
        for divisor in few.into_iter().chain(some).filter(|divisor| *divisor != 0) {
            let by = Divisor::new(divisor);
            let wide = u128::from(divisor);
            let ends = [0, 1, wide - 1, wide, wide + 1, wide * wide, wide * wide - 1];
            let more = [
                u64::MAX.into(),
                u128::MAX,
                random(),
                random() >> 40,
                random() >> 70,
            ];
            for number in ends.into_iter().chain(more) {
                let expected = (number / wide, (number % wide) as u64);
                assert_eq!(by.div_rem_wide(number), expected, "{number} / {divisor}");
                if let Ok(narrow) = u64::try_from(number) {
                    let expected = (narrow / divisor, narrow % divisor);
                    assert_eq!(by.div_rem(narrow), expected, "{narrow} / {divisor}");
                }
            }
        }
    }
}
