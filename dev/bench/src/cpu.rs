//! Processor time of programs.

use anyhow::{Context, Result};

/// `USER_HZ`: times in `/proc` are in hundredths of a second on every architecture that Linux has
/// today.
const TICKS_A_SECOND: f64 = 100.0;

/// Processor time of all programs that this one has started and waited for, in seconds.
pub fn of_children() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
    // Behind the name, which may contain anything: state is field 3, cutime and cstime 16 and 17.
    let (_, fields) = text
        .rsplit_once(')')
        .context("no name in /proc/self/stat")?;
    let ticks = fields
        .split_whitespace()
        .skip(13)
        .take(2)
        .filter_map(|word| word.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / TICKS_A_SECOND)
}
