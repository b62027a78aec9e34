//! In the guest: `barewire forward` between two cards driven in user space, with the kernel's
//! driver at both far ends.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::forward::{Forward, LIMIT, number};
use crate::vfio_card::{Peer, VfioCard};
use lab::guest;
use lab::packet::{Raw, Udp, number_of};
use lab::process::Process;
use serde_json::Value;

const COUNT: u64 = 1_000;

/// Lengths of untagged packets, each in turn.
fn len_of(number: u64) -> usize {
    60 + (number as usize * 7) % 1455
}

/// Two wires, and the cards between which packets are forwarded.
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
        process.wait_stderr(", zero-copy", LIMIT).unwrap();
        Forward { process }
    }
}

/// Sends numbered packets and checks every byte of each packet received, once. Until the links are
/// up nothing arrives, so it is repeated with packets of other numbers.
fn passes(out: &Raw, into: &Raw, plan: &Udp) {
    const FIRST: u64 = u64::MAX;
    // For all candidates: the last card is driven by the kernel.
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

/// Everything received was forwarded, and nothing was copied or refused.
fn check_way(way: &Value) {
    assert!(number(&way["forwarded"]) >= COUNT, "{way}");
    assert_eq!(way["received"], way["forwarded"], "{way}");
    assert_eq!(way["sent"], way["forwarded"], "{way}");
    let none = (&0.into(), &0.into());
    assert_eq!((&way["copied"], &way["failed"]), none, "{way}");
}

/// The account of the whole path: nothing copied, dropped or refused, and the cards' own counters
/// agree, if they count.
fn check(reported: &Value, counts: [bool; 2]) {
    let ways = reported["directions"].as_array().unwrap();
    assert_eq!(ways.len(), 2, "{reported}");
    for (from, way) in ways.iter().enumerate() {
        check_way(way);
        let account = |port: usize| &reported["ports"][port]["account"];
        let (seen, sent) = (
            &account(from)["interface_seen"],
            &account(1 - from)["interface_sent"],
        );
        assert_eq!(seen.is_null(), !counts[from], "{reported}");
        assert!(seen.is_null() || *seen == way["received"], "{reported}");
        assert_eq!(sent.is_null(), !counts[1 - from], "{reported}");
        assert!(sent.is_null() || *sent == way["sent"], "{reported}");
    }
}

fn both_ways(names: [&str; 4], counts: [bool; 2]) {
    let row = Row::new(names);
    let forward = row.forward(&[]);
    let (left, right) = (row.left.receiver(), row.right.receiver());
    let (from_left, from_right) = (row.left.sender(), row.right.sender());
    passes(&from_left, &right, &row.left.plan(&row.cards[0]));
    passes(&from_right, &left, &row.right.plan(&row.cards[1]));
    check(&forward.stop(), counts);
}

#[test]
fn packets_pass_between_two_cards_without_a_copy() {
    lab::require!(guest::inside());
    both_ways(["igb0", "igb1", "e1000-0", "e1000-1"], [true, true]);
}

#[test]
fn packets_pass_between_an_igb_and_a_virtio_net() {
    lab::require!(guest::inside());
    both_ways(["igb0", "igb1", "virtio0", "virtio1"], [true, false]);
}

#[test]
fn packets_that_a_filter_rejects_are_not_captured() {
    lab::require!(guest::inside(), guest::libpcap());
    const OTHERS: u64 = 200;
    // The kernel has one transmit queue on an e1000: its packets stay in order.
    let row = Row::new(["e1000-0", "e1000-1", "igb0", "igb1"]);
    let forward = row.forward(&["udp dst port 9"]);
    let right = row.right.receiver();
    let out = row.left.sender();
    let plan = Udp {
        destination_mac: [0xff; 6],
        ..row.left.plan(&row.cards[0])
    };
    let others = Udp {
        destination_port: 10,
        ..plan.clone()
    };
    passes(&out, &right, &plan);
    // Now that the links are up; the packet after them shows when they have been processed.
    for number in 0..OTHERS {
        out.send(&others.build(number, 100)).unwrap();
    }
    out.send(&plan.build(COUNT, 100)).unwrap();
    let until = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < until, "the last packet never came");
        let Some(bytes) = right.receive(Duration::from_millis(50)).unwrap() else {
            continue;
        };
        if number_of(&bytes).is_err() || number_of(&bytes) == Ok(u64::MAX) {
            continue;
        }
        assert_eq!(bytes, plan.build(COUNT, 100), "something else came");
        break;
    }
    let reported = forward.stop();
    let way = &reported["directions"][0];
    assert_eq!(way["received"], way["forwarded"], "{reported}");
    assert_eq!(way["copied"], 0, "{reported}");
    let account = &reported["ports"][0]["account"];
    let filtered = number(&account["total"]["dropped"]["filter"]);
    assert_eq!(filtered, OTHERS, "{reported}");
    let seen = number(&account["interface_seen"]);
    assert_eq!(seen, number(&way["received"]) + OTHERS, "{reported}");
}

/// A card driven by the kernel, with zero-copy AF_XDP, and one driven in user space: both use one
/// pool.
#[test]
fn a_card_in_user_space_and_af_xdp_share_their_frames() {
    lab::require!(guest::inside());
    let (left, right) = (Peer::up("igb1", 1500), Peer::up("e1000-1", 1500));
    let (kernel, card) = (Peer::up("igb0", 1500), VfioCard::bind("e1000-0"));
    let mut command = Command::new("barewire");
    let [from, to] = [
        "afxdp:igb0?bind=zero-copy".into(),
        format!("vfio:{}", card.address),
    ];
    command.args(["forward", "--json", &from, &to, "--both"]);
    let process = Process::spawn(&mut command).unwrap();
    process.wait_stderr(", zero-copy", LIMIT).unwrap();
    let forward = Forward { process };
    let (from_left, from_right) = (left.sender(), right.sender());
    passes(&from_left, &right.receiver(), &left.plan(&card));
    passes(&from_right, &left.receiver(), &right.plan(&card));
    let reported = forward.stop();
    for way in reported["directions"].as_array().unwrap() {
        check_way(way);
    }
    drop(kernel);
}
