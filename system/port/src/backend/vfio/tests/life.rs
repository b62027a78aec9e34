//! Life cycle of a card: order of registers, the link, sleep, and its return.

use super::*;

#[test]
fn the_card_is_started_in_the_datasheets_order() {
    let rig = rig(|_| ());
    let log = rig.card.with(|model| model.log.clone());
    let writes: Vec<u32> = log.iter().map(|&(offset, _)| offset).collect();
    // §4.5.3: interrupts off, reset, interrupts off.
    assert_eq!(
        writes[..5],
        [reg::IMC, reg::EIMC, reg::CTRL, reg::IMC, reg::EIMC]
    );
    assert_ne!(log[2].1 & reg::CTRL_RST, 0);
    // No DMA before the reset.
    assert_eq!(log[5], (BUS_MASTER, 1));
    let first = |offset| writes.iter().position(|&write| write == offset).unwrap();
    let last = |offset| writes.iter().rposition(|&write| write == offset).unwrap();
    // §4.5.9: a ring's place and kind, then the queue, then reception; tails at the very end.
    for queue_register in [reg::RDBAL, reg::RDBAH, reg::RDLEN, reg::SRRCTL, reg::RDH] {
        assert!(first(reg::rx(0, queue_register)) < last(reg::rx(0, reg::RXDCTL)));
    }
    for queue_register in [reg::TDBAL, reg::TDBAH, reg::TDLEN, reg::TDH] {
        assert!(first(reg::tx(0, queue_register)) < last(reg::tx(0, reg::TXDCTL)));
    }
    assert!(last(reg::rx(0, reg::RXDCTL)) < last(reg::RCTL));
    assert!(last(reg::tx(0, reg::TXDCTL)) < first(reg::TCTL));
    assert!(last(reg::MRQC) < last(reg::RCTL) && last(reg::RSSRK) < first(reg::RETA));
    let (at, rctl) = (last(reg::RCTL), log[last(reg::RCTL)].1);
    assert_ne!(rctl & reg::RCTL_ENABLE, 0);
    assert_eq!(writes[at + 1..], [reg::rx(0, reg::RDT)], "frames come last");
    for (offset, value) in &log[..at] {
        assert!(
            *offset != reg::RCTL || value & reg::RCTL_ENABLE == 0,
            "on too early"
        );
    }
    // What is where.
    rig.card.with(|model| {
        assert_eq!(model.get(reg::rx(0, reg::RDLEN)), 64 * 16);
        assert_eq!(model.get(reg::rx(0, reg::SRRCTL)), 2 | 1 << 25 | 1 << 31);
        assert_eq!(model.get(reg::RLPML), PACKET_LEN_MAX + 4);
        assert_eq!(model.get(reg::CTRL) & reg::CTRL_SLU, reg::CTRL_SLU);
        assert_eq!(model.get(reg::rx(0, reg::RDT)), 63);
    });
    assert_eq!(rig.port.rx[0].ring_len(), Some(64));
    rig.close();
}

