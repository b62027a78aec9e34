//! Flood protection rules, compiled into one XDP program.
//!
//! A [`Rule`] is a filter and a [`Verdict`]. The filters of all rules are evaluated in the order of
//! [`order`]: the first match decides, except that a rule which only counts passes the packet to
//! the next rule. A packet that no rule decides goes to the host. From three filters on, [`emit()`]
//! builds a decision tree ([`bpf::decide`]): a packet then needs a few comparisons, and the tests
//! of the rules that can still match, with the same result.
//!
//! ```text
//!   seen ─> rule 1 ─> rule 2 ─> ... ─> unmatched: pass
//!             └ pass, drop, a SYN cookie, or a token bucket (GCRA) shared by all processors
//! ```
//!
//! The program uses two maps, which the caller creates: counters, one value per processor, of
//! [`counters_len`] bytes; and limits, one value for all processors, of [`limits_len`] bytes. Rules
//! with prefix lists use a third, a trie with the entries of [`trie_entries`]; rules with lists of
//! DNS names a hash table with those of [`name_table`], and scratch memory; rules with per-source
//! limits use a hash table keyed by source (`BPF_MAP_TYPE_LRU_HASH`), which programs may
//! share. Samples of dropped packets go to perf rings ([`Sampling`]), and packets for user space to
//! AF_XDP sockets ([`Steering`]).
//!
//! [`detect`] detects floods by their rates.
#![forbid(unsafe_code)]

mod addresses;
mod challenge;
mod check;
mod counters;
pub mod detect;
mod emit;
mod headers;
mod names;
mod prefix;
mod rule;

pub use bpf::translate::DirectHook;
pub use check::{Finding, FindingKind, check};
pub use counters::{Account, Counters, SampleCounts};
pub use emit::{
    EmitError, Features, Maps, SAMPLE_HEAD_LEN, SAMPLE_LEN_MAX, SAMPLES_PER_SECOND, Sample,
    Sampling, Steering, TRIES, emit, emit_chain, emit_chain_steering, emit_steering,
};
pub use filter::dns::{Name, QueryType};
pub use names::{NAMES_MAX, NameEntry, NameList, NameTable, NameTest, name_table};
pub use prefix::{
    KEY_LEN, LISTS_MAX, List, PREFIXES_MAX, Prefix, TrieEntry, parse_list, trie_entries,
};
pub use rule::{
    BURST_MAX, LIMIT_STRIDE, Limit, RATE_PPS_MAX, RULES_MAX, Rule, SOURCES_MAX, SourceLimit,
    Verdict, counters_len, limits_len, order,
};

#[cfg(test)]
mod tests;
