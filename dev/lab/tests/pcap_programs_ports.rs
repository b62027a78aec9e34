//! `libpcap.so` on ports of barewire: programs see what they see with the original on an interface.

use std::path::Path;

use lab::dropin::Dropin;
use lab::oracle::read_pcap;
use lab::process::Process;
use lab::skip::which;
use lab::{Veth, require, skip};

use crate::cluster_live::{Cluster, unique};
use crate::export::Folder;
use crate::pcap_programs::PYTHON;
use crate::pcap_programs_live::{
    FIELDS, LIMIT, SCAPY, capture, last, plain_dumpcap, send, start, vlan, wait, wait_unprivileged,
};

/// ngrep's output without its first line, which has the device and its network.
fn without_device(stdout: &str) -> &str {
    match stdout.starts_with("interface: ") {
        true => stdout.split_once('\n').map_or("", |(_, rest)| rest),
        false => stdout,
    }
}

/// Waits until a program captures with its filter.
fn wait_ready(program: &str, process: &Process) {
    let text = match program {
        "ngrep" => return wait_unprivileged(process),
        "tcpdump" => "listening on",
        "tshark" | "dumpcap" => "File: ",
        _ => "ready",
    };
    process.wait_stderr(text, LIMIT).unwrap();
}

/// Programs with the original on an interface, and with this build's library on a queue of a
/// cluster that reads the same interface. The filter finds tags that the kernel has removed.
#[test]
fn programs_on_a_queue_of_a_cluster_see_what_they_see_on_the_interface() {
    require!(
        skip::lab(),
        skip::program("tshark", "tshark"),
        skip::program("ngrep", "ngrep"),
        skip::program("tcpdump", "tcpdump"),
        plain_dumpcap()
    );
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let port = format!("afpacket:{}", pair.right.ifname);
    let folder = Folder::new("queue");
    let files = ["theirs.pcap", "ours.pcap"].map(|file| folder.file(file));
    let mut packets = vlan();
    packets.push(last(&pair));
    let tshark = [FIELDS, &["-c", "29", "-f", "vlan and tcp", "-i"]].concat();
    let tcpdump = "-nn -t -e -l -c 30 -i";
    let tcpdump: Vec<_> = tcpdump.split(' ').collect();
    // Each command ends with the option of the device; tcpdump's filter comes after that.
    for (program, args, filter) in [
        ("tshark", &tshark[..], None),
        (
            "dumpcap",
            &["-q", "-P", "-c", "50", "-w", "FILE", "-i"],
            None,
        ),
        (
            "tcpdump",
            &tcpdump,
            Some("udp dst port 9 or (vlan and tcp)"),
        ),
        (
            "ngrep",
            &["-l", "-q", "-x", "-n", "5", "", "udp", "-d"],
            None,
        ),
    ] {
        let cluster = unique();
        let running = Cluster::start_in(&pair.right.ns, &cluster, &[&port]);
        let queue = format!("ring:{cluster}/0");
        let devices = [pair.right.ifname.as_str(), &queue];
        let program_path = which(program).unwrap();
        let both = [(None, 0), (Some(&dropin), 1)].map(|(dropin, at)| {
            let args = args.iter().map(|arg| match *arg {
                "FILE" => files[at].as_str(),
                arg => arg,
            });
            let args: Vec<_> = args.chain([devices[at]]).chain(filter).collect();
            start(&pair, dropin, &program_path, &args)
        });
        both.iter().for_each(|process| wait_ready(program, process));
        send(&pair, &packets);
        let [theirs, ours] = both.map(wait);
        let [theirs_text, ours_text] = [&theirs, &ours].map(|f| without_device(&f.stdout));
        assert_eq!(ours_text, theirs_text, "{program}");
        match program {
            "dumpcap" => {
                let [theirs, ours] = files.each_ref().map(|f| read_pcap(Path::new(f)).unwrap());
                assert_eq!(theirs.len(), 50);
                assert_eq!(ours, theirs);
            }
            _ => assert!(theirs_text.lines().count() >= 20, "{program} {theirs:?}"),
        }
        running.stop();
    }
}

/// AF_XDP takes the packets, so the original sees them first, on the interface.
#[test]
fn programs_on_af_xdp_see_what_they_see_on_the_interface() {
    require!(
        skip::lab(),
        skip::program("ngrep", "ngrep"),
        skip::program("tcpdump", "tcpdump"),
        skip::program("scapy", "python3-scapy")
    );
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let packets = capture("lab-mix.pcapng");
    let scapy = ["-c", SCAPY];
    for (program, before, after) in [
        (PYTHON, &scapy[..], &["300", "tcp"][..]),
        ("ngrep", &["-q", "-x", "-n", "50", "-d"], &["", "udp"]),
        ("tcpdump", &["-t", "-nn", "-c", "90", "-i"], &["ip6"]),
    ] {
        let run = |dropin: Option<&Dropin>, device: &str| {
            let args = [before, &[device], after].concat();
            let process = start(&pair, dropin, &which(program).unwrap(), &args);
            wait_ready(program, &process);
            send(&pair, &packets);
            wait(process).stdout
        };
        let theirs = run(None, &pair.right.ifname);
        assert!(theirs.lines().count() > 80, "{program} {theirs}");
        let ours = run(Some(&dropin), &format!("afxdp:{}", pair.right.ifname));
        assert_eq!(without_device(&ours), without_device(&theirs), "{program}");
    }
}
