//! Behaviour of a driver in normal operation: it delivers packets complete and in order, and bounds
//! its ring.

use super::*;

/// Packets arrive unchanged and in order, over many ring wraps and batches of any size.
pub fn packets_arrive<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let mut random = Random::new();
    let (mut sent, mut got) = (0, 0);
    while got < 20 * RING_LEN {
        for _ in 0..random.below(RING_LEN / 2) {
            if stand.arrive(0, &packet(sent, len_of(sent))) {
                sent += 1;
            }
        }
        for received in stand.take(0, 1 + random.below(40) as usize) {
            assert_eq!(received.bytes, packet(got, len_of(got)), "packet {got}");
            assert_eq!((received.segments, received.vlan), (1, None));
            got += 1;
        }
        stand.refill(0);
    }
    let (watch, waiting) = (stand.rx[0].watch(), sent - got);
    assert_eq!(watch(), waiting);
    assert_eq!(stand.receive(0).len() as u32, waiting);
    assert_eq!(watch(), 0);
    assert_eq!(stand.refused, Refused::default());
    assert_eq!(stand.faults(), 0);
    stand.end();
}

/// Packets are sent unchanged and in order, over many ring wraps, in one part or several, from
/// anywhere in a frame.
pub fn packets_leave<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let mut random = Random::new();
    let (mut posted, mut left) = (0, 0);
    while left < 20 * RING_LEN {
        for _ in 0..random.below(RING_LEN) {
            let bytes = packet(posted, len_of(posted));
            let cuts = match random.below(4) {
                0 => vec![14, 20],
                1 => vec![bytes.len() / 2],
                _ => vec![],
            };
            let at = [0, 5, 12, 64, 256][random.below(5) as usize];
            if !stand.post(0, &bytes, &cuts, at) {
                break;
            }
            posted += 1;
        }
        for bytes in stand.flush(0) {
            assert_eq!(bytes, packet(left, len_of(left)), "packet {left}");
            left += 1;
        }
    }
    // Packets waiting for room in the ring are sent with the next poll.
    for _ in 0..4 {
        left += stand.flush(0).len() as u32;
    }
    assert_eq!(left, posted);
    assert_eq!(stand.tx[0].pending(), 0);
    assert_eq!(stand.faults(), 0);
    stand.end();
}

/// Without offered frames the card loses packets, and continues when there are some again.
pub fn exhaustion<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let held = stand.pool.counts().device;
    assert!(held == RING_LEN || held == RING_LEN - 1, "{held}");
    let mut arrived = 0;
    for number in 0..2 * RING_LEN {
        arrived += u32::from(stand.arrive(0, &packet(number, 60)));
    }
    assert_eq!(arrived, held);
    // All are present, none twice, and nothing more.
    let got = stand.take(0, 1000);
    assert_eq!(got.len() as u32, held);
    assert_eq!(got[held as usize - 1].bytes, packet(held - 1, 60));
    assert_eq!(stand.take(0, 1000), []);
    assert!(!stand.rx[0].is_ready());
    assert!(!stand.arrive(0, &packet(0, 60)));
    stand.refill(0);
    assert!(stand.arrive(0, &packet(77, 60)));
    assert_eq!(stand.receive(0)[0].bytes, packet(77, 60));
    stand.end();
}

/// Room is reported once per batch: that many segments can then be posted, of any packets.
pub fn room_is_for_any_parts<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    stand.card.with(|model| R::fault(model, Some(Fault::Stop)));
    let mut posted = Vec::new();
    while stand.tx[0].room() > 8 {
        posted.push(packet(posted.len() as u32, 100));
        stand.put(0, posted.last().unwrap(), &[], 64);
    }
    for cuts in [&[40, 30][..], &[], &[], &[], &[], &[]] {
        posted.push(packet(posted.len() as u32, 100));
        stand.put(0, posted.last().unwrap(), cuts, 64);
    }
    assert_eq!(stand.tx[0].room(), 0);
    assert_eq!(stand.flush(0).len(), 0);
    assert_eq!(stand.tx[0].left().packets, posted.len());
    stand.card.with(|model| R::fault(model, None));
    let left: Vec<_> = (0..8).flat_map(|_| stand.flush(0)).collect();
    assert!(left == posted);
    assert_eq!(stand.tx[0].pending(), 0);
    stand.end();
}

/// A card that sends nothing fills only its ring; when it continues, everything is sent.
pub fn a_full_sending_ring<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    stand.card.with(|model| R::fault(model, Some(Fault::Stop)));
    let mut posted = 0;
    while stand.post(
        0,
        &packet(posted, 100),
        &[],
        if posted % 2 == 0 { 64 } else { 0 },
    ) {
        posted += 1;
        assert!(posted <= RING_LEN, "more than the ring takes");
    }
    // A packet at the start of its frame may take two descriptors.
    assert!(posted >= RING_LEN / 2);
    assert_eq!(stand.tx[0].room(), 0);
    assert_eq!(stand.flush(0).len(), 0);
    assert_eq!(stand.tx[0].pending(), posted);
    stand.card.with(|model| R::fault(model, None));
    let mut left = stand.flush(0);
    for _ in 0..4 {
        left.extend(stand.flush(0));
    }
    assert_eq!(left.len() as u32, posted);
    assert!(
        left.iter()
            .zip(0..)
            .all(|(bytes, number)| *bytes == packet(number, 100))
    );
    assert_eq!(stand.tx[0].pending(), 0);
    stand.end();
}

