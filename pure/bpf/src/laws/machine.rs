//! An eBPF interpreter that is as strict as the verifier about what it can see while running: a
//! register or a word of the stack that nothing was written to, an access outside the packet, the
//! context or the stack, an unknown instruction and a program that does not end are faults.
//!
//! It supports what translated filters use: arithmetic, jumps forward, loads and stores, the packet
//! loads of socket filters, and three helpers.

use alloc::vec;
use alloc::vec::Vec;

use crate::cbpf::Place;
use crate::ebpf::{
    CLASS_ALU32, CLASS_ALU64, CLASS_JMP, CLASS_JMP32, CLASS_LD, CLASS_LDX, CLASS_ST, CLASS_STX,
    Insn, MODE_ABS, MODE_IND, MODE_MEM, SOURCE_X,
};
use crate::vm_cbpf::PacketInfo;

/// Addresses: the upper half says in what, the lower one where.
const CONTEXT: u64 = 1 << 32;
const PACKET: u64 = 2 << 32;
const STACK: u64 = 3 << 32;
const STACK_LEN: usize = 512;

/// What a program is run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP: this many bytes are in the first buffer.
    Xdp {
        /// Bytes that direct access reaches.
        first_len: usize,
    },
    /// A socket's packet.
    Socket,
}

/// What went wrong: the instruction's index, and why.
pub type Fault = (usize, &'static str);

/// One run of a program.
struct Machine<'a> {
    hook: Hook,
    packet: &'a [u8],
    info: &'a PacketInfo,
    regs: [Option<u64>; 11],
    stack: Vec<Option<u8>>,
}

/// Where a run continues.
enum Next {
    Behind,
    Jump(i16),
    /// The program ends with R0, or with 0 if a packet load found nothing.
    Exit(u64),
}

/// Runs a program on a packet and gives its result.
///
/// # Errors
/// What the verifier would have refused.
pub fn run(insns: &[Insn], hook: Hook, packet: &[u8], info: &PacketInfo) -> Result<u32, Fault> {
    let mut machine = Machine {
        hook,
        packet,
        info,
        regs: [None; 11],
        stack: vec![None; STACK_LEN],
    };
    machine.regs[1] = Some(CONTEXT);
    machine.regs[10] = Some(STACK + STACK_LEN as u64);
    let mut at = 0;
    loop {
        let insn = *insns.get(at).ok_or((at, "runs out of the program"))?;
        match machine.step(insn).map_err(|why| (at, why))? {
            Next::Behind => at += 1,
            Next::Jump(by) => {
                // Translations jump forward only, so every run ends.
                let by = usize::try_from(by).map_err(|_| (at, "jumps backward"))?;
                at += 1 + by;
            }
            Next::Exit(result) => return Ok(result as u32),
        }
    }
}

