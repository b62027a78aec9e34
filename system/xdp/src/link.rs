//! Attachment of a program to a device, for the lifetime of this process.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use sys::bpf::{Link, ObjectKind, Program, object_ids, open_by_id};
use sys::{Error, ErrorKind, KernelVersion, Result, Unsupported};

use crate::feature::{self, Presence};
use crate::{AttachMode, XdpProgram};

/// `XDP_FLAGS_SKB_MODE` of `if_link.h`.
const FLAG_GENERIC: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE`.
const FLAG_NATIVE: u32 = 1 << 2;

/// An attachment through a bpf_link: the kernel detaches it on drop, or when the process dies.
///
/// # Since Linux
/// 5.9
#[derive(Debug)]
pub struct XdpLink {
    link: Link,
    ifindex: u32,
    mode: AttachMode,
}

impl XdpLink {
    /// Attaches a program to a device in this network namespace.
    ///
    /// # Errors
    /// `Busy` if another program is attached to the device (the error names it); `InvalidInput` if
    /// packets of this MTU need a program with multi-buffer support; `Unsupported` if the driver
    /// has no native mode; `Permission`; `NotFound`.
    pub fn attach(program: &XdpProgram, ifindex: u32, mode: AttachMode) -> Result<Self> {
        let flags = match mode {
            AttachMode::Native => FLAG_NATIVE,
            AttachMode::Generic => FLAG_GENERIC,
        };
        let link = Link::create_xdp(program.raw(), ifindex, flags)
            .map_err(|e| explain(e, ifindex, mode))?;
        Ok(Self {
            link,
            ifindex,
            mode,
        })
    }

    /// Replaces the attached program atomically: every packet is seen by one of the two.
    pub fn update(&self, program: &XdpProgram) -> Result<()> {
        self.link.update(program.raw())
    }

    /// Detaches now, even if other processes hold the link.
    pub fn detach(&self) -> Result<()> {
        self.link.detach()
    }

    /// Gives it a name in a mounted BPF file system: it stays attached until the file is removed,
    /// even if the process dies.
    ///
    /// # Errors
    /// If the name exists, or the path is in another file system.
    pub fn pin(&self, path: &str) -> Result<()> {
        pin(self.link.as_fd(), path)
    }

    /// Interface index of the device.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The attach mode.
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Whether the program is still attached; false once the device is gone.
    pub fn is_attached(&self) -> Result<bool> {
        Ok(self
            .link
            .info()?
            .xdp_ifindex
            .is_some_and(|index| index != 0))
    }

    /// Whether the link is still attached and `program` is the attached program: other processes
    /// may detach a link (`BPF_LINK_DETACH`) or replace its program (`BPF_LINK_UPDATE`).
    pub fn calls(&self, program: &XdpProgram) -> Result<bool> {
        let info = self.link.info()?;
        let is_attached = info.xdp_ifindex.is_some_and(|index| index != 0);
        Ok(is_attached && info.program_id == program.info().id)
    }
}

/// Gives a link a name.
pub(crate) fn pin(link: BorrowedFd<'_>, path: &str) -> Result<()> {
    sys::bpf::pin(link, path).map_err(|error| Error::from_io(format!("pin {path}"), error))
}

/// A link with a name in a BPF file system, which any user may be able to write to.
#[derive(Debug)]
pub struct PinnedLink {
    link: Link,
    path: String,
}

impl PinnedLink {
    /// Opens the link that `path` names, if it attaches a program of this name to this device, or
    /// if the device is gone. `None` if there is no such path; `Some(Err)` says what it is instead,
    /// and it is left alone.
    pub fn open(path: &str, ifindex: u32, program_name: &str) -> Option<Result<Self>> {
        let what = || format!("use {path}");
        let foreign = |why: &str| Some(Err(Error::new(ErrorKind::InvalidInput, what(), why)));
        let found = match std::fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => return Some(Err(Error::from_io(what(), error))),
        };
        // The kernel follows symbolic links; nobody else can replace a file of root's.
        if !found.is_file() || found.uid() != 0 {
            return foreign("it is not a file that root has created");
        }
        let link = match sys::bpf::open_pinned(path) {
            Ok(fd) => Link::from_fd(fd),
            Err(error) => return Some(Err(Error::from_io(what(), error))),
        };
        let info = match link.info() {
            Ok(info) => info,
            Err(error) => return Some(Err(error)),
        };
        match info.xdp_ifindex.or(info.tc_ifindex) {
            Some(0) => {}
            Some(index) if index == ifindex => {
                let program = open_by_id(ObjectKind::Program, info.program_id);
                let program = program.and_then(|fd| Program::from_fd(fd).info());
                if !program.is_ok_and(|program| program.name == program_name) {
                    return foreign("it attaches another program");
                }
            }
            _ => return foreign("it attaches nothing to this interface"),
        }
        Some(Ok(Self {
            link,
            path: path.to_owned(),
        }))
    }

    /// Detaches the program, and removes the name.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(self) -> Result<()> {
        // Its interface may be gone.
        let _ = self.link.detach();
        std::fs::remove_file(&self.path)
            .map_err(|error| Error::from_io(format!("remove {}", self.path), error))
    }
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// Explains the kernel's errno for an attachment.
fn explain(error: Error, ifindex: u32, mode: AttachMode) -> Error {
    let device = sys::link::Link::by_index(ifindex).ok();
    let name = device
        .as_ref()
        .map_or_else(|| format!("interface {ifindex}"), |d| d.name.clone());
    let what = format!("attach an XDP program to {name} in {mode} mode");
    match error.os_code() {
        // EBUSY: attached by a link; EEXIST: in the other mode, or attached by netlink.
        Some(16 | 17) => held(what, &name, device.as_ref()),
        // ERANGE
        Some(34) => {
            let mtu = device.map_or(String::new(), |d| format!("MTU {} ", d.mtu));
            let why = format!(
                "a packet of {mtu}does not fit into one buffer, and the program supports \
                    only one"
            );
            Error::new(ErrorKind::InvalidInput, what, why)
                .with_hint("enable multi-buffer packets, or lower the MTU")
        }
        // EOPNOTSUPP
        Some(95) => {
            let feature = "native XDP of this interface's driver";
            Error::unsupported(
                what,
                Unsupported {
                    feature,
                    since: None,
                },
            )
            .with_hint("generic mode works with every driver")
        }
        // EPERM
        Some(1) => Error::new(
            ErrorKind::Permission,
            what,
            "the process lacks the permission to attach programs",
        )
        .with_hint("run as root, or with CAP_NET_ADMIN and CAP_BPF"),
        // ENODEV; EINVAL if the link cannot be created.
        Some(19 | 22) if device.is_none() => {
            Error::new(ErrorKind::NotFound, what, "there is no such interface")
                .with_hint("`barewire devices` lists them")
        }
        // A kernel without the system call returns EINVAL, too.
        Some(22) if matches!(feature::xdp_link(), Presence::No(_)) => {
            let since = Some(KernelVersion::new(5, 9));
            Error::unsupported(
                what,
                Unsupported {
                    feature: "attaching XDP by bpf_link",
                    since,
                },
            )
            .with_hint("afpacket: works with every kernel")
        }
        Some(22) => error
            .with_why(
                "the driver refuses: the program is bound to another device, the driver does not \
                 support the mode, or too few queues are free",
            )
            .with_hint("try the other mode"),
        _ => error,
    }
}

/// The error when another program is attached already.
fn held(what: String, name: &str, device: Option<&sys::link::Link>) -> Error {
    let others = device.map(others).unwrap_or_default();
    let why = if others.is_empty() {
        "another XDP program is attached".to_owned()
    } else {
        format!("{} is attached", others.join(" and "))
    };
    let end = match why.contains("by netlink") {
        true => format!("if it is no longer needed, ip link set dev {name} xdp off"),
        false => "stop the program that holds it".to_owned(),
    };
    Error::new(ErrorKind::Busy, what, why).with_hint(format!("{end}; afpacket: works alongside it"))
}

/// Describes the programs on a device: name, id, mode, and what attached them.
fn others(device: &sys::link::Link) -> Vec<String> {
    device
        .xdp
        .iter()
        .map(|attached| {
            let id = attached.program_id;
            let info =
                open_by_id(ObjectKind::Program, id).and_then(|fd| Program::from_fd(fd).info());
            let name = info.map_or_else(|_| String::new(), |info| format!("\"{}\" ", info.name));
            let links = object_ids(ObjectKind::Link).unwrap_or_default();
            let link = links.into_iter().find(|&link| {
                let info =
                    open_by_id(ObjectKind::Link, link).and_then(|fd| Link::from_fd(fd).info());
                info.is_ok_and(|i| i.program_id == id && i.xdp_ifindex == Some(device.index))
            });
            let by = link.map_or("netlink".into(), |link| format!("link {link}"));
            format!(
                "the XDP program {name}(id {id}, {} mode, by {by})",
                attached.place.word()
            )
        })
        .collect()
}
