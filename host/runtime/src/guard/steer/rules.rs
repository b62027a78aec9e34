//! Rules in user space: the same keys as in the kernel's program, without its limits on number and
//! length.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ::guard::{Counters, Limit, List, Verdict};
use port::{Counter, Matcher};
use sys::{Error, ErrorKind, Result};

use super::complete::addresses;
use super::{Decision, RuleTotals, SteerWorker};
use crate::guard::RuleSpec;

/// Maximum number of rules: each has machine code in a mapping of its own.
pub const USER_RULES_MAX: usize = 16_384;

/// A rule with its limit and its counts, shared by all workers and kept over reloads.
#[derive(Debug)]
pub struct UserRule {
    spec: RuleSpec,
    matcher: Option<Matcher>,
    sources: Option<Prefixes>,
    destinations: Option<Prefixes>,
    /// When the next packet is due at the rate of the limit (ITU-T I.371, annex A).
    due_ns: AtomicU64,
    /// One for each worker.
    counts: Box<[Counts]>,
}

/// Counts of one worker: packets, bytes, dropped packets, dropped bytes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts([Counter; 4]);

impl UserRule {
    fn new(spec: RuleSpec, worker_count: usize) -> Result<Self> {
        check(&spec)?;
        let rule = spec.compile()?;
        Ok(Self {
            matcher: rule.matcher.map(Matcher::new),
            sources: rule.sources.as_ref().map(Prefixes::new),
            destinations: rule.destinations.as_ref().map(Prefixes::new),
            spec,
            due_ns: AtomicU64::new(0),
            counts: (0..worker_count).map(|_| Counts::default()).collect(),
        })
    }

    fn matches(&self, packet: &[u8], ends: Option<(IpAddr, IpAddr)>) -> bool {
        let holds = |list: &Option<Prefixes>, end: Option<IpAddr>| {
            let list = list.as_ref();
            list.is_none_or(|list| end.is_some_and(|end| list.contains(end)))
        };
        holds(&self.sources, ends.map(|ends| ends.0))
            && holds(&self.destinations, ends.map(|ends| ends.1))
            && self
                .matcher
                .as_ref()
                .is_none_or(|matcher| matcher.selects(packet, packet.len() as u32))
    }

    /// Counts a packet of a worker.
    fn count(&self, worker: usize, len: usize, is_dropped: bool) {
        let Some(Counts([packets, bytes, dropped, dropped_bytes])) = self.counts.get(worker) else {
            return;
        };
        packets.add(1);
        bytes.add(len as u64);
        if is_dropped {
            dropped.add(1);
            dropped_bytes.add(len as u64);
        }
    }

    /// Uses the limit if it has room.
    fn is_within(&self, limit: Limit, now_ns: u64) -> bool {
        let rate = u64::from(limit.rate_pps());
        let interval_ns = (1_000_000_000 + rate / 2) / rate;
        let ahead_max_ns = interval_ns * u64::from(limit.burst());
        let next = |due: u64| {
            let due = due.max(now_ns) + interval_ns;
            (due - now_ns <= ahead_max_ns).then_some(due)
        };
        let order = Ordering::Relaxed;
        self.due_ns.fetch_update(order, order, next).is_ok()
    }

    fn counters(&self) -> Counters {
        let sum = |at: usize| self.counts.iter().map(|counts| counts.0[at].get()).sum();
        let [packets, bytes, dropped, dropped_bytes] = [0, 1, 2, 3].map(sum);
        Counters {
            packets,
            bytes,
            dropped,
            dropped_bytes,
            ..Counters::default()
        }
    }
}

