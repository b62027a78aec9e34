//! The e1000 driver on its model.

use ring::slot::{Slot, Vlan};

use super::model::{E1000Model, RX_IPCS, RX_IPE, RX_IXSM, RX_TCPCS, RX_TCPE};
use super::registers as reg;
use super::*;
use crate::driver::{DriverRx, Refused};
use crate::laws::{RING_LEN, Rig, Stand, laws, packet, settings};
use crate::model::{Fault, Model, ModelCard};

const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

struct E1000Rig;

impl Rig for E1000Rig {
    type Model = E1000Model;
    type Driver = E1000<ModelCard<E1000Model>>;

    const ENDS: bool = true;

    fn card() -> ModelCard<E1000Model> {
        ModelCard::new(|memory, events| E1000Model::new(memory, events, MAC))
    }

    fn receive(model: &mut E1000Model, _queue: u32, packet: &[u8]) -> bool {
        model.receive(packet)
    }

    fn fault(model: &mut E1000Model, fault: Option<Fault>) {
        model.set_fault(fault);
    }

    fn break_down(model: &mut E1000Model) {
        model.reset();
    }

    fn vanish(model: &mut E1000Model) {
        model.vanish();
    }

    fn mark_sent(model: &mut E1000Model, entry: u32) -> bool {
        model.mark_sent(entry);
        true
    }

    fn doorbells(model: &E1000Model) -> u32 {
        model.doorbells
    }

    fn violations(model: &E1000Model) -> &[String] {
        &model.violations
    }
}

laws!(E1000Rig);

type E1000Stand = Stand<E1000Rig>;

#[test]
fn the_address_comes_from_the_card_or_its_eeprom() {
    let card = E1000Rig::card();
    assert_eq!(E1000::open(card.clone()).unwrap().mac(), MAC);
    card.with(E1000Model::forget_address);
    assert_eq!(E1000::open(card).unwrap().mac(), MAC);
}

#[test]
fn a_card_that_does_not_answer_is_not_opened() {
    let card = E1000Rig::card();
    card.with(E1000Model::vanish);
    let error = E1000::open(card).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Gone);
}

#[test]
fn a_powered_down_phy_is_woken() {
    let card = E1000Rig::card();
    card.with(|model| model.phy_control |= 1 << 11);
    let mut stand = E1000Stand::of(card, &settings::<E1000Rig>(1));
    assert!(stand.driver.link().up);
    // It negotiates as it did before.
    let control = |model: &mut E1000Model| model.phy_control;
    assert_eq!(stand.card.with(control), 1 << 12);
    stand.refill(0);
    assert!(stand.arrive(0, &packet(1, 100)));
    assert_eq!(stand.receive(0).len(), 1);
    stand.end();
}

#[test]
fn nonexistent_queues_are_refused() {
    let stand = E1000Stand::new(&settings::<E1000Rig>(1));
    let mut driver = E1000::open(stand.card.clone()).unwrap();
    let usual = settings::<E1000Rig>(1);
    let wrong = [
        Settings {
            rx_count: 2,
            ..usual.clone()
        },
        Settings {
            tx_count: 2,
            ..usual.clone()
        },
        Settings {
            first: 1,
            ..usual.clone()
        },
        Settings {
            ring_len: 16,
            ..usual.clone()
        },
        Settings {
            ring_len: 8192,
            ..usual.clone()
        },
        Settings {
            ring_len: 96,
            ..usual
        },
    ];
    for settings in wrong {
        let error = driver.start(&settings, &stand.frames, 1).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{settings:?}");
    }
}

