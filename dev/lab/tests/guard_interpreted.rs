//! The guard's program and filter translations, in the interpreter and in the kernel through
//! `BPF_PROG_TEST_RUN`, on the same packets and maps: the verdicts and counts are equal.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use bpf::ebpf::Insn;
use bpf::translate::{XdpOptions, skb_program, xdp_program};
use bpf::vm_cbpf::PacketInfo;
use bpf::vm_ebpf::maps::{Kind, Maps};
use bpf::vm_ebpf::{self, Hook, Packet, STEPS_MAX};
use guard::{
    Account, DirectHook, Features, Limit, Name, NameTest, Prefix, QueryType, Rule, Sample,
    Sampling, SourceLimit, Verdict,
};
use lab::random::Random;
use lab::{require, skip};
use runtime::filter::select::Select;
use sys::bpf::{Events, ProgramSpec, ProgramType, TestRun, XDP_FLAG_FRAGS};
use xdp::{Guard, GuardHook, GuardNames, GuardSpec, SourceMap};

/// File descriptors of the interpreter's maps.
const COUNTERS: i32 = 1;
const LIMITS: i32 = 2;
const PREFIXES: i32 = 3;
const SOURCES: i32 = 4;
const EVENTS: i32 = 5;
const NAMES: i32 = 6;
const SCRATCH: i32 = 7;
const FDS: [i32; 7] = [COUNTERS, LIMITS, PREFIXES, SOURCES, EVENTS, NAMES, SCRATCH];

/// Samples of a rule that its limit lets through at once.
const SAMPLES_AT_ONCE: u64 = 100;

const EXPRESSIONS: &[&str] = &[
    "udp",
    "tcp dst port 80",
    "ip6",
    "vlan and udp",
    "udp portrange 50-60 or icmp",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn",
    "ip[8] < 40 and greater 60",
    "udp[8:4] = 0x01020304",
    "src net 10.0.0.0/9",
    "ip[ip[0] & 0xf:2] > ip[6] * 3",
    "ether[60] & 1 = 1",
    "less 70",
    "p0f:4:64:0:0:*,0::ack+:0",
    "p0f:*:64:0:*:*,*:mss,nop,ws:df,id+:0",
];

/// Primitives that libpcap does not have.
const OWN: &[&str] = &[
    "tcp option mss",
    "tcp option ws",
    "not tcp option 30",
    "tcp option mss and not tcp option sackok",
    "payload[0:2] = 0",
    "payload contains \"\\x02\\x04\\x05\\xb4\" within 64",
    "not payload contains \"GET / HTTP/1.1\" within 256",
    "not payload contains \"\\x00\\x00\\x00\" within 400",
    "ttl 20-40",
];

/// A packet of mostly valid headers, sometimes truncated; never shorter than the kernel accepts.
pub fn packet(random: &mut Random) -> Vec<u8> {
    let mut packet = vec![2; 12];
    for _ in 0..random.below(6).saturating_sub(2) {
        packet.extend([[0x81, 0, 0, 9], [0x88, 0xa8, 0, 9]][random.below(2) as usize]);
    }
    let protocol = [17, 6, 1, 50][random.below(4) as usize];
    let address = |random: &mut Random| random.below(4) as u8;
    if random.below(3) == 0 {
        packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, protocol, 64]);
        for _ in 0..2 {
            packet.extend([0x20, 1, 0xd, 0xb8, 0, address(random)]);
            packet.extend([0; 9]);
            packet.push(address(random));
        }
    } else {
        let ttl = random.below(70) as u8;
        packet.extend([8, 0, 0x45, 0, 0, 60, 1, 1]);
        packet.extend([
            [0, 0x40, 0x20][random.below(3) as usize],
            0,
            ttl,
            protocol,
            0,
            0,
        ]);
        for _ in 0..2 {
            let half = [0, 128][random.below(2) as usize];
            packet.extend([10, half, address(random), address(random)]);
        }
    }
    if protocol == 17 && random.below(3) == 0 {
        packet.extend([
            0x9c, 0x40, 0, 53, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0,
        ]);
        for _ in 0..random.below(3) {
            packet.extend([b"\x01a", b"\x01B", b"\x01x"][random.below(3) as usize]);
        }
        packet.extend(b"\x04Test\0");
        packet.extend([0, 1 + random.below(2) as u8, 0, 1]);
    }
    let port = [9, 53, 55, 80][random.below(4) as usize];
    packet.extend([
        0x9c,
        0x40,
        0,
        port,
        0,
        0,
        0,
        1,
        0,
        0,
        0,
        random.below(2) as u8,
    ]);
    packet.extend([
        [0x50, 0x80][random.below(2) as usize],
        [2, 0x12, 0x10][random.below(3) as usize],
    ]);
    packet.extend([0x20, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4, 1, 3, 3, 7, 1, 2, 3, 4]);
    packet.extend((0..random.below(40)).map(|_| random.number() as u8));
    if random.below(4) == 0 {
        packet.truncate(14.max(random.below(packet.len() as u64 + 1) as usize));
    }
    packet
}

