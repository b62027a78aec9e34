//! The program for AF_XDP: packets of a queue with a socket go to the socket, all others to the
//! host; each is counted by its outcome.
//!
//! ```text
//! counters = lookup(queue)             none: to the host, uncounted
//! seen += 1, seen_bytes += length
//! with a filter, and it refuses:       passed_filter, to the host
//! with metadata:
//!     sockets has the queue            no: passed_no_socket, to the host
//!     ask device and clock, make room  no room: passed_meta, to the host
//!     write the metadata
//! redirect_map(sockets, queue)         no socket: passed_no_socket, to the host
//! redirected += 1
//! ```
//!
//! "Redirected" is the program's verdict: a socket whose ring is full or that has no free chunk
//! still drops the packet, and the socket's own statistics count that.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use bpf::asm::{Asm, Label};
use bpf::ebpf::Reg::{R0, R1, R2, R3, R6, R7, R8, R9, R10};
use bpf::ebpf::{Alu, Cond, Helper, Insn, Width};
use bpf::translate::{self, XdpOptions};
use sys::bpf::Loader;
use sys::{Error, ErrorKind, KernelVersion, Result, Unsupported};

use crate::map::CounterBlock;
use crate::metadata::{
    FLAG_HASH, FLAG_HASH_TYPE_SHIFT, FLAG_TIME, FLAG_TIME_DEVICE, FLAG_TIME_TAI, FLAG_VLAN, MAGIC,
    METADATA_LEN,
};
use crate::{
    MetadataSpec, ProgramClock, QueueCounters, RedirectSpec, TimestampSource, XdpLink, XdpProgram,
    XskMap, btf,
};

/// `XDP_PASS` of `enum xdp_action`.
pub(crate) const XDP_PASS: i32 = 2;
/// `XDP_REDIRECT`.
pub(crate) const XDP_REDIRECT: i32 = 4;

const EPERM: i32 = 1;

/// Name of the program in lists.
const PROGRAM_NAME: &str = "bw_redirect";

/// Field offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_DATA_META: i16 = 8;
const MD_RX_QUEUE_INDEX: i16 = 16;

/// Stack offset of the queue index as a map key.
const KEY: i16 = -4;
/// Stack offset of the hash's type.
const HASH_TYPE: i16 = -8;
/// Stack offset of the metadata, laid out as [`crate::metadata::RawMetadata`].
const META: i16 = -40;
const META_HASH: i16 = META + 8;
const META_VLAN_TCI: i16 = META + 12;
const META_VLAN_PROTO: i16 = META + 14;
const META_FLAGS: i16 = META + 16;
const META_MAGIC: i16 = META + 20;

/// Outcomes for a queue's packets. `seen` is the sum of the counters after `seen_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RedirectCounters {
    /// Packets that the program saw.
    pub seen: u64,
    /// Their bytes.
    pub seen_bytes: u64,
    /// Redirected to the queue's socket.
    pub redirected: u64,
    /// Passed to the host: the filter did not select them.
    pub passed_filter: u64,
    /// Passed to the host: the queue had no socket.
    pub passed_no_socket: u64,
    /// Passed to the host: the device left no room for metadata.
    pub passed_meta: u64,
}

/// Byte offset of a counter in the map's value.
#[derive(Clone, Copy)]
#[repr(i16)]
enum Counter {
    Seen = 0,
    SeenBytes = 8,
    Redirected = 16,
    PassedFilter = 24,
    PassedNoSocket = 32,
    PassedMeta = 40,
}

impl CounterBlock for RedirectCounters {
    const COUNT: usize = 6;

    fn add(&mut self, counters: &[u64]) {
        let fields = [
            &mut self.seen,
            &mut self.seen_bytes,
            &mut self.redirected,
            &mut self.passed_filter,
            &mut self.passed_no_socket,
            &mut self.passed_meta,
        ];
        for (field, counter) in fields.into_iter().zip(counters) {
            *field += counter;
        }
    }
}

/// The program with its maps.
#[derive(Debug)]
pub struct Redirect {
    program: XdpProgram,
    sockets: XskMap,
    counters: QueueCounters<RedirectCounters>,
    clock: ProgramClock,
}

