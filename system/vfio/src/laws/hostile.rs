//! Behaviour of a driver when the card reports wrong values, stops, is reset or is removed.

use super::*;

/// A packet longer than the port's maximum is refused if the card accepted it.
pub fn too_long<R: Rig>() {
    let mut stand = Stand::<R>::new(&Settings {
        packet_len_max: 1000,
        ..settings::<R>(1)
    });
    stand.refill(0);
    let arrived = [(1, 1000), (2, 1001), (3, 60)]
        .map(|(number, len)| u64::from(stand.arrive(0, &packet(number, len))));
    assert_eq!((arrived[0], arrived[2]), (1, 1));
    let got: Vec<_> = stand
        .receive(0)
        .into_iter()
        .map(|got| got.bytes.len())
        .collect();
    assert_eq!(got, [1000, 60]);
    assert_eq!(stand.refused.too_long, arrived[1]);
    stand.end();
}

/// A length that the descriptor cannot have is refused and counted; nothing outside a frame is ever
/// exposed.
pub fn impossible_lengths<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let lengths = [0, 2049, 4096, 9000, 0xffff];
    for (at, len) in lengths.into_iter().enumerate() {
        stand
            .card
            .with(|model| R::fault(model, Some(Fault::Length(len))));
        assert!(stand.arrive(0, &packet(1, 100)));
        assert_eq!(stand.receive(0), [], "a length of {len}");
        assert_eq!(stand.refused.invalid, at as u64 + 1, "a length of {len}");
        assert!(stand.arrive(0, &packet(2, 100)));
        assert_eq!(stand.receive(0)[0].bytes, packet(2, 100));
    }
    if R::JUMBO {
        // In the last part of a packet.
        for len in [0, 2049, 0xffff] {
            stand
                .card
                .with(|model| R::fault(model, Some(Fault::Length(len))));
            assert!(stand.arrive(0, &packet(1, 5000)));
            assert_eq!(stand.receive(0), [], "a length of {len}");
            assert!(stand.arrive(0, &packet(2, 5000)));
            assert_eq!(stand.receive(0)[0].bytes, packet(2, 5000));
        }
    }
    assert_eq!(stand.refused.too_long + stand.refused.errors, 0);
    stand.end();
}

/// A packet that never ends is refused, and so is everything that appears to be a part of it.
pub fn packets_without_end<R: Rig>() {
    if !R::ENDS {
        return;
    }
    let mut stand = Stand::<R>::usual();
    for round in 0..3 {
        // All descriptors, without an end among them.
        loop {
            stand.card.with(|model| R::fault(model, Some(Fault::NoEnd)));
            if !stand.arrive(0, &packet(1, 2048)) {
                break;
            }
            if round == 0 {
                // Whether or not they are harvested meanwhile.
                assert_eq!(stand.take(0, 64), []);
            }
        }
        stand.card.with(|model| R::fault(model, None));
        for _ in 0..8 {
            assert_eq!(stand.take(0, 64), []);
        }
        assert!(stand.refused.invalid > round, "{:?}", stand.refused);
        stand.refill(0);
        // The next end still belongs to the refused packet.
        assert!(stand.arrive(0, &packet(2, 100)));
        assert_eq!(stand.receive(0), []);
        assert!(stand.arrive(0, &packet(3, 100)));
        assert_eq!(stand.receive(0)[0].bytes, packet(3, 100));
    }
    stand.end();
}

/// The IOMMU stops a card that writes to other addresses, and the ring continues.
pub fn addresses_of_the_cards_own<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let fault = Some(Fault::Address(0xdead_0000));
    stand.card.with(|model| R::fault(model, fault));
    stand.arrive(0, &packet(1, 100));
    stand.card.with(|model| R::fault(model, None));
    assert!(stand.faults() > 0);
    let got = stand.receive(0);
    assert!(got.len() <= 1, "{got:?}");
    assert!(stand.arrive(0, &packet(2, 100)));
    assert_eq!(stand.receive(0).pop().unwrap().bytes, packet(2, 100));
    stand.end();
}

/// The link's state is reported.
pub fn link<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    assert!(stand.driver.link().up);
    stand.card.with(|model| model.set_link(false));
    assert!(!stand.driver.link().up);
    assert_eq!(stand.driver.health(), Health::Running);
    assert!(!stand.arrive(0, &packet(1, 100)));
    stand.card.with(|model| model.set_link(true));
    assert!(stand.driver.link().up);
    assert!(stand.arrive(0, &packet(1, 100)));
    assert_eq!(stand.receive(0).len(), 1);
    stand.end();
}

