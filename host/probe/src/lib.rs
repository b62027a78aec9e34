//! A flow probe: turns packets of a port into records for collectors, files and an HTML report.
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
//! [`runtime::flows`] turns packets into records; this crate handles the records, in the thread
//! that collects them: [`Origins`] enriches their addresses, they are summed up for an HTML page,
//! passed to exporters, counted for Prometheus, and passed to the caller's [`View`]: that of the
//! command is a terminal, JSON lines ([`lines`]) or rates only.
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
