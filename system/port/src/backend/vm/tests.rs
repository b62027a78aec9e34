//! The port with a front-end and a guest of our own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ring::slot::Vlan;
use vhost::feature;
use vhost::testing::{BUFFER_LEN, FrontEnd, Options};

use super::PACKET_LEN_MAX;
use crate::account::DropReason;
use crate::control::PortEvent;
use crate::options::{Direction, PortOptions};
use crate::port::Port;
use crate::rx::Ready;
use crate::tx::TxQueue;

const LIMIT: Duration = Duration::from_secs(60);

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("barewire-vm-{}-{name}", std::process::id()))
}

fn open_with(name: &str, direction: Direction, more: PortOptions) -> Port {
    let options = PortOptions { direction, ..more };
    let mut port = crate::open(&format!("vm:{}", path(name).display()), &options).unwrap();
    // The first call of a queue starts the thread.
    for rx in &mut port.rx {
        assert!(rx.receive().unwrap().is_empty());
    }
    for tx in &mut port.tx {
        assert_eq!(tx.reserve(8).unwrap().room(), 0, "no guest, no room");
    }
    port
}

fn open(name: &str) -> Port {
    open_with(name, Direction::Both, PortOptions::default())
}

fn connect(name: &str) -> FrontEnd {
    FrontEnd::connect(&path(name), Options::default()).unwrap()
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (seed * 7 + at % 251) as u8).collect()
}

fn write(tx: &mut TxQueue, packet: &[u8]) {
    let until = Instant::now() + LIMIT;
    loop {
        let mut batch = tx.reserve(packet.len() / 1024 + 1).unwrap();
        if batch.write(packet) {
            batch.submit().unwrap();
            return tx.flush().unwrap();
        }
        drop(batch);
        assert!(tx.wait(false, LIMIT).unwrap() && Instant::now() < until);
    }
}

/// The packets of one batch, and whether each is in several segments.
fn receive(port: &mut Port, queue: usize) -> Vec<Vec<u8>> {
    let batch = port.rx[queue].receive().unwrap();
    let packets = batch.iter();
    packets
        .map(|packet| {
            assert_eq!(packet.cap_len(), packet.wire_len());
            assert!(packet.time_ns().is_some());
            packet.segments().collect::<Vec<_>>().concat()
        })
        .collect()
}

