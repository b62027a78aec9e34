//! Sending through `afxdp:`, and forwarding from port to port.

use std::time::{Duration, Instant};

use crate::afxdp::{self, LIMIT, fact, open, receiver, sender};
use lab::packet::{self, Udp};
use lab::process::barewire;
use lab::{Pair, Veth, require, skip};
use port::{AttachMode, Direction, PortOptions, TxQueue};
use ring::{Pool, PoolConfig};
use sys::ErrorKind;

fn sending() -> PortOptions {
    PortOptions {
        direction: Direction::Tx,
        ..PortOptions::default()
    }
}

/// Sends packets from `from` on with these lengths, as many per batch as there is room for.
fn send_all(tx: &mut TxQueue, udp: &Udp, from: u64, lengths: &[usize]) {
    let until = Instant::now() + LIMIT;
    let mut at = 0;
    while at < lengths.len() {
        assert!(Instant::now() < until);
        let mut batch = tx.reserve(64).unwrap();
        while at < lengths.len() && batch.write(&udp.build(from + at as u64, lengths[at])) {
            at += 1;
        }
        batch.submit().unwrap();
        tx.flush().unwrap();
        tx.wait(false, Duration::from_secs(1)).unwrap();
    }
    assert!(tx.wait(true, LIMIT).unwrap(), "everything leaves");
}

#[test]
fn sent_packets_arrive_in_order() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let host = receiver(&pair.right);
    let mut port = open(&pair.left, "afxdp:{}", &sending());
    assert_eq!((port.rx.len(), port.tx.len()), (0, 1));
    assert_eq!(
        pair.left.xdp().unwrap(),
        None,
        "sending takes nothing from the host"
    );
    let udp = Udp::between(&pair.left, &pair.right);
    const COUNT: u64 = 5_000;
    send_all(&mut port.tx[0], &udp, 0, &[60; COUNT as usize]);
    for number in 0..COUNT {
        let packet = host.receive(Duration::from_secs(1)).unwrap().unwrap();
        assert_eq!(packet::number_of(&packet), Ok(number));
        assert_eq!(packet, udp.build(number, 60));
    }
    let account = port.control.account().unwrap();
    let tx = account.tx_total();
    assert_eq!((tx.sent, tx.failed, tx.copied), (COUNT, 0, 0));
    assert_eq!(tx.sent_bytes, 60 * COUNT);
    assert_eq!(pair.left.counters().unwrap().tx_packets, COUNT);
    // One call per batch, not per packet.
    let kicks = port.tx[0].counters().kicks.get();
    assert!(kicks <= COUNT / 32, "{kicks} calls");
}

#[test]
fn unsupported_zero_copy_is_refused() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let error = afxdp::try_open(&pair.left, "afxdp:{}?bind=zero-copy", &sending());
    let error = error.err().expect("veth has no zero-copy");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("driver veth"), "{error}");
}

#[test]
fn jumbo_packets_are_sent_complete() {
    require!(skip::lab());
    for frame_len in [2048, 4096] {
        let pair = Veth::new().mtu(9000).create().unwrap();
        let host = receiver(&pair.right);
        let config = PoolConfig {
            frame_len,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config).unwrap();
        let options = PortOptions {
            pool: Some(pool.clone()),
            ..sending()
        };
        let mut port = open(&pair.left, "afxdp:{}", &options);
        let udp = Udp::between(&pair.left, &pair.right);
        let lengths: Vec<usize> = (60..=9014).step_by(13).chain([9014]).collect();
        let mut next = 0u64;
        for burst in lengths.chunks(16) {
            send_all(&mut port.tx[0], &udp, next, burst);
            for &len in burst {
                let packet = host.receive(Duration::from_secs(1)).unwrap().unwrap();
                assert_eq!(packet.len(), len);
                assert_eq!(packet::number_of(&packet), Ok(next));
                next += 1;
            }
        }
        let tx = port.control.account().unwrap().tx_total();
        assert_eq!((tx.sent, tx.failed), (lengths.len() as u64, 0));
        drop(port);
        assert_eq!(
            pool.counts().free,
            config.frame_count,
            "all frames came home"
        );
    }
}

#[test]
fn unsendable_packets_are_counted_and_their_frames_return() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let config = PoolConfig {
        frame_count: 1024,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config).unwrap();
    let options = PortOptions {
        pool: Some(pool.clone()),
        ..sending()
    };
    let mut port = open(&pair.left, "afxdp:{}", &options);
    let udp = Udp::between(&pair.left, &pair.right);
    let tx = &mut port.tx[0];
    let mut batch = tx.reserve(4).unwrap();
    for len in [0, 13] {
        batch.buffer().unwrap()[..len].fill(0);
        batch.advance(len);
    }
    assert!(batch.write(&udp.build(1, 60)));
    batch.submit().unwrap();
    // A dropped batch sends nothing.
    let mut batch = tx.reserve(4).unwrap();
    assert!(batch.write(&udp.build(2, 60)));
    drop(batch);
    assert!(tx.wait(true, LIMIT).unwrap());
    let account = port.control.account().unwrap().tx_total();
    assert_eq!((account.sent, account.failed), (1, 2));
    drop(port);
    assert_eq!(pool.counts().free, 1024);
}

