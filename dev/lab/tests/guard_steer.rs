//! `barewire guard --steer` on a veth pair: packets of a class pass through workers in user space,
//! which drop or return them; connections complete, and every packet is accounted for.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use lab::oracle::TempFile;
use lab::packet::{Raw, Udp, number_of, pour};
use lab::process::{Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use super::guard_live::reported;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(60);

/// The ways back, and modes.
pub const WAYS: [(&str, &str); 4] = [
    ("native", "live"),
    ("generic", "live"),
    ("native", "tap"),
    ("generic", "tap"),
];

pub fn guard(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["guard", &pair.right.ifname, "--json"], args].concat();
    let process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process
        .wait_stderr("steered packets return", LIMIT)
        .unwrap();
    pair.left.wait_up(LIMIT).unwrap();
    pair.right.wait_up(LIMIT).unwrap();
    process
}

/// Stops it as Ctrl-C does, and checks that every packet is accounted for.
pub fn stop(mut process: Process) -> Value {
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let stdout = finished.checked().unwrap().stdout;
    let line = stdout.lines().last().unwrap_or_default();
    let totals: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    assert_eq!(totals["type"], "totals", "{totals}");
    assert_adds_up(&totals);
    assert_eq!(totals["steer"]["waiting"], 0, "{totals}");
    totals
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

pub fn assert_adds_up(totals: &Value) {
    assert_eq!(totals["imbalance"], 0, "{totals}");
    let ends = ["passed", "dropped", "answered", "steered"];
    let sum: u64 = ends.iter().map(|end| number(&totals[end])).sum();
    assert_eq!(number(&totals["seen"]), sum, "{totals}");
    let steer = &totals["steer"];
    assert_eq!(steer["imbalance"], 0, "{totals}");
    let ends = ["given_back", "dropped", "lost", "failed", "waiting"];
    let sum: u64 = ends.iter().map(|end| number(&steer[end])).sum();
    assert_eq!(number(&totals["steered"]), sum, "{totals}");
}

/// A connection through the kernel from left to right that sends `data` and gets its length back.
pub fn transfer(pair: &Pair, data: &[u8]) {
    transfer_to(pair, SocketAddr::from((pair.right.ipv4, 8080)), data);
}

/// As [`transfer`], to this address of the right end.
pub fn transfer_to(pair: &Pair, address: SocketAddr, data: &[u8]) {
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = Vec::new();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.read_to_end(&mut received).unwrap();
        stream.write_all(&received.len().to_be_bytes()).unwrap();
        received
    });
    let connect = || TcpStream::connect_timeout(&address, LIMIT);
    let mut stream = pair.left.ns.run(connect).unwrap().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream.write_all(data).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut len = [0; 8];
    stream.read_exact(&mut len).unwrap();
    assert_eq!(usize::from_be_bytes(len), data.len());
    assert!(reader.join().unwrap() == data, "other bytes than were sent");
}

pub fn random_bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}

#[test]
fn steered_connections_complete_and_dropped_packets_do_not_arrive() {
    require!(skip::lab());
    let data = random_bytes(1 << 20);
    for (mode, way) in WAYS {
        // As users have it: the peer leaves checksums and segments to the card.
        for offloads in [true, false] {
            let veth = match offloads {
                true => Veth::new().offloads().gro(),
                false => Veth::new(),
            };
            let pair = veth.create().unwrap();
            let args = ["--mode", mode, "--give-back", way, "--steer", "tcp or udp"];
            let args = [&args[..], &["--user-drop", "udp dst port 9"]].concat();
            let process = guard(&pair, &args);
            let port = (pair.right.ipv4, 9);
            let socket = pair
                .right
                .ns
                .run(|| UdpSocket::bind(port))
                .unwrap()
                .unwrap();
            pour(&pair, 16, 500);
            transfer(&pair, &data);
            let totals = stop(process);
            let steer = &totals["steer"];
            assert_eq!(totals["mode"], mode);
            let name = if way == "tap" { "bw-right0" } else { "live" };
            assert_eq!(steer["give_back"], name, "{totals}");
            assert_eq!(steer["rules"][0]["dropped"], 500, "{totals}");
            assert_eq!(steer["dropped"], 500, "{totals}");
            assert_eq!((&steer["lost"], &steer["failed"]), (&0.into(), &0.into()));
            assert!(number(&steer["given_back"]) > 10, "{totals}");
            socket.set_nonblocking(true).unwrap();
            assert!(
                socket.recv(&mut [0; 64]).is_err(),
                "a dropped packet arrived"
            );
            assert_eq!(pair.right.xdp().unwrap(), None);
            let links = pair.right.ns.ip(["link"]).unwrap();
            assert!(!links.contains("bw-right0"), "{links}");
        }
    }
}

