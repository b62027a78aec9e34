//! Feature negotiation at the start, and devices that are refused.

use super::*;

#[test]
fn the_status_follows_the_specification() {
    let stand = Stand::<Merge>::usual();
    stand.card.with(|model| {
        // Opening and starting, each with a reset first (§3.1.1).
        assert_eq!(model.history, [0, 1, 3, 11, 0, 1, 3, 11, 15]);
        assert_eq!(model.accepted, BASE | MRG_RXBUF | EVENT_IDX);
    });
    let card = stand.card.clone();
    stand.end();
    assert_eq!(card.with(|model| *model.history.last().unwrap()), 0);
}

#[test]
fn packed_queues_are_used_if_offered() {
    assert!(is_packed(&MergePacked::card()).unwrap());
    assert!(!is_packed(&Merge::card()).unwrap());
    // A packed device can be driven with split queues; not the other way round.
    let stand = Stand::<Merge>::of(MergePacked::card(), &settings::<Merge>(1));
    assert_eq!(stand.card.with(|model| model.accepted) & RING_PACKED, 0);
    stand.end();
    let error = VirtioNet::<_, Packed>::open(Merge::card()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn devices_that_cannot_be_driven_are_refused() {
    let refused = |card: ModelCard<VirtioModel>| match VirtioNet::<_, Split>::open(card) {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    };
    let error = refused(card(BASE & !VERSION_1));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().is_some(), "{error}");
    let short = card(BASE);
    short.with(|model| model.queue_len = 16);
    assert_eq!(refused(short).kind(), ErrorKind::Unsupported);
    // Without the IOMMU it would write wherever our addresses point to in the machine's memory.
    let around = card(BASE & !ACCESS_PLATFORM);
    let error = refused(around.clone());
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("iommu_platform=on"));
    // The status shows that it has no driver (§3.1.1).
    assert_eq!(around.with(|model| model.history.clone()), [0, 1, 3, 0x83]);
    assert!(is_packed(&around).is_err());
    let gone = card(BASE);
    gone.with(VirtioModel::vanish);
    assert_eq!(refused(gone).kind(), ErrorKind::Io);
}

#[test]
fn doorbells_outside_the_bar_are_refused() {
    for (offset, len) in [(0x4000, 0x1000), (0x3000, 0x1004), (0x10_0000, 0x1000)] {
        let card = card(BASE);
        card.with(|model| model.config = capability::notified_at(offset, len));
        let error = VirtioNet::<_, Split>::open(card).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("notification"), "{error}");
    }
}

#[test]
fn a_device_that_rejects_the_features_is_refused() {
    let card = Merge::card();
    let stand = Stand::<Merge>::new(&settings::<Merge>(1));
    let mut driver = VirtioNet::<_, Split>::open(card.clone()).unwrap();
    // Between meeting and starting it offers something else.
    card.with(|model| model.offered = VERSION_1 | 1 << 40);
    let error = driver
        .start(&settings::<Merge>(1), &stand.frames, 1)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Io);
    let last = || card.with(|model| *model.history.last().unwrap());
    assert_eq!(last() & status::FAILED, status::FAILED);
    driver.shut_down();
    assert_eq!(last(), status::RESET);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    type Plain = VirtioRig<Split, false, false>;
    let stand = Stand::<Plain>::usual();
    let usual = settings::<Plain>(1);
    for wrong in [
        Settings {
            rx_count: 5,
            tx_count: 5,
            ..usual.clone()
        },
        Settings {
            rx_count: 1,
            tx_count: 2,
            ..usual.clone()
        },
        Settings {
            first: 1,
            ..usual.clone()
        },
        Settings {
            ring_len: 2048,
            ..usual.clone()
        },
        Settings {
            ring_len: 48,
            ..usual.clone()
        },
        Settings {
            packet_len_max: 9018,
            ..usual
        },
    ] {
        let mut driver = VirtioNet::<_, Split>::open(Plain::card()).unwrap();
        let error = driver.start(&wrong, &stand.frames, 1).err();
        assert!(error.is_some(), "{wrong:?}");
    }
    let limits = VirtioNet::<_, Split>::open(Plain::card()).unwrap().limits();
    assert_eq!(
        (limits.rx_count, limits.tx_count),
        (PAIRS.into(), PAIRS.into())
    );
    assert_eq!(limits.ring_len_max, QUEUE_LEN.into());
    // Without mergeable buffers a packet must fit one frame, and so must the MTU agreed upon.
    assert_eq!(limits.packet_len_max as usize, Plain::room(2048));
    assert_eq!(stand.card.with(|model| model.accepted) & feature::MTU, 0);
    let limits = VirtioNet::<_, Split>::open(Merge::card()).unwrap().limits();
    assert_eq!(limits.packet_len_max, u32::from(MTU) + 18);
    stand.end();
}

#[test]
fn the_receive_modes_are_as_requested() {
    for (promiscuous, multicast) in [(true, true), (false, true), (false, false)] {
        let mut stand = Stand::<Merge>::new(&Settings {
            promiscuous,
            multicast,
            ..settings::<Merge>(1)
        });
        stand.refill(0);
        let modes = stand.card.with(|model| model.modes);
        assert_eq!(modes, [promiscuous, multicast, false, false, false, false]);
        let mut other = packet(1, 100);
        other[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        assert_eq!(stand.arrive(0, &other), promiscuous);
        other[..6].copy_from_slice(&ADDRESS);
        assert!(stand.arrive(0, &other));
        stand.end();
    }
}

#[test]
fn a_control_queue_that_refuses_commands() {
    for misbehaviour in [
        Misbehaviour::Answer(1),
        Misbehaviour::Answer(0x55),
        Misbehaviour::Silence,
    ] {
        let card = Merge::card();
        let stand = Stand::<Merge>::usual();
        let mut driver = VirtioNet::<_, Split>::open(card.clone()).unwrap();
        card.with(|model| model.misbehaviour = Some(misbehaviour));
        let error = driver
            .start(&settings::<Merge>(1), &stand.frames, 1)
            .err()
            .unwrap();
        let expected = match misbehaviour {
            Misbehaviour::Silence => ErrorKind::Io,
            _ => ErrorKind::Unsupported,
        };
        assert_eq!(error.kind(), expected, "{misbehaviour:?}: {error}");
        driver.shut_down();
        stand.end();
    }
}

#[test]
fn a_device_without_a_control_queue_works() {
    let stand = Stand::<Merge>::of(
        card(VERSION_1 | ACCESS_PLATFORM | MRG_RXBUF),
        &settings::<Merge>(1),
    );
    assert_eq!(stand.driver.limits().rx_count, 1);
    // Two without an address do not get the same: one of its own, and of one station.
    let mac = stand.driver.mac();
    assert_eq!(mac[0] & 3, 2, "{mac:x?}");
    let other = card(VERSION_1 | ACCESS_PLATFORM);
    assert_ne!(VirtioNet::<_, Split>::open(other).unwrap().mac(), mac);
    let mut stand = stand;
    stand.refill(0);
    assert!(stand.arrive(0, &packet(1, 100)));
    assert_eq!(stand.receive(0).len(), 1);
    // Without the field the link is up.
    assert!(stand.driver.link().up);
    stand.end();
}

#[test]
fn a_configuration_that_changes_is_read_again() {
    let mut stand = Stand::<Merge>::usual();
    stand.card.with(|model| model.unsteady = 3);
    assert!(stand.driver.link().up);
    assert_eq!(stand.card.with(|model| model.unsteady), 0);
    stand.end();
}
