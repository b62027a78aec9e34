//! `barewire filter p0f`: signatures from a live port, and those of capture files against the real
//! p0f.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::oracle::TempFile;
use lab::process::{Process, Signal, barewire};
use lab::{End, Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(60);

const FINGERPRINTS: &str = "\
[tcp:request]
label = g:unix:Linux:recent
sig = *:64:0:*:*,*:mss,sok,ts,nop,ws:df,id+:0
label = g:unix:Linux:recent, IPv6
sig = 6:64:0:*:*,*:mss,sok,ts,nop,ws:flow:0
[tcp:response]
label = s:unix:Linux:answer
sig = *:64:0:*:*,*:mss,sok,ts,nop,ws:df:0
sig = 6:64:0:*:*,*:mss,sok,ts,nop,ws:flow:0
";

fn start(end: &End, port: &str, args: &[&str]) -> Process {
    let args = [&["filter", "p0f", port, "--json"], args].concat();
    let process = end.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    process
}

/// A connection between two kernels, from left to right, that carries data both ways.
fn connect(pair: &Pair, address: SocketAddr) {
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut data = [0; 512];
        stream.read_exact(&mut data).unwrap();
        stream.write_all(&data).unwrap();
    });
    let stream = pair.left.ns.run(|| TcpStream::connect(address)).unwrap();
    let mut stream = stream.unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&[7; 512]).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    answer.join().unwrap();
}

fn lines(stdout: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    stdout.lines().map(parse).collect()
}

#[test]
fn a_connection_between_two_kernels_gives_two_signatures() {
    require!(skip::lab());
    let pair = Veth::new().ipv6().create().unwrap();
    let file = TempFile::new("fingerprints");
    std::fs::write(file.path(), FINGERPRINTS).unwrap();
    let database = file.path().to_str().unwrap();
    let right = &pair.right;
    for address in [
        SocketAddr::from((right.ipv4, 8080)),
        SocketAddr::from((right.ipv6, 8080)),
    ] {
        // It ends on its own after both signatures: nothing else of the connection is received.
        let mut process = start(
            right,
            &right.ifname,
            &["--database", database, "--count", "2"],
        );
        connect(&pair, address);
        let finished = process.wait(LIMIT).unwrap().checked().unwrap();
        let found = lines(&finished.stdout);
        assert_eq!(found.len(), 2, "{}", finished.stdout);
        let (syn, answer) = (&found[0], &found[1]);
        assert_eq!(syn["kind"], "SYN");
        assert_eq!(syn["destination"], address.to_string());
        assert_eq!(answer["kind"], "SYN+ACK");
        assert_eq!(answer["source"], address.to_string());
        assert_eq!(answer["destination"], syn["source"]);
        let label = syn["label"].as_str().unwrap();
        assert!(label.starts_with("g:unix:Linux:recent"), "{found:?}");
        assert_eq!(answer["label"], "s:unix:Linux:answer", "{found:?}");
        assert!(syn["time_ns"].as_u64().is_some());
        let stderr = finished.stderr;
        assert!(stderr.contains("filter: "), "{stderr}");
    }
}

#[test]
fn filter_p0f_ends_on_ctrl_c_and_duration_and_receives_handshakes_only() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let right = &pair.right;
    let mut process = start(right, &right.ifname, &[]);
    // A port for each: programs that other tests start may hold the last listener a moment longer,
    // between fork(2) and execve(2).
    for port in 8081..8084 {
        connect(&pair, SocketAddr::from((right.ipv4, port)));
    }
    while process.stdout().lines().count() < 6 {
        std::thread::sleep(Duration::from_millis(10));
        assert!(process.running().unwrap(), "{}", process.stderr());
    }
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let finished = finished.checked().unwrap();
    assert_eq!(lines(&finished.stdout).len(), 6);
    assert!(
        finished
            .stderr
            .contains("6 SYNs and SYN+ACKs, 0 packets lost"),
        "{}",
        finished.stderr
    );
    let mut process = start(right, &right.ifname, &["--duration", "50ms"]);
    process.wait(LIMIT).unwrap().checked().unwrap();
}

/// Signatures of a capture by kind, client and server.
type Signatures = BTreeMap<(String, SocketAddr, SocketAddr), BTreeSet<String>>;

