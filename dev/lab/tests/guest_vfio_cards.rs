//! In the guest: the user-mode drivers of e1000 and virtio-net, each with the kernel's driver on
//! the other end of the wire. `virtio0` has packed queues, `virtio1` split ones.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::vfio_card::{Peer, VfioCard};
use lab::guest;
use lab::packet::{Raw, Udp, number_of};
use port::{Direction, Port, PortOptions};

const LIMIT: Duration = Duration::from_secs(60);

/// Lengths of untagged packets, each in turn.
fn len_of(number: u64) -> usize {
    60 + (number as usize * 7) % 1455
}

fn open(card: &VfioCard, more: &str, options: &PortOptions) -> Port {
    let name = format!("vfio:{}{more}", card.address);
    let options = PortOptions {
        direction: Direction::Both,
        ..options.clone()
    };
    port::open(&name, &options).unwrap_or_else(|e| panic!("{e}\nhint: {:?}", e.hint()))
}

fn fact(port: &Port, name: &str) -> String {
    let description = port.control.describe();
    let found = description.facts.iter().find(|(n, _)| *n == name);
    let missing = || panic!("no {name}: {description:?}");
    found.unwrap_or_else(missing).1.clone()
}

/// Receives pending packets: number and bytes of each packet of the test.
fn take(port: &mut Port, mut each: impl FnMut(usize, &port::Packet<'_>, Vec<u8>)) {
    for (queue, rx) in port.rx.iter_mut().enumerate() {
        let batch = rx.receive().unwrap();
        for packet in batch.iter() {
            let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
            each(queue, &packet, bytes);
        }
    }
}

/// Waits for a wire with the kernel's card at the far end: link up on both sides, and packets pass.
fn wait_for_wire(port: &mut Port, peer: &Peer, out: &Raw, plan: &Udp) {
    let until = Instant::now() + LIMIT;
    loop {
        let _ = out.send(&plan.build(u64::MAX, 60));
        port.rx[0].wait(Duration::from_millis(20)).unwrap();
        let mut seen = false;
        take(port, |_, _, bytes| {
            seen |= number_of(&bytes) == Ok(u64::MAX)
        });
        if seen {
            break;
        }
        assert!(Instant::now() < until, "no packet passes: {}", peer.ifname);
    }
    // What is still in flight.
    for _ in 0..20 {
        port.rx[0].wait(Duration::from_millis(5)).unwrap();
        take(port, |_, _, _| ());
    }
}

/// Receives packets from the kernel's card: every byte, once; by queue.
fn receive(
    port: &mut Port,
    out: &Raw,
    plan: &Udp,
    count: u64,
    len: impl Fn(u64) -> usize,
) -> Vec<u64> {
    let (mut sent, mut seen) = (0, BTreeSet::new());
    let mut by_queue = vec![0; port.rx.len()];
    let until = Instant::now() + LIMIT;
    while (seen.len() as u64) < count {
        if sent < count && sent < seen.len() as u64 + 100 {
            for _ in 0..25.min(count - sent) {
                out.send(&plan.build(sent, len(sent))).unwrap();
                sent += 1;
            }
        }
        for rx in &mut port.rx {
            rx.wait(Duration::from_millis(2)).unwrap();
        }
        take(port, |queue, packet, bytes| {
            let Ok(number) = number_of(&bytes) else {
                return;
            };
            let mut expected = plan.build(number, len(number));
            if let Some(vlan) = packet.vlan() {
                assert_eq!((vlan.tpid, Some(vlan.tci)), (0x8100, plan.vlan));
                expected.drain(12..16);
            }
            assert!(
                bytes == expected,
                "packet {number} of {} bytes",
                len(number)
            );
            assert_eq!(packet.wire_len() as usize, bytes.len());
            assert!(seen.insert(number), "packet {number} twice");
            by_queue[queue] += 1;
        });
        if Instant::now() >= until {
            panic!("{} of {count}: {:?}", seen.len(), port.control.account());
        }
    }
    by_queue
}

/// Sends packets to the kernel's card, on all queues in turn.
fn send(port: &mut Port, into: &Raw, plan: &Udp, count: u64, len: impl Fn(u64) -> usize) {
    let (mut sent, mut seen) = (0, BTreeSet::new());
    let until = Instant::now() + LIMIT;
    while (seen.len() as u64) < count {
        assert!(Instant::now() < until, "{} of {count}", seen.len());
        let queue = sent as usize % port.tx.len();
        if sent < count && sent < seen.len() as u64 + 100 {
            let tx = &mut port.tx[queue];
            let mut batch = tx.reserve(64).unwrap();
            for _ in 0..25.min(count - sent) {
                if !batch.write(&plan.build(sent, len(sent))) {
                    break;
                }
                sent += 1;
            }
            batch.submit().unwrap();
            tx.flush().unwrap();
        }
        while let Some(bytes) = into.receive(Duration::from_millis(1)).unwrap() {
            let Ok(number) = number_of(&bytes) else {
                continue;
            };
            assert!(bytes == plan.build(number, len(number)), "packet {number}");
            assert!(seen.insert(number), "packet {number} twice");
        }
    }
}

/// All tests of a card and its peer.
fn both_ways(name: &str, peer: &str, more: &str, check: impl Fn(&mut Port)) {
    let peer = Peer::up(peer, 9000);
    let card = VfioCard::bind(name);
    let mut port = open(&card, more, &PortOptions::default());
    let facts = port.control.describe().facts;
    println!("{name} at {}: {facts:?}", card.address);
    let plan = peer.plan(&card).flows(32);
    let (out, into) = (peer.sender(), peer.receiver());
    wait_for_wire(&mut port, &peer, &out, &plan);
    check(&mut port);
    let spread = receive(&mut port, &out, &plan, 2000, len_of);
    println!("{name}: by queue {spread:?}");
    let back = peer.plan_from(&card).flows(32);
    send(&mut port, &into, &back, 2000, len_of);
    // Larger than a frame, both ways.
    receive(&mut port, &out, &plan, 100, |number| {
        1500 + number as usize * 75
    });
    send(&mut port, &into, &back, 100, |number| {
        1500 + number as usize * 75
    });
    let plain = peer.plan(&card);
    is_woken(&mut port, &peer, &plain);
    stops(&mut port, &out, &plain);
    drop(port);

    // Opened again, it works again: nothing earlier is left in the card.
    let mut port = open(&card, more, &PortOptions::default());
    wait_for_wire(&mut port, &peer, &out, &plan);
    receive(&mut port, &out, &plan, 200, len_of);
    send(&mut port, &into, &back, 200, len_of);
    drop(port);
    works_in_the_kernel(card, &out, &plain);
}

/// Sleeps until the card's interrupt, and not longer.
fn is_woken(port: &mut Port, peer: &Peer, plain: &Udp) {
    let started = Instant::now();
    assert_eq!(
        port.rx[0].wait(Duration::from_millis(50)).unwrap(),
        port::Ready::Timeout
    );
    assert!(started.elapsed() >= Duration::from_millis(40));
    let sender = std::thread::spawn({
        let (packet, out) = (plain.build(7, 60), peer.sender());
        move || {
            std::thread::sleep(Duration::from_millis(200));
            out.send(&packet).unwrap();
        }
    });
    let mut woken = false;
    while !woken && started.elapsed() < LIMIT {
        for rx in &mut port.rx {
            rx.wait(Duration::from_millis(100)).unwrap();
        }
        take(port, |_, _, bytes| woken |= number_of(&bytes) == Ok(7));
    }
    sender.join().unwrap();
    assert!(woken, "the packet that was to wake us");
}

/// After the stop nothing more is received, and everything before is accounted for.
fn stops(port: &mut Port, out: &Raw, plain: &Udp) {
    port.control.stop().unwrap();
    for _ in 0..10 {
        take(port, |_, _, _| ());
    }
    for number in 0..20 {
        out.send(&plain.build(number, 60)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    take(port, |_, _, bytes| {
        panic!("{} bytes after the end", bytes.len())
    });
    let account = port.control.account().unwrap();
    println!("{account:?}");
    let total = account.rx_total();
    assert_eq!(total.imbalance(), 0, "{account:?}");
    assert_eq!(total.lost(), 0, "{account:?}");
    assert!(total.delivered >= 2101, "{account:?}");
    assert_eq!(
        (account.tx_total().sent, account.tx_total().failed),
        (2100, 0)
    );
}

/// The kernel's driver takes the card back.
fn works_in_the_kernel(card: VfioCard, out: &Raw, plain: &Udp) {
    let ours = Peer::up(&card.give_back(), 1500);
    let into = ours.receiver();
    let until = Instant::now() + LIMIT;
    loop {
        let _ = out.send(&plain.build(9, 60));
        match into.receive(Duration::from_millis(50)).unwrap() {
            Some(bytes) if number_of(&bytes) == Ok(9) => break,
            _ => assert!(
                Instant::now() < until,
                "the kernel's driver does not work again"
            ),
        }
    }
}

#[test]
fn e1000_carries_packets_both_ways() {
    lab::require!(guest::inside());
    both_ways("e1000-0", "e1000-1", "", |port| {
        assert_eq!(port.rx.len(), 1);
        assert_eq!(fact(port, "descriptors"), "legacy");
    });
}

#[test]
fn e1000_strips_vlan_tags() {
    lab::require!(guest::inside());
    let peer = Peer::up("e1000-1", 1500);
    let card = VfioCard::bind("e1000-0");
    let mut port = open(&card, "", &PortOptions::default());
    let mut plan = peer.plan(&card);
    let out = peer.sender();
    wait_for_wire(&mut port, &peer, &out, &plan);
    plan.vlan = Some(0x0123);
    receive(&mut port, &out, &plan, 200, |number| 64 + number as usize);
    assert!(port.capabilities.vlan);
}

#[test]
fn virtio_packed_carries_packets_both_ways() {
    lab::require!(guest::inside(), guest::two_queues());
    both_ways("virtio0", "virtio1", "?queues=2", |port| {
        assert_eq!(fact(port, "rings"), "packed");
        assert_eq!(port.rx.len(), 2);
    });
}

#[test]
fn virtio_split_carries_packets_both_ways() {
    lab::require!(guest::inside(), guest::two_queues());
    both_ways("virtio1", "virtio0", "?queues=2", |port| {
        assert_eq!(fact(port, "rings"), "split");
        assert_eq!(port.rx.len(), 2);
    });
}

#[test]
fn virtio_works_with_short_frames() {
    lab::require!(guest::inside());
    // Frames of 2048 bytes: large packets take more of them.
    let peer = Peer::up("virtio1", 9000);
    let card = VfioCard::bind("virtio0");
    let pool = ring::Pool::new(ring::PoolConfig {
        frame_count: 4096,
        frame_len: 2048,
        ..ring::PoolConfig::default()
    });
    let options = PortOptions {
        pool: Some(pool.unwrap()),
        ..PortOptions::default()
    };
    let mut port = open(&card, "?queues=1", &options);
    let plan = peer.plan(&card);
    let (out, into) = (peer.sender(), peer.receiver());
    wait_for_wire(&mut port, &peer, &out, &plan);
    receive(&mut port, &out, &plan, 300, |number| {
        60 + number as usize * 29
    });
    send(&mut port, &into, &peer.plan_from(&card), 300, |number| {
        60 + number as usize * 29
    });
}
