//! Test lab: network namespaces, veth pairs, programs as peers, oracles, conformance suites.
//!
//! Everything that needs a device is tested on real kernel interfaces in namespaces made for that
//! one test, so that tests run in parallel and clean up. The usual form:
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! lab::require!(lab::skip::lab());
//! let pair = lab::Veth::new().queues(2).create()?;
//! let mut ping = pair.left.ns.spawn("ping", ["-c1", &pair.right.ipv4.to_string()])?;
//! assert!(ping.wait(std::time::Duration::from_secs(5))?.success());
//! pair.right.ns.run(|| {
//!     // This thread is in the namespace of the right end: ports opened here are present.
//! })?;
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

pub mod conformance;
pub mod corpus;
pub mod dropin;
pub mod guest;
pub mod inline;
pub mod metrics;
pub mod netns;
pub mod oracle;
pub mod packet;
pub mod process;
pub mod random;
pub mod skip;
pub mod unpacked;
pub mod veth;
pub mod vm;
pub mod watch;
mod watchdog;

pub use inline::Inline;
pub use netns::Netns;
pub use process::{Finished, Process};
pub use veth::{End, Pair, Veth};
