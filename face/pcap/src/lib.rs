//! `libpcap.so`: the interface of libpcap 1.10 over barewire, for programs that exist.
//!
//! The library is built as `libpcap.so`; programs find it as `libpcap.so.0.8` (Debian) or
//! `libpcap.so.1`. Everything that a C program can call is in `abi`, the only module that may hold
//! unsafe code; each function checks its pointers, catches panics, and calls the safe modules.
//! How capture files are read here differs from the crate `wire` on purpose: lengths and times are
//! passed on as they stand in the file, and damaged files are refused where and as libpcap refuses
//! them, because programs and their users go by that.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod abi;
mod compile;
mod failure;
mod handle;
mod link;
mod live;
mod savefile;
mod status;
