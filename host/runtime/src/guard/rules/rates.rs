//! Rates and times in rules.

use std::time::Duration;

use ::guard::{Limit, RATE_PPS_MAX, SourceLimit};

/// Parses a rate in packets per second: `1000/s`, `20k/s`, `1M/s`, `1000pps`, `1000`.
///
/// # Errors
/// The expected format.
pub fn parse_rate(text: &str) -> std::result::Result<u32, String> {
    let expected = || {
        format!(
            "\"{text}\" is not a rate: expected packets per second such as 1000/s, 20k/s or 1M/s"
        )
    };
    let trimmed = text.trim();
    let number = trimmed.strip_suffix("/s").or(trimmed.strip_suffix("pps"));
    let number = number.unwrap_or(trimmed).trim();
    let digits = number.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u32 = match &number[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        _ => return Err(expected()),
    };
    let count: u32 = digits.trim().parse().map_err(|_| expected())?;
    let rate = count.saturating_mul(unit);
    match (1..=RATE_PPS_MAX).contains(&rate) {
        true => Ok(rate),
        false => Err(format!(
            "the rate \"{text}\" is not between 1/s and {}M/s",
            RATE_PPS_MAX / 1_000_000
        )),
    }
}

/// Parses a rate per source: `100/s`, `100/s per /24`, `100/s per /24,/48`.
///
/// # Errors
/// The expected format.
pub fn parse_source_rate(text: &str) -> std::result::Result<SourceLimit, String> {
    let (rate, lens) = match text.split_once(" per ") {
        Some((rate, lens)) => (rate, Some(lens)),
        None => (text, None),
    };
    let rate = parse_rate(rate)?;
    let expected = || {
        format!(
            "\"{text}\": expected prefix lengths of IPv4 and IPv6 such as \
             \"per /24\" or \"per /24,/48\""
        )
    };
    let len = |text: &str| {
        let digits = text.trim().strip_prefix('/').ok_or_else(expected)?;
        digits.parse::<u8>().map_err(|_| expected())
    };
    let (ipv4, ipv6) = match lens.map(|lens| lens.split_once(',').unwrap_or((lens, ""))) {
        None => (SourceLimit::IPV4_LEN, SourceLimit::IPV6_LEN),
        Some((ipv4, "")) => (len(ipv4)?, SourceLimit::IPV6_LEN),
        Some((ipv4, ipv6)) => (len(ipv4)?, len(ipv6)?),
    };
    let limit = Limit::new(rate, Limit::burst_of(rate)).ok_or_else(expected)?;
    SourceLimit::new(limit, ipv4, ipv6).ok_or_else(expected)
}

/// Parses a time such as `90s`, `10m`, `2h`, `7d`.
pub(in crate::guard) fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 0,
    };
    let seconds = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    match seconds {
        Some(seconds @ 1..=1_000_000_000) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!(
            "\"{text}\" is not a time: expected one such as 90s, 10m, 2h or 7d"
        )),
    }
}
