//! Packet filters: compiles text (a pcap expression, a p0f signature, a list of DNS names) to a
//! classic BPF program, which `bpf` prints, runs and translates for each hook.
//!
//! This crate does no IO: the caller provides files, name services and kernels.
#![forbid(unsafe_code)]

mod code;
pub mod derive;
pub mod dns;
mod error;
pub mod expression;
#[cfg(feature = "laws")]
pub mod laws;
pub mod p0f;
pub mod print;

pub use code::{Explained, Note};
pub use error::{Error, Result};
