//! The virtio-net driver on its model: the laws for every set of features that changes the format
//! of rings or packets, and tests specific to virtio.

mod misbehaviour;
mod start;

use std::time::Duration;

use ::ring::slot::Slot;

use super::feature::*;
use super::model::{MTU, Misbehaviour, PAIRS, QUEUE_LEN, VirtioModel};
use super::*;
use crate::driver::{DriverRx, DriverTx};
use crate::laws::{RING_LEN, Random, Rig, Stand, laws, packet, settings};
use crate::model::{Fault, Model, ModelCard};

/// The feature bit of each kind of ring.
trait Kind: Ring {
    const PACKED: bool;
}

impl Kind for Split {
    const PACKED: bool = false;
}

impl Kind for Packed {
    const PACKED: bool = true;
}

/// A device with one kind of ring, with or without mergeable buffers and event indices.
struct VirtioRig<R, const MERGE: bool, const EVENT: bool>(R);

const ADDRESS: [u8; 6] = [0x52, 0x54, 0x00, 0xba, 0x04, 0x00];

/// Features that every device of the tests offers.
const BASE: Features = VERSION_1
    | ACCESS_PLATFORM
    | MAC
    | STATUS
    | feature::MTU
    | CTRL_VQ
    | CTRL_RX
    | CTRL_RX_EXTRA
    | MQ
    | GUEST_CSUM;

impl<R: Kind, const MERGE: bool, const EVENT: bool> Rig for VirtioRig<R, MERGE, EVENT> {
    type Model = VirtioModel;
    type Driver = VirtioNet<ModelCard<VirtioModel>, R>;

    const JUMBO: bool = MERGE;

    fn card() -> ModelCard<VirtioModel> {
        let mut offered = BASE;
        offered |= if R::PACKED { RING_PACKED } else { 0 };
        offered |= if MERGE { MRG_RXBUF } else { 0 };
        offered |= if EVENT { EVENT_IDX } else { 0 };
        // And much that must not be taken up.
        offered |= 1 | 1 << 7 | 1 << 11 | 1 << 28 | 1 << 35 | 1 << 57;
        card(offered)
    }

    fn room(frame_len: u32) -> usize {
        (frame_len - HEADROOM) as usize
    }

    fn receive(model: &mut VirtioModel, queue: u32, packet: &[u8]) -> bool {
        model.receive_on(queue, packet)
    }

    fn fault(model: &mut VirtioModel, fault: Option<Fault>) {
        model.set_fault(fault);
    }

    fn break_down(model: &mut VirtioModel) {
        model.need_reset();
    }

    fn vanish(model: &mut VirtioModel) {
        model.vanish();
    }

    fn doorbells(model: &VirtioModel) -> u32 {
        model.doorbells
    }

    fn violations(model: &VirtioModel) -> &[String] {
        &model.violations
    }
}

fn card(offered: Features) -> ModelCard<VirtioModel> {
    ModelCard::new(|memory, events| VirtioModel::new(memory, events, offered, ADDRESS))
}

/// Runs all laws, and the tests below, on each set of features.
macro_rules! sets {
    ($($name:ident: $ring:ty, $merge:literal, $event:literal;)*) => {
        $(
            mod $name {
                use super::*;

                type Set = VirtioRig<$ring, $merge, $event>;

                laws!(Set);

                #[test]
                fn false_ids() {
                    super::misbehaviour::false_ids::<Set>();
                }

                #[test]
                fn many_rounds() {
                    super::many_rounds::<Set>();
                }

                #[test]
                fn sleeping() {
                    super::sleeping::<Set>();
                }

                #[test]
                fn rings_that_are_scribbled_on() {
                    super::misbehaviour::rings_that_are_scribbled_on::<Set>();
                }

                #[test]
                fn a_reset_under_us() {
                    super::a_reset_under_us::<Set>();
                }

                #[test]
                fn several_pairs() {
                    super::several_pairs::<Set>();
                }
            }
        )*
    };
}

sets! {
    split_plain: Split, false, false;
    split_merge: Split, true, false;
    split_event: Split, true, true;
    packed_plain: Packed, false, false;
    packed_merge: Packed, true, false;
    packed_event: Packed, true, true;
}

type Merge = VirtioRig<Split, true, true>;
type MergePacked = VirtioRig<Packed, true, true>;

