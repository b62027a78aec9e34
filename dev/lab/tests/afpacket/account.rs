//! Accounts compared with independent counters; privileges; link changes.

use std::sync::mpsc::channel;

use lab::packet::number_of;
use lab::{Veth, skip};
use port::{DropReason, PortEvent};
use sys::ErrorKind;
use sys::privileges::{Capability, drop_privileges};

use super::common::*;

/// The reader stalls while far more packets arrive than fit: the interface's count equals delivered
/// plus lost, to the packet, in each queue and in total.
#[test]
fn overload_is_accounted_for_to_the_packet() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair).flows(64), sender(&pair.left));
    for (queues, bytes) in [(1, 16_384), (1, 262_144), (3, 65_536)] {
        let query = format!("outgoing=no&queues={queues}&ring_bytes={bytes}");
        let mut port = open(&pair.right, &query);
        let before = pair.right.counters().unwrap();
        let mut got = 0;
        for number in 0..20_000 {
            sender.send(&plan.build(number, 100)).unwrap();
            // A reader that reads one batch from time to time.
            if number % 3000 == 2999 {
                for rx in &mut port.rx {
                    got += rx.receive().unwrap().len();
                }
            }
        }
        let crossed = pair.right.counters().unwrap().since(&before).rx_packets;
        assert_eq!(crossed, 20_000);
        let full = port.control.account().unwrap();
        assert_eq!(
            (full.rx_total().imbalance(), full.rx_total().seen),
            (0, crossed),
            "{full:?}"
        );
        assert!(full.rx_total().in_flight > 0, "{full:?}");
        got += receive(&mut port, usize::MAX, |_, _| ());
        let account = port.control.account().unwrap();
        for queue in &account.rx {
            assert_eq!((queue.imbalance(), queue.in_flight), (0, 0), "{queue:?}");
        }
        let total = account.rx_total();
        assert_eq!(
            (total.seen, total.delivered),
            (crossed, got as u64),
            "{query}"
        );
        let lost = total.dropped[DropReason::RingFull as usize];
        assert_eq!(
            (lost, total.lost()),
            (crossed - got as u64, lost),
            "{query}"
        );
        assert!(lost > 0, "{query}: no overload");
        assert_eq!(account.interface_seen, Some(crossed));
        assert!(
            port.rx
                .iter()
                .map(|rx| rx.counters().delivered.get())
                .sum::<u64>()
                == got as u64
        );
    }
}

/// A full ring is used again once it is read: the loss is a gap, not the end.
#[test]
fn the_ring_works_after_an_overload() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    let mut port = open(&pair.right, "outgoing=no&ring_bytes=65536&snaplen=256");
    let (mut number, mut delivered) = (0, 0);
    for _ in 0..20 {
        for _ in 0..1000 {
            sender.send(&plan.build(number, 200)).unwrap();
            number += 1;
        }
        let mut last = None;
        delivered += receive(&mut port, usize::MAX, |_, packet| {
            let number = number_of(packet.bytes()).unwrap();
            assert!(Some(number) > last, "{number} after {last:?}");
            last = Some(number);
        });
    }
    let account = port.control.account().unwrap().rx_total();
    assert_eq!(
        (account.seen, account.imbalance(), account.in_flight),
        (20_000, 0, 0)
    );
    assert_eq!(account.delivered, delivered as u64);
    // At least the ring's capacity was delivered each time.
    assert!(delivered > 20 * 100, "{account:?}");
}

/// Read by another thread at any time, the counts never contradict each other by more than what is
/// in flight.
#[test]
fn the_account_can_be_read_while_packets_flow() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    let mut port = open(&pair.right, "outgoing=no&snaplen=256");
    let mut rx = port.rx.pop().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut before = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..50_000 {
                sender.send(&plan.build(number, 64)).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Release);
        });
        let reader = scope.spawn(|| {
            let mut got = 0;
            let sending = || !stop.load(std::sync::atomic::Ordering::Acquire);
            let mut empty = 0;
            while sending() || empty < 40 {
                let batch = rx.receive().unwrap();
                got += batch.len() as u64;
                empty = if batch.is_empty() { empty + 1 } else { 0 };
                drop(batch);
                rx.wait(CHECK_INTERVAL).unwrap();
            }
            got
        });
        while !stop.load(std::sync::atomic::Ordering::Acquire) {
            let account = port.control.account().unwrap().rx_total();
            assert!(
                account.seen >= before,
                "seen went back: {account:?}, before {before}"
            );
            before = account.seen;
            let off = account.imbalance().abs();
            assert!(
                off <= 5000,
                "{off} packets are in no column or in two: {account:?}"
            );
        }
        assert_eq!(reader.join().unwrap(), 50_000);
    });
    let account = port.control.account().unwrap().rx_total();
    assert_eq!(
        (account.seen, account.delivered, account.imbalance()),
        (50_000, 50_000, 0)
    );
}

/// What is still in the ring when its reader is dropped is counted as such.
#[test]
fn a_closed_queue_accounts_for_unread_packets() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    let mut port = open(&pair.right, "outgoing=no&batch=10");
    for number in 0..100 {
        sender.send(&plan.build(number, 64)).unwrap();
    }
    port.rx[0].wait(LIMIT).unwrap();
    // Fewer than a batch if the kernel released the first block while the others were sent.
    let received = port.rx[0].receive().unwrap().len() as u64;
    assert!((1..=10).contains(&received), "{received}");
    port.rx.clear();
    for number in 0..100 {
        sender.send(&plan.build(number, 64)).unwrap();
    }
    let account = port.control.account().unwrap().rx_total();
    assert_eq!(
        account.dropped[DropReason::Closed as usize],
        100 - received,
        "{account:?}"
    );
    assert_eq!((account.seen, account.imbalance()), (100, 0), "{account:?}");
}

