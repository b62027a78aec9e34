//! Programs with all kinds of rules, checked without a kernel.

use bpf::cbpf::{self, Program};
use bpf::ebpf::{Insn, MODE_ATOMIC, PSEUDO_CALL};

use super::*;

const MAPS: Maps = Maps {
    counters: 3,
    limits: 4,
    prefixes: 5,
    names: 8,
    scratch: 9,
    sources: 6,
    samples: None,
};

const SAMPLING: Maps = Maps {
    samples: Some(Sampling {
        events: 7,
        one_in: 16,
    }),
    ..MAPS
};

fn filter(insns: &[(u16, u8, u8, u32)]) -> Program {
    let insns = insns
        .iter()
        .map(|&(code, jt, jf, k)| cbpf::Insn::new(code, jt, jf, k));
    Program::new(insns.collect()).unwrap()
}

/// A filter for IPv4 over Ethernet.
fn ipv4() -> Option<Program> {
    Some(filter(&[
        (0x28, 0, 0, 12),
        (0x15, 0, 1, 0x800),
        (0x06, 0, 0, 1),
        (0x06, 0, 0, 0),
    ]))
}

fn rule(name: &str, matcher: Option<Program>, verdict: Verdict, priority: i32) -> Rule {
    Rule {
        matcher,
        priority,
        ..Rule::new(name, verdict)
    }
}

fn all_features() -> impl Iterator<Item = Features> {
    [(true, true), (true, false), (false, true)]
        .into_iter()
        .map(|(frags, indirect)| Features {
            hook: DirectHook::Xdp,
            frags,
            indirect,
        })
}

/// Checks jumps as the verifier does: no unreachable code, and no path out of the program.
fn assert_all_reached(insns: &[Insn]) {
    let mut reached = vec![false; insns.len()];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if std::mem::replace(&mut reached[at], true) {
            continue;
        }
        let insn = insns[at];
        let to = |off: i16| usize::try_from(at as i64 + 1 + i64::from(off)).unwrap();
        match (insn.class(), insn.code & 0xf0) {
            _ if insn.is_wide() => {
                reached[at + 1] = true;
                open.push(at + 2);
            }
            (5, 0x90) => {}
            (5, 0x00) => open.push(to(insn.off)),
            (5, 0x80) if insn.src == PSEUDO_CALL => {
                open.extend([at + 1, (at as i64 + 1 + i64::from(insn.imm)) as usize]);
            }
            (5, 0x80) => open.push(at + 1),
            (5 | 6, _) => open.extend([at + 1, to(insn.off)]),
            _ => open.push(at + 1),
        }
    }
    let dead = reached.iter().position(|reached| !reached);
    assert_eq!(dead, None, "an instruction that nothing leads to");
}

#[test]
fn programs_have_no_dead_code_for_any_rules() {
    let never = Some(filter(&[(0x06, 0, 0, 0)]));
    let always = Some(filter(&[(0x06, 0, 0, 1)]));
    let matchers = [never, always, None, ipv4()];
    let limit = Verdict::Limit(Limit::new(1000, 10).unwrap());
    let whole = Limit::new(1000, 10).unwrap();
    let source = SourceLimit::new(whole, 24, 64).unwrap();
    let verdicts = [
        Verdict::Pass,
        Verdict::Drop,
        Verdict::Count,
        limit,
        Verdict::LimitSources(source, None),
        Verdict::LimitSources(source, Some(whole)),
        Verdict::Challenge,
    ];
    for features in all_features() {
        for matcher in &matchers {
            let has_helpers = |v: &Verdict| features.frags || *v != Verdict::Challenge;
            for first in verdicts.into_iter().filter(has_helpers) {
                for second in verdicts.into_iter().filter(has_helpers) {
                    let rules = [
                        rule("first", matcher.clone(), first, 0),
                        rule("second", ipv4(), second, 0),
                        rule("third", matcher.clone(), first, 0),
                    ];
                    for (dry_run, maps) in [(false, MAPS), (true, MAPS), (false, SAMPLING)] {
                        let insns = emit(&rules, dry_run, maps, features).unwrap();
                        assert_all_reached(&insns);
                    }
                }
            }
        }
        for maps in [MAPS, SAMPLING] {
            assert_all_reached(&emit(&[], false, maps, features).unwrap());
        }
    }
}