#[test]
fn returned_packets_arrive_once_in_order_and_on_the_interface() {
    require!(skip::lab());
    const COUNT: u64 = 3_000;
    for (mode, way) in WAYS {
        let pair = Veth::new().create().unwrap();
        let process = guard(
            &pair,
            &[
                "--mode",
                mode,
                "--give-back",
                way,
                "--steer",
                "udp dst port 9",
            ],
        );
        let on = if way == "tap" {
            "bw-right0"
        } else {
            &pair.right.ifname
        };
        let receiver = pair.right.ns.run(|| Raw::open(on)).unwrap().unwrap();
        pour(&pair, 1, COUNT);
        // Not steered: these pass without a worker.
        let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
        let sender = sender.unwrap().unwrap();
        let udp = Udp::between(&pair.left, &pair.right);
        for expected in 0..COUNT {
            let packet = receiver.receive(LIMIT).unwrap();
            let packet = packet.unwrap_or_else(|| panic!("{mode} {way}: {expected} is missing"));
            assert_eq!(number_of(&packet).unwrap(), expected, "{mode} {way}");
        }
        let mut other = udp.build(COUNT, 60);
        // The destination port of UDP.
        other[36..38].copy_from_slice(&[0, 10]);
        other[40..42].fill(0);
        sender.send(&other).unwrap();
        reported(&process, "passed", 1);
        let totals = stop(process);
        assert_eq!(totals["steered"], COUNT, "{totals}");
        assert_eq!(totals["steer"]["given_back"], COUNT, "{totals}");
        // Seen once each: a program in generic mode does not steer a returned packet again.
        assert_eq!(totals["seen"], COUNT + 1, "{totals}");
    }
}

#[test]
fn hping3_is_dropped_in_user_space_beside_a_connection_of_the_same_class() {
    require!(skip::lab(), skip::program("hping3", "hping3"));
    for mode in ["native", "generic"] {
        let pair = Veth::new().create().unwrap();
        let args = ["--mode", mode, "--steer", "tcp dst port 8080"];
        let flood = "tcp[tcpflags] == tcp-syn and tcp[12] & 0xf0 = 0x50";
        let process = guard(&pair, &[&args[..], &["--user-drop", flood]].concat());
        let to = pair.right.ipv4.to_string();
        let arguments = ["-q", "-S", "-p", "8080", "-i", "u1000", "-c", "300", &to];
        let mut hping = pair.left.ns.spawn("hping3", arguments).unwrap();
        transfer(&pair, &random_bytes(200_000));
        hping.wait(LIMIT).unwrap();
        reported(&process, "steered", 300);
        let totals = stop(process);
        assert_eq!(totals["steer"]["dropped"], 300, "{totals}");
        assert_eq!(totals["steer"]["lost"], 0, "{totals}");
    }
}

#[test]
fn packets_return_without_privileges() {
    require!(skip::lab());
    for way in ["live", "tap"] {
        let pair = Veth::new().create().unwrap();
        let args = ["--user", "nobody", "--give-back", way, "--steer", "tcp"];
        let process = guard(&pair, &args);
        transfer(&pair, &random_bytes(100_000));
        let status = format!("/proc/{}/status", process.pid());
        let status = std::fs::read_to_string(status).unwrap();
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
        let totals = stop(process);
        assert!(number(&totals["steer"]["given_back"]) > 10, "{totals}");
    }
}

#[test]
fn kill_9_leaves_nothing_attached_and_packets_pass() {
    require!(skip::lab());
    for way in ["live", "tap"] {
        let pair = Veth::new().create().unwrap();
        let args = ["--give-back", way, "--on-failure", "drop", "--steer", "tcp"];
        let mut process = guard(&pair, &[&args[..], &["--user-drop", "tcp"]].concat());
        process.kill().unwrap();
        assert_eq!(pair.right.xdp().unwrap(), None);
        let links = pair.right.ns.ip(["link"]).unwrap();
        assert!(!links.contains("bw-right0"), "{links}");
        transfer(&pair, b"after the guard");
    }
}

/// A mount namespace with a BPF file system of its own, as long as this process runs.
fn bpf_mount(pair: &Pair) -> Process {
    let script = "mount -t bpf bpf /sys/fs/bpf && echo mounted >&2 && exec sleep 600";
    let args = ["-m", "sh", "-c", script];
    let holder = pair.right.ns.spawn("unshare", args).unwrap();
    holder.wait_stderr("mounted", LIMIT).unwrap();
    holder
}

/// Occupies the name of the link, as any user can do.
fn take_name(pair: &Pair, holder: &Process) {
    let name = &pair.right.ifname;
    let script = format!(
        "ln -s nothing /sys/fs/bpf/bwguard-$(stat -Lc %i /proc/self/ns/net)-link-{name} && \
         echo taken >&2"
    );
    let pid = holder.pid().to_string();
    let args = ["-t", &pid, "-m", "sh", "-c", &script];
    let process = pair.right.ns.spawn("nsenter", args).unwrap();
    process.wait_stderr("taken", LIMIT).unwrap();
}

