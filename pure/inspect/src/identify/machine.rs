//! Deterministic automaton for the patterns of one transport, built by subset construction.
//!
//! All patterns begin at the first byte, so a state is the set of those that still match, at one
//! depth. Patterns that have matched completely are kept: their rows are checked. Bytes that no
//! pattern distinguishes share a column.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::pattern::{Byte, Pattern};
use super::{Found, Row, Rows, check};
use crate::decode::{First, Match};

/// Initial state.
pub(super) const START: u16 = 0;
/// State in which nothing matches any more.
pub(super) const DEAD: u16 = u16::MAX;

/// Information about a state.
struct State {
    /// Rows with a completely matched pattern.
    matched: Rows,
    /// Whether patterns are still open, so that more bytes are needed.
    is_open: bool,
}

/// The automaton.
pub(super) struct Machine {
    classes: [u8; 256],
    class_count: usize,
    /// Next states, by state and class.
    next: Vec<u16>,
    states: Vec<State>,
}

/// A state during construction: depth, open patterns, rows that have matched.
type Key = (usize, Vec<usize>, Rows);

impl Machine {
    pub(super) fn new(patterns: &[(usize, &Pattern)]) -> Machine {
        let (classes, class_count) = classes(patterns);
        let mut machine = Machine {
            classes,
            class_count,
            next: Vec::new(),
            states: Vec::new(),
        };
        let mut known: BTreeMap<Key, u16> = BTreeMap::new();
        let mut keys = Vec::new();
        let start = settle(0, (0..patterns.len()).collect(), Rows::NONE, patterns);
        machine.state(start, &mut known, &mut keys);
        // A representative byte of each class.
        let mut sample = [0_u8; 256];
        for byte in 0..=255_u8 {
            sample[usize::from(classes[usize::from(byte)])] = byte;
        }
        let mut at = 0;
        while let Some((depth, open, matched)) = keys.get(at).cloned() {
            for (class, byte) in sample.iter().take(class_count).enumerate() {
                let fits = |index: &&usize| {
                    let wanted = patterns.get(**index).and_then(|(_, p)| p.at(depth));
                    wanted.is_some_and(|wanted| wanted.fits(*byte))
                };
                if matched.is_empty() && !open.iter().any(|index| fits(&index)) {
                    continue;
                }
                let still = open.iter().filter(fits).copied().collect();
                let key = settle(depth + 1, still, matched, patterns);
                let target = machine.state(key, &mut known, &mut keys);
                machine.next[at * class_count + class] = target;
            }
            at += 1;
        }
        machine
    }

    /// The number of a state, which is added if new.
    fn state(&mut self, key: Key, known: &mut BTreeMap<Key, u16>, keys: &mut Vec<Key>) -> u16 {
        if let Some(state) = known.get(&key) {
            return *state;
        }
        let number = self.states.len() as u16;
        assert!(
            number < DEAD,
            "the patterns of all rows need too many states"
        );
        self.states.push(State {
            matched: key.2,
            is_open: !key.1.is_empty(),
        });
        self.next.resize(self.next.len() + self.class_count, DEAD);
        keys.push(key.clone());
        known.insert(key, number);
        number
    }

    #[inline]
    pub(super) fn step(&self, state: u16, byte: u8) -> u16 {
        let class = usize::from(self.classes[usize::from(byte)]);
        let at = usize::from(state) * self.class_count + class;
        self.next.get(at).copied().unwrap_or(DEAD)
    }

    /// Whether more bytes cannot change the state.
    #[inline]
    pub(super) fn is_settled(&self, state: u16) -> bool {
        let state = self.states.get(usize::from(state));
        state.is_none_or(|state| !state.is_open)
    }

    /// Whether a state has rows to check, except those that have refused.
    #[inline]
    pub(super) fn asks(&self, state: u16, refused: Rows) -> bool {
        let state = self.states.get(usize::from(state));
        state.is_some_and(|state| !state.matched.without(refused).is_empty())
    }

    /// Checks the rows that have matched, in the order of the table, except those that have
    /// refused.
    #[inline]
    pub(super) fn ask(&self, state: u16, first: &First<'_>, refused: &mut Rows) -> Found {
        let Some(state) = self.states.get(usize::from(state)) else {
            return Found::Unknown;
        };
        let mut found = match state.is_open {
            true => Found::Undecided,
            false => Found::Unknown,
        };
        let mut left = state.matched.without(*refused);
        while let Some(row) = left.pop() {
            match check(row, first) {
                Match::No => refused.insert(row),
                Match::Maybe => found = Found::Undecided,
                Match::Yes => return Found::Known(Row(row as u16)),
            }
        }
        found
    }

    pub(super) fn state_count(&self) -> usize {
        self.states.len()
    }

    pub(super) fn memory_len(&self) -> usize {
        size_of::<Machine>()
            + self.next.capacity() * size_of::<u16>()
            + self.states.capacity() * size_of::<State>()
    }
}

/// Moves rows whose patterns end at this depth to those that have matched.
fn settle(depth: usize, open: Vec<usize>, matched: Rows, patterns: &[(usize, &Pattern)]) -> Key {
    let mut matched = matched;
    let mut left = Vec::new();
    for index in open {
        let Some((row, pattern)) = patterns.get(index) else {
            continue;
        };
        match pattern.len() > depth {
            true => left.push(index),
            false => matched.insert(*row),
        }
    }
    // A row that has matched is checked at every byte: its other patterns add nothing.
    left.retain(|index| {
        patterns
            .get(*index)
            .is_some_and(|(row, _)| !matched.has(*row))
    });
    let depth = if left.is_empty() { 0 } else { depth };
    (depth, left, matched)
}

/// Classes of bytes that all positions of all patterns treat alike.
fn classes(patterns: &[(usize, &Pattern)]) -> ([u8; 256], usize) {
    let mut classes = [0_u8; 256];
    let mut count = 1;
    let mut seen: Vec<Byte> = Vec::new();
    for (_, pattern) in patterns {
        for wanted in (0..pattern.len()).filter_map(|at| pattern.at(at)) {
            if seen.contains(&wanted) {
                continue;
            }
            seen.push(wanted);
            // Each class is split into bytes that match and bytes that do not.
            let mut split: [Option<u8>; 256] = [None; 256];
            let mut has_other = [false; 256];
            for byte in 0..=255_u8 {
                has_other[usize::from(classes[usize::from(byte)])] |= !wanted.fits(byte);
            }
            for byte in 0..=255_u8 {
                let own = usize::from(classes[usize::from(byte)]);
                if !wanted.fits(byte) || !has_other[own] {
                    continue;
                }
                let new = *split[own].get_or_insert_with(|| {
                    count += 1;
                    (count - 1) as u8
                });
                classes[usize::from(byte)] = new;
            }
        }
    }
    (classes, count)
}
