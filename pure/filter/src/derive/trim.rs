//! The core of a state: what remains when a minority is left out that differs from all others in
//! several fields at once, as good packets among those of a flood do.

use super::bytes;
use super::packet::Role;
use super::prefixes;
use super::propose::MOST;
use super::table::{Column, State, Table};
use super::test::{Effort, PACKETS_MIN, Test};

/// Maximum number of times a minority is left out.
const ROUNDS_MAX: usize = 3;
/// Maximum share of packets with rare values that are left out, and the number from which on one
/// packet is.
const OUTLIERS_ONE_IN: usize = 200;
const OUTLIERS_FROM: usize = 100;
/// By how many bits a test has to become narrower to count, and those of options and payload
/// together.
const BITS_MIN: f64 = 4.0;
const BYTES_BITS_MIN: f64 = 16.0;
/// Number of fields, besides the one of the test, that have to become narrower.
const FIELDS_MIN: usize = 2;

/// Leaves out minorities. Good packets are in no state that is narrower.
pub(super) fn of(table: &Table<'_>, mut state: State, effort: Effort) -> State {
    let before = state.flood.len();
    for (index, column) in table.headers().iter().enumerate() {
        if let Some(test) = without_outliers(column, &state.flood, before) {
            state = table.narrowed(&state, index, &test, effort);
        }
    }
    for _ in 0..ROUNDS_MAX {
        let found = table
            .headers()
            .iter()
            .enumerate()
            .filter_map(|(index, column)| {
                let test = usual(column, &state.flood)?;
                let next = table.narrowed(&state, index, &test, effort);
                let fields = narrower(&state.hull, &next.hull, &test);
                let is_worth_it = fields >= FIELDS_MIN && next.flood.len() < state.flood.len();
                is_worth_it.then_some((fields, next))
            });
        match found.max_by_key(|(fields, next)| (*fields, next.flood.len())) {
            Some((_, next)) => state = next,
            None => break,
        }
    }
    state
}

/// The value that all but one in some hundred packets have, of which there were so many.
fn without_outliers(column: &Column, rows: &[u32], before: usize) -> Option<Test> {
    let field = column.field;
    let is_property = matches!(field.role, Role::Stable | Role::Chosen | Role::Address);
    if !is_property || rows.len() < OUTLIERS_FROM {
        return None;
    }
    let counts = column.count_flood(rows);
    let (at, count) = counts.iter().enumerate().max_by_key(|(_, count)| **count)?;
    let lost = before - *count as usize;
    let is_usual = lost * OUTLIERS_ONE_IN <= before.max(OUTLIERS_ONE_IN);
    let has_others = (*count as usize) < rows.len();
    (is_usual && has_others).then(|| Test::one_of(field, vec![column.values[at]]))
}

/// A value or network that most rows have.
fn usual(column: &Column, rows: &[u32]) -> Option<Test> {
    let counts = column.count_flood(rows);
    let is_most = |count: u32| {
        let share = f64::from(count) / rows.len() as f64;
        count as usize >= PACKETS_MIN && share >= MOST && (count as usize) < rows.len()
    };
    let field = column.field;
    let (at, count) = counts.iter().enumerate().max_by_key(|(_, count)| **count)?;
    if field.role == Role::Volatile {
        return None;
    }
    if is_most(*count) {
        return Some(Test::one_of(field, vec![column.values[at]]));
    }
    if field.role != Role::Address {
        return None;
    }
    let found = prefixes::narrowest(&field, &column.values, &counts, MOST)?;
    is_most(found.count).then(|| Test::of_prefixes(field, vec![found.prefix], true))
}

/// Number of fields, but that of the test, whose tests became narrower.
fn narrower(before: &[Test], after: &[Test], test: &Test) -> usize {
    let is_bytes = |one: &&Test| one.field() == bytes::NAME;
    // The two lengths of a UDP packet are one property.
    let is_own = |one: &&Test| !is_bytes(one) && one.field() != "UDP length";
    let bits = |all: &[Test], name: &str| {
        all.iter()
            .filter(|one| one.field() == name)
            .map(Test::bits)
            .sum::<f64>()
    };
    let fields = after.iter().filter(is_own).filter(|one| {
        let name = one.field();
        name != test.field() && one.bits() >= bits(before, name) + BITS_MIN
    });
    let of_bytes = bits(after, bytes::NAME) - bits(before, bytes::NAME);
    fields.count() + usize::from(of_bytes >= BYTES_BITS_MIN)
}
