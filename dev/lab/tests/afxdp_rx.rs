//! Receiving through `afxdp:` on veth: order, completeness, modes, several queues, jumbo packets,
//! and the account under each shortage.

use std::time::Duration;

use crate::afxdp::{self, assert_balanced, drain, exchange, fact, open, receive, sender, settled};
use lab::packet::{self, Raw, Udp};
use lab::{Pair, Veth, require, skip};
use port::{AttachMode, DropReason, Port, PortOptions, TimestampSource};
use ring::{Pool, PoolConfig};

fn options(attach: AttachMode) -> PortOptions {
    PortOptions {
        attach,
        timestamp: TimestampSource::None,
        ..PortOptions::default()
    }
}

const BOTH: [AttachMode; 2] = [AttachMode::Native, AttachMode::Generic];

/// Sends packets of 60 bytes without checking whether they are received.
fn pour(pair: &Pair, flows: u16, count: u64) {
    let out = sender(&pair.left);
    let udp = Udp::between(&pair.left, &pair.right).flows(flows);
    for number in 0..count {
        out.send(&udp.build(number, 60)).unwrap();
        // veth queues 256 packets until the peer's program has seen them.
        if number % 64 == 63 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// All packets arrive, in order, and the account shows it.
fn delivery(attach: AttachMode, mode: &str) {
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "afxdp:{}", &options(attach));
    assert_eq!(fact(&port, "attach mode"), mode);
    assert_eq!(fact(&port, "bind mode"), "copy");
    const COUNT: u64 = 20_000;
    let numbers = exchange(&pair, &mut port, 1, 0, COUNT);
    assert!(numbers[0].iter().copied().eq(0..COUNT), "all, in order");
    let (left, account) = settled(&mut port);
    assert_eq!(left, [[0u64; 0]]);
    assert_balanced(&account);
    let queue = &account.rx[0];
    assert_eq!(
        (queue.seen, queue.delivered, queue.lost()),
        (COUNT, COUNT, 0)
    );
    assert_eq!(queue.delivered_bytes, 60 * COUNT);
    assert_eq!(account.interface_seen, Some(COUNT));
    drop(port);
    assert_eq!(
        pair.right.xdp().unwrap(),
        None,
        "the interface is as before"
    );
}

#[test]
fn native_delivers_all_in_order() {
    require!(skip::lab());
    delivery(AttachMode::Native, "native");
}

#[test]
fn generic_delivers_all_in_order() {
    require!(skip::lab());
    delivery(AttachMode::Generic, "generic");
}

#[test]
fn native_is_the_default() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let port = open(&pair.right, "afxdp:{}", &PortOptions::default());
    assert_eq!(fact(&port, "attach mode"), "native");
    assert_eq!(pair.right.xdp().unwrap().unwrap().1, "xdp");
    assert!(port.capabilities.takes_traffic && port.capabilities.detach_moves);
    let memory_len = port.control.describe().memory_len;
    assert!(memory_len < 128 << 20, "{memory_len} bytes for one queue");
}

#[test]
fn several_queues_keep_their_order() {
    require!(skip::lab());
    for attach in BOTH {
        let pair = Veth::new().queues(4).create().unwrap();
        let mut port = open(&pair.right, "afxdp:{}", &options(attach));
        assert_eq!(port.rx.len(), 4);
        const COUNT: u64 = 8_000;
        let numbers = exchange(&pair, &mut port, 64, 0, COUNT);
        let busy = numbers.iter().filter(|n| !n.is_empty()).count();
        assert!(busy >= 3, "64 flows over 4 queues: {busy} of them saw any");
        for numbers in &numbers {
            assert!(numbers.is_sorted(), "in order within a queue");
        }
        let mut all = numbers.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..COUNT));
        let (_, account) = settled(&mut port);
        assert_balanced(&account);
        assert_eq!(account.rx_total().delivered, COUNT);
        for (queue, numbers) in account.rx.iter().zip(&numbers) {
            assert_eq!(queue.delivered, numbers.len() as u64);
        }
    }
}

#[test]
fn losses_of_a_slow_reader_have_a_separate_reason() {
    require!(skip::lab());
    for attach in BOTH {
        let pair = Veth::new().create().unwrap();
        let mut port = open(&pair.right, "afxdp:{}?ring=64", &options(attach));
        const COUNT: u64 = 1_000;
        pour(&pair, 1, COUNT);
        let (left, account) = settled(&mut port);
        assert!(
            left[0].iter().copied().eq(0..64),
            "{attach:?}: {:?}",
            left[0]
        );
        assert_balanced(&account);
        let queue = &account.rx[0];
        assert_eq!((queue.seen, queue.delivered), (COUNT, 64));
        assert_eq!(queue.dropped[DropReason::RingFull as usize], COUNT - 64);
        assert_eq!(queue.lost(), COUNT - 64, "under that name alone: {queue:?}");
    }
}

