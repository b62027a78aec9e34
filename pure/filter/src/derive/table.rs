//! The packets of one kind as a table: a row for each packet, a column for each field. Columns have
//! the ranks of values, so that counting values is one pass over small numbers.

use super::Packet;
use super::bytes;
use super::packet::{Class, Field, Role, fields};
use super::test::{Effort, Test, VALUES_MAX};

/// The rank of a value that a packet is too short for.
const NONE: u32 = u32::MAX;

/// One field of all packets.
pub(super) struct Column {
    pub(super) field: Field,
    /// The different values, in ascending order; the index of a value is its rank.
    pub(super) values: Vec<u128>,
    flood: Vec<u32>,
    good: Vec<u32>,
}

impl Column {
    fn new(field: Field, flood: &[Packet<'_>], good: &[Packet<'_>]) -> Self {
        let all = flood.iter().chain(good);
        let mut values: Vec<u128> = all.filter_map(|packet| field.value(packet)).collect();
        values.sort_unstable();
        values.dedup();
        let rank = |packet: &Packet<'_>| {
            let value = field.value(packet);
            let rank = value.and_then(|value| values.binary_search(&value).ok());
            rank.map_or(NONE, |rank| rank as u32)
        };
        Column {
            field,
            flood: flood.iter().map(rank).collect(),
            good: good.iter().map(rank).collect(),
            values,
        }
    }

    /// How many rows have each value.
    fn count(&self, ranks: &[u32], rows: &[u32]) -> Vec<u32> {
        let mut counts = vec![0; self.values.len()];
        for row in rows {
            if let Some(count) = counts.get_mut(ranks[*row as usize] as usize) {
                *count += 1;
            }
        }
        counts
    }

    /// How many of these rows of the flood have each value.
    pub(super) fn count_flood(&self, rows: &[u32]) -> Vec<u32> {
        self.count(&self.flood, rows)
    }

    /// How many of these rows of the good packets have each value.
    pub(super) fn count_good(&self, rows: &[u32]) -> Vec<u32> {
        self.count(&self.good, rows)
    }
}

/// The packets of one kind.
pub(super) struct Table<'a> {
    pub(super) class: Class,
    pub(super) flood: Vec<Packet<'a>>,
    pub(super) good: Vec<Packet<'a>>,
    /// Header fields, then words and bytes of options and payload.
    pub(super) columns: Vec<Column>,
    header_count: usize,
}

/// Rows of a table that pass tests.
#[derive(Clone)]
pub(super) struct State {
    pub(super) flood: Vec<u32>,
    pub(super) good: Vec<u32>,
    /// The tests that were chosen to narrow it.
    pub(super) chosen: Vec<Test>,
    /// What the rows of the flood have in common.
    pub(super) hull: Vec<Test>,
    /// What they had in common before it was narrowed, when they were more.
    pub(super) earlier: Vec<Test>,
}

impl<'a> Table<'a> {
    pub(super) fn new(class: Class, flood: Vec<Packet<'a>>, good: Vec<Packet<'a>>) -> Self {
        let headers = fields(class);
        let header_count = headers.len();
        let all = headers.into_iter().chain(bytes::fields(class, &flood));
        Table {
            class,
            columns: all.map(|field| Column::new(field, &flood, &good)).collect(),
            flood,
            good,
            header_count,
        }
    }

    /// The columns of header fields.
    pub(super) fn headers(&self) -> &[Column] {
        &self.columns[..self.header_count]
    }

    pub(super) fn is_header(&self, column: usize) -> bool {
        column < self.header_count
    }

