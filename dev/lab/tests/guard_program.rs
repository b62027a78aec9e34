//! The guard's program in the kernel through `BPF_PROG_TEST_RUN`: verdicts, limits and counts,
//! without traffic.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use guard::{Account, Features, Limit, List, Maps, Prefix, Rule, SourceLimit, Verdict};
use lab::{require, skip};
use runtime::filter::select::Select;
use sys::bpf::TestRun;
use xdp::{Guard, GuardSpec, SourceMap};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

fn rule(name: &str, expression: &str, verdict: Verdict) -> Rule {
    Rule {
        id: 0,
        name: name.into(),
        matcher: runtime::filter::compile(expression, 1).unwrap(),
        sources: None,
        destinations: None,
        names: None,
        verdict,
        priority: 0,
    }
}

fn load(rules: &[Rule], dry_run: bool) -> Guard {
    let entries = guard::trie_entries(rules).unwrap();
    let prefixes: Vec<_> = entries.iter().map(|e| (e.key, e.lists)).collect();
    let sources = SourceMap::create(guard::SOURCES_MAX).unwrap();
    let spec = GuardSpec {
        counters_len: guard::counters_len(rules.len()),
        limits_len: guard::limits_len(rules.len()),
        prefixes: &prefixes,
        names: None,
        sources: Some(&sources),
        events: None,
    };
    Guard::load(&spec, xdp::GuardHook::Xdp, |maps, features| {
        let maps = Maps {
            counters: maps.counters,
            limits: maps.limits,
            prefixes: maps.prefixes,
            names: maps.names,
            scratch: maps.scratch,
            sources: maps.sources,
            samples: None,
        };
        let features = Features {
            hook: guard::DirectHook::Xdp,
            frags: features.frags,
            indirect: features.indirect,
        };
        Ok(guard::emit(rules, dry_run, maps, features).unwrap())
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

/// A UDP packet to this port in VXLAN.
fn in_vxlan(port: u8) -> Vec<u8> {
    let mut packet = vec![2; 12];
    packet.extend([8, 0, 0x45, 0, 0, 110, 0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend([192, 0, 2, 1, 192, 0, 2, 2, 0, 9, 0x12, 0xb5, 0, 90, 0, 0]);
    packet.extend([8, 0, 0, 0, 0, 0, 7, 0]);
    packet.extend(udp(port));
    packet
}

#[test]
fn rules_about_the_packet_in_a_tunnel_decide() {
    require!(skip::lab());
    // Alone, and among so many that they become a tree.
    for others in [0, 5] {
        let mut rules = vec![
            rule("in", "inner udp dst port 9", Verdict::Drop),
            rule("number", "vxlan 8 and udp", Verdict::Drop),
        ];
        let other = |n: u32| format!("tcp dst port {}", 1000 + n);
        rules.extend((0..others).map(|n| rule(&other(n), &other(n), Verdict::Drop)));
        let guard = load(&rules, false);
        assert_eq!(run(&guard, &in_vxlan(9), 1), XDP_DROP);
        assert_eq!(run(&guard, &in_vxlan(10), 1), XDP_PASS);
        assert_eq!(run(&guard, &udp(9), 1), XDP_PASS);
        let mut numbered = in_vxlan(10);
        numbered[14 + 20 + 8 + 6] = 8;
        assert_eq!(run(&guard, &numbered, 1), XDP_DROP);
        let account = account(&guard);
        assert_eq!(account.rules[0].dropped, 1);
        assert_eq!(account.rules[1].dropped, 1);
    }
}

fn account(guard: &Guard) -> Account {
    Account::of(&guard.counters().unwrap())
}

#[test]
fn the_first_deciding_rule_that_matches_wins() {
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
    // Too short for the filters.
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
    // A burst of ten seconds' worth: once empty, the bucket does not overflow in any pause of this
    // thread.
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
    // Empties the bucket, including tokens added late.
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
fn a_p0f_signature_works_as_a_rule() {
    require!(skip::lab());
    let signature = "4:64:0:0:*,0::ack+:0";
    let rules = [Rule {
        id: 0,
        name: "hping3".into(),
        matcher: Some(Select::p0f(signature).unwrap().compile(1).unwrap()),
        sources: None,
        destinations: None,
        names: None,
        verdict: Verdict::Drop,
        priority: 0,
    }];
    let guard = load(&rules, false);
    assert_eq!(run(&guard, &syn(), 1), XDP_DROP);
    // DF, FIN with SYN, RST, SYN with ACK, another option: each makes a different signature.
    for (at, value) in [(20, 0x40), (47, 3), (47, 4), (47, 0x12), (46, 0x60)] {
        let mut packet = syn();
        packet[at] = value;
        assert_eq!(run(&guard, &packet, 1), XDP_PASS, "byte {at}");
    }
    assert_eq!(account(&guard).rules[0].dropped, 1);
}

/// A UDP packet from this source behind this many VLAN tags.
fn udp_from(source: IpAddr, tag_count: usize) -> Vec<u8> {
    let mut packet = vec![0; 12];
    for _ in 0..tag_count {
        packet.extend([0x81, 0, 0, 7]);
    }
    match source {
        IpAddr::V4(source) => {
            packet.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
            packet.extend(source.octets());
            packet.extend([192, 0, 2, 1]);
        }
        IpAddr::V6(source) => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
            packet.extend(source.octets());
            packet.extend([0x20; 16]);
        }
    }
    packet.extend([0, 9, 0, 9, 0, 8, 0, 0]);
    packet
}

fn list(texts: &[&str]) -> Option<List> {
    Some(texts.iter().map(|t| Prefix::parse(t).unwrap()).collect())
}

#[test]
fn prefix_lists_select_by_source_and_destination() {
    require!(skip::lab());
    let mut allow = rule("allow", "", Verdict::Pass);
    allow.sources = list(&["10.1.2.0/24", "2001:db8:1::/48"]);
    let mut deny = rule("deny", "udp", Verdict::Drop);
    deny.sources = list(&["10.0.0.0/8", "2001:db8::/32", "10.1.2.3"]);
    let mut to = rule("to", "", Verdict::Drop);
    to.destinations = list(&["2020:2020::/32"]);
    let guard = load(&[allow, deny, to], false);
    for (source, verdict) in [
        ("10.1.2.3", XDP_PASS),
        ("10.1.3.3", XDP_DROP),
        ("11.0.0.1", XDP_PASS),
        ("2001:db8:1::1", XDP_PASS),
        ("2001:db8:2::1", XDP_DROP),
        ("2001:db9::1", XDP_DROP),
    ] {
        for tag_count in 0..=2 {
            let packet = udp_from(source.parse().unwrap(), tag_count);
            // The expression's offsets are from the Ethernet header: it does not see UDP behind a
            // tag.
            if source == "10.1.3.3" && tag_count > 0 {
                continue;
            }
            assert_eq!(
                run(&guard, &packet, 1),
                verdict,
                "{source}, {tag_count} tags"
            );
        }
    }
    // No addresses: ARP, a truncated header, three tags.
    let mut arp = udp_from("10.9.9.9".parse().unwrap(), 0);
    arp[13] = 6;
    let cut = &udp_from("10.9.9.9".parse().unwrap(), 0)[..33];
    let tagged = udp_from("2001:db9::1".parse().unwrap(), 3);
    for packet in [&arp, cut, &tagged] {
        assert_eq!(run(&guard, packet, 1), XDP_PASS);
    }
    let rules = account(&guard).rules;
    assert_eq!((rules[0].packets, rules[1].dropped), (6, 2));
}

#[test]
fn a_hundred_thousand_prefixes_match_as_a_linear_search_does() {
    require!(skip::lab());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let prefixes: Vec<(u32, u32)> = (0..100_000)
        .map(|_| {
            let len = 16 + (next() % 17) as u32;
            ((next() as u32) >> (32 - len) << (32 - len), len)
        })
        .collect();
    let mut deny = rule("deny", "", Verdict::Drop);
    let texts = prefixes.iter().map(|(bits, len)| {
        let text = format!("{}/{len}", Ipv4Addr::from_bits(*bits));
        Prefix::parse(&text).unwrap()
    });
    deny.sources = Some(texts.collect());
    let guard = load(&[deny], false);
    let mut dropped = 0;
    for at in 0..400 {
        // Half of them near or inside a prefix of the list.
        let address = match at % 2 {
            0 => next() as u32,
            _ => prefixes[next() as usize % prefixes.len()].0 ^ (next() as u32 & 0x1ff),
        };
        let covers = |(bits, len): &(u32, u32)| (bits ^ address) >> (32 - len) == 0;
        let is_listed = prefixes.iter().any(covers);
        let packet = udp_from(Ipv4Addr::from_bits(address).into(), 0);
        let verdict = if is_listed { XDP_DROP } else { XDP_PASS };
        assert_eq!(run(&guard, &packet, 1), verdict, "{address:#x}");
        dropped += u64::from(is_listed);
    }
    assert!(dropped > 40);
    assert_eq!(account(&guard).rules[0].dropped, dropped);
}

#[test]
fn source_prefixes_have_a_limit_each_and_one_in_total() {
    require!(skip::lab());
    // One packet per second: the burst passes, and one packet per second of the test's run time.
    let limit = |burst| Limit::new(1, burst).unwrap();
    let source = SourceLimit::new(limit(1_000), 24, 48).unwrap();
    let own = rule("own", "", Verdict::LimitSources(source, None));
    let guard = load(&[own], false);
    let packet = |text: &str| udp_from(text.parse().unwrap(), 0);
    let passed_by = |guard: &Guard, texts: &[&str]| {
        let before = account(guard).rules[0].passed();
        for text in texts {
            run(guard, &packet(text), 5_000);
        }
        account(guard).rules[0].passed() - before
    };
    // Between the burst and what a slow machine adds at one packet per second.
    let is_burst = |count: u64, burst: u64| (burst..burst + 500).contains(&count);
    for texts in [
        ["10.0.0.1", "10.0.0.200"],
        ["10.0.1.1", "10.0.1.2"],
        ["2001:db8::1", "2001:db8:0:7::1"],
        ["2001:db8:1::1", "2001:db8:1:7::1"],
    ] {
        let count = passed_by(&guard, &texts);
        assert!(is_burst(count, 1_000), "{texts:?}: {count}");
    }
    let both = Verdict::LimitSources(source, Some(limit(1_500)));
    let guard = load(&[rule("both", "", both)], false);
    let count = passed_by(&guard, &["10.0.0.1", "10.0.1.1", "10.0.2.1"]);
    assert!(is_burst(count, 1_500), "{count}");
}
