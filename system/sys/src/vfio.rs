//! VFIO: gives a process direct use of a PCI function (`Documentation/driver-api/vfio.rst` of the
//! kernel): its registers are mapped, its interrupts are eventfds, and its DMA goes through the
//! IOMMU.
//!
//! - [`Space`]: the device addresses (IOVA) that a function can access, and the memory behind them;
//! - [`Device`]: the function: BARs, configuration space, interrupts, reset.
//!
//! Two kernel interfaces provide the same: the container with its group (`/dev/vfio/vfio`,
//! `/dev/vfio/GROUP`, type 1), and iommufd with one device node per function (`/dev/iommu`,
//! `/dev/vfio/devices/vfioN`; `Documentation/userspace-api/iommufd.rst`). The newer one is used if
//! present.
//!
//! When the process ends, however it dies, the kernel closes the device: it turns bus mastering
//! off, resets the function and removes its mappings. No DMA continues after that.

mod abi;
mod device;
mod space;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use device::{Device, InterruptKind};
pub use space::Space;

use crate::pci::PciFunction;
use crate::{Error, ErrorKind, Result};

/// The kernel driver to which a function must be bound.
pub const DRIVER: &str = "vfio-pci";

/// Which of the kernel's interfaces a function is opened through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VfioInterface {
    /// iommufd if the kernel has it, else type 1.
    #[default]
    Auto,
    /// The container and the group.
    Type1,
    /// iommufd; fails without it (Since Linux 6.6).
    Iommufd,
}

/// Opens a function that is bound to vfio-pci.
///
/// # Errors
/// `Unsupported` without an IOMMU or without VFIO, `Busy` where another driver, another process or
/// another device of its group is in the way, `Permission`; each with what to do next.
pub fn open(function: &PciFunction, through: VfioInterface) -> Result<Device> {
    let address = function.address();
    let what = || format!("open PCI function {address} by VFIO");
    let Some(group) = function.iommu_group() else {
        return Err(no_iommu(what()));
    };
    let bind = format!("barewire nic bind vfio {address}");
    match function.driver() {
        Some(driver) if driver == DRIVER => {}
        Some(driver) => {
            let interfaces = function.interfaces();
            let why = match interfaces.first() {
                Some(name) => {
                    format!("it is bound to the kernel's driver {driver} as interface {name}")
                }
                None => format!("it is bound to the kernel's driver {driver}"),
            };
            return Err(Error::new(ErrorKind::Busy, what(), why).with_hint(bind));
        }
        None if !function.has_driver(DRIVER) => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                what(),
                "the vfio-pci driver is not loaded",
            )
            .with_hint(format!("modprobe vfio-pci, then: {bind}")));
        }
        None => {
            let why = format!("no driver is bound to it; VFIO needs {DRIVER}");
            return Err(Error::new(ErrorKind::Busy, what(), why).with_hint(bind));
        }
    }
    let by_iommufd = match through {
        VfioInterface::Type1 => return open_group(function, group),
        VfioInterface::Auto | VfioInterface::Iommufd => open_iommufd(function),
    };
    let found = by_iommufd.and_then(|device| {
        device.ok_or_else(|| {
            let why = "this kernel has no iommufd for VFIO devices";
            Error::new(ErrorKind::Unsupported, what(), why)
                .with_hint("modprobe iommufd; or omit iommu=")
        })
    });
    match found {
        Ok(device) => Ok(device),
        // If something is missing for iommufd (a device node, a privilege, a driver for this
        // IOMMU), type 1 may still work.
        Err(error) if through == VfioInterface::Auto => {
            open_group(function, group).map_err(|other| choose_error(error, other))
        }
        Err(error) => Err(error),
    }
}

/// Chooses the more informative error of the two interfaces: that of the one that exists.
fn choose_error(iommufd: Error, group: Error) -> Error {
    match group.kind() {
        ErrorKind::Unsupported if iommufd.kind() != ErrorKind::Unsupported => iommufd,
        _ => group,
    }
}