#[test]
fn a_link_that_is_down_is_reported_and_nothing_is_lost() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.left, "afxdp:{}", &sending());
    let udp = Udp::between(&pair.left, &pair.right);
    pair.left.set_down().unwrap();
    let mut batch = port.tx[0].reserve(4).unwrap();
    assert!(batch.write(&udp.build(1, 60)));
    batch.submit().unwrap();
    let error = port.tx[0].flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    assert!(error.to_string().contains("down"), "{error}");
    pair.left.set_up().unwrap();
    let host = receiver(&pair.right);
    assert!(port.tx[0].wait(true, LIMIT).unwrap());
    let packet = host.receive(Duration::from_secs(1)).unwrap().unwrap();
    assert_eq!(packet::number_of(&packet), Ok(1));
    // What is never sent counts as failed in the end.
    pair.left.set_down().unwrap();
    let mut batch = port.tx[0].reserve(4).unwrap();
    assert!(batch.write(&udp.build(2, 60)) && batch.write(&udp.build(3, 60)));
    batch.submit().unwrap();
    port.tx[0].flush().unwrap_err();
    let (mut control, tx) = (port.control, port.tx);
    drop(tx);
    let account = control.account().unwrap().tx_total();
    assert_eq!(
        (account.sent, account.sent_bytes, account.failed),
        (1, 60, 2)
    );
}

#[test]
fn a_device_that_is_removed_ends_the_sending() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.left, "afxdp:{}", &sending());
    pair.left.delete().unwrap();
    let udp = Udp::between(&pair.left, &pair.right);
    let mut batch = port.tx[0].reserve(4).unwrap();
    assert!(batch.write(&udp.build(1, 60)));
    batch.submit().unwrap();
    assert_eq!(port.tx[0].flush().unwrap_err().kind(), ErrorKind::Gone);
}

/// A device is set down before it is removed: a sender must not mistake one for the other.
#[test]
fn a_sender_whose_interface_is_deleted_ends_with_code_4() {
    require!(skip::lab());
    for scheme in ["afxdp", "afpacket", "xdplive"] {
        for _ in 0..5 {
            let pair = Veth::new().gro().create().unwrap();
            let port = format!("{scheme}:{}", pair.left.ifname);
            let args = ["send", "--udp", "--dst-mac", "02:00:00:00:00:99"];
            let args = [&args[..], &["--rate", "20kpps", &port]].concat();
            let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
            let until = Instant::now() + LIMIT;
            while pair.right.counters().unwrap().rx_packets < 100 {
                assert!(Instant::now() < until, "{scheme}: {}", process.stderr());
            }
            pair.left.delete().unwrap();
            let finished = process.wait(LIMIT).unwrap();
            assert_eq!(finished.code(), Some(4), "{scheme}: {finished:?}");
            let reported = &finished.stderr;
            assert!(
                reported.contains("the interface has been deleted"),
                "{reported}"
            );
        }
    }
}

#[test]
fn packets_refused_by_the_device_are_counted() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.left, "afxdp:{}", &sending());
    let udp = Udp::between(&pair.left, &pair.right);
    send_all(&mut port.tx[0], &udp, 0, &[60; 100]);
    // Without a carrier every packet is refused, one by one.
    pair.right.set_down().unwrap();
    let lengths: Vec<usize> = (0..1000).map(|at| 60 + at % 700).collect();
    send_all(&mut port.tx[0], &udp, 100, &lengths);
    let tx = port.control.account().unwrap().tx_total();
    assert_eq!((tx.sent, tx.sent_bytes, tx.failed), (100, 6000, 1000));
    assert_eq!(pair.left.counters().unwrap().tx_packets, 100);
    // What was refused is not counted again when others are sent.
    pair.right.set_up().unwrap();
    pair.left.wait_up(LIMIT).unwrap();
    send_all(&mut port.tx[0], &udp, 1100, &[70; 10]);
    let (mut control, tx) = (port.control, port.tx);
    drop(tx);
    let tx = control.account().unwrap().tx_total();
    assert_eq!((tx.sent, tx.sent_bytes, tx.failed), (110, 6700, 1000));
}

