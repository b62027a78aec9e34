//! The eBPF interpreter: runs programs without the kernel and without privileges (RFC 9669).
//!
//! It is as strict as the verifier where it can be at run time. These are faults: reading a
//! register or stack byte that was never written; an access outside the packet, the context, the
//! stack and map values; an unknown instruction or helper; more steps than allowed. So no program
//! can make it panic or run forever.
//!
//! The caller provides maps and clocks ([`Kernel`]); [`maps::Maps`] models those of the kernel.
//! Pointers are numbers whose upper half identifies a region and whose lower half is an offset in
//! it.

use alloc::vec;
use alloc::vec::Vec;

use crate::ebpf::{
    CLASS_ALU32, CLASS_ALU64, CLASS_JMP, CLASS_JMP32, CLASS_LD, CLASS_LDX, CLASS_ST, CLASS_STX,
    Insn, MODE_ABS, MODE_ATOMIC, MODE_IMM, MODE_IND, MODE_MEM, PSEUDO_CALL, PSEUDO_MAP_FD,
    PSEUDO_MAP_VALUE, SOURCE_X,
};
use crate::vm_cbpf::PacketInfo;

mod arith;
mod call;
pub mod maps;
mod memory;

/// Maximum number of nested local calls (`MAX_CALL_FRAMES`).
const FRAMES_MAX: usize = 8;
/// Stack size of a frame in bytes (`MAX_BPF_STACK`).
const STACK_LEN: usize = 512;

/// Maximum number of steps that the verifier follows on one path.
pub const STEPS_MAX: u32 = 1_000_000;

/// Mode of sign-extending loads.
const MODE_MEMSX: u8 = 0x80;

/// Hook that a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP: this many bytes are in the first buffer.
    Xdp {
        /// Length of the directly accessible part.
        first_len: usize,
    },
    /// A device's traffic control, with direct access.
    Tc {
        /// Length of the linear part.
        first_len: usize,
    },
    /// A socket's packet.
    Socket,
}

/// A fault: the index of the instruction, and the reason.
pub type Fault = (usize, &'static str);

/// Kernel services of a program. A map is identified by the number in the instruction, a value by a
/// number chosen by the map.
pub trait Kernel {
    /// Key and value length of this map in bytes; `None` if there is no such map.
    fn sizes(&self, map: i32) -> Option<(usize, usize)>;
    /// `bpf_map_lookup_elem`: the number of the key's value.
    fn look_up(&mut self, map: i32, key: &[u8]) -> Option<u32>;
    /// `bpf_map_update_elem`: 0, or a negative `errno`.
    fn update(&mut self, map: i32, key: &[u8], value: &[u8], flags: u64) -> i64;
    /// The bytes of a value; `None` if there is no such value.
    fn value(&mut self, number: u32) -> Option<&mut [u8]>;
    /// `bpf_perf_event_output` to the ring of the only processor: the bytes and the start of the
    /// packet. 0, or a negative `errno`.
    fn output(&mut self, map: i32, bytes: &[u8], packet: &[u8]) -> i64;
    /// `bpf_ktime_get_ns` and `bpf_ktime_get_tai_ns`.
    fn now_ns(&mut self) -> u64;
    /// `bpf_get_prandom_u32`.
    fn random(&mut self) -> u32;
}

/// A packet with room for metadata before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    buffer: Vec<u8>,
    meta: usize,
}

/// Bytes before a packet (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;

impl Packet {
    /// Creates a packet from a copy of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        let mut buffer = vec![0; HEADROOM + bytes.len()];
        buffer[HEADROOM..].copy_from_slice(bytes);
        let meta = HEADROOM;
        Self { buffer, meta }
    }

    /// The packet.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[HEADROOM..]
    }

    /// The metadata that the program wrote before the packet.
    pub fn metadata(&self) -> &[u8] {
        &self.buffer[self.meta..HEADROOM]
    }
}

