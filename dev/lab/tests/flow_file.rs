//! `barewire flows` on files: records, totals, filters, limits, bad input, memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::oracle::{TempFile, write_pcap};
use lab::packet::{Addresses, Udp};
use lab::process::{Finished, Process, Signal, barewire};
use lab::{require, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

fn run(args: &[&str]) -> Finished {
    let mut command = Command::new(barewire().unwrap());
    command.arg("flows").args(args);
    Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
}

/// Parses the flows and the summary of a run with `--json`.
fn parse(finished: &Finished) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let summary = lines.pop().expect("a summary at least");
    assert_eq!(summary["type"], "summary", "{}", finished.stderr);
    assert!(lines.iter().all(|line| line["type"] == "flow"));
    (lines, summary)
}

/// UDP from `10.0.0.1`, source ports from 4000 on, to port 53 of `10.0.0.2`; and the responses.
fn there_and_back(flow_count: u16) -> (Udp, Udp) {
    let (client, server) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let there = Udp {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        addresses: Addresses::V4(client, server),
        source_port: 4000,
        destination_port: 53,
        flow_count,
        vlan: None,
    };
    let back = Udp {
        addresses: Addresses::V4(server, client),
        source_port: 53,
        destination_port: 4000,
        flow_count: 1,
        ..there.clone()
    };
    (there, back)
}

/// 30 packets over three flows, 7 answers to the first, a millisecond apart; and an ARP request.
fn three_flows() -> TempFile {
    let (there, back) = there_and_back(3);
    let mut packets: Vec<Vec<u8>> = (0..30).map(|n| there.build(n, 100)).collect();
    packets.extend((0..7).map(|n| back.build(n, 200)));
    let mut arp = vec![0xff; 42];
    arp[12..14].copy_from_slice(&[8, 6]);
    arp[14..20].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
    packets.push(arp);
    write_pcap(&packets).unwrap()
}

#[test]
fn records_match_the_file() {
    let file = three_flows();
    let finished = run(&["--json", file.path().to_str().unwrap()]);
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let (flows, summary) = parse(&finished);
    let by_port: BTreeMap<u64, &Value> = flows
        .iter()
        .map(|flow| (flow["src_port"].as_u64().unwrap(), flow))
        .collect();
    assert_eq!(
        by_port.keys().copied().collect::<Vec<_>>(),
        [4000, 4001, 4002]
    );
    for (port, flow) in &by_port {
        assert_eq!(flow["src"], "10.0.0.1");
        assert_eq!(flow["dst"], "10.0.0.2");
        assert_eq!(flow["dst_port"], 53);
        assert_eq!(
            (&flow["protocol"], &flow["ip_version"]),
            (&17.into(), &4.into())
        );
        assert_eq!(flow["packets"], 10);
        assert_eq!(flow["bytes"], 10 * (100 - 14));
        assert_eq!(flow["payload_bytes"], 10 * (100 - 14 - 28));
        assert_eq!(flow["ttl_min"], 64);
        assert_eq!(flow["end_reason"], "forced");
        assert_eq!(
            flow["start"],
            format!("2023-11-14T22:13:20.00{}000000Z", port - 4000)
        );
        let reverse = &flow["reverse"];
        let answers = if *port == 4000 { 7 } else { 0 };
        assert_eq!(reverse["packets"], answers);
        assert_eq!(reverse["bytes"], answers * (200 - 14));
    }
    assert_eq!(
        by_port[&4000]["reverse"]["start"],
        "2023-11-14T22:13:20.030000000Z"
    );
    assert_eq!(by_port[&4000]["end"], "2023-11-14T22:13:20.036000000Z");
    assert_eq!(by_port[&4000]["duration_ns"], 36_000_000);
    assert_eq!(
        (&summary["packets"], &summary["records"]),
        (&38.into(), &3.into())
    );
    assert_eq!(summary["refused"]["not_ip"], 1);
    assert_eq!(summary["packets_in_records"], 37);
    assert_eq!(summary["imbalance"], 0);
    assert_eq!(summary["account"]["total"]["delivered"], 38);
    assert_eq!(summary["account"]["total"]["imbalance"], 0);
    assert_eq!(summary["error"], Value::Null);
}

/// The table for users: largest first, with correct totals.
#[test]
fn tables_list_the_largest_flows_first() {
    let file = three_flows();
    let finished = run(&["--top", "2", file.path().to_str().unwrap()]);
    assert_eq!(finished.code(), Some(0));
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", finished.stdout);
    assert!(lines[0].starts_with("start"));
    assert!(
        lines[1].contains("10.0.0.1:4000  10.0.0.2:53       10     7    860  1302"),
        "{}",
        lines[1]
    );
    assert!(
        finished.stderr.contains("38 packets"),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("in no flow: 1 not IP"));
    assert!(
        finished
            .stderr
            .contains("delivered = 37 in records + 1 in no flow: adds up")
    );
}

