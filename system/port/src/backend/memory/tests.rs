//! Limits and counters of the ring, with a correct sender and a misbehaving one.

use ring::Producer;
use ring::slot::Slot;

use super::*;
use crate::account::DropReason;
use crate::rx::Ready;

fn pool(frame_count: u32) -> Pool {
    Pool::new(PoolConfig {
        frame_count,
        frame_len: 2048,
        ..PoolConfig::default()
    })
    .unwrap()
}

fn open_with(pool: &Pool, ring_len: u32, batch_max: usize) -> Port {
    let options = PortOptions {
        pool: Some(pool.clone()),
        ring_len,
        batch_max,
        ..PortOptions::default()
    };
    crate::open("memory:", &options).unwrap()
}

fn write(tx: &mut TxQueue, packets: &[&[u8]]) {
    let mut batch = tx.reserve(256).unwrap();
    for packet in packets {
        assert!(batch.write(packet), "room for {} bytes", packet.len());
    }
    batch.submit().unwrap();
}

/// Lengths of the packets in one batch.
fn lengths(rx: &mut RxQueue) -> Vec<u32> {
    let batch = rx.receive().unwrap();
    batch.iter().map(|packet| packet.cap_len()).collect()
}

#[test]
fn unreceived_packets_are_closed_and_later_ones_failed() {
    let pool = pool(256);
    let port = open_with(&pool, 128, 4);
    let (mut rx, mut tx, mut control) = (port.rx, port.tx, port.control);
    write(&mut tx[0], &[&[1; 60][..]; 10]);
    let waiting = control.account().unwrap().rx_total();
    assert_eq!((waiting.in_flight, waiting.imbalance()), (10, 0));
    assert_eq!(lengths(&mut rx[0]), [60; 4]);
    drop(rx);
    let queue = control.account().unwrap().rx_total();
    let closed = queue.dropped[DropReason::Closed as usize];
    assert_eq!((queue.seen, queue.delivered, closed), (10, 4, 6));
    assert_eq!((queue.in_flight, queue.imbalance()), (0, 0));
    // Three frames are one packet.
    write(&mut tx[0], &[&[2; 60], &[3; 5000]]);
    let account = control.account().unwrap();
    assert_eq!((account.tx[0].sent, account.tx[0].failed), (10, 2));
    assert_eq!(account.rx_total().imbalance(), 0);
    drop((tx, control));
    assert_eq!(pool.counts().free, 256);
}

#[test]
fn rejected_packets_are_accounted_for() {
    let options = PortOptions {
        filter: Some(
            bpf::cbpf::Program::new(vec![bpf::cbpf::Insn {
                code: 6,
                jt: 0,
                jf: 0,
                k: 0,
            }])
            .unwrap(),
        ),
        ..PortOptions::default()
    };
    let mut port = crate::open("memory:", &options).unwrap();
    write(&mut port.tx[0], &[&[1; 60][..]; 3]);
    assert_eq!(lengths(&mut port.rx[0]), []);
    let queue = port.control.account().unwrap().rx_total();
    let filtered = queue.dropped[DropReason::Filter as usize];
    assert_eq!((queue.seen, filtered, queue.in_flight), (3, 3, 0));
    assert_eq!(queue.imbalance(), 0);
}

#[test]
fn a_packet_of_too_many_segments_is_dropped_and_the_next_one_is_received() {
    for (ring_len, pieces) in [(256, 64_usize), (16, 16)] {
        let pool = pool(512);
        let mut port = open_with(&pool, ring_len, 8);
        let longest = pieces * (2048 - 256);
        assert_eq!(port.capabilities.packet_len_max as usize, longest);
        if pieces < ring_len as usize {
            write(&mut port.tx[0], &[&vec![1; longest + 1], &[2; 60]]);
            assert_eq!(lengths(&mut port.rx[0]), [60]);
            assert_eq!(port.control.account().unwrap().tx[0].failed, 1);
        }
        write(&mut port.tx[0], &[&vec![1; longest]]);
        assert_eq!(lengths(&mut port.rx[0]), [longest as u32]);
        let queue = port.control.account().unwrap().rx_total();
        assert_eq!((queue.in_flight, queue.imbalance()), (0, 0));
        drop(port);
        assert_eq!(pool.counts().free, 512);
    }
}

