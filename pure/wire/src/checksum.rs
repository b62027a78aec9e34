//! The Internet checksum (RFC 1071): over several pieces, with pseudo headers, and incremental (RFC
//! 1624).
//!
//! Sums have 64 bits in little-endian order: one's complement addition does not depend on the byte
//! order as long as it is the same for all (RFC 1071 section 2B), so 8 bytes are added at a time,
//! and swapped once at the end.

use core::net::{Ipv4Addr, Ipv6Addr};

/// A partial checksum. Every piece but the last must have an even number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// An empty sum.
    #[inline]
    pub const fn new() -> Sum {
        Sum(0)
    }

    /// Adds the bytes of a piece; an odd one is padded with a zero byte.
    #[inline]
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Sum {
        Sum(add_carry(self.0, sum(bytes)))
    }

    /// Adds one 16-bit value.
    #[inline]
    #[must_use]
    pub fn add_u16(self, value: u16) -> Sum {
        Sum(add_carry(self.0, u64::from(value.swap_bytes())))
    }

    /// Adds one 32-bit value.
    #[inline]
    #[must_use]
    pub fn add_u32(self, value: u32) -> Sum {
        Sum(add_carry(self.0, u64::from(value.swap_bytes())))
    }

    /// Adds the pseudo header of IPv4 (RFC 9293 section 3.1).
    #[must_use]
    pub fn add_pseudo_ipv4(self, src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> Sum {
        self.add_bytes(&src.octets())
            .add_bytes(&dst.octets())
            .add_u16(u16::from(protocol))
            .add_u16(len)
    }

    /// Adds the pseudo header of IPv6 (RFC 8200 section 8.1).
    #[must_use]
    pub fn add_pseudo_ipv6(self, src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> Sum {
        self.add_bytes(&src.octets())
            .add_bytes(&dst.octets())
            .add_u32(len)
            .add_u32(u32::from(protocol))
    }

    /// The checksum for the header; 0 if a valid checksum was included in the sum.
    #[inline]
    pub const fn finish(self) -> u16 {
        !fold(self.0).swap_bytes()
    }
}

/// The checksum of one piece.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().add_bytes(bytes).finish()
}

/// The checksum after a change of one 16-bit field that it covers (RFC 1624 equation 3).
#[inline]
pub const fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = !checksum as u32 + !old as u32 + new as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// The checksum after a change of 32 aligned bits, such as an IPv4 address.
#[inline]
pub const fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let half = update_u16(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update_u16(half, old as u16, new as u16)
}

/// The checksum after a piece at an even offset was replaced by one of the same length, such as an
/// IPv6 address.
pub fn update(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let removed = !fold(sum(old));
    let sum = u64::from((!checksum).swap_bytes()) + u64::from(removed) + sum_folded(new);
    !fold(sum).swap_bytes()
}

/// Converts a checksum for UDP: 0 is sent as 0xffff, because 0 means no checksum (RFC 768).
#[inline]
pub const fn udp(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

#[inline]
fn sum_folded(bytes: &[u8]) -> u64 {
    u64::from(fold(sum(bytes)))
}

#[inline(always)]
const fn add_carry(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    // Cannot overflow again: after a carry the sum is at most 2^64 - 2.
    sum + carry as u64
}

#[inline]
const fn fold(sum: u64) -> u16 {
    let (half, carry) = (sum as u32).overflowing_add((sum >> 32) as u32);
    // Cannot overflow again, as in `add_carry`; neither can the next line.
    let half = half + carry as u32;
    let (quarter, carry) = (half as u16).overflowing_add((half >> 16) as u16);
    quarter + carry as u16
}

/// The one's complement sum in little-endian order, unfolded.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    // 128 bits hold the carries of 2^64 additions: adding 8 bytes takes two instructions.
    let mut total = 0u128;
    let (blocks, words) = bytes.as_chunks::<32>();
    for block in blocks {
        let ([a, b, c, d], _) = block.as_chunks::<8>() else {
            break;
        };
        total += u128::from(u64::from_le_bytes(*a));
        total += u128::from(u64::from_le_bytes(*b));
        total += u128::from(u64::from_le_bytes(*c));
        total += u128::from(u64::from_le_bytes(*d));
    }
    let (words, rest) = words.as_chunks::<8>();
    for word in words {
        total += u128::from(u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let last = match bytes.last_chunk::<8>() {
            // The last eight bytes, without those that were added already.
            Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
            None => rest
                .iter()
                .rev()
                .fold(0, |last, byte| last << 8 | u64::from(*byte)),
        };
        total += u128::from(last);
    }
    add_carry(total as u64, (total >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Reference implementation: RFC 1071 section 4.1, word by word.
    fn model(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed * 2 + 1;
        (0..len)
            .map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect()
    }

    #[test]
    fn agrees_with_the_model_at_every_length() {
        for len in (0..300).chain([1500, 9000, 65535]) {
            let bytes = noise(len, len as u64);
            assert_eq!(checksum(&bytes), model(&bytes), "{len} bytes");
            let ones = std::vec![0xff; len];
            assert_eq!(checksum(&ones), model(&ones), "{len} bytes of ones");
        }
    }

    #[test]
    fn a_sum_over_pieces_equals_the_whole() {
        let bytes = noise(997, 1);
        for cut in (0..997).step_by(2) {
            let sum = Sum::new().add_bytes(&bytes[..cut]).add_bytes(&bytes[cut..]);
            assert_eq!(sum.finish(), model(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn rfc_1624_example() {
        // Section 4: checksum 0xdd2f, field 0x5555 to 0x3285 gives 0x0000, not 0xffff.
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0);
    }

    #[test]
    fn incremental_equals_full() {
        for seed in 0..2000 {
            let mut bytes = noise(40, seed);
            let before = checksum(&bytes);
            let old: [u8; 4] = bytes[8..12].try_into().unwrap();
            let new: [u8; 4] = noise(4, seed + 7).try_into().unwrap();
            bytes[8..12].copy_from_slice(&new);
            let after = checksum(&bytes);
            let (o, n) = (u32::from_be_bytes(old), u32::from_be_bytes(new));
            assert_eq!(update_u32(before, o, n), after, "seed {seed}");
            assert_eq!(update(before, &old, &new), after, "seed {seed}");
        }
    }

    #[test]
    fn pseudo_headers() {
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let flat = [10, 0, 0, 1, 10, 0, 0, 2, 0, 17, 0, 9];
        assert_eq!(
            Sum::new().add_pseudo_ipv4(a, b, 17, 9).finish(),
            model(&flat)
        );
        let (a, b): (Ipv6Addr, Ipv6Addr) =
            ("2001:db8::1".parse().unwrap(), "ff02::1".parse().unwrap());
        let mut flat = Vec::from(a.octets());
        flat.extend(b.octets());
        flat.extend([0, 1, 0, 9, 0, 0, 0, 58]);
        assert_eq!(
            Sum::new().add_pseudo_ipv6(a, b, 58, 0x10009).finish(),
            model(&flat)
        );
    }
}
