//! Timestamps: nanoseconds since the Unix epoch, and their text forms (RFC 3339, tcpdump's).

use core::fmt;
use core::str::FromStr;

/// Nanoseconds since 1970-01-01T00:00:00Z; sufficient until the year 2554.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// Nanoseconds in a second.
pub const NS_PER_S: u64 = 1_000_000_000;

const S_PER_DAY: u64 = 86_400;

impl Timestamp {
    /// 1970-01-01T00:00:00Z, also used for "unknown".
    pub const ZERO: Timestamp = Timestamp(0);

    /// The last time that can be represented, in the year 2554.
    pub const MAX: Timestamp = Timestamp(u64::MAX);

    /// Creates a timestamp from seconds and nanoseconds, clamped to the maximum.
    #[inline]
    pub const fn from_parts(seconds: u64, ns: u64) -> Timestamp {
        Timestamp(seconds.saturating_mul(NS_PER_S).saturating_add(ns))
    }

    /// Nanoseconds since the epoch.
    #[inline]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch.
    #[inline]
    pub const fn seconds(self) -> u64 {
        self.0 / NS_PER_S
    }

    /// Nanoseconds within the second.
    #[inline]
    pub const fn subsec_ns(self) -> u32 {
        (self.0 % NS_PER_S) as u32
    }

    /// Nanoseconds from `earlier` to this; 0 if it is not earlier.
    #[inline]
    pub const fn since_ns(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Formats the time of day as tcpdump does: `hh:mm:ss.frac`, `utc_offset_s` east of Greenwich.
    pub const fn clock(self, digits: u8, utc_offset_s: i32) -> Clock {
        Clock {
            time: self,
            digits,
            utc_offset_s,
        }
    }

    /// Year, month (1 to 12) and day (1 to 31) in UTC.
    pub const fn date(self) -> (u32, u32, u32) {
        // Days counted from 0000-03-01, so that the leap day is the last of the year.
        let days = self.0 / NS_PER_S / S_PER_DAY + 719_468;
        let era = days / 146_097;
        let day_of_era = days % 146_097;
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        let year = year_of_era + era * 400 + (month <= 2) as u64;
        (year as u32, month as u32, day as u32)
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, for years from 1970 on.
const fn days_from_date(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year / 400;
    let year_of_era = year % 400;
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// RFC 3339 in UTC with nanoseconds: `2026-11-21T10:58:00.000000001Z`. A precision (`{:.6}`) sets
/// the number of digits after the point.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        let digits = f.precision().unwrap_or(9).min(9) as u8;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{}Z",
            self.clock(digits, 0)
        )
    }
}

/// The time of day of a [`Timestamp`]; see [`Timestamp::clock`].
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    time: Timestamp,
    digits: u8,
    utc_offset_s: i32,
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let day = S_PER_DAY as i64;
        let seconds = (self.time.seconds() % S_PER_DAY) as i64 + i64::from(self.utc_offset_s);
        let seconds = seconds.rem_euclid(day);
        write!(
            f,
            "{:02}:{:02}:{:02}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        )?;
        let digits = self.digits.min(9);
        if digits == 0 {
            return Ok(());
        }
        let fraction = self.time.subsec_ns() / 10u32.pow(9 - u32::from(digits));
        write!(f, ".{fraction:0width$}", width = usize::from(digits))
    }
}

/// The text is not an RFC 3339 time stamp between 1970 and 2554.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeParseError;

impl fmt::Display for TimeParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a time as in RFC 3339 (2026-11-21T10:58:00.5Z or …+01:00)")
    }
}

impl core::error::Error for TimeParseError {}

/// Parses `width` digits at the front.
fn number(text: &mut &[u8], width: usize) -> Result<u64, TimeParseError> {
    let (digits, rest) = text.split_at_checked(width).ok_or(TimeParseError)?;
    *text = rest;
    digits.iter().try_fold(0, |n, c| match c {
        b'0'..=b'9' => Ok(n * 10 + u64::from(c - b'0')),
        _ => Err(TimeParseError),
    })
}

/// Parses one of the given characters at the front.
fn one_of(text: &mut &[u8], wanted: &[u8]) -> Result<u8, TimeParseError> {
    match text.split_first() {
        Some((c, rest)) if wanted.contains(c) => {
            *text = rest;
            Ok(*c)
        }
        _ => Err(TimeParseError),
    }
}

