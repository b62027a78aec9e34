//! Searches the conjunction of tests that takes most packets of a flood and no good one.
//!
//! What packets have in common costs nothing: those tests always hold. If good packets pass them,
//! the flood is narrowed by the tests that lose little of it for what they exclude, a few at a time
//! (a beam search), until no good packet is left: what is lost are good packets among the flood's,
//! or another part of the flood, for which the search is repeated.

use super::propose::{MOST, Proposal, is_chance, proposals, splits};
use super::table::{State, Table};
use super::test::{Effort, Test};

/// Maximum number of tests that narrow a flood.
const DEPTH_MAX: usize = 3;
/// Number of states that are narrowed further.
const BEAM: usize = 3;
/// How much of the flood a test may lose to exclude all good packets: as many proposals are tried
/// for each.
const PRICES: [f64; 3] = [0.5, 2.0, 8.0];
const TRIED: usize = 3;
/// What an exclusion of good packets' values costs, as a share of the flood: properties of the
/// flood are better.
const EXCLUSION_COST: f64 = 0.02;
/// Logarithmic odds against chance, at least, and for each choice: of one value in all columns.
const ODDS: f64 = 4.6;
const ODDS_PER_CHOICE: f64 = 10.0;

/// The best state without good packets among these rows.
pub(super) fn best(table: &Table<'_>, rows: &[u32], effort: Effort, least: usize) -> Option<State> {
    let mut search = Search {
        table,
        effort,
        least: least.max(1),
        all: rows.len(),
        good_count: 0,
        best: None,
    };
    let start = table.state(rows.to_vec(), effort);
    search.good_count = start.good.len();
    let whole = search.take(start);
    search.narrow(Vec::from_iter(whole.clone()), DEPTH_MAX);
    if search.best.is_none()
        && let Some(whole) = whole
    {
        // No test alone has fewer good packets: try the parts with one value of a field.
        let mut parts = Vec::new();
        for (column, test) in splits(table, &whole) {
            let state = table.narrowed(&whole, column, &test, effort);
            parts.extend(search.take(state));
        }
        search.narrow(leading(parts, rows.len(), search.good_count), DEPTH_MAX - 1);
    }
    search.best.map(|(_, state)| state)
}

struct Search<'a> {
    table: &'a Table<'a>,
    effort: Effort,
    least: usize,
    /// Number of rows at the start.
    all: usize,
    good_count: usize,
    /// The best state without good packets, and its value.
    best: Option<(f64, State)>,
}

impl Search<'_> {
    /// Takes a state that has no good packets, or returns it.
    fn take(&mut self, state: State) -> Option<State> {
        if state.flood.len() < self.least || self.is_beaten(&state) {
            return None;
        }
        if state.good.is_empty() {
            self.offer(state);
            return None;
        }
        let excluded = self.table.exclusion(&state).map(|test| {
            let mut done = state.clone();
            done.chosen.push(test);
            done.good.clear();
            done
        });
        if let Some(done) = excluded {
            self.offer(done);
        }
        Some(state)
    }

    fn is_beaten(&self, state: &State) -> bool {
        let best = self.best.as_ref().map_or(0.0, |(value, _)| *value);
        state.flood.len() as f64 <= best
    }

    fn offer(&mut self, state: State) {
        let share = state.flood.len() as f64 / self.all as f64;
        let choices: usize = state.chosen.iter().map(Test::choice_count).sum();
        let odds = ODDS + ODDS_PER_CHOICE * choices as f64;
        if choices > 0 && share < MOST && is_chance(share, self.good_count, odds) {
            return;
        }
        let is_exclusion = state.chosen.iter().any(Test::is_exclusion);
        let cost = if is_exclusion { EXCLUSION_COST } else { 0.0 };
        let value = (1.0 - cost) * state.flood.len() as f64;
        if self.best.as_ref().is_none_or(|(best, _)| value > *best) {
            self.best = Some((value, state));
        }
    }

    fn narrow(&mut self, mut frontier: Vec<State>, depth: usize) {
        for _ in 0..depth {
            let mut next: Vec<State> = Vec::new();
            for state in &frontier {
                if self.is_beaten(state) {
                    continue;
                }
                for proposal in chosen(proposals(self.table, state, self.effort)) {
                    let (column, test) = (proposal.column, &proposal.test);
                    let state = self.table.narrowed(state, column, test, self.effort);
                    next.extend(self.take(state));
                }
            }
            next.retain(|state| !self.is_beaten(state));
            frontier = leading(next, self.all, self.good_count);
        }
    }
}

/// The best proposals at each price, each once.
fn chosen(mut all: Vec<Proposal>) -> Vec<Proposal> {
    let mut found: Vec<Proposal> = Vec::new();
    for price in PRICES {
        let value = |proposal: &Proposal| proposal.excluded - price * proposal.lost;
        // Stable: of equal ones header fields come first.
        all.sort_by(|a, b| value(b).total_cmp(&value(a)));
        let mut taken = 0;
        while taken < TRIED && !all.is_empty() {
            let next = all.remove(0);
            let is_same = |other: &Proposal| other.column == next.column && other.test == next.test;
            if !found.iter().any(is_same) {
                found.push(next);
                taken += 1;
            }
        }
    }
    found
}

/// The states with most of the flood and fewest good packets, each once.
fn leading(mut states: Vec<State>, flood_count: usize, good_count: usize) -> Vec<State> {
    let value = |state: &State| {
        let share = |count: usize, of: usize| count as f64 / of.max(1) as f64;
        share(state.flood.len(), flood_count) - 0.5 * share(state.good.len(), good_count)
    };
    states.sort_by(|a, b| value(b).total_cmp(&value(a)));
    states.dedup_by(|a, b| a.flood == b.flood && a.good == b.good);
    states.truncate(BEAM);
    states
}
