//! Covers the flood's packets of one kind with clauses, one after another, each for those that the
//! ones before it do not match.
//!
//! A sample of a flood contains good packets as well. What is as frequent among the flood's packets
//! as such a mixture explains, and differs from good packets by nothing but addresses, ports,
//! lengths and TTL, is therefore not covered.

use super::bytes;
use super::packet::{Role, TCP};
use super::propose::proposals;
use super::search;
use super::table::{State, Table};
use super::test::{Effort, Test};
use super::trim;

/// Maximum number of clauses for the packets of a kind.
const CLAUSES_MAX: usize = 8;
/// A sample may contain one good packet in so many.
const GOOD_ONE_IN: usize = 4;

/// Numbers of packets in all kinds.
pub(super) struct Totals {
    pub(super) flood: usize,
    pub(super) good: usize,
    /// Minimum number of packets of a clause.
    pub(super) least: usize,
}

/// Packets of the flood, and what they have in common.
pub(super) struct Leaf {
    pub(super) tests: Vec<Test>,
    pub(super) packet_count: usize,
    pub(super) is_fragile: bool,
    /// Good packets that pass the tests.
    pub(super) good_count: usize,
    /// Whether they may be good packets in the sample of the flood.
    pub(super) is_uncertain: bool,
}

/// The clauses, and the packets that remain.
pub(super) fn of(table: &Table<'_>, totals: &Totals) -> Vec<Leaf> {
    let mut rest: Vec<u32> = (0..table.flood.len() as u32).collect();
    let mut leaves = Vec::new();
    while leaves.len() < CLAUSES_MAX && rest.len() >= totals.least {
        let Some((tests, is_fragile)) = clause(table, &rest, totals) else {
            break;
        };
        let taken = table.passing_flood(&tests, &rest);
        rest.retain(|row| taken.binary_search(row).is_err());
        leaves.push(Leaf {
            packet_count: taken.len(),
            is_uncertain: is_explained(table, &tests, taken.len(), totals),
            tests,
            is_fragile,
            good_count: 0,
        });
    }
    if let Some(leaf) = other_sizes(table, &mut rest, leaves.first(), totals) {
        leaves.push(leaf);
    }
    if !rest.is_empty() {
        let tests = table.hull(&rest, Effort::Lasting);
        let all: Vec<u32> = (0..table.good.len() as u32).collect();
        leaves.push(Leaf {
            packet_count: rest.len(),
            good_count: table.passing(&tests, &all).len(),
            tests,
            is_fragile: false,
            is_uncertain: true,
        });
    }
    leaves
}

/// The packets that are like those of the first clause but for lengths and TTL, in which good
/// packets are: without the networks of good senders.
fn other_sizes(
    table: &Table<'_>,
    rest: &mut Vec<u32>,
    first: Option<&Leaf>,
    totals: &Totals,
) -> Option<Leaf> {
    let of_sizes = |test: &&Test| test.of().role == Role::Size;
    let shape: Vec<Test> = first?
        .tests
        .iter()
        .filter(|t| !of_sizes(t))
        .cloned()
        .collect();
    if table.passing_flood(&shape, rest).len() < totals.least {
        return None;
    }
    let all: Vec<u32> = (0..table.flood.len() as u32).collect();
    let state = senders(table, &table.passing_flood(&shape, &all))?;
    let tests = tests(table, &state)?;
    let taken = table.passing_flood(&tests, rest);
    if taken.len() < totals.least {
        return None;
    }
    rest.retain(|row| taken.binary_search(row).is_err());
    Some(Leaf {
        packet_count: taken.len(),
        tests,
        is_fragile: true,
        good_count: 0,
        is_uncertain: false,
    })
}

