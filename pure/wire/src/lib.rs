//! Header views, dissection, checksums and capture file framing: bytes in, bytes out.
//!
//! This crate reads slices and writes values or slices provided by the caller: no allocation, no
//! clock, no IO, no panic on any input, no unsafe code.
//!
//! - A *view* (`udp::Udp`, `ipv4::Ipv4`, …) borrows the bytes of one header. The length is checked
//!   once, when the view is created; the fixed part is then an array, so the getters cannot fail.
//! - [`dissect`] walks all headers of one packet in a single pass and stores what flow tables,
//!   filters and printers need in a [`Dissection`]: layers with offsets, the flow key, lengths and
//!   the [`Reason`] why it stopped. Inner packets of tunnels are dissected by [`dissect_inner`].
//! - [`table::PROTOCOLS`] is the list of protocols: one file and one row each.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod addr;
pub mod checksum;
pub mod dissection;
mod fast;
pub mod file;
#[cfg(feature = "laws")]
pub mod laws;
pub mod link;
pub mod reason;
pub mod summary;
pub mod table;
#[cfg(test)]
mod tests;
pub mod time;
mod walk;

pub mod ah;
pub mod arcnet;
pub mod arista;
pub mod arp;
pub mod chdlc;
pub mod dccp;
mod decap;
pub mod dsa;
pub mod erspan;
pub mod esp;
pub mod etherip;
pub mod ethernet;
pub mod frame_relay;
pub mod geneve;
pub mod gre;
pub mod gtp0;
pub mod gtpu;
pub mod icmpv4;
pub mod icmpv6;
pub mod ieee80211;
pub mod igmp;
pub mod infiniband;
pub mod ipnet;
pub mod ipv4;
pub mod ipv6;
pub mod ipv6_ext;
pub mod juniper;
pub mod l2tp;
pub mod lan;
pub mod llc;
pub mod mac_in_mac;
pub mod macsec;
pub mod mpls;
pub mod nflog;
pub mod nsh;
pub mod null;
pub mod pflog;
pub mod pim;
pub mod pktap;
pub mod ppi;
pub mod ppp;
pub mod pppoe;
pub mod prism;
pub mod radiotap;
pub mod sctp;
pub mod slip;
pub mod sll;
pub mod tag;
pub mod tcp;
pub mod teredo;
pub mod udp;
pub mod udp_encap;
pub mod udp_lite;
pub mod usb;
pub mod vlan;
pub mod vsock;
pub mod vxlan;
pub mod wpan;

pub use addr::Mac;
pub use decap::{Decapsulated, decapsulate, dissect_carried};
pub use dissection::{Dissection, Fragment, MAX_LAYERS, MAX_TUNNEL_DEPTH};
pub use link::LinkType;
pub use reason::Reason;
pub use summary::Summary;
pub use table::LayerKind;
pub use time::Timestamp;
pub use walk::{Levels, dissect, dissect_inner, dissect_innermost, levels};

/// Two bytes in network byte order.
#[inline(always)]
pub(crate) const fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}