#[test]
fn vlan_tags_are_reported_with_the_packet() {
    let mut stand = E1000Stand::new(&Settings {
        frame_len: 4096,
        ..settings::<E1000Rig>(1)
    });
    stand.refill(0);
    let plain = packet(1, 100);
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0x00, 0x60, 0x2a]);
    assert!(stand.arrive(0, &tagged));
    let got = stand.receive(0).pop().unwrap();
    let vlan = Vlan {
        tpid: 0x8100,
        tci: 0x602a,
    };
    assert_eq!((got.vlan, &got.bytes), (Some(vlan), &plain));
    // Another kind of tag is the packet's own.
    tagged[12..14].copy_from_slice(&[0x88, 0xa8]);
    assert!(stand.arrive(0, &tagged));
    let got = stand.receive(0).pop().unwrap();
    assert_eq!((got.vlan, got.bytes), (None, tagged));
    // It is in the first of several segments.
    let plain = packet(2, 5000);
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0x00, 0x0f, 0xff]);
    assert!(stand.arrive(0, &tagged));
    let got = stand.receive(0).pop().unwrap();
    assert_eq!((got.vlan.unwrap().tci, got.segments), (0x0fff, 3));
    assert!(got.bytes == plain);
    stand.end();
}

#[test]
fn tags_are_not_stripped_without_headroom() {
    // Frames of 2048 bytes are filled from the first byte.
    let mut stand = E1000Stand::usual();
    let mut tagged = packet(1, 100);
    tagged.splice(12..12, [0x81, 0x00, 0x60, 0x2a]);
    assert!(stand.arrive(0, &tagged));
    let got = stand.receive(0).pop().unwrap();
    assert_eq!((got.vlan, got.bytes), (None, tagged));
    stand.end();
}

#[test]
fn an_unfinished_packet_does_not_count_as_ready() {
    let mut stand = E1000Stand::usual();
    stand.card.with(|model| model.set_fault(Some(Fault::NoEnd)));
    assert!(stand.arrive(0, &packet(1, 2048)));
    assert!(stand.rx[0].is_ready());
    assert_eq!(stand.take(0, 64), []);
    assert!(!stand.rx[0].is_ready(), "a sleeper would never sleep");
    // Its end comes, and it is whole.
    assert!(stand.arrive(0, &packet(2, 100)));
    assert!(stand.rx[0].is_ready());
    let got = stand.take(0, 64).pop().unwrap();
    assert_eq!((got.segments, got.bytes.len()), (2, 2148));
    stand.end();
}

#[test]
fn checksum_verdicts_are_reported() {
    let mut stand = E1000Stand::usual();
    for (said, flag) in [
        (RX_IXSM, 0),
        (RX_IXSM | RX_TCPCS | RX_TCPE | RX_IPCS | RX_IPE, 0),
        (RX_TCPCS | RX_IPCS, Slot::CHECKSUM_GOOD),
        (RX_TCPCS | RX_IPCS | RX_TCPE, Slot::CHECKSUM_BAD),
        (RX_TCPCS | RX_IPCS | RX_IPE, Slot::CHECKSUM_BAD),
        // Neither TCP nor UDP: nothing is known of what is in it.
        (RX_IPCS, 0),
        (RX_IPCS | RX_IPE, Slot::CHECKSUM_BAD),
        // Errors of what was not looked at.
        (RX_IPE, 0),
        (RX_TCPE, 0),
        (RX_IPCS | RX_TCPE, 0),
        (RX_TCPCS | RX_IPE, Slot::CHECKSUM_GOOD),
    ] {
        stand.card.with(|model| model.checksum = said);
        assert!(stand.arrive(0, &packet(1, 100)));
        assert_eq!(stand.receive(0)[0].flags, flag, "{said:#x}");
    }
    // A wrong checksum is not an error of the frame.
    assert_eq!(stand.refused, Refused::default());
    stand.end();
}

#[test]
fn a_plain_descriptor_has_no_unusual_flag_and_fits() {
    crate::intel::plain_is_plain::<super::rx::RxQueue>();
}

#[test]
fn damaged_frames_are_refused() {
    let mut stand = E1000Stand::usual();
    for (at, bit) in [0, 1, 2, 4, 7].into_iter().enumerate() {
        stand
            .card
            .with(|model| model.set_fault(Some(Fault::Error(1 << bit))));
        assert!(stand.arrive(0, &packet(1, if at % 2 == 0 { 100 } else { 3000 })));
        assert_eq!(stand.receive(0), []);
        assert_eq!(stand.refused.errors, at as u64 + 1);
    }
    stand.end();
}