/// Parses RFC 3339 section 5.6; a space may replace the T, and digits beyond nanoseconds are
/// dropped.
impl FromStr for Timestamp {
    type Err = TimeParseError;

    fn from_str(text: &str) -> Result<Timestamp, TimeParseError> {
        let mut text = text.as_bytes();
        let t = &mut text;
        let year = number(t, 4)?;
        one_of(t, b"-")?;
        let month = number(t, 2)?;
        one_of(t, b"-")?;
        let day = number(t, 2)?;
        one_of(t, b"Tt ")?;
        let hour = number(t, 2)?;
        one_of(t, b":")?;
        let minute = number(t, 2)?;
        one_of(t, b":")?;
        let second = number(t, 2)?;
        let mut ns = 0;
        if one_of(t, b".").is_ok() {
            let mut unit = NS_PER_S / 10;
            let before = t.len();
            while let Ok(digit) = number(&mut { *t }, 1) {
                ns += digit * unit;
                unit /= 10;
                *t = &t[1..];
            }
            if t.len() == before {
                return Err(TimeParseError);
            }
        }
        let sign = one_of(t, b"Zz+-")?;
        let mut offset_s = 0;
        if matches!(sign, b'+' | b'-') {
            let (hours, _, minutes) = (number(t, 2)?, one_of(t, b":")?, number(t, 2)?);
            if hours > 23 || minutes > 59 {
                return Err(TimeParseError);
            }
            offset_s = hours * 3600 + minutes * 60;
        }
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let month_len = match month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let date_ok = year >= 1970 && (1..=12).contains(&month) && (1..=month_len).contains(&day);
        // 60 is a leap second: the first of the next minute.
        if !t.is_empty() || !date_ok || hour > 23 || minute > 59 || second > 60 {
            return Err(TimeParseError);
        }
        let days = days_from_date(year, month, day);
        let local = days * S_PER_DAY + hour * 3600 + minute * 60 + second;
        let utc = if sign == b'+' {
            local.checked_sub(offset_s)
        } else {
            Some(local + offset_s)
        };
        let total = utc
            .and_then(|s| s.checked_mul(NS_PER_S))
            .and_then(|n| n.checked_add(ns));
        total.map(Timestamp).ok_or(TimeParseError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, string::ToString};

    #[test]
    fn known_texts() {
        for (ns, text) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400 * NS_PER_S, "2000-02-29T00:00:00.000000000Z"),
            (
                1_709_251_199 * NS_PER_S + 1,
                "2024-02-29T23:59:59.000000001Z",
            ),
            (4_107_542_400 * NS_PER_S, "2100-03-01T00:00:00.000000000Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        ] {
            assert_eq!(Timestamp(ns).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(ns)), "{text}");
        }
        assert_eq!(
            format!("{:.3}", Timestamp(1_999_999)),
            "1970-01-01T00:00:00.001Z"
        );
        assert_eq!(
            Timestamp(1_500_000).clock(6, -1).to_string(),
            "23:59:59.001500"
        );
        assert_eq!(Timestamp(0).clock(0, 7200).to_string(), "02:00:00");
    }

    #[test]
    fn every_day_round_trips() {
        for day in 0..213_503 {
            let time = Timestamp(day * S_PER_DAY * NS_PER_S + 86_399 * NS_PER_S);
            assert_eq!(time.to_string().parse(), Ok(time));
        }
    }

    #[test]
    fn offsets_and_refusals() {
        let zero = Ok(Timestamp(0));
        assert_eq!("1970-01-01 01:00:00+01:00".parse(), zero);
        assert_eq!("1970-01-01T00:00:00.0000000009Z".parse(), zero);
        for bad in [
            "",
            "1970-01-01",
            "1970-01-01T00:00:00",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00Zx",
            "1970-01-01T00:00:00+01:00",
            "1970-02-29T00:00:00Z",
            "1970-13-01T00:00:00Z",
            "1970-01-00T00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:00:00+1:00",
            "9999-01-01T00:00:00Z",
            "+970-01-01T00:00:00Z",
        ] {
            assert_eq!(bad.parse::<Timestamp>(), Err(TimeParseError), "{bad}");
        }
    }
}
