//! Rounds: in each, every subject runs once, in turn; ratios are taken within a round, so that a
//! temporarily slower machine slows down all of them.

use std::fmt::Write;

/// Minimum, median and maximum of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Minimum.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Maximum.
    pub max: f64,
}

impl Spread {
    /// Computes the spread; `None` if there are no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let half = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[half]
        } else {
            (sorted[half - 1] + sorted[half]) / 2.0
        };
        Some(Self { min, median, max })
    }
}

/// The values of one subject at one point (a packet size, a rate), one per round.
#[derive(Clone, Debug)]
pub struct Series {
    /// The subject.
    pub subject: String,
    /// Position on the horizontal axis: a packet size, or 0 if there is none.
    pub at: u32,
    /// One value per round; NaN if a round gave none.
    pub values: Vec<f64>,
}

/// One measure of a scenario: the same unit for all subjects.
#[derive(Clone, Debug)]
pub struct Table {
    /// The quantity.
    pub measure: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The meaning of `at`; empty if there is only one point.
    pub axis: &'static str,
    /// Whether more is better.
    pub more_is_better: bool,
    /// The subject that all others are compared with.
    pub reference: String,
    /// The values.
    pub series: Vec<Series>,
}

/// The result of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Measures.
    pub tables: Vec<Table>,
    /// Conditions that a reader must know.
    pub notes: Vec<String>,
}

impl Table {
    /// Adds a round's value.
    pub fn add(&mut self, subject: &str, at: u32, value: f64) {
        let found = self
            .series
            .iter_mut()
            .find(|s| s.subject == subject && s.at == at);
        match found {
            Some(series) => series.values.push(value),
            None => self.series.push(Series {
                subject: subject.into(),
                at,
                values: vec![value],
            }),
        }
    }

    /// Ratio to the reference, round by round.
    pub fn ratio(&self, series: &Series) -> Option<Spread> {
        let base = self
            .series
            .iter()
            .find(|s| s.subject == self.reference && s.at == series.at)?;
        let ratios: Vec<f64> = series
            .values
            .iter()
            .zip(&base.values)
            .map(|(value, base)| value / base)
            .collect();
        Spread::of(&ratios)
    }
}

impl Outcome {
    /// A table for users: median, spread, and the ratio to the reference with its spread.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for table in &self.tables {
            let _ = writeln!(
                out,
                "\n{} ({}; {} is better; ratios to {}, round by round)",
                table.measure,
                table.unit,
                if table.more_is_better { "more" } else { "less" },
                table.reference
            );
            for series in &table.series {
                let Some(spread) = Spread::of(&series.values) else {
                    let _ = writeln!(out, "{:>8} {:<28} no value", series.at, series.subject);
                    continue;
                };
                let at = if table.axis.is_empty() {
                    String::new()
                } else {
                    series.at.to_string()
                };
                let Spread { min, median, max } = spread;
                let _ = write!(
                    out,
                    "{at:>8} {:<28} {median:>12.4}  [{min:.4} .. {max:.4}]",
                    series.subject
                );
                let _ = match self.ratio_text(table, series) {
                    Some(ratio) => writeln!(out, "  {ratio}"),
                    None => writeln!(out),
                };
            }
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        out
    }

    fn ratio_text(&self, table: &Table, series: &Series) -> Option<String> {
        let Spread { min, median, max } = table.ratio(series)?;
        Some(format!("x {median:.2} [{min:.2} .. {max:.2}]"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut table = Table {
            measure: "rate",
            unit: "Mpps",
            axis: "",
            more_is_better: true,
            reference: "a".into(),
            series: Vec::new(),
        };
        // The machine is twice as slow in the second round: the ratio is unaffected.
        for (a, b) in [(1.0, 3.0), (0.5, 1.5)] {
            table.add("a", 0, a);
            table.add("b", 0, b);
        }
        let ratio = table.ratio(&table.series[1]).unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (3.0, 3.0, 3.0));
    }

    #[test]
    fn spread_of_odd_even_and_none() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert!(Spread::of(&[f64::NAN]).is_none());
    }
}
