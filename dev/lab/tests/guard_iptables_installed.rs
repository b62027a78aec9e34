//! `barewire guard --hook iptables`: rules that barewire installs and removes.

use std::fs::Permissions;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab::oracle::TempFile;
use lab::packet::{Raw, Udp};
use lab::process::{Finished, Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};

use crate::guard_flood::{HPING3, guard, hping3, stop, ten_connections};

const LIMIT: Duration = Duration::from_secs(60);
const HOOK: [&str; 2] = ["--hook", "iptables"];

macro_rules! require_iptables {
    () => {
        require!(skip::lab());
        require!(skip::program("iptables", "iptables"));
        require!(skip::program("hping3", "hping3"));
    };
}

/// Starts a guard at the right end.
fn start(pair: &Pair, args: &[&str]) -> Process {
    guard(pair, &[&HOOK[..], args].concat())
}

/// Runs a guard that exits by itself.
fn run(pair: &Pair, args: &[&str]) -> Finished {
    run_on(pair, &pair.right.ifname, args)
}

/// As [`run`], on another interface of the right end.
fn run_on(pair: &Pair, ifname: &str, args: &[&str]) -> Finished {
    let args = [&["guard", ifname][..], &HOOK, args].concat();
    let mut process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap()
}

/// As [`start`], on another interface of the right end.
fn start_on(pair: &Pair, ifname: &str, args: &[&str]) -> Process {
    let args = [&["guard", ifname, "--json"][..], &HOOK, args].concat();
    let process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("guarding", LIMIT).unwrap();
    process
}

