//! Emits the program: every packet is counted, matched against the rules in order, and passed or
//! dropped.

use std::ops::Range;

use bpf::asm::{Asm, Label};
use bpf::cbpf::Program;
use bpf::ebpf::Reg::{R0, R1, R2, R3, R4, R5, R6, R8, R9, R10};
use bpf::ebpf::{Alu, Cond, Helper, Insn, Width};
use bpf::translate::{self, DirectHook, TranslateError, XdpOptions};

use crate::addresses::{
    DESTINATION_KEY, DESTINATION_LISTS, NAME_LISTS, QUERY, SOURCE_KEY, SOURCE_LISTS, STACK_TOP,
    emit_keys, emit_look_up, emit_test,
};
use crate::challenge;
use crate::counters::{ANSWERED, BLOCK_LEN, FIRST_RULE, SEEN, UNMATCHED};
use crate::names::NameLists;
use crate::prefix::Lists;
use crate::rule::{RULES_MAX, Rule, Verdict};

mod error;
mod limit;
pub(crate) mod names;
mod sample;
mod steer;
mod tc;
mod tree;

pub use error::EmitError;
pub use limit::TRIES;
use limit::{ask_limit, ask_source};
pub use sample::{SAMPLE_HEAD_LEN, SAMPLE_LEN_MAX, SAMPLES_PER_SECOND, Sample, Sampling};
pub use steer::Steering;
use tree::Slow;

const XDP_TX: i32 = 3;

/// Stack offsets of the counters' key and the packet length; addresses and filters use the area
/// below.
const KEY: i16 = -4;
pub(crate) const PACKET_LEN: i16 = -16;

/// File descriptors of the maps that the program uses.
#[derive(Clone, Copy, Debug)]
pub struct Maps {
    /// Per-CPU array with one entry of [`crate::counters_len`] bytes.
    pub counters: i32,
    /// Array with one entry of [`crate::limits_len`] bytes.
    pub limits: i32,
    /// The trie of [`crate::trie_entries`], used only by rules with prefix lists.
    pub prefixes: i32,
    /// Hash table with the entries of [`crate::name_table`], used only by rules with names.
    pub names: i32,
    /// Per-CPU array with one entry of [`crate::NameTable::scratch_len`] bytes, used only by rules
    /// with names.
    pub scratch: i32,
    /// Hash table with keys of [`crate::KEY_LEN`] bytes and values of 8 bytes, used only by rules
    /// with per-source limits.
    pub sources: i32,
    /// Samples of dropped packets; `None` for no samples.
    pub samples: Option<Sampling>,
}

/// Kernel features that the program may use; not every kernel has them, nor may every process use
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The hook.
    pub hook: DirectHook,
    /// Multi-buffer packets, through a helper (XDP: Linux 5.18, program loaded with the frags
    /// flag).
    pub frags: bool,
    /// Direct loads at X + k, which need CAP_PERFMON.
    pub indirect: bool,
}

/// Maximum number of filter instructions in one decision tree: the values to try in this order.
/// Fewer instructions make shorter jumps.
const TREE_INSNS_MAX: [usize; 3] = [12_000, 4_000, 1_500];

/// Emits the program for these rules, in the given order. With `dry_run` it counts what it would
/// drop, and passes everything.
///
/// # Errors
/// `TooMany`, `TooManyLists`, `TooManyPrefixes`, `TooManyNameLists`, `TooManyNames`; `Rule` for a
/// filter that needs something XDP lacks; `Asm` for a program that is too long.
pub fn emit(
    rules: &[Rule],
    dry_run: bool,
    maps: Maps,
    features: Features,
) -> Result<Vec<Insn>, EmitError> {
    emit_steering(rules, dry_run, maps, features, None)
}

/// Like [`emit()`], for rules of which some may have the verdict [`Verdict::User`].
///
/// # Errors
/// As [`emit()`]; `User` for such a rule without `steering` or at another hook than XDP.
pub fn emit_steering(
    rules: &[Rule],
    dry_run: bool,
    maps: Maps,
    features: Features,
    steering: Option<Steering>,
) -> Result<Vec<Insn>, EmitError> {
    let mut emitter = Emitter::new(rules, dry_run, maps, features)?;
    emitter.steering = steering;
    for insns_max in TREE_INSNS_MAX {
        match emitter.trees(insns_max) {
            Err(EmitError::Asm(_)) => {}
            result => return result,
        }
    }
    emitter.chain()
}

