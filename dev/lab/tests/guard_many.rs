//! Many rules in one program: the kernel takes it with decision trees, and it decides and counts
//! as the program that asks every rule.

use guard::{Account, Features, Maps, Rule, Verdict};
use lab::random::Random;
use lab::{require, skip};
use runtime::filter::select::Select;
use sys::bpf::TestRun;
use xdp::{Guard, GuardSpec};

fn rule(id: u32, text: &str, verdict: Verdict) -> Rule {
    let select = match text.strip_prefix("p0f:") {
        Some(signature) => Select::p0f(signature).unwrap(),
        None => Select::Expression(text.into()),
    };
    Rule {
        id,
        name: text.to_owned(),
        matcher: Some(select.compile(1).unwrap_or_else(|e| panic!("{text}: {e}"))),
        sources: None,
        destinations: None,
        names: None,
        verdict,
        priority: 0,
    }
}

type Emit = fn(&[Rule], bool, Maps, Features) -> Result<Vec<bpf::ebpf::Insn>, guard::EmitError>;

fn load(rules: &[Rule], emit: Emit) -> Guard {
    let spec = GuardSpec {
        counters_len: guard::counters_len(rules.len()),
        limits_len: guard::limits_len(rules.len()),
        prefixes: &[],
        names: None,
        sources: None,
        events: None,
    };
    let guard = Guard::load(&spec, xdp::GuardHook::Xdp, |maps, features| {
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
        Ok(emit(rules, false, maps, features).unwrap())
    });
    guard.unwrap()
}

/// Runs the packets through both programs; how many a rule matched.
fn compare(rules: &[Rule], packets: &[Vec<u8>]) -> u64 {
    let both = [load(rules, guard::emit), load(rules, guard::emit_chain)];
    for data in packets {
        let run = TestRun {
            data,
            ..TestRun::default()
        };
        let verdicts = both
            .each_ref()
            .map(|g| g.program().test_run(&run).unwrap().retval);
        assert_eq!(verdicts[0], verdicts[1], "{data:02x?}");
    }
    let accounts = both.map(|guard| Account::of(&guard.counters().unwrap()));
    assert_eq!(accounts[0], accounts[1]);
    accounts[0].rules.iter().map(|rule| rule.packets).sum()
}

/// The values of IPv4 and TCP headers that signatures tell apart.
fn syn(random: &mut Random) -> Vec<u8> {
    let mut pick = |all: &[u8]| all[random.below(all.len() as u64) as usize];
    let mss = [pick(&[5, 5, 2]), pick(&[0xb4, 0xb4, 0x18])];
    let scale = pick(&[0, 1, 2, 5, 6, 7, 8]);
    let options: Vec<u8> = match pick(&[0, 0, 1, 2, 3]) {
        0 => vec![
            2, 4, mss[0], mss[1], 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, scale,
        ],
        1 => vec![2, 4, mss[0], mss[1], 1, 3, 3, scale, 1, 1, 4, 2],
        2 => vec![2, 4, mss[0], mss[1]],
        _ => vec![],
    };
    let mss = u16::from_be_bytes(mss);
    let window = match pick(&[0, 1, 2, 3, 4]) {
        0 => mss.wrapping_mul(20),
        1 => mss.wrapping_mul(10),
        2 => mss.wrapping_mul(4),
        3 => 8192,
        _ => 65535,
    };
    let len = 40 + options.len() as u8;
    let mut packet = vec![2; 12];
    packet.extend([
        8,
        0,
        0x45,
        0,
        0,
        len,
        0,
        pick(&[0, 7, 7]),
        pick(&[0x40, 0x40, 0]),
        0,
    ]);
    packet.extend([pick(&[64, 60, 128, 255]), 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0]);
    packet.extend([(5 + options.len() as u8 / 4) << 4, 2]);
    packet.extend(window.to_be_bytes());
    packet.extend([0, 0, 0, 0]);
    packet.extend(&options);
    if pick(&[0, 1, 2, 3, 4, 5, 6, 7]) == 0 {
        packet.truncate(14 + random.below(packet.len() as u64 - 14) as usize);
    }
    packet
}

#[test]
fn all_signatures_of_p0f_are_one_program() {
    require!(skip::lab(), skip::program("p0f", "p0f"));
    let database = std::fs::read_to_string("/etc/p0f/p0f.fp").unwrap();
    let requests = database.split("[tcp:request]").nth(1).unwrap();
    let requests = requests.split("\n[").next().unwrap();
    let signatures = requests.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "sig").then(|| format!("p0f:{}", value.trim()))
    });
    let signatures: Vec<_> = signatures.collect();
    assert!(signatures.len() >= 90, "{}", signatures.len());
    let mut random = Random::seeded("guard, signatures");
    let packets: Vec<_> = (0..3_000).map(|_| syn(&mut random)).collect();
    for verdicts in [[Verdict::Drop; 2], [Verdict::Count, Verdict::Pass]] {
        let rules = (0..).zip(&signatures);
        let rules = rules.map(|(id, text)| rule(id, text, verdicts[id as usize % 2]));
        let matched = compare(&rules.collect::<Vec<_>>(), &packets);
        assert!(matched > 100, "{matched}");
    }
}

/// What users filter by, with random numbers.
fn expression(random: &mut Random) -> String {
    let mut below = |bound| random.below(bound);
    let protocol = ["udp", "tcp", "ip"][below(3) as usize];
    let port = 1 + below(300);
    let net = format!("10.{}.{}.0/24", below(4), below(8));
    match below(9) {
        0 => format!("{protocol} and src net {net}"),
        1 => format!("src host 10.{}.{}.{}", below(2), below(2), below(4)),
        2 => format!("udp dst port {port} and ip[8] < {}", below(255)),
        3 => format!("tcp dst portrange {port}-{}", port + below(9)),
        4 => format!("udp src port {port} and dst net {net}"),
        5 => format!("ip6 and udp dst port {port}"),
        6 => format!("vlan {} and udp", below(9)),
        7 => format!("tcp[tcpflags] = {} and dst port {port}", below(64)),
        _ => format!("{} dst port {port}", ["udp", "tcp"][below(2) as usize]),
    }
}

#[test]
fn two_hundred_expressions_are_one_program() {
    require!(skip::lab());
    for round in 0..3 {
        let mut random = Random::seeded(&format!("guard, expressions {round}"));
        let packets: Vec<_> = (0..3_000)
            .map(|_| {
                let mut packet = super::guard_interpreted::packet(&mut random);
                // Other ports, with and without options.
                if packet.len() > 40 && random.below(2) == 0 {
                    packet[37] = random.below(256) as u8;
                    packet[14] = [packet[14], 0x46][random.below(8) as usize / 7];
                }
                packet
            })
            .collect();
        let rules = (0..200).map(|id| {
            let verdict = match random.below(4) {
                0 => Verdict::Count,
                1 => Verdict::Pass,
                _ => Verdict::Drop,
            };
            rule(id, &expression(&mut random), verdict)
        });
        let matched = compare(&rules.collect::<Vec<_>>(), &packets);
        assert!(matched > 300, "{matched}");
    }
}