/// Kernel features that the program may use; not every kernel has them, nor may every process use
/// them.
#[derive(Clone, Copy)]
struct Variant {
    clock: ProgramClock,
    /// Read the packet's length with a helper (Linux 5.18). Otherwise it is the difference of two
    /// packet pointers, which needs CAP_PERFMON.
    buff_len: bool,
    /// The filter loads at X + k directly, which needs CAP_PERFMON.
    indirect: bool,
}

/// Best variant first; the last needs no helper newer than Linux 5.8.
const VARIANTS: [Variant; 5] = {
    let best = Variant {
        clock: ProgramClock::Tai,
        buff_len: true,
        indirect: true,
    };
    let old = Variant {
        clock: ProgramClock::Monotonic,
        ..best
    };
    [
        best,
        Variant {
            indirect: false,
            ..best
        },
        old,
        Variant {
            indirect: false,
            ..old
        },
        Variant {
            buff_len: false,
            ..old
        },
    ]
};

/// BTF ids of the kernel functions that the program calls.
#[derive(Clone, Copy, Debug, Default)]
struct Kfuncs {
    timestamp: Option<u32>,
    hash: Option<u32>,
    vlan: Option<u32>,
}

impl Kfuncs {
    /// Finds the ids of the requested functions.
    fn find(wanted: &MetadataSpec) -> Result<Self> {
        if !wanted.needs_device() {
            return Ok(Self::default());
        }
        let [timestamp, hash, vlan] = btf::function_ids([
            "bpf_xdp_metadata_rx_timestamp",
            "bpf_xdp_metadata_rx_hash",
            "bpf_xdp_metadata_rx_vlan_tag",
        ])?;
        let ask = |is_wanted: bool, id: Option<u32>, feature, since| match (is_wanted, id) {
            (false, _) => Ok(None),
            (true, Some(id)) => Ok(Some(id)),
            (true, None) => Err(Error::unsupported(
                "read packet metadata from the device",
                Unsupported {
                    feature,
                    since: Some(since),
                },
            )),
        };
        let v6_3 = KernelVersion::new(6, 3);
        Ok(Self {
            timestamp: ask(
                wanted.time == TimestampSource::Device,
                timestamp,
                "XDP metadata kfunc for the time",
                v6_3,
            )?,
            hash: ask(wanted.hash, hash, "XDP metadata kfunc for the hash", v6_3)?,
            vlan: ask(
                wanted.vlan,
                vlan,
                "XDP metadata kfunc for the VLAN tag",
                KernelVersion::new(6, 8),
            )?,
        })
    }
}

impl Redirect {
    /// Creates the maps and loads the program.
    ///
    /// # Errors
    /// As [`XdpProgram::load`]; `Unsupported` if device metadata is requested and the kernel lacks
    /// the function.
    pub fn load(spec: &RedirectSpec) -> Result<Self> {
        let sockets = XskMap::create(spec.queue_count)?;
        let counters = QueueCounters::create(spec.queue_count)?;
        let (program, clock) = load_program(spec, &sockets, &counters)?;
        Ok(Self {
            program,
            sockets,
            counters,
            clock,
        })
    }

    /// Loads another program with the same maps; pass [`Redirect::program`] to
    /// [`crate::XdpLink::update`] to activate it. Sockets and counters are kept.
    ///
    /// # Errors
    /// As [`Redirect::load`]; the old program is then kept. `InvalidInput` if the queue count
    /// differs.
    pub fn reload(&mut self, spec: &RedirectSpec) -> Result<()> {
        self.check_queue_count(spec)?;
        (self.program, self.clock) = load_program(spec, &self.sockets, &self.counters)?;
        Ok(())
    }

    fn check_queue_count(&self, spec: &RedirectSpec) -> Result<()> {
        let count = self.counters.queue_count();
        if spec.queue_count == count {
            return Ok(());
        }
        let why = format!("it was made for {count} queues");
        let what = "replace the XDP program";
        Err(Error::new(ErrorKind::InvalidInput, what, why))
    }

