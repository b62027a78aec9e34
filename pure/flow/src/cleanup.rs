//! Decides which packets need no inspection: those behind the start of a flow ([`Shunter`]), and
//! copies of packets that were seen just before ([`Duplicates`]).
//!
//! Both take packets one by one, with their times, and answer for that packet alone: how packets
//! are grouped into batches changes nothing. Their tables are of fixed size. Where one is full, a
//! packet is not decided about: it passes.

mod duplicates;
mod shunter;

pub use duplicates::{Duplicates, WINDOW_MAX_NS};
pub use shunter::{ShuntLimits, Shunter};
