//! The entry of a program at tc's ingress, which gives the rules the packet as XDP has it.
//!
//! The stack has removed the outer VLAN tag: it is put back for the rules, by pushing a second one
//! onto it, which is removed again afterwards. And the headers are made linear, so that they can be
//! accessed directly.

use bpf::asm::Asm;
use bpf::ebpf::Reg::{R0, R1, R2, R3, R5, R6, R7, R8};
use bpf::ebpf::{Alu, Cond, Helper, Width};
use bpf::translate::DirectHook;

/// Bytes that are made linear: Ethernet with two tags, IPv6, and TCP with all options.
const LINEAR: i32 = 14 + 8 + 40 + 60;
/// Field offsets in `struct __sk_buff`.
const LEN: i16 = 0;
const VLAN_PRESENT: i16 = 20;

/// Emits the entry, which calls the code after it as a function. `indirect`: the process may add a
/// variable to a packet pointer.
pub(super) fn emit_entry(a: &mut Asm, indirect: bool) {
    let (plain, linear, rules, out) = (a.label(), a.label(), a.label(), a.label());
    a.mov(R6, R1);
    a.load(Width::W, R7, R6, VLAN_PRESENT);
    a.jump_if(Cond::Eq, R7, 0, plain);
    a.mov(R2, i32::from(0x8100_u16.to_be()));
    a.mov(R3, 0);
    a.call(Helper::SkbVlanPush);
    a.jump_if(Cond::Eq, R0, 0, plain);
    // No memory: the rules see the packet without its tag.
    a.mov(R7, 0);
    a.bind(plain);
    let short = a.label();
    a.load(Width::W, R5, R6, LEN);
    a.jump_if(Cond::Le, R5, LINEAR, short);
    a.mov(R5, LINEAR);
    a.bind(short);
    a.load(Width::W, R2, R6, DirectHook::Tc.data());
    a.load(Width::W, R3, R6, DirectHook::Tc.data_end());
    match indirect {
        true => a.alu(Alu::Add, R2, R5),
        false => a.alu(Alu::Add, R2, LINEAR),
    }
    a.jump_if(Cond::Le, R2, R3, linear);
    a.mov(R1, R6);
    a.mov(R2, R5);
    // If it fails, the rules load the bytes by a helper.
    a.call(Helper::SkbPullData);
    a.bind(linear);
    a.mov(R1, R6);
    a.call_local(rules);
    a.jump_if(Cond::Eq, R7, 0, out);
    a.mov(R8, R0);
    a.mov(R1, R6);
    a.call(Helper::SkbVlanPop);
    a.mov(R0, R8);
    a.bind(out);
    a.exit();
    a.bind(rules);
}
