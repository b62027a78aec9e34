//! The addresses that a device can access, and our memory behind them.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use super::abi::{self, IommuInfo};
use super::call;
use crate::{Error, Result};

/// Maximum number of address ranges considered.
const RANGES_MAX: usize = 64;

/// The address space of one function (IO page table): the function can access only what is mapped.
#[derive(Debug)]
pub struct Space(Kind);

#[derive(Debug)]
enum Kind {
    Type1 {
        container: OwnedFd,
        /// Kept open as long as a device of the group is.
        #[allow(dead_code, reason = "it works by being there")]
        group: OwnedFd,
    },
    Iommufd {
        fd: OwnedFd,
        ioas: u32,
    },
}

impl Space {
    pub(super) fn type1(container: OwnedFd, group: OwnedFd) -> Self {
        Self(Kind::Type1 { container, group })
    }

    pub(super) fn iommufd(fd: OwnedFd) -> Result<Self> {
        let mut alloc = abi::IoasAlloc::sized();
        call(&fd, abi::IOAS_ALLOC, &mut alloc).map_err(|error| {
            Error::from_io("create a device address space", error)
                .with_hint("iommu=type1 uses the older interface")
        })?;
        let ioas = alloc.ioas;
        Ok(Self(Kind::Iommufd { fd, ioas }))
    }

    /// The number of the space in its iommufd.
    pub(super) fn ioas(&self) -> u32 {
        match self.0 {
            Kind::Iommufd { ioas, .. } => ioas,
            Kind::Type1 { .. } => 0,
        }
    }

    /// The name of the kernel interface.
    pub fn kind(&self) -> &'static str {
        match self.0 {
            Kind::Type1 { .. } => "type1",
            Kind::Iommufd { .. } => "iommufd",
        }
    }

    /// Maps `len` bytes of our memory at `base` to the device address `iova`, for reading and
    /// writing. The memory is pinned. All three values are multiples of 4096.
    ///
    /// # Errors
    /// `NoSpace` above the limit of locked memory, `InvalidInput` for an unavailable address.
    ///
    /// # Safety
    /// From here until `unmap` the device may write the memory at any time: it must stay mapped,
    /// and nothing may rely on its being unchanged that does not know when the device writes.
    pub unsafe fn map(&self, base: NonNull<u8>, len: usize, iova: u64) -> Result<()> {
        let address = base.as_ptr() as u64;
        let result = match &self.0 {
            Kind::Type1 { container, .. } => {
                let mut map = abi::MapDma::sized();
                map.flags = abi::DMA_READ_WRITE;
                (map.address, map.iova, map.len) = (address, iova, len as u64);
                call(container, abi::IOMMU_MAP_DMA, &mut map)
            }
            Kind::Iommufd { fd, ioas } => {
                let mut map = abi::IoasMap::sized();
                map.flags = abi::IOAS_FIXED_READ_WRITE;
                map.ioas = *ioas;
                (map.address, map.iova, map.len) = (address, iova, len as u64);
                call(fd, abi::IOAS_MAP, &mut map)
            }
        };
        result.map_err(|error| map_error(len, error))
    }

    /// Unmaps a range: once this returns, the device can access none of it. Only whole ranges that
    /// were mapped.
    pub fn unmap(&self, iova: u64, len: usize) -> Result<()> {
        let result = match &self.0 {
            Kind::Type1 { container, .. } => {
                let mut unmap = abi::UnmapDma::sized();
                (unmap.iova, unmap.len) = (iova, len as u64);
                call(container, abi::IOMMU_UNMAP_DMA, &mut unmap)
            }
            Kind::Iommufd { fd, ioas } => {
                let mut unmap = abi::IoasUnmap::sized();
                unmap.ioas = *ioas;
                (unmap.iova, unmap.len) = (iova, len as u64);
                call(fd, abi::IOAS_UNMAP, &mut unmap)
            }
        };
        result.map_err(|error| {
            Error::from_io("unmap memory from a device", error)
                .with_hint("see the kernel log: dmesg | tail")
        })
    }

    /// The ranges of device addresses that can be mapped, as first and last address, in ascending
    /// order: without those reserved for interrupts and bridges.
    pub fn ranges(&self) -> Result<Vec<(u64, u64)>> {
        let unknown = |error| {
            Error::from_io("query the range of device addresses", error)
                .with_hint("see the kernel log: dmesg | tail")
        };
        match &self.0 {
            Kind::Type1 { container, .. } => {
                let mut info = IommuInfo {
                    size: size_of::<IommuInfo>() as u32,
                    flags: 0,
                    page_sizes: 0,
                    capabilities: 0,
                    pad: 0,
                    room: [0; 4096],
                };
                call(container, abi::IOMMU_GET_INFO, &mut info).map_err(unknown)?;
                Ok(type1_ranges(&info))
            }
            Kind::Iommufd { fd, ioas } => {
                let mut found = [[0u64; 2]; RANGES_MAX];
                let mut ask = abi::IoasRanges::sized();
                ask.ioas = *ioas;
                ask.count = RANGES_MAX as u32;
                ask.ranges = found.as_mut_ptr() as u64;
                // The array is alive during the call and has `count` entries.
                call(fd, abi::IOAS_IOVA_RANGES, &mut ask).map_err(unknown)?;
                let count = (ask.count as usize).min(RANGES_MAX);
                Ok(found[..count]
                    .iter()
                    .map(|&[first, last]| (first, last))
                    .collect())
            }
        }
    }
}