    /// Loads another program with the same maps, for [`crate::XdpLink::update`]. Sockets and
    /// counters are kept.
    ///
    /// # Errors
    /// As [`Redirect::load`]; `InvalidInput` if the queue count differs.
    pub fn another(&self, spec: &RedirectSpec) -> Result<XdpProgram> {
        self.check_queue_count(spec)?;
        Ok(load_program(spec, &self.sockets, &self.counters)?.0)
    }

    /// Starts a process that can replace the program of the link after this one has dropped its
    /// privileges. It ends when the loader is dropped.
    ///
    /// # Errors
    /// As [`Loader::start`].
    pub fn loader(&self, link: &XdpLink) -> Result<Loader> {
        Loader::start(link.as_fd(), &[self.sockets.as_fd(), self.counters.as_fd()])
    }

    /// As [`Redirect::another`], but the loader loads the program, and attaches it to its link.
    ///
    /// # Errors
    /// What the kernel answers the loader, without the verifier's reasons; the old program then
    /// stays. `InvalidInput` if the queue count differs.
    pub fn another_by(&self, loader: &mut Loader, spec: &RedirectSpec) -> Result<XdpProgram> {
        self.check_queue_count(spec)?;
        let load = |insns: &[Insn], device| {
            XdpProgram::load_by(loader, PROGRAM_NAME, insns, (spec.frags, device))
        };
        Ok(load_with(spec, &self.sockets, &self.counters, load)?.0)
    }

    /// The program, for attaching.
    pub fn program(&self) -> &XdpProgram {
        &self.program
    }

    /// The map of sockets.
    pub fn sockets(&self) -> &XskMap {
        &self.sockets
    }

    /// The clock that the program reads, if any: older kernels have only
    /// [`ProgramClock::Monotonic`].
    pub fn clock(&self) -> ProgramClock {
        self.clock
    }

    /// Outcomes for a queue's packets since the maps were created.
    pub fn counters(&self, queue_index: u32) -> Result<RedirectCounters> {
        self.counters.read(queue_index)
    }
}

fn load_program(
    spec: &RedirectSpec,
    sockets: &XskMap,
    counters: &QueueCounters<RedirectCounters>,
) -> Result<(XdpProgram, ProgramClock)> {
    let load = |insns: &[Insn], device| XdpProgram::load(PROGRAM_NAME, insns, spec.frags, device);
    load_with(spec, sockets, counters, load)
}

/// Generates the program and has it loaded, for the device if it is for one only.
fn load_with(
    spec: &RedirectSpec,
    sockets: &XskMap,
    counters: &QueueCounters<RedirectCounters>,
    mut load: impl FnMut(&[Insn], Option<u32>) -> Result<XdpProgram>,
) -> Result<(XdpProgram, ProgramClock)> {
    let kfuncs = Kfuncs::find(&spec.metadata)?;
    let fds = (sockets.as_fd().as_raw_fd(), counters.as_fd().as_raw_fd());
    let device = spec.metadata.needs_device().then_some(spec.ifindex);
    // The variants are in order of preference; everything else that a program needs is the same in
    // all of them, so the first error is reported.
    let mut refusal = None;
    for variant in VARIANTS {
        let insns = generate(spec, fds, kfuncs, variant)?;
        match load(&insns, device) {
            Ok(program) => return Ok((program, variant.clock)),
            // Not from the verifier: the other variants would fail in the same way.
            Err(e) if e.os_code() == Some(EPERM) => return Err(e),
            Err(e) => refusal = refusal.or(Some(e)),
        }
    }
    Err(refusal.unwrap_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            "load the XDP program",
            "all methods have failed",
        )
    }))
}

