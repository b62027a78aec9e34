//! Lost packets and misbehaving cards: everything is counted.

use super::*;

#[test]
fn without_frames_packets_are_counted_and_reception_resumes() {
    let mut rig = rig_over(pool(40, 2048), |_| ());
    // All frames are in our hands.
    let mut kept = Vec::new();
    for number in 0..40 {
        rig.arrive(&numbered(number, 60));
        let mut batch = rig.port.rx[0].receive().unwrap();
        if batch.len() == 1 {
            kept.push(batch.detach(0).unwrap().frame);
        }
    }
    assert_eq!(kept.len(), 40);
    for number in 0..60 {
        assert!(rig.arrive(&numbered(number, 1500)));
    }
    assert!(rig.take(0).is_empty());
    let account = rig.account();
    assert_eq!(account.dropped[DropReason::FillEmpty as usize], 60);
    assert_eq!(account.seen, 100);
    let by_card = rig.port.control.account().unwrap().interface_seen;
    assert_eq!(by_card, Some(100));
    let mut cache = FrameCache::new(rig.pool.clone());
    for frame in kept {
        cache.give(frame).unwrap();
    }
    drop(cache);
    // An empty look is enough to offer them.
    assert!(rig.take(0).is_empty());
    for number in 0..40 {
        rig.arrive(&numbered(number, 1500));
    }
    assert_eq!(rig.take(0).len(), 40);
    assert_eq!(rig.account().seen, 140);
    rig.close();
}

#[test]
fn a_full_queue_does_not_hold_up_the_others() {
    let mut rig = rig(|options| (options.queue_count, options.ring_len) = (4, 16));
    let flows: Vec<_> = (0..200u16)
        .map(|at| udp(([10, 0, 0, 1], at), ([10, 0, 0, 2], 9)))
        .collect();
    for packet in &flows {
        assert!(rig.arrive(packet));
    }
    let got: Vec<_> = (0..4).map(|at| rig.take(at).len()).collect();
    assert_eq!(got, [15; 4]);
    let account = rig.account();
    assert_eq!(account.dropped[DropReason::FillEmpty as usize], 200 - 60);
    assert_eq!(account.seen, 200);
    rig.close();
}

#[test]
fn a_saturated_drop_counter_is_reported() {
    let mut rig = rig(|options| options.ring_len = 16);
    let warns = |rig: &Rig| {
        let facts = rig.port.control.describe().facts;
        facts
            .iter()
            .any(|(name, text)| *name == "drops" && text.contains("was full"))
    };
    for number in 0..15 + 4094 {
        assert!(rig.arrive(&numbered(number, 60)));
    }
    let dropped = |account: QueueAccount| account.dropped[DropReason::FillEmpty as usize];
    assert_eq!(dropped(rig.account()), 4094);
    assert!(!warns(&rig), "all were counted");
    for number in 0..6000 {
        assert!(rig.arrive(&numbered(number, 60)));
    }
    // The register ends there; the count of good packets continues.
    assert_eq!(rig.card.with(|model| model.without_descriptor(0)), 4095);
    assert_eq!(dropped(rig.account()), 4094 + 6000);
    assert!(warns(&rig));
    assert_eq!(rig.take(0).len(), 15);
    rig.account();
    rig.close();
}

#[test]
fn without_descriptors_no_frame_is_given_or_lost() {
    let mut rig = rig(|options| options.ring_len = 16);
    rig.card.with(|model| model.set_link(false));
    let mut sent = 0;
    for _ in 0..10 {
        let mut batch = rig.port.tx[0].reserve(4).unwrap();
        while batch.write(&numbered(sent, 80)) {
            sent += 1;
        }
        batch.submit().unwrap();
    }
    assert_eq!(sent, 15, "one entry stays empty");
    assert!(
        !rig.port.tx[0]
            .wait(false, Duration::from_millis(1))
            .unwrap()
    );
    let mut cache = FrameCache::new(rig.pool.clone());
    let mut frame = cache.take().unwrap();
    rig.pool.set_range(&mut frame, 0, 60);
    let frame = rig.port.tx[0]
        .send(frame)
        .unwrap()
        .expect("no room for a frame");
    rig.card.with(|model| {
        model.set_link(true);
        assert!(model.step());
        for number in 0..15 {
            assert_eq!(model.sent(), Some(numbered(number, 80)));
        }
    });
    assert!(rig.port.tx[0].send(frame).unwrap().is_none());
    rig.port.tx[0].flush().unwrap();
    drop(cache);
    rig.card.with(Model::step);
    rig.close();
}

#[test]
fn invalid_descriptors_are_refused_and_counted() {
    let mut rig = rig(|_| ());
    let mut wrong = 0;
    for lie in [0, 2049, 4096, 65535] {
        rig.fault(Fault::Length(lie));
        rig.arrive(&numbered(wrong, 100));
        rig.arrive(&numbered(1000, 70));
        assert_eq!(rig.take(0), [numbered(1000, 70)], "a length of {lie}");
        wrong += 1;
        assert_eq!(
            rig.account().dropped[DropReason::Invalid as usize],
            u64::from(wrong)
        );
    }
    // A piece of a longer packet, too.
    for lie in [0, 2049] {
        rig.fault(Fault::Length(lie));
        rig.arrive(&numbered(0, 5000));
        rig.arrive(&numbered(1001, 70));
        assert_eq!(rig.take(0), [numbered(1001, 70)], "a length of {lie}");
        wrong += 1;
    }
    rig.fault(Fault::Error(reg::RX_ERROR as u32));
    rig.arrive(&numbered(0, 100));
    rig.arrive(&numbered(1002, 70));
    assert_eq!(rig.take(0), [numbered(1002, 70)]);
    wrong += 1;
    assert_eq!(
        rig.account().dropped[DropReason::Invalid as usize],
        u64::from(wrong)
    );
    rig.close();
}

