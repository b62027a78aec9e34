//! A card's registers: the only access of a driver to its card besides the descriptors.
//!
//! A driver is generic over [`Registers`], so that the same code runs on a mapped BAR and on a
//! device model. Registers are for batch boundaries and for the control side: a read over PCI
//! Express costs as much as a hundred packets, a write (posted) as a few. No method is called per
//! packet.

use std::ptr::NonNull;
use std::sync::Arc;

use sys::mmap::Mapping;

/// The registers of one BAR. Clones access the same registers; each thread may use its own.
///
/// Offsets are in bytes. An access outside the BAR or not aligned to its width has no effect and
/// reads as all ones, as does a removed card (PCI Express Base Specification 4.0, §2.3.2: a failed
/// completion).
///
/// Values are those of the card; the bus is little-endian, and implementations swap if the
/// processor is not.
#[allow(clippy::len_without_is_empty, reason = "no BAR is empty")]
pub trait Registers: Clone + Send + Sync + 'static {
    /// Accessible length of the BAR.
    fn len(&self) -> u32;

    /// Reads one byte.
    #[allow(dead_code, reason = "a driver may want it")]
    fn read8(&self, offset: u32) -> u8;
    /// Reads two bytes.
    #[allow(dead_code, reason = "a driver may want it")]
    fn read16(&self, offset: u32) -> u16;
    /// Reads four bytes.
    fn read32(&self, offset: u32) -> u32;
    /// Writes one byte.
    #[allow(dead_code, reason = "a driver may want it")]
    fn write8(&self, offset: u32, value: u8);
    /// Writes two bytes.
    #[allow(dead_code, reason = "a driver may want it")]
    fn write16(&self, offset: u32, value: u16);
    /// Writes four bytes.
    fn write32(&self, offset: u32, value: u32);

    /// Reads eight bytes as two of four, low half first (virtio 1.2, §4.1.3.1: the driver may).
    #[allow(dead_code, reason = "a driver may want it")]
    fn read64(&self, offset: u32) -> u64 {
        let low = self.read32(offset);
        let high = self.read32(offset.wrapping_add(4));
        u64::from(high) << 32 | u64::from(low)
    }

    /// Writes eight bytes as two of four, low half first.
    #[allow(dead_code, reason = "a driver may want it")]
    fn write64(&self, offset: u32, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset.wrapping_add(4), (value >> 32) as u32);
    }

    /// Clears the bits of `clear` and sets those of `set`.
    fn change32(&self, offset: u32, clear: u32, set: u32) {
        self.write32(offset, self.read32(offset) & !clear | set);
    }

    /// Polls until `done` returns true for the value, at most `looks` times and 10 µs apart: waits
    /// for a card to finish a reset or to enable a queue. Returns false if it never did, also if
    /// the card is gone (all ones).
    fn wait32(&self, offset: u32, looks: u32, done: impl Fn(u32) -> bool) -> bool {
        for _ in 0..looks {
            let value = self.read32(offset);
            if value != u32::MAX && done(value) {
                return true;
            }
            std::thread::sleep(std::time::Duration::from_micros(10));
        }
        false
    }
}

/// The registers of a mapped BAR.
#[derive(Clone, Debug)]
pub struct Bar {
    base: NonNull<u8>,
    len: u32,
    /// Keeps the mapping alive.
    #[allow(dead_code, reason = "it works by being there")]
    mapping: Arc<Mapping>,
}

// SAFETY: the mapping has no thread affinity, and registers are only accessed by single volatile
// reads and writes, which is what a bus does with concurrent ones anyway.
unsafe impl Send for Bar {}
// SAFETY: as above.
unsafe impl Sync for Bar {}

impl Bar {
    /// The registers in `mapping`, which must be that of a device's region. Offsets above 4 GiB are
    /// inaccessible.
    pub fn new(mapping: Arc<Mapping>) -> Self {
        Self {
            base: mapping.base(),
            len: u32::try_from(mapping.len()).unwrap_or(u32::MAX),
            mapping,
        }
    }

    /// The address of a register of `width` bytes, if it is in the BAR and aligned.
    #[inline(always)]
    fn at(&self, offset: u32, width: u32) -> Option<*mut u8> {
        let inside = self.len >= width && offset <= self.len - width;
        (inside && offset.is_multiple_of(width)).then(|| {
            // SAFETY: the whole register lies within the mapping.
            unsafe { self.base.as_ptr().add(offset as usize) }
        })
    }
}

macro_rules! accessors {
    ($read:ident $write:ident $type:ty) => {
        #[inline]
        fn $read(&self, offset: u32) -> $type {
            match self.at(offset, size_of::<$type>() as u32) {
                // SAFETY: inside the mapping and aligned (see `at`), and the mapping lives as long
                // as `self`. Volatile: a read has effects on the card and is done exactly once.
                Some(at) => <$type>::from_le(unsafe { at.cast::<$type>().read_volatile() }),
                None => <$type>::MAX,
            }
        }

        #[inline]
        fn $write(&self, offset: u32, value: $type) {
            if let Some(at) = self.at(offset, size_of::<$type>() as u32) {
                // SAFETY: as for the read.
                unsafe { at.cast::<$type>().write_volatile(value.to_le()) };
            }
        }
    };
}

impl Registers for Bar {
    fn len(&self) -> u32 {
        self.len
    }

    accessors!(read8 write8 u8);
    accessors!(read16 write16 u16);
    accessors!(read32 write32 u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_outside_has_no_effect() {
        let bar = Bar::new(Arc::new(Mapping::anonymous(4096).unwrap()));
        assert_eq!(bar.len(), 4096);
        bar.write32(4092, 0x0102_0304);
        assert_eq!(bar.read32(4092), 0x0102_0304);
        assert_eq!((bar.read8(4092), bar.read16(4094)), (4, 0x0102));
        for offset in [4093, 4094, 4096, u32::MAX - 3, u32::MAX, 2] {
            bar.write32(offset, 7);
            assert_eq!(bar.read32(offset), u32::MAX, "{offset}");
        }
        assert_eq!((bar.read8(4096), bar.read16(4095)), (u8::MAX, u16::MAX));
        bar.write64(8, 0x1122_3344_5566_7788);
        assert_eq!(bar.read64(8), 0x1122_3344_5566_7788);
        bar.change32(8, 0xff, 0x11);
        assert_eq!(bar.read32(8), 0x5566_7711);
    }
}