/// Generates the instructions.
fn generate(
    spec: &RedirectSpec,
    (sockets_fd, counters_fd): (RawFd, RawFd),
    kfuncs: Kfuncs,
    variant: Variant,
) -> Result<Vec<Insn>> {
    let mut a = Asm::new();
    let pass = a.label();
    a.mov(R6, R1);
    a.load(Width::W, R7, R6, MD_RX_QUEUE_INDEX);
    a.store(Width::W, R10, KEY, R7);
    lookup(&mut a, counters_fd);
    a.jump_if(Cond::Eq, R0, 0, pass);
    a.mov(R8, R0);
    count(&mut a, Counter::Seen, 1);
    if variant.buff_len {
        a.mov(R1, R6);
        a.call(Helper::XdpGetBuffLen);
    } else {
        a.load(Width::W, R0, R6, MD_DATA_END);
        a.load(Width::W, R1, R6, MD_DATA);
        a.alu(Alu::Sub, R0, R1);
    }
    a.load(Width::D, R1, R8, Counter::SeenBytes as i16);
    a.alu(Alu::Add, R1, R0);
    a.store(Width::D, R8, Counter::SeenBytes as i16, R1);

    let takes_some = match &spec.filter {
        Some(filter) => emit_filter(&mut a, filter, spec.frags, variant, pass)?,
        None => true,
    };
    // The verifier refuses unreachable code.
    if takes_some {
        emit_redirect(&mut a, spec, sockets_fd, kfuncs, variant.clock);
    }
    a.bind(pass);
    a.mov(R0, XDP_PASS);
    a.exit();
    a.finish().map_err(not_generated)
}

/// Emits the redirection of a selected packet, from the socket look-up on. Falls through when the
/// packet passes.
fn emit_redirect(
    a: &mut Asm,
    spec: &RedirectSpec,
    sockets_fd: RawFd,
    kfuncs: Kfuncs,
    clock: ProgramClock,
) {
    let (gone, no_socket, no_room, pass) = (a.label(), a.label(), a.label(), a.label());
    if spec.metadata.is_wanted() {
        // The look-up comes first: metadata on a packet for the host would keep the stack from
        // merging it with its neighbours.
        lookup(a, sockets_fd);
        a.jump_if(Cond::Eq, R0, 0, no_socket);
        collect_metadata(a, spec, kfuncs, clock);
        write_metadata(a, no_room);
    }
    a.load_map(R1, sockets_fd);
    a.load(Width::W, R2, R6, MD_RX_QUEUE_INDEX);
    a.mov(R3, XDP_PASS);
    a.call(Helper::RedirectMap);
    a.jump_if(Cond::Ne, R0, XDP_REDIRECT, gone);
    count(a, Counter::Redirected, 1);
    a.mov(R0, XDP_REDIRECT);
    a.exit();

    a.bind(gone);
    if spec.metadata.is_wanted() {
        // The socket closed between the two look-ups: remove the metadata again.
        a.mov(R1, R6);
        a.mov(R2, METADATA_LEN as i32);
        a.call(Helper::XdpAdjustMeta);
        a.jump(no_socket);
        a.bind(no_room);
        count(a, Counter::PassedMeta, 1);
        a.jump(pass);
    }
    a.bind(no_socket);
    count(a, Counter::PassedNoSocket, 1);
    a.bind(pass);
}

fn not_generated(why: impl ToString) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "generate the XDP program",
        why.to_string(),
    )
}

/// Emits the filter; a packet that it rejects is counted and passes. Expects the length in R0.
/// Returns whether the filter accepts any packet at all.
fn emit_filter(
    a: &mut Asm,
    filter: &bpf::cbpf::Program,
    frags: bool,
    variant: Variant,
    pass: Label,
) -> Result<bool> {
    let options = XdpOptions {
        hook: bpf::translate::DirectHook::Xdp,
        frags,
        indirect_by_helper: !variant.indirect,
        stack_top: META,
    };
    let (hit, miss) = (a.label(), a.label());
    a.mov(R9, R0);
    translate::emit_xdp(a, filter, &options, hit, miss).map_err(|e| {
        not_generated(e)
            .with_hint("filter in user space, or on an afpacket: port, which has more information")
    })?;
    if a.is_used(miss) {
        a.bind(miss);
        count(a, Counter::PassedFilter, 1);
        a.jump(pass);
    }
    a.bind(hit);
    Ok(a.is_used(hit))
}

/// `r0 = lookup(map, queue)`.
fn lookup(a: &mut Asm, map_fd: RawFd) {
    a.load_map(R1, map_fd);
    a.mov(R2, R10);
    a.alu(Alu::Add, R2, i32::from(KEY));
    a.call(Helper::MapLookup);
}

