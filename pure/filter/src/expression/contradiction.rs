//! The error about an expression that no packet can match, with the clauses that contradict each
//! other.

use std::ops::Range;

use super::block::{Cond, Graph, REFUSE, TAKE};
use super::{Options, REJECTS_ALL, optimize, parse};
use crate::Error;

/// Maximum number of clauses, and of characters shown of each.
const CLAUSES_MAX: usize = 64;
const SHOWN_MAX: usize = 60;

/// The error, which marks the first clause that contradicts those before it. With a VLAN tag that
/// may be outside the packet, clauses have no meaning of their own.
pub(super) fn error(text: &str, options: &Options, has_live_vlan: bool) -> Error {
    let clauses = parse::clauses(text, options).unwrap_or_default();
    let whole = || {
        let why = "no packet of this link type can match";
        Error::new(0..text.len(), REJECTS_ALL).expected(why)
    };
    if has_live_vlan || clauses.len() > CLAUSES_MAX {
        return whole();
    }
    let Some(last) = (1..=clauses.len()).find(|&count| is_empty(clauses[..count].iter())) else {
        return whole();
    };
    let (before, last) = (&clauses[..last - 1], &clauses[last - 1]);
    let shown = |at: &Range<usize>| shown(&text[at.clone()]);
    let name = shown(&last.0);
    let why = if is_empty([last].into_iter()) {
        if before.is_empty() && clauses.len() == 1 {
            return whole();
        }
        format!("no packet of this link type matches \"{name}\"")
    } else {
        match before.iter().find(|one| is_empty([*one, last].into_iter())) {
            Some((at, _)) => format!("\"{}\" and \"{name}\" contradict each other", shown(at)),
            None => format!("\"{name}\" contradicts the clauses before it"),
        }
    };
    Error::new(last.0.clone(), REJECTS_ALL).expected(why)
}

fn shown(clause: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = clause.chars().take(SHOWN_MAX).map(plain).collect();
    if clause.chars().nth(SHOWN_MAX).is_some() {
        shown += "...";
    }
    shown
}

/// Whether no packet matches all clauses, as far as the optimizer finds.
fn is_empty<'a>(clauses: impl Iterator<Item = &'a (Range<usize>, Cond)>) -> bool {
    let mut graph = Graph::new();
    let all = Cond::All(clauses.map(|(_, cond)| cond.clone()).collect());
    let start = graph.add(&all, TAKE, REFUSE);
    optimize::optimize(&mut graph, start) == REFUSE
}
