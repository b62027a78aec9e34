//! AF_PACKET in addition to the conformance suite: packet metadata from the kernel, fanout groups,
//! filters in the kernel, exact accounts, privileges, sending. Packets are received through a BPF
//! program's ring; `afpacket_tpacket.rs` and `afpacket_immediate.rs` run the same tests for the
//! packet socket's own.

mod account;
mod common;
mod fanout;
mod filter;
mod records;
mod rx;
mod tx;

/// The tap that these tests open.
const TAP: &str = "bpf";
