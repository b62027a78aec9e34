//! Structure of the generated code; the lab's tests run it in the kernel.

#[path = "../../tests/programs/mod.rs"]
mod programs;

use super::*;
use programs::TCP_PORT_80;
use std::string::ToString;
use std::vec::Vec;

fn program(insns: &[(u16, u8, u8, u32)]) -> Program {
    let insns = insns
        .iter()
        .map(|&(code, jt, jf, k)| cbpf::Insn::new(code, jt, jf, k))
        .collect();
    Program::new(insns).unwrap()
}

const OPTIONS: XdpOptions = XdpOptions {
    hook: crate::translate::DirectHook::Xdp,
    frags: false,
    indirect_by_helper: false,
    stack_top: 0,
};

fn tcp_port_80() -> Program {
    program(TCP_PORT_80)
}

/// Comparisons of a pointer in R4 with the packet's end in R3.
fn comparisons(insns: &[Insn]) -> Vec<i32> {
    let greater = 0x2d;
    insns
        .windows(2)
        .filter(|w| w[1].code == greater && w[1].dst == 4 && w[1].src == 3)
        .map(|w| w[0].imm)
        .collect()
}

#[test]
fn one_bounds_check_covers_every_path() {
    let insns = xdp_program(&tcp_port_80(), &OPTIONS).unwrap();
    // At the beginning what the shorter way, IPv4, needs: up to the fragment offset and the
    // protocol; IPv6 adds its ports. By X: the source port, then the destination port.
    assert_eq!(comparisons(&insns), [24, 56, 58, 16, 18]);
}

#[test]
fn filters_that_never_match_are_minimal() {
    for insns in [
        &[(0x06, 0, 0, 0)][..],
        &[(0x28, 0, 0, 12), (0x15, 0, 0, 7), (0x06, 0, 0, 0)],
        &[(0x28, 0, 0, 0xffff), (0x06, 0, 0, 1)],
        &[(0x01, 0, 0, 1), (0x48, 0, 0, 0x7fff_ffff), (0x16, 0, 0, 0)],
    ] {
        let insns = xdp_program(&program(insns), &OPTIONS).unwrap();
        assert_eq!(insns.len(), 4, "{insns:?}");
    }
}

/// Stack offsets of the 8-byte words that are set to zero.
fn zeroed(insns: &[Insn]) -> Vec<i16> {
    let store = 0x7a;
    let is_zero = |insn: &&Insn| insn.code == store && insn.dst == 10 && insn.imm == 0;
    insns.iter().filter(is_zero).map(|insn| insn.off).collect()
}

#[test]
fn scratch_memory_that_may_be_read_unset_is_zero() {
    let all: Vec<i16> = (0..MEMORY_WORDS as i16 / 2)
        .map(|pair| pair * 8 - MEMORY_WORDS as i16 * 4)
        .collect();
    // ldx M[3]; txa; ret a
    let unset = program(&[(0x61, 0, 0, 3), (0x87, 0, 0, 0), (0x16, 0, 0, 0)]);
    assert_eq!(zeroed(&xdp_program(&unset, &OPTIONS).unwrap()), all);
    assert_eq!(zeroed(&skb_program(&unset).unwrap()), all);
    // ld #1; st M[3]; ld M[3]; ret a
    let set = program(&[
        (0x00, 0, 0, 1),
        (0x02, 0, 0, 3),
        (0x60, 0, 0, 3),
        (0x16, 0, 0, 0),
    ]);
    assert!(zeroed(&xdp_program(&set, &OPTIONS).unwrap()).is_empty());
}

#[test]
fn backward_jumps_are_refused() {
    let endless = program(&[(0x05, 0, 0, u32::MAX), (0x06, 0, 0, 1)]);
    let error = xdp_program(&endless, &OPTIONS).unwrap_err();
    assert_eq!(error, TranslateError::Jump { at: 0 });
    assert_eq!(skb_program(&endless), Err(TranslateError::Jump { at: 0 }));
    // The interpreter ends it.
    assert_eq!(crate::vm_cbpf::run(&endless, &[0; 64], 64), 0);
}

#[test]
fn unknown_names_are_errors_that_name_them() {
    let vlan = program(&[(0x30, 0, 0, cbpf::ANCILLARY_BASE + 48), (0x16, 0, 0, 0)]);
    let error = xdp_program(&vlan, &OPTIONS).unwrap_err();
    assert!(error.to_string().contains("[vlanp]"), "{error}");
    assert!(skb_program(&vlan).is_ok());
    let network = program(&[(0x30, 0, 0, cbpf::NETWORK_BASE), (0x16, 0, 0, 0)]);
    assert_eq!(
        xdp_program(&network, &OPTIONS),
        Err(TranslateError::NetworkOffset { at: 0 })
    );
}

#[test]
fn code_is_generated_once_per_body() {
    let one = xdp_program(&tcp_port_80(), &OPTIONS).unwrap().len();
    let two = xdp_program(
        &tcp_port_80(),
        &XdpOptions {
            hook: crate::translate::DirectHook::Xdp,
            frags: true,
            ..OPTIONS
        },
    )
    .unwrap()
    .len();
    assert!(two > 2 * one && two < 5 * one, "{one} {two}");
}
