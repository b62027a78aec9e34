//! Object files of `barewire filter compile --object`: readelf reads them, and `ip` and `tc` load
//! them into the kernel, where they drop what the filter matches.

use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lab::oracle::TempFile;
use lab::packet::Raw;
use lab::process::{Process, barewire};
use lab::veth::{End, Pair, Veth};
use lab::{Finished, require, skip};

const LIMIT: Duration = Duration::from_secs(60);

fn compile(to: &str, file: &TempFile, args: &[&str]) -> Finished {
    let mut command = Command::new(barewire().unwrap());
    command.args(["filter", "compile", "--to", to, "--object"]);
    let mut process = Process::spawn(command.arg(file.path()).args(args)).unwrap();
    process.wait(LIMIT).unwrap()
}

fn object(to: &str, args: &[&str]) -> TempFile {
    let file = TempFile::new(".o");
    let finished = compile(to, &file, args).checked().unwrap();
    assert_eq!(finished.stdout, "", "the program is not printed");
    file
}

#[test]
fn readelf_finds_the_program_and_its_license() {
    require!(skip::program("readelf", "binutils"));
    for section in ["xdp", "tc", "socket"] {
        let file = object(section, &["udp", "port", "53"]);
        let mut command = Command::new("readelf");
        command.args(["--wide", "-h", "-S", "-s", "-p", "license"]);
        let mut process = Process::spawn(command.arg(file.path())).unwrap();
        let finished = process.wait(LIMIT).unwrap().checked().unwrap();
        assert_eq!(finished.stderr, "", "readelf warns");
        let text = finished.stdout;
        let machine = text.lines().find(|line| line.contains("Machine:")).unwrap();
        assert!(machine.contains("BPF"), "{text}");
        for part in [
            "REL (Relocatable file)",
            "Dual BSD/GPL",
            "FUNC    GLOBAL DEFAULT    1 filter",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let program = text.lines().find(|line| line.contains("[ 1]")).unwrap();
        assert!(
            program.contains(section) && program.contains("AX"),
            "{text}"
        );
    }
}

/// Sends to a port that the filter matches and to one that it does not: which ones arrive, in
/// their order.
fn arrived(pair: &Pair, ports: [u16; 2]) -> Vec<u16> {
    let end = &pair.right;
    let receiver = end.ns.run(|| {
        let sockets = ports.map(|port| UdpSocket::bind((end.ipv4, port)).unwrap());
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
        }
        sockets
    });
    let receiver = receiver.unwrap();
    let last = receiver[1].try_clone().unwrap();
    last.set_nonblocking(false).unwrap();
    last.set_read_timeout(Some(LIMIT)).unwrap();
    let sent = pair.left.ns.run(|| {
        let socket = UdpSocket::bind((pair.left.ipv4, 0)).unwrap();
        for port in ports {
            socket.send_to(b"hello", (end.ipv4, port)).unwrap();
        }
    });
    sent.unwrap();
    // The pair keeps the order: once the second is there, the first was dropped or is there.
    let mut found = Vec::new();
    let mut bytes = [0; 16];
    let is_there = last.recv(&mut bytes).is_ok();
    receiver[0].set_nonblocking(true).unwrap();
    if receiver[0].recv(&mut bytes).is_ok() {
        found.push(ports[0]);
    }
    if is_there {
        found.push(ports[1]);
    }
    found
}

fn ip(end: &End, args: &[&str]) {
    let name = end.ifname.as_str();
    end.ns
        .ip(["link", "set", "dev", name].iter().chain(args))
        .unwrap();
}