/// Checks that a rule can run in user space.
///
/// # Errors
/// `InvalidInput` for a verdict or key that it cannot have.
pub fn check(spec: &RuleSpec) -> Result<()> {
    let refused = |why: &str| {
        let what = format!("use the rule \"{}\" in user space", spec.name);
        Err(Error::new(ErrorKind::InvalidInput, what, why))
    };
    match spec.verdict {
        Verdict::Challenge => refused("only the kernel can answer SYNs: use challenge in [[rule]]"),
        Verdict::User => refused("its packets are in user space already"),
        Verdict::LimitSources(..) => refused("limits per source are for [[rule]]"),
        _ if spec.expires_after.is_some() => refused("expires is for [[rule]]"),
        _ if spec.names.is_some() => refused("lists of names are for [[rule]]"),
        _ => Ok(()),
    }
}

/// A prefix list to look addresses up in: a hash table for each prefix length.
#[derive(Debug)]
struct Prefixes(Vec<(bool, u8, HashSet<u128>)>);

impl Prefixes {
    fn new(list: &List) -> Self {
        let mut tables: HashMap<(bool, u8), HashSet<u128>> = HashMap::new();
        for prefix in list.iter() {
            let (address, len) = prefix.parts();
            let (is_ipv6, bits) = bits_of(address);
            tables.entry((is_ipv6, len)).or_default().insert(bits);
        }
        let tables = tables.into_iter();
        Self(tables.map(|((six, len), set)| (six, len, set)).collect())
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (is_ipv6, bits) = bits_of(address);
        self.0.iter().any(|(six, len, set)| {
            let mask = u128::MAX.checked_shl(128 - u32::from(*len));
            *six == is_ipv6 && set.contains(&(bits & mask.unwrap_or_default()))
        })
    }
}

/// Left-aligned.
fn bits_of(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(v4) => (false, u128::from(v4.to_bits()) << 96),
        IpAddr::V6(v6) => (true, v6.to_bits()),
    }
}

/// The current rules, and the counts of removed ones.
#[derive(Debug)]
pub struct UserRules {
    worker_count: usize,
    set: Mutex<Set>,
    /// Incremented when the rules change.
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct Set {
    rules: Arc<[Arc<UserRule>]>,
    /// Removed rules: a worker may still count in them for the rest of its batch.
    removed: Vec<Arc<UserRule>>,
    /// Counts of rules removed long ago.
    before: Counters,
}

/// Rules that are not in force yet.
#[derive(Debug)]
pub struct NextRules(Vec<Arc<UserRule>>);

impl UserRules {
    /// Creates an empty set for this number of workers.
    pub fn new(worker_count: usize) -> Self {
        Self {
            worker_count,
            set: Mutex::default(),
            version: AtomicU64::new(0),
        }
    }

    /// Compiles new rules. Those that are the same will keep their counts and limits.
    ///
    /// # Errors
    /// Those of a rule.
    pub fn prepare(&self, mut specs: Vec<RuleSpec>) -> Result<NextRules> {
        if specs.len() > USER_RULES_MAX {
            let what = "load the rules in user space";
            let why = format!("{} rules; the limit is {USER_RULES_MAX}", specs.len());
            return Err(Error::new(ErrorKind::InvalidInput, what, why));
        }
        specs.sort_by_key(|spec| spec.priority);
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let old: HashMap<&str, &Arc<UserRule>> = set
            .rules
            .iter()
            .map(|rule| (&*rule.spec.name, rule))
            .collect();
        let mut rules = Vec::with_capacity(specs.len());
        for spec in specs {
            let same = old.get(&*spec.name).filter(|rule| {
                // The contents of a list's file may have changed.
                rule.spec == spec && rule.spec.has_same_lists(&spec)
            });
            rules.push(match same {
                Some(rule) => Arc::clone(rule),
                None => Arc::new(UserRule::new(spec, self.worker_count)?),
            });
        }
        Ok(NextRules(rules))
    }

