//! `barewire guard` on a veth pair: real packets, a real connection, and detaching.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use lab::oracle::TempFile;
use lab::packet::pour;
use lab::process::{Process, Signal, barewire};
use lab::random::Random;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(60);

/// Matches the packets that `pour` sends.
const FLOOD: &str = "udp dst port 9";

/// Starts a guard at the right end, and waits until the program is attached.
fn guard(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["guard", &pair.right.ifname, "--json"], args].concat();
    let process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("guarding", LIMIT).unwrap();
    // After a program is attached, the carrier takes a moment (veth turns NAPI on).
    pair.left.wait_up(LIMIT).unwrap();
    pair.right.wait_up(LIMIT).unwrap();
    process
}

/// Stops it as Ctrl-C does, and checks that every packet is accounted for.
fn stop(mut process: Process) -> Value {
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let stdout = finished.checked().unwrap().stdout;
    let line = stdout.lines().last().unwrap_or_default();
    let totals: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    assert_eq!(totals["type"], "totals", "{totals}");
    assert_eq!(totals["imbalance"], 0, "{totals}");
    totals
}

/// Waits for a line of JSON with at least `count` packets seen, and returns it.
fn seen(process: &Process, count: u64) -> Value {
    reported(process, "seen", count)
}

/// Waits for a line of JSON with at least `count` in this field, and returns it.
pub fn reported(process: &Process, field: &str, count: u64) -> Value {
    for _ in 0..3_000 {
        let stdout = process.stdout();
        let mut lines = stdout.split_inclusive('\n').filter(|l| l.ends_with('\n'));
        let last: Option<Value> = lines.next_back().and_then(|l| serde_json::from_str(l).ok());
        if let Some(line) = last
            && line[field].as_u64() >= Some(count)
        {
            return line;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{field} did not reach {count}: {}", process.stdout());
}

/// A connection through the kernel from left to right that carries some data both ways.
fn connect(pair: &Pair) {
    let address = SocketAddr::from((pair.right.ipv4, 8080));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut data = [0; 4096];
        stream.read_exact(&mut data).unwrap();
        stream.write_all(&data).unwrap();
    });
    let stream = pair.left.ns.run(|| TcpStream::connect(address)).unwrap();
    let mut stream = stream.unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&[7; 4096]).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert_eq!(back, [7; 4096]);
    answer.join().unwrap();
}

#[test]
fn a_flood_is_dropped_to_the_last_packet_and_connections_complete() {
    require!(skip::lab());
    for (mode, word) in [("native", "xdp"), ("generic", "xdpgeneric")] {
        let pair = Veth::new().create().unwrap();
        let process = guard(&pair, &["--mode", mode, "--drop", FLOOD, "--count", "tcp"]);
        assert_eq!(pair.right.xdp().unwrap().unwrap().1, word);
        pour(&pair, 64, 5_000);
        connect(&pair);
        let totals = stop(process);
        assert_eq!(totals["dropped"], 5_000, "{totals}");
        assert_eq!(totals["mode"], mode);
        // In the order of the program: rules that count come before rules that drop.
        assert_eq!(totals["rules"][1]["dropped_bytes"], 300_000, "{totals}");
        let tcp = &totals["rules"][0]["packets"];
        assert!(tcp.as_u64().unwrap() >= 5, "{totals}");
        assert_eq!(&totals["unmatched"], tcp, "{totals}");
        assert_eq!(pair.right.xdp().unwrap(), None);
    }
}

#[test]
fn equal_rules_get_distinct_names_and_rows() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let args = ["--count", FLOOD, "--drop", FLOOD, "--drop", FLOOD];
    let process = guard(&pair, &args);
    pour(&pair, 4, 100);
    let totals = stop(process);
    let row = |at: usize| {
        let rule = &totals["rules"][at];
        (rule["name"].as_str().unwrap(), rule["packets"].as_u64())
    };
    assert_eq!(row(0), (FLOOD, Some(100)), "{totals}");
    assert_eq!(row(1), (&*format!("{FLOOD} (2)"), Some(100)), "{totals}");
    assert_eq!(row(2), (&*format!("{FLOOD} (3)"), Some(0)), "{totals}");
}

#[test]
fn a_dry_run_counts_and_drops_nothing() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let process = guard(&pair, &["--dry-run", "--drop", "udp or tcp"]);
    pour(&pair, 4, 100);
    connect(&pair);
    let totals = stop(process);
    assert_eq!(totals["dry_run"], true);
    assert!(totals["dropped"].as_u64().unwrap() >= 105, "{totals}");
}

#[test]
fn kill_9_leaves_nothing_attached() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut process = guard(&pair, &["--drop", FLOOD]);
    assert!(pair.right.xdp().unwrap().is_some());
    process.kill().unwrap();
    assert_eq!(pair.right.xdp().unwrap(), None);
}

