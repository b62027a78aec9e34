//! `libpcap.so`: the interface of libpcap 1.10 over barewire, for existing programs.
//!
//! The library is built as `libpcap.so`; programs find it as `libpcap.so.0.8` (Debian) or
//! `libpcap.so.1`. Everything that a C program can call is in `abi`, the only module that may
//! contain unsafe code; each function checks its pointers, catches panics, and calls the safe
//! modules. Capture files are read differently from the crate `wire` on purpose: lengths and times
//! are passed on unchanged, and damaged files are refused where and how libpcap refuses them,
//! because programs and users rely on it.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod abi;
mod compile;
mod cooked;
mod device;
mod failure;
mod framing;
mod handle;
mod link;
mod live;
mod savefile;
mod status;
mod wait;
mod wording;