    /// Replaces the rules.
    pub fn replace(&self, NextRules(rules): NextRules) {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let staying: HashSet<_> = rules.iter().map(Arc::as_ptr).collect();
        let gone = set.rules.iter();
        let gone = gone.filter(|rule| !staying.contains(&Arc::as_ptr(rule)));
        let gone: Vec<_> = gone.cloned().collect();
        // Nobody else has a rule that was removed before and whose batch is over.
        let (over, held): (Vec<_>, Vec<_>) = std::mem::take(&mut set.removed)
            .into_iter()
            .partition(|rule| Arc::strong_count(rule) == 1);
        for rule in over.iter().filter(|rule| rule.spec.verdict.decides()) {
            set.before.add(&rule.counters());
        }
        set.removed = held;
        set.removed.extend(gone);
        set.rules = rules.into();
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The counts of every rule, and of removed ones.
    pub fn totals(&self) -> (Vec<RuleTotals>, Counters) {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = set.rules.iter().map(|rule| RuleTotals {
            spec: rule.spec.clone(),
            is_expired: false,
            counters: rule.counters(),
        });
        let mut removed = set.before;
        for rule in set.removed.iter().filter(|r| r.spec.verdict.decides()) {
            removed.add(&rule.counters());
        }
        (rules.collect(), removed)
    }

    fn current(&self) -> Arc<[Arc<UserRule>]> {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&set.rules)
    }
}

/// Applies the rules, in one worker.
#[derive(Debug)]
pub struct RuleWorker {
    shared: Arc<UserRules>,
    /// Number of this worker.
    index: usize,
    version: u64,
    rules: Arc<[Arc<UserRule>]>,
    needs_addresses: bool,
    has_limits: bool,
}

impl RuleWorker {
    /// Creates one over rules that may change meanwhile.
    pub fn new(shared: Arc<UserRules>, index: usize) -> Self {
        let mut worker = Self {
            shared,
            index,
            version: 0,
            rules: Arc::from([]),
            needs_addresses: false,
            has_limits: false,
        };
        worker.refresh();
        worker
    }

    /// Uses the rules of the last reload.
    fn refresh(&mut self) {
        let version = self.shared.version.load(Ordering::Acquire);
        if version == self.version {
            return;
        }
        self.version = version;
        self.rules = self.shared.current();
        let has_list = |rule: &Arc<UserRule>| rule.sources.is_some() || rule.destinations.is_some();
        self.needs_addresses = self.rules.iter().any(has_list);
        let is_limit = |rule: &Arc<UserRule>| matches!(rule.spec.verdict, Verdict::Limit(_));
        self.has_limits = self.rules.iter().any(is_limit);
    }

    fn decide_one(&self, packet: &[u8], now_ns: u64) -> Decision {
        let ends = match self.needs_addresses {
            true => addresses(packet),
            false => None,
        };
        for rule in self.rules.iter() {
            if !rule.matches(packet, ends) {
                continue;
            }
            let is_dropped = match rule.spec.verdict {
                Verdict::Drop => true,
                Verdict::Limit(limit) => !rule.is_within(limit, now_ns),
                _ => false,
            };
            rule.count(self.index, packet.len(), is_dropped);
            if rule.spec.verdict.decides() {
                return match is_dropped {
                    true => Decision::Drop,
                    false => Decision::GiveBack,
                };
            }
        }
        Decision::GiveBack
    }
}

impl SteerWorker for RuleWorker {
    fn decide(&mut self, packets: &[&[u8]], decisions: &mut [Decision]) {
        self.refresh();
        let now_ns = match self.has_limits {
            true => sys::clock::monotonic_ns(),
            false => 0,
        };
        for (packet, decision) in packets.iter().zip(decisions) {
            *decision = self.decide_one(packet, now_ns);
        }
    }

    fn idle(&mut self) {
        self.refresh();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::ListSpec;

    fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 12];
        packet.extend([0x08, 0, 0x45, 0]);
        packet.extend((28 + payload.len() as u16).to_be_bytes());
        packet.extend([0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 9]);
        packet.extend([0x9c, 0x40]);
        packet.extend(port.to_be_bytes());
        packet.extend((8 + payload.len() as u16).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(payload);
        packet
    }