/// `counter += n`; the counter is per-CPU, so no atomic operation is needed. Clobbers R1.
fn count(a: &mut Asm, counter: Counter, n: i32) {
    a.load(Width::D, R1, R8, counter as i16);
    a.alu(Alu::Add, R1, n);
    a.store(Width::D, R8, counter as i16, R1);
}

/// Collects the metadata on the stack, with the flags in R7.
fn collect_metadata(a: &mut Asm, spec: &RedirectSpec, kfuncs: Kfuncs, clock: ProgramClock) {
    for off in (META..META + METADATA_LEN as i16).step_by(8) {
        a.store(Width::D, R10, off, 0);
    }
    a.store(Width::W, R10, META_MAGIC, MAGIC as i32);
    a.mov(R7, 0);
    let call = |a: &mut Asm, id: u32, out: [Option<i16>; 2]| {
        a.mov(R1, R6);
        for (reg, off) in [R2, R3].into_iter().zip(out) {
            if let Some(off) = off {
                a.mov(reg, R10);
                a.alu(Alu::Add, reg, i32::from(off));
            }
        }
        a.call_kfunc(id);
    };
    if let Some(id) = kfuncs.hash {
        let without = a.label();
        a.store(Width::W, R10, HASH_TYPE, 0);
        call(a, id, [Some(META_HASH), Some(HASH_TYPE)]);
        a.jump_if(Cond::Ne, R0, 0, without);
        a.load(Width::W, R7, R10, HASH_TYPE);
        a.alu32(Alu::Lsh, R7, FLAG_HASH_TYPE_SHIFT as i32);
        a.alu32(Alu::Or, R7, FLAG_HASH as i32);
        a.bind(without);
    }
    if let Some(id) = kfuncs.vlan {
        let without = a.label();
        call(a, id, [Some(META_VLAN_PROTO), Some(META_VLAN_TCI)]);
        a.jump_if(Cond::Ne, R0, 0, without);
        a.load(Width::H, R1, R10, META_VLAN_PROTO);
        a.swap_be(R1, 16);
        a.store(Width::H, R10, META_VLAN_PROTO, R1);
        a.alu32(Alu::Or, R7, FLAG_VLAN as i32);
        a.bind(without);
    }
    let timed = a.label();
    if let Some(id) = kfuncs.timestamp {
        let without = a.label();
        call(a, id, [Some(META), None]);
        a.jump_if(Cond::Ne, R0, 0, without);
        // Some drivers succeed with a time of 0, which means no time.
        a.load(Width::D, R1, R10, META);
        a.jump_if(Cond::Eq, R1, 0, without);
        a.alu32(Alu::Or, R7, (FLAG_TIME | FLAG_TIME_DEVICE) as i32);
        a.jump(timed);
        a.bind(without);
    }
    if spec.metadata.time != TimestampSource::None {
        let (helper, flags) = match clock {
            ProgramClock::Tai => (Helper::KtimeGetTaiNs, FLAG_TIME | FLAG_TIME_TAI),
            ProgramClock::Monotonic => (Helper::KtimeGetNs, FLAG_TIME),
        };
        a.call(helper);
        a.store(Width::D, R10, META, R0);
        a.alu32(Alu::Or, R7, flags as i32);
    }
    a.bind(timed);
    a.store(Width::W, R10, META_FLAGS, R7);
}

/// Makes room before the packet and copies the metadata there.
fn write_metadata(a: &mut Asm, no_room: Label) {
    a.mov(R1, R6);
    a.mov(R2, -(METADATA_LEN as i32));
    a.call(Helper::XdpAdjustMeta);
    a.jump_if(Cond::Ne, R0, 0, no_room);
    a.load(Width::W, R2, R6, MD_DATA_META);
    a.load(Width::W, R3, R6, MD_DATA);
    a.mov(R1, R2);
    a.alu(Alu::Add, R1, METADATA_LEN as i32);
    a.jump_if(Cond::Gt, R1, R3, no_room);
    for off in (0..METADATA_LEN as i16).step_by(8) {
        a.load(Width::D, R1, R10, META + off);
        a.store(Width::D, R2, off, R1);
    }
}
