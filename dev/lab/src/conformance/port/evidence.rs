//! What is told of a wire on which nothing arrives: what both cards have counted, and whether the
//! kernel's own packets get through. A card that does not work for the kernel either was handed
//! over like this; else it is the port.

use std::fmt::Write;
use std::net::UdpSocket;
use std::sync::Once;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{End, Pair, guest};

/// How long the host may take to look at the guest from outside; it ends a guest that the emulator
/// has failed.
const LOOK: Duration = Duration::from_secs(30);

/// Prints a few lines on both ends, where they are the kernel's, and has the host add what it sees.
/// Only the first time: those behind it would see the same.
pub(super) fn tell(pair: Option<&Pair>) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        if let Some(pair) = pair {
            print!("\n{}", inside(pair));
        }
        guest::ask_for_a_look();
        std::thread::sleep(LOOK);
    });
}

fn inside(pair: &Pair) -> String {
    let mut text = String::new();
    for end in [&pair.left, &pair.right] {
        let _ = writeln!(text, "{}: {}", end.ifname, interface(end));
        let _ = writeln!(text, "{}: {}", end.ifname, driver(end));
    }
    for line in interrupts() {
        let _ = writeln!(text, "interrupts: {line}");
    }
    for (from, to) in [(&pair.left, &pair.right), (&pair.right, &pair.left)] {
        let passes = match pass(from, to) {
            Ok(()) => "arrive".to_owned(),
            Err(error) => format!("do not arrive: {error:#}"),
        };
        let (from, to) = (&from.ifname, &to.ifname);
        let _ = writeln!(
            text,
            "the kernel's own packets from {from} to {to} {passes}"
        );
    }
    text
}

/// Flags, how often somebody asked for all packets, and the counters.
fn interface(end: &End) -> String {
    let told = end.link().and_then(|link| {
        let (flags, promiscuity) = (&link["flags"], &link["promiscuity"]);
        let counters = end.counters()?;
        Ok(format!("{flags}, promiscuity {promiscuity}, {counters:?}"))
    });
    told.unwrap_or_else(|error| format!("{error:#}"))
}

/// The driver's counters that are not 0, and its queues.
fn driver(end: &End) -> String {
    let mut text = String::new();
    match end.driver_counters() {
        Ok(counters) => {
            for (name, value) in counters.iter().filter(|(_, value)| **value != 0) {
                let _ = write!(text, "{name} {value}, ");
            }
        }
        Err(error) => text = format!("{error:#}, "),
    }
    match end.ns.exec("ethtool", ["-l", &end.ifname]) {
        Ok(channels) => {
            let now = channels
                .lines()
                .skip_while(|line| !line.starts_with("Current"));
            let words: Vec<_> = now.skip(1).flat_map(str::split_whitespace).collect();
            let _ = write!(text, "queues: {}", words.join(" "));
        }
        Err(error) => {
            let _ = write!(text, "queues: {error:#}");
        }
    }
    text
}

/// The lines of queues whose messages have names: how often each processor was interrupted.
fn interrupts() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let is_queue = |line: &&str| {
        ["-input", "-output", "-TxRx"]
            .iter()
            .any(|of| line.contains(of))
    };
    let lines = text.lines().filter(is_queue);
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Sends a datagram from socket to socket, a few times.
fn pass(from: &End, to: &End) -> Result<()> {
    let wait = Duration::from_millis(500);
    let receiver = to.ns.run(|| UdpSocket::bind((to.ipv4, 0)))??;
    receiver.set_read_timeout(Some(wait))?;
    let address = receiver.local_addr()?;
    let sender = from.ns.run(|| UdpSocket::bind((from.ipv4, 0)))??;
    let mut outcome = Ok(());
    for _ in 0..3 {
        sender.send_to(b"is anybody there", address)?;
        outcome = receiver.recv(&mut [0; 64]).map(drop);
        if outcome.is_ok() {
            break;
        }
    }
    outcome.context("none of three")
}
