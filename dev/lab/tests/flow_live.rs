//! `barewire flows` on live interfaces: what was sent is in the records, through `afpacket:` and
//! `afxdp:`; two directions in two queues become one flow; overload and the removal of the
//! interface are reported; the terminal is restored.

use std::io::BufRead;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::packet::{Raw, Udp};
use lab::process::{Finished, Process, Signal, barewire};
use lab::{End, Pair, Veth, require, skip};
use port::{Direction, PortOptions};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// Starts `barewire flows` on the right end; `{}` in an argument is the interface.
fn start(pair: &Pair, args: &[&str]) -> Process {
    let end = &pair.right;
    let args: Vec<String> = args.iter().map(|a| a.replace("{}", &end.ifname)).collect();
    let args: Vec<&str> = ["flows"]
        .into_iter()
        .chain(args.iter().map(String::as_str))
        .collect();
    let process = end.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("of memory", LIMIT).unwrap();
    process
}

fn parse(finished: &Finished) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let summary = lines
        .pop()
        .unwrap_or_else(|| panic!("no summary: {}", finished.stderr));
    assert_eq!(summary["type"], "summary", "{}", finished.stderr);
    (lines, summary)
}

fn sender(end: &End) -> Raw {
    end.ns.run(|| Raw::sender(&end.ifname)).unwrap().unwrap()
}

/// Sends this many packets in bursts.
fn pour(pair: &Pair, udp: &Udp, count: u64) {
    let out = sender(&pair.left);
    for number in 0..count {
        out.send(&udp.build(number, 60)).unwrap();
        if number % 64 == 63 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    // Time for blocks and batches to be delivered.
    std::thread::sleep(Duration::from_millis(300));
}

fn sum(flows: &[Value], field: &str) -> u64 {
    flows.iter().map(|flow| flow[field].as_u64().unwrap()).sum()
}

fn all_that_was_sent(port: &str) {
    let pair = Veth::new().create().unwrap();
    let mut process = start(&pair, &["--json", port, "udp", "port", "9"]);
    const COUNT: u64 = 5000;
    pour(
        &pair,
        &Udp::between(&pair.left, &pair.right).flows(50),
        COUNT,
    );
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let (flows, summary) = parse(&finished);
    assert_eq!(flows.len(), 50, "{port}");
    assert!(flows.iter().all(|flow| flow["packets"] == COUNT / 50));
    assert_eq!(sum(&flows, "bytes"), COUNT * 46);
    let total = &summary["account"]["total"];
    assert_eq!(
        (&total["delivered"], &total["imbalance"]),
        (&COUNT.into(), &0.into())
    );
    assert_eq!(
        (&summary["lost"], &summary["imbalance"]),
        (&0.into(), &0.into())
    );
    // The records use the wall clock.
    let start = flows[0]["start"]
        .as_str()
        .unwrap()
        .parse::<wire::Timestamp>()
        .unwrap();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let age = now.as_nanos() as i128 - i128::from(start.ns());
    assert!((0..60_000_000_000).contains(&age), "{age} ns ago");
}

#[test]
fn a_tap_sees_all_that_was_sent() {
    require!(skip::lab());
    all_that_was_sent("{}");
}

#[test]
fn a_bypass_captures_every_sent_packet() {
    require!(skip::lab());
    all_that_was_sent("afxdp:{}");
    all_that_was_sent("afxdp:{}?attach=generic");
}

/// A tap sees what the host itself sends.
#[test]
fn a_tap_sees_both_directions() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut process = start(&pair, &["--json", "{}", "icmp"]);
    let target = pair.right.ipv4.to_string();
    let mut ping = pair
        .left
        .ns
        .spawn("ping", ["-c5", "-i0.05", &target])
        .unwrap();
    assert!(ping.wait(LIMIT).unwrap().success());
    std::thread::sleep(Duration::from_millis(300));
    let (flows, _) = parse(&process.stop(Signal::SIGINT, LIMIT).unwrap());
    assert_eq!(flows.len(), 1);
    let flow = &flows[0];
    assert_eq!(flow["src"], pair.left.ipv4.to_string());
    assert_eq!(
        (&flow["icmp_type"], &flow["packets"]),
        (&8.into(), &5.into())
    );
    assert_eq!(flow["reverse"]["packets"], 5);
}