impl Machine<'_> {
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

    fn step(&mut self, insn: Insn) -> Result<Next, &'static str> {
        match insn.class() {
            CLASS_ALU32 | CLASS_ALU64 => self.alu(insn)?,
            CLASS_JMP | CLASS_JMP32 => return self.jump(insn),
            CLASS_LDX if insn.code & 0xe0 == MODE_MEM => {
                let address = self.reg(insn.src)?.wrapping_add_signed(insn.off.into());
                let value = self.load(address, width(insn.code))?;
                self.set(insn.dst, value)?;
            }
            CLASS_ST | CLASS_STX if insn.code & 0xe0 == MODE_MEM => {
                let value = match insn.class() {
                    CLASS_ST => insn.imm as i64 as u64,
                    _ => self.reg(insn.src)?,
                };
                let address = self.reg(insn.dst)?.wrapping_add_signed(insn.off.into());
                self.store(address, width(insn.code), value)?;
            }
            CLASS_LD => return self.load_packet(insn),
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
        if insn.code & 0xf0 == 0xd0 {
            let value = self.reg(insn.dst)?;
            let swapped = match insn.imm {
                16 => (value as u16).to_be().into(),
                32 => (value as u32).to_be().into(),
                64 => value.to_be(),
                _ => return Err("swaps an odd width"),
            };
            return self.set(insn.dst, swapped);
        }
        let source = match insn.code & 0xf0 {
            0x80 => 0,
            _ => self.operand(insn)?,
        };
        let value = match insn.code & 0xf0 {
            0xb0 => 0,
            _ => self.reg(insn.dst)?,
        };
        let result = match insn.class() {
            CLASS_ALU32 => {
                let by_constant = insn.code & SOURCE_X == 0;
                alu32(insn.code & 0xf0, (value as u32, source as u32), by_constant)?.into()
            }
            _ => alu64(insn.code & 0xf0, value, source)?,
        };
        self.set(insn.dst, result)
    }

    fn jump(&mut self, insn: Insn) -> Result<Next, &'static str> {
        match insn.code {
            0x05 => return Ok(Next::Jump(insn.off)),
            0x85 => {
                self.call(insn.imm)?;
                return Ok(Next::Behind);
            }
            0x95 => return Ok(Next::Exit(self.reg(0)?)),
            _ => {}
        }
        let (mut one, mut two) = (self.reg(insn.dst)?, self.operand(insn)?);
        if insn.class() == CLASS_JMP32 {
            (one, two) = (u64::from(one as u32), u64::from(two as u32));
        }
        let holds = match insn.code & 0xf0 {
            0x10 => one == two,
            0x20 => one > two,
            0x30 => one >= two,
            0x40 => one & two != 0,
            0x50 => one != two,
            0xa0 => one < two,
            0xb0 => one <= two,
            _ => return Err("unknown condition"),
        };
        Ok(if holds {
            Next::Jump(insn.off)
        } else {
            Next::Behind
        })
    }

    /// The address of `len` bytes as a place in the region of this base.
    fn place(address: u64, base: u64, len: usize, of: usize) -> Result<usize, &'static str> {
        let at = (address - base) as usize;
        match at.checked_add(len) {
            Some(end) if end <= of => Ok(at),
            _ => Err("outside"),
        }
    }

    fn load(&self, address: u64, len: usize) -> Result<u64, &'static str> {
        let mut word = [0; 8];
        match address & !0xffff_ffff {
            CONTEXT => return self.context((address - CONTEXT) as usize, len),
            PACKET => {
                let Hook::Xdp { first_len } = self.hook else {
                    return Err("direct access to a socket's packet");
                };
                let at = Self::place(address, PACKET, len, first_len)?;
                word[..len].copy_from_slice(&self.packet[at..at + len]);
            }
            STACK => {
                let at = Self::place(address, STACK, len, STACK_LEN)?;
                for (byte, from) in word.iter_mut().zip(&self.stack[at..at + len]) {
                    *byte = from.ok_or("reads stack that is not set")?;
                }
            }
            _ => return Err("loads from no pointer"),
        }
        Ok(u64::from_le_bytes(word))
    }

    fn store(&mut self, address: u64, len: usize, value: u64) -> Result<(), &'static str> {
        if address & !0xffff_ffff != STACK || !address.is_multiple_of(len as u64) {
            return Err("stores outside the stack or unaligned");
        }
        let at = Self::place(address, STACK, len, STACK_LEN)?;
        for (to, byte) in self.stack[at..at + len].iter_mut().zip(value.to_le_bytes()) {
            *to = Some(byte);
        }
        Ok(())
    }

    /// A field of `struct xdp_md` or `struct __sk_buff`.
    fn context(&self, at: usize, len: usize) -> Result<u64, &'static str> {
        let info = self.info;
        if len != 4 {
            return Err("loads part of a context's field");
        }
        let (protocol, tci) = info.vlan.unwrap_or_default();
        Ok(match (self.hook, at) {
            (Hook::Xdp { .. }, 0) => PACKET,
            (Hook::Xdp { first_len }, 4) => PACKET + first_len as u64,
            (Hook::Xdp { .. }, 12) | (Hook::Socket, 40) => info.ifindex.into(),
            (Hook::Xdp { .. }, 16) | (Hook::Socket, 12) => info.queue_index.into(),
            (Hook::Socket, 0) => self.packet.len() as u64,
            (Hook::Socket, 4) => info.packet_type.into(),
            (Hook::Socket, 8) => info.mark.into(),
            (Hook::Socket, 16) => info.protocol.to_be().into(),
            (Hook::Socket, 20) => info.vlan.is_some().into(),
            (Hook::Socket, 24) => tci.into(),
            (Hook::Socket, 28) => protocol.to_be().into(),
            (Hook::Socket, 68) => info.rx_hash.into(),
            _ => return Err("no such field in the context"),
        })
    }

    /// `BPF_LD | BPF_ABS` and `BPF_IND`, as `bpf_gen_ld_abs` and `__bpf_skb_load` have them.
    fn load_packet(&mut self, insn: Insn) -> Result<Next, &'static str> {
        if self.hook != Hook::Socket || self.reg(6)? != CONTEXT {
            return Err("packet load without a socket's context");
        }
        let index = match insn.code & 0xe0 {
            MODE_ABS => insn.imm as u32,
            MODE_IND => (self.reg(insn.src)? as u32).wrapping_add(insn.imm as u32),
            _ => return Err("unknown packet load"),
        };
        let at = match Place::of(index) {
            Place::Packet(at) | Place::Link(at) => Some(at),
            Place::Network(at) => self.info.network_offset.checked_add(at),
            Place::Ancillary(_) | Place::Nothing => None,
        };
        self.forget_arguments();
        let len = width(insn.code);
        let found = at.and_then(|at| self.packet.get(at as usize..)?.get(..len));
        let Some(bytes) = found else {
            return Ok(Next::Exit(0));
        };
        let value = bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        self.set(0, value)?;
        Ok(Next::Behind)
    }

    fn forget_arguments(&mut self) {
        self.regs[..6].fill(None);
    }

    fn call(&mut self, helper: i32) -> Result<(), &'static str> {
        let args = self.regs;
        let arg = |at: usize| args[at].ok_or("an argument is not set");
        self.forget_arguments();
        let result = match helper {
            // bpf_get_prandom_u32, bpf_get_smp_processor_id.
            7 | 8 => 4,
            // bpf_xdp_get_buff_len.
            188 if arg(1)? == CONTEXT => self.packet.len() as u64,
            // bpf_xdp_load_bytes.
            189 if arg(1)? == CONTEXT => {
                let (from, to, len) = (arg(2)? as u32 as usize, arg(3)?, arg(4)? as usize);
                if to & !0xffff_ffff != STACK {
                    return Err("loads elsewhere than to the stack");
                }
                let to = Self::place(to, STACK, len, STACK_LEN)?;
                let found = self.packet.get(from..).and_then(|rest| rest.get(..len));
                match found.filter(|_| from <= 0xffff) {
                    Some(bytes) => {
                        for (byte, from) in self.stack[to..to + len].iter_mut().zip(bytes) {
                            *byte = Some(*from);
                        }
                        0
                    }
                    None => -22_i64 as u64,
                }
            }
            _ => return Err("unknown helper, or without the context"),
        };
        self.set(0, result)
    }
}

/// Bytes that a load or store with this code moves.
fn width(code: u8) -> usize {
    match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

fn alu32(op: u8, (a, b): (u32, u32), by_constant: bool) -> Result<u32, &'static str> {
    Ok(match op {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 if by_constant && b == 0 => return Err("divides by a constant 0"),
        0x30 => a.checked_div(b).unwrap_or(0),
        0x40 => a | b,
        0x50 => a & b,
        0x60 | 0x70 if by_constant && b > 31 => return Err("shifts too far"),
        0x60 => a.wrapping_shl(b),
        0x70 => a.wrapping_shr(b),
        0x80 => a.wrapping_neg(),
        0x90 if by_constant && b == 0 => return Err("divides by a constant 0"),
        0x90 => a.checked_rem(b).unwrap_or(a),
        0xa0 => a ^ b,
        0xb0 => b,
        _ => return Err("unknown arithmetic"),
    })
}

/// What pointers are made with.
fn alu64(op: u8, a: u64, b: u64) -> Result<u64, &'static str> {
    Ok(match op {
        0x00 => a.wrapping_add(b),
        0xb0 => b,
        _ => return Err("unknown arithmetic of 64 bits"),
    })
}
