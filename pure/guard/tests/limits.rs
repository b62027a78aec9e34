//! What limits pass of packets that arrive at random times (a Poisson process), for the program in
//! the interpreter and for the algorithm that it states.

use barewire_guard::{
    Account, Features, KEY_LEN, Limit, Maps, Rule, SourceLimit, Verdict, counters_len, emit,
    limits_len,
};
use bpf::ebpf::Insn;
use bpf::translate::DirectHook;
use bpf::vm_cbpf::PacketInfo;
use bpf::vm_ebpf::{self, Hook, Packet, STEPS_MAX, maps};

const MAPS: Maps = Maps {
    counters: 1,
    limits: 2,
    prefixes: 3,
    names: 4,
    scratch: 5,
    sources: 6,
    samples: None,
};

const S: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * S;
/// The time of the first packet is not that of the boot.
const BOOT: u64 = 1_000 * S;

/// xorshift64*.
struct Random(u64);

impl Random {
    /// Between 0 and 1, neither included.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 12;
        (bits as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Times of a minute at which packets arrive, of a Poisson process with this rate.
    fn arrivals(&mut self, rate_pps: f64) -> Vec<u64> {
        let mut times = Vec::new();
        let mut now = 0.0;
        loop {
            now -= self.share().ln() / rate_pps * S as f64;
            if now >= MINUTE as f64 {
                return times;
            }
            times.push(BOOT + now as u64);
        }
    }
}

/// The program of one rule, and its maps.
struct Program {
    insns: Vec<Insn>,
    maps: maps::Maps,
}

impl Program {
    fn new(verdict: Verdict) -> Program {
        let features = Features {
            hook: DirectHook::Xdp,
            frags: true,
            indirect: true,
        };
        let rules = [Rule::new("limit", verdict)];
        let mut maps = maps::Maps::new();
        maps.add(MAPS.counters, maps::Kind::Array, (4, counters_len(1)), 1);
        maps.add(MAPS.limits, maps::Kind::Array, (4, limits_len(1)), 1);
        maps.add(MAPS.sources, maps::Kind::LruHash, (KEY_LEN, 8), 1_000);
        Program {
            insns: emit(&rules, false, MAPS, features).unwrap(),
            maps,
        }
    }

    /// Whether a packet of this source passes.
    fn passes(&mut self, now_ns: u64, source: u8) -> bool {
        self.maps.now_ns = now_ns;
        let mut bytes = vec![2; 12];
        bytes.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
        bytes.extend([10, 0, 0, source, 10, 1, 0, 1, 0, 1, 0, 2, 0, 8, 0, 0]);
        let hook = Hook::Xdp {
            first_len: bytes.len(),
        };
        let mut packet = Packet::new(&bytes);
        let info = PacketInfo::UNKNOWN;
        let (insns, maps) = (&self.insns, &mut self.maps);
        vm_ebpf::run(insns, (hook, &mut packet), &info, maps, STEPS_MAX).unwrap() == 2
    }

    fn dropped(&mut self) -> u64 {
        let bytes = self.maps.get(MAPS.counters, &[0; 4]).unwrap();
        let words = bytes.chunks_exact(8).map(|word| word.try_into().unwrap());
        let words: Vec<u64> = words.map(u64::from_ne_bytes).collect();
        Account::of(&words).rules[0].dropped
    }
}

/// The generic cell rate algorithm (ITU-T I.371, annex A).
struct Bucket {
    interval_ns: u64,
    burst: u64,
    due_ns: u64,
}

impl Bucket {
    fn new(limit: Limit) -> Bucket {
        Bucket {
            interval_ns: (S + u64::from(limit.rate_pps()) / 2) / u64::from(limit.rate_pps()),
            burst: u64::from(limit.burst()),
            due_ns: 0,
        }
    }

