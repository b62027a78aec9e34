//! Lists of DNS names in the guard: the program in the kernel against a naive statement of the
//! rules, and barewire with real queries.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use guard::{Account, DirectHook, Features, Maps, Name, NameTest, Rule, Verdict};
use lab::oracle::TempFile;
use lab::process::{Process, Signal, barewire};
use lab::random::Random;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;
use sys::bpf::TestRun;
use xdp::{Guard, GuardHook, GuardNames, GuardSpec};

const LIMIT: Duration = Duration::from_secs(60);

/// Names in the list.
const NAME_COUNT: usize = 10_000;

/// The list: hosts and zones, in every tenth case long.
fn names() -> String {
    let name = |at: usize| {
        let zone = match at % 10 {
            0 => "a-long-zone.of-several-labels.for-hosts.example.net",
            _ => "example.com",
        };
        match at % 3 {
            0 => format!("*.zone{at}.{zone}\n"),
            _ => format!("Host{at}.{zone}\n"),
        }
    };
    (0..NAME_COUNT).map(name).collect()
}

fn rules(lists: &[&str]) -> Vec<Rule> {
    let rule = |(at, list): (usize, &&str)| Rule {
        names: Some(NameTest {
            list: Name::parse_list(list).unwrap().into(),
            types: Vec::new(),
        }),
        ..Rule::new(&at.to_string(), [Verdict::Count, Verdict::Drop][at % 2])
    };
    lists.iter().enumerate().map(rule).collect()
}

/// Loads the program in one of its variants.
fn load(rules: &[Rule], hook: GuardHook, wanted: (bool, bool)) -> Guard {
    let table = guard::name_table(rules).unwrap();
    let entries: Vec<_> = table
        .entries
        .iter()
        .map(|e| (&e.key[..], e.lists))
        .collect();
    let spec = GuardSpec {
        counters_len: guard::counters_len(rules.len()),
        limits_len: guard::limits_len(rules.len()),
        names: Some(GuardNames {
            key_len: table.key_len,
            scratch_len: table.scratch_len,
            entries: &entries,
        }),
        ..GuardSpec::default()
    };
    let guard = Guard::load(&spec, hook, |maps, features| {
        if (features.frags, features.indirect) != wanted {
            // The kernel refuses an empty program, and the next variant is tried.
            return Ok(Vec::new());
        }
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
            hook: match hook {
                GuardHook::Xdp => DirectHook::Xdp,
                GuardHook::Tc => DirectHook::Tc,
            },
            frags: features.frags,
            indirect: features.indirect,
        };
        Ok(guard::emit(rules, false, maps, features).unwrap())
    });
    guard.unwrap()
}

/// A query for a name like those of the list, over IPv4 or IPv6.
fn query(random: &mut Random, texts: &[&str]) -> Vec<u8> {
    let mut packet = vec![2; 12];
    if random.below(4) == 0 {
        packet.extend([0x81, 0, 0, 9]);
    }
    if random.below(2) == 0 {
        packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64]);
        packet.extend([0x20; 32]);
    } else {
        let words = [0, 2][random.below(2) as usize];
        packet.extend([8, 0, 0x45 + words, 0, 0, 0, 0, 7, 0x40, 0, 64, 17, 0, 0]);
        packet.extend([10; 8]);
        packet.extend(vec![1; usize::from(words) * 4]);
    }
    packet.extend([
        0xc0, 0, 0, 53, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0,
    ]);
    let text = texts[random.below(texts.len() as u64) as usize];
    let text = text.replace('*', ["www", "a.b", "*"][random.below(3) as usize]);
    for label in text.trim_end().split('.') {
        packet.push(label.len() as u8);
        packet.extend(label.bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    if random.below(3) == 0 {
        let at = random.below(packet.len() as u64) as usize;
        packet[at] ^= 1 << random.below(8);
    }
    packet.extend(vec![9; random.below(30) as usize]);
    packet
}

#[test]
fn the_kernel_matches_what_the_rules_say_at_every_length() {
    require!(skip::lab());
    let long = format!(
        "*.{}.test {}.test",
        ["x"; 120].join("."),
        ["y"; 120].join(".")
    );
    let list = names();
    let mut texts: Vec<&str> = list.lines().collect();
    texts.extend(long.split(' '));
    let mut random = Random::seeded("guard, names");
    let variants = [
        (GuardHook::Xdp, (true, true)),
        (GuardHook::Xdp, (true, false)),
        (GuardHook::Xdp, (false, true)),
        (GuardHook::Tc, (true, true)),
    ];
    for (hook, features) in variants {
        // A test run at tc needs an IP header behind that of Ethernet.
        let len_min = if hook == GuardHook::Tc { 54 } else { 14 };
        for lists in [&[&list[..]][..], &["*.x.test", "a.test", &long, &list]] {
            let rules = rules(lists);
            let guard = load(&rules, hook, features);
            let mut counts = vec![0; rules.len()];
            let mut check = |packet: &[u8]| {
                let run = TestRun {
                    data: packet,
                    ..TestRun::default()
                };
                let verdict = guard.program().test_run(&run).unwrap().retval as i32;
                let mut expected = false;
                for (rule, count) in rules.iter().zip(&mut counts) {
                    if rule.names.as_ref().unwrap().matches(packet) {
                        *count += 1;
                        expected = rule.verdict == Verdict::Drop;
                        if expected {
                            break;
                        }
                    }
                }
                let dropped = if hook == GuardHook::Xdp { 1 } else { 2 };
                assert_eq!(
                    verdict == dropped,
                    expected,
                    "{hook:?} {features:?}: {packet:02x?}"
                );
            };
            for _ in 0..3 {
                let packet = query(&mut random, &texts);
                for len in len_min..packet.len() {
                    check(&packet[..len]);
                }
            }
            for _ in 0..100 {
                check(&query(&mut random, &texts));
            }
            let account = Account::of(&guard.counters().unwrap());
            let ours: Vec<u64> = account.rules.iter().map(|rule| rule.packets).collect();
            assert_eq!(ours, counts, "{hook:?} {features:?}");
            assert!(counts[rules.len() - 1] > 20, "{counts:?}");
        }
    }
}

fn guard(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["guard", &pair.right.ifname, "--json"], args].concat();
    let process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("guarding", LIMIT).unwrap();
    pair.left.wait_up(LIMIT).unwrap();
    pair.right.wait_up(LIMIT).unwrap();
    process
}

