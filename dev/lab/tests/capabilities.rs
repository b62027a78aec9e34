//! Commands with the documented capabilities and no others: NET_RAW, NET_ADMIN and BPF, on ports of
//! every kind that this machine has.

use std::time::Duration;

use lab::oracle::write_pcap;
use lab::packet::{Udp, number_of};
use lab::process::{Process, Signal, barewire};
use lab::{End, Pair, Veth, require, skip};
use serde_json::Value;

use crate::afxdp::{receiver, sender};
use crate::guard_live::reported;

const LIMIT: Duration = Duration::from_secs(60);

/// Packets that are sent to each command.
const COUNT: u64 = 40;

/// What root starts with.
const LEAST: &str = "--bounding-set=-all,+net_admin,+net_raw,+bpf";

/// Starts `barewire` with these capabilities alone; `{}` in an argument is the end's interface.
fn start(end: &End, args: &[&str]) -> Process {
    let mut command = end.ns.command("setpriv");
    command.arg(LEAST);
    command.arg(barewire().unwrap());
    command.args(args.iter().map(|arg| arg.replace("{}", &end.ifname)));
    Process::spawn(&mut command).unwrap()
}

fn pour(pair: &Pair) {
    // After a program is attached, the carrier takes a moment (veth turns NAPI on).
    pair.left.wait_up(LIMIT).unwrap();
    pair.right.wait_up(LIMIT).unwrap();
    let (out, udp) = (sender(&pair.left), Udp::between(&pair.left, &pair.right));
    for number in 0..COUNT {
        out.send(&udp.build(number, 60)).unwrap();
    }
}

/// The capabilities of a process, as the kernel shows them.
fn effective(process: &Process, name: &str) -> u64 {
    let path = format!("/proc/{}/status", process.pid());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
}

#[test]
fn ports_are_read_with_the_documented_capabilities() {
    require!(skip::lab(), skip::program("setpriv", "util-linux"));
    for port in [
        "{}",
        "afpacket:{}?tap=tpacket",
        // Without CAP_IPC_LOCK, the limit for locked memory bounds their packet memory.
        "afxdp:{}?ring=512",
        "afxdp:{}?attach=generic&ring=512",
    ] {
        let pair = Veth::new().create().unwrap();
        let limit = COUNT.to_string();
        let args = [
            "capture",
            port,
            "-c",
            &limit,
            "--json",
            "--count-only",
            "udp dst port 9",
        ];
        let mut process = start(&pair.right, &args);
        process.wait_stderr("listening on", LIMIT).unwrap();
        // CAP_NET_ADMIN (12), CAP_NET_RAW (13), CAP_BPF (39), and nothing else ever again.
        let most = 1 << 12 | 1 << 13 | 1_u64 << 39;
        assert_eq!(effective(&process, "CapBnd:"), most, "{port}");
        assert_eq!(effective(&process, "CapEff:") & !most, 0, "{port}");
        pour(&pair);
        let finished = process.wait(LIMIT).unwrap().checked().unwrap();
        let line = finished.stdout.lines().last().unwrap_or_default();
        let totals: Value = serde_json::from_str(line).unwrap();
        assert_eq!(totals["captured"], COUNT, "{port}: {totals}");
    }
}

#[test]
fn a_guard_drops_with_the_documented_capabilities() {
    require!(skip::lab(), skip::program("setpriv", "util-linux"));
    for hook in ["xdp", "tc"] {
        let pair = Veth::new().create().unwrap();
        let args = [
            "guard",
            "{}",
            "--json",
            "--hook",
            hook,
            "--drop",
            "udp dst port 9",
        ];
        let mut process = start(&pair.right, &args);
        process.wait_stderr("guarding", LIMIT).unwrap();
        pour(&pair);
        reported(&process, "seen", COUNT);
        let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
        let stdout = finished.checked().unwrap().stdout;
        let line = stdout.lines().last().unwrap_or_default();
        let totals: Value = serde_json::from_str(line).unwrap();
        assert_eq!(totals["rules"][0]["dropped"], COUNT, "{hook}: {totals}");
    }
}

#[test]
fn packets_are_sent_with_the_documented_capabilities() {
    require!(skip::lab(), skip::program("setpriv", "util-linux"));
    for port in ["{}", "afxdp:{}?ring=512"] {
        let pair = Veth::new().create().unwrap();
        let listener = receiver(&pair.right);
        let udp = Udp::between(&pair.left, &pair.right);
        let packets: Vec<_> = (0..COUNT).map(|number| udp.build(number, 60)).collect();
        let file = write_pcap(&packets).unwrap();
        let name = file.path().to_str().unwrap();
        let mut process = start(&pair.left, &["send", name, port, "--rate", "2kpps"]);
        process.wait(LIMIT).unwrap().checked().unwrap();
        for number in 0..COUNT {
            let mut numbers = std::iter::from_fn(|| listener.receive(LIMIT).unwrap());
            let received = numbers.find_map(|packet| number_of(&packet).ok());
            assert_eq!(received, Some(number), "{port}");
        }
    }
}
