//! `drop`: processor time to drop a packet at a veth's receiving end, by mechanism.
//!
//! One generator for all: live XDP frames, SYNs of one signature from 256 sources, pinned to a
//! processor that also receives. Its time is that of the generator, the veth, and the receiver up
//! to the drop; softirq time is charged to the generator's thread or to ksoftirqd. The time is
//! therefore comparable between mechanisms, and the difference to the XDP program that drops
//! everything is what a mechanism costs more.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bpf::translate::{skb_program, skb_verdict};
use bpf::{cbpf, ebpf};
use lab::process::{Finished, Process, Signal};
use lab::veth::{Pair, Veth};
use runtime::filter::select::Select;
use sys::bpf::{Program, ProgramSpec, ProgramType, TestRun};
use xdp::{AttachMode, LiveTransmitter, TcLink, TcProgram, XdpLink, XdpProgram};

use super::{Plan, Scenario};
use crate::bursts::Meters;
use crate::rounds::{Outcome, Table};
use crate::{link, program};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "drop",
    summary: "dropping SYNs of one signature on veth, by XDP, tc, nftables and iptables",
    run,
};

/// The signature of the flood.
const SIGNATURE: &str = "4:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0";
/// Programs of bpftools' generator.
const BPFTOOLS: &str = include_str!("../../../../testdata/filter/bpfgen.tsv");
/// Number of sources.
const SOURCES: u32 = 256;
/// Packets of a run for a whole second of the plan.
const PACKETS_A_SECOND: f64 = 1_000_000.0;
/// The processor that sends and receives.
const CPU: usize = 0;
/// How long a program may take to start, and to end.
const LIMIT: Duration = Duration::from_secs(60);
const XDP_DROP: i32 = 1;
const TCX_DROP: i32 = 2;

/// What the receiving end drops with; ends on drop.
enum Attached {
    Xdp {
        _link: XdpLink,
    },
    Tc {
        _link: TcLink,
    },
    Process(Process),
    /// Removed by this command.
    Settings(Command),
}

impl Drop for Attached {
    fn drop(&mut self) {
        let ended = match self {
            Self::Xdp { .. } | Self::Tc { .. } => return,
            Self::Process(process) => process
                .signal(Signal::SIGTERM)
                .and_then(|()| process.wait(LIMIT)),
            Self::Settings(undo) => Process::spawn(undo)
                .and_then(|mut undo| undo.wait(LIMIT))
                .and_then(Finished::checked),
        };
        if let Err(error) = ended {
            eprintln!("{error:#}");
        }
    }
}

/// A mechanism: its label, and how it is set up at the receiving end.
struct Subject {
    label: &'static str,
    attach: fn(&Pair) -> Result<Attached>,
}

const FLOOR: &str = "XDP, every packet";
const BPFTOOLS_LABEL: &str = "iptables raw, bpftools' bytecode";
const OURS_LABEL: &str = "iptables raw, our bytecode";

const SUBJECTS: [Subject; 11] = [
    Subject {
        label: FLOOR,
        attach: xdp,
    },
    Subject {
        label: "xdp-filter, TCP port 80",
        attach: xdp_filter,
    },
    Subject {
        label: "barewire guard",
        attach: |pair| guard(pair, &[]),
    },
    Subject {
        label: "tc, every packet",
        attach: |pair| tc(pair, &returns(TCX_DROP)),
    },
    Subject {
        label: "tc, signature",
        attach: |pair| {
            tc(
                pair,
                &skb_verdict(&Select::p0f(SIGNATURE)?.compile(1)?, TCX_DROP)?,
            )
        },
    },
    Subject {
        label: "barewire guard --hook tc",
        attach: |pair| guard(pair, &["--hook", "tc"]),
    },
    Subject {
        label: "nftables, ingress",
        attach: |pair| {
            nftables(
                pair,
                &format!("ingress device {}", pair.right.ifname),
                "netdev",
            )
        },
    },
    Subject {
        label: "nftables, raw prerouting",
        attach: |pair| nftables(pair, "prerouting", "ip"),
    },
    Subject {
        label: "iptables raw, every packet",
        attach: |pair| iptables(pair, None),
    },
    Subject {
        label: BPFTOOLS_LABEL,
        attach: |pair| iptables(pair, Some(bpftools()?)),
    },
    Subject {
        label: OURS_LABEL,
        attach: |pair| iptables(pair, Some(ours()?)),
    },
];

