//! The backends: one file per kind of device.

pub(crate) mod afpacket;
pub(crate) mod afxdp;
mod clock;
pub(crate) mod file;
mod handover;
pub(crate) mod memory;
pub(crate) mod vfio;
pub(crate) mod xdplive;
