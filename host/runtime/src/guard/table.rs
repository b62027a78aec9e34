//! The active rules with their program, and their counts over all programs so far.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::guard::{
    Account, Counters, EmitError, LIMIT_STRIDE, Rule, SampleCounts, Sampling, Steering, Verdict,
};
use bpf::ebpf::Insn;
use sys::bpf::Events;
use sys::{Error, ErrorKind, KernelVersion, Result};
use xdp::{
    Guard, GuardFeatures, GuardHook, GuardMaps, GuardNames, GuardProgram, GuardSpec, SourceMap,
};

use super::steer::{Sockets, SteerTotals};
use super::{FloodTotals, RuleSpec, kernel};

/// How long a replaced program may still run on some processor; its counts are read until then.
const LEAVE: Duration = Duration::from_secs(2);

/// Maximum number of instructions of a program (`BPF_COMPLEXITY_LIMIT_INSNS`).
const INSNS_MAX: usize = 1_000_000;

/// A rule and its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTotals {
    /// The rule.
    pub spec: RuleSpec,
    /// Whether it has expired.
    pub is_expired: bool,
    /// Counts since it was first loaded.
    pub counters: Counters,
}

/// Totals of all packets: `seen = unmatched + Σ packets of rules that decide + removed`, and
/// `seen = passed + dropped + answered + steered`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// All packets that reached the program.
    pub seen: Counters,
    /// Packets that matched no deciding rule; they passed.
    pub unmatched: Counters,
    /// Packets decided by rules that a reload removed.
    pub removed: Counters,
    /// Samples of dropped packets.
    pub samples: SampleCounts,
    /// The rules in the order of matching.
    pub rules: Vec<RuleTotals>,
    /// What happened to packets that were redirected to user space, if any may be.
    pub steer: Option<SteerTotals>,
    /// Floods in progress, in the last second; `None` without detection.
    pub floods: Option<Vec<FloodTotals>>,
}

impl Totals {
    /// Packets dropped, or that would have been in a dry run.
    pub fn dropped(&self) -> u64 {
        self.deciding().map(|c| c.dropped).sum::<u64>() + self.removed.dropped
    }

    /// SYNs answered with a cookie, or that would have been in a dry run.
    pub fn answered(&self) -> u64 {
        self.deciding().map(|c| c.answered).sum::<u64>() + self.removed.answered
    }

    /// Packets redirected to user space.
    pub fn steered(&self) -> u64 {
        self.deciding().map(|c| c.steered).sum::<u64>() + self.removed.steered
    }

    /// Packets passed to the host by the program.
    pub fn passed(&self) -> u64 {
        let rules: u64 = self.deciding().map(Counters::passed).sum();
        self.unmatched.packets + rules + self.removed.passed()
    }

    /// Packets missing from the account (positive) or counted twice (negative).
    pub fn imbalance(&self) -> i64 {
        self.seen
            .packets
            .wrapping_sub(self.passed() + self.dropped() + self.answered() + self.steered())
            as i64
    }

    fn deciding(&self) -> impl Iterator<Item = &Counters> {
        let decides = |rule: &&RuleTotals| rule.spec.verdict.decides();
        self.rules.iter().filter(decides).map(|rule| &rule.counters)
    }
}

/// What a program does beside the rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Where they run.
    pub hook: GuardHook,
    /// Count what would be dropped, and drop nothing.
    pub dry_run: bool,
    /// Sample one dropped packet in this many into these perf rings.
    pub samples: Option<(&'a Events, u32)>,
    /// Where packets for user space go.
    pub sockets: Option<&'a Sockets>,
    /// Whether XDP is attached in generic mode, in which the program sees returned packets again.
    pub is_generic: bool,
}

/// A rule that is active or expired.
#[derive(Clone, Debug)]
struct Entry {
    /// Identifies the rule across programs.
    id: u64,
    spec: RuleSpec,
    rule: Rule,
    expires_at: Option<Instant>,
    is_expired: bool,
    /// Counts of replaced programs.
    before: Counters,
}

/// A program and its rules in order.
#[derive(Debug)]
struct Loaded {
    guard: Guard,
    /// Limits per source, which are passed on to the next program.
    sources: Option<Arc<SourceMap>>,
    ids: Vec<(u64, Verdict)>,
    /// The names of its rules, for samples.
    names: Vec<String>,
}

