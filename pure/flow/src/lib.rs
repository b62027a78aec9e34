//! The flow table: keys, records, expiry.
//!
//! A [`Meter`] takes packets with their times, and produces [`Record`]s of ended flows: it dissects
//! the packets, builds the [`FlowKey`], assigns fragments, and updates the [`Table`] in batches.
//! The terms are those of RFC 7011 (metering process, flow, flow key, flow record, expiration) and
//! RFC 5103 (biflow).
//!
//! This crate does no IO and reads no clock: time comes with the packets. All memory is reserved
//! when a meter is created ([`Meter::memory_len`]); nothing is allocated per packet or flow.
//!
//! For any input, the packets passed to the meter, plus those counted twice (in a tunnel's flow and
//! in the one inside), equal the sum of packets refused (by reason), skipped by sampling, in
//! records of ended flows, in active flows, and in fragments held back. [`Meter::stats`] has all
//! the terms.
#![forbid(unsafe_code)]

mod assembly;
pub mod cleanup;
#[doc(hidden)]
pub mod conservation;
pub mod decode;
pub mod digest;
pub mod element;
pub mod encode;
mod expire;
mod extra;
mod fragment;
mod hash;
mod key;
mod known;
#[cfg(feature = "laws")]
pub mod laws;
mod merge;
mod meter;
mod origin;
mod record;
#[cfg(test)]
mod sample;
mod sampling;
pub mod series;
mod shortcut;
mod table;
pub mod tally;
pub mod top;

pub use expire::{EndReason, Timeouts};
pub use extra::{
    BIN_COUNT, ByteCounts, Extra, ExtraConfig, Inspect, OwnedExtra, PacketNote, Shunt, Timing,
    entropy, gap_bin, len_bin, put_application, take_application, take_transactions,
};
pub use fragment::FragmentStats;
pub use hash::HashKey;
pub use key::{FlowKey, KeyExtra, Side};
pub use known::KnownFlows;
pub use merge::Merger;
pub use meter::{
    Input, KeyParts, Level, Meter, MeterConfig, MeterStats, NO_TIME_NS, Octets, TIME_MAX_NS,
};
pub use origin::{Origin, OriginParts, Origins};
pub use record::{Counters, Record};
pub use sampling::{Sampler, Sampling};
pub use table::{
    BATCH_MAX, Headers, Observed, OutOfMemory, Profile, RecordSink, Table, TableConfig, TableStats,
};