/// Sends one query for each of these names.
fn ask(pair: &Pair, names: &[&str]) {
    let to = (pair.right.ipv4, 53);
    let from = (pair.left.ipv4, 0);
    let queries: Vec<Vec<u8>> = names
        .iter()
        .map(|name| {
            let mut dns = vec![1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            for label in name.split('.') {
                dns.push(label.len() as u8);
                dns.extend(label.bytes());
            }
            dns.extend([0, 0, 1, 0, 1]);
            dns
        })
        .collect();
    pair.left
        .ns
        .run(move || {
            let socket = UdpSocket::bind(from)?;
            queries
                .iter()
                .try_for_each(|query| socket.send_to(query, to).map(drop))
        })
        .unwrap()
        .unwrap();
}

fn stop(mut process: Process) -> Value {
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let stdout = finished.checked().unwrap().stdout;
    let line = stdout.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {stdout}"))
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

#[test]
fn queries_for_ten_thousand_names_are_dropped() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let file = TempFile::new(".txt");
    write(file.path(), &names());
    let process = guard(&pair, &["--deny-names", file.path().to_str().unwrap()]);
    ask(
        &pair,
        &[
            "host1.example.com",
            "HOST2.Example.COM",
            "www.zone3.example.com",
        ],
    );
    ask(
        &pair,
        &[
            "www.host1.example.com",
            "zone3.example.com",
            "host1.example.org",
        ],
    );
    super::guard_live::reported(&process, "seen", 6);
    let totals = stop(process);
    let rule = &totals["rules"][0];
    assert_eq!(
        (&rule["packets"], &rule["dropped"]),
        (&3.into(), &3.into()),
        "{totals}"
    );
    assert_eq!(rule["names"], file.path().to_str().unwrap());
}

#[test]
fn a_reload_swaps_name_lists_and_keeps_the_counts() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (list, rules) = (TempFile::new(".txt"), TempFile::new(".toml"));
    write(list.path(), "old.test\n");
    let text = format!(
        "[[rule]]\nname = \"listed\"\nnames = \"{}\"\nqtype = [\"A\"]\nverdict = \"drop\"\n\
         [[rule]]\nname = \"TXT\"\nnames = [\"*.test\"]\nqtype = \"TXT\"\nverdict = \"drop\"\n",
        list.path().display()
    );
    write(rules.path(), &text);
    let process = guard(&pair, &["--rules", rules.path().to_str().unwrap()]);
    ask(&pair, &["old.test", "new.test"]);
    super::guard_live::reported(&process, "dropped", 1);
    write(list.path(), "new.test\nold..test\n");
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("line 2: empty label", LIMIT).unwrap();
    write(list.path(), "new.test\n");
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("reloaded: 2 rules", LIMIT).unwrap();
    ask(&pair, &["old.test", "new.test", "NEW.test"]);
    super::guard_live::reported(&process, "dropped", 3);
    let totals = stop(process);
    assert_eq!(totals["rules"][0]["dropped"], 3, "{totals}");
    assert_eq!(
        totals["rules"][0]["qtype"],
        serde_json::json!(["A"]),
        "{totals}"
    );
    assert_eq!(totals["rules"][1]["dropped"], 0, "{totals}");
}

#[test]
fn rules_with_names_are_checked_and_iptables_refuses_them() {
    require!(skip::lab());
    let file = TempFile::new(".toml");
    write(
        file.path(),
        "[[rule]]\nname = \"n\"\nnames = [\"a.test\", \"*.b.test\"]\nqtype = \"ANY\"\n\
         verdict = \"drop\"\n",
    );
    let path = file.path().to_str().unwrap();
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(barewire().unwrap());
        Process::spawn(command.args(args))
            .unwrap()
            .wait(LIMIT)
            .unwrap()
    };
    let stdout = run(&["guard", "check", path]).checked().unwrap().stdout;
    assert!(
        stdout.contains("names a.test, *.b.test (2 names) of type ANY"),
        "{stdout}"
    );
    let refused = run(&[
        "guard", "lo", "--hook", "iptables", "--print", "--rules", path,
    ]);
    assert!(!refused.success());
    assert!(
        refused.stderr.contains("no lists of DNS names"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("hint: "), "{}", refused.stderr);
}
