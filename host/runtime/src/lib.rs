//! Connects engines to ports: loops, threads, signals, privileges.
#![forbid(unsafe_code)]

#[cfg(test)]
mod broken;
pub mod capture;
pub mod cluster;
pub mod doctor;
pub mod filter;
pub mod flows;
pub mod forward;
pub mod guard;
pub mod held;
pub mod in_place;
pub mod notify;
pub mod origin_table;
pub mod output;
pub mod pace;
pub mod scan;
pub mod send;
pub mod stop;
pub mod text;
pub mod worker;

pub use stop::{Reload, Stop, TotalsRequest};
pub use worker::{Ended, Engine, Pacing, Verdict};
