//! Destinations of flow records: a format of [`flow::encode`] combined with a socket or a file,
//! each in its own thread.
//!
//! The probe's collector passes records in batches through a bounded queue. Records that do not fit
//! are dropped and counted, or waited for, depending on the input: a live interface cannot wait, a
//! file can. In all cases, records in = records exported + records dropped by reason ([`Account`]),
//! once everything has ended.
//!
//! A destination is a URL, `FORMAT:SCHEME://HOST:PORT?OPTION=VALUE&…` or `FORMAT:PATH`. Formats are
//! rows of [`FORMATS`], sinks are rows of [`SINKS`]; a new one is a file and a row.
#![forbid(unsafe_code)]

mod account;
mod avro;
mod columns;
mod end;
mod exporters;
mod file;
mod folder;
mod format;
mod kafka;
mod one;
mod packing;
mod parquet;
mod part;
pub mod prometheus;
pub mod query;
mod rotation;
pub mod scan;
mod sctp;
mod sink;
mod target;
mod tcp;
mod tls;
mod udp;
mod worker;

pub use account::{Account, DropReason};
pub use exporters::{Changes, Exporters, FanOut, Observed, Setup};
pub use format::{FORMATS, Format};
pub use rotation::{Pattern, Rotation};
pub use sink::{Names, SINKS, Sink, SinkRow};
pub use target::{Options, Partition, Place, Target};
