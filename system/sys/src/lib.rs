//! Typed system calls: mappings, memory files, sockets, `bpf(2)`, netlink, processor affinity.
//!
//! This crate contains most of the unsafe code. Its users get checked values, and [`Error`]s that
//! state what was tried, why it failed and what to do next.

pub mod address;
pub mod advice;
pub mod affinity;
pub mod boundary;
pub mod bpf;
pub mod clock;
pub mod code;
pub mod create;
pub mod descriptors;
mod dynamic;
pub mod epoll;
mod error;
pub mod ethtool;
pub mod eventfd;
pub mod job_control;
pub mod landlock;
pub mod libndpi;
pub mod libpcap;
pub mod librdkafka;
pub mod link;
pub mod local_time;
pub mod memfd;
pub mod mmap;
pub mod neighbour;
pub mod netfilter;
pub mod netlink;
pub mod netns;
pub mod nftables;
pub mod packet;
pub mod pci;
pub mod poll;
pub mod privileges;
pub mod probe;
pub mod route;
pub mod seccomp;
pub mod session;
pub mod signal;
pub mod tun;
pub mod vfio;
pub mod xsk;

pub use error::{Error, ErrorKind, KernelVersion, Result, Unsupported};
