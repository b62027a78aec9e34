//! Tests of forwarding between rings in memory, where every packet can be examined.

use port::{PortControl, PortOptions, Ready, RxQueue, TxQueue};

use super::*;

/// Packet `number`, some longer than a frame.
fn packet(number: u64) -> Vec<u8> {
    let len = if number % 50 == 7 {
        9_000
    } else {
        60 + number % 1_000
    };
    let mut packet: Vec<u8> = (0..len).map(|at| (at + number) as u8).collect();
    packet[..8].copy_from_slice(&number.to_be_bytes());
    packet
}

/// Two ports over one pool, or each over its own.
fn ports(shared: bool, ring_len: u32) -> [Port; 2] {
    let options = PortOptions {
        ring_len,
        ..PortOptions::default()
    };
    let pool = port::shared_pool(&[("memory:", &options), ("memory:", &options)]).unwrap();
    let options = PortOptions {
        pool: pool.filter(|_| shared),
        ..options
    };
    [0, 1].map(|_| port::open("memory:", &options).unwrap())
}

fn send(mut tx: TxQueue, count: u64) {
    for number in 0..count {
        let packet = packet(number);
        loop {
            let mut batch = tx.reserve(8).unwrap();
            if batch.write(&packet) {
                batch.submit().unwrap();
                break;
            }
            drop(batch);
            if !tx.wait(false, Duration::from_secs(20)).unwrap() {
                // The other end has ended.
                return;
            }
        }
    }
}

/// Receives packets in sequence until the sender has ended; returns their number.
fn receive(mut rx: RxQueue) -> u64 {
    let mut count = 0;
    loop {
        let batch = rx.receive().unwrap();
        let is_empty = batch.is_empty();
        for got in batch.iter() {
            let bytes: Vec<u8> = got.segments().flatten().copied().collect();
            assert_eq!(bytes, packet(count), "packet {count}");
            count += 1;
        }
        drop(batch);
        if is_empty && rx.wait(Duration::from_secs(20)).unwrap() == Ready::End {
            return count;
        }
    }
}

#[test]
fn all_forwarded_packets_arrive_complete_and_in_order() {
    const COUNT: u64 = 2_000;
    for (shared, ring_len) in [(true, 256), (false, 256), (true, 16)] {
        let [mut a, mut b] = ports(shared, ring_len);
        let (tx, rx) = (a.tx.remove(0), b.rx.remove(0));
        let outcome = thread::scope(|scope| {
            scope.spawn(move || send(tx, COUNT));
            let receiver = scope.spawn(move || receive(rx));
            let sides = [a.into(), b.into()];
            let outcome = run(sides, &Options::default(), &Stop::new(), |_| {});
            assert_eq!(receiver.join().unwrap(), COUNT);
            outcome
        });
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        assert_eq!(outcome.ended, Ended::Input);
        let bytes: usize = (0..COUNT).map(|number| packet(number).len()).sum();
        let expected = Flow {
            received: COUNT,
            received_bytes: bytes as u64,
            forwarded: COUNT,
            forwarded_bytes: bytes as u64,
            copied: if shared { 0 } else { COUNT },
            ..Flow::default()
        };
        assert_eq!(outcome.flows, [expected]);
        let [from, to] = outcome.accounts;
        assert_eq!(from.rx_total().delivered, COUNT);
        assert_eq!((to.tx_total().sent, to.tx_total().failed), (COUNT, 0));
    }
}

/// The control side of a port whose device has refused three packets.
struct Refusing(Box<dyn PortControl>);

impl PortControl for Refusing {
    fn account(&mut self) -> Result<PortAccount> {
        let mut account = self.0.account()?;
        account.tx[0].failed += 3;
        Ok(account)
    }

    fn event(&mut self) -> Option<PortEvent> {
        self.0.event()
    }

    fn describe(&self) -> PortDescription {
        self.0.describe()
    }