/// What a filter rejects is in the account, not in a flow.
#[test]
fn filtered_packets_are_counted() {
    let file = three_flows();
    let path = file.path().to_str().unwrap();
    let finished = run(&["--json", path, "udp", "src", "port", "53"]);
    let (flows, summary) = parse(&finished);
    assert_eq!(flows.len(), 1);
    assert_eq!(
        (&flows[0]["src_port"], &flows[0]["packets"]),
        (&53.into(), &7.into())
    );
    assert_eq!(summary["account"]["total"]["dropped"]["filter"], 31);
    assert_eq!(summary["lost"], 0);
}

/// What was delivered after the count was reached is in the summary.
#[test]
fn a_count_ends_the_run() {
    let file = three_flows();
    let finished = run(&["--json", "-c", "12", file.path().to_str().unwrap()]);
    let (flows, summary) = parse(&finished);
    assert_eq!(summary["packets"], 12);
    let packets: u64 = flows
        .iter()
        .map(|flow| flow["packets"].as_u64().unwrap())
        .sum();
    assert_eq!(packets, 12);
    assert_eq!(summary["imbalance"], 0);
    let delivered = summary["account"]["total"]["delivered"].as_u64().unwrap();
    assert_eq!(summary["unmetered"], delivered - 12);
}

#[test]
fn timeouts_split_flows() {
    let (there, _) = there_and_back(1);
    // A packet per millisecond for five seconds.
    let packets: Vec<Vec<u8>> = (0..5000).map(|n| there.build(n, 60)).collect();
    let file = write_pcap(&packets).unwrap();
    let path = file.path().to_str().unwrap();
    let (flows, _) = parse(&run(&["--json", "--active-timeout", "1s", path]));
    let reasons: Vec<&str> = flows
        .iter()
        .map(|f| f["end_reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons, ["active", "active", "active", "active", "forced"]);
    let packets: Vec<u64> = flows
        .iter()
        .map(|f| f["packets"].as_u64().unwrap())
        .collect();
    assert_eq!(packets, [1001, 1001, 1001, 1001, 996]);
    // Idle timeouts above and below a gap of ten packets.
    let gap: Vec<Vec<u8>> = (0..100).map(|n| there.build(n, 60)).collect();
    let file = write_pcap(&gap).unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes.drain(24 + 50 * 76..24 + 60 * 76);
    std::fs::write(file.path(), bytes).unwrap();
    let path = file.path().to_str().unwrap();
    for (timeout, count) in [("8ms", 2), ("11ms", 1)] {
        let (flows, _) = parse(&run(&["--json", "--idle-timeout", timeout, path]));
        assert_eq!(flows.len(), count, "{timeout}");
        assert_eq!(
            flows[0]["end_reason"],
            if count == 2 { "idle" } else { "forced" }
        );
    }
}

#[test]
fn input_from_a_pipe_and_a_reader_that_closes_its_pipe() {
    let (there, _) = there_and_back(1000);
    let packets: Vec<Vec<u8>> = (0..20_000).map(|n| there.build(n, 60)).collect();
    let file = write_pcap(&packets).unwrap();
    let mut command = Command::new(barewire().unwrap());
    command
        .args(["flows", "--json", "-"])
        .stdin(Stdio::from(File::open(file.path()).unwrap()));
    let finished = Process::spawn_with_stdin(&mut command)
        .unwrap()
        .wait(LIMIT)
        .unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let (flows, summary) = parse(&finished);
    assert_eq!((flows.len(), &summary["packets"]), (1000, &20_000.into()));

    let path = file.path().to_str().unwrap();
    let line = format!(
        "'{}' flows --json '{path}' | head -n 1",
        barewire().unwrap().display()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{line}; exit ${{PIPESTATUS[0]}}")]);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 1);
    assert!(!finished.stderr.contains("panic"), "{}", finished.stderr);
}

#[test]
fn damage_is_reported_after_everything_before_it() {
    let (there, _) = there_and_back(1);
    let packets: Vec<Vec<u8>> = (0..100).map(|n| there.build(n, 60)).collect();
    let file = write_pcap(&packets).unwrap();
    let whole = std::fs::read(file.path()).unwrap();
    let cut = TempFile::new(".pcap");
    std::fs::write(cut.path(), &whole[..24 + 40 * 76 + 30]).unwrap();
    let finished = run(&["--json", cut.path().to_str().unwrap()]);
    assert_eq!(finished.code(), Some(3), "{}", finished.stderr);
    let (flows, summary) = parse(&finished);
    assert_eq!(flows[0]["packets"], 40);
    assert_eq!(summary["imbalance"], 0);
    assert!(
        summary["error"].as_str().unwrap().contains("byte 3064"),
        "{summary}"
    );
    assert!(
        finished.stderr.contains("barewire: cannot read"),
        "{}",
        finished.stderr
    );
}

#[test]
fn bad_input_gives_one_message_and_a_hint() {
    let text = TempFile::new(".pcap");
    std::fs::write(text.path(), b"this is no capture, and long enough to tell").unwrap();
    let text = text.path().to_str().unwrap();
    let failures = [
        (vec!["/nonexistent.pcap"], 1),
        (vec![text], 3),
        (vec!["no-such-interface-0"], 1),
        (vec!["warp:eth0"], 1),
        (vec![text, "--user", "nobody-of-this-name"], 1),
        (vec![text, "--active-timeout", "25h"], 2),
        (vec![text, "--table-size", "3"], 2),
        (vec![text, "--key", "colour"], 2),
        (vec![], 2),
    ];
    for (args, code) in failures {
        let finished = run(&args);
        let reported = &finished.stderr;
        // A file that is not a capture may count as damaged or as unknown.
        let matches = finished.code() == Some(code) || (code == 3 && finished.code() == Some(1));
        assert!(matches, "{args:?}: {:?}\n{reported}", finished.code());
        assert!(
            !reported.contains("panicked") && !reported.is_empty(),
            "{args:?}: {reported}"
        );
        assert_eq!(finished.stdout, "", "{args:?}");
        if code == 1 {
            assert!(reported.starts_with("barewire: "), "{reported}");
        }
    }
}

/// More flows than fit, within the default limit of 256 MiB for one queue.
#[test]
fn memory_stays_below_its_limit() {
    require!(skip::program("prlimit", "util-linux"));
    const FLOWS: u32 = 1_300_000;
    let file = TempFile::new(".pcap");
    let mut out = BufWriter::new(File::create(file.path()).unwrap());
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1];
    for word in header {
        out.write_all(&word.to_le_bytes()).unwrap();
    }
    let mut packet = there_and_back(1).0.build(1, 60);
    for flow in 0..FLOWS {
        // A different source address per flow.
        packet[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
        for word in [1_700_000_000, flow / 2, 60, 60] {
            out.write_all(&word.to_le_bytes()).unwrap();
        }
        out.write_all(&packet).unwrap();
    }
    out.into_inner().unwrap();
    // Through a pipe: a mapped file would count as the process's own memory.
    let line = format!(
        "cat '{}' | prlimit --data=268435456 '{}' flows --top 1 -",
        file.path().display(),
        barewire().unwrap().display()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &line]);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let evicted = FLOWS - (1 << 20);
    for words in [
        format!("{FLOWS} flows in {FLOWS} records"),
        format!("{evicted} resources"),
        format!("was full {evicted} times"),
        format!("delivered = {FLOWS} in records + 0 in no flow: adds up"),
        "memory: 19".to_owned(),
    ] {
        assert!(
            finished.stderr.contains(&words),
            "{words}:\n{}",
            finished.stderr
        );
    }
}

/// `timeout(1)` sends its signal twice at once; that is one request to stop, with totals.
#[test]
fn two_signals_at_once_are_one_request() {
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--json", "-"]).stdin(Stdio::piped());
    let mut process = Process::spawn_with_stdin(&mut command).unwrap();
    let mut stdin = process.take_stdin().unwrap();
    let (there, _) = there_and_back(1);
    let file = write_pcap(&[there.build(0, 60), there.build(1, 60)]).unwrap();
    stdin
        .write_all(&std::fs::read(file.path()).unwrap())
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    process.signal(Signal::SIGTERM).unwrap();
    process.signal(Signal::SIGTERM).unwrap();
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let (flows, summary) = parse(&finished);
    assert_eq!(
        (flows.len(), &summary["packets_in_records"]),
        (1, &2.into())
    );
}

/// A stalled reader of the output does not delay the exit, and the exit code shows that not
/// everything was written.
#[test]
fn a_stalled_reader_does_not_delay_the_end() {
    let (there, _) = there_and_back(10_000);
    let packets: Vec<Vec<u8>> = (0..10_000).map(|n| there.build(n, 60)).collect();
    let file = write_pcap(&packets).unwrap();
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--json"]).arg(file.path());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Records are being written, so signal handlers are installed by now.
    let mut reader = child.stdout.take().unwrap();
    reader.read_exact(&mut [0]).unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, Signal::SIGINT).unwrap();
    let since = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if since.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("it waits for a reader that does not read");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(1), "{status}");
    drop(reader);
}

#[test]
fn a_table_that_is_too_large_is_refused() {
    require!(skip::program("prlimit", "util-linux"));
    let file = write_pcap(&[there_and_back(1).0.build(0, 60)]).unwrap();
    let mut command = Command::new("prlimit");
    command
        .arg("--data=268435456")
        .arg(barewire().unwrap())
        .args(["flows", "--table-size", "4M"])
        .arg(file.path());
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("the flow table needs") && finished.stderr.contains("hint: "),
        "{}",
        finished.stderr
    );
}
