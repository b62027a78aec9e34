//! The driver on the model of its card.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ring::{FrameCache, Pool, PoolConfig};
use sys::ErrorKind;
use sys::memfd::HugePages;

use super::model::BUS_MASTER;
use super::registers as reg;
use super::{Igb, IgbModel, PACKET_LEN_MAX};
use crate::account::{DropReason, QueueAccount};
use crate::backend::vfio::assemble;
use crate::backend::vfio::core::Lent;
use crate::backend::vfio::driver::Driver;
use crate::backend::vfio::model::{Fault, Model, ModelCard};
use crate::control::PortEvent;
use crate::open::{Port, PortName};
use crate::options::{Direction, PortOptions};
use crate::rx::Ready;
use crate::slot::Checksum;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

struct Rig {
    card: ModelCard<IgbModel>,
    port: Port,
    pool: Pool,
}

fn pool(frame_count: u32, frame_len: u32) -> Pool {
    Pool::new(PoolConfig {
        frame_count,
        frame_len,
        huge_pages: HugePages::Never,
    })
    .unwrap()
}

fn card() -> ModelCard<IgbModel> {
    ModelCard::new(|memory, events| IgbModel::new(memory, events, MAC))
}

fn open_on(card: &ModelCard<IgbModel>, options: &PortOptions) -> sys::Result<Port> {
    let name = PortName {
        scheme: "vfio",
        target: "model".into(),
        queue: None,
        options: Vec::new(),
    };
    open_lent(None, card, &name, options)
}

fn open_lent(
    lent: Lent,
    card: &ModelCard<IgbModel>,
    name: &PortName,
    options: &PortOptions,
) -> sys::Result<Port> {
    assemble(
        lent,
        Igb::open(card.clone())?,
        name,
        options,
        "a device model",
    )
}

fn rig(change: impl FnOnce(&mut PortOptions)) -> Rig {
    rig_over(pool(512, 2048), change)
}

fn rig_over(pool: Pool, change: impl FnOnce(&mut PortOptions)) -> Rig {
    let mut options = PortOptions {
        pool: Some(pool.clone()),
        ring_len: 64,
        direction: Direction::Both,
        ..PortOptions::default()
    };
    change(&mut options);
    let card = card();
    let port = open_on(&card, &options).unwrap();
    Rig { card, port, pool }
}

impl Rig {
    fn arrive(&self, packet: &[u8]) -> bool {
        self.card.with(|model| model.receive(packet))
    }

    fn fault(&self, fault: Fault) {
        self.card.with(|model| model.faults.push_back(fault));
    }

    /// All that is there on queue `at`, each packet whole.
    fn take(&mut self, at: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let batch = self.port.rx[at].receive().unwrap();
            if batch.is_empty() {
                return all;
            }
            all.extend(
                batch
                    .iter()
                    .map(|packet| packet.segments().flatten().copied().collect()),
            );
        }
    }

    fn account(&mut self) -> QueueAccount {
        let account = self.port.control.account().unwrap();
        let total = account.rx_total();
        assert_eq!(total.imbalance(), 0, "{account:?}");
        total
    }

    /// Closes the port, after which the card reaches nothing and every frame is free.
    fn close(self) {
        drop(self.port);
        assert_eq!(self.pool.counts().free, self.pool.frame_count());
        assert!(self.card.memory().is_empty(), "memory is still mapped");
        self.card.with(|model| {
            assert_eq!(model.log.last(), Some(&(BUS_MASTER, 0)));
        });
    }
}

/// What holds for every driver.
mod all {
    use super::super::{Igb, IgbModel};
    use super::{MAC, ModelCard};
    use crate::backend::vfio::laws::{Rig, laws};
    use crate::backend::vfio::model::{Fault, Model};

    struct IgbRig;

    impl Rig for IgbRig {
        type Model = IgbModel;
        type Driver = Igb<ModelCard<IgbModel>>;

        const ENDS: bool = true;

