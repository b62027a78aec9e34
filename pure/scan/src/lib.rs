//! A stateless port scanner without IO: which probe is next, its packet, and the meaning of an
//! answer.
//!
//! A [`Plan`] numbers all probes and gives them in the order of a [`Permutation`]; a [`Prober`]
//! writes them as frames that carry [`Cookies`]; an [`AnswerClassifier`] recognizes the answers by
//! those numbers alone, so no state is kept per probe. [`Seen`] detects repeated answers.
//!
//! Nothing here does IO, reads a clock or draws random numbers: seed and key are given.
#![forbid(unsafe_code)]

mod answer;
mod cookie;
mod frame;
pub mod grab;
mod hops;
mod neighbour;
mod payload;
mod permutation;
mod plan;
mod port;
mod probe;
mod prober;
mod seen;
mod source;
mod target;

pub use answer::{Answer, AnswerClassifier, Evidence, State};
pub use cookie::{Cookie, Cookies, ProbeTarget};
pub use frame::{FrameOptions, Frames, Options};
pub use hops::NextHops;
pub use neighbour::{Solicitor, neighbour};
pub use payload::{Id, Payload, Payloads};
pub use permutation::{LEN_MAX, Permutation, Walk};
pub use plan::{Order, Plan, Probes, Shard};
pub use port::{Entry, PortList, Ports, Protocol};
pub use probe::Probe;
pub use prober::Prober;
pub use seen::{Seen, SeenBefore};
pub use source::Source;
pub use target::{AddrRange, RESERVED, Targets, parse_line, parse_range};
