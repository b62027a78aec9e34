//! `libpcap.so` on live interfaces: programs using it see what they see with the original.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::dropin::Dropin;
use lab::packet::Udp;
use lab::process::Process;
use lab::{Veth, skip};

use crate::afxdp::sender;

const LIMIT: Duration = Duration::from_secs(30);

/// tcpdump's lines without timestamps, which the two runs read from the kernel one after the other.
fn lines(stdout: &str) -> Vec<String> {
    let without_time = |line: &str| line.split_once(' ').map_or("", |(_, rest)| rest).to_owned();
    stdout.lines().map(without_time).collect()
}

/// The filter is set after tcpdump has dropped its privileges: it must still run in the kernel,
/// with its counters. Packets that it rejects would be counted as received if it ran in the
/// library.
#[test]
fn tcpdump_captures_after_dropping_privileges_as_with_the_original() {
    const REJECTED: u64 = 200;
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let (here, there) = (&pair.left, &pair.right);
    let start = |is_ours: bool| {
        let mut command: Command = here.ns.command("tcpdump");
        if is_ours {
            command = dropin.with(command);
        }
        let flags = ["-Z", "nobody", "-nn", "-c", "10", "-i", &here.ifname];
        command.args(flags).arg("icmp");
        let process = Process::spawn(&mut command).unwrap();
        process.wait_stderr("listening on", LIMIT).unwrap();
        process
    };
    let both = [start(false), start(true)];
    let (out, mut udp) = (sender(there), Udp::between(there, here));
    // Of another station: the host answers none of them by ICMP.
    udp.destination_mac[5] ^= 0x40;
    for number in 0..REJECTED {
        out.send(&udp.build(number, 60)).unwrap();
    }
    let ping = ["-q", "-c", "5", "-i", "0.1", &here.ipv4.to_string()].map(str::to_owned);
    there.ns.exec("ping", &ping).unwrap();
    // They end by themselves after five requests and five replies.
    let [theirs, ours] = both.map(|mut process| process.wait(LIMIT).unwrap());
    assert_eq!(ours.code(), theirs.code());
    assert_eq!(lines(&ours.stdout), lines(&theirs.stdout));
    assert_eq!(lines(&ours.stdout).len(), 10, "{}", ours.stdout);
    // The rejected ones are in no counter, and they have reached the interface.
    let seen = here.counters().unwrap().rx_packets;
    assert!(seen >= REJECTED + 5, "{seen}");
    for count in [
        "10 packets captured",
        "10 packets received by filter",
        "0 packets dropped by kernel",
    ] {
        assert!(ours.stderr.contains(count), "{}", ours.stderr);
    }
    assert_eq!(ours.stderr, theirs.stderr);
}

#[test]
fn devices_are_listed_as_by_the_original() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let add = [
        "link", "add", "down0", "type", "veth", "peer", "name", "down1",
    ];
    pair.left.ns.ip(add).unwrap();
    let list = |mut command: Command| {
        let output = command.arg("-D").output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let theirs = list(pair.left.ns.command("tcpdump"));
    let ours = list(dropin.with(pair.left.ns.command("tcpdump")));
    // Queues of clusters that other tests run come last.
    let ours = devices(&ours).filter(|line| !line.starts_with("ring:"));
    let ours: Vec<&str> = ours.collect();
    assert!(
        ours.iter().any(|line| line.starts_with("down0 ")),
        "{ours:?}"
    );
    assert!(ours.len() >= 4, "{ours:?}");
    assert_eq!(ours, listed_by_both(&theirs));
}

/// Names with their descriptions in the output of `tcpdump -D`, without the numbers.
pub(crate) fn devices(list: &str) -> impl Iterator<Item = &str> {
    let lines = list.lines();
    lines.map(|line| line.split_once('.').unwrap_or_else(|| panic!("{line}")).1)
}

/// Devices of the kinds that this library does not have (docs/pcap.md).
pub(crate) const OTHER_KINDS: [&str; 5] = ["bluetooth", "usbmon", "dbus-", "nflog", "nfqueue"];

