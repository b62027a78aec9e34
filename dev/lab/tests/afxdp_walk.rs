//! A random walk over two `afxdp:` ports on one pool: receive, keep, send on, give back, in any
//! order and number. No packet is lost or doubled, no frame is lost or owned twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::afxdp::{self, LIMIT, assert_balanced, open, sender, settled};
use lab::packet::{self, Raw, Udp};
use lab::random::Random;
use lab::{Veth, require, skip};
use port::{Direction, Port, PortOptions};
use ring::{Frame, FrameCache, Pool, PoolConfig};

/// What the walk knows of each packet that was sent.
#[derive(Default)]
struct Books {
    sent: u64,
    received: BTreeSet<u64>,
    forwarded: BTreeSet<u64>,
    arrived: BTreeSet<u64>,
}

fn take_arrived(host: &Raw, books: &mut Books) {
    while books.arrived.len() < books.forwarded.len() {
        let packet = host.receive(Duration::from_secs(2)).unwrap();
        let number = packet::number_of(&packet.expect("forwarded packets arrive")).unwrap();
        assert!(
            books.forwarded.contains(&number),
            "{number} was not sent on"
        );
        assert!(books.arrived.insert(number), "{number} arrived twice");
    }
}

fn receive(a: &mut Port, books: &mut Books, kept: &mut Vec<Frame>, random: &mut Random) {
    a.rx[0].wait(Duration::from_millis(1)).unwrap();
    let mut batch = a.rx[0].receive().unwrap();
    let mut numbers = Vec::new();
    for packet in batch.iter() {
        let number = packet::number_of(&afxdp::whole(&packet)).unwrap();
        assert!(books.received.insert(number), "{number} received twice");
        numbers.push(packet.segments().count());
    }
    for (index, segments) in numbers.into_iter().enumerate() {
        if random.below(2) == 0 {
            continue;
        }
        match batch.detach(index) {
            Ok(port::Detached { frame, .. }) => {
                assert_eq!(segments, 1);
                kept.push(frame);
                // Nothing is left to detach.
                assert!(random.below(8) != 0 || batch.detach(index).is_err());
            }
            Err(_) => assert!(segments > 1, "only packets in pieces are refused"),
        }
    }
}

#[test]
fn no_packet_and_no_frame_is_lost_or_doubled() {
    require!(skip::lab());
    let mut random = Random::seeded("walk");
    let seed = random.seed();
    for attach in ["native", "generic"] {
        let first = Veth::new().mtu(9000).create().unwrap();
        let second = Veth::new().mtu(9000).create().unwrap();
        let config = PoolConfig {
            frame_count: 2048,
            frame_len: 2048,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config).unwrap();
        let options = PortOptions {
            pool: Some(pool.clone()),
            direction: Direction::Both,
            batch_max: 1 + random.below(80) as usize,
            ..PortOptions::default()
        };
        let name = format!("afxdp:{{}}?attach={attach}&ring=512");
        let mut a = open(&first.right, &name, &options);
        let mut b = open(&second.left, &name, &options);
        let out = sender(&first.left);
        let host = second
            .right
            .ns
            .run(|| Raw::open("right0"))
            .unwrap()
            .unwrap();
        let udp = Udp::between(&first.left, &second.right);
        let mut cache = FrameCache::new(pool.clone());
        let (mut books, mut kept) = (Books::default(), Vec::new());
        for _ in 0..600 {
            match random.below(6) {
                0 | 1 => {
                    for _ in 0..random.below(40) {
                        let len = if random.below(4) == 0 { 9000 } else { 1500 };
                        let len = 60 + random.below(len - 60) as usize;
                        out.send(&udp.build(books.sent, len)).unwrap();
                        books.sent += 1;
                    }
                }
                2 | 3 => receive(&mut a, &mut books, &mut kept, &mut random),
                4 => {
                    for _ in 0..random.below(60).min(kept.len() as u64) {
                        let at = random.below(kept.len() as u64) as usize;
                        let frame = kept.swap_remove(at);
                        let number = packet::number_of(pool.bytes(&frame)).unwrap();
                        match b.tx[0].send(frame).unwrap() {
                            None => assert!(books.forwarded.insert(number)),
                            Some(frame) => kept.push(frame),
                        }
                    }
                    b.tx[0].flush().unwrap();
                }
                _ => {
                    for _ in 0..random.below(20).min(kept.len() as u64) {
                        cache.give(kept.pop().unwrap()).unwrap();
                    }
                    // A batch that is borrowed and not used, or dropped half written.
                    let count = random.below(100) as usize;
                    let mut batch = b.tx[0].reserve(count).unwrap();
                    let _ = batch.write(&[0; 100]);
                    drop(batch);
                }
            }
            // More would be dropped for want of frames, which is not what this walk is about.
            if kept.len() > 300 {
                kept.drain(100..).for_each(|f| cache.give(f).unwrap());
            }
            if books.sent - books.received.len() as u64 > 60 {
                let until = Instant::now() + LIMIT;
                while (books.received.len() as u64) < books.sent {
                    assert!(
                        Instant::now() < until,
                        "seed {seed}: {:?}",
                        a.control.account()
                    );
                    receive(&mut a, &mut books, &mut kept, &mut random);
                }
            }
            let counts = pool.counts();
            let all = counts.free + counts.user + counts.device;
            assert_eq!(
                (all, counts.user),
                (2048, kept.len() as u32),
                "seed {seed}: {counts:?}"
            );
        }
        b.tx[0].flush().unwrap();
        assert!(b.tx[0].wait(true, LIMIT).unwrap());
        take_arrived(&host, &mut books);
        let (left, account) = settled(&mut a);
        books.received.extend(&left[0]);
        assert!(
            books.received.iter().copied().eq(0..books.sent),
            "seed {seed}"
        );
        assert_balanced(&account);
        assert_eq!(account.rx[0].lost(), 0, "seed {seed}");
        let tx = b.control.account().unwrap().tx_total();
        assert_eq!(tx.sent, books.forwarded.len() as u64);
        assert_eq!((tx.failed, tx.copied), (0, 0));
        if random.below(2) == 0 {
            drop(a);
            drop(b);
        } else {
            drop(b);
            drop(a);
        }
        kept.into_iter().for_each(|f| cache.give(f).unwrap());
        drop(cache);
        let counts = pool.counts();
        assert_eq!(counts.free, 2048, "seed {seed}: {counts:?}");
    }
}
