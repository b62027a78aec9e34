//! `libpcap.so`: programs that send and wait for answers get the same answers as with the original.

use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use lab::dropin::Dropin;
use lab::oracle::write_pcap;
use lab::packet::{Raw, Udp};
use lab::process::{Finished, Process};
use lab::{Pair, Veth, require, skip};

use crate::pcap_programs::PYTHON;

const LIMIT: Duration = Duration::from_secs(300);

/// A pair whose right end answers each probe to a closed port.
fn pair() -> Pair {
    let pair = Veth::new().create().unwrap();
    let right = &pair.right.ns;
    right.sysctl("net/ipv4/icmp_ratelimit", "0").unwrap();
    // One for the whole machine on older kernels, where it cannot be set from a namespace.
    let _ = right.sysctl("net/ipv4/icmp_msgs_per_sec", "100000");
    pair
}

/// Runs a program at the left end with both libraries, one after the other: the original's comes
/// first.
fn both(pair: &Pair, dropin: &Dropin, program: &str, args: &[&str]) -> [Finished; 2] {
    let run = |mut command: Command| {
        command.args(args).env("TZ", "UTC").env("LC_ALL", "C");
        let mut process = Process::spawn(&mut command).unwrap();
        process.wait(LIMIT).unwrap()
    };
    let command = || pair.left.ns.command(program);
    let theirs = run(command());
    [theirs, run(dropin.with(command()))]
}

/// nmap's lines without those that have times.
fn results(finished: &Finished) -> Vec<&str> {
    let has_time = |line: &str| {
        [
            "Starting Nmap",
            "Host is up",
            "Nmap done",
            "Service detection",
        ]
        .iter()
        .any(|start| line.starts_with(start))
    };
    let lines = finished.stdout.lines();
    lines.filter(|line| !has_time(line)).collect()
}

#[test]
fn nmap_finds_hosts_ports_and_services_as_with_the_original() {
    require!(skip::lab(), skip::program("nmap", "nmap"));
    let dropin = Dropin::new().unwrap();
    let pair = pair();
    let host = pair.right.ipv4.to_string();
    let listener = pair.right.ns.run(|| TcpListener::bind("0.0.0.0:22"));
    let listener = listener.unwrap().unwrap();
    // It ends with the test process.
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
            thread::sleep(Duration::from_millis(200));
        }
    });
    for (args, expected) in [
        (&["-sn", "-PR"][..], "MAC Address: 02:"),
        (&["-sS", "--send-eth", "-p", "20-30"], "22/tcp open"),
        (&["-sS", "--send-ip", "-p", "20-30"], "22/tcp open"),
        (&["-sU", "--send-eth", "-p", "52-54"], "53/udp closed"),
        (&["-sO", "--send-eth", "-p", "1,6,17"], "1        open"),
        (&["-sS", "-sV", "--send-eth", "-p", "22"], "OpenSSH 9.2p1"),
        (&["-PE", "--traceroute", "-p", "22"], "TRACEROUTE"),
    ] {
        // Not the reasons: with -sO an answer to one probe may be taken for that to another.
        let args = [&["-n"], args, &[host.as_str()]].concat();
        let [theirs, ours] = both(&pair, &dropin, "nmap", &args);
        assert!(theirs.stdout.contains(expected), "{args:?} {theirs:?}");
        let without_times = |finished: &Finished| -> Vec<String> {
            // The last hop's round-trip time.
            let lines = results(finished).into_iter();
            lines
                .map(|line| match line.contains(" ms ") {
                    true => line.split_whitespace().last().unwrap_or("").to_owned(),
                    false => line.to_owned(),
                })
                .collect()
        };
        assert_eq!(
            without_times(&ours),
            without_times(&theirs),
            "{args:?} {ours:?}"
        );
        assert_eq!(ours.stderr, theirs.stderr, "{args:?}");
        assert_eq!(ours.code(), theirs.code());
    }
}

/// Hosts that do not exist and one that does, whose addresses are asked for by ARP; and the
/// fingerprint of the network stack, of which the values that the host draws are left out.
#[test]
fn nmap_identifies_the_stack_as_with_the_original() {
    require!(skip::lab(), skip::program("nmap", "nmap"));
    let dropin = Dropin::new().unwrap();
    let pair = pair();
    let host = pair.right.ipv4.to_string();
    let args = ["-n", "-sS", "-O", "--send-eth", "-p", "20-30", &host];
    let [theirs, ours] = both(&pair, &dropin, "nmap", &args);
    let distance = "Network Distance: 1 hop";
    assert!(theirs.stdout.contains(distance), "{theirs:?}");
    assert!(ours.stdout.contains(distance), "{ours:?}");
    let ports = |finished: &Finished| -> Vec<String> {
        let lines = finished.stdout.lines();
        let ports = lines.filter(|line| line.contains("/tcp") || line.contains("MAC Address"));
        ports.map(str::to_owned).collect()
    };
    assert_eq!(ports(&ours), ports(&theirs));
}

/// nping's packets in order of their text, without times and the identifications that the sender
/// and the host draw.
fn packets(finished: &Finished) -> Vec<String> {
    let lines = finished.stdout.lines();
    let packets = lines.filter(|line| line.starts_with("SENT") || line.starts_with("RCVD"));
    let without_times = packets.map(|line| {
        let (start, rest) = line.split_once(" (").unwrap_or((line, ""));
        let rest = rest.split_once(") ").map_or("", |(_, rest)| rest);
        let words = rest.split(' ').filter(|word| !word.starts_with("id="));
        format!("{start} {}", words.collect::<Vec<_>>().join(" "))
    });
    let mut packets: Vec<_> = without_times.collect();
    packets.sort();
    packets
}