fn run(plan: &Plan) -> Result<Outcome> {
    let mut veth = table("processor time a packet, generator included", "ns");
    let mut rates = table("packets per second of processor time", "M");
    rates.more_is_better = true;
    rates.reference = BPFTOOLS_LABEL.into();
    let mut notes = Vec::new();
    let count = (plan.seconds * PACKETS_A_SECOND) as u32;
    for _ in 0..plan.rounds {
        for subject in &SUBJECTS {
            // A pair of its own: what one leaves behind cannot affect the next.
            let pair = Veth::new().gro().create()?;
            let ns = (subject.attach)(&pair).and_then(|attached| {
                let ns = pair.left.ns.run(|| flood(&pair, count));
                drop(attached);
                ns?
            });
            let ns = ns.unwrap_or_else(|error| {
                let text = format!("{}: {error:#}", subject.label);
                if !notes.contains(&text) {
                    notes.push(text);
                }
                f64::NAN
            });
            veth.add(subject.label, 0, ns);
            rates.add(subject.label, 0, 1e3 / ns);
        }
    }
    notes.push(format!(
        "{count} SYNs a run from {SOURCES} sources, matching {SIGNATURE}, sent as live XDP frames \
         and received on processor {CPU}; none reached the receiver's IP layer"
    ));
    notes.push("nftables: seven tests, of which the options' order is not one".into());
    let programs = programs(plan)?;
    Ok(Outcome {
        tables: vec![veth, rates, programs],
        notes,
    })
}

/// The programs alone, by `BPF_PROG_TEST_RUN`. Those of iptables run as socket filters, which the
/// kernel runs on the same packet, from its IP header on.
fn programs(plan: &Plan) -> Result<Table> {
    let mut table = table("time of a program alone", "ns");
    table.reference = BPFTOOLS_LABEL.into();
    let packet = syn_between([[2; 6]; 2], [198, 19, 0, 1], 1);
    let socket = |text: &str| -> Result<Program> {
        let words = skb_program(&cbpf(text)?)?;
        let words: Vec<u64> = words.iter().map(|insn| insn.to_word()).collect();
        let spec = ProgramSpec {
            kind: ProgramType::SocketFilter,
            name: "bench_drop",
            insns: &words,
            flags: 0,
            ifindex: 0,
        };
        Program::load(&spec).map_err(|failure| anyhow!("{}: {}", failure.source, failure.log))
    };
    let floor = XdpProgram::load("bench_drop", &returns(XDP_DROP), true, None)?;
    let (guard, _) = super::guard::load(
        &super::guard::rules(&[format!("p0f:{SIGNATURE}")])?,
        ::guard::emit,
    )?;
    let (theirs, ours) = (socket(&bpftools()?)?, socket(&ours()?)?);
    let run = TestRun {
        data: &packet,
        repeat: if plan.quick { 1_000 } else { 1_000_000 },
        ..TestRun::default()
    };
    for _ in 0..plan.rounds {
        for (label, result) in [
            (FLOOR, floor.test_run(&run)?),
            ("barewire guard", guard.program().test_run(&run)?),
            (BPFTOOLS_LABEL, theirs.test_run(&run)?),
            (OURS_LABEL, ours.test_run(&run)?),
        ] {
            ensure!(result.retval != 0, "{label} does not match");
            table.add(label, 0, f64::from(result.duration_ns));
        }
    }
    Ok(table)
}

