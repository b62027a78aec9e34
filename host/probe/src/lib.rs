//! A flow probe: packets from a port become records at collectors, in files and on pages.
//!
//! ```no_run
//! use barewire_probe::Probe;
//! use runtime::Stop;
//!
//! fn main() -> sys::Result<()> {
//!     let stop = Stop::on_signals()?;
//!     let done = Probe::open("eth0")?
//!         .export("ipfix:udp://127.0.0.1:4739")?
//!         .run(&stop)?;
//!     for (destination, account) in &done.exports {
//!         eprintln!("{destination}: {} flows", account.exported.flows);
//!     }
//!     done.check()
//! }
//! ```
//!
//! [`runtime::flows`] makes records of packets; this crate is what happens to them then, in the
//! thread that collects them: [`Origins`] enriches their addresses, they are summed
//! up for a page of HTML, handed to exporters, counted for Prometheus, and shown to a [`View`],
//! which is the caller's: the command's are a terminal, lines of JSON ([`lines`]) or rates alone.
#![forbid(unsafe_code)]

pub mod account;
pub mod lines;
mod metrics;
mod origins;
mod page;
mod pipeline;
mod run;
mod setup;
pub mod text;

pub use origins::Origins;
pub use page::FLOW_COUNT as PAGE_FLOW_COUNT;
pub use pipeline::{Change, Changed, Running, View};
pub use run::{Finished, Prepared, Probe};
