//! Links: attachments of programs, which end when the last descriptor is closed, also after kill
//! -9.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::object::{self, Copyable};
use super::program::{ATTACH_TYPE_TCX_INGRESS, ATTACH_TYPE_XDP};
use super::{LINK_CREATE, LINK_DETACH, LINK_UPDATE, Program, bpf, bpf_fd};
use crate::{Error, Result};

/// `BPF_LINK_TYPE_XDP` of `enum bpf_link_type`.
const LINK_TYPE_XDP: u32 = 6;
/// `BPF_LINK_TYPE_TCX`.
const LINK_TYPE_TCX: u32 = 11;
/// `BPF_F_BEFORE`: without a reference, before all other programs.
const BEFORE: u32 = 1 << 3;

#[repr(C)]
struct CreateAttr {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
pub(super) struct UpdateAttr {
    pub(super) link_fd: u32,
    pub(super) new_prog_fd: u32,
    pub(super) flags: u32,
    pub(super) old_prog_fd: u32,
}

#[repr(C)]
struct DetachAttr {
    link_fd: u32,
}

/// `struct bpf_link_info` for XDP and tc, whose union begins at byte 16 and is 8-aligned.
#[repr(C)]
#[derive(Default)]
struct InfoRaw {
    kind: u32,
    id: u32,
    prog_id: u32,
    pad: u32,
    ifindex: u32,
    rest: [u32; 11],
}

// SAFETY: repr(C), integers only.
unsafe impl Copyable for InfoRaw {}

/// The kernel's info about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// The kernel's number for it.
    pub id: u32,
    /// The program that it attaches.
    pub program_id: u32,
    /// For XDP links: the device, 0 once that is gone. `None` for other kinds.
    pub xdp_ifindex: Option<u32>,
    /// For tc links: the device, 0 once that is gone. `None` for other kinds.
    pub tc_ifindex: Option<u32>,
}

/// An attachment; dropping it detaches the program.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

impl Link {
    /// Attaches an XDP program to a device of this network namespace (Linux 5.9). `flags` are the
    /// `XDP_FLAGS_` of `if_link.h`.
    pub fn create_xdp(program: &Program, ifindex: u32, flags: u32) -> Result<Self> {
        Self::create(program, ifindex, ATTACH_TYPE_XDP, flags)
    }

    /// Attaches a tc program to the ingress of a device of this network namespace, before all
    /// others there (TCX, Linux 6.6).
    pub fn create_tc_ingress(program: &Program, ifindex: u32) -> Result<Self> {
        Self::create(program, ifindex, ATTACH_TYPE_TCX_INGRESS, BEFORE)
    }

    fn create(program: &Program, ifindex: u32, attach_type: u32, flags: u32) -> Result<Self> {
        let mut attr = CreateAttr {
            prog_fd: program.as_fd().as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type,
            flags,
        };
        // SAFETY: the attribute holds no address, and the command returns a descriptor.
        let fd = unsafe { bpf_fd(LINK_CREATE, &mut attr) }
            .map_err(|e| Error::from_io(format!("attach to interface {ifindex}"), e))?;
        Ok(Self { fd })
    }

    /// Adopts a descriptor of a link.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Replaces the attached program; the switch happens between two packets.
    pub fn update(&self, program: &Program) -> Result<()> {
        let mut attr = UpdateAttr {
            link_fd: self.fd.as_raw_fd() as u32,
            new_prog_fd: program.as_fd().as_raw_fd() as u32,
            flags: 0,
            old_prog_fd: 0,
        };
        // SAFETY: the attribute holds no address.
        unsafe { bpf(LINK_UPDATE, &mut attr) }
            .map_err(|e| Error::from_io("replace the attached program", e))?;
        Ok(())
    }

    /// Detaches the program now, even if other processes hold the link (Linux 5.9).
    pub fn detach(&self) -> Result<()> {
        let mut attr = DetachAttr {
            link_fd: self.fd.as_raw_fd() as u32,
        };
        // SAFETY: the attribute holds no address.
        unsafe { bpf(LINK_DETACH, &mut attr) }
            .map_err(|e| Error::from_io("detach the program", e))?;
        Ok(())
    }

    /// The kernel's info about it.
    pub fn info(&self) -> Result<LinkInfo> {
        let raw: InfoRaw = object::info(self.fd.as_fd(), InfoRaw::default())
            .map_err(|e| Error::from_io("query a BPF link", e))?;
        Ok(LinkInfo {
            id: raw.id,
            program_id: raw.prog_id,
            xdp_ifindex: (raw.kind == LINK_TYPE_XDP).then_some(raw.ifindex),
            tc_ifindex: (raw.kind == LINK_TYPE_TCX).then_some(raw.ifindex),
        })
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
