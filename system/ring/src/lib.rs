//! Frames and rings: the memory of packets, and the ring by which two sides exchange them.
//!
//! - [`Pool`] is a region of equal frames with one owner byte per frame; [`Frame`] is the ownership
//!   of one.
//! - [`FrameCache`] is a thread's own cache of free frames, so that a queue touches shared state
//!   once per batch.
//! - [`slot::Slot`] is one packet's place in a batch: what drivers fill in and ports hand on.
//! - [`Producer`] and [`Consumer`] are the two ends of a single-producer single-consumer ring. The
//!   four AF_XDP rings, the memory ring and later the rings between processes are all this type.
//!
//! Threat model of the owner table: a peer process may crash, lie in its descriptors, return a
//! frame twice or never. It must not corrupt another frame's ownership: a process that maps the
//! table writable is trusted that far. A hostile peer that was handed a frame can change its
//! payload afterwards; copy it if that matters.

mod cache;
mod cursor;
mod frame;
mod free;
mod owners;
mod pool;
pub mod slot;
mod sync;
#[cfg(test)]
mod tests;

pub use cache::FrameCache;
pub use cursor::{Consumer, Producer, RingMemory, spsc};
pub use frame::Frame;
pub use owners::Owners;
pub use pool::{Owner, OwnerCounts, Pool, PoolConfig};