#[test]
fn a_packet_without_an_end_is_dropped() {
    let mut rig = rig(|_| ());
    for round in 1..20 {
        rig.fault(Fault::NoEnd);
        rig.arrive(&numbered(0, 100));
        // A partial packet is not a packet, and its end is taken for the end of the next one.
        assert!(rig.take(0).is_empty());
        rig.card.with(Model::step);
        rig.arrive(&numbered(1, 70));
        assert!(rig.take(0).is_empty());
        for number in 2..70 {
            rig.arrive(&numbered(number, 70));
            assert_eq!(rig.take(0), [numbered(number, 70)], "round {round}");
        }
        let account = rig.port.control.account().unwrap().rx_total();
        assert_eq!(account.dropped[DropReason::Invalid as usize], round);
        // Two packets of the card's are one of ours.
        assert_eq!(account.imbalance(), round as i64);
    }
    rig.close();
}

#[test]
fn an_address_out_of_range_has_no_effect() {
    let mut rig = rig(|_| ());
    let mut faults = 0;
    for address in [
        0,
        0xfee0_0000,
        (1 << 32) - 1,
        u64::MAX - 4096,
        (1 << 32) + (512 << 11) - 50,
    ] {
        rig.fault(Fault::Address(address));
        rig.arrive(&numbered(7, 100));
        assert_eq!(
            rig.take(0).len(),
            1,
            "reported of by a descriptor all the same"
        );
        faults += 1;
        assert_eq!(rig.card.memory().faults(), faults, "{address:#x}");
    }
    rig.arrive(&numbered(8, 100));
    assert_eq!(rig.take(0), [numbered(8, 100)]);
    rig.close();
}

#[test]
fn an_unexpected_reset_is_an_error_and_does_not_hang() {
    for is_gone in [false, true] {
        let mut rig = rig(|_| ());
        rig.arrive(&numbered(1, 60));
        rig.card.with(|model| match is_gone {
            true => {
                model.faults.push_back(Fault::Gone);
                model.step();
            }
            false => model.reset(),
        });
        // What was in memory is delivered.
        assert_eq!(rig.take(0), [numbered(1, 60)]);
        let error = rig.port.rx[0].wait(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone);
        assert!(error.hint().is_some());
        assert_eq!(
            rig.port.rx[0].receive().map(drop).unwrap_err().kind(),
            ErrorKind::Gone
        );
        assert_eq!(rig.port.tx[0].flush().unwrap_err().kind(), ErrorKind::Gone);
        std::thread::sleep(Duration::from_millis(12));
        assert_eq!(rig.port.control.event(), Some(PortEvent::DeviceGone));
        assert_eq!(rig.port.control.event(), None);
        let account = rig.port.control.account().unwrap().rx_total();
        assert_eq!(account.delivered, 1);
        rig.close();
    }
}

#[test]
fn a_card_that_stops_does_not_block() {
    let mut rig = rig(|_| ());
    rig.fault(Fault::Stop);
    rig.card.with(Model::step);
    let mut batch = rig.port.tx[0].reserve(4).unwrap();
    batch.write(&numbered(0, 60));
    batch.submit().unwrap();
    assert!(!rig.port.tx[0].wait(true, Duration::from_millis(1)).unwrap());
    assert_eq!(
        rig.port.rx[0].wait(Duration::from_millis(1)).unwrap(),
        Ready::Timeout
    );
    // Closing waits a bounded time, and the frame returns.
    rig.close();
}

#[test]
fn packets_to_a_closed_queue_are_counted() {
    let mut rig = rig(|options| options.ring_len = 16);
    for number in 0..5 {
        rig.arrive(&numbered(number, 60));
    }
    assert_eq!(rig.take(0).len(), 5);
    rig.arrive(&numbered(5, 60));
    rig.port.rx.clear();
    for number in 6..30 {
        rig.arrive(&numbered(number, 60));
        rig.account();
    }
    let account = rig.account();
    assert_eq!((account.seen, account.delivered), (30, 5));
    assert_eq!(account.dropped[DropReason::Closed as usize], 15);
    assert_eq!(account.dropped[DropReason::FillEmpty as usize], 10);
    rig.close();
}

#[test]
fn unsent_packets_are_counted() {
    let mut rig = rig(|_| ());
    rig.fault(Fault::Stop);
    rig.card.with(Model::step);
    let mut batch = rig.port.tx[0].reserve(20).unwrap();
    for number in 0..3 {
        assert!(batch.write(&numbered(number, 5000)));
    }
    batch.submit().unwrap();
    let counters = rig.port.tx[0].counters().clone();
    assert_eq!(
        (counters.sent.get(), counters.sent_bytes.get()),
        (3, 15_000)
    );
    rig.close();
    let (sent, failed) = (counters.sent.get(), counters.failed.get());
    assert_eq!((sent, counters.sent_bytes.get(), failed), (0, 0, 3));
}