    /// The packets in rows of the flood.
    pub(super) fn packets(&self, rows: &[u32]) -> Vec<Packet<'a>> {
        rows.iter().map(|row| self.flood[*row as usize]).collect()
    }

    /// Tests for everything that these rows of the flood have in common.
    pub(super) fn hull(&self, rows: &[u32], effort: Effort) -> Vec<Test> {
        let mut tests: Vec<Test> = self
            .headers()
            .iter()
            .filter_map(|column| {
                let counts = column.count_flood(rows);
                if counts.iter().sum::<u32>() < rows.len() as u32 {
                    return None;
                }
                let values = counts
                    .iter()
                    .zip(&column.values)
                    .filter(|(count, _)| **count > 0);
                let values: Vec<u128> = values.map(|(_, value)| *value).collect();
                Test::of_values(column.field, &values, rows.len(), effort)
            })
            .collect();
        tests.extend(bytes::shared(self.class, &self.packets(rows)));
        tests
    }

    /// The good packets among these rows that pass all tests.
    pub(super) fn passing(&self, tests: &[Test], rows: &[u32]) -> Vec<u32> {
        let passes = |row: &&u32| {
            let packet = &self.good[**row as usize];
            tests.iter().all(|test| test.takes(packet))
        };
        rows.iter().filter(passes).copied().collect()
    }

    /// The rows of the flood that pass all tests.
    pub(super) fn passing_flood(&self, tests: &[Test], rows: &[u32]) -> Vec<u32> {
        let passes = |row: &&u32| {
            let packet = &self.flood[**row as usize];
            tests.iter().all(|test| test.takes(packet))
        };
        rows.iter().filter(passes).copied().collect()
    }

    /// These rows of the flood, and the good packets that have in common with them what they have
    /// in common.
    pub(super) fn state(&self, flood: Vec<u32>, effort: Effort) -> State {
        let hull = self.hull(&flood, effort);
        let all: Vec<u32> = (0..self.good.len() as u32).collect();
        State {
            good: self.passing(&hull, &all),
            flood,
            chosen: Vec::new(),
            hull,
            earlier: Vec::new(),
        }
    }

    /// What remains of a state with one more test, of this column.
    pub(super) fn narrowed(
        &self,
        state: &State,
        column: usize,
        test: &Test,
        effort: Effort,
    ) -> State {
        let column = &self.columns[column];
        let takes: Vec<bool> = column
            .values
            .iter()
            .map(|value| test.takes_value(*value))
            .collect();
        let filter = |ranks: &[u32], rows: &[u32]| -> Vec<u32> {
            let is_in = |row: &&u32| {
                let rank = ranks[**row as usize] as usize;
                takes.get(rank).copied().unwrap_or(false)
            };
            rows.iter().filter(is_in).copied().collect()
        };
        let flood = filter(&column.flood, &state.flood);
        let hull = self.hull(&flood, effort);
        let good = self.passing(&hull, &filter(&column.good, &state.good));
        let mut chosen = state.chosen.clone();
        chosen.push(test.clone());
        State {
            flood,
            good,
            chosen,
            hull,
            earlier: [&state.earlier[..], &state.hull].concat(),
        }
    }

    /// A test that excludes the good packets of a state by a field in which they have a few values
    /// that no packet of the flood has.
    pub(super) fn exclusion(&self, state: &State) -> Option<Test> {
        let found = self.headers().iter().filter_map(|column| {
            if !matches!(column.field.role, Role::Stable | Role::Size) {
                return None;
            }
            let (flood, good) = (
                column.count_flood(&state.flood),
                column.count_good(&state.good),
            );
            let is_whole =
                |counts: &[u32], rows: &[u32]| counts.iter().sum::<u32>() as usize == rows.len();
            if !is_whole(&flood, &state.flood) || !is_whole(&good, &state.good) {
                return None;
            }
            let bad = |rank: &usize| good[*rank] > 0;
            let bad: Vec<usize> = (0..good.len()).filter(bad).collect();
            let is_apart = bad.len() <= VALUES_MAX && bad.iter().all(|rank| flood[*rank] == 0);
            is_apart.then_some((column, bad))
        });
        let (column, bad) = found.min_by_key(|(_, bad)| bad.len())?;
        let bad = bad.into_iter().map(|rank| column.values[rank]).collect();
        Some(Test::excluding(column.field, bad))
    }
}
