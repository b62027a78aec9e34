//! Formats the verifier's error: the relevant line, and the number of omitted lines.

use std::fmt::Write;

/// Whether a line of the log is never the reason: statistics, register states, instructions, notes
/// about the verification.
fn is_noise(line: &str) -> bool {
    let head = line.trim_start();
    let numbered = head.split_once(':').is_some_and(|(n, _)| {
        !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) // "12: (61) r2 = …"
    });
    numbered
        || head.is_empty()
        || head.starts_with(';')
        || [
            "processed ",
            "from ",
            "verification time",
            "stack depth",
            "mark_precise:",
            "func#",
        ]
        .iter()
        .any(|p| head.starts_with(p))
}

/// The last relevant line of a log, and the number of other lines; `None` for an empty log.
pub fn reason_line(log: &str) -> Option<(&str, usize)> {
    let lines = || log.lines().filter(|l| !l.trim().is_empty());
    let line = lines()
        .rev()
        .find(|l| !is_noise(l))
        .or_else(|| lines().next_back())?;
    Some((line.trim(), lines().count() - 1))
}

/// The instruction at which the verifier stopped, as it printed it, if the log has one.
pub fn last_instruction(log: &str) -> Option<&str> {
    log.lines().rev().map(str::trim).find(|line| {
        line.split_once(": (")
            .is_some_and(|(n, _)| n.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// One sentence: the verifier's message, the instruction, and what was omitted.
pub fn explain(log: &str) -> Option<String> {
    let (line, left_out) = reason_line(log)?;
    let mut text = format!("the verifier says \"{line}\"");
    if let Some(insn) = last_instruction(log) {
        let insn = insn.split_once(" ; ").map_or(insn, |(insn, _)| insn);
        let _ = write!(text, " at instruction {insn}");
    }
    if left_out > 0 {
        let _ = write!(text, " ({left_out} more lines left out)");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
0: R1=ctx() R10=fp0
0: (61) r2 = *(u32 *)(r1 +0)          ; R1=ctx() R2_w=pkt(r=0)
1: (71) r0 = *(u8 *)(r2 +0)
invalid access to packet, off=0 size=1, R2(id=0,off=0,r=0)
R2 offset is outside of the packet
processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 0

";

    #[test]
    fn the_reason_is_found_among_the_noise() {
        assert_eq!(
            reason_line(LOG),
            Some(("R2 offset is outside of the packet", 5))
        );
        assert_eq!(
            explain(LOG).unwrap(),
            "the verifier says \"R2 offset is outside of the packet\" at instruction 1: (71) r0 = \
             *(u8 *)(r2 +0) (5 more lines left out)"
        );
        assert_eq!(explain(""), None);
        assert_eq!(
            explain("one line").unwrap(),
            "the verifier says \"one line\""
        );
    }
}