fn list(random: &mut Random) -> Option<guard::List> {
    const PREFIXES: [&str; 5] = [
        "10.0.0.0/9",
        "10.128.1.0/24",
        "10.0.2.3/32",
        "2001:db8:1::/48",
        "2001:db8::/46",
    ];
    let some: Vec<_> = PREFIXES.iter().filter(|_| random.below(2) == 0).collect();
    let prefixes = some.iter().map(|text| Prefix::parse(text).unwrap());
    (!some.is_empty()).then(|| prefixes.collect())
}

fn names(random: &mut Random) -> Option<NameTest> {
    const LISTS: [&str; 3] = ["a.test", "*.test *.b.test", "test *.a.test x.b.test"];
    let list = LISTS.get(random.below(12) as usize)?;
    let types = [vec![], vec![QueryType(1)]][random.below(2) as usize].clone();
    Some(NameTest {
        list: Name::parse_list(list).unwrap().into(),
        types,
    })
}

pub fn rule(random: &mut Random, id: u32) -> Rule {
    // One packet per second: within a second only the burst passes.
    let limit = |random: &mut Random| Limit::new(1, 1 + random.below(9) as u32).unwrap();
    let verdict = match random.below(6) {
        0 => Verdict::Pass,
        1 => Verdict::Drop,
        2 => Verdict::Limit(limit(random)),
        3 => {
            let source = SourceLimit::new(limit(random), 24, 48).unwrap();
            let all = (random.below(2) == 0).then(|| limit(random));
            Verdict::LimitSources(source, all)
        }
        _ => Verdict::Count,
    };
    let text = EXPRESSIONS[random.below(EXPRESSIONS.len() as u64) as usize];
    let matcher = match text.strip_prefix("p0f:") {
        Some(signature) => Select::p0f(signature).unwrap().compile(1).map(Some),
        None => runtime::filter::compile(text, 1),
    };
    let mut any = |share: u64| match random.below(share) {
        0 => list(random),
        _ => None,
    };
    Rule {
        id,
        name: text.to_owned(),
        matcher: matcher.unwrap(),
        sources: any(3),
        destinations: any(5),
        names: names(random),
        verdict,
        priority: 0,
    }
}

fn emit(
    rules: &[Rule],
    dry_run: bool,
    [counters, limits, prefixes, sources, events, names, scratch]: [i32; 7],
    (hook, frags, indirect): (GuardHook, bool, bool),
) -> Vec<Insn> {
    let maps = guard::Maps {
        counters,
        limits,
        prefixes,
        names,
        scratch,
        sources,
        samples: Some(Sampling { events, one_in: 1 }),
    };
    let features = Features {
        hook: match hook {
            GuardHook::Xdp => DirectHook::Xdp,
            GuardHook::Tc => DirectHook::Tc,
        },
        frags,
        indirect,
    };
    guard::emit(rules, dry_run, maps, features).unwrap()
}

