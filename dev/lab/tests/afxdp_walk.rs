//! A random walk over two `afxdp:` ports on one pool: receive, keep, send on, return, in any order
//! and number. No packet is lost or duplicated, no frame is lost or owned twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::afxdp::{self, LIMIT, assert_balanced, open, sender, settled};
use lab::packet::{self, Raw, Udp};
use lab::random::Random;

use lab::{Pair, Veth, require, skip};
use port::{Direction, Port, PortOptions};
use ring::{Frame, FrameCache, Pool, PoolConfig};

/// Number of frames in the pool.
const FRAME_COUNT: u32 = 2048;

/// The state of each packet sent.
#[derive(Default)]
struct PacketStates {
    sent: u64,
    received: BTreeSet<u64>,
    forwarded: BTreeSet<u64>,
    arrived: BTreeSet<u64>,
}

/// Packets are sent by `out` to port `a`, and from port `b` to `host`.
struct Walk {
    random: Random,
    seed: u64,
    pool: Pool,
    out: Raw,
    a: Port,
    b: Port,
    host: Raw,
    udp: Udp,
    books: PacketStates,
    /// Received frames that are kept.
    kept: Vec<Frame>,
    cache: FrameCache,
}

impl Walk {
    fn new(first: &Pair, second: &Pair, attach: &str, mut random: Random) -> Walk {
        let config = PoolConfig {
            frame_count: FRAME_COUNT,
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
        let host = &second.right.ns;
        Walk {
            seed: random.seed(),
            random,
            out: sender(&first.left),
            a: open(&first.right, &name, &options),
            b: open(&second.left, &name, &options),
            host: host.run(|| Raw::open("right0")).unwrap().unwrap(),
            udp: Udp::between(&first.left, &second.right),
            books: PacketStates::default(),
            kept: Vec::new(),
            cache: FrameCache::new(pool.clone()),
            pool,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn step(&mut self) {
        match self.below(6) {
            0 | 1 => self.send(),
            2 | 3 => self.receive(),
            4 => self.forward(),
            _ => self.give_back(),
        }
        // More would be dropped for lack of frames, which this walk does not test.
        if self.kept.len() > 300 {
            for frame in self.kept.drain(100..) {
                self.cache.give(frame).unwrap();
            }
        }
        if self.books.sent - self.books.received.len() as u64 > 60 {
            self.catch_up();
        }
        let counts = self.pool.counts();
        let all = counts.free + counts.user + counts.device;
        assert_eq!(
            (all, counts.user),
            (FRAME_COUNT, self.kept.len() as u32),
            "seed {}: {counts:?}",
            self.seed
        );
    }

    fn send(&mut self) {
        for _ in 0..self.below(40) {
            let len = if self.below(4) == 0 { 9000 } else { 1500 };
            let len = 60 + self.below(len - 60) as usize;
            let packet = self.udp.build(self.books.sent, len);
            self.out.send(&packet).unwrap();
            self.books.sent += 1;
        }
    }

    fn receive(&mut self) {
        let (books, random) = (&mut self.books, &mut self.random);
        let rx = &mut self.a.rx[0];
        rx.wait(Duration::from_millis(1)).unwrap();
        let mut batch = rx.receive().unwrap();
        let mut segment_counts = Vec::new();
        for packet in batch.iter() {
            let number = packet::number_of(&afxdp::whole(&packet)).unwrap();
            assert!(books.received.insert(number), "{number} received twice");
            segment_counts.push(packet.segments().count());
        }
        for (index, segments) in segment_counts.into_iter().enumerate() {
            if random.below(2) == 0 {
                continue;
            }
            match batch.detach(index) {
                Ok(port::Detached { frame, .. }) => {
                    assert_eq!(segments, 1);
                    self.kept.push(frame);
                    // Nothing is left to detach.
                    assert!(random.below(8) != 0 || batch.detach(index).is_err());
                }
                Err(_) => assert!(segments > 1, "only packets in pieces are refused"),
            }
        }
    }

    /// Sends some of the kept packets.
    fn forward(&mut self) {
        for _ in 0..self.below(60).min(self.kept.len() as u64) {
            let at = self.below(self.kept.len() as u64) as usize;
            let frame = self.kept.swap_remove(at);
            let number = packet::number_of(self.pool.bytes(&frame)).unwrap();
            match self.b.tx[0].send(frame).unwrap() {
                None => assert!(self.books.forwarded.insert(number)),
                Some(frame) => self.kept.push(frame),
            }
        }
        self.b.tx[0].flush().unwrap();
    }

    /// Returns some frames; and reserves a batch that is not used, or dropped half written.
    fn give_back(&mut self) {
        for _ in 0..self.below(20).min(self.kept.len() as u64) {
            self.cache.give(self.kept.pop().unwrap()).unwrap();
        }
        let count = self.below(100) as usize;
        let mut batch = self.b.tx[0].reserve(count).unwrap();
        let _ = batch.write(&[0; 100]);
        drop(batch);
    }

    /// Receives until nothing is in flight.
    fn catch_up(&mut self) {
        let until = Instant::now() + LIMIT;
        while (self.books.received.len() as u64) < self.books.sent {
            assert!(
                Instant::now() < until,
                "seed {}: {:?}",
                self.seed,
                self.a.control.account()
            );
            self.receive();
        }
    }

    fn take_arrived(&mut self) {
        let books = &mut self.books;
        while books.arrived.len() < books.forwarded.len() {
            let packet = self.host.receive(Duration::from_secs(2)).unwrap();
            let number = packet::number_of(&packet.expect("forwarded packets arrive")).unwrap();
            assert!(
                books.forwarded.contains(&number),
                "{number} was not sent on"
            );
            assert!(books.arrived.insert(number), "{number} arrived twice");
        }
    }

    /// Everything has arrived and is accounted for, and every frame returns.
    fn end(mut self) -> Random {
        let seed = self.seed;
        self.b.tx[0].flush().unwrap();
        assert!(self.b.tx[0].wait(true, LIMIT).unwrap());
        self.take_arrived();
        let (left, account) = settled(&mut self.a);
        let books = &mut self.books;
        books.received.extend(&left[0]);
        assert!(
            books.received.iter().copied().eq(0..books.sent),
            "seed {seed}"
        );
        assert_balanced(&account);
        assert_eq!(account.rx[0].lost(), 0, "seed {seed}");
        let tx = self.b.control.account().unwrap().tx_total();
        assert_eq!(tx.sent, books.forwarded.len() as u64);
        assert_eq!((tx.failed, tx.copied), (0, 0));
        // In either order.
        if self.below(2) == 0 {
            drop(self.a);
            drop(self.b);
        } else {
            drop(self.b);
            drop(self.a);
        }
        for frame in self.kept {
            self.cache.give(frame).unwrap();
        }
        drop(self.cache);
        let counts = self.pool.counts();
        assert_eq!(counts.free, FRAME_COUNT, "seed {seed}: {counts:?}");
        self.random
    }
}

#[test]
fn no_packet_or_frame_is_lost_or_duplicated() {
    require!(skip::lab());
    let mut random = Random::seeded("walk");
    for attach in ["native", "generic"] {
        let first = Veth::new().mtu(9000).create().unwrap();
        let second = Veth::new().mtu(9000).create().unwrap();
        let mut walk = Walk::new(&first, &second, attach, random);
        for _ in 0..600 {
            walk.step();
        }
        random = walk.end();
    }
}
