//! AF_PACKET beyond what every backend must do: what the kernel tells beside a packet, groups of
//! queues, filters in the kernel, exact accounts, rights, sending. Receiving is by a program's
//! ring; `afpacket_tpacket.rs` is the same for the packet socket's own.

mod account;
mod common;
mod fanout;
mod filter;
mod records;
mod rx;
mod tx;

/// The tap that these tests open.
const TAP: &str = "bpf";
