//! The scenarios. A new one is a file here and a row in [`SCENARIOS`].

mod capture;
pub mod cluster;
pub mod driver;
mod drop;
mod filter;
mod flows;
mod forward;
mod give_back;
mod guard;
mod live;
mod memory;
mod paths;
mod scan;
mod send;
mod suricata;
mod vm;
pub mod wire;

use anyhow::Result;

use crate::rounds::Outcome;

/// How much to measure.
pub struct Plan {
    /// Number of rounds.
    pub rounds: usize,
    /// Seconds of load per run.
    pub seconds: f64,
    /// Packet sizes, for scenarios with several; empty: all.
    pub sizes: Vec<u32>,
    /// Only check that it runs.
    pub quick: bool,
}

/// A row of the table.
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// A summary in one line.
    pub summary: &'static str,
    /// Runs it.
    pub run: fn(&Plan) -> Result<Outcome>,
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    capture::SCENARIO,
    flows::SCENARIO,
    live::SCENARIO,
    send::SCENARIO,
    scan::COST,
    scan::ANSWERS,
    forward::SCENARIO,
    wire::SCENARIO,
    filter::SCENARIO,
    guard::SCENARIO,
    drop::SCENARIO,
    give_back::SCENARIO,
    memory::SCENARIO,
    cluster::SCENARIO,
    suricata::SCENARIO,
    driver::SCENARIO,
    paths::SCENARIO,
    vm::SCENARIO,
];
