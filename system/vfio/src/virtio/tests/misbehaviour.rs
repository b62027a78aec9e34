//! Devices that report false ids, counts, lengths and checksums.

use super::*;

/// Ids that were never offered, or are returned twice, are counted and change nothing.
pub(super) fn false_ids<R: Rig<Model = VirtioModel>>() {
    for misbehaviour in [
        Misbehaviour::Id(u32::from(QUEUE_LEN)),
        Misbehaviour::Id(RING_LEN),
        Misbehaviour::Id(0xffff),
        Misbehaviour::Id(u32::MAX),
        Misbehaviour::Twice,
    ] {
        let mut stand = Stand::<R>::usual();
        stand
            .card
            .with(|model| model.misbehaviour = Some(misbehaviour));
        assert!(stand.arrive(0, &packet(1, 100)));
        let got = stand.take(0, 64);
        assert_eq!(
            got.len(),
            usize::from(misbehaviour == Misbehaviour::Twice),
            "{misbehaviour:?}"
        );
        assert_eq!(stand.refused.invalid, 1, "{misbehaviour:?}");
        // Transmit: the queue reports that it needs a reset, and no frame is returned twice.
        stand
            .card
            .with(|model| model.misbehaviour = Some(misbehaviour));
        assert!(stand.post(0, &packet(1, 100), &[], 64));
        stand.flush(0);
        assert_eq!(stand.tx[0].health(), Health::Reset, "{misbehaviour:?}");
        assert_eq!(stand.rx[0].health(), Health::Running);
        stand.driver.shut_down();
        let cache = &mut stand.cache;
        // SAFETY: the device has been shut down.
        let mut back = |index| assert!(unsafe { cache.reclaim(index) }, "{index}");
        stand.rx[0].drain(&mut back);
        stand.tx[0].drain(&mut back);
        let counts = stand.pool.counts();
        assert_eq!(
            (counts.device, counts.user),
            (0, 0),
            "{misbehaviour:?}: {counts:?}"
        );
    }
}

/// For any bytes that a device writes into the used ring: every call ends, and a frame is returned
/// once.
pub(super) fn rings_that_are_scribbled_on<R: Rig<Model = VirtioModel>>() {
    let mut random = Random::new();
    for _ in 0..20 {
        let mut stand = Stand::<R>::usual();
        for round in 0..60 {
            for queue in [0, 1] {
                // Ids and lengths near those that there are, and far away.
                let id = random.below(2 * RING_LEN);
                let len = [0, 12, 100, 3000, u32::MAX][random.below(5) as usize];
                let (place, more) = (random.below(RING_LEN), random.below(0x1_0000));
                let used = (place as u16, id as u16, len);
                stand
                    .card
                    .with(|model| model.scribble(queue, used, more as u16));
            }
            assert!(stand.rx[0].watch()() <= RING_LEN + 1);
            let before = stand.refused;
            let got = stand.take(0, 4096);
            assert!(got.len() as u32 <= RING_LEN, "{round}");
            let looks = u64::from(RING_LEN);
            assert!(stand.refused.invalid - before.invalid <= looks, "{round}");
            stand.refill(0);
            let _ = stand.post(0, &packet(round, 100), &[], 64 * (round % 2));
            stand.tx[0].publish();
            stand.reclaim(0);
            assert!(stand.tx[0].pending() <= RING_LEN);
        }
        stand.driver.shut_down();
        let cache = &mut stand.cache;
        // SAFETY: the device has been shut down.
        let mut back = |index| assert!(unsafe { cache.reclaim(index) }, "{index}");
        stand.rx[0].drain(&mut back);
        stand.tx[0].drain(&mut back);
        let counts = stand.pool.counts();
        assert_eq!((counts.device, counts.user), (0, 0), "{counts:?}");
    }
}

/// What a packed ring's flags can do: used, not used, used again, all at once, far ahead.
#[test]
fn flags_that_flap_give_a_buffer_back_once() {
    let mut stand = Stand::<MergePacked>::usual();
    let scribble = |stand: &mut Stand<MergePacked>, place: u16, id: u16, used: bool| {
        // §2.8.1: both bits as the device's wrap counter, or as it was offered.
        let flags = if used { 0x8080 } else { 0x0080 };
        stand
            .card
            .with(|model| model.scribble(0, (place, id, 112), flags));
    };
    // Ahead of the next one: nothing is taken, for buffers return in order.
    scribble(&mut stand, 5, 5, true);
    assert!(!stand.rx[0].is_ready());
    assert_eq!(stand.take(0, 64), []);
    // The next one, taken back, and given again.
    let count = |stand: &Stand<MergePacked>| stand.pool.counts().device;
    for used in [true, false, true] {
        scribble(&mut stand, 0, 0, used);
        assert_eq!(stand.rx[0].is_ready(), used);
    }
    // What is in the frame is no header of one buffer: zeroes.
    assert_eq!(stand.take(0, 64), []);
    assert_eq!((stand.refused.invalid, count(&stand)), (1, RING_LEN - 1));
    for used in [false, true] {
        scribble(&mut stand, 0, 0, used);
        assert!(!stand.rx[0].is_ready(), "it has been there");
    }
    // All of them, the same id each time: once at most.
    for place in 1..RING_LEN as u16 {
        scribble(&mut stand, place, 1, true);
    }
    for _ in 0..4 {
        assert_eq!(stand.take(0, 4096), []);
    }
    assert_eq!(stand.refused.invalid, u64::from(RING_LEN));
    assert_eq!(count(&stand), RING_LEN - 2);
    stand.driver.shut_down();
    let cache = &mut stand.cache;
    // SAFETY: the device has been shut down.
    stand.rx[0].drain(&mut |index| assert!(unsafe { cache.reclaim(index) }));
    assert_eq!(stand.pool.counts().device, 0);
}