/// The interpreter's maps for a set of rules.
fn interpreted_maps(rules: &[Rule]) -> Maps {
    let entries = guard::trie_entries(rules).unwrap();
    let mut maps = Maps::new();
    maps.now_ns = 5_000_000_000;
    let (counters_len, limits_len) = (guard::counters_len, guard::limits_len);
    maps.add(COUNTERS, Kind::Array, (4, counters_len(rules.len())), 1);
    maps.add(LIMITS, Kind::Array, (4, limits_len(rules.len())), 1);
    maps.add(PREFIXES, Kind::Trie, (guard::KEY_LEN, 8), entries.len());
    maps.add(SOURCES, Kind::LruHash, (guard::KEY_LEN, 8), 1_000);
    maps.add(EVENTS, Kind::Events, (4, 4), 10_000);
    let names = guard::name_table(rules).unwrap();
    maps.add(NAMES, Kind::Hash, (names.key_len, 16), names.entries.len());
    maps.add(SCRATCH, Kind::Array, (4, names.scratch_len), 1);
    for entry in &names.entries {
        let value = entry.lists.map(u64::to_ne_bytes).concat();
        assert_eq!(
            vm_ebpf::Kernel::update(&mut maps, NAMES, &entry.key, &value, 0),
            0
        );
    }
    for entry in &entries {
        let value = entry.lists.to_ne_bytes();
        let added = vm_ebpf::Kernel::update(&mut maps, PREFIXES, &entry.key, &value, 0);
        assert_eq!(added, 0);
    }
    maps
}

/// The tc program of a set of rules, and its maps, for the interpreter.
pub fn interpreted(rules: &[Rule]) -> (Vec<Insn>, Maps) {
    let insns = emit(rules, false, FDS, (GuardHook::Tc, true, true));
    (insns, interpreted_maps(rules))
}

/// The counts in the interpreter's maps.
pub fn account(maps: &mut Maps) -> Account {
    let bytes = maps.get(COUNTERS, &[0; 4]).unwrap();
    let words = bytes.chunks_exact(8).map(|word| word.try_into().unwrap());
    let words: Vec<u64> = words.map(u64::from_ne_bytes).collect();
    Account::of(&words)
}

/// The program of a set of rules in the interpreter and in the kernel.
pub struct Both {
    kernel: Guard,
    _sources: SourceMap,
    events: Events,
    insns: Vec<Insn>,
    maps: Maps,
    hook: GuardHook,
}

impl Both {
    pub fn new(rules: &[Rule], dry_run: bool, hook: GuardHook) -> Both {
        let entries = guard::trie_entries(rules).unwrap();
        let prefixes: Vec<_> = entries.iter().map(|e| (e.key, e.lists)).collect();
        let table = guard::name_table(rules).unwrap();
        let names: Vec<_> = table
            .entries
            .iter()
            .map(|e| (&e.key[..], e.lists))
            .collect();
        let sources = SourceMap::create(guard::SOURCES_MAX).unwrap();
        let events = Events::create("bw_lab", 1 << 20).unwrap();
        let spec = GuardSpec {
            counters_len: guard::counters_len(rules.len()),
            limits_len: guard::limits_len(rules.len()),
            prefixes: &prefixes,
            names: (table.key_len > 0).then_some(GuardNames {
                key_len: table.key_len,
                scratch_len: table.scratch_len,
                entries: &names,
            }),
            sources: Some(&sources),
            events: Some(&events),
        };
        let emit = |fds, frags, indirect| emit(rules, dry_run, fds, (hook, frags, indirect));
        let kernel = Guard::load(&spec, hook, |maps, features| {
            let fds = [
                maps.counters,
                maps.limits,
                maps.prefixes,
                maps.sources,
                maps.events,
                maps.names,
                maps.scratch,
            ];
            Ok(emit(fds, features.frags, features.indirect))
        });
        let kernel = kernel.unwrap();
        let maps = interpreted_maps(rules);
        let features = kernel.features();
        Both {
            insns: emit(FDS, features.frags, features.indirect),
            kernel,
            _sources: sources,
            events,
            maps,
            hook,
        }
    }

    /// The verdicts of the interpreter and of the kernel.
    pub fn run(&mut self, bytes: &[u8]) -> (u32, u32) {
        let first_len = bytes.len();
        let hook = match self.hook {
            GuardHook::Xdp => Hook::Xdp { first_len },
            GuardHook::Tc => Hook::Tc { first_len },
        };
        let mut packet = Packet::new(bytes);
        let info = PacketInfo::UNKNOWN;
        let ours = vm_ebpf::run(
            &self.insns,
            (hook, &mut packet),
            &info,
            &mut self.maps,
            STEPS_MAX,
        );
        let ours = ours.unwrap_or_else(|fault| panic!("{fault:?}: {bytes:02x?}"));
        let run = TestRun {
            data: bytes,
            ..TestRun::default()
        };
        (ours, self.kernel.program().test_run(&run).unwrap().retval)
    }

