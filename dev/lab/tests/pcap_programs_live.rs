//! `libpcap.so` on live interfaces: programs print and write the same packets as with the original,
//! on an interface at the same time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::dropin::{Dropin, original};
use lab::oracle::{TempFile, read_pcap};
use lab::packet::{Udp, pour};
use lab::process::{Finished, Process, Signal};
use lab::skip::which;
use lab::{Pair, Veth, corpus, require, skip};

use crate::afxdp::sender;
use crate::export::Folder;
use crate::pcap_dropin::name;
use crate::pcap_dropin_live::OTHER_KINDS;
use crate::pcap_programs::{PYTHON, argus_records};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Number of packets of [`vlan`], and of those with TCP behind their tag.
const VLAN_COUNT: usize = 49;
const TCP_COUNT: usize = 29;

/// Packets with VLAN tags: ARP, IPv4 and IPv6, TCP, UDP and ICMP.
pub(crate) fn vlan() -> Vec<Vec<u8>> {
    capture("lab-vlan.pcap")
}

pub(crate) fn capture(name: &str) -> Vec<Vec<u8>> {
    let (_, packets) = corpus::read(&corpus::own().join(name), 1000).unwrap();
    packets.into_iter().map(|(bytes, ..)| bytes).collect()
}

/// Sends packets from the left end of a pair to the right.
pub(crate) fn send(pair: &Pair, packets: &[Vec<u8>]) {
    let out = sender(&pair.left);
    for packet in packets {
        out.send(packet).unwrap();
    }
}

/// A program at the right end, with this build's library if there is one.
pub(crate) fn start(
    pair: &Pair,
    dropin: Option<&Dropin>,
    program: &Path,
    args: &[&str],
) -> Process {
    let mut command: Command = pair.right.ns.command(program);
    command.args(args).env("TZ", "UTC").env("LC_ALL", "C");
    command.env_remove("LD_LIBRARY_PATH");
    if let Some(dropin) = dropin {
        command = dropin.with(command);
    }
    Process::spawn(&mut command).unwrap()
}

pub(crate) fn wait(mut process: Process) -> Finished {
    process.wait(LIMIT).unwrap().checked().unwrap()
}

fn interrupt(mut process: Process) -> Finished {
    process.stop(Signal::SIGINT, LIMIT).unwrap()
}

/// dumpcap without file capabilities, with which the linker would ignore the library's directory.
fn dumpcap(folder: &Folder) -> PathBuf {
    let copy = folder.0.join("dumpcap");
    std::fs::copy(which("dumpcap").unwrap(), &copy).unwrap();
    copy
}

/// Skips if tshark starts a dumpcap with file capabilities.
pub(crate) fn plain_dumpcap() -> Result<(), skip::Missing> {
    skip::program("dumpcap", "wireshark-common")?;
    skip::program("getcap", "libcap2-bin")?;
    let found = original("getcap")
        .arg(which("dumpcap").unwrap())
        .output()
        .unwrap();
    match found.stdout.is_empty() {
        true => Ok(()),
        false => Err(skip::Missing::Machine(
            "a dumpcap without file capabilities (setcap -r)".into(),
        )),
    }
}

/// The lines of listings without the numbers, and without devices of kinds that this library does
/// not have and queues of clusters that other tests run.
fn whole_list(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for line in text.lines() {
        let name = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ' ');
        let mut others = OTHER_KINDS.iter().chain(&["ring:"]);
        if !others.any(|kind| name.starts_with(kind)) {
            names.push(name);
        }
    }
    names
}