/// The ranges among the capabilities of a type 1 IOMMU; all addresses if an old kernel reports
/// none.
fn type1_ranges(info: &IommuInfo) -> Vec<(u64, u64)> {
    const HEAD: usize = std::mem::offset_of!(IommuInfo, room);
    let everything = vec![(0, u64::MAX)];
    if info.flags & abi::IOMMU_HAS_CAPABILITIES == 0 {
        return everything;
    }
    let word = |at: usize, len: usize| {
        let at = at.checked_sub(HEAD)?;
        let bytes = info.room.get(at..at.checked_add(len)?)?;
        let mut value = [0; 8];
        value[..len].copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    };
    let mut at = info.capabilities as usize;
    // Each header: id, version, offset of the next.
    for _ in 0..RANGES_MAX {
        let (Some(id), Some(next)) = (word(at, 2), word(at + 4, 4)) else {
            break;
        };
        if id == u64::from(abi::IOMMU_CAPABILITY_IOVA_RANGES) {
            let count = word(at + 8, 4).unwrap_or(0).min(RANGES_MAX as u64) as usize;
            let range = |n: usize| Some((word(at + 16 + n * 16, 8)?, word(at + 24 + n * 16, 8)?));
            return (0..count).map_while(range).collect();
        }
        if next == 0 {
            break;
        }
        at = next as usize;
    }
    everything
}

fn map_error(len: usize, error: io::Error) -> Error {
    let mib = len.div_ceil(1 << 20);
    let hint = match error.raw_os_error() {
        // Type 1 returns it both for the limit and for a machine without free memory.
        Some(libc::ENOMEM | libc::EPERM) => format!(
            "the limit for locked memory is below {mib} MiB: ulimit -l unlimited, or CAP_IPC_LOCK"
        ),
        Some(libc::ENOSPC) => {
            "the kernel's limit of mappings is reached: a pool on huge pages needs few (sysctl \
             vm.nr_hugepages), or raise /sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
                .into()
        }
        Some(libc::EINVAL | libc::EEXIST) => "the IOMMU does not support these addresses: use a \
            smaller pool, fewer queues= or a shorter ring="
            .into(),
        _ => "see the kernel log: dmesg | tail".into(),
    };
    Error::from_io(format!("map {len} bytes for the card"), error).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_mapping_memory_have_hints() {
        let hint = |raw| {
            let error = map_error(8 << 20, io::Error::from_raw_os_error(raw));
            error.hint().expect("a hint").to_owned()
        };
        assert!(hint(libc::ENOMEM).contains("below 8 MiB"));
        assert!(hint(libc::ENOSPC).contains("dma_entry_limit"));
        assert!(hint(libc::EINVAL).contains("smaller pool"));
        assert!(hint(libc::EFAULT).contains("dmesg"));
    }

    #[test]
    fn capabilities_are_walked_with_care() {
        let mut info = IommuInfo {
            size: 0,
            flags: abi::IOMMU_HAS_CAPABILITIES,
            page_sizes: 0,
            capabilities: 24,
            pad: 0,
            room: [0; 4096],
        };
        let put = |info: &mut IommuInfo, at: usize, bytes: &[u8]| {
            info.room[at..at + bytes.len()].copy_from_slice(bytes);
        };
        // A capability of another kind, then the ranges at 24 + 32.
        put(&mut info, 0, &[9, 0, 1, 0, 56, 0, 0, 0]);
        put(&mut info, 32, &[1, 0, 1, 0, 0, 0, 0, 0, 2]);
        put(&mut info, 48, &0u64.to_le_bytes());
        put(&mut info, 56, &0xfedf_ffffu64.to_le_bytes());
        put(&mut info, 64, &0xfef0_0000u64.to_le_bytes());
        put(&mut info, 72, &0x7f_ffff_ffffu64.to_le_bytes());
        assert_eq!(
            type1_ranges(&info),
            [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)]
        );
        // Offsets out of range, and a cycle.
        put(&mut info, 0, &[9, 0, 1, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(type1_ranges(&info), [(0, u64::MAX)]);
        put(&mut info, 0, &[9, 0, 1, 0, 24, 0, 0, 0]);
        assert_eq!(type1_ranges(&info), [(0, u64::MAX)]);
        info.capabilities = 3;
        assert_eq!(type1_ranges(&info), [(0, u64::MAX)]);
    }
}
