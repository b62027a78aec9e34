//! Properties of every driver, tested on its device model: a table of tests over a table of drivers
//! ([`laws!`]).

mod hostile;
mod packets;

use std::sync::Arc;

use ring::slot::{Filled, Slot, Vlan};
use ring::{FrameCache, Pool, PoolConfig};
use sys::memfd::HugePages;

use super::dma::PoolDma;
use super::driver::{Driver, DriverRx, DriverTx, Function, Health, Refused, Settings, TxPart};
use super::model::{Fault, Model, ModelCard};

pub(super) use self::hostile::*;
pub(super) use self::packets::*;

/// A driver with the model of its card.
pub(super) trait Rig: 'static {
    /// The card.
    type Model: Model;
    /// Its driver.
    type Driver: Driver<Function = ModelCard<Self::Model>>;

    /// Whether a packet may be larger than a frame.
    const JUMBO: bool = true;
    /// Whether a packet's end is known only when its last descriptor is present.
    const ENDS: bool = false;

    /// Number of packet bytes that fit into one frame.
    fn room(_frame_len: u32) -> usize {
        2048
    }

    /// Creates a card.
    fn card() -> ModelCard<Self::Model>;
    /// Delivers a packet to a queue; false if the card lost it.
    fn receive(model: &mut Self::Model, queue: u32, packet: &[u8]) -> bool;
    /// Injects a fault once (or [`Fault::Stop`], until it is changed).
    fn fault(model: &mut Self::Model, fault: Option<Fault>);
    /// Resets or disables the card.
    fn break_down(model: &mut Self::Model);
    /// Removes the card.
    fn vanish(model: &mut Self::Model);
    /// Marks a descriptor of the sending ring as done, whether it is or not; false for a card whose
    /// rings have no such flag.
    fn mark_sent(_model: &mut Self::Model, _entry: u32) -> bool {
        false
    }
    /// Number of doorbell writes so far.
    fn doorbells(model: &Self::Model) -> u32;
    /// Violations of the specification by the driver.
    fn violations(model: &Self::Model) -> &[String];
}

type RxOf<R> = <<R as Rig>::Driver as Driver>::Rx;
type TxOf<R> = <<R as Rig>::Driver as Driver>::Tx;

/// A copy of a received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Got {
    pub bytes: Vec<u8>,
    pub segments: usize,
    pub vlan: Option<Vlan>,
    pub flags: u16,
}

/// A started card, with access to both sides.
pub(super) struct Stand<R: Rig> {
    pub card: ModelCard<R::Model>,
    pub driver: R::Driver,
    pub rx: Vec<RxOf<R>>,
    pub tx: Vec<TxOf<R>>,
    pub pool: Pool,
    pub cache: FrameCache,
    pub frames: Arc<PoolDma>,
    pub refused: Refused,
}

pub(super) const RING_LEN: u32 = 64;

/// Settings for this many queues in each direction, with frames of 2048 bytes.
pub(super) fn settings<R: Rig>(queues: u32) -> Settings {
    Settings {
        first: 0,
        rx_count: queues,
        tx_count: queues,
        ring_len: RING_LEN,
        frame_len: 2048,
        promiscuous: true,
        multicast: true,
        packet_len_max: if R::JUMBO { 9018 } else { 1518 },
    }
}

impl<R: Rig> Stand<R> {
    pub(super) fn new(settings: &Settings) -> Self {
        Self::of(R::card(), settings)
    }

    pub(super) fn of(card: ModelCard<R::Model>, settings: &Settings) -> Self {
        let pool = Pool::new(PoolConfig {
            frame_count: 1024,
            frame_len: settings.frame_len,
            huge_pages: HugePages::Never,
        })
        .unwrap();
        let mut driver = R::Driver::open(card.clone()).unwrap();
        let frames = card.dma().map_pool(&pool).unwrap();
        let queues = driver.start(settings, &frames, settings.rx_count).unwrap();
        assert_eq!(queues.rx.len() as u32, settings.rx_count);
        assert_eq!(queues.tx.len() as u32, settings.tx_count);
        Self {
            card,
            driver,
            rx: queues.rx,
            tx: queues.tx,
            cache: FrameCache::new(pool.clone()),
            pool,
            frames,
            refused: Refused::default(),
        }
    }

    pub(super) fn usual() -> Self {
        let mut stand = Self::new(&settings::<R>(1));
        stand.refill(0);
        stand
    }

    /// Offers frames for all vacant entries.
    pub(super) fn refill(&mut self, queue: usize) {
        let rx = &mut self.rx[queue];
        for _ in 0..rx.vacant() {
            let Some(index) = self.cache.take_for_device() else {
                break;
            };
            rx.offer_run(&[index]);
        }
        rx.publish();
    }