/// The signatures that p0f prints; `None` for a file that it cannot read.
fn of_p0f(capture: &Path) -> Option<Signatures> {
    let log = TempFile::new("p0f.log");
    let mut command = Command::new("p0f");
    command.arg("-r").arg(capture).arg("-o").arg(log.path());
    let mut process = Process::spawn(&mut command).unwrap();
    if !process.wait(LIMIT).unwrap().success() {
        return None;
    }
    let mut found = Signatures::new();
    let text = std::fs::read(log.path()).unwrap_or_default();
    for line in String::from_utf8_lossy(&text).lines() {
        let (_, fields) = line.split_once("] ").unwrap();
        let field = |name: &str| {
            let mut fields = fields.split('|').filter_map(|field| field.split_once('='));
            fields.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let kind = match field("mod") {
            Some("syn") => "SYN",
            Some("syn+ack") => "SYN+ACK",
            _ => continue,
        };
        let end = |name: &str| {
            let (address, port) = field(name).unwrap().split_once('/').unwrap();
            SocketAddr::new(address.parse().unwrap(), port.parse().unwrap())
        };
        let key = (kind.to_owned(), end("cli"), end("srv"));
        let signature = field("raw_sig").unwrap().to_owned();
        found.entry(key).or_default().insert(signature);
    }
    Some(found)
}

fn of_ours(capture: &Path) -> Signatures {
    let mut command = Command::new(barewire().unwrap());
    command.args(["filter", "p0f", "--json"]).arg(capture);
    let mut process = Process::spawn(&mut command).unwrap();
    // A damaged capture is an error, after everything before the damage was printed.
    let finished = process.wait(LIMIT).unwrap();
    let is_damaged = lab::corpus::is_damaged(capture);
    assert!(finished.success() || is_damaged, "{finished:?}");
    let mut found = Signatures::new();
    for line in lines(&finished.stdout) {
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        let end = |name: &str| text(name).parse::<SocketAddr>().unwrap();
        let (mut client, mut server) = (end("source"), end("destination"));
        if text("kind") == "SYN+ACK" {
            std::mem::swap(&mut client, &mut server);
        }
        let key = (text("kind"), client, server);
        found.entry(key).or_default().insert(text("signature"));
    }
    found
}

/// Whether two signatures differ only as documented: p0f sees one bit of the acknowledgment number
/// for `ack+`, and knows the SYN's segment size when it reads the window of a SYN+ACK.
fn is_documented(kind: &str, theirs: &str, ours: &str) -> bool {
    if theirs == ours.replace(",ack+", "") {
        return true;
    }
    let without_window = |text: &str| {
        let fields = text.split(':').enumerate();
        let fields = fields.map(|(at, field)| match (at, field.split_once(',')) {
            (4, Some((_, scale))) => scale.to_owned(),
            _ => field.to_owned(),
        });
        fields.collect::<Vec<_>>().join(":")
    };
    kind == "SYN+ACK" && without_window(theirs) == without_window(ours)
}

/// p0f guesses the offset of the IP header for link types that it does not know.
const UNKNOWN_LINK: &str = "rewrite_dltuser";

#[test]
fn capture_files_give_the_signatures_that_p0f_prints() {
    require!(skip::program("p0f", "p0f"));
    let corpus = lab::corpus::captures();
    let (mut same, mut documented) = (0, 0);
    for capture in &corpus.files {
        if capture.to_string_lossy().ends_with(UNKNOWN_LINK) {
            continue;
        }
        let Some(theirs) = of_p0f(capture).filter(|theirs| !theirs.is_empty()) else {
            continue;
        };
        let ours = of_ours(capture);
        for (key, theirs) in &theirs {
            let ours = ours.get(key).cloned().unwrap_or_default();
            for signature in theirs {
                let is_known = |ours: &String| is_documented(&key.0, signature, ours);
                match ours.contains(signature) {
                    true => same += 1,
                    false if ours.iter().any(is_known) => documented += 1,
                    false => panic!("{}: {key:?}: {theirs:?} {ours:?}", capture.display()),
                }
            }
        }
    }
    assert!(same >= corpus.at_least(3_000, 5), "{same}");
    assert!(documented <= corpus.at_least(4, 0), "{documented}");
}

/// Where p0f's own fingerprints are.
const DATABASE: &str = "/etc/p0f/p0f.fp";

/// What p0f says of the SYNs of a capture: signature, system or program, and whether it is fuzzy.
type Labels = BTreeSet<(String, Option<String>, bool)>;

fn labels_of_p0f(capture: &Path) -> Labels {
    let log = TempFile::new("p0f.log");
    let mut command = Command::new("p0f");
    command.arg("-r").arg(capture).arg("-o").arg(log.path());
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
    let mut found = Labels::new();
    for line in std::fs::read_to_string(log.path()).unwrap().lines() {
        let (_, fields) = line.split_once("] ").unwrap();
        let fields = fields.split('|').filter_map(|field| field.split_once('='));
        let fields: BTreeMap<&str, &str> = fields.collect();
        if fields.get("mod") != Some(&"syn") {
            continue;
        }
        let system = fields.get("os").or(fields.get("app")).copied();
        let system = system.filter(|system| *system != "???").map(str::to_owned);
        let is_fuzzy = fields["params"].contains("fuzzy");
        found.insert((fields["raw_sig"].to_owned(), system, is_fuzzy));
    }
    found
}

fn our_labels(capture: &Path) -> Labels {
    let mut command = Command::new(barewire().unwrap());
    command
        .args(["filter", "p0f", "--json", "--database", DATABASE])
        .arg(capture);
    let mut process = Process::spawn(&mut command).unwrap();
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let mut found = Labels::new();
    for line in lines(&finished.stdout)
        .iter()
        .filter(|line| line["kind"] == "SYN")
    {
        // `s:unix:Linux:3.x`: p0f prints the last two parts.
        let system = line["label"].as_str().map(|label| {
            let parts: Vec<&str> = label.splitn(4, ':').collect();
            parts[2..].join(" ").trim().to_owned()
        });
        let is_fuzzy = line["fuzzy"].as_bool().unwrap_or(false);
        found.insert((
            line["signature"].as_str().unwrap().to_owned(),
            system,
            is_fuzzy,
        ));
    }
    found
}

/// Packets of a known system with another TTL, flag, identification or ECN bit, and of another
/// window or layout.
fn variants() -> Vec<u8> {
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    file.extend([0; 8]);
    file.extend(65_535u32.to_le_bytes());
    file.extend(101u32.to_le_bytes());
    let linux = [
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0, 1, 3, 3, 7,
    ];
    let windows = [2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2];
    let nmap = [2, 4, 5, 0xb4];
    let unknown = [3, 3, 7, 1, 1, 1, 1, 1];
    let mut number = 0_u8;
    for (options, window) in [
        (&linux[..], 29_200_u16),
        (&windows, 8_192),
        (&nmap, 1_024),
        (&unknown, 555),
    ] {
        for (ttl, df, id, ecn) in [
            (64, true, 1, 0),
            (128, true, 1, 0),
            (200, true, 1, 0),
            (20, true, 1, 0),
            (60, false, 1, 0),
            (60, false, 0, 0),
            (60, true, 0, 0),
            (60, true, 1, 1),
            (128, false, 1, 0),
            (250, true, 1, 2),
        ] {
            number += 1;
            let len = 40 + options.len();
            let mut packet = vec![0x45, ecn, 0, len as u8, 0, id];
            packet.extend([if df { 0x40 } else { 0 }, 0, ttl, 6, 0, 0]);
            packet.extend([10, 0, number, 1, 10, 0, 1, 1]);
            packet.extend([0x9c, number, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0]);
            packet.extend([((20 + options.len()) as u8 / 4) << 4, 2]);
            packet.extend(window.to_be_bytes());
            packet.extend([0; 4]);
            packet.extend(options);
            file.extend(u32::from(number).to_le_bytes());
            file.extend([0; 4]);
            file.extend((len as u32).to_le_bytes().repeat(2));
            file.extend(packet);
        }
    }
    file
}

#[test]
fn fuzzy_matches_in_the_database_are_those_of_p0f() {
    require!(skip::program("p0f", "p0f"));
    let file = TempFile::new("variants.pcap");
    std::fs::write(file.path(), variants()).unwrap();
    let (theirs, ours) = (labels_of_p0f(file.path()), our_labels(file.path()));
    assert_eq!(ours, theirs);
    let of =
        |is: fn(&(String, Option<String>, bool)) -> bool| ours.iter().filter(|l| is(l)).count();
    let counts = [
        of(|label| label.1.is_some() && !label.2),
        of(|label| label.2),
        of(|label| label.1.is_none()),
    ];
    assert!(
        counts.iter().all(|&count| count > 2),
        "{counts:?}: {ours:#?}"
    );
}