    /// Like [`Both::run`], at this time of the monotonic clock for the interpreter; the kernel has
    /// its own.
    pub fn run_at(&mut self, bytes: &[u8], now_ns: u64) -> (u32, u32) {
        self.maps.now_ns = now_ns;
        self.run(bytes)
    }

    /// The counts of the interpreter and of the kernel.
    pub fn accounts(&mut self) -> (Account, Account) {
        (
            account(&mut self.maps),
            Account::of(&self.kernel.counters().unwrap()),
        )
    }

    /// The samples of the interpreter and of the kernel.
    fn samples(&mut self) -> [Vec<Taken>; 2] {
        let of = |sample: Sample<'_>| (sample.rule, sample.wire_len, sample.bytes.to_vec());
        let ours = self.maps.events.iter();
        let ours = ours.map(|output| of(Sample::read(output).unwrap()));
        let mut kernels = Vec::new();
        self.events.read(|output| {
            let sample = Sample::read(output).unwrap();
            kernels.push((sample.time_ns, of(sample)));
        });
        // The test may have moved to another processor, with a ring of its own.
        kernels.sort_by_key(|row| row.0);
        let kernels = kernels.into_iter().map(|row| row.1);
        [ours.collect(), kernels.collect()]
    }
}

/// Rule, length on the wire, and bytes of a sample.
type Taken = (u32, u32, Vec<u8>);

/// Whether it took less than a second, in which no limit passes more than its burst.
fn compare(rules: &[Rule], packets: &[Vec<u8>], dry_run: bool) -> bool {
    let mut both = Both::new(rules, dry_run, GuardHook::Xdp);
    let began = Instant::now();
    let verdicts: Vec<_> = packets.iter().map(|packet| both.run(packet)).collect();
    if began.elapsed() > Duration::from_millis(900) {
        return false;
    }
    let names: Vec<_> = rules.iter().map(|r| (&r.name, r.verdict)).collect();
    for (packet, (ours, kernels)) in packets.iter().zip(verdicts) {
        assert_eq!(ours, kernels, "{packet:02x?}\n{names:?}");
    }
    let (mut ours, mut kernels) = both.accounts();
    let samples = both.samples();
    // The kernel's clock advances, which lets through more samples than the burst.
    if ours
        .rules
        .iter()
        .all(|rule| rule.dropped <= SAMPLES_AT_ONCE)
    {
        let dropped: u64 = ours.rules.iter().map(|rule| rule.dropped).sum();
        assert_eq!(samples[0].len() as u64, dropped, "{names:?}");
        assert_eq!(samples[0], samples[1], "{names:?}");
    } else {
        (ours.samples, kernels.samples) = Default::default();
    }
    assert_eq!(ours, kernels, "{names:?}");
    assert_eq!(ours.seen.packets, packets.len() as u64);
    true
}

#[test]
fn guard_programs_decide_the_same_in_interpreter_and_kernel() {
    require!(skip::lab());
    let mut random = Random::seeded("guard, interpreted");
    for round in 0..60 {
        let count = 1 + random.below(12) as u32;
        let rules: Vec<Rule> = (0..count).map(|id| rule(&mut random, id)).collect();
        let packets: Vec<_> = (0..150).map(|_| packet(&mut random)).collect();
        // On a busy machine it is retried with new limits.
        let is_dry = round % 8 == 0;
        let is_done = (0..20).any(|_| compare(&rules, &packets, is_dry));
        assert!(is_done, "150 packets took a second, twenty times");
    }
}

fn load(kind: ProgramType, insns: &[Insn], frags: bool) -> sys::bpf::Program {
    let words: Vec<u64> = insns.iter().map(|insn| insn.to_word()).collect();
    let spec = ProgramSpec {
        kind,
        name: "bw_lab",
        insns: &words,
        flags: if frags { XDP_FLAG_FRAGS } else { 0 },
        ifindex: 0,
    };
    sys::bpf::Program::load(&spec).unwrap_or_else(|e| panic!("{}\n{}", e.source, e.log))
}