    fn stop(&mut self) -> Result<()> {
        self.0.stop()
    }
}

#[test]
fn refused_packets_are_reported_while_forwarding_goes_on() {
    let [mut a, mut b] = ports(true, 256);
    let ends = (a.tx.remove(0), b.rx.remove(0));
    b.control = Box::new(Refusing(b.control));
    let (mut reported, mut tick_count) = (Vec::new(), 0);
    let stop = Stop::new();
    run(
        [a.into(), b.into()],
        &Options::default(),
        &stop,
        |notice| match notice {
            Notice::Refused(port, count) => reported.push((port, count)),
            Notice::Progress(_) => {
                tick_count += 1;
                if tick_count == 2 {
                    stop.set();
                }
            }
            _ => {}
        },
    );
    assert_eq!(reported, [(1, 3)]);
    drop(ends);
}

#[test]
fn packets_are_forwarded_in_both_directions() {
    const COUNT: u64 = 2_000;
    // What is sent on a ring in memory comes out of the same port: to feed a port that also sends,
    // each end has another one behind it.
    let [mut left, mut right] = ports(true, 256);
    let [mut left_in, mut right_in] = ports(true, 256);
    let senders = [left_in.tx.remove(0), right_in.tx.remove(0)];
    let receivers = [left.rx.remove(0), right.rx.remove(0)];
    left.rx = std::mem::take(&mut left_in.rx);
    right.rx = std::mem::take(&mut right_in.rx);
    let outcome = thread::scope(|scope| {
        for tx in senders {
            scope.spawn(move || send(tx, COUNT));
        }
        let receivers = receivers.map(|rx| scope.spawn(move || receive(rx)));
        let options = Options {
            both: true,
            ..Options::default()
        };
        let outcome = run([left.into(), right.into()], &options, &Stop::new(), |_| {});
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap(), COUNT);
        }
        outcome
    });
    for flow in &outcome.flows {
        assert_eq!((flow.received, flow.forwarded), (COUNT, COUNT));
    }
}

#[test]
fn long_packets_and_those_after_the_count_are_dropped_and_counted() {
    let [mut a, mut b] = ports(true, 1024);
    let (tx, rx) = (a.tx.remove(0), b.rx.remove(0));
    send(tx, 100);
    let mut sides: [Side; 2] = [a.into(), b.into()];
    // Packets 7 and 57 are longer.
    sides[1].packet_len_max = 1_100;
    let options = Options {
        count: Some(60),
        ..Options::default()
    };
    let outcome = run(sides, &options, &Stop::new(), |_| {});
    assert_eq!(outcome.ended, Ended::Finished);
    let flow = outcome.flows[0];
    assert_eq!(
        (flow.received, flow.forwarded, flow.too_long, flow.surplus),
        (100, 60, 2, 38)
    );
    assert_eq!(flow.imbalance(), 0);
    drop(rx);
}

#[test]
fn a_full_ring_drops_live_packets_and_stops_others() {
    for intake in [Intake::Live, Intake::Waiting] {
        let [mut a, mut b] = ports(true, 64);
        let (tx, rx) = (a.tx.remove(0), b.rx.remove(0));
        let sender = thread::spawn(move || send(tx, 200));
        let mut sides: [Side; 2] = [a.into(), b.into()];
        sides[0].intake = intake;
        let began = Instant::now();
        let outcome = run(sides, &Options::default(), &Stop::new(), |_| {});
        let flow = outcome.flows[0];
        match intake {
            Intake::Live => {
                assert!(outcome.error.is_none(), "{:?}", outcome.error);
                assert_eq!((flow.received, flow.imbalance()), (200, 0));
                assert!(flow.tx_full > 100 && flow.forwarded > 32, "{flow:?}");
            }
            _ => {
                assert!(outcome.error.is_some() && began.elapsed() >= Duration::from_secs(4));
                assert_eq!(flow.tx_full, 0);
            }
        }
        drop(rx);
        // The ports are closed, so its packets have no receiver; it may still wait for room.
        let _ = sender.join();
    }
}