fn no_iommu(what: String) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        what,
        "it has no IOMMU group: there is no IOMMU, or it is disabled",
    )
    .with_hint(
        "enable it in the firmware (VT-d, AMD-Vi) and boot with intel_iommu=on or amd_iommu=on; a \
         virtual machine needs an emulated one",
    )
}

/// Opens a character device of VFIO.
fn open_node(path: &Path) -> io::Result<OwnedFd> {
    let file: File = OpenOptions::new().read(true).write(true).open(path)?;
    Ok(file.into())
}

/// The error for a device node that could not be opened.
fn node_error(function: &PciFunction, path: &Path, error: io::Error) -> Error {
    let shown = path.display();
    let what = format!("open {shown} for PCI function {}", function.address());
    let hint = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            format!("run as root, or give yourself the node: chown $USER {shown}")
        }
        Some(libc::EBUSY) => format!("another process has it open: fuser -v {shown}"),
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "modprobe vfio-pci; in a container the nodes below /dev/vfio must be passed in".into()
        }
        _ => "see the kernel log: dmesg | tail".into(),
    };
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let error = Error::from_io(what, error).with_hint(hint);
    match is_missing {
        true => error
            .with_kind(ErrorKind::Unsupported)
            .with_why("there is no such device node"),
        false => error,
    }
}

/// Opens it through iommufd; `None` if this kernel has no such device node for the function.
fn open_iommufd(function: &PciFunction) -> Result<Option<Device>> {
    let Some(name) = function.vfio_device() else {
        return Ok(None);
    };
    let node = PathBuf::from("/dev/vfio/devices").join(name);
    let iommu = Path::new("/dev/iommu");
    if !node.exists() || !iommu.exists() {
        return Ok(None);
    }
    let iommufd = open_node(iommu).map_err(|error| node_error(function, iommu, error))?;
    let fd = open_node(&node).map_err(|error| node_error(function, &node, error))?;
    let mut bind = abi::BindIommufd::sized();
    bind.iommufd = iommufd.as_raw_fd();
    if let Err(error) = call(&fd, abi::DEVICE_BIND_IOMMUFD, &mut bind) {
        return Err(not_bound(function, &node, error));
    }
    let space = Space::iommufd(iommufd)?;
    let mut attach = abi::AttachIommufd::sized();
    attach.page_table = space.ioas();
    call(&fd, abi::DEVICE_ATTACH_IOMMUFD, &mut attach).map_err(|error| {
        let what = format!(
            "attach PCI function {} to its address space",
            function.address()
        );
        let hint = match error.raw_os_error() {
            Some(libc::EPERM) => {
                "the machine has no interrupt remapping; if you trust the card: \
                 echo 1 >/sys/module/iommufd/parameters/allow_unsafe_interrupts"
            }
            _ => "iommu=type1 uses the older interface",
        };
        Error::from_io(what, error).with_hint(hint)
    })?;
    Device::new(function.address(), fd, Arc::new(space)).map(Some)
}

