//! What the first packets of a flow say of its application: resumable decoders, bounded.
//!
//! - A *decoder* ([`decode::DECODERS`] is the list: one file and one row each) is a state machine
//!   over the bytes of one flow, in both directions. It answers [`Progress`]: done, more is needed,
//!   or refused with a [`Reason`]. It may be stopped after any byte and resumed; bytes that were
//!   never captured are told to it as a gap. What it finds it tells to a [`Sink`], as typed
//!   [`Field`]s of bounded length.
//! - An [`Inspector`] joins them to flows: it puts the first TCP segments of each direction in
//!   order, chooses the decoder by the first bytes, and keeps an [`Application`] for each flow. The
//!   caller keeps one number a flow.
//! - [`CommunityId`] is the flow hash that other programs use to speak of the same flow.
//!
//! Nothing here does IO or reads a clock. All memory is reserved when an inspector is made;
//! [`Inspector::memory_len`] says how much. No input makes it panic, allocate or loop.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod application;
mod community_id;
pub mod decode;
mod field;
mod identify;
mod inspector;
mod json;
#[doc(hidden)]
pub mod laws;
mod ports;
mod slab;
mod stream;
mod text;

pub use application::Application;
pub use community_id::{CommunityId, community_id};
pub use decode::{Direction, Origin, Progress, Reason};
pub use field::{FIELDS, Field, FieldRow, Kind, Protocol, Sink, Value};
pub use inspector::{DONE, Decoders, Inspector, InspectorConfig, InspectorStats, NONE, Segment};
pub use json::{json, string as json_string, tls_version};
pub use ports::{Transport, guess, guess_port, known_ports};
