//! `barewire extcap` as used by Wireshark: the installed tshark lists the interfaces and captures
//! on them, and a capture ends when the reader closes the pipe.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

use crate::capture::{Folder, LIMIT};
use lab::packet::{Raw, Udp};
use lab::process::{Process, barewire};
use lab::{Pair, Veth, skip};

fn send(pair: &Pair, count: u64) {
    let mut plan = Udp::between(&pair.left, &pair.right);
    plan.destination_mac[5] ^= 0x40;
    let sender = pair
        .left
        .ns
        .run(|| Raw::sender(&pair.left.ifname))
        .unwrap()
        .unwrap();
    for number in 0..count {
        sender.send(&plan.build(number, 200)).unwrap();
    }
}

/// A home directory with the shipped wrapper, which starts the binary of this build.
fn extcap_folder() -> Folder {
    let folder = Folder::new();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/barewire-extcap");
    let text = std::fs::read_to_string(shipped).unwrap();
    assert!(text.contains("exec barewire extcap"), "{text}");
    let text = text.replace(
        "exec barewire",
        &format!("exec {}", barewire().unwrap().display()),
    );
    // Where Wireshark 4.0 looks for a user's extcaps.
    let place = folder.at(".config/wireshark/extcap");
    std::fs::create_dir_all(&place).unwrap();
    let path = place.join("barewire-extcap");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn tshark_lists_the_interfaces_and_captures() {
    lab::require!(skip::lab(), skip::program("tshark", "tshark"));
    let pair = Veth::new().create().unwrap();
    let folder = extcap_folder();
    let name = format!("barewire-{}", pair.right.ifname);
    let tshark = |args: &[&str]| {
        let mut command = pair.right.ns.command("tshark");
        command.env("HOME", folder.path()).args(args);
        command
    };
    let listed = tshark(&["-D"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains(&name), "{listed}");
    let types = tshark(&["-L", "-i", &name]).output().unwrap();
    let printed = String::from_utf8_lossy(&types.stdout) + String::from_utf8_lossy(&types.stderr);
    assert!(printed.contains("EN10MB"), "{printed}");

    let mut command = tshark(&["-n", "-l", "-i", &name, "-f", "udp", "-c", "5"]);
    command.args(["-T", "fields", "-e", "frame.len"]);
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("Capturing on", LIMIT).unwrap();
    // The capture starts after that line: packets are sent until tshark has its five.
    let until = Instant::now() + LIMIT;
    while process.running().unwrap() && Instant::now() < until {
        send(&pair, 5);
        std::thread::yield_now();
    }
    let result = process.wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(result.stdout, "200\n".repeat(5));
    // tshark shows output of an extcap there as an error.
    assert!(!result.stderr.contains("extcap pipe"), "{}", result.stderr);
}

#[test]
fn a_capture_ends_when_the_pipe_is_closed() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new();
    let fifo = folder.at("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let mut command = pair.right.ns.command(barewire().unwrap());
    let name = format!("barewire-{}", pair.right.ifname);
    command.args(["extcap", "--capture", "--extcap-interface", &name, "--fifo"]);
    let mut process = Process::spawn(command.arg(&fifo)).unwrap();
    let mut reader = File::open(&fifo).unwrap();
    let mut start = [0; 4];
    reader.read_exact(&mut start).unwrap();
    assert_eq!(
        start,
        0x0a0d_0d0a_u32.to_le_bytes(),
        "a section header of pcapng"
    );
    assert!(process.running().unwrap());
    // No packet arrives: the closed pipe itself is detected.
    drop(reader);
    let result = process.wait(LIMIT).unwrap();
    assert!(result.success(), "{}", result.stderr);
    assert_eq!(result.stderr, "");
}
