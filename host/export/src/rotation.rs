//! Rotation of files, and the pattern of their names.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use wire::Timestamp;

/// When a file is rotated, by whichever comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// At each multiple of this interval since the Unix epoch, by the clock.
    pub interval: Option<Duration>,
    /// When it has reached this many bytes.
    pub len_max: Option<u64>,
}

impl Rotation {
    /// Whether files are rotated before the probe ends.
    pub fn is_some(&self) -> bool {
        self.interval.is_some() || self.len_max.is_some()
    }

    /// Whether a file that was started at `began_ns` and has `len` bytes is rotated now.
    pub(crate) fn is_due(&self, began_ns: u64, now_ns: u64, len: u64) -> bool {
        let period =
            |time_ns: u64, interval: Duration| u128::from(time_ns).checked_div(interval.as_nanos());
        let by_time = self
            .interval
            .is_some_and(|interval| period(began_ns, interval) != period(now_ns, interval));
        by_time || self.len_max.is_some_and(|most| len >= most)
    }
}

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field(char),
}

/// A file name with fields for the time at which the file was started, in UTC: `%Y`, `%m`, `%d`,
/// `%H`, `%M`, `%S` as in strftime(3), `%s` for seconds since the Unix epoch; and `%n`, the number
/// of the file in a run, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Piece>);

const FIELDS: &str = "%Y %m %d %H %M %S %s %n, and %% for a percent sign";

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// A message, if a field is unknown or no field makes names differ.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let mut pieces = vec![Piece::Text(String::new())];
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            let plain = match (char, pieces.last_mut()) {
                ('%', _) => match chars.next() {
                    Some('%') => '%',
                    Some(field) if "YmdHMSsn".contains(field) => {
                        pieces.extend([Piece::Field(field), Piece::Text(String::new())]);
                        continue;
                    }
                    other => {
                        let other = other.map(String::from).unwrap_or_default();
                        return Err(format!(
                            "unknown field %{other} in a file name: use {FIELDS}"
                        ));
                    }
                },
                (char, _) => char,
            };
            if let Some(Piece::Text(text)) = pieces.last_mut() {
                text.push(plain);
            }
        }
        if pieces.len() == 1 {
            return Err(format!(
                "rotated files need distinct names, for example flows-%Y%m%dT%H%M%S.csv; fields \
                 are {FIELDS}"
            ));
        }
        Ok(Pattern(pieces))
    }

    /// The name of file `number`, started at this time.
    pub(crate) fn name(&self, time_ns: u64, number: u64) -> PathBuf {
        let time = Timestamp(time_ns);
        let (year, month, day) = time.date();
        let seconds = time.seconds();
        let mut name = String::new();
        for piece in &self.0 {
            // Writing to a string cannot fail.
            let _ = match piece {
                Piece::Text(text) => name.write_str(text),
                Piece::Field('Y') => write!(name, "{year:04}"),
                Piece::Field('m') => write!(name, "{month:02}"),
                Piece::Field('d') => write!(name, "{day:02}"),
                Piece::Field('H') => write!(name, "{:02}", seconds / 3600 % 24),
                Piece::Field('M') => write!(name, "{:02}", seconds / 60 % 60),
                Piece::Field('S') => write!(name, "{:02}", seconds % 60),
                Piece::Field('s') => write!(name, "{seconds}"),
                Piece::Field(_) => write!(name, "{number}"),
            };
        }
        PathBuf::from(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME_NS: u64 = 1_700_000_000_123_456_789;

    #[test]
    fn file_names_have_the_time_and_the_number() {
        let pattern = Pattern::parse("%Y/%m/%d/flows-%H%M%S-%s-%n%%.csv").unwrap();
        assert_eq!(
            pattern.name(TIME_NS, 7),
            PathBuf::from("2023/11/14/flows-221320-1700000000-7%.csv")
        );
        for (text, words) in [
            ("flows.csv", "need distinct names"),
            ("flows-%q.csv", "unknown field %q"),
            ("flows-%", "unknown field %"),
            ("100%%.csv", "need distinct names"),
        ] {
            let error = Pattern::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn rotation_is_by_clock_and_size() {
        let minute = Rotation {
            interval: Some(Duration::from_secs(60)),
            len_max: Some(1000),
        };
        let second_ns = 1_000_000_000;
        // 22:13:20
        assert!(!minute.is_due(TIME_NS, TIME_NS + 39 * second_ns, 999));
        assert!(minute.is_due(TIME_NS, TIME_NS + 40 * second_ns, 0));
        // A clock that was set back also rotates the file.
        assert!(minute.is_due(TIME_NS, TIME_NS - 60 * second_ns, 0));
        assert!(minute.is_due(TIME_NS, TIME_NS, 1000));
        assert!(!Rotation::default().is_some() && minute.is_some());
        assert!(!Rotation::default().is_due(0, u64::MAX, u64::MAX));
    }
}