    fn decide(worker: &mut RuleWorker, packets: &[Vec<u8>]) -> Vec<Decision> {
        let slices: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        let mut decisions = vec![Decision::GiveBack; packets.len()];
        worker.decide(&slices, &mut decisions);
        decisions
    }

    fn user(mut spec: RuleSpec) -> RuleSpec {
        spec.in_user_space = true;
        spec
    }

    #[test]
    fn the_first_matching_rule_decides_and_counts_add_up() {
        use Decision::{Drop, GiveBack};
        let shared = Arc::new(UserRules::new(2));
        let mut worker = RuleWorker::new(shared.clone(), 1);
        let packets = [udp(53, b""), udp(80, b""), udp(443, b"")];
        // Without rules everything is returned.
        assert_eq!(decide(&mut worker, &packets), [GiveBack; 3]);
        let list = ListSpec::argument("192.0.2.0/24,2001:db8::/32").unwrap();
        let other = ListSpec::argument("192.0.3.0/24").unwrap();
        let rules = vec![
            user(RuleSpec::new("udp", Verdict::Count)),
            user(RuleSpec::of_sources("other", other, Verdict::Drop)),
            user(RuleSpec::new("port 53", Verdict::Pass)),
            user(RuleSpec::new("not port 443", Verdict::Drop)),
            user(RuleSpec::of_sources("list", list, Verdict::Drop)),
        ];
        shared.replace(shared.prepare(rules.clone()).unwrap());
        assert_eq!(decide(&mut worker, &packets), [GiveBack, Drop, Drop]);
        let counts = |shared: &UserRules| {
            let (rules, removed) = shared.totals();
            let counts = rules
                .iter()
                .map(|r| (r.counters.packets, r.counters.dropped));
            (counts.collect::<Vec<_>>(), removed.packets)
        };
        assert_eq!(
            counts(&shared),
            (vec![(3, 0), (0, 0), (1, 0), (1, 1), (1, 1)], 0)
        );
        // Rules that stay keep their counts, and those that go are in the sum.
        shared.replace(shared.prepare(rules[..3].to_vec()).unwrap());
        assert_eq!(decide(&mut worker, &packets), [GiveBack; 3]);
        assert_eq!(counts(&shared), (vec![(6, 0), (0, 0), (2, 0)], 2));
        shared.replace(shared.prepare(Vec::new()).unwrap());
        assert_eq!(decide(&mut worker, &packets), [GiveBack; 3]);
        // Of rules that decide: one that only counts has no packets of its own.
        assert_eq!(counts(&shared), (vec![], 4));
    }

    #[test]
    fn a_limit_passes_its_burst_and_then_its_rate() {
        let limit = Limit::new(1_000, 10).unwrap();
        let rule = UserRule::new(user(RuleSpec::new("udp", Verdict::Limit(limit))), 1).unwrap();
        let mut passed = 0;
        // Ten packets per millisecond for a second.
        for at in 0..10_000_u64 {
            let now_ns = 5_000_000_000 + at * 100_000;
            passed += u32::from(rule.is_within(limit, now_ns));
        }
        assert!((1_000..=1_010).contains(&passed), "{passed}");
    }

    #[test]
    fn verdicts_of_the_kernel_are_refused() {
        for verdict in [Verdict::Challenge, Verdict::User] {
            let error = check(&user(RuleSpec::new("tcp", verdict))).unwrap_err();
            assert!(error.to_string().contains("\"tcp\""), "{error}");
        }
        let many = (0..=USER_RULES_MAX).map(|_| RuleSpec::new("udp", Verdict::Drop));
        let error = UserRules::new(1).prepare(many.collect()).unwrap_err();
        assert!(error.to_string().contains("16384"), "{error}");
    }
}