/// Rules of barewire in the tables.
fn rules(pair: &Pair) -> String {
    let list = |command| pair.right.ns.exec(command, ["-w", "10", "-t", "raw", "-S"]);
    let lists = [list("iptables").unwrap(), list("ip6tables").unwrap()].concat();
    let lines = lists.lines().filter(|line| line.contains("bwguard"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn installed_rules_drop_what_matches_and_are_removed() {
    require_iptables!();
    let pair = Veth::new().create().unwrap();
    let signature = format!("p0f:{HPING3}");
    let args = [
        "--drop",
        &signature,
        "--count",
        "tcp dst port 8080",
        "--deny",
        "192.0.2.0/24,198.51.100.0/24,2001:db8::/32",
        "--limit",
        "10/s and 1/s per /24 udp dst port 9",
    ];
    let process = start(&pair, &args);
    hping3(&pair, &["-S", "-p", "8080"]);
    ten_connections(&pair);
    // Of other packets of hping3, none.
    hping3(&pair, &["-S", "-p", "8080", "-t", "65"]);
    // One packet of a source fits, and no more.
    let socket = pair.left.ns.run(|| UdpSocket::bind((pair.left.ipv4, 0)));
    let socket = socket.unwrap().unwrap();
    for _ in 0..20 {
        // The port is closed, which an answer to an earlier packet may report.
        let _ = socket.send_to(b"flood", (pair.right.ipv4, 9));
    }
    let totals = stop(process);
    assert_eq!(totals["mode"], "iptables", "{totals}");
    // In their order: count, deny, drop, limit.
    let rule = |at: usize, what: &str| totals["rules"][at][what].as_u64().unwrap();
    assert_eq!((rule(1, "packets"), rule(1, "dropped")), (0, 0), "{totals}");
    assert_eq!(
        (rule(2, "packets"), rule(2, "dropped")),
        (10, 10),
        "{totals}"
    );
    assert!(rule(0, "packets") >= 10 + 10 * 5 + 10, "{totals}");
    assert!(rule(3, "packets") >= 16, "{totals}");
    assert!(
        (15..rule(3, "packets")).contains(&rule(3, "dropped")),
        "{totals}"
    );
    assert_eq!(rules(&pair), "");
}

/// Waits for an event.
fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_there() {
        assert!(Instant::now() < until, "no {what} within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Parent and session of a process (proc(5)), if it is a helper of a guard and has not ended.
fn helper_state(pid: u32) -> Option<(u32, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (start, rest) = stat.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse().ok();
    // Nobody may have waited for it yet.
    let is_helper = start.ends_with("(guard-undo") && fields.first() != Some(&"Z");
    is_helper.then_some((number(1)?, number(3)?))
}

/// The helper process of a guard.
fn helper(guard: &Process) -> u32 {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_its = |pid: &u32| helper_state(*pid).is_some_and(|state| state.0 == guard.pid());
    pids.find(is_its).expect("a guard has a helper process")
}

/// Kills a guard after its helper.
fn kill_both(guard: &mut Process) {
    let pid = helper(guard);
    let helper = nix::unistd::Pid::from_raw(pid.cast_signed());
    nix::sys::signal::kill(helper, Signal::SIGKILL).unwrap();
    wait_for("end of the helper", || helper_state(pid).is_none());
    guard.kill().unwrap();
}

#[test]
fn the_rules_of_a_killed_guard_are_removed_at_once() {
    require_iptables!();
    let pair = Veth::new().create().unwrap();
    let mut process = start(&pair, &["--drop", "tcp dst port 9", "--limit", "10/s udp"]);
    // The owner is alive.
    let refused = run(&pair, &["--undo"]);
    assert!(
        refused.stderr.contains("another barewire guard"),
        "{}",
        refused.stderr
    );
    let listed = rules(&pair);
    assert_eq!(listed.matches("-j bwguard-").count(), 2, "{listed}");
    let of_killed = helper(&process);
    // In a session of its own, without the signals of the terminal.
    assert_eq!(helper_state(of_killed).unwrap().1, of_killed);
    process.kill().unwrap();
    wait_for("end of the rules", || rules(&pair).is_empty());
    wait_for("end of the helper", || helper_state(of_killed).is_none());
    ten_connections(&pair);

    // A guard that starts at once keeps its own rules.
    let mut process = start(&pair, &["--drop", "tcp dst port 9"]);
    let of_killed = helper(&process);
    process.kill().unwrap();
    let process = start(&pair, &["--drop", "udp dst port 9"]);
    wait_for("end of the helper", || helper_state(of_killed).is_none());
    let listed = rules(&pair);
    assert_eq!(listed.matches("-j bwguard-").count(), 2, "{listed}");
    assert_eq!(
        listed.matches("\"1 udp dst port 9\"").count(),
        2,
        "{listed}"
    );
    // One that ends leaves no helper.
    let own = helper(&process);
    stop(process);
    assert_eq!((helper_state(own), rules(&pair)), (None, String::new()));
}

#[test]
fn a_guard_killed_with_its_helper_leaves_rules_that_the_next_one_or_undo_removes() {
    require_iptables!();
    let pair = Veth::new().create().unwrap();
    for is_undone in [false, true] {
        let mut process = start(&pair, &["--drop", "tcp dst port 9", "--limit", "10/s udp"]);
        kill_both(&mut process);
        assert!(rules(&pair).contains("-j bwguard-"), "{}", rules(&pair));
        if is_undone {
            let undone = run(&pair, &["--undo"]);
            assert!(
                undone.stderr.contains("removed the rules"),
                "{}",
                undone.stderr
            );
        } else {
            let process = start(&pair, &["--drop", "udp dst port 9"]);
            let text = process.stderr();
            assert!(text.contains("earlier run"), "{text}");
            assert!(!rules(&pair).contains("hashlimit"), "{}", rules(&pair));
            stop(process);
        }
        assert_eq!(rules(&pair), "");
    }
    let nothing = run(&pair, &["--undo"]);
    assert!(
        nothing.stderr.contains("there are no rules"),
        "{}",
        nothing.stderr
    );
    ten_connections(&pair);
}

#[test]
fn signals_remove_the_rules_and_no_other_chain() {
    require_iptables!();
    let pair = Veth::new().create().unwrap();
    let file = TempFile::new(".toml");
    let text = "[[rule]]\nname = \"a\"\nmatch = \"udp\"\nverdict = \"drop\"\n";
    std::fs::write(file.path(), text).unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let rules_file = file.path().to_str().unwrap();
        let mut process = start(&pair, &["--rules", rules_file]);
        assert!(rules(&pair).contains("1 a"), "{}", rules(&pair));
        process.stop(signal, LIMIT).unwrap().checked().unwrap();
        assert_eq!(rules(&pair), "");
    }
    // No chain of barewire.
    let other = format!("bwguard-{}-x", pair.right.ifname);
    pair.right
        .ns
        .exec("iptables", ["-t", "raw", "-N", &other])
        .unwrap();
    let mut process = start(&pair, &["--drop", "udp"]);
    // Another process removes the rules.
    let chain = format!("bwguard-{}", pair.right.ifname);
    pair.right.ns.exec("iptables", ["-t", "raw", "-F"]).unwrap();
    // The guard may have noticed, and removed the chain itself.
    let _ = pair.right.ns.exec("iptables", ["-t", "raw", "-X", &chain]);
    let finished = process.wait(LIMIT).unwrap();
    assert!(!finished.success());
    assert!(
        finished.stderr.contains("removed the iptables rules"),
        "{}",
        finished.stderr
    );
    // Its own chains are gone, and others stay.
    assert_eq!(rules(&pair), format!("-N {other}"));
    for (args, why) in [
        (
            &["--detect", "propose", "--drop", "udp"][..],
            "use --detect",
        ),
        (&["--drop", "udp", "--mode", "native"], "use --mode"),
        (&["--challenge", "tcp"], "cookies"),
    ] {
        let finished = run(&pair, args);
        assert!(!finished.success());
        assert!(finished.stderr.contains(why), "{}", finished.stderr);
    }
}

#[test]
fn a_guard_ends_when_others_remove_its_rules() {
    require_iptables!();
    let pair = Veth::new().create().unwrap();
    let chain = format!("bwguard-{}", pair.right.ifname);
    let jump = ["PREROUTING", "-i", &pair.right.ifname, "-j", &chain];
    let unhook = [&["-t", "raw", "-D"][..], &jump].concat();
    let flush = ["-t", "raw", "-F"];
    for (command, args) in [
        ("iptables", &flush[..]),
        ("ip6tables", &flush),
        ("iptables", &unhook),
        ("ip6tables", &unhook),
    ] {
        let mut process = start(&pair, &["--drop", "udp"]);
        pair.right.ns.exec(command, args).unwrap();
        let finished = process.wait(LIMIT).unwrap();
        assert!(!finished.success());
        let why = format!("removed the {command} rules");
        assert!(finished.stderr.contains(&why), "{}", finished.stderr);
        assert_eq!(rules(&pair), "");
    }
}

#[test]
fn interfaces_with_similar_names_have_rules_of_their_own() {
    require_iptables!();
    let pair = Veth::new().create().unwrap();
    let (name, longer) = ("eth0", "eth0-1");
    let link = ["link", "add", name, "type", "veth", "peer", "name", longer];
    pair.right.ns.ip(link).unwrap();
    let other = start_on(&pair, longer, &["--limit", "10/s udp"]);
    let alone = rules(&pair);
    assert!(alone.contains("-N bwguard-eth0-1"), "{alone}");
    let process = start_on(&pair, name, &["--limit", "10/s udp"]);
    assert!(rules(&pair).contains("-N bwguard1-eth0\n"));
    stop(process);
    assert_eq!(rules(&pair), alone);
    let mut process = start_on(&pair, name, &["--limit", "10/s udp"]);
    process.kill().unwrap();
    wait_for("end of the rules", || rules(&pair) == alone);
    let mut process = start_on(&pair, name, &["--limit", "10/s udp"]);
    kill_both(&mut process);
    let undone = run_on(&pair, name, &["--undo"]).checked().unwrap();
    assert!(
        undone.stderr.contains("removed the rules"),
        "{}",
        undone.stderr
    );
    assert_eq!(rules(&pair), alone);
    stop(other);
    assert_eq!(rules(&pair), "");
}

/// An iptables for the start of PATH: before a rule is added, it waits for the file `go`.
const SLOW: &str = r#"#!/bin/sh
folder=${0%/*}
case "$*" in
*" -A "*)
    touch "$folder/reached"
    while [ -d "$folder" ] && ! [ -e "$folder/go" ]; do sleep 0.02; done
    ;;
esac
PATH=${PATH#*:}
exec iptables "$@"
"#;

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_commands_of_a_guard_killed_during_the_start_end_before_others_begin() {
    require_iptables!();
    let pair = Veth::new().create().unwrap();
    let name = format!("bw-slow-iptables-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir(&folder.0).unwrap();
    let slow = folder.0.join("iptables");
    std::fs::write(&slow, SLOW).unwrap();
    std::fs::set_permissions(&slow, Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("PATH={}:{path}", folder.0.display());
    let binary = barewire().unwrap().display().to_string();
    let interface = &pair.right.ifname;
    let args = [&[&*path, &binary, "guard", interface], &HOOK[..]].concat();
    let args = [&args[..], &["--drop", "udp"]].concat();
    let mut process = pair.right.ns.spawn("env", args).unwrap();
    wait_for("first rule", || {
        assert!(process.running().unwrap());
        folder.0.join("reached").exists()
    });
    process.kill().unwrap();
    let args = [&["guard", interface][..], &HOOK, &["--undo"]].concat();
    let mut undo = pair.right.ns.spawn(&binary, args).unwrap();
    // Neither the helper nor the other process changes anything.
    let before = rules(&pair);
    assert!(before.contains("-N bwguard-"), "{before}");
    for _ in 0..20 {
        assert_eq!(
            (rules(&pair), undo.running().unwrap()),
            (before.clone(), true)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(folder.0.join("go"), "").unwrap();
    // One of the two was faster.
    undo.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(rules(&pair), "");
}

/// A mount namespace with a BPF file system of its own, as long as this process runs.
fn bpf_mount(pair: &Pair) -> Process {
    let script = "mount -t bpf bpf /sys/fs/bpf && echo mounted >&2 && exec sleep 600";
    let args = ["-m", "sh", "-c", script];
    let holder = pair.right.ns.spawn("unshare", args).unwrap();
    holder.wait_stderr("mounted", LIMIT).unwrap();
    holder
}

/// The objects in the BPF file system of a process.
fn pinned(holder: &Process) -> Vec<String> {
    let process = Path::new("/proc").join(holder.pid().to_string());
    let folder = process.join("root").join("sys/fs/bpf");
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("bwguard")).collect()
}

#[test]
fn long_programs_are_pinned_as_long_as_their_rules() {
    require_iptables!();
    let pair = Veth::new().create().unwrap();
    let holder = bpf_mount(&pair);
    let pid = holder.pid().to_string();
    let binary = barewire().unwrap().display().to_string();
    let ports: Vec<_> = (0..40)
        .map(|at| format!("dst port {}", 9 + 2 * at))
        .collect();
    let long = format!("udp and ({})", ports.join(" or "));
    let common = [
        "-t",
        &pid,
        "-m",
        &binary,
        "guard",
        &pair.right.ifname,
        "--json",
    ];
    let args = |more: &[&str]| {
        let args = [&common[..], &HOOK, more].concat();
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let start = || {
        let process = pair
            .right
            .ns
            .spawn("nsenter", args(&["--drop", &long]))
            .unwrap();
        process.wait_stderr("guarding", LIMIT).unwrap();
        process
    };
    let process = start();
    let mut names = pinned(&holder);
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");
    let end = format!("-1-ip6tables-{}", pair.right.ifname);
    assert!(names[0].ends_with(&end), "{names:?}");
    let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let sender = sender.unwrap().unwrap();
    let mut udp = Udp::between(&pair.left, &pair.right);
    for port in [9, 10, 49, 87, 88] {
        udp.destination_port = port;
        sender.send(&udp.build(0, 60)).unwrap();
        sender.send(&udp.build(1, 60)).unwrap();
    }
    ten_connections(&pair);
    let totals = stop(process);
    // Two to each of three ports.
    assert_eq!(totals["dropped"], 6, "{totals}");
    assert_eq!((pinned(&holder).len(), rules(&pair)), (0, String::new()));
    let mut process = start();
    process.kill().unwrap();
    wait_for("end of the rules", || {
        pinned(&holder).is_empty() && rules(&pair).is_empty()
    });
    let mut process = start();
    kill_both(&mut process);
    assert_eq!(pinned(&holder).len(), 2);
    let mut undo = pair.right.ns.spawn("nsenter", args(&["--undo"])).unwrap();
    undo.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!((pinned(&holder).len(), rules(&pair)), (0, String::new()));
}
