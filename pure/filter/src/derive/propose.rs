//! Tests that would narrow a state: each loses some packets of the flood, and more good ones.
//!
//! A value counts for the flood with its share of the flood, and against it with its share of the
//! good packets, weighted. With a low weight the tests keep most of the flood, and with a high one
//! they exclude most good packets: the flood's share in them is more than a few good packets among
//! the flood's could cause.

use super::packet::{Form, Role};
use super::prefixes;
use super::table::{Column, State, Table};
use super::test::{Effort, PACKETS_MIN, PACKETS_PER_VALUE, Test, VALUES_MAX, is_walk};

/// Weights of good packets.
const WEIGHTS: [f64; 4] = [0.3, 1.0, 4.0, 1e6];
/// Maximum number of networks in a test.
pub(super) const NETWORKS_MAX: usize = 32;
/// A part of the flood that has this share, or more, is not chosen by chance.
pub(super) const MOST: f64 = 0.75;
/// Maximum share of the flood that is given up to exclude good packets by their values.
const LOST_MAX: f64 = 0.25;
/// A part of the flood without good packets is not by chance if it had this logarithmic odds
/// against it, for one choice among some thousands.
const ODDS_MIN: f64 = 14.0;

/// A test, and what it keeps.
pub(super) struct Proposal {
    pub(super) column: usize,
    pub(super) test: Test,
    /// Share of the flood that it loses.
    pub(super) lost: f64,
    /// Share of the good packets that it excludes.
    pub(super) excluded: f64,
}

/// Whether a part of the flood could have none of so many good packets by chance if they were
/// alike.
pub(super) fn is_chance(share: f64, good_count: usize, odds: f64) -> bool {
    share < MOST && -(1.0 - share).ln() * (good_count as f64) < odds
}

/// The counts of a column's values.
struct Counts<'a> {
    column: &'a Column,
    flood: Vec<u32>,
    good: Vec<u32>,
    flood_count: usize,
    good_count: usize,
}

/// All tests that could narrow a state.
pub(super) fn proposals(table: &Table<'_>, state: &State, effort: Effort) -> Vec<Proposal> {
    let mut all = Vec::new();
    for (index, column) in table.columns.iter().enumerate() {
        let counts = Counts {
            column,
            flood: column.count_flood(&state.flood),
            good: column.count_good(&state.good),
            flood_count: state.flood.len(),
            good_count: state.good.len(),
        };
        for weight in WEIGHTS {
            let tests = counts.tests(weight, effort, table.is_header(index));
            for test in tests.into_iter().flatten() {
                let (kept, left) = counts.taken(&test);
                if kept < PACKETS_PER_VALUE || left == counts.good_count {
                    continue;
                }
                all.push(Proposal {
                    column: index,
                    test,
                    lost: 1.0 - kept as f64 / counts.flood_count as f64,
                    excluded: 1.0 - left as f64 / counts.good_count as f64,
                });
            }
        }
    }
    all
}

