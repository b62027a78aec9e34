//! Rates, parsed from text: `1.2Mpps`, `3Gbps`.

use crate::{Error, Result};

/// Highest plausible rates: a hundred times what a port of 400 Gbit/s carries.
const PPS_MAX: f64 = 1e11;
const BPS_MAX: f64 = 1e14;

/// Lowest rates: one packet a day, one bit per second.
const PPS_MIN: f64 = 1.0 / 86_400.0;

/// A rate per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Packets per second.
    Packets(f64),
    /// Bits per second.
    Bits(f64),
}

impl Rate {
    /// Parses a number, optionally `k`, `M`, `G` or `T`, and `pps` or `bps`.
    ///
    /// # Errors
    /// For an unknown unit, 0, less than a packet a day, or more than any link carries.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            let hint = "write for example 1.2Mpps, 250kpps or 3Gbps";
            Error::new(format!("{text:?} {why}")).with_hint(hint)
        };
        let lower = text.trim().to_ascii_lowercase();
        let (number, packets) = match (lower.strip_suffix("pps"), lower.strip_suffix("bps")) {
            (Some(number), _) => (number, true),
            (_, Some(number)) => (number, false),
            _ => return Err(bad("is not a rate: the unit is pps or bps")),
        };
        let number = number.trim_end();
        let (digits, factor) = match number.as_bytes().last() {
            Some(b'k') => (&number[..number.len() - 1], 1e3),
            Some(b'm') => (&number[..number.len() - 1], 1e6),
            Some(b'g') => (&number[..number.len() - 1], 1e9),
            Some(b't') => (&number[..number.len() - 1], 1e12),
            _ => (number, 1.0),
        };
        let plain = |c: char| c.is_ascii_digit() || c == '.';
        let value = match digits.trim_end().parse::<f64>() {
            Ok(value) if digits.trim_end().chars().all(plain) => value * factor,
            _ => return Err(bad("is not a rate: the number is missing or wrong")),
        };
        let rate = if packets {
            Self::Packets(value)
        } else {
            Self::Bits(value)
        };
        rate.check().map_err(|error| bad(&error.why))
    }

    /// Creates a rate in packets per second from a number.
    ///
    /// # Errors
    /// As [`Rate::parse`].
    pub fn packets(value: f64) -> Result<Self> {
        Self::Packets(value).check().map_err(|error| {
            let why = format!("{value} pps {}", error.why);
            Error::new(why).with_hint("write for example 1000, or 0.5")
        })
    }

    fn check(self) -> Result<Self> {
        let (value, min, max, limits) = match self {
            Self::Packets(value) => (value, PPS_MIN, PPS_MAX, "from one packet a day to 100 Gpps"),
            Self::Bits(value) => (value, 1.0, BPS_MAX, "from 1 bps to 100 Tbps"),
        };
        if value == 0.0 {
            return Err(Error::new("would never send anything"));
        }
        if !(min..=max).contains(&value) {
            return Err(Error::new(format!("is not possible: rates go {limits}")));
        }
        Ok(self)
    }
}

/// When packets are due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// At once.
    Max,
    /// At a constant rate.
    Rate {
        /// The rate.
        rate: Rate,
        /// For bits: count the whole packet on an Ethernet link, including the frame check
        /// sequence, preamble, gap ([`WIRE_OVERHEAD`](crate::WIRE_OVERHEAD)) and padding to 60
        /// bytes.
        on_wire: bool,
    },
    /// With the gaps of the capture.
    Original {
        /// Speed-up factor.
        multiplier: f64,
        /// Upper limit of a gap in nanoseconds; longer gaps are shortened to it.
        gap_max_ns: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, rate) in [
            ("1.2Mpps", Rate::Packets(1_200_000.0)),
            ("250 kpps", Rate::Packets(250_000.0)),
            ("10pps", Rate::Packets(10.0)),
            ("0.5pps", Rate::Packets(0.5)),
            ("3Gbps", Rate::Bits(3e9)),
            ("100 MBPS", Rate::Bits(1e8)),
        ] {
            assert_eq!(Rate::parse(text), Ok(rate), "{text}");
        }
    }

    #[test]
    fn impossible_rates_are_refused_with_a_hint() {
        for bad in [
            "",
            "0pps",
            "0bps",
            "-1pps",
            "1",
            "pps",
            "1e3pps",
            "infpps",
            "nanbps",
            "1..2pps",
            "200Tbps",
            "0.00001pps",
            "3GB/s",
            "0.5bps",
            "1Mkpps",
            "+1pps",
        ] {
            let error = Rate::parse(bad).unwrap_err();
            assert!(error.hint.is_some(), "{bad}: {error}");
        }
        assert!(Rate::packets(0.0).is_err() && Rate::packets(f64::NAN).is_err());
    }
}