#[test]
fn the_stop_flag_ends_the_run_with_the_counts_so_far() {
    let [mut a, mut b] = ports(true, 1024);
    let (tx, rx) = (a.tx.remove(0), b.rx.remove(0));
    let stop = Stop::new();
    let outcome = thread::scope(|scope| {
        let receiver = scope.spawn(move || receive(rx));
        let flag = stop.clone();
        scope.spawn(move || {
            send(tx, 500);
            flag.set();
        });
        let outcome = run([a.into(), b.into()], &Options::default(), &stop, |_| {});
        assert_eq!(receiver.join().unwrap(), 500);
        outcome
    });
    assert_eq!(outcome.flows[0].forwarded, 500);
}

#[test]
fn forwarding_loops_are_refused() {
    let refused = |a: &str, b: &str| {
        let setup = Setup {
            names: [a.into(), b.into()],
            ..Setup::default()
        };
        let error = open(&setup).err().unwrap_or_else(|| panic!("{a} to {b}"));
        (error.why().to_owned(), error.hint().is_some())
    };
    let (why, hint) = refused("afxdp:lo", "afpacket:lo");
    assert!(why.contains("both are lo") && hint, "{why}");
    let path = std::env::temp_dir().join(format!("bw-forward-{}.pcap", std::process::id()));
    std::fs::write(&path, b"").unwrap();
    let path = path.to_str().unwrap().to_owned();
    let (why, hint) = refused(&path, &format!("file:{path}"));
    std::fs::remove_file(&path).unwrap();
    assert!(why.contains("same") && hint, "{why}");
}

#[test]
fn truncated_packets_are_not_forwarded() {
    let [mut a, mut b] = ports(true, 256);
    let (tx, rx) = (a.tx.remove(0), b.rx.remove(0));
    let path = std::env::temp_dir().join(format!("bw-forward-cut-{}.pcap", std::process::id()));
    // Little-endian, Ethernet (draft-ietf-opsawg-pcap §4): of two packets the second is truncated.
    let mut file = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0].to_vec();
    file.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    for wire_len in [60_u32, 1_500, 60] {
        file.extend([0; 8]);
        file.extend(60_u32.to_le_bytes());
        file.extend(wire_len.to_le_bytes());
        file.extend([7; 60]);
    }
    std::fs::write(&path, file).unwrap();
    let input = port::open(path.to_str().unwrap(), &PortOptions::default()).unwrap();
    let outcome = run(
        [input.into(), b.into()],
        &Options::default(),
        &Stop::new(),
        |_| {},
    );
    std::fs::remove_file(&path).unwrap();
    let flow = outcome.flows[0];
    assert_eq!((flow.received, flow.forwarded, flow.cut), (3, 2, 1));
    assert_eq!((flow.imbalance(), flow.dropped()), (0, 1));
    drop((tx, rx));
}

#[test]
fn only_the_packet_longer_than_the_ring_is_dropped() {
    for intake in [Intake::Live, Intake::Waiting] {
        let options = PortOptions {
            ring_len: 256,
            ..PortOptions::default()
        };
        let mut a = port::open("memory:", &options).unwrap();
        // Room for two pieces; 9,000 bytes need three.
        let options = PortOptions {
            ring_len: 2,
            ..options
        };
        let mut b = port::open("memory:", &options).unwrap();
        let (tx, mut rx) = (a.tx.remove(0), b.rx.remove(0));
        send(tx, 60);
        let mut sides: [Side; 2] = [a.into(), b.into()];
        sides[0].intake = intake;
        let outcome = thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut count = 0;
                loop {
                    let got = rx.receive().unwrap().len();
                    count += got;
                    if got == 0 && rx.wait(Duration::from_secs(20)).unwrap() == Ready::End {
                        return count;
                    }
                }
            });
            let outcome = run(sides, &Options::default(), &Stop::new(), |_| {});
            assert!(reader.join().unwrap() > 0);
            outcome
        });
        let flow = outcome.flows[0];
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        assert_eq!((flow.received, flow.imbalance()), (60, 0), "{flow:?}");
        // Packets 7 and 57; live, a full ring drops them as it does any other.
        match intake {
            Intake::Waiting => assert_eq!((flow.too_long, flow.forwarded), (2, 58), "{flow:?}"),
            _ => assert!(flow.too_long <= 2, "{flow:?}"),
        }
    }
}

