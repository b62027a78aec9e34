//! Numbers and structures of the kernel's `include/uapi/linux/vfio.h` and `iommufd.h`.

use std::os::fd::RawFd;

use libc::c_ulong;

/// `_IO(';', number)`: the type of both interfaces.
const fn io(number: c_ulong) -> c_ulong {
    0x3b << 8 | number
}

pub(super) const GET_API_VERSION: c_ulong = io(100);
pub(super) const CHECK_EXTENSION: c_ulong = io(101);
pub(super) const SET_IOMMU: c_ulong = io(102);
pub(super) const GROUP_GET_STATUS: c_ulong = io(103);
pub(super) const GROUP_SET_CONTAINER: c_ulong = io(104);
pub(super) const GROUP_GET_DEVICE_FD: c_ulong = io(106);
pub(super) const DEVICE_GET_INFO: c_ulong = io(107);
pub(super) const DEVICE_GET_REGION_INFO: c_ulong = io(108);
pub(super) const DEVICE_GET_IRQ_INFO: c_ulong = io(109);
pub(super) const DEVICE_SET_IRQS: c_ulong = io(110);
pub(super) const DEVICE_RESET: c_ulong = io(111);
pub(super) const IOMMU_GET_INFO: c_ulong = io(112);
pub(super) const IOMMU_MAP_DMA: c_ulong = io(113);
pub(super) const IOMMU_UNMAP_DMA: c_ulong = io(114);
pub(super) const DEVICE_BIND_IOMMUFD: c_ulong = io(118);
pub(super) const DEVICE_ATTACH_IOMMUFD: c_ulong = io(119);
pub(super) const IOAS_ALLOC: c_ulong = io(0x81);
pub(super) const IOAS_IOVA_RANGES: c_ulong = io(0x84);
pub(super) const IOAS_MAP: c_ulong = io(0x85);
pub(super) const IOAS_UNMAP: c_ulong = io(0x86);

pub(super) const API_VERSION: i32 = 0;
pub(super) const TYPE1V2_IOMMU: c_ulong = 3;
pub(super) const GROUP_VIABLE: u32 = 1;
pub(super) const DEVICE_CAN_RESET: u32 = 1;
pub(super) const DEVICE_IS_PCI: u32 = 2;
/// Flag of a region: it can be mapped with `mmap`.
pub(super) const REGION_CAN_MAP: u32 = 4;
pub(super) const DMA_READ_WRITE: u32 = 1 | 2;
pub(super) const IOAS_FIXED_READ_WRITE: u32 = 1 | 2 | 4;
/// `VFIO_IOMMU_INFO_CAPS`: capabilities follow.
pub(super) const IOMMU_HAS_CAPABILITIES: u32 = 2;
pub(super) const IOMMU_CAPABILITY_IOVA_RANGES: u16 = 1;

pub(super) const CONFIG_REGION: u32 = 7;

pub(super) const IRQ_INTX: u32 = 0;
pub(super) const IRQ_MSI: u32 = 1;
pub(super) const IRQ_MSIX: u32 = 2;
pub(super) const IRQ_REQUEST: u32 = 4;
pub(super) const IRQ_DATA_NONE: u32 = 1;
pub(super) const IRQ_DATA_EVENTFD: u32 = 4;
pub(super) const IRQ_UNMASK: u32 = 16;
pub(super) const IRQ_TRIGGER: u32 = 32;

/// A structure that one of these ioctls takes by address.
///
/// # Safety
/// The type has the kernel's layout for the requests it is used with, any bytes are a value, and
/// its size is in it where the kernel reads one.
pub(super) unsafe trait Argument {}