/// Like [`emit()`], but the program tests one rule after the other instead of using a decision
/// tree. The result is the same; the program is shorter, and slower with many rules.
///
/// # Errors
/// As [`emit()`].
pub fn emit_chain(
    rules: &[Rule],
    dry_run: bool,
    maps: Maps,
    features: Features,
) -> Result<Vec<Insn>, EmitError> {
    emit_chain_steering(rules, dry_run, maps, features, None)
}

/// Like [`emit_chain()`], for rules of which some may have the verdict [`Verdict::User`].
///
/// # Errors
/// As [`emit_steering()`].
pub fn emit_chain_steering(
    rules: &[Rule],
    dry_run: bool,
    maps: Maps,
    features: Features,
    steering: Option<Steering>,
) -> Result<Vec<Insn>, EmitError> {
    let mut emitter = Emitter::new(rules, dry_run, maps, features)?;
    emitter.steering = steering;
    emitter.chain()
}

/// The program's parameters.
pub(crate) struct Emitter<'a> {
    pub rules: &'a [Rule],
    pub features: Features,
    dry_run: bool,
    maps: Maps,
    lists: Lists,
    name_lists: NameLists,
    /// Entry of the function that samples dropped packets.
    sampler: Option<Label>,
    /// Entry of the function that looks names up.
    namer: Option<Label>,
    /// Where packets for user space go.
    steering: Option<Steering>,
}

impl<'a> Emitter<'a> {
    fn new(
        rules: &'a [Rule],
        dry_run: bool,
        maps: Maps,
        features: Features,
    ) -> Result<Self, EmitError> {
        if rules.len() > RULES_MAX {
            return Err(EmitError::TooMany { count: rules.len() });
        }
        Ok(Self {
            rules,
            features,
            dry_run,
            maps,
            lists: Lists::of(rules)?,
            name_lists: NameLists::of(rules)?,
            sampler: None,
            namer: None,
            steering: None,
        })
    }

    fn chain(&mut self) -> Result<Vec<Insn>, EmitError> {
        let mut a = self.start();
        head(&mut a, self.maps, self.features);
        let mut known = Known::default();
        let mut is_open = true;
        for (index, rule) in self.rules.iter().enumerate() {
            known.emit(&mut a, rule, self);
            is_open = self.rule(&mut a, (index, rule), translate::emit_xdp)?;
            // No packet gets past a rule that decides every packet, and the verifier refuses
            // unreachable code.
            if !is_open {
                break;
            }
        }
        if is_open {
            unmatched(&mut a, self.features.hook);
        }
        self.finish(a)
    }

    /// Starts a program, with new labels for its functions.
    fn start(&mut self) -> Asm {
        let mut a = Asm::new();
        self.sampler = self.maps.samples.map(|_| a.label());
        self.namer = (self.name_lists.key_len > 0).then(|| a.label());
        if self.features.hook == DirectHook::Tc {
            tc::emit_entry(&mut a, self.features.indirect);
        } else if let Some(mark) = self.steering.and_then(|steering| steering.mark) {
            steer::emit_entry(&mut a, mark);
        }
        a
    }

    /// Appends the functions that anything calls.
    fn finish(&self, mut a: Asm) -> Result<Vec<Insn>, EmitError> {
        if let Some(label) = self.namer
            && a.is_used(label)
        {
            a.bind(label);
            names::emit(&mut a, &self.name_lists, self.maps, self.features);
        }
        if let (Some(label), Some(sampling)) = (self.sampler, self.maps.samples)
            && a.is_used(label)
        {
            a.bind(label);
            sample::emit(&mut a, sampling);
        }
        a.finish().map_err(EmitError::Asm)
    }

