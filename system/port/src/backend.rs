//! The backends: one file per kind of device.

pub(crate) mod afpacket;
pub(crate) mod afxdp;
mod clock;
pub(crate) mod file;
mod handover;
mod keep;
pub(crate) mod memory;
pub(crate) mod netfilter;
pub(crate) mod ring;
pub(crate) mod vfio;
pub(crate) mod vm;
pub(crate) mod xdplive;