#[test]
fn losses_for_lack_of_frames_have_a_separate_reason() {
    require!(skip::lab());
    for attach in BOTH {
        let pair = Veth::new().create().unwrap();
        let config = PoolConfig {
            frame_count: 128,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config).unwrap();
        let with_pool = PortOptions {
            pool: Some(pool.clone()),
            ..options(attach)
        };
        let mut port = open(&pair.right, "afxdp:{}?ring=256", &with_pool);
        const COUNT: u64 = 1_000;
        let out = sender(&pair.left);
        let udp = Udp::between(&pair.left, &pair.right);
        let mut kept = Vec::new();
        for number in 0..COUNT {
            out.send(&udp.build(number, 60)).unwrap();
            port.rx[0].wait(Duration::from_millis(2)).unwrap();
            let mut batch = port.rx[0].receive().unwrap();
            for index in 0..batch.len() {
                kept.push(batch.detach(index).unwrap().frame);
            }
            if kept.len() == 128 && number < COUNT - 10 {
                drop(batch);
                pour_rest(&out, &udp, number + 1, COUNT);
                break;
            }
        }
        let (left, account) = settled(&mut port);
        assert_eq!((kept.len(), left[0].len()), (128, 0));
        for (frame, number) in kept.iter().zip(0..) {
            assert_eq!(packet::number_of(pool.bytes(frame)), Ok(number));
        }
        assert_balanced(&account);
        let queue = &account.rx[0];
        assert_eq!((queue.seen, queue.delivered), (COUNT, 128));
        assert_eq!(queue.dropped[DropReason::FillEmpty as usize], COUNT - 128);
        assert_eq!(
            queue.lost(),
            COUNT - 128,
            "under that name alone: {queue:?}"
        );
        drop(port);
        assert_eq!((pool.counts().user, pool.counts().device), (128, 0));
    }
}