    fn trees(&mut self, insns_max: usize) -> Result<Vec<Insn>, EmitError> {
        let mut a = self.start();
        head(&mut a, self.maps, self.features);
        let mut slow = Slow::new(&mut a, self.rules.len());
        let mut known = Known::default();
        let mut is_open = true;
        let mut next = 0;
        while is_open && next < self.rules.len() {
            known.emit(&mut a, &self.rules[next], self);
            let part = tree::part(self.rules, next, &known, insns_max);
            next = part.end;
            is_open = match tree::is_worthwhile(&self.rules[part.clone()]) {
                true => tree::emit(self, &mut a, part, &mut slow)?,
                false => self.part(&mut a, part)?,
            };
        }
        if is_open {
            unmatched(&mut a, self.features.hook);
        }
        self.slow(&mut a, &slow)?;
        self.finish(a)
    }

    /// Emits some rules, one after the other. Returns whether any packet gets past them.
    fn part(&self, a: &mut Asm, part: Range<usize>) -> Result<bool, EmitError> {
        for index in part {
            if !self.rule(a, (index, &self.rules[index]), translate::emit_xdp)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The rules one after the other, for packets whose first buffer is too short for a tree. The
    /// results of earlier look-ups for the packet are on the stack.
    fn slow(&self, a: &mut Asm, slow: &Slow) -> Result<(), EmitError> {
        let mut known = Known::default();
        let mut is_open = false;
        for (index, rule) in self.rules.iter().enumerate() {
            let entry = slow.entry(index);
            match is_open {
                true => known.emit(a, rule, self),
                // Present on every path to here, and later.
                false => known.add(rule),
            }
            if !is_open && !a.is_used(entry) {
                continue;
            }
            a.bind(entry);
            is_open = self.rule(a, (index, rule), translate::emit_xdp_by_helper)?;
        }
        if is_open {
            unmatched(a, self.features.hook);
        }
        Ok(())
    }
}

fn unmatched(a: &mut Asm, hook: DirectHook) {
    count(a, UNMATCHED, 0);
    end(a, pass(hook));
}

/// The program's result for a packet that passes: `XDP_PASS`; `TCX_NEXT`, so that other programs
/// see it, too.
const fn pass(hook: DirectHook) -> i32 {
    match hook {
        DirectHook::Xdp => 2,
        DirectHook::Tc => -1,
    }
}

/// `XDP_DROP`, `TCX_DROP`.
const fn dropped(hook: DirectHook) -> i32 {
    match hook {
        DirectHook::Xdp => 1,
        DirectHook::Tc => 2,
    }
}

/// What is on the stack for every packet that reaches a rule.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Known {
    keys: bool,
    sources: bool,
    destinations: bool,
    names: bool,
}

impl Known {
    /// What the rule needs, too.
    pub fn add(&mut self, rule: &Rule) {
        self.sources |= rule.sources.is_some();
        self.destinations |= rule.destinations.is_some();
        self.names |= rule.names.is_some();
        let limits_sources = matches!(rule.verdict, Verdict::LimitSources(..));
        self.keys |= self.sources || self.destinations || limits_sources;
    }