/// Opens it through container and group.
fn open_group(function: &PciFunction, group_number: u32) -> Result<Device> {
    let node = PathBuf::from(format!("/dev/vfio/{group_number}"));
    let container_node = Path::new("/dev/vfio/vfio");
    let container =
        open_node(container_node).map_err(|e| node_error(function, container_node, e))?;
    // SAFETY: an ioctl without argument on a descriptor that we own.
    let version = unsafe { libc::ioctl(container.as_raw_fd(), abi::GET_API_VERSION) };
    // SAFETY: the same, with a plain number.
    let type1 = unsafe {
        libc::ioctl(
            container.as_raw_fd(),
            abi::CHECK_EXTENSION,
            abi::TYPE1V2_IOMMU,
        )
    };
    if version != abi::API_VERSION || type1 != 1 {
        let what = format!("open PCI function {} by VFIO", function.address());
        let why = "VFIO's driver for this machine's IOMMU is not loaded";
        return Err(
            Error::new(ErrorKind::Unsupported, what, why).with_hint("modprobe vfio_iommu_type1")
        );
    }
    let group = open_node(&node).map_err(|error| node_error(function, &node, error))?;
    let mut status = abi::GroupStatus::sized();
    call(&group, abi::GROUP_GET_STATUS, &mut status).map_err(|error| {
        Error::from_io(format!("query group {group_number}"), error)
            .with_hint("see the kernel log: dmesg | tail")
    })?;
    if status.flags & abi::GROUP_VIABLE == 0 {
        return Err(shared(function));
    }
    let mut container_fd: RawFd = container.as_raw_fd();
    call(&group, abi::GROUP_SET_CONTAINER, &mut container_fd)
        .map_err(|error| not_bound(function, &node, error))?;
    // SAFETY: a plain number as argument.
    let set = unsafe { libc::ioctl(container.as_raw_fd(), abi::SET_IOMMU, abi::TYPE1V2_IOMMU) };
    if set < 0 {
        let error = io::Error::last_os_error();
        let is_right = error.raw_os_error() == Some(libc::EPERM);
        let error = Error::from_io("set up the IOMMU for VFIO", error);
        return Err(match is_right {
            // The kernel cannot isolate interrupts here.
            true => error.with_hint(
                "the machine has no interrupt remapping; if you trust the card: \
                 echo 1 >/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
            ),
            false => error.with_hint(
                "see the kernel log (dmesg | tail); iommu=iommufd uses the newer interface if the \
                 kernel has it",
            ),
        });
    }
    let name =
        std::ffi::CString::new(function.address().to_string()).expect("digits, colons and a dot");
    // SAFETY: a live C string; the kernel copies it.
    let raw = unsafe { libc::ioctl(group.as_raw_fd(), abi::GROUP_GET_DEVICE_FD, name.as_ptr()) };
    if raw < 0 {
        let error = io::Error::last_os_error();
        return Err(node_error(function, &node, error));
    }
    // SAFETY: the descriptor was just returned to us and nothing else owns it.
    let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(raw) };
    let space = Space::type1(container, group);
    Device::new(function.address(), fd, Arc::new(space))
}

/// The error for a function that is in use, with its user (`vfio_df_open`,
/// `vfio_device_block_group` and `iommu_device_claim_dma_owner` of the kernel).
fn not_bound(function: &PciFunction, node: &Path, error: io::Error) -> Error {
    match error.raw_os_error() {
        // Already open, through the other interface or this one.
        Some(libc::EBUSY | libc::EINVAL) => {
            let what = format!("open PCI function {} by VFIO", function.address());
            let group = function.iommu_group().unwrap_or_default();
            let nodes = match node.ends_with(group.to_string()) {
                true => node.display().to_string(),
                false => format!("/dev/vfio/{group} {}", node.display()),
            };
            Error::new(ErrorKind::Busy, what, "another process has it open")
                .with_hint(format!("to find it: fuser -v {nodes}"))
        }
        // Its group is in use.
        Some(libc::EPERM) => shared(function),
        _ => node_error(function, node, error),
    }
}

/// Whether a driver prevents the other functions of its group from being given to a process.
/// Drivers of bridges do not (`driver_managed_dma` of the kernel), and neither do drivers that do
/// nothing.
pub fn keeps_dma(driver: &str) -> bool {
    ![DRIVER, "pcieport", "pci-stub"].contains(&driver)
}

/// The error for a group that has other users, with their names.
fn shared(function: &PciFunction) -> Error {
    let others: Vec<String> = function
        .group_members()
        .iter()
        .filter(|member| member.address() != function.address())
        .filter_map(|member| {
            let driver = member.driver().filter(|driver| keeps_dma(driver))?;
            Some(format!("{} ({driver})", member.address()))
        })
        .collect();
    let what = format!("open PCI function {} by VFIO", function.address());
    if others.is_empty() {
        let group = function.iommu_group().unwrap_or_default();
        let why = format!("another process has a function of its IOMMU group {group}");
        // iommufd has the same error number for both cases.
        return Error::new(ErrorKind::Busy, what, why).with_hint(format!(
            "to find it: fuser -v /dev/vfio/{group} /dev/vfio/devices/*; if there is none, the \
             machine may lack interrupt remapping: iommu=type1 reports that"
        ));
    }
    let why = format!(
        "its IOMMU group is shared with {}: the IOMMU cannot distinguish them",
        others.join(", ")
    );
    Error::new(ErrorKind::Busy, what, why).with_hint(
        "bind these to vfio-pci too (barewire nic bind vfio ADDRESS), or put the card into \
         another slot",
    )
}

