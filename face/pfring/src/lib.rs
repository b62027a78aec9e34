//! `libpfring.so`: the interface of PF_RING's user-space library over barewire, for existing
//! programs.
//!
//! Everything that a C program can call is in `abi`, the only module that may contain unsafe code;
//! each function checks its pointers, catches panics, and calls the safe modules. A ring is opened
//! in two steps, as in PF_RING: `pfring_open` checks the device, `pfring_enable_ring` opens the
//! port with the settings made meanwhile.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod abi;
mod device;
mod header;
mod receiver;
mod ring;
mod rules;
mod sender;
mod settings;
mod status;
mod text;
mod trailers;
mod visible;
mod zc;