/// From its first instruction until it has run for a while, at every hook.
#[test]
fn kill_9_at_random_moments_leaves_nothing() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let samples = TempFile::new(".pcapng");
    let samples_path = samples.path().to_str().unwrap();
    let setups: [&[&str]; 5] = [
        &["--drop", "udp", "--sample-drops", samples_path],
        &["--mode", "generic", "--drop", "udp", "--detect", "propose"],
        &[
            "--steer",
            "udp",
            "--user-drop",
            "udp",
            "--give-back",
            "live",
        ],
        &["--mode", "generic", "--steer", "udp", "--give-back", "tap"],
        &["--hook", "tc", "--limit", "1/s udp"],
    ];
    let to = (pair.right.ipv4, 9);
    let receiver = pair.right.ns.run(|| UdpSocket::bind(to)).unwrap().unwrap();
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    let mut random = Random::seeded("moments of kill -9");
    for round in 0..20 {
        let args = [&["guard", &pair.right.ifname], setups[round % 5]].concat();
        let mut process = pair.right.ns.spawn(barewire().unwrap(), &args).unwrap();
        let wait_ms = random.below(800);
        std::thread::sleep(Duration::from_millis(wait_ms));
        let killed = process.kill().unwrap();
        let what = format!("{args:?} after {wait_ms} ms");
        let signal = killed.signal();
        assert_eq!(signal, Some(Signal::SIGKILL), "{what}: {killed:?}");
        assert_eq!(pair.right.xdp().unwrap(), None, "{what}");
        let links = pair.right.ns.ip(["link"]).unwrap();
        assert!(!links.contains("bw-right0"), "{what}: {links}");
        // Nor is a program at tc's ingress, whose limit would soon drop these.
        pair.left.wait_up(LIMIT).unwrap();
        pair.right.wait_up(LIMIT).unwrap();
        pour(&pair, 1, 3);
        for at in 0..3 {
            let received = receiver.recv(&mut [0; 64]);
            assert!(received.is_ok(), "{what}: packet {at} has not arrived");
        }
    }
}

#[test]
fn another_program_on_the_interface_is_left_alone() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let first = guard(&pair, &["--drop", FLOOD]);
    let held = pair.right.xdp().unwrap();
    let args = ["guard", &pair.right.ifname, "--drop", "icmp"];
    let mut second = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    let finished = second.wait(LIMIT).unwrap();
    assert!(!finished.success());
    assert!(finished.stderr.contains("bw_guard"), "{}", finished.stderr);
    assert_eq!(pair.right.xdp().unwrap(), held);
    pour(&pair, 1, 10);
    assert_eq!(stop(first)["dropped"], 10);
}

fn write(path: &Path, rules: &str) {
    std::fs::write(path, rules).unwrap();
}

#[test]
fn a_reload_loses_no_count_and_a_bad_file_changes_nothing() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let file = TempFile::new(".toml");
    let rule = format!("[[rule]]\nname = \"flood\"\nmatch = \"{FLOOD}\"\nverdict = \"drop\"\n");
    write(file.path(), &rule);
    let process = guard(&pair, &["--rules", file.path().to_str().unwrap()]);
    pour(&pair, 4, 1_000);
    write(
        file.path(),
        "[[rule]]\nmatch = \"udp prt 9\"\nverdict = \"drop\"\n",
    );
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("line 2", LIMIT).unwrap();
    pour(&pair, 4, 1_000);
    let more = "[[rule]]\nname = \"all\"\nmatch = \"udp\"\nverdict = \"count\"\npriority = -1\n";
    write(file.path(), &format!("{rule}{more}"));
    process.signal(Signal::SIGHUP).unwrap();
    // While packets arrive.
    pour(&pair, 4, 10_000);
    process.wait_stderr("reloaded: 2 rules", LIMIT).unwrap();
    pour(&pair, 4, 1_000);
    seen(&process, 13_000);
    let totals = stop(process);
    assert_eq!(totals["rules"][0]["name"], "all", "{totals}");
    assert_eq!(totals["rules"][1]["dropped"], 13_000, "{totals}");
    assert!(
        totals["rules"][0]["packets"].as_u64().unwrap() >= 1_000,
        "{totals}"
    );
}

#[test]
fn a_rule_expires_and_the_others_stay() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let file = TempFile::new(".toml");
    let rules = format!(
        "[[rule]]\nname = \"short\"\nmatch = \"{FLOOD}\"\nverdict = \"drop\"\nexpires = \"1s\"\n\
         [[rule]]\nname = \"long\"\nmatch = \"udp\"\nverdict = \"drop\"\n"
    );
    write(file.path(), &rules);
    let process = guard(&pair, &["--rules", file.path().to_str().unwrap()]);
    process.wait_stderr("\"short\" has expired", LIMIT).unwrap();
    pour(&pair, 1, 50);
    seen(&process, 50);
    let totals = stop(process);
    assert_eq!(totals["rules"][0]["expired"], true);
    assert_eq!(totals["rules"][1]["dropped"], 50, "{totals}");
}

