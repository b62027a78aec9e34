//! `barewire flows --egress`: the beginnings of flows, on another wire.

use std::time::Duration;

use lab::packet::{Raw, Udp};
use lab::process::{Signal, barewire};
use lab::{Inline, Veth, require, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const FLOWS: u16 = 10;
const COUNT: u64 = 1000;

fn summary(stdout: &str) -> Value {
    let last = stdout.lines().last().expect("a summary");
    serde_json::from_str(last).unwrap()
}

/// The middle namespace of a path has the input and the way out; what leaves is looked at at the
/// far end.
fn shunted(scheme: &str, args: &[&str], expected: u64) {
    let path = Inline::new(&Veth::new()).unwrap();
    let (a, b) = (path.a(), path.b());
    let names = [lab::inline::X, lab::inline::Y];
    let input = format!("{scheme}{}", names[0]);
    let mut all = vec!["flows", "--json", &input, "--egress", names[1]];
    all.extend(args);
    all.extend(["udp", "port", "9"]);
    let mut process = path.ns().spawn(barewire().unwrap(), &all).unwrap();
    process.wait_stderr("of memory", LIMIT).unwrap();
    let raw = b.ns.run(|| Raw::open(&b.ifname)).unwrap().unwrap();
    let out = a.ns.run(|| Raw::sender(&a.ifname)).unwrap().unwrap();
    let udp = Udp::between(a, b).flows(FLOWS);
    for number in 0..COUNT {
        out.send(&udp.build(number, 60)).unwrap();
        if number % 64 == 63 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let mut seen = 0;
    while let Some(packet) = raw.receive(Duration::from_millis(700)).unwrap() {
        seen += u64::from(lab::packet::number_of(&packet).is_ok());
    }
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let summary = summary(&finished.stdout);
    let egress = &summary["egress"];
    assert_eq!(egress["imbalance"], 0, "{egress}");
    assert_eq!(egress["forwarded"], expected, "{egress}");
    assert_eq!(seen, expected, "{egress}");
    assert_eq!(summary["packets_in_records"], COUNT);
    assert_eq!(summary["imbalance"], 0);
}

#[test]
fn the_first_packets_of_each_flow_go_on() {
    require!(skip::lab());
    shunted("", &["--egress-first", "7"], 7 * u64::from(FLOWS));
    // 46 bytes of IP a packet: the fourth reaches 184, the fifth goes beyond 200.
    shunted("", &["--egress-first", "100,1k"], 23 * u64::from(FLOWS));
    shunted(
        "",
        &[
            "--egress-first",
            "7",
            "--egress-filter",
            "udp src port 4000",
        ],
        7,
    );
}

#[test]
fn a_bypass_hands_frames_over() {
    require!(skip::lab());
    shunted("afxdp:", &["--egress-first", "7"], 7 * u64::from(FLOWS));
}

#[test]
fn a_circle_is_refused() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let name = &pair.right.ifname;
    let mut process = pair
        .right
        .ns
        .spawn(barewire().unwrap(), ["flows", name, "--egress", name])
        .unwrap();
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("every packet would come back"),
        "{}",
        finished.stderr
    );
}