#[test]
fn nping_gets_answers_as_with_the_original() {
    require!(skip::lab(), skip::program("nping", "nmap"));
    let dropin = Dropin::new().unwrap();
    let pair = pair();
    let host = pair.right.ipv4.to_string();
    let tcp = ["--tcp", "-p", "80", "--source-port", "4000", "--seq", "1"];
    for (args, received) in [
        (&tcp[..], "RCVD TCP"),
        (
            &[
                "--tcp",
                "--send-eth",
                "-p",
                "80",
                "-g",
                "4001",
                "--seq",
                "1",
            ],
            "RCVD TCP",
        ),
        (
            &["--udp", "-p", "9", "--source-port", "4000"],
            "Port unreachable",
        ),
        (&["--icmp", "--icmp-id", "7"], "Echo reply"),
        (&["--arp"], "ARP reply"),
    ] {
        let fixed = ["-c", "2", "--rate", "10", host.as_str()];
        let args = [args, &fixed].concat();
        let answers = |finished: &Finished| {
            let packets = packets(finished).into_iter();
            packets.filter(|line| line.contains(received)).count()
        };
        let sent = |finished: &Finished| {
            let packets = packets(finished).into_iter();
            packets
                .filter(|line| line.starts_with("SENT"))
                .collect::<Vec<_>>()
        };
        // nping ends a second after its last probe, whether it has read the answers or not. If it
        // gets no processor for 2 ms, it sends the second probe twice.
        let mut runs = (0..5).map(|_| both(&pair, &dropin, "nping", &args));
        let complete = runs.find(|runs| {
            let is_complete = runs.iter().all(|run| answers(run) == 2);
            is_complete && sent(&runs[0]) == sent(&runs[1])
        });
        let [theirs, ours] = complete.unwrap_or_else(|| panic!("{args:?}: no answers, five times"));
        assert_eq!(packets(&ours), packets(&theirs), "{args:?} {ours:?}");
        assert_eq!(ours.code(), theirs.code());
    }
}

/// Sends and receives through libpcap on both layers; prints the answers.
const SCAPY: &str = r#"
import sys
from scapy.all import *
conf.use_pcap, conf.verb = True, 0
device, mac, host = sys.argv[1:]
print(conf.L2listen.__name__, conf.L2socket.__name__, conf.L3socket.__name__)
def show(answer, text):
    print(answer.sprintf(text) if answer else None)
ether = Ether(dst=mac)
show(srp1(ether / ARP(pdst=host), iface=device, timeout=50), "%Ether.src% %ARP.op% %ARP.psrc%")
echo = IP(dst=host) / ICMP(id=7, seq=1) / b"abcdefgh"
show(srp1(ether / echo, iface=device, timeout=50), "%IP.src% %ICMP.type% %ICMP.seq% %Raw.load%")
probes = [ether / IP(dst=host) / TCP(sport=1000, dport=port) for port in range(20, 30)]
answered, unanswered = srp(probes, iface=device, timeout=50)
for probe, answer in answered:
    show(answer, "%TCP.sport% %TCP.flags% %TCP.ack%")
print(len(unanswered))
show(sr1(IP(dst=host) / UDP(sport=1000, dport=9) / b"x", iface=device, timeout=50),
     "%IP.src% %ICMP.type% %ICMP.code%")
"#;

#[test]
fn scapy_sends_and_gets_answers_as_with_the_original() {
    require!(skip::lab(), skip::program("scapy", "python3-scapy"));
    let dropin = Dropin::new().unwrap();
    let pair = pair();
    let mac = pair.right.mac.map(|byte| format!("{byte:02x}")).join(":");
    let host = pair.right.ipv4.to_string();
    let args = ["-c", SCAPY, &pair.left.ifname, &mac, &host];
    let [theirs, ours] = both(&pair, &dropin, PYTHON, &args);
    assert_eq!(theirs.stdout.lines().count(), 15, "{theirs:?}");
    assert!(!theirs.stdout.contains("None"), "{theirs:?}");
    assert_eq!(ours.stdout, theirs.stdout, "{ours:?}");
    assert_eq!(ours.code(), theirs.code());
}

/// tcpreplay reads by libpcap, and sends what it has read.
#[test]
fn tcpreplay_sends_captures_as_with_the_original() {
    require!(skip::lab(), skip::program("tcpreplay", "tcpreplay"));
    let dropin = Dropin::new().unwrap();
    let pair = pair();
    let udp = Udp::between(&pair.left, &pair.right).flows(7);
    let sent: Vec<_> = (0..100)
        .map(|number| udp.build(number, 60 + number as usize * 10))
        .collect();
    let file = write_pcap(&sent).unwrap();
    let path = file.path().to_str().unwrap();
    let right = &pair.right;
    let socket = right.ns.run(|| Raw::open(&right.ifname)).unwrap().unwrap();
    let args = ["-q", "-t", "-i", &pair.left.ifname, path];
    let [theirs, ours] = both(&pair, &dropin, "tcpreplay", &args);
    for finished in [&theirs, &ours] {
        assert!(finished.success(), "{finished:?}");
        let text = "Actual: 100 packets";
        assert!(finished.stdout.contains(text), "{finished:?}");
    }
    for packet in sent.iter().chain(&sent) {
        let received = socket.receive(LIMIT).unwrap();
        assert_eq!(received.as_ref(), Some(packet), "{ours:?}");
    }
}
