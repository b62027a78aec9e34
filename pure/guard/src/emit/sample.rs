//! Samples of dropped packets: a function of the program copies the start of one dropped packet in
//! N into a perf ring, at most [`SAMPLES_PER_SECOND`] of a rule.
//!
//! A sample that the ring has no room for is lost, and counted as such.

use bpf::asm::Asm;
use bpf::ebpf::Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use bpf::ebpf::{Alu, Cond, Helper, Width};

use super::limit::take;
use crate::counters::{BLOCK_LEN, SAMPLED, SAMPLES_LOST, UNMATCHED};
use crate::rule::{LIMIT_STRIDE, Limit};

/// Bytes of a packet in its sample.
pub const SAMPLE_LEN_MAX: u32 = 256;
/// Maximum number of samples of one rule per second.
pub const SAMPLES_PER_SECOND: u32 = 1_000;
/// Samples of one rule that are taken at once.
const BURST: u32 = 100;
/// Length of the header before the bytes of the packet.
pub const SAMPLE_HEAD_LEN: usize = 24;

/// Stack offset of the header: time, rule, length of the packet, number of bytes in the sample.
const HEAD: i16 = -(SAMPLE_HEAD_LEN as i16);
const RULE: i16 = HEAD + 8;
const WIRE_LEN: i16 = HEAD + 12;
const CAP_LEN: i16 = HEAD + 16;

/// `BPF_F_CURRENT_CPU`: the ring of the processor that runs the program.
const CURRENT_CPU: i32 = -1;

/// What is sampled, and where samples go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// File descriptor of a `BPF_MAP_TYPE_PERF_EVENT_ARRAY`.
    pub events: i32,
    /// One dropped packet in this many is sampled, at random; 0 and 1 for all.
    pub one_in: u32,
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// When the packet was dropped: `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// [`crate::Rule::id`] of the rule that dropped it.
    pub rule: u32,
    /// Length of the packet on the wire.
    pub wire_len: u32,
    /// The start of the packet, at most [`SAMPLE_LEN_MAX`] bytes.
    pub bytes: &'a [u8],
}

impl<'a> Sample<'a> {
    /// Reads what the program output, with any padding behind it; `None` unless it is complete.
    pub fn read(output: &'a [u8]) -> Option<Self> {
        let (time, rest) = output.split_first_chunk()?;
        let (rule, rest) = rest.split_first_chunk()?;
        let (wire_len, rest) = rest.split_first_chunk()?;
        let (cap_len, rest) = rest.split_first_chunk()?;
        let bytes = rest
            .get(4..)?
            .get(..u32::from_ne_bytes(*cap_len) as usize)?;
        Some(Self {
            time_ns: u64::from_ne_bytes(*time),
            rule: u32::from_ne_bytes(*rule),
            wire_len: u32::from_ne_bytes(*wire_len),
            bytes,
        })
    }
}

/// Offset in the limits at which the time of a rule's next sample is: in the cache line of the
/// rule's own limit.
pub(super) fn due_at(index: usize) -> u32 {
    (index * LIMIT_STRIDE + 8) as u32
}

/// Emits the function. Its arguments: the context, the address of the time of the rule's next
/// sample, the rule's number, the packet's length, and the counters.
pub(super) fn emit(a: &mut Asm, sampling: Sampling) {
    let (within, out, whole, taken) = (a.label(), a.label(), a.label(), a.label());
    a.mov(R6, R1);
    a.mov(R9, R2);
    a.mov(R8, R5);
    a.store(Width::W, R10, RULE, R3);
    a.store(Width::W, R10, WIRE_LEN, R4);
    a.store(Width::D, R10, CAP_LEN, 0);
    if sampling.one_in > 1 {
        a.call(Helper::GetPrandomU32);
        a.alu32(Alu::Mod, R0, sampling.one_in as i32);
        a.jump_if(Cond::Ne, R0, 0, out);
    }
    a.call(Helper::KtimeGetNs);
    a.mov(R7, R0);
    a.store(Width::D, R10, HEAD, R7);
    // If another processor takes a sample at the same moment, this packet is not sampled.
    if let Some(limit) = Limit::new(SAMPLES_PER_SECOND, BURST) {
        take(a, limit, 1, within);
    }
    a.bind(out);
    a.mov(R0, 0);
    a.exit();
    a.bind(within);
    a.load(Width::W, R3, R10, WIRE_LEN);
    a.jump_if(Cond::Le, R3, SAMPLE_LEN_MAX as i32, whole);
    a.mov(R3, SAMPLE_LEN_MAX as i32);
    a.bind(whole);
    a.store(Width::W, R10, CAP_LEN, R3);
    a.alu(Alu::Lsh, R3, 32);
    a.mov32(R1, CURRENT_CPU);
    a.alu(Alu::Or, R3, R1);
    a.mov(R1, R6);
    a.load_map(R2, sampling.events);
    a.mov(R4, R10);
    a.alu(Alu::Add, R4, i32::from(HEAD));
    a.mov(R5, SAMPLE_HEAD_LEN as i32);
    a.call(Helper::PerfEventOutput);
    a.jump_if(Cond::Eq, R0, 0, taken);
    for (word, label) in [(SAMPLES_LOST, None), (SAMPLED, Some(taken))] {
        if let Some(label) = label {
            a.bind(label);
        }
        let off = (UNMATCHED * BLOCK_LEN + word * 8) as i16;
        a.load(Width::D, R1, R8, off);
        a.alu(Alu::Add, R1, 1);
        a.store(Width::D, R8, off, R1);
        a.mov(R0, 0);
        a.exit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_read_up_to_its_length() {
        let mut output = Vec::new();
        output.extend(7_u64.to_ne_bytes());
        for word in [3_u32, 1500, 2, 0] {
            output.extend(word.to_ne_bytes());
        }
        output.extend([0xaa, 0xbb, 0, 0]);
        let sample = Sample::read(&output).unwrap();
        assert_eq!((sample.time_ns, sample.rule), (7, 3));
        assert_eq!((sample.wire_len, sample.bytes), (1500, &[0xaa, 0xbb][..]));
        for len in 0..SAMPLE_HEAD_LEN + 2 {
            assert_eq!(Sample::read(&output[..len]), None);
        }
    }
}
