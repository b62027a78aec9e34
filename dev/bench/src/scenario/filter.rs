//! `filter`: filters in user space on a mix of packets in memory, compared with libpcap's
//! interpreter.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bpf::vm_cbpf;
use port::Matcher;

use super::{Plan, Scenario};
use crate::rounds::{Outcome, Table};
use crate::{mix, program};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "filter",
    summary: "filters in user space, 50 expressions beside libpcap: nanoseconds a packet",
    run,
};

/// Packets of the mix.
const PACKETS: usize = 4_000;

/// Typical expressions of users.
const EXPRESSIONS: [&str; 50] = [
    "ip",
    "ip6",
    "arp",
    "vlan",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "icmp or icmp6",
    "ip proto 47",
    "not arp",
    "ether broadcast",
    "ether multicast",
    "ip multicast",
    "ether host 02:00:00:00:00:01",
    "ether src 02:00:00:00:00:01",
    "ether proto 0x88cc",
    "host 10.0.0.1",
    "src host 10.0.0.1",
    "dst host 10.0.0.1",
    "host 10.0.0.1 or host 10.0.0.2",
    "host 10.0.0.1 and host 10.0.0.2",
    "net 10.0.0.0/8",
    "src net 192.168.0.0/16",
    "not net 10.0.0.0/8",
    "host 2001:db8::1",
    "net 2001:db8::/32",
    "port 53",
    "tcp port 80",
    "udp port 53",
    "tcp port 80 or tcp port 443",
    "udp port 53 or tcp port 443",
    "src port 443",
    "dst port 443",
    "not port 22",
    "portrange 1000-2000",
    "tcp dst portrange 8000-8999",
    "tcp and (port 80 or 443 or 8080 or 8443)",
    "host 10.0.0.1 and tcp port 443",
    "src host 10.0.0.1 and dst port 443",
    "net 10.0.0.0/8 and not port 22",
    "tcp[tcpflags] & tcp-syn != 0",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
    "tcp[tcpflags] & (tcp-rst|tcp-fin) != 0",
    "icmp[icmptype] == icmp-echo",
    "ip[8] < 5",
    "ip[6:2] & 0x1fff != 0",
    "less 100",
    "greater 1000",
    "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
];

fn run(plan: &Plan) -> Result<Outcome> {
    let packets = mix::packets(PACKETS);
    let file = std::env::temp_dir().join(format!("bw-filter-{}.pcap", std::process::id()));
    mix::write_pcap(&file, &packets)?;
    let outcome = measure(plan, &packets, &file);
    let _ = std::fs::remove_file(&file);
    outcome
}

fn measure(plan: &Plan, packets: &[Vec<u8>], file: &Path) -> Result<Outcome> {
    let mut table = Table {
        measure: "time a packet",
        unit: "ns",
        axis: "expression",
        more_is_better: false,
        reference: "libpcap".into(),
        series: Vec::new(),
    };
    let baseline = program::baselines()?.join("baseline-filter");
    let file = file.to_str().context("a path that is not UTF-8")?;
    let (rounds, expressions) = match plan.quick {
        true => (2, &EXPRESSIONS[..2]),
        false => (100, &EXPRESSIONS[..]),
    };
    for _ in 0..plan.rounds {
        for (at, expression) in (1..).zip(expressions) {
            let compiled = runtime::filter::compile(expression, 1)?.context("no filter")?;
            let matcher = Matcher::new(compiled.clone());
            let (theirs, count) = libpcap(&baseline, file, rounds, expression)?;
            let len = |packet: &[u8]| packet.len() as u32;
            let native = ours(packets, rounds, |bytes| matcher.selects(bytes, len(bytes)));
            let interpreted = ours(packets, rounds, |bytes| {
                vm_cbpf::run(&compiled, bytes, len(bytes)) != 0
            });
            ensure!(
                native.1 == count && interpreted.1 == count,
                "{expression}: libpcap selects {count} packets, we {} and {}",
                native.1,
                interpreted.1
            );
            table.add("libpcap", at, theirs);
            table.add("barewire", at, native.0);
            table.add("barewire, interpreted", at, interpreted.0);
        }
    }
    let names = (1..).zip(expressions);
    let names: Vec<_> = names.map(|(at, name)| format!("{at}: {name}")).collect();
    Ok(Outcome {
        tables: vec![table],
        notes: vec![
            "libpcap's programs are by its own compiler and optimizer; both select as many packets"
                .into(),
            format!("the expressions: {}", names.join("; ")),
        ],
    })
}

/// Nanoseconds per packet, and the number of packets selected.
fn libpcap(baseline: &Path, file: &str, rounds: u32, expression: &str) -> Result<(f64, u64)> {
    let mut command = Command::new(baseline);
    command.args([file, &rounds.to_string(), expression]);
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?} failed");
    let text = String::from_utf8(output.stdout)?;
    let (ns, count) = text.trim().split_once(' ').context("two numbers")?;
    Ok((ns.parse()?, count.parse()?))
}

fn ours(packets: &[Vec<u8>], rounds: u32, selects: impl Fn(&[u8]) -> bool) -> (f64, u64) {
    let start = Instant::now();
    let mut selected = 0u64;
    for _ in 0..rounds {
        for packet in packets {
            selected += u64::from(selects(black_box(packet)));
        }
    }
    let ns = start.elapsed().as_nanos() as f64;
    let rounds = u64::from(rounds);
    (
        ns / (rounds * packets.len() as u64) as f64,
        selected / rounds,
    )
}
