//! Conversion between dates of the Gregorian calendar and seconds since the Unix epoch, in the
//! years 0 to 9999. Before 1970 the seconds are negative.
//!
//! [`wire::Timestamp`] counts nanoseconds from 1970 to 2554; certificates may begin in 1950 and are
//! valid until 9999 (RFC 5280 §4.1.2.5).

use core::fmt;

const SECONDS_PER_DAY: i64 = 86_400;

/// Days in 400 years, the period of the calendar.
const DAYS_PER_ERA: i64 = 146_097;

/// Days from 0000-03-01, a calendar in which leap days end the year, to 1970-01-01.
const EPOCH_DAY: i64 = 719_468;

/// Seconds since 1970-01-01T00:00:00Z for a date and time in UTC; `None` for an invalid date.
pub(crate) fn seconds(date: [i64; 3], time: [i64; 3]) -> Option<i64> {
    let ([year, month, day], [hour, minute, second]) = (date, time);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_len = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let is_date = (0..=9999).contains(&year) && (1..=12).contains(&month);
    // 60 is a leap second.
    let is_time =
        (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second);
    if !is_date || !is_time || day <= 0 || day > month_len {
        return None;
    }
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * DAYS_PER_ERA + day_of_era - EPOCH_DAY;
    Some(days * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second)
}

/// Seconds since the Unix epoch; formatted as in RFC 3339, without the zone: `2026-11-23T06:00:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateTime(pub i64);

impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(SECONDS_PER_DAY).saturating_add(EPOCH_DAY);
        let (era, day_of_era) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12 + 1;
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let second = self.0.rem_euclid(SECONDS_PER_DAY);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn dates_are_read_and_printed() {
        for (date, time, expected) in [
            ([0, 1, 1], [0, 0, 0], -62_167_219_200),
            ([1950, 1, 1], [0, 0, 0], -631_152_000),
            ([1969, 12, 31], [23, 59, 59], -1),
            ([1970, 1, 1], [0, 0, 0], 0),
            ([2000, 2, 29], [0, 0, 0], 951_782_400),
            ([2024, 2, 29], [23, 59, 59], 1_709_251_199),
            ([2100, 3, 1], [0, 0, 0], 4_107_542_400),
            ([9999, 12, 31], [23, 59, 59], 253_402_300_799),
        ] {
            assert_eq!(seconds(date, time), Some(expected));
            let ([year, month, day], [hour, minute, second]) = (date, time);
            let text =
                std::format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
            assert_eq!(DateTime(expected).to_string(), text);
        }
        for (date, time) in [
            ([10_000, 1, 1], [0, 0, 0]),
            ([-1, 1, 1], [0, 0, 0]),
            ([2026, 0, 1], [0, 0, 0]),
            ([2026, 13, 1], [0, 0, 0]),
            ([2026, 2, 29], [0, 0, 0]),
            ([2026, 4, 31], [0, 0, 0]),
            ([2026, 1, 0], [0, 0, 0]),
            ([2026, 1, 1], [24, 0, 0]),
        ] {
            assert_eq!(seconds(date, time), None, "{date:?} {time:?}");
        }
    }

    #[test]
    fn days_of_four_centuries_are_consecutive() {
        let mut day = -EPOCH_DAY - 60;
        for year in 0..2400 {
            for month in 1..=12 {
                for date in 1..=31 {
                    if let Some(at) = seconds([year, month, date], [0, 0, 0]) {
                        assert_eq!(at, day * SECONDS_PER_DAY);
                        day += 1;
                    }
                }
            }
        }
    }
}
