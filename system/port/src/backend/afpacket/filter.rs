//! The socket's filter: which packets the kernel skips, and how many bytes of the others it keeps.
//!
//! A user's filter runs as an eBPF program that also counts packets, so that the account includes
//! the rejected ones; without the privilege to load one, the same filter runs as cBPF, which cannot
//! count.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use bpf::asm::Asm;
use bpf::cbpf;
use bpf::ebpf::Reg::{R0, R1, R2, R6, R10};
use bpf::ebpf::{Alu, Cond, Helper, Width};
use bpf::translate::{TranslateError, emit_skb};
use sys::bpf::{
    ClassicInsn, Map, MapMemory, MapSpec, MapType, Program, ProgramSpec, ProgramType,
    possible_cpu_count,
};
use sys::packet::PacketSocket;
use sys::{Error, ErrorKind, Result};

use crate::options::PortOptions;

/// `ret #0`: rejects every packet.
pub(super) const REJECT_ALL: &[ClassicInsn] = &[ret(0)];

/// `BPF_RET | BPF_K`.
const RET_K: u16 = 0x06;
/// `skb->pkt_type` of a packet that the host sends.
const PACKET_OUTGOING: u32 = 4;
/// Distance between two processors' counters in bytes: they must not share a cache line.
const COUNTER_LEN: u32 = 64;

const fn ret(k: u32) -> ClassicInsn {
    plain(RET_K, k)
}