/// A program in the form of `iptables --bytecode`.
fn cbpf(text: &str) -> Result<cbpf::Program> {
    let insn = |insn: &str| -> Result<cbpf::Insn> {
        let words: Vec<&str> = insn.split(' ').collect();
        let [code, jt, jf, k] = words[..] else {
            bail!("not an instruction: {insn}");
        };
        let (code, jt, jf, k) = (code.parse()?, jt.parse()?, jf.parse()?, k.parse()?);
        Ok(cbpf::Insn::new(code, jt, jf, k))
    };
    let insns: Result<_> = text.trim().split(',').skip(1).map(insn).collect();
    Ok(cbpf::Program::new(insns?)?)
}

fn table(measure: &'static str, unit: &'static str) -> Table {
    Table {
        measure,
        unit,
        axis: "",
        more_is_better: false,
        reference: FLOOR.into(),
        series: Vec::new(),
    }
}

/// Sends from the left end; nanoseconds of processor time for each packet.
fn flood(pair: &Pair, count: u32) -> Result<f64> {
    sys::affinity::pin_current_thread(CPU)?;
    let mut transmitter = LiveTransmitter::new(pair.left.ifindex, SOURCES)?;
    for source in 0..SOURCES {
        transmitter.write(source as usize, &syn(pair, source))?;
    }
    let meters = Meters::new(None)?;
    // Twice: the first few packets allocate memory.
    transmitter.run(SOURCES * 16)?;
    let (before, delivered) = (link::stats(&pair.right)?, delivered(pair)?);
    // The thread's time is up to date after a switch.
    std::thread::yield_now();
    let start = meters.read_ns()?[0];
    transmitter.run(count)?;
    std::thread::yield_now();
    let ns = meters.read_ns()?[0] - start;
    let received = link::stats(&pair.right)?.rx_packets - before.rx_packets;
    let passed = self::delivered(pair)? - delivered;
    ensure!(
        passed == 0,
        "{passed} of {received} packets were not dropped"
    );
    let most = u64::from(count);
    ensure!(
        received <= most && received >= most - most / 100,
        "{received} of {count} packets arrived"
    );
    Ok(ns as f64 / received as f64)
}

/// Packets that the right end's IP layer has delivered to a protocol (RFC 4293, ipInDelivers).
fn delivered(pair: &Pair) -> Result<u64> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
    let text = pair.right.ns.run(read)??;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (lines.next(), lines.next());
    let (names, values) = names.zip(values).context("no IP counters")?;
    let mut both = names.split(' ').zip(values.split(' '));
    let found = both.find(|(name, _)| *name == "InDelivers");
    Ok(found.context("no InDelivers")?.1.parse()?)
}

/// A SYN with the signature, from one of the sources.
fn syn(pair: &Pair, source: u32) -> Vec<u8> {
    let macs = [pair.right.mac, pair.left.mac];
    syn_between(macs, pair.right.ipv4.octets(), source as u8)
}

fn syn_between(macs: [[u8; 6]; 2], destination: [u8; 4], source: u8) -> Vec<u8> {
    let mut packet = macs.concat();
    packet.extend([8, 0, 0x45, 0, 0, 60, 0, 7, 0x40, 0, 64, 6, 0, 0]);
    packet.extend([198, 18, 0, source]);
    packet.extend(destination);
    let sum = wire::checksum::checksum(&packet[14..34]).to_be_bytes();
    packet[24..26].copy_from_slice(&sum);
    packet.extend([0x9c, 0x40, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0xa0, 2]);
    packet.extend((1460_u16 * 10).to_be_bytes());
    packet.extend([0; 4]);
    let options = [
        2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 1, 1, 1, 0, 0, 0, 0, 1, 3, 3, 6,
    ];
    packet.extend(options);
    packet
}

/// A program that returns this for every packet.
fn returns(verdict: i32) -> Vec<ebpf::Insn> {
    let mut asm = bpf::asm::Asm::new();
    asm.mov(ebpf::Reg::R0, verdict);
    asm.exit();
    asm.finish().unwrap_or_default()
}

