//! The header of a pool for other processes: the last bytes of its memory file.
//!
//! ```text
//! | frame 0 | frame 1 | … | frame n-1 | (to the end of the page) | header |
//!   \______ frame_len bytes each ____/                            64 bytes
//! ```
//!
//! It is at the end because frames are page-aligned, and a header before them would take a page.
//! The numbers are in native byte order, since both processes run on the same machine.

use sys::{Error, ErrorKind, Result};

/// First bytes of a header.
const MAGIC: [u8; 8] = *b"bw-pool\n";

/// Changes with the layout of the memory file.
const VERSION: u32 = 1;

/// Maximum number of frames in a pool.
pub(super) const FRAME_COUNT_MAX: u32 = 1 << 24;

/// Maximum length of a frame in bytes.
pub(super) const FRAME_LEN_MAX: u32 = 4096;

/// Number and length of a pool's frames, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub frame_count: u32,
    pub frame_len_log2: u32,
}

impl Geometry {
    /// Checks the numbers.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(frame_count: u32, frame_len: u32) -> std::result::Result<Self, String> {
        if !frame_len.is_power_of_two() || !(2048..=FRAME_LEN_MAX).contains(&frame_len) {
            return Err(format!("frame length {frame_len} is neither 2048 nor 4096"));
        }
        if !(1..=FRAME_COUNT_MAX).contains(&frame_count) {
            return Err(format!("frame count {frame_count} is outside of 1 to 2^24"));
        }
        let frame_len_log2 = frame_len.trailing_zeros();
        Ok(Self {
            frame_count,
            frame_len_log2,
        })
    }

    /// Length of all frames in bytes.
    pub fn frames_len(self) -> usize {
        (self.frame_count as usize) << self.frame_len_log2
    }

    /// Minimum length of the memory file in bytes: it has whole pages.
    pub fn file_len(self) -> usize {
        self.frames_len() + HEADER_LEN
    }
}

/// Length of the header in bytes; unused bytes are 0.
pub(super) const HEADER_LEN: usize = 64;

/// Encodes the header of a pool.
pub(super) fn encode(geometry: Geometry) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    let numbers = [VERSION, geometry.frame_count, 1 << geometry.frame_len_log2];
    for (place, number) in bytes[8..].chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    bytes
}

/// Parses a header written by another process, of a file of `file_len` bytes in pages of
/// `page_len`.
///
/// # Errors
/// `InvalidInput` for a file that does not belong to a pool, or whose length does not match the
/// header; `Unsupported` for another version.
pub(super) fn decode(
    bytes: &[u8; HEADER_LEN],
    file_len: usize,
    page_len: usize,
) -> Result<Geometry> {
    let refuse = |kind, why: String| Error::new(kind, super::ATTACH, why);
    let damaged = |why| refuse(ErrorKind::InvalidInput, why);
    let (magic, rest) = bytes.split_at(8);
    if magic != MAGIC {
        return Err(damaged("the memory file is not a frame pool's".into()));
    }
    let mut numbers = rest
        .as_chunks::<4>()
        .0
        .iter()
        .map(|n| u32::from_ne_bytes(*n));
    let mut next = || numbers.next().unwrap_or_default();
    let version = next();
    if version != VERSION {
        let why = format!("its layout is version {version}, this program has {VERSION}");
        return Err(
            refuse(ErrorKind::Unsupported, why).with_hint("run the same release on both sides")
        );
    }
    let geometry = Geometry::new(next(), next()).map_err(damaged)?;
    if numbers.any(|number| number != 0) {
        return Err(damaged("the header's reserved bytes are not 0".into()));
    }
    // The limits of the geometry keep the sum from overflowing; a page length of 0 matches nothing.
    let expected = geometry.file_len().checked_next_multiple_of(page_len);
    if expected != Some(file_len) {
        let len = geometry.file_len();
        return Err(damaged(format!(
            "the frames need {len} bytes, the memory file has {file_len}"
        )));
    }
    Ok(geometry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(at: usize, number: u32) -> [u8; HEADER_LEN] {
        let mut bytes = encode(Geometry::new(3, 2048).unwrap());
        bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        bytes
    }

    #[test]
    fn headers_are_read_as_written() {
        for (count, len, file_len, page_len) in [
            (1, 2048, 4096, 4096),
            (2, 2048, 8192, 4096),
            (3, 2048, 8192, 4096),
            (512, 4096, 4 << 20, 2 << 20),
            (FRAME_COUNT_MAX, 4096, (64 << 30) + 4096, 4096),
        ] {
            let geometry = Geometry::new(count, len).unwrap();
            assert_eq!(
                decode(&encode(geometry), file_len, page_len).unwrap(),
                geometry
            );
            for wrong in [
                0,
                1,
                file_len - page_len,
                file_len - 1,
                file_len + page_len,
                usize::MAX,
            ] {
                assert!(
                    decode(&encode(geometry), wrong, page_len).is_err(),
                    "{wrong}"
                );
            }
            assert!(decode(&encode(geometry), file_len, 0).is_err());
        }
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let good = encode(Geometry::new(3, 2048).unwrap());
        for at in 0..HEADER_LEN {
            for bit in 0..8 {
                let mut bytes = good;
                bytes[at] ^= 1 << bit;
                // 2 frames of 2048 bytes are as long in whole pages as 3.
                let fits = decode(&bytes, 8192, 4096).is_ok();
                assert_eq!(fits, bytes == patched(12, 2), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn versions_and_numbers_are_checked() {
        let kind = |bytes: [u8; HEADER_LEN]| decode(&bytes, 8192, 4096).unwrap_err().kind();
        assert_eq!(kind(patched(8, VERSION + 1)), ErrorKind::Unsupported);
        for count in [0, FRAME_COUNT_MAX + 1, u32::MAX] {
            assert_eq!(kind(patched(12, count)), ErrorKind::InvalidInput);
        }
        for len in [0, 1024, 3000, 8192, u32::MAX] {
            assert_eq!(kind(patched(16, len)), ErrorKind::InvalidInput);
        }
    }
}