const fn plain(code: u16, k: u32) -> ClassicInsn {
    ClassicInsn {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Filter to run on the socket.
#[derive(Clone)]
pub(super) struct SocketFilter {
    /// The user's filter, if any.
    program: Option<cbpf::Program>,
    snaplen: u32,
    /// Whether outgoing packets are excluded.
    pub(super) ignore_outgoing: bool,
    /// Whether the kernel does that before the filter (since Linux 4.20, in a group 6.2).
    pub(super) kernel_ignores_outgoing: bool,
}

/// Counter of a counting filter, valid as long as this is kept.
pub(super) struct Counted {
    memory: MapMemory,
    cpu_count: usize,
}

impl Counted {
    /// Number of packets seen by the filter.
    pub(super) fn seen(&self) -> u64 {
        (0..self.cpu_count)
            .map(|cpu| {
                let word = self.memory.word(cpu * self.memory.stride());
                word.load(Ordering::Acquire)
            })
            .sum()
    }
}

impl SocketFilter {
    /// Combines direction, the user's filter and snaplen. On loopback each sent packet is also
    /// received, so the outgoing one is excluded.
    pub(super) fn new(options: &PortOptions, is_loopback: bool) -> Self {
        let snaplen = if options.snaplen == 0 {
            u32::MAX
        } else {
            options.snaplen
        };
        Self {
            program: options.filter.clone(),
            snaplen,
            ignore_outgoing: !options.outgoing || is_loopback,
            kernel_ignores_outgoing: false,
        }
    }

    /// Attaches it to a socket, replacing the previous one; returns its counter if it counts.
    pub(super) fn attach(&self, socket: &PacketSocket) -> Result<Option<Counted>> {
        if let Some(program) = &self.program
            && let Ok((program, counted)) = self.load(program)
        {
            socket.attach_program(program.as_fd())?;
            return Ok(Some(counted));
        }
        let instructions = self.classic();
        if instructions.is_empty() {
            // There may be none to detach, which is not an error.
            let _ = socket.detach_filter();
        } else {
            socket.attach_filter(&instructions)?;
        }
        Ok(None)
    }

    /// The same with another user filter, or none.
    pub(super) fn with_program(&self, program: Option<&cbpf::Program>) -> Self {
        Self {
            program: program.cloned(),
            ..self.clone()
        }
    }

    /// The user's filter.
    pub(super) fn program(&self) -> Option<&cbpf::Program> {
        self.program.as_ref()
    }

    /// Number of bytes to keep of each packet; `u32::MAX` for all.
    pub(super) fn snaplen(&self) -> u32 {
        self.snaplen
    }

    /// Whether the filter itself must test the direction.
    pub(super) fn rejects_outgoing(&self) -> bool {
        self.ignore_outgoing && !self.kernel_ignores_outgoing
    }

    /// The filter as cBPF; empty if everything passes in full.
    pub(super) fn classic(&self) -> Vec<ClassicInsn> {
        let mut instructions = Vec::new();
        if self.rejects_outgoing() {
            instructions.extend(reject_outgoing());
        }
        match &self.program {
            Some(program) => {
                let body = program.insns().iter();
                instructions.extend(body.map(|insn| convert(insn, self.snaplen)));
            }
            None if self.rejects_outgoing() || self.snaplen != u32::MAX => {
                instructions.push(ret(self.snaplen));
            }
            None => {}
        }
        instructions
    }

    /// Loads the filter into the kernel as eBPF.
    fn load(&self, program: &cbpf::Program) -> Result<(Program, Counted)> {
        let what = "load a socket filter";
        let cpu_count = possible_cpu_count()?;
        let map = Map::create(&MapSpec {
            kind: MapType::Array,
            name: "bw_filter_seen",
            key_size: 4,
            value_size: COUNTER_LEN,
            max_entries: cpu_count as u32,
            mappable: true,
        })?;
        let map_fd = std::os::fd::AsRawFd::as_raw_fd(&map.as_fd());
        let insns = self
            .extended(program, map_fd)
            .map_err(|e| Error::new(ErrorKind::Unsupported, what, e.to_string()))?;
        let words: Vec<u64> = insns.iter().map(|insn| insn.to_word()).collect();
        let program = Program::load(&ProgramSpec {
            kind: ProgramType::SocketFilter,
            name: "bw_filter",
            insns: &words,
            flags: 0,
            ifindex: 0,
        })
        .map_err(|failure| Error::from_io(what, failure.source))?;
        let memory = map.memory()?;
        Ok((program, Counted { memory, cpu_count }))
    }

    /// The instructions: direction, count, the user's filter, snaplen.
    fn extended(
        &self,
        program: &cbpf::Program,
        map_fd: i32,
    ) -> std::result::Result<Vec<bpf::ebpf::Insn>, TranslateError> {
        /// Offset of `pkt_type` in `struct __sk_buff`.
        const PACKET_TYPE: i16 = 4;
        /// The stack below is used by the translated filter.
        const STACK_TOP: i16 = -8;
        let mut asm = Asm::new();
        let (hit, miss, counted) = (asm.label(), asm.label(), asm.label());
        asm.mov(R6, R1);
        if self.rejects_outgoing() {
            asm.load(Width::W, R2, R6, PACKET_TYPE);
            asm.jump_if(Cond::Eq, R2, PACKET_OUTGOING as i32, miss);
        }
        asm.call(Helper::GetSmpProcessorId);
        asm.store(Width::W, R10, -4, R0);
        asm.mov(R2, R10);
        asm.alu(Alu::Add, R2, -4);
        asm.load_map(R1, map_fd);
        asm.call(Helper::MapLookup);
        asm.jump_if(Cond::Eq, R0, 0, counted);
        asm.mov(R1, 1);
        asm.raw(atomic_add());
        asm.bind(counted);
        emit_skb(&mut asm, program, STACK_TOP, hit, miss)?;
        if asm.is_used(miss) {
            asm.bind(miss);
            asm.mov(R0, 0);
            asm.exit();
        }
        if asm.is_used(hit) {
            asm.bind(hit);
            if let Ok(snaplen) = i32::try_from(self.snaplen) {
                let whole = asm.label();
                asm.mov32(R0, R0);
                asm.jump_if(Cond::Le, R0, snaplen, whole);
                asm.mov(R0, snaplen);
                asm.bind(whole);
            }
            asm.exit();
        }
        Ok(asm.finish()?)
    }
}

/// Whether the kernel runs a filter: it refuses backward jumps (`protochain`) in either language.
pub(super) fn runs_in_kernel(program: &cbpf::Program) -> bool {
    program.backward_jump().is_none()
}

/// Where the filter runs, for the description.
pub(super) fn fact(options: &PortOptions, counts: bool) -> &'static str {
    match (&options.filter, counts) {
        (None, _) => "none",
        (_, true) => "in the kernel (eBPF), rejected packets are counted",
        (_, false) => {
            "in the kernel (cBPF, because loading eBPF is not permitted), rejected packets are \
             not counted"
        }
    }
}

/// `lock *(u64 *)(R0) += R1`. Atomic although each processor has its own counter: sending a packet
/// can be interrupted by receiving one.
fn atomic_add() -> bpf::ebpf::Insn {
    bpf::ebpf::Insn {
        // BPF_STX | BPF_ATOMIC | BPF_DW, BPF_ADD.
        code: 0xdb,
        dst: R0 as u8,
        src: R1 as u8,
        off: 0,
        imm: 0,
    }
}

/// `if (skb->pkt_type == PACKET_OUTGOING) return 0; A = 0;`, since a program may rely on A being 0
/// initially.
fn reject_outgoing() -> [ClassicInsn; 4] {
    /// `SKF_AD_OFF + SKF_AD_PKTTYPE`: loads from here read the packet's type, not its bytes.
    const PACKET_TYPE: u32 = cbpf::ANCILLARY_BASE.wrapping_add(4);
    /// `BPF_LD | BPF_B | BPF_ABS`, `BPF_LD | BPF_IMM`, `BPF_JMP | BPF_JEQ | BPF_K`.
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_CONSTANT: u16 = 0x00;
    const JUMP_EQUAL: u16 = 0x15;
    [
        plain(LOAD_BYTE, PACKET_TYPE),
        ClassicInsn {
            jf: 1,
            ..plain(JUMP_EQUAL, PACKET_OUTGOING)
        },
        ret(0),
        plain(LOAD_CONSTANT, 0),
    ]
}

/// The same instruction, limited to `snaplen` bytes if it returns a constant.
fn convert(from: &cbpf::Insn, snaplen: u32) -> ClassicInsn {
    ClassicInsn {
        code: from.code,
        jt: from.jt,
        jf: from.jf,
        k: if from.code == RET_K {
            from.k.min(snaplen)
        } else {
            from.k
        },
    }
}