impl Loaded {
    fn account(&self) -> Result<Account> {
        let mut account = Account::of(&self.guard.counters()?);
        for (counters, (_, verdict)) in account.rules.iter_mut().zip(&self.ids) {
            if *verdict == Verdict::User {
                *counters = counters.of_user();
            }
        }
        Ok(account)
    }
}

/// The active rules; see the module.
#[derive(Debug)]
pub struct Table {
    entries: Vec<Entry>,
    loaded: Loaded,
    /// Replaced programs that may still run for a moment.
    leaving: Vec<(Instant, Loaded)>,
    /// Counts of replaced programs: seen, unmatched, and of removed rules.
    before: [Counters; 3],
    samples_before: SampleCounts,
    id_next: u64,
}

/// The replacement of a table's rules.
pub struct Next {
    entries: Vec<Entry>,
    loaded: Loaded,
    id_next: u64,
}

impl Next {
    /// The program to attach.
    pub fn program(&self) -> &GuardProgram {
        self.loaded.guard.program()
    }
}

impl Table {
    /// Compiles the rules and loads their program.
    pub fn load(specs: Vec<RuleSpec>, options: Options<'_>) -> Result<Self> {
        let (entries, id_next) = entries(specs, &[], 0)?;
        Ok(Self {
            loaded: load(&entries, options, None)?,
            entries,
            leaving: Vec::new(),
            before: Default::default(),
            samples_before: SampleCounts::default(),
            id_next,
        })
    }

    /// The attached program.
    pub fn program(&self) -> &GuardProgram {
        self.loaded.guard.program()
    }

    /// All rules in the order of matching, including expired ones.
    pub fn specs(&self) -> Vec<RuleSpec> {
        self.entries
            .iter()
            .map(|entry| entry.spec.clone())
            .collect()
    }

    /// Loads a program for new rules. Rules that are kept retain their counts, limits and remaining
    /// time.
    pub fn next(&self, specs: Vec<RuleSpec>, options: Options<'_>) -> Result<Next> {
        let (entries, id_next) = entries(specs, &self.entries, self.id_next)?;
        self.load_next(entries, id_next, options)
    }

    /// Loads a program for the remaining rules.
    pub fn again(&self, options: Options<'_>) -> Result<Next> {
        self.load_next(self.entries.clone(), self.id_next, options)
    }

    fn load_next(&self, entries: Vec<Entry>, id_next: u64, options: Options<'_>) -> Result<Next> {
        let loaded = load(&entries, options, self.loaded.sources.as_ref())?;
        let old = self.loaded.guard.limits()?;
        let mut new = loaded.guard.limits()?;
        for (to, (id, _)) in loaded.ids.iter().enumerate() {
            let from = self.loaded.ids.iter().position(|row| row.0 == *id);
            let range = |at: usize| at * LIMIT_STRIDE..(at + 1) * LIMIT_STRIDE;
            if let Some(from) = from
                && let (Some(from), Some(to)) = (old.get(range(from)), new.get_mut(range(to)))
            {
                to.copy_from_slice(from);
            }
        }
        loaded.guard.set_limits(&new)?;
        Ok(Next {
            entries,
            loaded,
            id_next,
        })
    }

    /// Records that the new program is attached.
    pub fn replace(&mut self, next: Next) {
        let old = std::mem::replace(&mut self.loaded, next.loaded);
        self.leaving.push((Instant::now(), old));
        let gone = std::mem::replace(&mut self.entries, next.entries);
        for entry in gone {
            let stays = self.entries.iter().any(|other| other.id == entry.id);
            if !stays && entry.spec.verdict.decides() {
                self.before[2].add(&entry.before);
            }
        }
        self.id_next = next.id_next;
    }

    /// Marks expired rules, and returns their names.
    pub fn expire(&mut self, now: Instant) -> Vec<String> {
        let mut names = Vec::new();
        for entry in &mut self.entries {
            let is_over = entry.expires_at.is_some_and(|at| at <= now);
            if is_over && !entry.is_expired {
                entry.is_expired = true;
                names.push(entry.spec.name.clone());
            }
        }
        names
    }

