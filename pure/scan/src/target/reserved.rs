//! Address blocks that are excluded from scans of the Internet.

use super::AddrRange;

const fn v4(a: u8, b: u8, c: u8, d: u8, len: u32) -> AddrRange {
    let first = u32::from_be_bytes([a, b, c, d]);
    AddrRange {
        is_ipv6: false,
        first: first as u128,
        last: (first | u32::MAX.unbounded_shr(len)) as u128,
    }
}

const fn v6(high: u16, next: u16, len: u32) -> AddrRange {
    let first = (high as u128) << 112 | (next as u128) << 96;
    AddrRange {
        is_ipv6: true,
        first,
        last: first | u128::MAX.unbounded_shr(len),
    }
}

/// Blocks that are not globally reachable, and multicast (IANA IPv4 and IPv6 Special-Purpose
/// Address Registries; RFC 5771; RFC 4291 section 2.7). They are excluded from larger ranges that
/// cover them; a range within one is scanned, because the user named it.
pub const RESERVED: &[AddrRange] = &[
    v4(0, 0, 0, 0, 8),
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10),
    v4(127, 0, 0, 0, 8),
    v4(169, 254, 0, 0, 16),
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24),
    v4(192, 0, 2, 0, 24),
    v4(192, 168, 0, 0, 16),
    v4(198, 18, 0, 0, 15),
    v4(198, 51, 100, 0, 24),
    v4(203, 0, 113, 0, 24),
    v4(224, 0, 0, 0, 4),
    v4(240, 0, 0, 0, 4),
    // Unspecified, loopback and IPv4-mapped addresses.
    v6(0, 0, 32),
    v6(0x100, 0, 64),
    v6(0x2001, 0xdb8, 32),
    v6(0xfc00, 0, 7),
    v6(0xfe80, 0, 10),
    v6(0xff00, 0, 8),
];