/// Privileges are dropped after opening: receiving, sending, the account, events and stopping still
/// work.
#[test]
fn an_open_tap_works_without_privileges() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    let name = name(&pair.right, "queues=2&outgoing=no");
    // Meanwhile a privileged process changes the interface.
    let ((ask, asked), (tell, reported)) = (channel(), channel());
    let body = move || {
        let options = PortOptions {
            direction: port::Direction::Both,
            filter: bpf::cbpf::Program::new(vec![bpf::cbpf::Insn::new(6, 0, 0, 9000)]).ok(),
            ..PortOptions::default()
        };
        let mut port = port::open(&name, &options).unwrap();
        drop_privileges(None, &[]).unwrap();
        let error = port::open(&name, &options).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        assert!(error.hint().unwrap().contains("cap_net_raw"), "{error}");
        for number in 0..50 {
            sender.send(&plan.build(number, 64)).unwrap();
        }
        assert_eq!(collect(&mut port).len(), 50);
        let mut batch = port.tx[0].reserve(3).unwrap();
        assert!(batch.write(&plan.build(0, 64)));
        batch.submit().unwrap();
        port.tx[0].flush().unwrap();
        ask.send(()).unwrap();
        reported.recv().unwrap();
        assert_eq!(port.control.event(), Some(PortEvent::MtuChanged(1400)));
        port.control.stop().unwrap();
        sender.send(&plan.build(51, 64)).unwrap();
        assert_eq!(collect(&mut port).len(), 0);
        let account = port.control.account().unwrap();
        assert_eq!(account.rx_total().seen, 50);
        assert_eq!(
            (account.rx_total().imbalance(), account.tx_total().sent),
            (0, 1)
        );
    };
    std::thread::scope(|scope| {
        let unprivileged = scope.spawn(|| pair.right.ns.run(body).unwrap());
        if asked.recv().is_ok() {
            pair.right.set_mtu(1400).unwrap();
            tell.send(()).unwrap();
        }
        unprivileged.join().unwrap();
    });
}

/// CAP_NET_RAW alone suffices to open a tap.
#[test]
fn net_raw_suffices_for_a_tap() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let name = format!("afpacket:{}", pair.right.ifname);
    let opened = pair.right.ns.run(|| {
        drop_privileges(None, &[Capability::NetRaw]).unwrap();
        port::open(&name, &PortOptions::default()).map(drop)
    });
    opened.unwrap().unwrap();
}

/// The link flaps while packets arrive: those that crossed are all received, once, and the account
/// is exact.
#[test]
fn packets_are_captured_once_across_link_flaps() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    let mut port = open(&pair.right, "outgoing=no");
    let before = pair.right.counters().unwrap();
    let (mut seen, mut events) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        // What it sends while the link is down is refused.
        let _flood = Flood::begin(scope, &sender, &plan);
        for _ in 0..8 {
            receive(&mut port, 500, |_, packet| {
                seen.push(number_of(packet.bytes()).unwrap())
            });
            pair.right.set_down().unwrap();
            receive(&mut port, usize::MAX, |_, packet| {
                seen.push(number_of(packet.bytes()).unwrap());
            });
            pair.right.set_up().unwrap();
        }
    });
    receive(&mut port, usize::MAX, |_, packet| {
        seen.push(number_of(packet.bytes()).unwrap())
    });
    events.extend(std::iter::from_fn(|| port.control.event()));
    assert!(
        seen.is_sorted() && seen.windows(2).all(|pair| pair[0] < pair[1]),
        "order"
    );
    assert!(seen.len() > 8 * 500);
    let downs = events
        .iter()
        .filter(|event| **event == PortEvent::LinkDown)
        .count();
    let ups = events
        .iter()
        .filter(|event| **event == PortEvent::LinkUp)
        .count();
    assert_eq!((downs, ups), (8, 8), "{events:?}");
    let account = port.control.account().unwrap().rx_total();
    assert_eq!(
        (account.imbalance(), account.in_flight),
        (0, 0),
        "{account:?}"
    );
    assert_eq!(account.delivered, seen.len() as u64);
    // A packet in the stack's queue when the link goes down is counted by the interface and not
    // delivered: at most what that queue holds, eight times.
    let crossed = pair.right.counters().unwrap().since(&before).rx_packets;
    assert!(
        account.seen <= crossed && crossed - account.seen <= 8 * 1000,
        "{crossed}: {account:?}"
    );
}

/// Deleted while the link is down, when the kernel reports nothing to the socket.
#[test]
fn deletion_while_down_is_noticed() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "");
    pair.right.set_down().unwrap();
    port.rx[0].wait(Duration::from_millis(30)).unwrap();
    assert!(port.rx[0].receive().unwrap().is_empty());
    pair.right.delete().unwrap();
    let started = Instant::now();
    let error = loop {
        assert!(started.elapsed() < LIMIT);
        if let Err(error) = port.rx[0].wait(LIMIT) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Gone);
    let events: Vec<_> = std::iter::from_fn(|| port.control.event()).collect();
    assert_eq!(events, [PortEvent::LinkDown, PortEvent::DeviceGone]);
}