        fn room(frame_len: u32) -> usize {
            // §8.10.2: whole KiB.
            if frame_len == 4096 { 3072 } else { 2048 }
        }

        fn card() -> ModelCard<IgbModel> {
            ModelCard::new(|memory, events| IgbModel::new(memory, events, MAC))
        }

        fn receive(model: &mut IgbModel, queue: u32, packet: &[u8]) -> bool {
            let before = model.without_descriptor(queue);
            model.receive(packet) && model.without_descriptor(queue) == before
        }

        fn fault(model: &mut IgbModel, fault: Option<Fault>) {
            model.set_fault(fault);
        }

        fn break_down(model: &mut IgbModel) {
            model.reset();
        }

        fn vanish(model: &mut IgbModel) {
            model.set_fault(Some(Fault::Gone));
            model.step();
        }

        fn mark_sent(model: &mut IgbModel, entry: u32) -> bool {
            model.mark_sent(entry);
            true
        }

        fn doorbells(model: &IgbModel) -> u32 {
            model.doorbells()
        }

        fn violations(_: &IgbModel) -> &[String] {
            &[]
        }
    }

    laws!(IgbRig);
}

/// A packet with its number in it, `len` bytes.
fn numbered(number: u32, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[..6].copy_from_slice(&MAC);
    packet[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 8]);
    packet[12..14].copy_from_slice(&[0x88, 0xb5]);
    packet[14..18].copy_from_slice(&number.to_be_bytes());
    for (at, byte) in packet[18..].iter_mut().enumerate() {
        *byte = (number as usize + at * 7) as u8;
    }
    packet
}

