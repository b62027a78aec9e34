//! Object files of `barewire filter compile --object`: readelf reads them, and `ip` and `tc` load
//! them into the kernel, where they drop what the filter matches.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use lab::oracle::TempFile;
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
