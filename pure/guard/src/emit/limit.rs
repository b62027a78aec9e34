//! Limits use the generic cell rate algorithm (ITU-T I.371, annex A): each limit stores one time,
//! at which the next packet is due at the rate. A packet may arrive earlier by the burst. All
//! processors share that time, so a flood over many queues and from many sources has one limit.

use bpf::asm::{Asm, Label};
use bpf::ebpf::Reg::{R0, R1, R2, R3, R4, R7, R9, R10};
use bpf::ebpf::{Alu, Cond, Helper, Width};

use crate::addresses::{ADDRESS, BUCKET, BUCKET_KEY, FAMILY, SOURCE_KEY};
use crate::rule::{LIMIT_STRIDE, Limit, SourceLimit};

/// How often a processor retries to advance a limit's time before the packet counts as over the
/// limit: each failure means that another processor has just let a packet pass.
pub const TRIES: usize = 8;

/// Jumps to `within` and uses the limit if it has room; falls through otherwise.
pub(super) fn ask_limit(
    a: &mut Asm,
    limit: Limit,
    (limits_fd, index): (i32, usize),
    within: Label,
) {
    a.call(Helper::KtimeGetNs);
    a.mov(R7, R0);
    a.load_map_value(R9, limits_fd, (index * LIMIT_STRIDE) as u32);
    take(a, limit, TRIES, within);
}

/// Like [`ask_limit`], for the limit of the packet's source prefix.
pub(super) fn ask_source(
    a: &mut Asm,
    source: SourceLimit,
    (sources_fd, id): (i32, u32),
    within: Label,
) {
    let (masked, known, over) = (a.label(), a.label(), a.label());
    let [ipv4, ipv6] = source.masks();
    a.store(Width::W, R10, BUCKET_KEY, id as i32);
    a.load(Width::W, R1, R10, SOURCE_KEY + FAMILY);
    a.store(Width::W, R10, BUCKET_KEY + FAMILY, R1);
    a.load_imm64(R3, ipv4[0]);
    a.load_imm64(R4, ipv4[1]);
    let family = i32::from_ne_bytes([0, 0, 0, 4]);
    a.jump_if(Cond::Eq, R1, family, masked);
    a.load_imm64(R3, ipv6[0]);
    a.load_imm64(R4, ipv6[1]);
    a.bind(masked);
    for (at, mask) in [(ADDRESS, R3), (ADDRESS + 8, R4)] {
        a.load(Width::D, R2, R10, SOURCE_KEY + at);
        a.alu(Alu::And, R2, mask);
        a.store(Width::D, R10, BUCKET_KEY + at, R2);
    }
    a.call(Helper::KtimeGetNs);
    a.mov(R7, R0);
    let key = |a: &mut Asm| {
        a.load_map(R1, sources_fd);
        a.mov(R2, R10);
        a.alu(Alu::Add, R2, i32::from(BUCKET_KEY));
    };
    key(a);
    a.call(Helper::MapLookup);
    a.jump_if(Cond::Ne, R0, 0, known);
    // The first packet of this source. If another processor sees one at the same moment, one of
    // both is lost.
    a.mov(R1, R7);
    a.alu(Alu::Add, R1, source.limit.interval_ns() as i32);
    a.store(Width::D, R10, BUCKET, R1);
    key(a);
    a.mov(R3, R10);
    a.alu(Alu::Add, R3, i32::from(BUCKET));
    a.mov(R4, 0);
    a.call(Helper::MapUpdate);
    a.jump_if(Cond::Eq, R0, 0, within);
    a.jump(over);
    a.bind(known);
    a.mov(R9, R0);
    take(a, source.limit, TRIES, within);
    a.bind(over);
}

/// Expects the time in R7 and the address of the limit's time in R9; jumps to `within` if the limit
/// has room, and uses it.
pub(super) fn take(a: &mut Asm, limit: Limit, tries: usize, within: Label) {
    let over = a.label();
    let interval_ns = limit.interval_ns();
    let ahead_max_ns = u64::from(interval_ns) * u64::from(limit.burst());
    a.load(Width::D, R0, R9, 0);
    for _ in 0..tries {
        // R0 = when the next packet is due; R1 = the same after this one: max(due, now) + interval.
        let is_later = a.label();
        a.mov(R1, R0);
        a.jump_if(Cond::Ge, R1, R7, is_later);
        a.mov(R1, R7);
        a.bind(is_later);
        a.alu(Alu::Add, R1, interval_ns as i32);
        a.mov(R2, R1);
        a.alu(Alu::Sub, R2, R7);
        a.load_imm64(R3, ahead_max_ns);
        a.jump_if(Cond::Gt, R2, R3, over);
        a.mov(R4, R0);
        a.compare_exchange(R9, 0, R1);
        a.jump_if(Cond::Eq, R0, R4, within);
    }
    a.bind(over);
}