#[test]
fn ip_and_tc_load_objects_that_drop() {
    require!(skip::lab());
    require!(skip::program("tc", "iproute2"));
    let pair = Veth::new().create().unwrap();
    assert_eq!(arrived(&pair, [5300, 5400]), [5300, 5400]);
    let drop = object("xdp", &["udp", "dst", "port", "5300"]);
    let path = drop.path().to_str().unwrap();
    ip(&pair.right, &["xdp", "obj", path, "sec", "xdp"]);
    assert_eq!(arrived(&pair, [5300, 5400]), [5400]);
    ip(&pair.right, &["xdp", "off"]);
    assert_eq!(arrived(&pair, [5300, 5400]), [5300, 5400]);

    // The other way round: only what matches passes.
    let pass = object("xdp", &["--verdict", "pass", "udp", "dst", "port", "5400"]);
    let path = pass.path().to_str().unwrap();
    ip(&pair.right, &["xdp", "obj", path, "sec", "xdp"]);
    assert_eq!(arrived(&pair, [5300, 5400]), [5400]);
    ip(&pair.right, &["xdp", "off"]);

    let drop = object("tc", &["udp", "dst", "port", "5300"]);
    let path = drop.path().to_str().unwrap();
    let tc = |args: &[&str]| pair.right.ns.exec("tc", args).unwrap();
    let name = pair.right.ifname.as_str();
    tc(&["qdisc", "add", "dev", name, "clsact"]);
    let filter = ["filter", "add", "dev", name, "ingress", "bpf", "da"];
    tc(&[&filter[..], &["obj", path, "sec", "tc"]].concat());
    assert_eq!(arrived(&pair, [5300, 5400]), [5400]);
}

/// Number of packets that tc has dropped.
fn tc_dropped(end: &End) -> u64 {
    let stats = ["-s", "qdisc", "show", "dev", &end.ifname, "clsact"];
    let text = end.ns.exec("tc", stats).unwrap();
    let (_, after) = text.split_once("dropped ").unwrap();
    let digits = after.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}

#[test]
fn tc_objects_see_the_tag_that_the_kernel_keeps_outside_the_packet() {
    require!(skip::lab());
    require!(skip::program("tc", "iproute2"));
    let pair = Veth::new().create().unwrap();
    let drop = object("tc", &["vlan", "5", "and", "udp", "dst", "port", "5300"]);
    let end = &pair.right;
    let tc = |args: &[&str]| end.ns.exec("tc", args).unwrap();
    tc(&["qdisc", "add", "dev", &end.ifname, "clsact"]);
    let filter = ["filter", "add", "dev", &end.ifname, "ingress", "bpf", "da"];
    let path = drop.path().to_str().unwrap();
    tc(&[&filter[..], &["obj", path, "sec", "tc"]].concat());
    let packet = |tag: &[u8], port: u16| {
        let mut packet = [&end.mac[..], &pair.left.mac, tag, &[8, 0, 0x45, 0, 0, 28]].concat();
        packet.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(
            [0, 9]
                .into_iter()
                .chain(port.to_be_bytes())
                .chain([0, 8, 0, 0]),
        );
        packet
    };
    let tagged = |number| [0x81, 0, 0, number];
    let all = [
        packet(&[], 5300),
        packet(&tagged(5), 5400),
        packet(&tagged(6), 5300),
        packet(&tagged(5), 5300),
    ];
    let sent = pair.left.ns.run(|| {
        let sender = Raw::sender(&pair.left.ifname).unwrap();
        all.iter().for_each(|packet| sender.send(packet).unwrap());
    });
    sent.unwrap();
    // The pair keeps the order, so the others have been there when the last one is dropped.
    let began = Instant::now();
    while tc_dropped(end) == 0 && began.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(tc_dropped(end), 1);
}

#[test]
fn what_no_object_can_hold_is_refused() {
    let file = TempFile::new(".o");
    for (to, args, part) in [
        ("cbpf", &["udp"][..], "add --to xdp"),
        ("tc", &["--verdict", "pass", "udp"], "negate the filter"),
        ("xdp", &["--json", "udp"], "cannot be used with"),
    ] {
        let finished = compile(to, &file, args);
        assert_ne!(finished.code(), Some(0), "{to} {args:?}");
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
        assert!(!file.path().exists());
    }
}
