//! Packet filters: from text (a pcap expression, a p0f signature, a list of DNS names) to a classic
//! BPF program, which `bpf` prints, runs and translates for each hook.
//!
//! Everything here turns text into numbers: files, name services and kernels belong to the caller.
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