/// A receiving queue with the test as its sender.
struct Rig {
    pool: Pool,
    cache: FrameCache,
    producer: Producer<Descriptor>,
    rx: RxQueue,
}

impl Rig {
    fn new(ring_len: u32) -> Rig {
        let pool = pool(1024);
        let (producer, consumer) = ring::spsc(ring_len);
        let counters = Arc::new(RxCounters::default());
        let rx = Rx {
            snaplen: u32::MAX,
            segment_max: ring_len.min(SEGMENT_COUNT_MAX) as usize,
            skipping: false,
            consumer: ManuallyDrop::new(consumer),
            pool: pool.clone(),
            cache: FrameCache::new(pool.clone()),
            ends: Arc::new(Ends {
                pool: pool.clone(),
                taken: Taken::default(),
                closed: AtomicU64::new(0),
                rest: Mutex::new(None),
                tx_closed: AtomicBool::new(false),
                rx_closed: AtomicBool::new(false),
                stopped: AtomicBool::new(false),
                bell: EventFd::new().unwrap(),
                is_sleeping: AtomicU32::new(0),
                room: EventFd::new().unwrap(),
                wants_room: WantsRoom::default(),
            }),
            counters: counters.clone(),
        };
        Rig {
            cache: FrameCache::new(pool.clone()),
            rx: RxQueue::new(Box::new(rx), 0, 8, None, counters),
            pool,
            producer,
        }
    }

    /// A descriptor of `len` bytes in a borrowed frame.
    fn piece(&mut self, len: u32, continues: bool) -> Descriptor {
        Descriptor {
            index: self.cache.take_for_device().unwrap(),
            info: u64::from(continues) * u64::from(Slot::CONTINUES),
            cap_len: len,
            wire_len: len,
            ..Descriptor::default()
        }
    }

    fn put(&mut self, pieces: &[Descriptor]) {
        let count = pieces.len() as u32;
        assert_eq!(self.producer.reserve(count), count);
        for (at, piece) in pieces.iter().enumerate() {
            self.producer.write(at as u32, *piece);
        }
        self.producer.submit(count);
    }

    fn end(self) {
        let Rig { pool, rx, .. } = self;
        drop(rx);
        assert_eq!(pool.counts().device, 0, "no frame stays borrowed");
    }
}

#[test]
fn a_refused_segment_drops_its_packet_only() {
    for bad in 0..3 {
        let mut rig = Rig::new(64);
        let mut pieces = [(100, true), (101, true), (102, false), (60, false)]
            .map(|(len, continues)| rig.piece(len, continues));
        let lost = std::mem::replace(&mut pieces[bad].index, u32::MAX);
        rig.put(&pieces);
        assert_eq!(lengths(&mut rig.rx), [60], "piece {bad} refused");
        assert_eq!(rig.rx.counters().invalid.get(), 1);
        // SAFETY: borrowed by the test, and in no descriptor any more.
        assert!(unsafe { rig.cache.reclaim(lost) });
        rig.end();
    }
}