    fn passes(&mut self, now_ns: u64) -> bool {
        let due_ns = self.due_ns.max(now_ns) + self.interval_ns;
        let is_within = due_ns - now_ns <= self.interval_ns * self.burst;
        if is_within {
            self.due_ns = due_ns;
        }
        is_within
    }
}

fn default(rate_pps: u32) -> Limit {
    Limit::new(rate_pps, Limit::burst_of(rate_pps)).unwrap()
}

fn assert_within(passed: u64, rate_pps: u32, what: &str) {
    let expected = u64::from(rate_pps) * 60;
    let is_within = passed.abs_diff(expected) * 100 <= expected * 5;
    assert!(
        is_within,
        "{what}: {passed} passed of a limit of {expected}"
    );
}

/// Low rates, where a burst of a tenth is less than a packet, and some higher ones.
fn rates() -> impl Iterator<Item = u32> {
    (1..=40).chain([50, 75, 99, 100, 101, 150, 333, 1_000])
}

#[test]
fn a_limit_passes_its_rate_of_packets_that_come_at_random() {
    let mut random = Random(0x1157);
    for rate in rates() {
        let limit = default(rate);
        for round in 0..if rate <= 100 { 3 } else { 1 } {
            let mut program = Program::new(Verdict::Limit(limit));
            let mut bucket = Bucket::new(limit);
            let (mut passed, mut sent) = (0, 0);
            for now_ns in random.arrivals(2.0 * f64::from(rate)) {
                let is_passed = program.passes(now_ns, 1);
                assert_eq!(is_passed, bucket.passes(now_ns), "{rate}/s at {now_ns}");
                passed += u64::from(is_passed);
                sent += 1;
            }
            assert_eq!(program.dropped(), sent - passed);
            assert_within(passed, rate, &format!("{rate}/s, round {round}"));
        }
    }
}

#[test]
fn every_source_gets_its_rate() {
    let mut random = Random(0x50ce);
    for rate in [1, 2, 3, 5, 10, 25, 100] {
        const SOURCES: u8 = 8;
        let source = SourceLimit::new(default(rate), 32, 64).unwrap();
        let mut program = Program::new(Verdict::LimitSources(source, None));
        let mut all: Vec<(u64, u8)> = Vec::new();
        for source in 0..SOURCES {
            let times = random.arrivals(2.0 * f64::from(rate));
            all.extend(times.into_iter().map(|now_ns| (now_ns, source)));
        }
        all.sort_unstable();
        let mut passed = [0; SOURCES as usize];
        for (now_ns, source) in all {
            passed[usize::from(source)] += u64::from(program.passes(now_ns, source));
        }
        for passed in passed {
            assert_within(passed, rate, &format!("{rate}/s of each source"));
        }
    }
}

/// Both limits at once: 256 sources at twice their own limit, which together is that of all.
#[test]
fn sources_at_their_limit_get_the_limit_of_all() {
    let mut random = Random(0xa11);
    const RATE: u32 = 10;
    let source = SourceLimit::new(default(RATE), 32, 64).unwrap();
    let all = default(256 * RATE);
    let mut program = Program::new(Verdict::LimitSources(source, Some(all)));
    let times = random.arrivals(2.0 * 256.0 * f64::from(RATE));
    let mut passed = 0;
    for now_ns in times {
        let source = (random.share() * 256.0) as u8;
        passed += u64::from(program.passes(now_ns, source));
    }
    assert_within(passed, 256 * RATE, "256 sources");
}

/// Higher rates by the algorithm alone, of which the program is the same above.
#[test]
fn high_rates_pass_too() {
    let mut random = Random(0xfa57);
    for rate in [3_333, 10_000, 99_999] {
        let mut bucket = Bucket::new(default(rate));
        let times = random.arrivals(2.0 * f64::from(rate));
        let passed = times.into_iter().filter(|now_ns| bucket.passes(*now_ns));
        assert_within(passed.count() as u64, rate, &format!("{rate}/s"));
    }
}
