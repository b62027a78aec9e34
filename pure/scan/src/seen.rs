//! Detects repeated answers: each is reported exactly once, while the table has room.

use std::collections::HashSet;

use crate::answer::{Answer, State};
use crate::cookie::ProbeTarget;

/// Result of looking up an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenBefore {
    /// New.
    New,
    /// Seen before.
    Again,
    /// Unknown, because the table is full.
    Unknown,
}

/// A bounded set of answers.
pub struct Seen {
    table: HashSet<(ProbeTarget, State)>,
    len_max: usize,
}

impl Seen {
    /// Creates a table for at most `len_max` answers.
    pub fn new(len_max: usize) -> Self {
        Self {
            table: HashSet::new(),
            len_max,
        }
    }

    /// Adds an answer. A port that is first filtered and then open counts as two.
    pub fn note(&mut self, answer: &Answer) -> SeenBefore {
        let key = (answer.target, answer.state);
        if self.table.contains(&key) {
            return SeenBefore::Again;
        }
        if self.table.len() >= self.len_max {
            return SeenBefore::Unknown;
        }
        self.table.insert(key);
        SeenBefore::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Evidence;
    use crate::probe::Probe;

    #[test]
    fn each_answer_is_new_once_until_the_table_is_full() {
        let mut seen = Seen::new(3);
        let answer = |last: u8, state| {
            let addr = [192, 0, 2, last].into();
            let (probe, port) = (Probe::Syn, 80);
            Answer {
                target: ProbeTarget { addr, probe, port },
                state,
                evidence: Evidence::Reset,
                ttl: 64,
                from: addr,
                payload: (0, 0),
                sent_us: None,
            }
        };
        let first = answer(1, State::Filtered);
        assert_eq!(seen.note(&first), SeenBefore::New);
        assert_eq!(seen.note(&first), SeenBefore::Again);
        assert_eq!(seen.note(&answer(1, State::Open)), SeenBefore::New);
        assert_eq!(seen.note(&answer(2, State::Open)), SeenBefore::New);
        assert_eq!(seen.note(&answer(3, State::Open)), SeenBefore::Unknown);
        assert_eq!(seen.note(&first), SeenBefore::Again);
    }
}