#[test]
fn a_kept_program_stays_after_kill_9_until_the_next_start_or_undo() {
    require!(skip::lab());
    for is_undone in [false, true] {
        let pair = Veth::new().create().unwrap();
        let holder = bpf_mount(&pair);
        take_name(&pair, &holder);
        let pid = holder.pid().to_string();
        let program = barewire().unwrap().display().to_string();
        let start = |args: &[&str]| {
            let start = ["-t", &pid, "-m", &program, "guard", &pair.right.ifname];
            pair.right
                .ns
                .spawn("nsenter", [&start, args].concat())
                .unwrap()
        };
        let guard = || {
            let args = ["--json", "--keep", "--on-failure", "drop"];
            let process = start(&[&args[..], &["--steer", "udp dst port 9"]].concat());
            process
                .wait_stderr("steered packets return", LIMIT)
                .unwrap();
            pair.left.wait_up(LIMIT).unwrap();
            pair.right.wait_up(LIMIT).unwrap();
            process
        };
        let mut process = guard();
        let text = process.stderr();
        assert!(text.contains("not a file that root has created"), "{text}");
        pour(&pair, 1, 10);
        reported(&process, "steered", 10);
        process.kill().unwrap();
        assert!(pair.right.xdp().unwrap().is_some());
        let to = (pair.right.ipv4, 9);
        let receiver = pair.right.ns.run(|| UdpSocket::bind(to)).unwrap().unwrap();
        receiver.set_nonblocking(true).unwrap();
        pour(&pair, 1, 100);
        assert!(receiver.recv(&mut [0; 64]).is_err(), "{is_undone}");
        // All others still pass.
        transfer(&pair, b"beside the steered class");
        let undo = || {
            let mut process = start(&["--undo"]);
            process.wait(LIMIT).unwrap().checked().unwrap().stderr
        };
        if is_undone {
            let text = undo();
            assert!(text.contains("detached the program"), "{text}");
        } else {
            let process = guard();
            let text = process.stderr();
            assert!(text.contains("an earlier run had left"), "{text}");
            pour(&pair, 1, 10);
            let totals = stop(process);
            assert_eq!(totals["steer"]["given_back"], 10, "{totals}");
        }
        assert_eq!(pair.right.xdp().unwrap(), None);
        let text = undo();
        assert!(text.contains("no program was left"), "{text}");
        pour(&pair, 1, 10);
        receiver.set_nonblocking(false).unwrap();
        receiver.set_read_timeout(Some(LIMIT)).unwrap();
        receiver.recv(&mut [0; 64]).unwrap();
    }
}