/// UDP over IPv4, without a UDP checksum.
fn udp(source: ([u8; 4], u16), destination: ([u8; 4], u16)) -> Vec<u8> {
    let mut packet = numbered(0, 100);
    packet[12..14].copy_from_slice(&[8, 0]);
    packet[14..24].copy_from_slice(&[0x45, 0, 0, 86, 0, 0, 0, 0, 64, 17]);
    packet[24..26].fill(0);
    packet[26..30].copy_from_slice(&source.0);
    packet[30..34].copy_from_slice(&destination.0);
    let sum = wire::checksum::checksum(&packet[14..34]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
    packet[34..36].copy_from_slice(&source.1.to_be_bytes());
    packet[36..38].copy_from_slice(&destination.1.to_be_bytes());
    packet[38..42].copy_from_slice(&[0, 66, 0, 0]);
    packet
}

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
fn the_card_is_stopped_before_its_memory_goes() {
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
fn packets_of_every_length_arrive_over_many_rounds_of_the_ring() {
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
fn what_is_sent_leaves_whole_and_its_frames_come_back() {
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
fn a_packet_of_more_pieces_than_the_batch_comes_alone() {
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
fn a_batch_of_which_part_went_elsewhere_gives_back_the_rest() {
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
            .map(|nth| batch.detach(19 - 2 * nth).unwrap())
            .collect();
        let forwarded = batch.forward(&mut rig.port.tx[0], round % 7).unwrap();
        assert_eq!((forwarded.packets, forwarded.copied), (round % 7, 0));
        // Every other batch is leaked: then the next call gives it back.
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
fn plain_is_what_has_no_odd_flag_and_fits() {
    crate::backend::vfio::intel::plain_is_plain::<super::rx::RxQueue>();
}

#[test]
fn without_frames_packets_are_counted_and_come_again_with_frames() {
    let mut rig = rig_over(pool(40, 2048), |_| ());
    // All frames are in our hands.
    let mut kept = Vec::new();
    for number in 0..40 {
        rig.arrive(&numbered(number, 60));
        let mut batch = rig.port.rx[0].receive().unwrap();
        if batch.len() == 1 {
            kept.push(batch.detach(0).unwrap());
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
fn a_count_of_drops_that_was_full_is_told() {
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
    // The register ends there; the count of good packets goes on.
    assert_eq!(rig.card.with(|model| model.without_descriptor(0)), 4095);
    assert_eq!(dropped(rig.account()), 4094 + 6000);
    assert!(warns(&rig));
    assert_eq!(rig.take(0).len(), 15);
    rig.account();
    rig.close();
}

#[test]
fn without_descriptors_nothing_is_lent_and_nothing_is_lost() {
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
fn descriptors_that_lie_are_refused_and_counted() {
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
fn a_packet_without_end_is_given_up() {
    let mut rig = rig(|_| ());
    for round in 1..20 {
        rig.fault(Fault::NoEnd);
        rig.arrive(&numbered(0, 100));
        // Whatever part of it is there, it is no packet, and its end is that of the next one.
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
fn an_address_outside_hits_nothing() {
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
        assert_eq!(rig.take(0).len(), 1, "told of by a descriptor all the same");
        faults += 1;
        assert_eq!(rig.card.memory().faults(), faults, "{address:#x}");
    }
    rig.arrive(&numbered(8, 100));
    assert_eq!(rig.take(0), [numbered(8, 100)]);
    rig.close();
}

#[test]
fn loss_of_the_link_is_told_and_survived() {
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
fn a_link_that_is_down_at_first_comes_up() {
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
fn a_reset_under_us_is_an_error_and_no_hang() {
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
fn a_card_that_is_wanted_back_is_let_go() {
    let mut rig = rig(|_| ());
    rig.arrive(&numbered(1, 60));
    rig.card.want_back();
    assert_eq!(rig.take(0), [numbered(1, 60)]);
    let error = rig.port.rx[0].wait(Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.to_string().contains("wants the card back"), "{error}");
    assert!(error.hint().is_some());
    assert_eq!(rig.port.tx[0].flush().unwrap_err().kind(), ErrorKind::Gone);
    rig.close();
    // Who only looks after the port is told, too.
    let mut rig = self::rig(|_| ());
    rig.card.want_back();
    std::thread::sleep(Duration::from_millis(12));
    assert_eq!(rig.port.control.event(), Some(PortEvent::DeviceGone));
    rig.close();
}

/// What was lent goes back when the card is closed and reaches nothing.
#[test]
fn a_card_is_given_back_last_of_all() {
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
        let port = open_lent(Some(Box::new(lender)), &card, &name, &options).unwrap();
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
fn a_card_that_stops_holds_nobody_up() {
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
    // Closing waits a bounded time, and the frame comes back.
    rig.close();
}

#[test]
fn a_tag_is_told_beside_the_packet() {
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
fn a_tag_stays_where_there_is_no_room_to_put_it_back() {
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
fn checksums_are_told() {
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
    let told: Vec<_> = batch.iter().map(|packet| packet.checksum()).collect();
    let expected = [
        Checksum::Unknown,
        Checksum::Bad,
        Checksum::Good,
        Checksum::Bad,
        Checksum::Unknown,
    ];
    assert_eq!(told, expected);
    drop(batch);
    rig.close();
}

#[test]
fn both_directions_of_a_flow_meet_on_one_queue() {
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
    let port = open_lent(None, &card, &name, &options).unwrap();
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
    let error = open_lent(None, &card, &name, &options)
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn only_our_own_packets_unless_promiscuous() {
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
    // While nobody sleeps no interrupt is let through.
    assert_eq!(rig.card.with(|model| model.get(reg::EIMS)), 0);
    rig.close();
}

#[test]
fn after_stop_nothing_new_comes_in() {
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
fn half_a_packet_wakes_nobody() {
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
fn a_start_that_fails_stops_the_card_before_its_memory_goes() {
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
fn what_a_card_that_obeys_nobody_holds_is_given_to_nobody() {
    let rig = rig(|_| ());
    rig.card.with(|model| model.is_deaf = true);
    drop(rig.port);
    let counts = rig.pool.counts();
    assert_eq!((counts.device, counts.user), (63, 0), "{counts:?}");
    assert!(rig.card.memory().is_empty(), "the IOMMU has the last word");
}

#[test]
fn what_comes_to_a_closed_queue_is_counted() {
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
fn what_never_left_is_counted_by_packet() {
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