/// 0 is written to the device status: it is as after power-on, and responds.
fn a_reset_under_us<R: Rig<Model = VirtioModel>>() {
    let mut stand = Stand::<R>::usual();
    assert!(stand.arrive(0, &packet(1, 100)));
    stand.card.with(Model::reset);
    assert_eq!(stand.rx[0].health(), Health::Reset);
    assert_eq!(stand.tx[0].health(), Health::Reset);
    assert_eq!(stand.driver.health(), Health::Reset);
    // What had come is still present; nothing more comes, and nothing leaves.
    assert_eq!(stand.take(0, 64).len(), 1);
    assert!(!stand.arrive(0, &packet(2, 100)));
    assert!(stand.post(0, &packet(1, 100), &[], 64));
    assert_eq!(stand.tx[0].pending(), 1);
    stand.reclaim(0);
    assert_eq!(stand.tx[0].pending(), 1);
    stand.driver.counters();
    stand.end();
}

/// Past the end of 16-bit indices and of wrap counters, in both directions.
fn many_rounds<R: Rig>() {
    let mut stand = Stand::<R>::usual();
    let (frame, burst) = (packet(1, 60), RING_LEN - 1);
    for round in 0..(0x1_0000 + 2000) / burst {
        for _ in 0..burst {
            assert!(stand.arrive(0, &frame), "round {round}");
            assert!(stand.post(0, &frame, &[], 64), "round {round}");
        }
        assert_eq!(stand.take(0, 1000).len() as u32, burst, "round {round}");
        stand.refill(0);
        assert_eq!(stand.flush(0).len() as u32, burst, "round {round}");
    }
    stand.end();
}

/// No interrupts while polling, one when requested.
fn sleeping<R: Rig<Model = VirtioModel>>() {
    let card = R::card();
    let interrupt = card.interrupts(1).unwrap().remove(0);
    let mut stand = Stand::<R>::of(card, &settings::<R>(1));
    stand.refill(0);
    let woken = |wait| interrupt.event.wait(Duration::from_millis(wait)).unwrap();
    for number in 0..3 * RING_LEN {
        assert!(stand.arrive(0, &packet(number, 60)));
        assert_eq!(stand.receive(0).len(), 1);
    }
    assert!(!woken(0), "an interrupt while polling");
    assert!(stand.arrive(0, &packet(1, 60)));
    stand.rx[0].arm();
    assert!(
        stand.rx[0].is_ready(),
        "what came before is seen by the last look"
    );
    assert_eq!(stand.receive(0).len(), 1);
    stand.rx[0].arm();
    assert!(!stand.rx[0].is_ready());
    assert!(stand.arrive(0, &packet(1, 60)));
    assert!(woken(1000));
    interrupt.event.take();
    stand.rx[0].disarm();
    assert_eq!(stand.receive(0).len(), 1);
    assert!(stand.arrive(0, &packet(1, 60)));
    assert!(!woken(0), "an interrupt after disarming");
    stand.end();
}

/// Each queue has its own packets.
fn several_pairs<R: Rig<Model = VirtioModel>>() {
    let mut stand = Stand::<R>::new(&settings::<R>(3));
    assert_eq!(stand.card.with(|model| model.pairs), 3);
    for queue in 0..3 {
        stand.refill(queue);
    }
    for number in 0..30 {
        assert!(stand.arrive(number % 3, &packet(number, 100)));
        assert!(stand.post(number as usize % 3, &packet(number, 100), &[], 64));
    }
    for queue in 0..3 {
        let got = stand.receive(queue as usize);
        let numbers = (0..30).filter(|number| number % 3 == queue);
        assert!(
            got.iter().map(|got| &got.bytes).eq(&numbers
                .clone()
                .map(|number| packet(number, 100))
                .collect::<Vec<_>>())
        );
        let left = stand.flush(queue as usize);
        assert!(
            left.into_iter()
                .eq(numbers.map(|number| packet(number, 100)))
        );
    }
    assert!(!stand.arrive(3, &packet(1, 100)));
    stand.end();
}

