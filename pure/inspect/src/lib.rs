//! Application identification from the first packets of a flow: bounded, resumable decoders.
//!
//! Three parts, which also work alone, and what joins them:
//!
//! - [`stream`] reorders the TCP segments of both directions, and reports overlaps and gaps.
//! - [`identify`] is an automaton over first bytes that finds a flow's decoder.
//! - [`decode`] contains the decoders ([`decode::DECODERS`] is the list: one file and one row
//!   each). A decoder is a state machine over the bytes of one flow, in both directions. It returns
//!   [`Progress`]: done, more is needed, refused with a [`Reason`], or the flow switches to another
//!   protocol. It may be stopped after any byte and resumed; bytes that were never captured are
//!   passed to it as a gap. It reports its results to a [`FieldSink`], as typed [`Field`]s of
//!   bounded length.
//! - A [`Conversation`] joins the last two for one flow, given its bytes in order. Programs with
//!   their own TCP use this.
//! - An [`Inspector`] joins all of them for the packets of many flows, within budgets, and keeps an
//!   [`Application`] for each flow. The caller keeps one number per flow.
//!
//! [`encryption`] finds where connections become encrypted, without state.
//!
//! [`CommunityId`] is the flow hash by which other programs refer to the same flow.
//!
//! This crate does no IO and reads no clock. All memory is reserved when an inspector is created
//! ([`Inspector::memory_len`]). No input makes it panic, allocate or loop.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod application;
mod community_id;
mod conversation;
mod date;
pub mod decode;
pub mod encryption;
mod field;
pub mod identify;
mod inspector;
mod json;
#[cfg(feature = "laws")]
pub mod laws;
mod names;
mod ports;
mod set;
mod slab;
pub mod stream;
mod text;
mod transaction;

pub use application::{Application, FieldSet};
pub use community_id::{CommunityId, community_id};
pub use conversation::{Conversation, DEPTH_MAX, End, Tools};
pub use date::DateTime;
pub use decode::{
    Direction, EncryptedMessages, Next, Origin, Progress, ProtocolSwitch, Reason, certificate,
};
pub use field::{FIELDS, Field, FieldRow, FieldSink, Kind, Protocol, Value};
pub use identify::Decoders;
pub use inspector::{DONE, FLOW_LEN, Inspector, InspectorConfig, InspectorStats, NONE, Segment};
pub use json::{
    is_unprintable, json, json_with, string as json_string, tls_version,
    transactions as json_transactions,
};
pub use names::{dns_rcode, dns_type};
pub use ports::{Transport, guess, guess_port, known_ports};
pub use stream::Stream;
pub use transaction::{LOG_LEN, Transactions};