fn xdp(pair: &Pair) -> Result<Attached> {
    let right = &pair.right;
    let attach = || {
        let program = XdpProgram::load("bench_drop", &returns(XDP_DROP), true, None)?;
        XdpLink::attach(&program, right.ifindex, AttachMode::Native)
    };
    let _link = right.ns.run(attach)??;
    Ok(Attached::Xdp { _link })
}

fn tc(pair: &Pair, insns: &[ebpf::Insn]) -> Result<Attached> {
    let right = &pair.right;
    let attach = || TcLink::attach(&TcProgram::load("bench_drop", insns)?, right.ifindex);
    let _link = right.ns.run(attach)??;
    Ok(Attached::Tc { _link })
}

fn guard(pair: &Pair, options: &[&str]) -> Result<Attached> {
    let mut command = pair.right.ns.command(program::barewire()?);
    command.args(["guard", &pair.right.ifname]).args(options);
    command.args(["--drop", &format!("p0f:{SIGNATURE}")]);
    let process = Process::spawn(&mut command)?;
    process.wait_stderr("guarding", LIMIT)?;
    Ok(Attached::Process(process))
}

/// Only this program keeps maps below `/sys/fs/bpf`, which the namespace's own `/sys` lacks.
fn xdp_filter(pair: &Pair) -> Result<Attached> {
    let name = &pair.right.ifname;
    let start = format!(
        "mount -t bpf bpf /sys/fs/bpf && xdp-filter load {name} -m native -f tcp && \
         xdp-filter port 80 -p tcp -m dst && echo ready && exec sleep 600"
    );
    let mut command = pair.right.ns.command(program::installed("sh")?);
    let process = Process::spawn(command.args(["-c", &start]))?;
    process.wait_stdout("ready", LIMIT)?;
    Ok(Attached::Process(process))
}

fn nftables(pair: &Pair, hook: &str, family: &str) -> Result<Attached> {
    let rule = "ip hdrlength 5 ip ttl 29-64 ip length 60 ip protocol tcp tcp doff 10 \
                tcp window 14600 tcp option window count 6 drop";
    let priority = if family == "netdev" { "0" } else { "-300" };
    let rules = format!(
        "table {family} bench {{ chain flood {{ type filter hook {hook} priority {priority}; \
         {rule}; }}\n}}\n"
    );
    pair.right.ns.exec("nft", [&rules])?;
    let mut undo = pair.right.ns.command("nft");
    undo.args(["delete", "table", family, "bench"]);
    Ok(Attached::Settings(undo))
}

fn iptables(pair: &Pair, bytecode: Option<String>) -> Result<Attached> {
    let rule = |action| {
        let mut args = vec!["-w", "-t", "raw", action, "PREROUTING"];
        if let Some(bytecode) = &bytecode {
            args.extend(["-m", "bpf", "--bytecode", bytecode]);
        }
        args.extend(["-j", "DROP"]);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    pair.right.ns.exec("iptables", rule("-A"))?;
    let mut undo = pair.right.ns.command("iptables");
    undo.args(rule("-D"));
    Ok(Attached::Settings(undo))
}

/// What bpftools generates for the signature.
fn bpftools() -> Result<String> {
    let mut rows = BPFTOOLS.lines().filter_map(|line| line.split_once('\t'));
    let row = rows.find(|(signature, _)| *signature == SIGNATURE);
    Ok(row
        .context("no program of bpftools for the signature")?
        .1
        .into())
}

/// What we generate for the signature, for iptables.
fn ours() -> Result<String> {
    let mut command = Command::new(program::barewire()?);
    command.args(["filter", "compile", "--to", "iptables", "--p0f", SIGNATURE]);
    Ok(Process::spawn(&mut command)?
        .wait(LIMIT)?
        .checked()?
        .stdout
        .trim()
        .into())
}
