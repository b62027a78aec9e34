//! `barewire flows --egress`: the first packets of flows on another interface.

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

/// The middle namespace of a path has the input and the egress; packets are checked at the far end.
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
fn the_first_packets_of_each_flow_are_forwarded() {
    require!(skip::lab());
    shunted("", &["--egress-first", "7"], 7 * u64::from(FLOWS));
    // 46 bytes of IP per packet: the fourth reaches 184, the fifth exceeds 200.
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
fn an_egress_of_a_bypass_is_zero_copy() {
    require!(skip::lab());
    shunted("afxdp:", &["--egress-first", "7"], 7 * u64::from(FLOWS));
}

/// Packets that a device temporarily refuses are lost; a removed device ends the probe.
#[test]
fn an_egress_may_go_down_but_its_removal_ends_the_probe() {
    require!(skip::lab());
    let path = Inline::new(&Veth::new()).unwrap();
    let (a, b) = (path.a(), path.b());
    let [input, out] = [lab::inline::X, lab::inline::Y];
    let mut args = vec!["flows", "--json", input, "--egress", out];
    args.extend(["--egress-first", "1000000", "udp", "port", "9"]);
    let mut process = path.ns().spawn(barewire().unwrap(), &args).unwrap();
    process.wait_stderr("of memory", LIMIT).unwrap();
    let sender = a.ns.run(|| Raw::sender(&a.ifname)).unwrap().unwrap();
    let udp = Udp::between(a, b).flows(1000);
    let send = |from: u64| {
        for number in from..from + 50 {
            sender.send(&udp.build(number, 60)).unwrap();
        }
    };
    path.ns().ip(["link", "set", out, "down"]).unwrap();
    send(0);
    // Long enough for the packets to reach the device that is down.
    std::thread::sleep(Duration::from_secs(1));
    assert!(process.running().unwrap(), "{}", process.stderr());
    path.ns().ip(["link", "set", out, "up"]).unwrap();
    let raw = b.ns.run(|| Raw::open(&b.ifname)).unwrap().unwrap();
    let until = std::time::Instant::now() + LIMIT;
    let mut from = 50;
    // The carrier takes a while to return.
    while !is_numbered(&raw) {
        assert!(std::time::Instant::now() < until, "nothing leaves");
        send(from);
        from += 50;
    }
    path.ns().ip(["link", "del", out]).unwrap();
    while process.running().unwrap() {
        assert!(std::time::Instant::now() < until, "the probe continues");
        send(from);
        from += 50;
        std::thread::sleep(Duration::from_millis(50));
    }
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(4), "{}", finished.stderr);
    let summary = summary(&finished.stdout);
    assert_eq!(summary["egress"]["imbalance"], 0, "{summary}");
    assert_eq!(summary["imbalance"], 0, "{summary}");
}

/// Whether a numbered packet arrives soon.
fn is_numbered(raw: &Raw) -> bool {
    while let Some(packet) = raw.receive(Duration::from_millis(200)).unwrap() {
        if lab::packet::number_of(&packet).is_ok() {
            return true;
        }
    }
    false
}

#[test]
fn an_egress_loop_is_refused() {
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
        finished.stderr.contains("every packet would be sent back"),
        "{}",
        finished.stderr
    );
}