/// Packets in the ring of a closed port are returned.
pub fn closing_with_packets_in_flight<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    for number in 0..10 {
        assert!(stand.arrive(0, &packet(number, 60)));
    }
    stand.card.with(|model| R::fault(model, Some(Fault::Stop)));
    for number in 0..10 {
        assert!(stand.post(0, &packet(number, 100), &[], 64 * (number % 2)));
    }
    stand.tx[0].publish();
    stand.end();
}

/// Packets larger than a frame are received and sent in several.
pub fn jumbo<R: Rig>() {
    if !R::JUMBO {
        return;
    }
    for frame_len in [2048, 4096] {
        let mut stand = Stand::<R>::new(&Settings {
            frame_len,
            ..settings::<R>(1)
        });
        stand.refill(0);
        for (number, len) in [9000, 60, 2048, 2049, 4096, 9018, 6144, 1500]
            .into_iter()
            .enumerate()
        {
            let bytes = packet(number as u32, len);
            assert!(stand.arrive(0, &bytes), "{len}");
            let got = stand.receive(0);
            assert_eq!(got.len(), 1, "{len}");
            assert!(got[0].bytes == bytes, "{len}");
            assert_eq!(got[0].segments > 1, len > R::room(frame_len), "{len}");
            let cuts: Vec<usize> = (0..(len - 1) / 1700).map(|_| 1700).collect();
            assert!(stand.post(0, &bytes, &cuts, 0));
            assert!(stand.flush(0) == [bytes], "{len}");
        }
        // A batch ends before a packet that does not fit, and consists of a single one that fits
        // into none.
        for number in 0..3 {
            assert!(stand.arrive(0, &packet(number, 60)));
            assert!(stand.arrive(0, &packet(100 + number, 5000)));
        }
        let lens: Vec<Vec<usize>> = std::iter::from_fn(|| {
            let got = stand.take(0, 2);
            (!got.is_empty()).then(|| got.iter().map(|got| got.bytes.len()).collect())
        })
        .collect();
        assert!(
            lens.iter().flatten().eq(&[60, 5000, 60, 5000, 60, 5000]),
            "{lens:?}"
        );
        // One longer than the port's maximum is refused, and the ring continues.
        stand.refill(0);
        if stand.arrive(0, &packet(1, 9100)) {
            assert_eq!(stand.receive(0), []);
            assert_eq!(stand.refused.too_long, 1);
        }
        assert!(stand.arrive(0, &packet(2, 9000)));
        assert_eq!(stand.receive(0)[0].bytes, packet(2, 9000));
        stand.end();
    }
}

/// After the end of the intake nothing new enters the rings; their contents can be read, and
/// sending continues.
pub fn stopping<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    for number in 0..5 {
        assert!(stand.arrive(0, &packet(number, 100)));
    }
    stand.driver.stop_intake().unwrap();
    assert!(!stand.arrive(0, &packet(9, 100)));
    assert_eq!(stand.receive(0).len(), 5);
    assert!(stand.post(0, &packet(1, 100), &[], 64));
    assert_eq!(stand.flush(0).len(), 1);
    stand.end();
}

/// The card is notified only of changes, and once per batch.
pub fn few_doorbells<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let before = stand.card.with(|model| R::doorbells(model));
    for _ in 0..10 {
        stand.rx[0].publish();
        stand.tx[0].publish();
        stand.reclaim(0);
        assert_eq!(stand.take(0, 64), []);
    }
    assert_eq!(stand.card.with(|model| R::doorbells(model)), before);
    for number in 0..32 {
        assert!(stand.post(0, &packet(number, 100), &[], 64));
    }
    assert_eq!(stand.flush(0).len(), 32);
    let reported = stand.card.with(|model| R::doorbells(model)) - before;
    assert!(reported <= 1, "{reported} for one batch");
    stand.end();
}

/// Random operations compared with a simple model: every packet arrives and is sent once, every
/// frame has one owner.
pub fn any_order<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let mut random = Random::new();
    let (mut arrived, mut left) = (std::collections::VecDeque::new(), Vec::new());
    let (mut number, mut posted) = (0, std::collections::VecDeque::new());
    for _ in 0..3000 {
        match random.below(8) {
            0..=2 => {
                let len = match random.below(8) {
                    0 if R::JUMBO => 2000 + random.below(6000) as usize,
                    _ => len_of(number),
                };
                if stand.arrive(0, &packet(number, len)) {
                    arrived.push_back((number, len));
                }
                number += 1;
            }
            3 => {
                for got in stand.take(0, 1 + random.below(16) as usize) {
                    let (number, len) = arrived.pop_front().unwrap();
                    assert!(got.bytes == packet(number, len), "{number}");
                }
            }
            4 => stand.refill(0),
            5 | 6 => {
                let len = len_of(number);
                let cuts: Vec<_> = (0..random.below(4)).map(|_| 10).collect();
                if stand.post(0, &packet(number, len), &cuts, random.below(300)) {
                    posted.push_back((number, len));
                }
                number += 1;
            }
            _ => left.extend(stand.flush(0)),
        }
    }
    for got in stand.receive(0) {
        let (number, len) = arrived.pop_front().unwrap();
        assert!(got.bytes == packet(number, len), "{number}");
    }
    for _ in 0..4 {
        left.extend(stand.flush(0));
    }
    assert_eq!((arrived.len(), left.len()), (0, posted.len()));
    for (bytes, (number, len)) in left.into_iter().zip(posted) {
        assert!(bytes == packet(number, len), "{number}");
    }
    assert_eq!(stand.refused, Refused::default());
    stand.end();
}
