//! The header before every packet (VIRTIO 1.2 §5.1.6, `struct virtio_net_hdr`).
//!
//! ```text
//!  0      1         2         4          6           8            10
//!  | flags | gso_type | hdr_len | gso_size | csum_start | csum_offset | num_buffers |
//! ```

/// Length of the header: with VERSION_1 `num_buffers` is always present, and without HASH_REPORT
/// nothing more.
pub(super) const HEADER_LEN: u32 = 12;

/// The checksum must be completed from `csum_start` on (§5.1.6.4).
pub(super) const NEEDS_CSUM: u8 = 1;
/// The device has checked the checksum.
pub(super) const DATA_VALID: u8 = 2;

/// Start and offset of a checksum, as reported by the device (§5.1.6.4).
///
/// # Safety
/// As for [`read`].
pub(super) unsafe fn read_checksum(at: *const u8) -> (usize, usize) {
    // SAFETY: the caller's word; any bytes are a value.
    let field = |offset| unsafe { at.add(offset).cast::<[u8; 2]>().read() };
    let (start, offset) = (field(6), field(8));
    (
        u16::from_le_bytes(start).into(),
        u16::from_le_bytes(offset).into(),
    )
}

/// A received packet's header, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub flags: u8,
    pub num_buffers: u16,
}

/// Reads a received packet's header.
///
/// # Safety
/// `HEADER_LEN` bytes at `at` are valid and owned by this process.
#[inline(always)]
pub(super) unsafe fn read(at: *const u8) -> Header {
    // SAFETY: the caller's word; any bytes are a value. Alignment is not assumed.
    let (flags, count) = unsafe { (at.read_volatile(), at.add(10).cast::<[u8; 2]>().read()) };
    Header {
        flags,
        num_buffers: u16::from_le_bytes(count),
    }
}

/// Writes the header of a packet to send: no offloads (§5.1.6.2).
///
/// # Safety
/// `HEADER_LEN` bytes at `at` are valid and owned by this process.
#[inline(always)]
pub(super) unsafe fn write(at: *mut u8) {
    // SAFETY: the caller's word.
    unsafe {
        at.cast::<[u8; HEADER_LEN as usize]>()
            .write([0; HEADER_LEN as usize])
    };
}
