//! The program that drops packets by rules, with its maps. The caller emits the instructions for
//! its rules once the maps exist.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use bpf::ebpf::Insn;
use sys::bpf::{Events, Map, MapSpec, MapType, TestRun, TestRunResult, UpdateMode};
use sys::{Error, ErrorKind, Result};

use crate::{AttachMode, TcLink, TcProgram, XdpLink, XdpProgram};

/// `EPERM`, which would be the same for every variant.
const EPERM: i32 = 1;
const ENOMEM: i32 = 12;

/// File descriptors of the maps, for the instructions.
#[derive(Clone, Copy, Debug)]
pub struct GuardMaps {
    /// Per-CPU array with one entry: the counters.
    pub counters: RawFd,
    /// Array with one entry, shared by all processors: the limits.
    pub limits: RawFd,
    /// Trie with the entries of [`GuardSpec::prefixes`].
    pub prefixes: RawFd,
    /// Hash table with the entries of [`GuardSpec::names`]; invalid without them.
    pub names: RawFd,
    /// Per-CPU array with one entry: memory of the program; invalid without names.
    pub scratch: RawFd,
    /// Descriptor of [`GuardSpec::sources`]; invalid without them.
    pub sources: RawFd,
    /// Descriptor of [`GuardSpec::events`]; invalid without them.
    pub events: RawFd,
}

/// Per-source limits, with keys of [`PREFIX_KEY_LEN`] bytes. Programs may share the map.
#[derive(Debug)]
pub struct SourceMap(Map);

impl SourceMap {
    /// Creates a map for `source_count` sources; when full, new sources evict the least recently
    /// used.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn create(source_count: u32) -> Result<Self> {
        Map::create(&MapSpec {
            kind: MapType::LruHash,
            name: "bw_sources",
            key_size: PREFIX_KEY_LEN as u32,
            value_size: 8,
            max_entries: source_count,
            mappable: false,
        })
        .map(Self)
    }
}

/// Contents of the maps.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuardSpec<'a> {
    /// Length of one processor's counters in bytes.
    pub counters_len: usize,
    /// Length of the limits in bytes.
    pub limits_len: usize,
    /// Keys of the trie (`struct bpf_lpm_trie_key`, 20 bytes of data), with their values.
    pub prefixes: &'a [([u8; PREFIX_KEY_LEN], u64)],
    /// Names, if the program looks any up.
    pub names: Option<GuardNames<'a>>,
    /// Per-source limits, if the program has any.
    pub sources: Option<&'a SourceMap>,
    /// Perf rings for samples of packets, if the program takes any.
    pub events: Option<&'a Events>,
}

/// The hash table of names.
#[derive(Clone, Copy, Debug)]
pub struct GuardNames<'a> {
    /// Length of a key in bytes.
    pub key_len: usize,
    /// Bytes of memory for each processor.
    pub scratch_len: usize,
    /// Keys and values.
    pub entries: &'a [(&'a [u8], [u64; 2])],
}

/// Length of a key of [`GuardSpec::prefixes`] in bytes.
pub const PREFIX_KEY_LEN: usize = 24;

/// Where the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardHook {
    /// XDP.
    #[default]
    Xdp,
    /// tc's ingress (Linux 6.6).
    Tc,
}

/// Kernel features that the program may use; not every kernel has them, nor may every process use
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardFeatures {
    /// Multi-buffer packets (XDP: Linux 5.18).
    pub frags: bool,
    /// Loads at a variable offset from a packet pointer, which need CAP_PERFMON.
    pub indirect: bool,
}

/// Best variant first. The last one, for kernels before 5.18, needs CAP_PERFMON.
const FEATURES: [GuardFeatures; 3] = [
    GuardFeatures {
        frags: true,
        indirect: true,
    },
    GuardFeatures {
        frags: true,
        indirect: false,
    },
    GuardFeatures {
        frags: false,
        indirect: true,
    },
];

/// The program's name in the kernel.
pub const GUARD_NAME: &str = "bw_guard";

/// The program at its hook.
#[derive(Debug)]
pub enum GuardProgram {
    /// XDP.
    Xdp(XdpProgram),
    /// tc's ingress.
    Tc(TcProgram),
}

impl GuardProgram {
    fn load(hook: GuardHook, insns: &[Insn], features: GuardFeatures) -> Result<Self> {
        let name = GUARD_NAME;
        match hook {
            GuardHook::Xdp => XdpProgram::load(name, insns, features.frags, None).map(Self::Xdp),
            GuardHook::Tc => TcProgram::load(name, insns).map(Self::Tc),
        }
    }

    /// Runs the program on a packet; see [`sys::bpf::Program::test_run`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn test_run(&self, run: &TestRun<'_>) -> Result<TestRunResult> {
        match self {
            Self::Xdp(program) => program.test_run(run),
            Self::Tc(program) => program.test_run(run),
        }
    }
}