/// A filter's translations decide the same in the interpreter and in the kernel.
#[test]
fn filters_decide_the_same_in_interpreter_and_kernel() {
    require!(skip::lab());
    let mut random = Random::seeded("filters, interpreted");
    let packets: Vec<_> = (0..400).map(|_| packet(&mut random)).collect();
    let selected: u32 = EXPRESSIONS
        .iter()
        .map(|text| compare_filter(text, &packets))
        .sum();
    assert!(selected > 1_000, "{selected}");
}

/// The verifier accepts barewire's own primitives, whose programs are long.
#[test]
fn own_primitives_decide_the_same_in_interpreter_and_kernel() {
    require!(skip::lab());
    let mut random = Random::seeded("own primitives, interpreted");
    let packets: Vec<_> = (0..300).map(|_| packet(&mut random)).collect();
    for text in OWN {
        assert!(compare_filter(text, &packets) > 0, "{text} selects nothing");
    }
}

/// Compares the translations of a filter; how often they selected a packet.
fn compare_filter(text: &str, packets: &[Vec<u8>]) -> u32 {
    let info = PacketInfo::UNKNOWN;
    let mut selected = 0;
    let select = match text.strip_prefix("p0f:") {
        Some(signature) => Select::p0f(signature).unwrap(),
        None => Select::Expression(text.into()),
    };
    let filter = select.compile(1).unwrap();
    let mut programs = Vec::new();
    for (frags, indirect_by_helper) in [(false, false), (true, false), (true, true)] {
        let options = XdpOptions {
            hook: bpf::translate::DirectHook::Xdp,
            frags,
            indirect_by_helper,
            stack_top: 0,
        };
        let insns = xdp_program(&filter, &options).unwrap();
        programs.push((load(ProgramType::Xdp, &insns, frags), insns, true));
    }
    let insns = skb_program(&filter).unwrap();
    programs.push((load(ProgramType::SocketFilter, &insns, false), insns, false));
    for bytes in packets {
        for (program, insns, is_xdp) in &programs {
            let hook = match is_xdp {
                true => Hook::Xdp {
                    first_len: bytes.len(),
                },
                false => Hook::Socket,
            };
            let hook = (hook, &mut Packet::new(bytes));
            let ours = vm_ebpf::run(insns, hook, &info, &mut Maps::new(), STEPS_MAX);
            // A test run removes an Ethernet header before it calls a socket filter.
            let data = match is_xdp {
                true => bytes.clone(),
                false => [&[0; 14], &bytes[..]].concat(),
            };
            let run = TestRun {
                data: &data,
                ..TestRun::default()
            };
            let kernels = program.test_run(&run).unwrap().retval;
            assert_eq!(ours, Ok(kernels), "{text}, XDP {is_xdp}: {bytes:02x?}");
            selected += u32::from(kernels != 0);
        }
    }
    selected
}

/// Limits per source distinguish sources by their prefixes, in both.
#[test]
fn source_limits_are_the_same_in_interpreter_and_kernel() {
    require!(skip::lab());
    let limit = Limit::new(1, 3).unwrap();
    let source = SourceLimit::new(limit, 24, 48).unwrap();
    let rules = [Rule {
        id: 7,
        name: "own".into(),
        matcher: None,
        sources: None,
        destinations: None,
        names: None,
        verdict: Verdict::LimitSources(source, None),
        priority: 0,
    }];
    let from = |address: &str| {
        let mut packet = vec![2; 12];
        match address.parse().unwrap() {
            IpAddr::V4(address) => {
                packet.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
                packet.extend(address.octets());
                packet.extend([10, 0, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0]);
            }
            IpAddr::V6(address) => {
                packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
                packet.extend(address.octets());
                packet.extend([0x20; 24]);
            }
        }
        packet
    };
    let sources = [
        "10.0.0.1",
        "10.0.0.9",
        "10.0.1.1",
        "2001:db8::1",
        "2001:db8:0:9::1",
        "2001:db8:1::1",
    ];
    let packets: Vec<_> = (0..30)
        .map(|at| from(sources[at % sources.len()]))
        .collect();
    assert!((0..20).any(|_| compare(&rules, &packets, false)));
    let mut both = Both::new(&rules, false, GuardHook::Xdp);
    for packet in &packets {
        both.run(packet);
    }
    // Four prefixes, each with a burst of three.
    assert_eq!(both.accounts().0.rules[0].passed(), 12);
}
