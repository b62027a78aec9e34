//! `barewire filter derive`: a flood of hping3 and connections of the kernel, captured by tcpdump.
//! In tcpdump and in `guard`, the derived filters select exactly the flood, and its next run.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::oracle::{TempFile, tcpdump};
use lab::process::{Process, Signal, barewire};
use lab::{Finished, Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of any step; not a measurement.
const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 8080;
const FLOOD_COUNT: usize = 500;
const CONNECTION_COUNT: usize = 20;

/// SYNs of hping3 from spoofed sources, to a port without a listener.
fn flood(pair: &Pair) {
    let (count, port) = (FLOOD_COUNT.to_string(), PORT.to_string());
    let target = pair.right.ipv4.to_string();
    let args = ["-q", "-c", &count, "-i", "u500", "--rand-source"];
    let args = [&args[..], &["-S", "-p", &port, &target]].concat();
    let mut process = pair.left.ns.spawn("hping3", args).unwrap();
    let finished = process.wait(LIMIT).unwrap();
    let sent = format!("{FLOOD_COUNT} packets");
    assert!(finished.stderr.contains(&sent), "{}", finished.stderr);
}

/// Connections between two kernels. They all fit the listener's queue, so none is accepted.
fn connections(pair: &Pair) {
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let _listener = listener.unwrap();
    let connect = || {
        let one = |_| TcpStream::connect_timeout(&address, LIMIT);
        (0..CONNECTION_COUNT)
            .map(one)
            .collect::<Result<Vec<_>, _>>()
    };
    let all = pair.left.ns.run(connect).unwrap();
    assert_eq!(all.unwrap().len(), CONNECTION_COUNT);
}

/// Captures packets to the port with tcpdump during `meanwhile`: at least `count`.
fn captured(pair: &Pair, count: usize, meanwhile: impl FnOnce(&Pair)) -> TempFile {
    let file = TempFile::new(".pcap");
    let right = &pair.right;
    let to_port = format!("tcp dst port {PORT}");
    let capture = tcpdump::Capture::start(&right.ns, &right.ifname, file.path(), &to_port);
    let capture = capture.unwrap();
    meanwhile(pair);
    // tcpdump writes with a delay: a packet has a header of 16 bytes and at least 54 bytes of data.
    let len = 24 + count as u64 * (16 + 54);
    let until = Instant::now() + LIMIT;
    while std::fs::metadata(file.path()).map_or(0, |file| file.len()) < len {
        assert!(Instant::now() < until, "{count} packets were not captured");
        std::thread::sleep(Duration::from_millis(10));
    }
    capture.stop().unwrap();
    file
}

fn derive(flood: &Path, good: Option<&Path>) -> Finished {
    let mut command = Command::new(barewire().unwrap());
    command.args(["filter", "derive", "--json"]).arg(flood);
    if let Some(good) = good {
        command.arg("--except").arg(good);
    }
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait(LIMIT).unwrap()
}

fn json(finished: Finished) -> Value {
    serde_json::from_str(&finished.checked().unwrap().stdout).unwrap()
}

fn text<'a>(derived: &'a Value, name: &str) -> &'a str {
    let text = derived[name].as_str();
    text.unwrap_or_else(|| panic!("{name}: {derived}"))
}

/// Counts the packets that tcpdump selects by an expression.
fn selected(file: &TempFile, expression: &str) -> usize {
    tcpdump::lines(file.path(), &["-t", "-q"], expression)
        .unwrap()
        .len()
}