/// State of a program run.
struct Machine<'a, K> {
    insns: &'a [Insn],
    hook: Hook,
    packet: &'a mut Packet,
    info: &'a PacketInfo,
    kernel: &'a mut K,
    regs: [Option<u64>; 11],
    stack: Vec<Option<u8>>,
    /// Return addresses of the callers, with their R6 to R9.
    callers: Vec<(usize, [Option<u64>; 4])>,
}

/// How a run continues.
enum Next {
    Behind,
    /// After the second half of a 64-bit constant.
    BehindWide,
    Jump(i32),
    To(usize),
    /// The program returns R0, or 0 if a packet load was out of bounds.
    Exit(u64),
}

/// Runs a program on a packet and returns its result. `steps_max` limits the instructions executed;
/// [`STEPS_MAX`] is the kernel's limit.
///
/// # Errors
/// Faults, all of which the verifier would have refused.
pub fn run<K: Kernel>(
    insns: &[Insn],
    (hook, packet): (Hook, &mut Packet),
    info: &PacketInfo,
    kernel: &mut K,
    steps_max: u32,
) -> Result<u32, Fault> {
    if let Hook::Xdp { first_len } | Hook::Tc { first_len } = hook
        && first_len > packet.bytes().len()
    {
        return Err((0, "the first buffer is longer than the packet"));
    }
    let mut machine = Machine {
        insns,
        hook,
        packet,
        info,
        kernel,
        regs: [None; 11],
        stack: vec![None; STACK_LEN],
        callers: Vec::new(),
    };
    machine.regs[1] = Some(memory::CONTEXT);
    machine.regs[10] = Some(memory::STACK + STACK_LEN as u64);
    let mut at = 0_usize;
    for _ in 0..steps_max {
        let insn = *insns.get(at).ok_or((at, "runs out of the program"))?;
        match machine.step(at, insn).map_err(|why| (at, why))? {
            Next::Behind => at += 1,
            Next::BehindWide => at += 2,
            Next::Jump(by) => {
                let to = (at + 1).checked_add_signed(by as isize);
                at = to.ok_or((at, "jumps out of the program"))?;
            }
            Next::To(to) => at = to,
            Next::Exit(result) => return Ok(result as u32),
        }
    }
    Err((at, "takes too many steps"))
}

