//! The virtio-net driver on its model: the laws over every set of features that changes what rings
//! or packets look like, and what only virtio has.

use std::time::Duration;

use super::feature::*;
use super::model::{Lie, MTU, PAIRS, QUEUE_LEN, VirtioModel};
use super::*;
use crate::backend::vfio::driver::{DriverRx, DriverTx};
use crate::backend::vfio::laws::{RING_LEN, Random, Rig, Stand, laws, packet, settings};
use crate::backend::vfio::model::{Fault, Model, ModelCard};
use crate::slot::Slot;

/// Which ring goes with which feature bit.
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

/// What every device of the tests offers.
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

/// All laws on each set of features, and the tests below on it too.
macro_rules! sets {
    ($($name:ident: $ring:ty, $merge:literal, $event:literal;)*) => {
        $(
            mod $name {
                use super::*;

                type Set = VirtioRig<$ring, $merge, $event>;

                laws!(Set);

                #[test]
                fn ids_that_are_lies() {
                    super::ids_that_are_lies::<Set>();
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
                    super::rings_that_are_scribbled_on::<Set>();
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

/// Ids that were never offered, or are given back twice, are counted and change nothing.
fn ids_that_are_lies<R: Rig<Model = VirtioModel>>() {
    for lie in [
        Lie::Id(u32::from(QUEUE_LEN)),
        Lie::Id(RING_LEN),
        Lie::Id(0xffff),
        Lie::Id(u32::MAX),
        Lie::Twice,
    ] {
        let mut stand = Stand::<R>::usual();
        stand.card.with(|model| model.lie = Some(lie));
        assert!(stand.arrive(0, &packet(1, 100)));
        let got = stand.take(0, 64);
        assert_eq!(got.len(), usize::from(lie == Lie::Twice), "{lie:?}");
        assert_eq!(stand.refused.invalid, 1, "{lie:?}");
        // Of what is sent: the queue says that it needs a reset, and no frame goes home twice.
        stand.card.with(|model| model.lie = Some(lie));
        assert!(stand.post(0, &packet(1, 100), &[], 64));
        stand.flush(0);
        assert_eq!(stand.tx[0].health(), Health::Reset, "{lie:?}");
        assert_eq!(stand.rx[0].health(), Health::Running);
        stand.driver.shut_down();
        let cache = &mut stand.cache;
        // SAFETY: the device has been shut down.
        let mut back = |index| assert!(unsafe { cache.reclaim(index) }, "{index}");
        stand.rx[0].drain(&mut back);
        stand.tx[0].drain(&mut back);
        let counts = stand.pool.counts();
        assert_eq!((counts.device, counts.user), (0, 0), "{lie:?}: {counts:?}");
    }
}

/// Whatever a device writes where it gives buffers back: every call ends, and a frame comes home
/// once.
fn rings_that_are_scribbled_on<R: Rig<Model = VirtioModel>>() {
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
    // Ahead of the next one: nothing is taken, for buffers come back in order.
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
    // All of them, the same id each time: once at the most.
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

/// Somebody writes 0 to the device status: it is as after power-on, and answers.
fn a_reset_under_us<R: Rig<Model = VirtioModel>>() {
    let mut stand = Stand::<R>::usual();
    assert!(stand.arrive(0, &packet(1, 100)));
    stand.card.with(Model::reset);
    assert_eq!(stand.rx[0].health(), Health::Reset);
    assert_eq!(stand.tx[0].health(), Health::Reset);
    assert_eq!(stand.driver.health(), Health::Reset);
    // What had come is still there; nothing more comes, and nothing leaves.
    assert_eq!(stand.take(0, 64).len(), 1);
    assert!(!stand.arrive(0, &packet(2, 100)));
    assert!(stand.post(0, &packet(1, 100), &[], 64));
    assert_eq!(stand.tx[0].pending(), 1);
    stand.reclaim(0);
    assert_eq!(stand.tx[0].pending(), 1);
    stand.driver.counters();
    stand.end();
}

/// Past the end of 16-bit indices and of wrap counters, both ways.
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

/// No interrupts while polling, one when asked for.
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

#[test]
fn the_status_goes_as_the_specification_says() {
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
fn packed_queues_are_used_where_they_are_offered() {
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
    // It is told that nobody drives it (§3.1.1).
    assert_eq!(around.with(|model| model.history.clone()), [0, 1, 3, 0x83]);
    assert!(is_packed(&around).is_err());
    let gone = card(BASE);
    gone.with(VirtioModel::vanish);
    assert_eq!(refused(gone).kind(), ErrorKind::Io);
}

#[test]
fn doorbells_beyond_the_bar_are_refused() {
    for (offset, len) in [(0x4000, 0x1000), (0x3000, 0x1004), (0x10_0000, 0x1000)] {
        let card = card(BASE);
        card.with(|model| model.config = capability::notified_at(offset, len));
        let error = VirtioNet::<_, Split>::open(card).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("notification"), "{error}");
    }
}

#[test]
fn one_that_does_not_agree_is_refused() {
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
fn the_receive_modes_are_as_told() {
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
fn a_control_queue_that_does_not_obey() {
    for lie in [Lie::Answer(1), Lie::Answer(0x55), Lie::Silence] {
        let card = Merge::card();
        let stand = Stand::<Merge>::usual();
        let mut driver = VirtioNet::<_, Split>::open(card.clone()).unwrap();
        card.with(|model| model.lie = Some(lie));
        let error = driver
            .start(&settings::<Merge>(1), &stand.frames, 1)
            .err()
            .unwrap();
        let expected = match lie {
            Lie::Silence => ErrorKind::Io,
            _ => ErrorKind::Unsupported,
        };
        assert_eq!(error.kind(), expected, "{lie:?}: {error}");
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

fn counts_of_buffers_that_are_lies<R: Rig<Model = VirtioModel>>() {
    for count in [0, 2, 3, RING_LEN as u16, RING_LEN as u16 + 1, 0xffff] {
        let mut stand = Stand::<R>::usual();
        stand
            .card
            .with(|model| model.lie = Some(Lie::NumBuffers(count)));
        assert!(stand.arrive(0, &packet(1, 100)));
        assert_eq!(stand.take(0, 64), [], "{count}");
        assert_eq!(stand.refused.invalid, 1, "{count}");
        stand.refill(0);
        assert!(stand.arrive(0, &packet(2, 5000)));
        assert_eq!(stand.receive(0)[0].bytes, packet(2, 5000), "{count}");
        // Two packets, and the first says that the second is a part of it.
        stand
            .card
            .with(|model| model.lie = Some(Lie::NumBuffers(2)));
        assert!(stand.arrive(0, &packet(3, 100)));
        assert!(stand.arrive(0, &packet(4, 100)));
        let got = stand.receive(0);
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].segments, got[0].bytes.len()), (2, 212));
        stand.end();
    }
}

#[test]
fn counts_of_buffers_that_are_lies_split() {
    counts_of_buffers_that_are_lies::<Merge>();
}

#[test]
fn counts_of_buffers_that_are_lies_packed() {
    counts_of_buffers_that_are_lies::<MergePacked>();
}

#[test]
fn an_index_that_jumps_is_bounded() {
    for by in [1, 63, 64, 300, 0x7fff, 0xffff] {
        let mut stand = Stand::<Merge>::usual();
        let watch = stand.rx[0].watch();
        stand.card.with(|model| model.lie = Some(Lie::Jump(by)));
        assert!(stand.arrive(0, &packet(1, 100)));
        assert!(watch() <= RING_LEN);
        // Whatever the entries say, a frame comes back once, and each batch ends.
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

/// The sum of 16-bit words that RFC 1071 speaks of, over what begins at an even place.
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
fn a_device_that_uses_without_end_holds_nobody_up() {
    let mut stand = Stand::<Merge>::usual();
    // As far ahead as an index can be: a call looks at as many as the ring has, and comes back.
    stand.card.with(|model| model.lie = Some(Lie::Jump(0x7fff)));
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
fn a_stop_without_the_means_ends_with_the_buffers() {
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
fn what_the_header_says_of_the_checksum_is_told() {
    let mut stand = Stand::<Merge>::usual();
    // No place for a checksum: what needs one stays as it is.
    stand.card.with(|model| model.checksum = (0xffff, 0));
    for (flags, told) in [
        (0, 0),
        (1, Slot::CHECKSUM_PARTIAL),
        (2, Slot::CHECKSUM_GOOD),
        (3, Slot::CHECKSUM_PARTIAL),
        (0xfc, 0),
    ] {
        stand.card.with(|model| model.flags = flags);
        assert!(stand.arrive(0, &packet(1, 100)));
        assert_eq!(stand.receive(0)[0].flags, told, "{flags:#x}");
    }
    stand.end();
}

#[test]
fn what_was_not_agreed_upon_is_not_believed() {
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
        let lie = Some(Fault::Length(len));
        stand.card.with(|model| model.set_fault(lie));
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
        .with(|model| model.lie = Some(Lie::FirstLength(12)));
    assert!(stand.arrive(0, &packet(3, 5000)));
    assert_eq!(stand.receive(0), []);
    assert_eq!(stand.refused.invalid, before + 1);
    assert!(stand.arrive(0, &packet(4, 5000)));
    assert_eq!(stand.receive(0)[0].bytes, packet(4, 5000));
    stand.end();
}

#[test]
fn lengths_that_are_lies_split() {
    lengths_that_are_lies::<Merge>();
}

#[test]
fn lengths_that_are_lies_packed() {
    lengths_that_are_lies::<MergePacked>();
}

#[test]
fn a_configuration_that_changes_is_read_again() {
    let mut stand = Stand::<Merge>::usual();
    stand.card.with(|model| model.unsteady = 3);
    assert!(stand.driver.link().up);
    assert_eq!(stand.card.with(|model| model.unsteady), 0);
    stand.end();
}

#[test]
fn polling_tells_the_device_nothing_that_it_did_not_ask_for() {
    let mut stand = Stand::<Merge>::usual();
    assert!(stand.arrive(0, &packet(0, 100)));
    stand.receive(0);
    let before = stand.card.with(|model| model.doorbells);
    for number in 0..500 {
        assert!(stand.arrive(0, &packet(number, 100)));
        assert_eq!(stand.receive(0).len(), 1);
    }
    // The device has buffers and does not ask for news of more.
    assert_eq!(stand.card.with(|model| model.doorbells), before);
    stand.end();
}