/// Without the TAP interface no packet can be returned, and the worker ends.
#[test]
fn packets_of_an_ended_worker_pass_or_are_dropped_as_configured() {
    require!(skip::lab());
    for verdict in ["pass", "drop"] {
        let pair = Veth::new().create().unwrap();
        let args = ["--give-back", "tap", "--on-failure", verdict];
        let args = [&args[..], &["--steer", "udp dst port 9"]].concat();
        let process = guard(&pair, &args);
        pair.right
            .ns
            .ip(["link", "set", "bw-right0", "down"])
            .unwrap();
        let has_ended = || process.stderr().contains("the worker of queue 0 has ended");
        let mut sent = 0;
        while !has_ended() && sent < 6_000 {
            pour(&pair, 1, 1);
            sent += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(has_ended(), "{}", process.stderr());
        let port = (pair.right.ipv4, 9);
        let socket = pair
            .right
            .ns
            .run(|| UdpSocket::bind(port))
            .unwrap()
            .unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let before = number(&reported(&process, "seen", sent)["dropped"]);
        pour(&pair, 1, 100);
        let totals = stop(process);
        let (passed, dropped) = (number(&totals["rules"][0]["packets"]), &totals["dropped"]);
        assert_eq!(passed, sent + 100, "{totals}");
        match verdict {
            "pass" => {
                assert_eq!(*dropped, 0, "{totals}");
                for _ in 0..100 {
                    socket.recv(&mut [0; 64]).unwrap();
                }
            }
            _ => {
                assert_eq!(number(dropped) - before, 100, "{totals}");
                socket.set_nonblocking(true).unwrap();
                assert!(socket.recv(&mut [0; 64]).is_err());
            }
        }
        assert!(number(&totals["steer"]["failed"]) > 0, "{totals}");
    }
}

#[test]
fn rules_in_user_space_are_reloaded_and_may_be_thousands() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let file = TempFile::new(".toml");
    let steer = "[[rule]]\nname = \"udp\"\nmatch = \"udp\"\nverdict = \"user\"\n";
    let count = "[[user]]\nname = \"all\"\nmatch = \"udp\"\nverdict = \"count\"\n";
    let many: String = (0..2_000)
        .map(|at| {
            let what = format!("payload contains \\\"flood {at:05}\\\" within 40");
            format!("[[user]]\nname = \"r{at}\"\nmatch = \"{what}\"\nverdict = \"drop\"\n")
        })
        .collect();
    let write = |text: &str| std::fs::write(file.path(), text).unwrap();
    write(&format!("{steer}{count}"));
    let process = guard(&pair, &["--rules", file.path().to_str().unwrap()]);
    pour(&pair, 1, 100);
    // Refused in user space: the old rules stay.
    write(&format!(
        "{steer}[[user]]\nmatch = \"tcp\"\nverdict = \"challenge\"\n"
    ));
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("line 5", LIMIT).unwrap();
    pour(&pair, 1, 100);
    write(&format!("{steer}{count}{many}"));
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("reloaded: 2002 rules", LIMIT).unwrap();
    let to = (pair.right.ipv4, 9);
    let receiver = pair.right.ns.run(|| UdpSocket::bind(to)).unwrap().unwrap();
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    let from = (pair.left.ipv4, 0);
    let sender = pair.left.ns.run(|| UdpSocket::bind(from)).unwrap().unwrap();
    for text in ["a flood 00007", "good", "a flood 01999", "flood 02000"] {
        sender.send_to(text.as_bytes(), to).unwrap();
    }
    let mut buffer = [0; 64];
    for expected in ["good", "flood 02000"] {
        let len = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], expected.as_bytes());
    }
    let totals = stop(process);
    let rules = totals["steer"]["rules"].as_array().unwrap();
    let packets = |name: &str| {
        let rule = rules.iter().find(|rule| rule["name"] == name);
        number(&rule.unwrap_or_else(|| panic!("{name}: {totals}"))["packets"])
    };
    assert_eq!(
        (packets("all"), packets("r7"), packets("r1999")),
        (204, 1, 1)
    );
    assert_eq!(rules.len(), 3, "only those with packets: {totals}");
    assert_eq!(totals["steer"]["dropped"], 2, "{totals}");
}

#[test]
fn limits_counts_and_a_dry_run() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let args = ["--steer", "udp", "--user-count", "udp", "--user-limit"];
    let process = guard(&pair, &[&args[..], &["10/s udp dst port 9"]].concat());
    pour(&pair, 4, 1_000);
    reported(&process, "steered", 1_000);
    let totals = stop(process);
    let rules = &totals["steer"]["rules"];
    assert_eq!(
        (&rules[0]["verdict"], &rules[1]["verdict"]),
        (&"count".into(), &"limit".into())
    );
    assert_eq!(rules[0]["packets"], 1_000, "{totals}");
    // A burst of ten, and 10 a second while the test runs.
    let passed = 1_000 - number(&rules[1]["dropped"]);
    assert!((10..600).contains(&passed), "{totals}");
    assert_eq!(totals["steer"]["given_back"], passed, "{totals}");

    // A dry run counts what would be steered, and steers nothing.
    let args = [
        "guard",
        &pair.right.ifname,
        "--json",
        "--dry-run",
        "--steer",
        "udp",
    ];
    let process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("guarding", LIMIT).unwrap();
    pair.right.wait_up(LIMIT).unwrap();
    pour(&pair, 4, 100);
    let line = reported(&process, "passed", 100);
    assert_eq!(line["rules"][0]["packets"], 100, "{line}");
    assert_eq!(
        (&line["steered"], &line["steer"]),
        (&0.into(), &Value::Null)
    );
}

#[test]
fn steering_is_refused_where_it_is_not_possible() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    for (args, why) in [
        (&["--hook", "tc", "--steer", "udp"][..], "only XDP"),
        (&["--hook", "iptables", "--steer", "udp"], "only XDP"),
        (
            &["--hook", "iptables", "--print", "--steer", "udp"],
            "only XDP",
        ),
        (&["--user-drop", "udp"], "no rule steers"),
        (
            &["--steer", "udp", "--user-limit", "9/s per /24 udp"],
            "limits per source",
        ),
    ] {
        let args = [&["guard", &pair.right.ifname][..], args].concat();
        let mut process = pair.right.ns.spawn(barewire().unwrap(), &args).unwrap();
        let finished = process.wait(LIMIT).unwrap();
        assert!(!finished.success(), "{args:?}");
        assert!(
            finished.stderr.contains(why),
            "{args:?}: {}",
            finished.stderr
        );
        assert_eq!(pair.right.xdp().unwrap(), None);
    }
}