#[test]
fn derived_filters_select_the_flood_and_no_connection() {
    require!(skip::lab());
    require!(skip::program("hping3", "hping3"));
    require!(skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let flood_file = captured(&pair, FLOOD_COUNT, flood);
    let good_file = captured(&pair, 3 * CONNECTION_COUNT, connections);
    assert_eq!(selected(&flood_file, "tcp"), FLOOD_COUNT);
    let good_count = selected(&good_file, "tcp");
    assert!(good_count >= 2 * CONNECTION_COUNT, "{good_count}");
    let derived = json(derive(flood_file.path(), Some(good_file.path())));
    assert_eq!(derived["flood"]["matched"], FLOOD_COUNT, "{derived}");
    assert_eq!(derived["good"]["packets"], good_count, "{derived}");
    assert_eq!(derived["good"]["matched"], 0, "{derived}");
    for name in ["expression", "short_expression"] {
        let expression = text(&derived, name);
        assert_eq!(
            selected(&flood_file, expression),
            FLOOD_COUNT,
            "{expression}"
        );
        assert_eq!(selected(&good_file, expression), 0, "{expression}");
    }
    assert_eq!(derived["syns"], FLOOD_COUNT);
    assert_eq!(derived["signatures"][0]["syns"], FLOOD_COUNT, "{derived}");
    // The expression and the signature also drop the next run of the flood.
    let signature = format!("p0f:{}", text(&derived["signatures"][0], "signature"));
    for rule in [text(&derived, "expression"), &signature] {
        let right = &pair.right;
        let args = ["guard", &right.ifname, "--json", "--drop", rule];
        let mut guard = right.ns.spawn(barewire().unwrap(), args).unwrap();
        guard.wait_stderr("guarding", LIMIT).unwrap();
        pair.left.wait_up(LIMIT).unwrap();
        pair.right.wait_up(LIMIT).unwrap();
        flood(&pair);
        connections(&pair);
        let finished = guard.stop(Signal::SIGINT, LIMIT).unwrap();
        let stdout = finished.checked().unwrap().stdout;
        let totals: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        assert_eq!(totals["dropped"], FLOOD_COUNT, "{rule}: {totals}");
    }
    // Flood and good packets swapped, and two captures that cannot be separated.
    let derived = json(derive(good_file.path(), Some(flood_file.path())));
    let expression = text(&derived, "expression");
    assert_eq!(selected(&good_file, expression), good_count, "{expression}");
    assert_eq!(selected(&flood_file, expression), 0, "{expression}");
    let finished = derive(flood_file.path(), Some(flood_file.path()));
    assert!(!finished.success());
    assert!(finished.stderr.contains("separates"), "{}", finished.stderr);
    let derived: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(derived["inseparable"][0]["good_packets"], FLOOD_COUNT);
    assert_eq!(derived["expression"], Value::Null);
    let derived = json(derive(flood_file.path(), None));
    assert_eq!(derived["flood"]["matched"], FLOOD_COUNT, "{derived}");
    assert_eq!(derived["short_expression"], Value::Null);
}

#[test]
fn a_large_capture_is_sampled_and_a_pipe_is_read_once() {
    let packets: Vec<Vec<u8>> = (0..12_000u32)
        .map(|number| {
            let mut packet = vec![2; 12];
            packet.extend([8, 0, 0x45, 0, 0, 28, 1, 1, 0, 0, 61, 17, 0, 0, 10, 0]);
            packet.extend(&number.to_be_bytes()[2..]);
            packet.extend([10, 9, 9, 9, 0, 53, 0, 99, 0, 8, 0, 0]);
            packet
        })
        .collect();
    let file = lab::oracle::write_pcap(&packets).unwrap();
    let derived = json(derive(file.path(), None));
    assert_eq!(derived["flood"]["packets"], 12_000, "{derived}");
    assert_eq!(derived["flood"]["sampled"], 10_000, "{derived}");
    assert_eq!(derived["flood"]["matched"], 12_000, "{derived}");
    let mut command = Command::new(barewire().unwrap());
    command.args(["filter", "derive", "-"]);
    command.stdin(Stdio::piped());
    let mut process = Process::spawn_with_stdin(&mut command).unwrap();
    let mut stdin = process.take_stdin().unwrap();
    let mut bytes = std::fs::File::open(file.path()).unwrap();
    std::io::copy(&mut bytes, &mut stdin).unwrap();
    drop(stdin);
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let sampled = "a sample of 10000 of 12000 packets";
    assert!(finished.stderr.contains(sampled), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("unknown part"),
        "{}",
        finished.stderr
    );
    assert!(finished.stdout.contains("udp"), "{}", finished.stdout);
}
