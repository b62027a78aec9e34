//! AF_PACKET in addition to the conformance suite: packet metadata from the kernel, fanout groups,
//! filters in the kernel, exact accounts, privileges. Packets are received at once, through
//! TPACKET_V2; see `afpacket/`.

#[path = "afpacket/account.rs"]
mod account;
#[path = "afpacket/common.rs"]
mod common;
#[path = "afpacket/fanout.rs"]
mod fanout;
#[path = "afpacket/filter.rs"]
mod filter;
#[path = "afpacket/immediate.rs"]
mod immediate;
#[path = "afpacket/rx.rs"]
mod rx;

/// The tap that these tests open. The ring has many frames with a short snaplen only.
const TAP: &str = "tpacket&immediate=yes&snaplen=2000";
