//! `guard`: what a packet costs that many rules are tested on, by `BPF_PROG_TEST_RUN`: the rules
//! one after the other, and as decision trees; and the time to compile them.

use anyhow::{Context, Result, ensure};
use bpf::ebpf::Insn;
use bpf::translate::{XdpOptions, xdp_program};
use bpf::vm_cbpf::PacketInfo;
use bpf::vm_ebpf::maps::Kind;
use bpf::vm_ebpf::{self, Hook};
use guard::{Account, EmitError, Features, Maps, Rule, Verdict};
use runtime::filter::select::Select;
use sys::bpf::TestRun;
use sys::{Error, ErrorKind};
use xdp::{Guard, GuardSpec};

use super::{Plan, Scenario};
use crate::cpu;
use crate::rounds::{Outcome, Table};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "guard",
    summary: "many rules in XDP, one after the other and as decision trees: nanoseconds a packet",
    run,
};

/// For programs that are not loaded.
const MAPS: Maps = Maps {
    counters: 1,
    limits: 2,
    prefixes: 3,
    names: 0,
    scratch: 0,
    sources: 4,
    samples: None,
};
const FEATURES: Features = Features {
    hook: guard::DirectHook::Xdp,
    frags: true,
    indirect: true,
};

const DATABASE: &str = "/etc/p0f/p0f.fp";

pub(super) type Emit = fn(&[Rule], bool, Maps, Features) -> Result<Vec<Insn>, EmitError>;

fn run(plan: &Plan) -> Result<Outcome> {
    let database = std::fs::read_to_string(DATABASE);
    let database = database.with_context(|| format!("no {DATABASE}: apt-get install p0f"))?;
    let signatures = signatures(&database);
    let sets = [
        (
            "time a packet, all SYN signatures of p0f",
            rules(&signatures)?,
        ),
        ("time a packet, 200 expressions", rules(&expressions())?),
    ];
    let mut notes = vec![
        "packets: 1 UDP, 2 a SYN as of Linux, with a timestamp of 0, 3 a SYN without options, \
         4 UDP over IPv6"
            .into(),
        "no rule: the same program without rules, which counts the packet twice".into(),
    ];
    let mut tables = vec![compile_time(plan, &signatures)?];
    for (measure, rules) in sets {
        let mut table = Table {
            measure,
            unit: "ns",
            axis: "packet",
            more_is_better: false,
            reference: "one after the other".into(),
            series: Vec::new(),
        };
        let mut programs = Vec::new();
        let ways: [(_, &[Rule], Emit); 3] = [
            ("no rule", &[], guard::emit),
            ("one after the other", &rules, guard::emit_chain),
            ("decision trees", &rules, guard::emit),
        ];
        for (name, rules, emit) in ways {
            let (guard, insn_count) = load(rules, emit)?;
            let steps = packets().map(|packet| steps(rules, emit, &packet));
            let steps = steps.into_iter().collect::<Result<Vec<_>>>()?;
            notes.push(format!(
                "{measure}: {} rules, {name}: {insn_count} instructions, of which the packets \
                 take {steps:?}",
                rules.len()
            ));
            programs.push((name, guard));
        }
        let repeat = if plan.quick { 1_000 } else { 1_000_000 };
        for _ in 0..plan.rounds {
            for (at, packet) in (1..).zip(packets()) {
                for (name, guard) in &programs {
                    table.add(name, at, time(guard, &packet, repeat)?);
                }
            }
        }
        tables.push(table);
    }
    Ok(Outcome { tables, notes })
}

/// The time from the text of all signatures to a program for each, and to one program for all.
fn compile_time(plan: &Plan, signatures: &[String]) -> Result<Table> {
    let mut table = Table {
        measure: "processor time to compile all SYN signatures of p0f",
        unit: "ms",
        axis: "signatures",
        more_is_better: false,
        reference: "a program each".into(),
        series: Vec::new(),
    };
    let count = signatures.len() as u32;
    let options = XdpOptions {
        hook: FEATURES.hook,
        frags: true,
        indirect_by_helper: false,
        stack_top: 0,
    };
    for _ in 0..plan.rounds {
        let began = cpu::of_thread()?;
        for rule in rules(signatures)? {
            let program = rule.matcher.context("no filter")?;
            std::hint::black_box(xdp_program(&program, &options)?);
        }
        table.add("a program each", count, (cpu::of_thread()? - began) * 1e3);
        let ways: [(_, Emit); 2] = [
            ("one after the other", guard::emit_chain),
            ("decision trees", guard::emit),
        ];
        for (name, emit) in ways {
            let began = cpu::of_thread()?;
            std::hint::black_box(emit(&rules(signatures)?, false, MAPS, FEATURES)?);
            table.add(name, count, (cpu::of_thread()? - began) * 1e3);
        }
    }
    Ok(table)
}

