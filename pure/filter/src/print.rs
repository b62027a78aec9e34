//! Prints programs in the formats of other tools.

use std::fmt::Write;

use bpf::cbpf::Insn;

/// Maximum number of instructions in iptables' `-m bpf --bytecode` (`XT_BPF_MAX_NUM_INSTR`).
pub const IPTABLES_MAX: usize = 64;

/// Formats a program as `tcpdump -dd` does: rows of a C array.
pub fn c_array(insns: &[Insn]) -> String {
    let mut text = String::new();
    for i in insns {
        let _ = writeln!(
            text,
            "{{ {:#x}, {}, {}, {:#010x} }},",
            i.code, i.jt, i.jf, i.k
        );
    }
    text
}

/// Formats a program for iptables' `-m bpf --bytecode`, like `tcpdump -ddd` but on one line without
/// its end: the number of instructions, then code, jt, jf and k of each.
pub fn bytecode(insns: &[Insn]) -> String {
    let mut text = insns.len().to_string();
    for i in insns {
        let _ = write!(text, ",{} {} {} {}", i.code, i.jt, i.jf, i.k);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_tcpdump() {
        let insns = [Insn::new(0x15, 0, 8, 0x86dd), Insn::new(6, 0, 0, 262_144)];
        assert_eq!(
            c_array(&insns),
            "{ 0x15, 0, 8, 0x000086dd },\n{ 0x6, 0, 0, 0x00040000 },\n"
        );
        assert_eq!(bytecode(&insns), "2,21 0 8 34525,6 0 0 262144");
    }
}
