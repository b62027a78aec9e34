//! Parses times and sizes with units.

use std::time::Duration;

pub(super) use crate::args::parse_duration;

/// Parses a timeout of the flow table.
pub(super) fn parse_timeout(text: &str) -> std::result::Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.as_nanos() as u64 > flow::Timeouts::MAX_NS {
        return Err("timeouts can be at most 24h".into());
    }
    Ok(duration)
}

/// Parses a number of flows, with `k` or `M` for thousands and millions.
pub(super) fn parse_table_size(text: &str) -> std::result::Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1_000),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1_000_000),
            None => (text, 1),
        },
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    match number {
        Some(count @ 16..=0x1000_0000) => Ok(count as u32),
        _ => Err("expected a number of flows from 16 to 268435456".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        for (text, ms) in [
            ("10", 10_000),
            ("1.5s", 1500),
            ("250ms", 250),
            ("2m", 120_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)));
        }
        for bad in ["", "s", "-1", "1d", "0", "nan", "inf"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert!(parse_timeout("24h").is_ok() && parse_timeout("86401").is_err());
        assert_eq!(parse_table_size("4M"), Ok(4_000_000));
        assert_eq!(parse_table_size("500k"), Ok(500_000));
        for bad in ["", "k", "0", "15", "1G", "999999999999M"] {
            assert!(parse_table_size(bad).is_err(), "{bad}");
        }
    }
}