/// These rows without the networks that all good packets like them come from.
fn senders(table: &Table<'_>, rows: &[u32]) -> Option<State> {
    let state = table.state(rows.to_vec(), Effort::Lasting);
    if state.good.is_empty() {
        return None;
    }
    let mut found = proposals(table, &state, Effort::Fragile);
    found.retain(|proposal| proposal.test.is_of_senders());
    found.sort_by(|a, b| a.lost.total_cmp(&b.lost));
    let states = found.iter().map(|proposal| {
        let (column, test) = (proposal.column, &proposal.test);
        table.narrowed(&state, column, test, Effort::Lasting)
    });
    states.into_iter().find(|state| state.good.is_empty())
}

/// The tests that take most of these rows and no good packet, and whether they are fragile.
fn clause(table: &Table<'_>, rows: &[u32], totals: &Totals) -> Option<(Vec<Test>, bool)> {
    let lasting = search::best(table, rows, Effort::Lasting, totals.least);
    if let Some(state) = lasting {
        let state = trim::of(table, state, Effort::Lasting);
        return Some((tests(table, &state)?, false));
    }
    // Good packets among the flood's also differ from others in what changes from run to run.
    if is_explained(table, &[], rows.len(), totals) {
        return None;
    }
    if let Some(state) = senders(table, rows) {
        return Some((tests(table, &state)?, true));
    }
    let fragile = search::best(table, rows, Effort::Fragile, totals.least)?;
    Some((tests(table, &fragile)?, true))
}

/// Everything that the flood's packets of a state have in common, and what else excludes the good
/// ones; `None` if the tests of the state do not exclude all of them.
fn tests(table: &Table<'_>, state: &State) -> Option<Vec<Test>> {
    let mut tests = state.hull.clone();
    // What has one value is among it already.
    let is_more = |test: &&Test| test.is_positive_list() && test.choice_count() > 1;
    for chosen in state.chosen.iter().filter(is_more) {
        match tests.iter_mut().find(|test| test.is_of_same_bytes(chosen)) {
            Some(test) if test.is_list() => {}
            Some(test) if test.bits() >= chosen.bits() => {}
            Some(test) => *test = chosen.clone(),
            None => tests.push(chosen.clone()),
        }
    }
    let all: Vec<u32> = (0..table.good.len() as u32).collect();
    let mut bad = table.passing(&tests, &all);
    while !bad.is_empty() {
        // A list above may have taken the place of a test of the hull that excluded more.
        let others = state.hull.iter().chain(&state.chosen).chain(&state.earlier);
        let left = others
            .rev()
            .map(|test| (table.passing(std::slice::from_ref(test), &bad), test));
        let (left, test) = left.min_by_key(|(left, _)| left.len())?;
        if left.len() == bad.len() {
            return None;
        }
        tests.push(test.clone());
        bad = left;
    }
    for at in 0..tests.len() {
        if let Some(wider) = tests[at].widened(state.flood.len()) {
            let before = std::mem::replace(&mut tests[at], wider);
            if !table.passing(&tests, &all).is_empty() {
                tests[at] = before;
            }
        }
    }
    Some(tests)
}

/// Whether so many packets that pass these tests may be good ones in the sample of the flood.
fn is_explained(table: &Table<'_>, tests: &[Test], count: usize, totals: &Totals) -> bool {
    if totals.good == 0 {
        return false;
    }
    let is_syn = |test: &Test| test.field() == "TCP flags" && test.is_syn();
    let has_syn = tests.iter().any(is_syn);
    let options_end = tests.iter().find_map(Test::options_end).unwrap_or(0);
    let is_property = |test: &&Test| {
        let field = test.of();
        let is_of_sender = match field.name {
            bytes::NAME => bytes::is_of_options(field, options_end),
            // The window of a connection changes, that of a SYN does not.
            "window" => has_syn || field.class.protocol != TCP,
            _ => true,
        };
        field.role == Role::Stable && is_of_sender
    };
    let properties: Vec<Test> = tests.iter().filter(is_property).cloned().collect();
    let all: Vec<u32> = (0..table.good.len() as u32).collect();
    let alike = table.passing(&properties, &all).len();
    count * totals.good * GOOD_ONE_IN <= alike * totals.flood
}