/// The reader of the lines stalls while packets arrive: metering continues, records that do not fit
/// are dropped and counted, and every packet is accounted for.
#[test]
fn a_stalled_reader_costs_records_and_no_packets() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    let mut command = end.ns.command(barewire().unwrap());
    command.args(["flows", "--json", "--idle-timeout", "200ms", &end.ifname]);
    command.args(["udp", "port", "9"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    reported.read_line(&mut line).unwrap();
    assert!(line.contains("of memory"), "{line}");
    // Two rounds of as many flows as there are ports: 24 MB of lines.
    const FLOWS: u16 = 30_000;
    const COUNT: u64 = 2 * FLOWS as u64;
    let udp = Udp::between(&pair.left, &pair.right).flows(FLOWS);
    pour(&pair, &udp, COUNT);
    std::thread::sleep(Duration::from_millis(1700));
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (last, flows) = lines.split_last().unwrap();
    let summary: Value = serde_json::from_str(last).unwrap();
    let number = |name: &str| {
        summary[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {last}"))
    };
    assert_eq!(number("packets"), COUNT, "{last}");
    assert_eq!(
        (number("lost"), &summary["imbalance"]),
        (0, &0.into()),
        "{last}"
    );
    assert_eq!(number("records"), flows.len() as u64);
    assert!(number("records_dropped") > 0, "{last}");
    let refused: u64 = summary["refused"]
        .as_object()
        .unwrap()
        .values()
        .map(|count| count.as_u64().unwrap())
        .sum();
    let sum = number("packets_in_records") + number("packets_in_dropped") + refused;
    assert_eq!(sum, COUNT, "{last}");
    assert!(flows.iter().all(|line| line.ends_with('}')));
}

/// Idle flows end while the probe runs, without another packet.
#[test]
fn flows_end_by_the_clock() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut process = start(
        &pair,
        &["--json", "{}", "--idle-timeout", "1s", "udp", "port", "9"],
    );
    pour(&pair, &Udp::between(&pair.left, &pair.right).flows(3), 30);
    process
        .wait_stdout("\"end_reason\":\"idle\"", LIMIT)
        .unwrap();
    let (flows, summary) = parse(&process.stop(Signal::SIGTERM, LIMIT).unwrap());
    assert!(
        flows.iter().all(|flow| flow["end_reason"] == "idle"),
        "{flows:?}"
    );
    assert_eq!((flows.len(), &summary["ended"]["idle"]), (3, &3.into()));
}

/// Sends packets through one queue of the left end, as fast as possible.
fn send_through(pair: &Pair, queue: u32, packets: impl Iterator<Item = Vec<u8>>) {
    let options = PortOptions {
        direction: Direction::Tx,
        ..PortOptions::default()
    };
    let name = format!("afxdp:{}/{queue}", pair.left.ifname);
    let open = || port::open(&name, &options);
    let mut port = pair.left.ns.run(open).unwrap().unwrap();
    for (number, packet) in packets.enumerate() {
        let until = Instant::now() + LIMIT;
        loop {
            let mut batch = port.tx[0].reserve(1).unwrap();
            if batch.write(&packet) {
                batch.submit().unwrap();
                break;
            }
            drop(batch);
            assert!(Instant::now() < until, "the device takes nothing");
            port.tx[0].flush().unwrap();
            port.tx[0].wait(false, Duration::from_millis(10)).unwrap();
        }
        if number % 32 == 31 {
            port.tx[0].flush().unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    port.tx[0].flush().unwrap();
    assert!(port.tx[0].wait(true, LIMIT).unwrap());
}

/// The two directions are received on different queues, and so in different tables.
#[test]
fn directions_on_two_queues_become_one_flow() {
    require!(skip::lab());
    let pair = Veth::new().queues(2).create().unwrap();
    let mut process = start(&pair, &["--json", "afxdp:{}", "udp", "port", "9"]);
    let there = Udp::between(&pair.left, &pair.right).flows(10);
    const COUNT: u64 = 200;
    send_through(&pair, 0, (0..COUNT).map(|number| there.build(number, 60)));
    // Addresses and ports are swapped; checksums over them stay.
    let back = (0..COUNT).map(|number| {
        let mut packet = there.build(number, 60);
        packet[26..34].rotate_left(4);
        packet[34..38].rotate_left(2);
        packet
    });
    send_through(&pair, 1, back);
    std::thread::sleep(Duration::from_millis(300));
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let (flows, summary) = parse(&finished);
    let queues = summary["account"]["queues"].as_array().unwrap();
    let delivered: Vec<u64> = queues
        .iter()
        .map(|q| q["delivered"].as_u64().unwrap())
        .collect();
    assert_eq!(delivered, [COUNT, COUNT], "one direction in each queue");
    assert_eq!(summary["halves_merged"], 10);
    assert_eq!(flows.len(), 10);
    for flow in &flows {
        assert_eq!(
            flow["src"],
            pair.left.ipv4.to_string(),
            "the side that began"
        );
        assert_eq!(
            (&flow["packets"], &flow["reverse"]["packets"]),
            (&20.into(), &20.into())
        );
    }
    assert_eq!(
        (&summary["imbalance"], &summary["packets_in_records"]),
        (&0.into(), &400.into())
    );
}

/// A probe that cannot keep up loses packets, and reports how many and why.
#[test]
fn overload_is_accounted_for() {
    require!(skip::lab());
    for port in ["{}?ring_bytes=262144", "afxdp:{}?ring=64"] {
        let pair = Veth::new().create().unwrap();
        let mut process = start(&pair, &["--json", port, "udp", "port", "9"]);
        process.suspend().unwrap();
        const COUNT: u64 = 20_000;
        pour(
            &pair,
            &Udp::between(&pair.left, &pair.right).flows(10),
            COUNT,
        );
        process.signal(Signal::SIGCONT).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
        assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
        let (flows, summary) = parse(&finished);
        let total = &summary["account"]["total"];
        assert_eq!(total["imbalance"], 0, "{port}: {total}");
        assert_eq!(summary["imbalance"], 0);
        let (lost, delivered) = (summary["lost"].as_u64().unwrap(), sum(&flows, "packets"));
        assert!(
            lost > 0 && delivered > 0,
            "{port}: {lost} lost, {delivered} delivered"
        );
        assert_eq!(lost + delivered, COUNT, "{port}: {total}");
    }
}

#[test]
fn a_deleted_interface_ends_the_run_with_totals() {
    require!(skip::lab());
    for port in ["{}", "afxdp:{}"] {
        let pair = Veth::new().create().unwrap();
        let mut process = start(&pair, &["--json", port, "udp", "port", "9"]);
        pour(&pair, &Udp::between(&pair.left, &pair.right).flows(4), 100);
        pair.right.delete().unwrap();
        let finished = process.wait(LIMIT).unwrap();
        assert_eq!(finished.code(), Some(4), "{port}: {}", finished.stderr);
        let (flows, summary) = parse(&finished);
        assert_eq!(sum(&flows, "packets"), 100, "{port}");
        assert_eq!(summary["imbalance"], 0);
        assert!(summary["error"].is_string());
    }
}

/// Once the port is open privileges are dropped, and the probe still works to the end.
#[test]
fn flows_drops_privileges() {
    require!(skip::lab());
    for port in ["{}", "afxdp:{}"] {
        let pair = Veth::new().create().unwrap();
        let mut process = start(
            &pair,
            &["--json", port, "--user", "nobody", "udp", "port", "9"],
        );
        let status = |name: &str| {
            let path = format!("/proc/{}/status", process.pid());
            let text = std::fs::read_to_string(path).unwrap();
            let line = text
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap()
                .to_owned();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        assert_ne!(status("Uid:"), "0");
        assert_eq!(status("CapEff:"), "0000000000000000");
        assert_eq!(status("NoNewPrivs:"), "1");
        pour(&pair, &Udp::between(&pair.left, &pair.right), 100);
        let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
        assert_eq!(finished.code(), Some(0), "{port}: {}", finished.stderr);
        let (_, summary) = parse(&finished);
        assert_eq!(summary["packets_in_records"], 100, "{port}");
        assert_eq!(summary["account"]["total"]["imbalance"], 0);
    }
}

#[test]
fn the_terminal_is_restored() {
    require!(skip::lab());
    require!(skip::program("script", "bsdutils"));
    for (keys, lost) in [("q", false), ("\u{3}", false), ("", true)] {
        let pair = Veth::new().create().unwrap();
        let (program, ifname) = (barewire().unwrap(), &pair.right.ifname);
        let inner = format!(
            "stty rows 24 cols 80; stty -g; '{}' flows {ifname} udp port 9; echo code $?; stty -g",
            program.display()
        );
        let mut command = pair.right.ns.command("script");
        command
            .args(["-qec", &inner, "/dev/null"])
            .stdin(Stdio::piped());
        command.env("TERM", "xterm-256color");
        let mut process = Process::spawn_with_stdin(&mut command).unwrap();
        let mut stdin = process.take_stdin().unwrap();
        // Only differences to the previous screen are drawn, so look for words drawn in one piece.
        process.wait_stdout("destination", LIMIT).unwrap();
        pour(&pair, &Udp::between(&pair.left, &pair.right).flows(3), 300);
        let source = format!("{}:4000", pair.left.ipv4);
        process.wait_stdout(&source, LIMIT).unwrap();
        if lost {
            pair.right.delete().unwrap();
        } else {
            std::io::Write::write_all(&mut stdin, keys.as_bytes()).unwrap();
        }
        let finished = process.wait(LIMIT).unwrap();
        let text = &finished.stdout;
        let modes: Vec<&str> = text
            .lines()
            .filter(|l| l.matches(':').count() > 20)
            .collect();
        assert_eq!(modes.len(), 2, "{text}");
        assert_eq!(modes[0].trim(), modes[1].trim());
        assert!(
            text.contains("\u{1b}[?1049h") && text.contains("\u{1b}[?1049l"),
            "{text}"
        );
        assert!(text.contains("\u{1b}[?25h"), "the cursor is back");
        assert!(
            text.contains(if lost { "code 4" } else { "code 0" }),
            "{text}"
        );
        // The totals are where the view was.
        let (_, after) = text.split_once("\u{1b}[?1049l").unwrap();
        assert!(
            after.contains("delivered = 300 in records + 0 in no flow: adds up"),
            "{after}"
        );
        assert!(after.contains(&source));
    }
}