/// An ioctl that reads and fills a structure.
fn call<T: abi::Argument>(
    fd: &OwnedFd,
    request: libc::c_ulong,
    argument: &mut T,
) -> io::Result<()> {
    // SAFETY: `Argument` says that T is what the request takes by address, and it is alive for the
    // call; the kernel writes at most its size, which is in it.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_the_present_interface_is_reported() {
        let error = |kind| Error::new(kind, "open", "why");
        let chosen = |iommufd, group| choose_error(error(iommufd), error(group)).kind();
        let (missing, busy) = (ErrorKind::Unsupported, ErrorKind::Busy);
        assert_eq!(chosen(missing, busy), busy);
        assert_eq!(chosen(busy, missing), busy);
        assert_eq!(chosen(ErrorKind::Permission, busy), busy);
        assert_eq!(chosen(missing, missing), missing);
    }

    /// A function in group 7 with other functions, each with its driver.
    fn function(name: &str, others: &[&str]) -> (PathBuf, PciFunction) {
        let root =
            std::env::temp_dir().join(format!("barewire-vfio-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let bus = root.join("bus/pci");
        let group = root.join("kernel/iommu_groups/7");
        let all = [DRIVER].iter().chain(others).enumerate();
        for (number, driver) in all {
            let address = format!("0000:01:00.{number}");
            let device = root.join("devices").join(&address);
            let driver = bus.join("drivers").join(driver);
            for folder in [
                &device,
                &driver,
                &bus.join("devices"),
                &group.join("devices"),
            ] {
                std::fs::create_dir_all(folder).unwrap();
            }
            let link = |to: &Path, from: PathBuf| std::os::unix::fs::symlink(to, from).unwrap();
            link(&driver, device.join("driver"));
            link(&group, device.join("iommu_group"));
            link(&device, bus.join("devices").join(&address));
            link(&device, group.join("devices").join(&address));
        }
        let function = PciFunction::find_under(&bus, "0000:01:00.0".parse().unwrap()).unwrap();
        assert_eq!(function.iommu_group(), Some(7));
        assert_eq!(function.group_members().len(), others.len() + 1);
        (root, function)
    }

    #[test]
    fn conflicting_users_are_named() {
        let node = Path::new("/dev/vfio/devices/vfio0");
        let reported = |function: &PciFunction, raw| {
            let error = not_bound(function, node, io::Error::from_raw_os_error(raw));
            let hint = error.hint().expect("what to do").to_owned();
            (error.kind(), error.to_string(), hint)
        };
        let (root, shared) = function("shared", &["pcieport", "nvme", "pci-stub"]);
        // That the kernel's driver has another function of the group is not the reason for being
        // busy.
        for raw in [libc::EBUSY, libc::EINVAL] {
            let (kind, text, hint) = reported(&shared, raw);
            assert_eq!(kind, ErrorKind::Busy);
            assert!(text.contains("another process has it open"), "{text}");
            assert!(
                hint.contains("fuser -v /dev/vfio/7 /dev/vfio/devices/vfio0"),
                "{hint}"
            );
        }
        let (kind, text, _) = reported(&shared, libc::EPERM);
        assert_eq!(kind, ErrorKind::Busy);
        assert!(text.contains("shared with 0000:01:00.2 (nvme):"), "{text}");
        std::fs::remove_dir_all(root).unwrap();
        // A bridge is not a companion.
        let (root, alone) = function("alone", &["pcieport", DRIVER]);
        let (kind, text, hint) = reported(&alone, libc::EPERM);
        assert_eq!(kind, ErrorKind::Busy);
        assert!(text.contains("another process has a function"), "{text}");
        assert!(hint.contains("fuser -v /dev/vfio/7"), "{hint}");
        let (_, _, hint) = reported(&alone, libc::EIO);
        assert!(hint.contains("dmesg"), "{hint}");
        std::fs::remove_dir_all(root).unwrap();
    }
}