    /// Harvests once, at most `max` slots, and returns all frames to the pool (not to the card).
    pub(super) fn take(&mut self, queue: usize, max: usize) -> Vec<Got> {
        let (mut slots, mut back) = (Vec::new(), Vec::new());
        let filled = self.rx[queue].harvest(&mut slots, max, 0, &mut back, &mut self.refused);
        assert_eq!(filled, Filled::of(&slots));
        let mut all = Vec::new();
        let mut at = 0;
        while at < slots.len() {
            let last = slots[at..]
                .iter()
                .position(|slot| !slot.has(Slot::CONTINUES));
            let end = at + last.expect("no packet is cut") + 1;
            let mut bytes = Vec::new();
            for slot in &slots[at..end] {
                // SAFETY: the slot's memory is ours until its frame goes back below.
                bytes.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(slot.data().as_ptr(), slot.cap_len() as usize)
                });
            }
            let head = &slots[at];
            assert_eq!(head.wire_len as usize, bytes.len());
            all.push(Got {
                bytes,
                segments: end - at,
                vlan: head.has(Slot::VLAN).then_some(head.vlan),
                flags: head.flags & !Slot::CONTINUES,
            });
            at = end;
        }
        assert!(
            slots.len() <= max || all.len() == 1,
            "more slots than asked for"
        );
        for index in slots.iter().map(|slot| slot.token() as u32).chain(back) {
            // SAFETY: harvested just now, and nothing refers to it any more.
            let ours = unsafe { self.cache.give_index(index) };
            assert!(ours, "frame {index} was not ours");
        }
        all
    }

    /// Harvests everything, and offers new frames.
    pub(super) fn receive(&mut self, queue: usize) -> Vec<Got> {
        let mut all = Vec::new();
        loop {
            let got = self.take(queue, 16);
            self.refill(queue);
            if got.is_empty() && !self.rx[queue].is_ready() {
                return all;
            }
            all.extend(got);
        }
    }

    /// Delivers a packet.
    pub(super) fn arrive(&mut self, queue: u32, packet: &[u8]) -> bool {
        self.card.with(|model| R::receive(model, queue, packet))
    }

    /// Posts a packet in parts of the given lengths, each at an offset in its frame; false without
    /// room or frames.
    pub(super) fn post(&mut self, queue: usize, packet: &[u8], cuts: &[usize], at: u32) -> bool {
        if self.tx[queue].room() <= cuts.len() as u32 {
            return false;
        }
        self.put(queue, packet, cuts, at);
        true
    }

    /// The same for a packet for which there must be room.
    fn put(&mut self, queue: usize, packet: &[u8], cuts: &[usize], at: u32) {
        let parts = cuts.len() as u32 + 1;
        let mut rest = packet;
        for number in 0..parts {
            let len = cuts.get(number as usize).copied().unwrap_or(rest.len());
            let (now, later) = rest.split_at(len);
            rest = later;
            let mut frame = self.cache.take().unwrap();
            self.pool.set_range(&mut frame, at, len as u32);
            self.pool.bytes_mut(&mut frame).copy_from_slice(now);
            let index = self.pool.give_to_device(frame);
            self.tx[queue].post(TxPart {
                index,
                offset: at,
                len: len as u32,
                packet_len: packet.len() as u32,
                is_first: number == 0,
                is_last: number + 1 == parts,
            });
        }
    }

    /// Starts the card on posted packets, and reclaims sent ones.
    pub(super) fn flush(&mut self, queue: usize) -> Vec<Vec<u8>> {
        self.tx[queue].publish();
        self.card.with(Model::step);
        self.reclaim(queue);
        self.card
            .with(|model| std::iter::from_fn(|| model.sent()).collect())
    }

    pub(super) fn reclaim(&mut self, queue: usize) {
        let cache = &mut self.cache;
        self.tx[queue].reclaim(|frames| {
            for &index in frames {
                // SAFETY: the card is done with it.
                let of_card = unsafe { cache.reclaim(index) };
                assert!(of_card, "frame {index} was not the card's");
            }
        });
    }

    /// Shuts the card down and checks that every frame is accounted for, and that there was no
    /// error.
    pub(super) fn end(mut self) {
        self.driver.shut_down();
        let packet = packet(1, 100);
        assert!(!self.arrive(0, &packet), "it receives after its end");
        let cache = &mut self.cache;
        let mut back = |index| {
            // SAFETY: the card has been shut down.
            let of_card = unsafe { cache.reclaim(index) };
            assert!(of_card, "frame {index} was not the card's");
        };
        for rx in &mut self.rx {
            rx.drain(&mut back);
        }
        for tx in &mut self.tx {
            tx.drain(&mut back);
            assert_eq!(tx.pending(), 0);
        }
        self.driver.shut_down();
        let counts = self.pool.counts();
        assert_eq!((counts.device, counts.user), (0, 0), "{counts:?}");
        self.card.with(|model| {
            assert_eq!(R::violations(model), [] as [String; 0]);
        });
    }

    /// Number of accesses refused by the model's IOMMU.
    pub(super) fn faults(&self) -> u64 {
        self.card.memory().faults()
    }
}

/// A broadcast packet that contains a number, and bytes that encode their position.
pub(super) fn packet(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u32 * 7 + number) as u8).collect();
    bytes[..6].fill(0xff);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    if let Some(place) = bytes.get_mut(14..18) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    bytes
}

/// Lengths of untagged packets, in rotation.
fn len_of(number: u32) -> usize {
    60 + (number as usize * 131) % 1455
}

/// A generator sufficient for tests; seeded from `BAREWIRE_SEED`, or with a constant.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        let given = std::env::var("BAREWIRE_SEED").ok();
        let seed: u64 = given.map_or(1, |seed| seed.parse().expect("BAREWIRE_SEED is a number"));
        println!("BAREWIRE_SEED={seed}");
        // A generator of this kind would stay at zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32 % end
    }
}

/// Generates a test for each law, for one rig.
macro_rules! laws {
    ($rig:ty) => {
        $crate::laws::laws!($rig: packets_arrive, packets_leave, exhaustion,
            room_is_for_any_parts, a_full_sending_ring, closing_with_packets_in_flight, jumbo,
            too_long, impossible_lengths,
            packets_without_end, addresses_of_the_cards_own, link, reset_and_loss, stopping,
            few_doorbells, any_order,
            link_down_at_first, sent_marks_that_are_lies);
    };
    ($rig:ty: $($law:ident),*) => {
        $(
            #[test]
            fn $law() {
                $crate::laws::$law::<$rig>();
            }
        )*
    };
}
pub(super) use laws;
