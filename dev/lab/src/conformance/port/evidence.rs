//! Diagnostics of a wire on which nothing arrives: counters and interrupts of both cards, and
//! whether the kernel's own packets arrive when no port is open. If they do not either, the fault
//! is not the port's alone. If they do, it was the port's, or closing the port has reset the card.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::UdpSocket;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Error, Result};

use super::line::{LIMIT, Line};
use crate::{End, Pair, guest};

/// How long the host may take to examine the guest from outside; it ends a guest in which the
/// emulator has failed.
const LOOK_LIMIT: Duration = Duration::from_secs(40);

/// Prints the error and a few lines on both ends of a line whose ports are closed, if the kernel
/// drives them, and has the host add what it sees. Only the first time: later calls would see the
/// same.
pub(super) fn report(line: &Line, error: &Error) {
    static REPORTED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !reported.insert(line.rig.name) {
        return;
    }
    // Printed immediately: the host may end the guest.
    println!("\n{}: {error:#}", line.rig.name);
    if let Some(pair) = &line.pair {
        print!("{}", inside(pair));
    }
    guest::request_link_check();
    std::thread::sleep(LOOK_LIMIT);
}

fn inside(pair: &Pair) -> String {
    let mut text = String::new();
    for end in [&pair.left, &pair.right] {
        let _ = writeln!(text, "{}: {}", end.ifname, interface(end));
        let _ = writeln!(text, "{}: {}", end.ifname, driver(end));
    }
    for line in interrupts(pair) {
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

/// Flags, promiscuity count and counters.
fn interface(end: &End) -> String {
    let reported = end.link().and_then(|link| {
        let (flags, promiscuity) = (&link["flags"], &link["promiscuity"]);
        let counters = end.counters()?;
        Ok(format!("{flags}, promiscuity {promiscuity}, {counters:?}"))
    });
    reported.unwrap_or_else(|error| format!("{error:#}"))
}

/// The driver's nonzero counters, and its queues.
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

/// The interrupt counts of the cards' queues on each processor.
fn interrupts(pair: &Pair) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let names = [&pair.left.ifname, &pair.right.ifname];
    // virtio-net's interrupts are not named after the interface.
    let is_theirs = |line: &&str| {
        let is_virtio = line.contains("-input") || line.contains("-output");
        is_virtio || names.iter().any(|name| line.contains(*name))
    };
    text.lines()
        .filter(is_theirs)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Sends a datagram from socket to socket, a few times.
fn pass(from: &End, to: &End) -> Result<()> {
    // A card whose port was closed may need to bring its link up again.
    from.wait_up(LIMIT)?;
    to.wait_up(LIMIT)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Veth;

    #[test]
    fn evidence_shows_whether_packets_pass_a_wire() {
        crate::require!(crate::skip::lab());
        let pair = Veth::new().create().unwrap();
        pass(&pair.left, &pair.right).unwrap();
        pass(&pair.right, &pair.left).unwrap();
        let text = inside(&pair);
        assert!(text.matches("packets from").count() == 2, "{text}");
        assert!(!text.contains("do not arrive"), "{text}");
        pair.right
            .ns
            .exec("ip", ["address", "flush", "dev", &pair.right.ifname])
            .unwrap();
        assert!(pass(&pair.left, &pair.right).is_err());
    }
}
