//! Emits blocks as instructions; jumps of more than 255 go through a `ja`.

use std::ops::Range;

use bpf::cbpf::{Insn, Program};

use super::Options;
use super::arith::{LDX_MEM, ST};
use super::block::{Graph, LDX_MSH, REFUSE, TAKE};
use super::parse::too_long;
use crate::{Error, Result};

const JA: u16 = 0x05;
const RET: u16 = 0x06;

/// Contents of A and X at the start of a block, identified by the load that produced them.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Unvisited,
    Load(Vec<Insn>),
}

/// Emits the program; `whole` is the range of the text, for the error about a program that is too
/// long.
pub(super) fn emit(
    graph: &Graph,
    start: usize,
    options: &Options,
    whole: Range<usize>,
) -> Result<Program> {
    let snaplen = options.snaplen;
    let loads = loads(graph, start, options.optimize);
    let count_max = options.insn_count_max();
    // Backwards, so that every target is placed before the jump: positions count from the end.
    let mut out: Vec<Insn> = vec![Insn::new(RET, 0, 0, 0), Insn::new(RET, 0, 0, snaplen)];
    let mut place = vec![0usize; graph.blocks.len()];
    (place[REFUSE], place[TAKE]) = (1, 2);
    for at in TAKE + 1..=start.max(TAKE) {
        let Some(load) = &loads[at] else { continue };
        let block = &graph.blocks[at];
        let (yes, no) = jumps(&mut out, place[block.yes], place[block.no]);
        out.push(Insn::new(block.test.jump, yes, no, block.test.k));
        out.extend(load.iter().rev());
        place[at] = out.len();
        if out.len() > count_max {
            break;
        }
    }
    if start <= TAKE {
        out = vec![Insn::new(
            RET,
            0,
            0,
            if start == TAKE { snaplen } else { 0 },
        )];
    }
    if out.len() > count_max {
        return Err(too_long(whole, options));
    }
    out.reverse();
    Program::long(out)
        .map_err(|error| Error::new(whole, format!("the program is invalid: {error}")))
}

/// The two distances of the next jump to emit, through trampolines if they are long.
fn jumps(out: &mut Vec<Insn>, yes: usize, no: usize) -> (u8, u8) {
    // Two more instructions may come in between.
    let is_far = |target: usize| out.len() + 2 - target > 255;
    let (yes_far, no_far) = (is_far(yes), is_far(no));
    let mut trampoline = |target: usize, far: bool| {
        if !far {
            return target;
        }
        let skip = out.len() - target;
        out.push(Insn::new(JA, 0, 0, skip as u32));
        out.len()
    };
    let yes = trampoline(yes, yes_far);
    let no = trampoline(no, no_far);
    ((out.len() - yes) as u8, (out.len() - no) as u8)
}

/// The loads that each reachable block still needs.
fn loads(graph: &Graph, start: usize, share: bool) -> Vec<Option<Vec<Insn>>> {
    let mut held = vec![Held::Unvisited; graph.blocks.len()];
    let mut loads = vec![None; graph.blocks.len()];
    if start > TAKE {
        held[start] = Held::Load(Vec::new());
    }
    for at in (TAKE + 1..=start).rev() {
        let Held::Load(before) = &held[at] else {
            continue;
        };
        let block = &graph.blocks[at];
        let load = &block.test.load;
        // A load that writes scratch memory must run in full, and what it reads may have changed.
        let is_whole = block.test.is_step && (writes(load) || writes(before));
        let shared = match share && !is_whole {
            true => common(before, load),
            false => 0,
        };
        loads[at] = Some(load[shared..].to_vec());
        for next in [block.yes, block.no] {
            held[next] = match &held[next] {
                Held::Unvisited => Held::Load(load.clone()),
                Held::Load(other) if other == load => continue,
                Held::Load(other) => Held::Load(header(other, load)),
            };
        }
    }
    loads
}

fn writes(load: &[Insn]) -> bool {
    load.iter().any(|insn| insn.code == ST)
}

/// Number of instructions at the start of `load` that `before` has already executed.
fn common(before: &[Insn], load: &[Insn]) -> usize {
    if before.is_empty() || load.is_empty() {
        0
    } else if load.starts_with(before) {
        before.len()
    } else if before[0] == load[0] && is_x(load[0]) && keeps_x(before) {
        1
    } else {
        0
    }
}

/// The load of the header length into X, if two load sequences share it and nothing else. After a
/// sequence that writes scratch memory, X may differ from the word it was loaded from.
fn header(a: &[Insn], b: &[Insn]) -> Vec<Insn> {
    let agree = common(a, b) > 0 && common(b, a) > 0 && !writes(a) && !writes(b);
    if agree && is_x(a[0]) && keeps_x(a) && keeps_x(b) {
        return vec![a[0]];
    }
    Vec::new()
}

/// Whether an instruction loads X with a value that is the same until scratch memory is written.
fn is_x(insn: Insn) -> bool {
    matches!(insn.code, LDX_MSH | LDX_MEM)
}

/// Whether X is not modified after the first instruction.
fn keeps_x(load: &[Insn]) -> bool {
    load[1..]
        .iter()
        .all(|insn| insn.code != 0x07 && insn.code & 7 != 1)
}

#[cfg(test)]
mod tests {
    use super::super::arith::ADD;
    use super::*;

    #[test]
    fn x_is_not_reused_after_its_word_was_written() {
        let load = |code, k| Insn::new(code, 0, 0, k);
        let reads = [load(LDX_MEM, 15), load(0x50, 14)];
        let more = [load(LDX_MEM, 15), load(0x50, 15)];
        let writes = [
            load(LDX_MEM, 15),
            load(0x60, 15),
            load(ADD, 1),
            load(ST, 15),
        ];
        assert_eq!(header(&reads, &more), [reads[0]]);
        assert_eq!(header(&reads, &writes), []);
        assert_eq!(header(&writes, &reads), []);
    }
}