/// The attachment of a program: the kernel detaches it on drop, or when the process dies.
#[derive(Debug)]
pub enum GuardLink {
    /// XDP.
    Xdp(XdpLink),
    /// tc's ingress.
    Tc(TcLink),
}

impl GuardLink {
    /// Attaches a program to a device; the mode is for XDP only.
    ///
    /// # Errors
    /// As [`XdpLink::attach`] and [`TcLink::attach`].
    pub fn attach(program: &GuardProgram, ifindex: u32, mode: AttachMode) -> Result<Self> {
        match program {
            GuardProgram::Xdp(program) => XdpLink::attach(program, ifindex, mode).map(Self::Xdp),
            GuardProgram::Tc(program) => TcLink::attach(program, ifindex).map(Self::Tc),
        }
    }

    /// Replaces the attached program atomically: every packet is seen by one of the two.
    ///
    /// # Errors
    /// If the kernel refuses; `InvalidInput` for a program of another hook.
    pub fn update(&self, program: &GuardProgram) -> Result<()> {
        match (self, program) {
            (Self::Xdp(link), GuardProgram::Xdp(program)) => link.update(program),
            (Self::Tc(link), GuardProgram::Tc(program)) => link.update(program),
            _ => Err(Error::new(
                ErrorKind::InvalidInput,
                "replace the attached program",
                "the other program is for another hook",
            )),
        }
    }

    /// Detaches now, even if other processes hold the link.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn detach(&self) -> Result<()> {
        match self {
            Self::Xdp(link) => link.detach(),
            Self::Tc(link) => link.detach(),
        }
    }

    /// Gives it a name in a mounted BPF file system: it stays attached until the file is removed,
    /// even if the process dies.
    ///
    /// # Errors
    /// If the name exists, or the path is in another file system.
    pub fn pin(&self, path: &str) -> Result<()> {
        match self {
            Self::Xdp(link) => link.pin(path),
            Self::Tc(link) => link.pin(path),
        }
    }

    /// Whether the link is still attached and `program` is the attached program: other processes
    /// may detach a link, or replace its program.
    ///
    /// # Errors
    /// If the kernel refuses to describe the link.
    pub fn calls(&self, program: &GuardProgram) -> Result<bool> {
        match (self, program) {
            (Self::Xdp(link), GuardProgram::Xdp(program)) => link.calls(program),
            (Self::Tc(link), GuardProgram::Tc(program)) => link.calls(program),
            _ => Ok(false),
        }
    }

    /// The attach mode of XDP.
    pub fn mode(&self) -> Option<AttachMode> {
        match self {
            Self::Xdp(link) => Some(link.mode()),
            Self::Tc(_) => None,
        }
    }
}

/// The program with its maps.
#[derive(Debug)]
pub struct Guard {
    program: GuardProgram,
    counters: Map,
    limits: Map,
    /// Kept alive for the program; never read.
    _prefixes: Map,
    _names: Option<[Map; 2]>,
    features: GuardFeatures,
}

impl Guard {
    /// Creates the maps and loads the program that `emit` returns for them. To replace a program,
    /// load another and pass it to [`GuardLink::update`].
    ///
    /// # Errors
    /// The errors of `emit`; otherwise as [`XdpProgram::load`].
    pub fn load(
        spec: &GuardSpec<'_>,
        hook: GuardHook,
        emit: impl Fn(GuardMaps, GuardFeatures) -> Result<Vec<Insn>>,
    ) -> Result<Self> {
        Self::load_for(spec, (hook, true), emit)
    }

