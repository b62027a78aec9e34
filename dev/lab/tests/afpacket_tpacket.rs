//! AF_PACKET beyond what every backend must do: what the kernel tells beside a packet, groups of
//! queues, filters in the kernel, exact accounts, rights, sending. Receiving is by TPACKET_V3; see
//! `afpacket/`.

#[path = "afpacket/account.rs"]
mod account;
#[path = "afpacket/common.rs"]
mod common;
#[path = "afpacket/fanout.rs"]
mod fanout;
#[path = "afpacket/filter.rs"]
mod filter;
#[path = "afpacket/rx.rs"]
mod rx;

/// The tap that these tests open.
const TAP: &str = "tpacket";
