//! A vhost-user back-end for network devices: what a virtual machine's virtio-net needs outside of
//! its monitor (QEMU, the front-end) to exchange packets with this process.
//!
//! - [`message`] decodes the front-end's requests and encodes replies (QEMU's
//!   `docs/interop/vhost-user.rst`).
//! - [`Memory`] maps the guest's memory, and translates its addresses.
//! - [`Vring`] is the device's side of a split virtqueue (VIRTIO 1.2 §2.7) with the headers of a
//!   network device (§5.1.6).
//! - [`Session`] is the state of one connection, [`Queues`] the vrings that it starts and stops,
//!   [`Server`] a socket that front-ends connect to, one after the other.
//!
//! Threat model: the guest writes anything into rings, descriptors and buffers, at any time; the
//! front-end sends any message with any descriptors, stops in the middle of one, or is killed.
//! Therefore guest memory is accepted only as a memory file that is sealed against shrinking (an
//! access could otherwise end this process); every address is translated and its whole range
//! checked; a descriptor is copied once and then checked; packets are copied out before anyone
//! reads them; chains are bounded by the length of their ring. A vring with an invalid content is
//! [`Broken`]: it stops until the front-end starts it again. An invalid message ends the
//! connection.
//!
//! # Features
//! `testing` adds the module `testing`: a front-end with a driver, for tests and benches; and
//! `laws`: what must hold for any input, for fuzzing.

mod connection;
#[cfg(any(test, feature = "testing"))]
pub mod laws;
mod memory;
pub mod message;
mod queues;
mod server;
mod session;
mod split;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use memory::Memory;
pub use queues::{Event, Guard, Queue, QueueCounts, Queues};
pub use server::Server;
pub use session::Session;
pub use split::{Broken, Chain, HEADER_LEN, Layout, Sent, Vring};

/// Feature bits of the device and the transport that are offered.
pub mod feature {
    /// The MTU is known (VIRTIO 1.2 §5.1.3); QEMU supplies it (`host_mtu`).
    pub const MTU: u64 = 1 << 3;
    /// A packet may take several receive buffers (§5.1.6.4).
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// Several queue pairs; QEMU implements the control queue.
    pub const MQ: u64 = 1 << 22;
    /// Descriptors may refer to tables of descriptors (§2.7.5.3).
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are requested by index (§2.7.10).
    pub const EVENT_IDX: u64 = 1 << 29;
    /// vhost-user's own: there are protocol features, and vrings are enabled by message.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// The device follows VIRTIO 1.0 or later: headers have 12 bytes, little-endian.
    pub const VERSION_1: u64 = 1 << 32;
    /// All that are offered. Neither checksums nor segmentation: every packet is complete.
    pub const OFFERED: u64 =
        MTU | MRG_RXBUF | MQ | INDIRECT_DESC | EVENT_IDX | PROTOCOL_FEATURES | VERSION_1;
}

/// Protocol features that are offered.
pub mod protocol_feature {
    /// Several queue pairs (`GET_QUEUE_NUM`).
    pub const MQ: u64 = 1 << 0;
    /// The front-end may request a reply to any message.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The front-end reports the MTU.
    pub const NET_MTU: u64 = 1 << 4;
    /// All that are offered.
    pub const OFFERED: u64 = MQ | REPLY_ACK | NET_MTU;
}