/// Sum of 16-bit words (RFC 1071) of data at an even offset.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u64::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn unfinished_checksums<R: Rig<Model = VirtioModel>>() {
    let mut stand = Stand::<R>::usual();
    stand.card.with(|model| model.flags = 1);
    for (len, start, offset) in [(100, 34, 6), (101, 34, 16), (5000, 34, 6), (5001, 35, 40)] {
        let before = packet(3, len);
        stand
            .card
            .with(|model| model.checksum = (start as u16, offset as u16));
        assert!(stand.arrive(0, &before));
        let got = stand.receive(0).pop().unwrap();
        assert_eq!(got.flags, Slot::CHECKSUM_GOOD, "{len}");
        // What was there went into the sum; nothing else has changed.
        let field = start + offset..start + offset + 2;
        let expected = match !sum(&before[start..]) {
            0 => 0xffff,
            sum => sum,
        };
        assert_eq!(got.bytes[field.clone()], expected.to_be_bytes(), "{len}");
        let mut bytes = got.bytes;
        bytes[field.clone()].copy_from_slice(&before[field]);
        assert!(bytes == before, "{len}");
    }
    // A place outside of the packet, or half: nothing is written, and it stays unfinished.
    for (start, offset) in [(0, 99), (99, 0), (34, 66), (100, 0), (0xffff, 0xffff)] {
        stand.card.with(|model| model.checksum = (start, offset));
        assert!(stand.arrive(0, &packet(3, 100)));
        let got = stand.receive(0).pop().unwrap();
        assert_eq!(
            (got.flags, got.bytes),
            (Slot::CHECKSUM_PARTIAL, packet(3, 100))
        );
    }
    stand.end();
}

#[test]
fn unfinished_checksums_are_finished() {
    unfinished_checksums::<Merge>();
    unfinished_checksums::<MergePacked>();
}

#[test]
fn without_ctrl_rx_reception_ends_when_the_buffers_are_used() {
    let card = card(VERSION_1 | ACCESS_PLATFORM | MRG_RXBUF);
    let mut stand = Stand::<Merge>::of(card, &settings::<Merge>(1));
    stand.refill(0);
    stand.driver.stop_intake().unwrap();
    let mut arrived = 0;
    while stand.arrive(0, &packet(arrived, 100)) {
        arrived += 1;
        assert_eq!(stand.receive(0).len(), 1);
        assert!(arrived <= RING_LEN, "more than the ring had");
    }
    assert_eq!(arrived, RING_LEN);
    stand.end();
}

#[test]
fn the_account_is_the_rings() {
    let mut stand = Stand::<Merge>::new(&settings::<Merge>(2));
    let received = |stand: &mut Stand<Merge>| {
        let counters = stand.driver.counters();
        [0, 1].map(|queue| counters.rx[queue].received.unwrap())
    };
    stand.refill(0);
    stand.refill(1);
    for number in 0..7 {
        assert!(stand.arrive(number % 2, &packet(number, 100)));
    }
    assert_eq!(received(&mut stand), [4, 3]);
    assert_eq!(stand.take(0, 2).len(), 2);
    assert_eq!(received(&mut stand), [4, 3]);
    // A packet that does not fit a batch is in flight, and was given.
    assert!(stand.arrive(0, &packet(9, 5000)));
    stand.receive(1);
    assert_eq!(stand.take(0, 3).len(), 2);
    assert_eq!((received(&mut stand), stand.rx[0].watch()()), ([5, 3], 1));
    assert_eq!(stand.take(0, 3).len(), 1);
    assert_eq!((received(&mut stand), stand.rx[0].watch()()), ([5, 3], 0));
    stand.end();
}

#[test]
fn checksum_flags_of_the_header_are_reported() {
    let mut stand = Stand::<Merge>::usual();
    // No place for a checksum: what needs one stays as it is.
    stand.card.with(|model| model.checksum = (0xffff, 0));
    for (flags, reported) in [
        (0, 0),
        (1, Slot::CHECKSUM_PARTIAL),
        (2, Slot::CHECKSUM_GOOD),
        (3, Slot::CHECKSUM_PARTIAL),
        (0xfc, 0),
    ] {
        stand.card.with(|model| model.flags = flags);
        assert!(stand.arrive(0, &packet(1, 100)));
        assert_eq!(stand.receive(0)[0].flags, reported, "{flags:#x}");
    }
    stand.end();
}

#[test]
fn polling_sends_only_requested_notifications() {
    let mut stand = Stand::<Merge>::usual();
    assert!(stand.arrive(0, &packet(0, 100)));
    stand.receive(0);
    let before = stand.card.with(|model| model.doorbells);
    for number in 0..500 {
        assert!(stand.arrive(0, &packet(number, 100)));
        assert_eq!(stand.receive(0).len(), 1);
    }
    // The device has buffers and requests no notification for more.
    assert_eq!(stand.card.with(|model| model.doorbells), before);
    stand.end();
}
