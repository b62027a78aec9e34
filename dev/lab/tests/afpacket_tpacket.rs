//! AF_PACKET in addition to the conformance suite: packet metadata from the kernel, fanout groups,
//! filters in the kernel, exact accounts, privileges, sending. Packets are received through
//! TPACKET_V3; see `afpacket/`.

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
