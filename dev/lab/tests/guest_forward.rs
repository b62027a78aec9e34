//! In the guest: `barewire forward` between two cards that are driven in user space, with the
//! kernel's driver at both far ends.

mod forward;
mod vfio_card;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use forward::{Forward, LIMIT, number};
use lab::guest;
use lab::packet::{Raw, Udp, number_of};
use lab::process::Process;
use serde_json::Value;
use vfio_card::{Peer, VfioCard};

const COUNT: u64 = 1_000;

/// Lengths of untagged packets, each in turn.
fn len_of(number: u64) -> usize {
    60 + (number as usize * 7) % 1455
}

/// Two wires, and what passes packets from the one to the other.
struct Row {
    left: Peer,
    right: Peer,
    /// The cards between.
    cards: [VfioCard; 2],
}

impl Row {
    fn new(names: [&str; 4]) -> Row {
        Row {
            left: Peer::up(names[0], 1500),
            right: Peer::up(names[3], 1500),
            cards: [VfioCard::bind(names[1]), VfioCard::bind(names[2])],
        }
    }

    fn forward(&self, more: &[&str]) -> Forward {
        let [from, to] = self
            .cards
            .each_ref()
            .map(|card| format!("vfio:{}", card.address));
        let mut command = Command::new("barewire");
        command
            .args(["forward", "--json", &from, &to, "--both"])
            .args(more);
        let process = Process::spawn(&mut command).unwrap();
        process.wait_stderr("without a copy", LIMIT).unwrap();
        Forward { process }
    }
}

/// Sends numbered packets and checks each that comes: every byte, once. Until the links are up
/// nothing comes, so it begins again and again with a packet of another number.
fn passes(out: &Raw, into: &Raw, plan: &Udp) {
    const FIRST: u64 = u64::MAX;
    // For everybody: it is a card of the kernel's that it comes to in the end.
    let plan = &Udp {
        destination_mac: [0xff; 6],
        ..plan.clone()
    };
    let until = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < until, "no packet passes");
        let _ = out.send(&plan.build(FIRST, 60));
        let got = into.receive(Duration::from_millis(50)).unwrap();
        if got.is_some_and(|bytes| number_of(&bytes) == Ok(FIRST)) {
            break;
        }
    }
    let (mut sent, mut seen) = (0, BTreeSet::new());
    while (seen.len() as u64) < COUNT {
        assert!(Instant::now() < until, "{} of {COUNT} came", seen.len());
        while sent < COUNT && sent < seen.len() as u64 + 50 {
            out.send(&plan.build(sent, len_of(sent))).unwrap();
            sent += 1;
        }
        while let Some(bytes) = into.receive(Duration::from_millis(5)).unwrap() {
            match number_of(&bytes) {
                Ok(FIRST) | Err(_) => continue,
                Ok(number) => {
                    assert!(
                        bytes == plan.build(number, len_of(number)),
                        "packet {number}"
                    );
                    assert!(seen.insert(number), "packet {number} twice");
                }
            }
        }
    }
}

/// The account of the whole path: nothing copied, nothing dropped, nothing refused, and the cards'
/// own counters agree.
fn check(told: &Value) {
    for (from, way) in told["directions"].as_array().unwrap().iter().enumerate() {
        assert!(number(&way["forwarded"]) >= COUNT, "{told}");
        assert_eq!(way["received"], way["forwarded"], "{told}");
        assert_eq!(way["sent"], way["forwarded"], "{told}");
        assert_eq!(
            (&way["copied"], &way["failed"]),
            (&0.into(), &0.into()),
            "{told}"
        );
        let account = |port: usize| &told["ports"][port]["account"];
        assert_eq!(account(from)["interface_seen"], way["received"], "{told}");
        assert_eq!(account(1 - from)["interface_sent"], way["sent"], "{told}");
    }
}

fn both_ways(names: [&str; 4]) {
    let row = Row::new(names);
    let forward = row.forward(&[]);
    let (left, right) = (row.left.receiver(), row.right.receiver());
    let (from_left, from_right) = (row.left.sender(), row.right.sender());
    passes(&from_left, &right, &row.left.plan(&row.cards[0]));
    passes(&from_right, &left, &row.right.plan(&row.cards[1]));
    check(&forward.stop());
}

#[test]
fn packets_pass_between_two_cards_without_a_copy() {
    lab::require!(guest::inside());
    both_ways(["igb0", "igb1", "e1000-0", "e1000-1"]);
}

#[test]
fn and_between_an_igb_and_a_virtio_net() {
    lab::require!(guest::inside());
    let names = ["igb0", "igb1", "virtio0", "virtio1"];
    let row = Row::new(names);
    let forward = row.forward(&[]);
    let right = row.right.receiver();
    passes(&row.left.sender(), &right, &row.left.plan(&row.cards[0]));
    let told = forward.stop();
    let way = &told["directions"][0];
    assert!(number(&way["forwarded"]) >= COUNT, "{told}");
    assert_eq!(
        (&way["copied"], &way["failed"]),
        (&0.into(), &0.into()),
        "{told}"
    );
}