fn event(port: &mut Port) -> PortEvent {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(event) = port.control.event() {
            return event;
        }
        assert!(Instant::now() < until, "no event");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A port that only sends is served while it has nothing to send.
#[test]
fn a_front_end_has_answers_from_the_first_flush() {
    let options = PortOptions {
        direction: Direction::Tx,
        ..PortOptions::default()
    };
    let name = format!("vm:{}", path("flush").display());
    let mut port = crate::open(&name, &options).unwrap();
    port.tx[0].flush().unwrap();
    let mut guest = connect("flush");
    write(&mut port.tx[0], &bytes(60, 1));
    assert_eq!(guest.receive(0), Some(bytes(60, 1)));
}

#[test]
fn packets_of_all_lengths_pass_and_are_accounted_for() {
    let mut port = open("lengths");
    let mut guest = connect("lengths");
    let lens = [
        14,
        60,
        1514,
        3840,
        3841,
        4084,
        9014,
        40_000,
        PACKET_LEN_MAX as usize,
    ];
    for number in 0..500 {
        let packet = bytes(lens[number % lens.len()], number);
        assert!(guest.send(0, &packet));
        assert_eq!(
            receive(&mut port, 0),
            std::slice::from_ref(&packet),
            "{number}"
        );
        write(&mut port.tx[0], &packet);
        assert_eq!(guest.receive(0).as_ref(), Some(&packet), "{number}");
    }
    // Too short and too long to be packets.
    for len in [0, 13, PACKET_LEN_MAX as usize + 1] {
        assert!(guest.send(0, &bytes(len, 1)));
    }
    assert!(guest.send(0, &bytes(60, 2)));
    assert_eq!(receive(&mut port, 0), [bytes(60, 2)]);
    let account = port.control.account().unwrap();
    let queue = account.rx_total();
    assert_eq!(
        (queue.seen, queue.delivered, queue.imbalance()),
        (504, 501, 0)
    );
    assert_eq!(queue.dropped[DropReason::Invalid as usize], 2);
    assert_eq!(queue.dropped[DropReason::TooLong as usize], 1);
    let sum: usize = (0..500).map(|number| lens[number % lens.len()]).sum();
    let sent = account.tx_total();
    assert_eq!(
        (sent.sent, sent.sent_bytes, sent.failed),
        (500, sum as u64, 0)
    );
    let pool = port.rx[0].pool().unwrap().clone();
    drop(port);
    assert_eq!(pool.counts().free, pool.frame_count(), "frames are leaked");
}

#[test]
fn a_stopped_port_receives_what_waits_and_nothing_later_even_behind_invalid_packets() {
    let mut port = open("stopped");
    let mut guest = connect("stopped");
    for len in [60, 13, 61, 0] {
        assert!(guest.send(0, &bytes(len, 1)));
    }
    port.control.stop().unwrap();
    assert!(guest.send(0, &bytes(62, 1)));
    assert_eq!(receive(&mut port, 0), [bytes(60, 1), bytes(61, 1)]);
    for _ in 0..3 {
        assert!(guest.send(0, &bytes(63, 1)));
        assert_eq!(receive(&mut port, 0), [] as [Vec<u8>; 0]);
    }
}

/// A guest with too few buffers gets the packets later, in order.
#[test]
fn packets_wait_for_buffers_of_the_guest() {
    let mut port = open("later");
    let options = Options {
        size: 8,
        ..Options::default()
    };
    let mut guest = FrontEnd::connect(&path("later"), options).unwrap();
    let long = 3 * BUFFER_LEN;
    let mut batch = port.tx[0].reserve(64).unwrap();
    for number in 0..10 {
        assert!(batch.write(&bytes(long, number)));
    }
    batch.submit().unwrap();
    assert_eq!(port.tx[0].counters().sent.get(), 2, "8 buffers, 4 a packet");
    assert_eq!(port.tx[0].reserve(1).unwrap().room(), 0);
    for number in 0..10 {
        port.tx[0].flush().unwrap();
        let all = port.tx[0].wait(true, Duration::ZERO).unwrap();
        assert_eq!(all, number >= 8, "{number}");
        assert_eq!(guest.receive(0), Some(bytes(long, number)));
    }
    // A guest that restarts does not get what was meant for the one before.
    let mut batch = port.tx[0].reserve(64).unwrap();
    for number in 0..10 {
        assert!(batch.write(&bytes(long, number)));
    }
    batch.submit().unwrap();
    drop(guest);
    let mut guest = FrontEnd::connect(&path("later"), options).unwrap();
    write(&mut port.tx[0], &bytes(60, 99));
    assert_eq!(guest.receive(0), Some(bytes(60, 99)));
    let sent = port.control.account().unwrap().tx_total();
    assert_eq!((sent.sent, sent.failed), (10 + 2 + 1, 8));
}

/// Buffers that were too few for a packet are no room, until there are more of them.
#[test]
fn a_packet_waits_for_more_buffers_than_were_too_few() {
    let mut port = open("more");
    let options = Options {
        size: 8,
        ..Options::default()
    };
    let mut guest = FrontEnd::connect(&path("more"), options).unwrap();
    let pool = port.tx[0].pool().unwrap().clone();
    let mut cache = ring::FrameCache::new(pool.clone());
    let len = BUFFER_LEN + 1;
    let mut is_sent = |port: &mut Port| {
        let mut frame = cache.take().unwrap();
        pool.set_range(&mut frame, 256, len as u32);
        match port.tx[0].send(frame).unwrap() {
            Some(frame) => cache.give(frame).is_err(),
            None => true,
        }
    };
    // Two buffers a packet: three packets, and one of a single buffer, leave one.
    for _ in 0..3 {
        assert!(is_sent(&mut port));
    }
    write(&mut port.tx[0], &bytes(60, 1));
    assert!(port.tx[0].wait(false, Duration::ZERO).unwrap());
    assert!(!is_sent(&mut port), "one buffer is left");
    assert!(!port.tx[0].wait(false, Duration::ZERO).unwrap());
    assert!(!port.tx[0].wait(true, Duration::ZERO).unwrap());
    assert_eq!(guest.receive(0).unwrap().len(), len);
    assert!(port.tx[0].wait(false, LIMIT).unwrap());
    assert!(is_sent(&mut port));
}

#[test]
fn waits_end_with_a_packet_and_with_a_buffer() {
    let mut port = open("waits");
    let options = Options {
        size: 4,
        ..Options::default()
    };
    let mut guest = FrontEnd::connect(&path("waits"), options).unwrap();
    let (mut rx, mut tx) = (port.rx.remove(0), port.tx.remove(0));
    const ROUNDS: usize = 300;
    std::thread::scope(|scope| {
        // The guest returns each packet.
        scope.spawn(move || {
            let mut returned = 0;
            let until = Instant::now() + LIMIT;
            while returned < ROUNDS {
                assert!(Instant::now() < until, "{returned} packets");
                match guest.receive(0) {
                    Some(packet) => {
                        while !guest.send(0, &packet) {
                            std::thread::yield_now();
                        }
                        returned += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
            // Until all are received.
            while guest.drivers[1].used(&guest.memory).is_some() {}
            std::thread::sleep(Duration::from_millis(1));
            guest
        });
        scope.spawn(move || (0..ROUNDS).for_each(|number| write(&mut tx, &bytes(60, number))));
        let mut received = 0;
        while received < ROUNDS {
            assert_eq!(
                rx.wait(LIMIT).unwrap(),
                Ready::Packets,
                "{received} packets"
            );
            for packet in rx.receive().unwrap().iter() {
                assert_eq!(packet.bytes(), bytes(60, received));
                received += 1;
            }
        }
    });
}

#[test]
fn virtual_machines_come_and_go() {
    let mut port = open("come");
    let place = path("come").display().to_string();
    assert_eq!(event(&mut port), PortEvent::Waiting(place.clone()));
    for round in 0..3 {
        let mut guest = connect("come");
        assert_eq!(event(&mut port), PortEvent::Connected);
        assert_eq!(event(&mut port), PortEvent::LinkUp);
        assert!(guest.send(0, &bytes(60, round)));
        assert_eq!(receive(&mut port, 0), [bytes(60, round)]);
        // A reboot.
        guest.stop(0).unwrap();
        guest.stop(1).unwrap();
        assert_eq!(event(&mut port), PortEvent::LinkDown);
        assert_eq!(port.tx[0].reserve(1).unwrap().room(), 0);
        guest.drivers[1].collect(&guest.memory);
        guest.start(1).unwrap();
        assert_eq!(event(&mut port), PortEvent::LinkUp);
        guest.start(0).unwrap();
        assert!(guest.send(0, &bytes(60, round)));
        assert_eq!(receive(&mut port, 0), [bytes(60, round)]);
        // It ends with packets in its ring.
        assert!(guest.send(0, &bytes(60, round)));
        drop(guest);
        assert_eq!(event(&mut port), PortEvent::Waiting(place.clone()));
        assert!(receive(&mut port, 0).is_empty());
    }
    // A guest that breaks its ring: what it sent before is delivered.
    let mut guest = connect("come");
    assert_eq!(event(&mut port), PortEvent::Connected);
    assert_eq!(event(&mut port), PortEvent::LinkUp);
    assert!(guest.send(0, &bytes(60, 7)));
    guest.drivers[1].make_available(&guest.memory, 300);
    assert_eq!(receive(&mut port, 0), [bytes(60, 7)]);
    match event(&mut port) {
        PortEvent::Misbehaved(what) => assert!(what.starts_with("vring 1"), "{what}"),
        other => panic!("{other:?}"),
    }
    write(&mut port.tx[0], &bytes(60, 8));
    assert_eq!(guest.receive(0), Some(bytes(60, 8)));
    let queue = port.control.account().unwrap().rx_total();
    assert_eq!((queue.seen, queue.delivered, queue.imbalance()), (7, 7, 0));
    drop(port);
    assert!(!path("come").exists());
}

#[test]
fn several_queue_pairs_and_single_directions() {
    let options = PortOptions {
        queue_count: 3,
        ..PortOptions::default()
    };
    let mut port = open_with("pairs", Direction::Both, options);
    let two = Options {
        pair_count: 2,
        ..Options::default()
    };
    let mut guest = FrontEnd::connect(&path("pairs"), two).unwrap();
    for queue in 0..2 {
        assert!(guest.send(queue, &bytes(60, queue)));
        assert_eq!(receive(&mut port, queue), [bytes(60, queue)]);
        write(&mut port.tx[queue], &bytes(61, queue));
        assert_eq!(guest.receive(queue), Some(bytes(61, queue)));
    }
    assert_eq!(port.tx[2].reserve(1).unwrap().room(), 0);
    drop((port, guest));
    // Without a reader the guest's packets are dropped, so that it does not hang.
    let mut port = open_with("pairs", Direction::Tx, PortOptions::default());
    let mut guest = connect("pairs");
    let until = Instant::now() + LIMIT;
    for _ in 0..1000 {
        while !guest.send(0, &bytes(60, 0)) {
            assert!(Instant::now() < until, "the guest's ring stays full");
        }
    }
    write(&mut port.tx[0], &bytes(60, 3));
    assert_eq!(guest.receive(0), Some(bytes(60, 3)));
}

/// Packets of other ports are copied once, from where they are, VLAN tags included; packets from
/// the guest move to a port with the same pool.
#[test]
fn packets_are_forwarded_in_both_directions() {
    let mut port = open("forward");
    let mut guest = connect("forward");
    let options = PortOptions {
        pool: port.rx[0].pool().cloned(),
        direction: Direction::Both,
        ..PortOptions::default()
    };
    for (pool, copied) in [(options.pool.clone(), 0), (None, 2)] {
        let options = PortOptions {
            pool,
            ..options.clone()
        };
        let mut memory = crate::open("memory:", &options).unwrap();
        for len in [60, 9000] {
            write(&mut memory.tx[0], &bytes(len, 1));
            let mut batch = memory.rx[0].receive().unwrap();
            let forwarded = batch.forward(&mut port.tx[0], 1).unwrap();
            assert_eq!((forwarded.packets, forwarded.bytes), (1, len as u64));
            drop(batch);
            assert_eq!(guest.receive(0), Some(bytes(len, 1)));
            assert!(guest.send(0, &bytes(len, 2)));
            let mut batch = port.rx[0].receive().unwrap();
            assert_eq!(batch.forward(&mut memory.tx[0], 1).unwrap().packets, 1);
            drop(batch);
            let batch = memory.rx[0].receive().unwrap();
            let packet = batch.iter().next().unwrap();
            assert_eq!(
                packet.segments().collect::<Vec<_>>().concat(),
                bytes(len, 2)
            );
        }
        let account = memory.control.account().unwrap();
        assert_eq!(account.tx_total().copied, copied);
    }
    let slot_tag = Vlan {
        tpid: 0x8100,
        tci: 7,
    };
    let mut memory = crate::open("memory:", &options).unwrap();
    let mut batch = memory.tx[0].reserve(1).unwrap();
    assert!(batch.write(&bytes(60, 5)));
    // SAFETY: no bytes: only the metadata of this slot is used.
    let mut tagged = unsafe { ring::slot::Slot::over(std::ptr::NonNull::dangling(), 0, 60, 0) };
    tagged.set_vlan(slot_tag);
    batch.set_metadata(0, &tagged);
    batch.submit().unwrap();
    let mut batch = memory.rx[0].receive().unwrap();
    assert_eq!(batch.forward(&mut port.tx[0], 1).unwrap().bytes, 64);
    drop(batch);
    let plain = bytes(60, 5);
    let expected = [&plain[..12], &[0x81, 0, 0, 7], &plain[12..]].concat();
    assert_eq!(guest.receive(0), Some(expected));
}

#[test]
fn frames_are_sent_detached_and_filtered() {
    let only_61 = bpf::cbpf::Program::new(
        [
            (0x80, 0, 0, 0),
            (0x15, 0, 1, 61),
            (6, 0, 0, 1),
            (6, 0, 0, 0),
        ]
        .map(|(code, jt, jf, k)| bpf::cbpf::Insn { code, jt, jf, k })
        .to_vec(),
    );
    let options = PortOptions {
        filter: Some(only_61.unwrap()),
        snaplen: 40,
        ..PortOptions::default()
    };
    let mut port = open_with("frames", Direction::Both, options);
    let mut guest = connect("frames");
    for len in [60, 61, 62] {
        assert!(guest.send(0, &bytes(len, 1)));
    }
    let mut batch = port.rx[0].receive().unwrap();
    assert_eq!(batch.len(), 1);
    let detached = batch.detach(0).unwrap();
    drop(batch);
    assert_eq!((detached.frame.len(), detached.meta.wire_len), (40, 61));
    assert!(port.tx[0].send(detached.frame).unwrap().is_none());
    assert_eq!(guest.receive(0).unwrap(), bytes(61, 1)[..40]);
    let queue = port.control.account().unwrap().rx_total();
    assert_eq!(queue.dropped[DropReason::Filter as usize], 2);
    assert_eq!((queue.seen, queue.imbalance()), (3, 0));
    // A frame of another pool, and one that no buffer of the guest holds.
    let mut other = ring::FrameCache::new(ring::Pool::new(ring::PoolConfig::default()).unwrap());
    let mut frame = other.take().unwrap();
    other.pool().set_range(&mut frame, 0, 60);
    assert!(port.tx[0].send(frame).unwrap().is_none());
    assert_eq!(guest.receive(0).map(|packet| packet.len()), Some(60));
    drop(guest);
    let features = Options::default().features & !feature::MRG_RXBUF;
    let small = Options {
        features,
        ..Options::default()
    };
    let _guest = FrontEnd::connect(&path("frames"), small).unwrap();
    let mut frame = other.take().unwrap();
    other.pool().set_range(&mut frame, 0, BUFFER_LEN as u32);
    assert!(port.tx[0].send(frame).is_err());
    let sent = port.control.account().unwrap().tx_total();
    assert_eq!((sent.sent, sent.failed, sent.copied), (2, 1, 2));
}

#[test]
fn names_are_paths_or_names_of_sockets() {
    let open = |name: &str| crate::open(name, &PortOptions::default());
    for name in [
        "vm:",
        "vm:.x",
        "vm:a b",
        &format!("vm:/{}", "x".repeat(200)),
        "vm:x?queues=65",
    ] {
        let error = open(name).err();
        assert_eq!(
            error.unwrap().kind(),
            sys::ErrorKind::InvalidInput,
            "{name}"
        );
    }
    assert!(open("vm:/tmp/barewire-missing/socket").is_err());
    assert!(open("vm:/tmp/x?timestamp=device").is_err());
    let place = path("taken");
    let one = open(&format!("vm:{}", place.display())).unwrap();
    let other = open(&format!("vm:{}", place.display())).err().unwrap();
    assert_eq!(other.kind(), sys::ErrorKind::Busy);
    drop(one);
    assert!(!place.exists());
}

/// Whoever can write in the directory can replace a socket.
#[test]
fn directories_of_sockets_are_private() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let top = path("private");
    std::fs::create_dir(&top).unwrap();
    let allow = |folder: &std::path::Path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder, mode).unwrap();
    };
    let folder = top.join("vm");
    let denied = |folder: &std::path::Path| {
        let error = super::private(folder, 0o755).unwrap_err();
        error.kind() == sys::ErrorKind::Permission
    };
    super::private(&folder, 0o755).unwrap();
    super::private(&folder, 0o755).unwrap();
    for mode in [0o777, 0o1777, 0o775] {
        allow(&folder, mode);
        assert!(denied(&folder), "{mode:o}");
    }
    allow(&folder, 0o755);
    symlink(&folder, top.join("link")).unwrap();
    assert!(denied(&top.join("link")), "a link");
    std::fs::write(top.join("file"), "").unwrap();
    assert!(denied(&top.join("file")), "a file");
    if sys::descriptors::Credentials::own().uid == 0 {
        std::os::unix::fs::chown(&folder, Some(65534), None).unwrap();
        assert!(denied(&folder), "another user's");
    }
    std::fs::remove_dir_all(&top).unwrap();
}