    /// Emits what the rule needs and no earlier rule has emitted. It runs for every packet that
    /// gets this far, so later rules can use it, too.
    fn emit(&mut self, a: &mut Asm, rule: &Rule, emitter: &Emitter<'_>) {
        let before = *self;
        self.add(rule);
        let (maps, features) = (emitter.maps, emitter.features);
        if self.keys && !before.keys {
            emit_keys(a, features.hook, features.frags);
        }
        if self.sources && !before.sources {
            emit_look_up(a, maps.prefixes, SOURCE_KEY, SOURCE_LISTS);
        }
        if self.destinations && !before.destinations {
            emit_look_up(a, maps.prefixes, DESTINATION_KEY, DESTINATION_LISTS);
        }
        if self.names && !before.names {
            emitter.look_up_name(a);
        }
    }
}

/// Sets R6 to the context and R8 to the counters, stores the packet length on the stack, and counts
/// the packet as seen.
fn head(a: &mut Asm, maps: Maps, features: Features) {
    let found = a.label();
    a.mov(R6, R1);
    let hook = features.hook;
    if features.frags {
        hook.load_len(a, R0);
    } else {
        a.load(Width::W, R0, R6, hook.data_end());
        a.load(Width::W, R1, R6, hook.data());
        a.alu(Alu::Sub, R0, R1);
    }
    a.store(Width::D, R10, PACKET_LEN, R0);
    a.store(Width::W, R10, KEY, 0);
    a.load_map(R1, maps.counters);
    a.mov(R2, R10);
    a.alu(Alu::Add, R2, i32::from(KEY));
    a.call(Helper::MapLookup);
    // Never taken: the array has this entry, but the verifier requires the check.
    a.jump_if(Cond::Ne, R0, 0, found);
    end(a, pass(hook));
    a.bind(found);
    a.mov(R8, R0);
    count(a, SEEN, 0);
}

/// `packets += 1, bytes += length`, or those of dropped packets with `word` 2. The counters are
/// per-CPU, so no atomic operation is needed. Clobbers R1 and R2.
fn count(a: &mut Asm, block: usize, word: usize) {
    let off = (block * BLOCK_LEN + word * 8) as i16;
    a.load(Width::D, R1, R8, off);
    a.alu(Alu::Add, R1, 1);
    a.store(Width::D, R8, off, R1);
    a.load(Width::D, R1, R8, off + 8);
    a.load(Width::D, R2, R10, PACKET_LEN);
    a.alu(Alu::Add, R1, R2);
    a.store(Width::D, R8, off + 8, R1);
}

/// How a filter is emitted.
type EmitFilter = fn(&mut Asm, &Program, &XdpOptions, Label, Label) -> Result<(), TranslateError>;

impl Emitter<'_> {
    /// Emits a rule; returns whether any packet gets past it.
    fn rule(
        &self,
        a: &mut Asm,
        (index, rule): (usize, &Rule),
        emit_filter: EmitFilter,
    ) -> Result<bool, EmitError> {
        let (hit, miss) = (a.label(), a.label());
        self.test_lists(a, rule, miss);
        if let Some(matcher) = &rule.matcher {
            a.load(Width::D, R9, R10, PACKET_LEN);
            emit_filter(a, matcher, &self.options(), hit, miss)
                .map_err(|why| refused(rule, why))?;
        }
        let matches_some = rule.matcher.is_none() || a.is_used(hit);
        if matches_some {
            a.bind(hit);
            self.act(a, index)?;
        }
        let is_open = a.is_used(miss) || (matches_some && rule.verdict == Verdict::Count);
        a.bind(miss);
        Ok(is_open)
    }

    pub fn options(&self) -> XdpOptions {
        XdpOptions {
            hook: self.features.hook,
            frags: self.features.frags,
            indirect_by_helper: self.features.frags && !self.features.indirect,
            stack_top: STACK_TOP,
        }
    }

    /// Calls the function that looks a query's name up.
    fn look_up_name(&self, a: &mut Asm) {
        let Some(namer) = self.namer else { return };
        a.store(Width::D, R10, QUERY, 0);
        a.store(Width::D, R10, NAME_LISTS, 0);
        a.mov(R1, R6);
        a.mov(R2, R10);
        a.alu(Alu::Add, R2, i32::from(QUERY));
        a.load(Width::D, R3, R10, PACKET_LEN);
        a.call_local(namer);
    }

    /// Goes to `miss` unless the addresses and the name are in the rule's lists.
    pub fn test_lists(&self, a: &mut Asm, rule: &Rule, miss: Label) {
        for (list, at) in [
            (&rule.sources, SOURCE_LISTS),
            (&rule.destinations, DESTINATION_LISTS),
        ] {
            if let Some(list) = list {
                emit_test(a, at, self.lists.bit(list), miss);
            }
        }
        if let Some(test) = &rule.names {
            emit_test(a, NAME_LISTS, self.name_lists.bit(&test.list), miss);
            let hit = a.label();
            a.load(Width::D, R1, R10, QUERY);
            for kind in &test.types {
                a.jump_if(Cond::Eq, R1, i32::from(kind.0), hit);
            }
            if !test.types.is_empty() {
                a.jump(miss);
            }
            a.bind(hit);
        }
    }