    /// Releases programs that no processor runs any more.
    pub fn settle(&mut self) -> Result<()> {
        while let Some((since, old)) = self.leaving.first() {
            if since.elapsed() < LEAVE {
                break;
            }
            let account = old.account()?;
            let (_, old) = self.leaving.remove(0);
            let mut befores: Vec<(u64, Counters)> =
                self.entries.iter().map(|e| (e.id, e.before)).collect();
            self.samples_before.add(&account.samples);
            add(&account, &old.ids, &mut self.before, &mut befores);
            for (entry, (_, before)) in self.entries.iter_mut().zip(befores) {
                entry.before = before;
            }
        }
        Ok(())
    }

    /// The name of a rule of the current program, or of one that was replaced a moment ago.
    pub fn name(&self, id: u32) -> Option<&str> {
        let leaving = self.leaving.iter().map(|row| &row.1);
        leaving.chain([&self.loaded]).find_map(|loaded| {
            let at = loaded.ids.iter().position(|row| row.0 as u32 == id)?;
            loaded.names.get(at).map(String::as_str)
        })
    }

    /// The total counts.
    pub fn totals(&self) -> Result<Totals> {
        let mut sums = self.before;
        let mut samples = self.samples_before;
        let mut counters: Vec<(u64, Counters)> =
            self.entries.iter().map(|e| (e.id, e.before)).collect();
        for loaded in self.leaving.iter().map(|row| &row.1).chain([&self.loaded]) {
            let account = loaded.account()?;
            samples.add(&account.samples);
            add(&account, &loaded.ids, &mut sums, &mut counters);
        }
        let rules = self.entries.iter().zip(counters);
        let [seen, unmatched, removed] = sums;
        Ok(Totals {
            seen,
            unmatched,
            removed,
            samples,
            rules: rules
                .map(|(entry, (_, counters))| RuleTotals {
                    spec: entry.spec.clone(),
                    is_expired: entry.is_expired,
                    counters,
                })
                .collect(),
            steer: None,
            floods: None,
        })
    }
}

/// Adds a program's counts to the sums (seen, unmatched, removed rules) and to those of its rules.
fn add(
    account: &Account,
    ids: &[(u64, Verdict)],
    sums: &mut [Counters; 3],
    rules: &mut [(u64, Counters)],
) {
    sums[0].add(&account.seen);
    sums[1].add(&account.unmatched);
    for ((id, verdict), counters) in ids.iter().zip(&account.rules) {
        match rules.iter_mut().find(|row| row.0 == *id) {
            Some((_, sum)) => sum.add(counters),
            None if verdict.decides() => sums[2].add(counters),
            None => {}
        }
    }
}

/// Compiles and sorts the rules; a rule that is in `old` unchanged keeps its entry.
fn entries(specs: Vec<RuleSpec>, old: &[Entry], mut id: u64) -> Result<(Vec<Entry>, u64)> {
    let mut entries = Vec::with_capacity(specs.len());
    for spec in specs {
        let is_taken = |id| entries.iter().any(|entry: &Entry| entry.id == id);
        let is_same = |entry: &&Entry| entry.spec == spec && !is_taken(entry.id);
        if let Some(same) = old.iter().find(is_same) {
            let mut same = same.clone();
            // The contents of its lists may have changed.
            spec.fill_lists(&mut same.rule);
            same.spec = spec;
            entries.push(same);
            continue;
        }
        let mut rule = spec.compile()?;
        rule.id = id as u32;
        let expires_at = spec.expires_after.map(|after| Instant::now() + after);
        entries.push(Entry {
            id,
            spec,
            rule,
            expires_at,
            is_expired: false,
            before: Counters::default(),
        });
        id += 1;
    }
    entries.sort_by_key(|entry| entry.spec.priority);
    Ok((entries, id))
}

