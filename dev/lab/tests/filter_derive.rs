//! `barewire filter derive`: a flood of hping3 and connections of the kernel, captured by tcpdump.
//! In tcpdump and in `guard`, the derived filters select exactly the flood, and its next run.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::corpus;
use lab::oracle::{TempFile, tcpdump, write_pcap};
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
    let file = write_pcap(&packets).unwrap();
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

/// Numbers of good packets among three thousand of a flood: up to one in five.
const BESIDE: [usize; 4] = [0, 1, 150, 750];

/// Derives from a flood that good packets are mixed into; tcpdump counts what both expressions
/// select of the flood alone, and of the good packets.
fn derive_mixed(flood: &[Vec<u8>], good: &[Vec<u8>], beside: usize) -> Value {
    let mut sample = flood.to_vec();
    for at in 0..beside {
        let place = at * sample.len() / beside;
        sample.insert(place, good[at * good.len() / beside].clone());
    }
    let [sample_file, flood_file, good_file] =
        [&sample[..], flood, good].map(|packets| write_pcap(packets).unwrap());
    let derived = json(derive(sample_file.path(), Some(good_file.path())));
    assert_eq!(derived["good"]["matched"], 0, "{derived}");
    for name in ["expression", "short_expression"] {
        let expression = text(&derived, name);
        assert_eq!(selected(&good_file, expression), 0, "{expression}");
        let count = selected(&flood_file, expression);
        assert!(count * 100 >= flood.len() * 99, "{count}: {expression}");
    }
    let matched = selected(&sample_file, text(&derived, "expression"));
    assert_eq!(derived["flood"]["matched"], matched, "{derived}");
    let share = derived["flood"]["share"].as_f64().unwrap();
    let error = share - matched as f64 / sample.len() as f64;
    assert!(error.abs() < 1e-9, "{derived}");
    derived
}

/// SYNs from one network like those of good clients, with any TTL and with those of near clients.
#[test]
fn good_packets_in_the_sample_of_a_flood_do_not_hide_what_separates_it() {
    require!(corpus::large());
    require!(skip::program("tcpdump", "tcpdump"));
    let folder = corpus::large().unwrap().join("failing/guard");
    require!(folder.is_dir().then_some(()).ok_or_else(|| {
        skip::Missing::Machine("failing/guard in the large corpus of captures".into())
    }));
    let read = |name: &str| {
        let (_, packets) = corpus::read(&folder.join(name), 10_000).unwrap();
        Vec::from_iter(packets.into_iter().map(|(bytes, ..)| bytes))
    };
    let (mut flood, good) = (read("ttl35-pure.pcap"), read("derive-good.pcap"));
    assert_eq!((flood.len(), good.len()), (3_000, 2_264));
    let with_one = json(derive(
        &folder.join("ttl35-1good.pcap"),
        Some(&folder.join("derive-good.pcap")),
    ));
    assert_eq!(with_one["flood"]["matched"], 3_000, "{with_one}");
    assert_eq!(with_one["good"]["matched"], 0, "{with_one}");
    for is_near in [false, true] {
        for (number, packet) in flood.iter_mut().enumerate().filter(|_| is_near) {
            packet[22] = 57 + (number * 5 % 8) as u8;
        }
        for beside in BESIDE {
            let derived = derive_mixed(&flood, &good, beside);
            let short = text(&derived, "short_expression");
            assert!(short.contains("src net 100.64.0.0/18"), "{beside}: {short}");
        }
    }
}

/// Datagrams with one payload from everywhere to any port, beside answers of name servers.
#[test]
fn a_payload_is_found_in_a_sample_with_good_packets() {
    require!(skip::program("tcpdump", "tcpdump"));
    let mut state = 0x5eed_u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u32
    };
    let mut datagram = |is_flood: bool| {
        let source = match is_flood {
            true => random() | 1,
            false => 0x0a09_0000 | (random() % 16),
        };
        let ports = match is_flood {
            true => random() << 16 | random() & 0xffff,
            false => (53 << 16) | (1_024 + random() % 60_000),
        };
        let mut payload = (random() as u16).to_be_bytes().to_vec();
        match is_flood {
            true => payload.extend(b"\xff\xffgetstatus\n"),
            false => payload.extend([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0, random() as u8, 0]),
        }
        let mut packet = vec![2; 12];
        packet.extend([8, 0, 0x45, 0, 0, 28 + payload.len() as u8]);
        packet.extend((random() as u16).to_be_bytes());
        packet.extend([0, 0, 40 + (random() % 80) as u8, 17, 0, 0]);
        packet.extend(source.to_be_bytes());
        packet.extend([192, 0, 2, 1]);
        packet.extend(ports.to_be_bytes());
        packet.extend([0, 8 + payload.len() as u8, 0, 0]);
        packet.extend(payload);
        packet
    };
    let flood: Vec<_> = (0..3_000).map(|_| datagram(true)).collect();
    let good: Vec<_> = (0..1_000).map(|_| datagram(false)).collect();
    for beside in BESIDE {
        let derived = derive_mixed(&flood, &good, beside);
        let expression = text(&derived, "expression");
        // "gets", and "tatu" behind it.
        assert!(
            expression.contains("udp[12:4] = 0x67657473"),
            "{expression}"
        );
        assert!(!expression.contains("src host"), "{expression}");
    }
}