    /// Emits what is done with a packet that the rule matches. Only a count continues with the next
    /// rule.
    pub fn act(&self, a: &mut Asm, index: usize) -> Result<(), EmitError> {
        let (rule, maps) = (&self.rules[index], self.maps);
        let block = FIRST_RULE + index;
        count(a, block, 0);
        match rule.verdict {
            Verdict::Count => {}
            Verdict::Pass => end(a, self.pass()),
            Verdict::Drop => self.drop_packet(a, index),
            Verdict::Limit(limit) => {
                let within = a.label();
                ask_limit(a, limit, (maps.limits, index), within);
                self.drop_packet(a, index);
                a.bind(within);
                end(a, self.pass());
            }
            Verdict::Challenge => {
                if !self.features.frags || self.features.hook != DirectHook::Xdp {
                    let name = rule.name.clone();
                    return Err(EmitError::Challenge { name });
                }
                self.answer(a, index);
            }
            Verdict::User => {
                let name = || rule.name.clone();
                let is_xdp = self.features.hook == DirectHook::Xdp;
                let steering = self.steering.filter(|_| is_xdp);
                let steering = steering.ok_or_else(|| EmitError::User { name: name() })?;
                self.steer(a, index, steering);
            }
            Verdict::LimitSources(source, all) => {
                let (own, within) = (a.label(), a.label());
                // The per-source limit first: a source that exceeds its limit does not use up that
                // of the others.
                ask_source(a, source, (maps.sources, rule.id), own);
                self.drop_packet(a, index);
                a.bind(own);
                if let Some(limit) = all {
                    ask_limit(a, limit, (maps.limits, index), within);
                    self.drop_packet(a, index);
                    a.bind(within);
                }
                end(a, self.pass());
            }
        }
        Ok(())
    }

    fn pass(&self) -> i32 {
        pass(self.features.hook)
    }

    /// Emits a challenge and its outcomes.
    fn answer(&self, a: &mut Asm, index: usize) {
        let ends = challenge::emit(a, self.dry_run);
        a.bind(ends.drop);
        self.drop_packet(a, index);
        a.bind(ends.answered);
        let off = ((FIRST_RULE + index) * BLOCK_LEN + ANSWERED * 8) as i16;
        a.load(Width::D, R1, R8, off);
        a.alu(Alu::Add, R1, 1);
        a.store(Width::D, R8, off, R1);
        end(a, if self.dry_run { self.pass() } else { XDP_TX });
        a.bind(ends.pass);
        end(a, self.pass());
    }

    /// Redirects the packet to the socket of its queue. In a dry run it passes, and is counted.
    fn steer(&self, a: &mut Asm, index: usize, steering: Steering) {
        let gone = a.label();
        if !self.dry_run {
            steer::emit_redirect(a, steering, gone);
        }
        let off = ((FIRST_RULE + index) * BLOCK_LEN + ANSWERED * 8) as i16;
        if !self.dry_run {
            a.load(Width::D, R1, R8, off);
            a.alu(Alu::Add, R1, 1);
            a.store(Width::D, R8, off, R1);
            end(a, steer::XDP_REDIRECT);
            a.bind(gone);
        }
        match steering.drops && !self.dry_run {
            true => self.drop_packet(a, index),
            false => end(a, self.pass()),
        }
    }

    /// Counts, samples and drops the packet.
    fn drop_packet(&self, a: &mut Asm, index: usize) {
        count(a, FIRST_RULE + index, 2);
        if let Some(sampler) = self.sampler {
            a.mov(R1, R6);
            a.load_map_value(R2, self.maps.limits, sample::due_at(index));
            a.mov32(R3, self.rules[index].id as i32);
            a.load(Width::D, R4, R10, PACKET_LEN);
            a.mov(R5, R8);
            a.call_local(sampler);
        }
        let hook = self.features.hook;
        end(
            a,
            if self.dry_run {
                pass(hook)
            } else {
                dropped(hook)
            },
        );
    }
}

/// Why a rule's filter cannot be emitted.
pub(crate) fn refused(rule: &Rule, why: TranslateError) -> EmitError {
    match why {
        TranslateError::Asm(error) => EmitError::Asm(error),
        why => EmitError::Rule {
            name: rule.name.clone(),
            why,
        },
    }
}

fn end(a: &mut Asm, verdict: i32) {
    a.mov(R0, verdict);
    a.exit();
}