#[test]
fn a_packet_without_an_end_is_refused_and_does_not_stop_the_ring() {
    let mut rig = Rig::new(256);
    let long: Vec<Descriptor> = (0..150).map(|_| rig.piece(100, true)).collect();
    rig.put(&long);
    assert_eq!(lengths(&mut rig.rx), []);
    assert_eq!(lengths(&mut rig.rx), []);
    let last = [rig.piece(100, false), rig.piece(60, false)];
    rig.put(&last);
    let mut seen = lengths(&mut rig.rx);
    seen.extend(lengths(&mut rig.rx));
    assert_eq!(seen, [60]);
    assert_eq!(rig.rx.counters().invalid.get(), 1);
    rig.end();
    // A ring that is full of one unfinished packet.
    let mut rig = Rig::new(16);
    let long: Vec<Descriptor> = (0..16).map(|_| rig.piece(100, true)).collect();
    rig.put(&long);
    assert_eq!(lengths(&mut rig.rx), []);
    let last = [rig.piece(100, false), rig.piece(60, false)];
    rig.put(&last);
    assert_eq!(lengths(&mut rig.rx), [60]);
    rig.end();
}

#[test]
fn frames_sent_one_by_one_share_the_time_of_their_flush() {
    let pool = pool(256);
    let mut port = open_with(&pool, 128, 64);
    let mut cache = FrameCache::new(pool);
    let mut times = Vec::new();
    for _ in 0..2 {
        for _ in 0..3 {
            let mut frame = cache.take().unwrap();
            cache.pool().set_range(&mut frame, 0, 60);
            assert!(port.tx[0].send(frame).unwrap().is_none());
        }
        port.tx[0].flush().unwrap();
        let batch = port.rx[0].receive().unwrap();
        times.push(
            batch
                .iter()
                .map(|p| p.time_ns().unwrap())
                .collect::<Vec<_>>(),
        );
    }
    let [first, second] = [&times[0], &times[1]];
    assert!(first.iter().all(|time| time == &first[0]), "{first:?}");
    assert!(second[0] > first[0], "{times:?}");
}

/// A waiting receiver sleeps until the flush, and a sender that waits for room sleeps until the
/// receiver has read.
#[test]
fn both_ends_sleep_and_are_woken() {
    const ROUNDS: u64 = 200;
    let port = open_with(&pool(256), 4, 4);
    let (mut rx, mut tx) = (port.rx, port.tx);
    let long = Duration::from_secs(60);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                let mut batch = tx[0].reserve(4).unwrap();
                while batch.room() == 0 {
                    drop(batch);
                    assert!(tx[0].wait(false, long).unwrap());
                    batch = tx[0].reserve(4).unwrap();
                }
                assert!(batch.write(&[1; 60]));
                batch.submit().unwrap();
                tx[0].flush().unwrap();
            }
            assert!(tx[0].wait(true, long).unwrap());
        });
        let mut received = 0;
        loop {
            // Not `wait`, which looks at the ring every few milliseconds: without the bell this
            // one does not end.
            if rx[0].arm().unwrap() {
                let fd = rx[0].poll_fd().unwrap();
                let mut wanted = [sys::poll::Wanted::readable(&fd)];
                sys::poll::wait(&mut wanted, long).unwrap();
                assert!(wanted[0].is_ready(), "no bell after {received} packets");
            }
            received += rx[0].receive().unwrap().len() as u64;
            if rx[0].wait(Duration::ZERO).unwrap() == Ready::End {
                break;
            }
        }
        assert_eq!(received, ROUNDS);
    });
}

/// The CPU time of this thread, from `/proc`.
fn used_ticks() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_receiver_without_packets_does_not_spin() {
    let mut port = open_with(&pool(256), 4, 4);
    let before = used_ticks();
    let ready = port.rx[0].wait(Duration::from_millis(300)).unwrap();
    // 30 ticks pass; a busy loop would use most of them.
    assert_eq!(ready, Ready::Timeout);
    assert!(used_ticks() - before < 10, "the wait used the processor");
    let mut batch = port.tx[0].reserve(4).unwrap();
    while batch.write(&[1; 60]) {}
    batch.submit().unwrap();
    let before = used_ticks();
    assert!(!port.tx[0].wait(false, Duration::from_millis(300)).unwrap());
    assert!(used_ticks() - before < 10, "the wait used the processor");
}
