//! Received and sent packets, complete and in order, and their metadata from the card.

use super::*;

#[test]
fn packets_of_every_length_arrive_over_many_ring_wraps() {
    for frame_len in [2048, 4096] {
        let mut rig = rig_over(pool(512, frame_len), |options| options.ring_len = 8);
        let mut number = 0;
        for round in 0..400u32 {
            // Up to what the ring holds; one entry stays empty.
            let packets: Vec<_> = (0..1 + round % 7)
                .map(|_| {
                    number += 1;
                    numbered(number, 60 + (number as usize * 13) % 1455)
                })
                .collect();
            for packet in &packets {
                assert!(rig.arrive(packet));
            }
            assert_eq!(rig.take(0), packets, "round {round}");
        }
        let account = rig.account();
        assert_eq!(
            (account.delivered, account.seen),
            (number.into(), number.into())
        );
        rig.close();
    }
}

#[test]
fn packets_are_sent_whole_and_their_frames_return() {
    let mut rig = rig(|options| options.ring_len = 16);
    for round in 0..200 {
        let mut batch = rig.port.tx[0].reserve(9).unwrap();
        let packets: Vec<_> = (0..batch.room() as u32)
            .map(|at| {
                numbered(
                    round * 10 + at,
                    60 + (round as usize * 31 + at as usize) % 1455,
                )
            })
            .collect();
        assert!(!packets.is_empty(), "round {round}");
        for packet in &packets {
            assert!(batch.write(packet));
        }
        batch.submit().unwrap();
        rig.port.tx[0].flush().unwrap();
        rig.card.with(|model| {
            assert!(model.step());
            for packet in &packets {
                assert_eq!(model.sent().as_ref(), Some(packet));
            }
            assert_eq!(model.sent(), None);
        });
    }
    assert!(rig.port.tx[0].wait(true, Duration::ZERO).unwrap());
    let account = rig.port.control.account().unwrap().tx_total();
    assert_eq!(account.failed, 0);
    assert!(account.sent >= 1000, "{account:?}");
    let by_card = rig.port.control.account().unwrap().interface_sent;
    assert_eq!(by_card, Some(account.sent), "the card counts them too");
    rig.close();
}

#[test]
fn jumbo_packets_are_joined_and_sent_in_pieces() {
    for frame_len in [2048, 4096] {
        let mut rig = rig_over(pool(512, frame_len), |_| ());
        for len in [
            2047,
            2048,
            2049,
            3072,
            3073,
            4096,
            6145,
            9000,
            PACKET_LEN_MAX as usize,
        ] {
            let packet = numbered(len as u32, len);
            assert!(rig.arrive(&packet));
            assert!(rig.arrive(&numbered(1, 60)));
            let mut batch = rig.port.rx[0].receive().unwrap();
            assert_eq!(batch.len(), 2, "{len}");
            let first = batch.iter().next().unwrap();
            assert_eq!(
                (first.cap_len(), first.wire_len()),
                (len as u32, len as u32)
            );
            assert!(first.segments().flatten().eq(&packet), "{len}");
            if !first.is_whole() {
                assert!(batch.detach(0).is_err());
            }
            drop(batch);
            let mut out = rig.port.tx[0].reserve(16).unwrap();
            assert!(out.write(&packet));
            out.submit().unwrap();
            rig.card.with(|model| {
                model.step();
                assert_eq!(model.sent().unwrap(), packet);
            });
        }
        assert!(!rig.arrive(&numbered(0, PACKET_LEN_MAX as usize + 1)));
        let account = rig.account();
        assert_eq!(account.dropped[DropReason::Interface as usize], 1, "ROC");
        rig.close();
    }
}