#[test]
fn devices_and_link_types_are_listed_as_with_the_original() {
    require!(
        skip::lab(),
        skip::program("tshark", "tshark"),
        skip::program("nmap", "nmap"),
        plain_dumpcap()
    );
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let ifname = pair.right.ifname.as_str();
    for (program, args, is_list) in [
        ("tshark", &["-D"][..], true),
        ("dumpcap", &["-D", "-M"], true),
        ("tcpreplay", &["--listnics"], true),
        ("tshark", &["-L", "-i", ifname], false),
        ("dumpcap", &["-L", "-M", "-i", ifname], false),
        ("dumpcap", &["-L", "-i", "any"], false),
        ("dumpcap", &["-L", "-i", "lo"], false),
        ("dumpcap", &["-L", "-i", "none"], false),
        ("dumpcap", &["-i", "none", "-c", "1"], false),
        ("dumpcap", &["-d", "-i", ifname, "-f", "ip6"], false),
        ("dumpcap", &["--list-time-stamp-types", "-i", ifname], false),
        ("nmap", &["--iflist"], false),
    ] {
        let program = which(program).unwrap();
        let run = |dropin| {
            let mut process = start(&pair, dropin, &program, args);
            process.wait(LIMIT).unwrap()
        };
        let (theirs, ours) = (run(None), run(Some(&dropin)));
        match is_list {
            true => {
                let lines = whole_list(&theirs.stdout);
                assert!(
                    lines.iter().any(|line| line.starts_with(ifname)),
                    "{lines:?}"
                );
                assert_eq!(whole_list(&ours.stdout), lines, "{program:?}");
            }
            false => {
                assert_eq!(ours.stdout, theirs.stdout, "{program:?} {args:?}");
                let text = |stderr: &str| {
                    let lines = stderr.lines().filter(|line| !line.starts_with("Starting"));
                    lines.map(str::to_owned).collect::<Vec<_>>()
                };
                assert_eq!(text(&ours.stderr), text(&theirs.stderr), "{args:?}");
            }
        }
        assert_eq!(ours.code(), theirs.code(), "{program:?} {args:?}");
    }
}

/// What dumpcap has written to a directory: each file's header and packets.
fn written(folder: &Path) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
    let entries = folder.read_dir().unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let head = std::fs::read(path).unwrap()[..24].to_vec();
        (head, read_pcap(path).unwrap())
    };
    paths.iter().map(read).collect()
}

/// Runs of dumpcap: the device for the original, that for this build's library (empty: the same),
/// options, and the number of packets in the files together. `eth` stands for the interface.
const RUNS: &[(&str, &str, &[&str], usize)] = &[
    ("eth", "", &["-c", "49"], 49),
    ("eth", "afpacket:eth", &["-c", "49"], 49),
    (
        "eth",
        "",
        &["-c", "29", "-f", "vlan and tcp", "-s", "60", "-B", "1"],
        29,
    ),
    ("eth", "", &["-c", "49", "-p", "-a", "duration:60"], 49),
    (
        "eth",
        "",
        &["-c", "49", "-b", "packets:10", "-b", "files:3"],
        29,
    ),
    ("eth", "", &["-a", "filesize:2"], 10),
    ("any", "", &["-c", "49"], 49),
    ("any", "", &["-c", "49", "-y", "LINUX_SLL2"], 49),
];

