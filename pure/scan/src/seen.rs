//! The verdict on each port: every answer is reported once, and none that another one overrules,
//! while the table has room.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::answer::{Answer, State};
use crate::cookie::ProbeTarget;

/// Result of looking up an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenBefore {
    /// The first of its port, or it proves more than those before.
    New,
    /// Seen before.
    Again,
    /// Another answer of the port proves more: a reset after a SYN and ACK ends a connection, and
    /// does not close the port.
    Overruled,
    /// Unknown, because the table is full.
    Unknown,
}

/// How much an answer of this state proves. Whoever answers a SYN listens, whatever else arrives;
/// and an answer of the host counts for more than an error of a router.
fn weight(state: State) -> u8 {
    match state {
        State::Filtered => 0,
        State::Closed | State::Unfiltered => 1,
        State::Open | State::Up => 2,
    }
}

/// A bounded set of ports and their states.
pub struct Seen {
    table: HashMap<ProbeTarget, State>,
    len_max: usize,
}

impl Seen {
    /// Creates a table for at most `len_max` ports.
    pub fn new(len_max: usize) -> Self {
        Self {
            table: HashMap::new(),
            len_max,
        }
    }

    /// Adds an answer. A port that is first filtered and then open is new twice; one that is first
    /// open and then closed is open.
    pub fn note(&mut self, answer: &Answer) -> SeenBefore {
        let is_full = self.table.len() >= self.len_max;
        match self.table.entry(answer.target) {
            Entry::Vacant(_) if is_full => SeenBefore::Unknown,
            Entry::Vacant(entry) => {
                entry.insert(answer.state);
                SeenBefore::New
            }
            Entry::Occupied(entry) if *entry.get() == answer.state => SeenBefore::Again,
            Entry::Occupied(mut entry) => match weight(answer.state) > weight(*entry.get()) {
                true => {
                    entry.insert(answer.state);
                    SeenBefore::New
                }
                false => SeenBefore::Overruled,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Evidence;
    use crate::probe::Probe;

    fn answer(last: u8, state: State) -> Answer {
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
    }

    #[test]
    fn each_answer_is_new_once_until_the_table_is_full() {
        let mut seen = Seen::new(2);
        let first = answer(1, State::Filtered);
        assert_eq!(seen.note(&first), SeenBefore::New);
        assert_eq!(seen.note(&first), SeenBefore::Again);
        assert_eq!(seen.note(&answer(1, State::Open)), SeenBefore::New);
        assert_eq!(seen.note(&answer(2, State::Open)), SeenBefore::New);
        assert_eq!(seen.note(&answer(3, State::Open)), SeenBefore::Unknown);
        assert_eq!(seen.note(&first), SeenBefore::Overruled);
        assert_eq!(seen.note(&answer(1, State::Open)), SeenBefore::Again);
    }

    #[test]
    fn a_port_has_one_verdict_and_only_a_better_proof_changes_it() {
        use State::{Closed, Filtered, Open, Unfiltered};
        for (states, reported) in [
            (&[Open, Closed, Filtered, Open][..], &[Open][..]),
            (&[Closed, Filtered, Closed], &[Closed]),
            (
                &[Filtered, Closed, Filtered, Open, Closed],
                &[Filtered, Closed, Open],
            ),
            (&[Unfiltered, Filtered], &[Unfiltered]),
        ] {
            let mut seen = Seen::new(8);
            let is_new = |state: &&State| seen.note(&answer(1, **state)) == SeenBefore::New;
            let new: Vec<State> = states.iter().filter(is_new).copied().collect();
            assert_eq!(new, reported, "{states:?}");
        }
    }
}
