//! `barewire capture any`: the packets of all interfaces as tcpdump sees them on `any`, including
//! interfaces created later.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::process::{Process, Signal, barewire};
use lab::{Netns, require, skip};

use crate::export::Folder;

const LIMIT: Duration = Duration::from_secs(60);

/// Cooked headers and contents as read by tshark.
fn packets(file: &Path) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r", file.to_str().unwrap(), "-T", "fields"]);
    command.args(["-o", "frame.generate_md5_hash:TRUE"]);
    for field in [
        "frame.len",
        "frame.cap_len",
        "frame.encap_type",
        "sll.ifindex",
        "sll.pkttype",
        "sll.etype",
        "sll.hatype",
        "sll.halen",
        "sll.src.eth",
        "frame.md5_hash",
    ] {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Adds a pair of interfaces to the namespace, with an address on the first and a neighbour behind
/// it.
fn add_pair(ns: &Netns, name: &str, network: u8) {
    let other = format!("{name}-far");
    ns.ip(["link", "add", name, "type", "veth", "peer", "name", &other])
        .unwrap();
    let address = format!("10.9.{network}.1/24");
    ns.ip(["addr", "add", &address, "dev", name]).unwrap();
    for end in [name, &other] {
        ns.ip(["link", "set", end, "up"]).unwrap();
    }
    let far = format!("10.9.{network}.2");
    let mac = "02:00:00:00:00:09";
    ns.ip(["neigh", "add", &far, "lladdr", mac, "dev", name])
        .unwrap();
}

fn ping(ns: &Netns, address: &str) {
    // Only the host itself answers.
    let mut command = ns.command("ping");
    command.args(["-n", "-c", "2", "-i", "0.2", "-W", "0.2", address]);
    Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
}

#[test]
fn any_sees_what_tcpdump_sees() {
    require!(
        skip::lab(),
        skip::program("tcpdump", "tcpdump"),
        skip::program("tshark", "tshark"),
        skip::program("ping", "iputils-ping")
    );
    let folder = Folder::new("any");
    let (ours, theirs) = (folder.0.join("ours.pcap"), folder.0.join("theirs.pcap"));
    let ns = Netns::new().unwrap();
    ns.ip(["link", "set", "lo", "up"]).unwrap();
    add_pair(&ns, "early", 0);
    let mut tcpdump = ns.command("tcpdump");
    tcpdump.args(["-i", "any", "-n", "-U", "-Z", "root", "-w"]);
    tcpdump.arg(&theirs).args(["icmp"]);
    let mut tcpdump = Process::spawn(&mut tcpdump).unwrap();
    let args = ["capture", "-i", "any", "-U", "-w"];
    let mut command = ns.command(barewire().unwrap());
    command.args(args).arg(&ours).arg("icmp");
    let mut process = Process::spawn(&mut command).unwrap();
    tcpdump.wait_stderr("listening on", LIMIT).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    ping(&ns, "127.0.0.1");
    ping(&ns, "10.9.0.2");
    add_pair(&ns, "later", 1);
    ping(&ns, "10.9.1.2");
    // Two on loopback with their replies; two on each pair, seen at both ends.
    let count = 4 + 4 + 4;
    while packets(&theirs).len() < count || packets(&ours).len() < count {
        std::thread::sleep(Duration::from_millis(100));
    }
    tcpdump.stop(Signal::SIGINT, LIMIT).unwrap();
    let done = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let done = done.checked().unwrap();
    assert_eq!(packets(&ours), packets(&theirs));
    assert!(done.stderr.contains("adds up"), "{}", done.stderr);
    let expected = format!("{count} packets captured");
    assert!(done.stderr.contains(&expected), "{}", done.stderr);
    // Printed in the namespace, as tcpdump prints them there.
    let print = |program: &Path| {
        let mut command = ns.command(program);
        if program.ends_with("barewire") {
            command.arg("capture");
        }
        command.args(["-n", "-tt", "-r"]).arg(&ours);
        let mut process = Process::spawn(&mut command).unwrap();
        process.wait(LIMIT).unwrap().checked().unwrap().stdout
    };
    let (lines, wanted) = (print(&barewire().unwrap()), print(Path::new("tcpdump")));
    assert_eq!(lines, wanted);
}

#[test]
fn any_captures_and_is_refused_for_forwarding() {
    require!(skip::lab());
    let ns = Netns::new().unwrap();
    ns.ip(["link", "set", "lo", "up"]).unwrap();
    let mut command = ns.command(barewire().unwrap());
    command.args(["forward", "any", "lo"]);
    let done = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert!(!done.success());
    let mut command = ns.command(barewire().unwrap());
    command.args([
        "capture",
        "any",
        "-s",
        "60",
        "-c",
        "2",
        "--lengths",
        "-n",
        "icmp",
    ]);
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    ping(&ns, "127.0.0.1");
    let done = process.wait(LIMIT).unwrap().checked().unwrap();
    // The cooked header is included.
    assert!(
        done.stdout.contains("caplen 60, len 104"),
        "{}",
        done.stdout
    );
}
