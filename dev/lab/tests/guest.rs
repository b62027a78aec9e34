//! Tests that run in the guest of `cargo xtask lab`, on emulated cards with real drivers, and tests
//! that run both there and on this machine. Each file is a module here; see `all.rs`.

// Shared by tests.
mod afxdp;
mod forward;
mod vfio;
mod vfio_card;

// Tests.
mod conformance_port;
mod guest_afxdp;
mod guest_devices;
mod guest_forward;
mod guest_isolate;
mod guest_kernels;
mod guest_nic;
mod guest_refused;
mod guest_vfio;
mod guest_vfio_cards;
mod guest_vfio_idle;
mod guest_vfio_link;
mod guest_vfio_packets;
mod guest_vfio_scan;
