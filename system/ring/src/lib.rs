//! Frames and rings: packet memory, and the ring through which two sides exchange it.
//!
//! - [`Pool`] is a region of equal frames with one owner byte per frame; [`Frame`] is the ownership
//!   of one.
//! - [`FrameCache`] is a per-thread cache of free frames, so that a queue touches shared state once
//!   per batch.
//! - [`slot::Slot`] is one packet's place in a batch, filled in by drivers and passed on by ports.
//! - [`Descriptor`] is what a ring carries of a packet.
//! - [`Holder`] is another process that was handed frames, and [`shared`] has the two ends of a
//!   queue to it.
//! - [`Producer`] and [`Consumer`] are the two ends of a single-producer single-consumer ring. The
//!   four AF_XDP rings, the memory ring and the queues between processes use this type.
//!
//! Threat model: a peer process may crash, write anything into its descriptors, return a frame
//! twice or never. It cannot change who owns a frame: the tables are in memory that it cannot map.
//! What it may do with the frames is decided when the pool is shared ([`Pool::share`]): read all of
//! them, or read and write all of them. A peer that may write can change a payload at any time;
//! copy it first if that matters.

mod cache;
mod copy;
mod cursor;
mod descriptor;
mod frame;
mod free;
mod holder;
mod holding;
mod owners;
mod pool;
pub mod shared;
pub mod sleep;
pub mod slot;
mod sync;
#[cfg(test)]
mod tests;

pub use cache::FrameCache;
pub use cursor::{Consumer, Producer, RingMemory, spsc};
pub use descriptor::Descriptor;
pub use frame::Frame;
pub use holder::{HOLDER_COUNT_MAX, Holder, Holding};
pub use owners::Owners;
pub use pool::{Owner, OwnerCounts, Pool, PoolConfig};
