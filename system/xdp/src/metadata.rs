//! The metadata that the redirect program writes right before a packet: the contract between
//! [`crate::programs::redirect`] and the reader of the socket's memory.
//!
//! With AF_XDP the metadata end where the packet begins. A descriptor does not show whether they
//! are present, and a chunk keeps those of an earlier packet; but a program loaded with metadata
//! redirects no packet without them, so the reader may rely on them for every packet.
//! [`Metadata::parse`] checks the magic number all the same.
//!
//! ```text
//!  0               8        12        14          16       20       24
//!  | time_ns : u64 | hash   | vlan    | vlan      | flags  | magic  | packet
//!  |               | : u32  | tci:u16 | proto:u16 | : u32  | : u32  |
//! ```
//!
//! All fields are in this machine's byte order.

/// Length of the metadata in bytes.
pub const METADATA_LEN: usize = 24;

/// Value of the last four bytes.
pub const MAGIC: u32 = 0x4d57_4257;

/// Flag: `time_ns` is set.
pub const FLAG_TIME: u32 = 1 << 0;
/// Flag: the time is from the device's clock.
pub const FLAG_TIME_DEVICE: u32 = 1 << 1;
/// Flag: the time is `CLOCK_TAI`; with neither this nor the device's flag, `CLOCK_MONOTONIC`.
pub const FLAG_TIME_TAI: u32 = 1 << 2;
/// Flag: `hash` is set.
pub const FLAG_HASH: u32 = 1 << 3;
/// Flag: the VLAN fields are set.
pub const FLAG_VLAN: u32 = 1 << 4;
/// Position of the hash's type (`enum xdp_rss_hash_type`) in the flags: their upper half.
pub const FLAG_HASH_TYPE_SHIFT: u32 = 16;

/// The bytes before the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RawMetadata {
    /// Time of arrival in ns; the flags select the clock.
    pub time_ns: u64,
    /// The device's flow hash.
    pub hash: u32,
    /// VLAN tag: priority, drop eligibility, id.
    pub vlan_tci: u16,
    /// The tag's EtherType, 0x8100 or 0x88a8.
    pub vlan_proto: u16,
    /// `FLAG_` constants, and the hash's type in the upper half.
    pub flags: u32,
    /// [`MAGIC`].
    pub magic: u32,
}

const _: () = assert!(size_of::<RawMetadata>() == METADATA_LEN);

impl RawMetadata {
    /// The clock of `time_ns`; `None` without a time.
    #[inline]
    pub fn clock(&self) -> TimeClock {
        if self.flags & FLAG_TIME_DEVICE != 0 {
            TimeClock::Device
        } else if self.flags & FLAG_TIME_TAI != 0 {
            TimeClock::Tai
        } else {
            TimeClock::Monotonic
        }
    }
}

/// Clock of a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeClock {
    /// The device's own clock.
    Device,
    /// `CLOCK_TAI`.
    Tai,
    /// `CLOCK_MONOTONIC`.
    Monotonic,
}

/// Metadata of a packet. Absent fields are `None`, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Time of arrival in ns, and its clock.
    pub time_ns: Option<(u64, TimeClock)>,
    /// The device's flow hash and its type (`enum xdp_rss_hash_type`).
    pub hash: Option<(u32, u16)>,
    /// The VLAN tag that the device removed: EtherType and tag control information.
    pub vlan: Option<(u16, u16)>,
}

impl Metadata {
    /// Parses the bytes right before a packet; `None` without the magic number.
    #[inline]
    pub fn parse(bytes: &[u8; METADATA_LEN]) -> Option<Self> {
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        if word(20) != MAGIC {
            return None;
        }
        let flags = word(16);
        let clock = if flags & FLAG_TIME_DEVICE != 0 {
            TimeClock::Device
        } else if flags & FLAG_TIME_TAI != 0 {
            TimeClock::Tai
        } else {
            TimeClock::Monotonic
        };
        let time_ns = u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[i]));
        Some(Self {
            time_ns: (flags & FLAG_TIME != 0).then_some((time_ns, clock)),
            hash: (flags & FLAG_HASH != 0)
                .then_some((word(8), (flags >> FLAG_HASH_TYPE_SHIFT) as u16)),
            vlan: (flags & FLAG_VLAN != 0).then_some((half(14), half(12))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_without_a_flag_are_absent() {
        let mut bytes = [0xa5; METADATA_LEN];
        assert_eq!(Metadata::parse(&bytes), None);
        bytes[20..].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[16..20].copy_from_slice(&0u32.to_ne_bytes());
        assert_eq!(Metadata::parse(&bytes), Some(Metadata::default()));
        let flags = FLAG_TIME | FLAG_TIME_TAI | FLAG_HASH | FLAG_VLAN | 0x29 << 16;
        bytes[16..20].copy_from_slice(&flags.to_ne_bytes());
        let expected = Metadata {
            time_ns: Some((0xa5a5_a5a5_a5a5_a5a5, TimeClock::Tai)),
            hash: Some((0xa5a5_a5a5, 0x29)),
            vlan: Some((0xa5a5, 0xa5a5)),
        };
        assert_eq!(Metadata::parse(&bytes), Some(expected));
    }
}
