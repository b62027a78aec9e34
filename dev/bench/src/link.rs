//! Counters of an interface in a namespace, read without starting a program, so that reading does
//! not affect the measurement.

use anyhow::Result;
use lab::veth::End;
use sys::link::{Link, LinkStats};

/// Reads the counters.
pub fn stats(end: &End) -> Result<LinkStats> {
    let index = end.ifindex;
    end.ns.run(move || Ok(Link::by_index(index)?.stats))?
}