impl Counts<'_> {
    fn tests(&self, weight: f64, effort: Effort, is_header: bool) -> [Option<Test>; 4] {
        let gains: Vec<f64> = (0..self.flood.len())
            .map(|at| self.gain(at, weight))
            .collect();
        let is_fragile = effort == Effort::Fragile;
        let role = self.column.field.role;
        let has_range = match role {
            Role::Size => true,
            Role::Chosen | Role::Volatile => is_fragile,
            Role::Stable | Role::Address => false,
        };
        let has_exclusion = match role {
            Role::Stable | Role::Size => is_header,
            Role::Chosen | Role::Volatile | Role::Address => false,
        };
        let is_address = role == Role::Address;
        [
            self.values(&gains, is_header),
            has_range.then(|| self.range(&gains)).flatten(),
            has_exclusion.then(|| self.exclusion(&gains)).flatten(),
            is_address
                .then(|| self.networks(&gains, is_fragile))
                .flatten(),
        ]
    }

    fn gain(&self, at: usize, weight: f64) -> f64 {
        let share = |count: u32, of: usize| f64::from(count) / of.max(1) as f64;
        share(self.flood[at], self.flood_count) - weight * share(self.good[at], self.good_count)
    }

    fn flood_share(&self, count: u32) -> f64 {
        f64::from(count) / self.flood_count as f64
    }

    /// Number of packets of the flood, and of good ones, that a test takes.
    fn taken(&self, test: &Test) -> (usize, usize) {
        let values = self
            .column
            .values
            .iter()
            .zip(self.flood.iter().zip(&self.good));
        values
            .filter(|(value, (flood, good))| **flood + **good > 0 && test.takes_value(**value))
            .fold((0, 0), |(kept, left), (_, (flood, good))| {
                (kept + *flood as usize, left + *good as usize)
            })
    }

    /// The most frequent values of the flood that are rare among good packets.
    fn values(&self, gains: &[f64], is_header: bool) -> Option<Test> {
        let field = self.column.field;
        let is_usual =
            |at: &usize| gains[*at] > 0.0 && self.flood[*at] as usize >= PACKETS_PER_VALUE;
        let mut chosen: Vec<usize> = (0..gains.len()).filter(is_usual).collect();
        chosen.sort_by_key(|at| std::cmp::Reverse(self.flood[*at]));
        chosen.truncate(if field.role == Role::Volatile {
            1
        } else {
            VALUES_MAX
        });
        // Among so many bytes some have values that good packets lack by chance, or as counters.
        let is_byte = !is_header && field.len == 1;
        if is_byte {
            chosen.truncate(1);
        }
        let total = chosen.iter().map(|at| self.flood[*at]).sum();
        if self.flood_share(total) < MOST {
            chosen.truncate(match (is_header, is_byte) {
                (true, _) => VALUES_MAX,
                (false, is_byte) => usize::from(!is_byte),
            });
            chosen.retain(|at| {
                let share = self.flood_share(self.flood[*at]);
                !is_chance(share, self.good_count, ODDS_MIN)
            });
        }
        let least = chosen.iter().map(|at| self.column.values[*at]).min()?;
        let most = chosen.iter().map(|at| self.column.values[*at]).max()?;
        let is_counter = !is_header && chosen.len() > 1 && most - least < 4 * chosen.len() as u128;
        if is_counter || is_walk(&field, least, most, chosen.len()) {
            return None;
        }
        let values = chosen.into_iter().map(|at| self.column.values[at]);
        Some(Test::one_of(field, values.collect()))
    }

    /// The range with the greatest sum of gains (Kadane's algorithm).
    fn range(&self, gains: &[f64]) -> Option<Test> {
        let (mut best, mut found) = (0.0, None);
        let (mut sum, mut start) = (0.0, 0);
        for (at, gain) in gains.iter().enumerate() {
            if sum <= 0.0 {
                (sum, start) = (0.0, at);
            }
            sum += gain;
            if sum > best {
                (best, found) = (sum, Some((start, at)));
            }
        }
        let (mut first, mut last) = found?;
        while first < last && self.flood[first] == 0 {
            first += 1;
        }
        while last > first && self.flood[last] == 0 {
            last -= 1;
        }
        let total = self.flood[first..=last].iter().sum();
        if is_chance(self.flood_share(total), self.good_count, ODDS_MIN) {
            return None;
        }
        let values = &self.column.values;
        Some(Test::between(
            self.column.field,
            values[first],
            values[last],
        ))
    }

    /// All values but the most frequent ones of good packets that are rare in the flood.
    fn exclusion(&self, gains: &[f64]) -> Option<Test> {
        let is_good = |at: &usize| gains[*at] < 0.0;
        let mut chosen: Vec<usize> = (0..gains.len()).filter(is_good).collect();
        chosen.sort_by_key(|at| std::cmp::Reverse(self.good[*at]));
        chosen.truncate(VALUES_MAX);
        let lost = chosen.iter().map(|at| self.flood[*at]).sum();
        if chosen.is_empty() || self.flood_share(lost) > LOST_MAX {
            return None;
        }
        let values = chosen.into_iter().map(|at| self.column.values[at]);
        Some(Test::excluding(self.column.field, values.collect()))
    }

    /// The networks that many of the flood's packets and few good ones have addresses in; or all
    /// but the networks of good packets.
    fn networks(&self, gains: &[f64], is_fragile: bool) -> Option<Test> {
        let field = self.column.field;
        debug_assert!(matches!(field.form, Form::Address { .. }));
        let values = &self.column.values;
        let mut found = prefixes::best(&field, values, &self.flood, gains);
        found.truncate(NETWORKS_MAX);
        let total = found.iter().map(|network| network.count).sum();
        if self.flood_share(total) < MOST {
            found.retain(|network| {
                !is_chance(self.flood_share(network.count), self.good_count, ODDS_MIN)
            });
        }
        if !found.is_empty() {
            let all = found.iter().map(|network| network.prefix).collect();
            return Some(Test::of_prefixes(field, all, true));
        }
        if !is_fragile {
            return None;
        }
        let losses: Vec<f64> = gains.iter().map(|gain| -gain).collect();
        let mut found = prefixes::best(&field, values, &self.good, &losses);
        found.truncate(VALUES_MAX);
        let all: Vec<_> = found.iter().map(|network| network.prefix).collect();
        let test = Test::of_prefixes(field, all, false);
        let kept = self.taken(&test).0;
        let is_kept = kept as f64 >= (1.0 - LOST_MAX) * self.flood_count as f64;
        (!found.is_empty() && is_kept).then_some(test)
    }
}

/// The values of a field with few of them, one by one.
pub(super) fn splits(table: &Table<'_>, state: &State) -> Vec<(usize, Test)> {
    let mut all = Vec::new();
    for (index, column) in table.headers().iter().enumerate() {
        let counts = column.count_flood(&state.flood);
        let present = (0..counts.len()).filter(|at| counts[*at] > 0);
        let present: Vec<usize> = present.collect();
        let is_few = (2..=VALUES_MAX).contains(&present.len());
        if column.field.role == Role::Volatile || !is_few {
            continue;
        }
        let is_usual = |at: &usize| counts[*at] as usize >= PACKETS_MIN;
        all.extend(present.into_iter().filter(is_usual).map(|at| {
            let test = Test::one_of(column.field, vec![column.values[at]]);
            (index, test)
        }));
    }
    all
}