// SAFETY: `VFIO_GROUP_SET_CONTAINER` takes the address of a descriptor.
unsafe impl Argument for RawFd {}

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $size:ident, $($field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Default)]
        #[repr(C)]
        pub(super) struct $name { $size: u32, $(pub $field: $type,)* }

        impl $name {
            /// All zeroes, except for its size.
            pub(super) fn sized() -> Self {
                Self { $size: size_of::<Self>() as u32, ..Self::default() }
            }
        }

        // SAFETY: plain integers as in the header, the size first.
        unsafe impl Argument for $name {}
    )* };
}

arguments! {
    /// `struct vfio_group_status`
    GroupStatus { argsz, flags: u32, }
    /// `struct vfio_device_info`
    DeviceInfo {
        argsz, flags: u32, region_count: u32, irq_count: u32, capabilities: u32, pad: u32,
    }
    /// `struct vfio_region_info`
    RegionInfo { argsz, flags: u32, index: u32, capabilities: u32, len: u64, offset: u64, }
    /// `struct vfio_irq_info`
    IrqInfo { argsz, flags: u32, index: u32, count: u32, }
    /// `struct vfio_iommu_type1_dma_map`
    MapDma { argsz, flags: u32, address: u64, iova: u64, len: u64, }
    /// `struct vfio_iommu_type1_dma_unmap`
    UnmapDma { argsz, flags: u32, iova: u64, len: u64, }
    /// `struct vfio_device_bind_iommufd`
    BindIommufd { argsz, flags: u32, iommufd: RawFd, device: u32, }
    /// `struct vfio_device_attach_iommufd_pt`
    AttachIommufd { argsz, flags: u32, page_table: u32, }
    /// `struct iommu_ioas_alloc`
    IoasAlloc { size, flags: u32, ioas: u32, }
    /// `struct iommu_ioas_iova_ranges`
    IoasRanges { size, ioas: u32, count: u32, reserved: u32, ranges: u64, alignment: u64, }
    /// `struct iommu_ioas_map`
    IoasMap { size, flags: u32, ioas: u32, reserved: u32, address: u64, len: u64, iova: u64, }
    /// `struct iommu_ioas_unmap`
    IoasUnmap { size, ioas: u32, iova: u64, len: u64, }
}

/// Interrupts whose eventfds are set in one call.
pub(super) const IRQ_SET_MAX: usize = 32;

/// `struct vfio_irq_set` with room for descriptors after it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct IrqSet {
    pub size: u32,
    pub flags: u32,
    pub index: u32,
    pub start: u32,
    pub count: u32,
    pub events: [RawFd; IRQ_SET_MAX],
}

// SAFETY: plain integers as in the header, the size first; it counts the used part of `events`.
unsafe impl Argument for IrqSet {}

/// `struct vfio_iommu_type1_info` with room for its capabilities.
#[derive(Debug)]
#[repr(C)]
pub(super) struct IommuInfo {
    pub size: u32,
    pub flags: u32,
    pub page_sizes: u64,
    pub capabilities: u32,
    pub pad: u32,
    pub room: [u8; 4096],
}

// SAFETY: plain integers as in the header, the size first.
unsafe impl Argument for IommuInfo {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_size() {
        // Sizes as `sizeof` gives them for the kernel's headers.
        assert_eq!(size_of::<RegionInfo>(), 32);
        assert_eq!(size_of::<IrqInfo>(), 16);
        assert_eq!(size_of::<MapDma>(), 32);
        assert_eq!(size_of::<UnmapDma>(), 24);
        assert_eq!(size_of::<BindIommufd>(), 16);
        assert_eq!(size_of::<AttachIommufd>(), 12);
        assert_eq!(size_of::<IoasAlloc>(), 12);
        assert_eq!(size_of::<IoasRanges>(), 32);
        assert_eq!(size_of::<IoasMap>(), 40);
        assert_eq!(size_of::<IoasUnmap>(), 24);
        assert_eq!(std::mem::offset_of!(IrqSet, events), 20);
        assert_eq!(std::mem::offset_of!(IommuInfo, room), 24);
        assert_eq!(MapDma::sized().argsz, 32);
    }
}