#[test]
fn an_error_in_mid_batch_loses_no_packet() {
    let [mut a, mut b] = ports(true, 256);
    let (tx, rx) = (a.tx.remove(0), b.rx.remove(0));
    send(tx, 40);
    // Waiting without progress: after some seconds the device counts as stuck.
    let small = PortOptions {
        ring_len: 16,
        ..PortOptions::default()
    };
    let mut stuck = port::open("memory:", &small).unwrap();
    let reader = stuck.rx.remove(0);
    let outcome = run(
        [a.into(), stuck.into()],
        &Options::default(),
        &Stop::new(),
        |_| {},
    );
    assert!(outcome.error.is_some());
    let flow = outcome.flows[0];
    assert!(flow.abandoned > 0 && flow.forwarded > 0, "{flow:?}");
    assert_eq!((flow.received, flow.imbalance()), (40, 0), "{flow:?}");
    drop((rx, reader, b));
}

#[test]
fn frames_returned_by_one_thread_are_free_for_the_others() {
    let budget = Budget::new(Some(10));
    assert_eq!(budget.take(64), 10);
    assert!(!budget.is_used_up(), "taken is not forwarded");
    budget.settle(4, 6);
    assert_eq!(budget.take(64), 6);
    budget.settle(6, 0);
    assert!(budget.is_used_up());
    assert!(!Budget::new(None).is_used_up());
}

#[test]
fn every_outage_and_its_end_are_reported() {
    let failing = Failing::default();
    failing.begin("first".into());
    failing.end();
    failing.begin("second".into());
    let now = failing.get();
    assert_eq!((now.begun, now.over, now.why.as_str()), (2, 1, "second"));
}

#[test]
fn counts_of_lanes_are_summed() {
    let counters = Counters::default();
    let all = [
        &counters.received,
        &counters.received_bytes,
        &counters.forwarded,
        &counters.forwarded_bytes,
        &counters.copied,
        &counters.tx_full,
        &counters.too_long,
        &counters.cut,
        &counters.outgoing,
        &counters.surplus,
        &counters.abandoned,
    ];
    for (at, counter) in all.into_iter().enumerate() {
        counter.add(1 << at);
    }
    let fields = |flow: &Flow| {
        [
            flow.received,
            flow.received_bytes,
            flow.forwarded,
            flow.forwarded_bytes,
            flow.copied,
            flow.tx_full,
            flow.too_long,
            flow.cut,
            flow.outgoing,
            flow.surplus,
            flow.abandoned,
        ]
    };
    let one = counters.read();
    assert_eq!(fields(&one), std::array::from_fn(|at| 1 << at));
    let mut sum = one;
    sum.add(&one);
    sum.add(&Flow::default());
    assert_eq!(fields(&sum), std::array::from_fn(|at| 2 << at));
    assert_eq!(one.dropped(), 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10);
    let known = one.dropped() + one.forwarded + one.outgoing + one.surplus;
    assert_eq!(one.imbalance(), 1 - known as i64);
    let all = Flow {
        received: known,
        ..one
    };
    assert_eq!(all.imbalance(), 0);
    assert_eq!(
        Flow {
            received: known + 3,
            ..one
        }
        .imbalance(),
        3
    );
}