#[test]
fn the_card_is_stopped_before_its_memory_is_freed() {
    let rig = rig(|_| ());
    let from = rig.card.with(|model| model.log.len());
    let card = rig.card.clone();
    rig.close();
    let log = card.with(|model| model.log[from..].to_vec());
    let at = |offset, bit: u32, set: bool| {
        let wanted = |&(write, value): &(u32, u32)| write == offset && (value & bit != 0) == set;
        log.iter().position(wanted).unwrap()
    };
    let order = [
        at(reg::EIMC, 1, true),
        at(reg::RCTL, reg::RCTL_ENABLE, false),
        at(reg::TCTL, reg::TCTL_ENABLE, false),
        at(reg::CTRL, reg::CTRL_MASTER_DISABLE, true),
        at(reg::CTRL, reg::CTRL_RST, true),
        at(BUS_MASTER, 1, false),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(card.memory().faults(), 0);
}

#[test]
fn loss_of_the_link_is_reported_and_survived() {
    let mut rig = rig(|_| ());
    let news = |rig: &mut Rig| {
        std::thread::sleep(Duration::from_millis(12));
        rig.port.control.event()
    };
    assert_eq!(news(&mut rig), None);
    rig.card.with(|model| model.set_link(false));
    assert_eq!(news(&mut rig), Some(PortEvent::LinkDown));
    assert!(!rig.arrive(&numbered(0, 60)));
    assert_eq!(
        rig.port.rx[0].wait(Duration::from_millis(1)).unwrap(),
        Ready::Timeout
    );
    rig.card.with(|model| model.set_link(true));
    assert_eq!(news(&mut rig), Some(PortEvent::LinkUp));
    assert!(rig.arrive(&numbered(1, 60)));
    assert_eq!(rig.take(0), [numbered(1, 60)]);
    rig.close();
}

#[test]
fn reception_starts_once_an_initially_down_link_is_up() {
    let pool = pool(512, 2048);
    let card = card();
    card.with(|model| model.set_link(false));
    let options = PortOptions {
        pool: Some(pool.clone()),
        ..PortOptions::default()
    };
    let port = open_on(&card, &options).unwrap();
    let facts = port.control.describe().facts;
    assert!(facts.contains(&("link", "down".to_owned())), "{facts:?}");
    let mut rig = Rig { card, port, pool };
    rig.card.with(|model| model.set_link(true));
    std::thread::sleep(Duration::from_millis(12));
    assert_eq!(rig.port.control.event(), Some(PortEvent::LinkUp));
    rig.arrive(&numbered(1, 60));
    assert_eq!(rig.take(0), [numbered(1, 60)]);
    rig.close();
}

#[test]
fn a_card_that_is_requested_back_is_released() {
    let mut rig = rig(|_| ());
    rig.arrive(&numbered(1, 60));
    rig.card.want_back();
    assert_eq!(rig.take(0), [numbered(1, 60)]);
    let error = rig.port.rx[0].wait(Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(
        error.to_string().contains("requests the card back"),
        "{error}"
    );
    assert!(error.hint().is_some());
    assert_eq!(rig.port.tx[0].flush().unwrap_err().kind(), ErrorKind::Gone);
    rig.close();
    // The control side gets it, too.
    let mut rig = self::rig(|_| ());
    rig.card.want_back();
    std::thread::sleep(Duration::from_millis(12));
    assert_eq!(rig.port.control.event(), Some(PortEvent::DeviceGone));
    rig.close();
}

/// What was borrowed is returned when the card is closed and can access nothing.
#[test]
fn the_card_is_returned_last() {
    struct Lender(ModelCard<IgbModel>, Arc<AtomicBool>);

    impl Drop for Lender {
        fn drop(&mut self) {
            let is_closed = self.0.memory().is_empty() && self.0.is_only_ours();
            self.1.store(is_closed, Ordering::Relaxed);
        }
    }

    for queues_first in [true, false] {
        let (card, closed) = (card(), Arc::new(AtomicBool::new(false)));
        let lender = Lender(card.clone(), closed.clone());
        let options = PortOptions {
            direction: Direction::Both,
            ..PortOptions::default()
        };
        let name = PortName {
            scheme: "vfio",
            target: "model".into(),
            queue: None,
            options: Vec::new(),
        };
        let port = open_borrowed(Some(Box::new(lender)), &card, &name, &options).unwrap();
        drop(card);
        let Port {
            rx, tx, control, ..
        } = port;
        match queues_first {
            true => drop((rx, tx, control)),
            false => drop((control, tx, rx)),
        }
        assert!(closed.load(Ordering::Relaxed), "{queues_first}");
    }
}

#[test]
fn an_interrupt_wakes_the_sleeper() {
    let mut rig = rig(|_| ());
    let card = rig.card.clone();
    for round in 0..5 {
        let card = card.clone();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            card.with(|model| model.receive(&numbered(round, 60)));
        });
        let ready = rig.port.rx[0].wait(Duration::from_secs(30)).unwrap();
        assert_eq!(ready, Ready::Packets);
        assert_eq!(rig.take(0), [numbered(round, 60)]);
        sender.join().unwrap();
    }
    // Interrupts are masked unless a queue sleeps.
    assert_eq!(rig.card.with(|model| model.get(reg::EIMS)), 0);
    rig.close();
}

#[test]
fn no_packet_is_received_after_stop() {
    let mut rig = rig(|_| ());
    rig.arrive(&numbered(1, 60));
    rig.port.control.stop().unwrap();
    assert!(!rig.arrive(&numbered(2, 60)));
    assert_eq!(rig.take(0), [numbered(1, 60)]);
    assert_eq!(rig.account().delivered, 1);
    rig.close();
}

#[test]
fn more_queues_than_the_card_has_are_refused() {
    let options = PortOptions {
        queue_count: 17,
        ..PortOptions::default()
    };
    let error = open_on(&card(), &options).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn an_incomplete_packet_does_not_wake_the_sleeper() {
    let mut rig = rig(|_| ());
    // The first descriptor is done, and the packet does not end in it.
    rig.card.with(|model| {
        let place = u64::from(model.get(reg::rx(0, reg::RDBAH))) << 32
            | u64::from(model.get(reg::rx(0, reg::RDBAL)));
        model.store(place + 8, reg::RX_DONE | 2048 << 32);
    });
    assert!(rig.take(0).is_empty());
    for _ in 0..3 {
        let ready = rig.port.rx[0].wait(Duration::from_millis(1)).unwrap();
        assert_eq!(ready, Ready::Timeout);
        assert!(rig.take(0).is_empty());
    }
    // The rest of it does.
    rig.card.with(|model| {
        let place = u64::from(model.get(reg::rx(0, reg::RDBAH))) << 32
            | u64::from(model.get(reg::rx(0, reg::RDBAL)));
        model.store(place + 24, reg::RX_DONE | reg::RX_END | 100 << 32);
    });
    let ready = rig.port.rx[0].wait(Duration::from_millis(1)).unwrap();
    assert_eq!(ready, Ready::Packets);
    assert_eq!(rig.take(0)[0].len(), 2148);
    rig.close();
}

#[test]
fn a_failed_start_stops_the_card_before_its_memory_is_freed() {
    let pool = pool(512, 2048);
    let card = card();
    card.with(|model| model.broken_queue = Some(2));
    let options = PortOptions {
        pool: Some(pool.clone()),
        queue_count: 4,
        ..PortOptions::default()
    };
    let error = open_on(&card, &options).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.hint().is_some());
    assert_eq!(
        card.memory().faults(),
        0,
        "a ring went while the card used it"
    );
    assert!(card.memory().is_empty());
    card.with(|model| assert_eq!(model.log.last(), Some(&(BUS_MASTER, 0))));
    assert_eq!(pool.counts().free, pool.frame_count());
}

#[test]
fn frames_of_a_card_that_does_not_stop_are_never_reused() {
    let rig = rig(|_| ());
    rig.card.with(|model| model.is_deaf = true);
    drop(rig.port);
    let counts = rig.pool.counts();
    assert_eq!((counts.device, counts.user), (63, 0), "{counts:?}");
    assert!(rig.card.memory().is_empty(), "the IOMMU has the last word");
}