#[test]
fn a_rule_file_is_checked_without_an_interface() {
    require!(skip::lab());
    let file = TempFile::new(".toml");
    write(
        file.path(),
        "# one\n[[rule]]\nmatch = \"udp\"\nverdict = \"dorp\"\n",
    );
    let args = ["guard", "check", file.path().to_str().unwrap()];
    let mut process = Process::spawn(std::process::Command::new(barewire().unwrap()).args(args));
    let finished = process.as_mut().unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(2));
    assert!(finished.stderr.contains("line 4"), "{}", finished.stderr);
    write(
        file.path(),
        "[[rule]]\nmatch = \"udp\"\nverdict = \"drop\"\n",
    );
    let mut process = Process::spawn(std::process::Command::new(barewire().unwrap()).args(args));
    let finished = process.as_mut().unwrap().wait(LIMIT).unwrap();
    let stdout = finished.checked().unwrap().stdout;
    assert!(stdout.contains("1 rule, all valid"), "{stdout}");
    let args_json = [&args[..], &["--json"]].concat();
    let mut command = std::process::Command::new(barewire().unwrap());
    let finished = Process::spawn(command.args(args_json)).unwrap().wait(LIMIT);
    let stdout = finished.unwrap().checked().unwrap().stdout;
    let value: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(value["rules"][0]["verdict"], "drop", "{value}");
    assert_eq!(value["rules"][0]["match"], "udp", "{value}");
    assert!(value["instructions"].as_u64() > Some(10), "{value}");
    // Each list is valid, but there are more than a program can hold.
    let lists = (0..65).map(|i| {
        format!("[[rule]]\nname = \"{i}\"\nsources = [\"10.0.{i}.0/24\"]\nverdict = \"drop\"\n")
    });
    write(file.path(), &lists.collect::<String>());
    let mut process = Process::spawn(std::process::Command::new(barewire().unwrap()).args(args));
    let finished = process.as_mut().unwrap().wait(LIMIT).unwrap();
    assert!(!finished.success());
    assert!(
        finished.stderr.contains("65 prefix lists"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_reload_swaps_prefix_lists_and_keeps_the_counts() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (list, rules) = (TempFile::new(".txt"), TempFile::new(".toml"));
    // `pour` sends from the left end.
    let net = |byte: u8| format!("{byte}.0.0.0/8\n");
    let source = pair.left.ipv4.octets()[0];
    write(list.path(), &net(source));
    let text = format!(
        "[[rule]]\nname = \"listed\"\nsources = \"{}\"\nmatch = \"{FLOOD}\"\nverdict = \"drop\"\n",
        list.path().display()
    );
    write(rules.path(), &text);
    let process = guard(&pair, &["--rules", rules.path().to_str().unwrap()]);
    pour(&pair, 1, 1_000);
    // Both lists contain the source, so no packet may pass while one replaces the other.
    write(list.path(), &format!("{}{}", net(source), net(source ^ 1)));
    process.signal(Signal::SIGHUP).unwrap();
    pour(&pair, 1, 10_000);
    process.wait_stderr("reloaded: 1 rule", LIMIT).unwrap();
    write(list.path(), "10.0.0.0/8\n10.0.0.1/8\n");
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("line 2", LIMIT).unwrap();
    pour(&pair, 1, 1_000);
    connect(&pair);
    let totals = stop(process);
    assert_eq!(totals["rules"][0]["dropped"], 12_000, "{totals}");
}

#[test]
fn allowed_sources_pass_even_if_denied() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let left = pair.left.ipv4.to_string();
    let args = ["--deny", "0.0.0.0/0,::/0", "--allow", &left];
    let process = guard(&pair, &args);
    connect(&pair);
    let totals = stop(process);
    assert_eq!(totals["rules"][0]["name"], format!("allow {left}"));
    assert!(
        totals["rules"][0]["packets"].as_u64() >= Some(5),
        "{totals}"
    );
}

#[test]
fn a_source_keeps_its_limit_across_a_reload() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let rules = TempFile::new(".toml");
    let text = "[[rule]]\nname = \"own\"\nmatch = \"udp or tcp\"\nverdict = \"limit\"\n\
                source_rate = \"1/s\"\nsource_burst = 200\n";
    write(rules.path(), text);
    let process = guard(&pair, &["--rules", rules.path().to_str().unwrap()]);
    // From a single source: the burst passes, and little more.
    pour(&pair, 1, 5_000);
    // A reload does not refill the bucket.
    let more = "[[rule]]\nname = \"none\"\nmatch = \"icmp\"\nverdict = \"count\"\n";
    write(rules.path(), &format!("{more}{text}"));
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("reloaded: 2 rules", LIMIT).unwrap();
    pour(&pair, 1, 5_000);
    let totals = stop(process);
    let own = &totals["rules"][1];
    let passed = own["packets"].as_u64().unwrap() - own["dropped"].as_u64().unwrap();
    assert!((200..380).contains(&passed), "{totals}");
}