#[test]
fn one_port_receives_what_another_sends() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut taking = open(&pair.right, "afxdp:{}", &PortOptions::default());
    let mut port = open(&pair.left, "afxdp:{}", &sending());
    let udp = Udp::between(&pair.left, &pair.right);
    const BURST: usize = 100;
    for from in (0..20_000).step_by(BURST) {
        send_all(&mut port.tx[0], &udp, from, &[60; BURST]);
        let numbers = afxdp::receive(&mut taking, BURST);
        assert!(numbers[0].iter().copied().eq(from..from + BURST as u64));
    }
    let tx = port.control.account().unwrap().tx_total();
    let (_, account) = afxdp::settled(&mut taking);
    afxdp::assert_balanced(&account);
    assert_eq!((tx.sent, account.rx[0].delivered), (20_000, 20_000));
}

/// Two pairs; packets are received at the first's right end and sent by the second's left one.
struct Bridge {
    first: Pair,
    second: Pair,
}

impl Bridge {
    fn new(mtu: u32) -> Self {
        let make = || Veth::new().mtu(mtu).create().unwrap();
        Self {
            first: make(),
            second: make(),
        }
    }
}

fn forward(attach: AttachMode, shared: bool) {
    let bridge = Bridge::new(1500);
    let config = PoolConfig {
        frame_count: 8192,
        ..PoolConfig::default()
    };
    let pools = [Pool::new(config).unwrap(), Pool::new(config).unwrap()];
    let both = |pool: &Pool| PortOptions {
        pool: Some(pool.clone()),
        direction: Direction::Both,
        attach,
        ..PortOptions::default()
    };
    let mut a = open(&bridge.first.right, "afxdp:{}", &both(&pools[0]));
    let other = &pools[usize::from(!shared)];
    let mut b = open(&bridge.second.left, "afxdp:{}", &both(other));
    assert_eq!(fact(&a, "shared memory"), "no");
    assert_eq!(fact(&b, "shared memory") == "yes", shared);
    let out = sender(&bridge.first.left);
    let host = receiver(&bridge.second.right);
    let udp = Udp::between(&bridge.first.left, &bridge.second.right);
    const COUNT: u64 = 5_000;
    let mut sent = 0;
    let mut arrived = 0;
    while arrived < COUNT {
        for _ in 0..50 {
            out.send(&udp.build(sent, 60 + sent as usize % 1400))
                .unwrap();
            sent += 1;
        }
        let mut moved = 0;
        while moved < 50 {
            a.rx[0].wait(Duration::from_secs(1)).unwrap();
            let mut batch = a.rx[0].receive().unwrap();
            for index in 0..batch.len() {
                let frame = batch.detach(index).unwrap().frame;
                assert_eq!(b.tx[0].send(frame).unwrap(), None, "there is room");
                moved += 1;
            }
            drop(batch);
            b.tx[0].flush().unwrap();
        }
        for _ in 0..50 {
            let packet = host.receive(Duration::from_secs(1)).unwrap().unwrap();
            assert_eq!(packet::number_of(&packet), Ok(arrived));
            assert_eq!(packet.len(), 60 + arrived as usize % 1400);
            arrived += 1;
        }
    }
    assert!(b.tx[0].wait(true, LIMIT).unwrap());
    let tx = b.control.account().unwrap().tx_total();
    assert_eq!((tx.sent, tx.failed), (COUNT, 0));
    assert_eq!(tx.copied, if shared { 0 } else { COUNT });
    assert_eq!(a.rx[0].counters().detach_copies.get(), 0);
    // In either order; here the one that registered the memory is dropped first.
    drop((a, b));
    for pool in &pools {
        assert_eq!(
            pool.counts().free,
            config.frame_count,
            "all frames came home"
        );
    }
}

#[test]
fn forwarding_over_one_pool_moves_no_byte() {
    require!(skip::lab());
    forward(AttachMode::Native, true);
    forward(AttachMode::Generic, true);
}

#[test]
fn forwarding_between_pools_copies_and_counts() {
    require!(skip::lab());
    forward(AttachMode::Native, false);
}

#[test]
fn a_port_can_share_memory_whose_first_user_has_closed() {
    require!(skip::lab());
    let pairs = [0; 3].map(|_| Veth::new().create().unwrap());
    let pool = Pool::new(PoolConfig {
        frame_count: 8192,
        ..PoolConfig::default()
    })
    .unwrap();
    let options = PortOptions {
        pool: Some(pool.clone()),
        ..PortOptions::default()
    };
    let first = open(&pairs[0].right, "afxdp:{}", &options);
    let mut second = open(&pairs[1].right, "afxdp:{}", &options);
    drop(first);
    let mut third = open(&pairs[2].right, "afxdp:{}", &options);
    assert_eq!(fact(&third, "shared memory"), "yes");
    let numbers = afxdp::exchange(&pairs[1], &mut second, 1, 0, 500);
    assert!(numbers[0].iter().copied().eq(0..500));
    let numbers = afxdp::exchange(&pairs[2], &mut third, 1, 0, 500);
    assert!(numbers[0].iter().copied().eq(0..500));
    drop((second, third));
    assert_eq!(pool.counts().free, 8192);
}
