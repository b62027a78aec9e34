//! A stateless port scanner without IO: selects the next probe, builds its packet, and interprets
//! answers.
//!
//! A [`Plan`] numbers all probes and orders them by a [`Permutation`]; a [`Prober`] writes them as
//! frames that contain [`Cookies`]; an [`AnswerClassifier`] recognizes the answers by those cookies
//! alone, so no state is kept per probe. [`Seen`] detects repeated answers, and a
//! [`Report`](report::Report) writes the results to a file.
//!
//! This crate does no IO, reads no clock and draws no random numbers: the caller provides seed and
//! key.
#![forbid(unsafe_code)]

mod adapt;
mod advertise;
mod answer;
mod cookie;
mod frame;
pub mod grab;
mod hops;
#[cfg(feature = "laws")]
pub mod laws;
mod neighbour;
mod payload;
mod permutation;
mod plan;
mod port;
mod probe;
mod prober;
pub mod report;
mod seen;
mod source;
mod target;

pub use adapt::{AdaptiveRate, RateChange};
pub use advertise::{Advertiser, REPLY_MAX};
pub use answer::{Answer, AnswerClassifier, Evidence, State};
pub use cookie::{Cookie, Cookies, ProbeTarget};
pub use frame::{FrameOptions, Frames, Options};
pub use hops::NextHops;
pub use neighbour::{Solicitor, neighbour};
pub use payload::{Given, Id, Payload, Payloads, read_payloads};
pub use permutation::{LEN_MAX, ORDER_VERSION, Permutation, Walk};
pub use plan::{ATTEMPT_SECONDS, Attempt, Order, Plan, PlannedProbe, Probes, Shard};
pub use port::{Entry, PortList, Ports, Protocol, top_ports};
pub use probe::Probe;
pub use prober::{Lane, Prober, Skipped};
pub use report::{AskedRate, Found, LinkChange, Note, Totals};
pub use seen::{Seen, SeenBefore};
pub use source::Source;
pub use target::{
    AddrRange, Pair, PairPort, RESERVED, RangeList, Targets, parse_line, parse_octets, parse_pair,
    parse_range, split_pair, words_of,
};