#[test]
fn addresses_are_looked_up_once_for_any_rules() {
    let list = |text: &str| -> Option<List> { Some([Prefix::parse(text).unwrap()].into()) };
    let mut rules = vec![rule("count", ipv4(), Verdict::Count, 0); 5];
    rules[1].sources = list("10.0.0.0/8");
    rules[2].destinations = list("2001:db8::/32");
    rules[3].sources = list("2001:db8::/32");
    rules[3].matcher = None;
    rules[4] = rule("drop", None, Verdict::Drop, 0);
    rules[4].destinations = list("10.0.0.0/8");
    for features in all_features() {
        let insns = emit(&rules, false, MAPS, features).unwrap();
        assert_all_reached(&insns);
        // The counters' map and the trie, by the helper bpf_map_lookup_elem.
        let calls = insns.iter().filter(|i| (i.code, i.imm) == (0x85, 1));
        assert_eq!(calls.count(), 3);
    }
}

#[test]
fn names_are_looked_up_by_one_function() {
    for (list, look_ups) in [("a.test", 1), ("*.a.test", 1), ("a.test *.b.test", 2)] {
        let mut rules = vec![rule("count", ipv4(), Verdict::Count, 0); 5];
        for (at, types) in [
            (1, vec![]),
            (2, vec![QueryType(1), QueryType(255)]),
            (4, vec![]),
        ] {
            let list = Name::parse_list(list).unwrap().into();
            rules[at].names = Some(NameTest { list, types });
        }
        rules[4].matcher = None;
        let all = [DirectHook::Xdp, DirectHook::Tc]
            .into_iter()
            .flat_map(|hook| {
                let is_possible = move |f: &Features| hook == DirectHook::Xdp || f.frags;
                all_features()
                    .map(move |f| Features { hook, ..f })
                    .filter(is_possible)
            });
        for features in all {
            let insns = emit(&rules, false, MAPS, features).unwrap();
            assert_all_reached(&insns);
            let has = |map| insns.iter().filter(|i| i.is_wide() && i.imm == map).count();
            assert_eq!(has(MAPS.names), look_ups);
        }
    }
}

#[test]
fn a_limit_retries_a_bounded_number_of_times() {
    let limit = Verdict::Limit(Limit::new(1000, 10).unwrap());
    for features in all_features() {
        let insns = emit(&[rule("l", ipv4(), limit, 0)], false, MAPS, features).unwrap();
        let atomic = insns.iter().filter(|i| i.code == 0x03 | MODE_ATOMIC | 0x18);
        assert_eq!(atomic.count(), TRIES);
    }
}

#[test]
fn rules_match_by_priority_and_then_in_the_given_order() {
    let mut rules = ["c", "a", "b", "d"].map(|name| {
        let priority = match name {
            "a" => -1,
            "c" => 1,
            _ => 0,
        };
        rule(name, None, Verdict::Pass, priority)
    });
    order(&mut rules);
    assert_eq!(rules.map(|rule| rule.name), ["a", "b", "d", "c"]);
}

#[test]
fn limits_have_bounds() {
    assert!(Limit::new(0, 1).is_none() && Limit::new(1, 0).is_none());
    assert!(Limit::new(RATE_PPS_MAX + 1, 1).is_none());
    assert!(Limit::new(1, BURST_MAX + 1).is_none());
    assert_eq!(Limit::new(1, 1).unwrap().interval_ns(), 1_000_000_000);
    for rate in [1, 3, 999, 1000, 333_333, 3_000_000, 7_000_000, RATE_PPS_MAX] {
        let interval = f64::from(Limit::new(rate, 1).unwrap().interval_ns());
        let error = (1e9 / interval / f64::from(rate) - 1.0).abs();
        assert!(error <= 0.005, "{rate}/s: {error}");
    }
}

#[test]
fn too_many_rules_and_foreign_filters_are_refused() {
    let many = vec![rule("r", None, Verdict::Count, 0); RULES_MAX + 1];
    let features = Features {
        hook: DirectHook::Xdp,
        frags: true,
        indirect: true,
    };
    assert!(matches!(
        emit(&many, false, MAPS, features),
        Err(EmitError::TooMany { .. })
    ));
    assert!(counters_len(RULES_MAX) <= 32 << 10);
    assert!(emit(&many[..RULES_MAX], false, MAPS, features).is_ok());
    // The packet mark, which no XDP program knows.
    let mark = filter(&[(0x20, 0, 0, 0xffff_f000 + 20), (0x16, 0, 0, 0)]);
    let error = emit(
        &[rule("m", Some(mark), Verdict::Drop, 0)],
        false,
        MAPS,
        features,
    )
    .unwrap_err();
    assert!(error.to_string().contains("\"m\""), "{error}");
}

#[test]
fn the_account_reads_the_words_of_the_map() {
    let words: Vec<u64> = (1..=20).collect();
    let account = Account::of(&words);
    assert_eq!(account.seen.packets, 1);
    assert_eq!(account.unmatched.bytes, 7);
    assert_eq!(account.rules.len(), 2);
    assert_eq!(account.rules[1].dropped_bytes, 19);
    assert_eq!(account.rules[1].answered, 20);
}