/// The signatures of SYNs in p0f's database.
fn signatures(database: &str) -> Vec<String> {
    let requests = database.split("[tcp:request]").nth(1).unwrap_or_default();
    let requests = requests.split("\n[").next().unwrap_or_default();
    let signatures = requests.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "sig").then(|| format!("p0f:{}", value.trim()))
    });
    signatures.collect()
}

/// Services, sources and networks, none of which the packets have.
fn expressions() -> Vec<String> {
    let expression = |at: u32| match at % 5 {
        0 => format!("udp dst port {}", 1_000 + at),
        1 => format!("tcp dst port {}", 1_000 + at),
        2 => format!("src host 192.0.2.{at}"),
        3 => format!("src net 198.51.{at}.0/24 and udp"),
        _ => format!("udp src port {} and greater 600", 1_000 + at),
    };
    (0..200).map(expression).collect()
}

pub(super) fn rules(texts: &[String]) -> Result<Vec<Rule>> {
    let rule = |(id, text): (u32, &String)| {
        let select = match text.strip_prefix("p0f:") {
            Some(signature) => Select::p0f(signature)?,
            None => Select::Expression(text.clone().into()),
        };
        Ok(Rule {
            id,
            name: text.clone(),
            matcher: Some(select.compile(1)?),
            sources: None,
            destinations: None,
            names: None,
            verdict: Verdict::Drop,
            priority: 0,
        })
    };
    (0..).zip(texts).map(rule).collect()
}

pub(super) fn load(rules: &[Rule], emit: Emit) -> Result<(Guard, usize)> {
    let spec = GuardSpec {
        counters_len: guard::counters_len(rules.len()),
        limits_len: guard::limits_len(rules.len()),
        prefixes: &[],
        names: None,
        sources: None,
        events: None,
    };
    let insn_count = std::cell::Cell::new(0);
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
        let insns = emit(rules, false, maps, features)
            .map_err(|e| Error::new(ErrorKind::InvalidInput, "compile the rules", e.to_string()))?;
        insn_count.set(insns.len());
        Ok(insns)
    })?;
    Ok((guard, insn_count.get()))
}

/// Instructions that a packet takes, by the interpreter: an independent measure of a noisy clock's.
fn steps(rules: &[Rule], emit: Emit, packet: &[u8]) -> Result<u32> {
    let insns = emit(rules, false, MAPS, FEATURES)?;
    let fits = |steps_max| {
        let mut maps = vm_ebpf::maps::Maps::new();
        let count = rules.len();
        maps.add(1, Kind::Array, (4, guard::counters_len(count)), 1);
        let hook = Hook::Xdp {
            first_len: packet.len(),
        };
        let mut packet = vm_ebpf::Packet::new(packet);
        let packet = (hook, &mut packet);
        vm_ebpf::run(&insns, packet, &PacketInfo::UNKNOWN, &mut maps, steps_max).is_ok()
    };
    let all: Vec<u32> = (0..=insns.len() as u32).collect();
    Ok(all.partition_point(|steps_max| !fits(*steps_max)) as u32)
}

/// Nanoseconds a packet, which no rule matches.
fn time(guard: &Guard, data: &[u8], repeat: u32) -> Result<f64> {
    let matched = |guard: &Guard| -> Result<u64> {
        let account = Account::of(&guard.counters()?);
        Ok(account.rules.iter().map(|rule| rule.packets).sum())
    };
    let run = TestRun {
        data,
        repeat,
        ..TestRun::default()
    };
    let before = matched(guard)?;
    let result = guard.program().test_run(&run)?;
    ensure!(matched(guard)? == before, "a rule matches {data:02x?}");
    Ok(f64::from(result.duration_ns))
}

fn packets() -> [Vec<u8>; 4] {
    let ipv4 = |len: u8, protocol| {
        let mut packet = vec![2; 12];
        packet.extend([8, 0, 0x45, 0, 0, len, 0, 7, 0x40, 0, 64, protocol, 0, 0]);
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0, 80]);
        packet
    };
    let mut udp = ipv4(60, 17);
    udp.extend([0, 40, 0, 0]);
    udp.resize(74, 0);
    let syn = |len: u8, words: u8| {
        let mut packet = ipv4(len, 6);
        packet.extend([
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            words << 4,
            2,
            0x12,
            0x35,
            0,
            0,
            0,
            0,
        ]);
        packet
    };
    let mut linux = syn(60, 10);
    linux.extend([
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 3, 7,
    ]);
    let mut udp6 = vec![2; 12];
    udp6.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 17, 64]);
    udp6.extend([0x20; 32]);
    udp6.extend([0x9c, 0x40, 0, 80, 0, 20, 0, 0]);
    udp6.resize(74, 0);
    [udp, linux, syn(40, 5), udp6]
}