#[test]
fn a_packet_of_more_segments_than_the_batch_is_received_alone() {
    let mut rig = rig(|options| options.batch_max = 2);
    rig.arrive(&numbered(1, 60));
    rig.arrive(&numbered(2, 9000));
    rig.arrive(&numbered(3, 60));
    let mut lens = Vec::new();
    for _ in 0..3 {
        let batch = rig.port.rx[0].receive().unwrap();
        lens.push(
            batch
                .iter()
                .map(|packet| packet.cap_len())
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(lens, [vec![60], vec![9000], vec![60]]);
    rig.close();
}

#[test]
fn a_partly_forwarded_batch_returns_the_other_frames() {
    let mut rig = rig(|_| ());
    let mut cache = FrameCache::new(rig.pool.clone());
    let (mut arrived, mut sent) = (0, Vec::new());
    for round in 0..40 {
        for _ in 0..20 {
            assert!(
                rig.arrive(&numbered(arrived, 60)),
                "it has got its frames back"
            );
            arrived += 1;
        }
        let mut batch = rig.port.rx[0].receive().unwrap();
        assert_eq!(batch.len(), 20);
        let kept: Vec<_> = (0..round % 3)
            .map(|nth| batch.detach(19 - 2 * nth).unwrap().frame)
            .collect();
        let forwarded = batch.forward(&mut rig.port.tx[0], round % 7).unwrap();
        assert_eq!((forwarded.packets, forwarded.copied), (round % 7, 0));
        // Every other batch is leaked: then the next call returns it.
        match round % 2 {
            0 => drop(batch),
            _ => std::mem::forget(batch),
        }
        rig.port.tx[0].flush().unwrap();
        rig.card.with(Model::step);
        while let Some(packet) = rig.card.with(Model::sent) {
            sent.push(packet);
        }
        for frame in kept {
            cache.give(frame).unwrap();
        }
    }
    let first_of_batches = (0..40).flat_map(|round| (0..round % 7).map(move |at| 20 * round + at));
    let expected: Vec<_> = first_of_batches
        .map(|number| numbered(number, 60))
        .collect();
    assert_eq!(sent, expected);
    let account = rig.account();
    assert_eq!((account.seen, account.delivered), (800, 800));
    drop(cache);
    rig.close();
}

#[test]
fn a_tag_is_reported_with_the_packet() {
    let mut rig = rig_over(pool(512, 4096), |_| ());
    let mut tagged = numbered(1, 100);
    let plain = tagged.clone();
    tagged.splice(12..12, [0x81, 0x00, 0x61, 0x23]);
    rig.arrive(&tagged);
    rig.arrive(&plain);
    let batch = rig.port.rx[0].receive().unwrap();
    let packets: Vec<_> = batch.iter().collect();
    let vlan = packets[0].vlan().unwrap();
    assert_eq!((vlan.tpid, vlan.tci), (0x8100, 0x6123));
    assert_eq!(packets[0].bytes(), plain);
    assert_eq!(packets[1].vlan(), None);
    assert_eq!(packets[1].bytes(), plain);
    drop(batch);
    rig.close();
}

#[test]
fn a_tag_is_not_stripped_without_headroom() {
    // Frames of 2048 bytes are filled from the first byte.
    let mut rig = rig(|_| ());
    for len in [100, 5000] {
        let mut tagged = numbered(1, len);
        tagged.splice(12..12, [0x81, 0x00, 0x61, 0x23]);
        rig.arrive(&tagged);
        let batch = rig.port.rx[0].receive().unwrap();
        let packet = batch.iter().next().unwrap();
        assert_eq!(packet.vlan(), None, "{len}");
        assert!(packet.segments().flatten().eq(&tagged), "{len}");
        drop(batch);
    }
    rig.close();
}

#[test]
fn checksum_verdicts_are_reported() {
    let mut rig = rig(|_| ());
    let none = udp(([10, 0, 0, 1], 7), ([10, 0, 0, 2], 9));
    let mut wrong_ip = none.clone();
    wrong_ip[22] ^= 1;
    let mut good = none.clone();
    let mut pseudo = good[26..34].to_vec();
    pseudo.extend([0, 17, 0, 66]);
    pseudo.extend(&good[34..]);
    let sum = wire::checksum::checksum(&pseudo);
    good[40..42].copy_from_slice(&sum.to_be_bytes());
    let mut bad = good.clone();
    bad[60] ^= 1;
    for packet in [&none, &wrong_ip, &good, &bad, &numbered(1, 60)] {
        rig.arrive(packet);
    }
    let batch = rig.port.rx[0].receive().unwrap();
    let reported: Vec<_> = batch.iter().map(|packet| packet.checksum()).collect();
    let expected = [
        Checksum::Unknown,
        Checksum::Bad,
        Checksum::Good,
        Checksum::Bad,
        Checksum::Unknown,
    ];
    assert_eq!(reported, expected);
    drop(batch);
    rig.close();
}

#[test]
fn both_directions_of_a_flow_arrive_on_one_queue() {
    let mut rig = rig(|options| options.queue_count = 4);
    let mut per_queue = [0; 4];
    for flow in 0..64u16 {
        let ends = (
            ([10, 1, (flow * 7) as u8, 3], 1000 + flow * 37),
            ([172, 16, 9, flow as u8], 443),
        );
        rig.arrive(&udp(ends.0, ends.1));
        rig.arrive(&udp(ends.1, ends.0));
        let mut found = Vec::new();
        for at in 0..4 {
            let batch = rig.port.rx[at].receive().unwrap();
            found.extend(batch.iter().map(|packet| (at, packet.rss_hash().unwrap())));
        }
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], found[1], "flow {flow}");
        per_queue[found[0].0] += 1;
    }
    assert!(per_queue.iter().all(|&count| count > 4), "{per_queue:?}");
    rig.account();
    rig.close();
}

#[test]
fn one_queue_of_many_gets_everything() {
    let pool = pool(512, 2048);
    let card = card();
    let options = PortOptions {
        pool: Some(pool.clone()),
        ..PortOptions::default()
    };
    let mut name = PortName::parse("vfio:0000:00:01.0/11").unwrap();
    assert_eq!(
        (name.target.as_str(), name.queue),
        ("0000:00:01.0", Some(11))
    );
    let port = open_borrowed(None, &card, &name, &options).unwrap();
    let mut rig = Rig { card, port, pool };
    assert_eq!(rig.port.rx[0].queue_index(), 11);
    for at in 0..20u16 {
        rig.arrive(&udp(([10, 0, 0, 1], at), ([10, 0, 0, 2], 9)));
    }
    rig.arrive(&numbered(0, 60));
    assert_eq!(rig.take(0).len(), 21);
    rig.account();
    let card = rig.card.clone();
    rig.close();
    name.queue = Some(16);
    let error = open_borrowed(None, &card, &name, &options)
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn other_stations_packets_are_received_only_in_promiscuous_mode() {
    let mut rig = rig(|options| options.promiscuous = false);
    let mut other = numbered(1, 60);
    other[5] ^= 1;
    let mut broadcast = numbered(2, 60);
    broadcast[..6].fill(0xff);
    let mut multicast = numbered(3, 60);
    multicast[0] = 1;
    assert!(!rig.arrive(&other));
    assert!(rig.arrive(&broadcast) && rig.arrive(&multicast) && rig.arrive(&numbered(4, 60)));
    assert_eq!(rig.take(0).len(), 3);
    rig.close();
}
