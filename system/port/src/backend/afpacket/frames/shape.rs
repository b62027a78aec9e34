//! The length of a frame, which is fixed: room for the longest packet that can arrive.

use sys::ethtool::Ethtool;
use sys::link::Link;
use sys::packet::FrameRing;

use super::DATA_OFFSET_MAX;

/// Frames begin at a cache line.
const FRAME_ALIGN: u32 = 64;
/// Bounds of a frame's length. The kernel keeps one contiguous bitmap with a bit per frame.
const FRAME_LEN_MIN: u32 = 256;
const FRAME_LEN_MAX: u32 = 1 << 20;
/// Least and greatest block length; up to the common one, a block is easily found in one piece.
const BLOCK_LEN_MIN: u32 = 4096;
const BLOCK_LEN_COMMON: u32 = 256 << 10;
const BLOCK_LEN_MAX: u32 = 1 << 20;

/// `ARPHRD_ETHER`.
const HARDWARE_ETHERNET: u16 = 1;
/// Longest packet that is merged from several (GSO, GRO), unless the kernel reports a greater
/// length.
const MERGED_LEN: u32 = 64 << 10;
/// Room for the link header and tags.
const LINK_HEADER_LEN: u32 = 64;

/// Length of the longest packet that an interface receives or sends: its MTU if nothing merges
/// packets. Virtual interfaces also pass on packets that others have merged.
pub(in super::super) fn longest(link: &Link) -> u32 {
    let is_card = link.hardware == HARDWARE_ETHERNET && link.kind.is_empty();
    let merges = || Ethtool::open().and_then(|ethtool| ethtool.merges(&link.name));
    let is_merged = !is_card || !matches!(merges(), Ok(Some(false)));
    longest_of(link.mtu, is_merged.then_some(link.merged_max))
}

/// The same from the MTU, and from the length of merged packets that the kernel reports (0 for
/// none), if there are such packets.
pub(super) fn longest_of(mtu: u32, merged_max: Option<u32>) -> u32 {
    let payload_len = merged_max.map_or(mtu, |merged| mtu.max(merged).max(MERGED_LEN));
    payload_len.min(FRAME_LEN_MAX) + LINK_HEADER_LEN
}

/// Layout of a ring for packets of this length, in no more than the requested memory (at least 16
/// KiB). Frames are at most a quarter of it, and then shorter than the packets; there are at least
/// two.
pub(in super::super) fn ring_shape(ring_bytes: usize, packet_len: u32) -> FrameRing {
    let wanted = packet_len.saturating_add(DATA_OFFSET_MAX);
    let wanted = wanted.clamp(FRAME_LEN_MIN, FRAME_LEN_MAX);
    let fitting = (ring_bytes / 4) as u32 & !(FRAME_ALIGN - 1);
    let frame_len = wanted.next_multiple_of(FRAME_ALIGN).min(fitting);
    let mut best = FrameRing {
        frame_len,
        block_len: frame_len.next_power_of_two().max(BLOCK_LEN_MIN),
        block_count: 0,
    };
    let mut block_len = best.block_len;
    while block_len <= BLOCK_LEN_MAX && block_len as usize <= ring_bytes {
        let block_count = (ring_bytes / block_len as usize) as u32;
        let ring = FrameRing {
            block_len,
            block_count,
            ..best
        };
        let has_more = ring.frame_count() > best.frame_count();
        let has_as_many = ring.frame_count() == best.frame_count();
        if has_more || has_as_many && block_len <= BLOCK_LEN_COMMON {
            best = ring;
        }
        block_len *= 2;
    }
    best
}
