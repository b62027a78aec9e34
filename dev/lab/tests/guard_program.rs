//! The guard's program in the kernel by `BPF_PROG_TEST_RUN`: verdicts, limits and counts, without
//! traffic.

use std::time::Instant;

use guard::{Account, Limit, Maps, Means, Rule, Verdict};
use lab::{require, skip};
use runtime::filter::select::Select;
use sys::bpf::TestRun;
use xdp::Guard;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

fn rule(name: &str, expression: &str, verdict: Verdict) -> Rule {
    Rule {
        name: name.into(),
        matcher: runtime::filter::compile(expression, 1).unwrap(),
        verdict,
        priority: 0,
    }
}

fn load(rules: &[Rule], dry_run: bool) -> Guard {
    let lens = (
        guard::counters_len(rules.len()),
        guard::limits_len(rules.len()),
    );
    Guard::load(lens.0, lens.1, |maps, means| {
        let maps = Maps {
            counters: maps.counters,
            limits: maps.limits,
        };
        let means = Means {
            frags: means.frags,
            indirect: means.indirect,
        };
        Ok(guard::emit(rules, dry_run, maps, means).unwrap())
    })
    .unwrap()
}

fn run(guard: &Guard, packet: &[u8], repeat: u32) -> u32 {
    let run = TestRun {
        data: packet,
        repeat,
        ..TestRun::default()
    };
    guard.program().test_run(&run).unwrap().retval
}

/// A UDP packet to this port.
fn udp(port: u8) -> [u8; 60] {
    let mut packet = [0; 60];
    (packet[12], packet[14], packet[23], packet[37]) = (8, 0x45, 17, port);
    packet
}

fn account(guard: &Guard) -> Account {
    Account::of(&guard.counters().unwrap())
}

#[test]
fn the_first_rule_that_decides_decides() {
    require!(skip::lab());
    let rules = [
        rule("count", "udp", Verdict::Count),
        rule("pass", "udp port 9", Verdict::Pass),
        rule("drop", "udp portrange 9-10", Verdict::Drop),
        rule("all", "greater 0", Verdict::Count),
    ];
    let guard = load(&rules, false);
    assert_eq!(run(&guard, &udp(9), 3), XDP_PASS);
    assert_eq!(run(&guard, &udp(10), 2), XDP_DROP);
    assert_eq!(run(&guard, &udp(11), 1), XDP_PASS);
    // Too short for what the filters ask.
    assert_eq!(run(&guard, &[0; 14], 1), XDP_PASS);
    let account = account(&guard);
    assert_eq!(account.seen.packets, 7);
    assert_eq!(account.unmatched.packets, 2);
    let counts: Vec<_> = account
        .rules
        .iter()
        .map(|r| (r.packets, r.dropped))
        .collect();
    assert_eq!(counts, [(6, 0), (3, 0), (2, 2), (2, 0)]);
    assert_eq!(account.rules[2].dropped_bytes, 120);

    let guard = load(&rules, true);
    assert_eq!(run(&guard, &udp(10), 2), XDP_PASS);
    assert_eq!(Account::of(&guard.counters().unwrap()).rules[2].dropped, 2);
}

#[test]
fn a_limit_passes_its_rate_and_burst_however_fast_packets_come() {
    require!(skip::lab());
    // A burst of ten seconds' worth: no pause of this thread makes the bucket run over, once it is
    // empty.
    let limit = Limit::new(1_000, 10_000).unwrap();
    let rules = [
        rule("limit", "udp port 9", Verdict::Limit(limit)),
        rule("other", "udp", Verdict::Pass),
    ];
    let guard = load(&rules, false);
    let outer = Instant::now();
    run(&guard, &udp(9), 20_000);
    let inner = Instant::now();
    while inner.elapsed().as_millis() < 300 {
        run(&guard, &udp(9), 1_000);
        run(&guard, &udp(10), 1);
    }
    let inner = inner.elapsed().as_secs_f64();
    // Empties it, whatever came in meanwhile.
    run(&guard, &udp(9), 20_000);
    let outer = outer.elapsed().as_secs_f64();
    let account = account(&guard);
    let passed = account.rules[0].passed() as f64;
    let bounds = [inner, outer].map(|seconds| 10_000.0 + seconds * 1_000.0);
    assert!(bounds[0] - 2.0 <= passed, "{passed} passed in {inner} s");
    assert!(passed <= bounds[1] + 2.0, "{passed} passed in {outer} s");
    assert_eq!(account.rules[1].dropped, 0);
}

#[test]
fn many_rules_load() {
    require!(skip::lab());
    let rules: Vec<Rule> = (0..100)
        .map(|port| {
            let limit = Limit::new(1_000, 10).unwrap();
            let expression = format!("udp dst port {port}");
            rule(&expression, &expression, Verdict::Limit(limit))
        })
        .collect();
    let guard = load(&rules, false);
    assert_eq!(run(&guard, &udp(99), 1), XDP_PASS);
    assert_eq!(account(&guard).rules[99].packets, 1);
    assert_eq!(run(&guard, &udp(100), 1), XDP_PASS);
    assert_eq!(account(&guard).unmatched.packets, 1);
}

/// A SYN without options whose acknowledgment number is not 0, as hping3 sends them.
fn syn() -> [u8; 54] {
    let mut packet = [0; 54];
    packet[12] = 8;
    packet[14..34].copy_from_slice(&[
        0x45, 0, 0, 40, 0x12, 0x34, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    packet[34..54].copy_from_slice(&[
        0x9c, 0x40, 0, 80, 1, 2, 3, 4, 1, 0, 0, 1, 0x50, 2, 2, 0, 0, 0, 0, 0,
    ]);
    packet
}

#[test]
fn a_p0f_signature_is_a_rule() {
    require!(skip::lab());
    let signature = "4:64:0:0:*,0::ack+:0";
    let rules = [Rule {
        name: "hping3".into(),
        matcher: Some(Select::p0f(signature).unwrap().compile(1).unwrap()),
        verdict: Verdict::Drop,
        priority: 0,
    }];
    let guard = load(&rules, false);
    assert_eq!(run(&guard, &syn(), 1), XDP_DROP);
    // DF, FIN beside SYN, RST, SYN and ACK, another option: each is another signature.
    for (at, value) in [(20, 0x40), (47, 3), (47, 4), (47, 0x12), (46, 0x60)] {
        let mut packet = syn();
        packet[at] = value;
        assert_eq!(run(&guard, &packet, 1), XDP_PASS, "byte {at}");
    }
    assert_eq!(account(&guard).rules[0].dropped, 1);
}
