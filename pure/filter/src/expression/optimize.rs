//! Jump threading: an edge to a test whose outcome is known on that edge is redirected to that
//! test's successor.
//!
//! The facts known at a block are those known on all edges to it. A test is skipped only if the
//! same value was loaded before, so a truncated packet is rejected exactly as without the pass.

use std::collections::{BTreeSet, HashMap};

use bpf::cbpf::Insn;

use super::block::{Block, Graph, JEQ, JGE, JGT, JSET, LD_IMM, REFUSE, TAKE, Test};

/// Maximum number of facts kept per block: the time of the pass is proportional to the number of
/// blocks times this.
const FACTS_MAX: usize = 64;

type Fact = (usize, u16, u32, bool);
type Facts = BTreeSet<Fact>;

/// Threads jumps and merges equal blocks, twice: each enables more of the other.
pub(super) fn optimize(graph: &mut Graph, mut start: usize) -> usize {
    for _ in 0..2 {
        start = thread(graph, start);
        start = merge(graph, start);
    }
    start
}

/// Redirects edges to the first of equal blocks, and those to blocks that reject every packet to
/// the rejection.
fn merge(graph: &mut Graph, start: usize) -> usize {
    let mut known: HashMap<Block, usize> = HashMap::new();
    let mut place: Vec<usize> = (0..graph.blocks.len()).collect();
    for at in TAKE + 1..=start {
        let block = &mut graph.blocks[at];
        (block.yes, block.no) = (place[block.yes], place[block.no]);
        // A load of a truncated packet rejects it, too.
        if (block.yes, block.no) == (REFUSE, REFUSE) {
            place[at] = REFUSE;
            continue;
        }
        place[at] = *known.entry(block.clone()).or_insert(at);
    }
    place[start]
}

fn thread(graph: &mut Graph, start: usize) -> usize {
    let mut values: HashMap<Vec<Insn>, usize> = HashMap::new();
    let ids: Vec<usize> = graph
        .blocks
        .iter()
        .enumerate()
        .map(|(at, block)| {
            if block.test.is_step {
                return usize::MAX - at;
            }
            let next = values.len();
            *values.entry(block.test.load.clone()).or_insert(next)
        })
        .collect();
    let start = follow(graph, &ids, start, &Facts::new());
    let mut facts: Vec<Option<Facts>> = vec![None; graph.blocks.len()];
    if start > TAKE {
        facts[start] = Some(Facts::new());
    }
    for at in (TAKE + 1..=start).rev() {
        let Some(known) = facts[at].take() else {
            continue;
        };
        for outcome in [true, false] {
            let block = &graph.blocks[at];
            let mut known = known.clone();
            if !block.test.is_step && known.len() < FACTS_MAX {
                known.insert((ids[at], block.test.jump, block.test.k, outcome));
            }
            let next = if outcome { block.yes } else { block.no };
            let next = follow(graph, &ids, next, &known);
            if outcome {
                graph.blocks[at].yes = next;
            } else {
                graph.blocks[at].no = next;
            }
            if next > TAKE {
                match &mut facts[next] {
                    Some(before) => before.retain(|fact| known.contains(fact)),
                    none => *none = Some(known),
                }
            }
        }
    }
    start
}

fn follow(graph: &Graph, ids: &[usize], mut at: usize, known: &Facts) -> usize {
    while at > TAKE {
        let block = &graph.blocks[at];
        at = match decided(&block.test, ids[at], known) {
            Some(true) => block.yes,
            Some(false) => block.no,
            None => return at,
        };
    }
    at
}

fn decided(test: &Test, value: usize, known: &Facts) -> Option<bool> {
    if test.is_step {
        return None;
    }
    if let [load] = test.load[..]
        && load.code == LD_IMM
    {
        return outcome(test.jump, load.k, test.k);
    }
    // The bounds of the value, and bits that are 0.
    let (mut least, mut most, mut clear) = (0, u32::MAX, 0);
    let mut is_loaded = false;
    for &(_, jump, k, was) in known.range((value, 0, 0, false)..(value + 1, 0, 0, false)) {
        is_loaded = true;
        if jump == test.jump && k == test.k {
            return Some(was);
        }
        match (jump, was) {
            (JEQ, true) => return outcome(test.jump, k, test.k),
            (JGT, true) => least = least.max(k.saturating_add(1)),
            (JGT, false) => most = most.min(k),
            (JGE, true) => least = least.max(k),
            (JGE, false) => most = most.min(k.saturating_sub(1)),
            (JSET, false) => clear |= k,
            // Some bit of these is set.
            (JSET, true) if test.jump == JEQ && test.k & k == 0 => return Some(false),
            (JSET, true) if test.jump == JSET && test.k & k == k => return Some(true),
            _ => {}
        }
    }
    if !is_loaded {
        return None;
    }
    most = most.min(!clear);
    match test.jump {
        JEQ if test.k < least || test.k > most || test.k & clear != 0 => Some(false),
        JSET if test.k & !clear == 0 => Some(false),
        JGT | JGE => {
            let (low, high) = (
                outcome(test.jump, least, test.k),
                outcome(test.jump, most, test.k),
            );
            low.filter(|_| low == high)
        }
        _ => None,
    }
}

fn outcome(jump: u16, a: u32, k: u32) -> Option<bool> {
    match jump {
        JEQ => Some(a == k),
        JGT => Some(a > k),
        JGE => Some(a >= k),
        JSET => Some(a & k != 0),
        _ => None,
    }
}