fn pour_rest(out: &Raw, udp: &Udp, from: u64, to: u64) {
    for number in from..to {
        out.send(&udp.build(number, 60)).unwrap();
        if number % 64 == 63 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn a_queue_without_a_socket_goes_to_the_host() {
    require!(skip::lab());
    for attach in BOTH {
        // Four: without a program in the driver veth does not record the queue, and packets sent on
        // queue n then count as received on n - 1.
        let pair = Veth::new().queues(4).create().unwrap();
        let host = pair.right.ns.run(|| Raw::open("right0")).unwrap().unwrap();
        let mut port = open(&pair.right, "afxdp:{}/1", &options(attach));
        assert_eq!((port.rx.len(), port.rx[0].queue_index()), (1, 1));
        const COUNT: u64 = 640;
        pour(&pair, 32, COUNT);
        let (left, account) = settled(&mut port);
        let mut all = left.concat();
        let taken = all.len() as u64;
        while let Some(packet) = host.receive(Duration::from_millis(100)).unwrap() {
            all.push(packet::number_of(&packet).unwrap());
        }
        all.sort_unstable();
        assert!(
            all.into_iter().eq(0..COUNT),
            "each packet is here or there, once"
        );
        assert!(
            taken > 0 && taken < COUNT,
            "{attach:?}: {taken} of {COUNT} on queue 1: {account:?}"
        );
        assert_balanced(&account);
        let total = account.rx_total();
        assert_eq!((total.seen, total.delivered), (COUNT, taken));
        assert_eq!((total.passed, total.lost()), (COUNT - taken, 0));
        assert_eq!(account.interface_seen, Some(COUNT));
    }
}

#[test]
fn packets_left_at_closing_are_counted() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let config = PoolConfig::default();
    let pool = Pool::new(config).unwrap();
    let with_pool = PortOptions {
        pool: Some(pool.clone()),
        ..options(AttachMode::Native)
    };
    let mut port = open(&pair.right, "afxdp:{}", &with_pool);
    exchange(&pair, &mut port, 1, 0, 100);
    pour(&pair, 1, 50);
    let Port {
        rx, mut control, ..
    } = port;
    assert_eq!(control.account().unwrap().rx[0].in_flight, 50);
    drop(rx);
    let account = control.account().unwrap();
    assert_balanced(&account);
    let queue = &account.rx[0];
    assert_eq!((queue.seen, queue.delivered), (150, 100));
    assert_eq!(queue.dropped[DropReason::Closed as usize], 50);
    drop(control);
    assert_eq!(
        pool.counts().free,
        config.frame_count,
        "all frames came home"
    );
}

/// Every length in turn, complete and in order; `frame_len` decides the number of pieces.
fn jumbo(attach: AttachMode, frame_len: u32) {
    let pair = Veth::new().mtu(9000).create().unwrap();
    let config = PoolConfig {
        frame_len,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config).unwrap();
    let with_pool = PortOptions {
        pool: Some(pool.clone()),
        batch_max: 7,
        ..options(attach)
    };
    let mut port = open(&pair.right, "afxdp:{}", &with_pool);
    assert_eq!(fact(&port, "multi-buffer"), "yes");
    let out = sender(&pair.left);
    let udp = Udp::between(&pair.left, &pair.right);
    let lengths: Vec<usize> = (60..=9014).step_by(7).chain([9014]).collect();
    let mut next = 0u64;
    let mut segments_max = 0;
    for burst in lengths.chunks(16) {
        for (number, &len) in (next..).zip(burst) {
            out.send(&udp.build(number, len)).unwrap();
        }
        let end = next + burst.len() as u64;
        while next < end {
            port.rx[0].wait(Duration::from_secs(1)).unwrap();
            let batch = port.rx[0].receive().unwrap();
            for packet in batch.iter() {
                let bytes = afxdp::whole(&packet);
                assert_eq!(packet::number_of(&bytes), Ok(next));
                let len = lengths[next as usize];
                assert_eq!((bytes.len(), packet.wire_len() as usize), (len, len));
                assert_eq!(packet.cap_len() as usize, len);
                segments_max = segments_max.max(packet.segments().count());
                next += 1;
            }
        }
    }
    assert_eq!(segments_max as u32, 9014u32.div_ceil(frame_len - 256));
    let (_, account) = settled(&mut port);
    assert_balanced(&account);
    assert_eq!(account.rx[0].delivered, lengths.len() as u64);
    drop(port);
    assert_eq!(
        pool.counts().free,
        config.frame_count,
        "all frames came home"
    );
}

#[test]
fn jumbo_packets_arrive_complete_in_native_mode() {
    require!(skip::lab());
    jumbo(AttachMode::Native, 4096);
    jumbo(AttachMode::Native, 2048);
}

#[test]
fn jumbo_packets_arrive_complete_in_generic_mode() {
    require!(skip::lab());
    jumbo(AttachMode::Generic, 4096);
    jumbo(AttachMode::Generic, 2048);
}

#[test]
fn a_batch_of_one_still_receives_a_packet_of_several_segments() {
    require!(skip::lab());
    let pair = Veth::new().mtu(9000).create().unwrap();
    let mut port = open(
        &pair.right,
        "afxdp:{}?batch=1",
        &options(AttachMode::Native),
    );
    let out = sender(&pair.left);
    let udp = Udp::between(&pair.left, &pair.right);
    for number in 0..10 {
        out.send(&udp.build(number, 9014)).unwrap();
    }
    assert!(receive(&mut port, 10)[0].iter().copied().eq(0..10));
}

#[test]
fn snaplen_cuts_the_bytes_not_the_wire_length() {
    require!(skip::lab());
    let pair = Veth::new().mtu(9000).create().unwrap();
    let mut port = open(
        &pair.right,
        "afxdp:{}?snaplen=100",
        &options(AttachMode::Auto),
    );
    let out = sender(&pair.left);
    let udp = Udp::between(&pair.left, &pair.right);
    for (number, len) in [(0, 60), (1, 1514), (2, 9014)] {
        let sent = udp.build(number, len);
        out.send(&sent).unwrap();
        port.rx[0].wait(Duration::from_secs(5)).unwrap();
        let batch = port.rx[0].receive().unwrap();
        let packet = batch.iter().next().unwrap();
        assert_eq!(packet.wire_len() as usize, len);
        assert_eq!(afxdp::whole(&packet), sent[..len.min(100)]);
    }
    assert_eq!(drain(&mut port.rx[0]).len(), 0);
}

#[test]
fn busy_polling_and_wakeups_are_options() {
    require!(skip::lab());
    for attach in BOTH {
        for choice in [
            "need_wakeup=no",
            "busy_poll=64",
            "busy_poll=8&need_wakeup=no",
        ] {
            // Busy polling runs the interface's NAPI in the port's calls; with GRO veth has one
            // even without a program in the driver.
            let pair = Veth::new().gro().create().unwrap();
            let mut port = open(
                &pair.right,
                &format!("afxdp:{{}}?{choice}"),
                &options(attach),
            );
            let polls = choice.contains("busy_poll");
            assert_eq!(
                fact(&port, "need_wakeup") == "no",
                choice.contains("need_wakeup")
            );
            if polls {
                assert!(fact(&port, "busy polling").contains("packets per call"));
            }
            let numbers = exchange(&pair, &mut port, 1, 0, 2_000);
            assert!(numbers[0].iter().copied().eq(0..2_000), "{choice}");
            // Also without ever sleeping.
            pour(&pair, 1, 200);
            let until = std::time::Instant::now() + afxdp::LIMIT;
            let mut count = 0;
            while count < 200 {
                assert!(std::time::Instant::now() < until, "{choice}: {count}");
                count += port.rx[0].receive().unwrap().len();
            }
            let (_, account) = settled(&mut port);
            assert_balanced(&account);
            assert_eq!(account.rx[0].delivered, 2_200);
        }
    }
}