/// Loads the program of the rules that have not expired.
fn load(
    entries: &[Entry],
    options: Options<'_>,
    sources: Option<&Arc<SourceMap>>,
) -> Result<Loaded> {
    let active = || entries.iter().filter(|entry| !entry.is_expired);
    let rules: Vec<Rule> = active().map(|entry| entry.rule.clone()).collect();
    let prefixes: Vec<_> = ::guard::trie_entries(&rules)
        .map_err(refused)?
        .iter()
        .map(|entry| (entry.key, entry.lists))
        .collect();
    let names = ::guard::name_table(&rules).map_err(refused)?;
    let entries: Vec<_> = names
        .entries
        .iter()
        .map(|e| (&e.key[..], e.lists))
        .collect();
    let limits_sources = |rule: &Rule| matches!(rule.verdict, Verdict::LimitSources(..));
    let sources = match sources {
        Some(sources) => Some(Arc::clone(sources)),
        None if rules.iter().any(limits_sources) => {
            Some(Arc::new(SourceMap::create(::guard::SOURCES_MAX)?))
        }
        None => None,
    };
    let spec = GuardSpec {
        counters_len: ::guard::counters_len(rules.len()),
        limits_len: ::guard::limits_len(rules.len()),
        prefixes: &prefixes,
        names: (names.key_len > 0).then_some(GuardNames {
            key_len: names.key_len,
            scratch_len: names.scratch_len,
            entries: &entries,
        }),
        sources: sources.as_deref(),
        events: options.samples.map(|samples| samples.0),
    };
    // Without them, the driver delivers none, or the stack makes each one buffer.
    let takes_frags = options.sockets.is_none_or(|sockets| sockets.takes_frags);
    let load_by = |by: EmitBy| {
        Guard::load_for(&spec, (options.hook, takes_frags), |maps, features| {
            emit(&rules, options, maps, features, by)
        })
    };
    // A kernel whose verifier refuses the decision trees gets a chain of rules.
    let guard = load_by(::guard::emit_steering)
        .or_else(|_| load_by(::guard::emit_chain_steering))
        .map_err(|error| kernel::too_old(error, &rules, KernelVersion::running()))?;
    let ids = active()
        .map(|entry| (entry.id, entry.spec.verdict))
        .collect();
    Ok(Loaded {
        guard,
        sources,
        ids,
        names: active().map(|entry| entry.spec.name.clone()).collect(),
    })
}

type EmitBy = fn(
    &[Rule],
    bool,
    ::guard::Maps,
    ::guard::Features,
    Option<Steering>,
) -> std::result::Result<Vec<Insn>, EmitError>;

fn emit(
    rules: &[Rule],
    options: Options<'_>,
    maps: GuardMaps,
    features: GuardFeatures,
    by: EmitBy,
) -> Result<Vec<Insn>> {
    let maps = ::guard::Maps {
        counters: maps.counters,
        limits: maps.limits,
        prefixes: maps.prefixes,
        names: maps.names,
        scratch: maps.scratch,
        sources: maps.sources,
        samples: options.samples.map(|(_, one_in)| Sampling {
            events: maps.events,
            one_in,
        }),
    };
    let features = ::guard::Features {
        hook: match options.hook {
            GuardHook::Xdp => ::guard::DirectHook::Xdp,
            GuardHook::Tc => ::guard::DirectHook::Tc,
        },
        frags: features.frags,
        indirect: features.indirect,
    };
    let steering = options.sockets.map(|sockets| Steering {
        sockets: sockets.map.as_fd().as_raw_fd(),
        drops: sockets.drops,
        mark: options.is_generic.then_some(sockets.mark),
    });
    by(rules, options.dry_run, maps, features, steering).map_err(refused)
}

/// Checks that the rules fit into one program, and returns its number of instructions. The kernel
/// is not consulted.
///
/// # Errors
/// `InvalidInput` for a rule that cannot be compiled, or if there are too many rules, prefixes or
/// instructions.
pub fn check(specs: &[RuleSpec]) -> Result<usize> {
    let in_kernel = specs.iter().filter(|spec| !spec.in_user_space);
    let rules: Result<Vec<Rule>> = in_kernel.map(RuleSpec::compile).collect();
    let mut rules = rules?;
    ::guard::order(&mut rules);
    ::guard::trie_entries(&rules).map_err(refused)?;
    ::guard::name_table(&rules).map_err(refused)?;
    let maps = GuardMaps {
        counters: 0,
        limits: 0,
        prefixes: 0,
        names: 0,
        scratch: 0,
        sources: 0,
        events: 0,
    };
    let features = GuardFeatures {
        frags: true,
        indirect: true,
    };
    let by: EmitBy = |rules, dry_run, maps, features, _| {
        let steering = Steering {
            sockets: 0,
            drops: false,
            mark: None,
        };
        ::guard::emit_steering(rules, dry_run, maps, features, Some(steering))
    };
    let count = emit(&rules, Options::default(), maps, features, by)?.len();
    match count {
        0..=INSNS_MAX => Ok(count),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            "compile the rules",
            format!("the program has {count} instructions; the limit is {INSNS_MAX}"),
        )),
    }
}

fn refused(error: EmitError) -> Error {
    let what = "compile the rules";
    Error::new(ErrorKind::InvalidInput, what, error.to_string())
}