fn counts_of_buffers_that_are_lies<R: Rig<Model = VirtioModel>>() {
    for count in [0, 2, 3, RING_LEN as u16, RING_LEN as u16 + 1, 0xffff] {
        let mut stand = Stand::<R>::usual();
        stand
            .card
            .with(|model| model.misbehaviour = Some(Misbehaviour::NumBuffers(count)));
        assert!(stand.arrive(0, &packet(1, 100)));
        assert_eq!(stand.take(0, 64), [], "{count}");
        assert_eq!(stand.refused.invalid, 1, "{count}");
        stand.refill(0);
        assert!(stand.arrive(0, &packet(2, 5000)));
        assert_eq!(stand.receive(0)[0].bytes, packet(2, 5000), "{count}");
        // Two packets, and the first claims the second as a part of it.
        stand
            .card
            .with(|model| model.misbehaviour = Some(Misbehaviour::NumBuffers(2)));
        assert!(stand.arrive(0, &packet(3, 100)));
        assert!(stand.arrive(0, &packet(4, 100)));
        let got = stand.receive(0);
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].segments, got[0].bytes.len()), (2, 212));
        stand.end();
    }
}

#[test]
fn false_buffer_counts_split() {
    counts_of_buffers_that_are_lies::<Merge>();
}

#[test]
fn false_buffer_counts_packed() {
    counts_of_buffers_that_are_lies::<MergePacked>();
}

#[test]
fn an_index_that_jumps_is_bounded() {
    for by in [1, 63, 64, 300, 0x7fff, 0xffff] {
        let mut stand = Stand::<Merge>::usual();
        let watch = stand.rx[0].watch();
        stand
            .card
            .with(|model| model.misbehaviour = Some(Misbehaviour::Jump(by)));
        assert!(stand.arrive(0, &packet(1, 100)));
        assert!(watch() <= RING_LEN);
        // For any entries, a frame returns once, and each batch ends.
        let mut frames = 0;
        for _ in 0..20 {
            frames += stand.take(0, 4096).len();
        }
        assert!(frames <= RING_LEN as usize);
        // A jump of 2^16 - 1 and a packet are no step at all.
        assert!(stand.refused.invalid > 0 || by == 0xffff, "{by}");
        stand.driver.shut_down();
        let cache = &mut stand.cache;
        // SAFETY: the device has been shut down.
        stand.rx[0].drain(&mut |index| assert!(unsafe { cache.reclaim(index) }));
        let counts = stand.pool.counts();
        assert_eq!((counts.device, counts.user), (0, 0), "{by}: {counts:?}");
    }
}

#[test]
fn a_device_that_uses_buffers_endlessly_does_not_block() {
    let mut stand = Stand::<Merge>::usual();
    // As far ahead as an index can be: a call looks at as many as the ring has, and returns.
    stand
        .card
        .with(|model| model.misbehaviour = Some(Misbehaviour::Jump(0x7fff)));
    assert!(stand.arrive(0, &packet(1, 100)));
    stand.take(0, 4096);
    assert!(
        stand.refused.invalid <= RING_LEN.into(),
        "{:?}",
        stand.refused
    );
    assert!(stand.rx[0].is_ready());
    stand.driver.shut_down();
    let cache = &mut stand.cache;
    // SAFETY: the device has been shut down.
    stand.rx[0].drain(&mut |index| assert!(unsafe { cache.reclaim(index) }));
}

#[test]
fn fields_that_were_not_negotiated_are_ignored() {
    let card = card(BASE & !GUEST_CSUM | MRG_RXBUF);
    let mut stand = Stand::<Merge>::of(card, &settings::<Merge>(1));
    stand.refill(0);
    stand.card.with(|model| model.checksum = (34, 6));
    for flags in 0..4 {
        stand.card.with(|model| model.flags = flags);
        for len in [100, 5000] {
            assert!(stand.arrive(0, &packet(1, len)));
            let got = stand.receive(0).pop().unwrap();
            assert_eq!((got.flags, got.bytes), (0, packet(1, len)), "{flags}");
        }
    }
    stand.end();
}

/// The header alone, less, and more than any buffer has: no packet.
fn lengths_that_are_lies<R: Rig<Model = VirtioModel>>() {
    let mut stand = Stand::<R>::usual();
    for (at, len) in [0, 11, 12, u32::MAX].into_iter().enumerate() {
        let fault = Some(Fault::Length(len));
        stand.card.with(|model| model.set_fault(fault));
        assert!(stand.arrive(0, &packet(1, 100)));
        assert_eq!(stand.receive(0), [], "{len}");
        assert_eq!(stand.refused.invalid, at as u64 + 1, "{len}");
        assert!(stand.arrive(0, &packet(2, 100)));
        assert_eq!(stand.receive(0)[0].bytes, packet(2, 100));
    }
    let before = stand.refused.invalid;
    // The first buffer of a packet in several: none of it is a packet.
    stand
        .card
        .with(|model| model.misbehaviour = Some(Misbehaviour::FirstLength(12)));
    assert!(stand.arrive(0, &packet(3, 5000)));
    assert_eq!(stand.receive(0), []);
    assert_eq!(stand.refused.invalid, before + 1);
    assert!(stand.arrive(0, &packet(4, 5000)));
    assert_eq!(stand.receive(0)[0].bytes, packet(4, 5000));
    stand.end();
}

#[test]
fn false_lengths_split() {
    lengths_that_are_lies::<Merge>();
}

#[test]
fn false_lengths_packed() {
    lengths_that_are_lies::<MergePacked>();
}