#[test]
fn the_filter_is_as_requested() {
    let to = |address: [u8; 6]| {
        let mut bytes = packet(1, 100);
        bytes[..6].copy_from_slice(&address);
        bytes
    };
    let ours = to(MAC);
    let (other, group) = (to([2, 0, 0, 0, 0, 9]), to([1, 0, 0x5e, 0, 0, 1]));
    let broadcast = packet(1, 100);
    for (promiscuous, multicast) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut stand = E1000Stand::new(&Settings {
            promiscuous,
            multicast,
            ..settings::<E1000Rig>(1)
        });
        stand.refill(0);
        assert!(stand.arrive(0, &ours) && stand.arrive(0, &broadcast));
        assert_eq!(stand.arrive(0, &other), promiscuous);
        assert_eq!(stand.arrive(0, &group), promiscuous || multicast);
        stand.end();
    }
}

#[test]
fn the_cards_counters_add_up() {
    let mut stand = E1000Stand::usual();
    for number in 0..10 {
        assert!(stand.arrive(0, &packet(number, 100)));
        assert!(stand.post(0, &packet(number, 100), &[], 64));
    }
    stand.flush(0);
    for _ in 0..2 {
        let counters = stand.driver.counters();
        assert_eq!((counters.received, counters.sent), (Some(10), Some(10)));
    }
    while stand.arrive(0, &packet(1, 100)) {}
    let counters = stand.driver.counters();
    assert_eq!(counters.missed, 1);
    assert_eq!(counters.rx[0].received, Some(u64::from(RING_LEN) - 1));
    stand.end();
}

#[test]
fn a_packet_wakes_the_sleeper() {
    let card = E1000Rig::card();
    let interrupt = card.interrupts(1).unwrap().remove(0);
    let mut stand = E1000Stand::of(card, &settings::<E1000Rig>(1));
    stand.refill(0);
    let woken = |wait| interrupt.event.wait(Duration::from_millis(wait)).unwrap();
    // Polling: no interrupt is raised.
    assert!(stand.arrive(0, &packet(1, 100)));
    assert!(!woken(0));
    stand.rx[0].arm();
    assert!(
        stand.rx[0].is_ready(),
        "what came before is seen by the last look"
    );
    assert_eq!(stand.receive(0).len(), 1);
    assert!(stand.arrive(0, &packet(1, 100)));
    assert!(woken(1000));
    interrupt.event.take();
    stand.rx[0].disarm();
    assert!(stand.arrive(0, &packet(1, 100)));
    assert!(!woken(0));
    stand.end();
}

#[test]
fn positions_wrap() {
    let mut stand = E1000Stand::new(&settings::<E1000Rig>(1));
    let start = 0u32.wrapping_sub(2 * RING_LEN);
    stand.rx[0].begin_at(start);
    stand.tx[0].begin_at(start);
    stand.refill(0);
    for number in 0..4 * RING_LEN {
        assert!(stand.arrive(0, &packet(number, 100)), "{number}");
        assert_eq!(stand.receive(0)[0].bytes, packet(number, 100));
        assert!(stand.post(0, &packet(number, 100), &[], 64));
        assert_eq!(stand.flush(0), [packet(number, 100)]);
    }
    stand.end();
}

#[test]
fn a_packet_may_wrap_around_the_end_of_the_ring() {
    let mut stand = E1000Stand::usual();
    for number in 0..RING_LEN - 2 {
        assert!(stand.arrive(0, &packet(number, 60)));
    }
    assert_eq!(stand.receive(0).len() as u32, RING_LEN - 2);
    assert!(stand.arrive(0, &packet(1, 9000)));
    let got = stand.receive(0);
    assert_eq!((got[0].segments, got[0].bytes.len()), (5, 9000));
    stand.end();
}

#[test]
fn registers_are_those_of_the_manual() {
    // A few that nothing else holds: the values in the manual's own tables.
    assert_eq!(reg::TIPG_COPPER, 0x0060_200a);
    assert_eq!(
        reg::TCTL_EN | reg::TCTL_PSP | reg::TCTL_COLLISIONS,
        0x0004_00fa
    );
}