    /// As [`Guard::load`]; says also whether the program may see multi-buffer packets.
    ///
    /// # Errors
    /// As [`Guard::load`].
    pub fn load_for(
        spec: &GuardSpec<'_>,
        (hook, frags): (GuardHook, bool),
        emit: impl Fn(GuardMaps, GuardFeatures) -> Result<Vec<Insn>>,
    ) -> Result<Self> {
        let counters = one_value(MapType::PercpuArray, "bw_rules", spec.counters_len)?;
        let limits = one_value(MapType::Array, "bw_limits", spec.limits_len)?;
        let prefixes = trie(spec.prefixes)?;
        let names = spec.names.as_ref().map(names).transpose()?;
        let [table, scratch] = match &names {
            Some(maps) => maps.each_ref().map(|map| map.as_fd().as_raw_fd()),
            None => [-1; 2],
        };
        let maps = GuardMaps {
            counters: counters.as_fd().as_raw_fd(),
            limits: limits.as_fd().as_raw_fd(),
            prefixes: prefixes.as_fd().as_raw_fd(),
            names: table,
            scratch,
            sources: spec.sources.map_or(-1, |map| map.0.as_fd().as_raw_fd()),
            events: spec.events.map_or(-1, |events| events.as_fd().as_raw_fd()),
        };
        // Report the first refusal: that variant is what this kernel should support.
        let mut refusal = None;
        let is_possible = |features: &GuardFeatures| match hook {
            GuardHook::Xdp => frags || !features.frags,
            GuardHook::Tc => features.frags,
        };
        for features in FEATURES.into_iter().filter(is_possible) {
            let insns = match emit(maps, features) {
                Ok(insns) => insns,
                Err(error) => return Err(refusal.unwrap_or(error)),
            };
            match GuardProgram::load(hook, &insns, features) {
                Ok(program) => {
                    return Ok(Self {
                        program,
                        counters,
                        limits,
                        _prefixes: prefixes,
                        _names: names,
                        features,
                    });
                }
                Err(e) if e.os_code() == Some(EPERM) => return Err(e),
                Err(e) => refusal = refusal.or(Some(e)),
            }
        }
        Err(refusal.unwrap_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "load the program",
                "all methods have failed",
            )
        }))
    }

    /// The program, for attaching.
    pub fn program(&self) -> &GuardProgram {
        &self.program
    }

    /// The features that it was loaded with.
    pub fn features(&self) -> GuardFeatures {
        self.features
    }

    /// The bytes of the limits: times of `CLOCK_MONOTONIC` until which each limit is used up.
    ///
    /// # Errors
    /// If the kernel refuses to read the map.
    pub fn limits(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.limits.value_len()];
        self.limits.lookup(&0_u32.to_ne_bytes(), &mut bytes)?;
        Ok(bytes)
    }

    /// Copies the limits of another program, before this one is attached.
    ///
    /// # Errors
    /// If the length differs, or the kernel refuses to write the map.
    pub fn set_limits(&self, bytes: &[u8]) -> Result<()> {
        let key = 0_u32.to_ne_bytes();
        self.limits.update(&key, bytes, UpdateMode::Any)
    }

    /// The words of the counters, summed over all processors. While packets arrive, the counters of
    /// one reading may disagree by the packets that are being counted.
    ///
    /// # Errors
    /// If the kernel refuses to read the map.
    pub fn counters(&self) -> Result<Vec<u64>> {
        let mut bytes = vec![0; self.counters.value_len()];
        self.counters.lookup(&0_u32.to_ne_bytes(), &mut bytes)?;
        let cpu_count = sys::bpf::possible_cpu_count()?;
        let word_count = bytes.len() / 8 / cpu_count.max(1);
        let mut sums = vec![0_u64; word_count];
        for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            sums[at % word_count] += u64::from_ne_bytes(*word);
        }
        Ok(sums)
    }
}

/// Creates a map with one entry of this length in bytes.
fn one_value(kind: MapType, name: &str, len: usize) -> Result<Map> {
    let value_size = u32::try_from(len.next_multiple_of(8)).map_err(|_| {
        let why = format!("{len} bytes are too long");
        Error::new(
            ErrorKind::InvalidInput,
            format!("create the BPF map {name}"),
            why,
        )
    })?;
    Map::create(&MapSpec {
        kind,
        name,
        key_size: 4,
        value_size,
        max_entries: 1,
        mappable: false,
    })
}

/// Creates a trie with these entries.
fn trie(prefixes: &[([u8; PREFIX_KEY_LEN], u64)]) -> Result<Map> {
    let count = u32::try_from(prefixes.len()).unwrap_or(u32::MAX);
    let map = Map::create(&MapSpec {
        kind: MapType::LpmTrie,
        name: "bw_prefixes",
        key_size: PREFIX_KEY_LEN as u32,
        value_size: 8,
        max_entries: count.max(1),
        mappable: false,
    })?;
    for (key, value) in prefixes {
        map.update(key, &value.to_ne_bytes(), UpdateMode::Any)
            .map_err(|error| no_memory(error, count, "prefixes", 200))?;
    }
    Ok(map)
}

/// Creates a hash table with these names, and the memory to build keys in.
fn names(names: &GuardNames<'_>) -> Result<[Map; 2]> {
    let count = u32::try_from(names.entries.len()).unwrap_or(u32::MAX);
    // The kernel's element: hash chain, hash, padding, key and value.
    let element_len = names.key_len + 64;
    let refused = |error| no_memory(error, count, "names", element_len);
    let table = Map::create(&MapSpec {
        kind: MapType::Hash,
        name: "bw_names",
        key_size: names.key_len as u32,
        value_size: 16,
        max_entries: count.max(1),
        mappable: false,
    })
    .map_err(refused)?;
    for (key, words) in names.entries {
        let value = words.map(u64::to_ne_bytes).concat();
        table
            .update(key, &value, UpdateMode::Any)
            .map_err(refused)?;
    }
    let scratch = one_value(MapType::PercpuArray, "bw_scratch", names.scratch_len)?;
    Ok([table, scratch])
}

/// Explains that the kernel has no memory for a map's entries of `len` bytes each.
fn no_memory(error: Error, count: u32, of: &str, len: usize) -> Error {
    match error.os_code() {
        Some(ENOMEM) => Error::new(
            ErrorKind::NoSpace,
            format!("load {count} {of}"),
            format!("the kernel has no memory for them; each takes about {len} bytes"),
        )
        .with_hint("they count against a control group's memory limit, too"),
        _ => error,
    }
}