impl<K: Kernel> Machine<'_, K> {
    fn reg(&self, number: u8) -> Result<u64, &'static str> {
        let reg = self.regs.get(usize::from(number)).ok_or("no register")?;
        reg.ok_or("reads a register that is not set")
    }

    fn set(&mut self, number: u8, value: u64) -> Result<(), &'static str> {
        match self.regs[..10].get_mut(usize::from(number)) {
            Some(reg) => *reg = Some(value),
            None => return Err("writes the frame pointer"),
        }
        Ok(())
    }

    fn step(&mut self, at: usize, insn: Insn) -> Result<Next, &'static str> {
        let address = |base: Result<u64, _>| base.map(|b| b.wrapping_add_signed(insn.off.into()));
        match (insn.class(), insn.code & 0xe0) {
            (CLASS_ALU32 | CLASS_ALU64, _) => self.alu(insn)?,
            (CLASS_JMP | CLASS_JMP32, _) => return self.jump(at, insn),
            (CLASS_LDX, MODE_MEM) => {
                let value = self.load(address(self.reg(insn.src))?, width(insn.code))?;
                self.set(insn.dst, value)?;
            }
            (CLASS_LDX, MODE_MEMSX) => {
                let len = width(insn.code);
                let value = self.load(address(self.reg(insn.src))?, len)?;
                let shift = match len {
                    8 => return Err("extends the sign of 64 bits"),
                    _ => 64 - len * 8,
                };
                self.set(insn.dst, ((value << shift) as i64 >> shift) as u64)?;
            }
            (CLASS_ST | CLASS_STX, MODE_MEM) => {
                let value = match insn.class() {
                    CLASS_ST => insn.imm as i64 as u64,
                    _ => self.reg(insn.src)?,
                };
                self.store(address(self.reg(insn.dst))?, width(insn.code), value)?;
            }
            (CLASS_STX, MODE_ATOMIC) => self.atomic(insn)?,
            (CLASS_LD, MODE_IMM) if insn.is_wide() => {
                let high = self.insns.get(at + 1).ok_or("half a constant")?;
                let value = match insn.src {
                    0 => u64::from(insn.imm as u32) | u64::from(high.imm as u32) << 32,
                    PSEUDO_MAP_FD => memory::map(insn.imm),
                    PSEUDO_MAP_VALUE => {
                        let number = self.kernel.look_up(insn.imm, &[0; 4]).ok_or("no map")?;
                        memory::value(number).wrapping_add(u64::from(high.imm as u32))
                    }
                    _ => return Err("unknown constant"),
                };
                self.set(insn.dst, value)?;
                return Ok(Next::BehindWide);
            }
            (CLASS_LD, MODE_ABS | MODE_IND) => return self.load_packet(insn),
            _ => return Err("unknown instruction"),
        }
        Ok(Next::Behind)
    }

    fn operand(&self, insn: Insn) -> Result<u64, &'static str> {
        match insn.code & SOURCE_X {
            0 => Ok(insn.imm as i64 as u64),
            _ => self.reg(insn.src),
        }
    }

    fn alu(&mut self, insn: Insn) -> Result<(), &'static str> {
        let op = insn.code & 0xf0;
        let is_wide = insn.class() == CLASS_ALU64;
        let value = match op {
            0xb0 => 0,
            _ => self.reg(insn.dst)?,
        };
        let result = match op {
            0xd0 => arith::swap(value, insn.imm, is_wide, insn.code & SOURCE_X != 0)?,
            _ => {
                let source = match op {
                    0x80 => 0,
                    _ => self.operand(insn)?,
                };
                let by_constant = insn.code & SOURCE_X == 0;
                arith::alu(op, insn.off, is_wide, (value, source), by_constant)?
            }
        };
        self.set(insn.dst, result)
    }

    fn jump(&mut self, at: usize, insn: Insn) -> Result<Next, &'static str> {
        match insn.code {
            0x05 => return Ok(Next::Jump(insn.off.into())),
            0x06 => return Ok(Next::Jump(insn.imm)),
            0x85 if insn.src == PSEUDO_CALL => return self.call_local(at, insn.imm),
            0x85 if insn.src == 0 => {
                self.call(insn.imm)?;
                return Ok(Next::Behind);
            }
            0x95 => return self.exit(),
            _ => {}
        }
        let (one, two) = (self.reg(insn.dst)?, self.operand(insn)?);
        let is_wide = insn.class() == CLASS_JMP;
        Ok(match arith::holds(insn.code & 0xf0, is_wide, one, two)? {
            true => Next::Jump(insn.off.into()),
            false => Next::Behind,
        })
    }

    fn call_local(&mut self, at: usize, by: i32) -> Result<Next, &'static str> {
        if self.callers.len() + 1 == FRAMES_MAX {
            return Err("calls too deeply");
        }
        let to = (at + 1).checked_add_signed(by as isize);
        let to = to.ok_or("calls out of the program")?;
        let saved = [6, 7, 8, 9].map(|number| self.regs[number]);
        self.callers.push((at + 1, saved));
        self.stack.resize(self.stack.len() + STACK_LEN, None);
        self.regs[10] = Some(memory::STACK + self.stack.len() as u64);
        self.regs[6..10].fill(None);
        self.regs[0] = None;
        Ok(Next::To(to))
    }

    fn exit(&mut self) -> Result<Next, &'static str> {
        let result = self.reg(0)?;
        let Some((to, saved)) = self.callers.pop() else {
            return Ok(Next::Exit(result));
        };
        self.stack.truncate(self.stack.len() - STACK_LEN);
        self.regs[1..6].fill(None);
        self.regs[6..10].copy_from_slice(&saved);
        self.regs[10] = Some(memory::STACK + self.stack.len() as u64);
        Ok(Next::To(to))
    }
}

/// Number of bytes that a load or store with this code moves.
fn width(code: u8) -> usize {
    match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

#[cfg(test)]
mod tests;