/// A card without a link when it is started accepts packets, and sends them when there is one.
pub fn link_down_at_first<R: Rig>() {
    let card = R::card();
    card.with(|model| model.set_link(false));
    let mut stand = Stand::<R>::of(card, &settings::<R>(1));
    stand.refill(0);
    assert!(!stand.driver.link().up);
    assert_eq!(stand.driver.health(), Health::Running);
    assert!(!stand.arrive(0, &packet(1, 100)));
    for number in 0..10 {
        assert!(stand.post(0, &packet(number, 100), &[], 64));
    }
    assert_eq!(stand.flush(0), [] as [Vec<u8>; 0]);
    assert_eq!(stand.tx[0].pending(), 10);
    assert_eq!(stand.tx[0].left().packets, 10);
    stand.card.with(|model| model.set_link(true));
    assert!(stand.driver.link().up);
    assert!(
        stand
            .flush(0)
            .into_iter()
            .eq((0..10).map(|number| packet(number, 100)))
    );
    // And again while it runs.
    stand.card.with(|model| model.set_link(false));
    assert!(stand.post(0, &packet(10, 100), &[], 64));
    assert_eq!(stand.flush(0), [] as [Vec<u8>; 0]);
    stand.card.with(|model| model.set_link(true));
    assert_eq!(stand.flush(0), [packet(10, 100)]);
    assert!(stand.arrive(0, &packet(2, 100)));
    assert_eq!(stand.receive(0)[0].bytes, packet(2, 100));
    stand.end();
}

/// A card that falsely reports packets as sent: a frame is returned once, and only for a done flag
/// on the descriptor with the report bit.
pub fn sent_marks_that_are_lies<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    if !stand.card.with(|model| R::mark_sent(model, 0)) {
        return;
    }
    stand.card.with(|model| R::fault(model, Some(Fault::Stop)));
    let mark = |stand: &mut Stand<R>, entry| {
        stand.card.with(|model| R::mark_sent(model, entry));
        stand.reclaim(0);
    };
    // On entries never posted, and on ones that are rewritten before they are posted.
    mark(&mut stand, RING_LEN - 1);
    for number in 0..8 {
        assert!(stand.post(0, &packet(number, 100), &[], 64));
    }
    mark(&mut stand, 3);
    assert_eq!(stand.tx[0].pending(), 8, "it was not even shown");
    stand.tx[0].publish();
    // In the middle of a batch, at its start, after it.
    for entry in [3, 0, 6, 8, 9] {
        mark(&mut stand, entry);
        assert_eq!(stand.tx[0].pending(), 8, "{entry}");
    }
    for number in 8..12 {
        assert!(stand.post(0, &packet(number, 100), &[], 64));
    }
    stand.tx[0].publish();
    // The second batch before the first: the card works in order.
    mark(&mut stand, 11);
    assert_eq!(stand.tx[0].pending(), 12);
    // Too early: the flag covers the whole batch.
    mark(&mut stand, 7);
    assert_eq!(stand.tx[0].pending(), 0);
    assert_eq!(stand.pool.counts().device, held(&stand));
    // The same again: nothing is returned twice.
    for entry in [7, 11, 0] {
        mark(&mut stand, entry);
    }
    assert_eq!(stand.pool.counts().device, held(&stand));
    // Stale done flags all over the ring do not complete what is posted now.
    for entry in 0..RING_LEN {
        mark(&mut stand, entry);
    }
    let mut posted = 0;
    while stand.post(0, &packet(posted, 100), &[], 64) {
        posted += 1;
    }
    stand.tx[0].publish();
    stand.reclaim(0);
    assert_eq!(
        (stand.tx[0].pending(), posted),
        (RING_LEN - 1, RING_LEN - 1)
    );
    assert_eq!(stand.tx[0].left().packets as u32, posted);
    stand.end();
}

/// Number of frames in the receiving ring.
fn held<R: Rig>(stand: &Stand<R>) -> u32 {
    let rx = &stand.rx[0];
    let most = if R::ENDS {
        rx.ring_len() - 1
    } else {
        rx.ring_len()
    };
    most - rx.vacant()
}

/// Every queue detects a card that was reset or removed; all frames are returned.
pub fn reset_and_loss<R: Rig>() {
    for gone in [false, true] {
        let mut stand = Stand::<R>::usual();
        assert_eq!(stand.rx[0].health(), Health::Running);
        assert_eq!(stand.tx[0].health(), Health::Running);
        let expected = match gone {
            true => {
                stand.card.with(R::vanish);
                Health::Gone
            }
            false => {
                stand.card.with(R::break_down);
                Health::Reset
            }
        };
        assert_eq!(stand.rx[0].health(), expected);
        assert_eq!(stand.tx[0].health(), expected);
        assert_eq!(stand.driver.health(), expected);
        // Subsequent calls neither block nor panic.
        assert_eq!(stand.take(0, 64), []);
        assert!(stand.post(0, &packet(1, 100), &[], 64));
        stand.tx[0].publish();
        stand.reclaim(0);
        stand.driver.counters();
        if gone {
            assert!(!stand.driver.link().up);
        }
        let _ = stand.driver.stop_intake();
        stand.end();
    }
}