/// All runs are at the same time, with both libraries.
#[test]
fn dumpcap_writes_packets_as_with_the_original() {
    require!(skip::lab(), skip::program("dumpcap", "wireshark-common"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("dumpcap");
    let program = dumpcap(&folder);
    let mut running = Vec::new();
    for (number, (device, our_device, options, _)) in RUNS.iter().enumerate() {
        let ours = match our_device.is_empty() {
            true => device,
            false => our_device,
        };
        let runs = [("theirs", None, device), ("ours", Some(&dropin), ours)];
        running.push(runs.map(|(who, dropin, device)| {
            let device = device.replace("eth", &pair.right.ifname);
            let files = folder.0.join(format!("{number}-{who}"));
            std::fs::create_dir(&files).unwrap();
            let to = files.join("packets.pcap");
            let fixed = ["-q", "-P", "-i", &device, "-w", name(&to)];
            let args = [&fixed[..], options].concat();
            (start(&pair, dropin, &program, &args), files, device)
        }));
    }
    for (process, ..) in running.iter().flatten() {
        process.wait_stderr("File: ", LIMIT).unwrap();
    }
    let packets = vlan();
    assert_eq!(packets.len(), VLAN_COUNT);
    send(&pair, &packets);
    for (both, (.., options, count)) in running.into_iter().zip(RUNS) {
        let [theirs, ours] = both.map(|(process, files, device)| {
            let finished = wait(process);
            // The device, and the time in names of files.
            let lines = finished.stderr.lines().map(|line| match line {
                line if line.starts_with("File: ") => "File".to_owned(),
                line => line.replace(&device, "device"),
            });
            // The run ends in the middle of the packets.
            let is_partial = options.contains(&"filesize:2");
            let is_kept = |line: &String| !is_partial || !line.contains("received/dropped");
            let lines: Vec<_> = lines.filter(is_kept).collect();
            (written(&files), lines)
        });
        let sum: usize = theirs.0.iter().map(|(_, packets)| packets.len()).sum();
        assert_eq!(sum, *count, "{options:?}");
        assert_eq!(ours, theirs, "{options:?}");
    }
}

/// Options with which tshark prints what it decodes, without the times.
pub(crate) const FIELDS: &[&str] = &[
    "-n",
    "-l",
    "-T",
    "fields",
    "-e",
    "frame.number",
    "-e",
    "frame.len",
    "-e",
    "frame.cap_len",
    "-e",
    "frame.protocols",
    "-e",
    "eth.src",
    "-e",
    "vlan.id",
    "-e",
    "_ws.col.Info",
];

#[test]
fn tshark_decodes_packets_as_with_the_original() {
    require!(
        skip::lab(),
        skip::program("tshark", "tshark"),
        plain_dumpcap()
    );
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let program = which("tshark").unwrap();
    let mut running = Vec::new();
    for (device, options) in [
        ("eth", &["-c", "49"][..]),
        ("eth", &["-c", "29", "-f", "vlan and tcp", "-s", "80"]),
        // When tshark starts, a program of its own connects to this port of the host.
        ("any", &["-c", "49", "-f", "not tcp port 5037"]),
    ] {
        let device = device.replace("eth", &pair.right.ifname);
        let args = [FIELDS, &["-i", &device], options].concat();
        let start = |dropin| start(&pair, dropin, &program, &args);
        running.push([None, Some(&dropin)].map(start));
    }
    for process in running.iter().flatten() {
        process.wait_stderr("File: ", LIMIT).unwrap();
    }
    send(&pair, &vlan());
    for both in running {
        let [theirs, ours] = both.map(wait);
        assert!(theirs.stdout.lines().count() >= TCP_COUNT, "{theirs:?}");
        assert_eq!(ours.stdout, theirs.stdout);
    }
}

/// The last packet of tests of programs that end only when they are interrupted. It is for another
/// station, so that the host does not answer.
pub(crate) fn last(pair: &Pair) -> Vec<u8> {
    let mut udp = Udp::between(&pair.left, &pair.right);
    udp.destination_mac[5] = 0xff;
    udp.build(7, 60)
}

/// tcpdump as a tap, on all interfaces, by direction, with a short snapshot length and filters.
#[test]
fn tcpdump_prints_packets_of_interfaces_as_with_the_original() {
    require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let ifname = pair.right.ifname.as_str();
    let program = which("tcpdump").unwrap();
    let mut running = Vec::new();
    for (device, options) in [
        (ifname, &[][..]),
        (ifname, &["-Q", "in", "-s", "60", "-x"]),
        (ifname, &["udp dst port 9 or (vlan and tcp)"]),
        ("any", &[]),
        ("any", &["-y", "LINUX_SLL2", "udp or tcp"]),
    ] {
        let args = [&["-nn", "-t", "-e", "-l", "-i", device], options].concat();
        let start = |dropin| start(&pair, dropin, &program, &args);
        running.push((options, [None, Some(&dropin)].map(start)));
    }
    for process in running.iter().flat_map(|(_, both)| both) {
        process.wait_stderr("listening on", LIMIT).unwrap();
    }
    let mut packets = vlan();
    packets.push(last(&pair));
    send(&pair, &packets);
    for (options, both) in running {
        let [theirs, ours] = both.map(|process| {
            process.wait_stdout(".9: UDP", LIMIT).unwrap();
            interrupt(process)
        });
        assert!(theirs.stdout.lines().count() > TCP_COUNT, "{theirs:?}");
        assert_eq!(ours.stdout, theirs.stdout, "{options:?}");
        assert_eq!(ours.stderr, theirs.stderr, "{options:?}");
    }
}

/// Waits until ngrep has dropped its privileges, which it does after it has set its filter.
pub(crate) fn wait_unprivileged(process: &Process) {
    let until = Instant::now() + LIMIT;
    let is_root = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
        status.lines().any(|line| line.starts_with("Uid:\t0\t"))
    };
    while is_root() {
        assert!(Instant::now() < until, "{}", process.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ngrep_prints_packets_of_interfaces_as_with_the_original() {
    require!(skip::lab(), skip::program("ngrep", "ngrep"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let program = which("ngrep").unwrap();
    let mut packets = capture("lab-mix.pcapng");
    packets.push(last(&pair));
    for device in [pair.right.ifname.as_str(), "any"] {
        let args = ["-l", "-x", "-d", device, "", "tcp or udp"];
        let both = [None, Some(&dropin)].map(|dropin| start(&pair, dropin, &program, &args));
        both.iter().for_each(wait_unprivileged);
        send(&pair, &packets);
        let [theirs, ours] = both.map(|process| {
            process.wait_stdout("bwlb", LIMIT).unwrap();
            interrupt(process)
        });
        assert!(theirs.stdout.lines().count() > 1000, "{theirs:?}");
        assert_eq!(ours.stdout, theirs.stdout, "{device}");
        assert_eq!(ours.stderr, theirs.stderr, "{device}");
    }
}

/// p0f's blocks but those that depend on the time between packets.
fn blocks(stdout: &str) -> Vec<&str> {
    let is_timed = |block: &&str| block.contains("(uptime)") || block.contains("(host change)");
    let blocks = stdout.split(".-[").filter(|block| !is_timed(block));
    blocks.collect()
}

#[test]
fn p0f_identifies_hosts_as_with_the_original() {
    require!(skip::lab(), skip::program("p0f", "p0f"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let ifname = pair.right.ifname.as_str();
    let mut packets = capture("lab-mix.pcapng");
    // A SYN over IPv4 again, of another host: the last packet.
    let is_syn =
        |p: &&Vec<u8>| p.len() > 47 && p[12..15] == [8, 0, 0x45] && p[23] == 6 && p[47] == 2;
    let mut again = packets.iter().find(is_syn).unwrap().clone();
    again[26..30].copy_from_slice(&[192, 0, 2, 99]);
    packets.push(again);
    let program = which("p0f").unwrap();
    for device in [ifname, "any"] {
        let args = ["-i", device, "tcp[tcpflags] & tcp-syn != 0"];
        let both = [None, Some(&dropin)].map(|dropin| start(&pair, dropin, &program, &args));
        for process in &both {
            process
                .wait_stdout("Entered main event loop", LIMIT)
                .unwrap();
        }
        send(&pair, &packets);
        let [theirs, ours] = both.map(|process| {
            process.wait_stdout("192.0.2.99", LIMIT).unwrap();
            interrupt(process)
        });
        assert!(theirs.stdout.contains("(syn+ack)"), "{theirs:?}");
        assert_eq!(blocks(&ours.stdout), blocks(&theirs.stdout), "{device}");
    }
}

/// The flows that softflowd has found.
fn flows(stderr: &str) -> Vec<&str> {
    let lines = stderr.lines();
    lines.filter(|line| line.starts_with("ADD FLOW")).collect()
}

/// softflowd asks for no timeout: the original delivers packets when a block of its ring is full.
#[test]
fn softflowd_finds_flows_on_interfaces_as_with_the_original() {
    require!(skip::lab(), skip::program("softflowd", "softflowd"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let program = which("softflowd").unwrap();
    let files = [(); 4].map(|()| TempFile::new(".softflowd"));
    let paths = files.each_ref().map(|file| name(file.path()));
    let both = [(None, 0), (Some(&dropin), 2)].map(|(dropin, at)| {
        let device = ["-d", "-D", "-i", pair.right.ifname.as_str()];
        let files = ["-p", paths[at], "-c", paths[at + 1]];
        let process = start(&pair, dropin, &program, &[device, files].concat());
        process
            .wait_stderr("starting data collection", LIMIT)
            .unwrap();
        process
    });
    send(&pair, &capture("lab-mix.pcapng"));
    pour(&pair, 1, 8000);
    let [theirs, ours] = both.map(|mut process| {
        process.wait_stderr(":4000 ", LIMIT).unwrap();
        process.kill().unwrap()
    });
    let theirs = flows(&theirs.stderr);
    assert!(theirs.len() > 100, "{theirs:?}");
    assert_eq!(flows(&ours.stderr), theirs);
}

/// The packets that argus has counted in its own records.
fn argus_count(file: &Path) -> u64 {
    let mut command = original("ra");
    command.args(["-L", "-1", "-n", "-r"]).arg(file);
    let output = command.args(["-s", "pkts", "-", "man"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter_map(|line| line.trim().parse::<u64>().ok())
        .sum()
}

#[test]
fn argus_records_flows_on_interfaces_as_with_the_original() {
    require!(
        skip::lab(),
        skip::program("argus", "argus-server"),
        skip::program("ra", "argus-client")
    );
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let program = which("argus").unwrap();
    let files = [(); 2].map(|()| TempFile::new(".argus"));
    let both = [(None, &files[0]), (Some(&dropin), &files[1])].map(|(dropin, file)| {
        // Its own record is written each second.
        let device = ["-X", "-i", &pair.right.ifname, "-M", "1"];
        let args = [&device[..], &["-w", name(file.path())]].concat();
        start(&pair, dropin, &program, &args)
    });
    for process in &both {
        process.wait_stderr("is up", LIMIT).unwrap();
    }
    let sockets = || std::fs::read_to_string("/proc/thread-self/net/packet").unwrap();
    let until = Instant::now() + LIMIT;
    // The sixth column: whether the socket receives packets.
    let receives = |line: &str| line.split_whitespace().nth(5) == Some("1");
    let receiving = |text: String| text.lines().filter(|line| receives(line)).count();
    while receiving(pair.right.ns.run(sockets).unwrap()) < 2 {
        assert!(Instant::now() < until, "{both:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    send(&pair, &vlan());
    let until = Instant::now() + LIMIT;
    for file in &files {
        while argus_count(file.path()) < VLAN_COUNT as u64 {
            assert!(Instant::now() < until, "{both:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let _ = both.map(interrupt);
    let fields = "proto saddr sport dir daddr dport spkts dpkts sbytes dbytes state";
    let [theirs, ours] = files.each_ref().map(|f| argus_records(f.path(), fields));
    assert!(theirs.len() > 10, "{theirs:?}");
    assert_eq!(ours, theirs);
}

/// Prints the packets of a device.
pub(crate) const SCAPY: &str = r#"
import sys
from scapy.all import *
conf.use_pcap = True
device, count, filter = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None
def ready(): print("ready", file=sys.stderr, flush=True)
for packet in sniff(iface=device, count=count, timeout=60, filter=filter, started_callback=ready):
    print(packet.wirelen or len(packet), packet.summary())
"#;

#[test]
fn scapy_captures_packets_as_with_the_original() {
    require!(skip::lab(), skip::program("scapy", "python3-scapy"));
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let ifname = pair.right.ifname.as_str();
    let mut running = Vec::new();
    for (device, count, filter) in [(ifname, "49", ""), (ifname, "29", "vlan and tcp")] {
        let args = ["-c", SCAPY, device, count, filter];
        let start = |dropin| start(&pair, dropin, Path::new(PYTHON), &args);
        running.push((count, [None, Some(&dropin)].map(start)));
    }
    for process in running.iter().flat_map(|(_, both)| both) {
        process.wait_stderr("ready", LIMIT).unwrap();
    }
    send(&pair, &vlan());
    for (count, both) in running {
        let [theirs, ours] = both.map(wait);
        assert_eq!(theirs.stdout.lines().count().to_string(), count);
        assert_eq!(ours.stdout, theirs.stdout);
    }
}