/// The devices in the original's list that this library lists, too: all but those of other kinds.
pub(crate) fn listed_by_both(theirs: &str) -> Vec<&str> {
    let is_other = |line: &&str| OTHER_KINDS.iter().any(|kind| line.starts_with(kind));
    devices(theirs).filter(|line| !is_other(line)).collect()
}

/// Packets of many flows arrive on all queues of the interface; a program sees those of each.
#[test]
fn packets_of_all_queues_are_captured_by_af_xdp() {
    const COUNT: u64 = 200;
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().queues(4).create().unwrap();
    let device = format!("afxdp:{}", pair.right.ifname);
    let mut command = dropin.with(pair.right.ns.command("tcpdump"));
    command.args([
        "-nn",
        "-c",
        &COUNT.to_string(),
        "-i",
        &device,
        "udp dst port 9",
    ]);
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    let out = sender(&pair.left);
    let mut udp = Udp::between(&pair.left, &pair.right);
    udp.flow_count = 64;
    for number in 0..COUNT {
        out.send(&udp.build(number, 60)).unwrap();
    }
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(finished.stdout.lines().count() as u64, COUNT);
    let ports: BTreeSet<&str> = finished.stdout.lines().filter_map(source_port).collect();
    assert_eq!(ports.len(), 64, "{ports:?}");
    // They were on more than one queue.
    let queues = (0..4).filter(|queue| {
        let name = format!("rx_queue_{queue}_xdp_packets");
        let counters = pair.right.driver_counters().unwrap();
        counters.get(&name).is_some_and(|count| *count > 0)
    });
    assert!(queues.count() > 1, "{:?}", pair.right.driver_counters());
}

/// The source port of a line such as `… IP 10.0.0.1.1024 > 10.0.0.2.9: UDP, length 18`.
fn source_port(line: &str) -> Option<&str> {
    let (source, _) = line.split_once(" > ")?;
    Some(source.rsplit_once('.')?.1)
}

/// The helper process of a program, which replaces its filter in the driver.
fn helper_of(program: u32) -> Option<u32> {
    let is_helper = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let has = |line: String| status.lines().any(|l| l == line);
        has("Name:\tbarewire-filter".into()) && has(format!("PPid:\t{program}"))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_helper)
}

/// The host still answers what the filter does not select, so it runs in the driver.
#[test]
fn a_filter_that_is_set_without_privileges_runs_in_the_driver() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let device = format!("afxdp:{}", pair.right.ifname);
    let start = |count: &str| {
        let mut command = dropin.with(pair.right.ns.command("tcpdump"));
        let flags = ["-Z", "nobody", "-nn", "-c", count, "-i", &device];
        command.args(flags).arg("udp dst port 9");
        let process = Process::spawn(&mut command).unwrap();
        process.wait_stderr("listening on", LIMIT).unwrap();
        process
    };
    let host = pair.right.ipv4.to_string();
    let ping = ["-q", "-c", "2", "-i", "0.2", "-w", "30", &host];
    let mut process = start("3");
    pair.left.ns.exec("ping", ping).unwrap();
    let out = sender(&pair.left);
    let udp = Udp::between(&pair.left, &pair.right);
    (0..3).for_each(|number| out.send(&udp.build(number, 60)).unwrap());
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(finished.stdout.lines().count(), 3, "{}", finished.stdout);
    assert_eq!(pair.right.xdp().unwrap(), None);

    let mut process = start("4");
    let helper = helper_of(process.pid()).expect("a helper");
    let file = |name: &str| fs::read_to_string(format!("/proc/{helper}/{name}")).unwrap();
    let status = file("status");
    // CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF; and system calls are restricted.
    for line in [
        "CapEff:\t000000c000001000",
        "CapPrm:\t000000c000001000",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    pair.left.ns.exec("ping", ping).unwrap();
    process.kill().unwrap();
    // It ends once the kernel has closed the other end of its socket.
    let is_gone = || {
        std::thread::sleep(Duration::from_millis(10));
        !Path::new(&format!("/proc/{helper}")).exists() && pair.right.xdp().unwrap().is_none()
    };
    assert!((0..3000).any(|_| is_gone()), "{:?}", pair.right.xdp());
    pair.left.ns.exec("ping", ping).unwrap();
}
